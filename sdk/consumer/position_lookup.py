"""Where a consumer begins in a partition: where its group stands, or at the start or the end.

Runs on the IO thread, for the fetcher: a partition is fetched once its position is known.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final, TypeAlias

from semel.protocol.api.group_offsets import OffsetAndMetadata
from semel.protocol.api.topics import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, IsolationLevel, ListOffset
from semel.protocol.errors import ErrorCode, FatalError, RetriableError, SemelError
from semel.protocol.ids import TopicPartition
from semel.sdk.consumer.subscription import OffsetReset, PartitionState, Subscription
from semel.sdk.transport.client import ClientCore
from semel.sdk.transport.offset_lookup import look_up_offsets

_log = logging.getLogger("semel.consumer")

FAILURES_BEFORE_WARNING: Final = 5

STALE_METADATA: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.REPLICA_NOT_AVAILABLE,
    }
)
"""What is answered where the leader has moved, or the topic was made again."""

Target: TypeAlias = tuple[PartitionState, int]
"""A partition, with its epoch when something was asked about it."""

CommittedOffsets: TypeAlias = Callable[
    [list[TopicPartition]], Awaitable[Mapping[TopicPartition, OffsetAndMetadata | SemelError | None]]
]


class PositionLookup:
    """Looks up the positions that are missing, all at once, one look-up at a time.

    committed_offsets: looks up where the group stands.
    postpone:          lets a partition wait, because of a failure at this time; called under the lock.
    refresh_metadata, fail, on_moved: ask for the leaders, hand an error to the user, look again at what to fetch.
    """

    def __init__(
        self,
        client: ClientCore,
        subscription: Subscription,
        lock: threading.Lock,
        isolation: IsolationLevel,
        reset: OffsetReset,
        *,
        committed_offsets: CommittedOffsets | None,
        postpone: Callable[[PartitionState, float], None],
        refresh_metadata: Callable[[], None],
        fail: Callable[[SemelError], None],
        on_moved: Callable[[], None],
    ) -> None:
        self.task: asyncio.Task[None] | None = None
        self._client = client
        self._now = client.clock.monotonic
        self._subscription = subscription
        self._lock = lock
        self._isolation = isolation
        self._reset = reset
        self._committed_offsets = committed_offsets
        self._postpone = postpone
        self._refresh_metadata = refresh_metadata
        self._fail = fail
        self._on_moved = on_moved

    def start(self) -> None:
        """Begin to look for the positions that are missing, unless a look-up is under way."""
        if self.task is not None and not self.task.done():
            return
        now = self._now()
        with self._lock:
            targets = [(state, state.epoch) for state in self._subscription.need_position() if state.retry_at <= now]
        if targets:
            self.task = asyncio.get_running_loop().create_task(self._locate(targets), name="locate positions")

    async def _locate(self, targets: list[Target]) -> None:
        try:
            await self._take_reset(await self._take_committed(targets))
        except SemelError as error:  # of the call as a whole
            if not isinstance(error, RetriableError):
                self._fail(error)
            self._not_located((target, error) for target in targets)
        except Exception as error:  # a bug of ours: the next poll raises it
            _log.exception("where to begin could not be looked up")
            failure = FatalError(f"where to begin could not be looked up: {error!r}")
            self._not_located((target, failure) for target in targets)
        finally:
            self._on_moved()

    async def _take_committed(self, targets: list[Target]) -> list[Target]:
        """Move those with a committed offset to it, and return those that have none."""
        left = [(state, epoch) for state, epoch in targets if state.reset is not None]
        asked = [(state, epoch) for state, epoch in targets if state.reset is None]
        if not asked or self._committed_offsets is None:
            return targets
        offsets = await self._committed_offsets([state.tp for state, _ in asked])
        failed: list[tuple[Target, SemelError]] = []
        with self._lock:
            for state, epoch in asked:
                place = offsets.get(state.tp)
                if isinstance(place, SemelError):
                    failed.append(((state, epoch), place))
                elif place is None:
                    left.append((state, epoch))
                elif state.epoch == epoch:
                    state.failures = 0
                    state.move_to(place.offset, place.leader_epoch)
        self._not_located(failed)
        return left

    async def _take_reset(self, targets: list[Target]) -> None:
        """Move each to the start or the end, as its user asked, or as the consumer does where nothing is committed."""
        strategies = {state.tp: state.reset or self._reset for state, _ in targets}
        lost = sorted(tp for tp, strategy in strategies.items() if strategy is OffsetReset.ERROR)
        if lost:
            self._fail(
                FatalError(
                    f"there is no offset to begin at for {', '.join(map(str, lost))}: nothing is committed, and "
                    "offset_reset is 'error'; seek to where reading is to begin, or set it to 'earliest' or 'latest'",
                    ErrorCode.OFFSET_OUT_OF_RANGE,
                )
            )
        timestamps = {
            tp: LATEST_TIMESTAMP if strategy is OffsetReset.LATEST else EARLIEST_TIMESTAMP
            for tp, strategy in strategies.items()
            if strategy is not OffsetReset.ERROR
        }
        offsets: Mapping[TopicPartition, ListOffset | SemelError] = {}
        if timestamps:
            offsets = await look_up_offsets(self._client, timestamps, self._isolation)
        failed: list[tuple[Target, SemelError]] = []
        with self._lock:
            for state, epoch in targets:
                found = offsets.get(state.tp)
                if found is None:
                    self._postpone(state, self._now())
                elif isinstance(found, SemelError):
                    failed.append(((state, epoch), found))
                elif state.epoch == epoch:
                    state.failures = 0
                    state.move_to(found.offset)
        self._not_located(failed)

    def _not_located(self, failed: Iterable[tuple[Target, SemelError]]) -> None:
        """Try again after a pause; trouble of one partition is no trouble of the others."""
        now = self._now()
        is_stale = False
        for (state, epoch), error in failed:
            with self._lock:
                if state.epoch != epoch or state.position is not None:
                    continue
                self._postpone(state, now)
            is_stale |= error.code in STALE_METADATA
            if not isinstance(error, RetriableError):
                self._fail(error)
            elif state.failures == FAILURES_BEFORE_WARNING:
                _log.warning("where to begin is not known yet, retrying: partition=%s error=%s", state.tp, error)
        if is_stale:
            self._refresh_metadata()
