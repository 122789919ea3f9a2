"""Writing: one record a request, a stream of them, a batch, and with an Idempotency-Key all of a request at once.

Without a key records are written by an idempotent producer, as any client's: sent again by the client, they are there
again. With a key they are one transaction, which takes effect once.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from semel.protocol.errors import SemelError
from semel.web.problems import Problem
from semel.web.rest.bodies import Fields, check_is_json, json_body, json_object, wrong
from semel.web.rest.bounds import BATCH_ENTRIES_MAX, RECORDS_MAX
from semel.web.rest.errors import bad_request, rest_problem
from semel.web.rest.json_stream import JsonStream
from semel.web.rest.once.answers import Answer
from semel.web.rest.once.keys import fingerprint_of, key_of
from semel.web.rest.once.work import Work
from semel.web.rest.record_data import NewRecord, moment, new_record
from semel.web.rest.service import Service, named

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from semel.aio import Producer
    from semel.sdk.producer.delivery import Delivery, RecordMetadata

_log = logging.getLogger("semel.http")

REPLAYED: Final = "Idempotency-Replayed"
_ENTRY_FIELDS: Final = ("id", "partition_id", "headers", "key", "value", "timestamp")


class Produce:
    """The endpoints."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def produce(self, request: Request) -> Response:
        """One record, or several as concatenated JSON. Chunked: each is answered as it is acknowledged."""
        check_is_json(request)
        cluster_id = await self._service.cluster_id(request)
        topic = named(request, "topic_name")
        caller = self._service.caller(request)
        key = key_of(request, caller.user)
        if key is not None:
            body = await request.body()
            records = await _records(body, topic)
            work = Work(records, lambda places: reports(cluster_id, records, places))
            answer = await self._service.lanes.do(caller, key, fingerprint_of(request, body), work)
            return _concatenated(answer)
        producer = self._service.producers.of(caller)
        if "content-length" not in request.headers:
            if "transfer-encoding" not in request.headers:
                raise bad_request("the request has no body: send a record as JSON")
            return StreamedReports(
                _Stream(producer, cluster_id, topic, request, self._service.gateway.stopping).reports()
            )
        records = await _records(await request.body(), topic)
        if len(records) == 1:
            place = await (await _send(producer, records[0]))
            return JSONResponse(report(cluster_id, records[0], place))
        deliveries = [await _sent(producer, record) for record in records]
        told = [await _told(cluster_id, record, sent) for record, sent in zip(records, deliveries, strict=True)]
        return Response("".join(json.dumps(each) + "\n" for each in told), media_type="application/json")

    async def produce_batch(self, request: Request) -> Response:
        """Records with ids of the client's, each of which succeeds or fails on its own: 207."""
        cluster_id = await self._service.cluster_id(request)
        if key_of(request, "") is not None:
            raise bad_request(
                "entries of a batch succeed or fail on their own, so they can't have one Idempotency-Key: send the "
                "records to .../records, which writes all of them or none"
            )
        topic = named(request, "topic_name")
        entries = Fields(await json_body(request), "", ("entries",)).items("entries", BATCH_ENTRIES_MAX)
        if not entries:
            raise wrong("entries is a list that is not empty")
        producer = self._service.producers.of(self._service.caller(request))
        read = [_entry(entry, number, topic) for number, entry in enumerate(entries)]
        if len({name for name, _ in read}) < len(read):
            raise wrong("the ids of entries differ from each other")
        sent = [(name, record, await _sent(producer, record)) for name, record in read]
        successes, failures = [], []
        for name, record, delivery in sent:
            told = await _told(cluster_id, record, delivery)
            code = told.pop("error_code")
            if code == 200:
                successes.append({"id": name, **told})
            else:
                failures.append({"id": name, "error_code": code, "message": told["message"]})
        return JSONResponse({"successes": successes, "failures": failures}, 207)


class StreamedReports(Response):
    """Sends pieces as they come, while the body of the request comes. Starlette's own response would read that body."""

    media_type = "application/json"

    def __init__(self, pieces: AsyncGenerator[bytes]) -> None:
        super().__init__()
        del self.headers["content-length"]
        self._pieces = pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async with aclosing(self._pieces) as pieces:
            async for piece in pieces:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class _Stream:
    """Records that come one by one and are answered one by one, in their order."""

    def __init__(
        self, producer: Producer, cluster_id: str, topic: str, request: Request, stopping: asyncio.Event
    ) -> None:
        self._stopping = stopping
        self._producer = producer
        self._cluster_id = cluster_id
        self._topic = topic
        self._request = request
        self._waiting: asyncio.Queue[tuple[NewRecord | None, Delivery | Problem] | None] = asyncio.Queue(RECORDS_MAX)

    async def reports(self) -> AsyncGenerator[bytes]:
        loop = asyncio.get_running_loop()
        reading = loop.create_task(self._read())
        ending = loop.create_task(self._end_at_stop(reading))
        try:
            while (waiting := await self._waiting.get()) is not None:
                record, sent = waiting
                told = _failed(sent) if record is None else await _told(self._cluster_id, record, sent)
                yield json.dumps(told).encode() + b"\n"
        finally:
            ending.cancel()
            reading.cancel()
            await asyncio.wait((reading, ending))

    async def _end_at_stop(self, reading: asyncio.Task[None]) -> None:
        """Read no more when the gateway stops; what was read is answered."""
        await self._stopping.wait()
        reading.cancel()
        await asyncio.wait((reading,))
        await self._waiting.put(None)

    async def _read(self) -> None:
        """Send what comes. What is no record ends the stream, for nobody knows where the next one begins."""
        stream = JsonStream()
        number = 0
        try:
            async for chunk in self._request.stream():
                for values in stream.fed(chunk):
                    try:
                        record = new_record(values, f"records[{number}]", self._topic)
                    except Problem as problem:
                        await self._waiting.put((None, problem))
                    else:
                        await self._waiting.put((record, await _sent(self._producer, record)))
                    number += 1
            stream.end()
        except Problem as problem:
            await self._waiting.put((None, problem))
        except ClientDisconnect:
            return
        except Exception:
            _log.exception("a stream of records failed")
            await self._waiting.put(
                (None, Problem(500, "this stream failed: the gateway's log says why", error_code=50002))
            )
        await self._waiting.put(None)


async def _records(body: bytes, topic: str) -> tuple[NewRecord, ...]:
    """Return the records of a body that is there as a whole: 1 to RECORDS_MAX objects. Raises `Problem`."""
    if len(body) > 64 << 10:
        objects = await asyncio.to_thread(_objects, body)
    else:
        objects = _objects(body)
    return tuple(new_record(values, f"records[{number}]", topic) for number, values in enumerate(objects))


def _objects(body: bytes) -> list[dict[str, Any]]:
    try:
        return [json_object(body)]
    except Problem as of_one:
        stream = JsonStream()
        found = []
        for values in stream.fed(body):
            found.append(values)
            if len(found) > RECORDS_MAX:
                raise Problem(
                    413, f"a request has at most {RECORDS_MAX} records: send several requests", error_code=413
                ) from None
        stream.end()
        if not found:
            raise of_one from None
        return found


def _entry(entry: object, number: int, topic: str) -> tuple[str, NewRecord]:
    where = f"entries[{number}]"
    name = Fields(entry, where, _ENTRY_FIELDS).text("id")
    assert isinstance(entry, dict)
    if len(name) > 80:
        raise wrong(f"{where}.id has at most 80 characters")
    return name, new_record({field: value for field, value in entry.items() if field != "id"}, where, topic)


async def _send(producer: Producer, record: NewRecord) -> Delivery:
    return await producer.send(
        record.topic,
        record.value.data,
        key=record.key.data,
        headers=record.headers,
        partition=record.partition,
        timestamp_ms=record.timestamp_ms,
    )


async def _sent(producer: Producer, record: NewRecord) -> Delivery | Problem:
    """Send a record of several: that one can't be sent does not keep the others."""
    try:
        return await _send(producer, record)
    except SemelError as error:
        return rest_problem(error)


async def _told(cluster_id: str, record: NewRecord, sent: Delivery | Problem) -> dict[str, Any]:
    if isinstance(sent, Problem):
        return _failed(sent)
    try:
        return report(cluster_id, record, await sent)
    except SemelError as error:
        return _failed(rest_problem(error))


def _failed(problem: Any) -> dict[str, Any]:
    assert isinstance(problem, Problem)
    return {"error_code": problem.error_code, "message": problem.detail}


def report(cluster_id: str, record: NewRecord, place: RecordMetadata) -> dict[str, Any]:
    """Return the report of a delivery, as the original has it."""
    told: dict[str, Any] = {
        "error_code": 200,
        "cluster_id": cluster_id,
        "topic_name": place.topic,
        "partition_id": place.partition,
        "offset": place.offset,
        "timestamp": moment(place.timestamp_ms),
    }
    parts = {"key": record.key.report(), "value": record.value.report()}
    return {**told, **{name: part for name, part in parts.items() if part is not None}}


def reports(cluster_id: str, records: Sequence[NewRecord], places: Sequence[RecordMetadata]) -> list[dict[str, Any]]:
    """Return a report for each record."""
    return [report(cluster_id, record, place) for record, place in zip(records, places, strict=True)]


def _concatenated(answer: Answer) -> Response:
    body = "".join(json.dumps(each) + "\n" for each in answer.body)
    return Response(body, answer.status, replayed(answer), "application/json")


def replayed(answer: Answer) -> dict[str, str]:
    """Return the header that says that an answer was given before."""
    return {REPLAYED: "true"} if answer.replayed else {}
