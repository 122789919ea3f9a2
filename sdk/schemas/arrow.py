"""Columns of records with schemas: framed values to typed Arrow columns, and back.

pyarrow is an optional dependency: `SchemaRegistry.arrow_decoder` and `arrow_encoder` import it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from semel.protocol.errors import UsageError
from semel.sdk.schemas.errors import SchemaDataError, SchemaRegistryError

if TYPE_CHECKING:
    import pyarrow

    from semel.sdk.schemas.core import RegistryCore
    from semel.sdk.schemas.model import Schema

_PLACE: Final = ("topic", "partition", "offset")
"""Columns of `semel.protocol.arrow` and of Spark's source that say which record a row is."""

Records = TypeVar("Records", "pyarrow.RecordBatch", "pyarrow.Table")
Column = TypeVar("Column", "pyarrow.Array", "pyarrow.ChunkedArray")


class ColumnReader(Protocol):
    """Reads the values of one language of schemas."""

    def value(self, data: bytes) -> Any:
        """Return a record's value, as pyarrow takes it."""

    def array(self, values: Sequence[Any]) -> pyarrow.Array:
        """Return a column of such values."""


class ArrowDecoder:
    """Turns columns of framed values into typed ones, by one reader's schema. `SchemaRegistry.arrow_decoder` makes it.

    reader: the schema that all records are read by
    type:   the Arrow type of the columns; a struct where the schema is a record
    """

    def __init__(self, registry: RegistryCore, reader: Schema, subject: str | None, *, with_spark_types: bool) -> None:
        from semel.sdk.schemas.avro_reading import AvroColumnReader

        check_language(reader)
        columns = AvroColumnReader(registry, reader, with_spark_types=with_spark_types)
        if subject is not None:
            columns.prepare(subject)
        self.reader = reader
        self.type: pyarrow.DataType = columns.type
        self._columns: ColumnReader = columns

    def decode(self, values: Column) -> Column:
        """Return a column of as many values, typed. values: bytes, each with its schema's id before it.

        A null, such as a tombstone's, stays null. Raises `SchemaDataError` for a value that can't be read, and names
        its row, from 0 on; `UsageError` for a column of another type. A schema that was not seen yet is asked for:
        `SchemaRegistryError`, `RetriableError`.
        """
        return self._decoded(values, "{}".format)

    def decode_records(self, records: Records, column: str = "value") -> Records:
        """Return the records with one column decoded, the others as they are. See `decode`.

        records: a record batch or table, such as `semel.protocol.arrow.decode_to_arrow` returns. Errors name the
        record, as far as it has the columns topic, partition and offset.
        """
        place = records.schema.get_field_index(column)
        if place < 0:
            raise UsageError(f"there is no column {column!r} alone; the columns are {', '.join(records.schema.names)}")
        names = [name for name in _PLACE if records.schema.get_field_index(name) >= 0]

        def row_name(row: int) -> str:
            found = ", ".join(f"{name} {records.column(name)[row].as_py()}" for name in names)
            return f"{row} ({found})" if found else str(row)

        decoded = self._decoded(records.column(place), row_name)
        return records.set_column(place, column, decoded)

    def _decoded(self, values: Column, row_name: Callable[[int], str]) -> Column:
        import pyarrow as pa

        kind = values.type
        kinds = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view, pa.types.is_null)
        if not any(is_one(kind) for is_one in kinds):
            raise UsageError(f"the column is {kind}, and framed values are binary")
        if isinstance(values, pa.ChunkedArray):
            chunks, first = [], 0
            for chunk in values.chunks:
                chunks.append(self._array(chunk, first, row_name))
                first += len(chunk)
            return pa.chunked_array(chunks, self.type)
        return self._array(values, 0, row_name)

    def _array(self, values: pyarrow.Array, first_row: int, row_name: Callable[[int], str]) -> pyarrow.Array:
        found: list[Any] = []
        try:
            for data in values.to_pylist():
                found.append(None if data is None else self._columns.value(data))  # noqa: PERF401  (the row is counted)
        except SchemaDataError as error:
            raise SchemaDataError(f"row {row_name(first_row + len(found))}: {error}") from None
        except SchemaRegistryError as error:
            told = f"row {row_name(first_row + len(found))}: {error}"
            raise SchemaRegistryError(told, error.status, error.error_code) from None
        try:
            return self._columns.array(found)
        except SchemaDataError:
            for row, value in enumerate(found):  # pyarrow does not say which
                try:
                    self._columns.array([value])
                except SchemaDataError as error:
                    raise SchemaDataError(f"row {row_name(first_row + row)}: {error}") from None
            raise


class ArrowEncoder:
    """Turns Arrow rows into columns of framed values. `SchemaRegistry.arrow_encoder` makes it.

    subject, schema_id: where the schema is registered, and what records name it by
    type:               the Arrow type that its rows have. Narrower or wider ones are taken where no value is changed
    """

    def __init__(
        self,
        subject: str,
        schema_id: int,
        kind: pyarrow.DataType,
        write: Callable[[pyarrow.Array], list[bytes | None]],
    ) -> None:
        self.subject = subject
        self.schema_id = schema_id
        self.type = kind
        self._write = write

    def encode(self, rows: pyarrow.Array | pyarrow.ChunkedArray | pyarrow.RecordBatch | pyarrow.Table) -> Any:
        """Return a binary column of as many values, in chunks where there is a table or a column in chunks.

        rows: a column, a struct where the schema is a record; or a record batch or table with its fields as columns.
        A field without a column gets its default. A null row stays null: a tombstone. Raises `SchemaDataError` for a
        row that does not fit the schema, and names it, from 0 on.
        """
        import pyarrow as pa

        if isinstance(rows, pa.RecordBatch | pa.Table):
            rows = rows.to_struct_array()
        if isinstance(rows, pa.ChunkedArray):
            chunks, first = [], 0
            for chunk in rows.chunks:
                chunks.append(self._array(chunk, first))
                first += len(chunk)
            return pa.chunked_array(chunks, pa.binary())
        return self._array(rows, 0)

    def _array(self, rows: pyarrow.Array, first_row: int) -> pyarrow.Array:
        import pyarrow as pa

        try:
            return pa.array(self._write(rows), pa.binary())
        except SchemaDataError:
            for row in range(len(rows)):  # the columns are turned as a whole: which row it was is found out one by one
                try:
                    self._write(rows.slice(row, 1))
                except SchemaDataError as error:
                    raise SchemaDataError(f"row {first_row + row}: {error}") from None
            raise


def arrow_decoder(
    registry: RegistryCore, reader: Schema | None, subject: str | None, *, with_spark_types: bool
) -> ArrowDecoder:
    """Return what reads by a schema, or by the latest one of a subject. Raises `UsageError` where there is neither."""
    if reader is None:
        if subject is None:
            raise UsageError("give a reader's schema, or the topic or subject whose latest one it is to be")
        reader = registry.version(subject, "latest").schema
    return ArrowDecoder(registry, reader, subject, with_spark_types=with_spark_types)


def check_language(schema: Schema) -> None:
    """Raises `UsageError` for a schema of which no columns are made."""
    if schema.schema_type != "AVRO":
        raise UsageError(
            f"the schema is of the type {schema.schema_type}, and Arrow columns are made by Avro schemas alone: "
            f"use {schema.schema_type.lower()}_deserializer or {schema.schema_type.lower()}_serializer"
        )
