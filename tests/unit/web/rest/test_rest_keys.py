"""Requests with an Idempotency-Key: done once, and answered the same by any gateway, however often (T13, E5)."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import count

import pytest
from gateway_requests import GatewayRequests, Reply, text
from rest_gateway import rest_gateway

import semel
from semel.protocol.api.topics import LATEST_TIMESTAMP
from semel.testing import Broker
from semel.web.rest.bounds import LANES
from semel.web.rest.once.answers import TOPIC
from semel.web.rest.once.keys import request_key


def test_T13_a_repeated_request_gets_the_first_answer_and_writes_nothing(
    gateway: GatewayRequests, other_gateway: GatewayRequests, node: Broker
) -> None:
    topic = node.create_topic()
    first = gateway.post(f"/topics/{topic}/records", text("a"), key=topic)
    assert first.status == 200
    assert "idempotency-replayed" not in first.headers
    for one in (gateway, other_gateway, gateway, other_gateway):
        again = one.post(f"/topics/{topic}/records", text("a"), key=topic)
        assert (again.status, again.body) == (200, first.body)
        assert again.headers["idempotency-replayed"] == "true"
    assert len(node.records(topic)) == 1


def test_T13_E1_the_same_request_sent_to_two_gateways_at_once_takes_effect_once(
    gateway: GatewayRequests, other_gateway: GatewayRequests, node: Broker
) -> None:
    topic = node.create_topic()
    body = {"records": [text("a", topic_name=topic), text("b", topic_name=topic)]}
    for number in range(4):
        with ThreadPoolExecutor(12) as pool:
            send = [one.post for one in (gateway, other_gateway) for _ in range(6)]
            replies = list(pool.map(lambda post, n=number: post("/records", body, key=f"{topic} {n}"), send))
        assert {reply.status for reply in replies} == {200}
        assert len({reply.body for reply in replies}) == 1
        assert sum("idempotency-replayed" not in reply.headers for reply in replies) == 1
    assert [record.value for record in node.records(topic)] == [b"a", b"b"] * 4


def test_E1_requests_with_keys_of_their_own_to_two_gateways_at_once_each_take_effect_once(
    gateway: GatewayRequests, other_gateway: GatewayRequests, node: Broker
) -> None:
    """Their lanes go from one gateway to the other and back: what a gateway loses by that it does again."""
    topic = node.create_topic()

    def send(number: int) -> Reply:
        one = gateway if number % 3 else other_gateway
        return one.post(f"/topics/{topic}/records", text(str(number)), key=f"{topic} {number}")

    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(send, range(60)))
    assert {reply.status for reply in replies} == {200}
    assert sorted(int(record.value) for record in node.records(topic)) == list(range(60))


def test_T13_a_key_of_another_request_is_422(
    gateway: GatewayRequests, other_gateway: GatewayRequests, node: Broker
) -> None:
    topic, other = node.create_topic(), node.create_topic()
    assert gateway.post(f"/topics/{topic}/records", text("a"), key=topic).status == 200
    for one in (gateway, other_gateway):
        for path, body in ((topic, text("b")), (other, text("a"))):
            refused = one.post(f"/topics/{path}/records", body, key=topic)
            assert (refused.status, refused.json["error_code"]) == (422, 42201)
    assert len(node.records(topic)) == 1
    assert node.records(other) == []


def test_several_records_of_a_request_with_a_key_are_written_all_or_none(
    gateway: GatewayRequests, node: Broker
) -> None:
    topic = node.create_topic()
    path = f"/topics/{topic}/records"
    body = b'{"value": {"type": "STRING", "data": "a"}} {"value": {"type": "STRING", "data": "b"}}'
    reports = gateway.post(path, body, key=topic).lines
    assert [report["offset"] for report in reports] == [0, 1]
    refused = gateway.post(path, body + b'{"partition_id": 5}', key=f"{topic} 2")
    assert refused.status == 404
    mixed = {"records": [text("c", topic_name=topic), text("d", topic_name="none")]}
    assert gateway.post("/records", mixed, key=f"{topic} 3").status == 404
    assert len(node.records(topic)) == 2
    mixed["records"].pop()
    assert gateway.post("/records", mixed, key=f"{topic} 3").status == 200  # what failed did not use up its key
    assert len(node.records(topic)) == 3


@pytest.mark.parametrize("key", ["", " ", "x" * 256, "ü", "a\tb", '""'])
def test_keys_that_are_none_are_refused(gateway: GatewayRequests, node: Broker, key: str) -> None:
    topic = node.create_topic()
    path = f"{gateway.cluster}/topics/{topic}/records"
    assert gateway.request("POST", path, text("a"), {"Idempotency-Key": key.encode().decode("latin-1")}).status == 400
    assert node.records(topic) == []


def test_a_key_may_stand_in_quotes_as_the_draft_says(gateway: GatewayRequests, node: Broker) -> None:
    topic = node.create_topic()
    first = gateway.post(f"/topics/{topic}/records", text("a"), key=topic)
    assert gateway.post(f"/topics/{topic}/records", text("a"), key=f'"{topic}"').body == first.body


@pytest.mark.parametrize("path", ["/records", "/transactions"])
def test_a_request_that_must_have_a_key_says_so(gateway: GatewayRequests, node: Broker, path: str) -> None:
    refused = gateway.post(path, {"records": [text("a", topic_name=node.create_topic())]})
    assert refused.status == 400
    assert "Idempotency-Key" in refused.json["detail"]


def test_S5_the_key_of_one_user_is_not_that_of_another() -> None:
    keys = {request_key(text, user).digest for text, user in (("a", ""), ("a", "b"), ("ab", ""), ("", "ab"))}
    assert len(keys) == 4
    assert all(0 <= request_key("a", user).lane < LANES for user in "abcdefgh")


def test_T13_E5_the_key_is_the_token_of_its_commit(gateway: GatewayRequests, node: Broker) -> None:
    topic = node.create_topic()
    assert gateway.post(f"/topics/{topic}/records", text("a"), key=topic).status == 200
    with semel.Admin(node.bootstrap) as admin:
        tokens = [commit.token for commit in admin.commits(f"semel-rest//{request_key(topic, '').lane}")]
    assert tokens[-1] == topic


def test_T13_a_key_whose_answer_is_not_kept_any_more_takes_effect_no_second_time(
    gateway: GatewayRequests, other_gateway: GatewayRequests, node: Broker
) -> None:
    topic = node.create_topic()
    assert gateway.post(f"/topics/{topic}/records", text("a"), key=topic).status == 200
    with semel.Admin(node.bootstrap) as admin:
        admin.delete_records({semel.TopicPartition(TOPIC, request_key(topic, "").lane): -1})
    for one in (gateway, other_gateway):
        refused = one.post(f"/topics/{topic}/records", text("a"), key=topic)
        assert refused.status == 409
        assert "not kept any more" in refused.json["detail"]
    assert len(node.records(topic)) == 1


def test_a_topic_of_answers_that_was_deleted_is_made_again(
    gateway: GatewayRequests, other_gateway: GatewayRequests, node: Broker
) -> None:
    """Also where the new one is as long as the old one was: it has the same offsets, and other records."""
    topic, path = node.create_topic(), "/records"
    after, body = f"{topic} after", {"records": [text("a", topic_name=topic)]}
    lane = request_key(after, "").lane
    keys = (key for number in count() if request_key(key := f"{topic} {number}", "").lane == lane)

    def end() -> int:
        partition = semel.TopicPartition(TOPIC, lane)
        with semel.Admin(node.bootstrap) as admin:
            return admin.list_offsets({partition: LATEST_TIMESTAMP})[partition].offset

    for one in (other_gateway, gateway, other_gateway):  # who takes a lane over reads it
        assert one.post(path, body, key=next(keys)).status == 200
    end_before, written = end(), 4
    node.delete_topic(TOPIC)
    while (first := gateway.post(path, body, key=after)).status != 200:
        assert TOPIC in first.json["detail"]
    while end() < end_before:
        assert gateway.post(path, body, key=next(keys)).status == 200
        written += 1
    for one in (other_gateway, gateway):
        while (again := one.post(path, body, key=after)).status != 200:
            assert TOPIC in again.json["detail"]
        assert again.body == first.body
    assert len(node.records(topic)) == written


def test_T13_a_key_that_took_effect_is_409_where_the_topic_of_answers_was_deleted(
    gateway: GatewayRequests, node: Broker
) -> None:
    topic = node.create_topic()
    assert gateway.post(f"/topics/{topic}/records", text("a"), key=topic).status == 200
    node.delete_topic(TOPIC)
    while (refused := gateway.post(f"/topics/{topic}/records", text("a"), key=topic)).status == 503:
        assert "same key" in refused.json["detail"]
    assert refused.status == 409, refused.body
    assert "not kept any more" in refused.json["detail"]
    assert len(node.records(topic)) == 1


@pytest.mark.parametrize(
    ("value", "answers_again"),
    [
        (None, True),
        (b"no JSON", True),
        (b"{}", True),
        (b'{"fingerprint":"x","status":200,"body":[]}', True),
        (b'{"fingerprint":"' + b"0" * 64 + b'","status":200,"body":[}', False),
    ],
    ids=["tombstone", "text", "empty", "fingerprint", "damaged"],
)
def test_a_record_that_is_no_answer_is_passed_over(
    gateway: GatewayRequests, other_gateway: GatewayRequests, node: Broker, value: bytes | None, answers_again: bool
) -> None:
    topic = node.create_topic()
    first = gateway.post(f"/topics/{topic}/records", text("a"), key=topic)
    key = request_key(topic, "")
    with semel.Producer(node.bootstrap) as producer:
        producer.send(TOPIC, value, key=key.digest, partition=key.lane).result(30)
    again = other_gateway.post(f"/topics/{topic}/records", text("a"), key=topic)
    if answers_again:
        assert (again.status, again.body) == (200, first.body)
    else:
        assert again.status == 409
    assert len(node.records(topic)) == 1


def lose_the_answer(node: Broker, topic: str) -> None:
    node.drop_commit_answer(f"semel-rest//{request_key(topic, '').lane}")


def lose_the_request(node: Broker, topic: str) -> None:
    node.drop_commit_request(f"semel-rest//{request_key(topic, '').lane}")


def fence(node: Broker, topic: str) -> None:
    node.fence_producer(f"semel-rest//{request_key(topic, '').lane}")


@pytest.mark.parametrize("fault", [lose_the_answer, lose_the_request, fence])
def test_T7_T13_a_commit_that_goes_wrong_on_the_way_takes_effect_once(
    gateway: GatewayRequests, node: Broker, fault: Callable[[Broker, str], None]
) -> None:
    topic = node.create_topic()
    path = f"/topics/{topic}/records"
    gateway.post(path, text("a"), key=topic)  # so that its lane is open
    fault(node, topic)
    same_lane = next(key for key in (f"{topic} {n}" for n in range(1_000)) if lane(key) == lane(topic))
    first = gateway.post(path, text("b"), key=same_lane)
    again = gateway.post(path, text("b"), key=same_lane)
    assert (first.status, first.body) == (200, again.body)
    assert [record.value for record in node.records(topic)] == [b"a", b"b"]


def lane(key: str) -> int:
    return request_key(key, "").lane


def test_E1_a_node_that_is_killed_again_and_again_loses_no_request_and_repeats_none() -> None:
    with ExitStack() as stack:
        node = stack.enter_context(Broker())
        topic = node.create_topic()
        gateways = [GatewayRequests(stack.enter_context(rest_gateway(node.bootstrap))) for _ in range(2)]
        for one in gateways:
            assert one.cluster

        def send(number: int) -> None:
            while (
                gateways[number % 2].post(f"/topics/{topic}/records", text(str(number)), key=str(number)).status != 200
            ):
                pass

        with ThreadPoolExecutor(6) as pool:
            sent = pool.map(send, range(48))
            for share in (4, 12):
                node.records(topic, at_least=share, timeout_s=60)
                node.restart()
            list(sent)
        assert sorted(int(record.value) for record in node.records(topic)) == list(range(48))
