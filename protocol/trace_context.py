"""Trace contexts as bytes: W3C's traceparent, and the short binary forms in which requests and records carry them (E4).

Pure: nothing of OpenTelemetry is imported, so that code which only passes a context on needs none of it. What can't be
read is None, never an error: a trace that breaks off must not break anything else.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from semel.protocol.batch_header import BATCH_OVERHEAD, COMPRESSION_MASK, CONTROL, read_header
from semel.protocol.corruption import CorruptBatchError

SAMPLED: Final = 0x01
CONTEXT_BYTES: Final = 25
"""A trace id, a span id, and W3C's flags."""
TRANSACTION_TRACE_BYTES: Final = CONTEXT_BYTES + 8

HEADER_TAG: Final = 10_000
"""Semel's tagged field in the headers of Kafka's requests. Others step over tags they do not know (KIP-482)."""
HEADER_CONTEXTS_MAX: Final = 10_000
"""So many contexts are read of one request: as many as it can have batches without being unreasonable."""

FIRST_RECORD_BYTES_MAX: Final = 16 << 10
"""A first record larger than this is not searched for a context."""
_HEADERS_MAX: Final = 64
_TRACEPARENT: Final = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.DOTALL)
_TRACEPARENT_BYTES_MAX: Final = 512


@dataclass(frozen=True, slots=True)
class TraceContext:
    """Which span of which trace something belongs to.

    >>> TraceContext.parse(b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01").is_sampled
    True
    """

    trace_id: int
    span_id: int
    flags: int = SAMPLED

    @property
    def is_sampled(self) -> bool:
        return bool(self.flags & SAMPLED)

    @classmethod
    def parse(cls, traceparent: bytes | None) -> TraceContext | None:
        """Return what W3C's header says, of any version, or None."""
        if traceparent is None or len(traceparent) > _TRACEPARENT_BYTES_MAX:
            return None
        match = _TRACEPARENT.fullmatch(traceparent)
        if match is None or match[1] == b"ff" or (match[1] == b"00" and match[5] is not None):
            return None
        return _valid(int(match[2], 16), int(match[3], 16), int(match[4], 16))

    @property
    def traceparent(self) -> str:
        """The same as W3C's header."""
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{self.flags:02x}"

    def encode(self) -> bytes:
        return self.trace_id.to_bytes(16, "big") + self.span_id.to_bytes(8, "big") + bytes((self.flags & 0xFF,))

    @classmethod
    def decode(cls, data: bytes | memoryview) -> TraceContext | None:
        """Return what `encode` made, or None where the bytes are something else, or name nothing."""
        if len(data) != CONTEXT_BYTES:
            return None
        return _valid(int.from_bytes(data[:16], "big"), int.from_bytes(data[16:24], "big"), data[24])


@dataclass(frozen=True, slots=True)
class TransactionTrace:
    """What a record of a transaction keeps of its trace: while it is open, where it began; then, its decision.

    parent_span_id: the span above the decision's, by which the tree can be fixed when the decision's own span died
                    with the process that took the decision; 0 where there is none.
    """

    context: TraceContext
    parent_span_id: int = 0

    @property
    def parent(self) -> TraceContext | None:
        """The context above the decision."""
        if self.parent_span_id == 0:
            return None
        return TraceContext(self.context.trace_id, self.parent_span_id, self.context.flags)

    def encode(self) -> bytes:
        return self.context.encode() + self.parent_span_id.to_bytes(8, "big")

    @classmethod
    def decode(cls, data: bytes) -> TransactionTrace | None:
        """Return what `encode` made, or None."""
        context = TraceContext.decode(data[:CONTEXT_BYTES])
        if context is None or len(data) != TRANSACTION_TRACE_BYTES:
            return None
        return cls(context, int.from_bytes(data[CONTEXT_BYTES:], "big"))


@dataclass(frozen=True, slots=True)
class DecisionIds:
    """What a request that may decide about a transaction brings along, where it is traced.

    The caller draws the ids (it has randomness), so that the decision's record can name a span that is made later.

    caller: the context that the request came in; None: not known
    """

    trace_id: int
    span_id: int
    caller: TraceContext | None = None

    def below(self, known: TransactionTrace | None) -> TransactionTrace:
        """Return the decision's place: below its caller, else where the transaction began, else a trace of its own."""
        above = self.caller or (None if known is None else known.context)
        if above is None:
            return TransactionTrace(TraceContext(self.trace_id, self.span_id))
        return TransactionTrace(TraceContext(above.trace_id, self.span_id, above.flags), above.span_id)


def encode_contexts(contexts: Sequence[TraceContext | None]) -> bytes:
    """Return the value of the tagged field: a context for each batch of the request, in its order; zeros for none."""
    return b"".join(_NONE if context is None else context.encode() for context in contexts)


def decode_contexts(data: bytes | memoryview | None, count: int) -> list[TraceContext | None]:
    """Return the contexts of a request with `count` batches; none at all where the bytes are not theirs."""
    if data is None or count > HEADER_CONTEXTS_MAX or len(data) != count * CONTEXT_BYTES:
        return [None] * count
    return [TraceContext.decode(data[at : at + CONTEXT_BYTES]) for at in range(0, len(data), CONTEXT_BYTES)]


def tagged_header(tag_value: bytes) -> bytes:
    """Return the end of a request header (version 2): one tagged field."""
    return b"\x01" + _uvarint(HEADER_TAG) + _uvarint(len(tag_value)) + tag_value


def context_of_first_record(batch: bytes | bytearray | memoryview) -> TraceContext | None:
    """Return the context in the first record of a batch (magic 2), as any client may have put it there.

    None where the batch is compressed or has control records, and where the record is too large to be searched.
    """
    view = memoryview(batch)
    if len(view) <= BATCH_OVERHEAD:
        return None
    try:
        attributes = read_header(view).attributes
        if attributes & COMPRESSION_MASK or attributes & CONTROL:
            return None
        return _context_of_record(view[BATCH_OVERHEAD : BATCH_OVERHEAD + FIRST_RECORD_BYTES_MAX])
    except (IndexError, ValueError, CorruptBatchError):
        return None


def _context_of_record(data: memoryview) -> TraceContext | None:
    """Read the record at the start of `data` up to the header that is wanted. Raises `IndexError`, `ValueError`."""
    size, position = _varint(data, 0)
    end = position + size
    if not 0 < size <= len(data) - position:
        return None
    position += 1  # attributes
    for _ in range(2):  # the deltas of timestamp and offset
        _, position = _varint(data, position)
    for _ in range(2):  # key and value
        length, position = _varint(data, position)
        position += max(length, 0)
    count, position = _varint(data, position)
    for _ in range(min(count, _HEADERS_MAX)):
        length, position = _varint(data, position)
        name, position = data[position : position + length], position + length
        length, position = _varint(data, position)
        if position + length > end:
            return None
        if bytes(name).lower() == b"traceparent" and length > 0:
            return TraceContext.parse(bytes(data[position : position + min(length, _TRACEPARENT_BYTES_MAX + 1)]))
        position += max(length, 0)
    return None


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    """Read a zigzag varint. Returns it and the position after it."""
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), position
        shift += 7
        if shift > 63:
            raise ValueError("a varint of more than 64 bits")


def _uvarint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _valid(trace_id: int, span_id: int, flags: int) -> TraceContext | None:
    return TraceContext(trace_id, span_id, flags) if trace_id and span_id else None


_NONE: Final = bytes(CONTEXT_BYTES)
