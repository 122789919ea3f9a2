# cython: annotation_typing=False, boundscheck=True, wraparound=True, nonecheck=True
"""The writing side of a connection: answers in order, small ones together, ranges of files without a copy.

A range of a file goes out by `os.sendfile` on the transport's own socket, which is right only while the transport has
nothing buffered: so one thing at a time is given to the kernel, and when it takes no more, a piece is handed to the
transport, whose `resume_writing` tells when to continue. Memory therefore holds a piece, never a whole range.

While others are busy with such ranges, too, a thread sends what is queued (`SendThreads`): until it is through, nothing
else is given to the kernel. Whether it is, is looked at when there is more to send.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from semel.protocol.kafka.wire import Buffer, Part
from semel.runtime.storage import FileRange

if TYPE_CHECKING:
    from semel.broker.listeners.kafka.send_threads import Sending, SendThreads

SENDFILE_BYTES_MIN: Final = 256 << 10
"""Smaller ranges are read and written: see bench/RESULTS.md, "sendfile"."""

PIECE_BYTES: Final = 256 << 10
"""What is read from a file, or sent from memory, at a time."""

SENDFILE_BYTES_MAX: Final = 8 << 20
"""The most that one call to sendfile is asked for, so that one reader does not hold the loop for long."""

_JOIN_BYTES_MAX: Final = 16 << 10
"""Up to this the parts of one system call are joined; copying more costs more than giving the kernel a list."""

_WAIT_BYTES: Final = 4 << 10
"""What of a range is given to the transport where the socket is full: it tells when there is room for more."""

_PARTS_MAX: Final = 512
"""The most parts of one system call (Linux takes 1,024)."""


class Output:
    """What a connection still has to send. `queued_bytes` is what of it is held in memory."""

    __slots__ = (
        "_descriptor",
        "_failure",
        "_large_ranges",
        "_parts",
        "_range",
        "_range_end",
        "_range_position",
        "_range_source",
        "_sending",
        "_sent_before",
        "_threads",
        "_transport",
        "_when_told",
        "queued_bytes",
        "sendfile_bytes",
        "sent_bytes",
        "use_sendfile",
        "writable",
    )

    def __init__(
        self,
        transport: asyncio.Transport,
        threads: SendThreads | None = None,
        when_told: Callable[[], None] = lambda: None,
    ) -> None:
        """threads: send for it, where that pays; `when_told` is called when one is through that `pump` waited for."""
        self._transport = transport
        self._threads = threads
        self._when_told = when_told
        # What a thread sends now, or has sent since this was looked at.
        self._sending: Sending | None = None
        self._sent_before = 0
        # Why a thread could not send.
        self._failure: OSError | None = None
        # How many of the parts are ranges for which that pays.
        self._large_ranges = 0
        socket = transport.get_extra_info("socket")
        # -1: everything goes through the transport, which encrypts it.
        plain = socket is not None and transport.get_extra_info("sslcontext") is None
        self._descriptor: int = socket.fileno() if plain else -1
        self.use_sendfile = plain
        self._parts: deque[Part] = deque()
        self._range: FileRange | None = None
        # What of it is not sent yet, and the descriptor to send it from; -1: it is read and written.
        self._range_position = self._range_end = 0
        self._range_source = -1
        self.writable = True
        self.queued_bytes = 0
        self.sent_bytes = 0
        self.sendfile_bytes = 0

    def limit_buffer(self) -> None:
        """Have the transport say at once what it buffers: it may call `pause_writing`, which needs this object."""
        # Paused whenever anything is buffered, resumed once nothing is: sendfile must not overtake what is buffered.
        # One that encrypts would take 0 for "always more than the limit", and pause with nothing in its buffer.
        self._transport.set_write_buffer_limits(high=0 if self._descriptor >= 0 else 1, low=0)

    @property
    def idle(self) -> bool:
        """Whether everything has been handed to the kernel."""
        return self.writable and not self._parts and self._range is None and self.settle()

    def add(self, parts: Sequence[Part]) -> None:
        """Queue one answer. Nothing is sent before `pump`."""
        for part in parts:
            self._parts.append(part)
            if not isinstance(part, FileRange):
                self.queued_bytes += len(part)
            elif part.size >= SENDFILE_BYTES_MIN:
                self._large_ranges += 1

    def pump(self, time: Callable[[], float], until: float) -> bool:
        """Send until the peer takes no more, or the turn is over: returns whether it is, and there is more to send.

        Raises `OSError` where a file or the socket fails.
        """
        if self._transport.is_closing():
            self.clear()  # what is left would go to a peer that was not sent all before it
            return False
        if self._sending is not None and not self._settle():
            return False
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        if self._large_ranges and self._hand_over(until):
            return False
        if self.writable and self._range is None and len(self._parts) == 1:
            first = self._parts[0]
            if isinstance(first, (bytes, bytearray, memoryview)) and len(first) <= _JOIN_BYTES_MAX:  # most answers
                self._parts.clear()
                self._send([first], len(first))
                return False
        while self.writable:
            if self._range is not None:
                self._send_range(self._range)
            elif self._parts:
                self._send_next()
            else:
                return False
            if (self._parts or self._range is not None) and time() > until:
                return self.writable
        return False

    def _hand_over(self, now: float) -> bool:
        """Have a thread send what is queued, if it pays. Returns whether one does."""
        if self._threads is None or not self.use_sendfile or not self.writable or self._range is not None:
            return False
        self._sending = self._threads.submit(self._descriptor, self._parts, now, self._when_told)
        if self._sending is None:
            return False
        self._parts.clear()
        self._large_ranges = 0
        return True

    def settle(self) -> bool:
        """Note what a thread has sent. Returns whether none sends now; `when_told` is called at its end otherwise.

        It is called as well where there is something to do now that it has ended: who asks need not be who sends.
        """
        sending = self._sending
        is_sent = self._settle()
        if is_sent and sending is not None and (self._parts or self._failure is not None):
            self._when_told()
        return is_sent

    def _settle(self) -> bool:
        sending = self._sending
        if sending is None:
            return True
        try:
            outcome = sending.thread.finish(sending.number)
        except OSError as error:
            self._failure = error
            outcome = (0, 0)
        if outcome is None:
            return False
        self._sending = None
        self._count(outcome)
        return True

    def moves(self) -> bool:
        """Let go of what a thread has sent. Returns whether it has sent anything since this was asked before."""
        if self.settle() or self._sending is None:
            self._sent_before = 0
            return False
        before, self._sent_before = self._sent_before, self._sending.thread.sent(self._sending.number)
        return self._sent_before != before

    def _count(self, outcome: tuple[int, int]) -> None:
        """Note what a thread has sent: all bytes, and those of files. What it held of memory is queued no more."""
        sent, of_files = outcome
        self.sent_bytes += sent
        self.sendfile_bytes += of_files
        self.queued_bytes = sum(len(part) for part in self._parts if not isinstance(part, FileRange))

    def _send_next(self) -> None:
        """Send the parts up to the next range of a file, as many at a time as one system call takes."""
        parts = self._parts
        first = parts[0]
        if isinstance(first, FileRange):
            parts.popleft()
            self._begin_range(first)
            return
        batch: list[Buffer] = []
        size = 0
        while parts and size < PIECE_BYTES and len(batch) < _PARTS_MAX:
            part = parts[0]
            if isinstance(part, FileRange):
                break
            assert isinstance(part, (bytes, bytearray, memoryview))
            batch.append(part)
            size += len(part)
            parts.popleft()
        if len(batch) > 1 and (size <= _JOIN_BYTES_MAX or self._descriptor < 0):
            batch = [b"".join(batch)]
        self._send(batch, size)

    def _send(self, batch: list[Buffer], size: int) -> None:
        """Send what is in memory. The transport buffers nothing now, so it need not be asked."""
        if self._descriptor < 0:
            self._sent(size)
            self._transport.write(batch[0])
            return
        try:
            sent = os.write(self._descriptor, batch[0]) if len(batch) == 1 else os.writev(self._descriptor, batch)
        except (BlockingIOError, InterruptedError):
            sent = 0
        self._sent(sent)
        if sent < size:
            self._wait_for_room(batch, sent)

    def _sent(self, size: int) -> None:
        self.queued_bytes -= size
        self.sent_bytes += size

    def _wait_for_room(self, batch: list[Buffer], sent: int) -> None:
        """Queue again what the socket did not take, but for a piece: the transport tells when that is through."""
        rest: list[memoryview] = []
        for part in batch:
            if sent < len(part):
                rest.append(memoryview(part)[sent:])
                sent = 0
            else:
                sent -= len(part)
        first = rest[0]
        piece = first[:_JOIN_BYTES_MAX]
        if len(piece) < len(first):
            rest[0] = first[len(piece) :]
        else:
            del rest[0]
        self._parts.extendleft(reversed(rest))
        self._sent(len(piece))
        self._transport.write(piece)

    def _begin_range(self, part: FileRange) -> None:
        size = part.size
        if size >= SENDFILE_BYTES_MIN:
            self._large_ranges -= 1
        self._range, self._range_position, self._range_end = part, part.position, part.position + size
        self._range_source = part.file.fileno() if self.use_sendfile and size >= SENDFILE_BYTES_MIN else -1

    def _send_range(self, part: FileRange) -> None:
        position, source = self._range_position, self._range_source
        left = self._range_end - position
        sent = 0
        if source >= 0:
            try:
                sent = os.sendfile(self._descriptor, source, position, min(left, SENDFILE_BYTES_MAX))
            except (BlockingIOError, InterruptedError):
                sent = -1
            if sent == 0:
                raise OSError(f"a file ends before position {position + left}, which was promised to a peer")
            self.sendfile_bytes += max(sent, 0)
        if sent <= 0:
            # Too small for sendfile, or the socket is full: a piece through the transport, which waits for room.
            piece = part.file.read_at(min(left, PIECE_BYTES if source < 0 else _WAIT_BYTES), position)
            if not piece:
                raise OSError(f"a file ends before position {position + left}, which was promised to a peer")
            sent = len(piece)
            self._transport.write(piece)
        self.sent_bytes += sent
        self._range_position = position + sent
        if sent == left:
            self._range = None

    def clear(self) -> None:
        """Drop what was not sent: the connection is gone. No thread uses its socket any more when this returns."""
        sending, self._sending = self._sending, None
        self._parts.clear()
        if sending is not None:
            self._count(sending.thread.cancel(sending.number))
        self._large_ranges = 0
        self._range = None
        self.queued_bytes = 0
