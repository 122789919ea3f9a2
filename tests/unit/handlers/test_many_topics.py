"""S2, S3: what many topics of one request cost: images by the hundred, changes in turns, and a bound."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from chained_changes import chained
from running_node import create_topic, run_with_node

from semel.broker.handlers import metadata
from semel.broker.handlers.topics import changes as topics
from semel.broker.handlers.topics.changes import (
    TOPICS_PER_CHANGE_MAX,
    MorePartitions,
    create_partitions_of_many,
    create_topics,
    delete_topics,
)
from semel.broker.metadata.changes import Change, PartitionsAdded, TopicCreated, TopicDeleted
from semel.broker.metadata.image import EMPTY_IMAGE, MetadataImage
from semel.broker.node import Node
from semel.protocol.api.topics import NewTopic
from semel.protocol.errors import ErrorCode
from semel.protocol.ids import TopicPartition, new_topic_id

MANY = 2 * TOPICS_PER_CHANGE_MAX + TOPICS_PER_CHANGE_MAX // 2
NAMES = [f"t{number}" for number in range(MANY)]


class Watched:
    """The images that a node's metadata went through, and which changes each took in."""

    def __init__(self, node: Node) -> None:
        self.images: dict[int, MetadataImage] = {}
        self.changes: dict[int, list[Change]] = {}
        node.metadata.add_listener(self._told)

    def _told(self, change: Change, image: MetadataImage) -> None:
        self.images[id(image)] = image
        self.changes.setdefault(id(image), []).append(change)

    def sizes(self, kind: type[Change]) -> Sequence[int]:
        counts = (sum(isinstance(change, kind) for change in changes) for changes in self.changes.values())
        return [count for count in counts if count]


def test_S2_S3_topics_are_made_grown_and_deleted_by_the_hundred(tmp_path: Path) -> None:
    """An image for each topic costs memory by the square; a decision on all of them at once holds the event loop."""
    expected = [TOPICS_PER_CHANGE_MAX, TOPICS_PER_CHANGE_MAX, TOPICS_PER_CHANGE_MAX // 2]

    async def test(node: Node) -> None:
        watched = Watched(node)
        made = await create_topics(node, [NewTopic(name) for name in NAMES])
        assert [result.name for result in made if result.error is ErrorCode.NONE] == NAMES
        assert watched.sizes(TopicCreated) == expected
        assert all(node.partition(TopicPartition(name, 0)) is not None for name in NAMES)

        grown = await create_partitions_of_many(node, [MorePartitions(name, 2) for name in NAMES])
        assert [result.name for result in grown if result.error is ErrorCode.NONE] == NAMES
        assert watched.sizes(PartitionsAdded) == expected
        assert node.partition(TopicPartition(NAMES[-1], 1)) is not None
        assert node.metadata.image.partition_count == 2 * MANY

        gone = await delete_topics(node, NAMES)
        assert [result.name for result in gone if result.error is ErrorCode.NONE] == NAMES
        assert watched.sizes(TopicDeleted) == expected
        assert not node.metadata.image.topics
        assert not node.logs.partitions()

    run_with_node(tmp_path, test)


def test_S2_an_image_is_made_once_for_all_changes_that_come_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also at a start, which replays them all."""
    made: list[int] = []
    known = MetadataImage.__init__

    def counted(self: MetadataImage, **values: object) -> None:
        made.append(1)
        known(self, **values)  # type: ignore[arg-type]

    monkeypatch.setattr(MetadataImage, "__init__", counted)
    changes = [TopicCreated(name, new_topic_id(), ()) for name in NAMES]
    image = EMPTY_IMAGE.apply_all(chained(changes))
    assert set(image.topics) == set(NAMES)
    assert len(made) == 1


def test_S2_one_request_for_metadata_creates_a_bounded_number_of_topics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "CREATED_PER_REQUEST_MAX", 3)

    async def test(node: Node) -> None:
        names = ["a", "b", "c", "d", "e", "wrong name"]
        found = await metadata.topics_by_name(node, names, allow_auto_create=True)
        assert [result.error for result in found] == [
            *([ErrorCode.NONE] * 3),
            *([ErrorCode.LEADER_NOT_AVAILABLE] * 2),
            ErrorCode.INVALID_TOPIC_EXCEPTION,
        ]
        assert "CreateTopics" in found[3].message
        assert set(node.metadata.image.topics) == {"a", "b", "c"}
        again = await metadata.topics_by_name(node, names[:5], allow_auto_create=True)
        assert [result.error for result in again] == [ErrorCode.NONE] * 5

    run_with_node(tmp_path, test)


def test_what_is_asked_for_twice_is_refused_however_far_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "TOPICS_PER_CHANGE_MAX", 1)

    async def test(node: Node) -> None:
        await create_topic(node, "a")
        await create_topic(node, "b")
        grown = await create_partitions_of_many(node, [MorePartitions(name, 2) for name in ("a", "b", "a")])
        assert [each.error for each in grown] == [
            ErrorCode.INVALID_REQUEST,
            ErrorCode.NONE,
            ErrorCode.INVALID_REQUEST,
        ]
        topic_id = node.metadata.topic_id("a")
        assert topic_id is not None
        gone = await delete_topics(node, ["a", "b", topic_id])
        assert [each.error for each in gone] == [ErrorCode.INVALID_REQUEST, ErrorCode.NONE, ErrorCode.INVALID_REQUEST]
        assert set(node.metadata.image.topics) == {"a"}
        made = await create_topics(node, [NewTopic(name) for name in ("c", "d", "c")])
        assert [each.error for each in made] == [ErrorCode.INVALID_REQUEST, ErrorCode.NONE, ErrorCode.INVALID_REQUEST]

    run_with_node(tmp_path, test)


def test_changes_that_come_together_may_undo_each_other(tmp_path: Path) -> None:
    """The image that a change is carried out by may be further on than the change."""

    async def test(node: Node) -> None:
        await create_topic(node, "kept")
        (state,) = node.metadata.image.topics["kept"].partitions
        first, second = new_topic_id(), new_topic_id()
        await node.metadata.change(
            lambda image: [
                TopicCreated("a", first, (state,)),
                PartitionsAdded("a", first, 1, (state,)),
                TopicDeleted("a", first),
                TopicCreated("a", second, (state,)),
                TopicCreated("b", new_topic_id(), (state,)),
            ]
        )
        await node.caught_up()
        partition = node.partition(TopicPartition("a", 0))
        assert partition is not None
        assert partition.topic_id == second
        assert node.partition(TopicPartition("a", 1)) is None
        assert node.partition(TopicPartition("b", 0)) is not None

    run_with_node(tmp_path, test)
