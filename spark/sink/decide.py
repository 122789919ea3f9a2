"""One decision makes all rows of a batch count, or none (E2). Runs on the driver.

Tasks have written in one shared transaction (`write`). The driver names those that Spark counted, and everybody else's
rows are aborted. What was decided before is found decided, and nothing is written twice.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Sequence
from dataclasses import dataclass

from pyspark.sql.datasource import WriterCommitMessage

from semel.protocol.api.commit_decisions import CommitDecision
from semel.protocol.api.group_offsets import OffsetAndMetadata
from semel.protocol.api.shared_transactions import SharedDescription
from semel.protocol.errors import ErrorCode, FatalError, SemelError, UsageError
from semel.protocol.ids import TopicPartition
from semel.sdk.shared.api import SharedTransaction
from semel.sdk.shared.calls import describe_shared
from semel.sdk.shared.transaction import SharedCommit
from semel.sdk.shared.writer import SharedWriterId
from semel.spark.clients import client_for, run
from semel.spark.sink.decision_payload import BatchRecord, Repeats
from semel.spark.sink.explain import explained, refuse_other
from semel.spark.sink.identity import BatchIdentity, driver_name, handle, names_of, work_name
from semel.spark.sink.options import SinkOptions
from semel.spark.sink.write import SinkMessage
from semel.spark.telemetry import BatchTrace, batch_aborting, batch_deciding

_log = logging.getLogger("semel.spark")


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
    moved = _moved_group(identity, options, record)
    trace = next((message.trace for message in told), planned)
    with batch_deciding(trace, names_of(identity, attempt, options)) as work:
        work.rows, work.size_bytes = sum(each.rows for each in told), sum(each.size_bytes for each in told)
        try:
            # Where no task had rows, none has opened this execution, and an older one may still be open.
            has_writers = any(message.member is not None for message in told)
            shared = handle(identity, attempt, options, opened=not has_writers)
            members = [message.member for message in told if message.member is not None]
            moved = _in_what_there_is(moved, options)
            outcome = _decide(shared, members, moved, identity, options, record)
        except SemelError as error:
            raise explained(error, identity, options) from None
        work.outcome = "replayed" if outcome.already_committed else "committed"
    _tell_of_made_topics(told, identity)
    _log.info(
        "%s: key=%s batch=%s tasks=%s rows=%s bytes=%s",
        "committed before, nothing written" if outcome.already_committed else "committed",
        identity.key,
        identity.token,
        len(told),
        work.rows,
        work.size_bytes,
    )


def _tell_of_made_topics(told: Sequence[SinkMessage], identity: BatchIdentity) -> None:
    """A first batch makes its topic, as any producer does. Made by a later one, it may be one that was deleted."""
    made = {topic: count for message in told for topic, count in message.made_topics}
    for topic, count in sorted(made.items()):
        _log.log(
            logging.WARNING if identity.sequence else logging.INFO,
            "%s has made topic %r, which was missing, with %s partitions (the node's num.partitions). If an earlier "
            "batch had written to it, it was deleted, with all that it held: this query does not write that again",
            identity.token,
            topic,
            count,
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
        with batch_aborting(trace, names_of(identity, attempt, options)):
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


@dataclass(frozen=True, slots=True)
class _MovedGroup:
    """Where the decision moves the group, and where it must stand before: at the batch's start (O5)."""

    offsets: dict[TopicPartition, OffsetAndMetadata]
    expected: dict[TopicPartition, int]

    def only(self, partitions: Container[TopicPartition]) -> _MovedGroup:
        return _MovedGroup(
            {tp: place for tp, place in self.offsets.items() if tp in partitions},
            {tp: place for tp, place in self.expected.items() if tp in partitions},
        )


def _moved_group(identity: BatchIdentity, options: SinkOptions, record: BatchRecord) -> _MovedGroup:
    if not options.group:
        return _MovedGroup({}, {})
    offsets = None if record.source is None else record.source.group_offsets()
    if record.source is None or offsets is None:
        raise UsageError(
            f"kafka.group.id is {options.group!r}, and there are no offsets to commit for it: no source of this query "
            "has offsets as Kafka's and Semel's sources have, a number for each partition of a topic. Nothing was "
            "written; leave kafka.group.id out"
        )
    # Two sinks of one batch move the group to the same place, and the second is not to be taken for a stranger.
    by = work_name(identity, options.sink_name)
    return _MovedGroup(
        {tp: OffsetAndMetadata(offset, metadata=by) for tp, offset in offsets.items()}, record.source.group_starts()
    )


def _in_what_there_is(moved: _MovedGroup, options: SinkOptions) -> _MovedGroup:
    """Leave out partitions that are gone: where the source was allowed to pass them over, the batch must end."""
    if not moved.offsets:
        return moved
    client = client_for(options.address)
    topics = run(client, client.cluster.refresh(sorted({tp.topic for tp in moved.offsets}))).topics
    counts = {name: len(topic.partitions) for name, topic in topics.items()}
    gone = sorted(tp for tp in moved.offsets if tp.partition >= counts.get(tp.topic, 0))
    if gone:
        _log.warning(
            "%s of the partitions that were read are gone (%s first): for these nothing is committed to group %s",
            len(gone),
            gone[0],
            options.group,
        )
    return moved.only(moved.offsets.keys() - set(gone))


def _decide(
    shared: SharedTransaction,
    members: list[SharedWriterId],
    moved: _MovedGroup,
    identity: BatchIdentity,
    options: SinkOptions,
    record: BatchRecord,
) -> SharedCommit:
    """Commit; and where the batch was committed before, see that it was by this sink, and after reading the same."""
    try:
        outcome = shared.commit(
            members,
            payload=record.payload(),
            offsets=moved.offsets,
            group=options.group if moved.offsets else None,
            expected_offsets=moved.expected,
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
        refuse_other(record.repeats(recorded.payload), recorded, identity, record, error)
    if record.repeats(recorded.payload) is Repeats.NUMBER_ALONE and (
        options.goes_by_number or options.wants_source_range
    ):
        _refuse_later(recorded, identity, options)
    return outcome or shared.commit(members, payload=recorded.payload)


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
