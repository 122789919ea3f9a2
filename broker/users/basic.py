"""A user's name and password as HTTP carries them: `Basic BASE64` (RFC 7617)."""

from __future__ import annotations

from base64 import b64decode
from typing import Final

from semel.broker.users.exchanges import TOKEN_BYTES_MAX

_SCHEME: Final = "basic "


def parse_basic(text: str) -> tuple[str, str]:
    """Return a name and a password; empty ones, which nobody has, for what is no such pair."""
    if text[: len(_SCHEME)].lower() != _SCHEME or len(text) > 2 * TOKEN_BYTES_MAX:
        return "", ""
    try:
        name, _, password = b64decode(text[len(_SCHEME) :].strip(), validate=True).decode().partition(":")
    except ValueError:  # no base64, or no UTF-8 in it
        return "", ""
    return name, password
