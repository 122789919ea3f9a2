"""The cluster's topics for the group coordinator, which assigns partitions of them itself (KIP-848)."""

from __future__ import annotations

from collections.abc import Mapping

from semel.broker.metadata.image import TopicImage
from semel.broker.services import Services
from semel.group_coordinator.consumer.topics import NO_TOPICS, Matches, Topic, Topics


class KnownTopics:
    """Gives the topics as they are now: the same object until one comes, goes, or grows."""

    def __init__(self, node: Services, matches: Matches) -> None:
        """`matches`: where what expressions match is found."""
        self._node = node
        self._matches = matches
        self._image: Mapping[str, TopicImage] | None = None
        self._topics = NO_TOPICS

    def __call__(self) -> Topics:
        image = self._node.metadata.image.topics
        if image is not self._image:
            topics = Topics(
                (Topic(topic.name, topic.topic_id, len(topic.partitions)) for topic in image.values()), self._matches
            )
            if topics != self._topics:
                self._topics = topics
            self._image = image
        return self._topics
