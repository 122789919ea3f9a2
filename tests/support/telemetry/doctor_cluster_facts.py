"""Made-up facts of a healthy cluster of three, and of clusters in which one thing is wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from doctor_facts import HEALTHY_DISK, NODE, NOW, TOPIC, settings_with

from semel.protocol.api.diagnostics import (
    InternalTopicFacts,
    NodeFacts,
    NodeSnapshot,
    PartitionReplicas,
    ReplicaFacts,
    ReplicationFacts,
    Severity,
)
from semel.protocol.ids import NO_LEADER, TRANSACTIONS_TOPIC, TopicPartition

T1 = TopicPartition("orders", 1)
WHOLE = ReplicationFacts(T1, 1, (1, 2, 3), (1, 2, 3), min_insync_replicas=2)
BEHIND = replace(WHOLE, isr=(1, 2), missing=(ReplicaFacts(3, 40),))
TWO_LISTENERS = "default=127.0.0.1:9092,external=127.0.0.1:9093"
REPLICATED = replace(TOPIC, replicas=3, min_insync_replicas=2)


def three(**changed: Any) -> tuple[NodeSnapshot, ...]:
    """Return three nodes that agree; what is changed, is changed on the first one, which knows the newest metadata."""
    nodes = tuple(NodeFacts(number) for number in (1, 2, 3))
    common = replace(
        NODE,
        topics=(REPLICATED,),
        version="1.0",
        metadata_sequence=70,
        nodes=nodes,
        internal_topics=(InternalTopicFacts(TRANSACTIONS_TOPIC, 3, 3, 2),),
        settings=settings_with(min_insync_replicas="2"),
    )
    others = [
        replace(common, node_id=number, disk=replace(HEALTHY_DISK, data_dir=f"/var/lib/semel-{number}"))
        for number in (2, 3)
    ]
    return (replace(common, is_controller=True, **{"metadata_sequence": 71, **changed}), *others)


def cut_off(nodes: tuple[NodeSnapshot, ...], away_ms: int = 20_000) -> tuple[NodeSnapshot, ...]:
    """Return these nodes when the metadata's database has been away for so long."""
    return tuple(replace(node, metadata_away_ms=away_ms) for node in nodes)


CLUSTER_CASES: dict[str, tuple[Severity, tuple[NodeSnapshot, ...]]] = {
    "metadata-away": (Severity.ERROR, cut_off(three())),
    "node-fenced": (
        Severity.ERROR,
        three(nodes=(NodeFacts(1), NodeFacts(2), NodeFacts(3, is_fenced=True))),
    ),
    "controller-missing": (
        Severity.WARNING,
        tuple(replace(node, is_controller=False) for node in three()),
    ),
    "partition-leaderless": (
        Severity.ERROR,
        three(replication=(replace(WHOLE, leader=NO_LEADER, isr=(), elr=(2,)),), replication_total=1),
    ),
    "partition-under-min-isr": (
        Severity.ERROR,
        three(replication=(replace(WHOLE, replicas=(1,), isr=(1,)),), replication_total=1),
    ),
    "replicas-behind": (Severity.WARNING, three(replication=(BEHIND,), replication_total=1)),
    "throttle-left": (Severity.WARNING, three(throttled_topics=("orders",))),
    "listener-missing": (
        Severity.WARNING,
        tuple(
            replace(each, settings=settings_with(min_insync_replicas="2", kafka_listeners=items))
            for each, items in zip(three(), (TWO_LISTENERS, TWO_LISTENERS, ""), strict=True)
        ),
    ),
    "replication-factor-one": (Severity.WARNING, three(topics=(replace(TOPIC, topic="alone"),))),
    "internal-topic-replicas": (
        Severity.WARNING,
        three(internal_topics=(InternalTopicFacts(TRANSACTIONS_TOPIC, 1, 3, 1),)),
    ),
    "min-insync-no-room": (
        Severity.WARNING,
        three(
            nodes=tuple(NodeFacts(number) for number in (1, 2, 3, 4)),
            topics=(
                replace(REPLICATED, topic="tight", min_insync_replicas=3, tight=(PartitionReplicas(0, (1, 2, 3)),)),
            ),
        ),
    ),
    "settings-differ": (Severity.WARNING, three(settings=settings_with(min_insync_replicas="1"))),
    "delegation-secrets-differ": (Severity.WARNING, three(delegation_secret_mark="ab")),
    "versions-differ": (Severity.WARNING, three(version="0.9")),
    "clocks-apart": (Severity.WARNING, three(now_ms=NOW + 60_000)),
}
"""A cluster's facts in which exactly this is to be found."""
