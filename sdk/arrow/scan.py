"""What to read of a topic is settled first, and read after it: a scan has its offsets before it has a record."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar
from uuid import UUID

from semel.protocol.api.topics import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, IsolationLevel
from semel.protocol.arrow import COLUMNS, arrow_schema, import_pyarrow
from semel.protocol.errors import ErrorCode, FatalError, UsageError
from semel.protocol.ids import TopicId, TopicPartition
from semel.protocol.int_bounds import INT32_MAX
from semel.sdk.arrow.range_reader import ReadOptions, read_range
from semel.sdk.transport.client import ClientCore
from semel.sdk.transport.offset_lookup import list_offsets
from semel.sdk.transport.options import ClientOptions, check_bool, check_choice, check_int, check_text, checked_names

if TYPE_CHECKING:
    import pyarrow

Moment: TypeAlias = "str | datetime | Mapping[int, int] | Mapping[str, int] | None"
"""Where a scan begins or ends: "earliest", "latest", a time, or the offset in each partition."""

T = TypeVar("T")

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FETCH_MAX_BYTES: Final = 256 << 20


class Scan:
    """A range of offsets of a topic, to be read as Arrow record batches. `scan` makes one.

    It holds no connection: each time it is read it opens one, and closes it at the end. What it reads is the same each
    time, since the offsets are settled, as long as the log has them. Whatever takes an Arrow stream takes a scan:
    `pyarrow.table(scan)`, `polars.DataFrame(scan)`, `duckdb.sql("SELECT ... FROM scan")`.

    topic: what is read
    topic_id: which one it is, of those that have had this name. Records of another one are never returned
    start: where each partition begins, and
    end:   where it ends: the offset after the last. Keep it beside the result of what you read, and begin the next scan
           there: `scan(topic, start=kept)`. JSON makes text of the partitions' numbers; `start` takes that, too.
    """

    def __init__(
        self,
        topic: str,
        topic_id: TopicId,
        start: Mapping[int, int],
        end: Mapping[int, int],
        client: ClientOptions,
        how: ReadOptions,
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.start = dict(start)
        self.end = dict(end)
        self._client = client
        self._how = how

    def __repr__(self) -> str:
        ranges = ", ".join(f"{number}: {self.start[number]} to {end}" for number, end in self.end.items())
        return f"Scan({self.topic!r}, {{{ranges}}})"

    @property
    def schema(self) -> pyarrow.Schema:
        """The columns and their types."""
        return arrow_schema(self._how.columns)

    def partition(self, number: int) -> Scan:
        """Return the part of this scan that reads one partition: for several threads or workers, or one file each.

        Raises `UsageError` where it does not read that partition.
        """
        if isinstance(number, bool) or not isinstance(number, int) or number not in self.start:
            raise UsageError(f"{self!r} does not read partition {number}")
        part = {number: self.start[number]}, {number: self.end[number]}
        return Scan(self.topic, self.topic_id, *part, self._client, self._how)

    def __iter__(self) -> Iterator[pyarrow.RecordBatch]:
        """Yield the records, one partition after the other, each in its order.

        Raises `DataLossError` where records are not there any more, `RetriableError` where the cluster can't be
        reached in time, and `UnreadableBatchError` for what is damaged in the log.
        """
        return (records for records, _ in self.with_offsets())

    def with_offsets(self) -> Iterator[tuple[pyarrow.RecordBatch, dict[int, int]]]:
        """Yield record batches, each with where another scan continues behind it.

        Who keeps these offsets with what became of the batch, in one transaction of a database or in one file, may be
        stopped anywhere: `scan(topic, start=kept)` has what comes after it, each record once.
        """
        positions = dict(self.start)
        client = ClientCore("Scan", self._client)
        try:
            for number, start in self.start.items():
                tp = TopicPartition(self.topic, number)
                for piece in read_range(client, tp, start, self.end[number], self._how, self.topic_id):
                    positions[number] = piece.next_offset
                    if piece.records.num_rows:
                        yield piece.records, dict(positions)
        finally:
            client.close()

    def read_all(self) -> pyarrow.Table:
        """Return all records as a table, in memory."""
        return import_pyarrow().Table.from_batches(self, self.schema)

    def to_reader(self) -> pyarrow.RecordBatchReader:
        """Return a reader of record batches, which takes one after the other as it is asked for them."""
        return import_pyarrow().RecordBatchReader.from_batches(self.schema, self)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Arrow's PyCapsule interface, by which DuckDB, Polars, pandas and pyarrow take a scan."""
        return self.to_reader().__arrow_c_stream__(requested_schema)


@checked_names
def scan(
    topic: str,
    start: Moment = "earliest",
    end: Moment = "latest",
    *,
    topic_id: TopicId | str | None = None,
    bootstrap: str | Sequence[str] | None = None,
    columns: Iterable[str] = COLUMNS,
    isolation: str = "read_committed",
    on_data_loss: str = "raise",
    fetch_max_bytes: int = 4 << 20,
    check_crcs: bool = True,
    rack: str = "",
    client_id: str = "semel",
    api_timeout_ms: int = 60_000,
    request_timeout_ms: int = 30_000,
    connect_timeout_ms: int | None = None,
    **kafka: Any,  # `checked_names` has put them under the names above, and refused what is none
) -> Scan:
    """Settle what to read of a topic, and return it as a `Scan`, with its offsets.

    start:           "earliest" (default), "latest", a `datetime` with its time zone (the first record of that time or a
                     later one), or the offset in each partition; partitions that are not named begin at their start,
                     so what a scan's `end` says is where the next one begins, also after the topic has grown
    end:             the same, and exclusive; "latest" (default) is where the log ends now, for `read_committed`
                     the last stable offset. What is later is cut to it: a scan never waits for more. Partitions that
                     are not named are not read
    topic_id:        what `topic_id` of an earlier scan was: raise `DataLossError` where another topic has the name by
                     now, so that kept offsets are not taken for its own
    bootstrap:       the address of a node, or several; None: what SEMEL_BOOTSTRAP says, else localhost:9094
    columns:         which, of key, value, topic, partition, offset, timestamp, timestampType (the default) and headers
    isolation:       "read_committed" (default), or "read_uncommitted", with records of open and aborted transactions
    on_data_loss:    what to do where records are gone that are to be read: "raise" (default) a `DataLossError`, or
                     "skip" them with a warning
    fetch_max_bytes: how much is fetched at once; a record batch has what one fetch has brought
    check_crcs:      look at the checksum of each batch
    rack:            where this program is, to read from the nearest replica
    api_timeout_ms:  how long to ask on, for offsets and for records that are there
    request_timeout_ms, connect_timeout_ms: of one attempt; and of all where no node has ever answered

    Raises `UsageError` for options that are wrong, `FatalError` where there is no such topic, `DataLossError` where
    the log ends before `start`, and `RetriableError` where the cluster can't be reached in time.
    """
    if not isinstance(topic, str) or not topic:
        raise UsageError(f"topic must be the name of one topic, not {topic!r}")
    check_choice("on_data_loss", on_data_loss, ("raise", "skip"))
    check_choice("isolation", isolation, ("read_committed", "read_uncommitted"))
    names = _checked_columns(columns)
    wanted_id = None if topic_id is None else _checked_topic_id(topic_id)
    how = ReadOptions(
        isolation=IsolationLevel[isolation.upper()],
        columns=names,
        fetch_max_bytes=check_int("fetch_max_bytes", fetch_max_bytes, 1, _FETCH_MAX_BYTES),
        patience_ms=check_int("api_timeout_ms", api_timeout_ms, 1),
        fail_on_data_loss=on_data_loss == "raise",
        check_crc=check_bool("check_crcs", check_crcs),
        rack=check_text("rack", rack) if rack != "" else "",
    )
    arrow_schema(how.columns)  # says which columns there are, and that pyarrow is needed, before anything is asked
    options = ClientOptions.checked(
        bootstrap,
        client_id=client_id,
        api_timeout_ms=api_timeout_ms,
        request_timeout_ms=request_timeout_ms,
        connect_timeout_ms=connect_timeout_ms,
    )
    _check_moment("start", start)
    _check_moment("end", end)
    if isinstance(start, datetime) and isinstance(end, datetime) and start > end:
        raise UsageError(f"start, {start}, is after end, {end}: nothing is between them")
    client = ClientCore("Scan", options)
    try:
        found, begins, ends = _run(client, _settle(client, topic, wanted_id, start, end, how))
    finally:
        client.close()
    return Scan(topic, found, begins, ends, options, how)


def read(topic: str, start: Moment = "earliest", end: Moment = "latest", **options: Any) -> pyarrow.Table:
    """Return a range of a topic as a table, in memory: `scan(topic, start, end, ...).read_all()`.

    Takes the options of `scan`, and raises what a scan raises.
    """
    return scan(topic, start, end, **options).read_all()


def _run(client: ClientCore, call: Coroutine[Any, Any, T]) -> T:
    return client.run(call, timeout_ms=2 * client.options.api_timeout_ms + client.options.request_timeout_ms)


async def _settle(
    client: ClientCore, topic: str, topic_id: TopicId | None, start: Moment, end: Moment, how: ReadOptions
) -> tuple[TopicId, dict[int, int], dict[int, int]]:
    snapshot = await client.cluster.refresh([topic])
    found = snapshot.topics.get(topic)
    if found is None:
        raise FatalError(
            f"there is no topic {topic!r} to read; `semel topic list` shows those that there are",
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        )
    if topic_id is not None and topic_id != found.topic_id:
        raise how.another_topic(topic)
    numbers = list(range(len(found.partitions)))
    begins = await _offsets(client, topic, numbers, "start", start, how)
    ends = await _offsets(client, topic, numbers, "end", end, how)
    begins = {number: begins[number] for number in ends}
    latest = ends if end == "latest" else await _offsets(client, topic, list(ends), "end", "latest", how)
    if isinstance(start, Mapping):
        beyond = [number for number, begin in begins.items() if begin > latest[number]]
        # What is still open, a scan of uncommitted records has read: it is there, and there is nothing to read yet.
        uncommitted = replace(how, isolation=IsolationLevel.READ_UNCOMMITTED)
        written = await _offsets(client, topic, beyond, "end", "latest", uncommitted)
        for number in beyond:
            begin = begins[number]
            if begin <= written[number]:
                latest[number] = begin
                continue
            if how.fail_on_data_loss:
                what = f"{topic}-{number} ends at offset {latest[number]}, before the {begin} at which to start"
                raise how.data_loss(what)
            begins[number] = latest[number]
    ends = {number: max(begins[number], min(offset, latest[number])) for number, offset in ends.items()}
    return found.topic_id, begins, ends


async def _offsets(
    client: ClientCore, topic: str, numbers: list[int], name: str, moment: Moment, how: ReadOptions
) -> dict[int, int]:
    if isinstance(moment, Mapping):
        given = {int(number): offset for number, offset in moment.items()}
        unknown = sorted(given.keys() - set(numbers))
        if unknown:
            raise UsageError(
                f"{name} names partition {unknown[0]} of topic {topic!r}, which has {len(numbers)}, numbered from 0"
            )
        if name == "start":
            others = [number for number in numbers if number not in given]
            given |= await _offsets(client, topic, others, name, "earliest", how)
        return dict(sorted(given.items()))
    if isinstance(moment, datetime):
        # Rounded up: a record of an earlier millisecond is before it. What is before 1970 means other things.
        wanted = max(0, -((_EPOCH - moment) // timedelta(milliseconds=1)))
    else:
        wanted = EARLIEST_TIMESTAMP if moment == "earliest" else LATEST_TIMESTAMP
    tps = [TopicPartition(topic, number) for number in numbers]
    found = await list_offsets(client, dict.fromkeys(tps, wanted), how.isolation) if tps else {}
    without = [tp.partition for tp in tps if found[tp].offset < 0]  # no record of that time or a later one
    latest = await _offsets(client, topic, without, name, "latest", how) if without else {}
    return {tp.partition: latest.get(tp.partition, found[tp].offset) for tp in tps}


def _checked_columns(columns: object) -> tuple[str, ...]:
    if isinstance(columns, str):
        raise UsageError(f"columns takes a list of names: [{columns!r}], not the text {columns!r}")
    names = tuple(columns) if isinstance(columns, Iterable) else ()
    if not names or not all(isinstance(name, str) for name in names):
        raise UsageError(f"columns takes a list of names, such as ['key', 'value'], not {columns!r}")
    return names


def _checked_topic_id(topic_id: object) -> TopicId:
    """Return a topic id, which may be given as text, since it is kept beside offsets."""
    if isinstance(topic_id, UUID):
        return TopicId(topic_id)
    try:
        return TopicId(UUID(topic_id if isinstance(topic_id, str) else ""))
    except ValueError:
        raise UsageError(f"topic_id is the topic_id of a scan, or that as text, not {topic_id!r}") from None


def _check_moment(name: str, moment: object) -> None:
    if isinstance(moment, datetime):
        if moment.tzinfo is None:
            raise UsageError(f"{name} is a time without a zone, {moment}: give it one, such as tzinfo=datetime.UTC")
        return
    if isinstance(moment, Mapping):
        for number, offset in moment.items():
            is_number = isinstance(number, int) or (isinstance(number, str) and number.isascii() and number.isdigit())
            if isinstance(number, bool) or not is_number or not 0 <= int(number) <= INT32_MAX:
                raise UsageError(f"{name} has the number of a partition before each offset, not {number!r}")
            if isinstance(offset, bool) or not isinstance(offset, int) or offset < 0:
                raise UsageError(f"{name} has an offset, 0 or more, for partition {number}, not {offset!r}")
        return
    if moment not in ("earliest", "latest"):
        raise UsageError(
            f"{name} is 'earliest', 'latest', a datetime, or the offset in each partition such as {{0: 1200}}, not "
            f"{moment!r}"
        )
