"""The columns that the source gives: those of Spark's Kafka source, in its order."""

from __future__ import annotations

from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from semel.protocol.arrow import COLUMNS
from semel.protocol.errors import UsageError

HEADERS_TYPE: Final = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))

_TYPES: Final = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
}


def source_schema(*, with_headers: bool) -> StructType:
    """Return the schema; `headers` comes last, where it was asked for."""
    fields = [StructField(name, _TYPES[name]) for name in COLUMNS]
    if with_headers:
        fields.append(StructField("headers", HEADERS_TYPE))
    return StructType(fields)


def check_schema(schema: StructType, *, with_headers: bool) -> None:
    """Refuse a schema of the user's own, as the Kafka source does."""
    fixed = source_schema(with_headers=with_headers)
    if schema != fixed:
        raise UsageError(
            f"the source has a fixed schema and takes no other: leave out .schema(...) and choose from "
            f"{', '.join(fixed.fieldNames())}; cast value, or parse it with from_json, to get columns of your own"
        )
