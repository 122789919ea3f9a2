"""The simulated clients of Kafka's protocol do what the real ones do, and the judge hears of broken promises."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from history import Outcome, Read, Send

from semel.protocol.api.topics import IsolationLevel
from semel.protocol.batch_builder import encode_batch
from semel.protocol.control_records import ControlType, encode_control_batch
from semel.protocol.errors import ErrorCode
from semel.protocol.ids import ProducerIdAndEpoch, TopicId, TopicPartition
from semel.protocol.kafka.api import ApiKey
from semel.protocol.kafka.fetch import FetchPartitionResponse
from semel.sdk.transport.connection import ConnectionLostError
from simulation.few_epochs import few_epochs
from simulation.kafka_batches import BatchSender, _Batch, _Lane
from simulation.kafka_consumers import Fetcher
from simulation.kafka_group_members import ClassicMember
from simulation.kafka_wire import JAVA_4, Party
from simulation.ledger import Ledger

ROOT = Path(__file__).parents[2]
TP = TopicPartition("out", 0)
TOPIC_ID = TopicId.__supertype__(int=7)

A_CALM_WORLD = """
import json
from collections import Counter
from simulation import casting, node_scenario

casting.KAFKA_SHARES = (1.0,)
world = node_scenario.NodeScenario(3, ())
verdict = world.run()
done = Counter(worker.split(".")[0].split("-")[0] for number, (worker, _, _) in enumerate(world.ledger._tried)
               if world.ledger.outcome(number) == "committed")
done["acknowledged"] = len(world.ledger.acknowledged)
done["read"] = sum(len(one.records) for one in world.ledger.reads if one.reader.startswith("reader"))
done["looks"] = world.states.looks
print(json.dumps([list(map(str, verdict.anomalies)), done]))
"""


def a_party(ledger: Ledger) -> Party:
    world: Any = SimpleNamespace(
        seed=0, network=SimpleNamespace(note=lambda *_: None), nodes={"node": None}, scheduler=SimpleNamespace(now=0.0)
    )
    return Party(world, ledger, "a client", "place", Random(1), JAVA_4)


def test_E1_in_a_calm_world_every_kafka_client_does_its_work() -> None:
    support = ROOT / "tests" / "support"
    path = os.pathsep.join(map(str, (ROOT / "tests", support / "pipelines", support / "clients")))
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "0"}
    run = subprocess.run(
        [sys.executable, "-P", "-c", A_CALM_WORLD], env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    anomalies, done = json.loads(run.stdout)
    assert anomalies == []
    assert all(done[name] for name in ("feeder", "transformer", "writer", "acknowledged", "read", "looks")), done


def fetched(
    aborted: list[tuple[int, int]],
    ledger: Ledger,
    isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
    high_watermark: int = 6,
) -> list[tuple[int, str]]:
    """Read one log: 5 aborts what is at 0 and commits what is at 3, 6 commits what is at 1."""

    def data(offset: int, producer: int, value: str) -> bytes:
        return encode_batch(
            [(1, None, value.encode(), ())], base_offset=offset, producer_id=producer, producer_epoch=0,
            base_sequence=0, transactional=True,
        )  # fmt: skip

    def marker(offset: int, producer: int, kind: ControlType) -> bytes:
        return encode_control_batch(
            kind, producer_id=producer, producer_epoch=0, coordinator_epoch=0, timestamp_ms=1, base_offset=offset
        )

    log = [
        data(0, 5, "aborted"),
        data(1, 6, "kept"),
        marker(2, 5, ControlType.ABORT),
        data(3, 5, "kept, too"),
        marker(4, 5, ControlType.COMMIT),
        marker(5, 6, ControlType.COMMIT),
    ]
    answer = FetchPartitionResponse("out", TOPIC_ID, 0, ErrorCode.NONE, high_watermark, 6, 0, aborted, b"".join(log))
    fetcher = Fetcher(a_party(ledger), {"out": TOPIC_ID}, isolation)
    fetcher.positions[TP] = 0
    values = fetcher._committed(TP, answer, b"".join(log))
    assert fetcher.positions[TP] == 6
    return values


def test_L3_a_fetcher_believes_the_answers_list_of_aborted_transactions_alone() -> None:
    ledger = Ledger()
    assert fetched([(5, 0)], ledger) == [(1, "kept"), (3, "kept, too")]
    assert fetched([], ledger) == [(0, "aborted"), (1, "kept"), (3, "kept, too")]
    assert fetched([(5, 0), (6, 1)], ledger) == [(3, "kept, too")]
    assert ledger.anomalies == []


def test_R1_a_fetcher_of_everything_leaves_nothing_out_and_minds_the_high_watermark() -> None:
    ledger, everything = Ledger(), [(0, "aborted"), (1, "kept"), (3, "kept, too")]
    assert fetched([(5, 0)], ledger, IsolationLevel.READ_UNCOMMITTED) == everything
    assert ledger.anomalies == []
    assert fetched([(5, 0)], ledger, IsolationLevel.READ_UNCOMMITTED, high_watermark=5) == everything
    assert [one.kind for one in ledger.anomalies] == ["R1"]


class ScriptedWire:
    """Answers commits and questions of a member as the test says."""

    def __init__(self) -> None:
        self.code: ErrorCode | None = ErrorCode.NONE
        self.offset = 0

    async def call(self, key: ApiKey, **values: Any) -> Any:
        if self.code is None:
            raise ConnectionLostError("no answer")
        item = SimpleNamespace(partition_index=0, error_code=self.code, committed_offset=self.offset)
        topics = [SimpleNamespace(name="out", partitions=[item])]
        if key is ApiKey.OFFSET_COMMIT:
            return SimpleNamespace(topics=topics)
        return SimpleNamespace(groups=[SimpleNamespace(error_code=ErrorCode.NONE, topics=topics)])


def a_member(ledger: Ledger) -> tuple[ClassicMember, ScriptedWire]:
    wire = ScriptedWire()
    member = ClassicMember(a_party(ledger), "group", {"out": (TOPIC_ID, 1)})
    member.wire = wire  # type: ignore[assignment]
    member.generation, member.assigned = 3, frozenset({TP})
    return member, wire


@pytest.mark.parametrize("code", [ErrorCode.NONE, ErrorCode.ILLEGAL_GENERATION, None])
def test_O4_a_member_says_when_a_commit_of_the_generation_before_is_accepted(code: ErrorCode | None) -> None:
    ledger = Ledger()
    member, wire = a_member(ledger)
    wire.code = code
    asyncio.run(member.commit_late(2))
    assert member.generation == 3
    assert [one.kind for one in ledger.anomalies] == (["O4"] if code is ErrorCode.NONE else [])


@pytest.mark.parametrize(
    ("second", "rules"), [(ErrorCode.NONE, ["D1"]), (ErrorCode.ILLEGAL_GENERATION, ["D1"]), (None, [])]
)
def test_D1_a_member_says_when_a_commit_that_was_answered_is_gone(second: ErrorCode | None, rules: list[str]) -> None:
    """Unless another one had no answer: it may arrive late."""
    ledger = Ledger()
    member, wire = a_member(ledger)

    async def commit_and_ask() -> None:
        for code in (ErrorCode.NONE, second):
            wire.code = code
            await member.commit({TP: 5})
        wire.code, wire.offset = ErrorCode.NONE, 4
        assert await member.committed() == {TP: 4}

    asyncio.run(commit_and_ask())
    assert [one.kind for one in ledger.anomalies] == rules


@pytest.mark.parametrize(
    ("place", "code", "rule"),
    [
        (0, ErrorCode.NONE, None),
        (0, ErrorCode.NOT_LEADER_OR_FOLLOWER, None),
        (1, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, None),
        (0, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "P2"),
        (0, ErrorCode.UNKNOWN_PRODUCER_ID, "P2"),
        (0, ErrorCode.DUPLICATE_SEQUENCE_NUMBER, "P1"),
        (1, ErrorCode.NONE, "P2"),
        (0, ErrorCode.INVALID_PRODUCER_EPOCH, "refused"),
    ],
)
def test_P1_P2_a_producer_knows_which_answers_break_a_promise(place: int, code: ErrorCode, rule: str | None) -> None:
    ledger, unused = Ledger(), Any
    wire: Any = SimpleNamespace(moved=lambda _: None)
    sender = BatchSender(a_party(ledger), wire, unused, lambda *_: None, None, 10.0)  # type: ignore[arg-type]
    sender.producer = ProducerIdAndEpoch(1, 0)
    lane = _Lane("in", 0, sent=[_Batch(["a"], 10.0, 0), _Batch(["b"], 10.0, 1)])
    sender._judge(lane, lane.sent[place], code, 4)
    assert [one.kind for one in ledger.anomalies] == ([] if rule is None else [rule])


def test_P1_a_value_that_stands_elsewhere_than_its_producer_was_told_is_found() -> None:
    ledger = Ledger()
    ledger.settle(ledger.intend("w", Send("out", 0, "a"), Send("out", 0, "b")), Outcome.COMMITTED)
    ledger.reads.append(Read("r", "out", 0, ((0, "a"), (1, "b"))))
    ledger.acknowledged += [("out", 0, 0, "a"), ("out", 0, 1, "b")]
    assert ledger.check({}) == []
    ledger.acknowledged.append(("out", 0, 2, "b"))
    assert [one.kind for one in ledger.check({})] == ["misplaced"]


def test_T10_in_some_worlds_epochs_run_out_and_everything_is_as_before_after_them() -> None:
    from semel.txn_coordinator import prepare, state

    seen = set()
    for seed in range(40):
        with few_epochs(seed):
            assert state.FENCING_EPOCH == prepare.FENCING_EPOCH == state.MAX_PRODUCER_EPOCH + 1
            seen.add(state.MAX_PRODUCER_EPOCH)
    assert min(seen) < 10
    assert max(seen) == state.MAX_PRODUCER_EPOCH == 32_766


@pytest.mark.parametrize(
    ("values", "found"),
    [
        (("a", "b", "a", "b"), []),
        (("a", "b", "b", "b"), ["duplicated"]),
        (("a", "a", "b", "a"), ["duplicated"]),
    ],
)
def test_P8_what_a_producer_that_was_forgotten_sends_again_counts_once(
    values: tuple[str, ...], found: list[str]
) -> None:
    """From offset 2 on it was not known any more: it may repeat what stands before that, and nothing else."""
    ledger = Ledger()
    for value in ("a", "b"):
        ledger.settle(ledger.intend("feeder.1", Send("out", 0, value)), Outcome.COMMITTED)
    ledger.restarts.add((TP, 2))
    ledger.after_restart |= {("out", 0, offset): 2 for offset in (2, 3)}
    ledger.reads.append(Read("final", "out", 0, tuple(enumerate(values))))
    assert [anomaly.kind for anomaly in ledger.check({})] == found
