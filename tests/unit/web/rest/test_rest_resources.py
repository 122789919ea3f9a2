"""Clusters, topics, settings and groups over REST, in the shapes of Confluent's API."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from gateway_requests import GatewayRequests, text

import semel
from semel.testing import Broker


def test_the_cluster_its_nodes_and_links_that_lead_somewhere(gateway: GatewayRequests) -> None:
    listed = gateway.get("/v3/clusters").json
    assert listed["kind"] == "KafkaClusterList"
    (cluster,) = listed["data"]
    assert gateway.get(gateway.cluster).json == cluster
    nodes = gateway.get(gateway.cluster + "/brokers").json["data"]
    assert [node["kind"] for node in nodes] == ["KafkaBroker"]
    assert nodes[0]["port"] > 0
    for name in ("controller", "brokers", "consumer_groups", "topics"):
        assert cluster[name]["related"].startswith(f"http://{gateway.host}/v3/clusters/")
        assert gateway.get(cluster[name]["related"].removeprefix(f"http://{gateway.host}")).status == 200


def test_a_topic_is_created_shown_and_deleted(gateway: GatewayRequests, node: Broker) -> None:
    made = gateway.post(
        "/topics",
        {"topic_name": "made", "partitions_count": 2, "configs": [{"name": "retention.ms", "value": "3600000"}]},
    )
    assert made.status == 201
    assert made.headers["location"] == made.json["metadata"]["self"]
    assert made.json["partitions_count"] == 2
    assert "made" in node.topics()
    assert gateway.get(gateway.cluster + "/topics/made").json == made.json
    partitions = gateway.get(gateway.cluster + "/topics/made/partitions").json["data"]
    assert [partition["partition_id"] for partition in partitions] == [0, 1]
    assert gateway.get(gateway.cluster + "/topics/made/partitions/1").json == partitions[1]
    again = gateway.post("/topics", {"topic_name": "made"})
    assert (again.status, again.json["error_code"]) == (400, 40002)
    assert gateway.request("DELETE", gateway.cluster + "/topics/made").status == 204
    gone = gateway.get(gateway.cluster + "/topics/made")
    assert (gone.status, gone.json["error_code"]) == (404, 40403)


def test_a_topic_that_is_only_checked_is_not_created(gateway: GatewayRequests, node: Broker) -> None:
    assert gateway.post("/topics", {"topic_name": "checked", "validate_only": True}).status == 200
    assert "checked" not in node.topics()


def test_settings_of_a_topic_are_read_changed_and_reset(gateway: GatewayRequests, node: Broker) -> None:
    path = f"{gateway.cluster}/topics/{node.create_topic()}/configs"
    before = gateway.get(f"{path}/retention.ms").json
    assert before["kind"] == "KafkaTopicConfig"
    assert before in gateway.get(path).json["data"]
    assert gateway.request("PUT", f"{path}/retention.ms", {"value": "1000"}).status == 204
    assert gateway.get(f"{path}/retention.ms").json["value"] == "1000"
    assert gateway.request("DELETE", f"{path}/retention.ms").status == 204
    assert gateway.get(f"{path}/retention.ms").json == before
    changes = [{"name": "retention.ms", "value": "2000"}, {"name": "segment.ms", "operation": "DELETE"}]
    assert gateway.request("POST", f"{path}:alter", {"data": changes}).status == 204
    assert gateway.get(f"{path}/retention.ms").json["value"] == "2000"
    refused = gateway.request("POST", f"{path}:alter", {"data": [{"name": "retention.ms", "value": "soon"}]})
    assert (refused.status, refused.json["error_code"]) == (400, 40002)
    assert gateway.get(f"{path}/none.such").status == 404


def test_a_group_its_members_lags_and_offsets(gateway: GatewayRequests, node: Broker) -> None:
    topic, group = node.create_topic(), "reads/all of it"
    for number in range(3):
        assert gateway.post(f"/topics/{topic}/records", text(str(number))).status == 200
    path = f"{gateway.cluster}/consumer-groups/{quote(group, safe='')}"
    with semel.Consumer(node.bootstrap, group=group, topics=[topic], instance_id="one") as consumer:
        assert consumer.poll(30, max_records=2) is not None
        consumer.commit()
        assert gateway.get(path).json["state"] == "STABLE"
        (member,) = gateway.get(f"{path}/consumers").json["data"]
        assert member["instance_id"] == "one"
        assert gateway.get(f"{path}/consumers/{quote(member['consumer_id'], safe='')}").json == member
        (lag,) = gateway.get(f"{path}/lags").json["data"]
        assert (lag["current_offset"], lag["log_end_offset"], lag["lag"]) == (2, 3, 1)
        assert lag["instance_id"] == "one"
        assert gateway.get(f"{path}/lag-summary").json["total_lag"] == 1
        moved = gateway.request("POST", f"{path}/offsets", offsets(topic, 0))
        assert (moved.status, moved.json["error_code"]) == (409, 409)  # its member would undo it
    assert group in [
        each["consumer_group_id"] for each in gateway.get(gateway.cluster + "/consumer-groups").json["data"]
    ]


def test_offsets_of_a_group_without_members_are_committed_and_read(gateway: GatewayRequests, node: Broker) -> None:
    topic = node.create_topic()
    path = f"{gateway.cluster}/consumer-groups/moved/offsets"
    assert gateway.get(path).json["data"] == []
    assert gateway.request("POST", path, offsets(topic, 7)).status == 204
    (stands,) = gateway.get(path).json["data"]
    assert (stands["topic_name"], stands["partition_id"], stands["offset"]) == (topic, 0, 7)


def offsets(topic: str, offset: int) -> dict[str, object]:
    return {"offsets": [{"topic_name": topic, "partition_id": 0, "offset": offset}]}


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v3/clusters/other", 404),
        ("/v3/clusters/other/topics", 404),
        ("{cluster}/brokers/99", 404),
        ("{cluster}/topics/none", 404),
        ("{cluster}/topics/none/configs", 404),
        ("{cluster}/topics/none/partitions", 404),
        ("{cluster}/topics/none/partitions/0/records", 404),
        ("{cluster}/consumer-groups/none", 404),
        ("{cluster}/consumer-groups/none/consumers", 404),
        ("{cluster}/consumer-groups/none/lags", 404),
        ("{cluster}/no/such/path", 404),
    ],
)
def test_what_is_not_there_is_404_with_a_sentence(gateway: GatewayRequests, path: str, status: int) -> None:
    found = gateway.get(path.format(cluster=gateway.cluster))
    assert found.status == status
    assert found.json["message"] == found.json["detail"]
    assert found.headers["content-type"].startswith("application/problem+json")


def test_a_method_that_a_path_does_not_have_is_405(gateway: GatewayRequests) -> None:
    assert gateway.request("PATCH", gateway.cluster + "/topics/any").status == 405


def test_a_list_has_the_address_that_it_was_asked_for_at(gateway: GatewayRequests, node: Broker) -> None:
    topic = node.create_topic()
    where = f"{gateway.cluster}/topics/%{ord(topic[0]):02x}{topic[1:]}/partitions?a=%20"
    listed = gateway.get(where)
    assert listed.status == 200
    assert listed.json["metadata"]["self"] == f"http://{gateway.host}{where}"
