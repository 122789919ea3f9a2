"""Whether an address is reached from this machine alone."""

from __future__ import annotations

from ipaddress import ip_address

from semel.protocol.schemes import asks_for_password, speaks_tls, without_scheme


def is_loopback(host: str) -> bool:
    """Say whether only this machine reaches a host that is listened on. A name may stand for any address.

    >>> is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("0.0.0.0"), is_loopback("log1.example.com")
    (True, True, False, False)
    """
    host = host.strip("[]").lower()
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def serves_anybody(listen: str, *, asks_for_certificates: bool) -> bool:
    """Say whether a listener serves other machines without knowing who asks (S6).

    listen:                HOST:PORT, with its scheme
    asks_for_certificates: whether listeners that encrypt do so

    >>> serves_anybody("tls://0.0.0.0:9092", asks_for_certificates=False)
    True
    >>> serves_anybody("tls://0.0.0.0:9092", asks_for_certificates=True)
    False
    >>> serves_anybody("tls+sasl://0.0.0.0:9092", asks_for_certificates=False)
    False
    """
    if asks_for_password(listen) or (asks_for_certificates and speaks_tls(listen)):
        return False
    return not is_loopback(without_scheme(listen).rpartition(":")[0])
