"""What one request takes of its client's quotas, and how long its client has to wait for it."""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Final, Generic, Protocol, TypeVar

from semel.broker.quotas.client_quotas import ClientUsage, Mutations, QuotaType
from semel.protocol.int_bounds import INT32_MAX

_Result = TypeVar("_Result")
_MS: Final = 1000


class Mutes(Protocol):
    """Where a request came from."""

    def mute(self, seconds: float) -> None:
        """Read nothing more for some time."""
        ...


class RequestUsage:
    """Of one request. Its answer says how long the client has to wait, and nothing more is read of it for that long.

    What may throttle it is counted once, when the answer is made (KIP-219).
    """

    __slots__ = ("_channel", "_running", "_seconds", "_told_ms", "client", "mutations", "size")

    def __init__(self, client: ClientUsage, channel: Mutes, size: int) -> None:
        """`size`: of the request, in bytes."""
        self.client = client
        self._channel = channel
        self.size = size
        self.mutations: Mutations | None = None
        self._seconds = 0.0
        self._running = -1.0
        self._told_ms: int | None = None

    def begin(self) -> None:
        """The event loop works on the request from now on."""
        self._running = self.client.time()

    def pause(self) -> None:
        """The event loop works on something else from now on, until `begin`."""
        if self._running >= 0:
            self._seconds += self.client.time() - self._running
            self._running = -1.0

    def counted_mutations(self, *, strict: bool) -> Mutations:
        """Return what counts the changes of this request."""
        self.mutations = self.client.mutations(strict=strict)
        return self.mutations

    def produced(self) -> int:
        """Count a request to produce, whose answer is made. Returns its throttle_time_ms."""
        return self._tell(self.client.produced(self.size), QuotaType.PRODUCE)

    def bytes_max(self) -> int | None:
        """Return the most that an answer should have of records; None for any number."""
        return self.client.fetch_bytes_max

    def fetched(self, size: int) -> int:
        """Count what is to be sent. Returns 0, or the throttle_time_ms of an answer without any records."""
        wait_s = self.client.fetched(size)
        told_ms = self._tell(wait_s, QuotaType.FETCH)
        if told_ms and not wait_s:
            self.client.unfetched(size)
        return told_ms

    def answered(self) -> int:
        """Count a request whose answer is made. Returns its throttle_time_ms; the same again where it is told."""
        if self._told_ms is not None:
            return self._told_ms
        mutations = self.mutations
        if mutations is None:
            return self._tell(0.0, QuotaType.REQUEST)
        return self._tell(mutations.wait_s(), QuotaType.MUTATION, mutes=not mutations.is_exceeded)

    def _tell(self, wait_s: float, kind: QuotaType, *, mutes: bool = True) -> int:
        if self._told_ms is not None:
            return self._told_ms
        request_s = self.client.spent(self._spent()) if self.client.bounds_requests else 0.0
        if request_s > wait_s:
            wait_s, kind = request_s, QuotaType.REQUEST
        self._told_ms = min(math.ceil(wait_s * _MS), INT32_MAX)
        if self._told_ms:
            self.client.note(kind, wait_s)
            # Who was refused something as beyond his quota may ask for something else at once (KIP-599).
            if mutes:
                self._channel.mute(self._told_ms / _MS)
        return self._told_ms

    def _spent(self) -> float:
        return self._seconds + (self.client.time() - self._running if self._running >= 0 else 0.0)


class Measured(Generic[_Result]):
    """Awaits a coroutine, and measures when the event loop works on it: not while it waits."""

    __slots__ = ("_begin", "_coroutine", "_pause")

    def __init__(
        self, coroutine: Coroutine[Any, Any, _Result], begin: Callable[[], None], pause: Callable[[], None]
    ) -> None:
        """`begin` and `pause` are called around each step."""
        self._coroutine = coroutine
        self._begin = begin
        self._pause = pause

    def __await__(self) -> Generator[Any, Any, _Result]:
        coroutine = self._coroutine
        value: Any = None
        error: BaseException | None = None
        while True:
            self._begin()
            try:
                waits_for = coroutine.send(value) if error is None else coroutine.throw(error)
            except StopIteration as ended:
                result: _Result = ended.value
                return result
            finally:
                self._pause()
            value = error = None
            try:
                value = yield waits_for
            except GeneratorExit:
                coroutine.close()
                raise
            except BaseException as thrown:
                error = thrown
