"""Commits that say where the group must stand, as programs make them (O5)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import semel
from semel.protocol.errors import ErrorCode, FatalError, UsageError
from semel.protocol.ids import TopicPartition
from semel.testing import Broker


@pytest.fixture(scope="module")
def node() -> Iterator[Broker]:
    with Broker() as node:
        yield node


def commit(node: Broker, key: str, topic: str, value: bytes, **moves: Any) -> None:
    """Write a record, and move the group `key` under the same decision."""
    with semel.SharedTransaction.open(node.bootstrap, f"{key} {value!r}", token="t") as shared, shared.join() as writer:
        writer.send(topic, value)
        shared.commit([writer.finish()], group=key, **moves)


def values(node: Broker, topic: str) -> list[bytes | None]:
    with semel.Consumer(node.bootstrap, topics=[topic], offset_reset="earliest", group=f"reads {topic}") as consumer:
        batch = consumer.poll(30)
        assert batch is not None
        return [record.value for record in batch]


def test_O5_of_two_programs_that_begin_at_the_same_place_one_commits_with_its_records(node: Broker) -> None:
    read, write = node.create_topic(partitions=2), node.create_topic()
    a, b = (TopicPartition(read, number) for number in (0, 1))
    commit(node, read, write, b"first", offsets={a: 5, b: 2}, expected_offsets={a: 0, b: -1})
    with pytest.raises(FatalError, match=rf"stands at 5 in {read}-0, and this commit to 7 expects it at 0") as refused:
        commit(node, read, write, b"second", offsets={a: 7, b: 4}, expected_offsets={a: 0, b: 2})
    assert refused.value.code is ErrorCode.INVALID_UPDATE_VERSION
    commit(node, read, write, b"third", offsets={a: 7, b: 2}, expected_offsets={a: 5})
    assert values(node, write) == [b"first", b"third"]
    with semel.Admin(node.bootstrap) as admin:
        assert {tp: place.offset for tp, place in admin.group_offsets(read).items()} == {a: 7, b: 2}


@pytest.mark.parametrize(
    ("expected", "message"),
    [
        ({TopicPartition("other", 0): 1}, "expected_offsets names other-0, and offsets does not"),
        ({TopicPartition("t", 0): -2}, "expected offset of t-0"),
        ([("t", 0)], "expected_offsets takes a mapping"),
    ],
)
def test_expected_offsets_that_make_no_sense_are_refused_before_anything_is_asked(expected: Any, message: str) -> None:
    shared = semel.SharedTransaction("localhost:1", "key", token="t")
    with pytest.raises(UsageError, match=message):
        shared.commit([], offsets={TopicPartition("t", 0): 1}, group="g", expected_offsets=expected)
