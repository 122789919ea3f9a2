"""What a node does about what another one has written into the metadata, before there are several."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest
from kafka_calls import call
from running_node import SMALL, run_with_node

from semel.broker.config.node_config import NodeConfig
from semel.broker.handlers.topics.changes import create_topics
from semel.broker.metadata.chain import START
from semel.broker.metadata.changes import BrokerRegistered, Change, PartitionState, TopicCreated
from semel.broker.metadata.runs import NodeDeposedError
from semel.broker.metadata.store import MetadataStore, sqlite_url
from semel.broker.node import Node
from semel.broker.start_errors import NodeStartError, StartFailure
from semel.cli.serve import _stop
from semel.cli.serve_exit import ServeExit
from semel.protocol.api.shared_transactions import member_id
from semel.protocol.api.topics import NewTopic
from semel.protocol.errors import ErrorCode
from semel.protocol.ids import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, TopicPartition, new_topic_id
from semel.protocol.kafka.api import ApiKey
from semel.runtime.keys import partition_for_key

OTHER = 9


async def written_by_another_node(node: Node, *changes: Change) -> None:
    """Write changes into the metadata's database alone: this node has not read them yet."""
    metadata = node.metadata
    write = partial(metadata._store.append, changes, after=metadata.image.position, writer=metadata._writer, now_ms=0)
    await metadata._off_loop(write)


def led_by(*leaders: int) -> tuple[PartitionState, ...]:
    return tuple(PartitionState(leader, 0, (leader,), (leader,)) for leader in leaders)


def test_the_number_of_partitions_is_that_of_the_topic_that_another_node_has_made(tmp_path: Path) -> None:
    """Where it came from this node's settings, each of the two would look for a group elsewhere."""

    async def test(node: Node) -> None:
        me = node.config.node_id
        await written_by_another_node(
            node,
            TopicCreated(OFFSETS_TOPIC, new_topic_id(), led_by(*[me] * 7)),
            TopicCreated(TRANSACTIONS_TOPIC, new_topic_id(), led_by(*[me] * 5)),
        )
        await node.groups.topic_ready()
        await node.transactions.topic_ready()
        names = [f"name-{number}" for number in range(20)]
        places = [node.groups.offsets_partition(name) for name in names]
        assert places == [TopicPartition(OFFSETS_TOPIC, partition_for_key(name, 7)) for name in names]
        assert [node.transactions.partition_for(name) for name in names] == [
            partition_for_key(name, 5) for name in names
        ]

    run_with_node(tmp_path, test, offsets_topic_num_partitions=3, transaction_state_log_num_partitions=2)


def test_a_writer_of_a_shared_transaction_finds_the_coordinator_of_its_key(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        me, writer = node.config.node_id, member_id("batch", 4001)
        leaders = [me] * 4
        leaders[partition_for_key("batch", 4)] = OTHER
        assert leaders[partition_for_key(writer, 4)] == me, "the test needs another key"
        await written_by_another_node(
            node,
            BrokerRegistered(OTHER, "x", "y", "there", 1, "there", 2),
            TopicCreated(TRANSACTIONS_TOPIC, new_topic_id(), led_by(*leaders)),
        )
        await node.metadata.refresh()
        keys = ["batch", writer, "another"]
        answer = await call(node.kafka_address.port, ApiKey.FIND_COORDINATOR, 6, key_type=1, coordinator_keys=keys)
        found = {each.key: each.node_id for each in answer.coordinators}
        assert found == {"batch": OTHER, writer: OTHER, "another": leaders[partition_for_key("another", 4)]}

    run_with_node(tmp_path, test)


def test_new_topics_are_on_this_node_alone_and_more_replicas_are_refused_in_words(tmp_path: Path) -> None:
    """A node that was given another id has the former one in the metadata. It used to count as a node for replicas."""

    async def test(node: Node) -> None:
        await written_by_another_node(node, BrokerRegistered(OTHER, "x", "y", "there", 1, "there", 2))
        await node.metadata.refresh()
        results = await create_topics(node, [NewTopic("one", 4, 1), NewTopic("two", 1, 2)])
        assert [result.error for result in results] == [ErrorCode.NONE, ErrorCode.INVALID_REPLICATION_FACTOR]
        assert "topic two asks for replication factor 2, but only 1 node may get replicas (1)" in results[1].message
        assert {state.replicas for state in node.metadata.image.topics["one"].partitions} == {(node.config.node_id,)}

    run_with_node(tmp_path, test)


def test_a_node_registers_with_the_id_of_its_own_directory(tmp_path: Path) -> None:
    """By it another directory in its place is found out, or one that was given to another node."""
    seen: list[str] = []

    async def test(node: Node) -> None:
        registered = node.metadata.image.brokers[node.config.node_id].directory_id
        assert f"directory.id={registered}\n" in (tmp_path / "data" / "meta.properties").read_text()
        assert registered != node.metadata.image.cluster_id
        seen.append(registered)

    run_with_node(tmp_path, test)
    run_with_node(tmp_path, test)
    assert seen[0] == seen[1]
    # as an older version left it
    meta = tmp_path / "data" / "meta.properties"
    meta.write_text(meta.read_text().replace(f"directory.id={seen[0]}\n", ""))
    run_with_node(tmp_path, test)
    run_with_node(tmp_path, test)
    assert seen[2] == seen[3] != seen[0]


def test_R5_a_node_that_was_started_again_elsewhere_stops_and_says_so(tmp_path: Path) -> None:
    """From a copy of its machine, say. Both would give the same producer ids."""

    async def main() -> None:
        url = sqlite_url(f"{tmp_path}/shared.sqlite")
        settings = {**SMALL, "metadata_url": url, "controller_lease_ms": 1000}
        node = await Node.start(NodeConfig(data_dir=str(tmp_path / "data"), **settings))
        store = MetadataStore(url)
        (session,) = store.sessions(now_ms=0)
        assert session.broker_epoch == node.metadata.broker_epoch
        again = BrokerRegistered(node.config.node_id, "copy", "x", "there", 1, "there", 2)
        store.register(again, [], after=store.load().position, now_ms=0)
        store.close()
        failure = await asyncio.wait_for(node.failed, 120)
        assert isinstance(failure, NodeDeposedError)
        assert "it was started again" in failure.message
        assert await _stop(node) == ServeExit.METADATA

    asyncio.run(main())


def test_a_node_does_not_start_where_another_one_has_been_heard_of(tmp_path: Path) -> None:
    """It may have lost its lease for a moment."""

    async def main() -> None:
        url = sqlite_url(f"{tmp_path}/shared.sqlite")
        store = MetadataStore(url)
        store.create()
        other = BrokerRegistered(OTHER, "x", "y", "there", 1, "there", 2)
        store.register(other, [], after=START, now_ms=2**42)  # it will have been heard of for years
        before = store.load()
        with pytest.raises(NodeStartError, match=f"node {OTHER} runs on this metadata") as caught:
            await Node.start(
                NodeConfig(data_dir=str(tmp_path / "data"), metadata_url=url, controller_lease_ms=1000, **SMALL)
            )
        assert caught.value.failure is StartFailure.METADATA
        assert store.load() == before
        store.close()

    asyncio.run(main())
