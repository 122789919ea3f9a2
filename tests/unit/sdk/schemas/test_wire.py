"""Confluent's wire format, byte by byte."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.sdk.schemas.errors import SchemaDataError
from semel.sdk.schemas.wire import header, message_indexes, split, split_indexes


def test_a_header_is_a_zero_and_the_id() -> None:
    assert header(0x01020304) == b"\0\1\2\3\4"
    schema_id, rest = split(b"\0\1\2\3\4rest")
    assert (schema_id, bytes(rest)) == (0x01020304, b"rest")


@pytest.mark.parametrize("data", [b"", b"\0\0\0\0", b"\1\0\0\0\1", b'{"a": 1}'])
def test_what_has_no_header_is_refused(data: bytes) -> None:
    with pytest.raises(SchemaDataError, match="was not written with a schema registry"):
        split(data)


@pytest.mark.parametrize(("indexes", "data"), [([0], b"\0"), ([1], b"\2\2"), ([0, 1], b"\4\0\2"), ([64], b"\2\x80\1")])
def test_the_place_of_a_message_is_in_zigzag(indexes: list[int], data: bytes) -> None:
    assert message_indexes(indexes) == data
    found, rest = split_indexes(memoryview(data + b"x"))
    assert (found, bytes(rest)) == (indexes, b"x")


@given(st.lists(st.integers(0, 1 << 20), min_size=1, max_size=20))
def test_places_are_read_as_they_are_written(indexes: list[int]) -> None:
    assert split_indexes(memoryview(message_indexes(indexes)))[0] == indexes


@given(st.binary(max_size=20))
def test_other_bytes_are_an_error_and_nothing_else(data: bytes) -> None:
    try:
        split_indexes(memoryview(data))
    except SchemaDataError:
        return
