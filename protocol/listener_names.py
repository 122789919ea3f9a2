"""How listeners are called that have no name of their own."""

from __future__ import annotations

from typing import Final

DEFAULT_LISTENER: Final = "default"
"""The name of a listener that was given none: that of `kafka.listen` or `grpc.listen`."""


def addresses_of(items: str) -> list[tuple[str, str]]:
    """Return names and addresses of the listeners in a setting `kafka.listeners` that is right.

    >>> addresses_of("internal=127.0.0.1:9092,external=tls://0.0.0.0:9093?advertised=log1:9093")
    [('internal', '127.0.0.1:9092'), ('external', 'tls://0.0.0.0:9093')]
    """
    parts = (item.partition("?")[0].partition("=") for item in items.split(",") if item)
    return [(name.strip().lower(), address.strip()) for name, _, address in parts]
