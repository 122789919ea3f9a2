"""Replicas are moved between whole nodes (KIP-455): nothing is lost on the way, and nothing of it comes back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from cluster import Cluster
from moving_cluster import T0, create, moved, run

from semel.broker.diagnostics.replication import moving_partitions, throttled_topics
from semel.broker.handlers.partition_decisions import DECIDED_TOGETHER
from semel.broker.handlers.reassignments import Reassignment, reassign, reassignments
from semel.broker.handlers.topics.changes import create_internal_topic, create_topics
from semel.broker.metadata.changes import Change
from semel.broker.metadata.image import MetadataImage
from semel.protocol.api.topics import NewTopic
from semel.protocol.errors import ErrorCode, RetriableError
from semel.protocol.ids import OFFSETS_TOPIC, TopicPartition


def has_directory(made: Cluster, node_id: int, tp: TopicPartition) -> bool:
    return made.disks[node_id].exists(f"/data/{tp}")


def has_directories(made: Cluster, replicas: tuple[int, ...]) -> bool:
    """Say whether these nodes, and no others, have the partition on their disks."""
    return [node_id for node_id in (1, 2, 3) if has_directory(made, node_id, T0)] == sorted(replicas)


def test_R1_D1_a_partition_goes_round_all_nodes_and_nothing_is_lost(tmp_path: Path) -> None:
    async def test(made: Cluster) -> None:
        await create(made, 1, 2, min_isr=2)
        values: dict[int, bytes] = {}
        for number, replicas in enumerate(((2, 3), (3, 1), (1,), (2,), (3, 2, 1), (1, 2))):
            values[await made.produce(T0, b"value-%d" % number)] = b"value-%d" % number
            await moved(made, T0, *replicas)
            assert made.state(T0).leader in replicas
            await made.until(partial(has_directories, made, replicas))
        assert list(values) == list(range(6)), "no offset is left out, or given twice"
        await made.until(lambda: all(made.nodes[each].partition(T0).high_watermark == 6 for each in (1, 2)))  # type: ignore[union-attr]
        leader = made.state(T0).leader
        log = b"".join(data for _, data in made.values(leader, T0))
        assert all(log.count(value) == 1 for value in values.values())

    run(tmp_path, test)


def test_a_move_waits_for_a_node_that_is_away_and_can_be_seen_and_cancelled(tmp_path: Path) -> None:
    async def test(made: Cluster) -> None:
        await create(made, 1, 2, min_isr=1)
        before = made.state(T0).replicas
        (away,) = {1, 2, 3}.difference(before)
        await made.kill(away)
        stays = before[0]
        assert await reassign(made.nodes[stays], {T0: (stays, away)}) == {T0: None}
        expected = Reassignment(T0, (stays, away, before[1]), (away,), (before[1],))
        for wanted in (None, [T0], [T0, TopicPartition("t", 7), TopicPartition("none", 0)]):
            assert await reassignments(made.nodes[stays], wanted) == [expected]
        assert await reassignments(made.nodes[stays], [TopicPartition("t", 7)]) == []
        assert await moving_partitions(made.nodes[stays]) == 1
        await made.produce(T0, b"1")
        assert await reassign(made.nodes[stays], {T0: None}) == {T0: None}
        assert (made.state(T0).replicas, made.state(T0).is_moving) == ((stays, before[1]), False)
        assert await reassignments(made.nodes[stays]) == []
        assert await moving_partitions(made.nodes[stays]) == 0
        refused = await reassign(made.nodes[stays], {T0: None})
        assert refused[T0] is not None
        assert refused[T0].code is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
        assert await reassign(made.nodes[stays], {T0: (away, stays)}) == {T0: None}
        await made.start(away)
        await made.in_sync(T0, away, stays)
        await made.until(lambda: made.state(T0).replicas == (away, stays))

    run(tmp_path, test)


def test_the_doctor_hears_of_topics_whose_replicas_are_throttled(tmp_path: Path) -> None:
    async def test(made: Cluster) -> None:
        throttles = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
        configs = [{throttles[0]: "*"}, {throttles[1]: "0:1"}, {throttles[0]: ""}, {"min.insync.replicas": "1"}]
        await create_topics(made.nodes[1], [NewTopic(f"t{n}", 1, 1, each) for n, each in enumerate(configs)])
        assert throttled_topics(made.nodes[1]) == ["t0", "t1"]

    run(tmp_path, test)


def test_R5_who_gets_a_replica_back_begins_with_nothing_also_after_a_power_cut(tmp_path: Path) -> None:
    """The journal has what it had before the move: that is not put back into the log that it has now."""

    async def test(made: Cluster) -> None:
        await create(made, 1, 2, min_isr=1)
        first, second = made.state(T0).replicas
        (third,) = {1, 2, 3}.difference((first, second))
        for number in range(3):
            await made.produce(T0, b"%d" % number)
        await moved(made, T0, first, third)
        await made.until(lambda: not has_directory(made, second, T0))
        await made.kill(third)
        await made.in_sync(T0, first)
        await moved(made, T0, first, second)
        await made.produce(T0, b"3")
        await made.until(lambda: made.nodes[second].partition(T0).high_watermark == 4)  # type: ignore[union-attr]
        await made.kill(second, power=True)
        await made.start(second)
        await made.in_sync(T0, first, second)
        assert made.values(first, T0)[0][1] == made.values(second, T0)[0][1]
        await made.start(third)
        await made.until(lambda: not has_directory(made, third, T0))
        assert made.nodes[third].partition(T0) is None, "it was moved away while its node was down"

    run(tmp_path, test)


def test_S3_many_partitions_are_decided_on_a_part_at_a_time_and_each_for_itself(tmp_path: Path) -> None:
    """One request named twenty thousand, and the event loop was held for half a second. The database fails midway."""

    async def test(made: Cluster) -> None:
        await create_topics(made.any(), [NewTopic("t", assignments=dict.fromkeys(range(5), (1, 2)))])
        wanted = {TopicPartition("t", number): (2, 1) for number in range(3 * DECIDED_TOGETHER)}
        node, sizes = made.nodes[1], list[int]()
        change = node.metadata.change

        async def measured(decide: Callable[[MetadataImage], Sequence[Change]], **options: bool) -> MetadataImage:
            sizes.append(0)

            def counted(image: MetadataImage) -> Sequence[Change]:
                found = decide(image)
                sizes[-1] = len(found)
                return found

            if len(sizes) == 3:
                raise RetriableError("the database is away", ErrorCode.BROKER_NOT_AVAILABLE)
            return await change(counted, **options)

        node.metadata.change = measured  # type: ignore[method-assign, assignment]
        outcomes = await reassign(node, wanted)
        assert sizes == [5, 0, 0]
        assert list(outcomes) == list(wanted)
        codes = [None if error is None else error.code for error in outcomes.values()]
        absent = 2 * DECIDED_TOGETHER - 5
        assert codes == [None] * 5 + [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * absent + (
            [ErrorCode.BROKER_NOT_AVAILABLE] * DECIDED_TOGETHER
        )
        assert made.state(T0).replicas == (2, 1)

    run(tmp_path, test, nodes=2)


def test_coordinators_move_with_their_replicas(tmp_path: Path) -> None:
    async def test(made: Cluster) -> None:
        await create_internal_topic(made.nodes[1], OFFSETS_TOPIC)
        offsets = TopicPartition(OFFSETS_TOPIC, 0)
        for target in (2, 3, 1):
            await moved(made, offsets, target)
            groups = made.nodes[target].groups
            await made.until(lambda groups=groups: groups.shard_states().get("active") == 1)
            others = [made.nodes[each].groups for each in {1, 2, 3} - {target}]
            assert all(not each.shard_states().get("active") for each in others)

    run(tmp_path, test, offsets_topic_num_partitions=1, offsets_topic_replication_factor=1)
