"""What proves a password without holding it: SCRAM's stored key and server key (RFC 5802, section 3).

As text, in the form that PostgreSQL has for it:

    SCRAM-SHA-256$10000:<salt>$<stored key>:<server key>
"""

from __future__ import annotations

import binascii
import hmac
import re
from base64 import b64decode, b64encode
from dataclasses import dataclass
from typing import Final

from semel.protocol.errors import UsageError

ITERATIONS: Final = 10_000
"""So often a password is hashed, which takes a client some milliseconds for each connection."""
ITERATIONS_MIN: Final = 4_096
ITERATIONS_MAX: Final = 1_000_000
"""More would keep the thread that checks passwords busy for seconds."""
_FORM: Final = re.compile(
    r"(?P<mechanism>SCRAM-SHA-(?:256|512))\$(?P<iterations>\d{1,7}):(?P<salt>[A-Za-z0-9+/=]{16,256})"
    r"\$(?P<stored>[A-Za-z0-9+/=]{1,128}):(?P<server>[A-Za-z0-9+/=]{1,128})"
)
_KEY_BYTES: Final = {"SCRAM-SHA-256": 32, "SCRAM-SHA-512": 64}


@dataclass(frozen=True, slots=True, repr=False)
class Verifier:
    """Of one user's password, for one mechanism."""

    mechanism: str
    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes

    def __str__(self) -> str:
        """The text that `parse_verifier` reads. It is a secret: who has it can guess passwords without asking."""
        salt, stored, server = (b64encode(part).decode() for part in (self.salt, self.stored_key, self.server_key))
        return f"{self.mechanism}${self.iterations}:{salt}${stored}:{server}"

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


def make_verifier(mechanism: str, password: str, iterations: int = ITERATIONS) -> Verifier:
    """Return what proves a password. Raises `UsageError` for one that can't be one."""
    from scramp import ScramException, ScramMechanism

    try:
        salt, stored_key, server_key, _ = ScramMechanism(mechanism).make_auth_info(password, iteration_count=iterations)
    except ScramException as error:
        raise UsageError(f"the password can't be used: {error}") from None
    return Verifier(mechanism, iterations, salt, stored_key, server_key)


def parse_verifier(text: str) -> Verifier:
    """Return what a text says. Raises `UsageError`, which does not repeat the text."""
    found = _FORM.fullmatch(text)
    if found is None:
        raise UsageError("this is no SCRAM-SHA-256 or SCRAM-SHA-512 verifier, as `semel user add` writes them")
    mechanism, iterations = found["mechanism"], int(found["iterations"])
    if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
        raise UsageError(f"{iterations} iterations: {ITERATIONS_MIN} to {ITERATIONS_MAX} are taken")
    try:
        salt, stored, server = (b64decode(found[part], validate=True) for part in ("salt", "stored", "server"))
    except binascii.Error:
        raise UsageError("a part of the verifier is not in base64") from None
    size = _KEY_BYTES[mechanism]
    if len(stored) != size or len(server) != size or len(salt) < 12:
        raise UsageError(f"a part of the {mechanism} verifier has a wrong length")
    return Verifier(mechanism, iterations, salt, stored, server)
