"""One connection to a Kafka listener: frames, correlation ids, requests in flight and their deadlines, versions.

Answers come in the order of the requests, so one that is late holds up all behind it: a request that times out closes
the connection, and every request on it fails as lost (its effect is unknown). The sender decides what to repeat.
"""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias, cast

from semel.protocol.errors import ErrorCode, FatalError, RetriableError
from semel.protocol.kafka.api import (
    ApiKey,
    ApiVersionsResponse,
    WireFormatError,
    is_flexible,
    response_header_is_flexible,
)
from semel.protocol.trace_context import tagged_header

Buffer: TypeAlias = bytes | bytearray | memoryview

MAX_RESPONSE_BYTES: Final = 512 << 20
"""The longest answer that is believed. A fetch bounds its answers on its own; more than this is a broken stream."""

SILENT_S: Final = 2.0
"""How long a node may take for an answer before `on_silence` hears of it."""
SILENT_AGAIN_S: Final = 1.0
"""How long until it hears of it again."""

_CHUNK_BYTES: Final = 64 << 10
_JOIN_BYTES: Final = 4 << 10
_SIZE = struct.Struct(">i")
_HEADER = struct.Struct(">ihhih")
_HTTP_2_SETTINGS: Final = b"\x04\x00\x00\x00\x00\x00"
"""Type, flags and stream of the first frame of an HTTP/2 server, after three bytes of its length."""


class ConnectionLostError(RetriableError):
    """The connection ended before the answer: whether the request had an effect is unknown."""

    def __init__(self, message: str, code: ErrorCode = ErrorCode.NETWORK_EXCEPTION) -> None:
        super().__init__(message, code)


@dataclass(frozen=True, slots=True)
class VersionRange:
    """The versions of one API that a node speaks."""

    lowest: int
    highest: int


class _Waiting:
    """A request that was sent and waits for its answer."""

    __slots__ = ("correlation_id", "deadline", "flexible", "future", "silent_at")

    def __init__(
        self, correlation_id: int, deadline: float, silent_at: float, flexible: bool, future: asyncio.Future[memoryview]
    ) -> None:
        self.correlation_id = correlation_id
        self.deadline = deadline
        self.silent_at = silent_at
        self.flexible = flexible
        self.future = future


class Connection(asyncio.BufferedProtocol):
    """One open connection to a node's Kafka listener. All methods run on the loop that opened it."""

    def __init__(self, address: str, client_id: str, in_flight_max: int) -> None:
        self.address = address
        self.versions: dict[int, VersionRange] = {}
        self.on_silence: Callable[[], None] | None = None
        """Called when a request has waited for so long that the node may be dead, and each second from then on."""
        self.proof_lasts_s = 0.0
        """For how long from its proof on the node takes who this is (KIP-368); 0: for as long as it is open."""
        self._throttled_until = 0.0
        self._client_id = client_id.encode()
        self._in_flight_max = in_flight_max
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[_Waiting] = deque()
        self._room_waiters: deque[asyncio.Future[None]] = deque()
        # Not from 0: what comes in its place says whether another protocol is spoken here (`_split`).
        self._next_correlation_id = 1
        self._timer: asyncio.TimerHandle | None = None
        self._seen_bytes = 0  # of an answer that comes slowly, when it was looked at last
        self._lost: Exception | None = None
        # Sending: at most one buffer is with the transport beyond what the socket took; the rest waits here, uncopied.
        self._outgoing: deque[Buffer] = deque()
        self._paused = False
        # Receiving: small answers share `_chunk`; a long one gets a buffer of its own, received into without a copy.
        self._chunk = bytearray(_CHUNK_BYTES)
        self._chunk_view = memoryview(self._chunk)
        self._filled = 0
        self._frame: memoryview | None = None
        self._frame_filled = 0

    @property
    def is_open(self) -> bool:
        return self._lost is None and self._transport is not None

    @property
    def in_flight(self) -> int:
        """How many requests wait for their answer."""
        return len(self._waiting)

    @property
    def is_throttled(self) -> bool:
        """Whether the node reads nothing from here for now, because of a quota (KIP-219)."""
        return self._loop.time() < self._throttled_until

    def note_throttle(self, throttle_time_ms: int) -> None:
        """Take note of what an answer has said: for so long from then on the node reads nothing from here."""
        self._throttled_until = max(self._throttled_until, self._loop.time() + throttle_time_ms / 1000)

    @property
    def is_receiving(self) -> bool:
        """Whether an answer has begun to come."""
        return self._frame is not None or self._filled > 0

    @property
    def has_room(self) -> bool:
        """Whether another request may be sent now."""
        return len(self._waiting) < self._in_flight_max

    async def wait_room(self) -> None:
        """Wait until `has_room`. Raises `ConnectionLostError`."""
        while not self.has_room:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._room_waiters.append(waiter)
            await waiter
        if self._lost is not None:
            raise self._lost

    def highest_version(self, api_key: int, lowest: int, highest: int) -> int:
        """Return the highest version in the range that the node speaks too. Raises `FatalError` if there is none."""
        offered = self.versions.get(api_key)
        if offered is None or offered.highest < lowest or offered.lowest > highest:
            raise FatalError(
                f"the node at {self.address} does not speak versions {lowest} to {highest} of API {api_key}: "
                "client and node are too far apart, upgrade the older one",
                ErrorCode.UNSUPPORTED_VERSION,
            )
        return min(highest, offered.highest)

    def request(
        self,
        api_key: int,
        api_version: int,
        body: Sequence[Buffer],
        *,
        timeout_ms: float,
        wait_ms: float = 0.0,
        trace: bytes = b"",
        is_urgent: bool = False,
    ) -> asyncio.Future[memoryview]:
        """Send a request at once and return the future of its answer's body, which is valid for as long as it is held.

        `body` is sent as it is, part after part, without joining; the parts must not change until the answer is there.
        The future fails with `ConnectionLostError` when the connection ends first, or no answer comes within
        `timeout_ms`. Raises `ConnectionLostError` when it has ended already, and `RetriableError` beyond the bound of
        requests in flight (wait with `wait_room`). `trace` goes into the header, of versions that have room for it.
        is_urgent: it does not count for that bound
        `wait_ms` is how long the node was asked to wait before it answers (a fetch): that is no silence.
        """
        if self._lost is None and not self.has_room and not is_urgent:
            raise RetriableError(f"{len(self._waiting)} requests wait for their answer from {self.address} already")
        correlation_id = self._write(api_key, api_version, body, trace)
        future: asyncio.Future[memoryview] = self._loop.create_future()
        now = self._loop.time()
        deadline, silent_at = now + timeout_ms / 1000, now + wait_ms / 1000 + SILENT_S
        flexible = response_header_is_flexible(api_key, api_version)
        self._waiting.append(_Waiting(correlation_id, deadline, silent_at, flexible, future))
        look_at = deadline if self.on_silence is None or silent_at > deadline else silent_at
        if self._timer is None or self._timer.when() > look_at:
            self._arm(look_at)
        return future

    def send_unanswered(self, api_key: int, api_version: int, body: Sequence[Buffer], *, trace: bytes = b"") -> None:
        """Send a request that has no answer (Produce with acks=0). Raises as `request`."""
        self._write(api_key, api_version, body, trace)

    def close(self, reason: str = "closed by the client") -> None:
        """Close the connection; what is in flight fails as lost."""
        self._end(ConnectionLostError(f"connection to {self.address}: {reason}"))

    # --- asyncio's callbacks ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast("asyncio.Transport", transport)  # those of uvloop are no subclass of it
        self._transport = transport
        transport.set_write_buffer_limits(high=1)  # with 0, one that encrypts pauses with nothing in its buffer

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(ConnectionLostError(f"connection to {self.address} lost: {exc or 'closed by the node'}"))

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._flush()

    def eof_received(self) -> bool:
        return False

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._frame is not None:
            return self._frame[self._frame_filled :]
        return self._chunk_view[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        if self._frame is not None:
            self._frame_filled += nbytes
            if self._frame_filled == len(self._frame):
                frame, self._frame = self._frame, None
                self._answered(frame)
            return
        self._filled += nbytes
        self._split()

    # --- Sending ------------------------------------------------------------------------------------------------------

    def _write(self, api_key: int, api_version: int, body: Sequence[Buffer], trace: bytes) -> int:
        if self._lost is not None:
            raise self._lost
        correlation_id = self._next_correlation_id
        self._next_correlation_id = (correlation_id + 1) & 0x7FFFFFFF
        tail = b""
        if is_flexible(api_key, api_version):
            tail = tagged_header(trace) if trace else b"\x00"
        size = 10 + len(self._client_id) + len(tail) + sum(len(part) for part in body)
        header = _HEADER.pack(size, api_key, api_version, correlation_id, len(self._client_id))
        # Small parts are joined: a system call each would cost more than the copy.
        joined = bytearray(header + self._client_id + tail)
        for part in body:
            if len(part) <= _JOIN_BYTES and len(joined) < _CHUNK_BYTES:
                joined += part
            else:
                if joined:
                    self._outgoing.append(joined)
                    joined = bytearray()
                self._outgoing.append(part)
        if joined:
            self._outgoing.append(joined)
        self._flush()
        return correlation_id

    def _flush(self) -> None:
        transport, outgoing = self._transport, self._outgoing
        assert transport is not None
        while outgoing and not self._paused:
            transport.write(outgoing.popleft())

    # --- Receiving ----------------------------------------------------------------------------------------------------

    def _split(self) -> None:
        position, filled = 0, self._filled
        if not self.versions and self._chunk[3:9] == _HTTP_2_SETTINGS:
            self.close(
                "this is an HTTP/2 listener, as gRPC's are, and not the Kafka one; does the node's kafka.advertised "
                "give its gRPC address?"
            )
            return
        while filled - position >= 4:
            (size,) = _SIZE.unpack_from(self._chunk, position)
            if not 4 <= size <= MAX_RESPONSE_BYTES:
                self.close(f"the node announced an answer of {size} bytes; is this a Kafka listener?")
                return
            start, end = position + 4, position + 4 + size
            if end > filled:
                if end - position > _CHUNK_BYTES or size > _CHUNK_BYTES // 2:
                    self._begin_frame(start, size, filled)
                    return
                break
            # A copy, because the chunk is received into again while the answer's reader still holds it.
            self._answered(memoryview(bytes(self._chunk_view[start:end])))
            if self._lost is not None:
                return
            position = end
        if position:
            rest = filled - position
            self._chunk[:rest] = self._chunk[position:filled]
            self._filled = rest

    def _begin_frame(self, start: int, size: int, filled: int) -> None:
        frame = memoryview(bytearray(size))
        self._frame_filled = filled - start
        frame[: self._frame_filled] = self._chunk_view[start:filled]
        self._frame = frame
        self._filled = 0

    def _answered(self, frame: memoryview) -> None:
        (correlation_id,) = _SIZE.unpack_from(frame)
        if not self._waiting or self._waiting[0].correlation_id != correlation_id:
            self.close(f"an answer nobody waits for (correlation id {correlation_id})")
            return
        waiting = self._waiting.popleft()
        body = frame[4:]
        if waiting.flexible:
            if not body or body[0] != 0:
                self.close("an answer with unknown tagged fields in its header")
                if not waiting.future.done():
                    waiting.future.set_exception(ConnectionLostError(f"unreadable answer from {self.address}"))
                return
            body = body[1:]
        if not waiting.future.done():
            waiting.future.set_result(body)
        self._wake_room_waiters()

    # --- Deadlines and the end ----------------------------------------------------------------------------------------

    def _arm(self, look_at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(look_at, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if not self._waiting:
            return
        look_at, now = min(waiting.deadline for waiting in self._waiting), self._loop.time()
        if look_at <= now:
            self._end(
                ConnectionLostError(f"the node at {self.address} did not answer in time", ErrorCode.REQUEST_TIMED_OUT)
            )
            return
        if self.on_silence is not None:
            silent_at = min(waiting.silent_at for waiting in self._waiting)
            if silent_at <= now:
                silent_at = now + SILENT_AGAIN_S
                seen_bytes, self._seen_bytes = self._seen_bytes, self._frame_filled if self._frame is not None else 0
                if self._seen_bytes == seen_bytes:  # otherwise a long answer is coming
                    self.on_silence()
            look_at = min(look_at, silent_at)
        if self._waiting:
            self._arm(look_at)

    def _wake_room_waiters(self) -> None:
        while self._room_waiters:
            waiter = self._room_waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)

    def _end(self, error: Exception) -> None:
        if self._lost is not None:
            return
        self._lost = error
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._outgoing.clear()
        if self._transport is not None:
            self._transport.abort()
        waiting, self._waiting = self._waiting, deque()
        for one in waiting:
            if not one.future.done():
                one.future.set_exception(error)
                one.future.exception()  # a waiter that gave up shall not make asyncio complain
        self._wake_room_waiters()


Dial: TypeAlias = "Callable[[Callable[[], Connection]], Awaitable[Connection]]"
"""Opens a transport for the connection that is made by what it is called with. Raises `OSError`."""


def dial_tcp(host: str, port: int, encryption: ssl.SSLContext | None = None) -> Dial:
    """Return what opens a connection to an address."""

    async def dial(made: Callable[[], Connection]) -> Connection:
        loop = asyncio.get_running_loop()
        if encryption is None:
            _, connection = await loop.create_connection(made, host, port)
        else:
            _, connection = await loop.create_connection(made, host, port, ssl=encryption)
        return connection

    return dial


async def connect(
    address: str,
    dial: Dial,
    *,
    client_id: str,
    in_flight_max: int = 64,
    timeout_ms: float = 10_000,
    prove: Callable[[Connection], Awaitable[None]] | None = None,
) -> Connection:
    """Open a connection and ask the node for its API versions. Raises `ConnectionLostError`.

    address: for messages; `dial` knows where the node is
    prove:   proves to the node who this is, where it asks
    """

    def made() -> Connection:
        return Connection(address, client_id, in_flight_max)

    try:
        async with asyncio.timeout(timeout_ms / 1000):
            connection = await dial(made)
            try:
                body = await connection.request(ApiKey.API_VERSIONS, 0, (), timeout_ms=timeout_ms)
                connection.versions = _parse_versions(body)
                if prove is not None:
                    await prove(connection)
            except BaseException:
                # Also where the task is cancelled: nobody else has the connection, to close it.
                connection.close("it did not tell its API versions")
                raise
    except TimeoutError:
        raise ConnectionLostError(f"{address} did not answer within {timeout_ms:.0f} ms") from None
    except OSError as error:
        raise ConnectionLostError(f"can't connect to {address}: {error.strerror or error}") from None
    except WireFormatError as error:
        raise ConnectionLostError(f"{address} is not a Kafka listener: {error}") from None
    return connection


def _parse_versions(body: memoryview) -> dict[int, VersionRange]:
    response = ApiVersionsResponse.parse(body, 0)
    if response.error is not ErrorCode.NONE:
        raise WireFormatError(f"ApiVersions answered {response.error.name}")
    return {api.api_key: VersionRange(api.min_version, api.max_version) for api in response.apis}
