"""The transaction coordinator as the rest of the node sees it: one async method for each API.

The shell around the machines: it checks ids, finds the shard, draws producer ids, sends markers, and decides nothing.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from semel.protocol.api.commit_decisions import NAME_BYTES_MAX, NO_SEQUENCE, PAYLOAD_BYTES_MAX
from semel.protocol.api.producer_ids import InitProducerIdRequest, InitProducerIdResponse
from semel.protocol.api.shared_transactions import (
    AbortSharedRequest,
    CommitSharedRequest,
    CommitSharedResponse,
    DescribeSharedRequest,
    LeaveSharedRequest,
    ListSharedRequest,
    ListSharedResponse,
    OpenSharedRequest,
    OpenSharedResponse,
    SharedDescription,
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
)
from semel.protocol.errors import ErrorCode, FatalError, FencedError, RetriableError, SemelError, UsageError, error_for
from semel.protocol.ids import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    TRANSACTIONS_TOPIC,
    ProducerIdAndEpoch,
    TopicId,
    TopicPartition,
)
from semel.runtime.caller import caller_origin
from semel.runtime.clock import Clock
from semel.runtime.internal_topic import TopicReady
from semel.runtime.keys import PartitionCount
from semel.runtime.linear_regex import EFFORT_MAX, LinearPattern, PatternError
from semel.runtime.machine import Machine
from semel.runtime.read_barrier import ONE_NODE, ReadBarrier
from semel.runtime.shard import ShardLog, ShardState
from semel.runtime.shard_runtime import ShardRuntime
from semel.runtime.telemetry.buckets import Buckets
from semel.runtime.telemetry.tracing import context_of, end_span
from semel.runtime.turns import Turns, in_turns
from semel.txn_coordinator.config import TRANSACTIONAL_ID_BYTES_MAX, TransactionConfig
from semel.txn_coordinator.counts import TransactionCounts
from semel.txn_coordinator.effects import (
    PRODUCER_ID_NEEDED,
    Decided,
    Fenced,
    MarkersWritten,
    SendMarkers,
    TransactionCompleted,
    WithProducerId,
)
from semel.txn_coordinator.held_bytes import Held
from semel.txn_coordinator.machine import TransactionMachine
from semel.txn_coordinator.markers import MarkerSender, MarkerWriter
from semel.txn_coordinator.state import PREPARED, STATE_NAMES, TransactionMetadata
from semel.txn_coordinator.tracing import TransactionSpans

UNKNOWN_STATES_MAX: Final = 1_000
"""Of the states in a filter that there are not, so many are in the answer."""

_NO_STATE: Final = frozenset({""})
"""A filter that no transaction passes."""


class ProducerIdSource(Protocol):
    """Gives producer ids, each once for the whole cluster and for good."""

    async def next_producer_id(self) -> int:
        """Raises `SemelError` where none can be had."""
        ...


class TransactionCoordinator:
    """The coordinator of the transactional ids whose partitions of `__transaction_state` this node leads.

    partition_count: of `__transaction_state`; fixed when that topic is made, since it says where each id lives. Asked
                     when it is first needed; raises NOT_COORDINATOR while there is no topic.
    open_log:        gives the log of one of its partitions.
    topic_ready:     makes `__transaction_state` where it is missing, and waits until it is read.
    topic_id:        gives the id of a topic that the node knows, for who adds partitions by their names alone (R8).
    barrier:         what answers pass that rest on no record of their own (R9).
    sleep:           how to pause between attempts to write a marker (simulations and tests have their own).
    spans:           where the node is traced.
    """

    def __init__(
        self,
        *,
        partition_count: Callable[[], int],
        open_log: Callable[[int], ShardLog],
        topic_ready: TopicReady,
        markers: MarkerWriter,
        producer_ids: ProducerIdSource,
        clock: Clock,
        config: TransactionConfig | None = None,
        topic_id: Callable[[str], TopicId | None] = lambda name: None,
        barrier: ReadBarrier = ONE_NODE,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        spans: TransactionSpans | None = None,
        durations: Mapping[bool, Buckets] | None = None,
    ) -> None:
        """`durations`: where it is recorded how long transactions take that commit (True) and abort (False)."""
        self.config = config or TransactionConfig()
        self._partitions = PartitionCount(partition_count)
        self.topic_ready = topic_ready
        self.counts = TransactionCounts()
        self.durations = durations
        self._producer_ids = producer_ids
        self._topic_id = topic_id
        self._runtime = ShardRuntime(
            TRANSACTIONS_TOPIC,
            open_log=open_log,
            make_machine=self._make_machine,
            on_effects=self._on_effects,
            clock=clock,
            barrier=barrier,
        )
        self._spans = spans
        self._sender = MarkerSender(markers, self._report, self.config, sleep=sleep, spans=spans)
        self._completions: dict[str, _Completion] = {}

    # --- Leading partitions -------------------------------------------------------------------------------------------

    def load(self, partition: int, leader_epoch: int) -> asyncio.Future[None]:
        """Take a partition over: read its log, then send again the markers of all that is decided in it (T4)."""
        self._sender.cancel(partition)
        return self._runtime.load(partition, leader_epoch)

    def unload(self, partition: int) -> None:
        """Give a partition up; its callers are told to find the coordinator again."""
        self._runtime.unload(partition)
        self._sender.cancel(partition)

    def partition_for(self, transactional_id: str) -> int:
        """Return the partition of `__transaction_state` whose leader coordinates this id: a writer's is its key's.

        Raises NOT_COORDINATOR while there is no such topic.
        """
        key = key_of_member(transactional_id)
        return self._partitions.partition_for(transactional_id if key is None else key)

    def pending_markers(self) -> int:
        """Return how many decided transactions still have markers on their way."""
        return self._sender.pending()

    def machines(self) -> list[TransactionMachine]:
        """Return the machines of all partitions that are active, to look at."""
        return [machine for machine in self._runtime.machines() if isinstance(machine, TransactionMachine)]

    def held(self) -> Held:
        """Return what ids, open transactions and remembered commits of all partitions hold in memory, about."""
        each = [machine.held.sum() for machine in self.machines()]
        return Held(sum(one.bytes for one in each), sum(one.large for one in each))

    def open_transaction(self, producer_id: int, tp: TopicPartition) -> TransactionMetadata | None:
        """Return the transaction that this producer id has open, or decided and not complete, with that partition.

        A look at what is in memory: `confirm` comes first where something is done for it (R9).
        """
        for machine in self.machines():
            for txn in machine.open_transactions.values():
                if txn.producer_id == producer_id and tp in txn.partitions:
                    return txn
        return None

    async def confirm(self) -> None:
        """Wait until it is shown that all that is coordinated here still is (R9). Raises NOT_COORDINATOR."""
        await self._runtime.confirm()

    async def completed(self, transactional_id: str, timeout_s: float) -> bool:
        """Wait until the decision of an id has its markers, or the time is over; return which."""
        request = DescribeTransactionRequest(transactional_id)
        pending = {state.label for state in PREPARED}
        with self._completion(transactional_id) as completion:
            try:
                async with asyncio.timeout(timeout_s):
                    while True:
                        happened = completion.happened  # taken before asking, so that nothing is missed in between
                        if (await self.describe(request)).state not in pending:
                            return True
                        await happened.wait()
            except TimeoutError:
                return False
            except FatalError as error:
                if error.code is not ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                    raise
                return True  # of a shared transaction's writer nothing is kept

    def shard_states(self) -> Mapping[str, int]:
        """Return how many partitions are in each state: see `ShardRuntime.state_counts`."""
        return self._runtime.state_counts()

    def partitions_away(self) -> Mapping[int, str]:
        """Return the partitions led here that can't be used: see `ShardRuntime.away`."""
        return self._runtime.away()

    def coordinates(self, partition: int) -> bool:
        """Say whether this node has a partition of `__transaction_state` in memory."""
        return self._runtime.state(partition) is ShardState.ACTIVE

    def marker_trouble(self, transactional_id: str) -> tuple[int, str]:
        """Return how often writing the markers of an id's decision has failed, and why the last time (0, "": never)."""
        return self._sender.trouble(transactional_id)

    def run_due_timers(self) -> None:
        """For clocks that only a test moves: see `ShardRuntime.run_due_timers`."""
        self._runtime.run_due_timers()

    async def close(self) -> None:
        """Give up all partitions. Nothing is lost: the next leader reads it from the log."""
        self._runtime.close()
        await self._sender.close()

    # --- The APIs -----------------------------------------------------------------------------------------------------

    async def init_producer_id(self, request: InitProducerIdRequest) -> InitProducerIdResponse:
        """Give a producer id. With a transactional id, every older producer of it is fenced first (T5).

        Raises CONCURRENT_TRANSACTIONS while an earlier transaction is completed or aborted: retry shortly.
        PRODUCER_FENCED: the caller named an identity that is not the current one. INVALID_TRANSACTION_TIMEOUT.
        INVALID_REQUEST: the id is empty or too long.
        """
        if request.transactional_id is None:
            return InitProducerIdResponse(ProducerIdAndEpoch(await self._producer_ids.next_producer_id(), 0))
        _check_id(request.transactional_id, self.config.transactional_id_max_bytes)
        if (request.producer.producer_id == NO_PRODUCER_ID) != (request.producer.producer_epoch == NO_PRODUCER_EPOCH):
            raise UsageError(f"a producer id and its epoch are given together or not at all: {request.producer}")
        response: InitProducerIdResponse = await self._submit_with_producer_id(request.transactional_id, request)
        return response

    async def add_partitions(self, request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
        """Add partitions to the transaction, or begin it with them. With `verify_only`, see `verify`.

        Waits a moment for the producer's previous transaction to complete, instead of sending it away (KIP-890).
        Raises INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, CONCURRENT_TRANSACTIONS, MESSAGE_TOO_LARGE.
        """
        await self.topic_ready()
        return await self._add_traced(request)

    async def _add_traced(self, request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
        if self._spans is None or request.verify_only:
            return await self._add_partitions(request)
        span = self._spans.adding(request.transactional_id, request.partitions, request.trace)
        try:
            response = await self._add_partitions(replace(request, trace=context_of(span)))
        except SemelError as error:
            end_span(span, error.code.name, error.message)
            raise
        except BaseException as error:
            end_span(span, type(error).__name__)
            raise
        end_span(span)
        return response

    async def _add_partitions(self, request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
        _check_id(request.transactional_id)
        try:
            return await self._submit_add(request)
        except RetriableError as error:
            if request.verify_only or error.code is not ErrorCode.CONCURRENT_TRANSACTIONS:
                raise
        deadline = asyncio.get_running_loop().time() + self.config.add_partitions_to_txn_retry_backoff_max_ms / 1000
        with self._completion(request.transactional_id) as completion:
            while True:
                happened = completion.happened  # taken before asking, so that nothing is missed in between
                try:
                    return await self._submit_add(request)
                except RetriableError as error:
                    if error.code is not ErrorCode.CONCURRENT_TRANSACTIONS:
                        raise
                    try:
                        async with asyncio.timeout_at(deadline):
                            await happened.wait()
                    except TimeoutError:
                        raise error from None

    async def verify(self, request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
        """Say for each partition whether it is in the transaction: NONE, or TRANSACTION_ABORTABLE (T8).

        Answered from committed state, and changes nothing. Raises INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED,
        CONCURRENT_TRANSACTIONS.
        """
        await self.topic_ready()
        return await self._verify(request)

    async def check_batches(self, request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
        """Verify the partitions of batches that are to be appended, or without `verify_only` add them (KIP-890).

        Makes no topic and waits for none to be read, unlike the other calls: other batches would wait behind these, and
        producers retry.
        """
        return await (self._verify(request) if request.verify_only else self._add_traced(request))

    async def _verify(self, request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
        _check_id(request.transactional_id)
        response = await self._submit_add(request if request.verify_only else replace(request, verify_only=True))
        if self._spans is not None:
            self._spans.verified(request.transactional_id, request.trace)
        return response

    async def end_txn(self, request: EndTxnRequest) -> EndTxnResponse:
        """Decide. Answers once the decision is durable (T3); repeated, it gives the same answer (T7).

        Raises INVALID_TXN_STATE: nothing is open, or it was decided the other way. CONCURRENT_TRANSACTIONS: the markers
        of a decision are under way. INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED.
        """
        _check_id(request.transactional_id)
        if request.token:
            check_name("a commit token", request.token)
            check_payload(request.payload)
            check_sequence(request.sequence)
        if self._spans is not None:
            request = replace(request, trace=self._spans.ids(request.transactional_id))
        response: EndTxnResponse = await self._submit_with_producer_id(request.transactional_id, request)
        return response

    async def list(self, request: ListTransactionsRequest, *, partial: bool = False) -> ListTransactionsResponse:
        """List the ids coordinated here that pass all filters, by id. With `partial`, those that can be read.

        Raises COORDINATOR_LOAD_IN_PROGRESS while any partition loads (a list with holes would mislead),
        UNKNOWN_SERVER_ERROR where one can't be read, and INVALID_REGULAR_EXPRESSION.
        """
        pattern = _pattern_of(request)
        if not await self.topic_ready(create=False):
            return ListTransactionsResponse((), (await known_states(request.states))[1])
        unreadable = self._runtime.unreadable()
        if unreadable and not partial:
            raise FatalError(
                "transactions can't be listed, because some of their coordinators' partitions can't be read: "
                f"{'; '.join(error.message for error in unreadable.values())}. The node's log says what to do"
            )
        readable = [partition for partition in self._runtime.partitions() if partition not in unreadable]
        known, unknown = await known_states(request.states)
        request = replace(request, states=known)
        parts = [await self._runtime.submit(partition, request) async for partition in in_turns(readable)]
        listed = [item async for item in in_turns(itertools.chain.from_iterable(part.transactions for part in parts))]
        if pattern is not None:
            listed = [item async for item in in_turns(listed) if await _matches(pattern, item.transactional_id)]
        return ListTransactionsResponse(
            tuple(sorted(listed, key=lambda item: item.transactional_id)),
            unknown,
            tuple(error.message for _, error in sorted(unreadable.items())),
        )

    async def describe(self, request: DescribeTransactionRequest) -> TransactionDescription:
        """Describe one id. Raises TRANSACTIONAL_ID_NOT_FOUND."""
        _check_id(request.transactional_id)
        if not await self.topic_ready(create=False):
            raise error_for(
                ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, f"there is no transactional id {request.transactional_id!r}"
            )
        description: TransactionDescription = await self._ask(request.transactional_id, request)
        return description

    async def abort(self, request: AbortTransactionRequest) -> None:
        """Abort what the id has open, and fence its producer. Succeeds too where it was aborted already.

        Raises TRANSACTIONAL_ID_NOT_FOUND, and INVALID_TXN_STATE where nothing is open or a commit was decided.
        """
        _check_id(request.transactional_id)
        await self._submit(request.transactional_id, replace(request, client=caller_origin()))

    # --- Shared transactions and commit tokens (T12, T13) -------------------------------------------------------------

    async def open_shared(self, request: OpenSharedRequest) -> OpenSharedResponse:
        """Begin an attempt, or join it as a writer; older attempts of the key are aborted.

        Raises PRODUCER_FENCED: the attempt is over. INVALID_TXN_STATE: the sequence was committed, or is too old to
        tell. INVALID_TRANSACTION_TIMEOUT, INVALID_REQUEST.
        """
        _check_shared(request.key, request.attempt, request.token, request.run)
        check_sequence(request.sequence)
        response: OpenSharedResponse = await self._submit_with_producer_id(request.key, request)
        return response

    async def commit_shared(self, request: CommitSharedRequest) -> CommitSharedResponse:
        """Commit exactly the named writers, abort all others. Repeated, it gives the same answer.

        Raises TRANSACTION_ABORTABLE: a writer was lost, nothing is committed. PRODUCER_FENCED: the attempt is over.
        INVALID_TXN_STATE: the token was committed with another payload. MESSAGE_TOO_LARGE.
        """
        _check_shared(request.key, request.attempt, request.token, request.run)
        check_payload(request.payload)
        check_sequence(request.sequence)
        if self._spans is not None:
            request = replace(request, trace=self._spans.ids(request.key))
        response: CommitSharedResponse = await self._submit(request.key, replace(request, client=caller_origin()))
        return response

    async def abort_shared(self, request: AbortSharedRequest) -> None:
        """Abort an attempt. Changes nothing once it is decided."""
        _check_shared(request.key, request.attempt)
        await self._submit(request.key, replace(request, client=caller_origin()))

    async def leave_shared(self, request: LeaveSharedRequest) -> None:
        """Abort one writer's part."""
        _check_shared(request.key, request.attempt)
        await self._submit(request.key, replace(request, client=caller_origin()))

    async def describe_shared(self, request: DescribeSharedRequest) -> SharedDescription:
        """Describe a key: its open attempt, its last commits (E5). One that was never used is empty."""
        _check_shared(request.key)
        description: SharedDescription = await self._submit(request.key, request)
        return description

    async def list_shared(self, request: ListSharedRequest) -> ListSharedResponse:
        """List the keys coordinated here that can be read, by name. Raises COORDINATOR_LOAD_IN_PROGRESS as `list`."""
        if not await self.topic_ready(create=False):
            return ListSharedResponse(())
        unreadable = self._runtime.unreadable()
        parts = [
            await self._runtime.submit(partition, request)
            async for partition in in_turns(self._runtime.partitions())
            if partition not in unreadable
        ]
        keys = [one async for one in in_turns(itertools.chain.from_iterable(part.keys for part in parts))]
        return ListSharedResponse(
            tuple(sorted(keys, key=lambda one: one.key)),
            tuple(error.message for _, error in sorted(unreadable.items())),
        )

    # --- Inside -------------------------------------------------------------------------------------------------------

    async def _submit(self, transactional_id: str, request: object) -> Any:
        await self.topic_ready()
        return await self._ask(transactional_id, request)

    async def _ask(self, transactional_id: str, request: object) -> Any:
        try:
            return await self._runtime.submit(self.partition_for(transactional_id), request)
        except FencedError:
            self.counts.fencings_refused += 1
            raise

    async def _submit_add(self, request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
        if not request.topic_ids:
            names = {tp.topic for tp in request.partitions}
            known = {name: topic_id for name in names if (topic_id := self._topic_id(name)) is not None}
            request = replace(request, topic_ids=known)
        response: AddPartitionsToTxnResponse = await self._ask(request.transactional_id, request)
        return response

    async def _submit_with_producer_id(
        self, transactional_id: str, request: InitProducerIdRequest | EndTxnRequest | OpenSharedRequest
    ) -> Any:
        """Draw a producer id only where one is needed: for a new transactional id, and when epochs ran out (T10)."""
        if (client := caller_origin()) is not None:
            request = replace(request, client=client)
        response = await self._submit(transactional_id, request)
        if response is not PRODUCER_ID_NEEDED:
            return response
        producer_id = await self._producer_ids.next_producer_id()
        return await self._submit(transactional_id, WithProducerId(request, producer_id))

    def _make_machine(self, partition: int, leader_epoch: int) -> Machine:
        return TransactionMachine(partition, leader_epoch, self.config, self.held, self.counts.refusals)

    def _on_effects(self, partition: int, effects: Sequence[Any]) -> None:
        if self._spans is not None:
            effects = self._spans.take(effects)
        for effect in effects:
            match effect:
                case SendMarkers():
                    self._sender.send(partition, effect)
                case TransactionCompleted(transactional_id, committed, duration_ms):
                    if self.durations is not None and committed is not None:
                        self.durations[committed].record(duration_ms / 1000)
                    completion = self._completions.get(transactional_id)
                    if completion is not None:
                        completion.happened.set()
                        completion.happened = asyncio.Event()
                case Fenced(timed_out):
                    self.counts.fencings_taken += 1
                    self.counts.timeouts += timed_out
                case Decided():
                    pass  # for spans alone, and this node makes none
                case _:
                    raise AssertionError(f"an effect that nobody carries out: {effect}")

    async def _report(self, partition: int, report: MarkersWritten) -> object:
        return await self._runtime.submit(partition, report)

    @contextmanager
    def _completion(self, transactional_id: str) -> Iterator[_Completion]:
        completion = self._completions.setdefault(transactional_id, _Completion(asyncio.Event()))
        completion.waiting += 1
        try:
            yield completion
        finally:
            completion.waiting -= 1
            if completion.waiting == 0:
                del self._completions[transactional_id]


@dataclass(slots=True)
class _Completion:
    """Those who wait for a transactional id's pending transaction to complete."""

    happened: asyncio.Event
    waiting: int = 0


def check_name(what: str, name: str) -> None:
    """Refuse a name that is empty or too long. Raises `UsageError`."""
    size = len(name.encode("utf-8", "surrogatepass"))
    if not 0 < size <= NAME_BYTES_MAX:
        raise UsageError(f"{what} has 1 to {NAME_BYTES_MAX} bytes, not {size}")


def check_payload(payload: bytes) -> None:
    if len(payload) > PAYLOAD_BYTES_MAX:
        raise UsageError(
            f"a commit's payload has at most {PAYLOAD_BYTES_MAX} bytes, not {len(payload)}: put large data into a "
            "topic, in the same transaction, and its place into the payload"
        )


def check_sequence(sequence: int) -> None:
    if sequence < NO_SEQUENCE:
        raise UsageError(f"a sequence is 0 or more, not {sequence}")


def _check_shared(key: str, attempt: str | None = None, token: str | None = None, run: str = "") -> None:
    check_name("the key of a shared transaction", key)
    if attempt is not None:
        check_name("an attempt's name", attempt)
    if token is not None:
        check_name("a commit token", token)
    if run:
        check_name("a run's name", run)


def _pattern_of(request: ListTransactionsRequest) -> LinearPattern | None:
    """Return the expression that ids must match. Raises `UsageError` where it can't be read."""
    text = request.transactional_id_pattern
    if not text:
        return None
    try:
        return LinearPattern(text)
    except PatternError as error:
        raise _bad_pattern(text, str(error)) from None


async def _matches(pattern: LinearPattern, transactional_id: str) -> bool:
    """Match one id, in turns: a long expression takes long for each character of it (S3). Raises `UsageError`."""
    turns = Turns()
    for is_match in pattern.walk(transactional_id):
        if is_match:
            return True
        if pattern.effort > EFFORT_MAX:
            raise _bad_pattern(pattern.expression, "matching it takes too long; simplify it")
        await turns.give_way()
    return False


async def known_states(asked: frozenset[str]) -> tuple[frozenset[str], tuple[str, ...]]:
    """Return those of a filter's states that there are, and of the others at most UNKNOWN_STATES_MAX."""
    unknown: list[str] = []
    async for state in in_turns(asked):
        if len(unknown) == UNKNOWN_STATES_MAX:
            break
        if state not in STATE_NAMES:
            unknown.append(state)
    return asked & STATE_NAMES or (_NO_STATE if asked else frozenset()), tuple(sorted(unknown))


def _bad_pattern(text: str, why: str) -> UsageError:
    return UsageError(f"the pattern {text[:100]!r} can't be used: {why}", ErrorCode.INVALID_REGULAR_EXPRESSION)


def _check_id(transactional_id: str, bytes_max: int = TRANSACTIONAL_ID_BYTES_MAX) -> None:
    if not transactional_id:
        raise UsageError("a transactional id must not be empty")
    size = len(transactional_id.encode("utf-8", "surrogatepass"))
    if size > bytes_max:
        setting = " (transactional.id.max.bytes)" if bytes_max < TRANSACTIONAL_ID_BYTES_MAX else ""
        raise UsageError(f"a transactional id has at most {bytes_max} bytes{setting}, not {size}: choose a shorter one")
