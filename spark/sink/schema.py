"""Which columns the sink takes, checked before any task runs. Runs on the driver."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql.types import ArrayType, BinaryType, DataType, IntegerType, StringType, StructType

from semel.protocol.errors import UsageError
from semel.spark.sink.decision_payload import SinkShape

_TEXT_OR_BINARY: Final = "string or binary"
_WANTED: Final = {
    "value": _TEXT_OR_BINARY,
    "key": _TEXT_OR_BINARY,
    "headers": "array<struct<key:string,value:binary>>",
    "topic": "string",
    "partition": "int",
}


def check_sink_schema(schema: StructType, topic: str) -> SinkShape:
    """Refuse a frame that can't be written, and return what tells its sink from others.

    Columns that the sink does not know are left alone, as in Spark's own.
    """
    types = {field.name: field.dataType for field in schema.fields}
    if "value" not in types:
        raise UsageError(
            f"the sink needs a column 'value', and the frame has {_listed(schema)}; make one, for example with "
            ".selectExpr('to_json(struct(*)) AS value')"
        )
    for name, wanted in _WANTED.items():
        if name in types and not _fits(name, types[name]):
            raise UsageError(
                f"column {name!r} is {types[name].simpleString()}, and the sink takes it as {wanted}; cast it, or give "
                "it another name"
            )
    if not topic and "topic" not in types:
        raise UsageError(
            f"option topic says where all rows go, and a column 'topic' says it row by row: give one of them (the "
            f"frame has {_listed(schema)})"
        )
    return SinkShape.of(topic, ((name, types[name].simpleString()) for name in _WANTED if name in types))


def _fits(name: str, kind: DataType) -> bool:
    if name in ("value", "key"):
        return isinstance(kind, (StringType, BinaryType))
    if name == "topic":
        return isinstance(kind, StringType)
    if name == "partition":
        return isinstance(kind, IntegerType)
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    fields: Sequence[tuple[str, type[DataType]]] = [
        (field.name, type(field.dataType)) for field in kind.elementType.fields
    ]
    return fields == [("key", StringType), ("value", BinaryType)]


def _listed(schema: StructType) -> str:
    return ", ".join(schema.fieldNames()) or "none"
