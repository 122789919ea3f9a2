"""Which partitions are led by their preferred replicas again, without an operator's word.

After a node was away, others lead what it led. Once it has caught up it gets that back, or a restart of all nodes, one
after the other, leaves everything to a few. As Kafka's auto.leader.rebalance.enable does it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from semel.broker.controller.membership import alive_nodes, changed, follows, partitions_of, stopping_nodes
from semel.broker.metadata.changes import Change
from semel.broker.metadata.image import MetadataImage


def preferred_elections(image: MetadataImage, *, imbalance_max_percent: int, changes_max: int) -> list[Change]:
    """Return the elections of preferred replicas, at most `changes_max` of them.

    imbalance_max_percent: of the partitions that prefer a node so many may be led by others, and nothing is done

    What is being moved is left alone, and so are partitions whose preferred replica is away, stops or is not in sync.
    """
    able = alive_nodes(image) - stopping_nodes(image)
    preferring: Counter[int] = Counter()
    elsewhere: Counter[int] = Counter()
    for _, _, state in partitions_of(image):
        preferring[state.replicas[0]] += 1
        elsewhere[state.replicas[0]] += state.leader != state.replicas[0]
    wanting = {node for node in able if elsewhere[node] * 100 > preferring[node] * imbalance_max_percent}
    changes: list[Change] = []
    for topic, number, state in partitions_of(image) if wanting else ():
        preferred = state.replicas[0]
        if preferred not in wanting or state.leader == preferred or state.is_moving or preferred not in state.isr:
            continue
        changes += changed(topic, number, follows(state, replace(state, leader=preferred)))
        if len(changes) >= changes_max:
            break
    return changes
