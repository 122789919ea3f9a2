"""Transactions that somebody outside decides about, over three nodes that are killed meanwhile (KIP-939).

Whatever dies, the outside decision is what happens: readers see all of a transaction or nothing, each record once.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest
from committed_values import read_by_librdkafka, read_by_semel
from node_processes import NodeProcesses, node_processes, wait_for
from shared_worker import Process

import semel
from semel.runtime.keys import partition_for_key

pytestmark = pytest.mark.timeout(600)
IDS = (1, 2, 3)
PARTITIONS = 6
BEFORE = [f"before {number}" for number in range(PARTITIONS)]
PREPARED = [f"prepared {number}" for number in range(30)]
SHORT_MS = 500
"""The timeout that producers name. Of a prepared transaction it means nothing, any other one is aborted then."""
COORDINATORS = 3


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcesses]:
    settings = {
        "broker.session.timeout.ms": 2_000,
        "controller.lease.ms": 2_000,
        "transaction.state.log.num.partitions": COORDINATORS,
        "transaction.two.phase.commit.enable": "true",
    }
    with node_processes(tmp_path_factory.mktemp("cluster"), **settings) as running:
        yield running


@pytest.fixture(autouse=True)
def all_again(nodes: NodeProcesses) -> None:
    """All nodes run, also after a test that failed."""
    nodes.start(*(node_id for node_id in IDS if node_id not in nodes.running))


@pytest.fixture
def workers() -> Iterator[Callable[[], Process]]:
    started: list[Process] = []

    def start() -> Process:
        started.append(Process())
        return started[-1]

    yield start
    for process in started:
        if not process.is_killed:
            process.kill()


class Prepared:
    """A transaction that a process has prepared on partitions that all three nodes lead, and what readers see of it."""

    def __init__(self, nodes: NodeProcesses, topic: str, worker: Process) -> None:
        self._nodes = nodes
        self.topic = topic
        self.owner = worker
        with semel.Admin(nodes.bootstrap) as admin:
            admin.create_topic(topic, partitions=PARTITIONS, replication_factor=3)
        leaders = {nodes.leader(topic, number) for number in range(PARTITIONS)}
        assert leaders == set(IDS), "a transaction on one node alone proves nothing"
        self._before = f"{topic} before"
        with semel.Producer(nodes.bootstrap, transactional_id=self._before) as producer, producer.transaction():
            for number, value in enumerate(BEFORE):
                producer.send(topic, value, partition=number)
        answer = worker.ask(
            "prepare", bootstrap=nodes.bootstrap, name=topic, topic=topic, values=PREPARED, timeout_ms=SHORT_MS
        )
        self.name = answer["prepared"]
        with semel.Admin(nodes.bootstrap) as admin:
            written = admin.transaction(topic).partitions
        assert {tp.partition for tp in written} == set(range(PARTITIONS))

    @property
    def state(self) -> str:
        return self._state(self.topic)

    def _state(self, transactional_id: str) -> str:
        with semel.Admin(self._nodes.bootstrap) as admin:
            return admin.transaction(transactional_id).state

    def victims(self, who: str) -> tuple[int, ...]:
        """Return the nodes that are meant: the coordinator, one that leads partitions and is not it, or all."""
        coordinator = self._nodes.coordinator(self.topic)
        if who == "all":
            return IDS
        return (coordinator,) if who == "coordinator" else (next(one for one in IDS if one != coordinator),)

    def assert_read(self, values: list[str]) -> None:
        """Both clients find these values and no others, each once.

        The commit of what was there before returned at its decision: its last markers may be left to another
        coordinator.
        """
        wait_for(lambda: self._state(self._before) == "CompleteCommit", f"{self._before} is complete")
        assert read_by_semel(self._nodes.bootstrap, self.topic, PARTITIONS) == sorted(values)
        kafka = ",".join(self._nodes.kafka.values())
        assert read_by_librdkafka(kafka, self.topic, PARTITIONS) == sorted(values)

    def assert_ended(self, decided: str | None) -> None:
        """Wait for the markers. The outcome is what was decided, and readers find it."""
        outcome = "CompleteAbort" if decided is None else "CompleteCommit"
        wait_for(lambda: self.state == outcome, f"{self.topic} is {outcome}")
        self.assert_read(self._expected(decided))

    @staticmethod
    def _expected(decided: str | None) -> list[str]:
        return [*BEFORE, *([] if decided is None else PREPARED)]

    def assert_goes_on(self, worker: Process, decided: str | None) -> None:
        """Completed again by yet another process, it stays as it is, and the id is good for the next transaction."""
        assert worker.ask("take_over", bootstrap=self._nodes.bootstrap, name=self.topic) == {"found": None}
        assert worker.ask("complete", decided=decided) == {}
        self.assert_read(self._expected(decided))
        with semel.Producer(self._nodes.bootstrap, transactional_id=self.topic, two_phase=True) as producer:
            assert producer.init_transactions(keep_prepared=True) is None
            producer.begin_transaction()
            for number in range(PARTITIONS):
                producer.send(self.topic, f"next {number}", partition=number)
            producer.commit_transaction()
        wait_for(lambda: self.state == "CompleteCommit", "the next transaction is complete")
        self.assert_read([*self._expected(decided), *(f"next {number}" for number in range(PARTITIONS))])


def bring_down(nodes: NodeProcesses, *victims: int) -> None:
    """Kill nodes. Where all are killed they come back at once, else the others lead before this returns."""
    nodes.kill(*victims)
    if len(victims) == len(IDS):
        nodes.start(*victims)
        with semel.Admin(nodes.bootstrap) as admin:
            wait_for(
                lambda: all(
                    one.leader_id > 0 for topic in admin.topics(include_internal=True) for one in topic.partitions
                ),
                "all partitions have leaders",
            )
    else:
        for victim in victims:
            nodes.wait_replaced(victim)


def assert_timeouts_pass(nodes: NodeProcesses, prepared: Prepared) -> None:
    """The coordinator aborts what is over its time, a younger transaction with the same timeout, and not what is
    prepared (T9).
    """
    place = partition_for_key(prepared.topic, COORDINATORS)
    names = (f"{prepared.topic} ordinary {number}" for number in itertools.count())
    ordinary = next(name for name in names if partition_for_key(name, COORDINATORS) == place)
    topic = f"{prepared.topic}-ordinary"
    with semel.Admin(nodes.bootstrap) as admin:
        admin.create_topic(topic, partitions=1)
        with semel.Producer(nodes.bootstrap, transactional_id=ordinary, transaction_timeout_ms=SHORT_MS) as producer:
            producer.begin_transaction()
            producer.send(topic, b"over its time")
            producer.flush()
            wait_for(lambda: admin.transaction(ordinary).state == "CompleteAbort", "the ordinary transaction times out")
            assert prepared.state == "Ongoing"
            producer.abort_transaction()


@pytest.mark.drawn(1)
@pytest.mark.parametrize("commits", [True, False], ids=["commit", "abort"])
@pytest.mark.parametrize("who", ["coordinator", "leader", "all"])
def test_T4_T9_another_process_ends_what_is_prepared_on_several_nodes_after_some_were_killed(
    nodes: NodeProcesses, workers: Callable[[], Process], who: str, commits: bool
) -> None:
    prepared = Prepared(nodes, f"prepared-{who}-{commits}", workers())
    decided = prepared.name if commits else None
    victims = prepared.victims(who)
    bring_down(nodes, *victims)
    assert_timeouts_pass(nodes, prepared)
    prepared.assert_read(BEFORE)

    heir = workers()
    assert heir.ask("take_over", bootstrap=nodes.bootstrap, name=prepared.topic) == {"found": prepared.name}
    prepared.assert_read(BEFORE)
    assert prepared.owner.ask("complete", decided=prepared.name)["error"] == "FencedError"
    assert prepared.state == "Ongoing", "who was fenced has no say"
    assert heir.ask("complete", decided=decided) == {}
    prepared.assert_ended(decided)
    all_back(nodes)
    prepared.assert_goes_on(workers(), decided)


@pytest.mark.drawn(1)
@pytest.mark.parametrize(
    ("who", "phase", "commits"),
    [
        ("coordinator", "taken over", True),
        ("coordinator", "deciding", True),
        ("coordinator", "decided", False),
        ("all", "deciding", False),
        ("all", "decided", True),
    ],
)
def test_T3_T7_the_decision_holds_though_nodes_are_killed_as_it_is_told(
    nodes: NodeProcesses, workers: Callable[[], Process], who: str, phase: str, commits: bool
) -> None:
    """Who asks is told in the end, or a third process finds out: it gives the same decision."""
    prepared = Prepared(nodes, f"{phase.replace(' ', '-')}-{who}", workers())
    prepared.owner.kill()
    decided = prepared.name if commits else None
    victims = prepared.victims(who)
    heir = workers()
    assert heir.ask("take_over", bootstrap=nodes.bootstrap, name=prepared.topic) == {"found": prepared.name}
    if phase == "decided":
        assert heir.ask("complete", decided=decided) == {}
    elif phase == "deciding":
        heir.tell("complete", decided=decided)
    bring_down(nodes, *victims)
    if phase == "taken over":
        heir.tell("complete", decided=decided)
    if phase != "decided":
        assert heir.hear() == {}
    heir.kill()
    prepared.assert_ended(decided)
    all_back(nodes)
    prepared.assert_goes_on(workers(), decided)


def all_back(nodes: NodeProcesses) -> None:
    nodes.start(*(node_id for node_id in IDS if node_id not in nodes.running))


def test_an_operator_ends_what_is_prepared_from_another_node_than_the_coordinators(
    nodes: NodeProcesses, workers: Callable[[], Process]
) -> None:
    prepared = Prepared(nodes, "operator", workers())
    (coordinator,) = prepared.victims("coordinator")
    with semel.Admin(next(address for node_id, address in nodes.grpc.items() if node_id != coordinator)) as admin:
        admin.abort_transaction(prepared.topic)
    prepared.assert_ended(None)
    assert prepared.owner.ask("complete", decided=prepared.name)["error"] == "FencedError"
    prepared.assert_goes_on(workers(), None)
