"""Records as files, and back: Parquet with a scan's columns, and JSON lines as `semel consume --json` prints them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from semel.cli.exports.directory import ExportFile, FileFormat, Manifest
from semel.cli.json_records import Message, from_json, lines_of
from semel.cli.record_format import formatter
from semel.protocol.arrow import ALL_COLUMNS, arrow_schema, import_pyarrow
from semel.protocol.errors import UsageError
from semel.protocol.record_decoder import Record
from semel.protocol.wording import counted

if TYPE_CHECKING:
    import pyarrow
    import pyarrow.parquet

_ROW_GROUP_BYTES: Final = 32 << 20
_ROWS_READ: Final = 1_000
_BYTES_READ: Final = 8 << 20
RECORD_BYTES_MAX: Final = 128 << 20
"""A larger batch can't be read by a scan."""
_LINE_BYTES_MAX: Final = 6 * RECORD_BYTES_MAX + (1 << 20)
"""Control characters take six bytes each in JSON."""
_NO_DEFAULTS: Final = Message(None, None, (), None, None)


class Writer(Protocol):
    """Writes one file."""

    def write(self, records: pyarrow.RecordBatch) -> None: ...

    def close(self) -> None: ...


def open_writer(path: Path, format_: FileFormat, schema: pyarrow.Schema) -> Writer:
    """Begin a file. `schema` has all columns of a scan."""
    return _JsonWriter(path) if format_ is FileFormat.JSON else _ParquetWriter(path, schema)


class _ParquetWriter:
    def __init__(self, path: Path, schema: pyarrow.Schema) -> None:
        self._pa = import_pyarrow()
        import pyarrow.parquet

        self._schema = schema
        self._file = pyarrow.parquet.ParquetWriter(path, schema, compression="zstd")
        self._waiting: list[pyarrow.RecordBatch] = []
        self._waiting_bytes = 0

    def write(self, records: pyarrow.RecordBatch) -> None:
        self._waiting.append(records)
        self._waiting_bytes += records.nbytes
        if self._waiting_bytes >= _ROW_GROUP_BYTES:
            self._end_row_group()

    def close(self) -> None:
        self._end_row_group()
        self._file.close()

    def _end_row_group(self) -> None:
        if self._waiting:
            self._file.write_table(self._pa.Table.from_batches(self._waiting, self._schema))
        self._waiting, self._waiting_bytes = [], 0


class _JsonWriter:
    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")
        self._format = formatter("json")

    def write(self, records: pyarrow.RecordBatch) -> None:
        self._file.writelines(self._format(record) for record in _records(records))

    def close(self) -> None:
        self._file.close()


def _records(batch: pyarrow.RecordBatch) -> Iterator[Record]:
    columns = {name: batch.column(name) for name in ALL_COLUMNS}
    times = columns["timestamp"].cast(import_pyarrow().int64()).to_pylist()
    rows = zip(
        *(columns[name].to_pylist() for name in ("offset", "key", "value", "headers", "topic", "partition")),
        times,
        strict=True,
    )
    for offset, key, value, headers, topic, partition, time_us in rows:
        yield Record(offset, time_us // 1000, key, value, _pairs(headers), topic, partition)


def _pairs(headers: list[dict[str, Any]] | None) -> tuple[tuple[str, bytes | None], ...]:
    return tuple((header["key"], header["value"]) for header in headers or ())


def read_file(file: ExportFile, manifest: Manifest, partition: int, from_offset: int) -> Iterator[tuple[int, Message]]:
    """Yield offsets and records of a file, from `from_offset` on.

    Raises `UsageError` for what is no such file: also where it is not what its name says, before it yields one, so that
    no import gets past records that are missing or damaged.
    """
    file.check()
    is_json = manifest.format is FileFormat.JSON
    count = _count_json(file.path) if is_json else _count_parquet(file.path)
    if count != file.records:
        raise UsageError(
            f"{file.path} has {counted(count, 'record')}, and its name says {file.records}: it was changed, or not "
            "copied as a whole. Bring it back, or export into a new directory"
        )
    last = file.first_offset - 1
    for offset, message in (_read_json if is_json else _read_parquet)(file.path, from_offset):
        if not last < offset < file.next_offset:
            raise UsageError(
                f"{file.path} has offset {offset} after {last}, and its name says that it has {file.first_offset} to "
                f"{file.next_offset - 1} in order: it was changed. Export it again"
            )
        if message.topic != manifest.topic:
            raise UsageError(
                f"{file.path} has a record of topic {message.topic}, and this is an export of {manifest.topic}: it was "
                "moved. Bring it back to where it was"
            )
        if message.partition != partition:
            raise UsageError(
                f"{file.path} has a record of partition {message.partition}, and is in the folder of partition "
                f"{partition}: it was moved. Bring it back to where it was"
            )
        last = offset
        if offset >= from_offset:
            yield offset, message


def _count_json(path: Path) -> int:
    return sum(1 for _ in lines_of(path, _LINE_BYTES_MAX))


def _read_json(path: Path, from_offset: int) -> Iterator[tuple[int, Message]]:
    for place, line in lines_of(path, _LINE_BYTES_MAX):
        offset, message = from_json(place, line, _NO_DEFAULTS)
        if offset is None:
            raise UsageError(f"{place}: no offset: `semel export` writes one with each record")
        yield offset, message


@contextmanager
def _parquet(path: Path) -> Iterator[pyarrow.parquet.ParquetFile]:
    """Open a file. Raises `UsageError` where it is none, or has other columns than an export writes."""
    pa = import_pyarrow()
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            for field in arrow_schema(ALL_COLUMNS):
                index = file.schema_arrow.get_field_index(field.name)
                found = None if index < 0 else file.schema_arrow.field(index).type
                if found is None or not _is_like(pa, found, field.type):
                    has = "no such column" if found is None else f"a column of type {found}"
                    raise UsageError(
                        f"{path}: {field.name} has to be of type {field.type}, and there is {has}: it is not what "
                        "`semel export` writes"
                    )
            yield file
    except (pa.ArrowException, OSError) as error:
        raise UsageError(f"can't read {path}: {error}") from error


def _is_like(pa: Any, found: pyarrow.DataType, wanted: pyarrow.DataType) -> bool:
    """Whether the types are the same, but for the names that Parquet gives to the items of lists."""
    if pa.types.is_list(found) and pa.types.is_list(wanted):
        return bool(found.value_type == wanted.value_type)
    return bool(found == wanted)


def _count_parquet(path: Path) -> int:
    with _parquet(path) as file:
        return int(file.metadata.num_rows)


def _read_parquet(path: Path, from_offset: int) -> Iterator[tuple[int, Message]]:
    with _parquet(path) as file:
        metadata = file.metadata
        for group in range(metadata.num_row_groups):
            rows = metadata.row_group(group)
            at_once = max(1, min(_ROWS_READ, _BYTES_READ * rows.num_rows // max(1, rows.total_byte_size)))
            for batch in file.iter_batches(at_once, row_groups=[group], columns=list(ALL_COLUMNS)):
                if batch.column("offset").null_count or batch.column("timestamp").null_count:
                    raise UsageError(f"{path} has records without an offset or a time: `semel export` writes both")
                if batch.num_rows and batch.column("offset")[batch.num_rows - 1].as_py() < from_offset:
                    continue
                for record in _records(batch):
                    yield (
                        record.offset,
                        Message(
                            record.value,
                            record.key,
                            record.headers,
                            record.partition,
                            record.timestamp_ms,
                            record.topic,
                        ),
                    )
