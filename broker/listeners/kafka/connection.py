# cython: annotation_typing=False, boundscheck=True, wraparound=True, nonecheck=True
"""One connection: bytes to frames, frames to requests in order, answers in order, back-pressure both ways.

Receiving. Small frames are read many at a time into a block and parsed where they lie; a frame that does not fit in the
rest of its block gets a buffer of its own, into which the kernel writes, and which grows as its bytes come. Blocks are
not used again: it lives as long as a view of it. An idle connection has none, and one that asks for little has a small
one: thousands of them would leave holes of many megabytes in the process's memory, which it does not give back.

Memory (S2). A block is a connection's own; what goes beyond it, of large frames and of small ones that are not answered
yet, is taken from the room that all connections share, and comes back with the answers or the end of the connection.

Turns (S3). After some milliseconds the other connections have their turn, however much of this one has come.

Quotas. Where a client has used up a quota, nothing more is read or begun of its connection for the time that its answer
says; answers go out meanwhile (KIP-219).

Order. Requests begin in the order they came in and are answered in that order. A pipelined API (Produce) begins without
waiting for the answers before it; every other begins when all before it are answered, and lets nothing begin until it
is answered itself, as Kafka does for all.
"""

from __future__ import annotations

import asyncio
import fcntl
import select
import socket
import sys
import termios
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol, cast

from semel.broker.acls.rights import ALL_RIGHTS
from semel.broker.listeners.acceptor import IN_PROCESS
from semel.broker.listeners.kafka.flushes import Flushes
from semel.broker.listeners.kafka.large_frame import BLOCK_BYTES, LargeFrame
from semel.broker.listeners.kafka.output import Output
from semel.broker.listeners.kafka.registry import LATER, NO_PEER, Api, RequestContext
from semel.broker.quotas.request_usage import RequestUsage
from semel.protocol.kafka.api import ApiKey
from semel.protocol.kafka.wire import RequestHeader, WireFormatError, parse_request_header
from semel.runtime.telemetry.buckets import REQUEST_SECONDS

if TYPE_CHECKING:
    from semel.broker.acls.authorizer import Access
    from semel.broker.config.kafka_limits import KafkaLimits
    from semel.broker.listeners.kafka.registry import ApiRegistry
    from semel.broker.listeners.kafka.request_memory import MemoryClaim, RequestMemory
    from semel.broker.listeners.kafka.send_threads import SendThreads
    from semel.broker.listeners.kafka.socket_reads import SocketReads
    from semel.broker.quotas.client_quotas import ClientQuotas
    from semel.broker.services import Services
    from semel.broker.telemetry.recorders import RequestTimes
    from semel.broker.users.authentication import Authentication
    from semel.runtime.limited_log import LimitedLog

TURN_S: Final = 0.005
"""So long one connection begins requests and sends answers before the others have their turn."""

_SIZE_BYTES: Final = 4
_READ_BYTES_MIN: Final = 4 << 10
"""With less than this free, a new block is begun: reads of a few bytes each would cost a system call a frame."""
SMALL_BLOCK_BYTES: Final = 4 << 10
"""The size of a block while single small requests come."""
_SMALL_READ_BYTES: Final = 1 << 10
"""So much at once is little. With less than this free in a small block, a new one is begun."""
_COVER_BYTES: Final = 256 << 10
"""The steps in which room is taken for small requests that are not answered yet."""
PROGRESS_BYTES_MIN: Final = 16 << 10
"""A request that brings less than this in `kafka_request_receive_timeout_ms` is given up."""
_NO_BLOCK: Final = bytearray()
_NO_COUNT: Final = bytes(4)
_HTTP_2: Final = int.from_bytes(b"PRI ", "big")
"""How a client of gRPC begins, where a request's size is expected."""
_HUNG_UP: Final = getattr(select, "POLLRDHUP", select.POLLHUP)
_DISCARDED: Final = memoryview(bytearray(4 << 10))
"""Where bytes go that nobody will look at."""


class _Http2Error(WireFormatError):
    """A client of Semel was given this port in place of the gRPC one: it comes back to ask for that, so none warns."""


@dataclass(slots=True)
class ConnectionCounters:
    """What connections count, for all of a listener together."""

    requests: list[int] = field(default_factory=lambda: [0] * 128)
    received_bytes: int = 0
    sent_bytes: int = 0
    sendfile_bytes: int = 0
    accepted_connections: int = 0
    aborted_connections: int = 0
    idle_connections_closed: int = 0
    slow_connections: int = 0
    crowding_connections: int = 0
    out_of_memory_connections: int = 0
    failed_authentications: int = 0


class Listener(Protocol):
    """What a connection needs of its listener."""

    @property
    def node(self) -> Services: ...

    @property
    def limits(self) -> KafkaLimits: ...

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...

    @property
    def counters(self) -> ConnectionCounters: ...

    @property
    def request_times(self) -> Sequence[RequestTimes] | None: ...

    @property
    def registry(self) -> ApiRegistry: ...

    @property
    def room(self) -> RequestMemory: ...

    @property
    def flushes(self) -> Flushes: ...

    @property
    def send_threads(self) -> SendThreads: ...

    @property
    def reads(self) -> SocketReads | None: ...

    @property
    def refusals(self) -> LimitedLog: ...

    @property
    def listener_name(self) -> str: ...

    def connected(self, connection: KafkaConnection) -> bool:
        """Accept a new connection. Returns whether it may stay."""
        ...

    def disconnected(self, connection: KafkaConnection) -> None: ...

    def admitted(self, connection: KafkaConnection) -> Callable[[int], Api | None]:
        """The client has proven who it is. Returns what finds the APIs that it is served."""
        ...

    def room_ran_out(self, connection: KafkaConnection, wanted: int) -> None:
        """Say who holds the room that a request has to wait for, now and then."""
        ...


class ConnectionProtocol(asyncio.BufferedProtocol):
    """What asyncio calls. Each of its methods is the connection's own, so that a call costs no more."""

    def __init__(self, connection: KafkaConnection) -> None:
        for name in (
            "connection_made", "connection_lost", "eof_received", "get_buffer", "buffer_updated", "pause_writing",
            "resume_writing",
        ):  # fmt: skip
            setattr(self, name, getattr(connection, name))


class KafkaConnection:
    """One accepted socket. asyncio calls it by a `ConnectionProtocol`: compiled classes can't be subclasses of its."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._limits = listener.limits
        self._loop = listener.loop
        self._time = listener.loop.time
        self._node = listener.node
        self._statistics = listener.counters
        self._requests = listener.counters.requests
        self._times = listener.request_times
        # When this turn of the loop began here, and the APIs of which requests were answered in it at once.
        self._turn = 0.0
        self._at_once: list[RequestTimes] = []
        self._api_of: Callable[[int], Api | None] = listener.registry.get
        self._request_bytes_max = listener.limits.socket_request_max_bytes
        self._transport: asyncio.Transport | None = None
        self._descriptor = -1
        # What reads the socket; None: the transport does.
        self._reads: SocketReads | None = None
        self.output: Output | None = None
        self.address = self.peer = ""
        self.listener_name = listener.listener_name
        """Of the listener that the client came by."""
        self.peer_node = NO_PEER
        """The node at the other end, where it has proven to be one of this cluster."""
        self.authentication: Authentication | None = None
        """How the client proves who it is; None where nobody asks."""
        self.access: Access | None = None
        """What the client may do; None for everything."""
        self.all_rights = ALL_RIGHTS
        """What it has where it may do everything."""
        self.quotas: ClientQuotas | None = None
        """What its requests count for; None where no client has a quota, or this one is none."""
        self.quota_user = ""
        """Whose they are."""
        self._muted = False
        self._muted_until = 0.0
        self._unmute_timer: asyncio.TimerHandle | None = None
        self._view = memoryview(_NO_BLOCK)
        self._start = self._end = self._capacity = BLOCK_BYTES
        self._free_min = _READ_BYTES_MIN
        self._last_read = 0
        # A frame that has a buffer of its own, while it is being received.
        self._large: LargeFrame | None = None
        self.claim: MemoryClaim | None = None
        self._waits_for_room = False
        # Bytes of small requests that are not answered, and how many of them there is room for.
        self._unanswered_bytes = 0
        self._covered_bytes = BLOCK_BYTES
        self._turn_is_over = False
        # Whether there may be whole frames in the block that were not taken out of it.
        self._left_frames = False
        # The request being received when it was last looked at, how much of it had come, and when that was.
        self._frames_taken = 0
        self._watched = (-1, 0, 0.0)
        self._frames: deque[tuple[memoryview, RequestHeader, Api, int]] = deque()
        self._waiting: deque[RequestContext] = deque()
        self._exclusive = False
        self._in_flight = 0
        self._flushes: Flushes = listener.flushes
        # Whether its answers wait for those of other connections.
        self._flush_waits = False
        self._flush_scheduled = False
        self._reading_paused = False
        self._held_by_output = False
        self._closing = False
        self._closed = False
        self.last_used = 0.0

    # --- The transport's calls ----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast("asyncio.Transport", transport)  # those of uvloop are no subclass of it
        self._transport = transport
        address = transport.get_extra_info("peername")
        self.address = str(address[0]) if isinstance(address, tuple) else IN_PROCESS
        self.peer = f"{address[0]}:{address[1]}" if isinstance(address, tuple) else f"{IN_PROCESS}:0"
        self.output = Output(transport, self._listener.send_threads, self._sent)
        self.output.limit_buffer()
        own_socket, size = transport.get_extra_info("socket"), self._limits.socket_send_buffer_bytes
        self._descriptor = -1 if own_socket is None else own_socket.fileno()
        if own_socket is not None and size > 0:
            # A buffer beyond the processor's cache halves the rate of large fetches: bench/RESULTS.md, "sendfile".
            own_socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size)
        self.last_used = self._turn = self._time()
        if not self._listener.connected(self):
            transport.abort()
        elif self._descriptor >= 0 and transport.get_extra_info("sslcontext") is None:
            self._be_read_by(self._listener.reads)

    def _be_read_by(self, reads: SocketReads | None) -> None:
        """Have the socket read in place of the transport, if that can be."""
        assert self._transport is not None
        if reads is None:
            return
        try:
            reads.add(self._descriptor, self)
        except OSError:
            return  # the system has no room for it
        self._reads = reads
        self._transport.pause_reading()

    def reading_ended(self, error: Exception | None) -> None:
        """Nothing more can be read: the peer is gone where there is no error."""
        if error is None:
            self._close()
        elif isinstance(error, OSError):
            self._abort()
        else:
            self.fail(error, "what was received")

    def connection_lost(self, error: Exception | None) -> None:
        self._closed = True
        self._closing = True
        self._read_no_more()
        self._listener.disconnected(self)
        if self._unmute_timer is not None:
            self._unmute_timer.cancel()
            self._unmute_timer = None
        self._frames.clear()
        waiting, self._waiting = self._waiting, deque()
        for context in waiting:
            if not context.answered and context.on_close is not None:
                context.on_close()
        if self.output is not None:
            self.output.clear()  # first: it notes what a thread has sent
            self._statistics.sent_bytes += self.output.sent_bytes
            self._statistics.sendfile_bytes += self.output.sendfile_bytes
        self._large = None
        if self.claim is not None:
            self._listener.room.leave(self.claim, self._time())

    def eof_received(self) -> bool:
        """The peer is gone: as in Kafka, what it did not wait for is not kept for it."""
        return False

    def get_buffer(self, sizehint: int) -> memoryview:
        try:
            if self._large is not None:
                return self._large.rest()
            if self._start > 0 and self._capacity - self._end < self._free_min:
                self._new_block()
        except MemoryError:
            self._out_of_memory()
            return _DISCARDED
        return self._view[self._end :]

    def _new_block(self) -> None:
        """Continue in a fresh block, with what is unparsed of the old one copied over: less than one frame, once a
        block."""
        rest = self._end - self._start
        if rest <= _SMALL_READ_BYTES and self._last_read <= _SMALL_READ_BYTES:
            self._capacity, self._free_min = SMALL_BLOCK_BYTES, _SMALL_READ_BYTES
        else:
            self._capacity, self._free_min = BLOCK_BYTES, _READ_BYTES_MIN
        block = bytearray(self._capacity)
        block[:rest] = self._view[self._start : self._end]
        self._view = memoryview(block)
        self._start, self._end = 0, rest

    def _drop_block(self) -> None:
        self._view = memoryview(_NO_BLOCK)
        self._start = self._end = self._capacity = BLOCK_BYTES

    def buffer_updated(self, nbytes: int) -> None:
        self.last_used = self._turn = self._time()
        self._statistics.received_bytes += nbytes
        if self._large is None:
            self._last_read = nbytes
            self._end += nbytes
        else:
            self._large.received += nbytes
        self._work()
        if not self._flush_waits:
            self._flush_waits = True
            self._flushes.flush(self, self._descriptor, self._turn)

    def pause_writing(self) -> None:
        assert self.output is not None
        self.output.writable = False

    def resume_writing(self) -> None:
        assert self.output is not None
        self.output.writable = True
        self.last_used = self._time()
        self._schedule_flush()

    def _sent(self) -> None:
        """A thread has sent what it was given, or could not."""
        self.last_used = self._time()
        if not self._closed:
            self._schedule_flush()

    # --- Bytes to frames ----------------------------------------------------------------------------------------------

    def _work(self) -> None:
        """Process what has been received, and begin what may begin."""
        try:
            if self._waiting:
                self._drop_answered()
            try:
                if self._large is not None:
                    self._go_on_with_large(self._large)
                elif not self._waits_for_room:
                    self._split()
            except WireFormatError as error:
                self._refuse(error)
            self._begin()
        except MemoryError:
            self._out_of_memory()
        except Exception as error:
            self.fail(error, "a request")

    def _go_on_with_large(self, large: LargeFrame) -> None:
        """Process a large frame that is complete, or room for more of it where it has filled what it has."""
        if self._closing or large.received < large.capacity:
            return
        if large.received < large.size:
            if not self._waits_for_room:
                self._grow(large)
            return
        self._large = None
        self._frame(large.whole(), large.reserved)

    def _begin_large(self, large: LargeFrame) -> None:
        # Views of the frames before this one may still be held, so the block is not written to again.
        self._drop_block()
        self._large = large
        if large.size > BLOCK_BYTES:
            large.wanted = large.sized_for(large.received + self._arrived())
            if large.wanted > BLOCK_BYTES and self._take_room(
                large.wanted, last=large.wanted == large.size, wait=False
            ):
                large.grow()

    def _grow(self, large: LargeFrame) -> None:
        large.wanted = large.sized_for(max(2 * large.capacity, large.received + self._arrived()))
        if self._take_room(large.wanted - large.reserved, last=large.wanted == large.size):
            large.grow()

    def _arrived(self) -> int:
        """Return how many bytes the system holds for this connection: they have come, so they may have room."""
        if self._descriptor < 0:
            return 0
        return int.from_bytes(fcntl.ioctl(self._descriptor, termios.FIONREAD, _NO_COUNT), sys.byteorder)

    def _split(self) -> None:
        """Take whole frames out of the block, as many as may be in flight, and begin them. Raises `WireFormatError`."""
        view = self._view
        start, end = self._start, self._end
        in_flight_max = self._limits.kafka_max_in_flight_requests
        self._left_frames = True
        while end - start >= _SIZE_BYTES and self._in_flight < in_flight_max and not self._closing:
            size = int.from_bytes(view[start : start + _SIZE_BYTES], "big", signed=True)
            if size < 0 or size > self._request_bytes_max:
                if size == _HTTP_2:
                    raise _Http2Error("this is no gRPC listener")
                before = self._request_bytes_max < self._limits.socket_request_max_bytes
                raise WireFormatError(
                    f"a request of {size} bytes; 0 to {self._request_bytes_max} are taken "
                    f"({'before a client has authenticated' if before else 'socket.request.max.bytes'})"
                )
            body = start + _SIZE_BYTES
            if size > end - body:
                if size > self._capacity - body:
                    self._begin_large(LargeFrame(size, view[body:end]))
                self._left_frames = False
                break
            if self._unanswered_bytes > self._covered_bytes and not self._cover():
                break
            start = body + size
            self._start = start
            self._frame(view[body:start])
            if self._time() - self._turn > TURN_S:
                self._end_turn()
                break
        else:
            self._left_frames = end - start >= _SIZE_BYTES

    def _may_split(self) -> bool:
        """Whether there is something to take out of the block. Nothing may be read before that was done."""
        return (
            self._left_frames
            and not self._waits_for_room
            and not self._closing
            and self._in_flight < self._limits.kafka_max_in_flight_requests
        )

    def _end_turn(self) -> None:
        """Continue when the others had their turn."""
        self._turn_is_over = True
        self._schedule_flush()

    # --- Room ---------------------------------------------------------------------------------------------------------

    def _take_room(self, size: int, *, last: bool, wait: bool = True) -> bool:
        """Take room, or read nothing until there is some and `room_made` is called. Returns whether there was."""
        room = self._listener.room
        if self.claim is None:
            self.claim = room.enter(self, self._turn)
        if room.take(self.claim, size, self._turn, last=last, wait=wait):
            return True
        if not wait:
            return False
        self._waits_for_room = True
        self._listener.room_ran_out(self, size)
        return False

    def room_made(self) -> None:
        """The room that this connection waits for has been given."""
        self._waits_for_room = False
        large = self._large
        if large is not None:
            large.grow()
        else:
            self._covered_bytes += _COVER_BYTES
        self._schedule_flush()

    def _cover(self) -> bool:
        """Take room for more small requests that are not answered. Returns whether there was some."""
        if not self._take_room(_COVER_BYTES, last=True):
            return False
        self._covered_bytes += _COVER_BYTES
        return True

    def _release(self, size: int) -> None:
        """Give back what a request of `size` bytes held, which is answered or dropped."""
        if size <= BLOCK_BYTES:
            self._unanswered_bytes -= size
            if self._unanswered_bytes:
                return
            if self._waits_for_room and self._large is None:
                # With nothing unanswered the next small request needs none: it is never held up by others' large ones.
                self._waits_for_room = False
                assert self.claim is not None
                self._listener.room.cancel(self.claim)
            if self._covered_bytes == BLOCK_BYTES:
                return
            size, self._covered_bytes = self._covered_bytes - BLOCK_BYTES, BLOCK_BYTES
        assert self.claim is not None
        self._listener.room.give_back(self.claim, size, self._turn)

    @property
    def unfinished_bytes(self) -> int:
        """What it holds of the room for requests that are not begun: only its peer, or a wait, keeps them so."""
        receiving = 0 if self._large is None else self._large.reserved
        return receiving + sum(reserved for _, _, _, reserved in self._frames)

    def describe_room(self, now: float) -> str:
        assert self.claim is not None
        held = f"{self.peer} {self.claim.held} bytes for {now - self.claim.moved_at:.0f} s"
        large = self._large
        return held if large is None else f"{held} (received {large.received} of {large.size})"

    def leave_room_to_others(self) -> None:
        self._statistics.crowding_connections += 1
        limits = self._limits
        self.abort(
            f"it held {self.unfinished_bytes} bytes of queued.max.request.bytes={limits.queued_max_request_bytes} for "
            "requests that did not continue, while others had to wait; the timeout is "
            f"kafka.request.receive.timeout.ms={limits.kafka_request_receive_timeout_ms}"
        )

    def _frame(self, frame: memoryview, reserved: int = 0) -> None:
        """Begin one request, for which `reserved` bytes are held until it is answered. Raises `WireFormatError`."""
        try:
            header = parse_request_header(frame)
            api = self._served(header)
        except WireFormatError:
            if reserved:
                self._release(reserved)
            raise
        self._frames_taken += 1
        self._in_flight += 1
        self._requests[header.api_key] += 1
        if not self._frames and self._may_begin(api):
            self._start_request(frame, header, api, reserved)
        else:
            if not reserved:
                reserved = len(frame)
                self._unanswered_bytes += reserved
            self._frames.append((frame, header, api, reserved))

    def ask_who(
        self, authentication: Authentication, apis: Callable[[int], Api | None], request_bytes_max: int
    ) -> None:
        """Serve these APIs alone, with small requests, until `admit`."""
        self.authentication = authentication
        self._api_of, self._request_bytes_max = apis, request_bytes_max

    def certificate(self) -> bytes | None:
        """Return the client's certificate in DER, which was checked; None where it showed none."""
        connection = None if self._transport is None else self._transport.get_extra_info("ssl_object")
        der: bytes | None = None if connection is None else connection.getpeercert(binary_form=True)
        return der

    def admit(self) -> None:
        """Serve everything: the client has proven who it is."""
        self._api_of = self._listener.admitted(self)
        self._request_bytes_max = self._limits.socket_request_max_bytes

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
        while frames and not self._turn_is_over and self._may_begin(frames[0][2]):
            frame, header, api, reserved = frames.popleft()
            self._start_request(frame, header, api, reserved)
            if self._time() - self._turn > TURN_S:
                self._end_turn()

    def _may_begin(self, api: Api) -> bool:
        if self._exclusive or self._closed or self._muted:
            return False
        if self._has_much_to_send():
            self._held_by_output = True
            return False
        if not api.pipelined and self._waiting:
            self._drop_answered()
            return not self._waiting
        return True

    def _has_much_to_send(self) -> bool:
        """Whether too much waits to be sent for more to begin. When a thread has sent it, `_sent` is called."""
        output, bytes_max = self.output, self._limits.kafka_output_max_bytes
        assert output is not None
        if output.queued_bytes <= bytes_max:
            return False
        output.settle()
        return output.queued_bytes > bytes_max

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
        quotas = self.quotas
        if quotas is not None:
            self._measure(context, len(frame))
        try:
            answer = api.start(context, frame, header.body)
        except WireFormatError as error:
            self._exclusive = False
            if reserved:
                self._release(reserved)
            self._drop_frames()
            self._refuse(error)
            return
        if quotas is not None and context.usage is not None:
            if answer is not LATER:
                context.usage.answered()
            context.usage.pause()
        if not reserved and (answer is LATER or self._waiting):
            context.reserved = len(frame)
            self._unanswered_bytes += context.reserved
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
            self._release(reserved)
        if answer is not None and self.output is not None:
            self.output.add(answer)

    def _measure(self, context: RequestContext, size: int) -> None:
        """Have a request count for its client's quotas, if that has any."""
        assert self.quotas is not None
        client = self.quotas.of(self.quota_user, context.client_id or "")
        if client is not None:
            context.usage = RequestUsage(client, self, size)
            context.usage.begin()

    def mute(self, seconds: float) -> None:
        """Read nothing more, and begin no request that has come, for some time. Answers go out meanwhile."""
        until = self._time() + seconds
        if self._closing or until <= self._muted_until:
            return
        self._muted_until = until
        if self._unmute_timer is not None:
            self._unmute_timer.cancel()
        self._muted = True
        self._unmute_timer = self._loop.call_later(seconds, self._unmute)
        self._schedule_flush()

    def _unmute(self) -> None:
        self._unmute_timer = None
        self._muted = False
        self._muted_until = 0.0
        if self._closed:
            return
        if self.has_hung_up():
            self._abort()
            return
        self.last_used = self._time()
        self._schedule_flush()

    def unmute(self) -> None:
        """Read again: there are other quotas."""
        if self._unmute_timer is not None:
            self._unmute_timer.cancel()
            self._unmute()

    @property
    def muted(self) -> bool:
        """Whether nothing is read, because the client has used up a quota."""
        return self._muted

    def has_hung_up(self) -> bool:
        """Whether the peer is gone, which is not noticed where nothing is read."""
        if self._descriptor < 0:
            return False
        state = select.poll()
        state.register(self._descriptor, _HUNG_UP)
        return bool(state.poll(0))

    def answered(self, exclusive: bool) -> None:
        """An answer came for a request that had to wait."""
        if self._closed:
            return
        if exclusive:
            self._exclusive = False
        self._schedule_flush()

    def hold(self) -> None:
        """Begin no other request until `go_on`: the one that has begun is not in its place in the log yet."""
        self._exclusive = True

    def go_on(self) -> None:
        self._exclusive = False
        if not self._closed:
            self._schedule_flush()

    def _schedule_flush(self) -> None:
        """Flush once for all that is answered in this turn of the loop."""
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._continue)

    def _continue(self) -> None:
        self._flush_scheduled = self._turn_is_over = False
        if not self._closed:
            self._turn = self._time()
            self._work()
            self._flush()

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
            self._release(context.reserved)
            if context.parts is not None:
                output.add(context.parts)

    def _note_answered(self, context: RequestContext) -> None:
        """Measure a request that had to wait: up to this turn of the loop."""
        assert self._times is not None
        seconds = max(self._turn - context.begun, 0.0)
        of_api = self._times[context.api_key]
        of_api.duration_counts[bisect_left(REQUEST_SECONDS, seconds)] += 1
        of_api.duration_total += seconds

    def flush(self) -> None:
        """Send what is answered: for `Flushes`, which says when."""
        self._flush_waits = False
        try:
            self._flush()
        except Exception as error:
            self.fail(error, "sending answers")

    def _flush(self) -> None:
        if self._at_once:
            # One look at the clock for all that was answered in the turn it came in.
            seconds = self._time() - self._turn
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
        if self._waiting:
            self._drop_answered()
        try:
            if output.pump(self._time, self._turn + 2 * TURN_S):
                self._end_turn()
        except ConnectionError:
            # The peer is gone; there is nothing to say about it.
            self._abort()
            return
        except (OSError, RuntimeError) as error:
            self.abort(f"answer could not be sent: {error}")
            return
        if self._held_by_output and output.queued_bytes <= self._limits.kafka_output_max_bytes:
            self._held_by_output = False
            self._schedule_flush()
        elif (self._in_flight < before and self._frames) or self._may_split():
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
            or self._muted
            or self._turn_is_over
            or self._closing
            or self._in_flight >= self._limits.kafka_max_in_flight_requests
            or self._has_much_to_send()
        )
        if pause != self._reading_paused and not transport.is_closing():
            self._reading_paused = pause
            if self._reads is None:
                if pause:
                    transport.pause_reading()
                else:
                    transport.resume_reading()
            elif pause:
                self._reads.remove(self._descriptor)
            else:
                self._read_again(self._reads)

    def _read_again(self, reads: SocketReads) -> None:
        try:
            reads.add(self._descriptor, self)
        except OSError as error:
            self.abort(f"the system has no room to wait for its requests: {error}")

    def _read_no_more(self) -> None:
        reads, self._reads = self._reads, None
        if reads is not None:
            reads.remove(self._descriptor)

    def _refuse(self, error: WireFormatError) -> None:
        """Take nothing more from a peer that sent a malformed request; close once what came before it is answered."""
        if not self._closing and not isinstance(error, _Http2Error):
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

    def warn(self, message: str, *args: object) -> None:
        """Write a line, as one of a bounded number a minute."""
        self._listener.refusals.warning(message, *args)

    def count_refused(self) -> None:
        """Count a client that could not prove who it is."""
        self._statistics.failed_authentications += 1

    def fail(self, error: Exception, api: str) -> None:
        """Close at once because of an error that nobody expected."""
        if not self._closed:
            self._statistics.aborted_connections += 1
        self._listener.refusals.exception(error, "request failed: peer=%s api=%s, closing connection", self.peer, api)
        self._abort()

    def cut_off(self) -> None:
        """Close at once, without a word: as if the network were gone."""
        self._abort()

    def _out_of_memory(self) -> None:
        """The system has no memory for what is being received: the connection goes, with all that it holds."""
        self._statistics.out_of_memory_connections += 1
        wanted = "" if self._large is None else f" for a request of {self._large.size} bytes"
        self._large = None
        self.abort(f"the system has no memory left{wanted}")

    def receives_too_slowly(self, now: float) -> bool:
        """Whether a request has begun to come and brought next to nothing since a timeout ago, which is looked at now
        and then."""
        large = self._large
        received = self._end - self._start if large is None else large.received
        if not received or self._reading_paused or self._turn_is_over or self._closed:
            self._watched = (-1, 0, now)
            return False
        number, before, since = self._watched
        if number != self._frames_taken or received - before >= PROGRESS_BYTES_MIN:
            self._watched = (self._frames_taken, received, now)
            return False
        return now - since >= self._limits.kafka_request_receive_timeout_ms / 1000

    def let_go_of_block(self) -> None:
        """Hold no memory while nothing comes; the next bytes get a block. Where an answer goes out, it is in use."""
        if self.output is not None and self.output.moves():
            self.last_used = self._time()
        if self._start == self._end and self._large is None:
            self._last_read = 0
            self._drop_block()

    def _drop_frames(self) -> None:
        while self._frames:
            self._release(self._frames.popleft()[3])

    def _abort(self) -> None:
        self._closing = True
        self._drop_frames()
        self._read_no_more()
        if self._transport is not None:
            self._transport.abort()

    def _close(self) -> None:
        self._read_no_more()
        if self._transport is not None:
            self._transport.close()

    def finish(self) -> None:
        """Take no more requests; close when those that were received are answered."""
        self._closing = True
        if self._muted:
            self._muted = False
            self._schedule_flush()
        self._pause_or_resume()
        if self.idle:
            self._close()

    def expire(self) -> None:
        """Close a connection on which nothing happens: also one whose peer does not read what was sent."""
        if self.idle:
            self._close()
        else:
            self._abort()
