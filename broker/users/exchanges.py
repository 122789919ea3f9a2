"""How a client proves its password, message by message: SCRAM (RFC 5802, KIP-84) and PLAIN (RFC 4616, KIP-43); or
that it has a token: OAUTHBEARER (RFC 7628, KIP-255).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from semel.broker.config.sasl import PLAIN
from semel.broker.config.tokens import OAUTHBEARER
from semel.broker.users.tokens import TOKEN_BYTES_MAX as BEARER_TOKEN_BYTES_MAX
from semel.broker.users.tokens import Token, TokenError
from semel.protocol.errors import ErrorCode, SemelError

if TYPE_CHECKING:
    from semel.broker.users.delegation import Delegated
    from semel.broker.users.tokens import Tokens
    from semel.broker.users.users import Users
    from semel.protocol.scram import Verifier

TOKEN_BYTES_MAX: Final = 4 << 10
"""Of one token: a user's name, a password, a nonce, and what stands between them."""
BEARER_BYTES_MAX: Final = BEARER_TOKEN_BYTES_MAX + (4 << 10)
"""Of the message with a JWT, and what clients may say beside it."""
INVALID_TOKEN: Final = b'{"status":"invalid_token"}'
_FIRST: Final = re.compile(rb"n,(?:a=(?P<user>[^\x00\x01,]{1,1024}))?,\x01(?P<parts>[^\x00]+)\x01\x01", re.DOTALL)
_PART: Final = re.compile(rb"[A-Za-z]+=[\x21-\x7e \t\r\n]+")
_SCRAM_FIRST: Final = re.compile(r"[^,]*,[^,]*,n=(?P<user>[^,]+),r=[^,]+(?P<extensions>(?:,[A-Za-z]+=[^,]*)*)")
_TOKEN_AUTH: Final = ",tokenauth=true"  # noqa: S105 (what says that the client has a delegation token)
_BEARER: Final = re.compile(rb"(?i:bearer) +(?P<token>[A-Za-z0-9._~+/=-]+)")


class AuthenticationError(SemelError):
    """The client has not proven who it is. The message is for the node's log: the client hears no reason (S5)."""


class Exchange(Protocol):
    """One client's attempt."""

    user: str
    """As the client says; only once `verifier` is there it is known to be so."""
    verifier: Verifier | None
    """What has proven the password."""
    token: Token | Delegated | None
    """What has proven the user without one."""
    refusal: str
    """Why a token was not taken, for the node's log: the client hears the last answer, and says that it has."""

    async def answer(self, token: bytes) -> bytes:
        """Return the answer to the client's next token. Raises `AuthenticationError`, `RetriableError`."""
        ...


def begin_exchange(mechanism: str, users: Users | None, tokens: Tokens | None) -> Exchange:
    """Begin one by an enabled mechanism."""
    if mechanism == OAUTHBEARER:
        assert tokens is not None
        return _Bearer(tokens)
    assert users is not None
    return _Plain(users) if mechanism == PLAIN else _Scram(mechanism, users)


def _failed(why: str) -> AuthenticationError:
    return AuthenticationError(why, ErrorCode.SASL_AUTHENTICATION_FAILED)


def _text(token: bytes) -> str:
    if len(token) > TOKEN_BYTES_MAX:
        raise _failed(f"a token of {len(token)} bytes; at most {TOKEN_BYTES_MAX} are taken")
    try:
        return token.decode()
    except UnicodeDecodeError:
        raise _failed("a token that is not UTF-8") from None


class _Bearer:
    """One message with the token (RFC 7628). Where it is not taken, the client is told so, and answers to that."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._is_over = False
        self.user = self.refusal = ""
        self.verifier: Verifier | None = None
        self.token: Token | Delegated | None = None

    async def answer(self, token: bytes) -> bytes:
        if self._is_over:
            raise _failed("a token after the last one")
        self._is_over = True
        if len(token) > BEARER_BYTES_MAX:
            raise _failed(f"a message of {len(token)} bytes; at most {BEARER_BYTES_MAX} are taken")
        found = _FIRST.fullmatch(token)
        # Each part ends with the separator, and another one ends them all; those but `auth` are extensions.
        parts = [] if found is None else found["parts"].split(b"\1")
        given = [part[5:] for part in parts if part.startswith(b"auth=")]
        bearer = _BEARER.fullmatch(given[0]) if len(given) == 1 else None
        if found is None or bearer is None or not all(map(_PART.fullmatch, parts)):
            raise _failed("a message that is not of the form n,, ^A auth=Bearer TOKEN ^A ^A")
        try:
            checked = await self._tokens.check(bearer["token"].decode())
        except TokenError as error:
            self.refusal = str(error)
            return INVALID_TOKEN
        self.user = checked.subject
        if found["user"] is not None and _name(found["user"]) != checked.subject:
            raise _failed("the client wants to act for another user")
        self.token = checked
        return b""


def _name(given: bytes) -> str:
    return given.decode("utf-8", "replace").replace("=2C", ",").replace("=3D", "=")


def _means_token(extensions: str) -> bool:
    """Return whether the extensions of a first message say that the client has a delegation token."""
    return f"{extensions},".lower().find(f"{_TOKEN_AUTH},") >= 0


class _Plain:
    token: Token | Delegated | None = None
    refusal = ""

    def __init__(self, users: Users) -> None:
        self._users = users
        self._is_over = False
        self.user = ""
        self.verifier: Verifier | None = None

    async def answer(self, token: bytes) -> bytes:
        if self._is_over:
            raise _failed("a token after the last one")
        self._is_over = True
        parts = _text(token).split("\0")
        if len(parts) != 3 or not parts[1]:
            raise _failed("a token that is not of the form [authzid] NUL user NUL password")
        on_behalf_of, self.user, password = parts
        if on_behalf_of not in ("", self.user):
            raise _failed("the client wants to act for another user")
        self.verifier = await self._users.check_password(self.user, password)
        if self.verifier is None:
            raise _failed("wrong user or password")
        return b""


class _Scram:
    """Of a user's password; or of a delegation token, whose id is the user, and its HMAC the password (KIP-48).

    `tokenauth=true` among the extensions of the first message says that it is a token, as Java's clients do. Others,
    all of librdkafka, have no way to say so: without it, the id of a token that is no user's name means the token. Who
    proves its HMAC has proven the same.
    """

    refusal = ""

    def __init__(self, mechanism: str, users: Users) -> None:
        from scramp import ScramMechanism

        self._users = users
        self._found: Verifier | None = None
        self._delegated: Delegated | None = None
        self.token: Token | Delegated | None = None
        self._mechanism = mechanism
        self._server = ScramMechanism(mechanism).make_server(self._proof)
        self._next: Callable[[str], str] = self._first
        self.user = ""
        self.verifier: Verifier | None = None

    async def answer(self, token: bytes) -> bytes:
        from scramp import ScramException
        from scramp.utils import ServerError

        await self._users.settled()
        step, self._next = self._next, self._over
        text = _text(token)
        if step == self._first:
            await self._find_token(text)
        try:
            return step(text).encode()
        except ScramException as error:
            wrong = error.server_error is ServerError.INVALID_PROOF
            raise _failed("wrong user or password" if wrong else f"a wrong token: {error.args[0]}") from None

    async def _find_token(self, text: str) -> None:
        """Look whether the client means a delegation token, and make what proves that one."""
        tokens, found = self._users.delegation, _SCRAM_FIRST.fullmatch(text)
        if tokens is None or found is None:
            return
        name = _name(found["user"].encode())
        means_token = _means_token(found["extensions"])
        token = await tokens.find_newest(name)  # also where there is a user of this name: it takes as long (S5)
        if not means_token and self._users.has(name):
            return
        if token is not None:
            self._delegated = tokens.delegated(token)
            self._found = await tokens.verifier(token, self._mechanism)
        elif means_token:
            self._found = self._users.decoy(name, self._mechanism)

    def _first(self, token: str) -> str:
        found = _SCRAM_FIRST.fullmatch(token)
        extensions = "" if found is None else found["extensions"]
        self._server.set_client_first(token.removesuffix(extensions))
        if extensions:  # they are part of what the client signs
            self._server.client_first_bare += extensions
        first: str = self._server.get_server_first()
        self._next = self._final
        return first

    def _final(self, token: str) -> str:
        self._server.set_client_final(token)
        final: str = self._server.get_server_final()
        if self._delegated is not None:
            if not self._delegated.is_current:
                raise _failed("the delegation token has expired, or was taken back")
            self.user, self.token = self._delegated.subject, self._delegated
            return final
        if self._found is None or not self._users.is_current(self.user, self._found):
            raise _failed("the user was removed, or has another password now")
        self.verifier = self._found
        return final

    def _over(self, _token: str) -> str:
        raise _failed("a token after the last one")

    def _proof(self, user: str) -> tuple[bytes, bytes, bytes, int]:
        self.user = user
        if self._found is None:
            self._found = self._users.verifier(user, self._mechanism)
        found = self._found
        return found.salt, found.stored_key, found.server_key, found.iterations
