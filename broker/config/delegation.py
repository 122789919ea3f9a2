"""Whether a node takes delegation tokens (KIP-48), and how long they are good."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from semel.broker.config.sasl import SaslConfig
from semel.protocol.schemes import TLS_SASL_PREFIX, asks_for_password
from semel.protocol.scram import SCRAM_MECHANISMS
from semel.protocol.time_units import DAY_MS
from semel.runtime.setting import ConfigError, PartConfig, setting

SECRET_FILE: Final = "delegation.token.secret.file"  # noqa: S105 (the name of a setting)
_DAYS_MAX: Final = 36_500
"""So that each time is one that the protocol's readers know as a date."""


@dataclass(frozen=True)
class DelegationConfig(PartConfig):
    """Delegation tokens: users ask for them, and their programs log in with them."""

    delegation_token_secret_file: str = setting(
        "",
        "File with the secret by which delegation tokens are made and checked (Kafka's delegation.token.secret.key): "
        "32 to 4096 bytes, the same on all nodes of the cluster. Let only the node's user read it. Empty: there are no "
        "delegation tokens.",
    )
    delegation_token_max_lifetime_ms: int = setting(
        7 * DAY_MS,
        "How long after it was made a delegation token can be renewed.",
        unit="ms",
        minimum=1,
        maximum=_DAYS_MAX * DAY_MS,
    )
    delegation_token_expiry_time_ms: int = setting(
        DAY_MS,
        "How long a delegation token is good before it has to be renewed.",
        unit="ms",
        minimum=1,
        maximum=_DAYS_MAX * DAY_MS,
    )
    delegation_token_expiry_check_interval_ms: int = setting(
        3_600_000,
        "How often delegation tokens that have expired are removed from the metadata. They are good no more before "
        "that.",
        unit="ms",
        minimum=1,
        maximum=_DAYS_MAX * DAY_MS,
    )


class SaslAndDelegation(SaslConfig, DelegationConfig):
    """What decides whether delegation tokens can be used."""


def check_delegation(config: SaslAndDelegation, of_clients: Iterable[str]) -> None:
    """Raise `ConfigError` where settings of delegation tokens have no effect. of_clients: the listeners' addresses"""
    if not config.delegation_token_secret_file:
        for name, default in _DEFAULTS.items():
            if getattr(config, name.replace(".", "_")) != default:
                raise ConfigError(f"{name} has no effect without {SECRET_FILE}: set that, or leave {name} out")
        return
    what = f"{SECRET_FILE} = {config.delegation_token_secret_file}"
    if not any(map(asks_for_password, of_clients)):
        raise ConfigError(
            f"{what} has no effect: no listener asks who its clients are. Write {TLS_SASL_PREFIX} before the address "
            "of kafka.listen and grpc.listen, or leave it out"
        )
    if not set(SCRAM_MECHANISMS) & set(config.sasl_enabled_mechanisms):
        raise ConfigError(
            f"{what} has no effect: clients show delegation tokens by {' or '.join(SCRAM_MECHANISMS)}. Have one of "
            "these in sasl.enabled.mechanisms, or leave it out"
        )


_DEFAULTS: Final = {
    name: getattr(DelegationConfig(), name.replace(".", "_"))
    for name in (
        "delegation.token.max.lifetime.ms",
        "delegation.token.expiry.time.ms",
        "delegation.token.expiry.check.interval.ms",
    )
}
