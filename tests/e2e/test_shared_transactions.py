"""Processes write together, and die: readers see exactly what was committed, the caller learns of it (T12, T13, E5).

The readers are our own and librdkafka: to both, writers of a shared transaction are ordinary transactional producers.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest
from committed_values import read_by_librdkafka, read_by_semel, settled
from shared_worker import Process, packed, unpacked

import semel
from semel.cli.demo.processes import NodeProcess

PARTITIONS = 2
WAIT_S = 60
TASKS = (["a1", "a2", "a3"], ["b1", "b2"])
ALL = sorted(value for values in TASKS for value in values)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    node = NodeProcess(tmp_path_factory.mktemp("node") / "data", settings=["transaction.two.phase.commit.enable=true"])
    node.start()
    yield node
    if node.is_running:
        node.stop()


@pytest.fixture
def topic(node: NodeProcess, request: pytest.FixtureRequest) -> str:
    name = request.node.name.translate(str.maketrans("[] ", "..-"))
    with semel.Admin(node.bootstrap) as admin:
        admin.create_topic(name, partitions=PARTITIONS)
    return name


@pytest.fixture(scope="module")
def idle() -> Iterator[list[Process]]:
    """Processes that earlier tests have left alive: starting one takes longer than most of what they do."""
    processes: list[Process] = []
    yield processes
    for process in processes:
        process.kill()


@pytest.fixture
def workers(idle: list[Process]) -> Iterator[Callable[[], Process]]:
    """Gives processes, each another one."""
    taken: list[Process] = []

    def take() -> Process:
        taken.append(idle.pop() if idle else Process())
        return taken[-1]

    yield take
    idle += [process for process in taken if not process.is_killed]


def opened(node: NodeProcess, topic: str) -> semel.SharedTransaction:
    """A new attempt at the one thing that a test commits; its key is the topic's name."""
    return semel.SharedTransaction.open(node.bootstrap, topic, token="the batch", max_block_ms=WAIT_S * 1000)


def assert_readers_see(node: NodeProcess, topic: str, expected: list[str]) -> None:
    settled(node.bootstrap, topic)
    assert read_by_semel(node.bootstrap, topic, PARTITIONS) == expected
    assert read_by_librdkafka(node.kafka_address, topic, PARTITIONS) == expected


def write_all(
    workers: Callable[[], Process], shared: semel.SharedTransaction, topic: str
) -> list[semel.SharedWriterId]:
    return [workers().write(shared, topic, values) for values in TASKS]


def run_until_committed(node: NodeProcess, workers: Callable[[], Process], topic: str) -> semel.CommitDecision:
    """What an application does when it starts again: see whether it is done, and do it otherwise."""
    while True:
        shared = opened(node, topic)
        if shared.committed is not None:
            return shared.committed
        try:
            return shared.commit(write_all(workers, shared, topic)).decision
        except semel.AbortTransactionError:
            continue


def test_T12_of_many_processes_the_named_ones_count_and_the_dead_and_the_late_do_not(
    node: NodeProcess, topic: str, workers: Callable[[], Process]
) -> None:
    shared = opened(node, topic)
    killed = workers()
    killed.write(shared, topic, ["killed-1", "killed-2"], finish=False)
    killed.kill()
    zombie = workers()
    zombie.write(shared, topic, ["zombie-1"], finish=False)
    loser = workers()
    loser.write(shared, topic, TASKS[0])  # a second copy of the same task, which finished too late to be chosen
    members = write_all(workers, shared, topic)
    assert_readers_see(node, topic, [])
    assert not shared.commit(members).already_committed
    settled(node.bootstrap, topic)
    assert zombie.ask("write", topic=topic, values=["zombie-2"])["error"] == "FencedError"
    assert zombie.ask("finish")["error"] == "FencedError"
    assert workers().ask("join", shared=packed(shared)) == {}, "the token is committed: there is nothing to write"
    assert_readers_see(node, topic, ALL)


def test_T12_a_committer_killed_before_the_decision_leaves_nothing_and_its_writers_are_fenced(
    node: NodeProcess, topic: str, workers: Callable[[], Process]
) -> None:
    shared = opened(node, topic)
    committer, zombie = workers(), workers()
    members = write_all(workers, shared, topic)
    zombie.write(shared, topic, ["zombie"], finish=False)
    committer.kill()
    run_until_committed(node, workers, topic)
    assert zombie.ask("write", topic=topic, values=["zombie still"])["error"] == "FencedError"
    late = workers().ask("commit", shared=packed(shared), members=packed(members))
    assert late == {"already": True}, "the token is committed, by the newer attempt"
    assert_readers_see(node, topic, ALL)


@pytest.mark.parametrize("answer", ["in flight", "lost"])
def test_T13_E5_a_committer_killed_around_the_decision_finds_out_what_became_of_it(
    node: NodeProcess, topic: str, workers: Callable[[], Process], answer: str
) -> None:
    shared = opened(node, topic)
    members = write_all(workers, shared, topic)
    committer = workers()
    order = {"shared": packed(shared), "members": packed(members)}
    if answer == "lost":
        assert committer.ask("commit", **order) == {"already": False}
    else:
        committer.tell("commit", **order)
    committer.kill()
    decision = run_until_committed(node, workers, topic)
    if answer == "lost":
        assert decision.attempt == shared.attempt
    with semel.Admin(node.bootstrap) as admin:
        assert admin.commits(topic) == [decision]
    assert_readers_see(node, topic, ALL)


@pytest.mark.parametrize("phase", ["opened", "writing", "finished", "committing", "committed"])
def test_T12_T13_a_node_killed_in_any_phase_loses_and_doubles_nothing(
    node: NodeProcess, topic: str, workers: Callable[[], Process], phase: str
) -> None:
    source = semel.TopicPartition(topic, 0)

    def kill_if(now: str) -> None:
        if phase == now:
            node.kill()
            node.start()

    shared = opened(node, topic)
    kill_if("opened")
    members = []
    for values in TASKS:
        worker = workers()
        worker.write(shared, topic, values[:1], finish=False)
        if values is TASKS[0]:
            kill_if("writing")
        assert worker.ask("write", topic=topic, values=values[1:]) == {}
        members.append(worker.ask("finish")["member"])
    kill_if("finished")
    killer = threading.Thread(target=kill_if, args=("committing",))
    killer.start()
    try:
        decision = commit_as_long_as_it_takes(shared, topic, members, source)
    finally:
        killer.join()
    kill_if("committed")
    again = opened(node, topic)
    assert again.committed == decision
    assert_readers_see(node, topic, ALL)
    with semel.Admin(node.bootstrap) as admin:
        assert admin.group_offsets(f"group of {topic}")[source].offset == 42


def commit_as_long_as_it_takes(
    shared: semel.SharedTransaction, topic: str, members: list[str], source: semel.TopicPartition
) -> semel.CommitDecision:
    named = [unpacked(member) for member in members]
    while True:
        try:
            return shared.commit(named, payload=b"rows", offsets={source: 42}, group=f"group of {topic}").decision
        except semel.RetriableError:
            continue


def test_T13_E5_a_producer_killed_amid_its_commit_learns_of_it_from_its_token(
    node: NodeProcess, topic: str, workers: Callable[[], Process]
) -> None:
    order = {"bootstrap": node.bootstrap, "name": topic, "topic": topic, "token": "the load", "values": ALL}
    for delay_s in (0.0, 0.03, 0.06):  # from nothing sent to nearly done: where exactly does not matter
        dying = workers()
        dying.tell("transaction", **order)
        threading.Event().wait(delay_s)
        dying.kill()
    done = workers().ask("transaction", **order)
    with semel.Producer(node.bootstrap, transactional_id=topic) as producer:
        last = producer.last_commit()
    assert last is not None
    assert last.token == "the load"
    assert done["already"] in (True, False)
    assert workers().ask("transaction", **order) == {"already": True}
    deadline = time.monotonic() + WAIT_S
    while True:
        seen = read_by_semel(node.bootstrap, topic, PARTITIONS)
        if seen == ALL:
            break
        assert not seen
        assert time.monotonic() < deadline
    assert read_by_librdkafka(node.kafka_address, topic, PARTITIONS) == ALL


@pytest.mark.parametrize("decided", [True, False])
def test_T4_a_prepared_transaction_outlives_its_process_and_the_node(
    node: NodeProcess, topic: str, workers: Callable[[], Process], decided: bool
) -> None:
    worker = workers()
    prepared = worker.ask("prepare", bootstrap=node.bootstrap, name=topic, topic=topic, values=ALL)["prepared"]
    worker.kill()
    node.kill()
    node.start()
    assert read_by_librdkafka(node.kafka_address, topic, PARTITIONS) == []
    with semel.Producer(node.bootstrap, transactional_id=topic, two_phase=True) as producer:
        assert str(producer.init_transactions(keep_prepared=True)) == prepared
        producer.complete_transaction(prepared if decided else None)
        producer.begin_transaction()  # the transaction before is complete then
        producer.send(topic, "next", partition=0)
        producer.commit_transaction()
    expected = sorted([*(ALL if decided else []), "next"])
    deadline = time.monotonic() + WAIT_S
    while (seen := read_by_semel(node.bootstrap, topic, PARTITIONS)) != expected:
        assert time.monotonic() < deadline, seen
    assert read_by_librdkafka(node.kafka_address, topic, PARTITIONS) == expected
