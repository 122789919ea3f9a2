"""Readers of the remote storage: what they get, and what they cost each other (S2, S3)."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable, Iterable, Sequence

import pytest
from memory_objects import MemoryObjects

from semel.broker.log.log_types import AbortedTransaction, LogRange
from semel.broker.tiers.extents import BytesFile
from semel.broker.tiers.reading import RemoteReader, Waiting
from semel.broker.tiers.remote_log import RemoteSegment
from semel.broker.tiers.segment_object import SegmentUpload
from semel.protocol.batch_builder import encode_batch
from semel.protocol.batch_header import ATTRIBUTES_AT, CRC_AT, set_base_offset
from semel.protocol.crc32c import crc32c
from semel.protocol.errors import SemelError
from semel.runtime.clock import SystemClock

MIB = 1 << 20
LARGEST_TIMESTAMP_AT = 35


def stored(
    objects: MemoryObjects,
    bases: Iterable[int],
    end: int,
    *,
    size: int = 100,
    aborted: Sequence[AbortedTransaction] = (),
    key: str = "k",
    claims_ms: int | None = None,
) -> RemoteSegment:
    """Put a segment into the store, with a batch of one record at each of these offsets.

    claims_ms: what the batches claim to have for their largest timestamp
    """
    batches = []
    for base in bases:
        data = bytearray(encode_batch([(base, None, b"v" * size, ())]))
        if claims_ms is not None:
            struct.pack_into(">q", data, LARGEST_TIMESTAMP_AT, claims_ms)
            struct.pack_into(">I", data, CRC_AT, crc32c(data, ATTRIBUTES_AT))
        set_base_offset(data, 0, base, 0)
        batches.append(bytes(data))
    whole = b"".join(batches)
    upload = SegmentUpload(BytesFile(whole), len(whole), 0, end, aborted, b"", {})
    objects.objects[key] = b"".join(bytes(piece) for piece in upload)
    return RemoteSegment(
        key, key, 0, 0, end, len(whole), end, 0, 0, 0, ((0, 0),), upload.index, upload.aborted, upload.producers
    )


class Client:
    """Reads one segment as a partition's waiting fetches do."""

    def __init__(self, reader: RemoteReader, segment: RemoteSegment, *, committed: bool = False) -> None:
        self._reader = reader
        self._segment = segment
        self._committed = committed
        self._woken = asyncio.Event()
        self.waiting = Waiting(self._woken.set, lambda: True)
        self.rounds = 0

    def ask(self, offset: int, max_bytes: int = MIB) -> LogRange | None:
        return self._reader.read(
            self._segment, offset, max_bytes, self._segment.end_offset, True, self._committed, self.waiting
        )

    async def read(self, offset: int, max_bytes: int = MIB) -> LogRange | None:
        async with asyncio.timeout(60):
            while True:
                self._woken.clear()
                found = self.ask(offset, max_bytes)
                if found is None or found.records is not None:
                    return found
                self.rounds += 1
                await self._woken.wait()

    async def read_all(self, max_bytes: int = MIB) -> list[int]:
        offset = 0
        found: list[int] = []
        while offset < self._segment.end_offset:
            data = await self.read(offset, max_bytes)
            if data is None:
                break
            found.append(data.first_offset)
            offset = data.next_offset
        return found


def with_reader(test: Callable[[RemoteReader, MemoryObjects], Awaitable[None]], *, cache_bytes: int = 16 * MIB) -> None:
    async def main() -> None:
        objects = MemoryObjects()
        reader = RemoteReader(objects, SystemClock(), cache_bytes=cache_bytes)
        try:
            await test(reader, objects)
        finally:
            await reader.close()

    asyncio.run(main())


@pytest.mark.parametrize("bases", [(5, 6, 7), (0, 1, 5), (0, 1, 2), (3,)])
def test_S3_offsets_without_records_cost_one_request(bases: tuple[int, ...]) -> None:
    async def test(reader: RemoteReader, objects: MemoryObjects) -> None:
        segment = stored(objects, bases, 10)
        for offset in range(10):
            client = Client(reader, segment)
            found = await client.read(offset, 1)
            expected = [base for base in bases if base >= offset]
            assert (None if found is None else found.first_offset) == (expected[0] if expected else None)
            assert client.rounds < 3
        assert objects.requests["read"] < 6

    with_reader(test)


def test_S3_large_batches_with_gaps_between_are_read_one_after_the_other() -> None:
    async def test(reader: RemoteReader, objects: MemoryObjects) -> None:
        bases = (0, 50, 99)
        segment = stored(objects, bases, 200, size=5 * MIB)  # each larger than what is fetched at a time
        assert await Client(reader, segment).read_all() == list(bases)
        assert objects.requests["read"] < 12

    with_reader(test, cache_bytes=64 * MIB)


def test_L3_a_long_list_of_aborted_transactions_is_no_hindrance_to_a_small_cache() -> None:
    async def test(reader: RemoteReader, objects: MemoryObjects) -> None:
        aborted = [AbortedTransaction(number, 2 * number, 2 * number, 2 * number + 1) for number in range(90_000)]
        segment = stored(objects, range(0, 180_000, 1_000), 180_000, aborted=aborted)
        client = Client(reader, segment, committed=True)
        found = await client.read(0)
        assert found is not None
        assert len(found.aborted_transactions) == 90_000
        found = await client.read(4_000, 1)
        assert found is not None
        assert [one.first_offset for one in found.aborted_transactions] == [4_000]

    with_reader(test)


def test_S2_more_readers_than_there_is_room_for_all_come_to_the_end() -> None:
    async def test(reader: RemoteReader, objects: MemoryObjects) -> None:
        aborted = [AbortedTransaction(number, number, number, number + 1) for number in range(12)]
        segments = [stored(objects, range(12), 12, size=MIB, aborted=aborted, key=f"k{number}") for number in range(12)]
        clients = [Client(reader, segment, committed=True) for segment in segments]
        found = await asyncio.gather(*(client.read_all(1) for client in clients))
        assert all(one == list(range(12)) for one in found)
        assert objects.read_bytes < 6 * 12 * 12 * MIB
        assert reader.cached_bytes <= 17 * MIB

    with_reader(test)


def test_S2_what_others_asked_for_and_left_holds_nobody_up() -> None:
    async def test(reader: RemoteReader, objects: MemoryObjects) -> None:
        count = 300
        hostile = stored(objects, range(count), count, size=200_000, key="hostile")  # there is room for eighty of them
        honest = stored(objects, range(5), 5, key="honest")
        gone = Waiting(lambda: None, lambda: False)
        for offset in range(count):
            reader.read(hostile, offset, 1, count, True, False, gone)
        await Client(reader, honest).read_all()
        async with asyncio.timeout(60):
            while reader.loads:  # noqa: ASYNC110 (there is nothing that tells of it)
                await asyncio.sleep(0.05)
        assert objects.requests["read"] < 200

    with_reader(test)


def test_S3_who_asks_again_and_again_is_woken_once() -> None:
    async def test(reader: RemoteReader, objects: MemoryObjects) -> None:
        segment = stored(objects, range(5), 5)
        objects.hold()
        woken: list[int] = []
        waiting = Waiting(lambda: woken.append(1), lambda: True)
        for _ in range(1_000):
            reader.read(segment, 0, 1, 5, True, False, waiting)
            await asyncio.sleep(0)
        objects.let_go()
        async with asyncio.timeout(20):
            while not woken:  # noqa: ASYNC110 (there is nothing that tells of it)
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        assert woken == [1]

    with_reader(test)


def test_S2_batches_that_lie_about_their_times_do_not_hold_a_look_up() -> None:
    async def test(reader: RemoteReader, objects: MemoryObjects) -> None:
        segment = stored(objects, range(500), 500, claims_ms=10_000)
        with pytest.raises(SemelError, match="100 batches of k have no record of the time they claim"):
            await reader.record_at(segment, 5_000, 0)

    with_reader(test)


def test_S2_look_ups_by_time_share_their_requests() -> None:
    async def test(reader: RemoteReader, objects: MemoryObjects) -> None:
        segment = stored(objects, range(100), 100)
        found = await asyncio.gather(*(reader.record_at(segment, 42, 0) for _ in range(500)))
        assert {one.offset for one in found if one is not None} == {42}
        assert objects.requests["read"] < 20

    with_reader(test)
