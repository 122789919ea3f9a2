"""One connection's client, until it has proven who it is and afterwards: whether that still holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from semel.broker.users.exchanges import Exchange, begin_exchange

if TYPE_CHECKING:
    from semel.broker.users.users import Users
    from semel.protocol.scram import Verifier


class Authentication:
    """Of one connection."""

    __slots__ = ("_exchange", "_users", "mechanisms", "since")

    def __init__(self, users: Users, mechanisms: Sequence[str], since: float) -> None:
        self._users = users
        self._exchange: Exchange | None = None
        self.mechanisms = mechanisms
        """Those that are enabled."""
        self.since = since
        """When the connection was made, by the loop's clock."""

    @property
    def user(self) -> str:
        """The user, as far as it is known who that is."""
        return "" if self._exchange is None else self._exchange.user

    @property
    def verifier(self) -> Verifier | None:
        """What has proven the user's password; None until then."""
        return None if self._exchange is None else self._exchange.verifier

    @property
    def is_current(self) -> bool:
        """Whether the user is still there, with the same password."""
        verifier = self.verifier
        return verifier is not None and self._users.is_current(self.user, verifier)

    def begin(self, mechanism: str) -> bool:
        """Begin with a mechanism. Returns whether it is one that is enabled."""
        if mechanism not in self.mechanisms:
            return False
        self._exchange = begin_exchange(mechanism, self._users)
        return True

    async def answer(self, token: bytes) -> tuple[bytes, bool]:
        """Return the answer to a token, and whether the client has proven who it is.

        Raises `AuthenticationError`, `RetriableError`.
        """
        assert self._exchange is not None
        answer = await self._exchange.answer(token)
        return answer, self._exchange.verifier is not None

    @property
    def has_begun(self) -> bool:
        return self._exchange is not None
