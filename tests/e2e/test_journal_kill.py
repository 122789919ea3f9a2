"""A real process that appends to real files is killed without warning: what it said is durable is there (D1, D3)."""

from __future__ import annotations

import asyncio
import contextlib
import random
import subprocess
import sys
from pathlib import Path
from uuid import UUID

import pytest

from semel.broker.log.config import LogConfig
from semel.broker.logs.config import LogManagerConfig
from semel.broker.logs.manager import LogManager
from semel.protocol.batch_builder import encode_batch
from semel.protocol.batch_header import iter_batches
from semel.protocol.ids import TopicId, TopicPartition
from semel.protocol.record_decoder import decode_records
from semel.runtime.clock import SystemClock
from semel.runtime.disk_storage import DiskStorage

PARTITIONS = 4
APPENDERS = 8
TOPIC_ID = TopicId(UUID(int=99))
LOG_CONFIG = LogConfig(segment_bytes=20_000, retention_ms=-1)
CONFIG = LogManagerConfig(disk_min_free_bytes=0, journal_flush_bytes=60_000, journal_file_bytes=20_000)
"""Files of the journal are finished with, and written over, all the time."""


def open_logs(folder: str) -> LogManager:
    logs = LogManager(DiskStorage(), folder, SystemClock(), CONFIG)
    logs.open(lambda tp, topic_id: LOG_CONFIG)
    return logs


async def append_until_killed(folder: str, run: str) -> None:
    """The child: append, and print each value once it is committed."""
    logs = open_logs(folder)
    for number in range(PARTITIONS):
        logs.create_partition(TopicPartition("t", number), TOPIC_ID, LOG_CONFIG)
    background = asyncio.create_task(logs.maintenance.run())

    async def append(appender: int) -> None:
        number = appender % PARTITIONS
        partition = logs.partition(TopicPartition("t", number))
        assert partition is not None
        for n in range(1_000_000):
            value = f"{run}:{appender}:{n}"
            batch = bytearray(encode_batch([(1, b"k", value.encode() + b"." * (n % 400), ())]))
            result = partition.append(batch)
            await partition.wait_committed(result.last_offset)
            sys.stdout.write(f"{number} {result.base_offset} {value}\n")
            sys.stdout.flush()

    async with asyncio.TaskGroup() as group:
        for appender in range(APPENDERS):
            group.create_task(append(appender))
    background.cancel()


@pytest.mark.parametrize("seed", [1, 2])
def test_D1_D3_killed_process_keeps_what_it_acknowledged(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    folder = str(tmp_path / "data")
    acknowledged: dict[tuple[int, int], str] = {}
    for run in range(3):
        with subprocess.Popen(
            [sys.executable, "-P", __file__, folder, str(run)], stdout=subprocess.PIPE, text=True, bufsize=1
        ) as child:
            assert child.stdout is not None
            wanted = chance.randrange(50, 1500)
            lines = []
            for line in child.stdout:
                lines.append(line)
                if len(lines) == wanted:
                    child.kill()
            assert len(lines) >= wanted, "the child ended early"
        for line in lines:
            if not line.endswith("\n"):
                continue
            number, offset, value = line.split()
            assert (int(number), int(offset)) not in acknowledged, "D3: no offset is given twice"
            acknowledged[int(number), int(offset)] = value

    async def check() -> None:
        logs = open_logs(folder)
        found: dict[tuple[int, int], str] = {}
        for partition in logs.partitions():
            offset = 0
            while offset < partition.high_watermark:
                data = partition.read(offset, max_bytes=1 << 20)
                raw = data.read()
                position = 0
                for header in iter_batches(raw):
                    (record,) = decode_records(raw[position : position + header.size_bytes])
                    assert record.value is not None
                    found[partition.tp.partition, record.offset] = record.value.decode().rstrip(".")
                    position += header.size_bytes
                offset = data.next_offset
        assert {key: found.get(key) for key in acknowledged} == acknowledged
        assert len(set(found.values())) == len(found), "nothing is there twice"
        await logs.close()

    asyncio.run(check())


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        asyncio.run(append_until_killed(sys.argv[1], sys.argv[2]))
