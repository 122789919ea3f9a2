"""The rules of `semel doctor` about several nodes, with made-up facts."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest
from doctor_cluster_facts import BEHIND, CLUSTER_CASES, REPLICATED, T1, WHOLE, cut_off, three
from doctor_facts import NOW, TOPIC, settings_with
from typer.testing import CliRunner

from semel.broker.diagnostics.snapshot import TOLD_SETTINGS
from semel.cli.common import command_here
from semel.cli.main import app
from semel.protocol.api.diagnostics import (
    NodeFacts,
    NodeSnapshot,
    OfflinePartition,
    OwnedToken,
    PartitionReplicas,
    ReplicaFacts,
    ReplicationFacts,
    Severity,
    Thresholds,
    TopicFacts,
)
from semel.protocol.ids import NO_LEADER, TopicPartition
from semel.protocol.plain_messages import from_message, to_message
from semel.protocol.v1 import diagnostics_pb2
from semel.sdk.diagnosis.cluster_rules import EQUAL_SETTINGS
from semel.sdk.diagnosis.findings import Cluster, Finding
from semel.sdk.diagnosis.rules import diagnose


def findings(nodes: tuple[NodeSnapshot, ...], unreachable: dict[int, str] | None = None) -> dict[str, Finding]:
    found = diagnose(Cluster(nodes, unreachable or {}), Thresholds()).findings
    by_kind = {one.kind.name: one for one in found}
    assert len(by_kind) == len(found), "each kind once"
    return by_kind


def test_a_healthy_cluster_has_no_findings() -> None:
    assert findings(three()) == {}


@pytest.mark.parametrize("name", CLUSTER_CASES)
def test_each_kind_is_found_alone(name: str) -> None:
    severity, nodes = CLUSTER_CASES[name]
    (found,) = findings(nodes).values()
    assert (found.kind.name, found.severity) == (name, severity)


@pytest.mark.parametrize("name", CLUSTER_CASES)
def test_each_command_is_one_that_there_is(name: str) -> None:
    runner = CliRunner()
    for text in findings(CLUSTER_CASES[name][1])[name].commands:
        words = shlex.split(text)
        shown = runner.invoke(app, [*words[1:], "--help"])
        assert shown.exit_code == 0, (text, shown.output)
        assert all(word.partition("=")[0] in shown.output for word in words if word.startswith("--")), text


@pytest.mark.parametrize("name", CLUSTER_CASES)
def test_what_is_about_the_cluster_does_not_name_the_node_that_told_of_it(name: str) -> None:
    found = findings(CLUSTER_CASES[name][1])[name]
    about = {"node-fenced": 3, "replicas-behind": 3, "listener-missing": 3, "clocks-apart": 1}.get(name, -1)
    assert found.node_id == about
    assert about < 0 or f"node {about}" in found.what


@pytest.mark.parametrize("name", CLUSTER_CASES)
def test_facts_survive_the_wire(name: str) -> None:
    for facts in CLUSTER_CASES[name][1]:
        data = to_message(facts, diagnostics_pb2.NodeSnapshot()).SerializeToString()
        assert from_message(diagnostics_pb2.NodeSnapshot.FromString(data), NodeSnapshot) == facts


def test_a_database_that_is_away_is_one_finding_that_names_the_nodes() -> None:
    found = findings(cut_off(three()))["metadata-away"]
    assert found.what == "nodes 1, 2 and 3 have not reached the metadata's database for 20.0 s"
    assert found.since_ms == NOW - 20_000
    assert found.happens == "leaders that die are not replaced, and topics can't be changed, until it is back"
    assert found.node_id == -1, "it is about none of them"
    assert findings(cut_off(three(), 5_000)) == {}, "it may be back in a moment"


def test_a_database_that_is_away_comes_before_the_nodes_that_can_not_be_replaced() -> None:
    leads = (NodeFacts(1, leads=4), NodeFacts(2, leads=4), NodeFacts(3, leads=4))
    nodes = cut_off(three(nodes=leads)[:2])
    found = diagnose(Cluster(nodes, {3: "connection refused"}), Thresholds()).findings
    assert [one.kind.name for one in found] == ["metadata-away", "node-unreachable"]
    assert found[1].happens == "nobody else leads what it leads, until it is back, or the metadata's database"


def test_one_node_that_does_not_reach_the_database_does_not_say_that_nobody_elects() -> None:
    first, second, third = three()
    found = findings((first, second, *cut_off((third,))))["metadata-away"]
    assert found.what.startswith("node 3 has not reached")
    assert "the others reach it" in found.happens


def test_a_database_that_is_away_explains_why_nobody_is_the_controller() -> None:
    nodes = cut_off(tuple(replace(node, is_controller=False) for node in three()))
    assert set(findings(nodes)) == {"metadata-away"}


def test_a_node_that_is_alone_can_not_change_topics_without_its_database() -> None:
    (alone, *_) = cut_off(three(nodes=(NodeFacts(1),), topics=(TOPIC,)))
    assert findings((alone,))["metadata-away"].happens == "topics can't be changed until it is back"


def test_a_node_that_is_away_is_asked_by_its_own_address() -> None:
    nodes = three()[:2]
    addresses = {number: f"node{number}:9094" for number in (1, 2, 3)}
    found = diagnose(Cluster(nodes, {3: "connection refused"}, addresses), Thresholds()).findings
    (away,) = [one for one in found if one.kind.name == "node-unreachable"]
    assert away.commands == ("semel health --bootstrap node3:9094",)
    assert command_here(away.commands[0], "node1:9094,node2:9094") == away.commands[0]


def test_a_throttle_is_left_only_once_nothing_is_moved_any_more() -> None:
    assert findings(three(throttled_topics=("orders",), moving_total=1)) == {}


def test_every_setting_that_must_be_equal_is_told() -> None:
    assert set(EQUAL_SETTINGS) <= set(TOLD_SETTINGS)


def test_a_partition_without_a_leader_names_the_node_that_brings_it_back() -> None:
    lost = replace(WHOLE, leader=NO_LEADER, isr=(), elr=(2,))
    found = findings(three(replication=(lost,)), {2: "connection refused"})["partition-leaderless"]
    assert "start node 2: it has all committed records" in found.what
    assert "nodes 1, 2 and 3" in found.what
    only = replace(lost, replicas=(3,), isr=(3,), elr=())
    assert "start node 3, which has the only copy" in findings(three(replication=(only,)))["partition-leaderless"].what
    two = replace(lost, elr=(2, 3))
    assert "start nodes 2 or 3: each has all" in findings(three(replication=(two,)))["partition-leaderless"].what


def test_a_partition_that_no_start_brings_back_says_which_replicas_may_lack_the_fewest() -> None:
    lost = replace(WHOLE, leader=NO_LEADER, isr=(), elr=(), last_known_elr=(3,))
    found = findings(three(replication=(lost,)))["partition-leaderless"]
    assert "those of node 3 may lack the fewest" in found.what
    assert found.happens.startswith("nothing")
    assert "UNCLEAN" in found.kind.fix
    assert "lost" in found.kind.fix


def test_a_partition_that_waits_for_its_replicas_after_lost_metadata_names_those_to_start() -> None:
    """It was told to be elected by hand, which loses records: the node that had most was only not started yet."""
    lost = replace(WHOLE, leader=NO_LEADER, isr=(), elr=(), last_known_elr=(), waits_for_replicas=True)
    found = findings(three(replication=(lost,)), {1: "connection refused"})["partition-leaderless"]
    assert "it is not known which of them has most records: start node 1" in found.what
    assert "nobody has to elect" in found.happens
    found = findings(three(replication=(lost,)))["partition-leaderless"]
    assert found.what.endswith("they are being asked")


def test_a_partition_whose_replicas_can_not_be_read_now_is_led_once_one_can_be() -> None:
    lost = replace(WHOLE, leader=NO_LEADER, isr=(), elr=(), last_known_elr=(2, 3))
    first, second, third = three(replication=(lost,))
    unreadable = OfflinePartition(lost.partition, "No space left on device", "unreadable")
    told = diagnose(Cluster((first, replace(second, offline=(unreadable,)), third), {}), Thresholds()).findings
    (found,) = [one for one in told if one.kind.name == "partition-leaderless"]
    assert "node 2 had all committed records, and can't read the partition's files now: make room" in found.what
    assert found.happens == "it is led again as soon as node 2 can read them, and has lost nothing"


def test_what_a_replica_lacks_is_told_by_its_leader_where_another_knows_newer_metadata() -> None:
    """The newest metadata says who is in sync; the leader alone knows how far the others are."""
    newest, leader, third = three()
    newest = replace(newest, replication=(replace(BEHIND, leader=2, isr=(1, 2), missing=()),))
    leader = replace(leader, replication=(replace(BEHIND, leader=2, missing=(ReplicaFacts(3, 77),)),))
    found = findings((newest, leader, third))["replicas-behind"]
    assert "orders-1 (lacks 77 records)" in found.what
    assert found.subject == "node 3"


def test_replicas_of_a_node_that_is_away_are_one_finding_beside_that_of_the_node() -> None:
    nodes = (NodeFacts(1), NodeFacts(2), NodeFacts(3, is_fenced=True, is_stopping=True))
    more = tuple(replace(BEHIND, partition=TopicPartition("orders", number)) for number in range(8))
    found = findings(three(nodes=nodes, replication=more)[:2], {3: "connection refused"})
    assert set(found) == {"node-unreachable", "replicas-behind"}
    assert "8 replicas on node 3" in found["replicas-behind"].what
    assert "lacks" not in found["replicas-behind"].what
    assert "it was stopped" in found["node-unreachable"].what
    assert "until it is back" in found["node-unreachable"].happens


def test_older_metadata_of_another_node_is_not_believed() -> None:
    newest, second, third = three()
    second = replace(second, nodes=(NodeFacts(1), NodeFacts(2), NodeFacts(3, is_fenced=True)), replication=(BEHIND,))
    assert findings((newest, second, third)) == {}


def test_settings_that_differ_have_the_command_for_the_node_that_is_alone_with_its_value() -> None:
    found = findings(three(settings=settings_with(min_insync_replicas="1")))["settings-differ"]
    assert found.what == "min.insync.replicas differs: 1 on node 1, 2 on nodes 2 and 3"
    assert found.commands == ("semel serve --data-dir /var/lib/semel --set min.insync.replicas=2",)


def test_secrets_of_delegation_tokens_that_differ_are_found() -> None:
    alike = [replace(one, delegation_secret_mark="ab") for one in three()]
    third = alike[2]
    assert findings(alike) == {}
    other = replace(third, delegation_secret_mark="cd")
    found = findings((alike[0], alike[1], other))["delegation-secrets-differ"]
    assert found.what.endswith("tokens: one on nodes 1 and 2 and one on node 3")
    none = replace(third, delegation_secret_mark="")
    found = findings((alike[0], alike[1], none))["delegation-secrets-differ"]
    assert found.what.endswith("tokens: one on nodes 1 and 2, none on node 3")
    older = replace(none, version="0.0.1")
    assert set(findings((alike[0], alike[1], older))) == {"versions-differ"}, "it can't tell of its secret"
    assert findings([replace(one, delegation_secret_mark="") for one in alike]) == {}


def test_tokens_whose_owner_is_a_user_on_other_nodes_are_a_warning_without_a_command() -> None:
    alike = [replace(one, delegation_secret_mark="ab") for one in three()]
    lacks = replace(alike[0], tokens_without_user=(OwnedToken("t1", "User:carl"),), tokens_without_user_total=1)
    found = findings((lacks, *alike[1:]))["token-without-user"]
    assert (found.severity, found.commands) == (Severity.WARNING, ())
    assert "1 delegation token of User:carl, who is no user on node 1" in found.what
    everywhere = [replace(lacks, node_id=one.node_id, leaders=one.leaders) for one in alike]
    found = findings(everywhere)["token-without-user"]
    assert (found.severity, found.commands) == (Severity.INFO, ("semel user remove carl",))


def tight_topic(*replicas: tuple[int, ...]) -> tuple[TopicFacts, ...]:
    tight = tuple(PartitionReplicas(number, nodes) for number, nodes in enumerate(replicas))
    return (replace(REPLICATED, topic="big", replicas=2, min_insync_replicas=2, tight=tight),)


def test_room_for_the_loss_of_a_node_is_made_by_one_replica_more_and_never_by_fewer_copies() -> None:
    nodes = (NodeFacts(1, leads=1), NodeFacts(2, leads=1), NodeFacts(3, leads=9))
    found = findings(three(topics=tight_topic((2, 1), (3, 1)), nodes=nodes))["min-insync-no-room"]
    assert found.commands == ("semel partition move big:0 --to 2,1,3", "semel partition move big:1 --to 3,1,2")
    assert "fewer copies" in found.kind.fix
    unknown = findings(three(topics=tight_topic()))["min-insync-no-room"]
    assert unknown.commands == (), "a node of an earlier version does not tell the replicas"


@pytest.mark.parametrize("state", ["is_fenced", "is_stopping", "is_cordoned"])
def test_no_replica_is_put_on_a_node_that_can_not_take_it(state: str) -> None:
    nodes = (NodeFacts(1), NodeFacts(2), replace(NodeFacts(3), **{state: True}), NodeFacts(4))
    found = findings(three(topics=tight_topic((1, 2)), nodes=nodes))["min-insync-no-room"]
    assert found.commands == ("semel partition move big:0 --to 1,2,4",)
    assert findings(three(topics=tight_topic((1, 2)), nodes=nodes[:3]))["min-insync-no-room"].commands == ()
    away = findings(three(topics=tight_topic((1, 2)))[:2], {3: "connection refused"})
    assert away["min-insync-no-room"].commands == ()


def test_a_topic_that_three_nodes_tell_of_is_one_finding() -> None:
    impossible = tuple(
        replace(node, topics=(replace(REPLICATED, min_insync_replicas=5, retention_ms=60_000),)) for node in three()
    )
    assert set(findings(impossible)) == {"min-insync-impossible", "retention-short"}


def test_a_single_node_is_not_asked_for_more_replicas() -> None:
    (alone, *_) = three(nodes=(NodeFacts(1),), topics=(TOPIC,))
    assert findings((alone,)) == {}


def test_many_partitions_without_a_leader_are_told_up_to_a_bound() -> None:
    lost = [
        replace(WHOLE, partition=TopicPartition("t", number), leader=NO_LEADER, isr=(), elr=(2,))
        for number in range(30)
    ]
    found = diagnose(Cluster(three(replication=tuple(lost)))).findings
    assert len(found) == 21
    assert any("10 more partitions without a leader" in one.what for one in found)
    assert all(one.severity is Severity.ERROR for one in found)
    assert T1.topic not in {one.subject for one in found}


def of_nodes(*nodes: NodeSnapshot) -> list[Finding]:
    return list(diagnose(Cluster(nodes), Thresholds()).findings)


def test_a_directory_that_is_gone_where_another_node_leads_needs_a_restart_and_no_loss() -> None:
    """A coordinator's partition that another node leads is none that its coordinator can't read."""
    one, *others = three()
    gone = TopicPartition("__transaction_state", 7)
    offline = OfflinePartition(gone, "its directory is gone", "vanished")
    led = ReplicationFacts(gone, 2, (1, 2, 3), (2, 3), (), (), 2)
    newer = [replace(other, replication=(led,), replication_total=1, metadata_sequence=99) for other in others]
    found = {one.kind.name: one for one in of_nodes(replace(one, offline=(offline,), offline_total=1), *newer)}
    assert "coordinator-unreadable" not in found
    vanished = found["partition-vanished"]
    assert vanished.happens == "node 2 leads it, and nothing is lost: restart node 1, and it copies it again"
    assert vanished.commands == ("semel serve --data-dir /var/lib/semel",)


def test_a_directory_that_is_gone_where_nobody_else_leads_is_a_loss() -> None:
    one, *others = three()
    gone = TopicPartition("__transaction_state", 7)
    offline = OfflinePartition(gone, "its directory is gone", "vanished")
    found = {one.kind.name: one for one in of_nodes(replace(one, offline=(offline,), offline_total=1), *others)}
    assert "coordinator-unreadable" in found
    assert "--accept-loss-of" in found["partition-vanished"].commands[-1]
    assert found["partition-vanished"].commands[0].endswith("--metadata-url URL"), "it is not in the directory"


def test_one_partition_that_is_much_larger_is_told_once() -> None:
    skewed = [replace(node, topics=(replace(TOPIC, largest_bytes=3 << 30),)) for node in three()]
    assert [one.kind.name for one in of_nodes(*skewed)].count("partition-skewed") == 1


def test_a_node_with_a_full_disk_that_leads_nothing_refuses_nobody() -> None:
    one, *others = three()
    full = replace(one, disk=replace(one.disk, free_bytes=1 << 20, is_refusing=True), leaders=0)
    (found,) = [each for each in of_nodes(full, *others) if each.kind.name == "disk-full"]
    assert "other nodes lead in its place" in found.what
    assert found.happens.startswith("this node may lead again once")


def test_a_diskless_topic_needs_no_second_replica() -> None:
    single = replace(REPLICATED, topic="single", replicas=1, min_insync_replicas=1)
    assert "replication-factor-one" in findings(three(topics=(single,)))
    for min_isr in (1, 2):
        diskless = replace(single, is_diskless=True, min_insync_replicas=min_isr)
        assert findings(three(topics=(diskless,))) == {}
