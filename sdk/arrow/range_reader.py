"""Reads a range of one partition as Arrow record batches.

While the caller takes what was decoded, the next fetch is under way on the client's thread. From the bytes of record
batches to Arrow columns there is no Python object for a record.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from semel.protocol.api.topics import EARLIEST_TIMESTAMP, IsolationLevel, PartitionDescription
from semel.protocol.arrow import COLUMNS, decode_to_arrow
from semel.protocol.batch_header import iter_batches
from semel.protocol.corruption import CorruptBatchError
from semel.protocol.errors import ErrorCode, FatalError, RetriableError, error_for
from semel.protocol.ids import NO_LEADER, TopicId, TopicPartition
from semel.protocol.kafka.fetch import (
    FETCH,
    FETCH_MAX_VERSION,
    FETCH_MIN_VERSION,
    FetchPartition,
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
)
from semel.sdk.consumer.fetched import FetchedChunk, UnreadableBatchError, whole_batches
from semel.sdk.transport.client import ClientCore
from semel.sdk.transport.offset_lookup import list_offsets

if TYPE_CHECKING:
    import pyarrow

_log = logging.getLogger("semel.arrow")

_PAUSE_S: Final = 0.05
_EMPTY_ANSWERS_MAX: Final = 3


class DataLossError(FatalError):
    """Records that were to be read are not there any more. `what` says which, without the next step."""

    what: str = ""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How ranges are read. Times in milliseconds, sizes in bytes.

    columns:            which columns of `semel.protocol.arrow.ALL_COLUMNS`, in which order
    fetch_max_bytes:    of one answer; a larger batch comes alone
    fetch_max_wait_ms:  how long a node waits for records before it answers without
    patience_ms:        how long to ask on for records that have to be there
    patience_option:    what the caller's user knows `patience_ms` by
    fail_on_data_loss:  raise `DataLossError` where records are gone; else a warning is logged, and reading continues
    loss_advice:        how the caller's user says so
    check_crc:          look at the checksum of each batch
    rack:               where this reader is, for reading from the nearest replica (KIP-392)
    """

    isolation: IsolationLevel = IsolationLevel.READ_COMMITTED
    columns: tuple[str, ...] = COLUMNS
    fetch_max_bytes: int = 4 << 20
    fetch_max_wait_ms: int = 500
    patience_ms: int = 60_000
    patience_option: str = "api_timeout_ms"
    fail_on_data_loss: bool = True
    loss_advice: str = "give on_data_loss='skip'"
    check_crc: bool = True
    rack: str = ""

    def data_loss(self, what: str) -> DataLossError:
        """Return the error for records that are gone."""
        error = DataLossError(
            f"{what}. Records may have been deleted by the topic's retention before they were read, or the topic was "
            f"deleted. To continue with what is left, {self.loss_advice}",
            ErrorCode.OFFSET_OUT_OF_RANGE,
        )
        error.what = what
        return error

    def another_topic(self, topic: str) -> DataLossError:
        """Return the error for a topic that was deleted and created again."""
        what = f"topic {topic} was deleted, and another one has its name now"
        error = DataLossError(
            f"{what}. Offsets that were kept mean nothing in it: start again, without them and without topic_id",
            ErrorCode.UNKNOWN_TOPIC_ID,
        )
        error.what = what
        return error


@dataclass(frozen=True, slots=True)
class Piece:
    """What one fetch has brought. `next_offset`: where the partition is read up to; `size_bytes`: in the log."""

    records: pyarrow.RecordBatch
    next_offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class _Fetched:
    """`first_offset`: what was asked for, or where the log starts now. `buffers`: whole batches for the reader."""

    first_offset: int
    next_offset: int
    buffers: list[memoryview]


def read_range(
    client: ClientCore,
    tp: TopicPartition,
    start: int,
    end: int,
    options: ReadOptions,
    topic_id: TopicId | None = None,
) -> Iterator[Piece]:
    """Yield the records from offset `start` up to before `end` in order, without aborted ones where the isolation level
    is read_committed (L3).

    A piece may have no records: where all that was fetched is markers or aborted. The last one ends at `end`. With a
    topic id, records of another topic that has got the same name since are never returned.
    Raises `DataLossError` where records are gone, unless that is passed over; `SemelError` where they can't be read.
    """
    fetcher = _RangeFetcher(client, tp, end, options, topic_id)
    future: Future[_Fetched] | None = client.io.submit(fetcher.fetch(start)) if start < end else None
    try:
        while future is not None:
            client.io.check()  # in a forked child nobody answers
            fetched = future.result(timeout=(options.patience_ms + client.options.api_timeout_ms) / 1000)
            position = min(fetched.next_offset, end)
            future = client.io.submit(fetcher.fetch(position)) if position < end else None
            yield from _decoded(tp, fetched, position, end, options)
    finally:
        if future is not None:
            future.cancel()


def _decoded(
    tp: TopicPartition, fetched: _Fetched, next_offset: int, end: int, options: ReadOptions
) -> Iterator[Piece]:
    """Yield what was fetched as one piece, or where it is too large uncompressed, each of its batches as one.

    Raises `UnreadableBatchError` for a batch that is broken or too large alone, after those before it.
    """

    def decoded(buffers: Sequence[memoryview]) -> pyarrow.RecordBatch:
        return decode_to_arrow(
            buffers,
            topic=tp.topic,
            partition=tp.partition,
            columns=options.columns,
            first_offset=fetched.first_offset,
            end_offset=end,
            check_crc=options.check_crc,
        )

    try:
        whole = decoded(fetched.buffers)
    except CorruptBatchError:  # too large together, or one of them is broken
        batches = [(buffer, header) for buffer in fetched.buffers for header in iter_batches(buffer)]
        for number, (buffer, header) in enumerate(batches, 1):
            batch = buffer[header.position : header.position + header.size_bytes]
            try:
                records = decoded([batch])
            except CorruptBatchError as error:
                raise UnreadableBatchError(tp, header.base_offset, header.last_offset, error.message) from error
            behind = next_offset if number == len(batches) else min(header.last_offset + 1, end)
            yield Piece(records, behind, len(batch))
    else:
        yield Piece(whole, next_offset, sum(map(len, fetched.buffers)))


class _RangeFetcher:
    """Fetches from one partition. `fetch` runs on the IO thread, one at a time."""

    def __init__(
        self, client: ClientCore, tp: TopicPartition, end: int, options: ReadOptions, topic_id: TopicId | None
    ) -> None:
        self._client = client
        self._topic_id = topic_id
        self._tp = tp
        self._end = end
        self._options = options
        self._rack = options.rack
        self._nearest = NO_LEADER
        """The follower that the leader has named as the nearest (KIP-392)."""

    async def fetch(self, position: int) -> _Fetched:
        """Return records from `position` on; ask until there are some or the poll's time is over."""
        options = self._options
        deadline = time.monotonic() + options.patience_ms / 1000
        empty_answers = 0
        trouble: RetriableError | None = None
        while True:
            try:
                answer = await self._ask(position)
                if answer is None:
                    return self._pass_over_gone(position)
                if answer.error is ErrorCode.OFFSET_OUT_OF_RANGE:
                    return await self._skip_lost(position)
                if answer.error is not ErrorCode.NONE:
                    raise error_for(answer.error, f"{self._tp} can't be read")
                fetched = self._take(position, answer)
                if fetched is not None:
                    return fetched
                trouble = None
                empty_answers += 1
                if empty_answers >= _EMPTY_ANSWERS_MAX and self._visible_end(answer) >= self._end:
                    return _Fetched(position, self._end, [])  # compaction left nothing between here and the end
            except RetriableError as error:
                trouble = error
                await self._refresh()
            if time.monotonic() >= deadline:
                raise RetriableError(
                    f"no records of {self._tp} from offset {position} on within {options.patience_ms} ms "
                    f"({options.patience_option}), though they were to be read up to {self._end}"
                    + (f": {trouble.message}" if trouble is not None else ""),
                    ErrorCode.REQUEST_TIMED_OUT,
                )
            if trouble is not None or empty_answers:
                await asyncio.sleep(_PAUSE_S)

    def _visible_end(self, answer: FetchPartitionResponse) -> int:
        is_committed = self._options.isolation is IsolationLevel.READ_COMMITTED
        return answer.last_stable_offset if is_committed else answer.high_watermark

    async def _ask(self, position: int) -> FetchPartitionResponse | None:
        """Return the answer of the leader, or of a follower nearer by; None where the partition is gone, and it may be
        passed over."""
        client, tp, options = self._client, self._tp, self._options
        place = client.cluster.snapshot.leader(tp)
        if place is None:
            await client.cluster.refresh([tp.topic])
            place = client.cluster.snapshot.leader(tp)
            topic = client.cluster.snapshot.topics.get(tp.topic)
            if topic is None or tp.partition >= len(topic.partitions):
                if options.fail_on_data_loss:
                    raise options.data_loss(self._gone(position))
                return None
            if place is None:
                raise RetriableError(f"{tp} has no leader now", ErrorCode.LEADER_NOT_AVAILABLE)
        if self._nearest in client.cluster.snapshot.nodes and self._nearest != place.leader_id:
            try:
                answer = await self._ask_node(self._nearest, place, position)
                if answer.error is ErrorCode.NONE and answer.preferred_read_replica < 0:
                    return answer
            except RetriableError as error:
                _log.info("a follower can't be read from partition=%s node=%s: %s", tp, self._nearest, error)
            self._rack, self._nearest = "", NO_LEADER  # the leader alone is asked for the rest of this range
        answer = await self._ask_node(place.leader_id, place, position)
        if answer.error is not ErrorCode.NONE or answer.preferred_read_replica < 0:
            return answer
        # It has no records, which does not mean that there are none.
        if not self._rack:
            raise RetriableError(f"node {place.leader_id} names a follower for {tp}, and was not asked for one")
        if answer.preferred_read_replica in client.cluster.snapshot.nodes:
            self._nearest = answer.preferred_read_replica
        else:
            self._rack = ""
        return await self._ask(position)

    async def _ask_node(self, node_id: int, place: PartitionDescription, position: int) -> FetchPartitionResponse:
        client, tp, options = self._client, self._tp, self._options
        connection = await client.connections.get(node_id)
        version = connection.highest_version(FETCH, FETCH_MIN_VERSION, FETCH_MAX_VERSION)
        topic_id = client.cluster.snapshot.topics[tp.topic].topic_id
        if self._topic_id is not None and topic_id != self._topic_id:
            raise options.another_topic(tp.topic)
        item = FetchPartition(
            tp.topic,
            topic_id,
            tp.partition,
            position,
            options.fetch_max_bytes,
            current_leader_epoch=place.leader_epoch,
        )
        request = FetchRequest(
            [item], options.fetch_max_wait_ms, 1, options.fetch_max_bytes, options.isolation, rack_id=self._rack
        )
        timeout_ms = options.fetch_max_wait_ms + client.options.request_timeout_ms
        body = await connection.request(FETCH, version, [request.build(version)], timeout_ms=timeout_ms)
        response = FetchResponse.parse(body, version)
        if response.error is not ErrorCode.NONE:
            raise error_for(response.error, f"node {node_id} refused a fetch")
        if len(response.partitions) != 1:
            raise RetriableError(f"node {node_id} said nothing about {tp}")
        return response.partitions[0]

    def _gone(self, position: int) -> str:
        return f"{self._tp} is gone, offsets {position} to {self._end} with it"

    def _pass_over_gone(self, position: int) -> _Fetched:
        _log.warning("%s; going on without it (loss is passed over)", self._gone(position))
        return _Fetched(position, self._end, [])

    def _take(self, position: int, answer: FetchPartitionResponse) -> _Fetched | None:
        if answer.records is None or not len(answer.records):
            return None
        assert isinstance(answer.records, (bytes, bytearray, memoryview))
        records = memoryview(answer.records)
        end, _ = whole_batches(records)
        if end == 0:
            raise FatalError(
                f"{self._tp} answered at offset {position} with {len(records)} bytes that hold no whole record "
                "batch: the log is damaged there",
                ErrorCode.CORRUPT_MESSAGE,
            )
        is_committed = self._options.isolation is IsolationLevel.READ_COMMITTED
        if is_committed and not answer.aborted:
            chunk = FetchedChunk(self._tp, records[:end], position, None)
        else:
            chunk = FetchedChunk(self._tp, records[:end], position, answer.aborted if is_committed else None)
        buffers = chunk.take_batches()
        return _Fetched(position, chunk.next_offset, buffers)

    async def _skip_lost(self, position: int) -> _Fetched:
        """The log does not reach from `position` on any more: an error, or on to where it starts."""
        tp, options = self._tp, self._options
        places = await list_offsets(self._client, {tp: EARLIEST_TIMESTAMP}, options.isolation)
        start = places[tp].offset
        message = f"offset {position} of {tp} is not in the log, which starts at {start}"
        if options.fail_on_data_loss:
            raise options.data_loss(message)
        _log.warning("%s; going on there, or ending (loss is passed over)", message)
        return _Fetched(position, start if position < start <= self._end else self._end, [])

    async def _refresh(self) -> None:
        try:
            await self._client.cluster.refresh([self._tp.topic])
        except RetriableError as error:
            _log.info("the cluster can't be asked now: %s", error)
