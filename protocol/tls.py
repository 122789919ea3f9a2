"""How an address says that it is reached encrypted: `tls://` before HOST:PORT, of listeners and in a bootstrap."""

from __future__ import annotations

from typing import Final

TLS_PREFIX: Final = "tls://"


def speaks_tls(address: str) -> bool:
    """Return whether what is at this address encrypts.

    >>> speaks_tls("tls://0.0.0.0:9092"), speaks_tls("0.0.0.0:9092")
    (True, False)
    """
    return address.startswith(TLS_PREFIX)


def with_scheme_of(listen: str, address: object) -> str:
    """Return an address with `tls://` before it where `listen`, which it belongs to, has that.

    >>> with_scheme_of("tls://127.0.0.1:0", "127.0.0.1:9092"), with_scheme_of("127.0.0.1:0", "127.0.0.1:9092")
    ('tls://127.0.0.1:9092', '127.0.0.1:9092')
    """
    return f"{TLS_PREFIX if speaks_tls(listen) else ''}{address}"
