"""Measures how long clients waited: the longest time in which a count of theirs did not rise. For people to read."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

_LOOKS_EVERY_S = 0.01


class Pauses:
    """Looks at counts that rise as long as clients work. `seconds` has the longest pause of each in each part."""

    def __init__(self, counts: Mapping[str, Callable[[], int]]) -> None:
        self._counts = counts
        self.seconds: dict[str, dict[str, float]] = {}

    @contextmanager
    def during(self, part: str) -> Iterator[None]:
        """Measure a part of a test. It ends when clients work again, or its last pause counts only so far."""
        over = threading.Event()
        longest = dict.fromkeys(self._counts, 0.0)
        looking = threading.Thread(target=self._look, args=(over, longest), daemon=True)
        looking.start()
        try:
            yield
        finally:
            over.set()
            looking.join()
            self.seconds[part] = longest

    def _look(self, over: threading.Event, longest: dict[str, float]) -> None:
        former = {name: count() for name, count in self._counts.items()}
        since = dict.fromkeys(self._counts, time.monotonic())
        while not over.wait(_LOOKS_EVERY_S):
            now = time.monotonic()
            for name, count in self._counts.items():
                longest[name] = max(longest[name], now - since[name])
                if (found := count()) != former[name]:
                    former[name], since[name] = found, now

    def __str__(self) -> str:
        return "\n".join(
            f"{part}: " + ", ".join(f"{name} {seconds:.1f} s" for name, seconds in longest.items())
            for part, longest in self.seconds.items()
        )
