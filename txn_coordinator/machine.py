"""The transaction coordinator's machine: the transactional ids of one partition of `__transaction_state`.

Its state is what the records say, changed in `replay` alone; the two timer heaps beside it follow from them. What Kafka
calls a pending transition is here a state like any other: a decision is replayed at once, and the shard lets nothing
out, neither answers nor markers, before its record is committed (T2, T3). So pending is a decision whose markers
are under way, Prepare*. A caller that may hold the id with its completion gets an error to retry (KAFKA-18464).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from semel.protocol.api.clients import ClientOrigin
from semel.protocol.api.commit_decisions import CommitDecision
from semel.protocol.api.producer_ids import InitProducerIdRequest, InitProducerIdResponse
from semel.protocol.api.shared_transactions import (
    MEMBER_PREFIX,
    AbortSharedRequest,
    CommitSharedRequest,
    DescribeSharedRequest,
    LeaveSharedRequest,
    ListSharedRequest,
    OpenSharedRequest,
    key_of_member,
)
from semel.protocol.api.transactions import (
    AbortTransactionRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    DescribeTransactionRequest,
    EndTxnRequest,
    EndTxnResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionDescription,
    TransactionListing,
    TransactionVersion,
    TxnMarker,
)
from semel.protocol.errors import ErrorCode, UsageError
from semel.protocol.ids import MAX_PRODUCER_EPOCH, NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_TIMESTAMP, ProducerIdAndEpoch
from semel.runtime.deadlines import Deadlines
from semel.runtime.machine import CoordinatorRecord, Result, Tick, Ticket
from semel.runtime.refusals import Refusals
from semel.txn_coordinator.commit_history import CommitHistory
from semel.txn_coordinator.commit_records import CommitKind, decode_commit_key
from semel.txn_coordinator.config import TransactionConfig
from semel.txn_coordinator.effects import (
    PRODUCER_ID_NEEDED,
    Decided,
    Fenced,
    MarkersWritten,
    SendMarkers,
    TransactionCompleted,
    WithProducerId,
)
from semel.txn_coordinator.held_bytes import Held, HeldBytes, Room, grows, transaction_bytes
from semel.txn_coordinator.prepare import (
    as_held,
    ending_by,
    prepare_add_partitions,
    prepare_complete,
    prepare_end,
    prepare_epoch_bump,
    prepare_epoch_fence,
    prepare_id_rotation,
    prepare_new,
    prepare_same_epoch,
    prepare_take_over,
)
from semel.txn_coordinator.producer_identity import (
    RefusalError,
    answer_repeated_end,
    epoch_of_caller,
    is_repeated_end,
    is_repeated_init,
    refuse,
    refuse_end_while_completing,
    refuse_others,
    refuse_timeout,
    refuse_while_completing,
    refuse_writer,
    verb,
)
from semel.txn_coordinator.records import DecidedRecord, record_of, size_of, tombstone_of
from semel.txn_coordinator.schemas import decode_key, decode_value
from semel.txn_coordinator.shared import SharedTransactions
from semel.txn_coordinator.state import (
    OPEN,
    PREPARED,
    STATE_NAMES,
    TWO_PHASE_TIMEOUT_MS,
    DecisionCause,
    Ending,
    TransactionMetadata,
    TransactionState,
)

_NO_ID: Final = NO_PRODUCER_ID


class TransactionMachine:
    """A `Machine`. `coordinator_epoch` is the leader epoch of its partition; markers carry it (P9)."""

    def __init__(
        self,
        partition: int,
        coordinator_epoch: int,
        config: TransactionConfig | None = None,
        held_by_all: Callable[[], Held] | None = None,
        refusals: Refusals | None = None,
    ) -> None:
        """`held_by_all`: what the machines of all partitions hold together; without it, this one alone counts."""
        self.partition = partition
        self.coordinator_epoch = coordinator_epoch
        self._config = config or TransactionConfig()
        self._transactions: dict[str, TransactionMetadata] = {}
        self.state_counts: dict[TransactionState, int] = dict.fromkeys(TransactionState, 0)
        """How many transactional ids are in each state."""
        self.open_transactions: dict[str, TransactionMetadata] = {}
        """Those that partitions may hold data of. Not to be changed."""
        self._timeouts: Deadlines[str] = Deadlines()
        self._prolonged: dict[str, tuple[int, int]] = {}
        """When open transactions began whose time counts from the start of this coordinator, and when they time out."""
        self._expirations: Deadlines[str] = Deadlines()
        self.held = HeldBytes(refusals)
        self._room = Room(self._config.transactional_ids_max_bytes, self.held, held_by_all or self.held.sum)
        self._history = CommitHistory(self._config, self.held)
        self.shared = SharedTransactions(
            self._config,
            self._transactions,
            self._history,
            self.held,
            self._decision,
            lambda txn, by, now_ms: self._fence(txn, now_ms, by=by),
        )
        self._handlers: dict[type, Callable[[Any, int], Result[Any]]] = {
            InitProducerIdRequest: lambda request, now_ms: self._init_producer_id(request, _NO_ID, now_ms),
            AddPartitionsToTxnRequest: self._add_partitions,
            EndTxnRequest: lambda request, now_ms: self._end_txn(request, _NO_ID, now_ms),
            WithProducerId: self._with_producer_id,
            MarkersWritten: self._markers_written,
            Tick: self._tick,
            AbortTransactionRequest: self._abort,
            DescribeTransactionRequest: self._describe,
            ListTransactionsRequest: self._list,
            OpenSharedRequest: lambda request, now_ms: self.shared.open(request, _NO_ID, now_ms),
            CommitSharedRequest: self.shared.commit,
            AbortSharedRequest: self.shared.abort,
            LeaveSharedRequest: self.shared.leave,
            DescribeSharedRequest: self.shared.describe,
            ListSharedRequest: self.shared.list_keys,
        }

    # --- The Machine protocol -----------------------------------------------------------------------------------------

    def handle(self, request: Any, now_ms: int, ticket: Ticket) -> Result[Any]:
        try:
            result = self._handlers[type(request)](request, now_ms)
            if result.records and grows(request):
                self._room.refuse(request, self._growth(result.records))
            return result
        except RefusalError as refusal:
            return Result(refusal.error)
        except UsageError as error:
            return Result(error)

    def _growth(self, records: Iterable[CoordinatorRecord]) -> Mapping[str, int]:
        """Return how many bytes more the owners of records hold after them (S2)."""
        growth: Counter[str] = Counter()
        for record in records:
            if isinstance(record, DecidedRecord):
                name = record.txn.transactional_id
                more = transaction_bytes(record.txn) - transaction_bytes(self._transactions.get(name))
                growth[key_of_member(name) or name] += more
            elif (key := decode_commit_key(record.key)) is not None:
                growth[key.key] += self.shared.growth(key, record.value)
        return growth

    def replay(self, record: CoordinatorRecord, offset: int, producer: ProducerIdAndEpoch | None, now_ms: int) -> None:
        if isinstance(record, DecidedRecord):
            self._apply(record.txn)
            return
        transactional_id = decode_key(record.key)
        if transactional_id is None:
            if (commit_key := decode_commit_key(record.key)) is not None:
                self.shared.replay(commit_key, record.value)
        elif record.value is None:
            self._note_state(transactional_id, None)
            self._transactions.pop(transactional_id, None)
            self._timeouts.cancel(transactional_id)
            self._expirations.cancel(transactional_id)
            if (key := key_of_member(transactional_id)) is not None:
                self.shared.note_writer(key, transactional_id, gone=True)
        else:
            self._apply(decode_value(transactional_id, record.value))

    def _apply(self, txn: TransactionMetadata) -> None:
        self._note_state(txn.transactional_id, txn)
        self._transactions[txn.transactional_id] = txn
        if txn.attempt and (key := key_of_member(txn.transactional_id)) is not None:
            self.shared.note_writer(key, txn.transactional_id)
            if txn.state is TransactionState.EMPTY:
                self._timeouts.hasten(txn.transactional_id, self._deadline_of(txn))
        if txn.state is TransactionState.ONGOING:
            self._timeouts.hasten(txn.transactional_id, self._deadline_of(txn))
        elif txn.state not in PREPARED and not txn.attempt:
            expires_ms = txn.last_update_ms + self._config.transactional_id_expiration_ms
            self._expirations.hasten(txn.transactional_id, expires_ms)

    def _deadline_of(self, txn: TransactionMetadata) -> int:
        """Return when a transaction times out, or a writer is forgotten that has not written."""
        since_ms = _counts_from(txn)
        prolonged = self._prolonged.get(txn.transactional_id)
        if prolonged is not None and prolonged[0] == since_ms:
            return prolonged[1]
        return since_ms + txn.timeout_ms

    def _note_state(self, transactional_id: str, after: TransactionMetadata | None) -> None:
        """Keep count of the states, so that nobody has to go through all ids for that."""
        before = self._transactions.get(transactional_id)
        owner = key_of_member(transactional_id) or transactional_id
        self.held.add(owner, transaction_bytes(after) - transaction_bytes(before))
        if before is not None:
            self.state_counts[before.state] -= 1
        if after is not None:
            self.state_counts[after.state] += 1
        if after is not None and after.state in OPEN:
            self.open_transactions[transactional_id] = after
        else:
            self.open_transactions.pop(transactional_id, None)
            self._prolonged.pop(transactional_id, None)

    def marker_came(self, producer: ProducerIdAndEpoch) -> None:
        """Nothing, as in `replay_marker`."""

    def replay_marker(self, producer: ProducerIdAndEpoch, committed: bool, now_ms: int) -> Result[None] | None:
        """Nothing: no transaction ever includes `__transaction_state` itself."""
        return None

    def loaded(self, now_ms: int) -> Result[None]:
        """T4: whatever was decided and not completed gets its markers (again). Only the log is needed for that.

        T9: a transaction that has timed out already, or begins later than now, has its whole time from now on. Either
        nobody was there to end it, or the clock of the former coordinator is another: nobody can tell.
        """
        effects: list[Any] = []
        for txn in self._transactions.values():
            since_ms = _counts_from(txn)
            if txn.transactional_id in self._timeouts and not since_ms <= now_ms < since_ms + txn.timeout_ms:
                self._prolonged[txn.transactional_id] = since_ms, now_ms + txn.timeout_ms
                self._timeouts.schedule(txn.transactional_id, now_ms + txn.timeout_ms)
            if txn.state in PREPARED:
                effects += [Decided(txn, DecisionCause.RECOVERY)] if txn.trace is not None else []
                effects.append(self._markers_of(txn))
        return Result(None, effects=effects)

    def next_deadline_ms(self) -> int | None:
        sources = (self._timeouts, self._expirations, self.shared)
        deadlines = (source.next_deadline_ms() for source in sources)
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def closed(self) -> Sequence[Ticket]:
        return ()

    # --- Producer ids (T5, T10, KIP-360) ------------------------------------------------------------------------------

    def _with_producer_id(self, request: WithProducerId, now_ms: int) -> Result[Any]:
        inner = request.request
        if isinstance(inner, EndTxnRequest):
            return self._end_txn(inner, request.producer_id, now_ms)
        if isinstance(inner, OpenSharedRequest):
            return self.shared.open(inner, request.producer_id, now_ms)
        return self._init_producer_id(inner, request.producer_id, now_ms)

    def _init_producer_id(self, request: InitProducerIdRequest, spare_id: int, now_ms: int) -> Result[Any]:
        assert request.transactional_id is not None, "idempotent producers need no coordinator"
        timeout_ms = self._timeout_of(request)
        if key_of_member(request.transactional_id) is not None:
            raise refuse(
                ErrorCode.INVALID_REQUEST,
                f"transactional ids that begin with {MEMBER_PREFIX!r} belong to shared transactions: choose another",
            )
        txn = self._transactions.get(request.transactional_id)
        if txn is None:
            if spare_id == _NO_ID:
                return Result(PRODUCER_ID_NEEDED)
            return _initialized(prepare_new(request.transactional_id, spare_id, timeout_ms, now_ms), request)
        refuse_while_completing(txn)
        from_epoch = epoch_of_caller(txn, request.producer)
        if txn.state is TransactionState.ONGOING:
            if request.keep_prepared:
                return self._take_over(txn, request.client, now_ms)
            return self._fence_and_retry(txn, from_epoch, request.client, now_ms)
        if is_repeated_init(txn, request.producer):
            return _initialized(prepare_same_epoch(txn, timeout_ms, now_ms), request)
        if not txn.epochs_exhausted:
            return _initialized(prepare_epoch_bump(txn, timeout_ms, now_ms, from_epoch=from_epoch), request)
        if spare_id == _NO_ID:
            return Result(PRODUCER_ID_NEEDED)
        rotated = prepare_id_rotation(txn, spare_id, timeout_ms, now_ms, from_epoch=from_epoch)
        return _initialized(rotated, request)

    def _timeout_of(self, request: InitProducerIdRequest) -> int:
        """A transaction that is decided outside has no timeout, if the node allows such ones (KIP-939)."""
        assert request.transactional_id is not None
        if request.keep_prepared and not request.two_phase:
            raise refuse(
                ErrorCode.INVALID_REQUEST,
                f"transactional id {request.transactional_id!r}: only a two-phase producer keeps prepared transactions",
            )
        if not request.two_phase:
            refuse_timeout(request.transactional_id, request.transaction_timeout_ms, self._config)
            return request.transaction_timeout_ms
        if not self._config.transaction_two_phase_commit_enable:
            raise refuse(
                ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
                f"transactional id {request.transactional_id!r}: this node lets nobody outside decide about "
                "transactions, which never time out then; set transaction.two.phase.commit.enable to true on it",
            )
        return TWO_PHASE_TIMEOUT_MS

    def _take_over(
        self, txn: TransactionMetadata, client: ClientOrigin | None, now_ms: int
    ) -> Result[InitProducerIdResponse]:
        """KIP-939: the transaction stays as it is, and from now on only the caller may end it."""
        if not txn.is_two_phase:
            raise refuse(
                ErrorCode.INVALID_TXN_STATE,
                f"the open transaction of {txn.transactional_id!r} is not a two-phase one and times out on its own; "
                "initialise without keeping it, which aborts it",
            )
        if txn.holder.producer_epoch >= MAX_PRODUCER_EPOCH:
            raise refuse(
                ErrorCode.INVALID_TXN_STATE,
                f"the prepared transaction of {txn.transactional_id!r} was taken over too often: end it now, or have "
                "an operator abort it",
            )
        taken = prepare_take_over(txn, now_ms)._replace(client=client)
        return Result(InitProducerIdResponse(taken.holder, txn.producer), [record_of(taken)])

    def _fence_and_retry(
        self, txn: TransactionMetadata, from_epoch: int, by: ClientOrigin | None, now_ms: int
    ) -> Result[Any]:
        """T5: an open transaction is fenced and aborted; the caller retries when its markers are written."""
        refusal = refuse(
            ErrorCode.CONCURRENT_TRANSACTIONS,
            f"the open transaction of {txn.transactional_id!r} is being aborted first; try again shortly",
        )
        records, effects = self._fence(txn, now_ms, from_epoch=from_epoch, by=by)
        return Result(refusal.error, records, effects=effects)

    # --- Partitions (T8, T11) -----------------------------------------------------------------------------------------

    def _add_partitions(self, request: AddPartitionsToTxnRequest, now_ms: int) -> Result[AddPartitionsToTxnResponse]:
        txn = self._known(request.transactional_id)
        refuse_others(txn, request.producer, now_ms)
        refuse_while_completing(txn)
        if txn.is_taken_over:
            raise refuse(
                ErrorCode.INVALID_TXN_STATE,
                f"{txn.transactional_id!r} has a prepared transaction: commit or abort it before the next one begins",
            )
        others = txn.other_topics(request.topic_ids)
        if request.verify_only:
            return Result(
                AddPartitionsToTxnResponse(
                    {
                        tp: ErrorCode.NONE
                        if tp in txn.partitions and tp.topic not in others
                        else ErrorCode.TRANSACTION_ABORTABLE
                        for tp in request.partitions
                    }
                )
            )
        if others:
            raise refuse(
                ErrorCode.TRANSACTION_ABORTABLE,
                f"topic {min(others)} was deleted and made again since {txn.transactional_id!r} wrote to it in this "
                "transaction: abort it, and begin another",
            )
        response = AddPartitionsToTxnResponse(dict.fromkeys(request.partitions, ErrorCode.NONE))
        if (
            txn.state is TransactionState.ONGOING
            and txn.partitions.issuperset(request.partitions)
            and txn.topic_ids.keys() >= request.topic_ids.keys()
        ):
            return Result(response)
        record = record_of(
            prepare_add_partitions(
                txn, request.partitions, request.version, now_ms, request.trace, topic_ids=request.topic_ids
            )
        )
        if size_of((record,)) > self._config.transaction_record_max_bytes:
            raise refuse(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"the transaction of {txn.transactional_id!r} would have too many partitions for one record of "
                f"{self._config.transaction_record_max_bytes} bytes; end it, and spread its partitions over several",
            )
        return Result(response, [record])

    # --- The end (T3, T6, T7, T11) ------------------------------------------------------------------------------------

    def _end_txn(self, request: EndTxnRequest, spare_id: int, now_ms: int) -> Result[Any]:
        txn = self._known(request.transactional_id)
        refuse_writer(txn)
        refuse_end_while_completing(txn, request, now_ms)
        recorded = self._recorded(request)
        if is_repeated_end(txn, request):
            if recorded is not None and txn.state is TransactionState.COMPLETE_ABORT:
                return Result(EndTxnResponse(txn.producer, already_committed=True))
            return answer_repeated_end(txn, request)
        refuse_others(txn, request.producer, now_ms)
        bumps = request.version >= TransactionVersion.V2
        # A commit of nothing is refused, unless its token is to be remembered: then the epoch moves on as at an abort.
        is_nothing = txn.state is not TransactionState.ONGOING
        if is_nothing and ((request.committed and not request.token) or not bumps):
            raise refuse(
                ErrorCode.INVALID_TXN_STATE,
                f"transactional id {txn.transactional_id!r} has no transaction to {verb(request.committed)}: "
                f"its state is {txn.state.label}",
            )
        rotates = bumps and as_held(txn).epochs_exhausted
        if rotates and spare_id == _NO_ID:
            return Result(PRODUCER_ID_NEEDED)
        is_new = request.committed and recorded is None
        decided = prepare_end(
            txn,
            committed=is_new and not is_nothing,
            version=request.version,
            now_ms=now_ms,
            next_producer_id=spare_id if rotates else _NO_ID,
            ids=request.trace,
            ending=ending_by(txn, request.client),
        )
        records, effects = self._decision(decided, now_ms)
        if is_new and request.token:
            decision = CommitDecision(request.token, request.sequence, request.payload, "", now_ms, writers=1)
            records = [
                *self._history.records_of(CommitKind.PRODUCER, request.transactional_id, decision),
                *records,
            ]
        return Result(EndTxnResponse(decided.next_producer, recorded is not None), records, effects=effects)

    def _recorded(self, request: EndTxnRequest) -> CommitDecision | None:
        """T13: the commit that already bears the request's token; a contradiction to it is refused."""
        if not (request.committed and request.token):
            return None
        return self._history.repeated(
            CommitKind.PRODUCER, request.transactional_id, request.token, request.payload, request.sequence
        )

    def _decision(
        self, txn: TransactionMetadata, now_ms: int, cause: DecisionCause = DecisionCause.REQUEST
    ) -> tuple[list[CoordinatorRecord], list[Any]]:
        """The record of a decision, and its markers. Without partitions it completes at once."""
        traced = [] if txn.trace is None else [Decided(txn, cause)]
        if txn.partitions:
            return [record_of(txn)], [*traced, self._markers_of(txn)]
        return [record_of(txn), _completion_of(txn, now_ms)], [*traced, TransactionCompleted(txn.transactional_id)]

    def _markers_of(self, txn: TransactionMetadata) -> SendMarkers:
        return SendMarkers(
            txn.transactional_id,
            txn.last_update_ms,
            TxnMarker(
                producer=txn.producer,
                coordinator_epoch=self.coordinator_epoch,
                committed=txn.state is TransactionState.PREPARE_COMMIT,
                partitions=tuple(sorted(txn.partitions)),
                version=txn.version,
                coordinator=self.partition,
                topic_ids=txn.topic_ids,
            ),
            txn.trace,
        )

    def _markers_written(self, report: MarkersWritten, now_ms: int) -> Result[bool]:
        """Complete, if the report is about the decision that is pending, and all of it (T3). Answers whether it was."""
        txn = self._transactions.get(report.transactional_id)
        if (
            txn is None
            or txn.state not in PREPARED
            or txn.last_update_ms != report.decided_ms
            or txn.producer != report.producer
            or not txn.partitions <= report.partitions
        ):
            return Result(False)
        return Result(
            True,
            [_completion_of(txn, now_ms)],
            effects=[
                TransactionCompleted(
                    report.transactional_id,
                    committed=txn.state is TransactionState.PREPARE_COMMIT,
                    duration_ms=max(now_ms - txn.start_ms, 0),
                )
            ],
        )

    def _fence(
        self,
        txn: TransactionMetadata,
        now_ms: int,
        *,
        from_epoch: int = NO_PRODUCER_EPOCH,
        cause: DecisionCause = DecisionCause.FENCE,
        by: ClientOrigin | None = None,
    ) -> tuple[list[CoordinatorRecord], list[Any]]:
        """Take the epoch from its holder, and abort what it has open. One bump in all (KAFKA-19367)."""
        fenced = prepare_epoch_fence(txn, from_epoch=from_epoch)
        ending = Ending(cause, by)
        decided = prepare_end(fenced, committed=False, version=fenced.version, now_ms=now_ms, ending=ending)
        records, effects = self._decision(decided, now_ms, cause)
        return records, [Fenced(timed_out=cause is DecisionCause.TIMEOUT), *effects]

    # --- Time (T9, expiry) --------------------------------------------------------------------------------------------

    def _tick(self, request: Tick, now_ms: int) -> Result[None]:
        """Abort what timed out and forget what expired, up to a bound; the rest stays due, so the next tick follows."""
        records: list[CoordinatorRecord] = []
        effects: list[Any] = []
        size = 0
        swept, markers = self.shared.sweep(now_ms)
        if swept:
            return Result(None, swept, effects=markers)
        while self._has_room(records, size) and (due := self._timeouts.pop_due(now_ms)):
            txn = self._transactions.get(due)
            is_idle_writer = txn is not None and bool(txn.attempt) and txn.state is TransactionState.EMPTY
            if txn is None or txn.is_two_phase or not (is_idle_writer or txn.state is TransactionState.ONGOING):
                continue
            deadline_ms = self._deadline_of(txn)
            if deadline_ms > now_ms:
                self._timeouts.hasten(due, deadline_ms)
                continue
            if is_idle_writer:
                records.append(tombstone_of(txn))
                size += size_of(records[-1:])
                continue
            # Nobody has come in the producer's place: it may continue, with the epoch that fences it now (KIP-588).
            fencing, markers = self._fence(txn, now_ms, from_epoch=txn.producer_epoch, cause=DecisionCause.TIMEOUT)
            records += fencing
            effects += markers
            size += size_of(fencing)
        while self._has_room(records, size) and (due := self._expirations.pop_due(now_ms)):
            txn = self._transactions.get(due)
            # An open transaction never expires; when it is complete, the replay of that asks for this timer again.
            if txn is None or txn.state in OPEN:
                continue
            deadline_ms = txn.last_update_ms + self._config.transactional_id_expiration_ms
            if deadline_ms > now_ms:
                self._expirations.hasten(due, deadline_ms)
                continue
            records.append(tombstone_of(txn))
            size += size_of(records[-1:])
        while self._has_room(records, size) and (forgotten := self.shared.expire(now_ms)):
            records += forgotten
            size += size_of(forgotten)
        return Result(None, records, effects=effects)

    def _has_room(self, records: Sequence[CoordinatorRecord], size: int) -> bool:
        return (
            len(records) < self._config.transaction_tick_max_records
            and size <= self._config.transaction_record_max_bytes // 2
        )

    # --- Operators (KIP-664) ------------------------------------------------------------------------------------------

    def _abort(self, request: AbortTransactionRequest, now_ms: int) -> Result[None]:
        txn = self._existing(request.transactional_id)
        if txn.state in (TransactionState.PREPARE_ABORT, TransactionState.COMPLETE_ABORT):
            return Result(None)
        if txn.state is not TransactionState.ONGOING:
            raise refuse(
                ErrorCode.INVALID_TXN_STATE,
                f"transactional id {txn.transactional_id!r} has no transaction that could still be aborted: "
                f"its state is {txn.state.label}",
            )
        records, effects = self._fence(txn, now_ms, cause=DecisionCause.OPERATOR, by=request.client)
        return Result(None, records, effects=effects)

    def _describe(self, request: DescribeTransactionRequest, now_ms: int) -> Result[TransactionDescription]:
        txn = self._existing(request.transactional_id)
        return Result(
            TransactionDescription(
                transactional_id=txn.transactional_id,
                state=txn.state.label,
                producer=txn.producer,
                timeout_ms=txn.timeout_ms,
                start_time_ms=txn.start_ms if txn.state in OPEN else NO_TIMESTAMP,
                last_update_ms=txn.last_update_ms,
                coordinator_epoch=self.coordinator_epoch,
                partitions=tuple(sorted(txn.partitions)),
            )
        )

    def _list(self, request: ListTransactionsRequest, now_ms: int) -> Result[ListTransactionsResponse]:
        return Result(
            ListTransactionsResponse(
                tuple(self._listed(txn) for txn in _filtered(self._transactions.values(), request, now_ms)),
                tuple(sorted(request.states - STATE_NAMES)),
            )
        )

    def _listed(self, txn: TransactionMetadata) -> TransactionListing:
        listed = TransactionListing(txn.transactional_id, txn.producer_id, txn.state.label)
        last = self._history.last(CommitKind.PRODUCER, txn.transactional_id)
        return listed if last is None else replace(listed, last_token=last.token, last_commit_ms=last.decided_ms)

    # --- Looking up ---------------------------------------------------------------------------------------------------

    def _known(self, transactional_id: str) -> TransactionMetadata:
        """For producers: an id that is not known has no mapping to a producer id any more."""
        txn = self._transactions.get(transactional_id)
        if txn is None:
            raise refuse(
                ErrorCode.INVALID_PRODUCER_ID_MAPPING,
                f"transactional id {transactional_id!r} is not known here, or expired; call InitProducerId first",
            )
        return txn

    def _existing(self, transactional_id: str) -> TransactionMetadata:
        """For operators."""
        txn = self._transactions.get(transactional_id)
        if txn is None:
            raise refuse(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, f"there is no transactional id {transactional_id!r}")
        return txn


def _initialized(txn: TransactionMetadata, request: InitProducerIdRequest) -> Result[InitProducerIdResponse]:
    return Result(InitProducerIdResponse(txn.producer), [record_of(txn._replace(client=request.client))])


def _counts_from(txn: TransactionMetadata) -> int:
    return txn.start_ms if txn.state is TransactionState.ONGOING else txn.last_update_ms


def _filtered(
    transactions: Iterable[TransactionMetadata], request: ListTransactionsRequest, now_ms: int
) -> list[TransactionMetadata]:
    found = transactions
    if request.states:
        found = (txn for txn in found if txn.state.label in request.states)
    if request.producer_ids:
        found = (txn for txn in found if txn.producer_id in request.producer_ids)
    if request.min_duration_ms >= 0:
        # Kafka counts ids without a transaction too, from the year 1970 on; a duration has only what is open.
        found = (txn for txn in found if txn.state in OPEN and now_ms - txn.start_ms > request.min_duration_ms)
    return sorted(found, key=lambda txn: txn.transactional_id)


def _completion_of(txn: TransactionMetadata, now_ms: int) -> CoordinatorRecord:
    """What is left of a transaction whose markers are written: of a shared one's writer nothing, it has no next one."""
    completed = prepare_complete(txn, now_ms)
    return tombstone_of(completed) if txn.attempt else record_of(completed)
