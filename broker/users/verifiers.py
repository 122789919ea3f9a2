"""Verifiers of passwords as text, in the form that PostgreSQL has for them:

SCRAM-SHA-256$10000:<salt>$<stored key>:<server key>
"""

from __future__ import annotations

import binascii
import re
from base64 import b64decode, b64encode
from typing import Final

from semel.protocol.errors import UsageError
from semel.protocol.scram import ITERATIONS_MIN, KEY_BYTES, Verifier

ITERATIONS_MAX: Final = 1_000_000
"""More would keep the thread that checks passwords busy for seconds."""
_FORM: Final = re.compile(
    r"(?P<mechanism>SCRAM-SHA-(?:256|512))\$(?P<iterations>\d{1,7}):(?P<salt>[A-Za-z0-9+/=]{16,256})"
    r"\$(?P<stored>[A-Za-z0-9+/=]{1,128}):(?P<server>[A-Za-z0-9+/=]{1,128})"
)


def verifier_text(verifier: Verifier) -> str:
    """Return the text that `parse_verifier` reads. It is a secret: who has it can guess passwords without asking."""
    parts = (verifier.salt, verifier.stored_key, verifier.server_key)
    salt, stored, server = (b64encode(part).decode() for part in parts)
    return f"{verifier.mechanism}${verifier.iterations}:{salt}${stored}:{server}"


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
    size = KEY_BYTES[mechanism]
    if len(stored) != size or len(server) != size or len(salt) < 12:
        raise UsageError(f"a part of the {mechanism} verifier has a wrong length")
    return Verifier(mechanism, iterations, salt, stored, server)
