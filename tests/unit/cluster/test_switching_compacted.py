"""Compacted topics become diskless, those of the coordinators among them: each key keeps its last value, and what was
deleted does not come back (D4).
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from coordinated_offsets import commit_offset, commit_offset_at, offset_of
from diskless_topic import diskless_of
from faulty_cluster import FaultyCluster, Written
from switching_topic import (
    COMPACTED,
    T0,
    HeldSwitch,
    check_keys,
    compact,
    elect_without,
    error_of,
    is_diskless,
    leads_alone,
    make_diskless,
    run,
    without_disks,
    write_keys,
)
from tiered_topic import partition_of, tier_of

from semel.broker.diskless.switching import Switching
from semel.broker.handlers.configs import alter_configs
from semel.broker.handlers.delete_records import begin_deletion, confirm_deletion
from semel.broker.logs.partition import Partition
from semel.broker.node import Node
from semel.broker.tiers.copying import is_as_copied
from semel.broker.tiers.partition_tier import PartitionTier
from semel.broker.tiers.rows import LateError
from semel.protocol.api.metadata import AlterConfigsRequest, ResourceType
from semel.protocol.batch_builder import encode_batch
from semel.protocol.errors import ErrorCode, RetriableError, SemelError
from semel.protocol.ids import OFFSETS_TOPIC, TopicPartition


async def puts(world: FaultyCluster, to: Written, *records: tuple[bytes, bytes | None]) -> None:
    for key, value in records:
        await world.append(to, key, value)


async def segments_of(node: Node) -> list[tuple[int, int]]:
    """Return (node, leader epoch) of those who have copied the segments that are there."""
    part = tier_of(node)
    remote = await part._storage.ask(lambda: part._storage.rows.load(part.key))
    return [(one.node_id, one.leader_epoch) for one in remote.segments]


@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
def test_D4_D1_P7_a_compacted_topic_becomes_diskless_while_it_is_written_to_and_compacted(
    tmp_path: Path, policy: str
) -> None:
    async def test(world: FaultyCluster) -> None:
        made, one = world.made, Written(0)
        await write_keys(world, one, 40)
        for node in made.nodes.values():
            await compact(node)
        stop = asyncio.Event()

        async def go_on() -> None:
            while not stop.is_set():
                await write_keys(world, one, 1)
                await asyncio.sleep(0.01)

        async def compact_on() -> None:
            while not stop.is_set():
                await compact(made.any())
                await asyncio.sleep(0.02)

        working = [asyncio.ensure_future(go_on()), asyncio.ensure_future(compact_on())]
        await alter_configs(made.any(), make_diskless())
        await made.until(lambda: is_diskless(made))
        stop.set()
        await asyncio.gather(*working)
        await check_keys(world, one)
        await without_disks(world)
        await check_keys(world, one)
        # The producer is known by all that compaction has left of it.
        partition = partition_of(await world.leader_of(T0))
        last = encode_batch(
            [(1_000, b"k", b"again", ())], producer_id=1, producer_epoch=0, base_sequence=one.sequence - 1
        )
        assert partition.append(bytearray(last)).appended == ()
        await write_keys(world, one, 20)
        await compact(await world.leader_of(T0))
        await check_keys(world, one)

    run(tmp_path, test, topic={**COMPACTED, "cleanup.policy": policy})


def test_D4_what_another_leader_has_copied_of_its_compacted_log_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each replica has compacted its own: of one the value is left, of another its deletion is gone."""
    held = HeldSwitch(monkeypatch)

    async def test(world: FaultyCluster) -> None:
        made, one = world.made, Written(0)
        await puts(world, one, (b"k0", b"v" * 500), (b"k1", b"v" * 500), (b"k0", None))
        await puts(world, one, *((b"k2", b"%03d" % number + b"." * 500) for number in range(4)))
        former = made.state(T0).leader
        for node_id, node in made.nodes.items():
            if node_id != former:
                await compact(node)
                await compact(node)
        await alter_configs(made.any(), make_diskless())
        node = made.nodes[former]
        await made.until(lambda: partition_of(node).tier is not None)
        await made.until(lambda: tier_of(node).end_offset and is_as_copied(tier_of(node)))
        assert {node_id for node_id, _ in await segments_of(made.nodes[former])} == {former}
        await made.kill(former)
        await made.until(lambda: made.state(T0).leader not in (former, -1))
        held.let_go()
        await made.until(lambda: is_diskless(made))
        leader = made.state(T0).leader
        node = await world.leader_of(T0)
        assert {node_id for node_id, _ in await segments_of(node)} <= {leader}
        await check_keys(world, one)
        assert b"v" * 500 not in [value for offset, value in await world.read(T0, 0, committed=False) if offset == 0]
        await made.start(former)
        await without_disks(world)
        await check_keys(world, one)

    run(tmp_path, test, topic=COMPACTED)


def test_R3_after_an_unclean_election_what_the_lost_leader_had_copied_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = HeldSwitch(monkeypatch)

    async def test(world: FaultyCluster) -> None:
        made, one, lost = world.made, Written(0), Written(0)
        await puts(world, one, (b"k0", b"v" * 500), (b"k1", b"v" * 500))
        node = await leads_alone(world)
        leader = node.config.node_id
        lost.sequence = one.sequence
        await puts(world, lost, *((b"k%d" % number, b"l" * 500) for number in range(6)))
        await alter_configs(node, make_diskless())
        await made.until(lambda: partition_of(node).tier is not None and tier_of(node).end_offset > one.sequence)
        held.let_go()
        await elect_without(world, leader)
        await made.until(lambda: is_diskless(made))
        await write_keys(world, one, 3)
        await check_keys(world, one)
        await made.start(leader)
        await without_disks(world)
        await check_keys(world, one)

    run(tmp_path, test, topic=COMPACTED)


def test_D1_what_comes_after_an_unclean_election_stays_though_the_lost_log_began_further_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = HeldSwitch(monkeypatch)

    async def test(world: FaultyCluster) -> None:
        made, one, lost = world.made, Written(0), Written(0)
        await puts(world, one, *((b"k%d" % number, b"v" * 500) for number in range(4)))
        node = await leads_alone(world)
        leader = node.config.node_id
        lost.sequence = one.sequence
        await puts(world, lost, *((b"l%d" % number, b"l" * 500) for number in range(16)))
        await alter_configs(node, make_diskless())
        await made.until(lambda: partition_of(node).tier is not None and tier_of(node).end_offset > 14)
        deleted = await confirm_deletion(node, await begin_deletion(node, {T0: 14}), timeout_ms=2_000)
        assert deleted[T0].error is ErrorCode.NONE
        await elect_without(world, leader)
        await write_keys(world, one, 6)
        held.let_go()
        await made.until(lambda: is_diskless(made))
        await write_keys(world, one, 12)
        await check_keys(world, one)
        await made.start(leader)
        await without_disks(world)
        assert partition_of(await world.leader_of(T0)).log_start_offset == 0
        await check_keys(world, one)

    run(tmp_path, test, topic={**COMPACTED, "cleanup.policy": "compact,delete"})


def test_D4_compaction_before_the_last_word_has_its_segments_copied_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The value was copied before it was compacted away, and what follows after its deletion was, too."""
    note_start, worlds = Switching._note_start, []

    async def compacted_first(self: Switching, part: PartitionTier) -> None:
        """Between the look at what is copied and the copying of what follows."""
        if worlds and part.remote.segments and is_as_copied(part):
            world, one = worlds.pop()
            await puts(world, one, (b"k0", None))
            for _ in range(4):  # a round takes the value away, and one after it the deletion
                await puts(world, one, *((b"k1", b"." * 400) for _ in range(4)))
                await compact(await world.leader_of(T0))
            assert not is_as_copied(part)
        await note_start(self, part)

    monkeypatch.setattr(Switching, "_note_start", compacted_first)

    async def test(world: FaultyCluster) -> None:
        made, one = world.made, Written(0)
        await puts(world, one, (b"k0", b"v" * 500), *((b"k1", b"%d" % number + b"." * 400) for number in range(4)))
        worlds.append((world, one))
        await alter_configs(made.any(), make_diskless())
        await made.until(lambda: is_diskless(made))
        assert not worlds
        await check_keys(world, one)
        await without_disks(world)
        await check_keys(world, one)

    run(tmp_path, test, topic=COMPACTED)


def test_R3_a_leader_of_before_can_not_replace_segments(tmp_path: Path) -> None:
    """One that does not know yet that it is none has the newest rows, and its own log."""

    async def test(world: FaultyCluster) -> None:
        made = world.made
        await write_keys(world, Written(0), 20)
        await alter_configs(made.any(), make_diskless())
        await made.until(lambda: is_diskless(made))
        node = await world.leader_of(T0)
        part, storage = tier_of(node), diskless_of(node)._storage
        await made.until(lambda: part.remote.segments)
        another = replace(part.remote.segments[0], segment_id="another", key="another")
        for claim in ("", "of another"):

            def late(claim: str = claim) -> None:
                storage.rows.begin_copy(part.key, replace(another, segment_id=f"another {claim}"), 1)
                made_by = [replace(another, segment_id=f"another {claim}")]
                storage.rows.replace_copies(part.key, made_by, part.remote, first=0, count=1, claim=claim, now_ms=1)

            with pytest.raises(LateError):
                await storage.ask(late)
        claim = diskless_of(node).claim_to_copy(part)
        assert diskless_of(node).rows.claim_of(part.key) == claim != ""

    run(tmp_path, test, topic=COMPACTED)


def test_R9_O1_a_coordinator_answers_nothing_while_its_partition_takes_nothing_and_continues_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each attempt to make it diskless is given up, until one succeeds: what was answered is there after all."""
    tries, all_committed, is_held = [], Switching._all_committed, True

    async def committed(self: Switching, partition: Partition) -> None:
        await all_committed(self, partition)
        node = self._storage.node
        assert isinstance(node, Node)
        with pytest.raises(RetriableError) as refused:
            await commit_offset_at(node, "g", 99)
        tries.append(refused.value.code)
        if is_held:
            raise RetriableError("not yet, as planned", ErrorCode.KAFKA_STORAGE_ERROR)

    async def test(world: FaultyCluster) -> None:
        nonlocal is_held
        made = world.made
        await commit_offset(made, "g", 1)
        monkeypatch.setattr(Switching, "_all_committed", committed)
        await alter_configs(made.any(), make_diskless(topic=OFFSETS_TOPIC))
        for number in range(3):
            await made.until(lambda number=number: len(tries) > number)  # type: ignore[misc]
            await commit_offset(made, "g", 10 + number)
        is_held = False
        await made.until(lambda: is_diskless(made, TopicPartition(OFFSETS_TOPIC, 0)))
        assert set(tries) == {ErrorCode.NOT_COORDINATOR}
        assert await offset_of(made, "g") == 12
        await without_disks(world)
        assert await offset_of(made, "g") == 12
        await commit_offset(made, "g", 13)
        assert await offset_of(made, "g") == 13

    run(tmp_path, test, offsets_topic_num_partitions=1)


def test_D6_a_compacted_topic_whose_first_records_were_deleted_begins_where_it_did(tmp_path: Path) -> None:
    async def test(world: FaultyCluster) -> None:
        made, one = world.made, Written(0)
        await write_keys(world, one, 60)
        node = await world.leader_of(T0)
        await alter_configs(node, AlterConfigsRequest(ResourceType.TOPIC, "t", {"retention.bytes": "1500"}))
        await made.until(lambda: partition_of(node).log_start_offset > 0)
        await alter_configs(node, AlterConfigsRequest(ResourceType.TOPIC, "t", {"retention.bytes": "-1"}))
        begins = partition_of(node).log_start_offset
        before = await world.read(T0, begins, committed=False)
        await alter_configs(node, make_diskless())
        await made.until(lambda: is_diskless(made))
        await without_disks(world)
        node = await world.leader_of(T0)
        assert partition_of(node).log_start_offset == begins
        assert await world.read(T0, begins, committed=False) == before
        last = encode_batch(
            [(1_000, b"k", b"again", ())], producer_id=1, producer_epoch=0, base_sequence=one.sequence - 1
        )
        assert partition_of(node).append(bytearray(last)).appended == (), "its producer is known"

    run(
        tmp_path, test,
        topic={**COMPACTED, "cleanup.policy": "compact,delete", "min.cleanable.dirty.ratio": "1"},
    )  # fmt: skip


def test_D4_its_policy_stays_while_a_topic_becomes_diskless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: FaultyCluster) -> None:
        made = world.made
        world.objects.fault = lambda kind, key: "fail" if kind == "put" else ""
        await write_keys(world, Written(0), 20)
        await alter_configs(made.any(), make_diskless())
        node = await world.leader_of(T0)
        await made.until(lambda: error_of(node))
        request = AlterConfigsRequest(ResourceType.TOPIC, "t", {"cleanup.policy": "delete"})
        with pytest.raises(SemelError, match="while the topic becomes diskless: wait until it is"):
            await alter_configs(node, request)
        with pytest.raises(SemelError, match=r"is becoming diskless.* says what it waits for"):
            await alter_configs(node, make_diskless("false"))
        world.objects.fault = lambda kind, key: ""
        await made.until(lambda: is_diskless(made))
        await alter_configs(made.any(), request)
        await alter_configs(made.any(), AlterConfigsRequest(ResourceType.TOPIC, "t", {"retention.ms": "-1"}))
        with pytest.raises(SemelError, match="can't become compact"):
            await alter_configs(made.any(), AlterConfigsRequest(ResourceType.TOPIC, "t", {"cleanup.policy": "compact"}))

    run(tmp_path, test, topic=COMPACTED)
