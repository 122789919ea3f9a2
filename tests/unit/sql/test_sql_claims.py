"""Who may write a partition's rows: claims, zombies, members that come and go (E3, O4)."""

from __future__ import annotations

import itertools
import threading

import pytest
import sqlalchemy as sa
from sink_kit import PATIENCE_S, Kit, fail_after, wait_until

import semel
import semel.sql
from semel.protocol.errors import AbortTransactionError, ErrorCode, FencedError
from semel.sdk.sql.offsets import Step
from semel.sdk.sql.partition_claims import PartitionClaims
from semel.sdk.sql.sink_run import SinkRun

# --- Fencing ----------------------------------------------------------------------------------------------------------


def test_E3_O4_a_zombie_that_wakes_up_is_refused_and_its_successor_begins_where_it_stood(kit: Kit) -> None:
    kit.send(1, 2)
    static = {"instance_id": "one"}
    with kit.own(consumer=static) as zombie:
        batch = next(zombie.batches(max_records=1))
        with zombie.transaction(batch) as connection:
            connection.execute(sa.text("INSERT INTO log VALUES (0)"))
        asleep = next(zombie.batches(max_records=1))
        with kit.own(consumer=static) as successor:
            fresh = next(successor.batches(max_records=1))
            assert [record.offset for record in fresh] == [1]
            with pytest.raises(AbortTransactionError, match="claimed by member") as caught, zombie.transaction(asleep):
                raise AssertionError("a zombie got a connection to write with")
            assert caught.value.code is ErrorCode.ILLEGAL_GENERATION
            with successor.transaction(fresh) as connection:
                connection.execute(sa.text("INSERT INTO log VALUES (1)"))
            with pytest.raises(FencedError):
                list(zombie.batches(timeout_s=5))
    assert kit.rows("SELECT place FROM log") == [(0,), (1,)]


def test_O4_a_member_of_an_older_generation_cannot_claim(kit: Kit) -> None:
    """It was assigned the partition, slept, and looks at the database only after its successor has claimed."""
    kit.send(1)
    static = {"instance_id": "one"}
    with kit.own(consumer=static) as zombie:
        next(zombie.batches())
        member = zombie._state.consumer._core.committer()
        with kit.own(consumer=static) as successor:
            batch = next(successor.batches())
            claim = zombie._state.claims._claim_all([semel.TopicPartition(kit.topic, 0)], member)
            assert claim.granted == {}
            assert isinstance(claim.error, FencedError)
            with successor.transaction(batch):
                pass
    assert kit.position() == 1


def test_a_claim_is_lost_to_one_that_came_between(kit: Kit) -> None:
    kit.send(1)
    tp = semel.TopicPartition(kit.topic, 0)
    with kit.own() as sink:
        next(sink.batches())
        member = sink._state.consumer._core.committer()
        with sink._state.database.begin() as connection:
            seen = sink._state.offsets.read(connection, tp)
        assert seen is not None
        for expected in (seen.epoch + 1, None):
            with sink._state.database.begin() as connection:
                claimed = sink._state.offsets.claim(connection, tp, seen, 0, member)
            assert (claimed and claimed.epoch) == expected


def test_E3_a_claim_begins_where_the_former_owner_stood_when_it_lost_the_row(kit: Kit) -> None:
    """It could write until then, so a position that was read before says too little."""
    kit.send(1, 2)
    tp = semel.TopicPartition(kit.topic, 0)
    with kit.own() as sink:
        batch = next(sink.batches(max_records=1))
        with sink._state.database.begin() as connection:
            seen = sink._state.offsets.read(connection, tp)
        assert seen is not None
        assert seen.position == 0
        with sink.transaction(batch):
            pass
        member = sink._state.consumer._core.committer()
        with sink._state.database.begin() as connection:
            claimed = sink._state.offsets.claim(connection, tp, seen, 0, member)
        assert claimed is not None
        assert (claimed.position, claimed.epoch) == (1, seen.epoch + 1)


def test_E3_a_batch_of_an_older_claim_is_refused_before_the_database_is_asked(kit: Kit) -> None:
    kit.send(1, 2)
    tp = semel.TopicPartition(kit.topic, 0)
    with kit.own() as sink:
        batches = sink.batches(max_records=1)
        first, second = next(batches), next(batches)
        step = sink._state.steps[second][tp]
        with pytest.raises(ZeroDivisionError), sink.transaction(first) as connection:
            fail_after(connection, "INSERT INTO log VALUES (1)")
        again = next(batches)  # under a claim of its own
        assert [record.offset for record in again] == [0]
        assert sink._state.claims.is_ours(tp, sink._state.steps[again][tp])
        assert not sink._state.claims.is_ours(tp, step)
        with pytest.raises(AbortTransactionError, match="were claimed again"), sink.transaction(second):
            raise AssertionError("a batch of an older claim got a connection to write with")


def test_a_group_that_was_forgotten_and_made_again_is_no_zombie(kit: Kit) -> None:
    """Its generations begin at 1 again, which an order of generations alone would take for older ones."""
    kit.send({"id": 1, "n": 1})
    kit.write()
    kit.sql("UPDATE semel_offsets SET generation = 1000, member_id = 'somebody'")
    kit.send({"id": 2, "n": 2})
    kit.write()
    assert [row[0] for row in kit.rows()] == [1, 2]


def test_E3_rows_of_a_partition_that_has_gone_are_not_written_with_those_of_one_that_stayed(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are in what was read at once, and buffered."""
    topic = f"{kit.topic}-two"
    stays, gone = (semel.TopicPartition(topic, number) for number in (0, 1))
    kit.admin.create_topic(topic, partitions=2)
    kit.sql("CREATE TABLE written (source_partition INTEGER NOT NULL, source_offset INTEGER NOT NULL)")
    with semel.Producer(kit.node.bootstrap) as producer:
        for tp in (stays, gone, stays):
            producer.send(topic, "value", partition=tp.partition)

    def mapping(record: semel.Record) -> dict[str, int]:
        return {"source_partition": record.partition, "source_offset": record.offset}

    is_ours = PartitionClaims.is_ours
    monkeypatch.setattr(PartitionClaims, "is_ours", lambda places, tp, step: tp != gone and is_ours(places, tp, step))
    with kit.sink(topics=[topic], table="written", mapping=mapping) as sink:
        assert sink._target is not None
        sink_run = SinkRun(sink._state, sink._target, mapping)
        records: list[semel.Record] = []
        steps: dict[semel.TopicPartition, Step] = {}
        while len(records) < 3:
            if (batch := sink.poll(0.05, 1)) is not None:
                for tp, step in sink._state.steps.pop(batch).items():
                    steps[tp] = Step(step.epoch, steps.get(tp, step).position, step.next_position)
                records += batch
        sink_run._buffer.add(sink_run._mapped(records, steps))
        sink_run._begin()
        assert sink_run._writing is not None
        sink_run._writing.result(PATIENCE_S)
        sink_run.close()
    assert kit.rows("SELECT * FROM written ORDER BY source_offset") == [(0, 0), (0, 1)]


def test_E3_partitions_move_between_members_at_work_and_each_record_is_written_once(kit: Kit) -> None:
    topic = f"{kit.topic}-wide"
    kit.admin.create_topic(topic, partitions=4)
    kit.sql("CREATE TABLE written (source_partition INTEGER NOT NULL, source_offset INTEGER NOT NULL)")
    feeding = threading.Event()

    def feed() -> None:
        with semel.Producer(kit.node.bootstrap, linger_ms=0) as producer:
            for number in itertools.count():
                if feeding.wait(0.001):
                    return
                producer.send(topic, str(number), partition=number % 4)

    def member() -> semel.sql.Sink:
        def mapping(record: semel.Record) -> dict[str, int]:
            return {"source_partition": record.partition, "source_offset": record.offset}

        return kit.sink(topics=[topic], table="written", mapping=mapping, rows_max=20)

    def position() -> dict[int, int]:
        return dict(kit.rows("SELECT partition_number, position FROM semel_offsets"))

    feeder = threading.Thread(target=feed)
    feeder.start()
    sinks = [member() for _ in range(3)]
    threads = [threading.Thread(target=sink.run) for sink in sinks]
    for sink, thread in zip(sinks, threads, strict=True):
        sink.__enter__()
        thread.start()
        wait_until(lambda sink=sink: sink.statistics()["records"] > 50)
    sinks[0].stop()  # leaves in the middle
    threads[0].join(30)
    sinks[0].close()
    feeding.set()
    feeder.join(30)
    tps = [semel.TopicPartition(topic, number) for number in range(4)]
    with semel.Consumer(kit.node.bootstrap) as reader:
        reader.assign(tps)
        ends = {tp.partition: end for tp, end in reader.end_offsets().items()}
    wait_until(lambda: position() == ends)
    for sink, thread in zip(sinks[1:], threads[1:], strict=True):
        sink.stop()
        thread.join(PATIENCE_S)
        sink.close()
    rows = kit.rows("SELECT source_partition, source_offset FROM written ORDER BY rowid")
    for number, end in ends.items():
        assert [offset for partition, offset in rows if partition == number] == list(range(end))
    assert sum(sink.statistics()["records"] for sink in sinks) == len(rows)
