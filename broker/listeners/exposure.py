"""Which listeners serve anybody beyond the loopback: all that do not ask for a certificate (S6)."""

from __future__ import annotations

from typing import Final

from semel.broker.config.node_config import NodeConfig
from semel.broker.config.sources import parse_address
from semel.broker.config.tls import CLIENT_AUTH_REQUIRED
from semel.protocol.loopback import is_loopback
from semel.protocol.tls import speaks_tls

_LISTENERS: Final = ("kafka.listen", "grpc.listen")
ALLOW_SETTING: Final = "listeners.allow.anonymous"


def exposed_listeners(config: NodeConfig) -> list[str]:
    """Return the listeners that serve other machines without knowing who asks, as `kafka.listen=0.0.0.0:9092`."""
    asks = config.ssl_client_auth == CLIENT_AUTH_REQUIRED
    addresses = zip(_LISTENERS, (config.kafka_listen, config.grpc_listen), strict=True)
    return [
        f"{name}={text}"
        for name, text in addresses
        if not is_loopback(parse_address(name, text).host) and not (asks and speaks_tls(text))
    ]
