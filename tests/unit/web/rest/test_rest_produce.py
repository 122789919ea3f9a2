"""Writing over REST without a key: one record a request, streams, batches, and what is refused."""

from __future__ import annotations

import json
import socket
from base64 import b64encode
from contextlib import ExitStack
from typing import Any

import pytest
from gateway_requests import GatewayRequests, text
from rest_gateway import rest_gateway

from semel.protocol.errors import FatalError
from semel.testing import Broker
from semel.web.rest.errors import rest_problem


def test_a_record_has_its_bytes_whatever_type_it_is_written_as(gateway: GatewayRequests, node: Broker) -> None:
    topic = node.create_topic(partitions=2)
    written = [
        {
            "key": {"type": "BINARY", "data": b64encode(b"\x00k").decode()},
            "value": {"type": "JSON", "data": {"a": [1, None, "ü"]}},
            "headers": [{"name": "h", "value": b64encode(b"\xff").decode()}, {"name": "h", "value": None}],
            "partition_id": 1,
            "timestamp": "2026-01-02T03:04:05.678Z",
        },
        {"key": None, "value": {"type": "STRING", "data": "ü"}, "partition_id": 1, "timestamp": 5},
        {"key": {"type": "JSON", "data": None}, "value": {"type": "STRING", "data": None}, "partition_id": 1},
        {"partition_id": 1},
    ]
    reports = [gateway.post(f"/topics/{topic}/records", record).json for record in written]
    assert [report["offset"] for report in reports] == [0, 1, 2, 3]
    assert reports[0] == {
        "error_code": 200,
        "cluster_id": gateway.cluster.rpartition("/")[2],
        "topic_name": topic,
        "partition_id": 1,
        "offset": 0,
        "timestamp": "2026-01-02T03:04:05.678Z",
        "key": {"type": "BINARY", "size": 2},
        "value": {"type": "JSON", "size": 19},
    }
    first, second, third, fourth = node.records(topic, partition=1)
    assert (first.key, json.loads(first.value), first.headers) == (
        b"\x00k",
        {"a": [1, None, "ü"]},
        (("h", b"\xff"), ("h", None)),
    )
    assert (second.key, second.value, second.timestamp_ms) == (None, "ü".encode(), 5)
    assert (third.key, third.value) == (b"null", None)
    assert (fourth.key, fourth.value) == (None, None)


def test_several_records_of_a_body_are_reported_in_their_order(gateway: GatewayRequests, node: Broker) -> None:
    topic = node.create_topic()
    body = b" ".join(json.dumps(text(f'{number} }}{{ "')).encode() for number in range(3))
    reports = gateway.post(f"/topics/{topic}/records", body).lines
    assert [report["offset"] for report in reports] == [0, 1, 2]
    assert [record.value for record in node.records(topic)] == [b'0 }{ "', b'1 }{ "', b'2 }{ "']


def test_of_several_records_one_that_fails_does_not_keep_the_others(gateway: GatewayRequests, node: Broker) -> None:
    topic = node.create_topic()
    body = json.dumps(text("a", partition_id=7)).encode() + json.dumps(text("b")).encode()
    refused, written = gateway.post(f"/topics/{topic}/records", body).lines
    assert refused["error_code"] != 200
    assert "partition" in refused["message"]
    assert (written["error_code"], written["offset"]) == (200, 0)


def test_a_stream_answers_each_record_before_the_next_is_sent(gateway: GatewayRequests, node: Broker) -> None:
    topic = node.create_topic()
    host, _, port = gateway.host.rpartition(":")
    with socket.create_connection((host, int(port)), 30) as connection, connection.makefile("rb") as answers:
        head = f"POST {gateway.cluster}/topics/{topic}/records HTTP/1.1\r\nHost: {gateway.host}\r\n"
        connection.sendall(f"{head}Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        for number in range(3):
            connection.sendall(chunk(json.dumps(text(str(number))).encode()))
            if not number:
                assert answers.readline().split()[1] == b"200"
                while answers.readline().strip():
                    pass
            assert next_chunk(answers)["offset"] == number
        connection.sendall(chunk(b'{"value": {"type": "STRING"') + chunk(b', "data": 5}}'))
        assert next_chunk(answers)["error_code"] == 42201  # and the stream continues
        connection.sendall(chunk(json.dumps(text("3")).encode()) + chunk(b" ,"))
        assert next_chunk(answers)["offset"] == 3
        assert next_chunk(answers)["error_code"] == 400  # nobody knows where the next one begins
        assert answers.readline() == b"0\r\n"
    assert len(node.records(topic)) == 4


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def next_chunk(answers: Any) -> Any:
    data = answers.read(int(answers.readline(), 16))
    answers.readline()
    return json.loads(data)


def test_entries_of_a_batch_succeed_or_fail_on_their_own(gateway: GatewayRequests, node: Broker) -> None:
    topic = node.create_topic()
    entries = [{"id": "good", **text("a")}, {"id": "bad", **text("b", partition_id=9)}, {"id": "last", **text("c")}]
    answer = gateway.post(f"/topics/{topic}/records:batch", {"entries": entries})
    assert answer.status == 207
    assert {each["id"]: each["offset"] for each in answer.json["successes"]} == {"good": 0, "last": 1}
    (failure,) = answer.json["failures"]
    assert failure["id"] == "bad"
    assert failure["error_code"] != 200
    keyed = gateway.post(f"/topics/{topic}/records:batch", {"entries": entries}, key="k")
    assert keyed.status == 400
    assert ".../records" in keyed.json["detail"]


RECORD_REFUSED = [
    ("[]", 400),
    ("", 400),
    ("{", 400),
    ("{} x", 400),
    ('{"value": NaN}', 400),
    ('{"value": {"type": "JSON", "data": 1e999}}', 400),
    ('{"value": {"type": "JSON", "data": [-1e999]}}', 400),
    ('{"value": {"type": "JSON", "data": Infinity}}', 400),
    ('{"value": {"type": "STRING", "data": "\\ud800"}}', 400),
    ('{"value": ' + '{"a":' * 70 + "1" + "}" * 71, 422),
    ("[" * 100_000, 400),
    ('{"a":' * 100_000, 400),
    ('{"value": {"type": "AVRO", "data": "x"}}', 422),
    ('{"value": {"type": "BINARY", "data": "not base64!"}}', 422),
    ('{"value": {"type": "BINARY", "data": 5}}', 422),
    ('{"value": {"data": "x"}}', 422),
    ('{"value": "x"}', 422),
    ('{"vaule": {"type": "STRING", "data": "x"}}', 422),
    ('{"partition_id": -1}', 422),
    ('{"partition_id": 1.5}', 422),
    ('{"partition_id": true}', 422),
    ('{"partition_id": 99999999999}', 422),
    ('{"timestamp": "yesterday"}', 422),
    ('{"timestamp": "2026-01-01T00:00:00"}', 422),
    ('{"timestamp": "0001-01-01T00:00:00+23:59"}', 422),
    ('{"timestamp": -5}', 422),
    ('{"headers": {"a": "b"}}', 422),
    ('{"headers": [{"name": "a", "value": "%"}]}', 422),
    ('{"headers": [{"value": "aa=="}]}', 422),
    ('{"headers": [' + ",".join(['{"name": "a"}'] * 101) + "]}", 413),
    ('{"partition_id": 7}', 404),
]


@pytest.mark.parametrize(("body", "status"), RECORD_REFUSED, ids=range(len(RECORD_REFUSED)))
def test_what_is_no_record_is_refused_and_nothing_is_written(
    gateway: GatewayRequests, node: Broker, body: str, status: int
) -> None:
    topic = node.create_topic()
    for key in (None, f"key of {topic}"):
        refused = gateway.post(f"/topics/{topic}/records", body.encode(), key)
        assert refused.status == status, refused.body
        assert refused.json["detail"]
    assert node.records(topic, uncommitted=True) == []


def test_records_for_a_topic_that_is_not_there_are_404(gateway: GatewayRequests) -> None:
    for key in (None, "for nothing"):
        refused = gateway.post("/topics/none/records", text("x"), key)
        assert (refused.status, refused.json["error_code"]) == (404, 40403)


def test_bodies_of_another_kind_are_415_and_bodies_that_are_too_large_413(
    gateway: GatewayRequests, node: Broker
) -> None:
    path = f"{gateway.cluster}/topics/{node.create_topic()}/records"
    assert gateway.request("POST", path, b"<record/>", {"Content-Type": "application/xml"}).status == 415
    assert gateway.request("POST", path, text("x" * 1_100_000)).status == 413  # one record, larger than the node takes
    many = b"{}" * 1_001
    assert gateway.request("POST", path, many).status == 413


def test_a_request_without_a_body_is_400(gateway: GatewayRequests, node: Broker) -> None:
    host, _, port = gateway.host.rpartition(":")
    where = f"{gateway.cluster}/topics/{node.create_topic()}/records"
    with socket.create_connection((host, int(port)), 30) as connection, connection.makefile("rb") as answers:
        connection.sendall(f"POST {where} HTTP/1.1\r\nHost: {gateway.host}\r\n\r\n".encode())
        assert answers.readline().split()[1] == b"400"


def test_errors_say_what_a_client_of_http_can_do(gateway: GatewayRequests, node: Broker) -> None:
    refused = gateway.post("/topics/none/records", text("x"))
    assert "POST it to .../topics" in refused.json["detail"]
    beyond = gateway.get(f"{gateway.cluster}/topics/{node.create_topic()}/partitions/0/records?offset=9")
    assert "ask for offset=" in beyond.json["detail"], beyond.body
    assert "seek" not in beyond.json["detail"]
    failed = rest_problem(FatalError("this producer has failed; close it and make a new one (the log is full)"))
    assert failed.detail.startswith("the log is full")


def test_a_stream_of_records_ends_when_the_gateway_stops(node: Broker) -> None:
    topic = node.create_topic()
    with ExitStack() as stack:
        serving = stack.enter_context(ExitStack())
        gateway = GatewayRequests(serving.enter_context(rest_gateway(node.bootstrap)))
        host, _, port = gateway.host.rpartition(":")
        connection = stack.enter_context(socket.create_connection((host, int(port)), 30))
        answers = stack.enter_context(connection.makefile("rb"))
        head = f"POST {gateway.cluster}/topics/{topic}/records HTTP/1.1\r\nHost: {gateway.host}\r\n"
        connection.sendall(f"{head}Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        connection.sendall(chunk(json.dumps(text("a")).encode()))
        while answers.readline().strip():
            pass
        assert next_chunk(answers)["offset"] == 0
        serving.close()
        assert answers.readline() == b"0\r\n"  # whole, though the request is not
    assert len(node.records(topic)) == 1
