"""A program with a log of its own is killed: each of its transactions is there as a whole, once, or not at all."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import embedded_worker
import pytest
from embedded_worker import RECORDS, open_log

import semel
from semel.broker.inspection.verify import verify
from semel.cli.demo.processes import NodeProcess

KILLS = 6
WAIT_S = 60.0


def run_until_killed(folder: Path, acknowledged: int) -> list[int]:
    """Run the program, kill it behind so many acknowledged transactions, and return which those were."""
    lines: list[str] = []
    with subprocess.Popen(
        [sys.executable, "-P", embedded_worker.__file__, str(folder)], stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        for line in child.stdout:
            lines.append(line)
            if len(lines) == acknowledged:
                child.kill()
    assert len(lines) >= acknowledged, "the program ended early"
    return [int(line) for line in lines if line.endswith("\n")]


def committed(log: semel.EmbeddedLog, topic: str, counts: Mapping[int, int]) -> dict[int, list[str]]:
    """Return what readers of committed records see, by partition: the whole topic, and so many of each at least."""
    tps = [semel.TopicPartition(topic, number) for number in (0, 1)]
    values: dict[int, list[str]] = {0: [], 1: []}
    deadline = time.monotonic() + WAIT_S
    with log.consumer() as reader:
        reader.assign(tps)
        while any(
            len(values[tp.partition]) < counts[tp.partition] or (reader.position(tp) or 0) < end
            for tp, end in reader.end_offsets(tps).items()
        ):
            batch = reader.poll(1)  # all up to the end may be aborted
            if batch is None:
                found = {tp: len(of_tp) for tp, of_tp in values.items()}
                assert time.monotonic() < deadline, f"{topic} has no more than {found}"
                continue
            for record in batch:
                assert record.value is not None
                values[record.partition].append(record.value.decode())
    return values


def of_transactions(numbers: int) -> list[str]:
    return [f"{number}.{record}" for number in range(numbers) for record in range(RECORDS)]


@pytest.mark.drawn(1)
@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_D1_T13_E1_E5_a_killed_program_finds_each_transaction_of_its_log_once_and_whole(
    tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    folder = tmp_path / "data"
    acknowledged: list[int] = []
    for _ in range(KILLS):
        acknowledged += run_until_killed(folder, chance.randrange(1, 120))
        report = verify(str(folder))
        assert report.is_whole, list(report.findings)
    # What was acknowledged comes in its order, and nothing twice; one may be decided and not be told.
    assert acknowledged == sorted(set(acknowledged))
    assert acknowledged[-1] + 1 - len(acknowledged) <= KILLS
    with open_log(str(folder)) as log:
        with log.producer(transactional_id="writer") as producer:
            producer.init_transactions()
            last = producer.last_commit()
        assert last is not None
        assert last.sequence in (acknowledged[-1], acknowledged[-1] + 1)
        expected = of_transactions(last.sequence + 1)
        numbers = committed(log, "numbers", {0: len(expected), 1: len(expected)})
        assert numbers == {0: expected, 1: expected}
        # What the group has made of them is a beginning of them, once (E1). The rest follows when it runs again.
        with log.producer(transactional_id="adder") as producer:
            producer.init_transactions()
        sums = committed(log, "sums", {0: 0, 1: 0})
        for partition in (0, 1):
            done = [f"{partition}:{value}" for value in expected][: len(sums[partition])]
            assert sums[partition] == done
        with log.admin() as admin:
            offsets = admin.group_offsets("adders")
        assert {tp.partition for tp in offsets} == {part for part in (0, 1) if sums[part]}
    assert verify(str(folder)).is_clean


@pytest.mark.slow
def test_D1_what_a_killed_program_wrote_is_served_by_a_node_and_what_a_killed_node_took_is_in_the_program(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "data"
    acknowledged = run_until_killed(folder, 20)
    node = NodeProcess(folder)
    node.start()
    try:
        with semel.Consumer(node.bootstrap, group="g", topics=["numbers"]) as consumer:
            seen: set[str] = set()
            while not {f"{number}.0" for number in acknowledged} <= seen:
                batch = consumer.poll(WAIT_S)
                assert batch is not None
                seen |= {record.value.decode() for record in batch if record.value is not None}
        with semel.Producer(node.bootstrap) as producer:
            producer.send("sums", "from outside", partition=0)
    finally:
        node.kill()
    with open_log(str(folder)) as log:
        with log.producer(transactional_id="adder") as producer:  # readers wait for what the first kill left open
            producer.init_transactions()
        assert "from outside" in committed(log, "sums", {0: 1, 1: 0})[0]
