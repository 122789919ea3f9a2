"""Keeps a consumer's buffers filled: one long-polling Fetch at a time to each node that it reads something from.

That is a partition's leader, or the follower that the leader names as the nearest (KIP-392). A follower that can't be
read from is left for the leader.
Runs on the IO thread. It asks the subscription which partitions want more, and gives it what came back; the user's
thread takes from the other end. The subscription is shared under `lock`, which is never held across a wait.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from semel.protocol.api.topics import IsolationLevel
from semel.protocol.errors import ErrorCode, FatalError, RetriableError, SemelError, error_for
from semel.protocol.ids import TopicId, TopicPartition
from semel.protocol.kafka.fetch import (
    FETCH,
    FETCH_MAX_VERSION,
    FETCH_MIN_VERSION,
    NO_SESSION_ID,
    FetchPartition,
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
)
from semel.protocol.kafka.wire import WireFormatError
from semel.protocol.randomness import source
from semel.runtime.kafka_client.connection import Connection
from semel.sdk.consumer.fetch_session import FetchSession
from semel.sdk.consumer.fetched import FetchedChunk, UnreadableBatchError, whole_batches
from semel.sdk.consumer.position_lookup import FAILURES_BEFORE_WARNING, STALE_METADATA, CommittedOffsets, PositionLookup
from semel.sdk.consumer.subscription import OffsetReset, PartitionState, Subscription
from semel.sdk.transport.client import ClientCore
from semel.sdk.transport.cluster import ClusterSnapshot

_log = logging.getLogger("semel.consumer")

_NOT_ALLOWED: Final = ": the user may not READ the topic. An operator allows it with `semel acl add --consumer`"

SHORT_WAIT_MS = 20
"""How long a fetch may wait when a partition that is full now will want one soon: answers come in order.

Doubled as long as nothing comes and nothing is taken, so that a slow reader does not make the node answer for nothing.
"""

CUT_AFTER_S = 0.005
"""How long a fetch must have waited at the node before it is broken off for a partition that wants to be in it.

An answer that is on its way arrives sooner, and breaking off costs a new connection.
"""

UNKNOWN_NODE_S = 2.0
"""How long the leader alone is read from after it has named a follower that the metadata does not have yet."""
FOLLOWER_TIMEOUT_MS = 3_000
"""How long a follower may be silent beyond the wait: nothing is lost by asking the leader."""
ONLY_LEADER_S = 30.0
"""How long the leader alone is read from after a follower could not be."""

Asked: TypeAlias = dict[PartitionState, int]
"""The partitions of one fetch, each with its epoch when it was asked for."""


@dataclass(frozen=True, slots=True)
class FetchOptions:
    """How a consumer fetches. Sizes in bytes.

    max_wait_ms:               how long the node may wait for min_bytes
    max_bytes:                 the most in one answer (a larger first batch comes all the same)
    max_partition_bytes:       the most of one partition in one answer
    buffered_bytes_max:        the most held in memory for the whole consumer before it stops asking
    skips_unreadable:          whether batches that can't be read are passed over
    """

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    max_partition_bytes: int
    buffered_bytes_max: int
    isolation: IsolationLevel
    reset: OffsetReset
    rack: str
    skips_unreadable: bool = False


@dataclass(slots=True, eq=False)
class _Flight:
    """A fetch under way. `sent_at`: when it went out, by the client's monotonic clock; 0.0 until then."""

    wait_ms: int
    sent_at: float = 0.0
    connection: Connection | None = None
    is_cut: bool = False
    task: asyncio.Task[None] | None = None


@dataclass(slots=True)
class _Look:
    """What there is to ask for. by_node: partitions with their leader's epoch, by the node to ask.

    full_nodes:  nodes that would be asked for a partition which waits for its user to make room.
    to_cut:      nodes at which a fetch waits that a partition wants to be in.
    """

    room_bytes: int
    to_cut: set[int] = field(default_factory=set)
    by_node: dict[int, list[tuple[PartitionState, int]]] = field(default_factory=lambda: defaultdict(list))
    full_nodes: set[int] = field(default_factory=set)
    has_unknown: bool = False
    retry_at: float | None = None


class _SessionLostError(Exception):
    """The node has given up the fetch session."""


class Fetcher:
    """Fetches for one consumer until `close`. All methods run on the IO thread, unless they say otherwise.

    committed_offsets: looks up where the group stands, for partitions without a position.
    on_ready:          called when there is something new for the user's thread: records, or an error.
    on_fetched:        called with the bytes of batches that came from a partition, for the metrics.
    on_unreadable:     called on the user's thread with each batch that is passed over; None where none is.
    """

    def __init__(
        self,
        core: ClientCore,
        subscription: Subscription,
        lock: threading.Lock,
        options: FetchOptions,
        *,
        committed_offsets: CommittedOffsets | None,
        on_ready: Callable[[], None],
        on_fetched: Callable[[TopicPartition, int], None] | None = None,
        on_unreadable: Callable[[UnreadableBatchError], None] | None = None,
    ) -> None:
        self.errors: deque[SemelError] = deque()
        self._core = core
        self._now = core.clock.monotonic
        self._subscription = subscription
        self._lock = lock
        self._options = options
        self._on_ready = on_ready
        self._on_fetched = on_fetched
        self._on_unreadable = on_unreadable
        self._changed = asyncio.Event()
        self._in_flight: dict[int, _Flight] = {}
        self._has_moved = False
        self._sessions: dict[int, FetchSession] = {}
        self._refreshing: asyncio.Task[None] | None = None
        self._failures = 0
        self._refreshes = 0
        self._refresh_not_before = 0.0
        self._short_wait_ms = SHORT_WAIT_MS
        self._random = random.Random(source().getrandbits(64))  # noqa: S311 (an order, not a secret)
        self.waits_for_room = False
        """Whether something was not asked for, because too much is buffered. Under the lock, as of the last look: one
        follows each answer, so what an answer has filled since is not missed."""
        self._positions = PositionLookup(
            core,
            subscription,
            lock,
            options.isolation,
            options.reset,
            committed_offsets=committed_offsets,
            postpone=self._postpone,
            refresh_metadata=self._refresh_metadata,
            fail=self._fail,
            on_moved=self.moved,
        )
        self._main = asyncio.get_running_loop().create_task(self._run(), name="fetcher")

    def wake(self) -> None:
        """Look again at what is to be fetched: there is room in the buffer."""
        self._short_wait_ms = SHORT_WAIT_MS
        self._changed.set()

    def moved(self) -> None:
        """Look again, at once: after an assignment, a seek or a resume, which a fetch that waits does not know of."""
        self._has_moved = True
        self.wake()

    async def close(self) -> None:
        """Stop; answers still under way are dropped."""
        tasks = [self._main]
        under_way = [flight.task for flight in self._in_flight.values()]
        tasks += [task for task in (self._positions.task, self._refreshing, *under_way) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            self._changed.clear()
            try:
                self._positions.start()
                pause_s = self._send_fetches()
            except Exception as error:  # without this loop, polls would wait for ever
                self._failures += 1
                pause_s = self._core.options.backoff.jittered_s(self._failures)
                self._broken("looking for what to fetch", error)
            try:
                async with asyncio.timeout(pause_s):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def _send_fetches(self) -> float | None:
        """Send what can be sent; return after how many seconds to look again by oneself, or None."""
        now = self._now()
        snapshot = self._core.cluster.snapshot
        if self._in_flight and not self._has_moved and snapshot.nodes.keys() <= self._in_flight.keys():
            return None  # each answer looks again
        self._has_moved = False
        with self._lock:
            look = self._look(snapshot, now)
            for node_id, states in look.by_node.items():
                is_full = node_id in look.full_nodes
                wait_ms = min(self._short_wait_ms, self._options.max_wait_ms) if is_full else self._options.max_wait_ms
                self._send(node_id, states, wait_ms, min(self._options.max_bytes, look.room_bytes))
        for node_id in look.to_cut:
            self._cut_short(node_id, look, now)
        if look.has_unknown:
            self._refresh_metadata()
            return max(0.001, self._refresh_not_before - now)
        return None if look.retry_at is None else max(0.001, look.retry_at - now)

    def _look(self, snapshot: ClusterSnapshot, now: float) -> _Look:
        """Look through all partitions once: whom to ask for what."""
        look = _Look(self._options.buffered_bytes_max)
        partition_max = self._options.max_partition_bytes
        for state in self._subscription.partitions():
            look.room_bytes -= state.buffered_bytes
            if state.retry_at > now:
                if look.retry_at is None or state.retry_at < look.retry_at:
                    look.retry_at = state.retry_at
            elif state.fetch_offset is not None and not state.paused and not state.in_flight:
                place = snapshot.leader(state.tp)
                if place is None:
                    look.has_unknown = True
                    continue
                node_id = _node_to_ask(state, place.leader_id, snapshot, now)
                if state.buffered_bytes >= partition_max:
                    look.full_nodes.add(node_id)
                elif node_id in self._in_flight:
                    look.to_cut.add(node_id)
                elif self._is_same_topic(state, snapshot):
                    look.by_node[node_id].append((state, place.leader_epoch))
        if look.room_bytes <= 0:
            look.by_node.clear()
            look.to_cut.clear()
        self.waits_for_room = look.room_bytes <= 0 or bool(look.full_nodes)
        return look

    def _cut_short(self, node_id: int, look: _Look, now: float) -> None:
        """Break off a fetch that waits for more at the node, so that the next can be sent; or note when to."""
        flight = self._in_flight.get(node_id)
        if flight is None or flight.is_cut or flight.wait_ms <= SHORT_WAIT_MS:
            return
        cut_at = flight.sent_at + CUT_AFTER_S
        if flight.connection is None or cut_at > now or flight.connection.is_receiving:
            # Not sent, or its answer may be on its way.
            self._has_moved = True
            again_at = max(cut_at, now + CUT_AFTER_S)
            look.retry_at = again_at if look.retry_at is None else min(look.retry_at, again_at)
            return
        flight.is_cut = True
        flight.connection.close("the reader has moved on")

    def _is_same_topic(self, state: PartitionState, snapshot: ClusterSnapshot) -> bool:
        """Whether the position is one in the current topic. Offsets of a topic that was deleted mean nothing."""
        topic_id = snapshot.topics[state.tp.topic].topic_id
        if state.topic_id is None:
            state.topic_id = topic_id
        if state.topic_id == topic_id:
            return True
        _log.warning("a topic was deleted and made again; reading it from its start partition=%s", state.tp)
        state.topic_id = topic_id
        # All of it is new to this reader, also where it would begin at the end of a topic that it comes to later.
        is_error = self._options.reset is OffsetReset.ERROR
        state.ask_reset(OffsetReset.ERROR if is_error else OffsetReset.EARLIEST)
        self._changed.set()
        return False

    def _send(self, node_id: int, states: list[tuple[PartitionState, int]], wait_ms: int, max_bytes: int) -> None:
        session = self._sessions.setdefault(node_id, FetchSession())
        known_items = session.known
        asked: dict[PartitionState, int] = {}
        wanted: dict[PartitionState, FetchPartition] = {}
        for state, leader_epoch in states:
            assert state.topic_id is not None
            assert state.fetch_offset is not None
            state.in_flight = True
            asked[state] = state.epoch
            item = known_items.get(state)
            if item is None or item.fetch_offset != state.fetch_offset or item.current_leader_epoch != leader_epoch:
                item = FetchPartition(
                    state.tp.topic,
                    state.topic_id,
                    state.tp.partition,
                    state.fetch_offset,
                    self._options.max_partition_bytes,
                    current_leader_epoch=leader_epoch,
                )
            wanted[state] = item
        flight = self._in_flight[node_id] = _Flight(wait_ms)
        work = self._fetch(node_id, session, asked, wanted, flight, max_bytes)
        flight.task = asyncio.get_running_loop().create_task(work, name=f"fetch from {node_id}")

    async def _fetch(
        self,
        node_id: int,
        session: FetchSession,
        asked: Asked,
        wanted: dict[PartitionState, FetchPartition],
        flight: _Flight,
        max_bytes: int,
    ) -> None:
        retry_after_s: float | None = None
        try:
            response = await self._ask(node_id, session, wanted, flight, max_bytes)
            if self._failures >= FAILURES_BEFORE_WARNING:
                _log.warning("fetching works again: node=%s", node_id)
            self._failures = self._refreshes = 0
            with self._lock:
                is_ready = self._take_in(node_id, asked, response)
            if is_ready:
                self._short_wait_ms = SHORT_WAIT_MS
                self._on_ready()
            else:
                self._short_wait_ms = min(self._short_wait_ms * 2, max(SHORT_WAIT_MS, self._options.max_wait_ms))
        except _SessionLostError:
            retry_after_s = 0.0  # nothing is wrong: the node has forgotten what the next request says again
        except Exception as error:
            session.lost()
            if flight.is_cut:
                retry_after_s = 0.0
                return
            self._failures += 1
            retry_after_s = self._core.options.backoff.jittered_s(self._failures)
            with self._lock:
                for state in asked:
                    self._leave_follower(state, node_id, ErrorCode.NETWORK_EXCEPTION)
            self._fetch_failed(node_id, error)
        finally:
            self._end_fetch(node_id, asked, retry_after_s)

    def _fetch_failed(self, node_id: int, error: Exception) -> None:
        if isinstance(error, WireFormatError):
            self._fail(FatalError(f"node {node_id} answered a fetch with what can't be read: {error}"))
        elif isinstance(error, RetriableError):
            if self._failures == FAILURES_BEFORE_WARNING:
                _log.warning("fetching fails, and is tried again until it works: node=%s error=%s", node_id, error)
            self._refresh_metadata()
        elif isinstance(error, SemelError):
            self._fail(error)
        else:
            self._broken(f"fetching from node {node_id}", error)

    def _broken(self, what: str, error: Exception) -> None:
        """A bug of ours: it goes to the user's poll, not only into a log that nobody reads."""
        _log.error("%s failed", what, exc_info=error)
        self._fail(FatalError(f"{what} failed: {error!r}"))

    def _end_fetch(self, node_id: int, asked: Asked, retry_after_s: float | None) -> None:
        retry_at = 0.0 if retry_after_s is None else self._now() + retry_after_s
        with self._lock:
            for state, epoch in asked.items():
                if state.epoch == epoch:
                    state.in_flight = False
                    state.retry_at = max(state.retry_at, retry_at)
        del self._in_flight[node_id]
        self._changed.set()

    async def _ask(
        self,
        node_id: int,
        session: FetchSession,
        wanted: dict[PartitionState, FetchPartition],
        flight: _Flight,
        max_bytes: int,
    ) -> FetchResponse:
        connection = await self._core.connections.get(node_id)
        version = connection.highest_version(FETCH, FETCH_MIN_VERSION, FETCH_MAX_VERSION)
        part = session.ask(wanted)
        _shuffle(part.partitions, self._random)
        now = self._now()
        request = FetchRequest(
            part.partitions,
            flight.wait_ms,
            self._options.min_bytes,
            max_bytes,
            self._options.isolation,
            part.session_id,
            part.epoch,
            part.forgotten,
            rack_id="" if any(state.leader_until > now for state in wanted) else self._options.rack,
        )
        patience_ms: float = self._core.options.request_timeout_ms
        if any(state.nearest == node_id for state in wanted):
            patience_ms = min(patience_ms, FOLLOWER_TIMEOUT_MS)
        timeout_ms = flight.wait_ms + patience_ms
        answer = connection.request(
            FETCH, version, [request.build(version)], timeout_ms=timeout_ms, wait_ms=flight.wait_ms
        )
        flight.connection, flight.sent_at = connection, self._now()
        body = await answer
        response = FetchResponse.parse(body, version)
        if response.error in (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH):
            session.answered(NO_SESSION_ID)
            raise _SessionLostError
        if response.error is not ErrorCode.NONE:
            raise error_for(response.error, f"node {node_id} refused a fetch")
        session.answered(response.session_id)
        return response

    def _take_in(self, node_id: int, asked: Asked, response: FetchResponse) -> bool:
        """Buffer what came; return whether there is something for the user's thread."""
        is_ready = False
        topics = {topic_id: topic for topic, topic_id in {state.tp.topic: state.topic_id for state in asked}.items()}
        for answer in response.partitions:
            # Before KIP-516 topics have names on the wire.
            topic = answer.topic or topics.get(TopicId(answer.topic_id), "")
            state = self._subscription.get(TopicPartition(topic, answer.partition))
            if state is None or asked.get(state) != state.epoch:
                continue  # the user has moved on since
            if answer.error is not ErrorCode.NONE:
                has_left = self._leave_follower(state, node_id, answer.error)
                if not has_left or answer.error is not ErrorCode.OFFSET_OUT_OF_RANGE:
                    self._partition_failed(state, answer.error)
            else:
                if answer.preferred_read_replica >= 0:
                    self._sent_to(state, answer.preferred_read_replica)
                is_ready |= self._take_in_partition(state, answer)
        return is_ready

    def _sent_to(self, state: PartitionState, node_id: int) -> None:
        """Read from a follower from now on; from the leader for a while where it is not known yet where that is."""
        now = self._now()
        if node_id in self._core.cluster.snapshot.nodes:
            state.nearest = node_id
            state.nearest_until = now + self._core.options.metadata_max_age_ms / 1000
        else:
            state.ask_leader(now + UNKNOWN_NODE_S)
            self._refresh_metadata()

    def _leave_follower(self, state: PartitionState, node_id: int, code: ErrorCode) -> bool:
        """Go back to the leader where the node that could not be read from is a follower. Says whether it is.

        For a while, unless one of the two sides has older metadata: otherwise the leader may send the reader back.
        """
        if state.nearest != node_id:
            return False
        _log.info("reading from the leader again: partition=%s follower=%s error=%s", state.tp, node_id, code.name)
        has_old_metadata = code in (ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH)
        state.ask_leader(0.0 if has_old_metadata else self._now() + ONLY_LEADER_S)
        return True

    def _take_in_partition(self, state: PartitionState, answer: FetchPartitionResponse) -> bool:
        state.high_watermark = answer.high_watermark
        state.last_stable_offset = answer.last_stable_offset
        state.log_start_offset = answer.log_start_offset
        state.failures = 0
        if answer.records is None or not len(answer.records):
            return False
        assert isinstance(answer.records, (bytes, bytearray, memoryview))
        assert state.fetch_offset is not None
        records = memoryview(answer.records)
        end, next_offset = whole_batches(records)
        if end == 0:
            self._fail(
                FatalError(
                    f"{state.tp} answered at offset {state.fetch_offset} with {len(records)} bytes that hold no whole "
                    "record batch; the log is damaged there, seek past it to continue",
                    ErrorCode.CORRUPT_MESSAGE,
                )
            )
            self._postpone(state, self._now())
            return False
        read_committed = self._options.isolation is IsolationLevel.READ_COMMITTED
        aborted = (answer.aborted or ()) if read_committed else None
        state.chunks.append(FetchedChunk(state.tp, records[:end], state.fetch_offset, aborted, self._on_unreadable))
        state.buffered_bytes += end
        if self._on_fetched is not None:
            self._on_fetched(state.tp, end)
        state.fetch_offset = max(next_offset, state.fetch_offset)
        self._subscription.note_ready(state)
        return True

    def _partition_failed(self, state: PartitionState, code: ErrorCode) -> None:
        self._postpone(state, self._now())
        if code is ErrorCode.OFFSET_OUT_OF_RANGE:
            if state.chunks:
                return  # what is buffered is good; ask again once it is read
            where = f"offset {state.position} of {state.tp} is not in the log (any more)"
            if self._options.reset is OffsetReset.ERROR:
                self._fail(FatalError(f"{where}; seek to where reading is to continue", code))
            else:
                _log.warning("%s; going on at the %s", where, self._options.reset.value)
                state.ask_reset(self._options.reset)
        elif code in STALE_METADATA:
            self._refresh_metadata()
        else:
            why = _NOT_ALLOWED if code is ErrorCode.TOPIC_AUTHORIZATION_FAILED else ""
            error = error_for(code, f"{state.tp} can't be read{why}")
            if not isinstance(error, RetriableError):
                self._fail(error)

    # --- Trouble ------------------------------------------------------------------------------------------------------

    def _postpone(self, state: PartitionState, now: float) -> None:
        state.failures += 1
        state.retry_at = now + self._core.options.backoff.jittered_s(state.failures)

    def _refresh_metadata(self) -> None:
        """Ask for the partitions' leaders, with pauses that grow for as long as it does not help."""
        now = self._now()
        if now < self._refresh_not_before or (self._refreshing is not None and not self._refreshing.done()):
            return
        self._refreshes += 1
        self._refresh_not_before = now + self._core.options.backoff.jittered_s(self._refreshes)
        self._refreshing = asyncio.get_running_loop().create_task(self._refresh(), name="refresh metadata")

    async def _refresh(self) -> None:
        with self._lock:
            topics = {state.tp.topic for state in self._subscription.partitions()}
        try:
            await self._core.cluster.refresh(topics)
        except SemelError as error:
            if not isinstance(error, RetriableError):
                self._fail(error)
        finally:
            self._changed.set()

    def _fail(self, error: SemelError) -> None:
        """Hand an error to the user's next poll. One at a time: the same failure may come from many partitions."""
        if not self.errors:
            self.errors.append(error)
        self._on_ready()


def _node_to_ask(state: PartitionState, leader_id: int, snapshot: ClusterSnapshot, now: float) -> int:
    """Return the nearest replica as far as one is known and there, otherwise the leader."""
    if state.nearest_until > now and state.nearest in snapshot.nodes:
        return state.nearest
    return leader_id


def _shuffle(items: list[FetchPartition], chance: random.Random) -> None:
    """Order partitions by chance: none shall always come last, where the answer's bound may cut it off."""
    chance.shuffle(items)
    # The wire has partitions by topic.
    places = {topic: place for place, topic in enumerate({item.topic: None for item in items})}
    items.sort(key=lambda item: places[item.topic])
