"""The cluster's topics for the group coordinator, which assigns partitions of them itself (KIP-848)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from semel.broker.metadata.image import TopicImage
from semel.broker.services import Services
from semel.group_coordinator.consumer.topics import NO_TOPICS, Matches, Topic, Topics
from semel.group_coordinator.consumer.viewers import Viewer
from semel.protocol.acls import AclOperation, ResourceType


class KnownTopics:
    """Gives the topics as they are now: the same object until one comes, goes, or grows, or others may be seen."""

    def __init__(self, node: Services, matches: Matches) -> None:
        """`matches`: where what expressions match is found."""
        self._node = node
        self._matches = matches
        self._image: Mapping[str, TopicImage] | None = None
        self._acls: object = None
        self._topics = NO_TOPICS

    def __call__(self) -> Topics:
        image = self._node.metadata.image.topics
        acls = self._node.metadata.image.acls if self._node.authorizer.is_on else None
        if image is not self._image or acls is not self._acls:
            topics = Topics(
                (Topic(topic.name, topic.topic_id, len(topic.partitions)) for topic in image.values()), self._matches
            )
            if topics != self._topics or acls is not self._acls:
                self._topics = topics
            self._image, self._acls = image, acls
        return self._topics


class AllowedSights:
    """What viewers may see of the topics: those that they may describe."""

    def __init__(self, node: Services) -> None:
        self._node = node

    def version(self) -> object:
        return self._node.metadata.image.acls if self._node.authorizer.is_on else None

    def of(self, viewer: Viewer) -> Callable[[str], bool]:
        access = self._node.authorizer.access(*viewer)
        if access is None:
            return lambda _topic: True
        return lambda topic: access.may(AclOperation.DESCRIBE, ResourceType.TOPIC, topic)
