"""How listeners encrypt, and which of them do: those with `tls://` before their address."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from semel.protocol.schemes import TLS_PREFIX, asks_for_password, speaks_tls
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


def names_by_certificates(config: TlsConfig, of_clients: Iterable[str]) -> bool:
    """Return whether a listener knows clients by their certificates, and not by their passwords.

    of_clients: their addresses
    """
    is_asked = config.ssl_client_auth == CLIENT_AUTH_REQUIRED
    return is_asked and any(speaks_tls(listen) and not asks_for_password(listen) for listen in of_clients)


def check_tls(config: TlsConfig, listeners: Mapping[str, str]) -> None:
    """Raise `ConfigError` where a listener lacks what it encrypts with, or a file is named that nothing uses.

    listeners: those that may encrypt, their addresses by the names of their settings
    """
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
    of_clients = [name for name in listeners if name != PEER_LISTEN]
    if is_required and not any(speaks_tls(listeners[name]) for name in of_clients):
        raise ConfigError(
            f"ssl.client.auth = {CLIENT_AUTH_REQUIRED} protects no listener: write {TLS_PREFIX} before the address of "
            f"{' or '.join(of_clients)}"
        )
    peer = listeners[PEER_LISTEN]
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
    if config.ssl_ca_location and not is_required and not peer:
        raise ConfigError(
            f"ssl.ca.location = {config.ssl_ca_location} is used only with ssl.client.auth = {CLIENT_AUTH_REQUIRED}, "
            f"and with {PEER_LISTEN}: set one of them, or leave it out"
        )
