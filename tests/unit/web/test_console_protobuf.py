"""Protobuf in the console: what messages look like, what is refused of them, and which readers are kept."""

from __future__ import annotations

import asyncio
import base64
import gc
import json
import re
import sys
import weakref
from functools import cache
from typing import Any

import pytest
from console_client import ConsoleClient
from google.protobuf import (
    any_pb2,
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,
    timestamp_pb2,
)
from google.protobuf.message_factory import GetMessageClass
from http_gateway import HttpGateway
from hypothesis import given, settings
from hypothesis import strategies as st

import semel
from semel.sdk.schemas.errors import SchemaDataError
from semel.sdk.schemas.wire import message_indexes
from semel.testing import Broker
from semel.web.console import protobuf_readers
from semel.web.console.protobuf_readers import ProtobufReaders
from semel.web.console.protobuf_values import ProtobufReader
from semel.web.console.record_view import SHOWN_BYTES, Shown, shown
from semel.web.console.schema_lookup import FoundSchema
from semel.web.registry.formats.base import Referenced
from semel.web.registry.formats.protobuf import Protobuf, ProtobufParsed

EVERYTHING = """
syntax = "proto3";
package shop;
import "google/protobuf/any.proto";
import "google/protobuf/duration.proto";
import "google/protobuf/struct.proto";
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
message First { int32 a = 1; }
message Everything {
  message Inner { sint32 s = 1; Inner more = 2; }
  int64 big = 1;
  uint64 bigger = 2;
  bytes raw = 3;
  string text_of_it = 4;
  Size size = 5;
  repeated Size sizes = 6;
  map<string, Inner> inners = 7;
  map<int64, bool> flags = 8;
  map<bool, string> words = 9;
  oneof one { int32 left = 10; string right = 11; }
  repeated Inner list = 12;
  optional int32 maybe = 13;
  double real = 14;
  google.protobuf.Timestamp at = 15;
  google.protobuf.Duration took = 16;
  google.protobuf.Struct loose = 17;
  google.protobuf.Int64Value wrapped = 18;
  google.protobuf.Any any = 19;
  repeated fixed32 fixed = 20;
}
enum Size { SMALL = 0; LARGE = 1; }
"""
EVERY = message_indexes([1])
RECURSIVE = """
syntax = "proto3";
import "google/protobuf/any.proto";
message M {
  M one = 1; repeated M many = 2; map<string, M> named = 3; repeated int32 numbers = 4; google.protobuf.Any any = 5;
  repeated fixed64 wide = 6; string text = 7;
}
"""
OLD = """
syntax = "proto2";
message Old {
  required string name = 1;
  optional group Part = 2 { optional int32 a = 1; }
  optional Closed closed = 3;
  enum Closed { A = 0; B = 1; }
  extensions 100 to 199;
}
extend Old { optional int64 added = 100; repeated Old others = 101; }
"""
MESSAGE_SET = 'syntax = "proto2"; message S { option message_set_wire_format = true; extensions 4 to 5; }'


@cache
def parsed(text: str, references: tuple[Referenced, ...] = ()) -> ProtobufParsed:
    return Protobuf().parse(text, references)


@cache
def reader(text: str) -> ProtobufReader:
    return ProtobufReader(parsed(text))


@cache
def message_class(text: str, name: str) -> Any:
    pool = descriptor_pool.DescriptorPool()
    for file in parsed(text).files:
        pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName(name))


def decoded(text: str, data: bytes) -> Any:
    return reader(text).decoded(memoryview(data)).value


def seen(text: str, data: bytes, most: int = 1 << 20) -> Shown:
    schema = FoundSchema("PROTOBUF", "s", 1, protobuf=reader(text))
    return shown(b"\0\0\0\0\7" + data, "auto", {7: schema}, most, 5 + len(data))


def field(number: int, data: bytes) -> bytes:
    """A field that has a length, as Protobuf writes it."""
    return varint(number << 3 | 2) + varint(len(data)) + data


def varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def nested(levels: int, number: int = 1) -> bytes:
    data = b""
    for _ in range(levels):
        data = field(number, data)
    return data


# --- In the gateway ---------------------------------------------------------------------------------------------------


def test_values_and_keys_are_decoded_by_the_gateways_own_registry(gateway: HttpGateway, broker: Broker) -> None:
    topic = "protobuf"
    with semel.Admin(broker.bootstrap) as admin:
        admin.create_topic(topic)

    def registered(subject: str, text: str, *references: dict[str, object]) -> bytes:
        body = {"schema": text, "schemaType": "PROTOBUF", "references": list(references)}
        answer = gateway.ask("POST", f"/subjects/{subject}/versions", body)
        return b"\0" + int(answer.body["id"]).to_bytes(4, "big")

    registered("money.proto", 'syntax = "proto3"; package shop; message Money { int64 cents = 1; }')
    text = """
        syntax = "proto3"; package shop; import "money.proto";
        message Key { string name = 1; }
        message Order { message Line { Money price = 1; } repeated Line lines = 1; }
    """
    by_text = registered("order", text, {"name": "money.proto", "subject": "money.proto", "version": 1})
    file = descriptor_pb2.FileDescriptorProto(name="x.proto", syntax="proto3", package="shop")
    file.message_type.add(name="Order").field.add(name="other", number=1, type=5, label=1)
    of_sets = registered("sets", MESSAGE_SET)
    by_descriptor = registered("described", base64.b64encode(file.SerializeToString()).decode())
    order = field(1, field(1, b"\x08" + varint(2**63 - 1)))
    with semel.Producer(broker.bootstrap) as producer:
        producer.send(topic, by_text + message_indexes([1]) + order, key=by_text + b"\0" + field(1, b"me"))
        producer.send(topic, by_text + message_indexes([1, 0]) + field(1, b"\x08\x05"))
        producer.send(topic, by_descriptor + b"\0\x08\x05")
        producer.send(topic, by_text + b"\x02\x0a" + order)
        producer.send(topic, of_sets + b"\0\x08\x05")
        producer.flush()
    console = ConsoleClient(gateway.address)
    for form in ("auto", "schema"):
        page = console.get("records", topic=topic, partition=0, begin="offset", offset=0, format=form)
        assert page.status == 200
        assert '{ "name": "me" } shop.Key of PROTOBUF schema' in page.plain
        assert f'{{ "lines": [ {{ "price": {{ "cents": {2**63 - 1} }} }} ] }} shop.Order of PROTOBUF' in page.plain
        assert '{ "price": { "cents": 5 } } shop.Order.Line of PROTOBUF schema' in page.plain
        assert '{ "other": 5 } shop.Order of PROTOBUF schema' in page.plain
        assert re.search(r"schema \d+ can't be used: it has a message_set_wire_format", page.plain)
        assert "its message is number [5], which the schema does not have" in page.plain
    alone = console.get("record", topic=topic, partition=0, offset=0)
    assert f'"cents": {2**63 - 1}' in alone.plain


def test_a_page_shows_what_is_nested_as_deep_as_may_be(gateway: HttpGateway, broker: Broker) -> None:
    with semel.Admin(broker.bootstrap) as admin:
        admin.create_topic("deep")
    body = {"schema": RECURSIVE, "schemaType": "PROTOBUF"}
    schema_id = int(gateway.ask("POST", "/subjects/deep-value/versions", body).body["id"])
    with semel.Producer(broker.bootstrap) as producer:
        for data in (nested(100), nested(101)):
            producer.send("deep", b"\0" + schema_id.to_bytes(4, "big") + b"\0" + data)
        producer.flush()
    console = ConsoleClient(gateway.address)
    page = console.get("records", topic="deep")
    assert page.status == 200
    assert page.plain.count('"one"') == 100
    assert "it is nested deeper than 100" in page.plain


# --- What messages look like ------------------------------------------------------------------------------------------


def test_a_message_is_shown_by_its_schema() -> None:
    made = message_class(EVERYTHING, "shop.Everything")(
        big=-(2**63),
        bigger=2**64 - 1,
        raw=b"a\xff",
        text_of_it="é",
        size=1,
        sizes=[0, 1, 9],
        inners={"k": {"s": -3, "more": {}}},
        flags={-5: True},
        words={True: "yes"},
        right="",
        list=[{"s": 1}, {}],
        maybe=0,
        real=0.5,
        at={"seconds": 1, "nanos": 500_000_000},
        took={"seconds": -90},
        wrapped={"value": 2**53 + 1},
        fixed=[1, 2],
    )
    made.loose.update({"a": [1, None, {"b": "c"}], "t": True})
    assert decoded(EVERYTHING, EVERY + made.SerializeToString()) == {
        "big": -(2**63),
        "bigger": 2**64 - 1,
        "raw": "a\\xff",
        "text_of_it": "é",
        "size": "LARGE",
        "sizes": ["SMALL", "LARGE", 9],
        "inners": {"k": {"s": -3, "more": {}}},
        "flags": {"-5": True},
        "words": {"true": "yes"},
        "right": "",
        "list": [{"s": 1}, {}],
        "maybe": 0,
        "real": 0.5,
        "at": "1970-01-01T00:00:01.500Z",
        "took": "-90s",
        "loose": {"a": [1.0, None, {"b": "c"}], "t": True},
        "wrapped": 2**53 + 1,
        "fixed": [1, 2],
    }
    text = seen(EVERYTHING, EVERY + made.SerializeToString()).text
    assert text is not None
    assert f'"wrapped": {2**53 + 1}' in text


def test_what_is_in_an_any_is_shown_where_the_schema_has_its_type() -> None:
    known = any_pb2.Any(type_url="type.googleapis.com/shop.First", value=b"\x08\x07")
    assert decoded(EVERYTHING, EVERY + field(19, known.SerializeToString())) == {
        "any": {"@type": "type.googleapis.com/shop.First", "a": 7}
    }
    well_known = any_pb2.Any()
    well_known.Pack(duration_pb2.Duration(seconds=3))
    assert decoded(EVERYTHING, EVERY + field(19, well_known.SerializeToString())) == {
        "any": {"@type": "type.googleapis.com/google.protobuf.Duration", "value": "3s"}
    }
    unknown = any_pb2.Any(type_url="x/not.There", value=b"\xff")
    assert decoded(EVERYTHING, EVERY + field(19, unknown.SerializeToString())) == {
        "any": {"@type": "x/not.There", "value": "\\xff"}
    }


def test_a_time_that_no_calendar_has_is_shown_as_its_numbers() -> None:
    at = timestamp_pb2.Timestamp(seconds=2**62, nanos=-1)
    assert decoded(EVERYTHING, EVERY + field(15, at.SerializeToString())) == {"at": {"seconds": 2**62, "nanos": -1}}


def test_proto2_has_groups_extensions_closed_enums_and_required_fields() -> None:
    data = field(1, b"n\xff") + b"\x13\x08\x05\x14" + b"\x18\x01" + b"\xa0\x06\x05" + field(101, field(1, b"x"))
    found = seen(OLD, b"\0" + data)
    assert json.loads(found.text or "") == {
        "name": "n\\xff",
        "part": {"a": 5},
        "closed": "B",
        "[added]": 5,
        "[others]": [{"name": "x"}],
    }
    assert found.note == ""
    lacking = seen(OLD, b"\0\x18\x07")
    assert lacking.text == "{}"
    assert "it lacks fields that the schema requires" in lacking.note
    assert "does not know: 3 of Old" in lacking.note


def test_fields_that_the_schema_does_not_have_are_told_of() -> None:
    found = seen(RECURSIVE, b"\0" + field(2, field(99, b"x")) + b"\xf8\x07\x01")
    assert json.loads(found.text or "") == {"many": [{}]}
    assert "127 of M, 99 of M" in found.note
    many = seen(RECURSIVE, b"\0" + b"".join(field(number, b"") for number in range(1_000, 3_000)))
    assert many.text == "{}"
    assert many.note.endswith("1009 of M and more")


def test_schemas_may_call_different_messages_by_one_name() -> None:
    text = 'syntax = "proto3"; message Same { %s a = 1; }'
    assert decoded(text % "int32", b"\0\x08\x01") == {"a": 1}
    assert decoded(text % "sint32", b"\0\x08\x01") == {"a": -1}


def test_a_well_known_name_with_other_fields_is_shown_as_what_it_is() -> None:
    impostors = (
        'syntax = "proto3"; package google.protobuf; message Timestamp { string seconds = 1; }',
        'syntax = "proto3"; package google.protobuf; '
        "message Timestamp { repeated int64 seconds = 1; int32 nanos = 2; }",
    )
    user = 'syntax = "proto3"; import "google/protobuf/timestamp.proto"; message M { google.protobuf.Timestamp t = 1; }'
    for impostor, expected in zip(impostors, ("\x01", [1]), strict=True):
        schema = parsed(user, (Referenced("google/protobuf/timestamp.proto", impostor),))
        found = ProtobufReader(schema).decoded(memoryview(b"\0" + field(1, field(1, b"\x01"))))
        assert found.value == {"t": {"seconds": expected}}
    values = """
        syntax = "proto3"; package google.protobuf; enum NullValue { NULL_VALUE = 0; }
        message Struct { map<string, Value> fields = 1; }
        message ListValue { repeated Value values = 1; }
        message Value { NullValue null_value = 1; double number_value = 2; string string_value = 3; bool bool_value = 4;
          Struct struct_value = 5; ListValue list_value = 6; }
    """
    user = 'syntax = "proto3"; import "google/protobuf/struct.proto"; message M { google.protobuf.Value v = 1; }'
    schema = parsed(user, (Referenced("google/protobuf/struct.proto", values),))
    found = ProtobufReader(schema).decoded(memoryview(b"\0" + field(1, field(3, b"x"))))
    assert found.value == {"v": {"string_value": "x"}}


JSON_LIKE = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None)  # the first one has the schema compiled
@given(
    st.integers(-(2**63), 2**63 - 1),
    st.text(),
    st.lists(st.integers(-(2**31), 2**31 - 1)),
    st.dictionaries(st.integers(-(2**63), 2**63 - 1), st.booleans()),
    st.dictionaries(st.text(max_size=5), JSON_LIKE, max_size=4),
)
def test_what_was_written_is_read(
    big: int, text: str, numbers: list[int], flags: dict[int, bool], loose: dict[str, Any]
) -> None:
    made = message_class(EVERYTHING, "shop.Everything")(
        big=big, text_of_it=text, list=[{"s": number} for number in numbers], flags=flags
    )
    made.loose.update(loose)
    made.loose.SetInParent()
    found = decoded(EVERYTHING, EVERY + made.SerializeToString())
    assert found.get("big", 0) == big
    assert found.get("text_of_it", "") == text
    assert [one.get("s", 0) for one in found.get("list", [])] == numbers
    assert {int(key): value for key, value in found.get("flags", {}).items()} == flags
    assert found["loose"] == loose


# --- What is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "it ends within the numbers of its message"),
        (b"\x02\x01", "its message is number [-1], which the schema does not have"),
        (b"\x02\x04", "its message is number [2], which the schema does not have"),
        (b"\x04\x00\x02", "its message is number [0, 1], which the schema does not have"),
        (b"\x04\x00\x00", "its message is M.NamedEntry, which is a pair of a map"),
        (b"\0\x0a\x05abc", "it ends within a value of 5 bytes"),
        (b"\0\x08", "it ends within a number"),
        (b"\0\x08" + b"\xff" * 11, "it has a number of more than 10 bytes"),
        (b"\0\x31\0", "it ends within a number"),
        (b"\0\x0e", "it has a field of the wire type 6, which there is not"),
        (b"\0\x0c\x08", "a group ends that did not begin"),
        (b"\0\x0a\x02\x0c\x08", "a group ends that did not begin"),
        (b"\0\x00\x00", "the bytes are no message M"),
        (b"\0\x0c", "the bytes are no message M"),
        (b"\0" + field(7, b"\xff"), "the bytes are no message M"),
        (b"\0" + nested(101), "it is nested deeper than 100"),
        (b"\0" + nested(60, 3) + b"\x0b" * 101, "it is nested deeper than 100"),
        (b"\0" + b"\xa3\x06" * 101, "it is nested deeper than 100"),
        (b"\0" + field(2, b"") * 20_000, "it has more than 20000 values"),
        (b"\0" + field(4, b"\1" * 20_000), "it has more than 20000 values"),
        (b"\0" + field(6, b"\1" * 160_000), "it has more than 20000 values"),
        (b"\0" + b"\xa0\x06\1" * 20_000, "it has more than 20000 values"),
        (b"\0" + field(100, b"") * 20_000, "it has more than 20000 values"),
    ],
)
def test_bytes_that_are_no_message_or_ask_for_too_much_are_shown_in_hexadecimal(data: bytes, reason: str) -> None:
    found = seen(RECURSIVE, data)
    assert found.form == "hex"
    assert found.note == f"it is not as schema 7 says: {reason}"


def test_what_is_just_within_the_bounds_is_decoded() -> None:
    assert len(decoded(RECURSIVE, b"\0" + field(4, b"\1" * 19_999))["numbers"]) == 19_999
    assert str(decoded(RECURSIVE, b"\0" + nested(100, 2))).count("many") == 100


def test_messages_in_anys_count_as_all_others() -> None:
    def wrapped(data: bytes) -> bytes:
        return field(5, any_pb2.Any(type_url="t/M", value=data).SerializeToString())

    deep = b""
    for _ in range(60):
        deep = wrapped(deep)
    wide = field(2, wrapped(field(4, b"\1" * 6_000))) * 4
    for data, reason in ((deep, "it is nested deeper than 100"), (wide, "it has more than 20000 values")):
        with pytest.raises(SchemaDataError, match=reason):
            decoded(RECURSIVE, b"\0" + data)
    assert decoded(RECURSIVE, b"\0" + wrapped(field(4, b"\1")))["any"]["numbers"] == [1]


def test_a_schema_of_many_fields_makes_no_gigabytes_of_a_few_bytes() -> None:
    fields = "".join(f"string a{number} = {number};" for number in range(3, 3_900))
    large = f'syntax = "proto3"; message M {{ repeated M c = 1; {fields} }} message Small {{ map<string, M> m = 1; }}'
    assert decoded(large, b"\0" + field(1, b"") * 100)["c"] == [{}] * 100
    for data in (b"\0" + field(1, b"") * 2_000, message_indexes([1]) + field(1, field(2, b"")) * 1_000):
        with pytest.raises(SchemaDataError, match="its messages would take more than 16 MiB"):
            decoded(large, data)


def test_extensions_count_too() -> None:
    fields = "".join(f"optional string a{number} = {number};" for number in range(1, 3_900))
    text = 'syntax = "proto2"; message S { extensions 4 to 9; } extend S { repeated B b = 4; } '
    text += f"message B {{ {fields} }}"
    with pytest.raises(SchemaDataError, match="its messages would take more than 16 MiB"):
        decoded(text, b"\0" + field(4, b"") * 2_000)


def test_the_text_of_a_value_is_cut_where_names_of_the_schema_make_it_long() -> None:
    text = f'syntax = "proto3"; message M {{ repeated M r = 1; int32 {"n" * 10_000} = 2; }}'
    found = seen(text, b"\0" + field(1, b"\x10\x01") * 500, SHOWN_BYTES)
    assert found.text is not None
    assert len(found.text) == SHOWN_BYTES * 8
    assert found.is_cut
    assert not seen(text, b"\0" + field(1, b""), SHOWN_BYTES).is_cut


def test_a_caller_that_is_deep_already_gets_a_reason() -> None:
    data = memoryview(b"\0" + nested(100, 2))
    frame, depth = sys._getframe(), 0
    while frame := frame.f_back:  # type: ignore[assignment]
        depth += 1

    def deeper(levels: int) -> None:
        if levels:
            deeper(levels - 1)
        else:
            reader(RECURSIVE).decoded(data)

    reader(RECURSIVE).decoded(data)
    with pytest.raises(SchemaDataError, match="it is nested too deeply"):
        deeper(sys.getrecursionlimit() - depth - 260)


def test_a_schema_of_message_sets_is_refused() -> None:
    with pytest.raises(SchemaDataError, match="message_set_wire_format"):
        ProtobufReader(parsed(MESSAGE_SET))


def test_a_schema_that_cannot_be_used_says_why() -> None:
    schema = FoundSchema("PROTOBUF", "s", 1, problem="it is too large")
    found = shown(b"\0\0\0\0\7\0\x08\1", "auto", {7: schema}, 100, 8)
    assert found.form == "hex"
    assert found.note == "schema 7 can't be used: it is too large"


# --- Which readers are kept -------------------------------------------------------------------------------------------

SMALL = 'syntax = "proto3"; message M { int32 a = 1; }'
SMALLER = 'syntax = "proto3"; message M {}'


def test_a_reader_is_made_once_and_again_for_another_schema_of_its_id() -> None:
    async def run() -> None:
        readers = ProtobufReaders()
        first = await readers.reader(1, parsed(SMALL))
        assert await readers.reader(1, parsed(SMALL)) is first
        other = await readers.reader(1, parsed(SMALLER))
        assert other is not first
        assert await readers.reader(1, parsed(SMALLER)) is other

    asyncio.run(run())


def test_the_readers_used_last_are_kept_and_others_are_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protobuf_readers, "_READERS_MAX", 2)

    async def run() -> None:
        readers = ProtobufReaders()
        first, second = [await readers.reader(number, parsed(SMALL)) for number in (1, 2)]
        gone = weakref.ref(second)
        assert await readers.reader(1, parsed(SMALL)) is first
        await readers.reader(3, parsed(SMALL))
        assert await readers.reader(1, parsed(SMALL)) is first
        del second
        gc.collect()
        assert gone() is None

    asyncio.run(run())


def test_readers_take_no_more_than_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    size_bytes = parsed(SMALL).files[-1].ByteSize()
    monkeypatch.setattr(protobuf_readers, "_BYTES_MAX", 2 * size_bytes)

    async def run() -> None:
        readers = ProtobufReaders()
        first = await readers.reader(1, parsed(SMALL))
        for _ in range(3):
            await readers.reader(2, parsed(SMALL))
            await readers.reader(2, parsed(SMALLER))
        assert await readers.reader(1, parsed(SMALL)) is first
        await readers.reader(2, parsed(SMALL))
        await readers.reader(3, parsed(SMALL))
        assert await readers.reader(1, parsed(SMALL)) is not first
        monkeypatch.setattr(protobuf_readers, "_SCHEMA_BYTES_MAX", size_bytes - 1)
        with pytest.raises(SchemaDataError, match=f"it has {size_bytes} bytes"):
            await readers.reader(4, parsed(SMALL))

    asyncio.run(run())
