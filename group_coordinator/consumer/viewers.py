"""Who subscribed by a regular expression: it matches only topics that this principal, at this host, may describe.

The expression of a member whose rights count carries them with it, also in the log. So it means the same on the next
node that coordinates the group, and two members with the same expression and different rights want different topics.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

_SEPARATOR: Final = "\0"
"""In no expression, principal or address that can be used."""
_PARTS: Final = 3


class Viewer(NamedTuple):
    """One principal at one host."""

    principal: str
    host: str


class Sights(Protocol):
    """What viewers may see."""

    def version(self) -> object:
        """Return an object that is another one once viewers may see other topics."""
        ...

    def of(self, viewer: Viewer) -> Callable[[str], bool]:
        """Return what says of a topic whether a viewer may see it."""
        ...


class SeeAll:
    """The sights of all viewers where rights do not count."""

    def version(self) -> object:
        return None

    def of(self, viewer: Viewer) -> Callable[[str], bool]:
        return lambda _topic: True


def with_viewer(expression: str, viewer: Viewer) -> str:
    """Return what a viewer's expression is written as. Raises `ValueError` for one that can't be written."""
    if _SEPARATOR in viewer.principal or _SEPARATOR in viewer.host:
        raise ValueError("a principal and a host have no zero characters")
    return f"{_SEPARATOR}{viewer.principal}{_SEPARATOR}{viewer.host}{_SEPARATOR}{expression}"


def split_viewer(written: str) -> tuple[Viewer | None, str]:
    """Return who sees through an expression, None for everything, and the expression itself."""
    if not written.startswith(_SEPARATOR):
        return None, written
    parts = written[1:].split(_SEPARATOR, _PARTS - 1)
    return (Viewer(parts[0], parts[1]), parts[2]) if len(parts) == _PARTS else (None, written)


def without_viewer(written: str | None) -> str | None:
    """Return the expression alone, as its member sent it."""
    return None if written is None else split_viewer(written)[1]
