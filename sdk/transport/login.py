"""As which user a client connects, and how it proves its password, or shows a token.

On data connections by SASL, as Kafka's clients do: SCRAM proves the password without telling it. Each gRPC call carries
it (`authorization: Basic`), so it is sent over encrypted connections alone, and to this machine; so is a token
(`authorization: Bearer`).
"""

from __future__ import annotations

import os
import re
import ssl
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from semel.protocol.errors import ErrorCode, FatalError, UsageError
from semel.protocol.kafka.api import ApiKey, Part, join_parts
from semel.protocol.kafka.sasl import (
    SASL_AUTHENTICATE_VERSION,
    SASL_HANDSHAKE_VERSION,
    read_sasl_authenticate,
    read_sasl_handshake,
    sasl_authenticate_request,
    sasl_handshake_request,
)
from semel.protocol.loopback import is_loopback
from semel.protocol.schemes import TLS_SASL_PREFIX
from semel.runtime.clock import Clock
from semel.runtime.kafka_client.connection import Connection, ConnectionLostError
from semel.runtime.regular_files import signature
from semel.sdk.transport.token_form import TOKEN, TOKEN_BYTES_MAX

if TYPE_CHECKING:
    from semel.sdk.transport.token_endpoint import EndpointTokens

MECHANISM: Final = "sasl.mechanism"
USERNAME: Final = "sasl.username"
PASSWORD: Final = "sasl.password"  # noqa: S105 (the name of an option)
PASSWORD_FILE: Final = "sasl.password.location"  # noqa: S105
PLAIN_WITHOUT_TLS: Final = "sasl.plain.without.tls"
JAAS: Final = "sasl.jaas.config"
"""Java's name and password, in one text."""
DELEGATION_FILE: Final = "sasl.delegation.token.location"
"""A file with a delegation token: its id, a colon and its HMAC. Kafka has no name for it."""
TOKEN_URL: Final = "sasl.oauthbearer.token.endpoint.url"  # noqa: S105
"""Where a token is: Kafka's name, with a file as its URL."""
METHOD: Final = "sasl.oauthbearer.method"
CLIENT_ID: Final = "sasl.oauthbearer.client.id"
CLIENT_SECRET: Final = "sasl.oauthbearer.client.secret"  # noqa: S105
CLIENT_SECRET_FILE: Final = "sasl.oauthbearer.client.secret.location"  # noqa: S105
SCOPE: Final = "sasl.oauthbearer.scope"
ENDPOINT_CA: Final = "https.ca.location"
_OIDC: Final = (METHOD, CLIENT_ID, CLIENT_SECRET, CLIENT_SECRET_FILE, SCOPE, ENDPOINT_CA)
"""What a client gets tokens with, as librdkafka names it."""
NAMES: Final = (USERNAME, PASSWORD, PASSWORD_FILE, MECHANISM, PLAIN_WITHOUT_TLS, TOKEN_URL, DELEGATION_FILE, *_OIDC)
"""The options of a bootstrap that say as which user a client connects."""
OAUTHBEARER: Final = "OAUTHBEARER"
MECHANISMS: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN", OAUTHBEARER)
SPELLINGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        **{spelling: name for name in NAMES for spelling in (name, name.replace(".", "_"))},
        "sasl.mechanisms": MECHANISM,
        "sasl_mechanisms": MECHANISM,
        JAAS: JAAS,
        "sasl_jaas_config": JAAS,
        "sasl_plain_username": USERNAME,
        "sasl_plain_password": PASSWORD,
        "sasl.oauthbearer.client.credentials.client.id": CLIENT_ID,
        "sasl.oauthbearer.client.credentials.client.secret": CLIENT_SECRET,
    }
)
"""As librdkafka names them, with underscores, or as kafka-python or Java's clients do."""
_JAAS: Final = re.compile(
    r"\s*[\w.]*\.(?:Plain|Scram)LoginModule\s+(?:required|requisite|sufficient)\s(?P<options>.*);\s*", re.DOTALL
)
_JAAS_OPTION: Final = re.compile(r"(?P<name>\w+)\s*=\s*(?:\"(?P<quoted>[^\"]*)\"|(?P<plain>[^\s\";]+))")
_TOKEN_JAAS: Final = re.compile(
    r"\s*[\w.]*\.OAuthBearerLoginModule\s+(?:required|requisite|sufficient)(?P<options>\s.*)?;\s*", re.DOTALL
)
_TOKEN_JAAS_NAMES: Final = {"clientId": CLIENT_ID, "clientSecret": CLIENT_SECRET, "scope": SCOPE}
PASSWORD_BYTES_MAX: Final = 1 << 10
_DELEGATION: Final = re.compile(r"(?P<id>[A-Za-z0-9_-]{1,64}):(?P<hmac>[A-Za-z0-9+/]{86}==)")
_CLIENT_ID: Final = re.compile(r"[\x21-\x39\x3b-\x7e]{1,255}")
_URL: Final = re.compile(r"[\x21-\x7e]{1,2048}")
_REFUSAL_HEARD: Final = b"\1"
_TIMEOUT_MS: Final = 10_000
_ITERATIONS_MAX: Final = 1_000_000
"""More would keep a client busy for seconds, as somebody may want who answers in a node's place."""
_WAIT_S: Final = 5.0
"""How long one attempt waits for a token. The next one waits for the same one, so a failure is reported in time."""
_ROTATION_S: Final = 30.0
"""How long a password that was right before is tried again: node and client may get another one one after the other."""

_LATE_NODE_S: Final = 15.0
"""How long a node may be behind others in what it knows of users."""


@dataclass(frozen=True, slots=True)
class Login:
    """A user, with his password or the file that holds it; or where a token is, which says who the user is.

    mechanism:           what proves the password on data connections
    plain_without_tls:   whether it may be sent over connections to other machines that are not encrypted
    token_url:           "file:///PATH", with OAUTHBEARER; or where tokens are got with what follows
    client_secret:       or the file that holds it, `client_secret_location`
    endpoint_ca:         a PEM file with the authorities of https; empty: the system's
    delegation_location: the file with a delegation token, with SCRAM
    """

    username: str
    password: str = field(default="", repr=False)
    password_location: str = ""
    mechanism: str = MECHANISMS[0]
    plain_without_tls: bool = False
    token_url: str = ""
    delegation_location: str = ""
    client_id: str = ""
    client_secret: str = field(default="", repr=False)
    client_secret_location: str = ""
    scope: str = ""
    endpoint_ca: str = ""

    @property
    def location(self) -> str:
        """The file with the password or the token; empty where there is none."""
        if self.client_id:
            return ""
        path = unquote(urlsplit(self.token_url).path) if self.token_url else self.password_location
        return path or self.delegation_location

    def secret(self) -> str:
        """Return what tokens are got with, as it is now. Raises `UsageError`."""
        if not self.client_secret_location:
            return self.client_secret
        try:
            return password_in(CLIENT_SECRET_FILE, self.client_secret_location)
        except (OSError, ValueError) as error:
            if isinstance(error, UsageError):
                raise
            why = getattr(error, "strerror", None) or error
            raise UsageError(f"{CLIENT_SECRET_FILE} = {self.client_secret_location} can't be read: {why}") from None

    def options(self) -> dict[str, str]:
        """Return the options of a bootstrap that mean the same, the password among them."""
        return {
            **({USERNAME: self.username} if self.username else {}),
            **({PASSWORD: self.password} if self.password else {}),
            **({PASSWORD_FILE: self.password_location} if self.password_location else {}),
            **({MECHANISM: self.mechanism} if self.mechanism != MECHANISMS[0] else {}),
            **({PLAIN_WITHOUT_TLS: "true"} if self.plain_without_tls else {}),
            **({TOKEN_URL: self.token_url} if self.token_url else {}),
            **({DELEGATION_FILE: self.delegation_location} if self.delegation_location else {}),
            **({CLIENT_ID: self.client_id} if self.client_id else {}),
            **({CLIENT_SECRET: self.client_secret} if self.client_secret else {}),
            **({CLIENT_SECRET_FILE: self.client_secret_location} if self.client_secret_location else {}),
            **({SCOPE: self.scope} if self.scope else {}),
            **({ENDPOINT_CA: self.endpoint_ca} if self.endpoint_ca else {}),
        }

    def check_may_be_sent(self, address: str, *, encrypted: bool) -> None:
        """Raise `UsageError` where the password would be readable on its way to "host:port"."""
        host = address.rpartition(":")[0]
        if not encrypted and not self.plain_without_tls and not is_loopback(host):
            what = f"the password of {self.username}" if self.username else "the token"
            raise UsageError(
                f"{what} would be readable for everybody in the network to {address}: write "
                f"{TLS_SASL_PREFIX} before the address (security.protocol=SASL_SSL), or give "
                f"{PLAIN_WITHOUT_TLS}=true where the network is encrypted otherwise"
            )


def login_of_options(where: str, options: Mapping[str, str]) -> Login | None:
    """Return the user that options name, by the names in `NAMES`; None without any. Raises `UsageError`."""
    given = {name: value for name, value in options.items() if name in NAMES}
    if not given:
        return None
    mechanism = given.get(MECHANISM, MECHANISMS[0]).upper()
    if mechanism not in MECHANISMS:
        raise UsageError(f"{where}: {MECHANISM} can't be {mechanism!r}; use one of: {', '.join(MECHANISMS)}")
    plain = given.get(PLAIN_WITHOUT_TLS, "false").lower()
    if plain not in ("true", "false"):
        raise UsageError(f"{where}: {PLAIN_WITHOUT_TLS} is true or false, not {plain!r}")
    if mechanism == OAUTHBEARER or TOKEN_URL in given or any(name in given for name in _OIDC):
        return _token_login(where, given, mechanism, plain == "true")
    if DELEGATION_FILE in given:
        return _delegated_login(where, given, mechanism, plain == "true")
    username, password, location = (given.get(name, "") for name in (USERNAME, PASSWORD, PASSWORD_FILE))
    if not username:
        raise UsageError(f"{where}: {next(iter(given))} without {USERNAME}: as which user?")
    if ":" in username:
        raise UsageError(f"{where}: a user's name has no colon")
    if bool(password) == bool(location):
        what = f"{PASSWORD} and {PASSWORD_FILE}: give one of them" if password else f"needs {PASSWORD_FILE}, a file"
        raise UsageError(f"{where}: {USERNAME} {'has both ' if password else ''}{what}")
    return Login(username, password, location, mechanism, plain == "true")


def _token_login(where: str, given: Mapping[str, str], mechanism: str, plain: bool) -> Login:
    if mechanism != OAUTHBEARER:
        name = next(name for name in (TOKEN_URL, *_OIDC) if name in given)
        raise UsageError(f"{where}: {name} is for {MECHANISM}={OAUTHBEARER}: give that, too")
    for name in (USERNAME, PASSWORD, PASSWORD_FILE, DELEGATION_FILE):
        if name in given:
            raise UsageError(f"{where}: {name} with {MECHANISM}={OAUTHBEARER}: the token says who the user is")
    url = given.get(TOKEN_URL, "")
    try:
        parts = urlsplit(url)
    except ValueError:  # an address in brackets that is none
        parts = urlsplit("")
    if parts.scheme in ("http", "https"):
        return _endpoint_login(where, given, plain)
    if parts.scheme != "file" or parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
        raise UsageError(
            f"{where}: {MECHANISM}={OAUTHBEARER} needs {TOKEN_URL}=file:///PATH, a file with a token in one line, "
            f"which is read again when it changes; or https://..., where tokens are got with {CLIENT_ID}"
        )
    for name in _OIDC:
        if name in given and (name, given[name].lower()) != (METHOD, "default"):
            raise UsageError(f"{where}: {name} with a token in a file: nothing is asked for")
    return Login("", mechanism=mechanism, plain_without_tls=plain, token_url=url)


def _delegated_login(where: str, given: Mapping[str, str], mechanism: str, plain: bool) -> Login:
    for name in (USERNAME, PASSWORD, PASSWORD_FILE):
        if name in given:
            raise UsageError(f"{where}: {name} with {DELEGATION_FILE}: the token says who the user is")
    if mechanism == "PLAIN":
        raise UsageError(f"{where}: {DELEGATION_FILE} with {MECHANISM}=PLAIN: delegation tokens are shown by SCRAM")
    if not given[DELEGATION_FILE]:
        raise UsageError(f"{where}: {DELEGATION_FILE} is empty: name a file, as `semel token create --file` writes it")
    return Login("", mechanism=mechanism, plain_without_tls=plain, delegation_location=given[DELEGATION_FILE])


def _endpoint_login(where: str, given: Mapping[str, str], plain: bool) -> Login:
    """Return how tokens are got of a server (KIP-768). Raises `UsageError`."""
    url = given[TOKEN_URL]
    if given.get(METHOD, "oidc").lower() != "oidc":
        raise UsageError(f"{where}: {METHOD} is oidc where tokens are got by http, not {given[METHOD]!r}")
    try:
        parts = urlsplit(url)
        is_usable = bool(parts.hostname) and parts.port != 0 and bool(_URL.fullmatch(url))
    except ValueError:  # a port that is none
        is_usable = False
    if not is_usable:
        raise UsageError(f"{where}: {TOKEN_URL} is no address: give one such as https://login.example.com/token")
    if "@" in parts.netloc:
        raise UsageError(f"{where}: {TOKEN_URL} has a user or a password in it: give {CLIENT_ID} and a secret")
    if parts.scheme == "http" and not plain and not is_loopback(parts.hostname or ""):
        raise UsageError(
            f"{where}: {TOKEN_URL} is http: the secret and tokens would be readable for everybody in the network. Give "
            f"https, or {PLAIN_WITHOUT_TLS}=true where the network is encrypted otherwise"
        )
    if parts.scheme == "http" and ENDPOINT_CA in given:
        raise UsageError(f"{where}: {ENDPOINT_CA} with http: nothing is encrypted")
    client_id, secret, location = (given.get(name, "") for name in (CLIENT_ID, CLIENT_SECRET, CLIENT_SECRET_FILE))
    if not _CLIENT_ID.fullmatch(client_id):
        raise UsageError(f"{where}: {TOKEN_URL} needs {CLIENT_ID}: 1 to 255 letters, without spaces and colons")
    if bool(secret) == bool(location):
        both = f"has both {CLIENT_SECRET} and {CLIENT_SECRET_FILE}: give one of them"
        raise UsageError(f"{where}: {CLIENT_ID} {both if secret else f'needs {CLIENT_SECRET_FILE}, a file'}")
    scope, ca = given.get(SCOPE, ""), given.get(ENDPOINT_CA, "")
    return Login(
        "",
        mechanism=OAUTHBEARER,
        plain_without_tls=plain,
        token_url=url,
        client_id=client_id,
        client_secret=secret,
        client_secret_location=location,
        scope=scope,
        endpoint_ca=ca,
    )


def jaas_options(owner: str, text: str) -> dict[str, str]:
    """Return what `sasl.jaas.config` says, by the names in `NAMES`. Raises `UsageError`, without repeating it."""
    if of_token := _TOKEN_JAAS.fullmatch(text):
        options = _JAAS_OPTION.finditer(of_token["options"] or "")
        said = {one["name"]: one["quoted"] or one["plain"] or "" for one in options}
        if unknown := [name for name in said if name not in _TOKEN_JAAS_NAMES]:
            raise UsageError(f"{owner}: {JAAS} has {unknown[0][:40]!r}; it can have: {', '.join(_TOKEN_JAAS_NAMES)}")
        return {MECHANISM: OAUTHBEARER, **{_TOKEN_JAAS_NAMES[name]: value for name, value in said.items()}}
    found = _JAAS.fullmatch(text)
    options = _JAAS_OPTION.finditer("" if found is None else found["options"])
    given = {one["name"]: one["quoted"] or one["plain"] or "" for one in options}
    if "username" not in given or "password" not in given:
        raise UsageError(
            f'{owner}: {JAAS} has to be of the form \'...ScramLoginModule required username="NAME" '
            'password="PASSWORD";\', or the same with PlainLoginModule'
        )
    return {USERNAME: given["username"], PASSWORD: given["password"]}


class AuthenticationFailedError(ConnectionLostError):
    """The node does not take this user, or not with this password. A file may have another one by the next attempt."""


class Credentials:
    """How one client proves who it is. The file of the password or the token is read again when it changes. From any
    thread."""

    def __init__(self, login: Login, clock: Clock | None = None) -> None:
        """`clock`: by which tokens end; None: the machine's. Raises `UsageError` where a file can't be used."""
        self._login = login
        self._signature: tuple[int, ...] = ()
        self._accepted = False
        self._refused_at: float | None = None
        self._username, self._password = login.username, login.password
        self._header: tuple[tuple[str, str], ...] = ()
        self._endpoint: EndpointTokens | None = None
        if login.client_id:
            login.secret()
            check_authorities(login.endpoint_ca)
            # Few clients need it, and with it comes all of HTTP, a tenth of what `import semel` costs.
            from semel.sdk.transport.token_endpoint import EndpointTokens

            self._endpoint = EndpointTokens(
                login.token_url, login.client_id, login.secret, login.scope, login.endpoint_ca, clock
            )
        else:
            self._read()

    async def ready(self, timeout_s: float) -> None:
        """Wait until there is a token, where tokens are got. Raises `NoTokenError`, and `FatalError`."""
        if self._endpoint is not None:
            await self._endpoint.ready(min(timeout_s, _WAIT_S))

    def close(self) -> None:
        if self._endpoint is not None:
            self._endpoint.close()

    def metadata(self, address: str, *, encrypted: bool) -> tuple[tuple[str, str], ...]:
        """Return what a gRPC call to "host:port" carries. Raises `FatalError` where it would be readable there."""
        try:
            self._login.check_may_be_sent(address, encrypted=encrypted)
        except UsageError as error:
            raise FatalError(error.message, ErrorCode.SASL_AUTHENTICATION_FAILED) from None
        if self._endpoint is not None:
            self._password = self._endpoint.current()
            return (("authorization", f"Bearer {self._password}"),)
        if self._login.location:
            self._read()
        return self._header

    def was_accepted(self) -> None:
        """A node has taken the user."""
        self._accepted, self._refused_at = True, None

    def may_be_changing(self, now: float) -> bool:
        """Say of a refusal whether to try again: where the password is in a file, and was right before; so with a
        token, which comes to its end."""
        if self._endpoint is not None:
            self._endpoint.refused(self._password)
        if not self._accepted or not (self._login.location or self._endpoint):
            return False
        if self._refused_at is None:
            self._refused_at = now
        return now - self._refused_at < _ROTATION_S

    @property
    def patience_s(self) -> float:
        """How long a node may refuse data connections before it is believed. What the metadata has of a user who was
        added a moment ago comes to nodes one after the other, and a file may get another password.
        """
        return _ROTATION_S if self._login.location or self._endpoint else _LATE_NODE_S

    def explained(self, why: str) -> str:
        """Return what the person hears whose user no try will help, with the next step."""
        login = self._login
        if login.client_id:
            return (
                f"the tokens that {CLIENT_ID} {login.client_id} gets are refused: {why}. Ask who runs the token server"
            )
        if login.token_url:
            return f"the token in {login.location} is refused: {why}. Write one there that has not ended"
        if login.delegation_location:
            return (
                f"the delegation token {self._username} in {login.location} is refused: {why}. It has expired, or was "
                "taken back: make another one (`semel token create --file FILE`)"
            )
        step = (
            f"write the one that he has now to {login.location} ({PASSWORD_FILE})"
            if login.location
            else f"make a new client with the one that he has now ({PASSWORD}, or {PASSWORD_FILE})"
        )
        return f"the user {login.username} is refused: {why}. If he has another password, {step}"

    async def authenticate(self, connection: Connection, *, encrypted: bool) -> None:
        """Prove who this is on a data connection: a new one, or again with another token (KIP-368).

        Raises `AuthenticationFailedError`, `ConnectionLostError`.
        """
        token = ""
        if self._endpoint is not None:
            token = await self._endpoint.ready(_WAIT_S, fresh=connection.proof_lasts_s > 0)
        elif self._login.location:
            self._read()
        mechanism, address = self._login.mechanism, connection.address
        if ApiKey.SASL_HANDSHAKE not in connection.versions:
            if encrypted or is_loopback(address.rpartition(":")[0]):
                return  # its gRPC listener may ask, and this one does not
            raise _mismatch(
                f"the node at {address} serves everybody, and has no users: leave the user out, or write sasl:// or "
                "tls+sasl:// before the address of its listener"
            )
        body = await _call(connection, ApiKey.SASL_HANDSHAKE, sasl_handshake_request(mechanism))
        handshake = read_sasl_handshake(body)
        if handshake.error is not ErrorCode.NONE:
            taken = ", ".join(handshake.mechanisms)
            why = f"it takes {taken}: give one as {MECHANISM}" if taken else handshake.error.name
            raise _mismatch(f"the node at {address} does not take {mechanism}: {why}")
        if mechanism in ("PLAIN", OAUTHBEARER):
            try:
                self._login.check_may_be_sent(address, encrypted=encrypted)
            except UsageError as error:
                raise _mismatch(error.message) from None
        if mechanism == OAUTHBEARER:
            shown = f"n,,\1auth=Bearer {token or self._password}\1\1".encode()
            if await self._answer(connection, address, shown):
                if self._endpoint is not None:
                    self._endpoint.refused(token)
                # It says that the token is not taken, and ends the exchange with an error once it was heard.
                await self._answer(connection, address, _REFUSAL_HEARD)
                raise AuthenticationFailedError(f"the node at {address} has not taken the token")
        elif mechanism == "PLAIN":
            await self._answer(connection, address, f"\0{self._username}\0{self._password}".encode())
        else:
            await self._scram(connection, address)

    async def _scram(self, connection: Connection, address: str) -> None:
        from scramp import ScramClient, ScramException

        try:
            client = ScramClient([self._login.mechanism], self._username, self._password)
            client.set_server_first(
                (await self._answer(connection, address, client.get_client_first().encode())).decode()
            )
            if int(client.iterations) > _ITERATIONS_MAX:
                raise AuthenticationFailedError(f"what is at {address} asks for {client.iterations} iterations")
            client.set_server_final(
                (await self._answer(connection, address, client.get_client_final().encode())).decode()
            )
        except (ScramException, UnicodeDecodeError) as error:
            # Who does not know what proves the password is not the node.
            raise AuthenticationFailedError(
                f"what is at {address} has not proven that it is a node which knows {self._username}: {error}"
            ) from None

    async def _answer(self, connection: Connection, address: str, token: bytes) -> bytes:
        answer = read_sasl_authenticate(
            await _call(connection, ApiKey.SASL_AUTHENTICATE, sasl_authenticate_request(token))
        )
        if answer.error is not ErrorCode.NONE:
            raise AuthenticationFailedError(f"the node at {address} says: {answer.message or answer.error.name}")
        connection.proof_lasts_s = max(answer.lifetime_ms, 0) / 1000
        return answer.token

    def _read(self) -> None:
        if self._login.location:
            what = TOKEN_URL if self._login.token_url else PASSWORD_FILE
            what = DELEGATION_FILE if self._login.delegation_location else what
            try:
                state = signature(os.stat(self._login.location))
                if state == self._signature:
                    return
                if self._login.delegation_location:
                    self._username, self._password = delegation_token_in(what, self._login.location)
                else:
                    read = token_in if self._login.token_url else password_in
                    self._password = read(what, self._login.location)
                self._signature = state
            except (OSError, UsageError) as error:
                if self._header:
                    return  # it may be written just now
                if isinstance(error, UsageError):
                    raise
                raise UsageError(f"{what} = {self._login.location} can't be read: {error.strerror or error}") from None
        if self._login.token_url:
            self._header = (("authorization", f"Bearer {self._password}"),)
            return
        told = b64encode(f"{self._username}:{self._password}".encode()).decode()
        self._header = (("authorization", f"Basic {told}"),)


def token_in(what: str, path: str) -> str:
    """Return the token in a file of one line. Raises `UsageError`, where `what` names the file, and `OSError`."""
    with Path(path).open("rb") as file:
        data = file.read(TOKEN_BYTES_MAX + 1)
    token = data.decode("latin-1").strip()
    if len(data) > TOKEN_BYTES_MAX or not TOKEN.fullmatch(token):
        raise UsageError(f"{what} = {path} does not hold a token in one line of up to {TOKEN_BYTES_MAX} bytes")
    return token


def delegation_token_in(what: str, path: str) -> tuple[str, str]:
    """Return the id and the HMAC in the file of a delegation token. Raises `UsageError`, and `OSError`."""
    with Path(path).open("rb") as file:
        data = file.read(TOKEN_BYTES_MAX + 1)
    found = _DELEGATION.fullmatch(data.decode("latin-1").strip())
    if len(data) > TOKEN_BYTES_MAX or found is None:
        raise UsageError(f"{what} = {path} holds no delegation token, as `semel token create --file` writes it")
    return found["id"], found["hmac"]


def password_in(what: str, path: str) -> str:
    """Return the password in a file of one line. Raises `UsageError`, where `what` names the file, and `OSError`."""
    with Path(path).open("rb") as file:
        data = file.read(PASSWORD_BYTES_MAX + 1)
    try:
        password = data.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise UsageError(f"{what} = {path} is not text in UTF-8") from None
    if not password or len(data) > PASSWORD_BYTES_MAX or "\n" in password:
        raise UsageError(f"{what} = {path} does not hold one line of 1 to {PASSWORD_BYTES_MAX} bytes")
    return password


def _mismatch(message: str) -> FatalError:
    """Client and node want different things: no retry helps."""
    return FatalError(message, ErrorCode.SASL_AUTHENTICATION_FAILED)


async def _call(connection: Connection, key: ApiKey, body: list[Part]) -> memoryview:
    version = SASL_HANDSHAKE_VERSION if key is ApiKey.SASL_HANDSHAKE else SASL_AUTHENTICATE_VERSION
    connection.highest_version(key, version, version)
    return await connection.request(key, version, [join_parts(body)], timeout_ms=_TIMEOUT_MS, is_urgent=True)


def check_authorities(path: str) -> None:
    """Raise `UsageError` where a file of authorities can't be used."""
    if path:
        try:
            ssl.create_default_context(cafile=path)
        except (ssl.SSLError, OSError) as error:
            why = getattr(error, "strerror", None) or getattr(error, "reason", None) or error
            raise UsageError(f"{ENDPOINT_CA} = {path} has no certificates in PEM: {why}") from None
