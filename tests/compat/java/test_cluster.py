"""Apache Kafka's Java clients and tools, unchanged, against three nodes that die and come back."""

from __future__ import annotations

import itertools
import json
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from kafka_tools import Done, KafkaTools
from node_processes import NodeProcesses, node_processes, wait_for

import semel

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python uses what Python 3.11 deprecates
    import kafka
    import kafka.admin

IDS = (1, 2, 3)
PEACE_S = 8
"""Between two deaths. A Java member of the new protocol asks every five seconds: it needs a coordinator for so long."""
Program = Callable[..., list[str]]
Run = Callable[..., Done]


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcesses]:
    with node_processes(tmp_path_factory.mktemp("cluster")) as nodes:
        yield nodes
        for node_id in nodes.running:
            nodes.stop(node_id)


@pytest.fixture
def run(nodes: NodeProcesses, tools: KafkaTools) -> Run:
    """Run a tool against all nodes."""

    def run(tool: str, *arguments: str, **more: str) -> Done:
        return tools.run(tool, "--bootstrap-server", ",".join(nodes.kafka.values()), *arguments, **more)

    return run


def addresses(nodes: NodeProcesses) -> list[str]:
    return list(nodes.grpc.values())


def create(nodes: NodeProcesses, name: str, partitions: int, replicas: int = 3, **configs: str) -> None:
    with semel.Admin(addresses(nodes)) as admin:
        if name in {topic.name for topic in admin.topics()}:
            admin.delete_topic(name)
        configs = {setting.replace("_", "."): value for setting, value in configs.items()}
        admin.create_topic(name, partitions=partitions, replication_factor=replicas, configs=configs)


def partition(nodes: NodeProcesses, topic: str) -> semel.PartitionDescription:
    """Return what is known of a topic's first partition."""
    with semel.Admin(addresses(nodes), api_timeout_ms=60_000) as admin:
        return admin.topic(topic).partitions[0]


def in_sync(nodes: NodeProcesses, topic: str) -> bool:
    with semel.Admin(addresses(nodes), api_timeout_ms=60_000) as admin:
        return all(set(one.isr) == set(one.replicas) and one.leader_id > 0 for one in admin.topic(topic).partitions)


def write(nodes: NodeProcesses, topic: str, numbers: range) -> None:
    with semel.Producer(addresses(nodes)) as producer:
        for number in numbers:
            producer.send(topic, b"%d" % number, partition=0)


def read(nodes: NodeProcesses, topic: str, count: int) -> list[int]:
    with semel.Consumer(addresses(nodes), group=topic, topics=[topic], offset_reset="earliest") as consumer:
        return [int(record.value) for record in itertools.islice(consumer, count)]


@contextmanager
def killing(nodes: NodeProcesses, topic: str) -> Iterator[list[int]]:
    """Meanwhile kill one node after the other, each when the one before is in sync again. Yields those that died."""
    killed: list[int] = []
    is_over = threading.Event()
    failed: list[BaseException] = []

    def kill() -> None:
        try:
            while not is_over.is_set():
                victim = IDS[len(killed) % len(IDS)]
                nodes.kill(victim)
                killed.append(victim)
                is_over.wait(2)  # others are elected or not: both are wanted
                nodes.start(victim)
                wait_for(lambda: in_sync(nodes, topic), f"all replicas of {topic} in sync")
                is_over.wait(PEACE_S)
        except BaseException as error:  # told by the test
            failed.append(error)

    thread = threading.Thread(target=kill, name="kills nodes")
    thread.start()
    try:
        yield killed
    finally:
        is_over.set()
        thread.join()
    if failed:
        raise failed[0]


@pytest.mark.parametrize("group_protocol", ["classic", "consumer"])
def test_E1_O4_a_java_pipeline_transforms_each_record_once_while_nodes_are_killed(
    nodes: NodeProcesses, java_program: Program, group_protocol: str
) -> None:
    for topic in (f"in-{group_protocol}", f"out-{group_protocol}"):
        create(nodes, topic, 3)
    with semel.Admin(addresses(nodes)) as admin:
        for group in admin.groups():
            if group.group_id == f"enrich-{group_protocol}":
                admin.delete_group(group.group_id)
    with killing(nodes, f"in-{group_protocol}") as killed:
        steps = java_program("ExactlyOnce", ",".join(nodes.kafka.values()), group_protocol)
    assert steps == ["input", "pipeline", "read back", "zombie producer", "zombie member"]
    assert killed


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_G2_java_members_share_take_over_and_return(nodes: NodeProcesses, java_program: Program, protocol: str) -> None:
    """Without deaths: where its last words are lost, a static member that returns has to wait for its session's end."""
    topic = f"groups-{protocol}"
    create(nodes, topic, 6)
    steps = java_program("Groups", ",".join(nodes.kafka.values()), topic, "group.protocol", protocol)
    assert steps == ["input", "two members share", "one member takes over", "static member returns"]


def test_topics_tell_of_replicas_that_are_away(nodes: NodeProcesses, run: Run) -> None:
    run("topics", "--create", "--topic", "seen", "--partitions", "3", "--replication-factor", "3").succeeded()
    wait_for(lambda: in_sync(nodes, "seen"), "all replicas in sync")
    assert not run("topics", "--describe", "--under-replicated-partitions", "--topic", "seen").succeeded().lines()
    nodes.kill(3)
    try:
        wait_for(
            lambda: len(run("topics", "--describe", "--under-replicated-partitions", "--topic", "seen").lines()) == 3,
            "three partitions without the killed node",
        )
        described = run("topics", "--describe", "--topic", "seen").succeeded().lines()[1:]
        assert all("Isr: " in line and "3" not in line.partition("Isr: ")[2].split("\t")[0] for line in described)
        assert not run("topics", "--describe", "--unavailable-partitions", "--topic", "seen").succeeded().lines()
        assert len(run("topics", "--describe", "--at-min-isr-partitions", "--topic", "seen").succeeded().lines()) == 3
    finally:
        nodes.start(3)
    wait_for(lambda: in_sync(nodes, "seen"), "all replicas in sync")


def elect(nodes: NodeProcesses, tools: KafkaTools, kind: str, topic: str) -> Done:
    arguments = ("--election-type", kind, "--topic", topic, "--partition", "0")
    return tools.run("leader-election", "--bootstrap-server", ",".join(nodes.kafka.values()), *arguments)


def test_a_topic_gets_more_replicas_and_its_preferred_leader_back(
    nodes: NodeProcesses, run: Run, tools: KafkaTools, tmp_path: Path
) -> None:
    """As docs/cluster.md tells operators to do it."""
    create(nodes, "grows", 1, 1)
    write(nodes, "grows", range(20))
    (held,) = partition(nodes, "grows").replicas
    replicas = [held, *(each for each in IDS if each != held)]
    more = tmp_path / "more.json"
    more.write_text(
        json.dumps({"version": 1, "partitions": [{"topic": "grows", "partition": 0, "replicas": replicas}]})
    )
    run("reassign-partitions", "--reassignment-json-file", str(more), "--execute").succeeded()
    wait_for(lambda: in_sync(nodes, "grows") and len(partition(nodes, "grows").isr) == 3, "the new replicas in sync")
    verified = run("reassign-partitions", "--reassignment-json-file", str(more), "--verify").succeeded()
    assert "grows-0 is completed" in verified.output
    assert "No partition reassignments found." in run("reassign-partitions", "--list").succeeded().output
    nodes.kill(held)
    try:
        assert read(nodes, "grows", 20) == list(range(20))
        assert partition(nodes, "grows").leader_id != held
    finally:
        nodes.start(held)
    wait_for(lambda: in_sync(nodes, "grows"), "all replicas in sync")
    assert "Successfully completed leader election" in elect(nodes, tools, "preferred", "grows").succeeded().output
    wait_for(lambda: partition(nodes, "grows").leader_id == held, "all nodes to know the preferred leader")


def test_an_unclean_election_by_an_operators_word(nodes: NodeProcesses, tools: KafkaTools) -> None:
    """The only replica that has all records is away: nobody leads until somebody says that they may be lost."""
    create(nodes, "risky", 1, 2, min_insync_replicas="1")
    write(nodes, "risky", range(5))
    leader = partition(nodes, "risky").leader_id
    (other,) = set(partition(nodes, "risky").replicas) - {leader}
    nodes.kill(other)
    write(nodes, "risky", range(5, 10))
    nodes.kill(leader)
    nodes.start(other)
    try:
        wait_for(lambda: partition(nodes, "risky").leader_id <= 0, "the partition without a leader")
        assert "Successfully completed leader election" in elect(nodes, tools, "unclean", "risky").succeeded().output
        wait_for(lambda: partition(nodes, "risky").leader_id == other, "all nodes to know the new leader")
        write(nodes, "risky", range(10, 12))
    finally:
        nodes.start(leader)
    wait_for(lambda: set(partition(nodes, "risky").isr) == {leader, other}, "both replicas in sync")
    assert read(nodes, "risky", 7) == [*range(5), 10, 11]


def test_replicas_move_with_kafkas_tool_and_a_move_is_listed_and_cancelled(
    nodes: NodeProcesses, run: Run, tmp_path: Path
) -> None:
    """As docs/cluster.md tells operators to do it."""
    create(nodes, "moves", 1, 2)
    write(nodes, "moves", range(20))
    first, second = partition(nodes, "moves").replicas
    (third,) = set(IDS) - {first, second}

    def plan(*replicas: int) -> str:
        path = tmp_path / "move.json"
        wanted = {"topic": "moves", "partition": 0, "replicas": replicas}
        path.write_text(json.dumps({"version": 1, "partitions": [wanted]}))
        return str(path)

    def has(*replicas: int) -> bool:
        found = partition(nodes, "moves")
        return tuple(found.replicas) == replicas and set(found.isr) == set(replicas)

    run("reassign-partitions", "--reassignment-json-file", plan(second, third), "--execute").succeeded()
    wait_for(lambda: has(second, third), "the replicas to be moved")
    wait_for(lambda: partition(nodes, "moves").leader_id == second, "every node to know who leads")
    verified = run("reassign-partitions", "--reassignment-json-file", plan(second, third), "--verify").succeeded()
    assert "moves-0 is completed" in verified.output
    assert read(nodes, "moves", 20) == list(range(20))
    nodes.kill(first)
    try:
        # Kafka's tool names nobody who is away. This client asks the controller, which the dead node may have been.
        wait_for(lambda: is_asked(nodes.kafka[second], "moves", [first, second]), "a controller that takes it")
        listed = run("reassign-partitions", "--list").succeeded().output
        assert f"moves-0: replicas: {first},{second},{third}. adding: {first}. removing: {third}." in listed
        verified = run("reassign-partitions", "--reassignment-json-file", plan(first, second), "--verify").succeeded()
        assert "moves-0 is still in progress" in verified.output
        # Otherwise the tool takes throttles back at each node, and waits for the one that is away, as with Kafka.
        cancel = ("--reassignment-json-file", plan(first, second), "--cancel", "--preserve-throttles")
        run("reassign-partitions", *cancel).succeeded()
        assert "No partition reassignments found." in run("reassign-partitions", "--list").succeeded().output
        assert set(partition(nodes, "moves").replicas) == {second, third}
    finally:
        nodes.start(first)
    assert read(nodes, "moves", 20) == list(range(20))


def is_asked(address: str, topic: str, replicas: list[int]) -> bool:
    """Ask for a move, and return whether somebody took it."""
    with suppress(kafka.errors.KafkaError):
        client = kafka.admin.KafkaAdminClient(bootstrap_servers=address)
        try:
            client.alter_partition_reassignments({kafka.TopicPartition(topic, 0): replicas})
        finally:
            client.close()
        return True
    return False


RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
REPLICAS = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")


def test_a_move_is_throttled_with_kafkas_tool_and_its_verify_takes_the_throttle_away(
    nodes: NodeProcesses, run: Run, tmp_path: Path
) -> None:
    create(nodes, "slow", 1, 2)
    with semel.Producer(addresses(nodes)) as producer:
        for _ in range(60):
            producer.send("slow", b"v" * 10_000, partition=0)
    first, second = partition(nodes, "slow").replicas
    (third,) = set(IDS) - {first, second}
    path = tmp_path / "slow.json"
    wanted = {"topic": "slow", "partition": 0, "replicas": [first, third]}
    path.write_text(json.dumps({"version": 1, "partitions": [wanted]}))

    def throttles() -> dict[str, str]:
        with semel.Admin(addresses(nodes)) as admin:
            of_nodes = {f"{node}: {one.name}": one.value for node in IDS for one in admin.node_configs(node, RATES)
                        if one.source != "DEFAULT"}  # fmt: skip
            return of_nodes | {one.name: one.value for one in admin.topic_configs("slow", REPLICAS) if one.value}

    move = ("reassign-partitions", "--reassignment-json-file", str(path))
    begun = run(*move, "--execute", "--throttle", "50000").succeeded()
    assert "The inter-broker throttle limit was set to 50000 B/s" in begun.output
    expected = {
        **{f"{node}: {name}": "50000" for node in IDS for name in RATES},
        REPLICAS[0]: ",".join(f"0:{node}" for node in sorted((first, second))),
        REPLICAS[1]: f"0:{third}",
    }
    wait_for(lambda: throttles() == expected, "each node knows of the throttle")
    described = run("configs", "--describe", "--entity-type", "brokers", "--entity-name", str(third)).succeeded()
    assert "follower.replication.throttled.rate=50000" in described.output
    wait_for(lambda: set(partition(nodes, "slow").isr) == {first, third}, "the replica to be moved")
    verified = run(*move, "--verify").succeeded()
    assert "slow-0 is completed" in verified.output
    assert "Clearing topic-level throttles on topic slow" in verified.output
    wait_for(lambda: throttles() == {}, "each node knows that it is gone")
    of_topic = ("configs", "--alter", "--entity-type", "topics", "--entity-name", "slow")
    refused = run(*of_topic, "--add-config", f"{REPLICAS[0]}=[0:x]")
    assert "use PARTITION:NODE" in refused.output + refused.errors
    run(*of_topic, "--add-config", f"{REPLICAS[0]}=*").succeeded()
    wait_for(lambda: throttles() == {REPLICAS[0]: "*"}, "each node knows that all are throttled")
    of_all_nodes = ("configs", "--alter", "--entity-type", "brokers", "--entity-default")
    run(*of_all_nodes, "--add-config", f"{RATES[0]}=70000").succeeded()
    wait_for(
        lambda: throttles() == {REPLICAS[0]: "*", **{f"{node}: {RATES[0]}": "70000" for node in IDS}},
        "all nodes to know it",
    )
    run(*of_all_nodes, "--delete-config", RATES[0]).succeeded()


def test_a_node_is_cordoned_and_unregistered_with_kafkas_tools(
    nodes: NodeProcesses, run: Run, tools: KafkaTools
) -> None:
    def unregister() -> Done:
        return tools.run("cluster", "unregister", "--bootstrap-server", nodes.kafka[1], "--id", "4")

    nodes.start(4)
    cordoned = ("--entity-type", "brokers", "--entity-name", "4", "--add-config", "cordoned.log.dirs=*")
    run("configs", "--alter", *cordoned).succeeded()
    shown = run("configs", "--describe", "--entity-type", "brokers", "--entity-name", "4").succeeded()
    assert "cordoned.log.dirs=*" in shown.output
    create(nodes, "elsewhere", 8, 3)
    with semel.Admin(addresses(nodes)) as admin:
        assert {each for one in admin.topic("elsewhere").partitions for each in one.replicas} == set(IDS)
    refused = unregister()
    assert (refused.code, "it is alive" in refused.output + refused.errors) == (1, True), refused
    nodes.stop(4)

    def is_dead() -> bool:
        with semel.Admin([nodes.grpc[each] for each in IDS]) as admin:
            return not {one.node_id: one.is_alive for one in admin.nodes()}[4]

    wait_for(is_dead, "the others know that it has left")
    unregister().succeeded()
    with semel.Admin([nodes.grpc[each] for each in IDS]) as admin:
        assert [one.node_id for one in admin.nodes()] == list(IDS)
