"""Columns of framed values as typed Arrow columns, and back, against our own registry."""

from __future__ import annotations

import asyncio
import io
import itertools
import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from http_gateway import HttpGateway
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import semel
from semel.protocol.arrow import decode_to_arrow
from semel.protocol.batch_builder import BatchBuilder
from semel.protocol.compression import Compression
from semel.protocol.errors import UsageError
from semel.schemas import Schema, SchemaDataError, SchemaReference, SchemaRegistry, SchemaRegistryError
from semel.testing import Broker

V1 = '{"type":"record","name":"Order","namespace":"shop","fields":[{"name":"id","type":"long"}]}'
V2 = V1.replace("]}", ',{"name":"note","type":"string","default":"none"}]}')
_numbers = itertools.count()


@pytest.fixture(scope="module")
def gateway() -> Iterator[HttpGateway]:
    with Broker() as broker, HttpGateway(broker.bootstrap) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def registry(gateway: HttpGateway) -> SchemaRegistry:
    registry = SchemaRegistry(gateway.url)
    registry.set_compatibility("NONE")
    return registry


@pytest.fixture
def topic() -> str:
    return f"topic_{next(_numbers)}"


def record(*fields: tuple[Any, ...]) -> str:
    """The schema of a record. fields: name, type, and a default where there is one."""
    told = [dict(zip(("name", "type", "default"), each, strict=False)) for each in fields]
    return json.dumps({"type": "record", "name": "R", "namespace": "n", "fields": told})


def logical(kind: str, logical_type: str, /, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": logical_type, **more}


def binary(*values: bytes | None) -> pa.Array:
    return pa.array(values, pa.binary())


def one_type(registry: SchemaRegistry, subject: str, avro: Any, *values: Any) -> pa.Array:
    """A column of one field of that type, of values as fastavro takes them."""
    write = registry.avro_serializer(record(("x", avro)), subject=subject)
    column = registry.arrow_decoder(subject=subject).decode(binary(*(write({"x": each}) for each in values)))
    column.validate(full=True)
    return column.field("x")


# --- Types ------------------------------------------------------------------------------------------------------------

DECIMAL = logical("bytes", "decimal", precision=20, scale=2)
WIDE = logical("bytes", "decimal", precision=50, scale=10)
FIXED_DECIMAL = logical("fixed", "decimal", name="money", size=6, precision=10, scale=3)
INNER = {"type": "record", "name": "Inner", "fields": [{"name": "a", "type": "int"}]}
COLOUR = {"type": "enum", "name": "Colour", "symbols": ["RED", "BLUE"]}
UNION = ["null", "long", "string", "bytes", INNER, COLOUR]
UNION_TYPE = pa.struct(
    [
        ("long", pa.int64()),
        ("string", pa.string()),
        ("bytes", pa.binary()),
        ("n.Inner", pa.struct([("a", pa.int32())])),
        ("n.Colour", pa.string()),
    ]
)

TYPES: list[tuple[Any, pa.DataType, list[Any]]] = [
    ("null", pa.null(), [None]),
    ("boolean", pa.bool_(), [True, False]),
    ("int", pa.int32(), [-(2**31), 2**31 - 1]),
    ("long", pa.int64(), [-(2**63), 2**63 - 1]),
    ("float", pa.float32(), [1.5, float("-inf")]),
    ("double", pa.float64(), [0.1, -0.0]),
    ("bytes", pa.binary(), [b"", b"\xff\0"]),
    ("string", pa.string(), ["", "z\u00fcrich"]),
    ({"type": "fixed", "name": "F", "size": 3}, pa.binary(3), [b"abc"]),
    (COLOUR, pa.string(), ["BLUE", "RED"]),
    (["null", "long"], pa.int64(), [5, None]),
    (["long"], pa.int64(), [5]),
    (["null"], pa.null(), [None]),
    (["null", INNER], pa.struct([("a", pa.int32())]), [{"a": 1}, None]),
    ({"type": "array", "items": ["null", "int"]}, pa.list_(pa.int32()), [[], [1, None, 2]]),
    ({"type": "array", "items": INNER}, pa.list_(pa.struct([("a", pa.int32())])), [[{"a": 1}]]),
    ({"type": "map", "values": "long"}, pa.map_(pa.string(), pa.int64()), [{}, {"a": 1, "b": 2}]),
    (
        {"type": "map", "values": {"type": "map", "values": DECIMAL}},
        pa.map_(pa.string(), pa.map_(pa.string(), pa.decimal128(20, 2))),
        [{"a": {"b": Decimal("1.25")}}],
    ),
    (INNER, pa.struct([("a", pa.int32())]), [{"a": 7}]),
    ({"type": "record", "name": "E", "fields": []}, pa.struct([]), [{}]),
    (DECIMAL, pa.decimal128(20, 2), [Decimal("-123456789012345678.90"), Decimal("0.00"), Decimal("1.28")]),
    (WIDE, pa.decimal256(50, 10), [Decimal("1234567890123456789012345678901234567890.0123456789")]),
    (FIXED_DECIMAL, pa.decimal128(10, 3), [Decimal("-1.234"), Decimal("9999999.999")]),
    (logical("int", "time-micros"), pa.int32(), [5]),
    (logical("string", "uuid"), pa.string(), ["2b1d0a24-5b9b-4d0c-8a0a-1d9c1d0e8f00"]),
]


@pytest.mark.parametrize(("avro", "arrow", "values"), TYPES, ids=lambda value: str(value)[:40])
def test_a_type_becomes_that_of_arrow_and_comes_back(
    registry: SchemaRegistry, topic: str, avro: Any, arrow: pa.DataType, values: list[Any]
) -> None:
    column = one_type(registry, topic, avro, *values)
    assert column.type == arrow
    given = [list(each.items()) if isinstance(each, dict) and pa.types.is_map(arrow) else each for each in values]
    assert column.cast(arrow) == column
    assert column.equals(pa.array(deep_pairs(given, arrow), arrow))
    encoder = registry.arrow_encoder(record(("x", avro)), subject=topic)
    framed = encoder.encode(pa.record_batch({"x": column}))
    assert registry.arrow_decoder(subject=topic).decode(framed).field("x").equals(column)
    write = registry.avro_serializer(record(("x", avro)), subject=topic)
    assert framed.to_pylist() == [write({"x": each}) for each in values]


def deep_pairs(values: list[Any], kind: pa.DataType) -> list[Any]:
    """Maps in maps as pyarrow takes them."""
    if pa.types.is_map(kind) and pa.types.is_map(kind.item_type):
        return [[(key, list(dict(value).items())) for key, value in each] for each in values]
    return values


TEMPORAL = [
    ("int", "date", pa.date32()),
    ("int", "time-millis", pa.time32("ms")),
    ("long", "time-micros", pa.time64("us")),
    ("long", "timestamp-millis", pa.timestamp("ms", "UTC")),
    ("long", "timestamp-micros", pa.timestamp("us", "UTC")),
    ("long", "timestamp-nanos", pa.timestamp("ns", "UTC")),
    ("long", "local-timestamp-millis", pa.timestamp("ms")),
    ("long", "local-timestamp-micros", pa.timestamp("us")),
    ("long", "local-timestamp-nanos", pa.timestamp("ns")),
]


@pytest.mark.parametrize(("kind", "name", "arrow"), TEMPORAL)
def test_moments_keep_their_number_and_unit(
    registry: SchemaRegistry, topic: str, kind: str, name: str, arrow: pa.DataType
) -> None:
    """Also one after the year 9999, which no datetime of Python's holds."""
    numbers = [0, -1, 86_399_999] + ([] if name.startswith("time-") or kind == "int" else [2**62 + 7])
    schema_id = registry.register(topic, Schema(record(("x", logical(kind, name)))))
    column = registry.arrow_decoder(subject=topic).decode(
        binary(*(framed(schema_id, record(("x", kind)), {"x": number}) for number in numbers))
    )
    assert column.field("x").type == arrow
    assert column.field("x").view(pa.int32() if kind == "int" else pa.int64()).to_pylist() == numbers
    encoder = registry.arrow_encoder(record(("x", logical(kind, name))), subject=topic)
    again = encoder.encode(column)
    assert again.to_pylist() == [framed(schema_id, record(("x", kind)), {"x": number}) for number in numbers]


def framed(schema_id: int, schema: str, value: Any) -> bytes:
    output = io.BytesIO()
    fastavro.schemaless_writer(output, fastavro.parse_schema(json.loads(schema)), value)
    return b"\0" + schema_id.to_bytes(4, "big") + output.getvalue()


def test_a_union_of_several_types_has_a_field_for_each(registry: SchemaRegistry, topic: str) -> None:
    values = [5, "five", b"5", None, ("n.Inner", {"a": 5}), ("n.Colour", "RED"), "RED"]
    column = one_type(registry, topic, UNION, *values)
    assert column.type == UNION_TYPE
    told = [each and {name: value for name, value in each.items() if value is not None} for each in column.to_pylist()]
    assert told == [
        {"long": 5},
        {"string": "five"},
        {"bytes": b"5"},
        None,
        {"n.Inner": {"a": 5}},
        {"n.Colour": "RED"},
        {"string": "RED"},
    ]
    encoder = registry.arrow_encoder(record(("x", UNION)), subject=topic)
    again = registry.arrow_decoder(subject=topic).decode(encoder.encode(pa.record_batch({"x": column})))
    assert again.field("x").equals(column)


def test_an_int_of_a_union_with_long_is_a_long(registry: SchemaRegistry, topic: str) -> None:
    column = one_type(registry, topic, ["int", "long", "double"], 5, 2**40, 0.5)
    assert [{k: v for k, v in each.items() if v is not None} for each in column.to_pylist()] == [
        {"long": 5},
        {"long": 2**40},
        {"double": 0.5},
    ]


def test_a_union_whose_branch_no_writer_names(registry: SchemaRegistry, topic: str) -> None:
    old = registry.avro_serializer(record(("x", "string")), subject=topic)({"x": "RED"})
    reader = record(("x", ["string", "long"]))
    assert registry.arrow_decoder(reader=reader).decode(binary(old)).field("x").to_pylist() == [
        {"string": "RED", "long": None}
    ]


def test_a_type_that_can_t_be_told_in_the_reader_s_union(registry: SchemaRegistry, topic: str) -> None:
    data = registry.avro_serializer(record(("x", COLOUR)), subject=topic)({"x": "RED"})
    alone = registry.arrow_decoder(reader=record(("x", ["long", COLOUR])))
    assert alone.decode(binary(data)).field("x").to_pylist() == [{"long": None, "n.Colour": "RED"}]
    with pytest.raises(SchemaDataError, match=r"row 0: the field x was written without a union, as n.Colour"):
        registry.arrow_decoder(reader=record(("x", ["string", COLOUR]))).decode(binary(data))


@pytest.mark.parametrize(
    "schema",
    [
        '{"type":"record","name":"Node","fields":[{"name":"next","type":["null","Node"]}]}',
        '{"type":"record","name":"Node","fields":[{"name":"all","type":{"type":"array","items":"Node"}}]}',
    ],
)
def test_a_record_that_contains_itself_is_refused(registry: SchemaRegistry, topic: str, schema: str) -> None:
    for call in (lambda: registry.arrow_decoder(reader=schema), lambda: registry.arrow_encoder(schema, topic=topic)):
        with pytest.raises(UsageError, match=r"Node contains itself, by the field (next|all)"):
            call()


def test_a_reader_without_the_recursive_field_reads_the_rest(registry: SchemaRegistry, topic: str) -> None:
    node = '{"type":"record","name":"R","fields":[{"name":"id","type":"int"},{"name":"next","type":["null","R"]}]}'
    data = registry.avro_serializer(node, subject=topic)({"id": 1, "next": {"id": 2, "next": None}})
    reader = '{"type":"record","name":"R","fields":[{"name":"id","type":"int"}]}'
    assert registry.arrow_decoder(reader=reader).decode(binary(data)).to_pylist() == [{"id": 1}]


def test_what_else_no_arrow_type_holds(registry: SchemaRegistry) -> None:
    with pytest.raises(UsageError, match=r"the field x has 77 digits"):
        registry.arrow_decoder(reader=record(("x", logical("bytes", "decimal", precision=77))))


def test_types_that_spark_takes(registry: SchemaRegistry, topic: str) -> None:
    fields = [
        ("millis", logical("long", "timestamp-millis")),
        ("local", ["null", logical("long", "local-timestamp-millis")]),
        ("micros", logical("long", "timestamp-micros")),
        ("nanos", logical("long", "timestamp-nanos")),
        ("times", {"type": "array", "items": logical("int", "time-millis")}),
        ("day", {"type": "map", "values": logical("long", "time-micros")}),
        ("date", logical("int", "date")),
        ("fixed", {"type": "fixed", "name": "F", "size": 2}),
        ("money", FIXED_DECIMAL),
        ("inner", ["null", {**INNER, "fields": [{"name": "a", "type": "n.F"}]}]),
    ]
    schema = record(*fields)
    encoder = registry.arrow_encoder(schema, topic=topic)
    row = {
        "millis": 5,
        "local": 6,
        "micros": 7,
        "nanos": 8,
        "times": [1, 2],
        "day": [("k", 3)],
        "date": 4,
        "fixed": b"ab",
        "money": Decimal("1.500"),
        "inner": {"a": b"cd"},
    }
    values = encoder.encode(pa.array([row, None, {**row, "local": None, "inner": None}], encoder.type))
    column = registry.arrow_decoder(topic=topic, with_spark_types=True).decode(values)
    column.validate(full=True)
    types = {
        "millis": pa.timestamp("us", "UTC"),
        "local": pa.timestamp("us"),
        "micros": pa.timestamp("us", "UTC"),
        "nanos": pa.int64(),
        "times": pa.list_(pa.int32()),
        "day": pa.map_(pa.string(), pa.int64()),
        "date": pa.date32(),
        "fixed": pa.binary(),
        "money": pa.decimal128(10, 3),
        "inner": pa.struct([("a", pa.binary())]),
    }
    assert column.type == pa.struct(list(types.items()))
    told = {**row, "millis": 5000, "local": 6000}
    assert column.equals(pa.array([told, None, {**told, "local": None, "inner": None}], column.type))
    some = [name for name in types if name not in ("nanos", "times", "day")]
    names, subject = [field for field in fields if field[0] in some], f"{topic}-some"
    back = registry.arrow_encoder(record(*names), subject=subject).encode(
        pa.table({n: column.field(n)[:1] for n in some})
    )
    decoded = registry.arrow_decoder(subject=subject, with_spark_types=True).decode(back)
    assert decoded.to_pylist() == [{name: column.field(name)[0].as_py() for name in some}]


def test_a_moment_that_spark_has_no_number_for_is_named(registry: SchemaRegistry, topic: str) -> None:
    schema_id = registry.register(topic, Schema(record(("x", logical("long", "timestamp-millis")))))
    values = binary(*(framed(schema_id, record(("x", "long")), {"x": number}) for number in (1, 2**62)))
    with pytest.raises(SchemaDataError, match=r"row 1: it does not fit Arrow's type"):
        registry.arrow_decoder(subject=topic, with_spark_types=True).decode(values)


# --- Several schemas --------------------------------------------------------------------------------------------------


def test_records_of_several_schemas_have_the_reader_s(registry: SchemaRegistry, topic: str) -> None:
    first = registry.avro_serializer(V1, topic=topic)({"id": 1})
    second = registry.avro_serializer(V2, topic=topic)({"id": 2, "note": "b"})
    values = binary(first, None, second, first)
    latest = registry.arrow_decoder(topic=topic)
    assert latest.type == pa.struct([("id", pa.int64()), ("note", pa.string())])
    told = [{"id": 1, "note": "none"}, None, {"id": 2, "note": "b"}, {"id": 1, "note": "none"}]
    assert latest.decode(values).to_pylist() == told
    assert latest.decode(values).null_count == 1
    given = registry.arrow_decoder(reader=V1)
    assert given.decode(values).to_pylist() == [{"id": 1}, None, {"id": 2}, {"id": 1}]


def test_all_kinds_of_defaults(registry: SchemaRegistry, topic: str) -> None:
    inner = {
        "type": "record",
        "name": "Inner",
        "fields": [{"name": "a", "type": "int", "default": 3}, {"name": "b", "type": "bytes", "default": "\u00ff"}],
    }
    reader = record(
        ("id", "long"),
        ("bytes", "bytes", "\u00ff\u0000"),
        ("decimal", DECIMAL, "\u0001\u0000"),
        ("inner", inner, {"a": 4}),
        ("maybe", ["null", DECIMAL], None),
        ("map", {"type": "map", "values": DECIMAL}, {"k": "\u0001"}),
        ("list", {"type": "array", "items": "n.Inner"}, [{}]),
        ("union", ["bytes", "string"], "\u00fe"),
        ("double", "double", 1),
        ("moment", logical("long", "timestamp-millis"), 5),
        ("enum", COLOUR, "BLUE"),
    )
    expected = {
        "id": 1,
        "bytes": b"\xff\0",
        "decimal": Decimal("2.56"),
        "inner": {"a": 4, "b": b"\xff"},
        "maybe": None,
        "map": [("k", Decimal("0.01"))],
        "list": [{"a": 3, "b": b"\xff"}],
        "union": {"bytes": b"\xfe", "string": None},
        "double": 1.0,
        "enum": "BLUE",
    }
    data = registry.avro_serializer(record(("id", "long")), subject=topic)({"id": 1})
    decoder = registry.arrow_decoder(reader=reader)
    for _ in range(2):  # the second record's defaults are those of the first
        (found,) = decoder.decode(binary(data)).to_pylist()
        assert found.pop("moment").microsecond == 5000
        assert found == expected
    encoder = registry.arrow_encoder(reader, subject=f"{topic}-all")
    (again,) = decoder.decode(encoder.encode(pa.table({"id": [1]}))).to_pylist()
    assert {**again, "moment": None} == {**expected, "moment": None}


def test_numbers_are_promoted_and_fields_renamed(registry: SchemaRegistry, topic: str) -> None:
    old = registry.avro_serializer(record(("old", "int"), ("gone", "string")), subject=topic)({"old": 5, "gone": "x"})
    reader = '{"type":"record","name":"R","fields":[{"name":"new","type":"double","aliases":["old"]}]}'
    assert registry.arrow_decoder(reader=reader).decode(binary(old)).to_pylist() == [{"new": 5.0}]


@pytest.mark.parametrize(
    ("written", "reader"),
    [
        (logical("long", "timestamp-millis"), logical("long", "timestamp-micros")),
        (["null", logical("long", "timestamp-millis")], ["null", logical("long", "timestamp-micros")]),
        (logical("int", "date"), logical("long", "timestamp-millis")),
        (DECIMAL, logical("bytes", "decimal", precision=20, scale=3)),
    ],
)
def test_units_are_not_mixed_up(registry: SchemaRegistry, topic: str, written: Any, reader: Any) -> None:
    schema_id = registry.register(topic, Schema(record(("x", {"type": "array", "items": written}))))
    decoder = registry.arrow_decoder(reader=record(("x", {"type": "array", "items": reader})))
    data = b"\0" + schema_id.to_bytes(4, "big") + b"\0"
    with pytest.raises(SchemaDataError, match=r"row 0: the field x was written as .*, and the reader's schema has"):
        decoder.decode(binary(data))


def test_units_of_a_renamed_field_are_not_mixed_up(registry: SchemaRegistry, topic: str) -> None:
    schema_id = registry.register(topic, Schema(record(("old", logical("long", "timestamp-millis")))))
    field = {"name": "x", "type": logical("long", "timestamp-micros"), "aliases": ["old"]}
    reader = json.dumps({"type": "record", "name": "R", "fields": [field]})
    with pytest.raises(SchemaDataError, match=r"the field x was written as timestamp-millis"):
        registry.arrow_decoder(reader=reader).decode(binary(b"\0" + schema_id.to_bytes(4, "big") + b"\2"))


def test_more_digits_of_the_same_scale_are_read(registry: SchemaRegistry, topic: str) -> None:
    data = registry.avro_serializer(record(("x", DECIMAL)), subject=topic)({"x": Decimal("1.25")})
    decoder = registry.arrow_decoder(reader=record(("x", logical("bytes", "decimal", precision=30, scale=2))))
    assert decoder.decode(binary(data)).to_pylist() == [{"x": Decimal("1.25")}]


def test_schemas_with_references(registry: SchemaRegistry, topic: str) -> None:
    referenced = V1.replace('"long"', '{"type":"long","logicalType":"timestamp-millis"}')
    registry.register(topic, Schema(referenced))
    outer = '{"type":"record","name":"Shop","fields":[{"name":"order","type":"shop.Order"}]}'
    references = (SchemaReference("shop.Order", topic, 1),)
    encoder = registry.arrow_encoder(outer, subject=f"{topic}-shop", references=references)
    moments = pa.array([5, 6], pa.timestamp("ms", "UTC"))
    orders = pa.StructArray.from_arrays([moments], ["id"])
    decoder = registry.arrow_decoder(subject=f"{topic}-shop")
    found = decoder.decode(encoder.encode(pa.record_batch({"order": orders})))
    assert found.field("order").equals(orders)


# --- Columns ----------------------------------------------------------------------------------------------------------


def test_records_of_a_topic_with_their_offsets(registry: SchemaRegistry, topic: str) -> None:
    """As they come from a node: record batches, decoded to Arrow, with a tombstone, and one that is damaged."""
    write = registry.avro_serializer(V1, topic=topic)
    builder = BatchBuilder(Compression.NONE)
    for value in (write({"id": 7}), None, write({"id": 8})):
        builder.append(0, b"k", value)
    records = decode_to_arrow([builder.build(40)], topic=topic, partition=3)
    decoded = registry.arrow_decoder(topic=topic).decode_records(records)
    assert decoded.column("value").to_pylist() == [{"id": 7}, None, {"id": 8}]
    assert decoded.drop_columns(["value"]).equals(records.drop_columns(["value"]))
    builder = BatchBuilder(Compression.NONE)
    for value in (write({"id": 7}), b"plain"):
        builder.append(0, b"k", value)
    records = decode_to_arrow([builder.build(40)], topic=topic, partition=3)
    with pytest.raises(SchemaDataError, match=rf"^row 1 \(topic {topic}, partition 3, offset 41\): it begins with"):
        registry.arrow_decoder(topic=topic).decode_records(records)


def test_chunks_slices_tables_and_other_binary_columns(registry: SchemaRegistry, topic: str) -> None:
    write = registry.avro_serializer(V1, topic=topic)
    decoder = registry.arrow_decoder(topic=topic)
    values = binary(*(write({"id": number}) for number in range(6)))
    for kind in (pa.binary(), pa.large_binary(), pa.binary_view()):
        assert [each["id"] for each in decoder.decode(pa.array(values.to_pylist(), kind)[2:5]).to_pylist()] == [2, 3, 4]
    chunked = pa.chunked_array([values[:2], values[:0], values[2:]])
    table = decoder.decode_records(pa.table({"value": chunked, "other": range(6)}))
    assert table.column("value").num_chunks == 3
    assert [each["id"] for each in table.column("value").to_pylist()] == list(range(6))
    assert decoder.decode(binary()).type == decoder.type
    assert decoder.decode(pa.nulls(2)).equals(pa.nulls(2, decoder.type))
    assert decoder.decode(pa.chunked_array([], pa.binary())).type == decoder.type
    with pytest.raises(SchemaDataError, match=r"^row 3: it has 1 bytes"):
        decoder.decode(pa.chunked_array([values[:3], binary(b"x")]))
    with pytest.raises(UsageError, match=r"the column is string"):
        decoder.decode(pa.array(["x"]))
    with pytest.raises(UsageError, match=r"no column 'value'"):
        decoder.decode_records(pa.table({"key": values}))
    encoder = registry.arrow_encoder(V1, topic=topic)
    for rows in (table.select(["value"]).column(0), decoder.decode(values), pa.table({"id": pa.array(range(6))})):
        assert encoder.encode(rows).to_pylist() == values.to_pylist()
    assert encoder.encode(decoder.decode(values)[2:4]).to_pylist() == values[2:4].to_pylist()


def test_nested_columns_in_slices(registry: SchemaRegistry, topic: str) -> None:
    schema = record(
        ("list", {"type": "array", "items": ["null", INNER]}), ("map", ["null", {"type": "map", "values": "int"}])
    )
    encoder = registry.arrow_encoder(schema, topic=topic)
    rows = pa.array(
        [
            {"list": [{"a": number}, None] * number, "map": [(str(number), number)] if number else None}
            for number in range(5)
        ],
        encoder.type,
    )
    decoder = registry.arrow_decoder(topic=topic)
    assert decoder.decode(encoder.encode(rows[2:4])).equals(rows[2:4])
    large = rows.cast(pa.struct([("list", pa.large_list(rows.type[0].type.value_type)), rows.type[1]]))
    assert decoder.decode(encoder.encode(large[1:])).equals(rows[1:])
    fixed = pa.record_batch(
        {"list": pa.array([[{"a": 1}, None]] * 3, pa.list_(pa.struct([("a", pa.int32())]), 2)), "map": pa.nulls(3)}
    )
    assert decoder.decode(encoder.encode(fixed[1:])).field("list").to_pylist() == [[{"a": 1}, None]] * 2


# --- What goes wrong --------------------------------------------------------------------------------------------------


def test_damaged_values_are_named(registry: SchemaRegistry, topic: str) -> None:
    data = registry.avro_serializer(V1, topic=topic)({"id": 1 << 40})
    assert data is not None
    decoder = registry.arrow_decoder(topic=topic)
    with pytest.raises(SchemaDataError, match=r"^row 1: it can't be read by the schema"):
        decoder.decode(binary(data, data[:6]))
    with pytest.raises(SchemaRegistryError, match=r"^row 2: ") as caught:
        decoder.decode(binary(data, None, b"\0\0\0\xff\xff"))
    assert caught.value.status == 404
    other = registry.avro_serializer(record(("id", "string")), subject=f"{topic}-other")({"id": "x"})
    with pytest.raises(SchemaDataError, match=r"^row 1: what was written with the schema .* can't be read by the"):
        decoder.decode(binary(data, other))


def test_values_out_of_range_are_named(registry: SchemaRegistry, topic: str) -> None:
    avro = logical("bytes", "decimal", precision=3, scale=0)
    schema_id = registry.register(topic, Schema(record(("x", avro))))
    good, bad = (framed(schema_id, record(("x", "bytes")), {"x": data}) for data in (b"\x01", b"\x7f\xff"))
    with pytest.raises(SchemaDataError, match=r"^row 1: it does not fit Arrow's type"):
        registry.arrow_decoder(subject=topic).decode(binary(good, bad))


def test_other_languages_are_refused(registry: SchemaRegistry, topic: str) -> None:
    registry.register(topic, Schema('{"type":"object"}', "JSON"))
    with pytest.raises(UsageError, match=r"by Avro schemas alone: use json_deserializer"):
        registry.arrow_decoder(subject=topic)
    with pytest.raises(UsageError, match=r"by Avro schemas alone"):
        registry.arrow_encoder(Schema('syntax = "proto3"; message A {}', "PROTOBUF"), topic=topic)
    data = registry.json_serializer('{"type":"object"}', subject=topic)({})
    with pytest.raises(SchemaDataError, match=r"row 0: the schema .* is of the type JSON, and this reads AVRO"):
        registry.arrow_decoder(reader=V1).decode(binary(data))


def test_what_must_be_said(registry: SchemaRegistry, topic: str) -> None:
    with pytest.raises(UsageError, match=r"give a reader's schema, or the topic"):
        registry.arrow_decoder()
    with pytest.raises(SchemaRegistryError, match=r"not found"):
        registry.arrow_decoder(topic=topic)
    with pytest.raises(UsageError, match=r"no Avro schema"):
        registry.arrow_decoder(reader="{")


ROWS: list[tuple[Any, pa.Array, str]] = [
    ("long", pa.array([1, None]), "row 1: the field x is null"),
    ("boolean", pa.array([True, None]), "row 1: the field x is null"),
    ("int", pa.array([1, 2**40]), "row 1: the field x does not fit int32"),
    ("long", pa.array(["5"]), "row 0: the field x is string, and by the schema it must be int64"),
    ("string", pa.array([5]), "row 0: the field x is int64, and by the schema it must be string"),
    ("long", pa.array([5.0]), "row 0: the field x is double"),
    (COLOUR, pa.array(["RED", "GREEN"]), "row 1: it does not fit the schema"),
    ({"type": "array", "items": "int"}, pa.array([[1], [2, None]]), "row 1: the field x is null or has a null in it"),
    ({"type": "array", "items": "int"}, pa.array([1]), "must be a list"),
    ({"type": "map", "values": "int"}, pa.array([1]), "must be a map"),
    (INNER, pa.array([1]), "must be a struct"),
    (INNER, pa.array([{"a": 1, "b": 2}]), "row 0: the field x has b, and n.Inner no such field"),
    (INNER, pa.array([{}], pa.struct([])), "row 0: there is no column for the field x.a"),
    (["int", "string"], pa.array([5]), "must be a struct with the fields int, string"),
    (["int", "string"], pa.array([{"int": 5, "string": "x"}]), "row 0: the field x has values for several types"),
    (
        logical("long", "timestamp-millis"),
        pa.array([1], pa.timestamp("ms")),
        r"row 0: the field x is timestamp\[ms\], and by the schema",
    ),
    (
        logical("long", "timestamp-millis"),
        pa.array([1000, 1], pa.timestamp("us", "UTC")),
        "row 1: the field x does not",
    ),
    (FIXED_DECIMAL, pa.array([Decimal("1.2345")]), "row 0: the field x does not fit decimal128"),
]


@pytest.mark.parametrize(("avro", "column", "message"), ROWS, ids=lambda value: str(value)[:40])
def test_rows_that_do_not_fit_are_named(
    registry: SchemaRegistry, topic: str, avro: Any, column: pa.Array, message: str
) -> None:
    encoder = registry.arrow_encoder(record(("x", avro)), topic=topic)
    with pytest.raises(SchemaDataError, match=message):
        encoder.encode(pa.record_batch({"x": column}))


def test_what_is_wider_or_narrower_is_taken_where_no_value_changes(registry: SchemaRegistry, topic: str) -> None:
    schema = record(("a", "int"), ("b", "double"), ("c", "string"), ("d", logical("long", "timestamp-millis")))
    encoder = registry.arrow_encoder(schema, topic=topic)
    rows = pa.record_batch(
        {
            "d": pa.array([5000], pa.timestamp("us", "Europe/Berlin")),
            "c": pa.array(["x"]).dictionary_encode(),
            "b": pa.array([3], pa.int16()),
            "a": pa.array([7], pa.int64()),
        }
    )
    found = registry.arrow_decoder(topic=topic).decode(encoder.encode(rows))
    assert found.equals(pa.array([{"a": 7, "b": 3.0, "c": "x", "d": 5}], encoder.type))


def test_null_rows_are_tombstones(registry: SchemaRegistry, topic: str) -> None:
    encoder = registry.arrow_encoder(V1, topic=topic)
    assert (encoder.subject, encoder.type) == (f"{topic}-value", pa.struct([("id", pa.int64())]))
    rows = pa.array([None, {"id": 1}, None], encoder.type)
    found = encoder.encode(rows)
    assert found.is_null().to_pylist() == [True, False, True]
    assert registry.arrow_decoder(topic=topic).decode(found).equals(rows)


def test_schemas_that_are_no_record(registry: SchemaRegistry, topic: str) -> None:
    encoder = registry.arrow_encoder("long", topic=topic, is_key=True)
    assert encoder.subject == f"{topic}-key"
    keys = pa.array([5, None, 6])
    assert registry.arrow_decoder(topic=topic, is_key=True).decode(encoder.encode(keys)).equals(keys)


def test_asyncio(gateway: HttpGateway, topic: str) -> None:
    async def run() -> Any:
        registry = semel.aio.SchemaRegistry(gateway.url)
        encoder = await registry.arrow_encoder(V1, topic=topic)
        decoder = await registry.arrow_decoder(topic=topic)
        return decoder.decode(encoder.encode(pa.table({"id": [1, 2]})))

    assert asyncio.run(run()).to_pylist() == [{"id": 1}, {"id": 2}]


def test_a_subject_s_schemas_are_got_beforehand(registry: SchemaRegistry, topic: str) -> None:
    with Broker() as other, HttpGateway(other.bootstrap) as gateway:
        gone = SchemaRegistry(gateway.url, timeout_s=0.5)
        first = gone.avro_serializer(V1, topic=topic)({"id": 1})
        gone.avro_serializer(V2, topic=topic)
        decoder = SchemaRegistry(gateway.url, timeout_s=0.5).arrow_decoder(topic=topic)
    assert decoder.decode(binary(first)).to_pylist() == [{"id": 1, "note": "none"}]


# --- There and back ---------------------------------------------------------------------------------------------------

_LONGS = st.integers(-(2**63), 2**63 - 1)
_LEAVES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    ("boolean", st.booleans()),
    ("int", st.integers(-(2**31), 2**31 - 1)),
    ("long", _LONGS),
    ("float", st.floats(width=32, allow_nan=False)),
    ("double", st.floats(allow_nan=False)),
    ("bytes", st.binary(max_size=5)),
    ("string", st.text(max_size=5)),
    (DECIMAL, st.decimals(-(10**17), 10**17, places=2)),
    (WIDE, st.decimals(-(10**39), 10**39, places=10)),
]


def is_nothing(schema: Any) -> bool:
    """Whether its values take no bytes: arrays of those are not read."""
    if isinstance(schema, dict) and schema["type"] == "record":
        return all(is_nothing(field["type"]) for field in schema["fields"])
    return bool(schema == "null")


@st.composite
def schemas(draw: st.DrawFn, depth: int = 0) -> tuple[Any, st.SearchStrategy[Any]]:
    """A schema, and values of it as fastavro takes them."""
    kind = draw(st.sampled_from(["leaf", "leaf", "array", "map", "record", "maybe", "fixed", "enum"]))
    name = f"N{next(_numbers)}"
    if kind == "leaf" or depth > 2:
        return draw(st.sampled_from(_LEAVES))
    if kind == "fixed":
        return {"type": "fixed", "name": name, "size": 2}, st.binary(min_size=2, max_size=2)
    if kind == "enum":
        return {"type": "enum", "name": name, "symbols": ["A", "B"]}, st.sampled_from("AB")
    if kind == "record":
        fields = draw(st.lists(schemas(depth + 1), max_size=3))
        told = [{"name": f"f{at}", "type": each[0]} for at, each in enumerate(fields)]
        values = st.fixed_dictionaries({f"f{at}": each[1] for at, each in enumerate(fields)})
        return {"type": "record", "name": name, "fields": told}, values
    inner, values = draw(schemas(depth + 1).filter(lambda each: kind != "maybe" or not isinstance(each[0], list)))
    if kind == "maybe":
        return draw(st.permutations(["null", inner])), st.none() | values
    if kind == "array":
        items = ["null", inner] if is_nothing(inner) and inner != "null" else "int" if inner == "null" else inner
        return {"type": "array", "items": items}, st.lists(st.integers(0, 9) if items == "int" else values, max_size=3)
    return {"type": "map", "values": inner}, st.dictionaries(st.text(max_size=3), values, max_size=3)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_what_fastavro_writes_is_written_again_from_arrow(registry: SchemaRegistry, data: st.DataObject) -> None:
    inner, values = data.draw(schemas())
    schema = record(("x", inner))
    subject = f"property_{next(_numbers)}"
    write = registry.avro_serializer(schema, subject=subject)
    framed = binary(*(each and write({"x": each[0]}) for each in data.draw(st.lists(st.none() | st.tuples(values)))))
    column = registry.arrow_decoder(subject=subject).decode(framed)
    column.validate(full=True)
    assert registry.arrow_encoder(schema, subject=subject).encode(column).equals(framed)
