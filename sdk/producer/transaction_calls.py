"""A producer's transactions: what is asked of the coordinator, and what its answers mean for the states."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from semel.protocol.api.producer_ids import InitProducerIdRequest, InitProducerIdResponse
from semel.protocol.errors import (
    AbortTransactionError,
    ErrorCode,
    FatalError,
    FencedError,
    RetriableError,
    SemelError,
    UsageError,
)
from semel.protocol.ids import NO_PRODUCER
from semel.protocol.proto_conversions import decision_of, producer_message, producer_of
from semel.protocol.v1 import shared_pb2, transactions_pb2
from semel.runtime.backoff import MARKERS_FIRST_MS, Backoff
from semel.sdk.producer.beside_records import BesideRecords
from semel.sdk.producer.transaction import PreparedTransaction
from semel.sdk.producer.transaction_manager import State, TransactionManager
from semel.sdk.telemetry import metrics, tracing
from semel.sdk.transport.item_errors import item_error
from semel.sdk.transport.offset_parts import in_parts
from semel.sdk.transport.rpcs import DESCRIBE_SHARED, END_TRANSACTION, INIT_PRODUCER_ID, TXN_COMMIT_OFFSETS, Key

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span

    from semel.protocol.api.commit_decisions import CommitDecision
    from semel.protocol.api.group_offsets import GroupMetadata, OffsetAndMetadata
    from semel.protocol.ids import ProducerIdAndEpoch, TopicPartition
    from semel.runtime.kafka_client.connection import Connection
    from semel.sdk.producer.sender import Sender
    from semel.sdk.producer.transaction import CommitSource, CommitToken
    from semel.sdk.transport.control import Control
    from semel.sdk.transport.options import ClientOptions


async def init_producer_id(
    control: Control, request: InitProducerIdRequest, timeout_ms: int | None = None
) -> InitProducerIdResponse:
    """Ask for a producer id; with what is held already, for the next epoch of the same one (KIP-360)."""
    message = transactions_pb2.InitProducerIdRequest(
        transactional_id=request.transactional_id or "",
        transaction_timeout_ms=request.transaction_timeout_ms,
        producer=producer_message(request.producer) if request.producer != NO_PRODUCER else None,
        two_phase=request.two_phase,
        keep_prepared=request.keep_prepared,
    )
    response = await control.call(INIT_PRODUCER_ID, message, timeout_ms=timeout_ms)
    return InitProducerIdResponse(
        producer_of(response.producer), producer_of(response.ongoing) if response.HasField("ongoing") else None
    )


async def commit_offsets(
    control: Control,
    options: ClientOptions,
    transactional_id: str,
    producer: ProducerIdAndEpoch,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    group: GroupMetadata,
    expected: Mapping[TopicPartition, int] | None = None,
) -> None:
    """Commit a group's offsets inside the transaction of `producer` (O1), asking again where that may help.

    expected: where the group must stand, by partition, -1 for nowhere (O5); None: anywhere
    """
    places = expected or {}
    items = (
        transactions_pb2.TxnCommitOffsetsRequest.Item(
            topic=tp.topic,
            partition=tp.partition,
            offset=position.offset,
            leader_epoch=position.leader_epoch,
            metadata=position.metadata,
            expected_offset=places.get(tp),
        )
        for tp, position in offsets.items()
    )
    deadline = control.clock.monotonic() + options.api_timeout_ms / 1000
    for part in in_parts(items, group.group_id):  # the marker publishes them together
        request = transactions_pb2.TxnCommitOffsetsRequest(
            transactional_id=transactional_id,
            producer=producer_message(producer),
            group_id=group.group_id,
            generation_id=group.generation_id,
            member_id=group.member_id,
            group_instance_id=group.group_instance_id or "",
            items=part,
        )
        await _commit_part(control, options, request, deadline)


async def _commit_part(
    control: Control, options: ClientOptions, request: transactions_pb2.TxnCommitOffsetsRequest, deadline: float
) -> None:
    backoff = Backoff(MARKERS_FIRST_MS, options.retry_backoff_max_ms)
    for failures in itertools.count(1):
        left_ms = (deadline - control.clock.monotonic()) * 1000
        response = await control.call(TXN_COMMIT_OFFSETS, request, timeout_ms=max(left_ms, 1))
        errors = [
            item_error(item.error, f"{item.topic}-{item.partition}") for item in response.items if item.error.code
        ]
        if not errors:
            return
        fatal = next((error for error in errors if not isinstance(error, RetriableError)), None)
        if fatal is not None or not await backoff.pause(failures, control.clock, deadline):
            raise fatal or errors[0]


_OF_A_TIMEOUT: Final = frozenset(
    {
        ErrorCode.TRANSACTION_ABORTABLE,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_TXN_STATE,
    }
)
"""What a call is refused with in a transaction that the coordinator has aborted because of its time."""


class TransactionCalls:
    """The transactions of one producer. Coroutines run on the IO thread, everything else on any."""

    def __init__(
        self,
        transactional_id: str,
        transaction_timeout_ms: int,
        options: ClientOptions,
        control: Control,
        sender: Sender,
        flush: Callable[[], Coroutine[Any, Any, None]],
        abandon: Callable[[SemelError], object],
        on_change: Callable[[], object],
        connection_to: Callable[[Key], Connection | None],
        *,
        two_phase: bool = False,
    ) -> None:
        """`flush` waits for everything sent, `abandon` fails it; `on_change` hears when `may_send` may have changed.

        connection_to: gives the data connection to the coordinator of a key, where one is open
        """
        self._manager = TransactionManager(transactional_id)
        self._timeout_ms = transaction_timeout_ms
        self.is_two_phase = two_phase
        self._options = options
        self._control = control
        self._now = control.clock.monotonic
        self._sender = sender
        self._flush = flush
        self._abandon = abandon
        self._on_change = on_change
        self._beside_records = BesideRecords(transactional_id, options, connection_to)
        self._lock = threading.RLock()
        self._offsets_sent = False
        self._commits: CommitSource | None = None
        self._token: CommitToken | None = None
        self._prepared: PreparedTransaction | None = None
        self._was_kept = False  # the prepared transaction is an older instance's
        self._span: Span | None = None
        self._partitions_sent: set[TopicPartition] = set()
        self._records_sent = 0
        self._begun_at = 0.0
        self._ending_since = 0.0
        self._is_counted = True  # in the metrics

    @property
    def transactional_id(self) -> str:
        return self._manager.transactional_id

    @property
    def may_send(self) -> bool:
        return self._manager.may_send

    def check_sending(self) -> None:
        """Raise what a send is to raise now."""
        with self._lock:
            self._manager.check_sending()

    def scope_failed(self, error: SemelError) -> None:
        """A record failed for good."""
        with self._lock:
            self._manager.failed_part(self._explained(error))
            self._on_change()

    @property
    def needs_initializing(self) -> bool:
        """Whether the next transaction must first get its identity from the coordinator."""
        return self._manager.needs_initializing

    async def initialize(self, *, keep_prepared: bool = False) -> PreparedTransaction | None:
        """Get an identity, and fence older instances with the same transactional id.

        With `keep_prepared`, returns what an older instance left prepared (KIP-939); otherwise that is aborted.
        """
        if not self._manager.needs_initializing:
            return self._prepared
        try:
            response = await self._identity(NO_PRODUCER, keep_prepared=keep_prepared)
        except (FencedError, FatalError) as error:
            raise self._stop(error) from error
        self._was_kept = response.ongoing is not None
        if response.ongoing is not None:
            self._prepared = PreparedTransaction(*response.ongoing)
        with self._lock:
            self._manager.initialized(response.producer, prepared=self._was_kept)
        self._sender.set_producer(response.producer)
        return self._prepared

    def _explained(self, error: SemelError) -> SemelError:
        """Say that the timeout is behind it, where it must be: its abort will show whether it may continue (T9)."""
        open_ms = (self._now() - self._begun_at) * 1000
        if error.code not in _OF_A_TIMEOUT or open_ms < self._timeout_ms or self.is_two_phase:
            return error
        return AbortTransactionError(f"{self._timed_out} ({error.message})", error.code)

    @property
    def _timed_out(self) -> str:
        return f"it timed out after {self._timeout_ms} ms (transaction_timeout_ms), and the coordinator has aborted it"

    def begin(self) -> None:
        """Open a transaction. `initialize` must have run."""
        with self._lock:
            self._manager.begin()
            self._begun_at = self._now()
            self._is_counted = False
            self._offsets_sent = False
            self._partitions_sent.clear()
            self._records_sent = 0
            if tracing.active():
                name, client_id = self._manager.transactional_id, self._options.client_id
                self._span = tracing.start_span(
                    "transaction", name, kind="client", client_id=client_id, about=tracing.TRANSACTION
                )
            self._on_change()

    @property
    def context(self) -> Context | None:
        """The trace context that sends of the open transaction are made in; None without tracing."""
        return None if self._span is None else tracing.context_with(self._span)

    def note_sent(self, tp: TopicPartition, record_count: int) -> None:
        """Count what goes out, for the span of the transaction."""
        if self._span is not None:
            self._partitions_sent.add(tp)
            self._records_sent += record_count

    def _link(self, commits: CommitSource | None) -> None:
        """Join the traces of the records that the transaction is made from."""
        if self._span is not None:
            tracing.add_links(self._span, (record.headers for record in getattr(commits, "records", ())))

    @contextmanager
    def _settling(self, operation: str) -> Iterator[None]:
        """A span around the decision, always below the transaction's own (E4)."""
        if self._span is None:
            try:
                yield
            except BaseException as error:
                self._note_stop(error)
                raise
            return
        name, client_id = self._manager.transactional_id, self._options.client_id
        context = self.context
        span = tracing.start_span(
            operation, name, kind="client", client_id=client_id, parent=context, about=tracing.TRANSACTION
        )
        try:
            with tracing.attached(tracing.context_with(span, context)):
                yield
        except BaseException as error:
            tracing.end_span(span, error)
            self._note_stop(error)
            raise
        tracing.end_span(span)

    def _note_stop(self, error: BaseException) -> None:
        """A decision failed: where the producer can't continue, that is the transaction's end."""
        if self.has_stopped:
            self._end_span("fenced" if isinstance(error, FencedError) else "failed", error)

    def _end_span(self, outcome: str, error: BaseException | None = None) -> None:
        if not self._is_counted:
            self._is_counted = True
            metrics.transaction_ended(outcome, self._now() - self._ending_since)
        span, self._span = self._span, None
        if span is not None:
            span.set_attribute("semel.transaction.outcome", outcome)
            span.set_attribute("semel.transaction.partitions", len(self._partitions_sent))
            span.set_attribute("semel.transaction.records", self._records_sent)
            tracing.end_span(span, error)

    @property
    def has_stopped(self) -> bool:
        """Whether the producer is fenced or has failed for good."""
        return self._manager.state in (State.FENCED, State.FAILED)

    @property
    def is_open(self) -> bool:
        """Whether there is a transaction that can be aborted: not ended, and its commit not asked for."""
        return self._manager.state in (
            State.IN_TRANSACTION,
            State.FLUSHING,
            State.ABORTABLE,
            State.ABORTING,
        )

    @property
    def is_undecided(self) -> bool:
        """Whether the commit was asked for, and its answer is not known."""
        return self._manager.state is State.COMMITTING

    async def send_offsets(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        group: GroupMetadata,
        expected: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        """Commit offsets inside the transaction (O1), if the group stands at `expected` (O5).

        Raises `AbortTransactionError` when they can't be committed.
        """
        with self._lock:
            self._manager.check_sending(offsets=True)
        if not offsets:
            return
        self._offsets_sent = True
        manager = self._manager
        try:
            with tracing.attached(tracing.if_none_is_current(self.context)):
                await commit_offsets(
                    self._control, self._options, manager.transactional_id, manager.producer, offsets, group, expected
                )
        except SemelError as error:
            abort = self._explained(
                AbortTransactionError(
                    f"offsets of group {group.group_id!r} can't be committed: {error.message}", error.code
                )
            )
            with self._lock:
                self._manager.failed_part(abort)
                self._on_change()
            raise abort from error

    async def prepare(self, commits: CommitSource | None = None) -> PreparedTransaction:
        """Flush, commit the offsets of `commits`, and leave the decision to somebody outside (KIP-939)."""
        with self._lock:
            if self._prepared is not None:
                return self._prepared
            self._manager.begin_prepare()
            self._on_change()
        self._commits = commits
        await self._complete(commits)
        with self._lock:
            self._manager.prepared()
            self._prepared = PreparedTransaction(*self._manager.producer)
        return self._prepared

    async def complete(self, prepared: PreparedTransaction | None) -> None:
        """Commit what is prepared, if it is `prepared`; otherwise abort it. Nothing, if nothing is open."""
        if self._manager.state is State.COMMITTING or (self._prepared is not None and self._prepared == prepared):
            await self.commit()
        elif self._prepared is not None:
            await self.abort()
        elif self._manager.state is not State.READY:
            raise UsageError(
                "complete_transaction() ends what is prepared, and this producer has nothing prepared: call "
                "prepare_transaction() first, or init_transactions(keep_prepared=True) after a restart"
            )

    async def commit(self, commits: CommitSource | None = None, token: CommitToken | None = None) -> bool:
        """Flush, commit the offsets of `commits`, and decide (E1). Safe to call again while the outcome is not known.

        Returns False where `token` had been committed before, so that this transaction was aborted (T13).
        """
        self._ending_since = self._now()
        with self._lock:
            if self._prepared is not None and commits is not None and commits is not self._commits:
                raise UsageError("nothing can be added to a prepared transaction: give `commits` to the prepare")
            flush = self._manager.begin_commit()
            self._on_change()
        if flush:
            self._link(commits)
            if self._prepared is None:
                self._commits = commits
                await self._complete(commits)
            self._token = token
            with self._lock:
                if not self._manager.decide(anything_sent=self._is_known or token is not None):
                    self._forget("committed")
                    return True
        with self._settling("commit"):
            try:
                producer, is_new = await self._end(commit=True)
            except SemelError as error:
                failure = await self._not_committed(error)
                if self._commits is not None and isinstance(failure, AbortTransactionError):
                    # Learnt by a later call, the block that would do this may have ended long ago.
                    self._commits.rewind()
                raise failure from (None if failure is error else error)
        self._ended(producer, "committed" if is_new else "already_committed")
        return is_new

    @property
    def _is_known(self) -> bool:
        """Whether the coordinator may know of the transaction, so that it must be told of its end."""
        return self._sender.sent_any or self._offsets_sent or self._was_kept

    def _forget(self, outcome: str) -> None:
        self._prepared = None
        self._was_kept = False
        self._end_span(outcome)

    async def _not_committed(self, error: SemelError) -> SemelError:
        """The coordinator did not say yes. Returns what to raise."""
        if isinstance(error, FencedError):
            return await self._fenced_or_timed_out(error)
        with self._lock:
            return self._manager.refused_commit(self._explained(error), is_named=self._token is not None)

    async def _complete(self, commits: CommitSource | None) -> None:
        """Bring everything that belongs to the transaction to the node: records and offsets at the same time."""
        if commits is None:
            await self._flush()
            return
        offsets = asyncio.ensure_future(self.send_offsets(commits.next_offsets, commits.group_metadata))
        try:
            await self._flush()
        finally:
            # Its error is in the transaction's state already, as are those of records.
            await asyncio.wait([offsets])
        if not offsets.cancelled():
            failure = offsets.exception()
            if failure is not None and not isinstance(failure, SemelError):
                raise failure  # a bug: what is not understood must never end in a commit

    async def abort(self) -> None:
        """Drop everything that was not acknowledged, and abort. Safe to call again while it is not confirmed."""
        self._ending_since = self._now()
        with self._lock:
            tell = self._manager.begin_abort()
            self._on_change()
        self._abandon(AbortTransactionError("the transaction was aborted", ErrorCode.TRANSACTION_ABORTABLE))
        if not tell:
            self._ended(self._manager.producer, "aborted")
            return
        if not self._is_known:
            with self._lock:
                self._manager.ended(None)
            self._forget("aborted")
            return
        with self._settling("abort"):
            try:
                producer, _ = await self._end(commit=False)
            except (FencedError, AbortTransactionError) as error:
                # A transaction that timed out was aborted and fenced by the coordinator. This instance may continue
                # if no other one has come since: the coordinator knows, by what this one holds (KIP-360).
                try:
                    producer = (await self._identity(self._manager.producer)).producer
                except FencedError as fenced:
                    raise self._stop(fenced) from error
            except FatalError as error:
                raise self._stop(error) from error
        self._ended(producer, "aborted")

    async def _fenced_or_timed_out(self, error: FencedError) -> SemelError:
        """The commit was refused because of the epoch. Returns what to raise."""
        try:
            producer = (await self._identity(self._manager.producer)).producer
        except FencedError as fenced:
            return self._stop(fenced)
        except SemelError as unknown:
            # The commit may have happened, and another instance have come since: the next call asks on.
            with self._lock:
                return self._manager.refused_commit(unknown)
        with self._lock:
            return self._manager.timed_out(producer, self._timed_out)

    async def _identity(self, held: ProducerIdAndEpoch, *, keep_prepared: bool = False) -> InitProducerIdResponse:
        return await init_producer_id(
            self._control,
            InitProducerIdRequest(
                self._manager.transactional_id, self._timeout_ms, held, self.is_two_phase, keep_prepared
            ),
        )

    def _stop(self, error: SemelError) -> SemelError:
        """Nothing can continue. Returns what to raise."""
        with self._lock:
            self._manager.stop(error)
            self._on_change()
            return self._manager.stopped_error()

    async def last_commit(self) -> CommitDecision | None:
        """Return the last commit with a token under this transactional id."""
        request = shared_pb2.DescribeSharedTransactionRequest(key=self._manager.transactional_id)
        found = (await self._control.call(DESCRIBE_SHARED, request)).decisions
        own = [
            decision for decision in found if not decision.attempt
        ]  # a shared transaction's key may be the same text
        return decision_of(own[-1]) if own else None

    async def _end(self, *, commit: bool) -> tuple[ProducerIdAndEpoch, bool]:
        """Ask for the decision. Returns the identity to continue with, and whether the token was new (T13)."""
        deadline = self._now() + self._options.api_timeout_ms / 1000
        if commit and self._token is None and self._span is None:
            next_one = await self._beside_records.commit(self._manager.producer)
            if next_one is not None:
                return next_one, True
        request = transactions_pb2.EndTransactionRequest(
            transactional_id=self._manager.transactional_id,
            producer=producer_message(self._manager.producer),
            commit=commit,
        )
        if commit and self._token is not None:
            request.token = self._token.token
            request.payload = self._token.payload
            if self._token.sequence is not None:
                request.sequence = self._token.sequence
        timeout_ms = max((deadline - self._now()) * 1000, 1)
        response = await self._control.call(END_TRANSACTION, request, timeout_ms=timeout_ms)
        return producer_of(response.producer), not response.already_committed

    def _ended(self, producer: ProducerIdAndEpoch, outcome: str) -> None:
        with self._lock:
            self._manager.ended(producer)
        self._sender.set_producer(producer)
        self._forget(outcome)
