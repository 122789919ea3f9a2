"""Processes write together on three nodes, and nodes, writers and committers die (T12, T13, E5).

Readers see exactly what was committed, and callers that ask learn the outcome of a commit.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import pytest
from committed_values import read_by_librdkafka, read_by_semel, settled
from longer_runs import given
from node_processes import NodeProcesses, node_processes
from shared_worker import Process, packed, unpacked

import semel

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
PARTITIONS = 2
CALL_MS = 90_000
REQUEST_MS = 3_000
"""What waits for a frozen node waits for the request's whole time."""
KEYS = ("line-0", "line-1", "line-2")
"""Each has another coordinator at first: their names differ in the last character, as the partitions' numbers do."""
SEED = int(given("SEMEL_CHAOS_SEED", "1"))
STRIKES = max(3, int(given("SEMEL_CHAOS_SECONDS", "0")) // 5)
ATTEMPTS_MAX = 40
CALLS_MAX = 3


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcesses]:
    settings = {"broker.session.timeout.ms": 2_000, "controller.lease.ms": 2_000}
    with node_processes(tmp_path_factory.mktemp("cluster"), **settings) as running:
        yield running


class Crew:
    """Processes to give orders to; those that were not killed are used again, for starting one takes its time."""

    def __init__(self) -> None:
        self._idle: list[Process] = []
        self._taken: list[Process] = []

    def take(self) -> Process:
        process = self._idle.pop() if self._idle else Process()
        self._taken.append(process)
        return process

    def rest(self) -> None:
        """Get back all that are alive. None of them may have an order that it has not answered."""
        self._idle += [process for process in self._taken if not process.is_killed]
        self._taken.clear()

    def close(self) -> None:
        for process in self._idle + self._taken:
            if not process.is_killed:
                process.kill()


@pytest.fixture(scope="module")
def processes() -> Iterator[Crew]:
    crew = Crew()
    yield crew
    crew.close()


@pytest.fixture
def crew(processes: Crew) -> Iterator[Crew]:
    yield processes
    processes.rest()


def opened(nodes: NodeProcesses, key: str, token: str) -> semel.SharedTransaction:
    return semel.SharedTransaction.open(
        nodes.bootstrap, key, token=token, max_block_ms=CALL_MS, request_timeout_ms=REQUEST_MS
    )


def make_topic(nodes: NodeProcesses, name: str) -> None:
    with semel.Admin(nodes.bootstrap) as admin:
        admin.create_topic(name, partitions=PARTITIONS)


def assert_readers_see(nodes: NodeProcesses, topic: str, keys: tuple[str, ...], expected: list[str]) -> None:
    for key in keys:
        settled(nodes.bootstrap, key)
    assert read_by_semel(nodes.bootstrap, topic, PARTITIONS) == expected
    assert read_by_librdkafka(",".join(nodes.kafka.values()), topic, PARTITIONS) == expected


def answered(process: Process) -> dict[str, str]:
    """Hear a writer, which may have been told to begin again and nothing else: nobody has taken its place."""
    answer = process.hear()
    assert answer.get("error", "AbortTransactionError") in ("AbortTransactionError", "RetriableError"), answer
    return answer


class Line:
    """An application that commits one token after another, whatever it takes, and notes what it was told of each.

    Of three writers of an attempt two are named; one may die amid its work, and another one comes in its place. The
    committer may die when it was told to commit.
    """

    def __init__(self, nodes: NodeProcesses, crew: Crew, topic: str) -> None:
        self._nodes = nodes
        self._crew = crew
        self._topic = topic
        self._draw = random.Random(SEED)
        self._named: dict[tuple[str, str], list[str]] = {}
        """What the writers that an attempt has named have written, by token and attempt."""
        self._undecided: set[tuple[str, str]] = set()
        """Attempts of which somebody was told afterwards that they are not what was committed."""
        self.decisions: dict[str, dict[str, semel.CommitDecision]] = {key: {} for key in KEYS}
        self.deaths = 0

    def commit_next(self, number: int) -> None:
        key, token = KEYS[number % len(KEYS)], f"token-{number}"
        attempts: list[tuple[str, str]] = []
        for _ in range(ATTEMPTS_MAX):
            shared = opened(self._nodes, key, token)
            decision = shared.committed
            if decision is None:
                self._undecided.update(attempts)
                attempts.append((token, shared.attempt))
                decision = self._attempt(shared, number)
                self._crew.rest()
            if decision is not None:
                assert (decision.token, decision.attempt) in attempts, "nobody has tried to commit this"
                self.decisions[key][token] = decision
                return
        raise AssertionError(f"{ATTEMPTS_MAX} attempts at {token} came to nothing")

    def _attempt(self, shared: semel.SharedTransaction, number: int) -> semel.CommitDecision | None:
        """Write and commit. Returns None where another attempt is needed, or has to find out."""
        written = [[f"{shared.token}/{shared.attempt}/{writer}/{n}" for n in range(3)] for writer in range(3)]
        writers = [self._crew.take() for _ in written]
        for writer, values in zip(writers, written, strict=True):
            writer.tell("join_and_write", shared=packed(shared), topic=self._topic, values=values)
        if self._draw.random() < 0.3:
            self.deaths += 1
            writers[0].kill()
            writers[0] = self._crew.take()
            written[0] = [f"{value} of the second" for value in written[0]]
            writers[0].tell("join_and_write", shared=packed(shared), topic=self._topic, values=written[0])
        members = []
        for writer in writers:
            answer = answered(writer)
            if "error" not in answer:
                writer.tell("finish")
                answer = answered(writer)
            members.append(None if "error" in answer else unpacked(answer["member"]))
        named = [member for member in members[:2] if member is not None]
        if len(named) < 2:
            return None
        self._named[shared.token, shared.attempt] = written[0] + written[1]
        return self._decide(shared, named, number // len(KEYS))

    def _decide(
        self, shared: semel.SharedTransaction, named: list[semel.SharedWriterId], place: int
    ) -> semel.CommitDecision | None:
        """Each commit moves the group by one, from where the commit before has left it."""
        source = semel.TopicPartition(self._topic, 0)
        moves: dict[str, Any] = {
            "group": shared.key,
            "expected_offsets": {source: place or -1},
            "offsets": {source: place + 1},
        }
        committer = self._crew.take()
        committer.tell("commit", shared=packed(shared), members=packed(named), moves=packed(moves))
        if dies := self._draw.random() < 0.4:
            self.deaths += 1
            threading.Event().wait(self._draw.uniform(0.0, 0.2))  # before, amid or after the decision
            committer.kill()
            if self._draw.random() < 0.5:
                return None
        else:
            answered(committer)
        # Where it has answered this repeats a commit, where it has died this finishes it, or finds it done.
        with suppress(semel.AbortTransactionError, semel.RetriableError):
            again = shared.commit(named, **moves)
            assert again.already_committed or dies or again.decision.attempt == shared.attempt
            return again.decision
        return None

    def expected(self) -> list[str]:
        """What readers have to find, by what was told of the commits."""
        decided = [(one.token, one.attempt) for found in self.decisions.values() for one in found.values()]
        assert self._undecided.isdisjoint(decided), "an attempt counts that was said not to"
        return sorted(value for each in decided for value in self._named[each])


class LiveReader(threading.Thread):
    """Reads committed records all the time, and keeps what it saw, by place."""

    def __init__(self, nodes: NodeProcesses, topic: str) -> None:
        super().__init__(daemon=True)
        self._address = nodes.bootstrap
        self._tps = [semel.TopicPartition(topic, number) for number in range(PARTITIONS)]
        self._stops = threading.Event()
        self.seen: list[str] = []
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            with semel.Consumer(self._address, request_timeout_ms=REQUEST_MS) as consumer:
                consumer.assign(self._tps)
                for tp in self._tps:
                    consumer.seek(tp, 0)
                while not (self._stops.is_set() and self._is_at_end(consumer)):
                    with suppress(semel.RetriableError):
                        self.seen += [(one.value or b"").decode() for one in consumer.poll(0.2) or ()]
        except BaseException as error:
            self.error = error

    def _is_at_end(self, consumer: semel.Consumer) -> bool:
        ends = consumer.end_offsets(self._tps)
        return all((consumer.position(tp) or 0) >= ends[tp] for tp in self._tps)

    def finish(self) -> list[str]:
        """Return everything that it saw up to the end, sorted."""
        self._stops.set()
        self.join(120)
        assert not self.is_alive()
        if self.error is not None:
            raise self.error
        return sorted(self.seen)


class Nemesis(threading.Thread):
    """Kills, freezes and stops the nodes in turn, each until the others lead what it led."""

    def __init__(self, nodes: NodeProcesses) -> None:
        super().__init__(daemon=True)
        self._nodes = nodes
        self.is_done = threading.Event()
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        draw = random.Random(SEED)
        victims = draw.sample((1, 2, 3), 3)
        try:
            for number in range(STRIKES):
                victim, how = victims[number % 3], ("kill", "freeze", "stop", "freeze")[number % 4]
                getattr(self._nodes, how)(victim)
                self._nodes.wait_replaced(victim)
                self._nodes.have_back(victim)
        except BaseException as error:
            self.error = error
        finally:
            self.is_done.set()


@pytest.mark.drawn(1, "pipelines on three nodes")
def test_T12_T13_E5_what_was_committed_is_seen_and_known_whichever_node_writer_or_committer_dies(
    nodes: NodeProcesses, crew: Crew
) -> None:
    topic = "lines"
    make_topic(nodes, topic)
    line, reader = Line(nodes, crew, topic), LiveReader(nodes, topic)
    nemesis = Nemesis(nodes)
    count = 0
    while count < 2 * len(KEYS) or not nemesis.is_done.is_set():
        line.commit_next(count)
        count += 1
    if nemesis.error is not None:
        raise nemesis.error
    assert line.deaths, "nobody has died; another seed is needed"
    expected = line.expected()
    assert len(expected) == 6 * count
    assert_readers_see(nodes, topic, KEYS, expected)
    assert reader.finish() == expected, "a reader saw what does not count, or what was committed vanished"
    assert_known(nodes, topic, line.decisions)


def assert_known(nodes: NodeProcesses, topic: str, decisions: Mapping[str, Mapping[str, semel.CommitDecision]]) -> None:
    """Every node knows the same decisions, in their order, and the groups stand where the last ones have put them."""
    for node_id in nodes.grpc:
        with semel.Admin(nodes.grpc[node_id]) as admin:
            for key in KEYS:
                assert admin.commits(key) == list(decisions[key].values())
                places = admin.group_offsets(key)
                assert places[semel.TopicPartition(topic, 0)].offset == len(decisions[key])


@pytest.mark.drawn(1)
@pytest.mark.parametrize(
    ("how", "phase"),
    [("kill", "committing"), ("freeze", "finished"), ("freeze", "committing")],
)
def test_T12_T13_the_coordinator_is_away_in_a_phase_and_nothing_is_lost_or_doubled(
    nodes: NodeProcesses, crew: Crew, how: str, phase: str
) -> None:
    topic = f"phase-{how}-{phase}"
    make_topic(nodes, topic)
    shared = opened(nodes, topic, "token")
    coordinator = nodes.coordinator(topic)
    written = [[f"{writer}/{n}" for n in range(4)] for writer in range(3)]
    writers = [crew.take() for _ in written]

    def strike(now: str) -> None:
        if now == phase:
            getattr(nodes, how)(coordinator)

    for writer, values in zip(writers, written, strict=True):
        assert writer.ask("join_and_write", shared=packed(shared), topic=topic, values=values) == {}
    members = [unpacked(writer.ask("finish")["member"]) for writer in writers]
    strike("finished")
    source = semel.TopicPartition(topic, 0)
    moves: dict[str, Any] = {"group": topic, "offsets": {source: 42}, "payload": b"rows"}
    committer = crew.take()
    committer.tell("commit", shared=packed(shared), members=packed(members[:2]), moves=packed(moves))
    strike("committing")
    nodes.wait_replaced(coordinator)
    decision = until_known(lambda: shared.commit(members[:2], **moves).decision)
    assert committer.hear().get("error", "RetriableError") == "RetriableError"
    expected = sorted(written[0] + written[1])
    with semel.Admin([address for node_id, address in nodes.grpc.items() if node_id != coordinator]) as admin:
        assert admin.commits(topic) == [decision]
    nodes.have_back(coordinator)
    assert opened(nodes, topic, "token").committed == decision
    assert_readers_see(nodes, topic, (topic,), expected)
    assert writers[2].ask("join", shared=packed(shared)) == {}, "there is nothing to write"
    with semel.Admin(nodes.grpc[coordinator]) as admin:
        assert admin.commits(topic) == [decision]
        assert admin.group_offsets(topic)[source].offset == 42


def until_known(commit: Callable[[], semel.CommitDecision]) -> semel.CommitDecision:
    """Return what became of a commit; each call is repeated by the client for as long as a call may take."""
    for _ in range(CALLS_MAX):
        with suppress(semel.RetriableError):
            return commit()
    raise AssertionError(f"{CALLS_MAX} calls have not learnt whether it is committed")
