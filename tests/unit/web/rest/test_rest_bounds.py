"""Bounds of the REST API: what hostile, slow and many clients get, and that the others go on (S2, S3)."""

from __future__ import annotations

import json
import random
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from gateway_requests import GatewayRequests, Reply, text
from rest_gateway import rest_gateway

import semel
from semel.testing import Broker
from semel.web.limits import Limits
from semel.web.rest import service
from semel.web.rest.once import answers, lanes

WITHIN_S = 30.0


@pytest.fixture
def own_gateway(node: Broker, request: pytest.FixtureRequest) -> Iterator[GatewayRequests]:
    """A gateway with bounds that a test has set before it asks for it."""
    with rest_gateway(node.bootstrap, limits=Limits(send_s=0.2)) as url:
        yield GatewayRequests(url)


def damaged(chance: random.Random, body: bytes) -> bytes:
    """Return a body with some of its bytes changed, left out, or repeated."""
    data = bytearray(body)
    for _ in range(chance.randint(1, 4)):
        place = chance.randrange(len(data) or 1)
        what = chance.randrange(4)
        if what == 0:
            data[place : place + 1] = bytes([chance.randrange(256)])
        elif what == 1:
            del data[place : place + chance.randint(1, 8)]
        elif what == 2:
            data[place:place] = chance.choice([b"null", b"-1", b"1e999", b'"', b"[[", b"{}", b"\\u0000", b"9" * 30])
        else:
            data += data[place:]
    return bytes(data)


def test_S4_damaged_bodies_are_answered_and_never_by_an_error_of_the_gateway(
    gateway: GatewayRequests, node: Broker
) -> None:
    chance = random.Random(3)
    topic = node.create_topic()
    record = {**text("a", "k"), "headers": [{"name": "h", "value": "AA=="}], "partition_id": 0, "timestamp": 5}
    named = {"topic_name": topic, **record}
    offset = {"topic_name": topic, "partition_id": 0, "offset": 1, "expected_offset": None}
    bodies: dict[str, Any] = {
        f"/topics/{topic}/records": record,
        f"/topics/{topic}/records:batch": {"entries": [{"id": "1", **record}]},
        f"/topics/{topic}/configs:alter": {"data": [{"name": "retention.ms", "value": "5"}]},
        "/consumer-groups/fuzzed/offsets": {"offsets": [{"topic_name": topic, "partition_id": 0, "offset": 1}]},
        "/records": {"records": [named]},
        "/transactions": {"records": [named], "consumer_group_id": "fuzzed", "offsets": [offset]},
    }

    def send(number: int) -> tuple[bytes, Reply]:
        path = chance.choice(sorted(bodies))
        body = damaged(chance, json.dumps(bodies[path]).encode())
        return body, gateway.post(path, body, str(number) if path in ("/records", "/transactions") else None)

    for number in range(250):
        body, reply = send(number)
        assert reply.status in (200, 204, 207, 400, 404, 409, 413, 422), (body, reply.body)
    assert gateway.get(gateway.cluster).status == 200


def slow_stream(gateway: GatewayRequests, topic: str) -> socket.socket:
    """Ask for a stream of events, and read nothing of it."""
    host, _, port = gateway.host.rpartition(":")
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    connection.connect((host, int(port)))
    path = f"{gateway.cluster}/topics/{topic}/partitions/0/records?offset=earliest"
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: {gateway.host}\r\nAccept: text/event-stream\r\n\r\n".encode())
    return connection


@pytest.fixture
def two_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "READERS_MAX", 2)


def test_S2_clients_that_do_not_read_their_stream_lose_it_and_their_place_is_free(
    two_readers: None, own_gateway: GatewayRequests, node: Broker
) -> None:
    topic = node.create_topic()
    with semel.Producer(node.bootstrap) as producer:
        for _ in range(80):
            producer.send(topic, b"x" * 100_000)
    path = f"{own_gateway.cluster}/topics/{topic}/partitions/0/records?max_bytes=1"
    slow = [slow_stream(own_gateway, topic) for _ in range(2)]
    try:
        refused = own_gateway.get(path)
        while refused.status == 200:  # the streams had not begun
            refused = own_gateway.get(path)
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")
        assert "polls and streams are open" in refused.json["detail"]
        while own_gateway.get(path).status != 200:
            pass
    finally:
        for connection in slow:
            connection.close()


@pytest.fixture
def two_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "LANE_PRODUCERS_MAX", 2)


def test_S2_more_lanes_than_may_be_open_are_closed_and_opened_again(
    two_lanes: None, own_gateway: GatewayRequests, node: Broker
) -> None:
    topic = node.create_topic()
    for number in range(12):
        assert own_gateway.post(f"/topics/{topic}/records", text("a"), key=f"{topic} {number}").status == 200
    with ThreadPoolExecutor(8) as pool:
        path = f"/topics/{topic}/records"
        replies = list(pool.map(lambda n: own_gateway.post(path, text("a"), key=f"{topic} {n % 12}"), range(24)))
    assert {reply.status for reply in replies} <= {200, 503}
    assert all("same key" in reply.json["detail"] for reply in replies if reply.status == 503)
    assert len(node.records(topic)) == 12


@pytest.fixture
def few_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "KEYS_MAX", 0)


def test_S2_a_gateway_remembers_a_bounded_number_of_keys_and_says_when_there_is_no_room(
    few_keys: None, own_gateway: GatewayRequests, node: Broker
) -> None:
    topic = node.create_topic()
    refused = own_gateway.post(f"/topics/{topic}/records", text("a"), key=topic)
    assert (refused.status, refused.headers["retry-after"]) == (503, "60")
    assert answers.TOPIC in refused.json["detail"]
    assert node.records(topic) == []


@pytest.fixture
def short_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "KEY_WAIT_S", 1.0)


def test_T13_a_request_that_takes_too_long_is_503_its_repetition_409_and_later_it_is_done_once(
    short_wait: None, own_gateway: GatewayRequests, node: Broker
) -> None:
    topic, path = node.create_topic(), "/records"
    body = {"records": [text("a", topic_name=topic)]}
    own_gateway.post(path, body, key=f"{topic} before")
    paused = node.pause_partition(topic)
    with ThreadPoolExecutor(2) as pool:
        replies = list(pool.map(lambda _: own_gateway.post(path, body, key=topic), range(2)))
    assert {reply.status for reply in replies} <= {409, 503}
    assert all(int(reply.headers["retry-after"]) > 0 for reply in replies)
    paused.remove()
    while (done := own_gateway.post(path, body, key=topic)).status != 200:
        assert done.status == 503
    assert own_gateway.post(path, body, key=topic).body == done.body
    assert len(node.records(topic)) == 2
