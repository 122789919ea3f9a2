"""Batches that are processed in transactions, aborted, tried again: no record is skipped, and none processed twice."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator

import pytest
from consumer_kit import Kit, nothing, poll_until, read, values

import semel
from semel.protocol.errors import AbortTransactionError, UsageError
from semel.protocol.ids import TopicPartition
from semel.testing import Broker


@pytest.fixture(scope="module")
def node() -> Iterator[Broker]:
    with Broker() as node:
        yield node


@pytest.fixture
def kit(node: Broker) -> Iterator[Kit]:
    kit = Kit(node, "sync")
    yield kit
    kit.close()


class ChangeOfMindError(Exception):
    """The application changes its mind."""


def take(consumer: semel.Consumer, count: int) -> semel.Batch:
    """Poll exactly `count` records of one poll."""
    for _ in range(50):
        batch = consumer.poll(1.0, count)
        if batch is not None:
            assert len(batch) == count
            return batch
    raise AssertionError("nothing came")


def test_a_batch_is_a_sequence_of_records_with_its_places(kit: Kit) -> None:
    (a,) = kit.create()
    kit.fill(*"abc")
    reader = kit.member()
    batch = take(reader, 2)
    assert (len(batch), values(batch), values(batch[1:]), batch[0].offset) == (2, ["a", "b"], ["b"], 0)
    assert batch.first_offsets == {a: 0}
    assert batch.next_offsets == {a: semel.OffsetAndMetadata(2)}
    assert repr(batch) == f"<Batch of 2 records: {a}@0..2>"
    assert batch.group_metadata.group_id == kit.group
    alone = kit.consumer()
    alone.assign([a])
    with pytest.raises(UsageError, match=r"make the consumer with Consumer\(..., group='name'\)"):
        take(alone, 1).group_metadata.group_id  # noqa: B018


def test_O4_offsets_are_committed_as_todays_member_only_where_nothing_has_changed(kit: Kit) -> None:
    """Each of these alone makes the coordinator the judge: another member, and a partition that was away."""
    (a,) = kit.create()
    kit.fill(*"ab")
    reader = kit.member()
    batch = take(reader, 1)
    core, states = reader._core, batch._polled.states
    today = batch.group_metadata
    earlier = dataclasses.replace(today, generation_id=today.generation_id - 1)
    assert core.metadata_for(states, earlier) == today, "it has had the partition all the time"
    other = dataclasses.replace(today, member_id="an earlier membership", generation_id=1)
    assert core.metadata_for(states, other) == other
    core.subscription.set_assignment([])
    core.subscription.set_assignment([a])
    assert core.metadata_for(states, earlier) == earlier


def test_what_was_rewound_is_returned_again_by_the_next_poll(kit: Kit) -> None:
    kit.create()
    kit.fill(*"abcd")
    reader = kit.member()
    take(reader, 1)
    batch = take(reader, 2)
    batch.begin()
    batch.rewind()
    batch.rewind()
    assert read(reader, 3) == ["b", "c", "d"]
    with pytest.raises(UsageError, match="was rewound, and later polls return its records again"):
        batch.begin()


def test_a_batch_that_is_tried_again_does_not_come_again(kit: Kit) -> None:
    kit.create()
    kit.fill(*"abcd")
    reader = kit.member()
    batch = take(reader, 2)
    for _ in range(3):
        batch.begin()
        batch.rewind()
    batch.begin()
    assert read(reader, 2) == ["c", "d"]


def test_E1_a_rewind_under_an_iteration_takes_its_place_back(kit: Kit) -> None:
    """The place of the iteration counted, and a commit lost the records that were rewound."""
    (a,) = kit.create()
    kit.fill(*"abcd")
    reader = kit.member()
    first = take(reader, 1)
    assert next(iter(reader)).offset == 1
    assert reader.position(a) == 2
    first.rewind()
    assert reader.position(a) == 0
    reader.commit()
    assert reader.committed()[a] == semel.OffsetAndMetadata(0)


def test_a_rewind_takes_later_batches_of_the_same_partitions_along(kit: Kit) -> None:
    """Also what those have of other partitions, for they can't be processed as a whole any more."""
    a, b, c = kit.create(3)
    kit.fill("a0", "a1")
    reader = kit.member()
    first = take(reader, 1)
    kit.fill("b0", partition=1)
    second = read_as_one(reader, {"a1", "b0"})
    kit.fill("b1", partition=1)
    kit.fill("c0", partition=2)
    third = read_as_one(reader, {"b1", "c0"})
    kit.fill("c1", partition=2)
    first.begin()
    first.rewind()
    for later in (second, third):
        with pytest.raises(UsageError, match="return its records again"):
            later.begin()
    assert sorted(read(reader, 6)) == ["a0", "a1", "b0", "b1", "c0", "c1"]
    assert {reader.position(tp) for tp in (a, b, c)} == {2}


def test_a_rewind_goes_back_before_a_later_one_of_the_same_partition(kit: Kit) -> None:
    """It was taken for a repetition of the later one, and the records between the two were lost."""
    (a,) = kit.create(1)
    reader = kit.member()
    kit.fill("a0")
    first = take(reader, 1)
    kit.fill("a1")
    second = take(reader, 1)
    second.rewind()
    first.rewind()
    assert reader.position(a) == 0
    with pytest.raises(UsageError, match="return its records again"):
        second.begin()
    assert read(reader, 2) == ["a0", "a1"]


def test_a_batch_that_came_again_is_not_rewound_by_its_predecessor(kit: Kit) -> None:
    (a,) = kit.create(1)
    reader = kit.member()
    kit.fill("a0")
    first = take(reader, 1)
    first.rewind()
    again = take(reader, 1)
    again.begin()
    first.rewind()
    assert reader.position(a) == 1
    with pytest.raises(UsageError, match="return its records again"):
        first.begin()


def read_as_one(consumer: semel.Consumer, expected: set[str]) -> semel.Batch:
    """Poll until one batch has exactly these records; what came apart is put back first."""
    for _ in range(100):
        batch = consumer.poll(1.0)
        if batch is None:
            continue
        if set(values(batch)) == expected:
            return batch
        batch.rewind()
    raise AssertionError(f"{expected} never came together")


def test_a_rewind_leaves_later_batches_of_other_partitions_alone(kit: Kit) -> None:
    kit.create(2)
    kit.fill("a0")
    reader = kit.member()
    first = take(reader, 1)
    kit.fill("b0", partition=1)
    second = take(reader, 1)
    first.rewind()
    second.begin()
    assert read(reader, 1) == ["a0"]
    nothing(reader)


def test_a_rewind_leaves_a_later_batch_alone_that_is_processed_already(kit: Kit) -> None:
    kit.create(2)
    kit.fill("a0")
    reader = kit.member()
    first = take(reader, 1)
    kit.fill("b0", partition=1)
    second = take(reader, 1)
    second.begin()
    first.rewind()
    assert read(reader, 1) == ["a0"]
    nothing(reader)


def test_a_seek_of_the_user_does_not_make_a_batch_come_again(kit: Kit) -> None:
    (a,) = kit.create()
    kit.fill(*"abc")
    reader = kit.member()
    batch = take(reader, 2)
    reader.seek(a, 2)
    batch.begin()
    assert read(reader, 1) == ["c"]


def test_a_batch_of_a_partition_that_has_gone_and_come_back_is_not_put_back(kit: Kit) -> None:
    """Another member may have been further meanwhile, so rewinding would process its records twice."""
    kit.create()
    kit.fill(*"abcd")
    reader = kit.member()
    batch = take(reader, 2)
    batch.begin()
    reader.unsubscribe()
    other = kit.member()
    assert read(other, 3, max_records=3) == ["a", "b", "c"]
    other.commit()
    other.close()
    reader.subscribe([kit.topic])
    assert read(reader, 1) == ["d"]
    batch.rewind()
    nothing(reader)


def test_O4_E1_a_batch_of_a_partition_that_has_gone_can_not_be_committed(kit: Kit) -> None:
    (a,) = kit.create()
    kit.fill(*"abcd")
    reader = kit.member()
    batch = take(reader, 2)
    with semel.Producer(kit.node.bootstrap, transactional_id=kit.topic) as producer:
        transaction = producer.transaction(commits=batch)
        transaction.__enter__()
        reader.unsubscribe()
        other = kit.member()
        assert read(other, 4) == list("abcd")
        with pytest.raises(AbortTransactionError):
            transaction.__exit__(None, None, None)
        reader.subscribe([kit.topic])
        with pytest.raises(AbortTransactionError), producer.transaction(commits=batch):
            pass
        other.commit()
        assert other.committed() == {a: semel.OffsetAndMetadata(4)}


def test_E1_a_cooperative_rebalance_does_not_abort_what_it_leaves_alone(kit: Kit) -> None:
    """The batch was read in an older generation, but its partition has stayed with this member all the time."""
    tps = kit.create(2)
    for tp in tps:
        kit.fill("x", partition=tp.partition)
    reader = kit.member()
    batches = {}
    while len(batches) < 2:
        batch = reader.poll(1.0, 1)
        if batch is not None:
            batches[next(iter(batch.next_offsets))] = batch
    old = reader.group_metadata()
    other = kit.member()
    poll_until(lambda: len(other.assignment()) == 1 == len(reader.assignment()), reader, other)
    (kept,) = reader.assignment()
    (gone,) = other.assignment()
    # The other one may have its share before the reader has been told of its own: until then the reader is who it was.
    poll_until(lambda: batches[kept].group_metadata == reader.group_metadata(), reader, other)
    assert reader.group_metadata() != old
    assert batches[gone].group_metadata == old
    with semel.Producer(kit.node.bootstrap, transactional_id=kit.topic) as producer:
        with producer.transaction(commits=batches[kept]):
            pass
        with pytest.raises(AbortTransactionError), producer.transaction(commits=batches[gone]):
            pass
    assert reader.committed(tps) == {kept: semel.OffsetAndMetadata(1), gone: None}


@pytest.mark.parametrize("assignor", ["cooperative-sticky", "range"])
def test_E1_each_record_is_processed_once_by_members_that_abort_and_come_and_go(kit: Kit, assignor: str) -> None:
    """Consume, transform, produce in one thread, with rebalances between any two steps; the seed is fixed."""
    draw = random.Random(f"{assignor}7")
    tps = kit.create(4)
    kit.create(topic=f"{kit.topic}-out")
    for tp in tps:
        kit.fill(*(f"{tp.partition}/{n}" for n in range(40)), partition=tp.partition)
    workers: list[tuple[semel.Consumer, semel.Producer]] = []
    names = iter(range(100))

    def join() -> None:
        producer = semel.Producer(kit.node.bootstrap, transactional_id=f"{kit.topic}-{next(names)}", linger_ms=0)
        workers.append((kit.member(assignors=assignor), producer))

    def work(consumer: semel.Consumer, producer: semel.Producer) -> None:
        batch = consumer.poll(0.02, draw.randint(1, 12))
        for _ in range(10 if batch is not None else 0):
            try:
                with producer.transaction(commits=batch) as txn:
                    for record in batch:
                        txn.send(f"{kit.topic}-out", record.value, partition=0)
                    if draw.random() < 0.3:
                        raise ChangeOfMindError
            except (ChangeOfMindError, AbortTransactionError):
                if draw.random() < 0.5:
                    return  # it is returned again
            else:
                return

    join()
    reader = kit.consumer()
    reader.assign([TopicPartition(f"{kit.topic}-out", 0)])
    out: list[str] = []
    for step in range(2_000):
        if len(out) >= 160:
            break
        if step % 15 == 0 and len(workers) < 3:
            join()
        if step % 40 == 39:
            consumer, producer = workers.pop(draw.randrange(len(workers)))
            consumer.close()
            producer.close()
        work(*draw.choice(workers))
        batch = reader.poll(0)
        out += values(batch) if batch is not None else []
    for _, producer in workers:
        producer.close()
    nothing(reader)
    assert sorted(out) == sorted(f"{tp.partition}/{n}" for tp in tps for n in range(40))
