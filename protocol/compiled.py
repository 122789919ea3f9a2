"""Whether the hot modules run compiled, and one word about it where they do not."""

from __future__ import annotations

import logging
from functools import cache

from semel.protocol import record_decoder

_log = logging.getLogger("semel")


def is_compiled() -> bool:
    """Whether the compiled modules are in use. All of them are, or none: they are built together."""
    return not str(record_decoder.__file__).endswith(".py")


@cache
def warn_if_interpreted() -> None:
    """Say once in a process that the hot modules run interpreted."""
    if not is_compiled():
        _log.warning(
            "Semel runs interpreted, several times slower than it could: it was installed without a C compiler. "
            "Install one (on Debian: apt-get install gcc python3-dev) and then Semel again, or run `make build` in a "
            "checkout."
        )
