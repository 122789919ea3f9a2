"""Semel's own clients and a cluster of three processes: any node will do, and any may be killed, frozen or stopped."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from node_processes import NodeProcesses, node_processes, wait_for

import semel
from semel import GroupMetadata, TopicPartition

pytestmark = pytest.mark.timeout(600)
IDS = (1, 2, 3)
ABORTS_MAX = 50


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcesses]:
    with node_processes(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(autouse=True)
def all_again(nodes: NodeProcesses) -> None:
    """All nodes run, also after a test that failed."""
    nodes.start(*(node_id for node_id in IDS if node_id not in nodes.running))


def write_in_transaction(
    producer: semel.Producer, topic: str, values: list[bytes], source: dict[TopicPartition, int] | None = None
) -> None:
    """As programs do it: what is aborted is written again."""
    for _ in range(ABORTS_MAX):
        try:
            with producer.transaction() as transaction:
                for value in values:
                    producer.send(topic, value, key=value)
                if source is not None:
                    transaction.send_offsets(source, GroupMetadata("moved by " + topic))
        except semel.AbortTransactionError:
            continue
        return
    raise AssertionError(f"{ABORTS_MAX} transactions were aborted")


def read(consumer: semel.Consumer, count: int, but: bytes = b"") -> list[bytes | None]:
    """Read so many values, not counting those that are `but`."""
    found: list[bytes | None] = []

    def is_all() -> bool:
        found.extend(one.value for one in consumer.poll(0.5) or () if one.value != but)
        return len(found) >= count

    wait_for(is_all, "records")
    return found


def in_sync(bootstrap: str, topic: str) -> None:
    with semel.Admin(bootstrap) as admin:
        wait_for(
            lambda: all(set(one.isr) == set(IDS) and one.leader_id > 0 for one in admin.topic(topic).partitions),
            f"all replicas of {topic} in sync",
        )


def test_what_one_node_was_told_any_other_knows_at_once(nodes: NodeProcesses) -> None:
    for here, there in itertools.permutations(IDS, 2):
        topic = f"any-{here}-{there}"
        with semel.Admin(nodes.grpc[here]) as admin, semel.Admin(nodes.kafka[there]) as other:
            admin.create_topic(topic, partitions=3, replication_factor=3)
            tps = [TopicPartition(topic, number) for number in range(3)]
            assert set(other.list_offsets(dict.fromkeys(tps, -1))) == set(tps)
            assert len(other.topic(topic).partitions) == 3
            with semel.Producer(nodes.grpc[there], transactional_id=topic) as producer:
                write_in_transaction(producer, topic, [b"%d" % number for number in range(12)])
            with semel.Consumer(
                nodes.grpc[here], group=topic, topics=[topic], offset_reset="earliest", isolation="read_committed"
            ) as consumer:
                assert sorted(read(consumer, 12)) == sorted(b"%d" % number for number in range(12))
                consumer.commit()
            assert sum(place.offset for place in other.group_offsets(topic).values()) >= 12
            assert other.group(topic).state == "Empty"
            assert other.transaction(topic).state in ("PrepareCommit", "CompleteCommit")
            assert sum(other.delete_records(dict.fromkeys(tps, 1)).values()) == 3
            assert other.node_configs(here, ["node.id"])[0].value == str(here)
            other.add_partitions(topic, 4)
            wait_for(lambda: len(admin.topic(topic).partitions) == 4, "the fourth partition")  # noqa: B023
    listed = [f"any-{here}-{there}" for here, there in itertools.permutations(IDS, 2)]
    for node_id in IDS:
        with semel.Admin(nodes.grpc[node_id]) as admin:
            groups, transactions = admin.groups(), admin.transactions()
            assert {one.group_id for one in groups} >= set(listed)
            assert {one.transactional_id for one in transactions} >= set(listed)
            assert groups.unreadable == transactions.unreadable == ()
            admin.delete_topic(listed[node_id])
    with semel.Admin(nodes.grpc[1]) as admin:
        deleted = {listed[node_id] for node_id in IDS}
        wait_for(lambda: deleted.isdisjoint(topic.name for topic in admin.topics()), "the topics are gone")


@pytest.mark.drawn(1)
@pytest.mark.parametrize("ending", ["kill", "stop", "freeze"])
def test_clients_that_know_one_address_survive_each_node(nodes: NodeProcesses, ending: str) -> None:
    topic = f"survives-{ending}"
    with semel.Admin(nodes.grpc[1]) as admin:
        admin.create_topic(topic, partitions=3, replication_factor=3)
    # What waits for a frozen node over the Kafka protocol waits for the request's whole time.
    quick = {"request_timeout_ms": 5_000} if ending == "freeze" else {}
    for victim in IDS if ending == "kill" else IDS[:1]:
        first = nodes.grpc[victim]
        with (
            semel.Admin(first, api_timeout_ms=60_000) as admin,
            semel.Producer(first, **quick) as producer,
            semel.Producer(first, transactional_id=f"{topic}-{victim}", **quick) as transactional,
            semel.Consumer(
                first,
                group=f"{topic}-{victim}",
                topics=[topic],
                offset_reset="latest",
                isolation="read_committed",
                **quick,
            ) as consumer,
        ):
            admin.topics()
            producer.send(topic, b"before", key=b"1").result(60)
            write_in_transaction(transactional, topic, [b"before"])
            wait_for(lambda: consumer.poll(0.5) is None and consumer.assignment(), "an assignment")
            wait_for(
                lambda: (
                    consumer.poll(0.1) is None and None not in [consumer.position(tp) for tp in consumer.assignment()]
                ),
                "positions",
            )
            getattr(nodes, ending)(victim)
            names = [b"%d" % number for number in range(9)]
            sent = [producer.send(topic, name, key=name) for name in names]
            for one in sent:
                one.result(90)
            tokens = [b"t%d" % number for number in range(9)]
            write_in_transaction(transactional, topic, tokens, {TopicPartition(topic, 0): victim})
            # What was committed before may have got its marker after the consumer began at the last stable offset.
            assert sorted(read(consumer, 18, b"before")) == sorted(names + tokens)
            consumer.commit()
            alive = [nodes.grpc[node_id] for node_id in IDS if node_id != victim]
            shared = semel.SharedTransaction([first, *alive], topic, token=str(victim))
            with shared.join() as writer:
                writer.send(topic, b"shared")
                part = writer.finish()
            shared.commit([part])
            assert read(consumer, 1) == [b"shared"]
            tps = [TopicPartition(topic, number) for number in range(3)]
            assert len(admin.list_offsets(dict.fromkeys(tps, -1))) == 3
            assert admin.group(f"{topic}-{victim}").state == "Stable"
            assert f"{topic}-{victim}" in {one.group_id for one in admin.groups()}
            assert f"{topic}-{victim}" in {one.transactional_id for one in admin.transactions()}
            assert admin.group_offsets(f"moved by {topic}")[TopicPartition(topic, 0)].offset == victim
            if ending == "freeze":
                nodes.thaw(victim)
            else:
                nodes.start(victim)
            in_sync(nodes.grpc[victim], topic)
