"""Three whole nodes on one metadata database: what one's death, return, silence and stop mean to the others."""

from __future__ import annotations

import asyncio
import copy
import errno
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster, cluster
from kafka_calls import call
from two_nodes import secret_file

from semel.broker import node as node_module
from semel.broker.acls.rights import ALL_RIGHTS
from semel.broker.handlers.configs import alter_configs
from semel.broker.handlers.leadership import elect_leaders
from semel.broker.handlers.reassignments import reassign
from semel.broker.handlers.topics.changes import create_internal_topic, create_topics
from semel.broker.logs.leader_state import LeaderState
from semel.broker.logs.partition import Partition
from semel.broker.metadata import image as image_module
from semel.broker.metadata.changes import METADATA_VERSION, Change, PartitionChanged
from semel.broker.metadata.image import MetadataImage
from semel.broker.permitted.topics import delete
from semel.broker.start_errors import NodeStartError
from semel.protocol.api.metadata import ALL_NODES, AlterConfigsRequest, ResourceType
from semel.protocol.api.producer_ids import InitProducerIdRequest
from semel.protocol.api.topics import NewTopic
from semel.protocol.errors import ErrorCode, UsageError
from semel.protocol.ids import OFFSETS_TOPIC, TopicPartition
from semel.protocol.kafka.api import ApiKey
from semel.runtime.simulated_storage import SimulatedStorage

T0 = TopicPartition("t", 0)


def copy_of(disk: SimulatedStorage) -> SimulatedStorage:
    """Return a copy of a disk whose node does not run."""
    return SimulatedStorage(98, copy.deepcopy(disk._disk))


def run(folder: Path, test: Callable[[Cluster], Awaitable[None]], **settings: Any) -> None:
    async def main() -> None:
        async with asyncio.timeout(180), cluster(folder, **settings) as three:
            await test(three)

    asyncio.run(main())


def test_R1_D1_acknowledged_records_survive_each_leader_that_is_killed(tmp_path: Path) -> None:
    async def test(three: Cluster) -> None:
        await three.create("t", min_insync_replicas="2")
        await three.in_sync(T0, 1, 2, 3)
        written = {}
        for round_ in range(2):
            for number in range(5):
                value = b"%d-%d" % (round_, number)
                written[await three.produce(T0, value)] = value
            killed = three.state(T0).leader
            epoch = three.state(T0).leader_epoch
            await three.kill(killed)
            written[await three.produce(T0, b"after %d" % round_)] = b"after %d" % round_
            assert three.state(T0).leader not in (killed, -1)
            assert three.state(T0).leader_epoch > epoch
            await three.start(killed)
            await three.in_sync(T0, 1, 2, 3)
        await three.until(
            lambda: len({one.partition(T0).log_end_offset for one in three.nodes.values()}) == 1  # type: ignore[union-attr]
        )
        assert len(written) == 12
        logs = [b"".join(data for _, data in three.values(node_id, T0)) for node_id in (1, 2, 3)]
        assert logs[0] == logs[1] == logs[2]
        for value in written.values():
            assert logs[0].count(value) == 1

    run(tmp_path, test)


def test_R4_a_node_that_stops_hands_over_what_it_leads_before(tmp_path: Path) -> None:
    async def test(three: Cluster) -> None:
        await three.create("t", partitions=3, min_insync_replicas="2")
        tps = [TopicPartition("t", number) for number in range(3)]
        for tp in tps:
            await three.produce(tp, b"1")
            await three.in_sync(tp, 1, 2, 3)
        seen: list[int] = []
        watcher = three.nodes[2].metadata
        watcher.add_listener(lambda _, image: seen.extend(one.leader for one in image.topics["t"].partitions))
        await three.stop(1)
        for tp in tps:
            assert three.state(tp).leader in (2, 3)
            assert three.leader(tp) is not None, "it knows before the other is gone"
            await three.produce(tp, b"2")
        assert -1 not in seen, "no partition was without a leader"
        assert 1 not in three.state(tps[0]).isr
        await three.start(1)
        for tp in tps:
            await three.in_sync(tp, 1, 2, 3)

    run(tmp_path, test)


def test_R5_a_node_that_is_not_heard_of_is_fenced_and_returns_when_it_is(tmp_path: Path) -> None:
    async def test(three: Cluster) -> None:
        await three.create("t", min_insync_replicas="2")
        await three.in_sync(T0, 1, 2, 3)
        silent = three.state(T0).leader
        three.stores[silent].is_cut = True
        others = {1, 2, 3} - {silent}
        await three.until(lambda: three.state(T0).leader in others)
        await three.produce(T0, b"without it")
        three.stores[silent].is_cut = False
        await three.in_sync(T0, 1, 2, 3)
        node = three.nodes[silent]
        await three.until(lambda: not node.metadata.image.brokers[silent].is_fenced)
        run_of_it, now_s = (silent, node.metadata.broker_epoch), node.clock.monotonic()
        sessions = [one._cluster._false_alarms.session_ms(run_of_it, 1_000, now_s) for one in three.nodes.values()]
        assert max(sessions) == 2_000, "the controller has noted its error"

    run(tmp_path, test)


def test_R4_others_lead_what_a_process_led_that_is_gone_though_its_session_is_not_over(tmp_path: Path) -> None:
    async def test(three: Cluster) -> None:
        await three.create("t", min_insync_replicas="2")
        await three.in_sync(T0, 1, 2, 3)
        await three.produce(T0, b"before")
        gone = three.state(T0).leader
        listener = three.nodes[gone].peer_listener
        assert listener is not None
        await three.kill(gone)
        await listener.stop(0)  # the sockets of a process end with it
        await three.produce(T0, b"after")
        assert three.state(T0).leader not in (gone, -1)
        seen: list[bool] = []
        watcher = three.any().metadata
        watcher.add_listener(lambda _, image: seen.append(image.brokers[gone].is_fenced))
        for number in range(5):
            await three.create(f"after-{number}", replicas=2)
            await asyncio.sleep(0.1)
        assert all(seen), "it is not taken for alive again because its session is not over"
        await three.start(gone)
        await three.in_sync(T0, 1, 2, 3)

    run(tmp_path, test, broker_session_timeout_ms=600_000)


def test_a_node_that_answers_is_given_more_time_than_its_session(tmp_path: Path) -> None:
    """As on a busy machine, or where it does not reach the database for a while and serves its clients."""

    async def test(three: Cluster) -> None:
        await three.create("t", min_insync_replicas="2")
        await three.in_sync(T0, 1, 2, 3)
        controller = next(node for node in three.nodes.values() if node.metadata.controller_epoch >= 0)
        late = next(number for number, node in three.nodes.items() if node is not controller)
        changes: list[int] = []
        controller.metadata.add_listener(lambda _, image: changes.append(image.sequence))
        three.stores[late].is_cut = True
        session_ms = controller.config.broker_session_timeout_ms
        silent: set[int] = set()
        while late not in silent:
            await asyncio.sleep(0.05)
            silent = {each.node_id for each in await controller.metadata.silent_nodes(2 * session_ms)}
        three.stores[late].is_cut = False
        assert changes == [], "nobody was fenced"
        await three.until(lambda: three.nodes[late].metadata.reached_since is not None)
        await three.produce(T0, b"all are there")
        assert set(three.state(T0).isr) == {1, 2, 3}

    run(tmp_path, test)


def test_while_the_database_is_away_what_is_led_goes_on(tmp_path: Path) -> None:
    async def test(three: Cluster) -> None:
        await three.create("t", min_insync_replicas="2")
        await three.in_sync(T0, 1, 2, 3)
        before = three.state(T0)
        for store in three.stores.values():
            store.is_cut = True
        for number in range(5):
            await three.produce(T0, b"%d" % number)
            await asyncio.sleep(0.5)
        for node in three.nodes.values():  # each has ids of its own since its start
            given = await node.transactions.init_producer_id(InitProducerIdRequest(None, 60_000))
            assert given.producer.producer_id >= 0
        (refused,) = await asyncio.gather(create_topics(three.any(), [NewTopic("u", 1, 3)]), return_exceptions=True)
        assert isinstance(refused, Exception)
        for store in three.stores.values():
            store.is_cut = False
        await three.create("u")
        assert three.state(T0) == before, "nobody is taken for dead because nobody could be heard of"

    run(tmp_path, test)


def test_a_database_that_hangs_and_fails_nothing_makes_nobody_dead(tmp_path: Path) -> None:
    async def test(three: Cluster) -> None:
        await three.create("t", min_insync_replicas="2")
        await three.in_sync(T0, 1, 2, 3)
        before = three.state(T0)
        controller = next(node for node in three.nodes.values() if node.metadata.controller_epoch >= 0)
        others = [store for number, store in three.stores.items() if three.nodes[number] is not controller]
        for store in three.stores.values():
            store.hang()
        await asyncio.sleep(3.5)  # longer than a session
        three.stores[controller.config.node_id].go_on()
        reached_at = controller.metadata.reached_at
        await three.until(lambda: controller.metadata.reached_at > reached_at + 0.5)
        for store in others:
            store.go_on()
        await three.until(lambda: all(node.metadata.reached_at > reached_at + 5 for node in three.nodes.values()))
        assert three.state(T0) == before

    run(tmp_path, test)


def test_a_follower_whose_next_record_is_deleted_at_the_leader_begins_again_there(tmp_path: Path) -> None:
    async def test(three: Cluster) -> None:
        await three.create("t")
        await three.in_sync(T0, 1, 2, 3)
        await three.produce(T0, b"0")
        away = next(iter({1, 2, 3} - {three.state(T0).leader}))
        await three.kill(away)
        for number in range(1, 6):
            await three.produce(T0, b"%d" % number)
        leader = three.leader(T0)
        assert leader is not None
        partition = leader.partition(T0)
        assert partition is not None
        partition.delete_records(5)
        await three.start(away)
        await three.in_sync(T0, 1, 2, 3)
        here = three.nodes[away].partition(T0)
        assert here is not None
        assert (here.log_start_offset, here.log_end_offset) == (5, 6)
        assert three.values(away, T0) == three.values(leader.config.node_id, T0)

    run(tmp_path, test)


def test_D3_records_that_were_deleted_stay_so_under_the_next_leader(tmp_path: Path) -> None:
    async def test(three: Cluster) -> None:
        await three.create("t", min_insync_replicas="2")
        await three.in_sync(T0, 1, 2, 3)
        for number in range(5):
            await three.produce(T0, b"%d" % number)
        for before in (2, 4):
            leader = three.leader(T0)
            assert leader is not None
            deleted = (await delete(leader, ALL_RIGHTS, {T0: before}))[T0]
            assert (deleted.error, deleted.log_start_offset) == (ErrorCode.NONE, before)
            await three.kill(leader.config.node_id)
            await three.until(lambda: three.leader(T0) is not None)
            for node in three.nodes.values():
                partition = node.partition(T0)
                assert partition is not None
                assert partition.log_start_offset == before
            await three.start(leader.config.node_id)
            await three.in_sync(T0, 1, 2, 3)

    run(tmp_path, test)


def test_D3_a_deletion_that_a_replica_does_not_hear_of_is_not_answered_as_done(tmp_path: Path) -> None:
    async def test(three: Cluster) -> None:
        await three.create("t", min_insync_replicas="2")
        await three.in_sync(T0, 1, 2, 3)
        await three.produce(T0, b"0")
        leader = three.leader(T0)
        assert leader is not None
        deaf = next(node for node in three.nodes.values() if node is not leader)
        deaf.peers.cut_off()
        refused = (await delete(leader, ALL_RIGHTS, {T0: 1}, timeout_ms=100))[T0]
        assert refused.error is ErrorCode.REQUEST_TIMED_OUT
        assert "delete again" in refused.message
        deaf.peers.let_out()
        assert (await delete(leader, ALL_RIGHTS, {T0: 1}))[T0].error is ErrorCode.NONE
        partition = deaf.partition(T0)
        assert partition is not None
        assert partition.log_start_offset == 1

    run(tmp_path, test, replica_lag_time_max_ms=60_000)


def test_a_leader_that_was_deposed_does_not_refuse_a_deletion_for_good(tmp_path: Path) -> None:
    """It does not know of later records: OFFSET_OUT_OF_RANGE would end what a client should ask the next leader."""

    async def test(three: Cluster) -> None:
        await three.create("t", min_insync_replicas="2")
        await three.in_sync(T0, 1, 2, 3)
        await three.produce(T0, b"0")
        old = three.leader(T0)
        assert old is not None
        assert (await delete(old, ALL_RIGHTS, {T0: 3}))[T0].error is ErrorCode.OFFSET_OUT_OF_RANGE
        three.stores[old.config.node_id].is_cut = True
        await three.until(lambda: three.leader(T0) not in (None, old))
        for number in (1, 2):
            await three.produce(T0, b"%d" % number)
        refused = (await delete(old, ALL_RIGHTS, {T0: 3}))[T0]
        assert refused.error is ErrorCode.LEADER_NOT_AVAILABLE
        assert "try again" in refused.message
        three.stores[old.config.node_id].is_cut = False
        assert (await delete(old, ALL_RIGHTS, {T0: 3}))[T0].error is ErrorCode.NOT_LEADER_OR_FOLLOWER
        leader = three.leader(T0)
        assert leader is not None
        assert (await delete(leader, ALL_RIGHTS, {T0: 3}))[T0].log_start_offset == 3
        assert (await delete(leader, ALL_RIGHTS, {T0: 4}))[T0].error is ErrorCode.OFFSET_OUT_OF_RANGE

    run(tmp_path, test)


@pytest.mark.parametrize("leads_again", [False, True])
def test_D3_a_leader_that_is_deposed_while_its_disk_notes_a_deletion_does_not_say_that_it_is_done(
    tmp_path: Path, leads_again: bool
) -> None:
    """The next leader may know nothing of it, and has the records again."""

    async def test(three: Cluster) -> None:
        await three.create("t", min_insync_replicas="2")
        await three.in_sync(T0, 1, 2, 3)
        await three.produce(T0, b"0")
        leader = three.leader(T0)
        assert leader is not None
        partition = leader.partition(T0)
        assert partition is not None
        noted, led = leader.logs.maintenance.log_starts_noted, partition.leader
        assert led is not None

        async def deposed(partitions: Iterable[Partition]) -> None:
            await noted(partitions)
            partition.follow(led.leader_epoch + 1, 3)
            if leads_again:
                again = LeaderState(
                    led.node_id, leader_epoch=led.leader_epoch + 2, partition_epoch=led.partition_epoch + 2,
                    replicas=led.replicas, isr=led.isr, min_isr=2, begin_offset=partition.log_end_offset, now_s=0.0,
                )  # fmt: skip
                partition.lead(again)

        leader.logs.maintenance.log_starts_noted = deposed  # type: ignore[method-assign]
        refused = (await delete(leader, ALL_RIGHTS, {T0: 1}, timeout_ms=1_000))[T0]
        assert (refused.error, refused.log_start_offset) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
        assert "delete again" in refused.message

    run(tmp_path, test)


def test_D1_a_deletion_is_answered_once_the_disks_of_all_that_may_lead_have_it(tmp_path: Path) -> None:
    """Else a follower that loses power has the records again, and may be the next leader."""

    async def test(three: Cluster) -> None:
        await three.create("t", min_insync_replicas="2")
        await three.in_sync(T0, 1, 2, 3)
        for number in range(5):
            await three.produce(T0, b"%d" % number)
        leader = three.leader(T0)
        assert leader is not None
        followers = {1, 2, 3} - {leader.config.node_id}
        for node_id in followers:
            full = OSError(errno.EIO, "no start can be noted")
            three.disks[node_id].fail_next("rename", full, path_part="log-start-offset-checkpoint", times=1_000)
        refused = (await delete(leader, ALL_RIGHTS, {T0: 4}, timeout_ms=1_000))[T0]
        assert refused.error is ErrorCode.REQUEST_TIMED_OUT
        for node_id in followers:
            three.disks[node_id].fail_no_more()
        deleted = (await delete(leader, ALL_RIGHTS, {T0: 4}))[T0]
        assert (deleted.error, deleted.log_start_offset) == (ErrorCode.NONE, 4)
        for node_id in (1, 2, 3):
            await three.kill(node_id, power=True)
        for node_id in followers:
            await three.start(node_id)
        await three.until(lambda: three.leader(T0) is not None)
        for node in three.nodes.values():
            partition = node.partition(T0)
            assert partition is not None
            assert partition.log_start_offset == 4

    run(tmp_path, test)


@pytest.mark.parametrize("step", ["rename", "make_folder", "create"])
def test_a_log_that_could_not_be_begun_again_at_first_comes_once_the_disk_takes_it(tmp_path: Path, step: str) -> None:
    async def test(three: Cluster) -> None:
        await three.create("t")
        await three.in_sync(T0, 1, 2, 3)
        away = next(iter({1, 2, 3} - {three.state(T0).leader}))
        await three.kill(away)
        for number in range(6):
            await three.produce(T0, b"%d" % number)
        leader = three.leader(T0)
        assert leader is not None
        partition = leader.partition(T0)
        assert partition is not None
        partition.delete_records(5)
        three.disks[away].fail_next(step, OSError(errno.ENOSPC, "no space left"), path_part="/t-0", times=2)
        await three.start(away)
        await three.in_sync(T0, 1, 2, 3)
        here = three.nodes[away].partition(T0)
        assert here is not None
        assert (here.log_start_offset, here.log_end_offset) == (5, 6)
        assert not len(three.nodes[away].logs.offline)

    run(tmp_path, test)


def test_a_log_of_two_replicas_is_made_and_led_where_the_metadata_says(tmp_path: Path) -> None:
    async def test(three: Cluster) -> None:
        (result,) = await create_topics(three.any(), [NewTopic("t", 6, 2)])
        assert result.error is ErrorCode.NONE
        for number in range(6):
            tp = TopicPartition("t", number)
            await three.produce(tp, b"v")
            state = three.state(tp)
            assert {node_id for node_id, node in three.nodes.items() if node.partition(tp)} == set(state.replicas)
        leaders = [three.state(TopicPartition("t", number)).leader for number in range(6)]
        assert {leaders.count(node_id) for node_id in (1, 2, 3)} == {2}

    run(tmp_path, test)


def test_a_node_without_peer_listen_and_a_cluster_keep_each_other_out(tmp_path: Path) -> None:
    async def test(one: Cluster) -> None:
        says = r"(node 1 runs on this metadata|is the controller).* set peer\.listen and cluster\.secret\.file"
        with pytest.raises(NodeStartError, match=says):
            await one.start(2, peer_listen="", cluster_secret_file="")
        del one.nodes[1]

    async def alone(one: Cluster) -> None:
        with pytest.raises(NodeStartError, match=r"node 1 runs alone on sqlite.*has no peer.listen"):
            await one.start(2)

    async def main() -> None:
        async with cluster(tmp_path, 1) as one:
            kept = one.nodes[1]
            await test(one)
            one.nodes[1] = kept
        other = tmp_path / "other"
        other.mkdir()
        first = Cluster(other, {})
        await first.start(1, peer_listen="", cluster_secret_file="")
        try:
            await alone(first)
        finally:
            await first.nodes[1].stop()

    asyncio.run(main())


def test_a_node_with_another_secret_does_not_join(tmp_path: Path) -> None:
    """It could not replicate with the others, and they would only tell of it in their logs."""

    async def test(one: Cluster) -> None:
        other = tmp_path / "other"
        other.mkdir()
        with pytest.raises(NodeStartError, match=r"another secret than node 1's: copy that node's file here"):
            await one.start(2, cluster_secret_file=secret_file(other, b"another" * 10))
        assert set(one.any().metadata.image.brokers) == {1}
        await one.start(2)
        await one.create("t", replicas=2)
        await one.in_sync(T0, 1, 2)

    async def main() -> None:
        async with cluster(tmp_path, 1) as one:
            await test(one)

    asyncio.run(main())


def test_a_rolling_upgrade_raises_the_metadata_version_with_the_last_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What only the new version reads may be written then, and not before. From then on there is no way back."""

    async def test(three: Cluster) -> None:
        newer = METADATA_VERSION + 1
        await three.create("t", min_insync_replicas="2")
        await three.in_sync(T0, 1, 2, 3)
        monkeypatch.setattr(image_module, "METADATA_VERSION", newer)
        monkeypatch.setattr(node_module, "METADATA_VERSION", newer)
        for node_id in (1, 2, 3):
            assert three.any().metadata.image.version == METADATA_VERSION
            await three.stop(node_id)
            await three.start(node_id)
            await three.in_sync(T0, 1, 2, 3)
            await three.produce(T0, b"%d" % node_id)
        await three.until(lambda: all(node.metadata.image.version == newer for node in three.nodes.values()))
        await three.stop(1)
        with monkeypatch.context() as older:
            older.setattr(image_module, "METADATA_VERSION", METADATA_VERSION)
            with pytest.raises(NodeStartError, match="install that one here"):
                await three.start(1)
        await three.start(1)
        await three.in_sync(T0, 1, 2, 3)

    run(tmp_path, test)


def test_R4_a_log_that_the_disk_refuses_now_is_an_operators_first_choice_and_loses_nothing(tmp_path: Path) -> None:
    """Nobody knows whether it is whole, so no election takes it. An operator does, before one that was left behind."""

    async def test(three: Cluster) -> None:
        await three.create("t", min_insync_replicas="1")
        await three.in_sync(T0, 1, 2, 3)
        last = three.state(T0).replicas[2]
        others = sorted({1, 2, 3} - {last})
        for node_id in others:
            await three.kill(node_id)
        await three.in_sync(T0, last)
        written = [await three.produce(T0, b"%d" % number) for number in range(3)]
        await three.kill(last)
        three.disks[last].fail_next("open", OSError(errno.EIO, "I/O error"), path_part="t-0/0", times=30)
        await three.start(last)
        for node_id in others:
            await three.start(node_id)
        await three.until(lambda: all(not broker.is_fenced for broker in three.any().metadata.image.brokers.values()))
        assert (three.state(T0).leader, three.state(T0).isr, three.state(T0).elr) == (-1, (), ())
        assert three.state(T0).last_known_elr == (last,)
        assert await elect_leaders(three.any(), [T0], unclean=True) == {T0: None}
        assert three.state(T0).leader == last
        three.disks[last].fail_no_more()
        await three.in_sync(T0, 1, 2, 3)
        assert await three.produce(T0, b"3") == len(written) == 3

    run(tmp_path, test)


def test_a_secret_can_be_changed_while_all_nodes_are_stopped(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, 2) as both:
            for node_id in (1, 2):
                await both.stop(node_id)
            other = tmp_path / "other"
            other.mkdir()
            path = secret_file(other, b"another" * 10)
            for node_id in (1, 2):
                await both.start(node_id, cluster_secret_file=path)
            await both.create("t", replicas=2)
            await both.in_sync(T0, 1, 2)

    asyncio.run(main())


def test_R5_a_second_process_does_not_take_the_place_of_a_node_that_lives(tmp_path: Path) -> None:
    """A mistyped node.id: the node that has it continues, and its records are not given up."""

    async def test(three: Cluster) -> None:
        await three.create("t", min_insync_replicas="2")
        await three.in_sync(T0, 1, 2, 3)
        right, disk = three.nodes[2], three.disks.pop(2)
        epoch = right.metadata.broker_epoch
        with pytest.raises(NodeStartError, match=r"another node 2 runs, at 127\.0\.0\.1:\d+ .* a node\.id of its own"):
            await three.start(2)
        three.disks[2] = disk
        assert not right.failed.done()
        assert three.nodes[1].metadata.image.brokers[2].epoch == epoch
        await three.produce(T0, b"v")

    run(tmp_path, test, broker_session_timeout_ms=600)


def test_R5_a_lost_machine_is_replaced_once_it_counts_as_dead(tmp_path: Path) -> None:
    async def test(three: Cluster) -> None:
        await three.create("t", min_insync_replicas="2")
        await three.in_sync(T0, 1, 2, 3)
        await three.produce(T0, b"v")
        await three.kill(2)
        three.disks[2] = SimulatedStorage(2)
        await three.start(2)
        await three.in_sync(T0, 1, 2, 3)
        assert three.values(2, T0) == three.values(1, T0)

    run(tmp_path, test)


@pytest.mark.parametrize("lost", ["the partition's directory", "all"])
def test_R4_what_a_node_has_lost_it_gets_from_the_others_and_never_leads_with(tmp_path: Path, lost: str) -> None:
    """Two of three are down, so the third can't be elected; the one that comes back first has lost everything."""

    async def test(three: Cluster) -> None:
        await three.create("t", min_insync_replicas="2")
        await three.in_sync(T0, 1, 2, 3)
        for number in range(5):
            await three.produce(T0, b"%d" % number)
        other, first = sorted({1, 2, 3} - {three.state(T0).leader})
        for node_id in (other, first):
            await three.stop(node_id)
        assert three.state(T0).elr == (first,), "with all that it had it would be elected"
        last = three.state(T0).leader
        before = three.values(last, T0)
        await three.kill(last)
        if lost == "all":
            three.disks[first] = SimulatedStorage(99)
        else:
            three.disks[first].remove_tree(f"/data/{T0}")
        await three.start(first)
        await three.until(lambda: three.state(T0).leader != last)
        assert three.state(T0).leader == -1, "the only one alive has nothing"
        await three.start(last)
        await three.start(other)
        await three.in_sync(T0, 1, 2, 3)
        for node_id in (1, 2, 3):
            assert b"".join(data for _, data in three.values(node_id, T0)) == b"".join(data for _, data in before)

    run(tmp_path, test)


@pytest.mark.parametrize("durability", ["disk", "os"])
@pytest.mark.parametrize("is_copied_clean", [True, False])
def test_R4_an_older_copy_of_a_nodes_directory_is_never_taken_for_complete(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, durability: str, is_copied_clean: bool
) -> None:
    """The node ran on after the copy, and was the last that had all records. Somebody puts the copy back."""

    async def test(three: Cluster) -> None:
        await three.create("t", min_insync_replicas="2")
        await three.in_sync(T0, 1, 2, 3)
        await three.produce(T0, b"before")
        other, first = sorted({1, 2, 3} - {three.state(T0).leader})
        await (three.stop(first) if is_copied_clean else three.kill(first))
        older = copy_of(three.disks[first])
        await three.start(first)
        await three.in_sync(T0, 1, 2, 3)
        await three.produce(T0, b"after")
        for node_id in (other, first):
            await three.stop(node_id)
        assert three.state(T0).elr == (first,), "with all that it had it would be elected"
        last = three.state(T0).leader
        before = three.values(last, T0)
        await (three.kill(last) if durability == "disk" else three.stop(last))
        three.disks[first] = older
        await three.start(first)
        await three.until(lambda: three.state(T0).leader != last)
        assert three.state(T0).leader == -1, "the only one alive has an older copy"
        assert "is an older copy" in caplog.text
        await three.stop(first)
        await three.start(first)  # it has run since, and lacks what it lacked
        assert three.state(T0).leader == -1
        await three.start(last)
        await three.start(other)
        await three.in_sync(T0, 1, 2, 3)
        for node_id in (1, 2, 3):
            assert b"".join(data for _, data in three.values(node_id, T0)) == b"".join(data for _, data in before)

    run(tmp_path, test, durability=durability)


def test_a_topic_of_one_node_gets_replicas_on_the_nodes_that_come(tmp_path: Path) -> None:
    async def main() -> None:
        async with asyncio.timeout(180), cluster(tmp_path, 1) as three:
            first = three.nodes[1]
            await create_internal_topic(first, OFFSETS_TOPIC)
            await three.create("t", replicas=1)
            offsets = [await three.produce(T0, b"%d" % number) for number in range(3)]
            await three.start(2)
            await three.start(3)
            internal = TopicPartition(OFFSETS_TOPIC, 0)
            await three.in_sync(internal, 1, 2, 3)
            assert three.state(T0).replicas == (1,), "an operator says where those of topics are"
            assert await reassign(three.nodes[3], {T0: (1, 2, 3)}) == {T0: None}
            await three.in_sync(T0, 1, 2, 3)
            assert three.state(T0).leader == 1
            offsets.append(await three.produce(T0, b"3"))
            await three.kill(1)
            offsets.append(await three.produce(T0, b"4"))
            assert offsets == [0, 1, 2, 3, 4]
            refused = await reassign(three.nodes[3], {T0: (2, 9), TopicPartition("t", 9): (1,)})
            assert [error.code for error in refused.values() if error is not None] == [
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ]

    asyncio.run(main())


def test_clients_are_not_sent_to_a_node_that_is_taken_for_dead(tmp_path: Path) -> None:
    async def test(three: Cluster) -> None:
        await three.kill(2)
        node = three.nodes[3]
        await three.until(lambda: node.metadata.image.brokers[2].is_fenced)
        port = node.kafka_address.port
        answer = await call(port, ApiKey.METADATA, 12, topics=[], allow_auto_topic_creation=False)
        assert sorted(one.node_id for one in answer.brokers) == [1, 3]
        for asks_for_fenced, expected in ((False, {1: False, 3: False}), (True, {1: False, 2: True, 3: False})):
            answer = await call(
                port, ApiKey.DESCRIBE_CLUSTER, 2, endpoint_type=1, include_fenced_brokers=asks_for_fenced
            )
            assert {int(one.broker_id): one.is_fenced for one in answer.brokers} == expected

    run(tmp_path, test)


def test_replicas_of_a_dead_node_are_told_as_offline_and_those_that_may_lead_as_eligible(tmp_path: Path) -> None:
    async def test(three: Cluster) -> None:
        await three.create("t", min_insync_replicas="3")
        await three.in_sync(T0, 1, 2, 3)
        topics = [{"name": "t", "topic_id": bytes(16)}]
        for node in three.nodes.values():
            answer = await call(node.kafka_address.port, ApiKey.METADATA, 12, topics=topics)
            assert [list(one.offline_replicas) for one in answer.topics[0].partitions] == [[]]
        await three.kill(2)
        port, metadata = three.nodes[3].kafka_address.port, three.nodes[3].metadata
        await three.until(lambda: metadata.image.brokers[2].is_fenced)
        answer = await call(port, ApiKey.METADATA, 12, topics=topics)
        assert [list(one.offline_replicas) for one in answer.topics[0].partitions] == [[2]]
        asked = {"topics": [{"name": "t"}], "response_partition_limit": 10, "cursor": None}
        (partition,) = (await call(port, ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, **asked)).topics[0].partitions
        assert (list(partition.offline_replicas), list(partition.eligible_leader_replicas)) == ([2], [2])

    run(tmp_path, test)


def test_partitions_that_are_added_by_hand_have_as_many_replicas_as_the_others(tmp_path: Path) -> None:
    async def test(three: Cluster) -> None:
        (made,) = await create_topics(three.any(), [NewTopic("t", 1, 2)])
        assert made.error is ErrorCode.NONE
        port = three.any().kafka_address.port
        for replicas, code in (([1, 2, 3], 39), ([1], 39), ([2, 3], 0)):
            wanted = {"name": "t", "count": 2, "assignments": [{"broker_ids": replicas}]}
            answer = await call(port, ApiKey.CREATE_PARTITIONS, 3, topics=[wanted], timeout=30_000, validate_only=False)
            assert answer.results[0].error_code == code, answer
        assert three.state(TopicPartition("t", 1)).replicas == (2, 3)

    run(tmp_path, test)


def test_R4_a_lower_min_insync_replicas_ends_the_eligibility_of_those_that_are_away(tmp_path: Path) -> None:
    async def test(three: Cluster) -> None:
        await three.create("t", min_insync_replicas="3")
        await three.in_sync(T0, 1, 2, 3)
        leader = three.state(T0).leader
        away = next(iter({1, 2, 3} - {leader}))
        await three.kill(away)
        await three.until(lambda: three.state(T0).elr == (away,))
        await alter_configs(
            three.nodes[leader], AlterConfigsRequest(ResourceType.TOPIC, "t", {"min.insync.replicas": "2"})
        )
        assert three.state(T0).elr == (), "decided with the setting itself"
        await three.produce(T0, b"with two in sync")

    run(tmp_path, test)


def test_R4_a_leader_commits_nothing_while_a_replica_is_eligible_by_another_setting_and_asks_to_end_that(
    tmp_path: Path,
) -> None:
    async def test(three: Cluster) -> None:
        await three.create("t", min_insync_replicas="2")
        await three.in_sync(T0, 1, 2, 3)
        leader = three.leader(T0)
        assert leader is not None
        away = next(iter({1, 2, 3} - {three.state(T0).leader}))
        await three.kill(away)
        await three.until(lambda: away not in three.state(T0).isr)
        await three.produce(T0, b"it lacks this")
        topic_id = leader.metadata.image.topics["t"].topic_id

        def by_another_setting(image: MetadataImage) -> list[Change]:
            state = image.partition(T0)
            assert state is not None
            after = replace(state, elr=(away,), partition_epoch=state.partition_epoch + 1)
            return [PartitionChanged("t", topic_id, 0, after)]

        await leader.metadata.change(by_another_setting)
        await three.produce(T0, b"and this")
        assert three.state(T0).elr == (), "nothing is committed before"

    run(tmp_path, test)


def test_min_insync_replicas_of_one_node_alone_is_refused(tmp_path: Path) -> None:
    async def test(three: Cluster) -> None:
        change = AlterConfigsRequest(ResourceType.BROKER, "1", {"min.insync.replicas": "2"})
        with pytest.raises(UsageError, match="must be the same on all nodes") as refused:
            await alter_configs(three.nodes[1], change)
        assert refused.value.code is ErrorCode.INVALID_CONFIG
        await alter_configs(three.nodes[1], replace(change, resource_name=ALL_NODES))

    run(tmp_path, test)
