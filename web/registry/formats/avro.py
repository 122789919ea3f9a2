"""Avro: parsed by fastavro, compared by the rules of Avro's specification ("Schema Resolution").

Apache's Python package judges the same, but says which field is why in sets without an order; tests compare the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import fastavro
from fastavro.schema import SchemaParseException, UnknownType

from semel.web.registry.formats.avro_check import check_shape
from semel.web.registry.formats.avro_tree import AvroField, AvroSchema, TreeBuilder, canonical
from semel.web.registry.formats.base import (
    DIFFERENCES_MAX,
    Difference,
    InvalidSchemaError,
    Parsed,
    Referenced,
    Steps,
    TextParsed,
)
from semel.web.registry.strict_json import UnfitJsonError, strict_loads

_PROMOTED: Final = {
    "long": frozenset({"int"}),
    "float": frozenset({"int", "long"}),
    "double": frozenset({"int", "long", "float"}),
    "bytes": frozenset({"string"}),
    "string": frozenset({"bytes"}),
}
"""What a reader's primitive takes beside itself."""
_PARTS_IN_A_STEP: Final = 100


@dataclass(frozen=True)
class AvroParsed(TextParsed):
    """An Avro schema."""

    canonical: str
    normalized: str
    tree: AvroSchema


class Avro:
    """The language of Avro, in JSON."""

    def parse(self, text: str, references: Sequence[Referenced]) -> AvroParsed:
        """Return the schema in `text`. Raises `InvalidSchemaError`."""
        named: dict[str, Any] = {}
        builder = TreeBuilder()
        try:
            for reference in references:
                data = _json(reference.text)
                check_shape(data, f"the reference {reference.name!r}")
                fastavro.parse_schema(data, named)
                builder.build(data)
            data = _json(text)
            check_shape(data)
            fastavro.parse_schema(data, named)
            return AvroParsed(canonical(data, sort=False), canonical(data, sort=True), builder.build(data))
        except SchemaParseException as error:
            raise InvalidSchemaError(str(error)) from None
        except UnknownType as error:
            raise InvalidSchemaError(f"no type has the name {error.name!r}") from None
        except ValueError as error:
            raise InvalidSchemaError(str(error)) from None
        except (KeyError, TypeError, AttributeError):
            raise InvalidSchemaError("a part of it is not what Avro's specification asks for") from None
        except RecursionError:
            raise InvalidSchemaError("it is nested too deeply") from None

    def differences(self, reader: Parsed, writer: Parsed) -> list[Difference]:
        """Return why data of `writer` can't be read with `reader`; empty where it can. Raises `TooComplexError`."""
        assert isinstance(reader, AvroParsed)
        assert isinstance(writer, AvroParsed)
        return _Resolution().differences(reader.tree, writer.tree, "/")


class _Resolution:
    def __init__(self) -> None:
        self._steps = Steps()
        self._known: dict[tuple[int, int], list[Difference]] = {}

    def differences(self, reader: AvroSchema, writer: AvroSchema, path: str) -> list[Difference]:
        """Return `DIFFERENCES_MAX` at most: a type that is in many places is reported in each of them."""
        self._steps.take()
        pair = (id(reader), id(writer))
        if pair not in self._known:
            self._known[pair] = []  # where a type is in itself, it is as good as the rest of it
            self._known[pair] = self._found(reader, writer, path)[:DIFFERENCES_MAX]
        return self._known[pair]

    def _found(self, reader: AvroSchema, writer: AvroSchema, path: str) -> list[Difference]:
        if writer.kind == "union":
            if reader.kind != "union":
                every = (found for branch in writer.branches for found in self.differences(reader, branch, path))
                return list(islice(every, DIFFERENCES_MAX))
            return [
                Difference(
                    "MISSING_UNION_BRANCH",
                    f"{_under(path)}{index}",
                    f"the new schema's union at {path!r} lacks the writer's branch {_shown(branch)}",
                )
                for index, branch in enumerate(writer.branches)
                if self._union(reader, branch, path)
            ]
        if reader.kind == "union":
            return self._union(reader, writer, path)
        if reader.kind != writer.kind:
            if writer.kind in _PROMOTED.get(reader.kind, ()):
                return []
            what = f"the type at {path!r} is {_shown(reader)} for the reader and {_shown(writer)} for the writer"
            return [Difference("TYPE_MISMATCH", path, what)]
        return self._same_kind(reader, writer, path)

    def _same_kind(self, reader: AvroSchema, writer: AvroSchema, path: str) -> list[Difference]:
        found = []
        self._steps.take(_parts(reader, writer) // _PARTS_IN_A_STEP)
        if reader.name and not _same_name(reader, writer):
            what = f"the name of the type at {path!r} is {reader.name} for the reader and {writer.name} for the writer"
            found.append(Difference("NAME_MISMATCH", f"{_under(path)}name", what))
        if reader.kind in ("array", "map"):
            part = "items" if reader.kind == "array" else "values"
            found += self.differences(reader.branches[0], writer.branches[0], _under(path) + part)
        elif reader.kind == "fixed" and reader.size != writer.size:
            what = f"the size at {path!r} is {reader.size} for the reader and {writer.size} for the writer"
            found.append(Difference("FIXED_SIZE_MISMATCH", f"{_under(path)}size", what))
        elif reader.kind == "enum":
            known = frozenset(reader.symbols)
            missing = [symbol for symbol in writer.symbols if symbol not in known]
            if missing and reader.default is None:
                what = f"the reader's enum at {path!r} lacks {', '.join(missing)} and has no default"
                found.append(Difference("MISSING_ENUM_SYMBOLS", f"{_under(path)}symbols", what))
        elif reader.kind == "record":
            found += self._fields(reader, writer, path)
        return found

    def _fields(self, reader: AvroSchema, writer: AvroSchema, path: str) -> list[Difference]:
        written = {each.name: each for each in writer.fields}
        found: list[Difference] = []
        for index, each in enumerate(reader.fields):
            if len(found) >= DIFFERENCES_MAX:
                break
            place = f"{_under(path)}fields/{index}"
            other = _written(each, written)
            if other is not None:
                found += self.differences(each.schema, other.schema, f"{place}/type")
            elif not each.has_default:
                what = f"the reader's field {each.name!r} at {place!r} has no default, and the writer has no such field"
                found.append(Difference("READER_FIELD_MISSING_DEFAULT_VALUE", place, what))
        return found

    def _union(self, reader: AvroSchema, writer: AvroSchema, path: str) -> list[Difference]:
        """The first branch that matches is taken, as readers do; records by their names."""
        if any(not self.differences(branch, writer, path) for branch in reader.branches):
            return []
        what = f"no branch of the reader's union at {path!r} takes the writer's {_shown(writer)}"
        return [Difference("MISSING_UNION_BRANCH", path, what)]


def _parts(*schemas: AvroSchema) -> int:
    """Return how much there is to look at, without what is in its fields."""
    return sum(
        len(schema.aliases) + len(schema.symbols) + sum(1 + len(field.aliases) for field in schema.fields)
        for schema in schemas
    )


def _written(field: AvroField, written: dict[str, AvroField]) -> AvroField | None:
    return next((written[name] for name in (field.name, *field.aliases) if name in written), None)


def _same_name(reader: AvroSchema, writer: AvroSchema) -> bool:
    return reader.short_name == writer.short_name or writer.name in reader.aliases


def _shown(schema: AvroSchema) -> str:
    return schema.name or schema.kind


def _under(path: str) -> str:
    return path if path.endswith("/") else f"{path}/"


def _json(text: str) -> Any:
    try:
        return strict_loads(text)
    except UnfitJsonError as error:
        raise InvalidSchemaError(str(error)) from None
    except ValueError as error:
        if text.strip().isidentifier():
            return text.strip()  # a primitive without quotation marks, which Avro's parsers take
        raise InvalidSchemaError(f"it is not JSON: {error}") from None
