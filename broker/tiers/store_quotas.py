"""How much of the remote storage a node may take in a second: bytes that it copies and reads (KIP-956), and requests,
which are what a store bills.

Each is a bucket that fills at the rate of its setting, and may be overdrawn by one request: what comes next waits until
that is made up for. Appends to diskless topics come before copies: they wait for what appends have taken alone, and
copies for what both have. What a node reads to take a partition over does not wait, nor do look-ups by time, deletions
and lists.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from semel.broker.config.node_config import NodeConfig
from semel.broker.quotas.rates import TokenBucket, Windows
from semel.broker.tiers.counted_store import puts_of
from semel.runtime.clock import Clock

COPY: Final = "copy"
FETCH: Final = "fetch"
APPEND: Final = "append"

_WINDOWS: Final = Windows(kept=2, seconds=1.0)
"""After a quiet time so many seconds' worth may be taken at once."""


class StoreQuotas:
    """Those of one node."""

    def __init__(self, config: Callable[[], NodeConfig], clock: Clock) -> None:
        """`config`: the settings as they are now."""
        self._config = config
        self._clock = clock
        self._copied, self._fetched, self._gets = (TokenBucket(_WINDOWS) for _ in range(3))
        self._puts, self._appends = TokenBucket(_WINDOWS), TokenBucket(_WINDOWS)
        self.throttled_s: Final = dict.fromkeys((COPY, FETCH, APPEND), 0.0)
        """For how long copies, reads and appends to diskless topics waited, by what waited, since the node's start."""

    # --- Copies of segments -------------------------------------------------------------------------------------------

    async def wait_to_copy(self) -> bool:
        """Wait until a segment may be copied. The caller says so with `copies`, before anybody else has a turn.

        Returns whether it had to wait.
        """
        return await self._wait(COPY, self._copy_wait_s) > 0

    def copies(self, size_bytes: int) -> None:
        """Count a segment that is copied now."""
        now_s, config = self._clock.monotonic(), self._config()
        self._copied.take(size_bytes, config.remote_log_manager_copy_max_bytes_per_second, now_s)
        self._puts.take(puts_of(size_bytes), config.remote_storage_put_requests_per_second, now_s)

    def _copy_wait_s(self) -> float:
        now_s, config = self._clock.monotonic(), self._config()
        return max(
            self._copied.wait_s(config.remote_log_manager_copy_max_bytes_per_second, now_s),
            self._puts.wait_s(config.remote_storage_put_requests_per_second, now_s),
        )

    # --- Objects of diskless topics -----------------------------------------------------------------------------------

    def put_wait_s(self) -> float:
        """Return after how long an object may be written; 0: now."""
        return self._appends.wait_s(self._config().remote_storage_put_requests_per_second, self._clock.monotonic())

    def puts(self, size_bytes: int) -> None:
        """Count the requests of an object that is written now."""
        now_s, rate = self._clock.monotonic(), self._config().remote_storage_put_requests_per_second
        for bucket in (self._appends, self._puts):
            bucket.take(puts_of(size_bytes), rate, now_s)

    # --- Reading ------------------------------------------------------------------------------------------------------

    async def fetch(self, size_bytes: int, is_wanted: Callable[[], bool]) -> bool:
        """Wait until so much may be read for consumers, and count it. False: nobody wants it any more."""
        await self._wait(FETCH, self._fetch_wait_s, is_wanted)
        if not is_wanted():
            return False
        now_s, config = self._clock.monotonic(), self._config()
        self._fetched.take(size_bytes, config.remote_log_manager_fetch_max_bytes_per_second, now_s)
        self._gets.take(1, config.remote_storage_get_requests_per_second, now_s)
        return True

    def _fetch_wait_s(self) -> float:
        now_s, config = self._clock.monotonic(), self._config()
        return max(
            self._fetched.wait_s(config.remote_log_manager_fetch_max_bytes_per_second, now_s),
            self._gets.wait_s(config.remote_storage_get_requests_per_second, now_s),
        )

    async def _wait(
        self, what: str, wait_s: Callable[[], float], is_wanted: Callable[[], bool] = lambda: True
    ) -> float:
        """Wait, while it is wanted. Returns for how long, in seconds."""
        waited_s = 0.0
        while (left_s := wait_s()) > 0 and is_wanted():
            begun_s = self._clock.monotonic()
            # Not longer: the setting may be raised meanwhile.
            await asyncio.sleep(min(left_s, 1.0))
            this_time_s = self._clock.monotonic() - begun_s
            self.throttled_s[what] += this_time_s
            waited_s += this_time_s
        return waited_s
