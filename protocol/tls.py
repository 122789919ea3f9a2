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
