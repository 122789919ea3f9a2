"""Which listeners serve anybody beyond the loopback: all that ask neither for a certificate nor for a password (S6)."""

from __future__ import annotations

from typing import Final

from semel.broker.config.listeners import client_listeners
from semel.broker.config.node_config import NodeConfig
from semel.broker.config.tls import CLIENT_AUTH_REQUIRED, tls_of
from semel.protocol.loopback import serves_anybody
from semel.protocol.schemes import TLS_PREFIX, TLS_SASL_PREFIX, without_scheme
from semel.runtime.setting import ConfigError

ALLOW_SETTING: Final = "listeners.allow.anonymous"
METRICS_ALLOW_SETTING: Final = "metrics.allow.anonymous"
INSECURE: Final = "--insecure"
"""The flag of `semel serve` that sets it."""


def exposed_listeners(config: NodeConfig) -> list[str]:
    """Return the listeners that serve other machines without knowing who asks, as `kafka.listen=0.0.0.0:9092`."""
    return [
        f"{each.setting}={each.listen}"
        for each in client_listeners(config)
        if serves_anybody(each.listen, asks_for_certificates=tls_of(config, each).asks_for_certificates)
    ]


def exposes_metrics(config: NodeConfig) -> bool:
    """Return whether other machines read the metrics without being asked who they are."""
    asks = config.ssl_client_auth == CLIENT_AUTH_REQUIRED
    listen = config.metrics_listen
    return bool(listen) and serves_anybody(listen, asks_for_certificates=asks)


def check_exposure(config: NodeConfig) -> None:
    """Raise `ConfigError` where other machines are served without knowing who asks, and no operator says so (S6)."""
    exposed = exposed_listeners(config)
    if exposed and not config.listeners_allow_anonymous:
        name, _, address = exposed[0].rpartition("=")
        raise ConfigError(
            f"other machines can reach {' and '.join(exposed)}, and everybody who can connect may read, write and "
            "delete everything. Four ways out: listen on 127.0.0.1; ask clients for passwords, with "
            f"{name}={TLS_SASL_PREFIX}{without_scheme(address)}; ask them for certificates, with "
            f"{name}={TLS_PREFIX}{without_scheme(address)} and ssl.client.auth=required; or keep strangers "
            f"out of the network, and say so with {ALLOW_SETTING}=true ({INSECURE} of `semel serve`)"
        )
    are_open = config.metrics_allow_anonymous or config.listeners_allow_anonymous
    if exposes_metrics(config) and not are_open:
        listen = config.metrics_listen
        raise ConfigError(
            f"other machines can reach metrics.listen={listen}, and everybody who can connect may read the metrics, "
            "with the names of topics and groups. Four ways out: listen on 127.0.0.1; ask for passwords, with "
            f"metrics.listen={TLS_SASL_PREFIX}{without_scheme(listen)}; ask for certificates, with "
            f"metrics.listen={TLS_PREFIX}{without_scheme(listen)} and ssl.client.auth=required; or say that they may, "
            f"with {METRICS_ALLOW_SETTING}=true"
        )
