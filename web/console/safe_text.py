"""Text of strangers in pages: what can't be seen, or would turn the text around it, is shown as an escape."""

from __future__ import annotations

import re
from typing import Any, Final

from markupsafe import Markup

_UNSEEN: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u115f\u1160\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff"
    "\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)
"""Control characters but tab and line feed, bidirectional controls, spaces without a width, lone surrogates, tags."""
_UNDECODED: Final = range(0xDC80, 0xDD00)
"""Bytes that are no UTF-8, as `surrogateescape` keeps them."""


def safe_text(value: Any) -> Any:
    """Return what is put into a page for a value. Jinja escapes what has a meaning in HTML after this.

    >>> safe_text("a\\u202eb"), safe_text(b"\\xff".decode("utf-8", "surrogateescape"))
    ('a\\\\u202eb', '\\\\xff')
    """
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    return _UNSEEN.sub(_escape, value)


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code in _UNDECODED:
        return f"\\x{code - 0xDC00:02x}"
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
