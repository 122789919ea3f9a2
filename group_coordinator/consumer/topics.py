"""The topics of the cluster as consumer groups need them: ids, partition counts, and what matches an expression.

An immutable value that the node hands in. A group looks at it again whenever it is another one than last time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from semel.group_coordinator.consumer.viewers import split_viewer
from semel.protocol.api.consumer_groups import DescribedTopic, Partitions, TopicIdPartition
from semel.protocol.errors import ErrorCode, RetriableError
from semel.protocol.ids import INTERNAL_TOPICS, TopicId, TopicPartition
from semel.runtime.linear_regex import LinearPattern, PatternError


@dataclass(frozen=True, slots=True)
class Topic:
    name: str
    topic_id: TopicId
    partition_count: int


@dataclass(frozen=True, slots=True)
class Matched:
    """What an expression matches: topics, of which some may be gone by now. `error`: why it can't be used, if so."""

    names: frozenset[str]
    error: str = ""


class Matches(Protocol):
    """What expressions were found to match."""

    def find(self, expression: str, topics: Topics) -> Matched | None:
        """Return what an expression matches, None where that is not known yet for all of these topics."""
        ...


class PatternsNeededError(RetriableError):
    """Expressions are to be matched first: a machine does not do so itself (S3)."""

    def __init__(self, expressions: tuple[str, ...]) -> None:
        super().__init__(
            f"{len(expressions)} regular expressions of the group are being matched against the topics: try again",
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        )
        self.expressions = expressions


class Topics:
    """All topics at one moment."""

    def __init__(self, topics: Iterable[Topic] = (), matches: Matches | None = None) -> None:
        """`matches`: where what expressions match is found; without it, it is found out at once."""
        self.by_name: Mapping[str, Topic] = {topic.name: topic for topic in topics}
        self._names: Mapping[TopicId, str] = {topic.topic_id: topic.name for topic in self.by_name.values()}
        self._matches: Matches = matches or _MatchedAtOnce()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Topics) and self.by_name == other.by_name

    def __hash__(self) -> int:
        return id(self)

    def unmatched(self, expressions: Iterable[str]) -> tuple[str, ...]:
        """Return those of `expressions` of which it is not known what they match."""
        return tuple(sorted({each for each in expressions if self._matches.find(each, self) is None}))

    def matching(self, expression: str) -> frozenset[str]:
        """Return the topics that match all of `expression`, internal ones left out; none where it cannot be read.

        Some may be gone. An expression that is `unmatched` matches nothing.
        """
        found = self._matches.find(expression, self)
        return frozenset() if found is None else found.names

    def may_match(self, expression: str, name: str) -> bool:
        """Return whether a topic that is there matches; true where that is not known."""
        found = self._matches.find(expression, self)
        return found is None or (name in found.names and name in self.by_name)

    def check_pattern(self, expression: str) -> None:
        """Raise `PatternError` where an expression cannot be read, or is too costly to match."""
        found = self._matches.find(expression, self)
        assert found is not None, "an expression is matched before it is checked"
        if found.error:
            raise PatternError(found.error)

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

    # --- Between names and ids ----------------------------------------------------------------------------------------

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
        for topic_id, number in partitions:
            by_topic.setdefault(topic_id, []).append(number)
        return tuple(
            DescribedTopic(topic_id, self._names.get(topic_id, ""), tuple(sorted(numbers)))
            for topic_id, numbers in sorted(by_topic.items())
        )


class _MatchedAtOnce:
    """Matches in the call that asks: for what has few topics and no clients."""

    def __init__(self) -> None:
        self._found: dict[str, Matched] = {}

    def find(self, expression: str, topics: Topics) -> Matched | None:
        if expression not in self._found:
            self._found[expression] = self._match(expression, topics)
        return self._found[expression]

    @staticmethod
    def _match(expression: str, topics: Topics) -> Matched:
        try:
            pattern = LinearPattern(split_viewer(expression)[1])
        except PatternError as error:
            return Matched(frozenset(), str(error))
        names = topics.by_name.keys() - INTERNAL_TOPICS
        return Matched(frozenset(name for name in names if pattern.matches(name)))


TopicsSource: TypeAlias = Callable[[], Topics]
"""Gives the topics as they are now; the same object for as long as they did not change."""

NO_TOPICS: Final = Topics()
