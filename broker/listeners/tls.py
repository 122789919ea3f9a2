"""The node's certificate for its listeners: read again when a file of it changes, so that it is renewed while serving.

Files are looked at on each handshake: three calls to stat, some microseconds of a handshake's millisecond. A file that
can't be used (half written, or its key not there yet) is logged, and the node keeps the certificate that it has.
"""

from __future__ import annotations

import logging
import ssl
import threading
import time
from dataclasses import dataclass
from typing import Any, Final, NoReturn

import grpc

from semel.broker.config.listeners import ClientListener, client_listeners
from semel.broker.config.node_config import NodeConfig
from semel.broker.config.tls import tls_of
from semel.protocol.schemes import speaks_tls
from semel.runtime.regular_files import FileSignature, signature_of
from semel.runtime.setting import ConfigError
from semel.runtime.tls_in_memory import shown_to

_log = logging.getLogger("semel.tls")

_FILE_BYTES_MAX: Final = 1 << 20
_RETRY_S: Final = 5.0
"""How long a file that could not be used is left alone, though nothing of it has changed: a descriptor was missing."""
_KEYS: Final = (
    bytes.fromhex("06092a864886f70d010101"),  # RSA
    bytes.fromhex("06082a8648ce3d030107"),  # P-256
    bytes.fromhex("06052b81040022"),  # P-384
    bytes.fromhex("06052b81040023"),  # P-521
)
"""What names, in a certificate, the kinds of keys that both gRPC's library and OpenSSL can use."""
_Signature = tuple[FileSignature, ...]


@dataclass(frozen=True, slots=True)
class _Loaded:
    """What the files have held at one time. `authorities` is None where clients need no certificate."""

    signature: _Signature
    for_clients: ssl.SSLContext
    for_nodes: ssl.SSLContext
    for_metrics: ssl.SSLContext
    certificate: bytes
    key: bytes
    authorities: bytes | None


class Certificates:
    """The certificate that the listeners show, and whose certificates they ask for. From any thread."""

    def __init__(self, config: NodeConfig, listener: ClientListener | None = None) -> None:
        """`listener`: which has settings of its own. Raises `ConfigError` where a file can't be read, or holds
        something else.
        """
        tls = tls_of(config, listener)
        self._owner, self._certificate, self._key = tls.owner, tls.certificate, tls.key
        self._authorities = tls.authorities if tls.asks_for_certificates else ""
        self._lock = threading.Lock()
        self._refused: _Signature | None = None
        self._refused_at = 0.0
        self._told = ""
        signature = self._signature()
        self._loaded = self._load(signature)

    def for_clients(self) -> ssl.SSLContext:
        """Return what encrypts a client's connection that is accepted now."""
        return self._current().for_clients

    def for_nodes(self) -> ssl.SSLContext:
        """Return the same for another node's: it shows no certificate, since the cluster's secret proves more."""
        return self._current().for_nodes

    def for_metrics(self) -> ssl.SSLContext:
        """Return what encrypts a connection to the metrics. Where clients show certificates, probes need not."""
        return self._current().for_metrics

    def grpc_credentials(self) -> grpc.ServerCredentials:
        """Return what gRPC encrypts with: it asks again at each handshake."""
        given = self._loaded

        def renewed() -> Any:
            nonlocal given
            current = self._current()
            if current is given:
                return None
            given = current
            return _grpc_configuration(current)

        credentials: grpc.ServerCredentials = grpc.dynamic_ssl_server_credentials(
            _grpc_configuration(given), renewed, given.authorities is not None
        )
        return credentials

    def _current(self) -> _Loaded:
        with self._lock:
            signature: _Signature = ()
            try:
                signature = self._signature()
                if signature == self._loaded.signature:
                    self._refused, self._told = None, ""
                elif signature != self._refused or time.monotonic() - self._refused_at > _RETRY_S:
                    self._loaded = self._load(signature)
                    _log.info("the certificate was renewed: certificate=%s", self._certificate)
            except ConfigError as error:
                if error.message != self._told:
                    _log.warning("the certificate stays as it was: %s", error.message)
                self._refused, self._refused_at, self._told = signature, time.monotonic(), error.message
            return self._loaded

    def _files(self) -> list[tuple[str, str]]:
        files = [("ssl.certificate.location", self._certificate), ("ssl.key.location", self._key)]
        files += [("ssl.ca.location", self._authorities)] if self._authorities else []
        return [(f"{self._owner}{name}", path) for name, path in files]

    def _signature(self) -> _Signature:
        found = []
        for name, path in self._files():
            try:
                found.append(signature_of(path))
            except OSError as error:
                raise _unreadable(name, path, error) from None
        return tuple(found)

    def _load(self, signature: _Signature) -> _Loaded:
        held = [_read(name, path) for name, path in self._files()]
        context, for_nodes, for_metrics = self._context(), self._context(), self._context()
        if self._authorities:
            self._ask_for_certificates(context, ssl.CERT_REQUIRED)
            self._ask_for_certificates(for_metrics, ssl.CERT_OPTIONAL)
        self._check_key(for_nodes)
        if self._signature() != signature:
            raise ConfigError("the files of the certificate change just now; they are read again")
        authorities = held[2] if self._authorities else None
        return _Loaded(signature, context, for_nodes, for_metrics, held[0], held[1], authorities)

    def _ask_for_certificates(self, context: ssl.SSLContext, mode: ssl.VerifyMode) -> None:
        try:
            context.load_verify_locations(self._authorities)
        except OSError as error:
            raise ConfigError(
                f"{self._owner}ssl.ca.location = {self._authorities} has no certificates in PEM: {_reason(error)}"
            ) from None
        context.verify_mode = mode
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # as gRPC's library does

    def _context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self._certificate, self._key, password=self._encrypted)
        except ssl.SSLError as error:
            raise ConfigError(
                f"{self._owner}ssl.certificate.location = {self._certificate} and ssl.key.location = {self._key} are "
                f"no certificate with its private key in PEM: {_reason(error)}"
            ) from None
        except OSError as error:
            raise _unreadable(f"{self._owner}ssl.certificate.location", self._certificate, error) from None
        return context

    def _check_key(self, context: ssl.SSLContext) -> None:
        """gRPC's library says nothing of a key that it can't use: nobody could connect, and nobody would know why."""
        anybody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        anybody.check_hostname, anybody.verify_mode = False, ssl.CERT_NONE
        try:
            shown = shown_to(anybody, context, None)
        except ssl.SSLError:
            shown = b""
        if not any(kind in shown for kind in _KEYS):
            raise ConfigError(
                f"{self._owner}ssl.certificate.location = {self._certificate} is for a key of a kind that not every "
                "client can use: take RSA, or an elliptic curve P-256, P-384 or P-521"
            )

    def _encrypted(self) -> NoReturn:
        """OpenSSL asks for a password: it would wait for somebody to type it otherwise."""
        raise ConfigError(
            f"{self._owner}ssl.key.location = {self._key} holds an encrypted key. `openssl pkey -in KEY -out PLAIN` "
            "writes one that is not; let only the node's user read it"
        )


def _read(name: str, path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            data = file.read(_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise _unreadable(name, path, error) from None
    if len(data) > _FILE_BYTES_MAX:
        raise ConfigError(f"{name} = {path} has more than {_FILE_BYTES_MAX} bytes")
    return data


def _unreadable(name: str, path: str, error: OSError) -> ConfigError:
    return ConfigError(f"{name} = {path} can't be read: {error.strerror or error}")


def _reason(error: Exception) -> str:
    reason = getattr(error, "reason", None) or str(error)
    return str(reason).replace("_", " ").lower()


def _grpc_configuration(loaded: _Loaded) -> Any:
    return grpc.ssl_server_certificate_configuration(
        [(loaded.key, loaded.certificate)], root_certificates=loaded.authorities
    )


def certificates_of(config: NodeConfig) -> Certificates | None:
    """Return the certificate of a node with a listener that needs the general one. Raises `ConfigError`."""
    of_clients = (each.listen for each in client_listeners(config) if not each.tls)
    if any(map(speaks_tls, (*of_clients, config.peer_listen, config.metrics_listen))):
        return Certificates(config)
    return None


def own_certificates(config: NodeConfig) -> dict[ClientListener, Certificates]:
    """Return those of the listeners that have settings of TLS of their own. Raises `ConfigError`."""
    return {each: Certificates(config, each) for each in client_listeners(config) if each.tls}
