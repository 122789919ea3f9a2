# cython: annotation_typing=False, boundscheck=True, wraparound=True, nonecheck=True
"""The writing side of a connection: answers in order, small ones together, ranges of files without a copy.

A range of a file goes out by `os.sendfile` on the transport's own socket, which is right only while the transport has
nothing buffered: so one thing at a time is given to the kernel, and when it takes no more, a piece is handed to the
transport, whose `resume_writing` tells when to continue. Memory therefore holds a piece, never a whole range.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from semel.protocol.kafka.wire import Buffer, Part
from semel.runtime.storage import FileRange

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
        "_parts",
        "_range",
        "_range_end",
        "_range_position",
        "_range_source",
        "_transport",
        "queued_bytes",
        "sendfile_bytes",
        "sent_bytes",
        "use_sendfile",
        "writable",
    )

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
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
        return self.writable and not self._parts and self._range is None

    def add(self, parts: Sequence[Part]) -> None:
        """Queue one answer. Nothing is sent before `pump`."""
        for part in parts:
            self._parts.append(part)
            if not isinstance(part, FileRange):
                self.queued_bytes += len(part)

    def pump(self, time: Callable[[], float], until: float) -> bool:
        """Send until the peer takes no more, or the turn is over: returns whether it is, and there is more to send.

        Raises `OSError` where a file or the socket fails.
        """
        if self._transport.is_closing():
            self.clear()  # what is left would go to a peer that was not sent all before it
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
        """Drop what was not sent: the connection is gone."""
        self._parts.clear()
        self._range = None
        self.queued_bytes = 0
