"""Whether JSON is an Avro schema at all, in sentences: parsers say it in their language's words, or not."""

from __future__ import annotations

from typing import Any

from semel.web.registry.formats.base import InvalidSchemaError

_KINDS = {dict: "an object", list: "a list", str: "text", bool: "true or false", int: "a number", float: "a number"}
_NAMED = ("record", "error", "enum", "fixed")


def check_shape(data: Any, where: str = "the schema", *, is_in_union: bool = False) -> None:
    """Raise `InvalidSchemaError` where a part of a schema is not what the specification asks for."""
    if isinstance(data, str):
        return
    if isinstance(data, list):
        if is_in_union:
            raise InvalidSchemaError(f"{where} is a union directly in a union")
        for index, branch in enumerate(data):
            check_shape(branch, f"branch {index} of {where}", is_in_union=True)
        return
    if not isinstance(data, dict):
        raise InvalidSchemaError(f"{where} is {_shown(data)}: it must be the name of a type, an object or a list")
    kind = _part(data, "type", where)
    if not isinstance(kind, str):
        check_shape(kind, f"the type of {where}", is_in_union=is_in_union)
    elif kind in _NAMED:
        _check_named(kind, data)
    elif kind in ("array", "map"):
        part = "items" if kind == "array" else "values"
        check_shape(_part(data, part, f"the {kind}"), f"{part} of the {kind}")


def _check_named(kind: str, data: dict[str, Any]) -> None:
    name = _typed(data, "name", str, f"the {kind}")
    what = f"the {kind} {name[:100]!r}"
    if data.get("namespace") is not None:
        _typed(data, "namespace", str, what)
    _check_texts(data, "aliases", what, is_needed=False)
    if kind == "enum":
        _check_texts(data, "symbols", what, is_needed=True)
        if data.get("default") is not None and data["default"] not in data["symbols"]:
            raise InvalidSchemaError(f"the default of {what} is none of its symbols")
    elif kind == "fixed":
        size = _part(data, "size", what)
        if isinstance(size, bool) or not isinstance(size, int) or size < 0:
            raise InvalidSchemaError(f"the size of {what} is {_shown(size)}: it must be a whole number from 0")
    else:
        for index, each in enumerate(_typed(data, "fields", list, what)):
            _check_field(each, f"field {index} of {what}")


def _check_field(data: Any, where: str) -> None:
    if not isinstance(data, dict):
        raise InvalidSchemaError(f"{where} is {_shown(data)}: it must be an object")
    name = _typed(data, "name", str, where)
    _check_texts(data, "aliases", where, is_needed=False)
    check_shape(_part(data, "type", where), f"the type of the field {name[:100]!r}")


def _check_texts(data: dict[str, Any], part: str, where: str, *, is_needed: bool) -> None:
    if (is_needed or part in data) and not all(isinstance(each, str) for each in _typed(data, part, list, where)):
        raise InvalidSchemaError(f"{part} of {where} must be a list of texts")


def _typed(data: dict[str, Any], part: str, kind: type, where: str) -> Any:
    found = _part(data, part, where)
    if not isinstance(found, kind):
        raise InvalidSchemaError(f"{part} of {where} is {_shown(found)}: it must be {_KINDS[kind]}")
    return found


def _part(data: dict[str, Any], part: str, where: str) -> Any:
    if part not in data:
        raise InvalidSchemaError(f"{where} has no {part}")
    return data[part]


def _shown(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool | int | float):
        return str(value).lower()[:50]
    return _KINDS.get(type(value), "something else")
