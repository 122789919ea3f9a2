"""Taking partitions over: a log that nothing was ever written to is filled where it is, any other is begun again."""

from __future__ import annotations

from pathlib import Path

import pytest
from diskless_topic import TP, diskless_of, run_diskless
from memory_objects import MemoryObjects
from tiered_topic import append, partition_of, read_all, serving

from semel.broker.logs.data_folder import DataFolder
from semel.broker.node import Node
from semel.protocol.ids import TopicId, TopicPartition


@pytest.fixture
def begun_again(monkeypatch: pytest.MonkeyPatch) -> list[TopicPartition]:
    """The partitions whose directories were made again."""
    made: list[TopicPartition] = []
    make = DataFolder.make_log_folder

    def noted(self: DataFolder, tp: TopicPartition, topic_id: TopicId, **options: object) -> str:
        made.append(tp)
        return make(self, tp, topic_id, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(DataFolder, "make_log_folder", noted)
    return made


async def append_of(node: Node, sequence: int) -> None:
    await append(node, [b"%d" % sequence], producer_id=7, producer_epoch=0, base_sequence=sequence)


async def values_of(node: Node) -> list[bytes | None]:
    return [value for _, value in await read_all(node, 0)]


def test_a_log_that_was_never_written_to_is_not_made_again(tmp_path: Path, begun_again: list[TopicPartition]) -> None:
    """A node that takes over thousands would make each of their directories twice, and sync them."""

    async def before(node: Node, objects: MemoryObjects) -> None:
        for sequence in range(3):
            await append_of(node, sequence)
        begun_again.clear()

    async def after(node: Node, objects: MemoryObjects) -> None:
        assert TP not in begun_again
        assert await values_of(node) == [b"0", b"1", b"2"]
        await append_of(node, 3)  # the producer is known (P7)
        assert await values_of(node) == [b"0", b"1", b"2", b"3"]

    run_diskless(tmp_path, before, after)


def test_R3_a_log_that_was_written_to_is_begun_again(tmp_path: Path, begun_again: list[TopicPartition]) -> None:
    """What it has may never have been committed."""

    async def test(node: Node, objects: MemoryObjects) -> None:
        await append_of(node, 0)
        diskless_of(node).lost(partition_of(node))
        await serving(node)
        assert begun_again == [TP]
        assert await values_of(node) == [b"0"]
        await append_of(node, 1)

    run_diskless(tmp_path, test)
