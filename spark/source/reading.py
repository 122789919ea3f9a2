"""Reads a range of offsets as Arrow record batches, in the process of a task.

While Spark takes what was decoded, the next fetch is under way on the client's thread. From the bytes of record batches
to Arrow columns there is no Python object for a record.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from semel.protocol.api.topics import EARLIEST_TIMESTAMP, IsolationLevel, PartitionDescription
from semel.protocol.arrow import ALL_COLUMNS, COLUMNS, decode_to_arrow
from semel.protocol.errors import ErrorCode, FatalError, RetriableError, error_for
from semel.protocol.ids import NO_LEADER
from semel.protocol.kafka.fetch import (
    FETCH,
    FETCH_MAX_VERSION,
    FETCH_MIN_VERSION,
    FetchPartition,
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
)
from semel.sdk.consumer.fetched import FetchedChunk, whole_batches
from semel.sdk.transport.client import ClientCore
from semel.sdk.transport.offset_lookup import list_offsets
from semel.spark.source.offset_ranges import OffsetRange
from semel.spark.source.options import SourceOptions
from semel.spark.telemetry import rows_read

if TYPE_CHECKING:
    import pyarrow

_log = logging.getLogger("semel.spark")

ROWS_MAX: Final = 10_000
BYTES_MAX: Final = 2 << 20
"""The most in one Arrow batch for Spark: measured to be the best; smaller costs calls, larger memory and waiting."""

_PAUSE_S: Final = 0.05
_EMPTY_ANSWERS_MAX: Final = 3


class DataLossError(FatalError):
    """Records that a query was to read are not there any more."""


@dataclass(frozen=True, slots=True)
class _Fetched:
    """`first_offset`: what was asked for, or where the log starts now. `buffers`: whole batches for the reader."""

    first_offset: int
    next_offset: int
    buffers: list[memoryview]


def data_loss(what: str) -> DataLossError:
    """Return the error for records that are gone."""
    return DataLossError(
        f"{what}. Records may have been deleted by the topic's retention before the query read them, or the topic was "
        "deleted. To continue with what is left, set option failOnDataLoss to 'false'",
        ErrorCode.OFFSET_OUT_OF_RANGE,
    )


def read_range(client: ClientCore, what: OffsetRange, options: SourceOptions) -> Iterator[pyarrow.RecordBatch]:
    """Yield the records of a range in order, without aborted ones where the isolation level is read_committed (L3).

    Raises `DataLossError` where records are gone, unless failOnDataLoss is off; `SemelError` where they can't be read.
    """
    columns = ALL_COLUMNS if options.include_headers else COLUMNS
    fetcher = _RangeFetcher(client, what, options)
    position = what.start
    rows = size_bytes = 0
    future: Future[_Fetched] | None = client.io.submit(fetcher.fetch(position))
    try:
        while future is not None:
            fetched = future.result(timeout=(options.poll_timeout_ms + client.options.api_timeout_ms) / 1000)
            position = fetched.next_offset
            future = client.io.submit(fetcher.fetch(position)) if position < what.end else None
            if fetched.buffers:
                decoded = decode_to_arrow(
                    fetched.buffers,
                    topic=what.topic,
                    partition=what.partition,
                    columns=columns,
                    first_offset=fetched.first_offset,
                    end_offset=what.end,
                    check_crc=options.check_crc,
                )
                rows += decoded.num_rows
                size_bytes += sum(map(len, fetched.buffers))
                yield from _in_slices(decoded)
    finally:
        if future is not None:
            future.cancel()
        rows_read(what.tp, rows, size_bytes)


def _in_slices(batch: pyarrow.RecordBatch) -> Iterator[pyarrow.RecordBatch]:
    rows = batch.num_rows
    if not rows:
        return
    step = max(1, min(ROWS_MAX, BYTES_MAX * rows // max(1, batch.nbytes)))
    for first in range(0, rows, step):
        yield batch.slice(first, step)


class _RangeFetcher:
    """Fetches from one partition. `fetch` runs on the IO thread, one at a time."""

    def __init__(self, client: ClientCore, what: OffsetRange, options: SourceOptions) -> None:
        self._client = client
        self._what = what
        self._options = options
        self._rack = options.rack
        self._nearest = NO_LEADER
        """The follower that the leader has named as the nearest (KIP-392)."""

    async def fetch(self, position: int) -> _Fetched:
        """Return records from `position` on; ask until there are some or the poll's time is over."""
        options = self._options
        deadline = time.monotonic() + options.poll_timeout_ms / 1000
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
                    raise error_for(answer.error, f"{self._what.tp} can't be read")
                fetched = self._take(position, answer)
                if fetched is not None:
                    return fetched
                trouble = None
                empty_answers += 1
                if empty_answers >= _EMPTY_ANSWERS_MAX and self._visible_end(answer) >= self._what.end:
                    return _Fetched(position, self._what.end, [])  # compaction left nothing between here and the end
            except RetriableError as error:
                trouble = error
                await self._refresh()
            if time.monotonic() >= deadline:
                raise RetriableError(
                    f"no records of {self._what.tp} from offset {position} on within {options.poll_timeout_ms} ms "
                    f"(kafkaConsumer.pollTimeoutMs), though the query was to read up to {self._what.end}"
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
        client, what, options = self._client, self._what, self._options
        place = client.cluster.snapshot.leader(what.tp)
        if place is None:
            await client.cluster.refresh([what.topic])
            place = client.cluster.snapshot.leader(what.tp)
            topic = client.cluster.snapshot.topics.get(what.topic)
            if topic is None or what.partition >= len(topic.partitions):
                if options.fail_on_data_loss:
                    raise data_loss(self._gone(position))
                return None
            if place is None:
                raise RetriableError(f"{what.tp} has no leader now", ErrorCode.LEADER_NOT_AVAILABLE)
        if self._nearest in client.cluster.snapshot.nodes and self._nearest != place.leader_id:
            try:
                answer = await self._ask_node(self._nearest, place, position)
                if answer.error is ErrorCode.NONE and answer.preferred_read_replica < 0:
                    return answer
            except RetriableError as error:
                _log.info("a follower can't be read from partition=%s node=%s: %s", what.tp, self._nearest, error)
            self._rack, self._nearest = "", NO_LEADER  # the leader alone is asked for the rest of this range
        answer = await self._ask_node(place.leader_id, place, position)
        if answer.error is not ErrorCode.NONE or answer.preferred_read_replica < 0:
            return answer
        # It has no records, which does not mean that there are none.
        if not self._rack:
            raise RetriableError(f"node {place.leader_id} names a follower for {what.tp}, and was not asked for one")
        if answer.preferred_read_replica in client.cluster.snapshot.nodes:
            self._nearest = answer.preferred_read_replica
        else:
            self._rack = ""
        return await self._ask(position)

    async def _ask_node(self, node_id: int, place: PartitionDescription, position: int) -> FetchPartitionResponse:
        client, what, options = self._client, self._what, self._options
        connection = await client.connections.get(node_id)
        version = connection.highest_version(FETCH, FETCH_MIN_VERSION, FETCH_MAX_VERSION)
        topic_id = client.cluster.snapshot.topics[what.topic].topic_id
        item = FetchPartition(
            what.topic,
            topic_id,
            what.partition,
            position,
            options.max_fetch_bytes,
            current_leader_epoch=place.leader_epoch,
        )
        request = FetchRequest(
            [item], options.max_fetch_wait_ms, 1, options.max_fetch_bytes, options.isolation, rack_id=self._rack
        )
        timeout_ms = options.max_fetch_wait_ms + client.options.request_timeout_ms
        body = await connection.request(FETCH, version, [request.build(version)], timeout_ms=timeout_ms)
        response = FetchResponse.parse(body, version)
        if response.error is not ErrorCode.NONE:
            raise error_for(response.error, f"node {node_id} refused a fetch")
        if len(response.partitions) != 1:
            raise RetriableError(f"node {node_id} said nothing about {what.tp}")
        return response.partitions[0]

    def _gone(self, position: int) -> str:
        what = self._what
        return f"{what.tp} is gone, offsets {position} to {what.end} with it"

    def _pass_over_gone(self, position: int) -> _Fetched:
        _log.warning("%s; going on without it (failOnDataLoss is false)", self._gone(position))
        return _Fetched(position, self._what.end, [])

    def _take(self, position: int, answer: FetchPartitionResponse) -> _Fetched | None:
        if answer.records is None or not len(answer.records):
            return None
        assert isinstance(answer.records, (bytes, bytearray, memoryview))
        records = memoryview(answer.records)
        end, _ = whole_batches(records)
        if end == 0:
            raise FatalError(
                f"{self._what.tp} answered at offset {position} with {len(records)} bytes that hold no whole record "
                "batch: the log is damaged there",
                ErrorCode.CORRUPT_MESSAGE,
            )
        is_committed = self._options.isolation is IsolationLevel.READ_COMMITTED
        if is_committed and not answer.aborted:
            chunk = FetchedChunk(self._what.tp, records[:end], position, None)
        else:
            chunk = FetchedChunk(self._what.tp, records[:end], position, answer.aborted if is_committed else None)
        buffers = chunk.take_batches()
        return _Fetched(position, chunk.next_offset, buffers)

    async def _skip_lost(self, position: int) -> _Fetched:
        """The log does not reach from `position` on any more: an error, or on to where it starts."""
        what, options = self._what, self._options
        places = await list_offsets(self._client, {what.tp: EARLIEST_TIMESTAMP}, options.isolation)
        start = places[what.tp].offset
        message = f"offset {position} of {what.tp} is not in the log, which starts at {start}"
        if options.fail_on_data_loss:
            raise data_loss(message)
        _log.warning("%s; going on there, or ending the batch (failOnDataLoss is false)", message)
        return _Fetched(position, start if position < start <= what.end else what.end, [])

    async def _refresh(self) -> None:
        try:
            await self._client.cluster.refresh([self._what.topic])
        except RetriableError as error:
            _log.info("the cluster can't be asked now: %s", error)
