"""Record batches from and to Arrow columns, without a Python object per record.

The columns are named and typed as those of Spark's Kafka source: key and value binary, topic string, partition int32,
offset int64, timestamp in microseconds UTC, timestampType int32, headers as a list of key and value where asked for.
pyarrow is an optional dependency and is imported when it is first needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from semel.protocol.batch_builder import BatchBuilder, BinaryColumn, encoded_headers
from semel.protocol.batch_header import iter_batches
from semel.protocol.compression import DEFAULT_MAX_UNCOMPRESSED_BYTES, Compression
from semel.protocol.corruption import CorruptBatchError
from semel.protocol.errors import UsageError
from semel.protocol.extras import install_command
from semel.protocol.ids import NO_LEADER_EPOCH, NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, NO_TIMESTAMP
from semel.protocol.int_bounds import INT32_MAX, INT64_MAX
from semel.protocol.record_decoder import ColumnDecoder, Headers, record_bytes

if TYPE_CHECKING:
    import pyarrow

Buffer: TypeAlias = bytes | bytearray | memoryview

COLUMNS: Final = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
"""The columns that `decode_to_arrow` gives by default, in Spark's order."""
ALL_COLUMNS: Final = (*COLUMNS, "headers")

_OFFSET_MAX: Final = INT64_MAX
_SEQUENCES: Final = 2**31


def import_pyarrow() -> Any:
    """Return the module. Raises `UsageError` that says how it is installed."""
    try:
        import pyarrow
        import pyarrow.compute
    except ImportError:
        raise UsageError(f"Arrow columns need pyarrow: {install_command('arrow')}") from None
    return pyarrow


def arrow_schema(columns: Iterable[str] = COLUMNS) -> pyarrow.Schema:
    """Return the schema of the named columns."""
    pa = import_pyarrow()
    types = {
        "key": pa.binary(),
        "value": pa.binary(),
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "timestampType": pa.int32(),
        "headers": pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
    }
    names = list(columns)
    for name in names:
        if name not in types:
            raise UsageError(f"there is no column {name!r}; the columns are {', '.join(types)}")
    return pa.schema([(name, types[name]) for name in names])


def decode_to_arrow(
    buffers: Iterable[Buffer],
    *,
    topic: str = "",
    partition: int = 0,
    columns: Iterable[str] = COLUMNS,
    first_offset: int = 0,
    end_offset: int = _OFFSET_MAX,
    max_uncompressed_bytes: int = DEFAULT_MAX_UNCOMPRESSED_BYTES,
    check_crc: bool = True,
) -> pyarrow.RecordBatch:
    """Return the records of all batches in `buffers` as one Arrow record batch with the named columns.

    Each buffer holds one or more batches; a tail that is not whole is ignored, as in a fetch answer. Control batches
    are left out, and so are records before `first_offset` or from `end_offset` on. Leaving out batches of aborted
    transactions is the caller's business. `max_uncompressed_bytes` bounds all batches together.
    Raises `CorruptBatchError` for broken bytes, `UsageError` for unknown columns.
    """
    pa = import_pyarrow()
    schema = arrow_schema(columns)
    batches = []
    room = max_uncompressed_bytes
    rows_max = 0
    for buffer in buffers:
        for header in iter_batches(buffer):
            if header.is_control or header.last_offset < first_offset or header.base_offset >= end_offset:
                continue
            data, start, limit = record_bytes(buffer, header, max_uncompressed_bytes=room, check_crc=check_crc)
            room -= limit - start
            if room < 0:
                raise CorruptBatchError(
                    f"the batches have more than {max_uncompressed_bytes} uncompressed bytes; decode fewer at once"
                )
            rows_max += header.record_count
            batches.append((header, data, start, limit))
    bitmap_bytes = (rows_max + 7) // 8
    widths = (8 * rows_max, 8 * rows_max, 4 * rows_max, 4 * rows_max + 4, 4 * rows_max + 4, bitmap_bytes, bitmap_bytes)
    memory = [pa.allocate_buffer(width) for width in widths]
    views = [memoryview(buffer) for buffer in memory]
    for bitmap in views[5:]:
        bitmap.cast("B")[:] = b"\xff" * bitmap_bytes
    decoder = ColumnDecoder(views, rows_max, first_offset, end_offset, "headers" in schema.names)
    for header, data, start, limit in batches:
        decoder.add(header, data, start, limit)
    keys = pa.allocate_buffer(decoder.key_bytes)
    values = pa.allocate_buffer(decoder.value_bytes)
    decoder.fill(memoryview(keys), memoryview(values))
    return _record_batch(pa, schema, decoder, memory, keys, values, topic, partition)


def _record_batch(
    pa: Any, schema: Any, decoder: ColumnDecoder, memory: list[Any], keys: Any, values: Any, topic: str, partition: int
) -> pyarrow.RecordBatch:
    rows = decoder.rows
    offsets, timestamps, types, key_offsets, value_offsets, key_valid, value_valid = memory
    arrays = []
    for field in schema:
        if field.name == "key":
            valid = key_valid if decoder.key_nulls else None
            array = pa.Array.from_buffers(field.type, rows, [valid, key_offsets, keys], decoder.key_nulls)
        elif field.name == "value":
            valid = value_valid if decoder.value_nulls else None
            array = pa.Array.from_buffers(field.type, rows, [valid, value_offsets, values], decoder.value_nulls)
        elif field.name == "topic":
            array = pa.repeat(pa.scalar(topic, field.type), rows)
        elif field.name == "partition":
            array = pa.repeat(pa.scalar(partition, field.type), rows)
        elif field.name == "offset":
            array = pa.Array.from_buffers(field.type, rows, [None, offsets], 0)
        elif field.name == "timestamp":
            array = pa.Array.from_buffers(field.type, rows, [None, timestamps], 0)
        elif field.name == "timestampType":
            array = pa.Array.from_buffers(field.type, rows, [None, types], 0)
        else:
            array = _header_array(pa, field.type, decoder.headers)
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _header_array(pa: Any, kind: Any, rows: list[Headers | None]) -> Any:
    """Return the headers column. Records mostly have few headers or none, so objects are made for those that have."""
    if not any(rows):
        return pa.nulls(len(rows), kind)
    plain = [
        None
        if headers is None
        else [
            {"key": name.encode("utf-8", "surrogateescape").decode("utf-8", "replace"), "value": value}
            for name, value in headers
        ]
        for headers in rows
    ]
    return pa.array(plain, kind)


def encode_from_arrow(
    batch: pyarrow.RecordBatch,
    *,
    key: str = "key",
    value: str = "value",
    timestamp: str = "timestamp",
    headers: str = "headers",
    default_timestamp_ms: int = NO_TIMESTAMP,
    default_headers: Headers = (),
    compression: Compression = Compression.NONE,
    level: int | None = None,
    base_offset: int = 0,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    transactional: bool = False,
    leader_epoch: int = NO_LEADER_EPOCH,
) -> bytearray:
    """Return one record batch of all rows.

    `key`, `timestamp` and `headers` name columns that may be missing: the keys are null then, the timestamps
    `default_timestamp_ms`, and there are no headers. A row gets `default_headers`, such as a trace context, unless it
    has a header of one of these names; without the column that costs no object per row. Key and value are binary or
    string columns; a timestamp is an Arrow timestamp of any unit, or an integer of milliseconds. Raises `UsageError`
    for an empty batch or other columns.
    """
    encoded = list(
        encode_batches_from_arrow(
            batch,
            max_batch_bytes=_OFFSET_MAX,
            key=key,
            value=value,
            timestamp=timestamp,
            headers=headers,
            default_timestamp_ms=default_timestamp_ms,
            default_headers=default_headers,
            compression=compression,
            level=level,
            base_offset=base_offset,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            transactional=transactional,
            leader_epoch=leader_epoch,
        )
    )
    if not encoded:
        raise UsageError("a batch needs at least one record, and the Arrow batch has no rows")
    return encoded[0]


def encode_batches_from_arrow(
    batch: pyarrow.RecordBatch | pyarrow.Table,
    *,
    max_batch_bytes: int,
    key: str = "key",
    value: str = "value",
    timestamp: str = "timestamp",
    headers: str = "headers",
    default_timestamp_ms: int = NO_TIMESTAMP,
    default_headers: Headers = (),
    compression: Compression = Compression.NONE,
    level: int | None = None,
    base_offset: int = 0,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    transactional: bool = False,
    leader_epoch: int = NO_LEADER_EPOCH,
) -> Iterator[bytearray]:
    """Yield record batches of the rows in order, each ended once it reaches `max_batch_bytes` before compression.

    The chunks of a table are encoded one after the other, without joining them before. A batch may pass the limit by
    its last record. Offsets and sequences continue from batch to batch. The rest is as in `encode_from_arrow`.
    """
    pa = import_pyarrow()
    parts = [batch] if isinstance(batch, pa.RecordBatch) else batch.to_batches()
    for_all = encoded_headers(default_headers)
    estimate = batch.nbytes + (23 + len(for_all)) * batch.num_rows + 128
    size_limit = min(max_batch_bytes, INT32_MAX)
    builder: BatchBuilder | None = None
    first = 0

    def built(builder: BatchBuilder) -> bytearray:
        sequence = base_sequence if base_sequence < 0 else (base_sequence + first) % _SEQUENCES
        return builder.build(base_offset + first, producer_id, producer_epoch, sequence, transactional, leader_epoch)

    for part in parts:
        rows = part.num_rows
        keys = _binary_column(pa, part, key, required=False)
        values = _binary_column(pa, part, value, required=True)
        timestamps = _timestamps(pa, part, timestamp)
        header_rows = _header_rows(pa, part, headers, default_headers)
        row = 0
        while row < rows:
            if builder is None:
                builder = BatchBuilder(compression, level, capacity_bytes=min(estimate, max_batch_bytes + 4096))
            row = builder.append_columns(
                keys, values, timestamps, default_timestamp_ms, header_rows, row, rows, size_limit, for_all
            )
            if builder.size_estimate >= size_limit:
                count = builder.record_count
                yield built(builder)
                first += count
                builder = None
    if builder is not None:
        yield built(builder)


def _column(batch: Any, name: str) -> Any:
    index = batch.schema.get_field_index(name)
    return None if index < 0 else batch.column(index)


def _binary_column(pa: Any, batch: Any, name: str, *, required: bool) -> BinaryColumn:
    array = _column(batch, name)
    if array is None:
        if required:
            raise UsageError(f"there is no column {name!r}; the columns are {', '.join(batch.schema.names)}")
        array = pa.nulls(batch.num_rows, pa.binary())
    if not pa.types.is_binary(array.type):
        try:
            array = array.cast(pa.binary())
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise UsageError(f"the column {name!r} of type {array.type} is not bytes or text: {error}") from None
    valid, offsets, data = array.buffers()
    if array.null_count == 0:
        valid = None
    empty = memoryview(b"")
    return BinaryColumn(
        memoryview(offsets) if offsets is not None else memoryview(bytes(4)),
        memoryview(data) if data is not None else empty,
        None if valid is None else memoryview(valid),
        array.offset,
        len(array),
    )


def _timestamps(pa: Any, batch: Any, name: str) -> memoryview | None:
    """Return the timestamps in milliseconds as int64, or None where there is no such column."""
    array = _column(batch, name)
    if array is None or len(array) == 0:
        return None
    if pa.types.is_timestamp(array.type):
        divisor = {"s": None, "ms": 1, "us": 1000, "ns": 1_000_000}[array.type.unit]
        array = array.view(pa.int64())
        if divisor is None:
            array = pa.compute.multiply_checked(array, 1000)
        elif divisor > 1:
            array = pa.compute.divide(array, divisor)
    elif pa.types.is_integer(array.type):
        array = array.cast(pa.int64())
    else:
        raise UsageError(f"the column {name!r} is {array.type}, not a timestamp or an integer of milliseconds")
    if array.null_count:
        array = array.fill_null(NO_TIMESTAMP)
    start = 8 * array.offset
    return memoryview(array.buffers()[1])[start : start + 8 * len(array)]


def _header_rows(pa: Any, batch: Any, name: str, default: Headers) -> list[Headers | None] | None:
    """Return the headers of rows that have some, with `default` added where none of them is of a name in it."""
    array = _column(batch, name)
    if array is None or pa.types.is_null(array.type) or array.null_count == len(array):
        return None
    kind = array.type.value_type if pa.types.is_list(array.type) else None
    if kind is None or not pa.types.is_struct(kind) or min(map(kind.get_field_index, ("key", "value"))) < 0:
        raise UsageError(f"the column {name!r} is {array.type}, not a list of structs of key and value")
    unnamed = pa.compute.struct_field(array.flatten(), "key").null_count
    if unnamed:
        raise UsageError(
            f"the column {name!r} has {unnamed} headers that are null or have a null key: give each a name, or leave "
            f"them out, in Spark with filter({name}, h -> h.key is not null)"
        )
    rows: list[Headers | None] = [
        None if row is None else tuple((header["key"], header["value"]) for header in row) for row in array.to_pylist()
    ]
    if not default:
        return rows
    names = {name for name, _ in default}
    return [row if not row or any(key in names for key, _ in row) else (*row, *default) for row in rows]
