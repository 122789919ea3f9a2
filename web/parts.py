"""Which parts `semel http` serves: the one list, which a new API is added to."""

from __future__ import annotations

from typing import Final

from semel.web.app import Part
from semel.web.console import part as console
from semel.web.registry import part as registry
from semel.web.rest import part as rest

PARTS: Final[tuple[Part, ...]] = (registry, rest, console)
