"""How clients reach nodes that encrypt: TLS, with a certificate of their own where nodes ask for one.

It is part of the bootstrap, `tls://HOST:PORT?ssl.ca.location=FILE`, so that whatever passes a bootstrap on, to a task
of Spark or by an environment variable, passes it on as well; so is the user (`login.py`). Clients also take the options
of Kafka's clients, under the names of librdkafka.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypedDict, TypeVar
from urllib.parse import quote, unquote

from semel.protocol.errors import ErrorCode, FatalError, UsageError
from semel.protocol.kafka.api import ApiKey
from semel.protocol.schemes import (
    SASL_PREFIX,
    TLS_PREFIX,
    TLS_SASL_PREFIX,
    asks_for_password,
    scheme_for,
    speaks_tls,
)
from semel.sdk.transport.login import (
    CLIENT_SECRET,
    JAAS,
    NAMES,
    PASSWORD,
    PASSWORD_FILE,
    SPELLINGS,
    USERNAME,
    Credentials,
    Login,
    jaas_options,
    login_of_options,
)

if TYPE_CHECKING:
    import grpc

    from semel.runtime.clock import Clock
    from semel.runtime.kafka_client.connection import Connection

_PROTOCOL: Final = "security.protocol"
_CA: Final = "ssl.ca.location"
_CERTIFICATE: Final = "ssl.certificate.location"
_KEY: Final = "ssl.key.location"
FILES: Final = (_CA, _CERTIFICATE, _KEY)
"""The options of a bootstrap, after its `?`."""
_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_SSL", "SASL_PLAINTEXT")
_FILE_BYTES_MAX: Final = 1 << 20
_ESCAPES: Final = " (in a value, & is %26 and % is %25)"

_SPELLINGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        **{spelling: name for name in (_PROTOCOL, *FILES) for spelling in (name, name.replace(".", "_"))},
        **SPELLINGS,
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
        "ssl_keystore_key": f"use {_KEY}, a PEM file",
        "ssl_keystore_certificate_chain": f"use {_CERTIFICATE}, a PEM file",
        "ssl_keystore_password": f"{_KEY} is a key that is not encrypted",
        "ssl_truststore_certificates": f"use {_CA}, a PEM file",
        "ssl_truststore_password": f"use {_CA}, a PEM file",
    }
)


class SecurityNames(TypedDict, total=False):
    """What a client takes about encryption and users. As librdkafka names it, with underscores, or as kafka-python."""

    security_protocol: str
    ssl_ca_location: str
    ssl_certificate_location: str
    ssl_key_location: str
    ssl_cafile: str
    ssl_certfile: str
    ssl_keyfile: str
    sasl_mechanism: str
    sasl_mechanisms: str
    sasl_username: str
    sasl_password: str
    sasl_password_location: str
    sasl_oauthbearer_token_endpoint_url: str
    sasl_delegation_token_location: str
    sasl_oauthbearer_method: str
    sasl_oauthbearer_client_id: str
    sasl_oauthbearer_client_secret: str
    sasl_oauthbearer_client_secret_location: str
    sasl_oauthbearer_scope: str
    https_ca_location: str
    sasl_plain_without_tls: str
    sasl_plain_username: str
    sasl_plain_password: str


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
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # as gRPC's library does
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

        self.context()  # gRPC itself says nothing of what is wrong with a file
        authorities, certificate, key = self._read_all()
        # gRPC has authorities of its own, and not the system's.
        return grpc.ssl_channel_credentials(authorities or _system_authorities(), key, certificate)

    def _read_all(self) -> list[bytes | None]:
        paths = zip(FILES, (self.ca_location, self.certificate_location, self.key_location), strict=True)
        return [_read(name, path) if path else None for name, path in paths]

    def _encrypted(self) -> str:
        """OpenSSL asks for a password: it would wait for somebody to type it otherwise."""
        raise UsageError(
            f"{_KEY} = {self.key_location} holds an encrypted key. `openssl pkey -in KEY -out PLAIN` writes one that "
            "is not; let only the program's user read it"
        )


@dataclass(frozen=True, slots=True)
class Security:
    """How a client reaches nodes. tls: how it encrypts; login: as which user. None: it does not, as none."""

    tls: Tls | None = None
    login: Login | None = None

    @property
    def scheme(self) -> str:
        """What stands before each address."""
        return scheme_for(tls=self.tls is not None, sasl=self.login is not None)

    def query(self) -> str:
        """Return the text after the addresses: with a `?`, or nothing."""
        options = {**(self.tls.options() if self.tls else {}), **(self.login.options() if self.login else {})}
        text = "&".join(f"{name}={quote(value)}" for name, value in options.items())
        return f"?{text}" if text else ""


OPEN: Final = Security()
"""Neither encrypts, nor says who it is."""


def _of_options(where: str, options: Mapping[str, str], *, tls: bool, sasl: bool) -> Security:
    """Return what options say, by the names in `FILES` and `NAMES`. Raises `UsageError`."""
    for name in options:
        if name not in (*FILES, *NAMES):
            secret = _secret_in(options)
            shown = f"such option (behind a {secret}'s &)" if secret else f"option {name!r}"
            raise UsageError(f"{where} has no {shown}; it can have: {', '.join((*FILES, *NAMES))}{_ESCAPES}")
    files = {name: options[name] for name in FILES if name in options}
    if files and not tls:
        raise UsageError(f"{where}: {', '.join(files)} without {TLS_PREFIX} or {TLS_SASL_PREFIX}: nothing is encrypted")
    encryption = Tls(*(files.get(name, "") for name in FILES)) if tls else None
    if encryption is not None and bool(encryption.certificate_location) != bool(encryption.key_location):
        missing, given = (_KEY, _CERTIFICATE) if encryption.certificate_location else (_CERTIFICATE, _KEY)
        raise UsageError(f"{where}: {given} needs {missing}, too: the certificate's private key is in another file")
    login = login_of_options(where, options)
    if sasl and login is None:
        raise UsageError(f"{where}: nodes with {SASL_PREFIX} serve users alone: give {USERNAME} and {PASSWORD_FILE}")
    return Security(encryption, login)


def _secret_in(options: Mapping[str, str]) -> str:
    """Return what a part behind may be the rest of, with an & in it, so that it is not shown; nothing for none."""
    return "password" if PASSWORD in options else "secret" if CLIENT_SECRET in options else ""


def security_of_query(where: str, scheme: str, query: str, *, is_all: bool = True) -> Security:
    """Return what the scheme of a bootstrap and the text after its `?` say. Raises `UsageError`.

    is_all: whether nothing else says as which user
    """
    options: dict[str, str] = {}
    for pair in query.split("&") if query else ():
        name, is_given, value = pair.partition("=")
        if not is_given:
            names = ", ".join((*FILES, *NAMES))
            secret = _secret_in(options)
            shown = f"a part behind a {secret}'s &" if secret else repr(pair)
            raise UsageError(
                f"{where}: {shown} is not NAME=VALUE, with & between several of them; names are {names}{_ESCAPES}"
            )
        if name in options:
            raise UsageError(f"{where} has {name} twice")
        options[name] = unquote(value)
    return _of_options(where, options, tls=speaks_tls(scheme), sasl=is_all and asks_for_password(scheme))


def is_security_name(name: str) -> bool:
    """Return whether an option of a client is about encryption or users, in any spelling."""
    return name in _SPELLINGS or name.replace(".", "_") in _REFUSED


def taken_from(owner: str, options: dict[str, Any], given: Security) -> Security:
    """Take what is about encryption and users out of a client's options.

    given: what its bootstrap says. Raises `UsageError`, also where the two differ.
    """
    found: dict[str, str] = {}
    for name in [name for name in options if is_security_name(name)]:
        if name not in _SPELLINGS:
            raise UsageError(f"{owner} has no option {name!r}: {_REFUSED[name.replace('.', '_')]}")
        value = options.pop(name)
        if value is None:
            continue
        if isinstance(value, os.PathLike):
            value = os.fspath(value)
        if not isinstance(value, str):
            raise UsageError(f"option {name} must be text (str), not {type(value).__name__}")
        if found.setdefault(_SPELLINGS[name], value) != value:
            raise UsageError(f"{owner}: {name} is given under two names, with different values")
    if not found:
        return given
    if JAAS in found:
        for name, value in jaas_options(owner, found.pop(JAAS)).items():
            if found.setdefault(name, value) != value:
                raise UsageError(f"{owner}: {name} and {JAAS} have different values")
    names_files, names_user = (any(name in found for name in names) for names in (FILES, NAMES))
    implied = f"{'SASL_' if names_user else ''}{'SSL' if names_files or given.tls else 'PLAINTEXT'}"
    protocol = found.pop(_PROTOCOL, implied).upper()
    if protocol not in _PROTOCOLS:
        raise UsageError(f"option {_PROTOCOL} can't be {protocol!r}; use one of: {', '.join(_PROTOCOLS)}")
    tls, sasl = protocol.endswith("SSL"), protocol.startswith("SASL_")
    if not tls and names_files:
        files = ", ".join(name for name in FILES if name in found)
        raise UsageError(f"{owner}: {files} with {_PROTOCOL}={protocol}: nothing would be encrypted")
    if not sasl and names_user:
        user = ", ".join(name for name in NAMES if name in found)
        raise UsageError(f"{owner}: {user} with {_PROTOCOL}={protocol}: that is SASL_SSL, or SASL_PLAINTEXT")
    if not tls and given.tls is not None:
        raise UsageError(f"{owner}: {_PROTOCOL}={protocol}, and its bootstrap has {TLS_PREFIX}: leave one of them out")
    if not sasl and given.login is not None:
        raise UsageError(f"{owner}: {_PROTOCOL}={protocol}, and its bootstrap names a user: leave one of them out")
    asked = _of_options(owner, found, tls=tls, sasl=sasl and given.login is None)
    return Security(
        _same(owner, "files for TLS", given.tls or None, asked.tls, Tls()),
        _same(owner, "users", given.login, asked.login, None),
    )


_Part = TypeVar("_Part")


def _same(owner: str, what: str, given: _Part | None, asked: _Part | None, nothing: _Part | None) -> _Part | None:
    """Return what is said in one place or the other. Raises `UsageError` where both say something else."""
    if given is None or given == nothing:
        return given if asked is None else asked
    if asked not in (None, nothing, given):
        raise UsageError(f"{owner}: its bootstrap and its options name different {what}")
    return given


class Encryption:
    """How one client encrypts. Its files are read for each connection, because they may be renewed; while they can't be
    used, what they held before is. From any thread.
    """

    def __init__(self, tls: Tls) -> None:
        """Raises `UsageError` where a file can't be used."""
        self._tls = tls
        self._context = tls.context()
        self._credentials: grpc.ChannelCredentials | None = None

    def context(self) -> ssl.SSLContext:
        """Return what encrypts a new data connection."""
        with suppress(UsageError):
            self._context = self._tls.context()
        return self._context

    def credentials(self) -> grpc.ChannelCredentials:
        """Return what encrypts gRPC's connections. Raises `UsageError` where no file could ever be used."""
        try:
            self._credentials = self._tls.credentials()
        except UsageError:
            if self._credentials is None:
                raise
        return self._credentials


class Access:
    """How one client reaches nodes: what encrypts its connections, and what proves its user. From any thread."""

    def __init__(self, security: Security = OPEN, clock: Clock | None = None) -> None:
        """`clock`: by which tokens end; None: the machine's. Raises `UsageError` where a file can't be used."""
        self.encryption = None if security.tls is None else Encryption(security.tls)
        self._credentials = None if security.login is None else Credentials(security.login, clock)

    def context(self) -> ssl.SSLContext | None:
        """Return what encrypts a new data connection; None where nothing does."""
        return None if self.encryption is None else self.encryption.context()

    def metadata(self, target: str) -> tuple[tuple[str, str], ...]:
        """Return what a gRPC call to "host:port" carries. Raises `FatalError` where it may not be sent there."""
        if self._credentials is None:
            return ()
        return self._credentials.metadata(target, encrypted=self.encryption is not None)

    async def ready(self, timeout_s: float) -> None:
        """Wait until there is what proves the user: a token is got of its server. Raises `RetriableError`."""
        if self._credentials is not None:
            await self._credentials.ready(timeout_s)

    def close(self) -> None:
        if self._credentials is not None:
            self._credentials.close()

    async def prove(self, connection: Connection) -> None:
        """Prove who this is on a data connection, also again before that ends. Raises `ConnectionLostError`."""
        if self._credentials is not None:
            await self._credentials.authenticate(connection, encrypted=self.encryption is not None)
        elif ApiKey.SASL_HANDSHAKE in connection.versions:
            raise FatalError(
                f"the node at {connection.address} serves users alone: give {USERNAME} and {PASSWORD_FILE}",
                ErrorCode.SASL_AUTHENTICATION_FAILED,
            )

    def was_accepted(self) -> None:
        """A node has taken the user."""
        if self._credentials is not None:
            self._credentials.was_accepted()

    @property
    def patience_s(self) -> float:
        """How long a node may refuse data connections of the user before it is believed."""
        return 0.0 if self._credentials is None else self._credentials.patience_s

    def explained(self, why: str) -> str:
        """Return what to say of a refusal that no try will change: of whom, and the next step."""
        return why if self._credentials is None else self._credentials.explained(why)

    def may_be_changing(self, now: float) -> bool:
        """Say of a refusal of the user whether to try again: the password may be changed just now."""
        return self._credentials is not None and self._credentials.may_be_changing(now)


def _system_authorities() -> bytes | None:
    """Return the certificates that OpenSSL takes for authorities on this machine, PEM; None where there are none."""
    places = ssl.get_default_verify_paths()
    files = [Path(path) for path in (places.cafile,) if path]
    if not files and places.capath:
        files = [path for path in Path(places.capath).iterdir() if path.suffix in (".pem", ".crt") and path.is_file()]
    return b"\n".join(path.read_bytes() for path in sorted(files)) or None


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
