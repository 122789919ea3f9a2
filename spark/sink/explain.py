"""What went wrong with a batch, in the words of somebody who uses Spark. Runs on the driver and in tasks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from semel.protocol.api.commit_decisions import CommitDecision
from semel.protocol.errors import (
    AbortTransactionError,
    ErrorCode,
    FatalError,
    FencedError,
    RetriableError,
    SemelError,
    UsageError,
)
from semel.spark.sink.decision_payload import BatchRecord, Repeats
from semel.spark.sink.identity import BatchIdentity
from semel.spark.sink.options import SinkOptions


@contextmanager
def explaining_to_a_task(identity: BatchIdentity, options: SinkOptions) -> Iterator[None]:
    try:
        yield
    except FencedError:
        raise
    except SemelError as error:
        raise explained(error, identity, options) from None


def explained(error: SemelError, identity: BatchIdentity, options: SinkOptions) -> SemelError:
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
    if error.code is ErrorCode.INVALID_UPDATE_VERSION:
        return FatalError(
            f"{identity.token} of {identity.key!r} is not committed: group {options.group!r} (kafka.group.id) does not "
            "stand where this batch starts, so another query has committed what this one has read, or it never was "
            "this query's group. Nothing was written. Where another query, or another driver, has taken over: stop "
            "this one. Two queries that read the same topics need groups of their own. To continue from where the "
            "group stands, start with a new checkpoint and startingOffsets 'committed'; to have the group follow this "
            f"query, whatever others have done, delete it: `semel group delete {options.group}` ({error.message})",
            error.code,
        )
    if error.code is ErrorCode.UNSTABLE_OFFSET_COMMIT:
        return RetriableError(
            f"{identity.token} of {identity.key!r} is not committed: for all the time of kafka.max.block.ms "
            f"({options.address.api_timeout_ms}) another transaction was about to move group {options.group!r} "
            "(kafka.group.id). Let only one query commit for a group; `semel txn list` shows the transactions that are "
            f"open, and `semel txn abort` ends one that its driver has left behind ({error.message})",
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


def refuse_other(
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
