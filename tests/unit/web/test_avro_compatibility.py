"""Avro's rules of schema resolution (Avro 1.12, "Schema Resolution"), and Apache's own judge as an oracle."""

from __future__ import annotations

import json
from typing import Any

import pytest
from avro.compatibility import ReaderWriterCompatibilityChecker, SchemaCompatibilityType
from avro.schema import parse
from hypothesis import given, settings
from hypothesis import strategies as st

from semel.web.registry.formats.avro import Avro
from semel.web.registry.formats.avro_tree import AvroSchema
from semel.web.registry.formats.base import DIFFERENCES_MAX, InvalidSchemaError, Referenced, TooComplexError

AVRO = Avro()


def record(*fields: Any, name: str = "R", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **more}


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def enum(*symbols: str, **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": "E", "symbols": list(symbols), **more}


def kinds(reader: Any, writer: Any) -> list[str]:
    texts = [AVRO.parse(json.dumps(each), []) for each in (reader, writer)]
    return [found.kind for found in AVRO.differences(*texts)]


PRIMITIVES = ["null", "boolean", "int", "long", "float", "double", "bytes", "string"]
PROMOTIONS = {
    ("long", "int"), ("float", "int"), ("float", "long"), ("double", "int"), ("double", "long"), ("double", "float"),
    ("bytes", "string"), ("string", "bytes"),
}  # fmt: skip


@pytest.mark.parametrize("reader", PRIMITIVES)
@pytest.mark.parametrize("writer", PRIMITIVES)
def test_primitives_match_themselves_and_what_the_specification_promotes(reader: str, writer: str) -> None:
    matches = reader == writer or (reader, writer) in PROMOTIONS
    assert kinds(reader, writer) == ([] if matches else ["TYPE_MISMATCH"])


@pytest.mark.parametrize(
    ("reader", "writer", "expected"),
    [
        (record(field("a", "int")), record(field("b", "int")), ["READER_FIELD_MISSING_DEFAULT_VALUE"]),
        (record(field("a", "int", default=1)), record(), []),
        (record(), record(field("a", "int")), []),
        (record(field("a", "int", aliases=["b"])), record(field("b", "int")), []),
        (record(name="n.R"), record(name="m.R"), []),
        (record(name="S"), record(name="R"), ["NAME_MISMATCH"]),
        (record(name="S", aliases=["R"]), record(name="R"), []),
        (record(name="S", namespace="n", aliases=["R"]), record(name="n.R"), []),
        (enum("A", "B"), enum("A"), []),
        (enum("A"), enum("A", "B"), ["MISSING_ENUM_SYMBOLS"]),
        (enum("A", default="A"), enum("A", "B"), []),
        ({"type": "fixed", "name": "F", "size": 4}, {"type": "fixed", "name": "F", "size": 8}, ["FIXED_SIZE_MISMATCH"]),
        ({"type": "array", "items": "long"}, {"type": "array", "items": "int"}, []),
        ({"type": "map", "values": "int"}, {"type": "map", "values": "long"}, ["TYPE_MISMATCH"]),
        (["null", "string"], "string", []),
        (["null", "string"], "int", ["MISSING_UNION_BRANCH"]),
        (["null", "string"], ["null", "string", "int"], ["MISSING_UNION_BRANCH"]),
        ("string", ["string", "int"], ["TYPE_MISMATCH"]),
        (["null", "long"], ["int", "null"], []),
    ],
)
def test_schema_resolution(reader: Any, writer: Any, expected: list[str]) -> None:
    assert kinds(reader, writer) == expected


def test_a_type_inside_of_itself_is_compared_once() -> None:
    def tree(value: str) -> dict[str, Any]:
        return record(field("value", value), field("next", ["null", "R"]))

    assert kinds(tree("long"), tree("int")) == []
    assert "TYPE_MISMATCH" in kinds(tree("int"), tree("long"))


def test_differences_say_where() -> None:
    (found,) = AVRO.differences(
        AVRO.parse(json.dumps(record(field("a", "int"), field("b", "int"))), []),
        AVRO.parse(json.dumps(record(field("a", "int"))), []),
    )
    assert found.path == "/fields/1"
    assert "'b'" in found.what


def test_texts_that_differ_in_spaces_and_order_are_the_same_schema() -> None:
    one = AVRO.parse('{"fields": [], "name": "R", "namespace": "n", "type": "record"}', [])
    other = AVRO.parse('{"type":"record","name":"n.R","fields":[]}', [])
    assert one.canonical == other.canonical == '{"type":"record","name":"R","namespace":"n","fields":[]}'


def test_a_reference_is_known_by_its_name() -> None:
    address = Referenced("n.Address", json.dumps(record(field("city", "string"), name="n.Address")))
    assert AVRO.parse(json.dumps(record(field("to", "n.Address"))), [address])
    with pytest.raises(InvalidSchemaError, match="Address"):
        AVRO.parse(json.dumps(record(field("to", "n.Address"))), [])


@pytest.mark.parametrize("text", ["", "{", "42", '{"type": "record"}', '{"type":"record","name":"1","fields":[]}'])
def test_what_is_no_schema_is_refused(text: str) -> None:
    with pytest.raises(InvalidSchemaError):
        AVRO.parse(text, [])


def test_a_schema_that_is_nested_too_deeply_is_refused() -> None:
    with pytest.raises(InvalidSchemaError):
        AVRO.parse('{"type":"array","items":' * 5_000 + '"int"' + "}" * 5_000, [])


def _schemas() -> st.SearchStrategy[Any]:
    simple = st.sampled_from(PRIMITIVES)
    leaves = st.one_of(
        simple,
        st.builds(lambda symbols: enum(*symbols), st.lists(st.sampled_from("ABC"), min_size=1, unique=True)),
        st.builds(lambda size: {"type": "fixed", "name": "F", "size": size}, st.integers(1, 2)),
    )
    inner = st.one_of(
        leaves,
        st.builds(lambda items: {"type": "array", "items": items}, simple),
        st.builds(lambda values: {"type": "map", "values": values}, simple),
        st.lists(simple, min_size=1, max_size=3, unique=True),
    )
    fields = st.dictionaries(st.sampled_from("abc"), st.tuples(inner, st.booleans()), max_size=3)

    def built(found: dict[str, tuple[Any, bool]]) -> dict[str, Any]:
        parts, is_named = [], False
        for name, (kind, has_default) in found.items():
            if isinstance(kind, dict) and "name" in kind:
                if is_named:
                    continue  # a name can be defined once
                is_named = True
            kind = ["null", kind] if has_default and not isinstance(kind, list) and kind != "null" else kind
            default = {"default": None} if has_default and (kind == "null" or kind[0] == "null") else {}
            parts.append(field(name, kind, **default))
        return record(*parts)

    return st.one_of(inner, st.builds(built, fields))


@settings(max_examples=300, deadline=None)
@given(_schemas(), _schemas())
def test_the_verdict_is_that_of_apache(reader: Any, writer: Any) -> None:
    one, other = parse(json.dumps(reader)), parse(json.dumps(writer))
    theirs = ReaderWriterCompatibilityChecker().get_compatibility(one, other).compatibility
    assert (kinds(reader, writer) == []) == (theirs is SchemaCompatibilityType.compatible)


def ladder(levels: int, *more: Any) -> dict[str, Any]:
    """Records that each have the next one twice; the last one has other fields."""
    found = record(*more, name=f"A{levels}")
    for level in reversed(range(levels)):
        found = record(field("x", found), field("y", f"A{level + 1}"), name=f"A{level}")
    return found


def test_differences_that_are_in_many_places_are_told_up_to_a_bound() -> None:
    found = kinds(ladder(23, field("new", "int")), ladder(23))
    assert found == ["READER_FIELD_MISSING_DEFAULT_VALUE"] * DIFFERENCES_MAX


def test_a_name_as_long_as_a_schema_is_not_told_in_full() -> None:
    reader, writer = (AVRO.parse(json.dumps(enum("a" * 50_000 + last)), []) for last in ("b", "c"))
    (found,) = AVRO.differences(reader, writer)
    assert found.kind == "MISSING_ENUM_SYMBOLS"
    assert len(found.what) < 3_000


class Symbol(str):
    """A symbol that counts how often it is compared."""

    __slots__ = ()
    compared = 0

    def __eq__(self, other: object) -> bool:
        Symbol.compared += 1
        return super().__eq__(other)

    __hash__ = str.__hash__


def test_symbols_of_enums_are_not_each_compared_with_each() -> None:
    parsed = [AVRO.parse(json.dumps(enum("a")), []) for _ in range(2)]
    for each in parsed:
        assert isinstance(each.tree, AvroSchema)
        each.tree.symbols = tuple(Symbol(f"s{number}") for number in range(500))
    Symbol.compared = 0
    assert AVRO.differences(*parsed) == []
    assert Symbol.compared <= 1_000


def test_unions_of_the_same_types_again_and_again_are_too_complex() -> None:
    names = [f"R{number}" for number in range(100)]
    first = [record(name=name) for name in names]
    fields = [field("f0", first), *(field(f"f{number}", names) for number in range(1, 50))]
    with pytest.raises(TooComplexError):
        kinds(record(*fields, name="Top"), record(*fields, name="Top"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("null", "the schema is null: it must be the name of a type, an object or a list"),
        ("{}", "the schema has no type"),
        ("5", "the schema is 5: it must be the name of a type, an object or a list"),
        ('"nothing"', "no type has the name 'nothing'"),
        ('{"type": "array"}', "the array has no items"),
        (
            '{"type": "fixed", "name": "F", "size": -1}',
            "the size of the fixed 'F' is -1: it must be a whole number from 0",
        ),
        (
            '{"type": "fixed", "name": "F", "size": true}',
            "the size of the fixed 'F' is true: it must be a whole number from 0",
        ),
        (
            '{"type": "fixed", "name": "F", "size": "4"}',
            "the size of the fixed 'F' is text: it must be a whole number from 0",
        ),
        ('{"type": "fixed", "name": "F"}', "the fixed 'F' has no size"),
        ('{"type": "record", "name": "R", "fields": {}}', "fields of the record 'R' is an object: it must be a list"),
        (
            '{"type": "record", "name": "R", "fields": [null]}',
            "field 0 of the record 'R' is null: it must be an object",
        ),
        ('{"type": "record", "fields": []}', "the record has no name"),
        ('{"type": "enum", "name": "E", "symbols": "ab"}', "symbols of the enum 'E' is text: it must be a list"),
        ('["int", ["null", "string"]]', "branch 1 of the schema is a union directly in a union"),
        ('["int", {"type": ["null"]}]', "the type of branch 1 of the schema is a union directly in a union"),
    ],
)
def test_what_is_wrong_is_said_in_sentences(text: str, message: str) -> None:
    with pytest.raises(InvalidSchemaError) as caught:
        AVRO.parse(text, [])
    assert str(caught.value) == message
