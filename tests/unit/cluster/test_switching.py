"""Topics become diskless while they are used: nothing that was acknowledged is lost or doubled (R1, R3, P1, P7)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cluster import cluster
from diskless_topic import FAST, diskless_of
from faulty_cluster import FaultyCluster, Written
from memory_objects import MemoryObjects
from running_node import batch
from switching_topic import (
    T0,
    check,
    elect_without,
    error_of,
    is_diskless,
    leads_alone,
    make_diskless,
    run,
    without_disks,
    write,
)
from tiered_topic import partition_of, tier_of

from semel.broker.controller.diskless import switched
from semel.broker.diskless import switching as switching_module
from semel.broker.diskless.rows import Entry, NewEntry
from semel.broker.diskless.switching import Switching
from semel.broker.handlers import configs as configs_module
from semel.broker.handlers.configs import alter_configs
from semel.broker.handlers.delete_records import begin_deletion, confirm_deletion
from semel.broker.handlers.reassignments import reassign
from semel.broker.handlers.topics.changes import (
    MorePartitions,
    create_internal_topic,
    create_partitions_of_many,
    create_topics,
)
from semel.broker.logs.manager import NewPartition
from semel.broker.logs.partition import Partition
from semel.broker.metadata.changes import PartitionState
from semel.broker.metadata.database import MetadataUnavailableError
from semel.broker.tiers.partition_tier import PartitionTier
from semel.protocol.api.metadata import AlterConfigsRequest, ResourceType
from semel.protocol.api.topics import NewTopic
from semel.protocol.crc32c import crc32c
from semel.protocol.errors import ErrorCode, RetriableError, SemelError, UsageError
from semel.protocol.ids import OFFSETS_TOPIC, ProducerIdAndEpoch

# --- While it is used ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("segment_bytes", ["25000", "1048576"])
def test_D1_P1_a_topic_becomes_diskless_while_producers_go_on(tmp_path: Path, segment_bytes: str) -> None:
    async def test(world: FaultyCluster) -> None:
        made, written = world.made, [Written(number) for number in range(3)]
        for one in written:
            await write(world, one, 10)
        tps = [one.tp for one in written]
        epochs = {tp: made.state(tp).leader_epoch for tp in tps}

        async def go_on(one: Written) -> None:
            while not is_diskless(made, *tps) or one.sequence < 30:
                await write(world, one, 1)
                await asyncio.sleep(0.01)  # SQLite has no queue: who writes all the time keeps others out

        producing = [asyncio.ensure_future(go_on(one)) for one in written]
        await alter_configs(made.any(), make_diskless())
        await asyncio.gather(*producing)
        for tp in tps:
            state = made.state(tp)
            assert state.replicas == state.isr == (state.leader,)
            assert state.leader_epoch > epochs[tp], "who knows the replicas of before is fenced"
        await made.until(lambda: sum(node.partition(tp) is not None for node in made.nodes.values() for tp in tps) == 3)
        for one in written:
            await write(world, one, 3)
        await check(world, *written)
        await without_disks(world)
        for one in written:
            await write(world, one, 3)
        await check(world, *written)

    run(tmp_path, test, partitions=3, topic={"segment.bytes": segment_bytes})


def test_P1_P7_what_a_producer_repeats_is_recognised_though_its_records_were_deleted_before(tmp_path: Path) -> None:
    async def test(world: FaultyCluster) -> None:
        made, one = world.made, Written(0)
        await write(world, one, 5)
        one.start = one.maybe_start = 5
        node = await world.leader_of(T0)
        partition_of(node).delete_records(5)
        data = batch(b"other", producer_id=2, producer_epoch=0, base_sequence=0)
        appended = partition_of(node).append(bytearray(data))
        await partition_of(node).wait_committed(appended.last_offset)
        assert appended.base_offset == 5
        await alter_configs(made.any(), make_diskless())
        await made.until(lambda: is_diskless(made))
        await without_disks(world)
        partition = partition_of(await world.leader_of(T0))
        again = partition.append(bytearray(data))
        assert (again.base_offset, again.appended) == (5, ())
        last = batch(b"00004" + b"." * 95, producer_id=1, producer_epoch=0, base_sequence=4)
        assert partition.append(bytearray(last)).base_offset == 4, "its batch is below the start of the log"
        assert partition.log_end_offset == 6

    run(tmp_path, test)


def test_T2_L1_a_transaction_that_was_open_is_ended_afterwards(tmp_path: Path) -> None:
    async def test(world: FaultyCluster) -> None:
        made, kept, given_up = world.made, ProducerIdAndEpoch(7, 0), ProducerIdAndEpoch(8, 0)
        partition = partition_of(await world.leader_of(T0))
        for producer in (kept, given_up):
            for number in range(2):
                data = batch(
                    b"%d" % producer.producer_id, producer_id=producer.producer_id,
                    producer_epoch=0, base_sequence=number, transactional=True,
                )  # fmt: skip
                appended = partition.append(bytearray(data), verified=True)
                await partition.wait_committed(appended.last_offset)
        await alter_configs(made.any(), make_diskless())
        await made.until(lambda: is_diskless(made))
        assert await world.read(T0, 0, committed=True) == []
        await without_disks(world)
        partition = partition_of(await world.leader_of(T0))
        assert (partition.last_stable_offset, partition.high_watermark) == (0, 4)
        for producer, committed in ((given_up, False), (kept, True)):
            offset = partition.append_marker(producer, 0, committed)
            assert offset is not None
            await partition.wait_committed(offset)
        assert await world.read(T0, 0, committed=True) == [(0, b"7"), (1, b"7")]

    run(tmp_path, test)


def test_L1_it_is_said_that_much_waits_for_a_transaction_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(switching_module, "BEHIND_MAX", 1_000)

    async def test(world: FaultyCluster) -> None:
        made, producer = world.made, ProducerIdAndEpoch(7, 0)
        node = await world.leader_of(T0)
        partition = partition_of(node)
        partition.append(bytearray(batch(b"before")))
        data = batch(b"." * 2_000, producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
        await partition.wait_committed(partition.append(bytearray(data), verified=True).last_offset)
        await alter_configs(made.any(), make_diskless())
        await made.until(lambda: "a transaction is open from offset 1 on" in error_of(node))
        assert not is_diskless(made)
        offset = partition.append_marker(producer, 0, True)
        assert offset is not None
        await made.until(lambda: is_diskless(made))

    run(tmp_path, test)


def test_D6_a_topic_with_nothing_in_it_becomes_diskless(tmp_path: Path) -> None:
    async def test(world: FaultyCluster) -> None:
        made, one = world.made, Written(0)
        await alter_configs(made.any(), make_diskless(retention_ms="-1"))
        await made.until(lambda: is_diskless(made))
        await write(world, one, 3)
        await without_disks(world)
        await check(world, one)

    run(tmp_path, test)


def test_P7_a_log_whose_records_are_all_deleted_waits_for_one_that_tells_of_its_producers(tmp_path: Path) -> None:
    async def test(world: FaultyCluster) -> None:
        made, one = world.made, Written(0)
        await write(world, one, 8)
        node = await world.leader_of(T0)
        partition_of(node).delete_records(8)
        partition_of(node).log.roll(node.clock.now_ms())
        await node.logs.maintenance.flush()
        partition_of(node).log.delete_old_segments(node.clock.now_ms(), 8)
        assert len(partition_of(node).log.segments) == 1
        one.start = one.maybe_start = 8
        await alter_configs(made.any(), make_diskless())
        await made.until(lambda: "all its records were deleted" in error_of(node))
        assert not is_diskless(made)
        await write(world, one, 1)
        await made.until(lambda: is_diskless(made))
        await without_disks(world)
        await write(world, one, 1)
        await check(world, one)

    run(tmp_path, test)


@pytest.mark.parametrize("is_sealed", [False, True])
def test_P1_P7_records_that_are_deleted_amid_the_copying_take_no_producer_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_sealed: bool
) -> None:
    """Nothing is in segments yet, so only the entries tell of them."""

    async def test(world: FaultyCluster) -> None:
        made, one, real = world.made, Written(0), Switching._copy
        await write(world, one, 6)
        node = await world.leader_of(T0)
        partition, answers = partition_of(node), []

        async def copy(self: Switching, part: PartitionTier, epoch: int, at: int, upto: int) -> int:
            copied = await real(self, part, epoch, at, upto)
            if not answers and partition.is_sealed == is_sealed:
                if not is_sealed:
                    await write(world, one, 2)  # what is deleted is in no entry yet
                before = partition.log_end_offset - 1
                deleted = await confirm_deletion(node, await begin_deletion(node, {T0: before}), timeout_ms=5_000)
                answers.append(deleted[T0].error)
            return copied

        monkeypatch.setattr(Switching, "_copy", copy)
        await alter_configs(node, make_diskless())
        await made.until(lambda: is_diskless(made))
        assert answers == [ErrorCode.NOT_LEADER_OR_FOLLOWER if is_sealed else ErrorCode.NONE]
        partition = partition_of(await world.leader_of(T0))
        assert partition.log_start_offset == (0 if is_sealed else 7)
        last = batch(b"00005" + b"." * 95, producer_id=1, producer_epoch=0, base_sequence=5)
        again = partition.append(bytearray(last))
        assert (again.base_offset, again.appended) == (5, ())
        assert partition.log_end_offset == one.sequence

    run(tmp_path, test)


def test_P7_until_its_log_is_begun_again_a_switched_partition_keeps_what_tells_of_producers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_go_on, real = asyncio.Event(), Switching.go_on

    async def go_on(self: Switching, part: PartitionTier) -> None:
        if may_go_on.is_set():
            await real(self, part)

    async def test(world: FaultyCluster) -> None:
        made = world.made
        await write(world, Written(0), 5)
        node = await world.leader_of(T0)
        monkeypatch.setattr(Switching, "go_on", go_on)
        await alter_configs(node, make_diskless())
        await made.until(lambda: partition_of(node).tier is not None)
        part = tier_of(node)
        async with node.logs._making:
            may_go_on.set()
            await made.until(lambda: not part.is_switching)
            assert not part.is_diskless
            assert part.keeps_producers
            with pytest.raises(SemelError):
                partition_of(node).delete_records(5)
        await made.until(lambda: tier_of(node).is_diskless)

    run(tmp_path, test)


def test_R2_partitions_that_are_added_meanwhile_have_one_replica(tmp_path: Path) -> None:
    async def test(world: FaultyCluster) -> None:
        made, added = world.made, [Written(1), Written(2)]
        await write(world, Written(0), 1)
        world.objects.fault = lambda kind, key: "fail" if kind == "put" else ""
        await alter_configs(made.any(), make_diskless())
        node = await world.leader_of(T0)
        await made.until(lambda: error_of(node))
        for wanted in (MorePartitions("t", 2, None), MorePartitions("t", 3, ((2,),))):
            (result,) = await create_partitions_of_many(node, [wanted])
            assert result.error is ErrorCode.NONE, result.message
        world.objects.fault = lambda kind, key: ""
        for each in added:
            await write(world, each, 2)
            assert len(made.state(each.tp).replicas) == 1
        await made.until(lambda: is_diskless(made, T0, *(each.tp for each in added)))
        await without_disks(world)
        await check(world, *added)

    run(tmp_path, test)


def test_D4_its_policy_is_said_for_good(tmp_path: Path) -> None:
    """Another default of a node must not have it compacted: its first records may be on no disk."""

    async def test(world: FaultyCluster) -> None:
        made = world.made
        await alter_configs(made.any(), make_diskless())
        topic = made.any().metadata.topic("t")
        assert topic is not None
        assert topic.configs["cleanup.policy"] == "delete"
        await alter_configs(made.any(), AlterConfigsRequest(ResourceType.TOPIC, "t", {}, remove=("cleanup.policy",)))
        topic = made.any().metadata.topic("t")
        assert topic is not None
        assert topic.configs["cleanup.policy"] == "delete"

    run(tmp_path, test)


# --- When something fails amid it ---------------------------------------------------------------------------------


def test_R3_the_next_leader_copies_from_the_beginning(
    tmp_path: Path,
) -> None:
    async def test(world: FaultyCluster) -> None:
        made, one = world.made, Written(0)
        await write(world, one, 10)
        world.objects.hold()
        before = world.objects.requests["put"]
        await alter_configs(made.any(), make_diskless())
        await made.until(lambda: world.objects.requests["put"] > before)
        former = made.state(T0).leader
        await made.kill(former)
        await made.until(lambda: made.state(T0).leader not in (former, -1))
        world.objects.let_go()
        await write(world, one, 10)
        await made.until(lambda: is_diskless(made))
        await made.start(former)
        await write(world, one, 2)
        await without_disks(world)
        await check(world, one)

    run(tmp_path, test)


@pytest.mark.parametrize("is_written", [False, True])
def test_R1_R3_it_takes_nothing_while_it_is_not_known_whether_it_is_diskless(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_written: bool
) -> None:
    """The answer of the metadata is lost, or the question: what was taken then would be in no entry."""

    async def test(world: FaultyCluster) -> None:
        made, one = world.made, Written(0)
        await write(world, one, 10)
        node = await world.leader_of(T0)
        partition, real, asked = partition_of(node), node.metadata.change, 0
        away = asyncio.Event()

        async def change(decide: Any) -> Any:
            nonlocal asked
            if not partition.is_sealed:
                return await real(decide)
            asked += 1
            if is_written and asked == 1:
                await real(decide)
            if not away.is_set():
                raise MetadataUnavailableError("the answer is lost, as planned")
            return await real(decide)

        monkeypatch.setattr(node.metadata, "change", change)
        await alter_configs(next(each for each in made.nodes.values() if each is not node), make_diskless())
        await made.until(lambda: asked > 2 or (is_written and is_diskless(made)))
        with pytest.raises(SemelError) as refused:
            partition.append(bytearray(batch(b"late")))
        assert isinstance(refused.value, RetriableError)
        assert refused.value.code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        with pytest.raises(SemelError):
            partition.delete_records(5)
        with pytest.raises(RetriableError):
            partition.append_marker(ProducerIdAndEpoch(3, 0), 0, False)
        assert is_diskless(made) == is_written
        away.set()
        await made.until(lambda: is_diskless(made))
        await write(world, one, 2)
        await without_disks(world)
        await check(world, one)

    run(tmp_path, test)


def test_R3_where_a_replica_is_behind_producers_go_on_and_it_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(switching_module, "_COMMITTED_WITHIN_S", 0.2)

    async def test(world: FaultyCluster) -> None:
        made, one = world.made, Written(0)
        await write(world, one, 3)
        node = await world.leader_of(T0)
        partition = partition_of(node)
        partition.pause()
        partition.append(bytearray(batch(b"not committed")))
        await alter_configs(made.any(), make_diskless())
        await made.until(lambda: "lack what was appended last" in error_of(node))
        assert not partition.is_sealed
        assert not is_diskless(made)
        partition.resume()
        await made.until(lambda: is_diskless(made))
        assert len(await world.read(T0, 0, committed=False)) == 4

    run(tmp_path, test)


def test_R2_with_too_few_replicas_in_sync_producers_are_not_kept_out(tmp_path: Path) -> None:
    async def test(world: FaultyCluster) -> None:
        made, one = world.made, Written(0)
        await write(world, one, 1)
        node = await world.leader_of(T0)
        partition = partition_of(node)
        for node_id in [each for each in made.nodes if each != node.config.node_id]:
            await made.kill(node_id)
        await made.until(lambda: len(made.state(T0).isr) == 1)
        await alter_configs(node, make_diskless())
        await made.until(lambda: "too few replicas are in sync" in error_of(node))
        partition.append(bytearray(batch(b"by acks=1")), acks=1)
        for node_id in (1, 2, 3):
            if node_id not in made.nodes:
                await made.start(node_id)
        await made.until(lambda: is_diskless(made))
        assert [value for _, value in await world.read(T0, 0, committed=False)][-1:] == [b"by acks=1"]

    run(tmp_path, test)


def test_R3_after_an_unclean_election_what_the_lost_leader_had_copied_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, all_committed = True, Switching._all_committed

    async def committed(self: Switching, partition: Partition) -> None:
        if held:
            raise RetriableError("not yet, as planned", ErrorCode.KAFKA_STORAGE_ERROR)
        await all_committed(self, partition)

    monkeypatch.setattr(Switching, "_all_committed", committed)

    async def test(world: FaultyCluster) -> None:
        nonlocal held
        made, one = world.made, Written(0)
        await write(world, one, 2)
        node = await leads_alone(world)
        lost = Written(0)
        lost.sequence = one.sequence
        await write(world, lost, 3)
        await alter_configs(node, make_diskless())
        await made.until(lambda: "as planned" in error_of(node))
        key = partition_of(node).topic_id, 0
        assert (await diskless_of(node).ask(lambda: diskless_of(node).rows.load(key))).end_offset == 5
        held = False
        await elect_without(world, node.config.node_id)
        await made.until(lambda: is_diskless(made))
        await write(world, one, 2)
        assert len(await world.read(T0, 0, committed=False)) == 4
        await made.start(node.config.node_id)
        await without_disks(world)
        await check(world, one)

    run(tmp_path, test)


def test_D1_a_leader_without_a_store_goes_on_with_what_is_on_the_disks(tmp_path: Path) -> None:
    async def test(world: FaultyCluster) -> None:
        made, one = world.made, Written(0)
        await write(world, one, 2)
        leader = made.state(T0).leader
        await made.stop(leader)
        made.objects = None
        await made.start(leader, remote_storage_url="")
        made.objects = world.objects
        await made.in_sync(T0, 1, 2, 3)
        assert await reassign(made.nodes[leader], {T0: (leader, *(each for each in (1, 2, 3) if each != leader))}) == {
            T0: None
        }
        if (other := made.state(T0).leader) != leader:  # unless it was balanced already
            await made.stop(other)
            await made.until(lambda: made.state(T0).leader == leader)
            await made.start(other)
            await made.in_sync(T0, 1, 2, 3)
        another = next(each for each in made.nodes.values() if each.config.node_id != leader)
        with pytest.raises(
            UsageError, match=f"needs remote storage on all nodes, and these have none: {leader}. Start"
        ):
            await alter_configs(another, make_diskless())
        for setting in ("diskless.enable", "remote.storage.enable"):
            (refused,) = await create_topics(another, [NewTopic("u", configs={setting: "true"})])
            assert refused.error is ErrorCode.INVALID_CONFIG
        with pytest.MonkeyPatch.context() as patch:  # as where a node said nothing of it: an older version
            patch.setattr(configs_module, "check_all_have_store", lambda *given: None)
            await alter_configs(another, make_diskless())
        await write(world, one, 3)
        assert not is_diskless(made)
        await made.stop(leader)
        await made.until(lambda: is_diskless(made))
        await check(world, one)

    run(tmp_path, test)


def test_coordinators_get_no_topic_that_a_node_without_a_store_can_not_lead(tmp_path: Path) -> None:
    async def test(world: FaultyCluster) -> None:
        made = world.made
        await made.stop(3)
        made.objects = None
        await made.start(3, remote_storage_url="", log_diskless_enable=False)
        with pytest.raises(RetriableError, match="these have none: 3") as refused:
            await create_internal_topic(made.nodes[1], OFFSETS_TOPIC)
        assert refused.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE

    run(tmp_path, test, log_diskless_enable=True, topic={"diskless_enable": "false"})


def test_R3_another_run_of_a_node_copies_from_the_beginning(tmp_path: Path) -> None:
    """The only replica is led under the same epoch after a start, and what a run before had copied may be another log:
    a power cut has taken its end.
    """

    async def main() -> None:
        objects = MemoryObjects()
        async with asyncio.timeout(120), cluster(tmp_path, 1, objects=objects, **FAST) as made:
            await made.create("t", 1, 1)
            world, one = FaultyCluster(made, objects, 0), Written(0)
            await write(world, one, 6)
            objects.fault = lambda kind, key: "fail" if kind == "put" else ""
            await alter_configs(made.any(), make_diskless())
            await made.until(lambda: error_of(made.nodes[1]))
            key, epoch = (partition_of(made.nodes[1]).topic_id, 0), made.state(T0).leader_epoch
            rows = diskless_of(made.nodes[1]).rows
            await made.kill(1)
            assert rows.claim_copy(key, "former", epoch, 1, 0) == 0
            other = bytes(batch(b"lost"))
            assert rows.commit([NewEntry(key, "former", Entry(0, 1, "", 0, len(other), crc32c(other), other))]).led
            objects.fault = lambda kind, key: ""
            await made.start(1)
            assert made.state(T0).leader_epoch == epoch
            await made.until(lambda: is_diskless(made))
            assert made.state(T0).leader_epoch > epoch, "what the run before sends is fenced"
            await write(world, one, 4)
            await made.kill(1, power=True)
            del made.disks[1]
            await made.start(1)
            await check(world, one)

    asyncio.run(main())


def test_D1_a_log_on_the_disk_is_not_led_on_once_its_partition_is_diskless(tmp_path: Path) -> None:
    """Whatever makes logs finds it there before it is begun again: what it took then would be in no entry."""

    async def main() -> None:
        async with asyncio.timeout(60), cluster(tmp_path, 1, objects=MemoryObjects(), **FAST) as made:
            await made.create("t", 1, 1)
            node = made.nodes[1]
            partition = partition_of(node)
            epoch = partition.leader_epoch
            partition.seal(RetriableError("it becomes diskless", ErrorCode.NOT_LEADER_OR_FOLLOWER))
            diskless = replace(partition.config, diskless_enable=True)
            assert await node.logs.create_partitions([NewPartition(T0, partition.topic_id, diskless, epoch + 1)]) == {}
            assert partition_of(node) is partition
            assert (partition.is_sealed, partition.leader_epoch) == (True, epoch)
            with pytest.raises(RetriableError, match="becomes diskless"):
                partition.append(bytearray(batch(b"late")))
            same = NewPartition(T0, partition.topic_id, partition.config, epoch + 1)
            assert await node.logs.create_partitions([same]) == {}
            assert (partition.is_sealed, partition.leader_epoch) == (False, epoch + 1)

    asyncio.run(main())


def test_R5_only_the_leader_of_the_epoch_in_this_run_can_say_so(tmp_path: Path) -> None:
    async def test(world: FaultyCluster) -> None:
        made = world.made
        world.objects.fault = lambda kind, key: "fail" if kind == "put" else ""
        await write(world, Written(0), 3)
        await alter_configs(made.any(), make_diskless())
        node = await world.leader_of(T0)
        await made.until(lambda: error_of(node))
        image, state = node.metadata.image, made.state(T0)
        topic_id = partition_of(node).topic_id
        leader, epoch = state.leader, state.leader_epoch
        broker_epoch = image.brokers[leader].epoch
        other = next(each for each in image.brokers if each != leader)
        for node_id, broker, leader_epoch in (
            (other, image.brokers[other].epoch, epoch),
            (leader, broker_epoch - 1, epoch),
            (leader, broker_epoch, epoch - 1),
            (99, broker_epoch, epoch),
        ):
            assert switched(image, topic_id, 0, node_id, broker, leader_epoch) == []
        assert switched(image, topic_id, 5, leader, broker_epoch, epoch) == []
        (change,) = switched(image, topic_id, 0, leader, broker_epoch, epoch)
        alone = (leader,)
        assert change.state == PartitionState(leader, epoch + 1, alone, alone, state.partition_epoch + 1)

    run(tmp_path, test)


# --- What is refused ----------------------------------------------------------------------------------------------


def test_what_can_not_become_diskless_is_refused_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(world: FaultyCluster) -> None:
        made = world.made
        await made.create("compacted", cleanup_policy="compact")
        await made.create("tiered", remote_storage_enable="true")
        node = made.any()
        for request, why in (
            (make_diskless(topic="tiered", cleanup_policy="compact"), "its first records have left the disks"),
            (make_diskless(topic="compacted", cleanup_policy="delete"), "change the policy first"),
            (make_diskless(cleanup_policy="compact"), "change the policy first"),
            (make_diskless(topic="nowhere"), "there is no topic"),
        ):
            with pytest.raises(SemelError, match=why):
                await alter_configs(node, request)
        with monkeypatch.context() as older:
            older.setattr(configs_module, "SWITCHES_VERSION", node.metadata.image.version + 1)
            with pytest.raises(SemelError, match="Upgrade all nodes first"):
                await alter_configs(node, make_diskless())
        with monkeypatch.context() as older:
            older.setattr(configs_module, "COMPACTED_SWITCHES_VERSION", node.metadata.image.version + 1)
            with pytest.raises(SemelError, match="Upgrade all nodes first"):
                await alter_configs(node, make_diskless(topic="compacted"))
        await alter_configs(node, replace(make_diskless(), validate_only=True))
        assert not made.state(T0).is_switching
        await alter_configs(node, make_diskless(min_insync_replicas="1"))
        await made.until(lambda: is_diskless(made))
        for value in ("false", None):
            with pytest.raises(SemelError, match="can't be taken back"):
                await alter_configs(made.any(), make_diskless(value))
        await alter_configs(made.any(), make_diskless())

    run(tmp_path, test)
