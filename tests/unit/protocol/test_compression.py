"""Kafka's framings of the codecs, and what hostile bytes can not do to memory."""

from __future__ import annotations

import gzip
import os
import resource
import zlib

import cramjam
import pytest

from semel.protocol.compression import Compression, compress, decompress, decompress_within
from semel.protocol.corruption import CorruptBatchError
from semel.protocol.errors import UsageError

CODECS = list(Compression)
TEXT = b"".join(b'{"id": %d, "name": "n%d"}' % (n, n * n) for n in range(20_000))
NOISE = os.urandom(200_000)
MIB = 1024 * 1024


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(
    "data",
    [b"", b"x", TEXT[:100], TEXT, NOISE, TEXT + NOISE, bytes(65536), NOISE[:65536], NOISE[:65537], bytes(3 * MIB)],
)
def test_round_trip(codec: Compression, data: bytes) -> None:
    for source in (data, bytearray(data), memoryview(b"--" + data)[2:]):
        packed = compress(codec, source)
        assert bytes(decompress(codec, packed, max_size_bytes=len(data))) == data


@pytest.mark.parametrize("codec", CODECS)
def test_one_byte_over_the_limit_is_too_much(codec: Compression) -> None:
    packed = compress(codec, TEXT)
    with pytest.raises(CorruptBatchError, match=f"more than the {len(TEXT) - 1} bytes allowed"):
        decompress(codec, packed, max_size_bytes=len(TEXT) - 1)


@pytest.mark.parametrize("codec", CODECS[1:])
def test_truncated_and_garbage_bytes_are_named_broken(codec: Compression) -> None:
    packed = bytes(compress(codec, TEXT))
    for cut in (1, 2, 5, len(packed) // 2, len(packed) - 4):
        with pytest.raises(CorruptBatchError, match=codec.name):
            decompress(codec, packed[:-cut], max_size_bytes=len(TEXT))
    for garbage in (b"", b"\x00", b"garbage", b"\xff" * 100, bytes(100)):
        if codec is Compression.SNAPPY and not garbage.strip(b"\x00"):
            continue  # zeros are a raw snappy block of nothing, or fail inside it
        with pytest.raises(CorruptBatchError, match=codec.name):
            decompress(codec, garbage, max_size_bytes=MIB)


@pytest.mark.parametrize(
    ("codec", "level", "allowed"),
    [
        (Compression.GZIP, 0, "1 to 9"),
        (Compression.LZ4, 18, "1 to 17"),
        (Compression.ZSTD, 23, "-131072 to 22"),
        (Compression.SNAPPY, 1, "no level"),
        (Compression.NONE, 1, "no level"),
    ],
)
def test_a_level_that_the_codec_does_not_have(codec: Compression, level: int, allowed: str) -> None:
    with pytest.raises(UsageError, match=allowed):
        compress(codec, b"data", level)


@pytest.mark.parametrize("codec", [Compression.GZIP, Compression.LZ4, Compression.ZSTD])
@pytest.mark.parametrize("level", [1, 9])
def test_levels(codec: Compression, level: int) -> None:
    assert bytes(decompress(codec, compress(codec, memoryview(TEXT), level), max_size_bytes=MIB)) == TEXT


def test_gzip_members_follow_each_other_up_to_a_number() -> None:
    member = gzip.compress(b"abc")
    assert decompress(Compression.GZIP, member * 3, max_size_bytes=9) == b"abcabcabc"
    with pytest.raises(CorruptBatchError, match="more than the 8 bytes"):
        decompress(Compression.GZIP, member * 3, max_size_bytes=8)
    with pytest.raises(CorruptBatchError, match="members"):
        decompress(Compression.GZIP, member * 65, max_size_bytes=MIB)
    with pytest.raises(CorruptBatchError, match="GZIP"):
        decompress(Compression.GZIP, member + b"tail", max_size_bytes=MIB)


def test_snappy_has_javas_stream_header_and_blocks_of_32_kib() -> None:
    packed = bytes(compress(Compression.SNAPPY, TEXT[:40_000]))
    assert packed[:16] == b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"
    size = int.from_bytes(packed[16:20], "big")
    assert bytes(cramjam.snappy.decompress_raw(packed[20 : 20 + size])) == TEXT[:32768]


@pytest.mark.parametrize("codec", [Compression.GZIP, Compression.LZ4, Compression.SNAPPY])
@pytest.mark.parametrize("first", [b"", b"abc"])
def test_S4_one_stream_is_all_that_a_client_may_send(codec: Compression, first: bytes) -> None:
    """librdkafka ends its process at an empty gzip member, and stops without an error at a second lz4 frame."""
    one, two = bytes(compress(codec, b"a record" * 9)), bytes(compress(codec, first or b"x"))
    if not first:
        two = {
            Compression.GZIP: gzip.compress(b""),
            Compression.LZ4: bytes(cramjam.lz4.compress(b"")),
            Compression.SNAPPY: one[:16],
        }[codec]
    room = memoryview(bytearray(MIB))
    assert bytes(decompress(codec, one, max_size_bytes=MIB, one_stream=True)) == b"a record" * 9
    assert bytes(decompress_within(codec, memoryview(one), room) or b"") == b"a record" * 9
    for data in (two + one, one + two):
        with pytest.raises(CorruptBatchError):
            decompress(codec, data, max_size_bytes=MIB, one_stream=True)
        with pytest.raises(CorruptBatchError):
            decompress_within(codec, memoryview(data), room)


@pytest.mark.parametrize("block", [b"\0\0\0\0", b"\0\0\0\1\0"])
def test_S3_snappy_blocks_of_next_to_nothing_are_bounded_by_their_number(block: bytes) -> None:
    header = bytes(compress(Compression.SNAPPY, b"x"))[:16]
    with pytest.raises(CorruptBatchError, match="empty blocks, or more than 65536"):
        decompress(Compression.SNAPPY, header + block * 1_000_000, max_size_bytes=64 * MIB)


def test_raw_snappy_and_streams_after_each_other_are_read() -> None:
    assert bytes(decompress(Compression.SNAPPY, bytes(cramjam.snappy.compress_raw(TEXT)), max_size_bytes=MIB)) == TEXT
    stream = bytes(compress(Compression.SNAPPY, b"abc" * 100))
    assert bytes(decompress(Compression.SNAPPY, stream * 2, max_size_bytes=MIB)) == b"abc" * 200


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff\xff\xff\x0f",  # four gigabytes from five bytes
        b"\xff\xff\xff\xff\xff\x01",  # a size of six bytes
        b"\x80",
        b"\x82SNAPPY\x00\x00\x00",
        b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01\xff\xff\xff\xff",
        b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01\x00\x00\x00\x02\x05",
    ],
)
def test_snappy_sizes_that_lie(data: bytes) -> None:
    with pytest.raises(CorruptBatchError, match="SNAPPY"):
        decompress(Compression.SNAPPY, data, max_size_bytes=MIB)


def test_lz4_frames_are_of_independent_blocks_as_java_demands() -> None:
    for level in (None, 1, 9):
        packed = bytes(compress(Compression.LZ4, TEXT, level))
        assert packed[:4] == b"\x04\x22\x4d\x18"
        version_independent = packed[4] & 0xE0
        assert version_independent == 0x60
        assert packed[-4:] == bytes(4)
        assert bytes(cramjam.lz4.decompress(packed)) == TEXT


def test_lz4_frames_of_other_writers_are_read() -> None:
    """Linked blocks and content checksums: what librdkafka and others may write."""
    assert bytes(decompress(Compression.LZ4, bytes(cramjam.lz4.compress(TEXT)), max_size_bytes=len(TEXT))) == TEXT
    skippable = b"\x50\x2a\x4d\x18\x03\x00\x00\x00xyz"
    packed = skippable + bytes(compress(Compression.LZ4, b"abc"))
    assert bytes(decompress(Compression.LZ4, packed, max_size_bytes=MIB)) == b"abc"


def test_zstd_frames_without_a_content_size_are_read() -> None:
    """Streaming writers, such as Kafka's Java client, can't know the size beforehand."""
    compressor = cramjam.zstd.Compressor(3)
    compressor.compress(TEXT)
    packed = bytes(compressor.finish())
    assert bytes(decompress(Compression.ZSTD, packed, max_size_bytes=len(TEXT))) == TEXT
    assert bytes(decompress(Compression.ZSTD, packed * 2, max_size_bytes=2 * len(TEXT))) == TEXT * 2


def bomb(codec: Compression) -> bytes:
    """Return little data that decompresses to a gigabyte, made without a gigabyte."""
    if codec is Compression.GZIP:
        compressor = zlib.compressobj(9, zlib.DEFLATED, 31)
        return b"".join(compressor.compress(bytes(MIB)) for _ in range(256)) + compressor.flush()
    if codec is Compression.LZ4:
        frame = bytes(compress(Compression.LZ4, bytes(MIB)))
        return frame[:7] + frame[7:-4] * 1024 + frame[-4:]
    if codec is Compression.ZSTD:
        # Blocks of one repeated byte: four bytes make 128 KiB.
        header = b"\x28\xb5\x2f\xfd\x00\x58"
        block = (131072 << 3 | 1 << 1).to_bytes(3, "little") + b"\x00"
        return header + block * 8191 + (131072 << 3 | 1 << 1 | 1).to_bytes(3, "little") + b"\x00"
    stream = bytes(compress(Compression.SNAPPY, bytes(MIB)))
    return stream[:16] + stream[16:] * 1024


@pytest.mark.parametrize("codec", CODECS[1:])
def test_a_bomb_is_stopped_while_it_goes_off(codec: Compression) -> None:
    data = bomb(codec)
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(CorruptBatchError, match=f"{codec.name}.*more than the {4 * MIB} bytes allowed"):
        decompress(codec, data, max_size_bytes=4 * MIB)
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib
    assert grown_kib < 64 * 1024


def test_a_lying_zstd_frame_costs_no_memory() -> None:
    # A header that claims a terabyte, with one empty last block.
    data = b"\x28\xb5\x2f\xfd" + b"\xe0" + (2**40).to_bytes(8, "little") + b"\x01\x00\x00"
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(CorruptBatchError, match="ZSTD"):
        decompress(Compression.ZSTD, data, max_size_bytes=1024 * MIB)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 64 * 1024
