"""How IP addresses are compared."""

from __future__ import annotations

import ipaddress


def host_of(address: str) -> str:
    """Return an IP address as it is compared: without a zone, shortest, and IPv4 as such. What is none stays."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    return str(getattr(found, "ipv4_mapped", None) or found)
