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
        ({"peer_listen": f"sasl://{HERE}:0"}, "only kafka.listen, grpc.listen, metrics.listen can have sasl://"),
        ({"metrics_listen": f"sasl://{FAR}:0"}, "who reads the metrics would send their passwords readable"),
        ({"kafka_advertised": f"sasl://{HERE}:1"}, "only kafka.listen, grpc.listen, metrics.listen can have sasl://"),
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


TOKENS = {
    "sasl_enabled_mechanisms": ("OAUTHBEARER",),
    "sasl_oauthbearer_jwks_endpoint_url": "https://issuer.example.com/keys",
    "sasl_oauthbearer_expected_audience": ("semel",),
}
_URL = "sasl_oauthbearer_jwks_endpoint_url"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({_URL: ""}, "OAUTHBEARER needs sasl.oauthbearer.jwks.endpoint.url"),
        ({_URL: "keys.json"}, "is neither file:///PATH nor https://HOST/PATH"),
        ({_URL: "file://keys.json"}, "is neither file:///PATH nor https://HOST/PATH"),
        ({_URL: "https://[x/keys"}, "is neither file:///PATH nor https://HOST/PATH"),
        ({_URL: "https:///keys"}, "is neither file:///PATH nor https://HOST/PATH"),
        ({_URL: "http://issuer.example.com/keys"}, "write https://"),
        ({_URL: "https://me:hunter2@issuer.example.com/keys"}, "has a user or a password in it"),
        ({"sasl_oauthbearer_expected_audience": ()}, "needs sasl.oauthbearer.expected.audience"),
        ({"sasl_oauthbearer_allowed_algorithms": ()}, "sasl.oauthbearer.allowed.algorithms is empty"),
        ({"sasl_oauthbearer_allowed_algorithms": ("HS256",)}, "sasl.oauthbearer.allowed.algorithms"),
        ({"sasl_oauthbearer_allowed_algorithms": ("none",)}, "sasl.oauthbearer.allowed.algorithms"),
        ({"sasl_oauthbearer_sub_claim_name": ""}, "sub.claim.name is empty"),
        ({"sasl_oauthbearer_scope_claim_name": "scp"}, "scope.claim.name has no effect"),
        ({"sasl_enabled_mechanisms": ("PLAIN",), **USERS}, "has no effect: no listener takes tokens"),
        ({"kafka_listen": f"{HERE}:0"}, "has no effect: no listener takes tokens"),
        (USERS, "sasl.users.location = users is not used"),
        ({"kafka_listen": f"sasl://{FAR}:0"}, "clients with sasl.mechanism=OAUTHBEARER would send their tokens"),
    ],
)
def test_S5_S6_settings_of_tokens_that_do_not_fit_together_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        check_config(NodeConfig(**{"kafka_listen": f"sasl://{HERE}:0", **TOKENS, **settings}))
    assert said in raised.value.message
    assert "hunter2" not in raised.value.message


@pytest.mark.parametrize(
    "settings",
    [
        {"kafka_listen": f"tls+sasl://{FAR}:0", **TLS},
        {"grpc_listen": f"sasl://{HERE}:0", _URL: "file:///etc/keys"},
        {"kafka_listen": f"sasl://{HERE}:0", "sasl_enabled_mechanisms": ("OAUTHBEARER", "SCRAM-SHA-256"), **USERS},
        {
            "kafka_listen": f"sasl://{HERE}:0",
            "sasl_oauthbearer_expected_audience": (),
            "sasl_oauthbearer_required_scope": "kafka",
            "sasl_oauthbearer_scope_claim_name": "scp",
            _URL: "http://127.0.0.1:8080/keys",
        },
    ],
)
def test_settings_of_tokens_that_fit_together_are_taken(settings: dict[str, Any]) -> None:
    check_config(NodeConfig(**{**TOKENS, **settings}))
