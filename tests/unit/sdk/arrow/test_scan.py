"""Topics as Arrow columns: which offsets a scan settles on, what it reads of them, and who takes it."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import ibis
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import semel
import semel.aio
import semel.arrow
from semel.protocol.batch_builder import encode_batch
from semel.protocol.errors import ErrorCode, FatalError, UsageError
from semel.sdk.arrow.range_reader import ReadOptions, _decoded, _Fetched
from semel.testing import Broker

NOON = datetime(2026, 11, 1, 12, tzinfo=UTC)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as node:
        yield node


@pytest.fixture(autouse=True)
def _bootstrap(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEMEL_BOOTSTRAP", broker.bootstrap)


@pytest.fixture(scope="module")
def orders(broker: Broker) -> str:
    """Partition 0 has the records 0, 2, 4, 6, 8 and partition 1 the others, one each minute from noon on; each
    transaction of two records has a marker behind it in both, and one was aborted."""
    broker.create_topic("orders", partitions=2)
    with semel.Producer(broker.bootstrap, transactional_id="orders") as producer:
        for first in range(0, 10, 2):
            with producer.transaction() as transaction:
                for number in (first, first + 1):
                    transaction.send(
                        "orders",
                        b"%d" % number,
                        key=f"k{number}",
                        partition=number % 2,
                        headers={"n": b"%d" % number} if number else {},
                        timestamp_ms=int((NOON + timedelta(minutes=number)).timestamp() * 1000),
                    )
            if first == 4:
                producer.begin_transaction()
                producer.send("orders", b"aborted", partition=0)
                producer.flush()
                producer.abort_transaction()
    return "orders"


def values(scan: semel.arrow.Scan | pa.Table) -> list[bytes]:
    table = scan if isinstance(scan, pa.Table) else scan.read_all()
    return table.column("value").to_pylist()  # type: ignore[no-any-return]


def test_L3_a_table_has_the_committed_records_of_all_partitions(orders: str) -> None:
    table = semel.arrow.read(orders, columns=semel.arrow.ALL_COLUMNS)
    assert table.schema == semel.arrow.scan(orders, columns=semel.arrow.ALL_COLUMNS).schema
    assert values(table) == [b"0", b"2", b"4", b"6", b"8", b"1", b"3", b"5", b"7", b"9"]
    assert table.column("offset").to_pylist() == [0, 2, 4, 8, 10, 0, 2, 4, 6, 8]
    assert table.column("timestamp").to_pylist()[1] == NOON + timedelta(minutes=2)
    assert table.column("headers").to_pylist()[:2] == [None, [{"key": "n", "value": b"2"}]]


def test_records_of_aborted_transactions_are_read_where_that_is_asked_for(orders: str) -> None:
    assert b"aborted" in values(semel.arrow.read(orders, isolation="read_uncommitted"))


def test_L2_a_scan_ends_where_the_oldest_open_transaction_begins_and_never_waits(broker: Broker) -> None:
    broker.create_topic("open", partitions=1)
    with semel.Producer(broker.bootstrap, transactional_id="open") as producer:
        with producer.transaction() as transaction:
            transaction.send("open", b"there")
        producer.begin_transaction()
        producer.send("open", b"not yet")
        producer.flush()
        scan = semel.arrow.scan("open")
        assert (scan.end, values(scan)) == ({0: 2}, [b"there"])
        producer.commit_transaction()
        assert values(scan) == [b"there"], "what it reads is settled"
        assert values(semel.arrow.scan("open", scan.end)) == [b"not yet"]


def test_E1_what_is_kept_beside_the_result_continues_with_each_record_once(orders: str) -> None:
    found: list[bytes] = []
    kept: dict[str, int] = {}
    for _ in range(20):
        # As a job that is stopped behind each batch, and has kept its offsets as JSON.
        step = next(semel.arrow.scan(orders, kept, fetch_max_bytes=1).with_offsets(), None)
        if step is None:
            break
        records, offsets = step
        found += records.column("value").to_pylist()
        kept = json.loads(json.dumps(offsets))
    assert step is None
    assert sorted(found) == [b"%d" % number for number in range(10)]


def test_a_topic_that_has_grown_is_read_from_the_start_of_its_new_partitions(broker: Broker) -> None:
    broker.create_topic("grows", partitions=1)
    with semel.Producer(broker.bootstrap) as producer, semel.Admin(broker.bootstrap) as admin:
        producer.send("grows", b"a", partition=0)
        producer.flush()
        scan = semel.arrow.scan("grows")
        admin.add_partitions("grows", 2)
        producer.send("grows", b"b", partition=0)
        with semel.Producer(broker.bootstrap) as another:  # which knows of it
            another.send("grows", b"c", partition=1)
    assert values(scan) == [b"a"]
    assert values(semel.arrow.scan("grows", scan.end)) == [b"b", b"c"]


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        ("latest", "latest", b""),
        ("earliest", {0: 3}, b"02"),
        ({0: 4, 1: 8}, {0: 9, 1: 9}, b"469"),
        ({"0": 8}, {"0": 11}, b"68"),
        ({0: 8}, {0: 2}, b""),
    ],
)
def test_where_it_begins_and_ends(orders: str, start: Any, end: Any, expected: bytes) -> None:
    assert b"".join(values(semel.arrow.read(orders, start, end))) == expected


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (NOON + timedelta(minutes=3), NOON + timedelta(minutes=7), b"4635"),
        (NOON + timedelta(minutes=8, seconds=1), "latest", b"9"),
        (NOON + timedelta(minutes=30), "latest", b""),
        ("earliest", NOON, b""),
        ("earliest", NOON + timedelta(minutes=30), b"0246813579"),
    ],
)
def test_times_are_those_of_records(broker: Broker, start: Any, end: Any, expected: bytes) -> None:
    # Without transactions: their markers have the time at which they were written.
    if "times" not in broker.topics():
        broker.create_topic("times", partitions=2)
        with semel.Producer(broker.bootstrap) as producer:
            for number in range(10):
                at = NOON + timedelta(minutes=number)
                at_ms = int(at.timestamp() * 1000)
                producer.send("times", b"%d" % number, partition=number % 2, timestamp_ms=at_ms)
    assert b"".join(values(semel.arrow.read("times", start, end))) == expected


@pytest.mark.parametrize("moment", [datetime.min.replace(tzinfo=UTC), datetime(1969, 12, 31, 23, 59, 59, 999_000, UTC)])
def test_times_before_1970_are_the_beginning(orders: str, moment: datetime) -> None:
    """One of them meant the end, so that everything was passed over."""
    assert len(values(semel.arrow.read(orders, moment))) == 10
    assert values(semel.arrow.read(orders, end=moment)) == []


def test_a_part_of_a_millisecond_is_not_cut_off(broker: Broker) -> None:
    broker.create_topic("parts", partitions=1)
    at = NOON + timedelta(milliseconds=5)
    with semel.Producer(broker.bootstrap) as producer:
        producer.send("parts", b"before", timestamp_ms=int(at.timestamp() * 1000))
    assert values(semel.arrow.read("parts", at)) == [b"before"]
    assert values(semel.arrow.read("parts", at + timedelta(microseconds=500))) == []


def test_an_end_beyond_what_is_there_is_cut_to_it(orders: str) -> None:
    assert semel.arrow.scan(orders, end={0: 1_000_000, 1: 3}).end == {0: 12, 1: 3}


def test_another_topic_of_the_same_name_is_never_read(broker: Broker) -> None:
    for value in (b"old", b"new"):
        if value == b"new":
            broker.delete_topic("again")
        broker.create_topic("again", partitions=1)
        with semel.Producer(broker.bootstrap) as producer:
            producer.send("again", value)
        if value == b"old":
            scan = semel.arrow.scan("again")
    with pytest.raises(semel.arrow.DataLossError, match="another one has its name now"):
        scan.read_all()
    with pytest.raises(semel.arrow.DataLossError, match="another one has its name now"):
        semel.arrow.scan("again", scan.end, topic_id=scan.topic_id)
    assert values(semel.arrow.scan("again", topic_id=str(semel.arrow.scan("again").topic_id))) == [b"new"]


def test_what_compresses_well_is_read_in_pieces(broker: Broker) -> None:
    """A fetch of 4 MB that becomes more than 128 MiB was called corrupt."""
    broker.create_topic("zeros", partitions=1)
    with semel.Producer(broker.bootstrap, compression="zstd") as producer:
        for _ in range(2_000):
            producer.send("zeros", bytes(100_000))
    assert sum(batch.num_rows for batch in semel.arrow.scan("zeros")) == 2_000


@pytest.mark.parametrize("columns", ["key", None, 3, [], [["key"]], [b"key"]])
def test_columns_that_are_none_are_refused(orders: str, columns: Any) -> None:
    with pytest.raises(UsageError, match="columns takes a list of names"):
        semel.arrow.scan(orders, columns=columns)


@pytest.mark.parametrize("topic_id", ["x", 3, b"x", ""])
def test_a_topic_id_that_is_none_is_refused(orders: str, topic_id: Any) -> None:
    with pytest.raises(UsageError, match="topic_id is the topic_id of a scan"):
        semel.arrow.scan(orders, topic_id=topic_id)


def test_a_part_that_is_none_is_refused(orders: str) -> None:
    for number in ([0], "0", True, 2):
        with pytest.raises(UsageError, match="does not read partition"):
            semel.arrow.scan(orders).partition(number)  # type: ignore[arg-type]


def test_L2_offsets_behind_an_open_transaction_are_no_loss(broker: Broker) -> None:
    """A scan of uncommitted records has read them. One of committed records has nothing yet, and said they are lost."""
    topic = broker.create_topic()
    with semel.Producer(broker.bootstrap, transactional_id="open") as producer:
        producer.begin_transaction()
        producer.send(topic, b"open")
        producer.flush()
        kept = semel.arrow.scan(topic, isolation="read_uncommitted").end
        assert kept == {0: 1}
        empty = semel.arrow.scan(topic, start=kept)
        assert (empty.start, empty.end, empty.read_all().num_rows) == ({0: 1}, {0: 1}, 0)
        producer.commit_transaction()
        producer.begin_transaction()
        producer.send(topic, b"next")
        producer.commit_transaction()
    assert semel.arrow.read(topic, start=empty.end).column("value").to_pylist() == [b"next"]
    with pytest.raises(semel.arrow.DataLossError):
        semel.arrow.scan(topic, start={0: 99})


def test_a_forked_child_does_not_continue_a_scan_that_was_begun(orders: str) -> None:
    """It waited two minutes for a thread that it does not have."""
    scan = semel.arrow.scan(orders, fetch_max_bytes=1)
    begun = iter(scan)
    next(begun)
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        said = "nothing was raised"
        try:
            next(begun)
        except UsageError as error:
            said = error.message
        os.write(writable, said.encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert "can't be used in its forked child" in os.read(readable, 1000).decode()
    os.close(readable)
    os.close(writable)
    assert next(begun).num_rows


def test_a_part_reads_one_partition_and_goes_to_another_process(orders: str) -> None:
    scan = semel.arrow.scan(orders)
    part = pickle.loads(pickle.dumps(scan.partition(1)))
    assert repr(part) == "Scan('orders', {1: 0 to 10})"
    assert values(part) == [b"1", b"3", b"5", b"7", b"9"]
    with pytest.raises(UsageError, match="does not read partition 7"):
        scan.partition(7)


def test_duckdb_polars_pandas_ibis_and_pyarrow_take_a_scan_again_and_again(orders: str) -> None:
    scan = semel.arrow.scan(orders)
    for _ in range(2):
        assert duckdb.sql('SELECT partition, count(*), max("offset") FROM scan GROUP BY ALL ORDER BY 1').fetchall() == [
            (0, 5, 10),
            (1, 5, 8),
        ]
    assert pl.DataFrame(scan).filter(pl.col("partition") == 1).height == 5
    assert pa.table(scan).num_rows == 10
    assert pd.DataFrame.from_arrow(scan)["offset"].sum() == 44
    assert ibis.memtable(scan.read_all()).count().to_pyarrow().as_py() == 10
    assert sum(batch.num_rows for batch in scan.to_reader()) == 10


def test_records_that_are_gone_are_an_error_or_passed_over(broker: Broker) -> None:
    broker.create_topic("lost", partitions=1)
    with semel.Producer(broker.bootstrap) as producer, semel.Admin(broker.bootstrap) as admin:
        for number in range(6):
            producer.send("lost", b"%d" % number)
        producer.flush()
        admin.delete_records({semel.TopicPartition("lost", 0): 4})
    with pytest.raises(semel.arrow.DataLossError, match="offset 0 of lost-0 is not in the log, which starts at 4"):
        semel.arrow.read("lost", {0: 0})
    assert values(semel.arrow.read("lost", {0: 0}, on_data_loss="skip")) == [b"4", b"5"]
    assert values(semel.arrow.read("lost")) == [b"4", b"5"]
    with pytest.raises(semel.arrow.DataLossError, match="lost-0 ends at offset 6, before the 7 at which to start"):
        semel.arrow.scan("lost", {0: 7})
    assert values(semel.arrow.read("lost", {0: 7}, on_data_loss="skip")) == []


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"start": "now"}, "start is 'earliest', 'latest', a datetime, or the offset in each partition"),
        ({"end": 7}, "end is 'earliest'"),
        ({"start": datetime(2026, 1, 1)}, "start is a time without a zone"),
        ({"start": NOON, "end": NOON - timedelta(hours=1)}, "nothing is between them"),
        ({"start": {9: 1}}, "start names partition 9 of topic 'orders', which has 2, numbered from 0"),
        ({"start": {0: -1}}, "start has an offset, 0 or more, for partition 0, not -1"),
        ({"start": {"x": 1}}, "the number of a partition before each offset, not 'x'"),
        ({"columns": "value"}, r"columns takes a list of names: \['value'\]"),
        ({"columns": ["kee"]}, "there is no column 'kee'"),
        ({"isolation": "committed"}, "did you mean 'read_committed'"),
        ({"on_data_loss": "ignore"}, "option on_data_loss can't be 'ignore'"),
        ({"colums": ["value"]}, "did you mean 'columns'"),
        ({"fetch_max_bytes": 0}, "option fetch_max_bytes must be between 1 and"),
    ],
)
def test_wrong_options_say_what_is_right(orders: str, options: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        semel.arrow.scan(orders, **options)


def test_a_topic_that_is_not_there_is_an_error_at_once() -> None:
    with pytest.raises(FatalError, match="there is no topic 'nowhere' to read") as failure:
        semel.arrow.scan("nowhere")
    assert failure.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    with pytest.raises(UsageError, match="topic must be the name of one topic"):
        semel.arrow.scan(["orders"])  # type: ignore[arg-type]


def test_an_embedded_log_is_scanned_without_a_port(tmp_path: Path) -> None:
    with semel.open(tmp_path / "data") as log:
        log.create_topic("t", partitions=1)
        with log.producer() as producer:
            producer.send("t", b"v")
        assert values(log.scan("t")) == [b"v"]
        assert values(log.scan("t", "latest", columns=["value"])) == []
        with pytest.raises(UsageError, match=r"scan\(\) takes no bootstrap"):
            log.scan("t", bootstrap="localhost:9094")

    async def scanned() -> list[bytes]:
        async with semel.aio.open(tmp_path / "data") as again:
            return values(await asyncio.to_thread((await again.scan("t")).read_all))

    assert asyncio.run(scanned()) == [b"v"]


def test_a_reader_that_is_dropped_half_way_leaves_no_thread(orders: str) -> None:
    before = threading.active_count()
    batches = iter(semel.arrow.scan(orders, fetch_max_bytes=1))
    next(batches)
    assert threading.active_count() > before
    del batches
    assert threading.active_count() == before


def test_a_batch_that_is_broken_is_named_after_those_before_it() -> None:
    good, bad = (bytearray(encode_batch([(0, None, value, ())], base_offset=n)) for n, value in enumerate((b"a", b"b")))
    bad[-1] ^= 1
    fetched = _Fetched(0, 2, [memoryview(good + bad)])
    pieces = _decoded(semel.TopicPartition("t", 3), fetched, 2, 2, ReadOptions())
    piece = next(pieces)
    assert (piece.records.column("value").to_pylist(), piece.next_offset) == ([b"a"], 1)
    with pytest.raises(semel.UnreadableBatchError, match="t-3 can't be read at offset 1") as failure:
        next(pieces)
    assert (failure.value.tp, failure.value.first_offset) == (semel.TopicPartition("t", 3), 1)
