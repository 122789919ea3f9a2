"""What both sinks do: tasks write in one shared transaction, and one decision on the driver makes all of it count (E2).

Spark retries tasks and tells nobody, runs some twice, and lets what it gave up go on writing. So each task writes under
a producer id of its own, and hands it to the driver with its rows' count; the driver names those that Spark counted,
and everybody else's rows are aborted. Batches are told apart by the query and the batch's number, which a new driver
repeats after a crash: what was decided before is found decided, and nothing is written twice.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, unquote

from pyspark.sql.datasource import WriterCommitMessage

from semel.protocol.api.shared_transactions import NAME_BYTES_MAX, CommitDecision, SharedDescription
from semel.protocol.compression import Compression
from semel.protocol.errors import (
    AbortTransactionError,
    ErrorCode,
    FatalError,
    FencedError,
    SemelError,
    UsageError,
)
from semel.protocol.ids import TopicPartition
from semel.sdk.shared.calls import describe_shared
from semel.sdk.shared.transaction import SharedCommit, SharedTransaction
from semel.sdk.shared.writer import SharedWriter, SharedWriterId
from semel.spark.arrow_rows import RowSorter, record_batches
from semel.spark.clients import ProcessTransaction, client_for, grpc_addresses_of, run
from semel.spark.sink.decision_payload import BatchRecord, Repeats
from semel.spark.sink.options import SinkOptions
from semel.spark.telemetry import BatchTrace, Names, Work, batch_aborting, batch_deciding, task_writing

if TYPE_CHECKING:
    import pyarrow

_log = logging.getLogger("semel.spark")

_LINGER_MS: Final = 0

A_QUERY_ID: Final = str(uuid.UUID(int=0))
"""As long as any: stands for a query's id before Spark has told it."""


@dataclass(frozen=True)
class SinkMessage(WriterCommitMessage):
    """What a task tells the driver. `member` is None where it had no rows, or the batch was committed before."""

    key: str
    attempt: str
    member: SharedWriterId | None
    rows: int
    size_bytes: int
    trace: BatchTrace


@dataclass(frozen=True, slots=True)
class BatchIdentity:
    """Which piece of work this is: the same whenever it is tried again. `key` holds the query and the sink's name."""

    key: str
    token: str
    sequence: int | None


def batch_identity(app_id: str, sink_name: str, version: int) -> BatchIdentity:
    """Return the identity of one batch in a line of them. Raises `UsageError` where the names are too long."""
    key = f"spark/{_escaped(app_id)}/{sink_name}"
    if len(key.encode()) > NAME_BYTES_MAX:
        raise UsageError(
            f"{key!r} names the decisions of this sink, and has {len(key.encode())} bytes; the most is "
            f"{NAME_BYTES_MAX}: give a shorter sinkName (the topic unless it is given)"
            + ("" if app_id == A_QUERY_ID else " or txnAppId")
        )
    return BatchIdentity(key, f"batch-{version}", version)


def _escaped(app_id: str) -> str:
    """Return what no other txnAppId gives, whatever sink's name follows. One without a slash stays as it is."""
    return f"/{quote(app_id, safe='')}" if "/" in app_id else app_id


def _unescaped(app_id: str) -> str:
    return unquote(app_id[1:]) if app_id.startswith("/") else app_id


def fresh_nonce() -> str:
    """Return what tells this execution from every other one, and of which driver it is."""
    return f"{driver_name()}.{uuid.uuid4().hex}"


def driver_name() -> str:
    """Return what all Python processes of one driver on its machine have in common; empty where Spark does not say.

    Spark makes folders with random names for each of its JVMs, and tells them to all processes that plan, commit and
    abort. In a task's process they are the executor's: only what is made on the driver is named so.
    """
    folders = os.environ.get("SPARK_LOCAL_DIRS", "")
    return hashlib.sha256(folders.encode()).hexdigest()[:12] if folders else ""


def handle(identity: BatchIdentity, attempt: str, options: SinkOptions, *, opened: bool = False) -> SharedTransaction:
    """Return the shared transaction's handle. It has asked nobody yet, unless it is to be `opened`."""
    address = options.address
    make = ProcessTransaction.open if opened else ProcessTransaction
    return make(
        ",".join(grpc_addresses_of(address)),
        identity.key,
        address=address,
        token=identity.token,
        sequence=identity.sequence,
        timeout_ms=options.transaction_timeout_ms,
        attempt=attempt,
        run=_run_of(attempt),
        one_off=identity.sequence is None,
        client_id=address.client_id,
        max_block_ms=address.api_timeout_ms,
        request_timeout_ms=address.request_timeout_ms,
        connect_timeout_ms=address.connect_timeout_ms,
    )


def write_rows(
    batches: Iterator[pyarrow.RecordBatch],
    identity: BatchIdentity,
    attempt: str,
    options: SinkOptions,
    *,
    task_partition: int,
    trace: BatchTrace,
) -> SinkMessage:
    """Write a task's rows under an identity of its own. What fails, or is not named by the driver, is aborted."""
    with task_writing(trace, _names(identity, attempt, options), task_partition) as work:
        first = next((batch for batch in batches if batch.num_rows), None)
        if first is None:
            work.outcome = "empty"
            return SinkMessage(identity.key, attempt, None, 0, 0, trace)
        with _explaining_to_a_task(identity, options), _joined(identity, attempt, options) as writer:
            if writer.committed is not None:
                for _ in batches:  # Spark's process for the task wants its input read
                    pass
                work.outcome = "replayed"
                return SinkMessage(identity.key, attempt, None, 0, 0, trace)
            try:
                _send_all(first, batches, writer, options, task_partition, work)
            except (AbortTransactionError, FencedError):
                writer.flush()  # asks who has ended this part, and raises that in place of what a node answered
                raise
            member = writer.finish()
        work.outcome = "written"
        return SinkMessage(identity.key, attempt, member, work.rows, work.size_bytes, trace)


def _joined(identity: BatchIdentity, attempt: str, options: SinkOptions) -> SharedWriter:
    return handle(identity, attempt, options).join(
        linger_ms=_LINGER_MS,
        buffer_memory_bytes=options.writer_memory_bytes,
        delivery_timeout_ms=options.delivery_timeout_ms,
        auto_create_topics=True,  # as Kafka's producers do, where the node's settings allow it
    )


def _send_all(
    first: pyarrow.RecordBatch,
    rest: Iterator[pyarrow.RecordBatch],
    writer: SharedWriter,
    options: SinkOptions,
    task_partition: int,
    work: Work,
) -> None:
    sorter = RowSorter(options.topic, writer.partition_count, task_partition, options.rows_memory_bytes)
    compression = Compression[options.compression.upper()]

    def send(parts: Iterator[tuple[tuple[str, int], pyarrow.Table]]) -> None:
        for (topic, partition), records in parts:
            work.rows += records.num_rows
            for encoded in record_batches(
                records,
                batch_bytes=options.batch_bytes,
                compression=compression,
                timestamp_ms=time.time_ns() // 1_000_000,
                default_headers=tuple(work.headers),
            ):
                work.size_bytes += len(encoded)
                writer.send_batch(topic, partition, encoded)

    batch: pyarrow.RecordBatch | None = first
    while batch is not None:
        if batch.num_rows:
            sorter.add(batch)
            send(sorter.take_full(options.batch_bytes))
        batch = next(rest, None)
    send(sorter.take_all())


def commit_batch(
    messages: Sequence[WriterCommitMessage | None],
    identity: BatchIdentity,
    attempt_without_messages: str,
    options: SinkOptions,
    record: BatchRecord,
    planned: BatchTrace,
) -> None:
    """Decide: exactly the tasks that sent these messages count, with the offsets of what they read.

    Does nothing where the batch was decided before. Raises `FencedError` where another driver has taken over,
    `FatalError` where the same batch was committed with other source offsets, and `UsageError` where it was another
    sink that did, or where there are no offsets to commit.
    """
    told = [message for message in messages if isinstance(message, SinkMessage)]
    if len(told) != len(messages):
        raise FatalError(
            f"{len(messages) - len(told)} of {len(messages)} tasks have sent no message: nothing committed"
        )
    attempts = {message.attempt for message in told}
    if len(attempts) > 1:
        raise FatalError(f"the messages of one batch are of {len(attempts)} executions: nothing committed")
    attempt = attempts.pop() if attempts else attempt_without_messages
    offsets = _group_offsets(options, record)
    trace = next((message.trace for message in told), planned)
    with batch_deciding(trace, _names(identity, attempt, options)) as work:
        work.rows, work.size_bytes = sum(each.rows for each in told), sum(each.size_bytes for each in told)
        try:
            # Where no task had rows, none has opened this execution, and an older one may still be open.
            has_writers = any(message.member is not None for message in told)
            shared = handle(identity, attempt, options, opened=not has_writers)
            members = [message.member for message in told if message.member is not None]
            outcome = _decide(shared, members, offsets, identity, options, record)
        except SemelError as error:
            raise _explained(error, identity, options) from None
        work.outcome = "replayed" if outcome.already_committed else "committed"
    _log.info(
        "%s: key=%s batch=%s tasks=%s rows=%s bytes=%s",
        "committed before, nothing written" if outcome.already_committed else "committed",
        identity.key,
        identity.token,
        len(told),
        work.rows,
        work.size_bytes,
    )


def abort_batch(
    messages: Sequence[WriterCommitMessage | None],
    identity: BatchIdentity,
    options: SinkOptions,
    known: dict[str, BatchTrace] | None = None,
) -> None:
    """Abort an execution that failed. Changes nothing that is decided, and nothing of a later execution's.

    known: the execution, where it is known without messages. Where it is not, and no task has told of itself, the next
           execution's first task aborts what this one left, or the timeout does
    """
    told = {each.attempt: each.trace for each in messages if isinstance(each, SinkMessage)}
    for attempt, trace in {**(known or {}), **told}.items():
        with batch_aborting(trace, _names(identity, attempt, options)):
            try:
                handle(identity, attempt, options).abort()
            except SemelError as error:
                _log.warning("an execution of %s could not be aborted; the next one does it: %s", identity.token, error)


def abort_of_this_driver(identity: BatchIdentity, options: SinkOptions) -> None:
    """Abort the open execution of a batch where no task has told of itself, if this driver has planned it.

    Another driver that runs the same query may have opened its own meanwhile: that one is left alone.
    """
    try:
        found = _described(identity, options)
        _, _, nonce = found.attempt.rpartition("/")
        driver = driver_name()
        if driver and found.token == identity.token and nonce.startswith(f"{driver}."):
            handle(identity, found.attempt, options).abort()
            return
    except SemelError as error:
        _log.warning("an execution of %s could not be aborted: %s", identity.token, error)
        return
    if found.attempt:
        _log.warning("%s of %r is open in another driver, or in one that is gone", identity.token, identity.key)


def attempt_name(run_id: str, nonce: str) -> str:
    """Return the name of one execution of a batch, which tells of which run of the query it is."""
    return f"{run_id}/{nonce}"


def _run_of(attempt: str) -> str | None:
    """Return the query's run, which is Spark's job group; None for one that the application has set in its place."""
    run_id, _, _ = attempt.rpartition("/")
    try:
        return str(uuid.UUID(run_id))
    except ValueError:
        return None


def _group_offsets(options: SinkOptions, record: BatchRecord) -> dict[TopicPartition, int]:
    if not options.group:
        return {}
    offsets = None if record.source is None else record.source.group_offsets()
    if offsets is None:
        raise UsageError(
            f"kafka.group.id is {options.group!r}, and there are no offsets to commit for it: no source of this query "
            "has offsets as Kafka's and Semel's sources have, a number for each partition of a topic. Nothing was "
            "written; leave kafka.group.id out"
        )
    return offsets


def _decide(
    shared: SharedTransaction,
    members: list[SharedWriterId],
    offsets: dict[TopicPartition, int],
    identity: BatchIdentity,
    options: SinkOptions,
    record: BatchRecord,
) -> SharedCommit:
    """Commit; and where the batch was committed before, see that it was by this sink, and after reading the same."""
    try:
        outcome = shared.commit(
            members, payload=record.payload(), offsets=offsets or None, group=options.group if offsets else None
        )
        if not outcome.already_committed:
            return outcome
        recorded = outcome.decision
    except FatalError as error:
        if error.code is not ErrorCode.INVALID_TXN_STATE:
            raise
        found = next((each for each in _described(identity, options).decisions if each.token == identity.token), None)
        if found is None:
            raise
        # Another record is none of ours, or was made by a version, or under options, that records less.
        outcome, recorded = None, found
        _refuse_other(record.repeats(recorded.payload), recorded, identity, record, error)
    if record.repeats(recorded.payload) is Repeats.NUMBER_ALONE and (
        options.goes_by_number or options.wants_source_range
    ):
        _refuse_later(recorded, identity, options)
    return outcome or shared.commit(members, payload=recorded.payload)


def _refuse_other(
    repeats: Repeats, recorded: CommitDecision, identity: BatchIdentity, record: BatchRecord, error: FatalError
) -> None:
    if repeats is Repeats.OTHER_RANGE:
        raise error
    if repeats is Repeats.OTHER_SINK:
        raise UsageError(
            f"{identity.token} of {identity.key!r} was committed by a sink of the same name that writes elsewhere, or "
            f"has other columns; this one writes to {record.sink.where}, and has written nothing of it. Give each sink "
            "of a query a name of its own (option sinkName). If the query itself was changed between two runs, let it "
            f"run once as it was, until {identity.token} is done"
        )


def _refuse_later(recorded: CommitDecision, identity: BatchIdentity, options: SinkOptions) -> None:
    """Spark repeats its last batch alone, so a replay of an earlier one comes of a checkpoint that was rolled back."""
    later = [each.token for each in _described(identity, options).decisions if each.sequence > recorded.sequence]
    if later:
        raise FatalError(
            f"{later[-1]} is committed already, so {identity.token} is no replay of the last batch",
            ErrorCode.INVALID_TXN_STATE,
        )


def _described(identity: BatchIdentity, options: SinkOptions) -> SharedDescription:
    client = client_for(options.address)
    return run(client, describe_shared(client.control, identity.key))


@contextmanager
def _explaining_to_a_task(identity: BatchIdentity, options: SinkOptions) -> Iterator[None]:
    try:
        yield
    except FencedError:
        raise
    except SemelError as error:
        raise _explained(error, identity, options) from None


def _explained(error: SemelError, identity: BatchIdentity, options: SinkOptions) -> SemelError:
    """Say it in the words of somebody who uses Spark."""
    limit = f"kafka.transaction.timeout.ms ({options.transaction_timeout_ms})"
    if isinstance(error, FencedError):
        return FencedError(
            f"another run of this query has taken over {identity.token}; this one has written nothing of it. Let only "
            f"one run of a query live at a time ({error.message})",
            error.code,
        )
    if error.code is ErrorCode.INVALID_TXN_STATE:
        return FatalError(
            f"{identity.token} of {identity.key!r} was committed with other source offsets, or later batches were: the "
            "checkpoint was rolled back, or a copy of it is used. Nothing was written. Restore the newest checkpoint; "
            "or start with a new one, and startingOffsets 'committed' where the sink has a kafka.group.id "
            f"({error.message})",
            error.code,
        )
    if error.code is ErrorCode.TRANSACTION_ABORTABLE:
        return AbortTransactionError(
            f"{identity.token} of {identity.key!r} is not committed: from a task's first row to the decision it took "
            f"longer than {limit} ms, or it was aborted. Where batches take that long, raise the option (the node's "
            "transaction.max.timeout.ms, 900000 unless it was changed, is the most), or make batches smaller "
            f"(maxOffsetsPerTrigger); otherwise let Spark repeat it ({error.message})",
            error.code,
        )
    if error.code is ErrorCode.INVALID_TRANSACTION_TIMEOUT:
        return UsageError(
            f"option {limit} is more than the node allows: lower it, or raise the node's setting "
            f"transaction.max.timeout.ms ({error.message})",
            error.code,
        )
    return error


def _names(identity: BatchIdentity, attempt: str, options: SinkOptions) -> Names:
    app_id = ""
    if identity.sequence is not None:
        app_id = _unescaped(identity.key.removeprefix("spark/").removesuffix(f"/{options.sink_name}"))
    topic, client_id = options.topic, options.address.client_id
    return Names(app_id, options.sink_name, identity.sequence, attempt, topic, client_id)
