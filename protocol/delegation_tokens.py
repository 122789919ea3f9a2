"""Delegation tokens (KIP-48): what clients show in place of a user's password, for a bounded time.

A token is an id, which is no secret, and an HMAC of it, which is. A client logs in with the id as the user's name and
the HMAC, in base64, as the password; it is then the token's owner.
"""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass, field
from typing import Final

from semel.protocol.errors import ErrorCode, FatalError

USER_TYPE: Final = "User"
"""The one type of principals that there is."""
HMAC_BYTES: Final = 64
TOKEN_ID_BYTES_MAX: Final = 64
RENEWERS_MAX: Final = 16
"""Of one token."""
PRINCIPAL_BYTES_MAX: Final = 1_024
"""Of an owner's or a renewer's name."""
EXPIRE_NOW_MS: Final = -1
"""In place of the time after which a token is to expire: it is taken back."""


@dataclass(frozen=True, slots=True)
class DelegationToken:
    """A token as the cluster's metadata has it, without its HMAC. Times are milliseconds since 1970.

    owner:               whom its clients are, as in "User:alice"
    requester:           who asked for it, mostly the owner
    renewers:            who may also renew it, and take it back
    issue_timestamp_ms:  when it was made
    expiry_timestamp_ms: until when it is good; renewing moves it
    max_timestamp_ms:    until when it can be renewed
    ends_with_user:      the owner was a user with a password when it was made, and it is good as long as he is one
    """

    token_id: str
    owner: str
    requester: str
    renewers: tuple[str, ...]
    issue_timestamp_ms: int
    expiry_timestamp_ms: int
    max_timestamp_ms: int
    ends_with_user: bool = False

    def is_expired(self, now_ms: int) -> bool:
        """Return whether it is good no more."""
        return min(self.expiry_timestamp_ms, self.max_timestamp_ms) < now_ms

    def may_renew(self, principal: str) -> bool:
        """Return whether somebody may renew it, and take it back."""
        return principal == self.owner or principal in self.renewers

    def is_of(self, principal: str) -> bool:
        """Return whether somebody owns it, has asked for it, or may renew it."""
        return principal in (self.owner, self.requester) or principal in self.renewers


@dataclass(frozen=True, slots=True)
class NewDelegationToken:
    """A token just made, with the secret that proves it: who has that, is the owner until the token expires."""

    token: DelegationToken
    hmac: bytes = field(repr=False)

    @property
    def password(self) -> str:
        """The password of the user `token.token_id`: the HMAC in base64."""
        return password_of(self.hmac)


def password_of(hmac: bytes) -> str:
    """Return the HMAC of a token as clients log in with it."""
    return b64encode(hmac).decode()


def principal_of(kind: str, name: str) -> str:
    """Return a principal, "User:alice". Raises `FatalError` INVALID_PRINCIPAL_TYPE, INVALID_REQUEST."""
    if kind != USER_TYPE:
        raise FatalError(
            f"delegation tokens are of users: the type of a principal is {USER_TYPE}", ErrorCode.INVALID_PRINCIPAL_TYPE
        )
    return check_principal(f"{kind}:{name}")


_NOBODYS_NAMES: Final = ("*", "ANONYMOUS")
"""Those that ACLs have for everybody, and for who has proven nothing."""


def check_principal(principal: str) -> str:
    """Return what is a principal. Raises `FatalError` INVALID_PRINCIPAL_TYPE, INVALID_REQUEST."""
    kind, separator, name = principal.partition(":")
    if kind != USER_TYPE or not separator:
        raise FatalError(f"{principal[:60]!r} is no principal: write User:NAME", ErrorCode.INVALID_PRINCIPAL_TYPE)
    if not name or len(name.encode("utf-8", "surrogatepass")) > PRINCIPAL_BYTES_MAX:
        raise FatalError(
            f"the name of a token's owner or renewer has 1 to {PRINCIPAL_BYTES_MAX} bytes", ErrorCode.INVALID_REQUEST
        )
    if name in _NOBODYS_NAMES or not name.isprintable():
        raise FatalError(f"{principal[:60]!r} is no user who could have a delegation token", ErrorCode.INVALID_REQUEST)
    return principal


def parts_of(principal: str) -> tuple[str, str]:
    """Return the type and the name of a principal."""
    kind, _, name = principal.partition(":")
    return kind, name
