"""The client quotas of one node: what each client took of late, and how long it has to wait for having taken too much.

Each node measures what it serves, as in Kafka: a client of three nodes may take its quota of each. Without a quota in
the metadata nothing is measured and nothing remembered.

Memory (S2). Client ids and addresses are chosen by strangers, so what is remembered is bounded, and forgotten once it
makes no difference any more.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Final, Protocol, TypeVar

from semel.broker.config.quotas import QuotaConfig
from semel.broker.quotas.precedence import Bound, bound_of, connections_per_second
from semel.broker.quotas.rates import Rate, TokenBucket, Windows
from semel.protocol.addresses import host_of
from semel.protocol.errors import ErrorCode, RetriableError
from semel.protocol.int_bounds import INT32_MAX
from semel.protocol.quotas import (
    CLIENT_KEYS,
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    NAME_MAX,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    QuotaEntity,
)
from semel.runtime.clock import Clock

REMEMBERED_MAX: Final = 20_000
"""Rates of clients that are remembered, each some 500 bytes: those that were used last."""
CLIENTS_MAX: Final = 10_000
"""Clients whose quotas are remembered; others are looked up again."""
_FORGOTTEN_AT_ONCE: Final = 100
_ANOTHER: Final = "…"
"""Behind the beginning of a client id that is too long to have a quota of its own: all such share what a default is."""


class QuotaType(Enum):
    """What made a client wait."""

    PRODUCE = PRODUCER_BYTE_RATE
    FETCH = CONSUMER_BYTE_RATE
    REQUEST = REQUEST_PERCENTAGE
    MUTATION = CONTROLLER_MUTATION_RATE
    CONNECTION = CONNECTION_CREATION_RATE


class QuotasSource(Protocol):
    """What has the quotas as they are now: an image of the metadata."""

    @property
    def client_quotas(self) -> Mapping[QuotaEntity, Mapping[str, float]]: ...


class MetadataSource(Protocol):
    """What has the newest image."""

    @property
    def image(self) -> QuotasSource: ...


_Measure = TypeVar("_Measure", Rate, TokenBucket)
_Key = tuple[QuotaType, tuple[str | None, str | None]]


class ClientQuotas:
    """Of one node. On the event loop alone."""

    def __init__(self, config: QuotaConfig, metadata: MetadataSource, clock: Clock) -> None:
        self.windows = Windows(config.quota_window_num, float(config.quota_window_size_seconds))
        self.mutation_windows = Windows(
            config.controller_quota_window_num, float(config.controller_quota_window_size_seconds)
        )
        self.time = clock.monotonic
        self._metadata = metadata
        self.quotas: Mapping[QuotaEntity, Mapping[str, float]] = {}
        self._clients: OrderedDict[tuple[str, str], ClientUsage | None] = OrderedDict()
        self._rates: OrderedDict[_Key, Rate | TokenBucket] = OrderedDict()
        self._listeners: list[Callable[[], None]] = []
        self.is_on = False
        """Whether any user or client id has a quota."""
        self.bounds_connections = False
        """Whether any address has a quota."""
        self.throttled_s = dict.fromkeys(QuotaType, 0.0)
        """How long clients were made to wait, all together."""
        self.throttled = dict.fromkeys(QuotaType, 0)
        """How often."""
        self.update()

    @property
    def remembered(self) -> int:
        """How many rates are remembered."""
        return len(self._rates)

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call `listener` whenever there are other quotas."""
        self._listeners.append(listener)

    def update(self) -> None:
        """Take over the quotas of the newest metadata."""
        quotas = {entity.canonical: values for entity, values in self._metadata.image.client_quotas.items()}
        self.quotas = quotas
        self._clients.clear()
        self.is_on = any(entity.ip is None for entity in quotas)
        self.bounds_connections = any(entity.ip is not None for entity in quotas)
        for listener in self._listeners:
            listener()

    def of(self, user: str, client_id: str) -> ClientUsage | None:
        """Return what measures a client; None where no quota bounds it.

        user: without `User:`, ANONYMOUS where nobody was asked
        """
        if not self.is_on:
            return None
        if len(client_id) > NAME_MAX:
            client_id = client_id[:NAME_MAX] + _ANOTHER
        key = user, client_id
        if key in self._clients:
            self._clients.move_to_end(key)
            return self._clients[key]
        bounds = {QuotaType(each): bound_of(self.quotas, each, user, client_id) for each in CLIENT_KEYS}
        found = {kind: bound for kind, bound in bounds.items() if bound is not None}
        usage = self._clients[key] = ClientUsage(self, found) if found else None
        if len(self._clients) > CLIENTS_MAX:
            self._clients.popitem(last=False)
        return usage

    def connection_wait_s(self, address: str) -> float:
        """Count a new connection of an address. Returns after how long it is to be closed; 0: it is served."""
        if not self.bounds_connections:
            return 0.0
        host = host_of(address)
        bound = connections_per_second(self.quotas, CONNECTION_CREATION_RATE, host)
        if bound is None:
            return 0.0
        rate, now = self.rate(QuotaType.CONNECTION, (host, None)), self.time()
        rate.record(1, now)
        wait_s = rate.wait_s(bound, now)
        if wait_s <= 0:
            return 0.0
        rate.record(-1, now)
        return self.note(QuotaType.CONNECTION, min(wait_s, self.windows.seconds))

    def rate(self, kind: QuotaType, who: tuple[str | None, str | None]) -> Rate:
        """Return what somebody has taken of late."""
        return self._measure((kind, who), Rate, self.windows)

    def bucket(self, who: tuple[str | None, str | None]) -> TokenBucket:
        """Return what changes somebody may still make."""
        return self._measure((QuotaType.MUTATION, who), TokenBucket, self.mutation_windows)

    def note(self, kind: QuotaType, wait_s: float) -> float:
        """Count that somebody has to wait, and return for how long."""
        self.throttled[kind] += 1
        self.throttled_s[kind] += wait_s
        return wait_s

    def forget_idle(self) -> None:
        """Forget what makes no difference any more, of what was not used for longest."""
        now = self.time()
        oldest = max(self.windows.remembered_s, self.mutation_windows.remembered_s)
        for _ in range(_FORGOTTEN_AT_ONCE):
            if not self._rates:
                return
            key = next(iter(self._rates))
            if now - self._rates[key].used_at < oldest:
                return
            if self._counts_still(key, now):
                self._rates.move_to_end(key)
            else:
                del self._rates[key]

    def _counts_still(self, key: _Key, now: float) -> bool:
        """Whether a bucket that was far overdrawn is not full again. One whose bound is gone is of no use."""
        measure, (user, client_id) = self._rates[key], key[1]
        if isinstance(measure, Rate):
            return False
        bound = bound_of(self.quotas, CONTROLLER_MUTATION_RATE, user or "", client_id or "")
        return bound is not None and not measure.is_full(bound.value, now)

    def _measure(self, key: _Key, made: type[_Measure], windows: Windows) -> _Measure:
        measure = self._rates.get(key)
        if measure is None:
            self.forget_idle()
            measure = self._rates[key] = made(windows)
            measure.used_at = self.time()
            if len(self._rates) > REMEMBERED_MAX:
                self._rates.popitem(last=False)
        else:
            self._rates.move_to_end(key)
        assert isinstance(measure, made)
        return measure


class ClientUsage:
    """What one client of a node may take, and what it takes."""

    __slots__ = ("_bounds", "_quotas")

    def __init__(self, quotas: ClientQuotas, bounds: Mapping[QuotaType, Bound]) -> None:
        self._quotas = quotas
        self._bounds = bounds

    @property
    def bounds_requests(self) -> bool:
        """Whether the time of its requests counts."""
        return QuotaType.REQUEST in self._bounds

    @property
    def time(self) -> Callable[[], float]:
        """What tells the time."""
        return self._quotas.time

    def produced(self, size: int) -> float:
        """Count bytes of a request to produce. Returns how many seconds nothing more is read of the client."""
        bound = self._bounds.get(QuotaType.PRODUCE)
        if bound is None:
            return 0.0
        rate, now = self._quotas.rate(QuotaType.PRODUCE, bound.who), self._quotas.time()
        rate.record(size, now)
        return self._limited(rate.wait_s(bound.value, now))

    def produce_wait_s(self) -> float:
        """Return for how many seconds nothing is read of the client, for what it has produced so far."""
        return self._wait_s(QuotaType.PRODUCE)

    def request_wait_s(self) -> float:
        """Return for how many seconds nothing is begun for the client, for the time that its requests took so far."""
        return min(self._wait_s(QuotaType.REQUEST), self._quotas.windows.seconds)

    def _wait_s(self, kind: QuotaType) -> float:
        bound = self._bounds.get(kind)
        if bound is None:
            return 0.0
        return max(self._limited(self._quotas.rate(kind, bound.who).wait_s(bound.value, self._quotas.time())), 0.0)

    def fetched(self, size: int) -> float:
        """Count bytes of records that are to be sent. Returns 0, or for how many seconds they are not sent."""
        bound = self._bounds.get(QuotaType.FETCH)
        if bound is None:
            return 0.0
        rate, now = self._quotas.rate(QuotaType.FETCH, bound.who), self._quotas.time()
        was_empty = rate.per_second(now) <= 0
        rate.record(size, now)
        wait_s = rate.wait_s(bound.value, now)
        if wait_s <= 0 or was_empty:
            # A batch that is larger than the quota allows at any time would never be read: it goes out alone.
            return 0.0
        rate.record(-size, now)
        return self._limited(wait_s)

    def unfetched(self, size: int) -> None:
        """Take back what `fetched` has counted: it is not sent for another reason."""
        bound = self._bounds.get(QuotaType.FETCH)
        if bound is not None:
            self._quotas.rate(QuotaType.FETCH, bound.who).record(-size, self._quotas.time())

    @property
    def fetch_bytes_max(self) -> int | None:
        """The most that one answer should have of records; None for any number."""
        bound = self._bounds.get(QuotaType.FETCH)
        if bound is None:
            return None
        windows = self._quotas.windows
        return max(int(min(bound.value * (windows.kept - 1) * windows.seconds, INT32_MAX)), 1)

    def spent(self, seconds: float) -> float:
        """Count a request's time on the event loop. Returns how many seconds nothing more is read of the client."""
        bound = self._bounds.get(QuotaType.REQUEST)
        if bound is None:
            return 0.0
        rate, now = self._quotas.rate(QuotaType.REQUEST, bound.who), self._quotas.time()
        rate.record(100 * seconds, now)
        return min(rate.wait_s(bound.value, now), self._quotas.windows.seconds)

    def mutations(self, *, strict: bool) -> Mutations:
        """Return what counts the changes of one request.

        strict: what is beyond the quota is refused; otherwise it is done, and the client has to wait
        """
        return Mutations(self._quotas, self._bounds.get(QuotaType.MUTATION), strict=strict)

    def note(self, kind: QuotaType, wait_s: float) -> None:
        """Count that the client has to wait."""
        self._quotas.note(kind, wait_s)

    @staticmethod
    def _limited(wait_s: float) -> float:
        return min(wait_s, INT32_MAX / 1000)


class Mutations:
    """Counts the partitions that one request makes or deletes (KIP-599)."""

    def __init__(self, quotas: ClientQuotas | None = None, bound: Bound | None = None, *, strict: bool = True) -> None:
        """Without a bound all is allowed."""
        self._quotas = quotas
        self._bound = bound
        self._strict = strict
        self._taken: dict[str, RetriableError | None] = {}
        self.is_exceeded = False
        """Whether something was refused."""

    def take(self, topic: str, partitions: int) -> None:
        """Count the partitions of one topic, once however often the change is decided on.

        Raises `RetriableError` THROTTLING_QUOTA_EXCEEDED.
        """
        if self._quotas is None or self._bound is None:
            return
        if topic not in self._taken:
            self._taken[topic] = self._take(self._quotas, self._bound, partitions)
        refused = self._taken[topic]
        if refused is not None:
            raise refused

    def _take(self, quotas: ClientQuotas, bound: Bound, partitions: int) -> RetriableError | None:
        bucket, now = quotas.bucket(bound.who), quotas.time()
        wait_s = bucket.wait_s(bound.value, now) if self._strict else 0.0
        if wait_s <= 0:
            bucket.take(partitions, bound.value, now)
            return None
        self.is_exceeded = True
        return RetriableError(
            f"{CONTROLLER_MUTATION_RATE} = {bound.value:g} of this client is used up: ask again in "
            f"{wait_s:.1f} s, or have an operator raise it with `semel quota set`",
            ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        )

    def wait_s(self) -> float:
        """Return how long the client has to wait; 0 where it has changed nothing, or may do more."""
        if self._quotas is None or self._bound is None or not self._taken:
            return 0.0
        if self._strict and not self.is_exceeded:
            return 0.0
        return self._quotas.bucket(self._bound.who).wait_s(self._bound.value, self._quotas.time())


UNBOUNDED: Final = Mutations()
"""For who has no quota."""
