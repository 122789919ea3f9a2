"""A disk that others fill to the last byte, and empty again, at any moment: nothing that was acknowledged is lost, no
partition goes offline, readers continue (D1, L3), and appends continue once there is room.
"""

from __future__ import annotations

import asyncio
import random

import pytest
from longer_runs import given
from simulated_folder import Node, batch, read_all

from semel.broker.log.config import LogConfig
from semel.broker.logs.config import LogManagerConfig
from semel.broker.logs.partition import Partition
from semel.protocol.api.topics import IsolationLevel
from semel.protocol.batch_builder import encode_batch
from semel.protocol.errors import RetriableError, SemelError
from semel.protocol.ids import ProducerIdAndEpoch, TopicPartition
from semel.runtime.inline_executor import InlineExecutor
from semel.runtime.simulated_storage import SimulatedStorage

SEEDS = int(given("SEMEL_MODEL_EXAMPLES", "100")) // 4
STEPS = 60
CONFIG = LogConfig(segment_bytes=700, segment_ms=1 << 60, retention_ms=-1, index_interval_bytes=100)


class Run:
    """One history, drawn from a seed."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.node = Node(
            SimulatedStorage(seed),
            LogManagerConfig(
                disk_min_free_bytes=0,
                journal_file_bytes=600,
                journal_buffer_max_bytes=300,
                journal_direct_write_bytes=200,
            ),
        )
        self.node.executor = InlineExecutor()
        self.node.start()
        self.partitions = [self.node.create(TopicPartition("orders", n), CONFIG) for n in range(2)]
        self.acknowledged: set[tuple[int, int]] = set()
        self.aborted: set[tuple[int, int]] = set()
        self.open: dict[int, int] = {}
        self.waiting: list[asyncio.Task[None]] = []
        self.sequences = {0: 0, 1: 0}

    async def append(self, number: int, *, transactional: bool = False) -> None:
        partition, size = self.partitions[number], self.chance.randint(1, 250)
        data = batch(1, size=size)
        if transactional:
            records = [(1_700_000_000_000, b"k", b"t" * size, ())]
            data = bytearray(
                encode_batch(
                    records, producer_id=7, producer_epoch=0, base_sequence=self.sequences[number], transactional=True
                )
            )
        try:
            result = partition.append(data, verified=transactional)
        except RetriableError:
            return
        if transactional:
            self.sequences[number] += 1
            self.open.setdefault(number, result.base_offset)
            self.aborted.add((number, result.base_offset))
        self.wait(partition, number, result.base_offset)

    def wait(self, partition: Partition, number: int, offset: int) -> None:
        async def until_committed() -> None:
            await partition.wait_committed(offset)
            self.acknowledged.add((number, offset))

        self.waiting.append(asyncio.ensure_future(until_committed()))

    def abort(self, number: int) -> bool:
        partition = self.partitions[number]
        if number not in self.open:
            return True
        try:
            offset = partition.append_marker(ProducerIdAndEpoch(7, 0), 0, False)
        except RetriableError:
            return False
        del self.open[number]
        assert offset is not None
        self.wait(partition, number, offset)
        return True

    async def step(self) -> None:
        number = self.chance.randrange(2)
        match self.chance.randrange(8):
            case 0:
                self.node.storage.set_free_bytes(self.chance.choice([0, 7, 100, 400]))
            case 1:
                self.node.storage.set_free_bytes(None)
            case 2:
                await self.flush()
            case 3 | 4:
                await self.append(number, transactional=True)
            case 5:
                self.abort(number)
            case _:
                await self.append(number)
        for _ in range(self.chance.randrange(3)):
            await asyncio.sleep(0)
        self.check()

    async def flush(self) -> None:
        try:
            await self.node.logs.maintenance.flush()
        except OSError:
            assert self.node.storage.free_bytes("/data") < 1 << 20

    def check(self) -> None:
        assert not self.node.failures
        for number, partition in enumerate(self.partitions):
            assert partition.offline_error is None
            self.check_reading(number, partition)

    def check_reading(self, number: int, partition: Partition) -> None:
        """What was acknowledged is there, and readers of committed records are told of every aborted one (L3)."""
        read_all(partition)
        offset, told = partition.log_start_offset, set()
        while offset < partition.last_stable_offset:
            found = partition.read(offset, max_bytes=300, isolation=IsolationLevel.READ_COMMITTED)
            told |= {
                place
                for one in found.aborted_transactions
                for place in range(one.first_offset, one.last_offset)
                if (number, place) in self.aborted
            }
            offset = found.next_offset
        expected = {place for where, place in self.aborted if where == number and place < partition.last_stable_offset}
        assert told >= expected
        assert all(offset < partition.high_watermark for where, offset in self.acknowledged if where == number)

    async def end(self) -> None:
        """With room again everything continues; or the power goes, and what was acknowledged is there."""
        if self.chance.random() < 0.5:
            self.node.storage.set_free_bytes(None)
            async with asyncio.timeout(60):
                await asyncio.gather(*self.waiting)
            assert all(self.abort(number) for number in range(2))
            await self.flush()
            await self.node.logs.close()
        else:
            self.node.storage.crash(power=True)
            for task in self.waiting:
                task.cancel()
            self.node.storage.set_free_bytes(None)
        await asyncio.gather(*self.waiting, return_exceptions=True)
        self.node.start(CONFIG)
        self.partitions = [self.node.get(TopicPartition("orders", n)) for n in range(2)]
        # A marker may be behind what was acknowledged, and then the crash took it.
        self.aborted = {one for one in self.aborted if one in self.acknowledged and one[0] not in self.open}
        for number, partition in enumerate(self.partitions):
            assert all(offset < partition.high_watermark for where, offset in self.acknowledged if where == number)
            self.check_reading(number, partition)
            partition.append(batch())
        await self.node.logs.close()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_D1_L3_a_disk_that_others_fill_and_empty_loses_nothing_and_stops_nothing(seed: int) -> None:
    async def main() -> None:
        run = Run(seed)
        for _ in range(STEPS):
            await run.step()
        await run.end()

    try:
        asyncio.run(main())
    except SemelError as error:
        raise AssertionError(f"seed {seed}: {error}") from error
