"""Compression of record batches in Kafka's framings, so that any client reads what Semel wrote and the other way round.

gzip is one or more members; snappy is snappy-java's stream ("xerial": a header, then blocks of raw snappy), and plain
raw snappy is read too; lz4 is a frame of independent blocks, because Kafka's Java client refuses dependent ones; zstd
is a frame.

Decompression of hostile bytes is bounded while it runs: the output never grows beyond `max_size_bytes`, and memory is
touched only as far as the output really reaches.
"""

from __future__ import annotations

import mmap
import zlib
from enum import IntEnum
from typing import Final, TypeAlias

import cramjam

from semel.protocol.corruption import CorruptBatchError
from semel.protocol.errors import ErrorCode, UsageError

Buffer: TypeAlias = bytes | bytearray | memoryview

DEFAULT_MAX_UNCOMPRESSED_BYTES: Final = 128 * 1024 * 1024
"""How large one batch may become when it is decompressed, unless the caller says otherwise."""


class Compression(IntEnum):
    """The codecs, numbered as in a record batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


_LEVELS: Final = {
    Compression.GZIP: range(1, 10),
    Compression.LZ4: range(1, 18),
    Compression.ZSTD: range(-131072, 23),
}
"""Levels as Kafka has them (KIP-390). The others have none."""


def compress(codec: Compression, data: Buffer, level: int | None = None) -> Buffer:
    """Return `data` compressed in Kafka's framing for `codec`.

    `level` is the codec's own (gzip 1 to 9, lz4 1 to 17, zstd -131072 to 22). None takes gzip 6 and zstd 3, which are
    Kafka's defaults, and the fast mode of lz4. Raises `UsageError` for a level that the codec does not have.
    """
    if level is not None and level not in _LEVELS.get(codec, ()):
        allowed = _LEVELS.get(codec)
        hint = f"from {allowed.start} to {allowed.stop - 1}" if allowed else "no level at all"
        raise UsageError(f"{codec.name} takes {hint}, not level {level}", ErrorCode.INVALID_CONFIG)
    if codec is Compression.NONE:
        return data
    if codec is Compression.LZ4:
        return _compress_lz4(data, level)
    if codec is Compression.ZSTD:
        return memoryview(cramjam.zstd.compress(data, 3 if level is None else level))
    if codec is Compression.SNAPPY:
        return _compress_snappy(data)
    compressor = zlib.compressobj(6 if level is None else level, zlib.DEFLATED, _GZIP_WINDOW)
    return compressor.compress(data) + compressor.flush()


def decompress(codec: Compression, data: Buffer, *, max_size_bytes: int, one_stream: bool = False) -> Buffer:
    """Return the decompressed bytes, at most `max_size_bytes` of them.

    one_stream: refuse several gzip members, lz4 frames or snappy streams after each other. The formats allow them, no
                client writes them, and some readers of batches stop or end at them.
    Raises `CorruptBatchError` for bytes that are not in the codec's format, end early, or become larger than that.
    """
    if codec is Compression.NONE:
        if len(data) > max_size_bytes:
            raise _too_large(codec, max_size_bytes)
        return data
    view = memoryview(data)
    if one_stream:
        _check_one_stream(codec, view)
    if codec is Compression.LZ4:
        return _decompress_into(codec, view, _bound_lz4(view, max_size_bytes), max_size_bytes)
    if codec is Compression.ZSTD:
        return _decompress_into(codec, view, _bound_zstd(view, max_size_bytes), max_size_bytes)
    if codec is Compression.SNAPPY:
        return _decompress_snappy(view, max_size_bytes)
    return _decompress_gzip(view, max_size_bytes, 1 if one_stream else _GZIP_MEMBERS_MAX)


def decompress_within(codec: Compression, data: memoryview, room: memoryview) -> Buffer | None:
    """Return the decompressed bytes if they fit into `room`, which they may be in; None where they do not.

    For an event loop: the work is bounded by the size of `data` and `room`, whatever the bytes say. What would take
    many steps in Python is not done here either (None). Raises `CorruptBatchError`, also for more than one stream.
    """
    _check_one_stream(codec, data)
    if codec is Compression.GZIP:
        try:
            return _decompress_gzip(data, len(room), 1)
        except TooLargeError:
            return None
    try:
        if codec is Compression.LZ4:
            return room[: cramjam.lz4.decompress_into(data, room)]
        if codec is Compression.ZSTD:
            return room[: cramjam.zstd.decompress_into(data, room)]
        if bytes(data[:8]) == _XERIAL_MAGIC and len(data) > _XERIAL_BLOCK_BYTES * 2:
            return None
        return _decompress_snappy(data, len(room))
    except TooLargeError:
        return None
    except cramjam.DecompressionError as error:
        if "write whole buffer" in str(error):
            return None
        raise _broken(codec, str(error)) from None


def _check_one_stream(codec: Compression, data: memoryview) -> None:
    """Raise `CorruptBatchError` for lz4 frames or snappy streams after each other. gzip's are counted on the way."""
    if codec is Compression.LZ4:
        _check_one_lz4_frame(data)
    elif codec is Compression.SNAPPY and bytes(data[:8]) == _XERIAL_MAGIC and _XERIAL_MAGIC in bytes(data[8:]):
        blocks = _xerial_blocks(data)
        if len(_XERIAL_HEADER) + sum(4 + len(block) for block in blocks) != len(data):
            raise _broken(codec, "it has more than one stream")


_LZ4_FRAME_BEGINS: Final = b"\x04\x22\x4d\x18"
_LZ4_BLOCKS_MAX: Final = 200_000
_LZ4_HEADER_BYTES: Final = 7
"""Magic, flags, block descriptor and the header's checksum; a size and a dictionary's id may come in between."""


def _check_one_lz4_frame(data: memoryview) -> None:
    """Walk over the blocks of the frame, whose contents nobody looks at here."""
    if bytes(data[:4]) != _LZ4_FRAME_BEGINS or len(data) < _LZ4_HEADER_BYTES:
        raise _broken(Compression.LZ4, "it does not begin with a frame")
    flags = data[4]
    block_checksum = 4 if flags & 0x10 else 0
    position = _LZ4_HEADER_BYTES + (8 if flags & 0x08 else 0) + (4 if flags & 0x01 else 0)
    for _ in range(_LZ4_BLOCKS_MAX):
        size = int.from_bytes(data[position : position + 4], "little") & 0x7FFFFFFF
        if position + 4 + size > len(data):
            raise _broken(Compression.LZ4, "it ends early")
        position += 4
        if size == 0:
            break
        position += size + block_checksum
    else:
        raise _broken(Compression.LZ4, f"it has more than {_LZ4_BLOCKS_MAX} blocks")
    if position + (4 if flags & 0x04 else 0) != len(data):
        raise _broken(Compression.LZ4, "it has more than one frame, or ends early")


class TooLargeError(CorruptBatchError):
    """A batch becomes larger than is allowed when it is decompressed."""


def _too_large(codec: Compression, max_size_bytes: int) -> TooLargeError:
    return TooLargeError(
        f"{codec.name} data decompresses to more than the {max_size_bytes} bytes allowed here; "
        "raise the limit if the data can be trusted"
    )


def _broken(codec: Compression, why: str) -> CorruptBatchError:
    return CorruptBatchError(f"{codec.name} data is broken: {why}")


_LAZY_BYTES: Final = 1024 * 1024


def _output(size_bytes: int) -> memoryview:
    """Return a writable buffer. A large one is mapped, so that a bound that was too high costs no memory."""
    if size_bytes <= _LAZY_BYTES:
        return memoryview(bytearray(size_bytes))
    return memoryview(mmap.mmap(-1, size_bytes))


def _decompress_into(codec: Compression, data: memoryview, bound: int, max_size_bytes: int) -> memoryview:
    output = _output(max(1, bound))
    module = cramjam.lz4 if codec is Compression.LZ4 else cramjam.zstd
    try:
        size = module.decompress_into(data, output)
    except cramjam.DecompressionError as error:
        if "write whole buffer" in str(error):
            raise _too_large(codec, max_size_bytes) from None
        raise _broken(codec, str(error)) from None
    return output[:size]


# --- Gzip -------------------------------------------------------------------------------------------------------------

_GZIP_WINDOW: Final = 31
"""zlib's number for a 32 KiB window in gzip's format."""


_GZIP_STEP_BYTES: Final = 256 * 1024
_GZIP_INPUT_BYTES: Final = 64 * 1024
_GZIP_RATIO_MAX: Final = 1040
"""No byte of deflate makes more."""


def _decompress_gzip(data: memoryview, max_size_bytes: int, members_max: int) -> Buffer:
    """Decompress in steps into one buffer: pieces that are joined at the end would be copied under the GIL at once."""
    output: memoryview | None = None
    size = position = 0
    for _ in range(members_max):
        member = zlib.decompressobj(_GZIP_WINDOW)
        rest: Buffer = b""
        while not member.eof:
            is_last = False
            if not rest:
                rest = data[position : position + _GZIP_INPUT_BYTES]
                position += len(rest)
                is_last = not rest
            try:
                part = member.decompress(rest, min(_GZIP_STEP_BYTES, max_size_bytes - size + 1))
            except zlib.error as error:
                raise _broken(Compression.GZIP, str(error)) from None
            if is_last and not part and not member.eof:
                raise _broken(Compression.GZIP, "it ends early")
            if size + len(part) > max_size_bytes:
                raise _too_large(Compression.GZIP, max_size_bytes)
            rest = member.unconsumed_tail
            if output is None:
                has_ended: bool = member.eof
                if has_ended and position - len(member.unused_data) == len(data):
                    return part  # as nearly all are: one member, one step
                output = _output(min(max_size_bytes, _GZIP_RATIO_MAX * len(data)))
            output[size : size + len(part)] = part
            size += len(part)
        position -= len(member.unused_data)
        if position == len(data):
            return b"" if output is None else output[:size]
    raise _broken(Compression.GZIP, f"it has more than {members_max} members")


_GZIP_MEMBERS_MAX: Final = 64
"""Clients write one. Each begins again, so their number is bounded."""


# --- Snappy -----------------------------------------------------------------------------------------------------------

_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01"
_XERIAL_BLOCK_BYTES: Final = 32 * 1024
_SNAPPY_RATIO_MAX: Final = 64
"""No element of snappy makes more than 64 bytes, so a longer claim is a lie and nothing is allocated for it."""


def _compress_snappy(data: Buffer) -> Buffer:
    view = memoryview(data)
    size = len(view)
    blocks = (size + _XERIAL_BLOCK_BYTES - 1) // _XERIAL_BLOCK_BYTES
    # Snappy's own bound for one block: 32 + n + n / 6.
    output = bytearray(len(_XERIAL_HEADER) + blocks * (4 + 32) + size + size // 6 + blocks)
    room = memoryview(output)
    position = len(_XERIAL_HEADER)
    output[:position] = _XERIAL_HEADER
    for start in range(0, size, _XERIAL_BLOCK_BYTES):
        written = cramjam.snappy.compress_raw_into(view[start : start + _XERIAL_BLOCK_BYTES], room[position + 4 :])
        output[position : position + 4] = written.to_bytes(4, "big")
        position += 4 + written
    room.release()
    del output[position:]
    return output


def _decompress_snappy(data: memoryview, max_size_bytes: int) -> Buffer:
    blocks = _xerial_blocks(data) if bytes(data[:8]) == _XERIAL_MAGIC else [data]
    size = 0
    for block in blocks:
        size += _snappy_size(block)
        if size > max_size_bytes:
            raise _too_large(Compression.SNAPPY, max_size_bytes)
    output = _output(max(1, size))
    position = 0
    for block in blocks:
        try:
            position += cramjam.snappy.decompress_raw_into(block, output[position:])
        except cramjam.DecompressionError as error:
            raise _broken(Compression.SNAPPY, str(error)) from None
    return output[:position]


_XERIAL_BLOCKS_MAX: Final = 65_536
"""Writers make blocks of 32 KiB. Each costs a step of Python, however little is in it."""


def _xerial_blocks(data: memoryview) -> list[memoryview]:
    if len(data) < len(_XERIAL_HEADER):
        raise _broken(Compression.SNAPPY, "its stream header ends early")
    blocks: list[memoryview] = []
    position = len(_XERIAL_HEADER)
    while position < len(data):
        if bytes(data[position : position + 8]) == _XERIAL_MAGIC:  # streams may follow each other
            position += len(_XERIAL_HEADER)
            continue
        size = int.from_bytes(data[position : position + 4], "big")
        position += 4
        if size > len(data) - position:
            raise _broken(Compression.SNAPPY, f"a block of {size} bytes ends early")
        if size == 0 or len(blocks) == _XERIAL_BLOCKS_MAX:
            raise _broken(Compression.SNAPPY, f"it has empty blocks, or more than {_XERIAL_BLOCKS_MAX}")
        blocks.append(data[position : position + size])
        position += size
    return blocks


def _snappy_size(block: memoryview) -> int:
    """Return the size that a raw block claims to decompress to, which is at its beginning as a varint."""
    size = 0
    for index in range(min(5, len(block))):
        byte = block[index]
        size |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            if size > _SNAPPY_RATIO_MAX * len(block):
                raise _broken(Compression.SNAPPY, f"{len(block)} bytes claim to decompress to {size}")
            return size
    raise _broken(Compression.SNAPPY, "a block does not begin with a size")


# --- Lz4 --------------------------------------------------------------------------------------------------------------

_LZ4_MAGIC: Final = 0x184D2204
_LZ4_BLOCK_BYTES: Final = 64 * 1024
_LZ4_HEADER: Final = bytes.fromhex("04224d18 60 40 82")
"""Version 1, independent blocks of up to 64 KiB, no checksums (the batch has one), the descriptor's own check byte."""
_LZ4_STORED: Final = 0x80000000
_SKIPPABLE_MAGIC: Final = 0x184D2A50
"""Frames 0x184D2A50 to 0x184D2A5F carry user data and are skipped, in lz4 and zstd alike."""


def _compress_lz4(data: Buffer, level: int | None) -> Buffer:
    if level is not None:
        compressor = cramjam.lz4.Compressor(level=level, content_checksum=False, block_linked=False)
        compressor.compress(bytes(data))
        return memoryview(compressor.finish())
    # The frame is written here around single blocks: twice as fast as the library's own frames at their fastest level.
    view = memoryview(data)
    size = len(view)
    blocks = (size + _LZ4_BLOCK_BYTES - 1) // _LZ4_BLOCK_BYTES
    output = bytearray(len(_LZ4_HEADER) + size + size // 255 + blocks * (4 + 16) + 4)
    room = memoryview(output)
    position = len(_LZ4_HEADER)
    output[:position] = _LZ4_HEADER
    for start in range(0, size, _LZ4_BLOCK_BYTES):
        block = view[start : start + _LZ4_BLOCK_BYTES]
        written = cramjam.lz4.compress_block_into(block, room[position + 4 :], store_size=False)
        if written < len(block):
            output[position : position + 4] = written.to_bytes(4, "little")
        else:
            written = len(block)
            output[position : position + 4] = (written | _LZ4_STORED).to_bytes(4, "little")
            output[position + 4 : position + 4 + written] = block
        position += 4 + written
    room.release()
    del output[position + 4 :]
    output[position:] = bytes(4)
    return output


def _bound_lz4(data: memoryview, max_size_bytes: int) -> int:
    """Return an upper bound of the decompressed size from the frames' block sizes, at most `max_size_bytes`."""
    bound = 0
    position = 0
    end = len(data)
    while position < end:
        magic = _little(Compression.LZ4, data, position, 4)
        if magic & 0xFFFFFFF0 == _SKIPPABLE_MAGIC:
            position += 8 + _little(Compression.LZ4, data, position + 4, 4)
            continue
        if magic != _LZ4_MAGIC:
            raise _broken(Compression.LZ4, "it does not begin with a frame")
        flags = _little(Compression.LZ4, data, position + 4, 1)
        block_max = 1 << (8 + 2 * max(4, _little(Compression.LZ4, data, position + 5, 1) >> 4 & 7))
        position += 7 + (8 if flags & 0x08 else 0) + (4 if flags & 0x01 else 0)
        while True:
            size = _little(Compression.LZ4, data, position, 4)
            position += 4
            if size == 0:
                break
            bound += size & ~_LZ4_STORED if size & _LZ4_STORED else min(block_max, 255 * size)
            position += (size & ~_LZ4_STORED) + (4 if flags & 0x10 else 0)
        position += 4 if flags & 0x04 else 0
    return min(bound, max_size_bytes)


def _little(codec: Compression, data: memoryview, position: int, size: int) -> int:
    if position + size > len(data):
        raise _broken(codec, "it ends early")
    return int.from_bytes(data[position : position + size], "little")


# --- Zstd -------------------------------------------------------------------------------------------------------------

_ZSTD_MAGIC: Final = 0xFD2FB528
_ZSTD_BLOCK_BYTES_MAX: Final = 128 * 1024
_ZSTD_RAW: Final = 0
_ZSTD_RLE: Final = 1


def _bound_zstd(data: memoryview, max_size_bytes: int) -> int:
    """Return an upper bound of the decompressed size from the frames' headers and blocks, at most `max_size_bytes`."""
    bound = 0
    position = 0
    end = len(data)
    if not end:
        raise _broken(Compression.ZSTD, "it is empty")
    while position < end:
        magic = _little(Compression.ZSTD, data, position, 4)
        if magic & 0xFFFFFFF0 == _SKIPPABLE_MAGIC:
            position += 8 + _little(Compression.ZSTD, data, position + 4, 4)
            continue
        if magic != _ZSTD_MAGIC:
            raise _broken(Compression.ZSTD, "it does not begin with a frame")
        position, content_size, block_max, checksum = _zstd_frame_header(data, position + 4)
        frame_bound = 0
        while True:
            header = _little(Compression.ZSTD, data, position, 3)
            kind, size = header >> 1 & 3, header >> 3
            position += 3 + (1 if kind == _ZSTD_RLE else size)
            frame_bound += size if kind in (_ZSTD_RAW, _ZSTD_RLE) else block_max
            if header & 1:
                break
        position += 4 if checksum else 0
        bound += frame_bound if content_size is None else min(frame_bound, content_size)
    return min(bound, max_size_bytes)


def _zstd_frame_header(data: memoryview, position: int) -> tuple[int, int | None, int, bool]:
    """Return where the blocks begin, the content size if it is given, the largest block, and if a checksum follows."""
    descriptor = _little(Compression.ZSTD, data, position, 1)
    position += 1
    single_segment = bool(descriptor & 0x20)
    window = 0
    if not single_segment:
        byte = _little(Compression.ZSTD, data, position, 1)
        position += 1
        window = 1 << (10 + (byte >> 3))
        window += window // 8 * (byte & 7)
    position += (0, 1, 2, 4)[descriptor & 3]
    width = (1 if single_segment else 0, 2, 4, 8)[descriptor >> 6]
    content_size = None
    if width:
        content_size = _little(Compression.ZSTD, data, position, width) + (256 if width == 2 else 0)
        position += width
    if single_segment:
        window = content_size or 0
    return position, content_size, min(window, _ZSTD_BLOCK_BYTES_MAX), bool(descriptor & 0x04)
