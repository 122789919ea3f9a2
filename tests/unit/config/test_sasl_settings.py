"""Settings of users: what does not fit together is refused, and what would show passwords (S5, S6)."""

from __future__ import annotations

from typing import Any

import pytest

from semel.broker.config.exposure import check_exposure, exposed_listeners
from semel.broker.config.node_config import NodeConfig
from semel.broker.config.sources import check_config
from semel.runtime.setting import ConfigError

FAR, HERE = "0.0.0.0", "127.0.0.1"
TLS = {"ssl_certificate_location": "node.pem", "ssl_key_location": "node.key"}
USERS = {"sasl_users_location": "users"}
ALL = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (USERS, "is used by no listener: write tls+sasl:// before the address of kafka.listen or grpc.listen"),
        (
            {"kafka_listen": f"sasl://{HERE}:0", "sasl_enabled_mechanisms": (), **USERS},
            "sasl.enabled.mechanisms is empty",
        ),
        ({"kafka_listen": f"sasl://{HERE}:0", "sasl_enabled_mechanisms": ("GSSAPI",)}, "sasl.enabled.mechanisms"),
        ({"peer_listen": f"sasl://{HERE}:0"}, "only kafka.listen, grpc.listen can have sasl://"),
        ({"metrics_listen": f"tls+sasl://{HERE}:0"}, "only kafka.listen, grpc.listen can have sasl://"),
        ({"kafka_advertised": f"sasl://{HERE}:1"}, "only kafka.listen, grpc.listen can have sasl://"),
        ({"kafka_listen": f"tls+sasl://{HERE}:0", **USERS}, "needs a certificate"),
        ({"grpc_listen": f"sasl://{FAR}:0", **USERS}, "gRPC's clients would send their passwords readable"),
        (
            {"kafka_listen": f"sasl://{FAR}:0", "sasl_enabled_mechanisms": ALL, **USERS},
            "clients with sasl.mechanism=PLAIN would send their passwords readable",
        ),
    ],
)
def test_S5_S6_what_does_not_fit_together_is_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        check_config(NodeConfig(**settings))
    assert said in raised.value.message


@pytest.mark.parametrize(
    "settings",
    [
        {"kafka_listen": f"sasl://{FAR}:0", **USERS},  # SCRAM does not tell the password
        {"kafka_listen": f"sasl://{HERE}:0"},  # the users may be in the cluster's metadata
        {
            "grpc_listen": f"sasl://{HERE}:0",
            "kafka_listen": f"sasl://{HERE}:0",
            "sasl_enabled_mechanisms": ALL,
            **USERS,
        },
        {"grpc_listen": f"sasl://{FAR}:0", "sasl_plain_without_tls": True, **USERS},
        {"grpc_listen": f"tls+sasl://{FAR}:0", "kafka_listen": f"tls+sasl://{FAR}:0", **TLS, **USERS},
    ],
)
def test_what_fits_together_is_taken(settings: dict[str, Any]) -> None:
    check_config(NodeConfig(**settings))


def test_S6_a_listener_that_asks_for_passwords_serves_not_anybody() -> None:
    far = {"kafka_listen": f"sasl://{FAR}:0", "grpc_listen": f"tls+sasl://{FAR}:0", **TLS, **USERS}
    check_exposure(NodeConfig(**far))
    half = {**far, "grpc_listen": f"{FAR}:9094"}
    assert exposed_listeners(NodeConfig(**half)) == [f"grpc.listen={FAR}:9094"]
    with pytest.raises(ConfigError, match=r"grpc\.listen=tls\+sasl://0\.0\.0\.0:9094"):
        check_exposure(NodeConfig(**half))
