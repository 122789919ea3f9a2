"""Which users listeners with `sasl://` or `tls+sasl://` serve, and how these prove who they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from semel.broker.config.tokens import OAUTHBEARER, TokenConfig, check_tokens
from semel.protocol.int_bounds import INT64_MAX
from semel.protocol.loopback import is_loopback
from semel.protocol.schemes import TLS_SASL_PREFIX, asks_for_password, speaks_tls, without_scheme
from semel.protocol.scram import SCRAM_MECHANISMS
from semel.runtime.setting import ConfigError, PartConfig, setting

METRICS_LISTEN: Final = "metrics.listen"
PLAIN: Final = "PLAIN"
_PASSWORDS: Final = (PLAIN, *SCRAM_MECHANISMS)


@dataclass(frozen=True)
class SaslConfig(PartConfig):
    """Users of the listeners with `sasl://` and `tls+sasl://`."""

    sasl_users_location: str = setting(
        "",
        "File with users of the listeners whose address begins with sasl:// or tls+sasl://, one a line, as "
        "`semel user add --file` writes them: it holds no passwords, but what proves them. Read again when it changes, "
        "without a restart. Empty: only users of the cluster's metadata are served. A user in the file is one by the "
        "file alone on this node, whatever the metadata has.",
    )
    users_max: int = setting(
        10_000,
        "Users in the cluster's metadata. More are refused with POLICY_VIOLATION: they are in each snapshot of it, and "
        "each change of one copies the table of all.",
        minimum=1,
        maximum=100_000,
        dynamic=True,
    )
    sasl_enabled_mechanisms: tuple[str, ...] = setting(
        SCRAM_MECHANISMS,
        "How clients of the Kafka listener may prove their password: SCRAM-SHA-256 and SCRAM-SHA-512 do so without "
        "telling it; PLAIN sends it. OAUTHBEARER takes tokens, on both listeners; alone, it needs no file of users.",
        choices=(PLAIN, OAUTHBEARER, *SCRAM_MECHANISMS),
    )
    sasl_plain_without_tls: bool = setting(
        False,
        "Whether passwords may cross a network unencrypted: on a gRPC listener with sasl://, and by PLAIN on a Kafka "
        "listener with sasl://; and tokens. With false the node does not start so, but on 127.0.0.1.",
    )
    connections_max_reauth_ms: int = setting(
        0,
        "How long a connection of the Kafka listener is served before its client has to prove again who it is, by the "
        "same mechanism and as the same user, on the same connection (KIP-368); one that continues without is closed. "
        "0: for ever.",
        unit="ms",
        minimum=0,
        maximum=INT64_MAX,
    )


class SaslAndTokens(SaslConfig, TokenConfig):
    """What listeners with `sasl://` take, of both kinds."""


def takes_passwords(config: SaslConfig) -> bool:
    """Return whether clients may prove a password."""
    return any(each in _PASSWORDS for each in config.sasl_enabled_mechanisms)


def takes_tokens(config: SaslConfig, of_clients: Iterable[str]) -> bool:
    """Return whether one of these listeners takes tokens."""
    return OAUTHBEARER in config.sasl_enabled_mechanisms and any(map(asks_for_password, of_clients))


def check_sasl(config: SaslAndTokens, listeners: Mapping[str, str]) -> None:
    """Raise `ConfigError` where a listener lacks its users, or passwords would be readable in the network.

    listeners: those that may ask for passwords, their addresses by what messages call them, a setting's name first
    """
    asking = {name: listen for name, listen in listeners.items() if asks_for_password(listen)}
    if config.sasl_users_location and not asking:
        raise ConfigError(
            f"sasl.users.location = {config.sasl_users_location} is used by no listener: write {TLS_SASL_PREFIX} "
            f"before the address of {' or '.join(listeners)}, or leave it out"
        )
    if asking and not config.sasl_enabled_mechanisms:
        raise ConfigError(f"sasl.enabled.mechanisms is empty: use {' or '.join(SCRAM_MECHANISMS)}")
    if config.sasl_users_location and not takes_passwords(config):
        raise ConfigError(
            f"sasl.users.location = {config.sasl_users_location} is not used: sasl.enabled.mechanisms has "
            f"{OAUTHBEARER} alone. Have {SCRAM_MECHANISMS[0]} there, too, or leave the file out"
        )
    check_tokens(config, are_taken=takes_tokens(config, asking.values()))
    for name, listen in asking.items():
        # Both send a password as it is.
        is_grpc, is_metrics = name.startswith("grpc."), name == METRICS_LISTEN
        readable = [each for each in (PLAIN, OAUTHBEARER) if each in config.sasl_enabled_mechanisms]
        sends = is_grpc or is_metrics or readable
        is_local = is_loopback(without_scheme(listen).rpartition(":")[0])
        if sends and not speaks_tls(listen) and not is_local and not config.sasl_plain_without_tls:
            way = f"clients with sasl.mechanism={readable[0]}" if readable else ""
            way = "gRPC's clients" if is_grpc else "who reads the metrics" if is_metrics else way
            what = "passwords" if PLAIN in readable or is_grpc or is_metrics else "tokens"
            raise ConfigError(
                f"{name} = {listen}: {way} would send their {what} readable for everybody in the network. Write "
                f"{TLS_SASL_PREFIX} before the address, or set sasl.plain.without.tls=true where the network is "
                "encrypted otherwise"
            )
