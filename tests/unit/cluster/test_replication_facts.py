"""What a node tells `semel doctor` about the cluster's nodes, and about partitions that can't lose a replica."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from three_nodes import ALL, image_of

from semel.broker.controller.membership import CORDONED_SETTING
from semel.broker.diagnostics.replication import leader_counts, node_facts, tight_partitions
from semel.broker.metadata.image import MetadataImage
from semel.protocol.api.diagnostics import NodeFacts, PartitionReplicas


def knowing(image: MetadataImage) -> Any:
    return cast("Any", SimpleNamespace(metadata=SimpleNamespace(image=image)))


def test_each_node_is_told_with_what_it_leads_and_whether_it_is_cordoned() -> None:
    image = image_of(ALL, ALL, replace(ALL, leader=2), fenced=(3,))
    node = knowing(replace(image, broker_configs={2: {CORDONED_SETTING: "*"}}))
    assert node_facts(node, leader_counts(node)) == (
        NodeFacts(1, leads=2),
        NodeFacts(2, leads=1, is_cordoned=True),
        NodeFacts(3, is_fenced=True),
    )


def test_partitions_whose_replicas_all_have_to_be_in_sync_are_told_with_them() -> None:
    two = replace(ALL, replicas=(2, 1), isr=(1, 2))
    topic = image_of(ALL, two, replace(two, adding=(3,)), replace(two, replicas=(1,), isr=(1,)), two).topics["t"]
    assert tight_partitions(topic, 2, 20) == (PartitionReplicas(1, (2, 1)), PartitionReplicas(4, (2, 1)))
    assert tight_partitions(topic, 2, 1) == (PartitionReplicas(1, (2, 1)),)
    assert tight_partitions(topic, 1, 20) == ()
