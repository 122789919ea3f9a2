"""Kafka's serialised structs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from semel.protocol.corruption import CorruptDataError
from semel.protocol.errors import UsageError
from semel.protocol.schema import Reader, Writer

FIELDS: list[tuple[str, list[Any]]] = [
    ("int8", [0, 1, -1, 127, -128]),
    ("uint8", [0, 255]),
    ("boolean", [True, False]),
    ("int16", [0, -1, 2**15 - 1, -(2**15)]),
    ("uint16", [0, 2**16 - 1]),
    ("int32", [0, -1, 2**31 - 1, -(2**31)]),
    ("uint32", [0, 2**32 - 1]),
    ("int64", [0, -1, 2**63 - 1, -(2**63)]),
    ("float64", [0.0, -1.5, 1e300]),
    ("uuid", [UUID(int=0), UUID(int=2**128 - 1)]),
    ("unsigned_varint", [0, 127, 128, 2**32 - 1]),
    ("varint", [0, -1, 63, 64, -64, -65, 2**31 - 1, -(2**31)]),
    ("varlong", [0, -1, 2**63 - 1, -(2**63)]),
    ("string", ["", "text", "ключ", "x" * 32767]),
    ("nullable_string", [None, "", "text"]),
    ("compact_string", ["", "text", "x" * 40000]),
    ("compact_nullable_string", [None, "", "text"]),
    ("bytes_", [b"", b"data"]),
    ("nullable_bytes", [None, b"", b"data"]),
    ("compact_bytes", [b"", b"data" * 100]),
    ("compact_nullable_bytes", [None, b"", b"data"]),
]


@pytest.mark.parametrize(("kind", "values"), FIELDS)
def test_fields_read_back_and_never_short(kind: str, values: list[Any]) -> None:
    writer = Writer()
    for value in values:
        getattr(writer, kind)(value)
    data = writer.to_bytes()
    assert bytes(writer) == data
    assert len(writer) == len(data)
    for buffer in (data, bytearray(data), memoryview(data)):
        reader = Reader(buffer)
        assert [getattr(reader, kind)() for _ in values] == values
        reader.expect_end()
    for value in values:
        writer = Writer()
        getattr(writer, kind)(value)
        data = writer.to_bytes()
        for cut in range(min(len(data), 20)):
            with pytest.raises(CorruptDataError):
                getattr(Reader(data[:cut]), kind)()


def test_known_bytes() -> None:
    """Examples after the protocol guide: zigzag, length prefixes, compact lengths plus one."""
    writer = Writer()
    writer.varint(-1)
    writer.varint(300)
    writer.string("ab")
    writer.compact_string("ab")
    writer.compact_nullable_string(None)
    writer.nullable_bytes(None)
    assert writer.to_bytes().hex(" ") == "01 d8 04 00 02 61 62 03 61 62 00 ff ff ff ff"


@pytest.mark.parametrize("kind", ["array", "nullable_array", "compact_array", "compact_nullable_array"])
def test_arrays(kind: str) -> None:
    for items in ([], [1, 2, 3], None) if "nullable" in kind else ([], [1, 2, 3]):
        writer = Writer()
        getattr(writer, kind)(items, writer.int16)
        reader = Reader(writer.to_bytes())
        assert getattr(reader, kind)(reader.int16) == items
        assert reader.remaining == 0


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("string", b"\xff\xff"),
        ("string", b"\x7f\xffabc"),
        ("string", b"\x00\x01\xff"),
        ("nullable_string", b"\xff\xfe"),
        ("compact_string", b"\x00"),
        ("compact_string", b"\xff\xff\xff\xff\x0f"),
        ("bytes_", b"\xff\xff\xff\xff"),
        ("bytes_", b"\x7f\xff\xff\xff"),
        ("nullable_bytes", b"\xff\xff\xff\xfe"),
        ("compact_bytes", b"\x00"),
        ("unsigned_varint", b"\xff\xff\xff\xff\x1f"),
        ("varint", b"\x80\x80\x80\x80\x80\x00"),
        ("varlong", b"\xff" * 9 + b"\x02"),
        ("varlong", b"\x80" * 11),
    ],
)
def test_lengths_that_lie(kind: str, data: bytes) -> None:
    with pytest.raises(CorruptDataError):
        getattr(Reader(data), kind)()


def test_a_count_beyond_the_bytes_calls_nothing() -> None:
    def never() -> int:
        raise AssertionError

    for data, read in (
        (b"\x7f\xff\xff\xff\x00", "array"),
        (b"\xff\xff\xff\xff", "array"),
        (b"\xff\xff\xff\xfe", "nullable_array"),
        (b"\xff\xff\xff\xff\x0f", "compact_array"),
        (b"\x00", "compact_array"),
    ):
        with pytest.raises(CorruptDataError):
            getattr(Reader(data), read)(never)
    with pytest.raises(CorruptDataError):
        Reader(b"\xff\xff\xff\xff\x0f").tagged_fields()


def test_tagged_fields() -> None:
    writer = Writer()
    writer.tagged_fields()
    writer.tagged_fields({7: b"seven", 0: b"", 300: b"x"})
    reader = Reader(writer.to_bytes())
    assert reader.tagged_fields() == {}
    assert reader.tagged_fields() == {0: b"", 7: b"seven", 300: b"x"}
    for data in (b"\x02\x01\x00\x01\x00", b"\x02\x05\x00\x01\x00", b"\x01\x00\x05a"):
        with pytest.raises(CorruptDataError):
            Reader(data).tagged_fields()


def test_raw_and_position() -> None:
    writer = Writer()
    writer.raw(b"abc")
    reader = Reader(b"--" + writer.to_bytes(), 2)
    assert (reader.position, reader.remaining) == (2, 3)
    assert bytes(reader.raw(2)) == b"ab"
    with pytest.raises(CorruptDataError, match="1 bytes are left over"):
        reader.expect_end()
    for size in (2, -1):
        with pytest.raises(CorruptDataError):
            reader.raw(size)


OVERFLOWS: list[tuple[Callable[[Writer], None], str]] = [
    (lambda writer: writer.int8(128), "int8"),
    (lambda writer: writer.uint8(-1), "uint8"),
    (lambda writer: writer.int16(2**15), "field"),
    (lambda writer: writer.uint16(-1), "field"),
    (lambda writer: writer.int32(2**31), "field"),
    (lambda writer: writer.uint32(2**32), "field"),
    (lambda writer: writer.int64(2**63), "field"),
    (lambda writer: writer.unsigned_varint(-1), "varint"),
    (lambda writer: writer.varint(2**31), "varint"),
    (lambda writer: writer.varlong(2**63), "varlong"),
    (lambda writer: writer.string("x" * 32768), "32768 bytes"),
]


@pytest.mark.parametrize(("write", "message"), OVERFLOWS)
def test_values_that_do_not_fit_are_refused(write: Callable[[Writer], None], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        write(Writer())
