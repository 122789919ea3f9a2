"""Reading a partition: a poll that waits for records, and a stream of them as server-sent events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from semel.protocol.api.topics import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, IsolationLevel
from semel.protocol.errors import SemelError
from semel.protocol.ids import TopicPartition
from semel.protocol.int_bounds import INT32_MAX, INT64_MAX
from semel.web.rest.bounds import (
    POLL_BYTES,
    POLL_BYTES_MAX,
    POLL_RECORDS_MAX,
    POLL_WAIT_MS_MAX,
    TAIL_SILENCE_S,
)
from semel.web.rest.errors import bad_request, rest_problem
from semel.web.rest.record_data import FORMATS, record_json
from semel.web.rest.service import Service, link, named, own_link
from semel.web.rest.topics import no_partition

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from semel.aio import Consumer
    from semel.protocol.record_decoder import Record
    from semel.sdk.consumer.batch import Batch

_ISOLATIONS: Final = {
    "read_committed": IsolationLevel.READ_COMMITTED,
    "read_uncommitted": IsolationLevel.READ_UNCOMMITTED,
}
_RECORD_OVERHEAD_BYTES: Final = 200
"""What a record takes in an answer besides its bytes, about."""
_EVENT_STREAM: Final = "text/event-stream"
_SPARE_S: Final = 5.0
"""A stream ends so long before the gateway would end it, at a whole record."""
_TAIL_RECORDS: Final = 500
_STEP_MS: Final = 1_000
"""How long a poll that does not wait for new records looks at a time for those that are there."""
_STOP_STEP_S: Final = 0.25
"""How long a poll or a stream waits at a time, so that it ends soon when the gateway does."""
_RECONNECT_MS: Final = 1_000
_PIECE_BYTES: Final = 64 << 10
_OFFSET_DIGITS_MAX: Final = 19


class Consume:
    """The endpoint of a partition's records."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def read(self, request: Request) -> Response:
        """Poll; or with `Accept: text/event-stream` follow the partition."""
        cluster_id = await self._service.cluster_id(request)
        query = Query(request)
        partition = await self._partition(request)
        shown = query.choice("key_format", FORMATS, "BINARY"), query.choice("value_format", FORMATS, "BINARY")
        isolation = query.choice("isolation", tuple(_ISOLATIONS), "read_committed")
        if _EVENT_STREAM in request.headers.get("accept", ""):
            query.check_all_known()
            last = request.headers.get("last-event-id", "")
            if last and not (last.isascii() and last.isdecimal() and len(last) <= _OFFSET_DIGITS_MAX):
                raise bad_request("Last-Event-ID is the offset of the last record that was received")
            offset = int(last) + 1 if last else await self._offset(query, partition, isolation, "latest")
            events = self._events(request, partition, min(offset, INT64_MAX), isolation, shown)
            return EventStream(await anext(events), events)  # so that one stream too many is refused as any request
        wait_ms = query.number("max_wait_ms", 0, POLL_WAIT_MS_MAX, 0)
        at_most = query.number("max_records", 1, POLL_RECORDS_MAX, POLL_RECORDS_MAX)
        max_bytes = query.number("max_bytes", 1, POLL_BYTES_MAX, POLL_BYTES)
        offset = await self._offset(query, partition, isolation, "earliest")
        query.check_all_known()
        return await self._poll(request, cluster_id, partition, offset, wait_ms, at_most, max_bytes, isolation, shown)

    async def _poll(
        self,
        request: Request,
        cluster_id: str,
        partition: TopicPartition,
        offset: int,
        wait_ms: int,
        at_most: int,
        max_bytes: int,
        isolation: str,
        shown: tuple[str, str],
    ) -> Response:
        end = offset if wait_ms else await self._end(request, partition, isolation)
        records: list[Record] = []
        after = offset
        if wait_ms or offset != end:
            caller = self._service.caller(request)
            async with self._service.readers.at(caller, partition, offset, isolation) as reader:
                while True:
                    batch = await self._next(reader, (wait_ms or _STEP_MS) / 1000, at_most)
                    if batch is not None:
                        records, after = batch.records, batch.next_offsets[partition].offset
                        break
                    # Perhaps past what nobody is shown: aborted records, and markers.
                    after = max(after, reader.position(partition) or 0)
                    if after >= end or self._is_stopping():
                        break
        fitting = _fitting(records, max_bytes)
        if len(fitting) < len(records):
            after = fitting[-1].offset + 1
        place = (cluster_id, "topics", partition.topic, "partitions", partition.partition, "records")
        return JSONResponse(
            {
                "kind": "KafkaRecordList",
                "metadata": {"self": own_link(request), "next": f"{link(request, *place)}?offset={after}"},
                "cluster_id": cluster_id,
                "topic_name": partition.topic,
                "partition_id": partition.partition,
                "next_offset": after,
                "data": [record_json(record, *shown) for record in fitting],
            }
        )

    async def _events(
        self, request: Request, partition: TopicPartition, offset: int, isolation: str, shown: tuple[str, str]
    ) -> AsyncGenerator[bytes]:
        """Yield an event for each record, its offset as the id, and a comment where none comes."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + max(self._service.gateway.limits.request_s - _SPARE_S, 1.0)
        try:
            async with self._service.readers.at(self._service.caller(request), partition, offset, isolation) as reader:
                yield f"retry: {_RECONNECT_MS}\n\n".encode()
                while (left_s := ends - loop.time()) > 0 and not self._is_stopping():
                    batch = await self._next(reader, min(TAIL_SILENCE_S, left_s), _TAIL_RECORDS)
                    if batch is None:
                        yield b": nothing new\n\n"
                        continue
                    for piece in _pieces(batch.records, shown):
                        yield piece
                        if self._is_stopping():
                            return
        except SemelError as error:
            problem = rest_problem(error)
            told = json.dumps({"error_code": problem.error_code, "message": problem.detail})
            yield f"event: error\ndata: {told}\n\n".encode()

    def _is_stopping(self) -> bool:
        return self._service.gateway.stopping.is_set()

    async def _next(self, reader: Consumer, wait_s: float, at_most: int) -> Batch | None:
        """Return the next records; None where none come in time, or the gateway stops meanwhile."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + wait_s
        while True:
            left_s = max(ends - loop.time(), 0.0)
            batch = await reader.poll(min(left_s, _STOP_STEP_S), at_most)
            if batch is not None or left_s <= _STOP_STEP_S or self._is_stopping():
                return batch

    async def _partition(self, request: Request) -> TopicPartition:
        topic = named(request, "topic_name")
        wanted = named(request, "partition_id")
        count = len((await self._service.admin(request).topic(topic)).partitions)
        if not (wanted.isascii() and wanted.isdecimal()) or len(wanted) > 10 or not 0 <= int(wanted) < count:
            raise no_partition(topic, wanted, count)
        return TopicPartition(topic, min(int(wanted), INT32_MAX))

    async def _offset(self, query: Query, partition: TopicPartition, isolation: str, default: str) -> int:
        text = query.text("offset", default)
        if text.isascii() and text.isdecimal() and len(text) <= _OFFSET_DIGITS_MAX and int(text) <= INT64_MAX:
            return int(text)
        if text not in ("earliest", "latest"):
            raise bad_request(f"offset is a whole number from 0, earliest or latest; not {text[:100]!r}")
        if text == "latest":
            return await self._end(query.request, partition, isolation)
        return (await self._service.admin(query.request).list_offsets({partition: EARLIEST_TIMESTAMP}))[
            partition
        ].offset

    async def _end(self, request: Request, partition: TopicPartition, isolation: str) -> int:
        """Return the offset after the last record that may be read."""
        asked = {partition: LATEST_TIMESTAMP}
        found = await self._service.admin(request).list_offsets(asked, isolation=_ISOLATIONS[isolation])
        return found[partition].offset


class EventStream(StreamingResponse):
    """Events whose first piece is there already. What they hold is let go however the answer ends."""

    def __init__(self, first: bytes, events: AsyncGenerator[bytes]) -> None:
        async def pieces() -> AsyncGenerator[bytes]:
            yield first
            async for piece in events:
                yield piece

        super().__init__(pieces(), media_type=_EVENT_STREAM, headers={"Cache-Control": "no-store"})
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._events):
            await super().__call__(scope, receive, send)


class Query:
    """The parameters of a request. Each method raises `Problem` 400 with the name of one that is wrong."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self._asked = {"offset", "max_wait_ms", "max_records", "max_bytes", "isolation", "key_format", "value_format"}

    def text(self, name: str, default: str) -> str:
        given = self.request.query_params.getlist(name)
        if len(given) > 1:
            raise bad_request(f"{name} is given once")
        return given[0] if given else default

    def number(self, name: str, low: int, high: int, default: int) -> int:
        text = self.text(name, str(default))
        if not (text.isascii() and text.isdecimal()) or len(text) > 19 or not low <= int(text) <= high:
            raise bad_request(f"{name} is a whole number from {low} to {high}, not {text[:100]!r}")
        return int(text)

    def choice(self, name: str, choices: tuple[str, ...], default: str) -> str:
        text = self.text(name, default)
        if text not in choices:
            raise bad_request(f"{name} is one of {', '.join(choices)}; not {text[:100]!r}")
        return text

    def check_all_known(self) -> None:
        unknown = sorted(set(self.request.query_params) - self._asked)
        if unknown:
            raise bad_request(f"there is no parameter {unknown[0][:100]!r}: there are {', '.join(sorted(self._asked))}")


def _fitting(records: list[Record], max_bytes: int) -> list[Record]:
    """Return the first records up to a size; always one, or nobody could ever read a large one."""
    size = 0
    for number, record in enumerate(records):
        size += _RECORD_OVERHEAD_BYTES + len(record.key or b"") + len(record.value or b"")
        if size > max_bytes and number:
            return records[:number]
    return records


def _pieces(records: list[Record], shown: tuple[str, str]) -> Iterator[bytes]:
    """Yield the events of records, some at a time: each piece is sent before the next is made."""
    events: list[bytes] = []
    size = 0
    for record in records:
        events.append(_event(record, shown))
        size += len(events[-1])
        if size > _PIECE_BYTES:
            yield b"".join(events)
            events.clear()
            size = 0
    yield b"".join(events)


def _event(record: Record, shown: tuple[str, str]) -> bytes:
    data: dict[str, Any] = record_json(record, *shown)
    return f"id: {record.offset}\ndata: {json.dumps(data, allow_nan=False, separators=(',', ':'))}\n\n".encode()
