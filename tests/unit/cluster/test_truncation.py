"""A leader that is deposed cuts what was never replicated, and forgets the producers and transactions in it (R6)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from cluster import Cluster, cluster
from running_node import batch

from semel.broker.node import Node
from semel.protocol.errors import ErrorCode
from semel.protocol.ids import TopicPartition
from semel.protocol.kafka.produce import ACKS_ALL, ProducePartition, ProduceRequest

T0 = TopicPartition("t", 0)
PRODUCER = {"producer_id": 7, "producer_epoch": 0}


async def produce(node: Node, value: bytes, sequence: int) -> ErrorCode:
    """Have a node append an idempotent producer's batch, and return what it answers within two seconds."""
    made = batch(value, base_sequence=sequence, **PRODUCER)
    request = ProduceRequest([ProducePartition(T0.topic, T0.partition, made)], None, ACKS_ALL, 2_000)
    (answer,) = (await node.produce.produce(request, version=12)).partitions
    return answer.error


def producers(node: Node) -> list[tuple[int, ...]]:
    """Return what a node's log knows of producers: ids, epochs, and the sequences of their batches."""
    partition = node.partition(T0)
    assert partition is not None
    return [entry[1:] for entry in partition.log.producer_state.packed()]


@pytest.mark.parametrize("transactional", [False, True])
def test_R6_a_deposed_leader_forgets_the_producers_and_transactions_that_it_cuts(
    tmp_path: Path, transactional: bool
) -> None:
    """Its own append is in no other log. The same producer repeats it at the next leader, and continues."""

    async def main() -> None:
        async with asyncio.timeout(180), cluster(tmp_path, replica_lag_time_max_ms=60_000) as three:
            await scenario(three)

    async def scenario(three: Cluster) -> None:
        await three.create("t", min_insync_replicas="2")
        await three.in_sync(T0, 1, 2, 3)
        old = three.leader(T0)
        assert old is not None
        assert await produce(old, b"first", 0) is ErrorCode.NONE
        await old.cut_off()
        three.stores[old.config.node_id].is_cut = True
        partition = old.partition(T0)
        assert partition is not None
        if transactional:
            alone = batch(b"alone", transactional=True, producer_id=8, producer_epoch=0, base_sequence=0)
            partition.append(bytearray(alone), verified=True)
        assert await produce(old, b"second", 1) is not ErrorCode.NONE, "nobody replicates it"
        assert partition.log_end_offset == 3 if transactional else 2
        await three.until(lambda: three.leader(T0) not in (None, old))
        new = three.leader(T0)
        assert new is not None
        for sequence, value in ((1, b"second"), (2, b"third")):
            answer = ErrorCode.NOT_ENOUGH_REPLICAS
            while answer is not ErrorCode.NONE:
                answer = await produce(new, value, sequence)
        three.stores[old.config.node_id].is_cut = False
        await old.let_in()
        await three.in_sync(T0, 1, 2, 3)
        await three.until(lambda: partition.high_watermark == 3)
        for node in three.nodes.values():
            assert producers(node) == producers(new)
            here = node.partition(T0)
            assert here is not None
            assert here.last_stable_offset == here.high_watermark == here.log_end_offset == 3
            data = b"".join(found for _, found in three.values(node.config.node_id, T0))
            assert [data.count(value) for value in (b"first", b"second", b"third", b"alone")] == [1, 1, 1, 0]

    asyncio.run(main())
