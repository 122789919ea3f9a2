"""Records as files, and back: Parquet with a scan's columns, and JSON lines as `semel consume --json` prints them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from semel.cli.exports.directory import ExportFile, FileFormat
from semel.cli.json_records import Message, from_json, lines_of
from semel.cli.record_format import formatter
from semel.protocol.arrow import ALL_COLUMNS, import_pyarrow
from semel.protocol.errors import UsageError
from semel.protocol.record_decoder import Record

if TYPE_CHECKING:
    import pyarrow

_ROW_GROUP_BYTES: Final = 32 << 20
_ROWS_READ: Final = 1_000
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


def read_file(file: ExportFile, format_: FileFormat, from_offset: int) -> Iterator[tuple[int, Message]]:
    """Yield offsets and records of a file, from `from_offset` on. Raises `UsageError` for what is no such file."""
    read = _read_json if format_ is FileFormat.JSON else _read_parquet
    last = file.first_offset - 1
    for offset, message in read(file.path, from_offset):
        if not last < offset < file.next_offset:
            raise UsageError(
                f"{file.path} has offset {offset} after {last}, and its name says that it has {file.first_offset} to "
                f"{file.next_offset - 1} in order: it was changed. Export it again"
            )
        last = offset
        if offset >= from_offset:
            yield offset, message


def _read_json(path: Path, from_offset: int) -> Iterator[tuple[int, Message]]:
    for place, line in lines_of(path):
        offset, message = from_json(place, line, _NO_DEFAULTS)
        if offset is None:
            raise UsageError(f"{place}: no offset: `semel export` writes one with each record")
        yield offset, message


def _read_parquet(path: Path, from_offset: int) -> Iterator[tuple[int, Message]]:
    pa = import_pyarrow()
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            missing = sorted(set(ALL_COLUMNS) - set(file.schema_arrow.names))
            if missing:
                raise UsageError(f"{path} has no column {missing[0]!r}: it is not what `semel export` writes")
            for batch in file.iter_batches(_ROWS_READ, columns=list(ALL_COLUMNS)):
                if batch.num_rows and batch.column("offset")[batch.num_rows - 1].as_py() < from_offset:
                    continue
                for record in _records(batch):
                    yield (
                        record.offset,
                        Message(record.value, record.key, record.headers, record.partition, record.timestamp_ms),
                    )
    except (pa.ArrowException, OSError) as error:
        raise UsageError(f"can't read {path}: {error}") from error
