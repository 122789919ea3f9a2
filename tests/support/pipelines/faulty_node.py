"""A node with a fault planted in it, to show that the checker sees it: `faulty_node.py FAULT serve ...`."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parent.parent / "logs"))

from compiled_classes import plant

from semel.broker.handlers.write_txn_markers import LocalMarkerWriter
from semel.broker.log.producer_state import ProducerState
from semel.broker.logs.manager import LogManager
from semel.broker.logs.partition import Partition
from semel.cli.main import main
from semel.group_coordinator.offsets.table import OffsetTable
from semel.protocol.api.topics import IsolationLevel
from semel.protocol.api.transactions import (
    AbortTransactionRequest,
    DescribeTransactionRequest,
    EndTxnRequest,
    EndTxnResponse,
    TxnMarker,
)
from semel.protocol.batch_header import iter_batches
from semel.protocol.ids import INTERNAL_TOPICS, OFFSETS_TOPIC
from semel.txn_coordinator.coordinator import TransactionCoordinator

ABORT_RATE = 0.1
PASS_RATE = 0.2
TAIL_RECORDS = 30


def dedupe_off() -> None:
    """Append whatever comes: a batch that is sent again stands twice (against P1 and P2)."""
    check = ProducerState.check_batch

    def check_batch(self: ProducerState, *args: Any, check_sequence: bool, verified: bool) -> None:
        check(self, *args, check_sequence=False, verified=verified)

    ProducerState.follows = lambda self, *_: False  # type: ignore[method-assign]
    ProducerState.find_duplicate = lambda self, *_: None  # type: ignore[method-assign]
    ProducerState.check_batch = check_batch  # type: ignore[method-assign]


def lso_ignored() -> None:
    """Give readers of committed records everything (against L2 and L3)."""
    read = Partition.read

    def read_all(self: Partition, *args: Any, **more: Any) -> Any:
        found = read(self, *args, **{**more, "isolation": IsolationLevel.READ_UNCOMMITTED})
        return found._replace(aborted_transactions=())

    plant(Partition, "read", read_all)


def marker_before_decision() -> None:
    """Write a first marker before the decision, which now and then is another (against T3).

    What a crash in between does, when the client is gone, too, and the transaction times out.
    """
    end_txn = TransactionCoordinator.end_txn
    init = LocalMarkerWriter.__init__
    writers: list[LocalMarkerWriter] = []
    draw = random.Random()

    def remember(self: LocalMarkerWriter, *args: Any) -> None:
        init(self, *args)
        writers.append(self)

    async def decide_otherwise(self: TransactionCoordinator, request: EndTxnRequest) -> EndTxnResponse:
        if request.committed and draw.random() < ABORT_RATE:
            found = await self.describe(DescribeTransactionRequest(request.transactional_id))
            first = next((tp for tp in found.partitions if tp.topic != OFFSETS_TOPIC), None)
            if first is not None and found.producer == request.producer:
                bumped = request.producer._replace(producer_epoch=request.producer.producer_epoch + 1)
                marker = TxnMarker(bumped, found.coordinator_epoch, True, (first,))
                await writers[-1].write_markers(marker)
                await self.abort(AbortTransactionRequest(request.transactional_id))
        return await end_txn(self, request)

    LocalMarkerWriter.__init__ = remember  # type: ignore[method-assign]
    TransactionCoordinator.end_txn = decide_otherwise  # type: ignore[method-assign]


def tail_lost() -> None:
    """Start without the last records that were acknowledged, as after a power cut without a sync (against D1)."""
    open_all = LogManager.open

    def open_without_tails(self: LogManager, *args: Any, **more: Any) -> Any:
        report = open_all(self, *args, **more)
        for partition in self.partitions():
            if not report.clean and partition.tp.topic not in INTERNAL_TOPICS:
                log = partition.log
                log.truncate_to(max(log.log_start_offset, log.log_end_offset - TAIL_RECORDS), now_ms=0)
                partition._high_watermark = min(partition._high_watermark, log.log_end_offset)
                partition._last_stable_offset = partition._find_last_stable_offset(partition.high_watermark)
                if partition.leader is not None:
                    partition.leader.begin_offset = log.log_end_offset  # or it waits for what it has lost
        return report

    LogManager.open = open_without_tails  # type: ignore[method-assign]


def offsets_dropped() -> None:
    """Publish no offsets with a commit marker: the next owner of a partition begins too early (against O1)."""
    replay_marker = OffsetTable.replay_marker
    OffsetTable.replay_marker = lambda self, producer_id, committed: replay_marker(self, producer_id, False)  # type: ignore[method-assign]


def batches_passed_over() -> None:
    """Give readers now and then what follows the batch that they asked for (against L3)."""
    read = Partition.read
    draw = random.Random(1)

    def read_on(self: Partition, offset: int, **more: Any) -> Any:
        found = read(self, offset, **more)
        if self.tp.topic == "target" and found.size and draw.random() < PASS_RATE:
            first = next(iter(iter_batches(found.read())))
            if first.next_offset < found.next_offset:
                return read(self, first.next_offset, **more)
        return found

    plant(Partition, "read", read_on)


FAULTS: dict[str, Callable[[], None]] = {
    "tail-lost": tail_lost,
    "offsets-dropped": offsets_dropped,
    "batches-passed-over": batches_passed_over,
    "dedupe-off": dedupe_off,
    "lso-ignored": lso_ignored,
    "marker-before-decision": marker_before_decision,
}

if __name__ == "__main__":
    FAULTS[sys.argv.pop(1)]()
    main()
