"""Apache Kafka's own decoder reads what consumer groups leave in `__consumer_offsets` (KIP-848), migration included."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

from group_members import ConfluentMember, ConsumerProtocolMember, Member, Witness
from kafka_tools import KafkaTools
from live_node import LiveNode
from running_node import create_topic

from semel.protocol.api.groups import ListGroupsRequest


def test_kafkas_dump_tool_reads_the_records_of_a_group_that_moved(each_tools: KafkaTools, tmp_path: Path) -> None:
    with LiveNode(tmp_path, group_consumer_heartbeat_interval_ms=100, offsets_topic_num_partitions=1) as node:
        node.run(lambda: create_topic(node.node, "orders", 4))
        move(node)
    logs = sorted(str(path) for path in (tmp_path / "data").glob("__consumer_offsets-0/*.log"))
    done = each_tools.run("dump-log", "--files", ",".join(logs), "--offsets-decoder", "--deep-iteration").succeeded()
    records: dict[str, list[tuple[dict[str, Any], dict[str, Any] | None]]] = defaultdict(list)
    for line in done.lines():
        match = re.search(r"key: (\{.*?\}) payload: ?(.*)$", line)
        if match is not None:
            key = json.loads(match[1])
            value = json.loads(match[2]) if match[2].startswith("{") else None
            records[key["type"]].append((key["data"], None if value is None else value["data"]))
    assert "nknown" not in done.output, "every record is of a kind that the decoder knows"
    assert set(records) == {"2", "3", "5", "6", "7", "8"}
    assert all(key.get("groupId", key.get("group")) == "g" for found in records.values() for key, _ in found)
    epochs = [value["epoch"] for _, value in records["3"] if value is not None]
    assert epochs == sorted(epochs)
    members = [value for _, value in records["5"] if value is not None]
    assert {member["subscribedTopicNames"][0] for member in members} == {"orders"}
    classic = [member["classicMemberMetadata"] for member in members if member.get("classicMemberMetadata")]
    assert {each["supportedProtocols"][0]["name"] for each in classic} == {"cooperative-sticky"}
    assert len(classic) < len(members), "one member never was classic"
    assigned = [value["assignedPartitions"] for _, value in records["8"] if value is not None]
    assert max(len(topic["partitions"]) for topics in assigned for topic in topics) == 4
    # The group is a classic one again at the end: all that it was is deleted.
    for kind in ("3", "5", "6", "7", "8"):
        last = {key.get("memberId"): value for key, value in records[kind]}
        assert set(last.values()) == {None}, kind
    assert records["2"][-1][1] is not None


def move(node: LiveNode) -> None:
    """A classic member, one of the newer protocol for a while, and the classic one alone again."""
    witness = Witness()

    def join(kind: type[Member], assignor: str) -> Member:
        member = kind(node, witness, kind.__name__, "g", "orders", assignor)
        member.start()
        return member

    def wait(kind: str, **shares: int) -> None:
        def arrived() -> bool:
            listed = node.run(lambda: node.node.groups.list(ListGroupsRequest())).groups
            groups = [(group.group_type, group.state) for group in listed]
            return witness.shares() == shares and groups == [(kind, "Stable")]

        while not arrived():
            assert not witness.faults

    classic = join(ConfluentMember, "cooperative-sticky")
    wait("classic", ConfluentMember=4)
    newer = join(ConsumerProtocolMember, "uniform")
    wait("consumer", ConfluentMember=2, ConsumerProtocolMember=2)
    newer.stop()
    wait("classic", ConfluentMember=4)
    classic.stop()
