# cython: annotation_typing=False
"""The primitives of Kafka's binary protocol, read and written with every length checked before anything is allocated.

Compiled where a C compiler is at hand (types are in `wire.pxd`), interpreted otherwise; one source for both. Primitive
types are those of Kafka's protocol guide: big-endian integers, unsigned varints for the compact (flexible) forms,
tagged fields (KIP-482).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

try:
    import cython
except ModuleNotFoundError:
    from semel.protocol import uncompiled as cython

from semel.protocol.errors import ErrorCode, FatalError

if TYPE_CHECKING:
    from collections.abc import Sized

Buffer: TypeAlias = bytes | bytearray | memoryview
Part: TypeAlias = "Buffer | Sized"
"""A piece of a message: bytes, or something with a length that a transport knows how to send (a range of a file)."""

INLINE_BYTES_MAX = 4096
"""Records up to this size are copied beside the fields around them: a system call on fewer pieces costs less."""

ANY_NUMBER = 1 << 62

_HEADER_TAGS_MAX = 100
"""Tagged fields of a request's header. Semel knows one, and passes over others."""

_INITIAL_BYTES = 256

_UINT32 = 1 << 32
_SIGN = 1 << 31
"""Named, because Cython makes a Python object of a number of more than 31 bits that is written out."""


class WireFormatError(FatalError):
    """Bytes that are not a message of the Kafka protocol. The connection they came from cannot be read any further."""

    def __init__(self, message: str, code: ErrorCode = ErrorCode.INVALID_REQUEST) -> None:
        super().__init__(message, code)


if not cython.compiled:

    def address_of(view: memoryview) -> memoryview:
        """Return what indexes the bytes of a view (a C pointer where compiled)."""
        return view

    def writable_address_of(buffer: bytearray) -> bytearray:
        return buffer

    def copy_into(target: bytearray, position: int, source: Buffer, size: int) -> None:
        target[position : position + size] = source

    def bytes_of(buffer: bytearray, size: int) -> bytes:
        return bytes(buffer[:size])

    def decode_utf8(data: memoryview, position: int, size: int) -> str:
        return str(data[position : position + size], "utf-8")


class WireReader:
    """Reads one message from a buffer, from `position` on. Raises `WireFormatError` for bytes that are not there.

    Slices it returns are views of the buffer, which stays alive as long as they do.
    """

    def __init__(self, buffer: Buffer, position: int = 0, entries_max: int = ANY_NUMBER) -> None:
        view = buffer if isinstance(buffer, memoryview) else memoryview(buffer)
        if view.itemsize != 1 or not view.c_contiguous:
            raise ValueError("a message is read from a contiguous buffer of bytes")
        if position < 0 or position > len(view):
            raise ValueError(f"position {position} is outside the buffer of {len(view)} bytes")
        self.view: memoryview = view
        self.data: memoryview = address_of(view)
        self.size: int = len(view)
        self.position: int = position
        self.entries_max: int = entries_max
        self._entries_left: int = entries_max

    def need(self, count: int) -> int:
        """Return the position of the next `count` bytes and go past them."""
        position = self.position
        if count < 0 or count > self.size - position:
            raise WireFormatError(f"{count} bytes were expected at {position} of a message of {self.size} bytes")
        self.position = position + count
        return position

    def remaining(self) -> int:
        return self.size - self.position

    def read_int8(self) -> int:
        value = self.data[self.need(1)]
        return value - 256 if value >= 128 else value

    def read_int16(self) -> int:
        at = self.need(2)
        value = (self.data[at] << 8) | self.data[at + 1]
        return value - 65536 if value >= 32768 else value

    def read_int32(self) -> int:
        value = self.read_uint32()
        return value - _UINT32 if value >= _SIGN else value

    def read_uint32(self) -> int:
        at = self.need(4)
        data = self.data
        # Two halves, so that the compiled module never shifts into a sign bit.
        high = (data[at] << 8) | data[at + 1]
        low = (data[at + 2] << 8) | data[at + 3]
        return high * 65536 + low

    def read_int64(self) -> int:
        high = self.read_int32()
        return high * _UINT32 + self.read_uint32()

    def read_uvarint(self) -> int:
        """Read an unsigned varint of at most 32 bits."""
        value = 0
        shift = 0
        while shift < 35:
            byte = self.data[self.need(1)]
            value = value + ((byte & 127) << shift)
            if byte < 128:
                if value >= _UINT32:
                    break
                return value
            shift = shift + 7
        raise WireFormatError(f"an unsigned varint before {self.position} has more than 32 bits")

    def read_bool(self) -> bool:
        return self.read_int8() != 0

    def read_length(self, flexible: bool) -> int:
        """Read the length before a string, or -1 for null: two bytes, or a varint of one more in flexible versions."""
        return self.read_uvarint() - 1 if flexible else self.read_int16()

    def read_long_length(self, flexible: bool) -> int:
        """Read the length before bytes, records or an array, or -1 for null."""
        return self.read_uvarint() - 1 if flexible else self.read_int32()

    def read_string(self, flexible: bool) -> str:
        return self._read_text(self.read_length(flexible))

    def read_nullable_string(self, flexible: bool) -> str | None:
        length = self.read_length(flexible)
        return None if length == -1 else self._read_text(length)

    def _read_text(self, length: int) -> str:
        if length < 0 or length > 32767:
            raise WireFormatError(f"a string of {length} bytes before {self.position}: a string has 0 to 32767")
        at = self.need(length)
        try:
            return decode_utf8(self.data, at, length)
        except UnicodeDecodeError:
            raise WireFormatError(f"the string at {at} is not UTF-8") from None

    def read_records(self, flexible: bool) -> memoryview | None:
        """Read bytes or a record set, as a view without copying."""
        length = self.read_long_length(flexible)
        if length == -1:
            return None
        at = self.need(length)
        return self.view[at : at + length]

    def read_fixed(self, count: int) -> bytes:
        """Read exactly `count` bytes as a copy (UUIDs)."""
        at = self.need(count)
        return bytes(self.view[at : at + count])

    def read_count(self, flexible: bool, element_bytes_min: int) -> int:
        """Read an array's number of elements, or -1 for null. Refuses more than the rest of the message could hold."""
        count = self.read_long_length(flexible)
        if count < -1 or count * element_bytes_min > self.size - self.position:
            raise WireFormatError(
                f"an array of {count} elements before {self.position} does not fit in a message of {self.size} bytes"
            )
        if count > 0:
            self._count_entries(count)
        return count

    def _count_entries(self, count: int) -> None:
        """Count what a message has in all its arrays and tagged fields: each is work, and most become objects."""
        self._entries_left = self._entries_left - count
        if self._entries_left < 0:
            raise WireFormatError(f"more than {self.entries_max} entries in its arrays: ask for fewer at a time")

    def skip_tagged_fields(self) -> None:
        """Go past tagged fields that this side does not know (KIP-482)."""
        count = self.read_tag_count()
        while count > 0:
            self.read_uvarint()
            self.need(self.read_uvarint())
            count = count - 1

    def read_tag_count(self) -> int:
        """Read the number of tagged fields; a tag and a size follow for each."""
        count = self.read_uvarint()
        if count * 2 > self.size - self.position:
            raise WireFormatError(f"{count} tagged fields before {self.position} do not fit in the message")
        self._count_entries(count)
        return count

    def expect_end(self) -> None:
        if self.position != self.size:
            raise WireFormatError(f"{self.size - self.position} bytes follow the end of the message")


class WireWriter:
    """Builds a message as a list of parts: fields in buffers of its own, large record sets as they were given."""

    def __init__(self) -> None:
        self.buffer: bytearray = bytearray(_INITIAL_BYTES)
        self.data: bytearray = writable_address_of(self.buffer)
        self.capacity: int = _INITIAL_BYTES
        self.position: int = 0
        self.parts: list[Part] = []
        self.parts_bytes: int = 0

    def reserve(self, count: int) -> int:
        """Return the position of the next `count` bytes, growing the buffer where needed, and go past them."""
        position = self.position
        if count > self.capacity - position:
            capacity = max(self.capacity * 2, position + count)
            self.buffer.extend(bytes(capacity - len(self.buffer)))
            self.data = writable_address_of(self.buffer)
            self.capacity = capacity
        self.position = position + count
        return position

    def write_int8(self, value: int) -> None:
        at = self.reserve(1)
        self.data[at] = value & 255

    def write_int16(self, value: int) -> None:
        at = self.reserve(2)
        data = self.data
        data[at] = (value >> 8) & 255
        data[at + 1] = value & 255

    def write_int32(self, value: int) -> None:
        at = self.reserve(4)
        data = self.data
        data[at] = (value >> 24) & 255
        data[at + 1] = (value >> 16) & 255
        data[at + 2] = (value >> 8) & 255
        data[at + 3] = value & 255

    def write_int64(self, value: int) -> None:
        at = self.reserve(8)
        data = self.data
        data[at] = (value >> 56) & 255
        data[at + 1] = (value >> 48) & 255
        data[at + 2] = (value >> 40) & 255
        data[at + 3] = (value >> 32) & 255
        data[at + 4] = (value >> 24) & 255
        data[at + 5] = (value >> 16) & 255
        data[at + 6] = (value >> 8) & 255
        data[at + 7] = value & 255

    def write_uvarint(self, value: int) -> None:
        while value > 127:
            self.data[self.reserve(1)] = (value & 127) | 128
            value = value >> 7
        self.data[self.reserve(1)] = value

    def write_length(self, length: int, flexible: bool) -> None:
        if flexible:
            self.write_uvarint(length + 1)
        else:
            self.write_int16(length)

    def write_count(self, count: int, flexible: bool) -> None:
        """Write the number of elements of an array, or the size of bytes; -1 is null."""
        if flexible:
            self.write_uvarint(count + 1)
        else:
            self.write_int32(count)

    def write_string(self, text: str | None, flexible: bool) -> None:
        if text is None:
            self.write_length(-1, flexible)
            return
        encoded = text.encode("utf-8")
        if len(encoded) > 32767:
            raise WireFormatError(f"a string of {len(encoded)} bytes: a string has 0 to 32767")
        self.write_length(len(encoded), flexible)
        self.write_fixed(encoded)

    def write_fixed(self, data: Buffer) -> None:
        """Copy `data` without a length before it."""
        count = len(data)
        at = self.reserve(count)
        copy_into(self.data, at, data, count)

    def write_records(self, records: Part | None, flexible: bool) -> None:
        """Write the size of a record set and the set: copied where it is small, as a part of its own otherwise."""
        if records is None:
            self.write_count(-1, flexible)
            return
        size = len(records)
        self.write_count(size, flexible)
        if size == 0:
            return
        if size <= INLINE_BYTES_MAX and isinstance(records, (bytes, bytearray, memoryview)):
            self.write_fixed(records)
            return
        self._close_part()
        self.parts.append(records)
        self.parts_bytes = self.parts_bytes + size

    def write_no_tags(self) -> None:
        self.write_int8(0)

    def begin_request(
        self, api_key: int, api_version: int, correlation_id: int, client_id: str | None, flexible: bool
    ) -> None:
        """Write the size (patched by `finish_frame`) and request header v1, or v2 where `flexible`."""
        self.write_int32(0)
        self.write_int16(api_key)
        self.write_int16(api_version)
        self.write_int32(correlation_id)
        # The client id keeps its two-byte length in header v2 too, so that a broker can always read the header.
        self.write_string(client_id, False)
        if flexible:
            self.write_int8(0)

    def begin_response(self, correlation_id: int, flexible: bool) -> None:
        """Write the size (patched by `finish_frame`) and response header v0, or v1 where `flexible`."""
        self.write_int32(0)
        self.write_int32(correlation_id)
        if flexible:
            self.write_int8(0)

    def _close_part(self) -> None:
        if self.position == 0:
            return
        buffer = self.buffer
        del buffer[self.position :]
        self.parts.append(buffer)
        self.parts_bytes = self.parts_bytes + self.position
        self.buffer = bytearray(_INITIAL_BYTES)
        self.data = writable_address_of(self.buffer)
        self.capacity = _INITIAL_BYTES
        self.position = 0

    def finish(self) -> list[Part]:
        """Return the parts. The writer is empty afterwards."""
        self._close_part()
        parts = self.parts
        self.parts = []
        self.parts_bytes = 0
        return parts

    def finish_frame(self) -> list[Part]:
        """Return the parts of a message that began with `begin_request` or `begin_response`, its size filled in."""
        size = self.parts_bytes + self.position - 4
        if size > 2147483647:
            raise WireFormatError(f"a message of {size} bytes does not fit in a frame")
        if self.parts_bytes == 0:
            end = self.position
            self.position = 0
            self.write_int32(size)
            self.position = 0
            return [bytes_of(self.buffer, end)]
        parts = self.finish()
        first = parts[0]
        assert isinstance(first, bytearray)
        first[0:4] = size.to_bytes(4, "big")
        return parts


def join_parts(parts: list[Part]) -> bytes:
    """Return the parts as one `bytes`. For tests and small messages: large ones are sent part by part."""
    buffers: list[Buffer] = []
    for part in parts:
        if not isinstance(part, (bytes, bytearray, memoryview)):
            raise TypeError(f"a {type(part).__name__} is sent by a transport, not joined in memory")
        buffers.append(part)
    return b"".join(buffers)


_NEVER = 32767
_TRACE_TAG = 10_000
"""`HEADER_TAG` of protocol/trace_context.py; a test holds them equal."""

FIRST_FLEXIBLE_VERSION: tuple[int, ...] = (
    # From Kafka's message schemas, by API key: versions from here on use header v2, compact forms and tagged fields.
    *(9, 12, 6, 9, 4, 2, 6, 3, 8, 6),
    *(3, 6, 4, 4, 4, 5, 3, _NEVER, 3, 5),
    *(4, 2, 2, 4, 3, 3, 3, 1, 3, 2),
    *(2, 2, 4, 2, 2, 2, 2, 2, 2, 2),
    *(2, 2, 2, 2, 1, 0, 0, _NEVER, 1, 1),
    *(0, 0, 0, 1, 1, 0, 0, 0, 0, 0),
    *(0, 0, 0, 0, 0, 0, 0, 0, 0, 0),
    *(0, 0, 0, 0, 0, 0, 0, 0, 0, 0),
    *(0, 0, 0, 0, 0, 0, 0, 0),
)


class RequestHeader:
    """What stands before every request. `body` is the position in the buffer where the request itself begins.

    trace: Semel's tagged field with trace contexts (protocol/trace_context.py), a view of the buffer; None without it
    """

    def __init__(self, api_key: int, api_version: int, correlation_id: int, client_id: str | None, body: int) -> None:
        self.api_key: int = api_key
        self.api_version: int = api_version
        self.correlation_id: int = correlation_id
        self.client_id: str | None = client_id
        self.body: int = body
        self.trace: memoryview | None = None

    def __repr__(self) -> str:
        return (
            f"RequestHeader(api_key={self.api_key}, api_version={self.api_version}, "
            f"correlation_id={self.correlation_id}, client_id={self.client_id!r}, body={self.body})"
        )


def is_flexible(api_key: int, api_version: int) -> bool:
    """Return whether this version of an API uses tagged fields (KIP-482). Unknown APIs count as not flexible."""
    return 0 <= api_key < len(FIRST_FLEXIBLE_VERSION) and api_version >= FIRST_FLEXIBLE_VERSION[api_key]


def parse_request_header(buffer: Buffer, position: int = 0) -> RequestHeader:
    """Read request header v1 or v2 at `position` (just after the frame's size). Raises `WireFormatError`."""
    reader = WireReader(buffer, position, _HEADER_TAGS_MAX)
    api_key = reader.read_int16()
    api_version = reader.read_int16()
    correlation_id = reader.read_int32()
    client_id = reader.read_nullable_string(False)
    trace: memoryview | None = None
    if is_flexible(api_key, api_version):
        for _ in range(reader.read_tag_count()):
            tag = reader.read_uvarint()
            size = reader.read_uvarint()
            start = reader.need(size)
            if tag == _TRACE_TAG:
                trace = reader.view[start : start + size]
    header = RequestHeader(api_key, api_version, correlation_id, client_id, reader.position)
    header.trace = trace
    return header
