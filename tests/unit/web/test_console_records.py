"""Records in the console: where reading begins and ends, what is decoded how, and what readers do not see."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from typing import Any, cast

import pytest
from console_client import ConsoleClient
from http_gateway import HttpGateway
from hypothesis import given
from hypothesis import strategies as st

import semel
from semel import aio
from semel.protocol.record_decoder import Record
from semel.sdk.schemas.errors import SchemaDataError
from semel.testing import Broker
from semel.web.console.avro_values import decoded
from semel.web.console.reading import HEADER_BYTES, HEADERS_MAX, Piece, Reading, in_order, kept, last_of
from semel.web.console.record_pages import _shown
from semel.web.console.record_view import pretty_json, shown, shown_record, trace_of
from semel.web.console.visit import Console
from semel.web.registry.formats.avro import Avro

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def laid_out(data: bytes) -> str:
    return "".join(pretty_json(data) or ())


@pytest.fixture(scope="module")
def console(gateway: HttpGateway) -> ConsoleClient:
    return ConsoleClient(gateway.address)


@pytest.fixture(scope="module")
def producer(broker: Broker) -> Iterator[semel.Producer]:
    with semel.Producer(broker.bootstrap, record_bytes_max=11 << 20, request_bytes_max=12 << 20) as producer:
        yield producer


def create(broker: Broker, name: str, partitions: int = 1, **configs: str) -> str:
    with semel.Admin(broker.bootstrap) as admin:
        told = {key.replace("_", "."): value for key, value in configs.items()}
        admin.create_topic(name, partitions=partitions, configs=told)
    return name


def offsets(console: ConsoleClient, **query: object) -> list[int]:
    page = console.get("records", **query)
    assert page.status == 200, page.plain
    return [int(offset) for offset in re.findall(r'offset=\d+">(\d+)</a>', page.text)]


def test_records_are_browsed_from_any_place(console: ConsoleClient, broker: Broker, producer: semel.Producer) -> None:
    topic = create(broker, "browsed")
    for number in range(100):
        producer.send(topic, b"v%d" % number, key=b"key-%d" % (number % 10), timestamp_ms=1_000_000 + number * 1_000)
    producer.flush()
    assert offsets(console, topic=topic, count=5) == [99, 98, 97, 96, 95]
    assert offsets(console, topic=topic, partition=0, begin="offset", offset=40, count=3) == [40, 41, 42]
    assert offsets(console, topic=topic, begin="time", time="1050000", count=2) == [50, 51]
    assert offsets(console, topic=topic, begin="time", time="1970-01-01T00:17:30", count=1) == [50]
    assert offsets(console, topic=topic, begin="time", time="2100-01-01", count=2) == []
    assert offsets(console, topic=topic, key="key-7", count=3) == [97, 87, 77]
    assert offsets(console, topic=topic, key="nobody") == []
    assert len(offsets(console, topic=topic, count=99_999)) == 100
    page = console.get("records", topic=topic, partition=0, begin="offset", offset=40, count=3)
    older, newer = re.findall(r'rel="(?:prev|next)" href="([^"]*)"', page.text)
    assert "offset=37" in older
    assert "offset=43" in newer
    first = console.get("records", topic=topic, partition=0, begin="offset", offset=0, count=3)
    assert 'rel="prev"' not in first.text
    assert console.get("records", topic=topic, begin="offset", offset=3).status == 400


def test_last_records_are_of_all_partitions(console: ConsoleClient, broker: Broker, producer: semel.Producer) -> None:
    topic = create(broker, "spread", partitions=3)
    for number in range(90):
        producer.send(topic, b"v%d" % number, partition=number % 3, timestamp_ms=1_000_000 + number)
    producer.flush()
    page = console.get("records", topic=topic, count=4)
    assert re.findall(r"<pre class=\"value\">(v\d+)</pre>", page.text) == ["v89", "v88", "v87", "v86"]


def test_no_more_is_kept_of_a_long_look_back_than_is_shown(
    console: ConsoleClient, broker: Broker, producer: semel.Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = create(broker, "sparse")
    for number in range(3_000):
        producer.send(topic, b"v%d" % number, key=b"rare" if number % 1_000 == 0 else b"often", timestamp_ms=number + 1)
    producer.flush()
    kept: list[int] = []
    read = Reading._read

    async def counting(self: Reading, *given: Any, **options: Any) -> Piece:
        piece = await read(self, *given, **options)
        kept.append(len(piece.found))
        return piece

    monkeypatch.setattr(Reading, "_read", counting)
    assert offsets(console, topic=topic, count=20) == list(range(2_999, 2_979, -1))
    assert offsets(console, topic=topic, count=3, key="rare") == [2_000, 1_000, 0]
    assert kept[:2] == [16, 20]
    assert sum(kept[2:]) == 3


def test_many_partitions_are_read_one_at_a_time(console: ConsoleClient, broker: Broker) -> None:
    topic = create(broker, "wide", partitions=40)
    page = console.get("records", topic=topic)
    assert page.status == 200
    assert "There are no records here." in page.plain
    refused = console.get("records", topic=topic, partition="all")
    assert refused.status == 400
    assert "has 40 partitions, and up to 32 are read together" in refused.plain


def test_aborted_and_open_records_and_markers_are_shown_on_demand(console: ConsoleClient, broker: Broker) -> None:
    topic = create(broker, "fates")
    with semel.Producer(broker.bootstrap, transactional_id="fates") as producer:
        with producer.transaction() as transaction:
            transaction.send(topic, b"committed")
        producer.begin_transaction()
        producer.send(topic, b"dropped")
        producer.flush()
        producer.abort_transaction()
        producer.begin_transaction()
        producer.send(topic, b"undecided")
        producer.flush()
        assert offsets(console, topic=topic) == [0]
        page = console.get("records", topic=topic, partition=0, isolation="read_uncommitted")
        assert re.search(r"4 not committed yet .*? undecided", page.plain)
        assert re.search(r"3 no record: a transaction's marker", page.plain)
        assert re.search(r"2 aborted .*? dropped", page.plain)
        assert re.search(r"0 2\d\d\d-\S+ null committed", page.plain)
        assert "aborted" in console.get("record", topic=topic, partition=0, offset=2).plain
        producer.abort_transaction()


def test_large_values_are_cut_and_downloaded_whole(
    console: ConsoleClient, broker: Broker, producer: semel.Producer
) -> None:
    topic = create(broker, "large", max_message_bytes=str(12 << 20))
    value = b"0123456789" * (1 << 20)
    producer.send(topic, value, key=b"k\xff").result()
    page = console.get("records", topic=topic)
    assert "text, 10.0 MiB, cut off here" in page.plain
    assert len(page.text) < 50_000
    alone = console.get("record", topic=topic, partition=0, offset=0)
    assert "10.0 MiB, cut off here" in alone.plain
    assert len(alone.text) < 300_000
    answered = console.get("record/download", topic=topic, partition=0, offset=0)
    assert answered.text.encode() == value
    assert answered.headers["content-type"] == "application/octet-stream"
    assert answered.headers["content-disposition"] == 'attachment; filename="large-0-0.value"'
    assert "sandbox" in answered.headers["content-security-policy"]


def test_S2_few_downloads_are_in_memory_at_a_time_and_each_ends(
    gateway: HttpGateway, console: ConsoleClient, broker: Broker, producer: semel.Producer
) -> None:
    topic = create(broker, "slow-downloads", max_message_bytes=str(12 << 20))
    producer.send(topic, b"x" * (10 << 20)).result()
    downloads = gateway.gateway.shared(Console, lambda: pytest.fail("the gateway has no console")).downloads
    free = downloads._value
    host, _, port = gateway.address.partition(":")
    request = (
        f"GET /console/record/download?topic={topic}&partition=0&offset=0 HTTP/1.1\r\nHost: {gateway.address}\r\n\r\n"
    )
    with ExitStack() as sockets:
        for _ in range(free):
            one = sockets.enter_context(socket.socket())
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            one.connect((host, int(port)))
            one.sendall(request.encode())
            assert one.recv(15) == b"HTTP/1.1 200 OK"
        assert downloads.locked()
        assert console.get("records", topic=topic).status == 200, "pages go on"
    for _ in range(300):
        if not downloads.locked():
            break
        time.sleep(0.1)
    assert len(console.get("record/download", topic=topic, partition=0, offset=0).text) == 10 << 20


def test_nothing_is_downloaded_of_null(console: ConsoleClient, broker: Broker, producer: semel.Producer) -> None:
    topic = create(broker, "nulls")
    producer.send(topic, None).result()
    assert console.get("record/download", topic=topic, partition=0, offset=0).status == 404
    assert "null" in console.get("record", topic=topic, partition=0, offset=0).plain


def test_new_records_are_told_of_from_where_it_was_looked_last(
    console: ConsoleClient, broker: Broker, producer: semel.Producer
) -> None:
    topic = create(broker, "followed", partitions=2)
    producer.send(topic, b"old", partition=0).result()
    page = console.get("records", topic=topic)
    after = re.search(r'data-after="([^"]*)"', page.text)
    assert after is not None
    nothing = json.loads(console.get("records/tail", topic=topic, after=after[1]).text)
    assert nothing == {"rows": nothing["rows"], "after": "0:1,1:0"}
    assert "<tr" not in nothing["rows"]
    producer.send(topic, b"new <b>", partition=1).result()
    found = json.loads(console.get("records/tail", topic=topic, after=nothing["after"]).text)
    assert found["after"] == "0:1,1:1"
    assert "new &lt;b&gt;" in found["rows"]
    assert console.get("records/tail", topic=topic, after="x").status == 400


def test_values_are_decoded_by_the_gateways_own_registry(
    console: ConsoleClient, gateway: HttpGateway, broker: Broker, producer: semel.Producer
) -> None:
    topic = create(broker, "decoded")
    before = console.get("records", topic=topic)
    assert before.status == 200
    schema = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
    avro = gateway.ask("POST", f"/subjects/{topic}-value/versions", {"schema": json.dumps(schema)}).body["id"]
    of_json = {"schema": '{"type": "object"}', "schemaType": "JSON"}
    js = gateway.ask("POST", f"/subjects/{topic}-json/versions", of_json).body["id"]
    of_proto = {"schema": 'syntax = "proto3"; message M { int32 a = 1; }', "schemaType": "PROTOBUF"}
    proto = gateway.ask("POST", f"/subjects/{topic}-proto/versions", of_proto).body["id"]

    def written(schema_id: int, data: bytes) -> bytes:
        return b"\0" + schema_id.to_bytes(4, "big") + data

    for value in (
        written(avro, b"\x0e"),
        written(js, b'{"a":1}'),
        written(proto, b"\0\x08\x05"),
        written(99_999, b"abc"),
        written(avro, b"\x0e\x0e"),
    ):
        producer.send(topic, value)
    producer.flush()
    page = console.get("records", topic=topic, partition=0, begin="offset", offset=0, format="schema")
    assert re.search(r'\{ "id": 7 \} AVRO schema \d+ \(decoded-value, version 1\)', page.plain)
    assert re.search(r'\{ "a": 1 \} JSON schema \d+ \(decoded-json, version 1\)', page.plain)
    assert re.search(r'\{ "a": 5 \} M of PROTOBUF schema \d+ \(decoded-proto, version 1\)', page.plain)
    assert "the registry has no schema 99999" in page.plain
    assert "1 bytes are left over" in page.plain


def test_a_record_shows_its_headers_and_its_trace(
    console: ConsoleClient, broker: Broker, producer: semel.Producer
) -> None:
    topic = create(broker, "traced")
    headers = [("traceparent", f"00-{TRACE}-00f067aa0ba902b7-01".encode()), ("none", None), ("again", b"1")]
    producer.send(topic, b"x", headers=headers).result()
    page = console.get("record", topic=topic, partition=0, offset=0)
    assert f"Trace {TRACE}" in page.plain
    assert "none null" in page.plain


# --- Decoding, without a node -----------------------------------------------------------------------------------------


def test_json_keeps_what_was_written() -> None:
    text = laid_out(b'{"a":1.0,"a":1e400,"big":' + b"9" * 5_000 + b',"e":{},"t":"{\\"x\\":[1,2]}"}')
    assert text is not None
    assert text.count('"a"') == 2
    assert "1e400" in text
    assert "9" * 5_000 in text
    assert '"e": {}' in text
    assert r'"t": "{\"x\":[1,2]}"' in text
    assert pretty_json(b"[" * 100_000 + b"]" * 100_000) is None
    assert pretty_json(b"{") is None


def test_json_that_is_nested_deep_is_cut_off_before_its_indents_are_megabytes() -> None:
    data = b"[" * 900 + b"1" + b",1" * 100_000 + b"]" * 900
    found = shown(data, "auto", {}, 256 << 10, len(data))
    assert (found.form, found.is_cut) == ("json", True)
    assert found.text is not None
    assert len(found.text) <= 8 * (256 << 10)
    assert pretty_json(b'{"a": NaN}') is not None


def test_values_are_shown_as_asked_or_as_they_can_be() -> None:
    assert shown(b"\xff\x00", "auto", {}, 100, 2).form == "hex"
    assert shown("é".encode()[:1] * 2, "text", {}, 100, 2).text == "\\xc3\\xc3"
    cut = shown("é".encode() * 10, "auto", {}, 5, 20)
    assert (cut.text, cut.is_cut, cut.size_bytes) == ("éé", True, 20)
    assert shown(b"plain", "json", {}, 100, 5).note == "it is no JSON object or array"
    assert shown(b"plain", "schema", {}, 100, 5).note == "it names no schema of the registry"
    assert shown(None, "auto", {}, 100, 0).form == "null"


def test_a_trace_is_told_from_what_only_looks_like_one() -> None:
    def record(value: bytes | None) -> Record:
        return Record(0, 0, None, None, (("traceparent", value),), "t", 0)

    assert trace_of(record(f"00-{TRACE}-00f067aa0ba902b7-01".encode())) == TRACE
    for wrong in (None, b"", b"00-zz-00-01", b"x" * 1_000, f"00-{TRACE.upper()}-00f067aa0ba902b7-01".encode()):
        assert trace_of(record(wrong)) == ""


EVERYTHING = {
    "type": "record",
    "name": "E",
    "fields": [
        {"name": "u", "type": ["null", "int"]},
        {"name": "b", "type": "boolean"},
        {"name": "d", "type": "double"},
        {"name": "s", "type": "string"},
        {"name": "a", "type": {"type": "array", "items": "long"}},
        {"name": "m", "type": {"type": "map", "values": "float"}},
        {"name": "x", "type": {"type": "fixed", "name": "F", "size": 2}},
        {"name": "e", "type": {"type": "enum", "name": "N", "symbols": ["A", "B"]}},
        {"name": "y", "type": "bytes"},
    ],
}


def test_avro_is_read_as_fastavro_wrote_it() -> None:
    import io

    import fastavro

    value = {
        "u": -3, "b": True, "d": 0.5, "s": "é", "a": [1, -1, 2**62], "m": {"k": 1.5}, "x": b"ab", "e": "B",
        "y": b"\xff",
    }  # fmt: skip
    output = io.BytesIO()
    fastavro.schemaless_writer(output, fastavro.parse_schema(EVERYTHING), value)
    tree = Avro().parse(json.dumps(EVERYTHING), ()).tree
    expected = {**value, "x": "ab", "y": "\\xff"}
    assert decoded(tree, memoryview(output.getvalue())) == expected
    for end in range(len(output.getvalue())):
        with pytest.raises(SchemaDataError):
            decoded(tree, memoryview(output.getvalue()[:end]))


@pytest.mark.parametrize(
    ("schema", "data"),
    [
        ('{"type": "array", "items": "null"}', b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
        ('{"type": "array", "items": {"type": "record", "name": "R", "fields": []}}', b"\x80\x80\x80\x80\x80\x01"),
        ('{"type": "record", "name": "L", "fields": [{"name": "n", "type": ["null", "L"]}]}', b"\x02" * 5_000),
        ('"string"', b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
        ('"string"', b"\x01"),
        ('["null", "int"]', b"\x06"),
        ('"long"', b"\xff" * 11),
    ],
)
def test_avro_that_asks_for_too_much_is_refused(schema: str, data: bytes) -> None:
    with pytest.raises(SchemaDataError):
        decoded(Avro().parse(schema, ()).tree, memoryview(data))


def test_others_go_on_while_many_records_are_decoded() -> None:
    record = Record(0, 0, None, b"x", (), "t", 0)
    turns: list[int] = []

    async def other() -> None:
        while True:
            turns.append(1)
            await asyncio.sleep(0)

    async def run() -> None:
        task = asyncio.create_task(other())
        await _shown(cast(Any, None), [kept(record, 10)] * 100, "text", {})
        task.cancel()

    asyncio.run(run())
    assert len(turns) >= 100


def test_a_partition_that_cannot_be_read_leaves_the_others_readable(
    console: ConsoleClient, broker: Broker, producer: semel.Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = create(broker, "halved", partitions=2)
    for partition in (0, 1):
        producer.send(topic, b"in %d" % partition, partition=partition).result()
    asked = aio.Admin.look_up_offsets

    async def look_up_offsets(self: aio.Admin, timestamps: Any, **options: Any) -> Any:
        found = await asked(self, timestamps, **options)
        return {tp: semel.RetriableError("it is offline") if tp.partition == 0 else one for tp, one in found.items()}

    monkeypatch.setattr(aio.Admin, "look_up_offsets", look_up_offsets)
    page = console.get("records", topic=topic)
    assert "A partition can't be read: it is offline" in page.plain
    assert "in 1" in page.plain
    assert "in 0" not in page.plain
    alone = console.get("records", topic=topic, partition=0)
    assert alone.status == 503
    assert "it is offline" in alone.plain


# --- Order and bounds -------------------------------------------------------------------------------------------------


def test_timestamps_that_go_back_change_no_order_within_a_partition(console: ConsoleClient, broker: Broker) -> None:
    """The last records were those with the latest timestamps, and the others were on no page."""
    broker.create_topic("back", partitions=1)
    with semel.Producer(broker.bootstrap) as producer:
        for number in range(100):
            producer.send("back", b"v%d" % number, timestamp_ms=1_700_000_000_000 - number * 1_000)
    page = console.get("records", topic="back", partition=0, count=10)
    assert re.findall(r"offset=(\d+)\">\1</a>", page.text) == [str(number) for number in range(99, 89, -1)]
    assert "offset=80" in page.text, "the older ones"
    page = console.get(
        "records", topic="back", partition=0, begin="offset", offset=40, count=10, isolation="read_uncommitted"
    )
    assert re.findall(r"offset=(\d+)\">\1</a>", page.text) == [str(number) for number in range(40, 50)]
    assert "no record" not in page.plain


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5)), max_size=30), st.integers(1, 30))
def test_pages_have_the_ends_of_all_partitions(placed: list[tuple[int, int]], count: int) -> None:
    offsets = [0, 0, 0]
    found = []
    for partition, timestamp_ms in placed:
        found.append(kept(Record(offsets[partition], timestamp_ms, None, b"", (), "t", partition), 10))
        offsets[partition] += 1
    last = last_of(found, count)
    assert len(last) == min(count, len(found))
    for partition in range(3):
        here = [one.record.offset for one in last if one.record.partition == partition]
        assert here == list(range(offsets[partition] - len(here), offsets[partition])), "an end, without holes"
        all_here = [one.record.offset for one in in_order(found) if one.record.partition == partition]
        assert all_here == list(range(offsets[partition]))
    if count >= len(found) and all(before[1] <= after[1] for before, after in pairwise(placed)):
        times = [one.record.timestamp_ms for one in in_order(found)]
        assert times == sorted(times)
        assert [one.record.timestamp_ms for one in last] == times


def test_S2_headers_are_kept_within_bounds() -> None:
    headers = [("n" * 100_000, b"v" * 900_000), ("null", None), *((f"h{number}", b"x") for number in range(200))]
    found = kept(Record(0, 0, None, None, tuple(headers), "t", 0), 10)
    assert len(found.record.headers) == HEADERS_MAX
    assert found.headers == 202
    assert found.record.headers[0] == ("n" * HEADER_BYTES, b"v" * (HEADER_BYTES + 1))
    one = shown_record(found, "auto", {})
    assert (one.headers_left_off, one.headers[0][1].size_bytes, one.headers[0][1].is_cut) == (152, 900_000, True)
    assert one.headers[1][1].form == "null"
