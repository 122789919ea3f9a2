"""JSON Schema: checked against its metaschema by the package jsonschema, compared in `json_differences.py`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jsonschema import SchemaError
from jsonschema.validators import Draft7Validator, validator_for

from semel.web.registry.formats.base import Difference, InvalidSchemaError, Parsed, Referenced, TextParsed
from semel.web.registry.formats.json_differences import Comparison
from semel.web.registry.formats.json_references import Documents
from semel.web.registry.strict_json import UnfitJsonError, strict_loads

_NAME = "semel:schema"


@dataclass(frozen=True)
class JsonParsed(TextParsed):
    """A JSON Schema, and what its `$ref`s stand for."""

    canonical: str
    normalized: str
    root: Any
    documents: Documents


class JsonSchema:
    """The language of JSON Schema, drafts 3 to 2020-12; without a `$schema`, draft 7."""

    def parse(self, text: str, references: Sequence[Referenced]) -> JsonParsed:
        """Return the schema in `text`. Raises `InvalidSchemaError`."""
        try:
            root = strict_loads(text)
        except UnfitJsonError as error:
            raise InvalidSchemaError(str(error)) from None
        except ValueError as error:
            raise InvalidSchemaError(f"it is not JSON: {error}") from None
        except RecursionError:
            raise InvalidSchemaError("it is nested too deeply") from None
        if not isinstance(root, dict | bool):
            raise InvalidSchemaError("a JSON Schema is an object, true or false")
        if isinstance(root, dict) and not isinstance(root.get("$schema", ""), str):
            raise InvalidSchemaError("$schema must be text: the address of a draft")
        documents = Documents()
        try:
            for reference in references:
                documents.add(reference.name, strict_loads(reference.text))
            documents.add(_NAME, root)
            validator_for(root, default=Draft7Validator).check_schema(root)
            _check_references(root, documents)
        except SchemaError as error:
            raise InvalidSchemaError(f"at {'/'.join(map(str, error.absolute_path))!r}: {error.message}") from None
        except ValueError as error:
            raise InvalidSchemaError(str(error)) from None
        except (AttributeError, KeyError, TypeError):
            raise InvalidSchemaError("a part of it is not what its draft of JSON Schema asks for") from None
        except RecursionError:
            raise InvalidSchemaError("it is nested too deeply") from None
        return JsonParsed(_text(root, sort=False), _text(root, sort=True), root, documents)

    def differences(self, reader: Parsed, writer: Parsed) -> list[Difference]:
        """Return why data of `writer` may not be valid by `reader`; empty where it is. Raises `InvalidSchemaError`."""
        assert isinstance(reader, JsonParsed)
        assert isinstance(writer, JsonParsed)
        return Comparison(writer.documents, reader.documents).differences(writer.root, reader.root, "#/")


def _text(root: Any, *, sort: bool) -> str:
    return json.dumps(root, ensure_ascii=False, separators=(",", ":"), sort_keys=sort)


def _check_references(node: Any, documents: Documents) -> None:
    if isinstance(node, list):
        for each in node:
            _check_references(each, documents)
    elif isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            documents.resolved(node)
        for name, each in node.items():
            if name not in ("enum", "const", "default", "examples"):
                _check_references(each, documents)
