"""What of a consumer needs no waiting: its options, what it reads, where it stands, and when it commits on its own."""

from __future__ import annotations

import logging
import math
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import Any, Generic, TypeVar, Unpack

from semel.protocol.api.group_offsets import GroupMetadata, OffsetAndMetadata
from semel.protocol.errors import RetriableError, SemelError, UsageError
from semel.protocol.ids import TopicPartition
from semel.protocol.int_bounds import INT64_MAX
from semel.protocol.randomness import new_token
from semel.protocol.record_decoder import Record
from semel.sdk.consumer.batch import Batch, Outstanding, RecordByRecord
from semel.sdk.consumer.core import ConsumerCore, PolledRecords
from semel.sdk.consumer.deserialization import Deserializers
from semel.sdk.consumer.processing import processing
from semel.sdk.consumer.settings import make_core
from semel.sdk.consumer.subscription import OffsetReset
from semel.sdk.pipeline.options import RunOptions, run_producer_options
from semel.sdk.pipeline.stopping import StopRequest
from semel.sdk.transport.arguments import (
    Offsets,
    as_offsets,
    check_partition,
    check_partitions,
    check_seconds,
    check_topics,
)
from semel.sdk.transport.border import ends_tracebacks
from semel.sdk.transport.client import ClientCore
from semel.sdk.transport.kafka_names import ConsumerKafkaNames
from semel.sdk.transport.options import ClientOptions, NotPicklable, check_int, check_text, checked_names
from semel.sdk.transport.serde import Deserializer, Serializer, as_serializer

T = TypeVar("T")
Listener = TypeVar("Listener")
CommitCallback = Callable[[SemelError | None], object]

_log = logging.getLogger("semel.consumer")

DEFAULT_MAX_RECORDS = 10_000
ITERATION_RECORDS = 500
COMMITS_PENDING_MAX = 1_000
"""How many `commit_async` may wait at a time."""
CLOSE_TIMEOUT_S = 10.0
RUN_TIMEOUT_MS = 10_000
LOOK_AGAIN_S = 1.0
"""How long a poll waits before it says again that the user is alive."""


@ends_tracebacks
class ConsumerBase(NotPicklable, ABC, Generic[Listener]):
    """A consumer without a way to wait. See `semel.Consumer` for the options."""

    _in_place_of_pickling = "it owns a thread and connections; make one in each process or worker, where it is used"

    @checked_names
    def __init__(
        self,
        bootstrap: str | Sequence[str] | None = None,
        *,
        group: str | None = None,
        topics: Iterable[str] | None = None,
        pattern: str | None = None,
        listener: Listener | None = None,
        isolation: str = "read_committed",
        offset_reset: str = "earliest",
        on_unreadable_batch: str = "raise",
        key_deserializer: Deserializer | str | None = None,
        value_deserializer: Deserializer | str | None = None,
        auto_commit_interval_ms: int | None = None,
        assignors: Sequence[str] | str = "cooperative-sticky",
        instance_id: str | None = None,
        session_timeout_ms: int = 45_000,
        heartbeat_interval_ms: int | None = None,
        max_poll_interval_ms: int = 300_000,
        max_wait_ms: int = 500,
        min_bytes: int = 1,
        max_bytes: int = 50 << 20,
        max_partition_bytes: int = 1 << 20,
        buffered_bytes_max: int = 64 << 20,
        client_id: str = "semel",
        rack: str = "",
        request_timeout_ms: int = 30_000,
        api_timeout_ms: int = 60_000,
        connect_timeout_ms: int | None = None,
        **kafka: Unpack[ConsumerKafkaNames],  # `checked_names` has put them under the names above
    ) -> None:
        self._listener = _check_listener(listener)
        self._deserializers = Deserializers.checked(key_deserializer, value_deserializer)
        self._auto_commit_s = None
        if auto_commit_interval_ms is not None:
            if group is None:
                raise UsageError("option auto_commit_interval_ms commits for a group: give group, too")
            self._auto_commit_s = check_int("auto_commit_interval_ms", auto_commit_interval_ms, 1) / 1000
        self._core = make_core(
            self._make_client,
            bootstrap,
            group=group,
            topics=topics,
            pattern=pattern,
            isolation=isolation,
            offset_reset=offset_reset,
            on_unreadable_batch=on_unreadable_batch,
            assignors=assignors,
            instance_id=instance_id,
            session_timeout_ms=session_timeout_ms,
            heartbeat_interval_ms=heartbeat_interval_ms,
            max_poll_interval_ms=max_poll_interval_ms,
            max_wait_ms=max_wait_ms,
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            max_partition_bytes=max_partition_bytes,
            buffered_bytes_max=buffered_bytes_max,
            client_id=client_id,
            rack=rack,
            request_timeout_ms=request_timeout_ms,
            api_timeout_ms=api_timeout_ms,
            connect_timeout_ms=connect_timeout_ms,
        )
        self._now = self._core.client.clock.monotonic
        self._auto_committing: Future[None] | None = None
        self._auto_commit_due = math.inf
        self._auto_committed: dict[TopicPartition, OffsetAndMetadata] = {}
        self._pending: deque[tuple[Future[None], CommitCallback | None]] = deque()
        self._outstanding = Outstanding()
        self._one_by_one: RecordByRecord | None = None
        self._stop = StopRequest()
        self._runs = False
        self._closing = False
        self._closed = False
        self._prepare()
        self._finalizer = weakref.finalize(self, _close_dropped, self._core)
        self._finalizer.atexit = False

    def _make_client(self, options: ClientOptions) -> ClientCore:
        return ClientCore("Consumer", options)

    @abstractmethod
    def _prepare(self) -> None:
        """Make what polls wait for. What runs on the IO thread must not keep this consumer alive."""

    # --- Reading ------------------------------------------------------------------------------------------------------

    def processing(self, record: Record) -> AbstractContextManager[None]:
        """Return a context manager inside of which `record` is processed: see `Batch.processing`.

        for record in consumer:
            with consumer.processing(record):
                ...
        """
        return processing(self._core, record)

    def _deadline(self, timeout_s: float | None) -> float:
        """Return when `timeout_s` is over, by the client's monotonic clock. Raises `UsageError`."""
        seconds = check_seconds("timeout_s", timeout_s)
        return math.inf if seconds is None else self._now() + seconds

    def _deserialized(self, polled: PolledRecords | None) -> PolledRecords | None:
        """Apply the deserializers. Raises `DeserializationError` where the first record fails.

        Those before one that fails are returned, and the next poll meets it again.
        """
        if self._deserializers is None or polled is None:
            return polled
        error, rest = self._deserializers.applied_to_all(polled.records)
        if error is not None:
            offsets: dict[TopicPartition, int] = {}
            for record in rest:
                offsets.setdefault(TopicPartition(record.topic, record.partition), record.offset)
            polled.end_at(offsets)
            self._core.rewind(polled, offsets)
            if not polled.records:
                raise error
        return polled

    def _settle(self) -> None:
        """End an iteration over records that is under way, so that what it has left is returned again."""
        rest, self._one_by_one = self._one_by_one, None
        if rest is not None and not rest.is_done:
            rest.stop()

    def _batch(self, polled: PolledRecords | None) -> Batch | None:
        if polled is None:
            return None
        batch = Batch(self._core, polled, self._outstanding)
        self._outstanding.add(batch)
        return batch

    def _deserialize(self, record: Record) -> Record:
        return record if self._deserializers is None else self._deserializers.applied(record)

    # --- A run --------------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """End `run`: it commits what it has handled, and returns. From any thread.

        Without a run under way the next one ends at once.
        """
        self._stop.set()

    def _run_options(self, handler: object, **options: Any) -> RunOptions:
        if self._auto_commit_s is not None:
            raise UsageError("run() commits offsets in its transactions: leave auto_commit_interval_ms out")
        subscription = self._core.subscription
        topics = subscription.topics | {tp.topic for tp in self._core.assignment()}
        return RunOptions.checked(handler, self._core.group_name, topics, subscription.pattern, **options)

    def _producer_options(
        self, transactional_id: str | None, further: Mapping[str, Any] | None
    ) -> tuple[dict[str, Any], dict[str, Serializer | None]]:
        """Return the options of the producer of a run, and the serializers, which dead letters must not go through."""
        client = self._core.client.options
        options = {
            "client_id": client.client_id,
            # Short ones: the run itself repeats what timed out, and looks between whether it is to stop.
            "request_timeout_ms": min(client.request_timeout_ms, RUN_TIMEOUT_MS),
            "max_block_ms": min(client.api_timeout_ms, RUN_TIMEOUT_MS),
            "delivery_timeout_ms": RUN_TIMEOUT_MS,
            **run_producer_options(further),
        }
        serializers = {
            what: as_serializer(f"{what}_serializer", options.pop(f"{what}_serializer", None))
            for what in ("key", "value")
        }
        group = self._core.group
        assert group is not None
        own = group.instance_id or new_token(6)
        options["transactional_id"] = f"{group.group}/{own}" if transactional_id is None else transactional_id
        return options, serializers

    # --- What is read -------------------------------------------------------------------------------------------------

    def subscribe(
        self,
        topics: Iterable[str] | None = None,
        *,
        pattern: str | None = None,
        listener: Listener | None = None,
    ) -> None:
        """Read topics, or all whose whole name matches `pattern`, shared with the group, in place of those so far.

        Topics and partitions that come later are taken in within seconds. Raises `UsageError` after `assign`.
        """
        self._check_free()
        if (topics is None) == (pattern is None):
            raise UsageError("give either topics or pattern")
        if listener is not None:
            self._listener = _check_listener(listener)
        self._core.subscribe(
            None if topics is None else check_topics(topics),
            None if pattern is None else check_text("pattern", pattern),
        )

    def assign(self, partitions: Iterable[TopicPartition] | Mapping[TopicPartition, int]) -> None:
        """Read exactly these partitions, without sharing them. With a group, begin where it has committed.

        partitions: or a mapping that says at which offset to begin in each; nothing is looked up then

        Partitions that were assigned before continue where they are, if no offset is given for them. Raises
        `UsageError` after `subscribe`.
        """
        self._check_free()
        self._settle()
        offsets = {}
        if isinstance(partitions, Mapping):
            offsets = {tp: check_int(f"offset of {tp}", offset, 0, INT64_MAX) for tp, offset in partitions.items()}
        self._core.assign(check_partitions(partitions), offsets)

    def assignment(self) -> frozenset[TopicPartition]:
        """Return the partitions that are read now."""
        return self._core.assignment()

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Continue at `offset`, and let `commit()` commit it. Raises `UsageError` where `partition` is not assigned."""
        self._check_free()
        tp = check_partition(partition)
        check_int("offset", offset, 0, INT64_MAX)
        self._settle()
        self._core.seek(tp, offset)

    def seek_to_beginning(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Go to the first record of the partitions (None: all that are assigned)."""
        self._seek_to(OffsetReset.EARLIEST, partitions)

    def seek_to_end(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Go to the end of the partitions (None: all that are assigned), as it is when the next poll looks."""
        self._seek_to(OffsetReset.LATEST, partitions)

    def _seek_to(self, strategy: OffsetReset, partitions: Iterable[TopicPartition] | None) -> None:
        self._check_free()
        tps = self._chosen(partitions)
        self._settle()
        self._core.seek_to(strategy, tps)

    def pause(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Return nothing of these partitions (None: all) until `resume`; they stay assigned."""
        tps = self._chosen(partitions)
        self._settle()
        self._core.pause(tps, paused=True)

    def resume(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Return records of these partitions (None: all) again."""
        self._core.pause(self._chosen(partitions), paused=False)

    def paused(self) -> frozenset[TopicPartition]:
        """Return the partitions that are paused."""
        return self._core.paused()

    def statistics(self) -> dict[str, int]:
        """Return how this consumer stands.

        partitions: assigned, of which paused; buffered_bytes: fetched and not returned yet; lag: how many offsets all
        partitions together are behind, as of the last fetch of each; skipped_batches: with on_unreadable_batch="skip".
        """
        return self._core.statistics()

    @property
    def skipped_batches(self) -> int:
        """How many batches could not be read and were passed over, with on_unreadable_batch="skip"."""
        return self._core.skipped_batches

    def position(self, partition: TopicPartition) -> int | None:
        """Return the offset of the next record to be returned; None as long as it is not known."""
        self._check_usable()
        tp = check_partition(partition)
        left = self._left_to_hand_out().get(tp)
        return self._core.position(tp) if left is None else left

    def lag(self) -> dict[TopicPartition, int]:
        """Return how far each partition is behind the end of what this consumer may see, as of its last fetch."""
        return self._core.lags()

    # --- Offsets ------------------------------------------------------------------------------------------------------

    def group_metadata(self) -> GroupMetadata | None:
        """Return who commits now; None outside of a group."""
        return self._core.group_metadata()

    def _commit_soon(self, offsets: Offsets | None, callback: CommitCallback | None) -> Future[None]:
        if len(self._pending) >= COMMITS_PENDING_MAX:
            raise RetriableError(
                f"{COMMITS_PENDING_MAX} commits wait already; poll, or wait for the futures of some, before the next"
            )
        self._check_free()
        committer, chosen = self._core.committer(), self._to_commit(offsets)
        future = self._core.client.io.submit(self._core.offsets.commit(chosen, committer))
        self._pending.append((future, callback))
        return future

    def _to_commit(self, offsets: Offsets | None) -> dict[TopicPartition, OffsetAndMetadata]:
        if offsets is not None:
            return as_offsets(offsets)
        chosen = self._core.handed_out()
        for tp, offset in self._left_to_hand_out().items():
            if tp in chosen:
                chosen[tp] = OffsetAndMetadata(offset)
        return chosen

    def _left_to_hand_out(self) -> dict[TopicPartition, int]:
        return {} if self._one_by_one is None else self._one_by_one.positions()

    def _auto_commit(self) -> None:
        """Commit what polls before this one returned, where it is time to."""
        if self._auto_commit_s is None:
            return
        now = self._now()
        pending = self._auto_committing
        if pending is not None and pending.done():
            self._auto_committing = None
            error = None if pending.cancelled() else pending.exception()
            if error is not None:
                self._auto_committed = {}
                _log.warning("auto-commit failed, the next one tries again: %s", error)
        if self._auto_commit_due is math.inf:
            self._auto_commit_due = now + self._auto_commit_s
        if now < self._auto_commit_due or self._auto_committing is not None:
            return
        self._auto_commit_due = now + self._auto_commit_s
        chosen = self._to_commit(None)
        if chosen and chosen != self._auto_committed:
            try:
                committer = self._core.committer()
            except SemelError:
                return  # no member now: what was returned is returned again
            self._auto_committed = chosen
            self._auto_committing = self._core.client.io.submit(self._core.offsets.commit(chosen, committer))

    def __repr__(self) -> str:
        group = "no group" if self._core.group is None else f"group {self._core.group.group!r}"
        return f"<Consumer of {group} at {', '.join(self._core.client.options.addresses)}>"

    def _chosen(self, partitions: Iterable[TopicPartition] | None) -> list[TopicPartition]:
        self._check_usable()
        return sorted(self._core.assignment()) if partitions is None else check_partitions(partitions)

    def _check_free(self) -> None:
        """Raises `UsageError` inside of `run`: it would lose the records that its transaction has not committed."""
        self._check_usable()
        if self._runs:
            raise UsageError(
                "run() reads and commits here, so its handler can't: return the records to send; stop() ends it"
            )

    def _check_usable(self) -> None:
        if self._closed:
            raise UsageError("this Consumer is closed; make a new one")
        self._core.client.io.check()


def core_of(consumer: ConsumerBase[Any]) -> ConsumerCore:
    """Return what a consumer works with, for parts of the SDK that need more than its public methods give."""
    return consumer._core


def _close_dropped(core: ConsumerCore) -> None:
    """Close what a consumer was made of that was dropped without a close, or it would own its partitions for ever."""
    if core.is_started and not core.client.io.forked:
        core.client.io.close_aside(partial(_close_quietly, core))


def _close_quietly(core: ConsumerCore) -> None:
    _log.warning("a consumer was dropped without a close; use it in a with-block")
    with suppress(SemelError):
        core.client.run(core.close(), CLOSE_TIMEOUT_S * 1000)
    core.client.close()


def _check_listener(listener: Listener | None) -> Listener | None:
    if listener is None:
        return None
    missing = [name for name in ("on_assigned", "on_revoked", "on_lost") if not callable(getattr(listener, name, None))]
    if missing or isinstance(listener, type):
        raise UsageError(
            f"listener must be an instance of a subclass of RebalanceListener, not {listener!r}"
            + (f", which has no {', '.join(missing)}" if missing else "")
        )
    return listener
