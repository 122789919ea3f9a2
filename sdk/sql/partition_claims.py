"""Which partitions this member may write, and from where: taken from the database whenever partitions come.

A partition that comes is paused and claimed in three steps: read its row; let the coordinator confirm that this member
is in the group's current generation (O4); raise the row's epoch, if nobody has raised it since the first step. So the
last to claim is always the member of the newest generation: an older one is refused in the second step if the newer one
has claimed before the first, and in the third if between. One that is late only at writing is refused by the epoch.

The claims run on a thread of their own, so that the consumer is polled, and stays a member, while a database is slow.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from semel.protocol.api.group_offsets import GroupMetadata, OffsetAndMetadata
from semel.protocol.api.topics import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, IsolationLevel
from semel.protocol.errors import (
    AbortTransactionError,
    ErrorCode,
    FatalError,
    RetriableError,
    SemelError,
)
from semel.protocol.ids import TopicPartition
from semel.protocol.wording import counted
from semel.sdk.consumer.api import Consumer, RebalanceListener
from semel.sdk.consumer.base import core_of
from semel.sdk.consumer.batch import Batch
from semel.sdk.sql.database import Database, Verdict, failed, unavailable
from semel.sdk.sql.offsets import OffsetsTable, Step
from semel.sdk.transport.offset_lookup import list_offsets

_log = logging.getLogger("semel.sql")

AGAIN_S: Final = 0.3
"""How long a claim that was not granted waits before the next."""


@dataclass(slots=True)
class Claim:
    """A partition that is ours. `read_to`: the offset after what was returned last."""

    epoch: int
    read_to: int


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What came of claiming: the claims granted, and the error of the rest."""

    granted: dict[TopicPartition, Claim]
    error: Exception | None


class PartitionClaims(RebalanceListener):
    """The partitions of one consumer, as its listener. All methods but `_claim_all` run on the consumer's thread.

    on_going: called before partitions go, while they are still ours.
    """

    def __init__(
        self,
        database: Database,
        offsets: OffsetsTable,
        offset_reset: str,
        timeout_s: float,
        on_going: Callable[[frozenset[TopicPartition]], None],
    ) -> None:
        self.consumer: Consumer
        self.claims = 0
        self._database = database
        self._offsets = offsets
        self._reset = offset_reset
        self._timeout_s = timeout_s
        self._on_going = on_going
        self._claims: dict[TopicPartition, Claim] = {}
        self._waiting: set[TopicPartition] = set()
        self._claiming: Future[_Outcome] | None = None
        self._claim_of: frozenset[TopicPartition] = frozenset()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="semel-sql-claims")
        self._next_claim_at = 0.0
        self._failing_since: float | None = None

    # --- Told by the consumer -----------------------------------------------------------------------------------------

    def on_assigned(self, partitions: Iterable[TopicPartition]) -> None:
        self.ask_again(partitions)

    def on_revoked(self, partitions: Iterable[TopicPartition]) -> None:
        going = frozenset(partitions)
        self._on_going(going)
        self._forget(going)

    def on_lost(self, partitions: Iterable[TopicPartition]) -> None:
        self._forget(partitions)

    def _forget(self, partitions: Iterable[TopicPartition]) -> None:
        for tp in partitions:
            self._claims.pop(tp, None)
            self._waiting.discard(tp)
            self._claim_of -= {tp}

    # --- Asked by the sink --------------------------------------------------------------------------------------------

    def ask_again(self, partitions: Iterable[TopicPartition]) -> None:
        """Claim partitions, and go to where the database stands: they are new, or a transaction has failed."""
        ours = frozenset(partitions) & self.consumer.assignment()
        for tp in ours:
            self._claims.pop(tp, None)
        self._waiting |= ours
        self._claim_of -= ours
        if ours:
            self.consumer.pause(ours)

    @property
    def is_waiting(self) -> bool:
        """Whether partitions wait for the database."""
        return bool(self._waiting)

    def waiting(self) -> frozenset[TopicPartition]:
        return frozenset(self._waiting)

    def steps_of(self, batch: Batch) -> dict[TopicPartition, Step]:
        """Return what writing a batch, just returned, does to the positions. Raises `FatalError` for lost records."""
        steps = {}
        for tp, first in batch.first_offsets.items():
            place = self._claims[tp]
            if first != place.read_to:
                self._look_at_gap(tp, place.read_to, first)
            next_offset = batch.next_offsets[tp].offset
            steps[tp] = Step(place.epoch, place.read_to, next_offset)
            place.read_to = next_offset
        return steps

    def _look_at_gap(self, tp: TopicPartition, expected: int, first: int) -> None:
        if first < expected:
            raise FatalError(
                f"{tp} begins again at {first}, and the database stands at {expected}: the topic was made again, or "
                f"lost records; delete its row in {self._offsets.table.fullname} to write it from the beginning",
                ErrorCode.OFFSET_OUT_OF_RANGE,
            )
        # Markers and aborted records leave gaps, too; records that are gone are before the log's start.
        state = core_of(self.consumer).subscription.get(tp)
        if state is not None and state.log_start_offset > expected:
            self._records_gone(tp, expected, state.log_start_offset)

    def is_ours(self, tp: TopicPartition, step: Step) -> bool:
        """Whether a step was made under the current claim."""
        place = self._claims.get(tp)
        return place is not None and place.epoch == step.epoch

    def go_on(self) -> None:
        """Take what claims have come to, and begin the next. Raises `SemelError` where claiming fails for good."""
        if self._claiming is not None and self._claiming.done():
            self._take(self._claiming.result())
        if self._waiting and self._claiming is None and time.monotonic() >= self._next_claim_at:
            try:
                member = core_of(self.consumer).committer()
            except AbortTransactionError:
                return  # no member now: a poll joins again, and the partitions are returned again or do not
            self._claim_of = frozenset(self._waiting)
            self._claiming = self._thread.submit(self._claim_all, sorted(self._waiting), member)

    def _take(self, claim: _Outcome) -> None:
        self._claiming = None
        for tp in self._claim_of & claim.granted.keys():
            place = claim.granted[tp]
            self._claims[tp] = place
            self._waiting.discard(tp)
            self.claims += 1
            self.consumer.seek(tp, place.read_to)
            self.consumer.resume([tp])
        self._next_claim_at = time.monotonic() + AGAIN_S if self._waiting else 0.0
        error = claim.error
        if error is None:
            self._failing_since = None
        elif not isinstance(error, (RetriableError, AbortTransactionError)):
            raise error
        elif isinstance(error, RetriableError) and error.code is not ErrorCode.REBALANCE_IN_PROGRESS:
            now = time.monotonic()
            if self._failing_since is None:
                self._failing_since = now
                _log.warning("waiting with %s: %s", counted(len(self._waiting), "partition"), error)
            elif now - self._failing_since > self._timeout_s:
                raise error

    def _claim_all(self, tps: list[TopicPartition], member: GroupMetadata) -> _Outcome:
        granted: dict[TopicPartition, Claim] = {}
        try:
            self._claim(tps, member, granted)
        except SemelError as error:
            return _Outcome(granted, error)
        except Exception as error:
            is_transient = self._database.verdict(error) is Verdict.TRANSIENT
            return _Outcome(granted, (unavailable if is_transient else failed)(self._database, error))
        return _Outcome(granted, None)

    def _claim(self, tps: list[TopicPartition], member: GroupMetadata, granted: dict[TopicPartition, Claim]) -> None:
        with self._database.begin() as connection:
            rows = {tp: self._offsets.read(connection, tp) for tp in tps}
        core = core_of(self.consumer)
        starts = core.client.run(core.end_offsets(tps, EARLIEST_TIMESTAMP))
        ends = core.client.run(core.end_offsets(tps, LATEST_TIMESTAMP))
        positions = {}
        for tp, row in rows.items():
            if row is None:
                if self._reset == "error":
                    raise FatalError(
                        f"group {self._offsets.group!r} has no row of {tp} in {self._offsets.table.fullname}, and "
                        "offset_reset is 'error': say where to begin with 'earliest' or 'latest'"
                    )
                positions[tp] = starts[tp] if self._reset == "earliest" else ends[tp]
            else:
                positions[tp] = row.position
                if row.position > ends[tp]:
                    self._look_beyond_end(tp, row.position)
                if row.position < starts[tp]:
                    self._records_gone(tp, row.position, starts[tp])
        # A member that is not (any more) in the current generation is refused here (O4).
        core.client.run(core.offsets.commit({tp: OffsetAndMetadata(place) for tp, place in positions.items()}, member))
        for tp in tps:
            with self._database.begin() as connection:
                claimed = self._offsets.claim(connection, tp, rows[tp], positions[tp], member)
            if claimed is not None:
                granted[tp] = Claim(claimed.epoch, claimed.position)
                _log.info("claimed %s at %d epoch=%d", tp, claimed.position, claimed.epoch)

    def _look_beyond_end(self, tp: TopicPartition, position: int) -> None:
        """Raise `FatalError` unless the log, with what is not committed yet, reaches as far as the database."""
        core = core_of(self.consumer)
        asked = {tp: LATEST_TIMESTAMP}
        known = core.client.run(list_offsets(core.client, asked, IsolationLevel.READ_UNCOMMITTED))[tp].offset
        if position > known:
            raise FatalError(
                f"{tp} ends at {known}, and the database stands at {position}: the topic was made again, or lost "
                f"records; delete its row in {self._offsets.table.fullname} to write it from the beginning",
                ErrorCode.OFFSET_OUT_OF_RANGE,
            )

    def _records_gone(self, tp: TopicPartition, position: int, start: int) -> None:
        gone = f"records {position} to {start - 1} of {tp} were deleted before they were written to the database"
        if self._reset == "error":
            raise FatalError(
                f"{gone}, and offset_reset is 'error': set the position in {self._offsets.table.fullname} to {start} "
                "to continue without them",
                ErrorCode.OFFSET_OUT_OF_RANGE,
            )
        _log.error("%s: they are missing there; raise the topic's retention", gone)

    def close(self) -> None:
        """Wait for a claim under way, and claim no more."""
        self._waiting.clear()
        self._thread.shutdown(wait=True, cancel_futures=True)
