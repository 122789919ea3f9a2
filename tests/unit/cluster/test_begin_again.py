"""A replica that begins behind deleted records knows who wrote them, and answers for them when it leads (P1, P2)."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster
from compiled_classes import set_method
from moving_cluster import T0, create, moved, run
from running_node import batch

from semel.broker.acls.rights import ALL_RIGHTS
from semel.broker.handlers import producers_before as told
from semel.broker.handlers.reassignments import reassign
from semel.broker.log.producers_before import producers_before
from semel.broker.logs.partition import Partition
from semel.broker.peers.handshake import Role
from semel.broker.permitted.topics import delete
from semel.broker.replication import begin_again
from semel.protocol.api.transactions import TransactionVersion
from semel.protocol.errors import ErrorCode, RetriableError
from semel.protocol.ids import ProducerIdAndEpoch
from semel.protocol.kafka.api import ApiKey
from semel.protocol.kafka.produce import ACKS_ALL, ProducePartition, ProducePartitionResponse, ProduceRequest
from semel.protocol.kafka.producers_before import ProducersBefore

PRODUCER = 4_711
IDS = range(PRODUCER + 1, PRODUCER + 1 + 50)


async def send(
    made: Cluster, sequence: int, producer_id: int = PRODUCER, acks: int = ACKS_ALL
) -> ProducePartitionResponse:
    """Send one record of an idempotent producer to who leads, once."""
    await made.until(lambda: made.leader(T0) is not None)
    leader = made.leader(T0)
    assert leader is not None
    data = batch(b"%d-%d" % (producer_id, sequence), producer_id=producer_id, producer_epoch=0, base_sequence=sequence)
    request = ProduceRequest([ProducePartition("t", 0, data)], None, acks, 30_000)
    (answer,) = (await leader.produce.produce(request, version=12)).partitions
    return answer


async def deleted_while_away(made: Cluster, *, clean: bool = True) -> tuple[int, int]:
    """Make a topic all of whose records were deleted while its follower was away; return the leader and it."""
    await create(made, 1, 2, min_isr=1)
    assert (await send(made, 0)).base_offset == 0
    leader = made.state(T0).leader
    (follower,) = {1, 2} - {leader}
    await (made.stop(follower) if clean else made.kill(follower))
    await made.in_sync(T0, leader)
    for sequence in range(1, 4):
        assert (await send(made, sequence)).base_offset == sequence
    await delete_all(made, leader)
    return leader, follower


async def delete_all(made: Cluster, leader: int) -> None:
    deleted = await delete(made.nodes[leader], ALL_RIGHTS, {T0: -1})
    assert deleted[T0].error is ErrorCode.NONE, deleted[T0].message


async def leads_alone(made: Cluster, leader: int, next_leader: int) -> None:
    await made.kill(leader)
    await made.until(lambda: made.leader(T0) is made.nodes[next_leader])


async def asserts_that_it_knows_them(made: Cluster) -> None:
    for sequence in range(4):
        answer = await send(made, sequence)
        assert (answer.error, answer.base_offset) == (ErrorCode.NONE, sequence), "it is a duplicate"
    assert (await send(made, 5)).error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert (await send(made, 4)).base_offset == 4


@pytest.mark.drawn(2)
@pytest.mark.parametrize("again", ["", "killed", "power", "stopped"])
def test_P2_a_replica_that_begins_behind_deleted_records_knows_them_as_duplicates(tmp_path: Path, again: str) -> None:
    """A client's retry of a deleted record was appended once more, where such a replica was elected."""

    async def test(made: Cluster) -> None:
        leader, follower = await deleted_while_away(made)
        await made.start(follower)
        await made.in_sync(T0, 1, 2)
        if again:
            await (made.stop(follower) if again == "stopped" else made.kill(follower, power=again == "power"))
            await made.start(follower)
            await made.in_sync(T0, 1, 2)
        await leads_alone(made, leader, follower)
        await asserts_that_it_knows_them(made)

    run(tmp_path, test)


def test_P2_so_does_one_that_a_partition_is_moved_to(tmp_path: Path) -> None:
    async def test(made: Cluster) -> None:
        await create(made, 1, min_isr=1)
        for sequence in range(4):
            await send(made, sequence)
        await delete_all(made, 1)
        await moved(made, T0, 2)
        await asserts_that_it_knows_them(made)
        await moved(made, T0, 3)
        assert (await send(made, 4)).base_offset == 4, "a duplicate"
        assert (await send(made, 5)).base_offset == 5

    run(tmp_path, test)


def test_P2_so_does_one_with_more_producers_than_one_answer_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(told, "producers_before", partial(producers_before, page=20))

    async def test(made: Cluster) -> None:
        await create(made, 1, min_isr=1)
        for producer_id in IDS:
            assert (await send(made, 0, producer_id, acks=1)).error is ErrorCode.NONE
        await made.until(lambda: made.nodes[1].partition(T0).high_watermark == len(IDS))  # type: ignore[union-attr]
        await delete_all(made, 1)
        await moved(made, T0, 2)
        partition = made.nodes[2].partition(T0)
        assert partition is not None
        assert partition.log_start_offset == len(IDS)
        assert {one.producer_id for one in partition.log.producer_state} == set(IDS)
        assert (await send(made, 0, IDS[0])).base_offset == 0
        assert (await send(made, 0, IDS[-1])).base_offset == len(IDS) - 1

    run(tmp_path, test)


def test_P2_so_does_one_that_had_lost_its_first_records(tmp_path: Path) -> None:
    """Its log begins again where the leader's does, behind what was deleted before."""

    async def test(made: Cluster) -> None:
        await create(made, 1, 2, min_isr=1)
        for sequence in range(4):
            await send(made, sequence)
        leader = made.state(T0).leader
        (follower,) = {1, 2} - {leader}
        await delete_all(made, leader)
        here = made.nodes[follower].partition(T0)
        assert here is not None
        for end in (5, 6):
            await made.produce(T0, b"later")
            await made.until(lambda end=end: (here.log_start_offset, here.log_end_offset) == (4, end))  # type: ignore[misc]
            here.log.roll(0)
        await made.stop(follower)
        disk = made.disks[follower]
        for name in disk.list_folder(f"/data/{T0}"):
            if name.endswith(".snapshot") or (name.startswith("0") and int(name[:20]) < 6):
                disk.remove(f"/data/{T0}/{name}")
        disk.sync_folder(f"/data/{T0}")
        await made.start(follower)
        await made.in_sync(T0, 1, 2)
        assert made.values(leader, T0) == made.values(follower, T0)
        await leads_alone(made, leader, follower)
        for sequence in range(4):
            assert (await send(made, sequence)).base_offset == sequence

    run(tmp_path, test)


def test_P2_a_leader_that_can_not_be_asked_now_is_asked_again(tmp_path: Path) -> None:
    async def test(made: Cluster) -> None:
        leader, follower = await deleted_while_away(made, clean=False)
        node = await made.start(follower)
        ask, refused = node.peers.ask, 0

        async def refuse(node_id: int, request: object, **options: object) -> object:
            nonlocal refused
            if getattr(request, "key", None) is ApiKey.DESCRIBE_PRODUCERS and refused < 3:
                refused += 1
                raise RetriableError("not now", ErrorCode.NETWORK_EXCEPTION)
            return await ask(node_id, request, **options)  # type: ignore[arg-type]

        node.peers.ask = refuse  # type: ignore[method-assign, assignment]
        await made.in_sync(T0, 1, 2)
        await leads_alone(made, leader, follower)
        await asserts_that_it_knows_them(made)

    run(tmp_path, test)


def test_R5_a_leader_of_a_version_that_can_not_be_asked_is_followed_as_before(tmp_path: Path) -> None:
    """During a rolling upgrade: its replicas know nobody, as its own version's do."""

    async def test(made: Cluster) -> None:
        leader, follower = await deleted_while_away(made)
        listener = made.nodes[leader].peer_listener
        assert listener is not None
        del listener.registry._apis[ApiKey.DESCRIBE_PRODUCERS]
        await made.start(follower)
        await made.in_sync(T0, 1, 2)
        partition = made.nodes[follower].partition(T0)
        assert partition is not None
        assert (partition.log_start_offset, len(partition.log.producer_state)) == (4, 0)

    run(tmp_path, test)


@pytest.mark.parametrize("version", TransactionVersion)
def test_P9_a_leader_tells_nothing_of_a_producer_whose_last_marker_is_not_committed(
    tmp_path: Path, version: TransactionVersion
) -> None:
    """A replica that knows of a marker, and is elected without it, would answer that it is written, and has it not.

    Another replica, in whose log the transaction is open, would then wait for that marker for ever.
    """

    async def test(made: Cluster) -> None:
        await create(made, 1, 2, min_isr=1)
        leader = made.state(T0).leader
        (follower,) = {1, 2} - {leader}
        partition = made.nodes[leader].partition(T0)
        assert partition is not None
        data = batch(b"v", producer_id=PRODUCER, producer_epoch=3, base_sequence=0, transactional=True)
        partition.append(bytearray(data), verified=True)
        await made.until(lambda: partition.high_watermark == 1)
        await delete_all(made, leader)
        ask, is_cut = made.nodes[follower].peers.ask, True

        async def ask_unless_cut(node_id: int, request: object, **options: object) -> object:
            if is_cut and getattr(request, "key", None) is ApiKey.FETCH:
                await asyncio.sleep(0.02)
                raise RetriableError("the network is gone", ErrorCode.NETWORK_EXCEPTION)
            return await ask(node_id, request, **options)  # type: ignore[arg-type]

        made.nodes[follower].peers.ask = ask_unless_cut  # type: ignore[method-assign, assignment]
        made.nodes[follower].peers.hang_up(leader, Role.FETCHES)
        marker = ProducerIdAndEpoch(PRODUCER, 4 if version is TransactionVersion.V2 else 3)
        assert partition.append_marker(marker, 5, True, version) == 1
        asked = ProducersBefore(T0, partition.topic_id, partition.leader_epoch, 1)
        partition.append(bytearray(batch(b"v", producer_id=9, producer_epoch=0, base_sequence=0)))
        assert [entry[1] for entry in await told.known_producers(made.nodes[leader], asked)] == [9]
        is_cut = False
        await made.until(lambda: partition.high_watermark == 3)
        known = {entry[1]: entry[2] for entry in await told.known_producers(made.nodes[leader], asked)}
        assert known == {PRODUCER: marker.producer_epoch, 9: 0}

    run(tmp_path, test)


@pytest.mark.parametrize("uncommitted", ["a record", "a marker"])
def test_R5_a_replica_begins_where_it_takes_that_replica_to_commit_what_its_leader_has(
    tmp_path: Path, uncommitted: str
) -> None:
    """A node dies with a record on its way, and another one takes its place. Nobody else could commit the record."""

    async def test(made: Cluster) -> None:
        await create(made, 1, 2, min_isr=2)
        leader = made.state(T0).leader
        (follower,) = {1, 2} - {leader}
        partition = made.nodes[leader].partition(T0)
        assert partition is not None
        data = batch(b"v", producer_id=9, producer_epoch=0, base_sequence=0, transactional=True)
        partition.append(bytearray(data), verified=True)
        for sequence in range(3):
            await send(made, sequence)
        await delete_all(made, leader)
        await made.kill(follower)
        if uncommitted == "a record":
            assert (await send(made, 3, acks=1)).base_offset == 4
        else:
            assert partition.append_marker(ProducerIdAndEpoch(9, 1), 5, True, TransactionVersion.V2) == 4
        assert await reassign(made.nodes[leader], {T0: (leader, 3)}) == {T0: None}
        await made.in_sync(T0, leader, 3)
        await made.until(lambda: partition.high_watermark == 5)
        await leads_alone(made, leader, 3)
        # With one replica left of two, nothing is appended; what is known is answered.
        here = made.nodes[3].partition(T0)
        assert here is not None
        assert {one.producer_id: one.last_sequence for one in here.log.producer_state} == (
            {PRODUCER: 3, 9: 0} if uncommitted == "a record" else {PRODUCER: 2, 9: -1}
        )

    run(tmp_path, test)


def test_R5_only_who_leads_is_asked(tmp_path: Path) -> None:
    """Many replicas may wait for their turn when another leader is elected."""

    async def test(made: Cluster) -> None:
        await create(made, 1, 2, min_isr=1)
        leader, epoch = made.state(T0).leader, made.state(T0).leader_epoch
        (follower,) = {1, 2} - {leader}
        replicas, here = made.nodes[follower]._replicas, made.nodes[follower].partition(T0)
        assert replicas is not None
        assert here is not None
        begin = replicas._begin_again
        while (known := await begin._producers(here, 1, leader, epoch)) is None:
            pass  # a busy machine may not answer in time
        assert known == []
        assert await begin._producers(here, 1, leader, epoch + 1) is None
        assert await begin._producers(here, 1, follower, epoch) is None

    run(tmp_path, test)


def test_R5_a_cut_of_lost_records_that_can_not_be_noted_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(made: Cluster) -> None:
        await create(made, 1, 2, min_isr=1)
        for sequence in range(4):
            await send(made, sequence)
        leader = made.state(T0).leader
        (follower,) = {1, 2} - {leader}
        await made.until(lambda: made.nodes[follower].partition(T0).high_watermark == 4)  # type: ignore[union-attr]
        await made.stop(follower)
        file = made.disks[follower].open(f"/data/{T0}/{0:020d}.log")
        file.truncate(file.size() // 2)
        file.close()
        truncate, failed = Partition.truncate_to, 0

        def fail_once(partition: Partition, offset: int) -> bool:
            nonlocal failed
            failed += 1
            if failed == 1:
                raise RetriableError("No space left on device", ErrorCode.KAFKA_STORAGE_ERROR)
            return truncate(partition, offset)

        set_method(monkeypatch, Partition, "truncate_to", fail_once)
        await made.start(follower)
        await made.in_sync(T0, 1, 2)
        assert made.values(leader, T0) == made.values(follower, T0)
        assert failed > 1

    run(tmp_path, test)


def test_R5_what_nobody_expected_as_a_log_begins_again_is_told_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Else the replica would follow nobody any more, and nothing would say so."""
    monkeypatch.setattr(begin_again, "FAULT_PAUSE_S", 0.1)
    ask, failed = begin_again.BeginAgain._producers, 0

    async def fail_once(*arguments: Any) -> Any:
        nonlocal failed
        failed += 1
        if failed == 1:
            raise ValueError("a mistake")
        return await ask(*arguments)

    monkeypatch.setattr(begin_again.BeginAgain, "_producers", fail_once)

    async def test(made: Cluster) -> None:
        _, follower = await deleted_while_away(made)
        await made.start(follower)
        await made.in_sync(T0, 1, 2)
        assert "a mistake" in caplog.text

    run(tmp_path, test)
