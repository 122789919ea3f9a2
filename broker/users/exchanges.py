"""How a client proves its password, token by token: SCRAM (RFC 5802, KIP-84) and PLAIN (RFC 4616, KIP-43)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from semel.broker.config.sasl import PLAIN
from semel.protocol.errors import ErrorCode, SemelError

if TYPE_CHECKING:
    from semel.broker.users.users import Users
    from semel.protocol.scram import Verifier

TOKEN_BYTES_MAX: Final = 4 << 10
"""Of one token: a user's name, a password, a nonce, and what stands between them."""


class AuthenticationError(SemelError):
    """The client has not proven who it is. The message is for the node's log: the client hears no reason (S5)."""


class Exchange(Protocol):
    """One client's attempt."""

    user: str
    """As the client says; only once `verifier` is there it is known to be so."""
    verifier: Verifier | None
    """What has proven the password."""

    async def answer(self, token: bytes) -> bytes:
        """Return the answer to the client's next token. Raises `AuthenticationError`, `RetriableError`."""
        ...


def begin_exchange(mechanism: str, users: Users) -> Exchange:
    """Begin one by an enabled mechanism."""
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


class _Plain:
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
    def __init__(self, mechanism: str, users: Users) -> None:
        from scramp import ScramMechanism

        self._users = users
        self._found: Verifier | None = None
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
        try:
            return step(_text(token)).encode()
        except ScramException as error:
            wrong = error.server_error is ServerError.INVALID_PROOF
            raise _failed("wrong user or password" if wrong else f"a wrong token: {error.args[0]}") from None

    def _first(self, token: str) -> str:
        self._server.set_client_first(token)
        first: str = self._server.get_server_first()
        self._next = self._final
        return first

    def _final(self, token: str) -> str:
        self._server.set_client_final(token)
        final: str = self._server.get_server_final()
        if self._found is None or not self._users.is_current(self.user, self._found):
            raise _failed("the user was removed, or has another password now")
        self.verifier = self._found
        return final

    def _over(self, _token: str) -> str:
        raise _failed("a token after the last one")

    def _proof(self, user: str) -> tuple[bytes, bytes, bytes, int]:
        self.user = user
        found = self._found = self._users.verifier(user, self._mechanism)
        return found.salt, found.stored_key, found.server_key, found.iterations
