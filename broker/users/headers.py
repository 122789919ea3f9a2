"""Who asks, by the header `Authorization` of a call or a request: a user's name and password in `Basic` (RFC 7617), or
a token in `Bearer` (RFC 6750). A delegation token is shown like a user: its id, and its HMAC as the password.

A password that was right once is known without another check.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from semel.broker.users.exchanges import TOKEN_BYTES_MAX
from semel.broker.users.tokens import TokenError

if TYPE_CHECKING:
    from semel.broker.users.tokens import Tokens
    from semel.broker.users.users import Users

_BASIC: Final = "basic "
_BEARER: Final = "bearer "


class Lack(Enum):
    """Why a header proves nobody. What a client hears of it is each listener's own."""

    NOTHING = "nothing is given"
    NO_TOKENS = "no tokens are taken here"
    NO_PASSWORDS = "no passwords are taken here"
    INVALID_TOKEN = "the token is not taken"  # noqa: S105 (a reason)
    WRONG = "wrong user or password"


class NotProvenError(Exception):
    """name: the user, as the client says. why: for the operator alone (S5)."""

    def __init__(self, lack: Lack, name: str = "", why: str = "") -> None:
        super().__init__(why or lack.value)
        self.lack = lack
        self.name = name


class Proven(NamedTuple):
    """Who asks, and whether that still holds.

    over: what is said to a client when it does not hold any more
    """

    user: str
    is_current: Callable[[], bool]
    over: str
    is_delegated: bool = False


async def proven_by(header: str, users: Users | None, tokens: Tokens | None) -> Proven:
    """Return who asks. users, tokens: None where there are none of them here. Raises `NotProvenError`, and
    `RetriableError` where too many wait to be checked.
    """
    if not header:
        raise NotProvenError(Lack.NOTHING)
    if header[: len(_BEARER)].lower() == _BEARER:
        return await _by_token(header[len(_BEARER) :].strip(), tokens)
    return await _by_password(header, users)


async def _by_token(text: str, tokens: Tokens | None) -> Proven:
    if tokens is None:
        raise NotProvenError(Lack.NO_TOKENS)
    try:
        token = tokens.known(text) or await tokens.check(text)
    except TokenError as error:
        raise NotProvenError(Lack.INVALID_TOKEN, why=str(error)) from None
    return Proven(token.subject, lambda: token.is_current, f"the token of the user {token.subject} has ended")


async def _by_password(header: str, users: Users | None) -> Proven:
    if users is None:
        raise NotProvenError(Lack.NO_PASSWORDS)
    name, password = parse_basic(header)
    await users.settled()
    verifier = users.knows_password(name, password)
    if verifier is None and users.delegation is not None:
        # Also where there is a user of this name: it takes as long for everybody whose password is not known (S5).
        delegated = await users.delegation.check(name, password)
        if delegated is not None and not users.has(name):
            over = f"the delegation token {name} has expired, or was taken back"
            return Proven(delegated.subject, lambda: delegated.is_current, over, is_delegated=True)
    if verifier is None:
        verifier = await users.check_password(name, password)
    if verifier is None:
        raise NotProvenError(Lack.WRONG, name)
    over = f"the user {name} was removed, or has another password now"
    return Proven(name, lambda: users.is_current(name, verifier), over)


def parse_basic(text: str) -> tuple[str, str]:
    """Return a name and a password; empty ones, which nobody has, for what is no such pair."""
    if text[: len(_BASIC)].lower() != _BASIC or len(text) > 2 * TOKEN_BYTES_MAX:
        return "", ""
    try:
        name, _, password = b64decode(text[len(_BASIC) :].strip(), validate=True).decode().partition(":")
    except ValueError:  # no base64, or no UTF-8 in it
        return "", ""
    return name, password
