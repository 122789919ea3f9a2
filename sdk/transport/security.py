"""How clients reach nodes that encrypt: TLS, with a certificate of their own where nodes ask for one.

It is part of the bootstrap, `tls://HOST:PORT?ssl.ca.location=FILE`, so that whatever passes a bootstrap on, to a task
of Spark or by an environment variable, passes it on as well. Clients also take the options of Kafka's clients, under
the names of librdkafka.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypedDict
from urllib.parse import parse_qsl, quote

from semel.protocol.errors import UsageError

if TYPE_CHECKING:
    import grpc

_PROTOCOL: Final = "security.protocol"
_CA: Final = "ssl.ca.location"
_CERTIFICATE: Final = "ssl.certificate.location"
_KEY: Final = "ssl.key.location"
FILES: Final = (_CA, _CERTIFICATE, _KEY)
"""The options of a bootstrap, after its `?`."""
_FILE_BYTES_MAX: Final = 1 << 20

_SPELLINGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        **{spelling: name for name in (_PROTOCOL, *FILES) for spelling in (name, name.replace(".", "_"))},
        "ssl_cafile": _CA,
        "ssl_certfile": _CERTIFICATE,
        "ssl_keyfile": _KEY,
    }
)
_REFUSED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "ssl_context": f"give the files: {_CA}, {_CERTIFICATE}, {_KEY}",
        "ssl_check_hostname": "a node's certificate is always checked against the host that was connected to",
        "ssl_endpoint_identification_algorithm": (
            "a node's certificate is always checked against the host that was connected to"
        ),
        "ssl_key_password": f"{_KEY} is a key that is not encrypted",
        "ssl_password": f"{_KEY} is a key that is not encrypted",
        "ssl_keystore_location": f"use {_CERTIFICATE} and {_KEY}, PEM files",
        "ssl_truststore_location": f"use {_CA}, a PEM file",
        "ssl_keystore_type": f"use {_CERTIFICATE} and {_KEY}, PEM files",
        "ssl_truststore_type": f"use {_CA}, a PEM file",
    }
)


class SecurityNames(TypedDict, total=False):
    """What a client takes about encryption. As librdkafka names it, with underscores, or as kafka-python does."""

    security_protocol: str
    ssl_ca_location: str
    ssl_certificate_location: str
    ssl_key_location: str
    ssl_cafile: str
    ssl_certfile: str
    ssl_keyfile: str


@dataclass(frozen=True, slots=True)
class Tls:
    """The files, PEM, of a client that encrypts. Empty: the system's authorities; no certificate of its own."""

    ca_location: str = ""
    certificate_location: str = ""
    key_location: str = ""

    def options(self) -> dict[str, str]:
        """Return the options of a bootstrap that mean the same."""
        values = zip(FILES, (self.ca_location, self.certificate_location, self.key_location), strict=True)
        return {name: value for name, value in values if value}

    def context(self) -> ssl.SSLContext:
        """Return what encrypts data connections. Raises `UsageError` where a file can't be used."""
        self._read_all()
        try:
            context = ssl.create_default_context(cafile=self.ca_location or None)
        except (ssl.SSLError, OSError) as error:
            raise UsageError(f"{_CA} = {self.ca_location} has no certificates in PEM: {_reason(error)}") from None
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self.certificate_location:
            try:
                context.load_cert_chain(self.certificate_location, self.key_location, password=self._encrypted)
            except (ssl.SSLError, OSError) as error:
                raise UsageError(
                    f"{_CERTIFICATE} = {self.certificate_location} and {_KEY} = {self.key_location} are no certificate "
                    f"with its private key in PEM: {_reason(error)}"
                ) from None
        return context

    def credentials(self) -> grpc.ChannelCredentials:
        """Return what encrypts gRPC's connections. Raises `UsageError` where a file can't be used."""
        import grpc

        context = self.context()  # gRPC itself says nothing of what is wrong with a file
        authorities, certificate, key = self._read_all()
        if authorities is None:  # gRPC has authorities of its own, and not the system's
            known = context.get_ca_certs(binary_form=True)
            authorities = "".join(map(ssl.DER_cert_to_PEM_cert, known)).encode() or None
        return grpc.ssl_channel_credentials(authorities, key, certificate)

    def _read_all(self) -> list[bytes | None]:
        paths = zip(FILES, (self.ca_location, self.certificate_location, self.key_location), strict=True)
        return [_read(name, path) if path else None for name, path in paths]

    def _encrypted(self) -> str:
        """OpenSSL asks for a password: it would wait for somebody to type it otherwise."""
        raise UsageError(
            f"{_KEY} = {self.key_location} holds an encrypted key. `openssl pkey -in KEY -out PLAIN` writes one that "
            "is not; let only the program's user read it"
        )


def tls_of_options(where: str, options: Mapping[str, str]) -> Tls:
    """Return the files that options name, by the names in `FILES`. Raises `UsageError`."""
    for name in options:
        if name not in FILES:
            raise UsageError(f"{where} has no option {name!r} after its address; it can have: {', '.join(FILES)}")
    tls = Tls(*(options.get(name, "") for name in FILES))
    if bool(tls.certificate_location) != bool(tls.key_location):
        missing, given = (_KEY, _CERTIFICATE) if tls.certificate_location else (_CERTIFICATE, _KEY)
        raise UsageError(f"{where}: {given} needs {missing}, too: the certificate's private key is in another file")
    return tls


def tls_of_query(where: str, query: str) -> Tls:
    """Return the files that the text after the `?` of a bootstrap names. Raises `UsageError`."""
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True, max_num_fields=len(FILES))
    except ValueError:
        raise UsageError(
            f"{where}: {query!r} is not NAME=VALUE, with & between several of them; names are {', '.join(FILES)}"
        ) from None
    return tls_of_options(where, dict(pairs))


def as_query(tls: Tls) -> str:
    """Return the text after the address: with a `?`, or nothing."""
    options = "&".join(f"{name}={quote(value)}" for name, value in tls.options().items())
    return f"?{options}" if options else ""


def is_security_name(name: str) -> bool:
    """Return whether an option of a client is about encryption, in any spelling."""
    return name in _SPELLINGS or name.replace(".", "_") in _REFUSED


def taken_from(owner: str, options: dict[str, Any]) -> Tls | None:
    """Take what is about encryption out of a client's options. None where it is asked for no encryption.

    Raises `UsageError`.
    """
    found: dict[str, str] = {}
    for name in [name for name in options if is_security_name(name)]:
        if name not in _SPELLINGS:
            raise UsageError(f"{owner} has no option {name!r}: {_REFUSED[name.replace('.', '_')]}")
        value = options.pop(name)
        if value is None:
            continue
        if not isinstance(value, str):
            raise UsageError(f"option {name} must be text (str), not {type(value).__name__} {value!r}")
        if found.setdefault(_SPELLINGS[name], value) != value:
            raise UsageError(f"{owner}: {name} is given under two names, with different values")
    protocol = found.pop(_PROTOCOL, "SSL" if found else "PLAINTEXT").upper()
    if protocol not in ("SSL", "PLAINTEXT"):
        raise UsageError(
            f"option {_PROTOCOL} can't be {protocol!r}; use one of: PLAINTEXT, SSL (there are no users yet)"
        )
    if protocol == "SSL":
        return tls_of_options(owner, found)
    if found:
        raise UsageError(f"{owner}: {', '.join(found)} without {_PROTOCOL}=SSL: nothing would be encrypted")
    return None


def _read(name: str, path: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            data = file.read(_FILE_BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        raise UsageError(f"{name} = {path} can't be read: {getattr(error, 'strerror', None) or error}") from None
    if len(data) > _FILE_BYTES_MAX:
        raise UsageError(f"{name} = {path} has more than {_FILE_BYTES_MAX} bytes")
    return data


def _reason(error: Exception) -> str:
    return str(getattr(error, "reason", None) or error).replace("_", " ").lower()
