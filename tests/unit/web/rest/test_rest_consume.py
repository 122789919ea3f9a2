"""Reading over REST: polls that wait, isolation, streams of events that resume, and what is refused."""

from __future__ import annotations

import http.client
import json
import threading
from base64 import b64decode, b64encode
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest
from gateway_requests import GatewayRequests, Reply, text
from rest_gateway import rest_gateway

import semel
from semel.testing import Broker
from semel.web.rest import service

WITHIN_S = 30.0


def fill(node: Broker, *values: str, partitions: int = 1) -> str:
    topic = node.create_topic(partitions=partitions)
    with semel.Producer(node.bootstrap) as producer:
        for value in values:
            producer.send(topic, value, partition=partitions - 1)
    return topic


def path(gateway: GatewayRequests, topic: str, partition: int = 0, **query: object) -> str:
    asked = "&".join(f"{name}={value}" for name, value in query.items())
    return f"{gateway.cluster}/topics/{topic}/partitions/{partition}/records?{asked}"


def read(gateway: GatewayRequests, topic: str, partition: int = 0, **query: object) -> Any:
    answer = gateway.get(path(gateway, topic, partition, **query))
    assert answer.status == 200, answer.body
    return answer.json


def test_records_are_read_as_they_can_be_written_again(gateway: GatewayRequests, node: Broker) -> None:
    topic, copy = node.create_topic(), node.create_topic()
    written = [
        {"value": {"type": "JSON", "data": {"a": 1}}, "headers": [{"name": "h", "value": "AA=="}]},
        text("b", "key"),
        {"value": {"type": "BINARY", "data": b64encode(b"\xff").decode()}},
        {"key": {"type": "STRING", "data": "gone"}},
    ]
    for record in written:
        assert gateway.post(f"/topics/{topic}/records", record).status == 200
    found = read(gateway, topic, value_format="JSON", key_format="STRING")
    assert found["next_offset"] == 4
    assert [record["offset"] for record in found["data"]] == [0, 1, 2, 3]
    assert found["data"][0]["value"] == {"type": "JSON", "data": {"a": 1}}
    assert found["data"][1]["value"] == {"type": "BINARY", "data": b64encode(b"b").decode()}  # no JSON
    assert found["data"][3]["value"] is None
    for record in found["data"]:
        del record["offset"]
        assert gateway.post(f"/topics/{copy}/records", record).status == 200
    assert [(one.key, one.value, one.headers, one.timestamp_ms) for one in node.records(copy)] == [
        (one.key, one.value, one.headers, one.timestamp_ms) for one in node.records(topic)
    ]


def test_a_reader_goes_on_where_it_was_told_to(gateway: GatewayRequests, node: Broker) -> None:
    topic = fill(node, *(f"{number}" * 300 for number in range(10)), partitions=2)
    offset, values = 0, []
    while data := (found := read(gateway, topic, 1, offset=offset, max_bytes=1_200))["data"]:
        assert len(data) == 2
        values += [b64decode(record["value"]["data"])[:1] for record in data]
        offset = found["next_offset"]
    assert values == [b"%d" % number for number in range(10)]
    assert len(read(gateway, topic, 1, max_records=3)["data"]) == 3
    assert len(read(gateway, topic, 1, max_bytes=1)["data"]) == 1  # or nobody could ever read a large record
    assert gateway.get(found["metadata"]["next"].removeprefix(f"http://{gateway.host}")).json["data"] == []
    assert read(gateway, topic, 1, offset="latest")["next_offset"] == 10
    assert read(gateway, topic, 0)["data"] == []


def test_a_poll_waits_for_a_record(gateway: GatewayRequests, node: Broker) -> None:
    topic = fill(node, "first")
    found: list[Any] = []
    waiting = threading.Thread(target=lambda: found.append(read(gateway, topic, offset=1, max_wait_ms=30_000)))
    waiting.start()
    with semel.Producer(node.bootstrap) as producer:
        while waiting.is_alive():  # whether it waits already can't be seen
            producer.send(topic, "later").result(WITHIN_S)
            waiting.join(0.2)
    assert found[0]["data"][0]["offset"] == 1


def test_L2_an_open_transaction_is_read_by_those_alone_who_ask_for_it(gateway: GatewayRequests, node: Broker) -> None:
    topic = fill(node, "before")
    with semel.Producer(node.bootstrap, transactional_id=topic, linger_ms=0) as producer:
        producer.begin_transaction()
        producer.send(topic, "open").result(WITHIN_S)
        assert len(read(gateway, topic)["data"]) == 1
        assert read(gateway, topic, offset=1)["next_offset"] == 1
        assert len(read(gateway, topic, isolation="read_uncommitted")["data"]) == 2
        producer.abort_transaction()
    after = read(gateway, topic, offset=1, max_wait_ms=1_000)
    assert (after["data"], after["next_offset"]) == ([], 3)  # past what nobody is shown


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ({"offset": "-1"}, 400),
        ({"offset": "soon"}, 400),
        ({"offset": "9" * 30}, 400),
        ({"offset": "99"}, 404),
        ({"max_wait_ms": "40000"}, 400),
        ({"max_wait_ms": "x"}, 400),
        ({"max_bytes": "0"}, 400),
        ({"isolation": "serializable"}, 400),
        ({"value_format": "AVRO"}, 400),
        ({"ofset": "1"}, 400),
        ({"offset": "1&offset=2"}, 400),
    ],
)
def test_questions_that_make_no_sense_are_refused(
    gateway: GatewayRequests, node: Broker, query: dict[str, str], status: int
) -> None:
    answer = gateway.get(path(gateway, fill(node, "a"), **query))
    assert (answer.status, answer.json["status"]) == (status, status)


@pytest.mark.parametrize("partition", ["1", "-1", "x", "00000000000", "%30%31", "٣"])
def test_a_partition_that_is_not_there_is_404(gateway: GatewayRequests, node: Broker, partition: str) -> None:
    topic = fill(node, "a")
    assert gateway.get(f"{gateway.cluster}/topics/{topic}/partitions/{quoted(partition)}/records").status == 404


def quoted(text: str) -> str:
    return text if text.isascii() else "%D9%A3"


def events(answer: http.client.HTTPResponse, count: int) -> list[int]:
    """Read so many events, and return their ids."""
    found = []
    while len(found) < count:
        line = answer.readline()
        assert line, "the stream has ended"
        if line.startswith(b"id: "):
            found.append(int(line[4:]))
    return found


def test_a_stream_of_events_follows_a_partition_and_resumes(gateway: GatewayRequests, node: Broker) -> None:
    topic = fill(node, *"abc")
    accept = {"Accept": "text/event-stream"}
    with gateway.answering("GET", path(gateway, topic, offset="earliest"), None, accept) as answer:
        assert (answer.status, answer.getheader("Content-Type")) == (200, "text/event-stream; charset=utf-8")
        assert events(answer, 3) == [0, 1, 2]
        with semel.Producer(node.bootstrap) as producer:
            producer.send(topic, "d").result(WITHIN_S)
        assert events(answer, 1) == [3]
    for last, first in (("1", 2), ("2", 3)):
        again = {**accept, "Last-Event-ID": last}
        with gateway.answering("GET", path(gateway, topic, offset="earliest"), None, again) as answer:
            assert events(answer, 1) == [first]
    refused = gateway.request("GET", path(gateway, topic), None, {**accept, "Last-Event-ID": "x"})
    assert refused.status == 400
    assert gateway.request("GET", path(gateway, topic), None, {**accept, "Last-Event-ID": "1" * 5_000}).status == 400


def test_polls_and_streams_end_whole_when_the_gateway_stops(
    node: Broker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "READERS_MAX", 2)
    topic = fill(node, "a")

    def poll() -> Reply:
        while (answer := gateway.get(path(gateway, topic, offset=1, max_wait_ms=30_000))).status == 503:
            pass
        return answer

    with ExitStack() as stack, ThreadPoolExecutor(1) as pool:
        serving = stack.enter_context(ExitStack())
        gateway = GatewayRequests(serving.enter_context(rest_gateway(node.bootstrap)))
        where = path(gateway, topic, offset="earliest")
        stream = stack.enter_context(gateway.answering("GET", where, None, {"Accept": "text/event-stream"}))
        assert events(stream, 1) == [0]
        polling = pool.submit(poll)
        while gateway.get(path(gateway, topic)).status == 200:
            pass
        refused = gateway.request("GET", where, None, {"Accept": "text/event-stream"})
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")  # before a 200 is on its way
        serving.close()
        stream.read()  # to its end, which http.client takes for an error where it is not whole
        answer = polling.result(WITHIN_S)
        assert (answer.status, answer.json["data"], answer.json["next_offset"]) == (200, [], 1)
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []


def test_a_stream_tells_an_error_as_an_event(gateway: GatewayRequests, node: Broker) -> None:
    topic = fill(node, "a")
    with gateway.answering("GET", path(gateway, topic, offset=9), None, {"Accept": "text/event-stream"}) as answer:
        told = answer.read()
    assert b"event: error\n" in told
    assert b'"error_code": 40404' in told


@pytest.mark.parametrize("value", [b"1e999", b"NaN", b"[-Infinity]", "7".encode("utf-16")])
def test_what_is_no_json_by_the_standard_is_shown_as_binary(
    gateway: GatewayRequests, node: Broker, value: bytes
) -> None:
    topic = node.create_topic()
    with semel.Producer(node.bootstrap) as producer:
        producer.send(topic, value).result(WITHIN_S)
    shown = {"type": "BINARY", "data": b64encode(value).decode()}
    assert read(gateway, topic, value_format="JSON")["data"][0]["value"] == shown
    where = path(gateway, topic, offset="earliest", value_format="JSON")
    with gateway.answering("GET", where, None, {"Accept": "text/event-stream"}) as answer:
        lines = iter(answer.readline, b"")
        data = next(line for line in lines if line.startswith(b"data: "))
    assert json.loads(data[6:])["value"] == shown
