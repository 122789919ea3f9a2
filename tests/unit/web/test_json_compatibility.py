"""Confluent's documented rules for JSON Schema: content models, and each keyword that narrows or widens."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft7Validator

from semel.web.registry.formats.base import DIFFERENCES_MAX, InvalidSchemaError, Referenced, TooComplexError
from semel.web.registry.formats.json_schema import JsonSchema

JSON = JsonSchema()
A: dict[str, Any] = {"a": {"type": "integer"}}
AB: dict[str, Any] = {**A, "b": {"type": "string"}}
STRING, INTEGER, NUMBER = ({"type": kind} for kind in ("string", "integer", "number"))


def opened(properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, **more}


def closed(properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    return opened(properties, additionalProperties=False, **more)


def partly(properties: dict[str, Any], others: Any) -> dict[str, Any]:
    return opened(properties, additionalProperties=others)


def kinds(new: Any, old: Any) -> list[str]:
    reader, writer = (JSON.parse(json.dumps(each), []) for each in (new, old))
    return [found.kind for found in JSON.differences(reader, writer)]


@pytest.mark.parametrize(
    ("new", "old", "expected"),
    [
        (opened(AB), opened(A), ["PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL"]),
        (opened({**A, "b": True}), opened(A), []),
        (closed(AB), closed(A), []),
        (closed(AB, required=["b"]), closed(A), ["REQUIRED_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL"]),
        (closed({**A, "b": {"type": "string", "default": ""}}, required=["b"]), closed(A), []),
        (closed(A), closed(AB), ["PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL"]),
        (opened(A), opened(AB), []),
        (opened(A), closed(A), []),
        (closed(A), opened(A), ["ADDITIONAL_PROPERTIES_REMOVED"]),
        (partly(AB, STRING), partly(A, STRING), []),
        (partly(AB, STRING), partly(A, INTEGER), None),
        (partly(A, STRING), partly(AB, STRING), []),
        (partly(A, INTEGER), partly(AB, INTEGER), ["PROPERTY_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL"]),
        (partly(A, INTEGER), partly(A, NUMBER), ["ADDITIONAL_PROPERTIES_NARROWED"]),
        (partly(A, NUMBER), partly(A, INTEGER), []),
        (opened(A, required=["a"]), opened(A), ["REQUIRED_ATTRIBUTE_ADDED"]),
        (opened(A), opened(A, required=["a"]), []),
    ],
)
def test_content_models(new: Any, old: Any, expected: list[str] | None) -> None:
    found = kinds(new, old)
    assert found if expected is None else found == expected


@pytest.mark.parametrize(
    ("wide", "narrow", "kind"),
    [
        ({}, STRING, "TYPE_NARROWED"),
        (NUMBER, INTEGER, "TYPE_NARROWED"),
        ({"type": ["string", "null"]}, STRING, "TYPE_NARROWED"),
        ({"type": "string", "maxLength": 5}, {"type": "string", "maxLength": 4}, "MAX_LENGTH_DECREASED"),
        (STRING, {"type": "string", "maxLength": 4}, "MAX_LENGTH_ADDED"),
        ({"type": "string", "minLength": 1}, {"type": "string", "minLength": 2}, "MIN_LENGTH_INCREASED"),
        (STRING, {"type": "string", "pattern": "a+"}, "PATTERN_ADDED"),
        ({"type": "number", "maximum": 9}, {"type": "number", "maximum": 8}, "MAXIMUM_DECREASED"),
        ({"type": "integer", "minimum": 0}, {"type": "integer", "minimum": 1}, "MINIMUM_INCREASED"),
        ({"type": "integer", "multipleOf": 2}, {"type": "integer", "multipleOf": 4}, "MULTIPLE_OF_CHANGED"),
        ({"type": "number", "multipleOf": 0.1}, {"type": "number", "multipleOf": 0.3}, "MULTIPLE_OF_CHANGED"),
        ({"enum": ["a", "b"]}, {"enum": ["a"]}, "ENUM_ARRAY_NARROWED"),
        (STRING, {"type": "string", "enum": ["a"]}, "ENUM_ARRAY_ADDED"),
        ({"type": "array", "maxItems": 3}, {"type": "array", "maxItems": 2}, "MAX_ITEMS_DECREASED"),
        ({"type": "array"}, {"type": "array", "uniqueItems": True}, "UNIQUE_ITEMS_ADDED"),
        ({"type": "array", "items": NUMBER}, {"type": "array", "items": INTEGER}, "TYPE_NARROWED"),
        ({"type": "array"}, {"type": "array", "items": False}, "ADDITIONAL_ITEMS_REMOVED"),
        ({"type": "object", "maxProperties": 2}, {"type": "object", "maxProperties": 1}, "MAX_PROPERTIES_DECREASED"),
        ({"oneOf": [STRING, INTEGER]}, STRING, "TYPE_NARROWED"),
        ({"anyOf": [STRING, INTEGER]}, {"anyOf": [STRING]}, "SUM_TYPE_NARROWED"),
        ({"allOf": [STRING]}, {"allOf": [STRING, {"maxLength": 3}]}, "PRODUCT_TYPE_EXTENDED"),
        (STRING, {"allOf": [STRING, {"maxLength": 3}]}, "PRODUCT_TYPE_EXTENDED"),
        (STRING, {"type": "string", "not": {"enum": ["a"]}}, "NOT_TYPE_EXTENDED"),
        (opened(A), opened(A, dependentRequired={"a": ["b"]}), "DEPENDENCY_ARRAY_EXTENDED"),
    ],
)
def test_what_widens_is_compatible_and_what_narrows_is_not(wide: Any, narrow: Any, kind: str) -> None:
    assert kinds(wide, narrow) == []
    assert kind in kinds(narrow, wide)
    assert kinds(wide, wide) == kinds(narrow, narrow) == []


def test_a_type_that_becomes_another_one() -> None:
    assert kinds(STRING, INTEGER) == ["TYPE_CHANGED"]


def test_tuples_are_closed_by_their_additional_items() -> None:
    def pair(*items: Any, rest: Any = False) -> dict[str, Any]:
        return {"type": "array", "items": list(items), "additionalItems": rest}

    assert kinds(pair(STRING, INTEGER), pair(STRING)) == []
    assert kinds(pair(STRING), pair(STRING, INTEGER)) == ["ITEM_REMOVED_FROM_CLOSED_CONTENT_MODEL"]
    assert kinds(pair(STRING, INTEGER, rest=True), pair(STRING, rest=True)) == ["ITEM_ADDED_TO_OPEN_CONTENT_MODEL"]


def test_references_are_followed_also_into_themselves() -> None:
    def tree(value: Any) -> dict[str, Any]:
        node = opened({"value": value, "next": {"$ref": "#/$defs/node"}})
        return {"$defs": {"node": node}, "$ref": "#/$defs/node"}

    assert kinds(tree(NUMBER), tree(INTEGER)) == []
    assert "TYPE_NARROWED" in kinds(tree(INTEGER), tree(NUMBER))


def test_a_reference_to_another_schema() -> None:
    text = json.dumps(opened({"to": {"$ref": "address.json"}}))
    city = Referenced("address.json", json.dumps(opened({"city": STRING})))
    number = Referenced("address.json", json.dumps(opened({"city": INTEGER})))
    found = JSON.differences(JSON.parse(text, [number]), JSON.parse(text, [city]))
    assert [each.kind for each in found] == ["TYPE_CHANGED"]
    with pytest.raises(InvalidSchemaError, match=r"address\.json"):
        JSON.parse(text, [])


@pytest.mark.parametrize("text", ["", "[]", '"a"', '{"type": "nothing"}', '{"$ref": "#/no"}', '{"minLength": "1"}'])
def test_what_is_no_schema_is_refused(text: str) -> None:
    with pytest.raises(InvalidSchemaError):
        JSON.parse(text, [])


def test_a_reference_that_leads_back_to_itself_is_refused() -> None:
    with pytest.raises(InvalidSchemaError, match="itself"):
        JSON.parse('{"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}', [])


def test_schemas_that_would_take_for_ever_to_compare_are_refused() -> None:
    def branches(kind: str) -> list[Any]:
        return [
            {"anyOf": [{**closed({f"p{i}{j}": {"type": kind}}), "required": [f"p{i}{j}"]} for j in range(30)]}
            for i in range(30)
        ]

    with pytest.raises(InvalidSchemaError, match="steps"):
        kinds({"anyOf": branches("string")}, {"anyOf": branches("integer")})


def test_bounds_of_draft_4_that_are_no_numbers() -> None:
    def bounded(**more: Any) -> dict[str, Any]:
        return {"$schema": "http://json-schema.org/draft-04/schema#", "type": "number", "maximum": 5, **more}

    assert kinds(bounded(), bounded(exclusiveMaximum=True)) == []
    assert kinds(bounded(exclusiveMaximum=False), bounded()) == []
    assert kinds(bounded(exclusiveMaximum=True), bounded()) == ["EXCLUSIVE_MAXIMUM_ADDED"]


def test_numbers_that_json_has_in_python_alone() -> None:
    with pytest.raises(InvalidSchemaError, match="Infinity is no number in JSON"):
        kinds({"type": "number", "multipleOf": 1e999}, {"type": "number", "multipleOf": 2})


_SCHEMAS = st.recursive(
    st.sampled_from(["string", "integer", "object", "null"]).map(lambda kind: {"type": kind}) | st.booleans(),
    lambda inner: st.one_of(
        st.builds(lambda each: opened({"a": each}), inner),
        st.builds(lambda each: closed({"a": each}), inner),
        st.builds(lambda each: {"type": "array", "items": each}, inner),
        st.builds(lambda each: {"anyOf": each}, st.lists(inner, min_size=1, max_size=3)),
        st.builds(lambda each: {"allOf": each}, st.lists(inner, min_size=1, max_size=2)),
    ),
    max_leaves=6,
)
_VALUES = st.recursive(
    st.none() | st.integers() | st.text(max_size=2),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=5,
)


@settings(max_examples=400, deadline=None)
@given(_SCHEMAS, _SCHEMAS, st.lists(_VALUES, max_size=8))
def test_what_was_valid_stays_valid_where_two_schemas_are_compatible(old: Any, new: Any, values: list[Any]) -> None:
    if not kinds(new, old):
        for value in values:
            assert not Draft7Validator(old).is_valid(value) or Draft7Validator(new).is_valid(value)


@given(_SCHEMAS)
def test_a_schema_is_compatible_with_itself(schema: Any) -> None:
    assert kinds(schema, schema) == []


def test_patterns_times_properties_are_too_complex() -> None:
    """Each property of one schema is looked for in each pattern of the other."""
    patterns = {f"^x{number}$": True for number in range(200)}
    properties = {f"p{number}": True for number in range(200)}
    with pytest.raises(TooComplexError):
        kinds({"properties": properties}, {"patternProperties": patterns})


def test_long_patterns_count_for_more() -> None:
    patterns = {f"^{'x' * 100_000}{number}$": True for number in range(5)}
    with pytest.raises(TooComplexError):
        kinds({"properties": {f"p{number}": True for number in range(100)}}, {"patternProperties": patterns})


def test_what_is_required_counts() -> None:
    required = [f"p{number}" for number in range(30_000)]
    assert kinds({"required": required}, {"required": required}) == []
    with pytest.raises(TooComplexError):
        kinds({"required": required}, {})


def test_whether_a_schema_allows_anything_counts() -> None:
    with pytest.raises(TooComplexError):
        kinds({"type": "string"}, {"anyOf": [{"allOf": [False]} for _ in range(21_000)]})


def test_differences_are_told_up_to_a_bound() -> None:
    names = [f"p{number}" for number in range(500)]
    assert len(kinds({"required": names}, {})) == DIFFERENCES_MAX
