"""A planted fault as the test holds it: how often it has happened, waiting for it, taking it back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self


class Fault:
    """A fault that was planted in a broker. As a context manager it is taken back at the end.

    with broker.drop_commit_answer("enrich-0") as dropped:
        run_the_pipeline()
    assert dropped.count == 1
    """

    def __init__(self, what: str, remove: Callable[[], None]) -> None:
        self.what = what
        """What it does, for messages."""
        self._remove = remove
        self._changed = threading.Condition()
        self._count = 0
        self._is_planted = True

    @property
    def count(self) -> int:
        """How many requests or answers were lost to it. What lasts, such as a paused partition, is not counted."""
        return self._count

    @property
    def is_planted(self) -> bool:
        """Whether it can still happen: it was not taken back, and not all its times are used up."""
        return self._is_planted

    def wait(self, count: int = 1, *, timeout_s: float = 10.0) -> None:
        """Wait until `count` requests or answers were lost. Raises `TimeoutError` after `timeout_s` seconds."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._count >= count, timeout_s):
                raise TimeoutError(f"{self.what}: happened {self._count} times in {timeout_s} s, not {count}")

    def remove(self) -> None:
        """Take it back. Does nothing where it was used up or taken back before."""
        if self._is_planted:
            self._remove()
            self._is_planted = False

    def happened(self) -> None:
        """Count it. For the broker."""
        with self._changed:
            self._count += 1
            self._changed.notify_all()

    def used_up(self) -> None:
        """Say that it can't happen any more. For the broker."""
        self._is_planted = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()

    def __repr__(self) -> str:
        state = "planted" if self._is_planted else "over"
        times = f", happened {self._count} times" if self._count else ""
        return f"<Fault {self.what}: {state}{times}>"
