"""Where a node listens beyond the loopback, where it has neither users nor encryption yet (S6)."""

from __future__ import annotations

from typing import Final

from semel.broker.config.node_config import NodeConfig
from semel.broker.config.sources import parse_address
from semel.protocol.loopback import is_loopback

_LISTENERS: Final = ("kafka.listen", "grpc.listen")
ALLOW_SETTING: Final = "listeners.allow.anonymous"


def exposed_listeners(config: NodeConfig) -> list[str]:
    """Return the listeners that other machines can reach, as `kafka.listen=0.0.0.0:9092`."""
    addresses = zip(_LISTENERS, (config.kafka_listen, config.grpc_listen), strict=True)
    return [f"{name}={text}" for name, text in addresses if not is_loopback(parse_address(name, text).host)]
