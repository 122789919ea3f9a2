"""T8: no transactional batch enters a log unless its partition is in the transaction by the coordinator's own word.

The first batch of a producer's transaction in a partition waits at a gate while the coordinator is asked (KIP-890):
whether the partition was added (older protocol), or to add it (a transaction under an epoch of its own). Batches of
the same producer to the same partition that come meanwhile queue at the gate, so that they enter in the order they
came in.

A guard that the log gave before the question goes with the append: a marker that came in between makes it void, so a
late answer lets nothing in (KAFKA-12671).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from semel.protocol.api.transactions import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse, TransactionVersion
from semel.protocol.errors import ErrorCode, RetriableError, SemelError, error_for
from semel.protocol.ids import ProducerIdAndEpoch, TopicPartition

if TYPE_CHECKING:
    from semel.broker.handlers.produce.run import ProduceRun
    from semel.broker.log.verification import VerificationGuard
    from semel.broker.logs.leader_state import LeaderState
    from semel.broker.logs.partition import Partition
    from semel.broker.services import Services
    from semel.protocol.trace_context import TraceContext

_log = logging.getLogger("semel.produce")

ADD_PARTITIONS_MIN_VERSION: Final = 12
"""From this version of Produce on, the broker adds the partition to the transaction itself (KIP-890, part 2)."""

VERIFICATION_TIMEOUT_S: Final = 30.0
QUEUED_BATCHES_MAX: Final = 1_000
"""The most batches behind one gate. A client has at most five in flight; more come from one that ignores answers."""

_NOT_NOW = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)


class WaitingBatch(NamedTuple):
    """One partition's batch of a transactional request."""

    run: ProduceRun
    place: int
    partition: Partition
    producer: ProducerIdAndEpoch
    base_sequence: int
    transactional: bool


def _trace_of(batch: WaitingBatch) -> TraceContext | None:
    """Where the batch belongs; None where the node is not traced, too."""
    trace: TraceContext | None = batch.run.request.partitions[batch.place].trace
    return trace


_Key = tuple[TopicPartition, int]
CheckBatches = Callable[[AddPartitionsToTxnRequest], Awaitable[AddPartitionsToTxnResponse]]
_Append = Callable[["ProduceRun", int, "Partition", "bool | VerificationGuard"], None]


class _Queued(NamedTuple):
    transactional_id: str
    version: int
    batch: WaitingBatch


class TransactionGate:
    """Who waits for the coordinator, by partition and producer id."""

    def __init__(self, node: Services, append: _Append, check_batches: CheckBatches | None = None) -> None:
        """`check_batches`: asks the coordinator, wherever it is; by default this node's own."""
        self._node = node
        self._append = append
        self._check_batches = check_batches
        self._queues: dict[_Key, deque[_Queued]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self.verifications = 0

    @property
    def waiting(self) -> int:
        """How many partitions and producers are being asked about."""
        return len(self._queues)

    def admit(self, transactional_id: str, version: int, batches: Sequence[WaitingBatch]) -> None:
        """Append the batches that may enter, queue those behind another, and ask about the others, all at once."""
        unknown: list[WaitingBatch] = []
        for batch in batches:
            queue = self._queues.get((batch.partition.tp, batch.producer.producer_id))
            if queue is not None:
                if len(queue) >= QUEUED_BATCHES_MAX:
                    batch.run.fail(
                        batch.place,
                        error_for(
                            ErrorCode.NOT_ENOUGH_REPLICAS,
                            f"{len(queue)} batches of producer {batch.producer.producer_id} to {batch.partition.tp} "
                            "wait for the transaction coordinator already: wait for answers",
                        ),
                    )
                else:
                    queue.append(_Queued(transactional_id, version, batch))
            elif self._must_ask(batch):
                self._queues[batch.partition.tp, batch.producer.producer_id] = deque()
                unknown.append(batch)
            else:
                self._append(batch.run, batch.place, batch.partition, False)
        if unknown:
            self._ask(transactional_id, version, unknown)

    @staticmethod
    def _must_ask(batch: WaitingBatch) -> bool:
        return batch.transactional and not batch.partition.log.has_ongoing_transaction(batch.producer)

    def _ask(self, transactional_id: str, version: int, batches: Sequence[WaitingBatch]) -> None:
        self.verifications += 1
        task = asyncio.get_running_loop().create_task(
            self._settle(transactional_id, version, batches), name=f"verify {transactional_id}"
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _settle(self, transactional_id: str, version: int, batches: Sequence[WaitingBatch]) -> None:
        """Ask, append or refuse, and let those in who queued behind."""
        refusals: Mapping[TopicPartition, SemelError] = {}
        refusal_of_all: SemelError | None = None
        guards: list[bool | VerificationGuard] = [False] * len(batches)
        reigns = [batch.partition.leader for batch in batches]
        try:
            now_ms = self._node.clock.now_ms()
            guards = [
                batch.partition.log.start_verification(batch.producer, batch.base_sequence, now_ms) or False
                for batch in batches
            ]
            async with asyncio.timeout(VERIFICATION_TIMEOUT_S):
                refusals = await self._refusals(transactional_id, version, batches)
        except SemelError as error:
            refusal_of_all = error
        except TimeoutError:
            refusal_of_all = error_for(
                ErrorCode.REQUEST_TIMED_OUT, f"the coordinator did not answer within {VERIFICATION_TIMEOUT_S:.0f} s"
            )
        except asyncio.CancelledError:
            refusal_of_all = error_for(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the node stops")
        except Exception:
            _log.exception("verification failed: transactional_id=%r", transactional_id)
            refusal_of_all = error_for(
                ErrorCode.COORDINATOR_NOT_AVAILABLE, "the coordinator failed: see the node's own log"
            )
        for batch, guard, reign in zip(batches, guards, reigns, strict=True):
            refusal = refusal_of_all or refusals.get(batch.partition.tp)
            # The marker may be that of the transaction before: it and the answer come from two places. Here each
            # transaction has an epoch of its own, so that the coordinator can tell. Others ask after all markers.
            asks_again = version >= ADD_PARTITIONS_MIN_VERSION or self._leads_anew(batch, reign)
            if refusal is None and asks_again and self._is_void(batch, guard):
                self._ask(transactional_id, version, [batch])
                continue
            if refusal is None:
                self._append(batch.run, batch.place, batch.partition, guard)
            else:
                if not isinstance(refusal, RetriableError):
                    batch.partition.log.cancel_verification(batch.producer)
                self._refuse(batch, refusal, version)
            self._next((batch.partition.tp, batch.producer.producer_id))

    def _is_void(self, batch: WaitingBatch, guard: bool | VerificationGuard) -> bool:
        """Say whether a marker ended a transaction of the producer since the coordinator was asked (T8)."""
        holds = not isinstance(guard, bool) and batch.partition.log.holds_verification(guard)
        return not holds and self._must_ask(batch) and not self._closed

    @staticmethod
    def _leads_anew(batch: WaitingBatch, reign: LeaderState | None) -> bool:
        """Say whether this node leads the partition in another epoch than it did: that voids what was asked before."""
        leader = batch.partition.leader
        return leader is not None and leader is not reign

    async def _refusals(
        self, transactional_id: str, version: int, batches: Sequence[WaitingBatch]
    ) -> Mapping[TopicPartition, SemelError]:
        """Return, for the partitions that are not in the transaction, why. Raises `SemelError` where none is."""
        adds = version >= ADD_PARTITIONS_MIN_VERSION
        request = AddPartitionsToTxnRequest(
            transactional_id,
            batches[0].producer,
            tuple(batch.partition.tp for batch in batches),
            verify_only=not adds,
            version=TransactionVersion.V2 if adds else TransactionVersion.V1,
            trace=next((found for found in map(_trace_of, batches) if found is not None), None),
            topic_ids={batch.partition.tp.topic: batch.partition.topic_id for batch in batches},
        )
        check_batches = self._check_batches or self._node.transactions.check_batches
        response = await check_batches(request)
        refusals: dict[TopicPartition, SemelError] = {}
        for tp in request.partitions:
            # A partition that the coordinator says nothing about is not in the transaction.
            code = response.errors.get(tp, ErrorCode.INVALID_TXN_STATE)
            if code is not ErrorCode.NONE:
                refusals[tp] = error_for(code, f"{tp} was not added to the transaction of {transactional_id!r}")
        return refusals

    def _refuse(self, batch: WaitingBatch, error: SemelError, version: int) -> None:
        """Answer in codes that producers of this version act on rightly (KIP-890)."""
        code, message = error.code, error.message
        if code is ErrorCode.PRODUCER_FENCED:
            code = ErrorCode.INVALID_PRODUCER_EPOCH
        elif code in _NOT_NOW and not (
            code is ErrorCode.CONCURRENT_TRANSACTIONS and version >= ADD_PARTITIONS_MIN_VERSION
        ):
            # Retriable for every client, and does not make it look for another leader.
            message = f"the coordinator could not confirm that {batch.partition.tp} is in the transaction: {error}"
            code = ErrorCode.NOT_ENOUGH_REPLICAS
        _log.info(
            "refused: partition=%s producer_id=%d epoch=%d error=%s answered=%s",
            batch.partition.tp,
            batch.producer.producer_id,
            batch.producer.producer_epoch,
            error.code.name,
            code.name,
        )
        batch.run.fail(batch.place, error_for(code, message))

    def _next(self, key: _Key) -> None:
        """Let those in who queued at a gate, up to the first that must be asked about itself."""
        queue = self._queues[key]
        while queue:
            transactional_id, version, batch = queue.popleft()
            if self._must_ask(batch):
                if self._closed:
                    self._refuse(batch, error_for(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the node stops"), version)
                    continue
                self._ask(transactional_id, version, [batch])
                return
            self._append(batch.run, batch.place, batch.partition, False)
        del self._queues[key]

    async def close(self) -> None:
        """Stop asking; every waiting caller is refused."""
        self._closed = True
        await asyncio.sleep(0)  # so that each task has begun, and answers for its batches when it is cancelled
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
