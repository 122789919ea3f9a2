"""The source without Spark around it: its planning as Spark asks for it on the driver, its reading as in a task."""

from __future__ import annotations

import asyncio
import json
import pickle
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from everything_diskless import diskless_options
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows
from pyspark.sql.types import StringType, StructType
from spark_query import read_table, read_values, settled_values, source

import semel
from semel.cli.demo.processes import NodeProcess
from semel.protocol.errors import ErrorCode, FatalError, UsageError
from semel.protocol.ids import TopicPartition
from semel.sdk.arrow.range_reader import DataLossError
from semel.sdk.shared import calls as shared_calls
from semel.sdk.shared.api import SharedTransaction
from semel.sdk.transport.unreachable import UnreachableError
from semel.spark.options import offsets_from_json
from semel.spark.source.offset_ranges import OffsetRange, limited, split
from semel.spark.source.stream_reader import SemelStreamReader

NewTopic = Callable[..., str]


def fill(bootstrap: str, topic: str, *parts: Sequence[str], **options: Any) -> None:
    """Write values into partitions 0, 1 and so on."""
    with semel.Producer(bootstrap, **options) as producer:
        for partition, part in enumerate(parts):
            for value in part:
                producer.send(topic, value.encode(), partition=partition)
        producer.flush()


def numbers(count: int, first: int = 0) -> list[str]:
    return [str(number) for number in range(first, first + count)]


def stream(bootstrap: str, topic: str, **options: str) -> SemelStreamReader:
    data_source = source(bootstrap=bootstrap, subscribe=topic, **options)
    return data_source.streamReader(data_source.schema())


def read_parts(reader: SemelStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[str]:
    """What the tasks of a batch read, on copies of a reader that has planned nothing."""
    copy = pickle.dumps(reader)
    values: list[str] = []
    for part in reader.partitions(start=start, end=end):
        for batch in pickle.loads(copy).read(pickle.loads(pickle.dumps(part))):
            values += [value.decode() for value in batch.column("value").to_pylist()]
    return values


# --- What is read -----------------------------------------------------------------------------------------------------


def test_columns_are_those_of_the_kafka_source(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()
    with semel.Producer(bootstrap) as producer:
        producer.send(topic, b"v", key=b"k", headers=[("a", b"1"), ("b", None)], timestamp_ms=1_700_000_000_123)
        producer.send(topic, None, key=None, timestamp_ms=1_700_000_000_124)
        producer.flush()
    table = read_table(bootstrap=bootstrap, subscribe=topic, includeHeaders="true")
    names = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"]
    assert table.column_names == names
    first, second = table.to_pylist()
    assert first["timestamp"].timestamp() == 1_700_000_000.123
    assert (first["key"], first["value"], first["topic"], first["partition"]) == (b"k", b"v", topic, 0)
    assert (first["offset"], first["timestampType"]) == (0, 0)
    assert first["headers"] == [{"key": "a", "value": b"1"}, {"key": "b", "value": None}]
    assert (second["key"], second["value"], second["offset"], second["headers"]) == (None, None, 1, None)


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_any_amount_in_any_compression_comes_whole_and_in_order(
    bootstrap: str, new_topic: NewTopic, compression: str
) -> None:
    topic = new_topic()
    expected = [f"{number:>200}" for number in range(30_000)]
    fill(bootstrap, topic, expected, compression=compression)
    table = read_table(bootstrap=bootstrap, subscribe=topic)
    assert [value.decode() for value in table.column("value").to_pylist()] == expected
    assert table.column("offset").to_pylist() == list(range(30_000))
    assert max(len(chunk) for chunk in table.column("value").chunks) <= 10_000


def test_L3_aborted_records_and_markers_are_left_out_unless_asked_for(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()
    with semel.Producer(bootstrap, transactional_id=f"tx-{topic}") as producer:
        for number in range(30):
            with suppress(RuntimeError), producer.transaction() as transaction:
                transaction.send(topic, str(number).encode())
                producer.flush()
                if number % 3 == 0:
                    raise RuntimeError("changed my mind")
    committed = [str(number) for number in range(30) if number % 3]
    settled_values(bootstrap, topic)
    assert read_values(bootstrap, topic) == committed
    assert read_values(bootstrap, topic, kafka__isolation__level="read_uncommitted") == numbers(30)
    # Also where a task begins in the middle of what was aborted.
    for start in range(0, 60, 7):
        bounds = json.dumps({topic: {"0": start}})
        found = read_values(bootstrap, topic, startingOffsets=bounds)
        assert found == committed[len(committed) - len(found) :]


def test_L2_a_batch_ends_before_what_is_not_decided(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()
    fill(bootstrap, topic, ["decided"])
    with semel.Producer(bootstrap, transactional_id=f"tx-{topic}") as producer:
        with producer.transaction() as transaction:
            transaction.send(topic, b"open")
            producer.flush()
            assert read_values(bootstrap, topic) == ["decided"]
            assert read_values(bootstrap, topic, kafka__isolation__level="read_uncommitted") == ["decided", "open"]
        assert settled_values(bootstrap, topic) == ["decided", "open"]


# --- Where it starts and ends -----------------------------------------------------------------------------------------


def test_offsets_bound_a_batch(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic(2)
    fill(bootstrap, topic, numbers(10), numbers(10, 100))
    start, end = json.dumps({topic: {"0": 7, "1": -2}}), json.dumps({topic: {"0": -1, "1": 2}})
    assert read_values(bootstrap, topic, startingOffsets=start, endingOffsets=end) == ["7", "8", "9", "100", "101"]
    assert len(read_values(bootstrap, topic, startingOffsets="earliest", endingOffsets="latest")) == 20
    with pytest.raises(UsageError, match=f"leaves out {topic}-1"):
        read_values(bootstrap, topic, startingOffsets=json.dumps({topic: {"0": 7}}))


def test_timestamps_bound_a_batch_and_go_before_offsets(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic(2)
    with semel.Producer(bootstrap) as producer:
        for partition in (0, 1):
            for number in range(10):
                value = f"{partition}-{number}".encode()
                producer.send(topic, value, partition=partition, timestamp_ms=1_000 * (number + 1) + partition)
        producer.flush()
    found = read_values(
        bootstrap,
        topic,
        startingTimestamp="9001",
        startingOffsetsByTimestamp=json.dumps({topic: {"0": 1, "1": 1}}),
        startingOffsets="earliest",
    )
    assert found == ["0-9", "1-8", "1-9"]
    by_partition = json.dumps({topic: {"0": 10_000, "1": 9_000}})
    assert read_values(bootstrap, topic, startingOffsetsByTimestamp=by_partition, startingOffsets="earliest") == found
    assert read_values(bootstrap, topic, endingTimestamp="2001") == ["0-0", "0-1", "1-0"]
    assert len(read_values(bootstrap, topic, endingTimestamp="99999")) == 20
    with pytest.raises(UsageError, match="no record at or after 10001"):
        read_values(bootstrap, topic, startingTimestamp="10001")
    strategy = {"startingOffsetsByTimestampStrategy": "latest"}
    assert read_values(bootstrap, topic, startingTimestamp="10001", **strategy) == ["1-9"]


def test_a_query_starts_where_a_group_stands(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic(2)
    fill(bootstrap, topic, numbers(5), numbers(5, 100))
    with semel.Admin(bootstrap) as admin:
        admin.alter_group_offsets(f"g-{topic}", {TopicPartition(topic, 0): 3})
    options = {"startingOffsets": "committed", "kafka__group__id": f"g-{topic}"}
    assert read_values(bootstrap, topic, **options) == ["3", "4", *numbers(5, 100)]
    assert stream(bootstrap, topic, **options).initialOffset() == {topic: {"0": 3, "1": 0}}


def test_topics_are_selected_by_list_pattern_or_assignment(bootstrap: str, new_topic: NewTopic) -> None:
    one, other = new_topic(2), new_topic()
    fill(bootstrap, one, ["a"], ["b"])
    fill(bootstrap, other, ["c"])

    def found(**options: str) -> list[str]:
        return sorted(v.decode() for v in read_table(bootstrap=bootstrap, **options).column("value").to_pylist())

    assert found(subscribe=f"{one}, {other}") == ["a", "b", "c"]
    assert found(subscribePattern=f"{one[:10]}.*|{other}") == ["a", "b", "c"]
    assert found(subscribePattern=one[:-1]) == []
    assert found(assign=json.dumps({one: [1], other: [0]})) == ["b", "c"]
    with pytest.raises(FatalError, match="no topic 'nobody-made-it'"):
        found(subscribe="nobody-made-it")
    with pytest.raises(UsageError, match="partition 7"):
        found(assign=json.dumps({one: [7]}))


def test_the_address_of_the_kafka_listener_is_enough(node: NodeProcess, new_topic: NewTopic) -> None:
    topic = new_topic()
    fill(node.bootstrap, topic, ["a"])
    table = read_table(kafka__bootstrap__servers=f"127.0.0.1:1,{node.kafka_address}", subscribe=topic)
    assert table.column("value").to_pylist() == [b"a"]
    table = read_table(kafka__bootstrap__servers=node.bootstrap, subscribe=topic)  # its gRPC listener, as it were
    assert table.column("value").to_pylist() == [b"a"]
    with pytest.raises(UnreachableError, match=r"nothing listens on 127\.0\.0\.1:1"):
        read_table(kafka__bootstrap__servers="127.0.0.1:1", subscribe=topic, kafka__default__api__timeout__ms="1000")


# --- Streams ----------------------------------------------------------------------------------------------------------


def test_batches_are_limited_in_proportion_and_new_partitions_start_at_their_beginning(
    bootstrap: str, new_topic: NewTopic
) -> None:
    topic = new_topic(2)
    fill(bootstrap, topic, numbers(90), numbers(10, 1000))
    reader = stream(bootstrap, topic, startingOffsets="earliest", maxOffsetsPerTrigger="20")
    start = reader.initialOffset()
    assert start == {topic: {"0": 0, "1": 0}}
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(20)
    end = reader.latestOffset(start=start, limit=limit)
    assert offsets_from_json(end, "end") == {TopicPartition(topic, 0): 18, TopicPartition(topic, 1): 2}
    assert reader.reportLatestOffset() == {topic: {"0": 90, "1": 10}}
    assert read_parts(reader, start, end) == [*numbers(18), "1000", "1001"]
    assert reader.latestOffset(start=end, limit=ReadAllAvailable()) == {topic: {"0": 90, "1": 10}}
    with semel.Admin(bootstrap) as admin:
        admin.add_partitions(topic, 3)
    fill(bootstrap, topic, [], [], ["new"])
    whole = stream(bootstrap, topic)
    late = whole.latestOffset(start=end, limit=ReadAllAvailable())
    assert late == {topic: {"0": 90, "1": 10, "2": 1}}
    assert "new" in read_parts(whole, end, late)


def test_a_new_partition_counts_from_its_start_towards_the_size_of_a_batch(bootstrap: str, new_topic: NewTopic) -> None:
    """Taken to begin at its end, all that it had before would come with one batch, whatever the limit."""
    topic = new_topic(2)
    fill(bootstrap, topic, numbers(4), numbers(40))
    reader = stream(bootstrap, topic, maxOffsetsPerTrigger="10")
    end = reader.latestOffset(start={topic: {"0": 4}}, limit=ReadMaxRows(10))
    assert end == {topic: {"0": 4, "1": 10}}


def test_an_offset_that_has_not_moved_keeps_the_text_of_another_source(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic(2)
    fill(bootstrap, topic, ["a"], ["b"])
    written_by_kafka_source = json.loads(f'{{"{topic}":{{"1":1,"0":1}}}}')
    reader = stream(bootstrap, topic)
    again = reader.latestOffset(start=written_by_kafka_source, limit=ReadAllAvailable())
    assert json.dumps(again) == json.dumps(written_by_kafka_source)
    half = json.loads(f'{{"{topic}":{{"1":0,"0":1}}}}')
    assert read_parts(reader, half, reader.latestOffset(start=half, limit=ReadAllAvailable())) == ["b"]


def test_a_minimum_is_waited_for_but_not_past_the_delay(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()
    fill(bootstrap, topic, numbers(5))
    patient = stream(bootstrap, topic, minOffsetsPerTrigger="10", maxTriggerDelay="1h")
    limit = patient.getDefaultReadLimit()
    assert limit == ReadMinRows(10)
    first = patient.latestOffset(start={topic: {"0": 0}}, limit=limit)
    assert first == {topic: {"0": 5}}  # the first batch does not wait
    fill(bootstrap, topic, numbers(5))
    assert patient.latestOffset(start=first, limit=limit) == first
    assert patient.latestOffset(start=first, limit=ReadAllAvailable()) == {topic: {"0": 10}}
    fill(bootstrap, topic, numbers(5))
    assert patient.latestOffset(start=first, limit=limit) == {topic: {"0": 15}}
    hasty = stream(bootstrap, topic, minOffsetsPerTrigger="10", maxTriggerDelay="0ms")
    hasty.latestOffset(start={topic: {"0": 5}}, limit=limit)
    assert hasty.latestOffset(start={topic: {"0": 14}}, limit=limit) == {topic: {"0": 15}}


def test_available_now_ends_at_what_was_there(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()
    fill(bootstrap, topic, numbers(5))
    reader = stream(bootstrap, topic, maxOffsetsPerTrigger="3")
    reader.prepareForTriggerAvailableNow()
    fill(bootstrap, topic, numbers(5))
    limit = reader.getDefaultReadLimit()
    assert reader.latestOffset(start={topic: {"0": 0}}, limit=limit) == {topic: {"0": 3}}
    assert reader.latestOffset(start={topic: {"0": 3}}, limit=limit) == {topic: {"0": 5}}
    assert reader.latestOffset(start={topic: {"0": 5}}, limit=limit) == {topic: {"0": 5}}


# --- Lost data --------------------------------------------------------------------------------------------------------


def test_lost_records_are_an_error_or_passed_over(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()
    fill(bootstrap, topic, numbers(10))
    with semel.Admin(bootstrap) as admin:
        admin.delete_records({TopicPartition(topic, 0): 6})
    start, end = {topic: {"0": 2}}, {topic: {"0": 10}}
    with pytest.raises(DataLossError, match=r"offset 2 .* starts at 6.*failOnDataLoss"):
        read_parts(stream(bootstrap, topic), start, end)
    lenient = stream(bootstrap, topic, failOnDataLoss="false")
    assert read_parts(lenient, start, end) == numbers(4, 6)
    assert read_parts(lenient, start, {topic: {"0": 5}}) == []
    bounds = json.dumps(start)
    with pytest.raises(DataLossError):
        read_values(bootstrap, topic, startingOffsets=bounds)
    assert read_values(bootstrap, topic, startingOffsets=bounds, failOnDataLoss="false") == numbers(4, 6)


def test_a_topic_that_was_created_again_is_lost_data(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()
    fill(bootstrap, topic, numbers(2))
    start = {topic: {"0": 9}, "gone": {"0": 4}}
    with pytest.raises(DataLossError, match="gone-0 is gone"):
        stream(bootstrap, topic).partitions(start=start, end={topic: {"0": 2}})
    with pytest.raises(DataLossError, match="ends at offset 2, before the 9"):
        stream(bootstrap, topic).partitions(start={topic: {"0": 9}}, end={topic: {"0": 2}})
    lenient = stream(bootstrap, topic, failOnDataLoss="false")
    assert lenient.partitions(start=start, end={topic: {"0": 2}}) == []
    other = new_topic()
    fill(bootstrap, other, numbers(3))
    with semel.Admin(bootstrap) as admin:
        admin.delete_topic(topic)
    with pytest.raises(FatalError, match="no topic"):
        stream(bootstrap, topic).latestOffset(start=start, limit=ReadAllAvailable())
    both = stream(bootstrap, f"{topic},{other}", failOnDataLoss="false")
    start = {topic: {"0": 2}, other: {"0": 2}}
    end = both.latestOffset(start=start, limit=ReadAllAvailable())
    assert end == {other: {"0": 3}}  # where the other one stands is not forgotten
    assert read_parts(both, start, end) == ["2"]


def test_a_node_that_comes_back_is_waited_for(tmp_path: Any) -> None:
    node = NodeProcess(tmp_path / "data", settings=("disk.min.free.bytes=0", *diskless_options()))
    node.start()
    try:
        with semel.Admin(node.bootstrap) as admin:
            admin.create_topic("t", partitions=1)
        fill(node.bootstrap, "t", [f"{number:>1000}" for number in range(8_000)])
        reader = stream(node.bootstrap, "t")
        (part,) = reader.partitions(start={"t": {"0": 0}}, end={"t": {"0": 8_000}})
        batches = reader.read(part)
        rows = next(batches).num_rows
        node.kill()
        node.start()
        assert rows + sum(batch.num_rows for batch in batches) == 8_000
    finally:
        node.stop()


# --- Arithmetic -------------------------------------------------------------------------------------------------------


def test_a_limit_is_shared_in_proportion_and_starves_none() -> None:
    tps = [TopicPartition("t", number) for number in range(3)]
    start = dict.fromkeys(tps, 100)
    latest = {tps[0]: 1100, tps[1]: 101, tps[2]: 100}
    assert limited(start, latest, 100) == {tps[0]: 199, tps[1]: 101, tps[2]: 100}
    assert limited(start, latest, 1_000_000) == latest
    assert limited(start, {tps[0]: 50}, 10) == {tps[0]: 50}


@pytest.mark.parametrize(("least", "most", "expected"), [(None, None, 2), (2, None, 2), (5, None, 5), (None, 10, 11)])
def test_ranges_are_split_without_loss(least: int | None, most: int | None, expected: int) -> None:
    ranges = [OffsetRange("t", 0, 5, 105), OffsetRange("t", 1, 0, 3), OffsetRange("t", 2, 7, 7)]
    parts = split(ranges, least, most)
    assert len(parts) == expected
    covered = {(part.partition, offset) for part in parts for offset in range(part.start, part.end)}
    assert covered == {(each.partition, offset) for each in ranges for offset in range(each.start, each.end)}
    assert sum(part.size for part in parts) == 103
    assert most is None or max(part.size for part in parts) <= most
    assert len(split(ranges, 1000)) == 103  # no more tasks than records


def test_a_split_batch_reads_the_same(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic(2)
    fill(bootstrap, topic, numbers(1_000), numbers(7, 5_000))
    expected = read_values(bootstrap, topic)
    assert read_values(bootstrap, topic, minPartitions="9") == expected
    assert read_values(bootstrap, topic, maxRecordsPerPartition="13") == expected
    data_source = source(bootstrap=bootstrap, subscribe=topic, maxRecordsPerPartition="100")
    assert len(data_source.reader(data_source.schema()).partitions()) == 11


def test_an_empty_topic_gives_an_empty_frame(bootstrap: str, new_topic: NewTopic) -> None:
    table = read_table(bootstrap=bootstrap, subscribe=new_topic(3))
    assert table.num_rows == 0
    assert isinstance(table, pa.Table)


def test_a_schema_of_the_users_own_is_refused(bootstrap: str) -> None:
    with pytest.raises(UsageError, match="fixed schema"):
        source(bootstrap=bootstrap, subscribe="t").reader(StructType().add("value", StringType()))


@contextmanager
def offsets_in_flight(bootstrap: str, read: str, written: str, group: str) -> Iterator[threading.Event]:
    """A commit of offsets that has told the group's coordinator and is not decided before the event is set."""
    pending, may_decide = threading.Event(), threading.Event()
    decide = shared_calls.commit_shared

    async def gate(control: Any, request: Any) -> Any:
        pending.set()
        assert await asyncio.to_thread(may_decide.wait, 60)
        return await decide(control, request)

    shared = SharedTransaction(bootstrap, f"old-run-{written}", token="batch-0", sequence=0)
    with shared.join() as writer:
        writer.send(written, "row")
        member = writer.finish()

    def commit() -> None:
        shared.commit([member], offsets={TopicPartition(read, 0): 10}, group=group)

    thread = threading.Thread(target=commit)
    with mock.patch("semel.sdk.shared.transaction.commit_shared", gate):
        thread.start()
        try:
            assert pending.wait(60)
            yield may_decide
        finally:
            may_decide.set()
            thread.join(60)


def committed_start(bootstrap: str, topic: str, group: str, **options: str) -> dict[str, Any]:
    more = {"startingOffsets": "committed", "kafka.group.id": group, **options}
    reading = source(bootstrap=bootstrap, subscribe=topic, **more)
    found: dict[str, Any] = reading.streamReader(reading.schema()).initialOffset()
    return found


def test_O2_committed_starts_where_an_open_transaction_leaves_the_group_and_not_where_it_stood(
    bootstrap: str, new_topic: NewTopic
) -> None:
    read, written = new_topic(), new_topic()
    group = f"group-{read}"
    with semel.Producer(bootstrap) as producer:
        for number in range(10):
            producer.send(read, str(number))
    with offsets_in_flight(bootstrap, read, written, group) as may_decide:
        with pytest.raises(FatalError, match=rf"(?s){group}.*old-run-{written}.*semel txn") as caught:
            committed_start(bootstrap, read, group, kafka__default__api__timeout__ms="1500")
        assert caught.value.code is ErrorCode.UNSTABLE_OFFSET_COMMIT
        found: list[dict[str, Any]] = []
        waiting = threading.Thread(target=lambda: found.append(committed_start(bootstrap, read, group)))
        waiting.start()
        may_decide.set()
        waiting.join(60)
    assert found == [{read: {"0": 10}}]
