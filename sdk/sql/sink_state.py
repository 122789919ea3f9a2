"""What of a sink its two ways to write share, `Sink.transaction` and `SinkRun`: what is read, and what came of it."""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final

from semel.protocol.api.group_offsets import OffsetAndMetadata
from semel.protocol.errors import SemelError
from semel.protocol.ids import TopicPartition
from semel.sdk.consumer.api import Consumer
from semel.sdk.consumer.base import core_of
from semel.sdk.consumer.batch import Batch
from semel.sdk.sql.database import Database
from semel.sdk.sql.dead_letters import DeadLetters
from semel.sdk.sql.offsets import OffsetsTable, Step
from semel.sdk.sql.partition_claims import PartitionClaims
from semel.sdk.sql.sink_options import SinkOptions
from semel.sdk.telemetry import tracing

_log = logging.getLogger("semel.sql")

GROUP_COMMIT_S: Final = 1.0
"""How often the group learns how far the database is, for tools that show lag."""


class SinkState:
    """The parts of one sink, and what was done with them.

    steps:      of batches that were returned and not written yet: what writing each does to the positions.
    is_stopped: set by `Sink.stop`, from any thread.
    """

    def __init__(
        self,
        options: SinkOptions,
        database: Database,
        offsets: OffsetsTable,
        dead_letters: DeadLetters | None,
        claims: PartitionClaims,
        consumer: Consumer,
    ) -> None:
        self.options = options
        self.database = database
        self.offsets = offsets
        self.dead_letters = dead_letters
        self.claims = claims
        self.consumer = consumer
        self.steps: weakref.WeakKeyDictionary[Batch, dict[TopicPartition, Step]] = weakref.WeakKeyDictionary()
        self.is_stopped = False
        self.counts = dict.fromkeys(
            ("records", "rows", "transactions", "dead_letters", "skipped", "retries", "refused"), 0
        )
        self._written: dict[TopicPartition, int] = {}
        self._telling: Future[None] | None = None
        self._tell_at = 0.0

    def poll(self, timeout_s: float, max_records: int) -> Batch | None:
        """Return the next records, or None. Also where partitions come and go, and are claimed in the database."""
        self.tell_group()
        self.claims.go_on()
        batch = self.consumer.poll(min(timeout_s, 0.02) if self.claims.is_waiting else timeout_s, max_records)
        if batch is not None:
            self.steps[batch] = self.claims.steps_of(batch)
        return batch

    def check_found(self) -> None:
        """Raise `UnreachableError` where nothing came because no node has answered yet."""
        core_of(self.consumer).check_found()

    # --- What came of writing -----------------------------------------------------------------------------------------

    def wrote(self, steps: Mapping[TopicPartition, Step], records: int) -> None:
        """Take note of a transaction that has committed."""
        self.counts["records"] += records
        self.counts["transactions"] += 1
        self._written.update({tp: step.next_position for tp, step in steps.items()})

    def refused(self, steps: Mapping[TopicPartition, Step]) -> None:
        """A transaction came to nothing: the database says where reading continues, for all later batches too."""
        self.counts["refused"] += 1
        self.claims.ask_again(steps)

    def note_retry(self) -> None:
        self.counts["retries"] += 1

    def span(self, records: Sequence[Any]) -> Any:
        """Begin the span of writing `records`; None where nothing is traced."""
        if not tracing.active():
            return None
        topics = {record.topic for record in records}
        return tracing.start_span(
            "process",
            topics.pop() if len(topics) == 1 else "",
            kind="consumer",
            client_id=core_of(self.consumer).client.options.client_id,
            links=(record.headers for record in records if record.headers),
            batch__message_count=len(records),
            consumer__group__name=self.offsets.group,
        )

    # --- The group, for tools that show lag ---------------------------------------------------------------------------

    def tell_group(self, *, at_once: bool = False) -> None:
        """Commit to the group, now and then, what the database has. Nothing depends on it."""
        now = time.monotonic()
        is_due = at_once or now >= self._tell_at
        if not self._written or not is_due or (self._telling is not None and not self._telling.done()):
            return
        self._tell_at = now + GROUP_COMMIT_S
        written, self._written = self._written, {}
        ours = self.consumer.assignment()
        note = f"written to {self.database.name}"
        mine = {tp: OffsetAndMetadata(offset, metadata=note) for tp, offset in written.items() if tp in ours}
        try:
            if mine:
                self._telling = self.consumer.commit_async(mine, callback=_ignore)
        except SemelError as error:
            _log.debug("the group was not told of %s: %s", mine, error)


def _ignore(error: SemelError | None) -> None:
    if error is not None:
        _log.debug("the group was not told how far the database is: %s", error)
