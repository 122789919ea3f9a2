"""One connection's client, until it has proven who it is and afterwards: whether that still holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from semel.broker.config.tokens import OAUTHBEARER
from semel.broker.users.exchanges import AuthenticationError, Exchange, begin_exchange
from semel.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from semel.broker.users.tokens import Token, Tokens
    from semel.broker.users.users import Users
    from semel.protocol.scram import Verifier


class Authentication:
    """Of one connection."""

    __slots__ = ("_exchange", "_proven", "_tokens", "_users", "mechanisms", "since")

    def __init__(self, users: Users | None, tokens: Tokens | None, mechanisms: Sequence[str], since: float) -> None:
        self._users = users
        self._tokens = tokens
        self._exchange: Exchange | None = None
        self._proven: Exchange | None = None
        self.mechanisms = mechanisms
        """Those that are enabled."""
        self.since = since
        """When the connection was made, by the loop's clock."""

    @property
    def user(self) -> str:
        """The user, as far as it is known who that is."""
        known = self._proven or self._exchange
        return "" if known is None else known.user

    @property
    def is_proven(self) -> bool:
        """Whether the client has proven who it is."""
        return self._proven is not None

    @property
    def verifier(self) -> Verifier | None:
        """What has proven the user's password; None until then, and where a token has."""
        return None if self._proven is None else self._proven.verifier

    @property
    def token(self) -> Token | None:
        """What has proven the user without a password."""
        return None if self._proven is None else self._proven.token

    @property
    def is_current(self) -> bool:
        """Whether the user is still there, with the same password, or the token is not over."""
        token, verifier = self.token, self.verifier
        if token is not None:
            return token.is_current
        return verifier is not None and self._users is not None and self._users.is_current(self.user, verifier)

    @property
    def may_begin(self) -> bool:
        """Whether a client may begin: for the first time, or with another token in place of one (KIP-368)."""
        return self._exchange is None if self._proven is None else self._proven.token is not None

    @property
    def awaits_answer(self) -> bool:
        """Whether the client has begun, and not proven who it is."""
        return self._exchange is not None and self._exchange is not self._proven

    @property
    def refusal(self) -> str:
        """Why the token was not taken; empty where it was, or there is none."""
        return "" if self._exchange is None else self._exchange.refusal

    def begin(self, mechanism: str) -> bool:
        """Begin with a mechanism. Returns whether it is one that is enabled, and the one before."""
        if mechanism not in self.mechanisms or (self.token is not None and mechanism != OAUTHBEARER):
            return False
        self._exchange = begin_exchange(mechanism, self._users, self._tokens)
        return True

    async def answer(self, token: bytes) -> tuple[bytes, bool]:
        """Return the answer to a token, and whether the client has proven who it is.

        Raises `AuthenticationError`, `RetriableError`.
        """
        exchange = self._exchange
        assert exchange is not None
        answer = await exchange.answer(token)
        is_proven = exchange.verifier is not None or exchange.token is not None
        if is_proven:
            if self._proven is not None and self._proven.user != exchange.user:
                raise AuthenticationError(
                    "another user than before on the same connection", ErrorCode.SASL_AUTHENTICATION_FAILED
                )
            self._proven = exchange
        return answer, is_proven
