"""How listeners encrypt, and which of them do: those with `tls://` before their address."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from semel.broker.config.listeners import ClientListener
from semel.protocol.schemes import TLS_PREFIX, TLS_SASL_PREFIX, asks_for_password, speaks_tls
from semel.runtime.setting import ConfigError, PartConfig, setting

CLIENT_AUTH_NONE: Final = "none"
CLIENT_AUTH_REQUIRED: Final = "required"
PEER_LISTEN: Final = "peer.listen"


@dataclass(frozen=True)
class TlsConfig(PartConfig):
    """Certificates of the listeners with `tls://`. The files are read again when they change."""

    ssl_certificate_location: str = setting(
        "",
        "PEM file with the node's certificate and those that lead from it to an authority. For the listeners whose "
        "address begins with tls://. Read again when it changes, without a restart.",
    )
    ssl_key_location: str = setting(
        "",
        "PEM file with the private key of ssl.certificate.location, not encrypted: only the node's user should be able "
        "to read it.",
    )
    ssl_ca_location: str = setting(
        "",
        "PEM file with the authorities of others' certificates: of clients, for ssl.client.auth = required, and of the "
        "other nodes, where their peer.listen begins with tls://.",
    )
    ssl_client_auth: str = setting(
        CLIENT_AUTH_NONE,
        "Whether clients have to show a certificate of ssl.ca.location (mutual TLS). Those without one are refused.",
        choices=(CLIENT_AUTH_NONE, CLIENT_AUTH_REQUIRED),
    )


@dataclass(frozen=True, slots=True)
class ListenerTls:
    """What one listener encrypts with: its own settings, and the general ones where it has none.

    owner: what messages call it, before the name of a setting; empty for the general ones
    """

    certificate: str
    key: str
    authorities: str
    client_auth: str
    owner: str = ""

    @property
    def asks_for_certificates(self) -> bool:
        return self.client_auth == CLIENT_AUTH_REQUIRED


def tls_of(config: TlsConfig, listener: ClientListener | None = None) -> ListenerTls:
    """Return what a listener encrypts with; without one, what the general settings say."""
    own = {} if listener is None else dict(listener.tls)
    return ListenerTls(
        own.get("ssl.certificate.location", config.ssl_certificate_location),
        own.get("ssl.key.location", config.ssl_key_location),
        own.get("ssl.ca.location", config.ssl_ca_location),
        own.get("ssl.client.auth", config.ssl_client_auth),
        f"{listener.setting}: " if listener is not None and own else "",
    )


def names_by_certificates(config: TlsConfig, of_clients: Iterable[ClientListener]) -> bool:
    """Return whether a listener knows clients by their certificates, and not by their passwords."""
    return any(
        tls_of(config, each).asks_for_certificates
        for each in of_clients
        if speaks_tls(each.listen) and not asks_for_password(each.listen)
    )


def _check_own(config: TlsConfig, listener: ClientListener) -> None:
    """Raise `ConfigError` where the settings of one listener do not fit together."""
    own, tls = dict(listener.tls), tls_of(config, listener)
    if own and not speaks_tls(listener.listen):
        raise ConfigError(
            f"{listener.setting} = {listener.listen} has {next(iter(own))}, and does not encrypt: write {TLS_PREFIX} "
            f"or {TLS_SASL_PREFIX} before its address"
        )
    if ("ssl.certificate.location" in own) is not ("ssl.key.location" in own):
        raise ConfigError(f"{tls.owner}ssl.certificate.location and ssl.key.location belong together: give both")
    if tls.client_auth not in (CLIENT_AUTH_NONE, CLIENT_AUTH_REQUIRED):
        raise ConfigError(f"{tls.owner}ssl.client.auth = {tls.client_auth[:40]}: use none or required")
    if own and tls.asks_for_certificates and not tls.authorities:
        raise ConfigError(
            f"{tls.owner}ssl.client.auth = {CLIENT_AUTH_REQUIRED} needs ssl.ca.location: a PEM file with the "
            "authorities of the clients' certificates"
        )
    if "ssl.ca.location" in own and not tls.asks_for_certificates:
        raise ConfigError(
            f"{tls.owner}ssl.ca.location is used only with ssl.client.auth={CLIENT_AUTH_REQUIRED}: give that, too, or "
            "leave it out"
        )


def check_tls(config: TlsConfig, clients: Iterable[ClientListener], others: Mapping[str, str]) -> None:
    """Raise `ConfigError` where a listener lacks what it encrypts with, or a file is named that nothing uses.

    others: listeners that have nothing of their own, their addresses by the names of their settings
    """
    clients = tuple(clients)
    for each in clients:
        _check_own(config, each)
    # Those that use the general certificate, and the general client authentication.
    certified = {each.setting: each.listen for each in clients if "ssl.certificate.location" not in dict(each.tls)}
    authenticated = {each.setting: each.listen for each in clients if "ssl.client.auth" not in dict(each.tls)}
    leaning = any(
        tls_of(config, each).asks_for_certificates and "ssl.ca.location" not in dict(each.tls)
        for each in clients
        if each.tls
    )
    listeners = {**certified, **others}
    encrypted = [f"{name} = {listen}" for name, listen in listeners.items() if speaks_tls(listen)]
    for name, value in (
        ("ssl.certificate.location", config.ssl_certificate_location),
        ("ssl.key.location", config.ssl_key_location),
    ):
        if encrypted and not value:
            raise ConfigError(f"{encrypted[0]} needs a certificate: set {name} to a PEM file")
        if value and not encrypted:
            raise ConfigError(
                f"{name} = {value} is used by no listener: write {TLS_PREFIX} before the address of "
                f"{' or '.join(listeners)}, or leave it out"
            )
    is_required = config.ssl_client_auth == CLIENT_AUTH_REQUIRED
    asking = {**authenticated, **{name: listen for name, listen in others.items() if name != PEER_LISTEN}}
    if is_required and not any(map(speaks_tls, asking.values())):
        raise ConfigError(
            f"ssl.client.auth = {CLIENT_AUTH_REQUIRED} protects no listener: write {TLS_PREFIX} before the address of "
            f"{' or '.join(asking)}"
        )
    peer = others[PEER_LISTEN]
    if speaks_tls(peer) and not config.ssl_ca_location:
        raise ConfigError(
            f"{PEER_LISTEN} = {peer} needs ssl.ca.location: a PEM file with the authorities of the other nodes' "
            "certificates"
        )
    if is_required and not config.ssl_ca_location:
        raise ConfigError(
            f"ssl.client.auth = {CLIENT_AUTH_REQUIRED} needs ssl.ca.location: a PEM file with the authorities of the "
            "clients' certificates"
        )
    if config.ssl_ca_location and not is_required and not peer and not leaning:
        raise ConfigError(
            f"ssl.ca.location = {config.ssl_ca_location} is used only with ssl.client.auth = {CLIENT_AUTH_REQUIRED}, "
            f"and with {PEER_LISTEN}: set one of them, or leave it out"
        )
