"""How listeners are called that have no name of their own."""

from __future__ import annotations

from typing import Final

DEFAULT_LISTENER: Final = "default"
"""The name of a listener that was given none: that of `kafka.listen` or `grpc.listen`."""
