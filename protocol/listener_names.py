"""How listeners are called that have no name of their own."""

from __future__ import annotations

from typing import Final

_CLIENT_AUTH: Final = "ssl.client.auth"
DEFAULT_LISTENER: Final = "default"
"""The name of a listener that was given none: that of `kafka.listen` or `grpc.listen`."""


def addresses_of(items: str) -> list[tuple[str, str]]:
    """Return names and addresses of the listeners in a setting `kafka.listeners` that is right.

    >>> addresses_of("internal=127.0.0.1:9092,external=tls://0.0.0.0:9093?advertised=log1:9093")
    [('internal', '127.0.0.1:9092'), ('external', 'tls://0.0.0.0:9093')]
    """
    parts = (item.partition("?")[0].partition("=") for item in items.split(",") if item)
    return [(name.strip().lower(), address.strip()) for name, _, address in parts]


def client_auth_of(items: str) -> dict[str, str]:
    """Return the `ssl.client.auth` of the listeners in a setting `kafka.listeners` that have their own, by their names.

    >>> client_auth_of("internal=tls://h:1,external=tls://h:2?advertised=log1:9&ssl.client.auth=required")
    {'external': 'required'}
    """
    found = {}
    for item in filter(None, items.split(",")):
        address, _, query = item.partition("?")
        options = dict(option.strip().partition("=")[::2] for option in query.split("&"))
        if _CLIENT_AUTH in options:
            found[address.partition("=")[0].strip().lower()] = options[_CLIENT_AUTH].strip()
    return found
