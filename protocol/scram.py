"""Passwords as SCRAM proves them (RFC 5802, KIP-84, KIP-554): what is kept of them."""

from __future__ import annotations

import hashlib
import hmac
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NamedTuple

from semel.protocol.errors import ErrorCode, FatalError, UsageError

SCRAM_MECHANISMS: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512")
"""The one that is preferred first."""
MECHANISM_NUMBERS: Final[Mapping[str, int]] = MappingProxyType({"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2})
"""As the protocol names mechanisms (KIP-554)."""
MECHANISM_NAMES: Final[Mapping[int, str]] = MappingProxyType({each: name for name, each in MECHANISM_NUMBERS.items()})

ITERATIONS: Final = 10_000
"""So often a password is hashed, which takes a client some milliseconds for each connection."""
ITERATIONS_MIN: Final = 4_096
CREDENTIAL_ITERATIONS_MAX: Final = 16_384
"""Of a password in the cluster's metadata, as in Kafka."""
KEY_BYTES: Final[Mapping[str, int]] = MappingProxyType({"SCRAM-SHA-256": 32, "SCRAM-SHA-512": 64})
"""Of the stored key, of the server key, and of the salted password."""
SALT_BYTES_MAX: Final = 256
SALTED_BYTES_MAX: Final = 1_024
"""Of a salted password: a client that makes it right sends as many as the digest has, but Kafka takes others, too."""
NAME_BYTES_MAX: Final = 255
_NAME: Final = re.compile(r"[^\s,=#:\x00-\x1f\x7f]+")
_NAME_SHOWN: Final = 40


def check_user_name(name: str) -> str:
    """Return a name that a user can have. Raises `UsageError`."""
    is_usual = unicodedata.is_normalized("NFKC", name) and all(not 0xD800 <= ord(one) <= 0xDFFF for one in name)
    if not is_usual or not _NAME.fullmatch(name) or len(name.encode()) > NAME_BYTES_MAX:
        raise UsageError(
            f"a user can't be called {name[:_NAME_SHOWN]!r}: a name has 1 to {NAME_BYTES_MAX} bytes, and no space, "
            "comma, colon, = or #"
        )
    return name


@dataclass(frozen=True, slots=True, repr=False)
class Verifier:
    """What proves one user's password, for one mechanism. No text of it has its keys: passwords can be guessed."""

    mechanism: str
    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes

    def __repr__(self) -> str:
        return f"<a verifier for {self.mechanism}, {self.iterations} iterations>"

    def accepts(self, password: str) -> bool:
        """Return whether this is the password. Takes milliseconds of a thread."""
        from scramp import ScramException, ScramMechanism

        try:
            _, stored_key, _, _ = ScramMechanism(self.mechanism).make_auth_info(
                password, iteration_count=self.iterations, salt=self.salt
            )
        except ScramException:
            return False  # it has characters that no password has
        return hmac.compare_digest(stored_key, self.stored_key)

    def check_for_cluster(self) -> Verifier:
        """Return this. Raises `FatalError` where the cluster's metadata does not take it (KIP-554)."""
        size = KEY_BYTES.get(self.mechanism)
        if size is None:
            raise unknown_mechanism()
        if self.iterations < ITERATIONS_MIN:
            raise unacceptable(f"too few iterations: {ITERATIONS_MIN} to {CREDENTIAL_ITERATIONS_MAX} are taken")
        if self.iterations > CREDENTIAL_ITERATIONS_MAX:
            raise unacceptable(f"too many iterations: {ITERATIONS_MIN} to {CREDENTIAL_ITERATIONS_MAX} are taken")
        if not 1 <= len(self.salt) <= SALT_BYTES_MAX:
            raise unacceptable(f"a salt has 1 to {SALT_BYTES_MAX} bytes")
        if len(self.stored_key) != size or len(self.server_key) != size:
            raise unacceptable(f"a key of {self.mechanism} has {size} bytes")
        return self


class Upsertion(NamedTuple):
    """A user's password for one mechanism, to be added or to take the place of the one before."""

    user: str
    verifier: Verifier


class Deletion(NamedTuple):
    """A user's password for one mechanism, to be removed."""

    user: str
    mechanism: str


@dataclass(frozen=True, slots=True)
class UserDescription:
    """A user in the cluster's metadata. `iterations`: by the mechanisms that the user has a password for."""

    name: str
    iterations: Mapping[str, int]


class Alteration(NamedTuple):
    """What is to become of one user's passwords.

    replaces: whether only these verifiers are to be left, or the user is to be gone where there are none
    removed:  mechanisms otherwise for which the user is to have no password any more
    """

    user: str
    verifiers: tuple[Verifier, ...] = ()
    removed: tuple[str, ...] = ()
    replaces: bool = False


def unacceptable(why: str) -> FatalError:
    """Return the error of a password or a name that is not taken."""
    return FatalError(why, ErrorCode.UNACCEPTABLE_CREDENTIAL)


def unknown_mechanism() -> FatalError:
    """Return the error of a mechanism that there is not."""
    return FatalError(
        f"unknown SCRAM mechanism: use {' or '.join(SCRAM_MECHANISMS)}", ErrorCode.UNSUPPORTED_SASL_MECHANISM
    )


def make_verifier(mechanism: str, password: str, iterations: int = ITERATIONS) -> Verifier:
    """Return what proves a password, with a new salt. Raises `UsageError` for one that can't be one."""
    from scramp import ScramException, ScramMechanism

    try:
        salt, stored_key, server_key, _ = ScramMechanism(mechanism).make_auth_info(password, iteration_count=iterations)
    except ScramException as error:
        raise UsageError(f"the password can't be used: {error}") from None
    return Verifier(mechanism, iterations, salt, stored_key, server_key)


def make_verifiers(password: str, mechanisms: Sequence[str], iterations: int = ITERATIONS) -> list[Verifier]:
    """Return what proves a password by each of some mechanisms. Takes milliseconds. Raises `UsageError`."""
    return [make_verifier(mechanism, password, iterations) for mechanism in mechanisms]


def verifier_of_salted(mechanism: str, iterations: int, salt: bytes, salted_password: bytes) -> Verifier:
    """Return what proves the password that a client has salted and hashed (RFC 5802, section 3)."""
    digest = mechanism.removeprefix("SCRAM-").replace("-", "").lower()
    client_key = hmac.digest(salted_password, b"Client Key", digest)
    stored_key = hashlib.new(digest, client_key).digest()
    return Verifier(mechanism, iterations, salt, stored_key, hmac.digest(salted_password, b"Server Key", digest))
