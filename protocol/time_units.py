"""Spans of time in milliseconds."""

from typing import Final

DAY_MS: Final = 24 * 60 * 60 * 1000
