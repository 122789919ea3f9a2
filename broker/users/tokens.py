"""Whether a token is right: a JWT (RFC 7519), signed by a key of the issuer, for this cluster and this time."""

from __future__ import annotations

import asyncio
import hmac
import math
import os
import re
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from semel.broker.config.listeners import client_listeners
from semel.broker.config.sasl import takes_tokens
from semel.broker.users.token_keys import Key, KeySet, TokenKeys
from semel.protocol.errors import ErrorCode, RetriableError
from semel.runtime.threads import Threads

if TYPE_CHECKING:
    from semel.broker.config.node_config import NodeConfig

TOKEN_BYTES_MAX: Final = 16 << 10
SUBJECT_BYTES_MAX: Final = 255
_FORM: Final = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
_CHECKS_MAX: Final = 100
"""Tokens that wait to be checked, each up to a millisecond of one thread."""
_REMEMBERED_MAX: Final = 10_000
"""Right tokens that are known without another check."""
_KEYS_WAIT_S: Final = 5.0
"""How long a client waits for a key that is not known yet."""
_LEFT_S_MAX: Final = 1 << 31
_SHOWN: Final = 100


class TokenError(Exception):
    """A token is not taken. The message is for the node's log, and has nothing of the token that is a secret."""


class _UnknownKeyError(TokenError):
    """The issuer may have a new key."""


@dataclass(frozen=True, slots=True)
class Token:
    """What a right token says. Times by the clock of the day, in seconds.

    expires_at: as it says itself
    ends_at:    when it is not taken any more, since clocks may be apart
    key:        what it was signed by; keys: where that has to be for as long as it is used
    """

    subject: str
    expires_at: float
    ends_at: float
    key: Key
    keys: TokenKeys

    @property
    def is_current(self) -> bool:
        """Whether it may still be used: it is not over, and its key was not taken back."""
        return time.time() < self.ends_at and self.keys.current().has(self.key)

    def left_ms(self) -> int:
        """Return when its client has to have another one, from now on; at least 1, for 0 means never."""
        return max(1, int(min(self.expires_at - time.time(), _LEFT_S_MAX) * 1000))


class Tokens:
    """What checks the tokens of one node. On the event loop."""

    def __init__(self, config: NodeConfig) -> None:
        """Raises `ConfigError` where the keys can't be used."""
        self._keys = TokenKeys(config)
        self._audience = list(config.sasl_oauthbearer_expected_audience)
        self._issuer = config.sasl_oauthbearer_expected_issuer
        self._skew_s = config.sasl_oauthbearer_clock_skew_seconds
        self._subject_claim = config.sasl_oauthbearer_sub_claim_name
        self._scope_claim = config.sasl_oauthbearer_scope_claim_name
        self._scope = config.sasl_oauthbearer_required_scope
        self._algorithms = config.sasl_oauthbearer_allowed_algorithms
        self._secret = os.urandom(32)
        """Keeps tokens out of `_right`."""
        self._right: OrderedDict[bytes, Token] = OrderedDict()
        self._checks = 0
        self._threads = Threads(1, "semel-tokens")

    def known(self, text: str) -> Token | None:
        """Return a token that was right before, and is still; None where it has to be checked."""
        token = self._right.get(self._digest(text))
        return token if token is not None and token.is_current else None

    async def check(self, text: str) -> Token:
        """Return what a token says. Raises `TokenError`, and `RetriableError` where too many wait to be checked."""
        known = self.known(text)
        if known is not None:
            return known
        keys = self._keys.current()
        try:
            return await self._checked(text, keys)
        except _UnknownKeyError:
            asked = self._keys.asked_for()
            if asked is not None:
                await asyncio.wait([asyncio.wrap_future(asked)], timeout=_KEYS_WAIT_S)
            if self._keys.current() is keys:
                raise
        # Others may have had them asked for meanwhile, and then it is too soon to do so again.
        return await self._checked(text, self._keys.current())

    def close(self) -> None:
        self._keys.close()

    async def _checked(self, text: str, keys: KeySet) -> Token:
        if len(text) > TOKEN_BYTES_MAX:
            raise TokenError(f"it has {len(text)} bytes; at most {TOKEN_BYTES_MAX} are taken")
        if not _FORM.fullmatch(text):
            raise TokenError("it is no JWT with a signature")
        if self._checks >= _CHECKS_MAX:
            raise RetriableError("too many tokens are being checked: try again", ErrorCode.REQUEST_TIMED_OUT)
        self._checks += 1
        try:
            token = await asyncio.get_running_loop().run_in_executor(self._threads, self._read, text, keys)
        finally:
            self._checks -= 1
        self._right[self._digest(text)] = token
        if len(self._right) > _REMEMBERED_MAX:
            self._right.popitem(last=False)
        return token

    def _digest(self, text: str) -> bytes:
        return hmac.digest(self._secret, text.encode("utf-8", "surrogatepass"), "sha256")

    def _read(self, text: str, keys: KeySet) -> Token:
        """Return what a token says, once its signature and its claims are right. In a thread. Raises `TokenError`."""
        import jwt

        try:
            header = jwt.get_unverified_header(text)
            key = self._key(header, keys)
            claims = jwt.decode(
                text,
                key.key,
                algorithms=[header["alg"]],  # one of the key's own, and an allowed one
                audience=self._audience or None,
                issuer=self._issuer or None,
                leeway=self._skew_s,
                options={
                    "require": ["exp", "iat", *(["aud"] if self._audience else []), *(["iss"] if self._issuer else [])],
                    "verify_aud": bool(self._audience),
                    "verify_sub": False,  # the user may be named by another claim
                },
            )
            return self._token(claims, key)
        except jwt.PyJWTError as error:
            raise TokenError(f"{type(error).__name__}: {str(error)[:_SHOWN]}") from None
        except (ValueError, TypeError, OverflowError, RecursionError, KeyError, AttributeError):
            raise TokenError("it can't be read") from None

    def _key(self, header: dict[str, Any], keys: KeySet) -> Key:
        algorithm, name = header.get("alg"), header.get("kid")
        if algorithm not in self._algorithms:
            raise TokenError(f"it is signed by {str(algorithm)[:_SHOWN]!r}, which is not allowed")
        if header.get("crit") or (name is not None and not isinstance(name, str)):
            raise TokenError("its header asks for what is not known here")
        key = keys.find(name, algorithm)
        if key is None:
            raise _UnknownKeyError(f"there is no key {str(name)[:_SHOWN]!r}")
        if algorithm not in key.algorithms:
            raise TokenError(f"the key {str(name)[:_SHOWN]!r} is not for {algorithm}")
        return key

    def _token(self, claims: dict[str, Any], key: Key) -> Token:
        subject, ends_at = claims.get(self._subject_claim), claims["exp"]
        if not isinstance(subject, str) or not 0 < len(subject.encode("utf-8", "replace")) <= SUBJECT_BYTES_MAX:
            raise TokenError(f"its claim {self._subject_claim} names no user")
        if not subject.isprintable() or subject != subject.strip():
            raise TokenError(f"its claim {self._subject_claim} has characters that nobody sees")
        if isinstance(ends_at, bool) or not isinstance(ends_at, int | float) or not math.isfinite(ends_at):
            raise TokenError("its claim exp is no time")
        if self._scope:
            scopes = claims.get(self._scope_claim)
            scopes = scopes.split() if isinstance(scopes, str) else scopes
            if not isinstance(scopes, list) or self._scope not in scopes:
                raise TokenError(f"it has not the scope {self._scope}")
        return Token(subject, float(ends_at), float(ends_at) + self._skew_s, key, self._keys)


def tokens_of(config: NodeConfig) -> Tokens | None:
    """Return what checks the tokens of a node with a listener that takes them. Raises `ConfigError`."""
    asking = (*(each.listen for each in client_listeners(config)), config.metrics_listen)
    return Tokens(config) if takes_tokens(config, asking) else None
