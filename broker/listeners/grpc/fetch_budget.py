"""What all Fetch streams of a node hold in memory for clients that have not read it yet is bounded (S2).

A stream reserves bytes before it reads records and releases them once they are written. Bytes are given in the order in
which streams ask. What one address holds is never more than what it leaves free, so that a few addresses of clients
that never read don't keep all others out. One that holds nothing gets a first reservation, if it is a small one, up to
twice the bound.

A stream whose client reads nothing keeps what it has reserved until the client reads or leaves: gRPC has the message
then, and nothing takes it back, not even the end of the call.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Final

FETCH_STREAMS_BYTES_MAX: Final = 64 << 20
_FIRST_SHARE: Final = 16
"""The first reservation of an address is small where it is at most this part of all."""


class FetchBudget:
    """Bytes that Fetch streams may hold, and who waits for some."""

    def __init__(self, bytes_max: int = FETCH_STREAMS_BYTES_MAX) -> None:
        self.used_bytes = 0
        self._bytes_max = bytes_max
        self._used_by: Counter[str] = Counter()
        self._waiting: dict[asyncio.Future[int], tuple[str, int]] = {}
        self._full = False
        """Whether somebody waits for others than those of its own address."""
        self._stopped = False

    @property
    def waiting(self) -> int:
        """How many streams wait for bytes."""
        return len(self._waiting)

    def try_reserve(self, host: str, size: int) -> int:
        """Return how much was reserved, which is less than `size` only where there is no more at all; 0 for nothing."""
        size = self._most(size)
        is_behind = self._full and not self._is_first(host, size)
        if self._stopped or is_behind or not self._fits(host, size) or not self._may_have(host, size):
            return 0
        self._add(host, size)
        return size

    async def reserve(self, host: str, size: int) -> int:
        """Do what `try_reserve` does, and wait for it. Returns 0 where the node stops."""
        reserved = self.try_reserve(host, size)
        if reserved or self._stopped:
            return reserved
        waiter: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting[waiter] = (host, self._most(size))
        self._give()
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self.release(host, waiter.result())
            else:
                self._waiting.pop(waiter, None)
                self._give()
            raise

    def release(self, host: str, size: int) -> None:
        """Let others have these bytes."""
        self._add(host, -size)
        self._give()

    def stop(self) -> None:
        """Give no more."""
        self._stopped = True
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(0)
        self._waiting.clear()

    def _give(self) -> None:
        self._full = False
        for waiter, (host, size) in list(self._waiting.items()):
            is_behind = self._full and not self._is_first(host, size)
            if is_behind or not self._fits(host, size):
                self._full = True
            elif self._may_have(host, size):
                del self._waiting[waiter]
                if not waiter.done():
                    self._add(host, size)
                    waiter.set_result(size)

    def _most(self, size: int) -> int:
        return min(size, self._bytes_max)

    def _fits(self, host: str, size: int) -> bool:
        bytes_max = 2 * self._bytes_max if self._is_first(host, size) else self._bytes_max
        return self.used_bytes + size <= bytes_max

    def _is_first(self, host: str, size: int) -> bool:
        """Whether this is the first reservation of an address, which is not to wait for others."""
        return host not in self._used_by and size <= self._bytes_max // _FIRST_SHARE

    def _may_have(self, host: str, size: int) -> bool:
        used = self._used_by.get(host, 0)
        return not used or used + size <= self._bytes_max - self.used_bytes - size

    def _add(self, host: str, size: int) -> None:
        self.used_bytes += size
        self._used_by[host] += size
        if not self._used_by[host]:
            del self._used_by[host]
