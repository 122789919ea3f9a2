"""Between any two changes of the disk during a transaction, and during the recovery after it, the node dies; all holds.

Every point is tried with SEMEL_CRASH_POINTS=0; by default a few, spread over all of them.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from crashing_node import COUNT, DIED
from longer_runs import given
from one_transaction import GROUP, TOPIC, TRANSACTIONAL_ID
from sound_data import wrong_in

import semel
from semel.cli.demo.processes import NodeProcess
from semel.protocol.errors import FatalError

SUPPORT = Path(__file__).parent.parent / "support"
POINTS = int(given("SEMEL_CRASH_POINTS", "4"))
SETTINGS = ["offsets.topic.num.partitions=2", "transaction.state.log.num.partitions=2"]
STEPS = ("identified", "sent", "offsets sent", "committed")


class World:
    """A data folder with two topics and a transactional id, copied for each crash."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._template = folder / "template" / "data"
        self._template.parent.mkdir()
        node = NodeProcess(self._template, settings=SETTINGS)
        node.start()
        with semel.Admin(node.bootstrap) as admin:
            admin.create_topic("in", partitions=1)
            admin.create_topic(TOPIC, partitions=2)
        run_client(node.bootstrap, "first").communicate(timeout=60)
        assert node.stop() == 0

    def node(self, name: str, point: int) -> NodeProcess:
        """A node over a fresh copy of the folder, which dies at `point`."""
        folder = self.folder / name
        folder.mkdir()
        shutil.copytree(self._template, folder / "data")
        return self.crashing(folder, point)

    def crashing(self, folder: Path, point: int, like: NodeProcess | None = None) -> NodeProcess:
        program = (str(SUPPORT / "nodes" / "crashing_node.py"), str(point), str(folder / "count"))
        node = NodeProcess(folder / "data", program=program, settings=SETTINGS)
        if like is not None:
            node.take_place_of(like)
        return node

    def count(self, name: str) -> int:
        (count,) = COUNT.unpack((self.folder / name / "count").read_bytes())
        return int(count)


def start_to_die(node: NodeProcess) -> None:
    """Start a node. What its start leaves to be done may be done before the ready line, and the first point with it."""
    with suppress(FatalError):
        node.start()


def run_client(bootstrap: str, value: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(SUPPORT / "transactions" / "one_transaction.py"), bootstrap, value]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def spread(first: int, last: int, most: int) -> list[int]:
    everything = list(range(first, last + 1))
    if not most or len(everything) <= most:
        return everything
    step = (len(everything) - 1) / max(1, most - 1)
    return sorted({everything[round(number * step)] for number in range(most)})


def outcome(node: NodeProcess) -> tuple[list[list[str]], int]:
    """What readers of committed records see, once a successor has ended what the transactional id had open."""
    with semel.Producer(node.bootstrap, transactional_id=TRANSACTIONAL_ID) as successor:
        successor.init_transactions()
    tps = [semel.TopicPartition(TOPIC, number) for number in (0, 1)]
    found: list[list[str]] = [[], []]
    with semel.Consumer(node.bootstrap) as reader:
        reader.assign(tps)
        ends = reader.end_offsets(tps)
        while any((reader.position(tp) or 0) < ends[tp] for tp in tps):
            for record in reader.poll(1.0) or ():
                found[record.partition].append((record.value or b"").decode())
    with semel.Admin(node.bootstrap) as admin:
        return found, admin.group_offsets(GROUP)[semel.TopicPartition("in", 0)].offset


def judge(node: NodeProcess, steps: list[str]) -> None:
    values, offset = outcome(node)
    if "committed" in steps:
        assert (values, offset) == ([["first", "second"]] * 2, len("second")), steps
    else:
        nothing, everything = ([["first"]] * 2, len("first")), ([["first", "second"]] * 2, len("second"))
        assert (values, offset) in (nothing, everything), steps


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("crash-points"))


@pytest.mark.slow
@pytest.mark.timeout(900 if POINTS else 3_600)
def test_T3_D1_a_node_that_dies_at_any_change_of_its_disk_keeps_transactions_whole(world: World) -> None:
    node = world.node("rehearsal", 0)
    node.start()
    before = world.count("rehearsal")
    steps = run_client(node.bootstrap, "second").communicate(timeout=60)[0].splitlines()
    assert steps == list(STEPS)
    node.kill()
    after = world.count("rehearsal")
    assert after > before

    for point in spread(before + 1, after, POINTS):
        # The client lives on: it must come through with its transaction, by retrying alone.
        name = f"live-{point}"
        node = world.node(name, point)
        start_to_die(node)
        client = run_client(node.bootstrap, "second")
        assert node.wait_for_end(60) == DIED
        assert not wrong_in(node.data_dir), f"point {point}: it is as a crash leaves it, and not damaged"
        survivor = NodeProcess(world.folder / name / "data", settings=SETTINGS)
        survivor.take_place_of(node)
        survivor.start()
        steps = client.communicate(timeout=60)[0].splitlines()
        assert steps == list(STEPS), f"point {point}"
        judge(survivor, steps)
        survivor.kill()

    for point in spread(before + 1, after, POINTS):
        # The client dies with the node, which dies again while it recovers.
        name = f"dead-{point}"
        node = world.node(name, point)
        start_to_die(node)
        client = run_client(node.bootstrap, "second")
        assert node.wait_for_end(60) == DIED
        assert not wrong_in(node.data_dir), f"point {point}: it is as a crash leaves it, and not damaged"
        client.kill()
        steps = client.communicate()[0].splitlines()
        dies_again = world.crashing(world.folder / name, 1 + point % 7, like=node)
        with pytest.raises(FatalError, match="did not start"):
            dies_again.start()
        survivor = NodeProcess(world.folder / name / "data", settings=SETTINGS)
        survivor.take_place_of(node)
        survivor.start()
        judge(survivor, steps)
        survivor.kill()
