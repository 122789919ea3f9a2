"""What a token looks like (RFC 6750): in a file, and as a server of tokens gives it."""

from __future__ import annotations

import re
from typing import Final

TOKEN_BYTES_MAX: Final = 16 << 10
TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/=-]+")
