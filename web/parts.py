"""Which parts `semel http` serves: the one list, which a new API is added to."""

from __future__ import annotations

from typing import Final

from semel.web.app import Part
from semel.web.console import part as console
from semel.web.registry import part as registry

PARTS: Final[tuple[Part, ...]] = (registry, console)
