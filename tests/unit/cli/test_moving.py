"""What commands that move replicas say: how far they are, what they wait for, and throttles that others have left."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from semel.cli import move_progress, partition
from semel.cli.main import app
from semel.cli.move_progress import ProgressTeller, progress_line
from semel.protocol.api.cluster import NodeState, Reassignment
from semel.protocol.api.metadata import ConfigEntry
from semel.protocol.api.topics import PartitionDescription, TopicDescription
from semel.protocol.ids import TopicPartition, new_topic_id
from semel.sdk.admin.cluster_calls import NodeReplicas, ReplicasOfNodes
from semel.sdk.balancing.carrying_out import Progress
from semel.sdk.balancing.copies import Copy
from semel.sdk.balancing.results import Move
from semel.sdk.balancing.throttling import RATES

MIB = 1 << 20
T = [TopicPartition("t", number) for number in range(5)]


class MadeUp:
    """Three nodes, of which node 3 is away, and the partition t-0, which is being moved to 2 and 3."""

    def __init__(self) -> None:
        self.moving = [Reassignment(T[0], (2, 3, 1), (2, 3), (1,))]
        self.rates: dict[int, int] = {}
        self.has_bytes = 1 * MIB
        self.asked_for: Mapping[TopicPartition, Sequence[int] | None] = {}

    def reassignments(self) -> list[Reassignment]:
        return self.moving

    def replicas(self) -> ReplicasOfNodes:
        sizes = {1: {T[0]: 4 * MIB}, 2: {T[0]: self.has_bytes}}
        return ReplicasOfNodes(
            {number: NodeReplicas(number, here, -1, -1, {}) for number, here in sizes.items()}, {3: "it is dead"}
        )

    def nodes(self) -> list[NodeState]:
        return [NodeState(number, "", number < 3, False, False, False) for number in (1, 2, 3)]

    def node_configs(self, node: int, names: Sequence[str]) -> list[ConfigEntry]:
        rate = self.rates.get(node)
        source = "DYNAMIC_BROKER" if rate else "DEFAULT"
        return [ConfigEntry(name, str(rate or 0), source, False, False, "", "LONG") for name in names]

    def topic(self, name: str) -> TopicDescription:
        return TopicDescription(name, new_topic_id(), False, (PartitionDescription(0, 1, 0, (1, 2), (1, 2)),))

    def topics(self, *, include_internal: bool) -> list[TopicDescription]:
        return [self.topic("t")]

    def topic_configs(self, _topic: str, names: Sequence[str]) -> list[ConfigEntry]:
        return [ConfigEntry(name, "2", "DYNAMIC_TOPIC", False, False, "", "INT") for name in names]

    def reassign_partitions(self, wanted: Mapping[TopicPartition, Sequence[int]]) -> dict[TopicPartition, None]:
        self.asked_for = wanted
        return dict.fromkeys(wanted)

    def elect_leaders(self, _partitions: object) -> dict[TopicPartition, None]:
        return {}


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> MadeUp:
    made = MadeUp()

    @contextmanager
    def opened(*_: object, **__: object) -> Iterator[MadeUp]:
        yield made

    monkeypatch.setattr(partition, "open_admin", opened)
    monkeypatch.setenv("COLUMNS", "200")
    return made


def run(*arguments: str, typed: str = "") -> Result:
    return CliRunner().invoke(app, ["partition", *arguments], input=typed)


def test_moves_say_how_far_they_are_and_which_nodes_they_wait_for(admin: MadeUp) -> None:
    admin.rates = {2: 1000}
    shown = run("moves")
    assert shown.exit_code == 0, shown.output
    header, row = shown.stdout.splitlines()
    assert header.rstrip().endswith("waits for")
    assert " ".join(row.split()) == "t:0 2,3,1 2,3 1 1.0 MiB of 8.0 MiB node 3, which does not answer"
    assert "node 2 is throttled: leader.replication.throttled.rate=1000" in shown.stderr
    told = json.loads(run("moves", "--json").stdout)
    assert told["throttles"] == [{"node_id": 2, **dict.fromkeys(RATES, "1000")}]
    (move,) = told["moves"]
    assert (move["copied_bytes"], move["total_bytes"], move["waits_for"]) == (MIB, 8 * MIB, [3])


def test_fewer_replicas_than_acks_all_needs_are_asked_about(admin: MadeUp) -> None:
    asked = run("move", "t:0", "--to", "1", "--no-wait", typed="n\n")
    assert asked.exit_code == 1
    assert "t has min.insync.replicas=2: with 1 replica" in asked.stderr
    assert "semel topic config t --set min.insync.replicas=1" in asked.stderr
    assert not admin.asked_for
    for arguments, typed in ((("--to", "1", "--yes"), ""), (("--to", "1"), "y\n"), (("--to", "1,2"), "")):
        admin.asked_for = {}
        moved = run("move", "t:0", "--no-wait", *arguments, typed=typed)
        assert moved.exit_code == 0, moved.output
        assert list(admin.asked_for) == [T[0]]


def test_a_throttle_that_another_command_has_left_is_told_at_the_start_and_at_the_end(admin: MadeUp) -> None:
    admin.moving = []
    left = "a throttle is set on nodes 1, 2, down to 1000 B/s"
    admin.rates = {1: 2000, 2: 1000}
    moved = run("move", "t:0", "--to", "1,2")
    assert moved.exit_code == 0, moved.output
    assert moved.stderr.count(left) == 2
    assert "`semel partition moves --remove-throttle` removes it" in moved.stderr
    admin.rates = {}
    assert "throttle" not in run("move", "t:0", "--to", "1,2").stderr


def test_a_line_of_progress() -> None:
    moves = {tp: Move(tp, (1, 2), (2, 3), MIB, "balance") for tp in T}
    progress = Progress(7, 7 * MIB, done=2, done_bytes=2 * MIB, moving=moves)
    copies = [Copy(T[0], 3, MIB // 2, MIB), Copy(T[1], 3, None, MIB), Copy(T[2], 3, 2 * MIB, 3 * MIB)]
    line = "2 of 7 moved, 4.5 MiB of 9.0 MiB; now "
    assert progress_line(progress, copies) == (
        f"{line}t:0 to 2,3 (50%), t:1 to 2,3 (waits for node 3, which does not answer), t:2 to 2,3 (66%), and 2 others"
    )
    assert progress_line(Progress(1, 0, done=1), []) == "1 of 1 moved"


def test_copies_that_come_no_closer_are_told_once_a_minute(
    admin: MadeUp, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 1000.0
    monkeypatch.setattr(move_progress, "time", SimpleNamespace(monotonic=lambda: now))
    tell: Any = ProgressTeller(admin, "one:1")  # type: ignore[arg-type]
    progress = Progress(1, MIB, moving={T[0]: Move(T[0], (1,), (2, 3), MIB, "asked for")})
    said = []
    for step in range(50):
        now, admin.has_bytes = 1000.0 + 5 * step, min(step + 1, 10)  # after 50 s it has all that it will have
        admin.rates = {2: 1000} if step < 40 else {}
        tell(progress)
        err = capsys.readouterr().err
        if "no copy has come closer" in err:
            said.append((5 * step, "--remove-throttle" in err, "semel doctor" in err))
    assert said == [(105, True, False), (165, True, False), (225, False, True)]
