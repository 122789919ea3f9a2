"""Delegation tokens as a node checks them (KIP-48): by what the cluster's metadata has of them, and the nodes' secret.

The metadata has no secret of a token: its HMAC is made of its id, and what SCRAM needs of that is made when the token
is first used here.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from semel.broker.config.delegation import SECRET_FILE
from semel.broker.users.newest import NewestReader
from semel.protocol.delegation_tokens import HMAC_BYTES, DelegationToken, parts_of, password_of
from semel.protocol.scram import ITERATIONS_MIN, Verifier, verifier_of_salted
from semel.runtime.clock import Clock, SystemClock
from semel.runtime.secret_files import BYTES_MAX, BYTES_MIN, read_key
from semel.runtime.setting import ConfigError
from semel.runtime.threads import Threads
from semel.runtime.turns import in_turns

if TYPE_CHECKING:
    from semel.broker.config.delegation import DelegationConfig

_log = logging.getLogger("semel.users")

_SALT_BYTES: Final = 32
_MARK: Final = b"mark of the secret of delegation tokens"
"""No token has an id like it, and no salt is made of the like."""
_MARK_BYTES: Final = 8
_TOKEN_ID: Final = re.compile(r"[A-Za-z0-9_-]{22}")
"""As nodes make them: no other name is looked for at other nodes."""
_REMEMBERED_MAX: Final = 10_000
"""Tokens whose verifiers are known without being made again."""
_NO_TOKENS: Final[Mapping[str, DelegationToken]] = MappingProxyType({})


class TokenSecret:
    """Makes what proves tokens; what it makes that with can't be had from it by mistake (S5)."""

    __slots__ = ("__key",)

    def __init__(self, key: bytes) -> None:
        """Raises `ValueError` for one that is too short or too long."""
        if not BYTES_MIN <= len(key) <= BYTES_MAX:
            raise ValueError(f"the secret of delegation tokens has {BYTES_MIN} to {BYTES_MAX} bytes, not {len(key)}")
        self.__key = bytes(key)

    def __repr__(self) -> str:
        return "TokenSecret(...)"

    def __reduce__(self) -> str:
        raise TypeError("the secret of delegation tokens can't be pickled or copied")

    def hmac(self, token_id: str) -> bytes:
        """Return the HMAC (SHA-512) of a token, which is a secret."""
        return hmac.digest(self.__key, token_id.encode(), "sha512")

    def mark(self) -> str:
        """Return what two nodes with the same secret say, and those with different ones do not.

        It is no secret. It tells nothing of the HMAC of any token; who guesses at the secret could compare with it, as
        with a token that he has, and the secret is too long for that.
        """
        return hmac.digest(self.__key, _MARK, "sha512")[:_MARK_BYTES].hex()

    def salt(self, mechanism: str, token_id: str) -> bytes:
        """Return the salt of a token's verifier: each node says the same one."""
        return hmac.digest(self.__key, f"salt {mechanism} {token_id}".encode(), "sha512")[:_SALT_BYTES]


@dataclass(frozen=True, slots=True)
class Delegated:
    """A token that a client has proven. It is good as the metadata says now, not as it was then.

    subject: the name of its owner, who the client is
    """

    token_id: str
    subject: str
    tokens: DelegationTokens

    @property
    def is_current(self) -> bool:
        """Whether it has not expired, and was not taken back."""
        return self.tokens.find(self.token_id) is not None

    def left_ms(self) -> int:
        """Return how long the token is good from now on, as far as it is not renewed; at least 1."""
        return self.tokens.left_ms(self.token_id)


class DelegationTokens:
    """What checks the delegation tokens of one node. On the event loop."""

    def __init__(self, secret: TokenSecret, had_user: Callable[[str, int], bool], clock: Clock | None = None) -> None:
        """had_user: whether there is a user of a name now, with a password, who was the same one at a time (in
        milliseconds since 1970)
        """
        self._secret = secret
        self._had_user = had_user
        self._clock = clock or SystemClock()
        self._tokens: Callable[[], Mapping[str, DelegationToken]] = lambda: _NO_TOKENS
        self._verifiers: OrderedDict[tuple[str, str], Verifier] = OrderedDict()
        self._threads = Threads(1, "semel-delegation")
        self._others: NewestReader | None = None

    def know_cluster(
        self,
        tokens: Callable[[], Mapping[str, DelegationToken]],
        clock: Clock,
        others: NewestReader | None = None,
    ) -> None:
        """Serve the tokens of the cluster's metadata: `tokens` returns them as they are now.

        others: reads what other nodes have changed until now; None where there are none
        """
        self._tokens, self._clock, self._others = tokens, clock, others

    async def find_newest(self, token_id: str) -> DelegationToken | None:
        """Return a token that is good now, also where another node made it a moment ago."""
        if self._others is not None and _TOKEN_ID.fullmatch(token_id) and token_id not in self._tokens():
            await self._others.newest()
        return self.find(token_id)

    def find(self, token_id: str) -> DelegationToken | None:
        """Return a token that is good now."""
        token = self._tokens().get(token_id)
        if token is None or token.is_expired(self._clock.now_ms()):
            return None
        return token if self._has_owner(token) else None

    def _has_owner(self, token: DelegationToken) -> bool:
        """Return whether the user who a token ends with is there, and no later one of his name."""
        return not token.ends_with_user or self._had_user(parts_of(token.owner)[1], token.issue_timestamp_ms)

    @property
    def secret_mark(self) -> str:
        """What nodes with the same secret have in common, and which is no secret."""
        return self._secret.mark()

    async def without_user(self) -> list[DelegationToken]:
        """Return the tokens that would be good now, if their owners were users here."""
        now_ms = self._clock.now_ms()
        return [
            token
            async for token in in_turns(self._tokens().values())
            if not token.is_expired(now_ms) and not self._has_owner(token)
        ]

    def left_ms(self, token_id: str) -> int:
        """Return how long a token is good from now on; at least 1, for 0 means for ever."""
        token = self._tokens().get(token_id)
        if token is None:
            return 1
        return max(1, min(token.expiry_timestamp_ms, token.max_timestamp_ms) - self._clock.now_ms())

    def hmac(self, token_id: str) -> bytes:
        """Return what proves a token, which is a secret."""
        return self._secret.hmac(token_id)

    def delegated(self, token: DelegationToken) -> Delegated:
        """Return a token as one that a client has proven."""
        return Delegated(token.token_id, parts_of(token.owner)[1], self)

    async def check(self, token_id: str, password: str) -> Delegated | None:
        """Return a token that a client shows with its password; None where it is wrong, or there is none."""
        token = await self.find_newest(token_id)
        if token is None:
            return None
        right = password_of(self._secret.hmac(token_id)).encode()
        is_right = hmac.compare_digest(right, password.encode("utf-8", "surrogatepass"))
        return self.delegated(token) if is_right else None

    async def token_of(self, given: bytes) -> DelegationToken | None:
        """Return the token that an HMAC is of, also one that has expired; None where there is none.

        All are compared, in a time that says nothing of the HMACs there are.
        """
        found = None
        if len(given) == HMAC_BYTES:
            async for token in in_turns(self._tokens().values()):
                if hmac.compare_digest(self._secret.hmac(token.token_id), given):
                    found = token
        return found

    async def verifier(self, token: DelegationToken, mechanism: str) -> Verifier:
        """Return what proves a token by SCRAM. The first time that takes a thread some milliseconds (S3)."""
        key = mechanism, token.token_id
        known = self._verifiers.get(key)
        if known is None:
            known = await asyncio.get_running_loop().run_in_executor(self._threads, self._made, *key)
            self._verifiers[key] = known
            if len(self._verifiers) > _REMEMBERED_MAX:
                self._verifiers.popitem(last=False)
        return known

    def _made(self, mechanism: str, token_id: str) -> Verifier:
        salt = self._secret.salt(mechanism, token_id)
        digest = mechanism.removeprefix("SCRAM-").replace("-", "").lower()
        password = password_of(self._secret.hmac(token_id)).encode()
        # No more iterations than SCRAM has at least: nobody guesses 64 random bytes.
        salted = hashlib.pbkdf2_hmac(digest, password, salt, ITERATIONS_MIN)
        return verifier_of_salted(mechanism, ITERATIONS_MIN, salt, salted)


def delegation_of(config: DelegationConfig, had_user: Callable[[str, int], bool]) -> DelegationTokens | None:
    """Return what checks the delegation tokens of a node; None where there are none. Raises `ConfigError`."""
    path = config.delegation_token_secret_file
    if not path:
        return None
    key = read_key(SECRET_FILE, path, _log, "can log in as every owner of a token")
    try:
        return DelegationTokens(TokenSecret(key), had_user)
    except ValueError as error:
        raise ConfigError(
            f"{SECRET_FILE} = {path}: {error}. `openssl rand -base64 48` makes one; all nodes need the same"
        ) from None
