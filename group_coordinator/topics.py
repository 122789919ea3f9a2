"""The topics of the cluster as consumer groups need them: ids, partition counts, and what matches an expression.

An immutable value that the node hands in. A group looks at it again whenever it is another one than last time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from semel.group_coordinator.topic_patterns import EFFORT_MAX, PatternError, TopicPattern
from semel.protocol.api.consumer_groups import DescribedTopic, Partitions, TopicIdPartition
from semel.protocol.ids import INTERNAL_TOPICS, TopicId, TopicPartition

CACHED_PATTERNS_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class Topic:
    name: str
    topic_id: TopicId
    partition_count: int


@dataclass(frozen=True, slots=True)
class _Matched:
    names: frozenset[str]
    is_complete: bool


class Topics:
    """All topics at one moment."""

    def __init__(self, topics: Iterable[Topic] = ()) -> None:
        self.by_name: Mapping[str, Topic] = {topic.name: topic for topic in topics}
        self._names: Mapping[TopicId, str] = {topic.topic_id: topic.name for topic in self.by_name.values()}
        self._matched: dict[str, _Matched] = {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Topics) and self.by_name == other.by_name

    def __hash__(self) -> int:
        return id(self)

    def matching(self, expression: str) -> frozenset[str]:
        """Return the topics that match all of `expression`, internal ones left out; none where it cannot be read."""
        return self._match(expression).names

    def check_pattern(self, expression: str) -> None:
        """Raise `PatternError` where an expression cannot be read, or is too costly to match."""
        TopicPattern(expression)
        if not self._match(expression).is_complete:
            raise PatternError(
                f"matching {expression!r} against {len(self.by_name)} topics takes too long; simplify it"
            )

    def _match(self, expression: str) -> _Matched:
        found = self._matched.get(expression)
        if found is None:
            if len(self._matched) >= CACHED_PATTERNS_MAX:
                self._matched.clear()
            found = self._matched[expression] = self._match_anew(expression)
        return found

    def _match_anew(self, expression: str) -> _Matched:
        try:
            pattern = TopicPattern(expression)
        except PatternError:
            # A record of Kafka's may hold what its engine reads and ours does not.
            return _Matched(frozenset(), True)
        names: set[str] = set()
        for name in sorted(self.by_name.keys() - INTERNAL_TOPICS):
            if pattern.effort > EFFORT_MAX:
                return _Matched(frozenset(names), False)
            if pattern.matches(name):
                names.add(name)
        return _Matched(frozenset(names), True)

    def counts_of(self, names: Iterable[str]) -> dict[str, int]:
        """Return the partition counts of those of `names` that exist."""
        return {name: topic.partition_count for name in names if (topic := self.by_name.get(name)) is not None}

    def hash_of(self, names: Iterable[str]) -> int:
        """Return a number that changes when one of these topics comes, goes, or grows; 0 where none exists.

        Kafka stores another hash in the same field; a group that moves here from Kafka is assigned once more.
        """
        found = [self.by_name[name] for name in sorted(set(names)) if name in self.by_name]
        if not found:
            return 0
        digest = hashlib.blake2b(digest_size=8)
        for topic in found:
            digest.update(topic.topic_id.bytes)
            digest.update(topic.partition_count.to_bytes(4, "big"))
        return int.from_bytes(digest.digest(), "big", signed=True) or 1

    # Between names and ids

    def with_ids(self, partitions: Iterable[TopicPartition]) -> Partitions:
        """Return partitions by topic id; those of unknown topics are left out."""
        return frozenset(
            TopicIdPartition(topic.topic_id, number)
            for name, number in partitions
            if (topic := self.by_name.get(name)) is not None and 0 <= number < topic.partition_count
        )

    def with_names(self, partitions: Partitions) -> list[TopicPartition]:
        """Return partitions by topic name, sorted; those of topics that are gone are left out."""
        return sorted(
            TopicPartition(name, number)
            for topic_id, number in partitions
            if (name := self._names.get(topic_id)) is not None
        )

    def described(self, partitions: Partitions) -> tuple[DescribedTopic, ...]:
        by_topic: dict[TopicId, list[int]] = {}
        for topic_id, number in sorted(partitions):
            by_topic.setdefault(topic_id, []).append(number)
        return tuple(
            DescribedTopic(topic_id, self._names.get(topic_id, ""), tuple(numbers))
            for topic_id, numbers in by_topic.items()
        )


TopicsSource: TypeAlias = Callable[[], Topics]
"""Gives the topics as they are now; the same object for as long as they did not change."""

NO_TOPICS: Final = Topics()
