"""Whatever a node does with its logs, `semel log verify` finds nothing wrong with them: stopped, killed, or compacted.

What it holds against a replay (P7, L3, D3, D4) has many ways to differ from it rightly: producers expire and come back,
compaction takes batches away, records are deleted up to the middle of a batch.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
from pathlib import Path

import pytest
from damaged_folder import photograph
from hypothesis import given, settings
from hypothesis import strategies as st
from log_model import NOW, make_batch
from registered_writer import let_write

from semel.broker.inspection.findings import Severity
from semel.broker.inspection.verify import verify
from semel.broker.log.config import CleanupPolicy, LogConfig
from semel.broker.logs.config import LogManagerConfig
from semel.broker.logs.manager import LogManager
from semel.broker.logs.partition import Partition
from semel.broker.metadata.chain import START
from semel.broker.metadata.changes import ClusterCreated, PartitionState, TopicCreated
from semel.broker.metadata.store import METADATA_FILE, MetadataStore, sqlite_url
from semel.protocol.errors import AbortTransactionError
from semel.protocol.ids import ProducerIdAndEpoch, TopicPartition, new_topic_id
from semel.runtime.clock import ManualClock
from semel.runtime.disk_storage import DiskStorage
from semel.runtime.inline_executor import InlineExecutor

TP = TopicPartition("t", 0)
TOPIC_ID = new_topic_id()
EXPIRATION_MS = 20_000
DELETED = LogConfig(segment_bytes=900, index_interval_bytes=150, file_delete_delay_ms=0, retention_ms=40_000)
COMPACTED = LogConfig(
    segment_bytes=900, index_interval_bytes=150, file_delete_delay_ms=0, delete_retention_ms=1_000,
    cleanup_policy=frozenset({CleanupPolicy.COMPACT}), min_cleanable_dirty_ratio=0.0,
)  # fmt: skip


class History:
    """A log on the disk, and what is done to it."""

    def __init__(self, folder: Path, seed: int, config: LogConfig) -> None:
        self.folder = folder
        self.chance = random.Random(seed)
        self.config = config
        self.clock = ManualClock(NOW)
        self.epochs: dict[int, int] = {}
        self.sequences: dict[int, int] = {}
        self.open: set[int] = set()
        self.written_ms: dict[int, int] = {}
        self.expired: set[int] = set()
        self.leader_epoch = 0
        self.logs = self.start()
        self.logs.create_partition(TP, TOPIC_ID, config)
        store = MetadataStore(sqlite_url(str(folder / METADATA_FILE)))
        store.create()
        writer = let_write(sqlite_url(str(folder / METADATA_FILE)))
        policy = ",".join(each.value for each in config.cleanup_policy)
        topic = TopicCreated("t", TOPIC_ID, (PartitionState(0, 0, (0,), (0,)),), {"cleanup.policy": policy})
        store.append([ClusterCreated(self.logs.cluster_id), topic], after=START, writer=writer, now_ms=NOW)
        store.close()

    def start(self) -> LogManager:
        logs = LogManager(
            DiskStorage(), str(self.folder), self.clock,
            LogManagerConfig(disk_min_free_bytes=0, producer_id_expiration_ms=EXPIRATION_MS), executor=InlineExecutor(),
        )  # fmt: skip
        logs.open(lambda tp, topic_id: self.config)
        return logs

    @property
    def partition(self) -> Partition:
        found = self.logs.partition(TP)
        assert found is not None
        return found

    async def step(self) -> None:
        chance = self.chance
        self.clock.advance(ms=chance.randrange(2_000))
        what = chance.random()
        maintenance = self.logs.maintenance
        if what < 0.75:
            self.write()
        elif what < 0.80:
            await maintenance.flush()
        elif what < 0.84:
            await maintenance.flush()
            await (maintenance.compact_logs() if self.config.is_compacted else maintenance.check_retention())
        elif what < 0.87 and not self.config.is_compacted:
            await maintenance.flush()
            log = self.partition.log
            log.delete_records(chance.randint(log.log_start_offset, log.log_end_offset))
            maintenance.log_start_moved(self.partition)
        elif what < 0.90:
            self.clock.advance(ms=30_000)
            await maintenance.expire_producers()
            before = self.clock.now_ms() - EXPIRATION_MS
            self.expired |= {producer_id for producer_id, at in self.written_ms.items() if at <= before}
        elif what < 0.93:
            self.leader_epoch += 1
        else:
            await self.stop(clean=chance.random() < 0.6)
            self.logs = self.start()
            self.open = set(self.partition.log.producer_state.open_transactions.values())

    def write(self) -> None:
        chance, log = self.chance, self.partition.log
        now_ms = self.clock.now_ms()
        producer_id = chance.randrange(4)
        epoch = self.epochs.setdefault(producer_id, 0)
        producer = ProducerIdAndEpoch(producer_id, epoch)
        if producer_id in self.open and chance.random() < 0.5:
            bumped = epoch + chance.randrange(2)
            committed = chance.random() < 0.5
            log.append_marker(
                ProducerIdAndEpoch(producer_id, bumped), 1, committed, now_ms, leader_epoch=self.leader_epoch
            )
            self.open.discard(producer_id)
            if bumped > epoch:
                self.epochs[producer_id], self.sequences[producer_id] = bumped, 0
            return
        count = chance.randint(1, 3)
        records: list[tuple[bytes | None, bytes | None]] = [
            (b"%d" % chance.randrange(5), None if chance.random() < 0.1 else chance.randbytes(9)) for _ in range(count)
        ]
        if chance.random() < 0.2:
            log.append(make_batch(records, timestamp_ms=now_ms), leader_epoch=self.leader_epoch, now_ms=now_ms)
            return
        transactional = producer_id in self.open or chance.random() < 0.4
        sequence = self.sequences.get(producer_id, 0)
        batch = make_batch(
            records, producer=producer, sequence=sequence, transactional=transactional, timestamp_ms=now_ms
        )
        try:
            log.append(batch, leader_epoch=self.leader_epoch, now_ms=now_ms, verified=True)
        except AbortTransactionError:
            # Compaction keeps the last batch of those that are known. Of one that was not, a kill brings the epoch
            # back, by its marker, but not the sequence: it gets another epoch, and begins with 0.
            assert producer_id in self.expired
            self.epochs[producer_id], self.sequences[producer_id] = epoch + 1, 0
            return
        self.expired.discard(producer_id)
        self.written_ms[producer_id] = now_ms
        self.sequences[producer_id] = sequence + count
        if transactional:
            self.open.add(producer_id)

    async def stop(self, *, clean: bool) -> None:
        if clean:
            await self.logs.close()
        else:
            for partition in self.logs.partitions():
                partition.log.release_files()
            self.logs._abandon()
        self.check(clean)

    def check(self, clean: bool) -> None:
        before = photograph(self.folder)
        report = verify(str(self.folder), clock=self.clock)
        # Nobody has a coordinator here, so all that is open would hang.
        wrong = [
            one
            for one in report.findings
            if one.severity is not Severity.NOTE and "a hanging transaction" not in one.what
        ]
        assert not wrong, "\n".join(f"{one.path}: {one.what}" for one in wrong)
        assert report.is_clean is clean
        assert report.open_transactions <= len(self.open), "of one whose records were deleted a kill leaves nothing"
        assert photograph(self.folder) == before


@pytest.mark.parametrize("config", [DELETED, COMPACTED], ids=["deleted", "compacted"])
@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_P7_L3_D4_a_log_that_nobody_damaged_is_ok(config: LogConfig, seed: int) -> None:
    async def run() -> None:
        with tempfile.TemporaryDirectory() as name:
            history = History(Path(name) / "data", seed, config)
            for _ in range(60):
                await history.step()
            await history.stop(clean=True)

    asyncio.run(run())
