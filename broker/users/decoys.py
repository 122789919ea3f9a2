"""What strangers are told of users that there are not: a salt and a number of iterations, as a user could have them.

For one name always the same. How a decoy looks is taken from the users that there are, each with the weight of how many
users look so: a client that makes passwords with 4096 iterations would else give its users away.
"""

from __future__ import annotations

import hmac
import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from semel.protocol.scram import ITERATIONS, KEY_BYTES, SCRAM_MECHANISMS, Verifier

_SALT_BYTES: Final = 32
_SHAPES_MAX: Final = 16
"""So many of the most frequent ones are told apart, or an unknown name would cost the node more than a known one."""
_TEXT_SALT_BITS: Final = 130
_TEXT_SALT_BYTES: Final = range(20, 27)
_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"


class Shape(NamedTuple):
    """How a verifier looks from outside. `salt_bytes`: 0 for salts of Java's clients, numbers to the base of 36."""

    mechanism: str
    iterations: int
    salt_bytes: int


Shapes: TypeAlias = Mapping[str | None, Counter[Shape]]
"""How many users look so: by mechanism, and under None for the one that a whole password is checked by."""


def shapes_of(users: Mapping[str, Sequence[Verifier]]) -> Shapes:
    """Return how users look."""
    found: dict[str | None, Counter[Shape]] = {place: Counter() for place in (None, *SCRAM_MECHANISMS)}
    for verifiers in users.values():
        for number, verifier in enumerate(verifiers):
            shape = Shape(verifier.mechanism, verifier.iterations, _salt_bytes(verifier.salt))
            found[verifier.mechanism][shape] += 1
            if not number:
                found[None][shape] += 1
    return {place: Counter(dict(counts.most_common(_SHAPES_MAX))) for place, counts in found.items()}


def _salt_bytes(salt: bytes) -> int:
    return 0 if len(salt) in _TEXT_SALT_BYTES and salt.isalnum() and salt.lower() == salt else len(salt)


class Decoys:
    """By a secret, so that nobody can tell what is one."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def verifier(self, name: str, mechanism: str | None, users: Sequence[Shapes]) -> Verifier:
        """Return what no password fits. `mechanism`: None for what a whole password is checked by."""
        told = f"{mechanism or SCRAM_MECHANISMS[0]} {name}".encode("utf-8", "surrogatepass")
        shape = self._shape(told, sum((each[mechanism] for each in users), Counter()))
        if shape is None:
            shape = Shape(mechanism or SCRAM_MECHANISMS[0], ITERATIONS, _SALT_BYTES)
        size = KEY_BYTES[shape.mechanism]
        salt = self._salt(told, shape.salt_bytes)
        return Verifier(shape.mechanism, shape.iterations, salt, os.urandom(size), os.urandom(size))

    def _shape(self, told: bytes, counts: Counter[Shape]) -> Shape | None:
        """Return one of several, each as likely as it is frequent. For most names it stays as numbers change."""

        def place(shape: Shape) -> float:
            drawn = hmac.digest(self._secret, told + repr(shape).encode(), "sha256")
            return math.log((int.from_bytes(drawn[:7]) + 1) / ((1 << 56) + 1)) / counts[shape]

        return max(counts, key=place, default=None)

    def _salt(self, told: bytes, size: int) -> bytes:
        drawn = b"".join(
            hmac.digest(self._secret, told + (bytes((number,)) if number else b""), "sha256")
            for number in range(max(1, -(-size // 32)))
        )
        if size:
            return drawn[:size]
        number, digits = int.from_bytes(drawn) >> (256 - _TEXT_SALT_BITS), ""
        while number:
            number, digit = divmod(number, 36)
            digits = _DIGITS[digit] + digits
        return digits.encode()
