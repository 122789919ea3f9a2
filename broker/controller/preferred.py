"""Which partitions are led by their preferred replicas again, without an operator's word.

After a node was away, others lead what it led. Once it has caught up it gets that back, or a restart of all nodes, one
after the other, leaves everything to a few. As Kafka's auto.leader.rebalance.enable does it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import replace

from semel.broker.controller.membership import alive_nodes, changed, follows, full_nodes, stopping_nodes
from semel.broker.metadata.changes import Change, PartitionState
from semel.broker.metadata.image import MetadataImage, TopicImage
from semel.protocol.ids import TopicPartition


class LedElsewhere:
    """Finds partitions that their preferred replicas could lead, and others do. Topics are given to it one by one, all
    of them to `count` and then to `find`, so that others can have their turns in between (S3).

    imbalance_max_percent: of the partitions that prefer a node so many may be led by others, and none is found

    What is being moved is left alone, and so are partitions whose preferred replica is away, stops, has a full disk, or
    is not in sync.
    """

    def __init__(self, image: MetadataImage, *, imbalance_max_percent: int) -> None:
        self._able = _able(image)
        self._imbalance_max_percent = imbalance_max_percent
        self._preferring: Counter[int] = Counter()
        self._elsewhere: Counter[int] = Counter()

    def count(self, topic: TopicImage) -> None:
        for state in topic.partitions:
            self._preferring[state.replicas[0]] += 1
            self._elsewhere[state.replicas[0]] += state.leader != state.replicas[0]

    def find(self, topic: TopicImage) -> list[TopicPartition]:
        wanting = {node for node in self._able if self._is_wanting(node)}
        return [
            TopicPartition(topic.name, number)
            for number, state in enumerate(topic.partitions)
            if _may_go_back(state, wanting)
        ]

    def _is_wanting(self, node: int) -> bool:
        return self._elsewhere[node] * 100 > self._preferring[node] * self._imbalance_max_percent


def preferred_elections(image: MetadataImage, partitions: Iterable[TopicPartition]) -> list[Change]:
    """Return the elections of the preferred replicas of these partitions, where they may lead by this image."""
    able = _able(image)
    changes: list[Change] = []
    for tp in partitions:
        topic, state = image.topic(tp.topic), image.partition(tp)
        if topic is not None and state is not None and _may_go_back(state, able):
            changes += changed(topic, tp.partition, follows(state, replace(state, leader=state.replicas[0])))
    return changes


def _able(image: MetadataImage) -> frozenset[int]:
    return alive_nodes(image) - stopping_nodes(image) - full_nodes(image)


def _may_go_back(state: PartitionState, nodes: Collection[int]) -> bool:
    preferred = state.replicas[0]
    return state.leader != preferred and preferred in nodes and not state.is_moving and preferred in state.isr
