"""semel.v1.DataService: produce and fetch as streams, for languages without a Kafka client.

The same handlers as the Kafka listener's stand behind it, so batches keep their order whichever way they come. Flow
control is gRPC's own for Produce (what is not read is not sent), and credit for Fetch.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Final

from semel.broker.acls.rights import Rights, rights_of_call
from semel.broker.handlers.fetch.call import WaitingFetch
from semel.broker.handlers.fetch.handler import FetchHandler
from semel.broker.handlers.fetch.large import LargeFetch
from semel.broker.handlers.produce.handler import ProduceHandler
from semel.broker.listeners.grpc.convert import filled, isolation_of, unique_items
from semel.broker.listeners.grpc.edge import Context, client_host
from semel.broker.listeners.grpc.errors import item_error
from semel.broker.listeners.grpc.fetch_budget import FETCH_STREAMS_BYTES_MAX, FetchBudget
from semel.broker.listeners.grpc.usage import Lookup, look_up
from semel.broker.permitted.produce import begin_produce
from semel.broker.quotas.client_quotas import ClientUsage
from semel.broker.quotas.request_usage import Measured, RequestUsage
from semel.broker.services import Services
from semel.protocol.api.topics import IsolationLevel
from semel.protocol.batch_header import read_header
from semel.protocol.errors import ErrorCode, RetriableError
from semel.protocol.ids import ZERO_TOPIC_ID, TopicPartition
from semel.protocol.kafka.fetch import FetchPartition, FetchPartitionResponse, FetchRequest, FetchResponse
from semel.protocol.kafka.produce import PRODUCE_MAX_VERSION, ProducePartition, ProduceRequest, ProduceResponse
from semel.protocol.v1 import data_pb2
from semel.runtime.storage import FileRange
from semel.runtime.turns import in_turns

UNANSWERED_MAX: Final = 64
RESPONSE_BYTES_MAX: Final = 1 << 20
"""The most record bytes of one Fetch response (one larger batch excepted): gRPC clients take 4 MiB by default."""
DEFAULT_PARTITION_BYTES: Final = 1 << 20
DEFAULT_MAX_WAIT_MS: Final = 500
DEFAULT_TIMEOUT_MS: Final = 30_000

_MUTED_S_MAX: Final = 5.0
"""How often a stream whose client has used up a quota looks whether that still holds: others may be set meanwhile."""

_FETCH_BY_NAME_VERSION: Final = 12


class DataService:
    """Produce and Fetch."""

    def __init__(self, node: Services, produce: ProduceHandler, fetch: FetchHandler) -> None:
        self._node = node
        self._produce = produce
        self._fetch = fetch
        self.budget = FetchBudget()
        self._streams: set[_FetchStream] = set()
        self._stopping = asyncio.Event()

    def finish(self) -> None:
        """Begin no more: the node stops. What was begun is answered, and the streams end."""
        self._stopping.set()
        self.budget.stop()
        for stream in self._streams:
            stream.wake()

    def _check_running(self) -> None:
        if self._stopping.is_set():
            raise RetriableError("the node is stopping: continue with another one", ErrorCode.BROKER_NOT_AVAILABLE)

    # --- Produce ------------------------------------------------------------------------------------------------------

    async def produce(
        self, requests: AsyncIterator[data_pb2.ProduceRequest], context: Context
    ) -> AsyncIterator[data_pb2.ProduceResponse]:
        """Append as requests come, and answer in their order. With 64 unanswered, no more are read."""
        unanswered: deque[tuple[asyncio.Future[ProduceResponse], RequestUsage | None]] = deque()
        turn = _StreamTurn()
        look_up_client = look_up(self._node, context)
        reading = asyncio.ensure_future(anext(requests, None))
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            while True:
                waits: set[asyncio.Future[object]] = set()
                if turn.muted is None and (client := look_up_client()) is not None:
                    # What it produced over other streams counts, too.
                    turn.mute(client.produce_wait_s())
                may_read = (
                    reading is not None
                    and len(unanswered) < UNANSWERED_MAX
                    and not self._stopping.is_set()
                    and turn.held is None
                    and turn.muted is None
                )
                if may_read:
                    waits |= {reading, stopping}  # type: ignore[arg-type]
                if unanswered:
                    waits.add(unanswered[0][0])  # type: ignore[arg-type]
                if turn.held is not None:
                    waits.add(turn.held)  # type: ignore[arg-type]
                if turn.muted is not None and reading is not None and not self._stopping.is_set():
                    waits |= {turn.muted, stopping}  # type: ignore[arg-type]
                if not waits:
                    break
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                if may_read and reading is not None and reading.done():
                    request = reading.result()
                    if request is None:
                        reading = None  # type: ignore[assignment]
                    else:
                        unanswered.append(await self._begin_produce(request, turn, look_up_client()))
                        reading = asyncio.ensure_future(anext(requests, None))
                while unanswered and unanswered[0][0].done():
                    answered, usage = unanswered.popleft()
                    if usage is not None:
                        usage.produced()
                    yield await _produce_response(answered.result())
            if reading is not None:
                self._check_running()
        finally:
            stopping.cancel()
            if reading is not None:
                reading.cancel()
            for _, usage in unanswered:
                if usage is not None:
                    usage.produced()
            if turn.on_close is not None:
                turn.on_close()
            turn.end()

    async def _begin_produce(
        self, request: data_pb2.ProduceRequest, turn: _StreamTurn, client: ClientUsage | None
    ) -> tuple[asyncio.Future[ProduceResponse], RequestUsage | None]:
        if client is None:
            return await self._append(request, turn), None
        usage = RequestUsage(client, turn, request.ByteSize())
        return await Measured(self._append(request, turn), usage.begin, usage.pause), usage

    async def _append(self, request: data_pb2.ProduceRequest, turn: _StreamTurn) -> asyncio.Future[ProduceResponse]:
        answered: asyncio.Future[ProduceResponse] = asyncio.get_running_loop().create_future()

        def done(response: ProduceResponse) -> None:
            if not answered.done():
                answered.set_result(response)

        partitions = [
            ProducePartition(item.topic, item.partition, item.record_batches) async for item in in_turns(request.items)
        ]
        response = begin_produce(
            self._produce,
            rights_of_call(),
            ProduceRequest(
                partitions, request.transactional_id or None, request.acks, request.timeout_ms or DEFAULT_TIMEOUT_MS
            ),
            PRODUCE_MAX_VERSION,
            done,
            turn,
        )
        if response is not None:
            done(response)
        return answered

    # --- Fetch --------------------------------------------------------------------------------------------------------

    async def fetch(
        self, requests: AsyncIterator[data_pb2.FetchRequest], context: Context
    ) -> AsyncIterator[data_pb2.FetchResponse]:
        """Send what there is, as far as the credit goes, until the client has had enough."""
        stream = _FetchStream(
            self._fetch, self.budget, client_host(context), rights_of_call(), look_up(self._node, context)
        )
        self._streams.add(stream)
        reading = asyncio.ensure_future(stream.read(requests))
        try:
            while True:
                self._check_running()
                if reading.done():
                    reading.result()  # a bad request ends the stream with its error
                    if not stream.can_send:
                        return
                if not stream.can_send or stream.is_muted:
                    await stream.wait()
                    continue
                response = await stream.next_response()
                if response is not None:
                    yield response
                    del response
                stream.give_back()
        finally:
            reading.cancel()
            stream.close()
            self._streams.discard(stream)


def _size_of(response: FetchResponse) -> int:
    return sum([len(found.records) for found in response.partitions if found.records is not None])


class _StreamTurn:
    """Whose turn it is on one Produce stream: while `held` is there, nothing more of it is appended.

    While `muted` is there, nothing more is read, because the client has used up a quota
    """

    def __init__(self) -> None:
        self.muted: asyncio.Future[None] | None = None
        self._unmute: asyncio.TimerHandle | None = None
        self.held: asyncio.Future[None] | None = None
        self.on_close: Callable[[], None] | None = None

    def hold(self) -> None:
        self.held = asyncio.get_running_loop().create_future()

    def go_on(self) -> None:
        held, self.held = self.held, None
        if held is not None and not held.done():
            held.set_result(None)

    def mute(self, seconds: float) -> None:
        if seconds <= 0:
            return
        seconds = min(seconds, _MUTED_S_MAX)
        loop = asyncio.get_running_loop()
        if self.muted is None:
            self.muted = loop.create_future()
        if self._unmute is not None:
            if self._unmute.when() >= loop.time() + seconds:
                return
            self._unmute.cancel()
        self._unmute = loop.call_later(seconds, self.end)

    def end(self) -> None:
        """Read again."""
        muted, self.muted = self.muted, None
        if self._unmute is not None:
            self._unmute.cancel()
            self._unmute = None
        if muted is not None and not muted.done():
            muted.set_result(None)


class _FetchStream:
    """Where one Fetch stream is: its partitions with their next offsets, and what it may still send."""

    def __init__(
        self, handler: FetchHandler, budget: FetchBudget, host: str, rights: Rights, look_up_client: Lookup
    ) -> None:
        self._look_up_client = look_up_client
        self._unmute: asyncio.TimerHandle | None = None
        self._handler = handler
        self._rights = rights
        self._budget = budget
        self._host = host
        self._reserved_bytes = 0
        self._wanted_bytes = self._asked_bytes = RESPONSE_BYTES_MAX
        self._usage: RequestUsage | None = None
        self._partitions: dict[TopicPartition, FetchPartition] = {}
        self._isolation = IsolationLevel.READ_UNCOMMITTED
        self._max_wait_ms = DEFAULT_MAX_WAIT_MS
        self._min_bytes = 1
        self._credit_bytes = 0
        self._waiting: WaitingFetch | LargeFetch | None = None
        self._woken: asyncio.Future[FetchResponse | None] | None = None

    @property
    def is_muted(self) -> bool:
        """Whether nothing is sent, because the client has used up a quota."""
        return self._unmute is not None

    def mute(self, seconds: float) -> None:
        """Send nothing for some time."""
        if self._unmute is not None:
            self._unmute.cancel()
        self._unmute = asyncio.get_running_loop().call_later(min(seconds, _MUTED_S_MAX), self._go_on)

    def _go_on(self) -> None:
        self._unmute = None
        self.wake()

    @property
    def can_send(self) -> bool:
        return self._credit_bytes > 0 and bool(self._partitions)

    async def read(self, requests: AsyncIterator[data_pb2.FetchRequest]) -> None:
        """Take over the client's requests as they come."""
        try:
            async for request in requests:
                could_send = self.can_send
                await self._take(request)
                if request.items or not could_send:  # more credit alone is no reason to read again
                    self.wake()
        finally:
            self.wake()

    async def _take(self, request: data_pb2.FetchRequest) -> None:
        self._credit_bytes += max(request.credit_bytes, 0)
        if not request.items:
            return
        self._isolation = isolation_of(request.isolation)
        # Without a wait, a stream with nothing to send would never let go of the event loop.
        self._max_wait_ms = request.max_wait_ms if request.max_wait_ms > 0 else DEFAULT_MAX_WAIT_MS
        self._min_bytes = max(request.min_bytes, 1)
        self._partitions = {}  # what is read until the new ones are known is not asked for any more
        self._partitions = dict(
            await unique_items(
                (
                    TopicPartition(item.topic, item.partition),
                    FetchPartition(
                        item.topic,
                        ZERO_TOPIC_ID,
                        item.partition,
                        item.offset,
                        item.max_bytes or DEFAULT_PARTITION_BYTES,
                    ),
                )
                for item in request.items
            )
        )

    async def wait(self) -> None:
        """Wait for something new from the client, or the end."""
        self._woken = asyncio.get_running_loop().create_future()
        await self._woken
        self._woken = None

    def wake(self) -> None:
        self._answered(None)

    def _answered(self, response: FetchResponse | None) -> None:
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(response)

    async def next_response(self) -> data_pb2.FetchResponse | None:
        """Return what can be read, waiting for it for a while; None where nothing came or the client asks again."""
        self._asked_bytes = wanted = self._wanted_bytes
        self._wanted_bytes = RESPONSE_BYTES_MAX
        if not await self.take(wanted) or not self.can_send:
            return None
        partitions = self._partitions
        request = FetchRequest(
            list(self._partitions.values()),
            self._max_wait_ms,
            self._min_bytes,
            min(self._credit_bytes, RESPONSE_BYTES_MAX),
            self._isolation,
        )
        self._woken = asyncio.get_running_loop().create_future()
        client = self._look_up_client()
        usage = self._usage = None if client is None else RequestUsage(client, self, 0)
        if usage is not None:
            usage.begin()
        begun = self._handler.begin(
            request, _FETCH_BY_NAME_VERSION, self._found, self, only_leader=True, rights=self._rights, usage=usage
        )
        if usage is not None:
            usage.pause()
        if isinstance(begun, FetchResponse):
            self._woken = None
            return await self._response(begun, partitions)
        if isinstance(begun, WaitingFetch):
            self.give_back()  # there is nothing to send yet
        self._waiting = begun
        try:
            response = await self._woken
        finally:
            begun.cancel()
            self._waiting = self._woken = None
        return None if response is None else await self._response(response, partitions)

    def _found(self, response: FetchResponse) -> None:
        """Take what has come after a wait. Without bytes reserved for it, it is read again once there are."""
        if not self._reserved_bytes:
            self._reserved_bytes = self._budget.try_reserve(self._host, RESPONSE_BYTES_MAX)
        if not self._reserved_bytes:
            self._uncount(response)
        self._answered(response if self._reserved_bytes else None)

    async def take(self, size: int = RESPONSE_BYTES_MAX) -> bool:
        """Reserve bytes for what is to be read, waiting for them. Returns whether there are any."""
        self._reserved_bytes = await self._budget.reserve(self._host, size)
        return self._reserved_bytes > 0

    def give_back(self) -> None:
        """Let others have the bytes, where any are reserved."""
        taken, self._reserved_bytes = self._reserved_bytes, 0
        if taken:
            self._budget.release(self._host, taken)

    async def _response(
        self, response: FetchResponse, partitions: dict[TopicPartition, FetchPartition]
    ) -> data_pb2.FetchResponse | None:
        """Return the message of an answer; None for nothing, or where the client has asked for other partitions."""
        size = _size_of(response)
        if not size and response.throttle_time_ms:
            self._wanted_bytes = self._asked_bytes  # it was withheld, and is read again later
        if size > self._reserved_bytes and self._reserved_bytes < FETCH_STREAMS_BYTES_MAX:
            self._wanted_bytes = size  # a batch larger than a response
            self._uncount(response)
            return None
        message, spent = data_pb2.FetchResponse(), 0
        async for found in in_turns(response.partitions):
            if self._partitions is not partitions:
                self._credit_bytes += spent
                self._uncount(response)
                return None
            credit = self._credit_bytes
            item = self._item(found)
            spent += credit - self._credit_bytes
            if item is not None:
                message.items.append(item)
        return message if message.items else None

    def _uncount(self, response: FetchResponse) -> None:
        """Take back what was counted for the client's quota: it is not sent."""
        if self._usage is not None:
            self._usage.client.unfetched(_size_of(response))

    def _item(self, found: FetchPartitionResponse) -> data_pb2.FetchResponse.Item | None:
        """Return what to send of a partition, and move on behind it. One with an error is not read again on its own."""
        tp = TopicPartition(found.topic, found.partition)
        records = _record_bytes(found)
        if found.error is not ErrorCode.NONE:
            self._partitions.pop(tp, None)
        elif not records:
            return None
        else:
            self._credit_bytes -= len(records)
            self._partitions[tp].fetch_offset = _next_offset(records)
        return data_pb2.FetchResponse.Item(
            topic=tp.topic,
            partition=tp.partition,
            high_watermark=found.high_watermark,
            last_stable_offset=found.last_stable_offset,
            log_start_offset=found.log_start_offset,
            aborted_transactions=[
                data_pb2.FetchResponse.AbortedTransaction(producer_id=producer_id, first_offset=first_offset)
                for producer_id, first_offset in found.aborted or ()
            ],
            record_batches=records,
            error=item_error(found.error),
        )

    def close(self) -> None:
        if self._unmute is not None:
            self._unmute.cancel()
        if self._waiting is not None:
            self._waiting.cancel()
        self.give_back()


def _record_bytes(found: FetchPartitionResponse) -> bytes:
    match found.records:
        case FileRange() as part:
            return part.read()
        case bytes() | bytearray() | memoryview() as data:
            return bytes(data)
        case _:
            return b""


def _next_offset(records: bytes) -> int:
    """Return the offset after the last whole batch."""
    position = next_offset = 0
    while position < len(records):
        header = read_header(records, position)
        position += header.size_bytes
        next_offset = header.next_offset
    return next_offset


async def _produce_response(response: ProduceResponse) -> data_pb2.ProduceResponse:
    message = data_pb2.ProduceResponse()
    return await filled(
        message,
        message.items,
        (
            data_pb2.ProduceResponse.Item(
                topic=item.topic,
                partition=item.partition,
                base_offset=item.base_offset,
                log_append_time_ms=item.log_append_time_ms,
                log_start_offset=item.log_start_offset,
                error=item_error(item.error, item.error_message),
            )
            for item in response.partitions
        ),
    )
