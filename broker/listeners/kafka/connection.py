"""One connection: bytes to frames, frames to requests in order, answers in order, back-pressure both ways.

Receiving. Small frames are read many at a time into a block and parsed where they lie; a frame that does not fit in the
rest of its block gets a buffer of exactly its size, into which the kernel writes, so what was received of it before its
size was known (less than a block) is all that is ever copied. Blocks are not used again: whoever keeps a view keeps it.

Order. Requests begin in the order they came in and are answered in that order. A pipelined API (Produce) begins without
waiting for the answers before it; every other begins when all before it are answered, and lets nothing begin until it
is answered itself, as Kafka does for all.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from bisect import bisect_left
from collections import deque
from typing import TYPE_CHECKING, Final

from semel.broker.listeners.kafka.output import Output
from semel.broker.listeners.kafka.registry import LATER, Api, RequestContext
from semel.protocol.kafka.api import ApiKey, RequestHeader, WireFormatError, parse_request_header
from semel.runtime.buckets import REQUEST_SECONDS

if TYPE_CHECKING:
    from semel.broker.listeners.kafka.listener import KafkaListener
    from semel.broker.telemetry.recorders import RequestTimes

_log = logging.getLogger("semel.kafka")

BLOCK_BYTES: Final = 64 << 10
_SIZE_BYTES: Final = 4
_READ_BYTES_MIN: Final = 4 << 10
"""With less than this free, a new block is begun: reads of a few bytes each would cost a system call a frame."""


class KafkaConnection(asyncio.BufferedProtocol):
    """The protocol of one accepted socket."""

    def __init__(self, listener: KafkaListener) -> None:
        self._listener = listener
        self._limits = listener.limits
        self._loop = listener.loop
        self._node = listener.node
        self._statistics = listener.counters
        self._requests = listener.counters.requests
        self._times = listener.request_times
        # When this turn of the loop began here, and the APIs of which requests were answered in it at once.
        self._turn = 0.0
        self._at_once: list[RequestTimes] = []
        self._api_of = listener.registry.get
        self._transport: asyncio.Transport | None = None
        self.output: Output | None = None
        self.peer = ""
        self._block = bytearray(BLOCK_BYTES)
        self._view = memoryview(self._block)
        self._start = 0
        self._end = 0
        # A frame that has a buffer of its own, while it is being received.
        self._large: memoryview | None = None
        self._large_received = 0
        self._large_reserved = 0
        self._waits_for_room = False
        self._frames: deque[tuple[memoryview, RequestHeader, Api, int]] = deque()
        self._waiting: deque[RequestContext] = deque()
        self._exclusive = False
        self._in_flight = 0
        self._flush_scheduled = False
        self._reading_paused = False
        self._held_by_output = False
        self._closing = False
        self._closed = False
        self.last_used = 0.0

    # --- The transport's calls ----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        address = transport.get_extra_info("peername")
        self.peer = f"{address[0]}:{address[1]}" if isinstance(address, tuple) else str(address)
        self.output = Output(transport)
        own_socket, size = transport.get_extra_info("socket"), self._limits.socket_send_buffer_bytes
        if own_socket is not None and size > 0:
            # A buffer beyond the processor's cache halves the rate of large fetches: bench/RESULTS.md, "sendfile".
            own_socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size)
        self.last_used = self._loop.time()
        if not self._listener.connected(self):
            transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._closed = True
        self._closing = True
        self._listener.disconnected(self)
        self._drop_frames()
        waiting, self._waiting = self._waiting, deque()
        for context in waiting:
            self._listener.release(context.reserved)
            if not context.answered and context.on_close is not None:
                context.on_close()
        if self.output is not None:
            self._statistics.sent_bytes += self.output.sent_bytes
            self._statistics.sendfile_bytes += self.output.sendfile_bytes
            self.output.clear()
        self._listener.release(self._large_reserved)
        self._large, self._large_reserved = None, 0

    def eof_received(self) -> bool:
        """The peer is gone: as in Kafka, what it did not wait for is not kept for it."""
        return False

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._large is not None:
            return self._large[self._large_received :]
        if self._start > 0 and BLOCK_BYTES - self._end < _READ_BYTES_MIN:
            self._new_block()
        return self._view[self._end :]

    def _new_block(self) -> None:
        """Go on in a fresh block, with what is unparsed of the old one copied over: less than one frame, once a
        block."""
        rest = self._end - self._start
        block = bytearray(BLOCK_BYTES)
        block[:rest] = self._view[self._start : self._end]
        self._block = block
        self._view = memoryview(block)
        self._start, self._end = 0, rest

    def buffer_updated(self, nbytes: int) -> None:
        self.last_used = self._turn = self._loop.time()
        self._statistics.received_bytes += nbytes
        try:
            if self._large is not None:
                self._large_received += nbytes
                if self._large_received == len(self._large):
                    frame, self._large = self._large, None
                    reserved, self._large_reserved = self._large_reserved, 0
                    self._frame(frame, reserved)
            else:
                self._end += nbytes
        except WireFormatError as error:
            self._refuse(error)
        self._go_on()

    def pause_writing(self) -> None:
        assert self.output is not None
        self.output.writable = False

    def resume_writing(self) -> None:
        assert self.output is not None
        self.output.writable = True
        self.last_used = self._loop.time()
        self._schedule_flush()

    # --- Bytes to frames ----------------------------------------------------------------------------------------------

    def _go_on(self) -> None:
        """Take up what has been received, begin what may begin, send what is answered."""
        try:
            self._drop_answered()
            if self._large is None and not self._waits_for_room:
                try:
                    self._split()
                except WireFormatError as error:
                    self._refuse(error)
            self._begin()
        except Exception:
            _log.exception("closing connection: peer=%s reason=internal error", self.peer)
            self._abort()
        self._flush()

    def _split(self) -> None:
        """Take whole frames out of the block, as many as may be in flight, and begin them. Raises `WireFormatError`."""
        view = self._view
        start, end = self._start, self._end
        in_flight_max = self._limits.max_in_flight_requests
        while end - start >= _SIZE_BYTES and self._in_flight < in_flight_max and not self._closing:
            size = int.from_bytes(view[start : start + _SIZE_BYTES], "big", signed=True)
            if size < 0 or size > self._limits.socket_request_max_bytes:
                raise WireFormatError(
                    f"a request of {size} bytes; 0 to {self._limits.socket_request_max_bytes} are taken "
                    "(socket.request.max.bytes)"
                )
            body = start + _SIZE_BYTES
            if size > end - body:
                self._start = start
                if size > BLOCK_BYTES - body:
                    self._begin_large(size)
                break
            start = body + size
            self._start = start
            self._frame(view[body:start])
        self._pause_or_resume()

    def _begin_large(self, size: int) -> None:
        """Give a frame that does not fit in the block a place of its own, or wait until there is room for it."""
        if size > BLOCK_BYTES and not self._listener.reserve(self, size):
            self._waits_for_room = True
        else:
            self._receive_large(size, reserved=size if size > BLOCK_BYTES else 0)

    def room_made(self, size: int) -> None:
        """The listener has reserved `size` bytes for the frame that waits."""
        self._waits_for_room = False
        self._receive_large(size, reserved=size)
        self._pause_or_resume()

    def _receive_large(self, size: int, *, reserved: int) -> None:
        received = self._end - self._start - _SIZE_BYTES
        large = memoryview(bytearray(size))
        large[:received] = self._view[self._start + _SIZE_BYTES : self._end]
        self._large, self._large_received, self._large_reserved = large, received, reserved
        # Views of the frames before this one may still be held, so the block is not written to again.
        self._block = bytearray(BLOCK_BYTES)
        self._view = memoryview(self._block)
        self._start = self._end = 0

    def _frame(self, frame: memoryview, reserved: int = 0) -> None:
        """Take up one request, for which `reserved` bytes are held until it is answered. Raises `WireFormatError`."""
        try:
            header = parse_request_header(frame)
            api = self._served(header)
        except WireFormatError:
            self._listener.release(reserved)
            raise
        self._in_flight += 1
        self._requests[header.api_key] += 1
        if not self._frames and self._may_begin(api):
            self._start_request(frame, header, api, reserved)
        else:
            self._frames.append((frame, header, api, reserved))

    def _served(self, header: RequestHeader) -> Api:
        """Return the API that a request is for. Raises `WireFormatError` where this node does not serve it."""
        api = self._api_of(header.api_key)
        if api is None:
            raise WireFormatError(f"API key {header.api_key} is not served here")
        # Old versions of Produce and Fetch carry formats that no longer exist; only ApiVersions answers any version.
        if not api.min_version <= header.api_version <= api.max_version and header.api_key != ApiKey.API_VERSIONS:
            raise WireFormatError(f"version {header.api_version} of {api.key.name} is not served here")
        return api

    # --- Frames to requests to answers --------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Begin what may begin of the requests that had to wait."""
        frames = self._frames
        while frames and self._may_begin(frames[0][2]):
            self._start_request(*frames.popleft())

    def _may_begin(self, api: Api) -> bool:
        if self._exclusive or self._closed:
            return False
        output = self.output
        assert output is not None
        if output.queued_bytes > self._limits.output_max_bytes:
            self._held_by_output = True
            return False
        if not api.pipelined and self._waiting:
            self._drop_answered()
            return not self._waiting
        return True

    def _start_request(self, frame: memoryview, header: RequestHeader, api: Api, reserved: int) -> None:
        exclusive = not api.pipelined
        context = RequestContext(self._node, self, header, exclusive, reserved)
        times = self._times
        if times is not None:
            context.begun = self._turn
            of_api = times[header.api_key]
            size = len(frame)
            of_api.size_total += size
            of_api.size_counts[size.bit_length()] += 1
        self._exclusive = exclusive
        try:
            answer = api.start(context, frame, header.body)
        except WireFormatError as error:
            self._exclusive = False
            self._listener.release(reserved)
            self._drop_frames()
            self._refuse(error)
            return
        if answer is LATER:
            self._waiting.append(context)
            return
        self._exclusive = False
        if self._waiting:
            context.parts = answer
            context.answered = True
            self._waiting.append(context)
            return
        self._in_flight -= 1
        if times is not None:
            if not of_api.at_once:
                self._at_once.append(of_api)
            of_api.at_once += 1
        if reserved:
            self._listener.release(reserved)
        if answer is not None and self.output is not None:
            self.output.add(answer)

    def answered(self, exclusive: bool) -> None:
        """An answer came for a request that had to wait."""
        if self._closed:
            return
        if exclusive:
            self._exclusive = False
        self._schedule_flush()

    def _schedule_flush(self) -> None:
        """Flush once for all that is answered in this turn of the loop."""
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._continue)

    def _continue(self) -> None:
        self._flush_scheduled = False
        if not self._closed:
            if self._times is not None:
                self._turn = self._loop.time()
            self._go_on()

    def _drop_answered(self) -> None:
        """Move the answers that are next in order to the output."""
        waiting = self._waiting
        output = self.output
        assert output is not None
        while waiting and waiting[0].answered:
            context = waiting.popleft()
            self._in_flight -= 1
            if self._times is not None:
                self._note_answered(context)
            if context.reserved:
                self._listener.release(context.reserved)
            if context.parts is not None:
                output.add(context.parts)

    def _note_answered(self, context: RequestContext) -> None:
        """Measure a request that had to wait: up to this turn of the loop."""
        assert self._times is not None
        seconds = max(self._turn - context.begun, 0.0)
        of_api = self._times[context.api_key]
        of_api.duration_counts[bisect_left(REQUEST_SECONDS, seconds)] += 1
        of_api.duration_total += seconds

    def _flush(self) -> None:
        if self._at_once:
            # One look at the clock for all that was answered in the turn it came in.
            seconds = self._loop.time() - self._turn
            bucket = bisect_left(REQUEST_SECONDS, seconds)
            for of_api in self._at_once:
                of_api.duration_counts[bucket] += of_api.at_once
                of_api.duration_total += seconds * of_api.at_once
                of_api.at_once = 0
            self._at_once.clear()
        if self._closed:
            return
        output = self.output
        assert output is not None
        before = self._in_flight
        self._drop_answered()
        try:
            output.pump()
        except ConnectionError:
            # The peer is gone; there is nothing to say about it.
            self._abort()
            return
        except (OSError, RuntimeError) as error:
            self.abort(f"answer could not be sent: {error}")
            return
        if self._held_by_output and output.queued_bytes <= self._limits.output_max_bytes:
            self._held_by_output = False
            self._schedule_flush()
        elif self._in_flight < before and (self._frames or self._end - self._start >= _SIZE_BYTES):
            # There is room for requests that had to wait.
            self._schedule_flush()
        self._pause_or_resume()
        if self._closing and self.idle:
            self._close()

    # --- Back-pressure and the end ------------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Whether nothing is in flight and everything is sent."""
        return self.quiet and (self.output is None or self.output.idle)

    @property
    def in_flight(self) -> int:
        """Requests that are received and not answered."""
        return self._in_flight

    @property
    def quiet(self) -> bool:
        """Whether no request is in flight."""
        return not self._waiting and not self._frames

    def _pause_or_resume(self) -> None:
        transport, output = self._transport, self.output
        if transport is None or output is None or self._closed:
            return
        pause = (
            self._waits_for_room
            or self._closing
            or self._in_flight >= self._limits.max_in_flight_requests
            or output.queued_bytes > self._limits.output_max_bytes
        )
        if pause != self._reading_paused and not transport.is_closing():
            self._reading_paused = pause
            if pause:
                transport.pause_reading()
            else:
                transport.resume_reading()

    def _refuse(self, error: WireFormatError) -> None:
        """Take nothing more from a peer that sent a malformed request; close once what came before it is answered."""
        if not self._closing:
            self._statistics.aborted_connections += 1
            self._listener.refusals.warning(
                "closing connection: peer=%s reason=malformed request: %s", self.peer, error.message
            )
        self._closing = True

    def abort(self, reason: str) -> None:
        """Close at once with one log line: the Kafka protocol's answer to what it cannot answer."""
        if not self._closed and not (self._transport is not None and self._transport.is_closing()):
            self._statistics.aborted_connections += 1
            self._listener.refusals.warning("closing connection: peer=%s reason=%s", self.peer, reason)
        self._abort()

    def cut_off(self) -> None:
        """Close at once, without a word: as if the network were gone."""
        self._abort()

    def _drop_frames(self) -> None:
        for _, _, _, reserved in self._frames:
            self._listener.release(reserved)
        self._frames.clear()

    def _abort(self) -> None:
        self._closing = True
        self._drop_frames()
        if self._transport is not None:
            self._transport.abort()

    def _close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def finish(self) -> None:
        """Take no more requests; close when those that were received are answered."""
        self._closing = True
        self._pause_or_resume()
        if self.idle:
            self._close()

    def expire(self) -> None:
        """Close a connection on which nothing happens: also one whose peer does not read what was sent."""
        if self.idle:
            self._close()
        else:
            self._abort()
