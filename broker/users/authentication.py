"""One connection's client, until it has proven who it is and afterwards: whether that still holds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from semel.broker.users.delegation import Delegated
from semel.broker.users.exchanges import AuthenticationError, Exchange, begin_exchange
from semel.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from semel.broker.users.tokens import Token, Tokens
    from semel.broker.users.users import Users
    from semel.protocol.scram import Verifier


_AGAIN_AFTER_S: Final = 1.0
"""A client proves who it is again once in so long at most, as in Kafka: each time costs the node a millisecond."""


class Authentication:
    """Of one connection."""

    __slots__ = (
        "_begun_again",
        "_exchange",
        "_max_ms",
        "_mechanism",
        "_proven",
        "_time",
        "_tokens",
        "_users",
        "ends",
        "mechanisms",
        "since",
    )

    def __init__(
        self,
        users: Users | None,
        tokens: Tokens | None,
        mechanisms: Sequence[str],
        time: Callable[[], float],
        max_ms: int = 0,
    ) -> None:
        """time: seconds that never go back. max_ms: after so long the client has to prove it again; 0: never"""
        self._users = users
        self._tokens = tokens
        self._time = time
        self._max_ms = max_ms
        self._mechanism = ""
        self._begun_again = -math.inf
        self._exchange: Exchange | None = None
        self._proven: Exchange | None = None
        self.mechanisms = mechanisms
        """Those that are enabled."""
        self.since = time()
        """When the connection was made."""
        self.ends = math.inf
        """When the client has to have proven it again, by the same clock (connections.max.reauth.ms)."""

    @property
    def user(self) -> str:
        """The user, as far as it is known who that is."""
        known = self._proven or self._exchange
        return "" if known is None else known.user

    @property
    def mechanism(self) -> str:
        """The one that the client has begun with; empty before."""
        return self._mechanism

    @property
    def is_proven(self) -> bool:
        """Whether the client has proven who it is."""
        return self._proven is not None

    @property
    def verifier(self) -> Verifier | None:
        """What has proven the user's password; None until then, and where a token has."""
        return None if self._proven is None else self._proven.verifier

    @property
    def token(self) -> Token | Delegated | None:
        """What has proven the user without a password."""
        return None if self._proven is None else self._proven.token

    @property
    def is_delegated(self) -> bool:
        """Whether a delegation token has proven the user: such a client may not ask for tokens (KIP-48)."""
        return isinstance(self.token, Delegated)

    @property
    def is_over(self) -> bool:
        """Whether the client has to prove again who it is before it is served anything else (KIP-368)."""
        return self._time() > self.ends

    @property
    def lifetime_ms(self) -> int:
        """Return in how many ms the client has to prove it again, for its answer; 0 for never."""
        left_ms = [] if self.token is None else [self.token.left_ms()]
        return min([*left_ms, *([self._max_ms] if self._max_ms else [])], default=0)

    @property
    def is_current(self) -> bool:
        """Whether the user is still there, with the same password, or the token is not over."""
        token, verifier = self.token, self.verifier
        if token is not None:
            return token.is_current
        return verifier is not None and self._users is not None and self._users.is_current(self.user, verifier)

    @property
    def may_begin(self) -> bool:
        """Whether a client may begin: for the first time, or again where it has to sometime (KIP-368)."""
        if self._proven is None:
            return self._exchange is None
        has_to = self._proven.token is not None or self._max_ms > 0
        return has_to and self._time() - self._begun_again >= _AGAIN_AFTER_S

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
        if mechanism not in self.mechanisms or self._mechanism not in ("", mechanism):
            return False
        if self._proven is not None:
            self._begun_again = self._time()
        self._mechanism = mechanism
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
            self.ends = self._time() + self._max_ms / 1000 if self._max_ms else math.inf
        return answer, is_proven
