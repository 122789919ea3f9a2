"""The public keys that tokens are signed with (JWKS, RFC 7517): from a file that is read again when it changes, or by
https, in a thread of its own, again and again.

Who signs changes keys now and then: a token that names a key which is not known yet has keys asked for again, once in
a while however many such tokens come.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from semel.broker.config.tokens import ALGORITHMS, KEYS_URL, TokenConfig, keys_file
from semel.protocol.extras import imports_of_extra
from semel.runtime.bounded_http import ask
from semel.runtime.regular_files import FileSignature, signature_of
from semel.runtime.setting import ConfigError

if TYPE_CHECKING:
    from jwt import PyJWK

_log = logging.getLogger("semel.tokens")

KEYS_BYTES_MAX: Final = 1 << 20
KEYS_MAX: Final = 100
_RSA_BITS_MIN: Final = 2_048
_RSA_BITS_MAX: Final = 8_192
"""A signature by a longer one takes long to check."""
_ALGORITHMS: Final[Mapping[tuple[str, str], tuple[str, ...]]] = {
    ("RSA", ""): tuple(name for name in ALGORITHMS if name[:2] in ("RS", "PS")),
    ("EC", "P-256"): ("ES256",),
    ("EC", "P-384"): ("ES384",),
    ("EC", "P-521"): ("ES512",),
    ("OKP", "Ed25519"): ("EdDSA",),
    ("OKP", "Ed448"): ("EdDSA",),
}
"""What each kind of key may check: a key is used for nothing else, whatever a token says."""
_TIMEOUT_S: Final = 10.0
ASKED_FOR_S: Final = 10.0
"""How long after keys were asked for no unknown one has them asked for again."""
_RETRY_S: Final = 5.0
"""How long a file that could not be used is left alone, though nothing of it has changed."""


@dataclass(frozen=True, slots=True)
class Key:
    """One public key, and the algorithms that it is for. fingerprint: the same for the same key, read at any time"""

    key: Any
    algorithms: tuple[str, ...]
    fingerprint: bytes = b""


class KeySet:
    """The keys of one time. Another one has other tokens."""

    def __init__(self, keys: Sequence[tuple[str | None, Key]] = ()) -> None:
        """`keys`: with their names; keys for different algorithms may have the same one (RFC 7517, 4.5)."""
        self._keys = keys
        self._fingerprints = frozenset(key.fingerprint for _, key in keys)

    def __len__(self) -> int:
        return len(self._keys)

    def has(self, key: Key) -> bool:
        """Return whether a key that was read before is still one of these."""
        return key.fingerprint in self._fingerprints

    def find(self, name: str | None, algorithm: str) -> Key | None:
        """Return a key by the name that a token has for it; without one, the only key there is.

        Where several have the name, that for the algorithm.
        """
        found = [key for each, key in self._keys if name is None or each == name]
        if name is None and len(found) > 1:
            return None
        return next((key for key in found if algorithm in key.algorithms), found[0] if found else None)


NO_KEYS: Final = KeySet()


def parse_keys(data: bytes) -> KeySet:
    """Return the keys of a JWKS that can check signatures; those that can't be used are left out, with a warning.

    Raises `ValueError`, which says what is wrong, where none can.
    """
    with imports_of_extra("tokens", "sasl.enabled.mechanisms = OAUTHBEARER"):
        from jwt import PyJWK

    if len(data) > KEYS_BYTES_MAX:
        raise ValueError(f"it has more than {KEYS_BYTES_MAX} bytes")
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        raise ValueError("it is not JSON") from None
    entries = found.get("keys") if isinstance(found, dict) else None
    if not isinstance(entries, list):
        raise ValueError('it has no list "keys"')
    if len(entries) > KEYS_MAX:
        raise ValueError(f"it has {len(entries)} keys; at most {KEYS_MAX} are taken")
    keys: list[tuple[str | None, Key]] = []
    wrong = ""
    for entry in entries:
        algorithms = _algorithms_of(entry)
        if not algorithms:
            continue
        name = entry.get("kid")
        try:
            key = _checked(PyJWK.from_dict({**entry, "alg": algorithms[0]}), entry)
            if isinstance(name, str) and any(
                each == name and set(algorithms) & set(one.algorithms) for each, one in keys
            ):
                raise ValueError("another one for the same has this name")
        except Exception as error:  # what the libraries raise for a wrong key is of many kinds
            wrong = f"the key {str(name)[:100]!r} can't be used: {error}"
            _log.warning("of the keys of tokens one is left out: %s", wrong)
            continue
        keys.append((name if isinstance(name, str) else None, Key(key, algorithms, _fingerprint(key))))
    if not keys:
        none = "it has no public key that checks signatures (RSA, or EC of P-256, P-384 or P-521, or OKP)"
        raise ValueError(wrong or none)
    return KeySet(keys)


def _fingerprint(key: Any) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).digest()


def _algorithms_of(entry: object) -> tuple[str, ...]:
    """Return what a key may check; nothing for keys that are not public, or for something else."""
    if not isinstance(entry, dict) or entry.get("use") not in (None, "sig"):
        return ()
    kind = entry.get("kty")
    curve = "" if kind == "RSA" else entry.get("crv")
    if not isinstance(kind, str) or not isinstance(curve, str):
        return ()
    algorithms = _ALGORITHMS.get((kind, curve), ())
    own = entry.get("alg")
    return algorithms if own is None else tuple(name for name in algorithms if name == own)


def _checked(made: PyJWK, entry: Mapping[str, Any]) -> Any:
    key: Any = made.key
    if hasattr(key, "public_key"):  # somebody has published the private one: who has read it may sign
        raise ValueError("it is a private key; give the public one, and make a new pair")
    if entry["kty"] == "RSA" and not _RSA_BITS_MIN <= key.key_size <= _RSA_BITS_MAX:
        raise ValueError(f"it has {key.key_size} bits; {_RSA_BITS_MIN} to {_RSA_BITS_MAX} are taken")
    return key


class TokenKeys:
    """Of one node. From any thread."""

    def __init__(self, config: TokenConfig) -> None:
        """Raises `ConfigError` where a file can't be used."""
        self._url = config.sasl_oauthbearer_jwks_endpoint_url
        self._path = keys_file(config)
        self._refresh_s = config.sasl_oauthbearer_jwks_endpoint_refresh_ms / 1000
        self._backoff_s = config.sasl_oauthbearer_jwks_endpoint_retry_backoff_ms / 1000
        self._backoff_max_s = config.sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms / 1000
        self._lock = threading.Lock()
        self._keys = NO_KEYS
        self._signature: FileSignature = ()
        self._refused: FileSignature = ()
        self._refused_at = 0.0
        self._told = ""
        self._woken = threading.Event()
        self._is_closed = False
        self._asked_at = 0.0
        self._asked: Future[None] | None = None
        if self._path:
            self._signature = self._signed()
            self._keys = self._read()
        else:
            with imports_of_extra("tokens", "sasl.enabled.mechanisms = OAUTHBEARER"):
                import jwt  # noqa: F401 (a start without it says so, and not the first token)
            self._asked = Future()
            threading.Thread(target=self._refresh, name="semel-token-keys", daemon=True).start()

    def current(self) -> KeySet:
        """Return the keys as they are now; the same object for as long as they are the same."""
        if not self._path:
            return self._keys
        with self._lock:
            signature: FileSignature = ()
            try:
                signature = self._signed()
                if signature == self._signature:
                    self._refused, self._told = (), ""
                elif signature != self._refused or time.monotonic() - self._refused_at > _RETRY_S:
                    self._keys, self._signature = self._read(), signature
                    _log.info("the keys of tokens were read again: there are %d", len(self._keys))
            except ConfigError as error:
                if error.message != self._told:
                    _log.warning("the keys of tokens stay as they were: %s", error.message)
                self._refused, self._refused_at, self._told = signature, time.monotonic(), error.message
            return self._keys

    def asked_for(self) -> Future[None] | None:
        """Have keys asked for again, for a token whose key is not known. Return what is done when they were.

        None where that would be too soon, or keys are in a file.
        """
        if self._path:
            return None
        with self._lock:
            if self._asked is None:
                if time.monotonic() - self._asked_at < ASKED_FOR_S:
                    return None
                self._asked = Future()
                self._woken.set()
            return self._asked

    def close(self) -> None:
        self._is_closed = True
        self._woken.set()

    def _refresh(self) -> None:
        """Get keys again and again. In a thread of its own."""
        failures, known = 0, b""
        while not self._is_closed:
            self._woken.clear()
            try:
                data = fetch(self._url)
                if data != known:  # with the same keys, what is known of tokens stays
                    self._keys, known = parse_keys(data), data
                    _log.info("the keys of tokens were got: there are %d", len(self._keys))
                failures, wait_s = 0, self._refresh_s
            except (OSError, ValueError, http.client.HTTPException) as error:
                if not failures:
                    _log.warning("the keys of tokens can't be got, and stay as they were: %s: %s", self._url, error)
                failures += 1
                wait_s = min(self._backoff_max_s, self._backoff_s * 2.0 ** min(failures - 1, 30))
            with self._lock:
                asked, self._asked, self._asked_at = self._asked, None, time.monotonic()
            if asked is not None and asked.set_running_or_notify_cancel():
                asked.set_result(None)
            self._woken.wait(wait_s)

    def _signed(self) -> FileSignature:
        try:
            return signature_of(self._path)
        except (OSError, ValueError) as error:
            raise self._unusable(f"can't be read: {getattr(error, 'strerror', None) or error}") from None

    def _read(self) -> KeySet:
        try:
            with Path(self._path).open("rb") as file:
                return parse_keys(file.read(KEYS_BYTES_MAX + 1))
        except OSError as error:
            raise self._unusable(f"can't be read: {error.strerror or error}") from None
        except ValueError as error:
            raise self._unusable(f"has no keys to use: {error}") from None

    def _unusable(self, why: str) -> ConfigError:
        return ConfigError(f"{KEYS_URL} = {self._url} {why}")


def fetch(url: str) -> bytes:
    """Return what is at a URL, in a bounded time and up to a bounded size. It follows no redirection.

    Raises `OSError`, `ValueError`, `HTTPException`.
    """
    answer = ask(url, headers={"Accept": "application/json"}, timeout_s=_TIMEOUT_S, bytes_max=KEYS_BYTES_MAX)
    if answer.status != http.client.OK:
        raise ValueError(f"it answers {answer.status}")
    return answer.body
