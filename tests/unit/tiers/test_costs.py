"""What a node asks of its remote storage is counted as the store counts it, and told with what is stored there."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import werkzeug.serving
from memory_objects import MemoryObjects
from running_node import create_topic
from tiered_topic import NOTHING_LOCAL, fill, left_the_disk, read_all, run_tiered, serving, tier_of, tiered_node, until

from semel.broker.diagnostics.snapshot import take_snapshot
from semel.broker.node import Node
from semel.broker.tiers.counted_store import CountedStore
from semel.broker.tiers.object_store import PIECE_BYTES, BucketStore, ObjectMissingError, ObjectStoreError
from semel.protocol.api.diagnostics import RemoteUse
from semel.protocol.ids import TopicPartition
from semel.protocol.plain_messages import from_message, to_message
from semel.protocol.v1 import diagnostics_pb2


def pieces(size: int) -> Iterator[bytes]:
    while size:
        piece = min(size, 1 << 20)
        size -= piece
        yield b"x" * piece


@pytest.mark.parametrize(("size", "puts"), [(100, 1), (PIECE_BYTES, 3), (2 * PIECE_BYTES + 1, 5)])
def test_an_upload_is_as_many_puts_as_s3_is_asked(
    monkeypatch: pytest.MonkeyPatch, s3_url: str, size: int, puts: int
) -> None:
    asked: Counter[str] = Counter()

    def log(handler: werkzeug.serving.WSGIRequestHandler, *_: object) -> None:
        asked[handler.command] += 1

    monkeypatch.setattr(werkzeug.serving.WSGIRequestHandler, "log_request", log)
    store = CountedStore(BucketStore(s3_url, timeout_s=20))

    async def test() -> None:
        await store.put(f"a/{size}", pieces(size), size)
        assert asked["PUT"] + asked["POST"] == store.requests["put"] == puts
        assert await store.size(f"a/{size}") == size
        assert len(await store.read(f"a/{size}", 10, 50)) == 50
        assert asked["GET"] + asked["HEAD"] == store.requests["get"] == 2
        assert [key async for key, _ in store.list("a/")]
        await store.level("")
        assert asked["GET"] + asked["HEAD"] == 4
        await store.delete(f"a/{size}")
        assert (store.requests["list"], store.requests["delete"]) == (2, 1)
        assert (store.sent_bytes, store.read_bytes) == (size, 50)

    asyncio.run(test())
    store.close()


def test_what_fails_is_counted_too() -> None:
    objects = MemoryObjects()
    store = CountedStore(objects)

    async def test() -> None:
        with pytest.raises(ObjectMissingError):
            await store.read("k", 0, 1)
        objects.fault = lambda kind, key: "lose" if kind == "put" else ""
        with pytest.raises(ObjectStoreError):
            await store.put("k", pieces(100), 100)
        assert store.requests == {"put": 1, "get": 1, "delete": 0, "list": 0}
        assert (store.sent_bytes, store.read_bytes) == (100, 0)

    asyncio.run(test())


async def use_of(node: Node, limit: int = 0) -> RemoteUse:
    """Return what a node tells, as it is after gRPC."""
    told = to_message(await take_snapshot(node, limit), diagnostics_pb2.NodeSnapshot())
    assert told.HasField("remote_use")
    return from_message(told.remote_use, RemoteUse)


def test_a_node_tells_its_requests_and_what_each_topic_has_there(tmp_path: Path) -> None:
    objects = MemoryObjects()

    async def main() -> None:
        async with tiered_node(tmp_path, objects) as node:
            assert await use_of(node) == RemoteUse(since_ms=(await use_of(node)).since_ms)
            for topic, count in (("t", 20), ("small", 8)):
                tp = TopicPartition(topic, 0)
                await create_topic(node, topic, **NOTHING_LOCAL)
                await serving(node, tp)
                await fill(node, count, tp)
                await left_the_disk(node, tp)
            use = await use_of(node)
            assert (use.puts, use.gets, use.deletes, use.lists) == (len(objects.objects), 0, 0, 0)
            assert use.sent_bytes == sum(map(len, objects.objects.values()))
            sizes = Counter[str]()
            for key, data in objects.objects.items():
                sizes[key.split("/")[1][:-23]] += len(data)
            assert [one.topic for one in use.topics] == ["t", "small"], "the largest first"
            for one in use.topics:
                assert one.objects == len(tier_of(node, TopicPartition(one.topic, 0)).remote.segments)
                assert 0 <= sizes[one.topic] - one.stored_bytes < 600 * one.objects, "all but the descriptions"
            assert use.stored_bytes == sum(one.stored_bytes for one in use.topics)
            assert use.stored_objects == sum(one.objects for one in use.topics) == len(objects.objects)
            await read_all(node)
            read = await use_of(node)
            assert (read.gets, read.read_bytes) == (objects.requests["read"], objects.read_bytes)
            assert read.gets > 0
            (first,) = (await use_of(node, limit=1)).topics
            assert (first.topic, (await use_of(node, limit=1)).topics_total) == ("t", 2)

    asyncio.run(main())


def test_what_is_deleted_is_not_held_any_more(tmp_path: Path) -> None:
    async def test(node: Node, objects: MemoryObjects) -> None:
        await fill(node, 20)
        await left_the_disk(node)
        before = await use_of(node)
        part = tier_of(node)
        second = part.remote.segments[2].start_offset
        await part.note_start(second)
        after = await use_of(node)
        assert after.stored_objects == before.stored_objects - 2
        assert after.stored_bytes == sum(one.stored_bytes for one in part.remote.segments) < before.stored_bytes
        await until(lambda: objects.requests["delete"] == 2)
        assert (await use_of(node)).deletes == 2

    run_tiered(tmp_path, test)


def test_a_node_without_a_remote_storage_tells_of_none(tmp_path: Path) -> None:
    async def main() -> None:
        async with tiered_node(tmp_path, MemoryObjects(), remote_storage_url="") as node:
            told = to_message(await take_snapshot(node), diagnostics_pb2.NodeSnapshot())
            assert not told.HasField("remote_use")

    asyncio.run(main())
