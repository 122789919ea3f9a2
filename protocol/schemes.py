"""How an address says how it is reached, before HOST:PORT, of listeners and in a bootstrap.

`tls://` encrypts, `sasl://` asks for a user's name and password, `tls+sasl://` does both. Without one, neither.
"""

from __future__ import annotations

import re
from typing import Final

TLS_PREFIX: Final = "tls://"
SASL_PREFIX: Final = "sasl://"
TLS_SASL_PREFIX: Final = "tls+sasl://"
SCHEMES: Final = (TLS_PREFIX, SASL_PREFIX, TLS_SASL_PREFIX)


def scheme_of(address: str) -> str:
    """Return what an address begins with; nothing where it has no scheme.

    >>> scheme_of("tls+sasl://0.0.0.0:9092"), scheme_of("0.0.0.0:9092")
    ('tls+sasl://', '')
    """
    return next((scheme for scheme in SCHEMES if address.startswith(scheme)), "")


def scheme_for(*, tls: bool, sasl: bool) -> str:
    """Return the scheme of what encrypts, asks for a password, or both."""
    return (TLS_SASL_PREFIX if tls else SASL_PREFIX) if sasl else TLS_PREFIX if tls else ""


def speaks_tls(address: str) -> bool:
    """Return whether what is at this address encrypts.

    >>> speaks_tls("tls+sasl://0.0.0.0:9092"), speaks_tls("sasl://0.0.0.0:9092")
    (True, False)
    """
    return scheme_of(address) in (TLS_PREFIX, TLS_SASL_PREFIX)


def asks_for_password(address: str) -> bool:
    """Return whether what is at this address serves users alone.

    >>> asks_for_password("tls+sasl://0.0.0.0:9092"), asks_for_password("tls://0.0.0.0:9092")
    (True, False)
    """
    return scheme_of(address) in (SASL_PREFIX, TLS_SASL_PREFIX)


def without_scheme(address: str) -> str:
    """Return HOST:PORT.

    >>> without_scheme("tls://0.0.0.0:9092"), without_scheme("0.0.0.0:9092")
    ('0.0.0.0:9092', '0.0.0.0:9092')
    """
    return address[len(scheme_of(address)) :]


def with_scheme_of(listen: str, address: object) -> str:
    """Return an address with the scheme of `listen`, which it belongs to.

    >>> with_scheme_of("tls://127.0.0.1:0", "127.0.0.1:9092"), with_scheme_of("127.0.0.1:0", "127.0.0.1:9092")
    ('tls://127.0.0.1:9092', '127.0.0.1:9092')
    """
    return f"{scheme_of(listen)}{address}"


def hidden_password(bootstrap: str) -> str:
    """Return a bootstrap as it may be shown: without its password, and without the secret that tokens are got with.

    >>> hidden_password("tls+sasl://log1:9094?sasl.username=me&sasl.password=secret")
    'tls+sasl://log1:9094?sasl.username=me&sasl.password=...'
    """
    return re.sub(r"((?:sasl\.password|client\.secret)=)[^&]*", r"\1...", bootstrap)
