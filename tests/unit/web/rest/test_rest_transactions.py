"""Results and offsets in one request: a worker without a state transforms each record once (E1, O5)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from gateway_requests import GatewayRequests, text

import semel
import semel.aio
from semel.testing import Broker


def transaction(source: str, target: str, value: str, begins: int | None, ends: int) -> dict[str, Any]:
    return {
        "records": [text(value, topic_name=target)],
        "consumer_group_id": f"of {source}",
        "offsets": [{"topic_name": source, "partition_id": 0, "expected_offset": begins, "offset": ends}],
    }


def test_O1_records_and_offsets_take_effect_together(gateway: GatewayRequests, node: Broker) -> None:
    source, target = node.create_topic(), node.create_topic()
    body = transaction(source, target, "a", None, 5)
    done = gateway.post("/transactions", body, key=source)
    assert done.status == 200
    assert done.json["data"][0]["topic_name"] == target
    assert done.json["offsets"] == [{"topic_name": source, "partition_id": 0, "offset": 5}]
    assert node.committed_offsets(f"of {source}") == {semel.TopicPartition(source, 0): 5}
    again = gateway.post("/transactions", body, key=source)
    assert (again.body, again.headers["idempotency-replayed"]) == (done.body, "true")
    assert len(node.records(target)) == 1


def test_O5_a_request_that_began_where_the_group_stands_no_more_is_refused_and_writes_nothing(
    gateway: GatewayRequests, other_gateway: GatewayRequests, node: Broker
) -> None:
    source, target = node.create_topic(), node.create_topic()
    assert gateway.post("/transactions", transaction(source, target, "a", None, 5), key=f"{source} 1").status == 200
    for begins in (None, 0, 4, 6):
        refused = other_gateway.post(
            "/transactions", transaction(source, target, "b", begins, 5), key=f"{source} {begins}"
        )
        assert (refused.status, refused.json["error_code"]) == (409, 409)
        assert "somebody else has moved the group" in refused.json["detail"]
    assert [record.value for record in node.records(target)] == [b"a"]
    assert other_gateway.post("/transactions", transaction(source, target, "c", 5, 9), key=f"{source} 2").status == 200
    assert node.committed_offsets(f"of {source}") == {semel.TopicPartition(source, 0): 9}


def test_O5_E1_of_many_that_began_at_the_same_place_at_once_one_commits(
    gateway: GatewayRequests, other_gateway: GatewayRequests, node: Broker
) -> None:
    source, target = node.create_topic(), node.create_topic()
    stands: int | None = None
    for step in range(3):

        def send(number: int, begins: int | None = stands, step: int = step) -> int:
            body = transaction(source, target, f"{step}", begins, (begins or 0) + 1)
            return (
                (gateway, other_gateway)[number % 2].post("/transactions", body, key=f"{source} {step} {number}").status
            )

        with ThreadPoolExecutor(6) as pool:
            assert sorted(pool.map(send, range(6))) == [200, 409, 409, 409, 409, 409]
        stands = (stands or 0) + 1
    assert [record.value for record in node.records(target)] == [b"0", b"1", b"2"]


def test_offsets_alone_and_records_alone_are_transactions_too(gateway: GatewayRequests, node: Broker) -> None:
    source, target = node.create_topic(), node.create_topic()
    whole = transaction(source, target, "a", None, 5)
    alone = {name: whole[name] for name in ("consumer_group_id", "offsets")}
    assert gateway.post("/transactions", alone, key=f"{source} 1").json["data"] == []
    assert gateway.post("/transactions", {"records": whole["records"]}, key=f"{source} 2").status == 200
    assert len(node.records(target)) == 1
    assert node.committed_offsets(f"of {source}") == {semel.TopicPartition(source, 0): 5}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"records": [], "offsets": [], "consumer_group_id": None}, "records, offsets, or both"),
        ({"consumer_group_id": None}, "go together"),
        ({"consumer_group_id": ""}, "consumer_group_id"),
        ({"offsets": []}, "go together"),
        ({"offsets": [{"topic_name": "t", "partition_id": 0, "offset": 5}]}, "expected_offset"),
        ({"offsets": [{"topic_name": "t", "partition_id": 0, "offset": -1, "expected_offset": 0}]}, "offset"),
        ({"offsets": [{"topic_name": "t", "partition_id": 0, "offset": 1, "expected_offset": -1}]}, "expected_offset"),
        ({"offsets": [{"topic_name": "t", "partition_id": 0, "offset": 1, "expected_offset": 0}] * 2}, "twice"),
        ({"offsets": 5}, "offsets"),
        ({"records": [{"value": None}]}, "records[0].topic_name"),
        ({"group": "g"}, "group is not known"),
    ],
)
def test_a_transaction_that_makes_no_sense_is_422_and_names_the_field(
    gateway: GatewayRequests, node: Broker, changes: dict[str, Any], named: str
) -> None:
    topic = node.create_topic()
    refused = gateway.post("/transactions", {**transaction(topic, topic, "a", None, 1), **changes}, key=topic)
    assert refused.status == 422
    assert named in refused.json["detail"]
    assert node.records(topic) == []


def test_offsets_of_a_partition_that_is_not_there_are_404_and_hold_up_nobody(
    gateway: GatewayRequests, node: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*_: object, **__: object) -> None:
        raise AssertionError("the group was asked")

    monkeypatch.setattr(semel.aio.Producer, "send_offsets", never)
    source, target = node.create_topic(), node.create_topic()
    for number, (name, partition) in enumerate(((source, 7), ("none", 0))):
        body = transaction(name, target, "a", None, 5)
        body["offsets"][0]["partition_id"] = partition
        refused = gateway.post("/transactions", body, key=f"{source} {number}")
        assert (refused.status, refused.json["error_code"]) == (404, 40403), refused.body
        assert name in refused.json["detail"]
        assert "Admin" not in refused.json["detail"]
    assert node.records(target, uncommitted=True) == []
