"""A recovery that takes many batches and entries together leaves what one would that takes them one by one.

The same folder, after a crash and damage, is opened twice: as a start does, and with every batch of a log, and every
entry of the journal, read and taken in alone. Files, producers, leader epochs and reports are the same, byte for byte.
Proves D1, D2, D3 and P7 for runs, wherever they begin and end.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from longer_runs import examples
from simulated_folder import Node, append

from semel.broker.log import recovery
from semel.broker.log.config import AppendOrigin, LogConfig
from semel.broker.logs import journal_replay
from semel.broker.logs.config import LogManagerConfig
from semel.broker.logs.partition import Partition
from semel.protocol.batch_builder import encode_batch
from semel.protocol.batch_header import read_header, set_base_offset
from semel.protocol.errors import SemelError
from semel.protocol.ids import ProducerIdAndEpoch, TopicPartition
from semel.runtime.simulated_storage import SimulatedStorage

NOW = 1_700_000_000_000
LED = TopicPartition("orders", 0)
PLAIN = TopicPartition("orders", 1)
FOLLOWED = TopicPartition("orders", 2)
LOGS = LogConfig(segment_bytes=2500, index_interval_bytes=300, segment_ms=60_000, retention_ms=-1)
NODE = LogManagerConfig(journal_file_bytes=6000, disk_min_free_bytes=0)


class History:
    """Does what nodes do, drawn from one number."""

    def __init__(self, node: Node, rng: random.Random) -> None:
        self.node = node
        self.rng = rng
        self.sequences: dict[int, int] = {}
        self.epochs: dict[int, int] = {}
        self.leader_epoch = 0
        self.ends: list[int] = []
        """Where batches end that were fetched."""
        self.time = NOW

    def batch(self, **fields: Any) -> bytearray:
        self.time += self.rng.choice((0, 1, 7, 40_000 if self.rng.random() < 0.1 else 2))
        count = self.rng.randint(1, 3)
        size = self.rng.choice((1, 20, 20, 300))
        records = [(self.time - n, b"k", b"v" * size, ()) for n in range(count)]
        return bytearray(encode_batch(records, **fields))

    async def client(self) -> None:
        await append(self.node.get(PLAIN), self.batch())

    async def transaction(self) -> None:
        partition, rng = self.node.get(LED), self.rng
        producer = rng.randint(7, 9)
        epoch = self.epochs.setdefault(producer, 0)
        if rng.random() < 0.3:
            partition.append_marker(ProducerIdAndEpoch(producer, epoch), 0, rng.random() < 0.5)
            return
        sequence = self.sequences.get(producer, 0)
        data = self.batch(
            producer_id=producer, producer_epoch=epoch, base_sequence=sequence, transactional=producer != 7
        )
        result = partition.append(data, verified=True)
        self.sequences[producer] = sequence + result.last_offset - result.base_offset + 1

    async def fetch(self) -> None:
        partition, rng = self.node.get(FOLLOWED), self.rng
        end = partition.log_end_offset
        uncommitted = [one for one in self.ends if one >= partition.high_watermark]
        if uncommitted and rng.random() < 0.2:
            end = rng.choice(uncommitted)
            partition.truncate_to(end)
            self.ends = [one for one in self.ends if one <= end]
            self.leader_epoch += rng.randint(0, 1)
            return
        if uncommitted and rng.random() < 0.2:
            partition.leader_committed(rng.choice(uncommitted))
        fetched = bytearray()
        for _ in range(rng.randint(1, 6)):
            end += rng.choice((0, 0, 0, 3))
            data = self.batch()
            set_base_offset(data, 0, end, self.leader_epoch)
            end += read_header(data).last_offset_delta + 1
            fetched += data
            self.ends.append(end)
        partition.append(fetched, origin=AppendOrigin.REPLICATION)

    async def delete(self) -> None:
        partition = self.node.get(PLAIN)
        partition.log.delete_records(self.rng.randint(partition.log_start_offset, partition.high_watermark))

    async def run(self) -> None:
        for tp in (LED, PLAIN, FOLLOWED):
            partition: Partition = self.node.create(tp, LOGS)
        partition.follow(0, 2)
        for _ in range(self.rng.randint(5, 120)):
            step = self.rng.choices(
                (self.client, self.transaction, self.fetch, self.delete, self.node.logs.maintenance.flush),
                (8, 8, 4, 0.2, 0.3),
            )[0]
            await step()
            if self.rng.random() < 0.1:
                await asyncio.sleep(0)


def damage(storage: SimulatedStorage, rng: random.Random) -> str:
    """Take from the files what a crash, or a bad disk, takes."""
    kind = rng.choice(("none", "cut", "log", "journal"))
    folders = {"cut": [LED, PLAIN, FOLLOWED], "log": [LED, PLAIN, FOLLOWED], "journal": ["journal"]}
    paths = [
        f"/data/{folder}/{name}"
        for folder in folders.get(kind, ())
        for name in storage.list_folder(f"/data/{folder}")
        if name.endswith((".log", ".journal"))
    ]
    if not paths:
        return "none"
    path = rng.choice(paths)
    file = storage.open(path)
    if not file.size():
        return "none"
    position = rng.randrange(file.size())
    if kind == "cut":
        file.truncate(position)
    else:
        storage.corrupt(path, position, bytes([file.read_at(1, position)[0] ^ 1 << rng.randrange(8)]))
    return kind


def opened(storage: SimulatedStorage) -> dict[str, Any]:
    """Open the folder, and return all that came of it."""
    node = Node(storage, NODE)
    found: dict[str, Any] = {}
    try:
        logs = node.start(LOGS)
    except SemelError as error:
        found["refused"] = error.message
        return found
    found["report"] = logs.recovery
    found["offline"] = [(one.tp, one.reason) for one in logs.offline]
    for tp in (LED, PLAIN, FOLLOWED):
        partition = logs.partition(tp)
        if partition is not None:
            log = partition.log
            found[str(tp)] = (
                log.log_start_offset, log.log_end_offset, log.recovery_point, log.recovered_damage,
                log.recovered_damage_from, log.replayed_cut, log.epochs.entries(), list(log.producer_state.packed()),
                log.producer_state.open_transactions, log.producer_state.coordinator_epoch_max,
                [(one.base_offset, one.size, one.max_timestamp) for one in log.segments],
            )  # fmt: skip
            for name in storage.list_folder(f"/data/{tp}"):
                found[f"{tp}/{name}"] = storage.durable_bytes(f"/data/{tp}/{name}")
    return found


def crashed(seed: int) -> tuple[SimulatedStorage, str]:
    """Return what a crash and more have left of a node's files, and what the more was."""
    rng = random.Random(seed)
    node = Node(SimulatedStorage(seed), NODE)

    async def live() -> None:
        node.start(LOGS)
        await History(node, rng).run()

    asyncio.run(live())
    node.storage.crash(power=rng.random() < 0.5)
    return node.storage, damage(node.storage, rng)


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 2**32))
def test_D1_D2_D3_P7_runs_leave_what_single_batches_leave(seed: int) -> None:
    storage, what = crashed(seed)
    together = opened(storage)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(journal_replay, "_READ_BYTES_MIN", 1)
        patched.setattr(journal_replay, "_READ_BYTES_MAX", 1)
        patched.setattr(recovery, "following", lambda headers, begin, end, upto: 0)
        alone = opened(crashed(seed)[0])
    assert together == alone
    event(f"damage: {what}")
    event("refused" if "refused" in together else f"restored some: {together['report'].restored_batches > 0}")
