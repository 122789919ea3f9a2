# cython: annotation_typing=False, boundscheck=True, wraparound=True, nonecheck=True
"""Produce: appends clients' batches, answers when they are as durable as was asked for.

Behaviour, by version of the request where it matters:
- acks 0, 1 and -1 (all); anything else is INVALID_REQUIRED_ACKS for every partition, and nothing is appended.
- Batches are appended in the order of arrival, within the call; only the answer to acks=all waits, until the high
  watermark is past the batch or `timeout_ms` is over (REQUEST_TIMED_OUT, or NOT_ENOUGH_REPLICAS_AFTER_APPEND where too
  few replicas are in sync by then: the batch may still become durable).
- A request with batches that take long to check, or for very many partitions, holds its client's place in the order
  until they are checked and appended (S3).
- A partition's record set is exactly one v2 batch (INVALID_RECORD otherwise); zstd needs version 7. Records that no
  reader could read are INVALID_RECORD or INVALID_TIMESTAMP, with their places from version 8 on (S4, KIP-467).
- A transactional batch enters a partition only by the transaction coordinator's word (T8, KIP-890). Up to version 11
  the partition must have been added to the transaction before (it is verified); from version 12 on it is added here.
  While one batch waits for that, later ones of the same producer to the same partition queue behind it.
- TRANSACTION_ABORTABLE is sent from version 11 on, before it INVALID_TXN_STATE; KAFKA_STORAGE_ERROR from version 4 on,
  before it NOT_LEADER_OR_FOLLOWER.
- Topics are named by id from version 13 on: UNKNOWN_TOPIC_ID for one that was deleted, also where another was made
  under its name since.
- A client that has to look for the leader is sent it, with its address, from version 10 on (KIP-951).
- Internal topics take no batches from clients: INVALID_TOPIC_EXCEPTION.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from semel.broker.handlers.partitions.leader_hints import HINTED, current_leader, not_here
from semel.broker.handlers.produce.batch_checks import PLAIN_BYTES_MAX, BatchChecks, Outcome, Turn, Unchecked
from semel.broker.handlers.produce.confirmations import Confirmations
from semel.broker.handlers.produce.early_refusals import EarlyRefusals
from semel.broker.handlers.produce.gate import CheckBatches, TransactionGate, WaitingBatch
from semel.broker.handlers.produce.large import PART, AppendsParts, LargeProduce
from semel.broker.handlers.produce.overtaking import Overtaking
from semel.broker.handlers.produce.run import Appended, Done, ProduceRun, is_doubtful
from semel.broker.log.append_validation import CheckedBatch, RefusedRecordsError
from semel.broker.log.config import AppendOrigin, LogConfig
from semel.broker.log.partition_log import writable
from semel.protocol.batch_header import COMPRESSION_MASK, BatchHeader, read_header
from semel.protocol.compression import Compression
from semel.protocol.errors import ErrorCode, SemelError, error_for
from semel.protocol.ids import (
    INTERNAL_TOPICS,
    ProducerIdAndEpoch,
    TopicPartition,
    format_topic_id,
)
from semel.protocol.kafka.produce import (
    ACKS_ALL,
    ACKS_LEADER,
    ACKS_NONE,
    PRODUCE_MAX_VERSION,
    PRODUCE_TOPIC_ID_VERSION,
    ProducePartition,
    ProducePartitionResponse,
    ProduceRequest,
    ProduceResponse,
)
from semel.protocol.named_tuples import new_tuple

if TYPE_CHECKING:
    from semel.broker.log.verification import VerificationGuard
    from semel.broker.logs.partition import Partition
    from semel.broker.services import Services
    from semel.broker.telemetry.tracing import AppendSpans

_log = logging.getLogger("semel.produce")

ZSTD_MIN_VERSION: Final = 7
STORAGE_ERROR_MIN_VERSION: Final = 4
ENDPOINTS_MIN_VERSION: Final = 10
ABORTABLE_MIN_VERSION: Final = 11

_FOR_NOW: Final = frozenset(
    {
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    }
)
"""Refusals of a good batch, after which its producer sends it again."""
_WRONG_ACKS: Final = "acks must be 0, 1 or -1 (all)"


class ProduceHandler:
    """Produce for one node. All listeners of the node share one, so that batches keep their order across them."""

    def __init__(
        self, node: Services, spans: AppendSpans | None = None, check_batches: CheckBatches | None = None
    ) -> None:
        """`spans`: where appends are traced. `check_batches`: see `TransactionGate`."""
        self.node = node
        self.spans = spans
        self.gate = TransactionGate(node, self.append, check_batches)
        self.checks = BatchChecks(node.config)
        self.appended_batches = 0
        self.appended_records = 0
        self.appended_bytes = 0
        self.duplicate_batches = 0
        self.refused_batches = 0
        self.refusals: Counter[ErrorCode] = Counter()
        """The refused batches, by why."""
        self.timed_out_requests = 0
        self.confirmations = Confirmations(node) if node.config.peer_listen else None
        self.early_refusals = EarlyRefusals(node)
        self.overtaking = Overtaking(node.clock)
        self.large_requests: set[asyncio.Task[None]] = set()
        """The tasks that append them: the event loop itself only refers to them weakly."""
        self.names_leaders = False
        """Whether any answer ever named a leader. Until then, listeners do not search answers for them, to add their
        addresses (KIP-951).
        """

    @property
    def verifications(self) -> int:
        """How often the transaction coordinator was asked."""
        return self.gate.verifications

    async def produce(self, request: ProduceRequest, version: int = PRODUCE_MAX_VERSION) -> ProduceResponse:
        """Append and return the answer when it is there. Appending begins before the first suspension."""
        answered: asyncio.Future[ProduceResponse] = asyncio.get_running_loop().create_future()

        def done(response: ProduceResponse) -> None:
            if not answered.done():
                answered.set_result(response)

        response = self.begin(request, version, done)
        return await answered if response is None else response

    def begin(
        self, request: ProduceRequest, version: int, done: Done, turn: Turn | None = None
    ) -> ProduceResponse | None:
        """Append what may be appended now. Returns the answer, or None where `done` is called with it later.

        `turn` is held while batches are checked elsewhere, so that the client's next request is appended after them.
        """
        if self.spans is not None:
            self.spans.note(request)
        if len(request.partitions) > PART:
            self.begin_large(self, request, version, done, turn)
            return None
        return self.begin_part(request, version, done, turn)

    def begin_large(
        self, parts: AppendsParts, request: ProduceRequest, version: int, done: Done, turn: Turn | None
    ) -> None:
        """Append a request for very many partitions, each part by `parts`."""
        task = LargeProduce(parts, request, version, done, turn).start()
        self.large_requests.add(task)
        task.add_done_callback(self.large_requests.discard)

    def begin_part(
        self, request: ProduceRequest, version: int, done: Done, turn: Turn | None
    ) -> ProduceResponse | None:
        """Do what `begin` does, for so few partitions that they are appended to in one turn of the loop."""
        if version >= PRODUCE_TOPIC_ID_VERSION:
            self._name_topics(request)
        acks = request.acks
        if acks not in (ACKS_NONE, ACKS_LEADER, ACKS_ALL):
            run = ProduceRun(self, request, version, done)
            run.fail_all(ErrorCode.INVALID_REQUIRED_ACKS, _WRONG_ACKS)
            return run.result()
        if request.transactional_id is not None:
            run = ProduceRun(self, request, version, done)
            self._begin_transactional(run, request.transactional_id, turn)
            return run.result()
        answers: list[ProducePartitionResponse] = []
        for index, item in enumerate(request.partitions):
            appended = self._append_light(item, acks, version)
            if appended is None or appended[1] is not None or self._is_in_doubt(appended[0]):
                # Something is to be waited for.
                run = ProduceRun(self, request, version, done)
                for place, answer in enumerate(answers):
                    run.settle(place, answer)
                if appended is not None:
                    run.take(index, appended)
                    index += 1
                self._append_from(run, index, turn)
                return run.result()
            answers.append(appended[0])
        return ProduceResponse(answers)

    def _is_in_doubt(self, answer: ProducePartitionResponse) -> bool:
        """Return whether another node is to be asked before a batch is refused (P2)."""
        return self.confirmations is not None and is_doubtful(answer)

    def _name_topics(self, request: ProduceRequest) -> None:
        """Put the names in that belong to the ids; none where an id is unknown."""
        topic_name = self.node.metadata.topic_name
        for item in request.partitions:
            item.topic = topic_name(item.topic_id) or ""

    def refuse(self, item: ProducePartition, code: ErrorCode, message: str, version: int) -> ProducePartitionResponse:
        """Return the answer that refuses one partition's batch, with the code that this version knows."""
        self.refusals[code] += 1
        if code is ErrorCode.TRANSACTION_ABORTABLE and version < ABORTABLE_MIN_VERSION:
            code = ErrorCode.INVALID_TXN_STATE
        elif code is ErrorCode.KAFKA_STORAGE_ERROR and version < STORAGE_ERROR_MIN_VERSION:
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        answer = ProducePartitionResponse(item.topic, item.partition, code, error_message=message)
        answer.topic_id = item.topic_id
        if version >= ENDPOINTS_MIN_VERSION and code in HINTED:
            tp = TopicPartition(item.topic, item.partition)
            answer.leader_id, answer.leader_epoch = current_leader(self.node, tp)
            self.names_leaders = True
        return answer

    def refusal(self, item: ProducePartition, error: SemelError, version: int) -> ProducePartitionResponse:
        """Count a refused batch, and return the answer to it."""
        self.refused_batches += 1
        if error.code in _FOR_NOW:
            self._note_refused(item)
        answer = self.refuse(item, error.code, error.message, version)
        if isinstance(error, RefusedRecordsError):
            answer.record_errors = error.records
        return answer

    def _note_refused(self, item: ProducePartition) -> None:
        """A batch that will be sent again must not be overtaken by those that were sent behind it (P2)."""
        if not item.records:
            return
        try:
            header = read_header(item.records)
        except SemelError:
            return  # it is refused for good next time
        partition = self.node.partition(TopicPartition(item.topic, item.partition))
        self.overtaking.note(item, header, partition)
        if partition is not None:
            partition.log.note_refused(header, self.node.clock.now_ms())
        elif header.producer_id >= 0:
            self.early_refusals.note(item, header)

    def _append_light(self, item: ProducePartition, acks: int, version: int) -> Appended | None:
        """Append a batch that must not be transactional; None where it is to be checked before."""
        try:
            partition, header = self._check_plain(item, version)
        except SemelError as error:
            return self.refusal(item, error, version), None, -1, False
        if not _is_light(header, partition.config):
            return None
        return self._append(item, partition, acks, version, False, None)

    def _append_from(self, run: ProduceRun, first: int, turn: Turn | None) -> None:
        """Append the batches from a place on. From the first that is checked elsewhere on, all of them wait for it."""
        request, version = run.request, run.version
        waiting: list[tuple[Unchecked, Partition]] = []
        for index in range(first, len(request.partitions)):
            item = request.partitions[index]
            try:
                partition, header = self._check_plain(item, version)
                checked = None
                if waiting or not _is_light(header, partition.config):
                    assert item.records is not None
                    if not waiting:
                        checked = self.checks.at_once(partition.tp, header, item.records, partition.config)
                    if checked is None:
                        unchecked = Unchecked(index, partition.tp, writable(item.records), partition.config)
                        waiting.append((unchecked, partition))
                        continue
            except SemelError as error:
                run.fail(index, error)
                continue
            run.take(index, self._append(item, partition, request.acks, version, False, checked))
        if not waiting:
            return

        def checked_all(outcomes: Mapping[int, Outcome]) -> None:
            for (place, *_), partition in waiting:
                outcome = outcomes[place]
                if isinstance(outcome, SemelError):
                    run.fail(place, outcome)
                else:
                    item = request.partitions[place]
                    run.take(place, self._append(item, partition, request.acks, version, False, outcome))

        self._check_elsewhere(run, [unchecked for unchecked, _ in waiting], turn, checked_all)

    def _check_elsewhere(
        self,
        run: ProduceRun,
        batches: Sequence[Unchecked],
        turn: Turn | None,
        then: Callable[[Mapping[int, Outcome]], None],
    ) -> None:
        """Have batches checked in a thread, and hold the client's place meanwhile."""

        def done(outcomes: Mapping[int, Outcome]) -> None:
            try:
                then(outcomes)
            finally:
                if turn is not None:
                    turn.on_close = None
                    turn.go_on()

        try:
            job = self.checks.elsewhere(batches, run.request.timeout_ms, done)
        except SemelError as error:
            # The request's other batches may be good, and it is to be answered.
            then({batch.place: error for batch in batches})
            return
        if turn is not None:
            turn.on_close = job.cancel
            turn.hold()

    def _begin_transactional(self, run: ProduceRun, transactional_id: str, turn: Turn | None) -> None:
        """Append what needs no word of the coordinator, and ask for it for all others at once."""
        batches: list[WaitingBatch] = []
        producers: set[ProducerIdAndEpoch] = set()
        waiting: list[Unchecked] = []
        run.checked = {}
        for index, item in enumerate(run.request.partitions):
            try:
                partition, header = self._check(item, run.version)
                if not _is_light(header, partition.config):
                    assert item.records is not None
                    checked = self.checks.at_once(partition.tp, header, item.records, partition.config)
                    if checked is None:
                        waiting.append(Unchecked(index, partition.tp, writable(item.records), partition.config))
                    else:
                        run.checked[index] = checked
            except SemelError as error:
                run.fail(index, error)
                continue
            producer = ProducerIdAndEpoch(header.producer_id, header.producer_epoch)
            if header.is_transactional:
                producers.add(producer)
            batches.append(WaitingBatch(run, index, partition, producer, header.base_sequence, header.is_transactional))
        if len(producers) > 1:
            run.fail_all(
                ErrorCode.INVALID_PRODUCER_ID_MAPPING,
                f"one request of {transactional_id!r} has transactional batches of {len(producers)} producers",
            )
        elif waiting:
            self._check_elsewhere(
                run, waiting, turn, lambda outcomes: self._admit_checked(run, transactional_id, batches, outcomes)
            )
        else:
            self.gate.admit(transactional_id, run.version, batches)

    def _admit_checked(
        self,
        run: ProduceRun,
        transactional_id: str,
        batches: Sequence[WaitingBatch],
        outcomes: Mapping[int, Outcome],
    ) -> None:
        """Let in those of a transactional request's batches that were found to be good."""
        assert run.checked is not None
        for place, outcome in outcomes.items():
            if isinstance(outcome, SemelError):
                run.fail(place, outcome)
            else:
                run.checked[place] = outcome
        good = [batch for batch in batches if not isinstance(outcomes.get(batch.place), SemelError)]
        self.gate.admit(transactional_id, run.version, good)

    def _check_plain(self, item: ProducePartition, version: int) -> tuple[Partition, BatchHeader]:
        """Return what `_check` does, for a batch that must not be transactional. Raises `SemelError`."""
        partition, header = self._check(item, version)
        if header.is_transactional:
            raise error_for(
                ErrorCode.INVALID_TXN_STATE,
                f"a transactional batch for {partition.tp} came in a request without a transactional id",
            )
        return partition, header

    def _check(self, item: ProducePartition, version: int) -> tuple[Partition, BatchHeader]:
        """Return the partition and the header of the one batch for it. Raises `SemelError`."""
        tp = new_tuple(TopicPartition, (item.topic, item.partition))
        partition = self.node.partition(tp)
        if version >= PRODUCE_TOPIC_ID_VERSION and (
            not item.topic if partition is None else partition.topic_id != item.topic_id
        ):
            raise error_for(
                ErrorCode.UNKNOWN_TOPIC_ID,
                f"there is no topic with the id {format_topic_id(item.topic_id)} here: ask for the metadata again",
            )
        if partition is None:
            raise not_here(self.node, tp)
        if self.early_refusals.noted:
            self.early_refusals.tell(partition)
        if item.topic in INTERNAL_TOPICS:
            raise error_for(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{item.topic} is written by coordinators alone")
        records = item.records
        if records is None or len(records) == 0:
            raise error_for(ErrorCode.INVALID_RECORD, f"the record set for {tp} is empty; send exactly one batch")
        header = read_header(records)
        if header.size_bytes != len(records):
            raise error_for(
                ErrorCode.INVALID_RECORD,
                f"the record set for {tp} has {len(records)} bytes and its first batch {header.size_bytes}; "
                "send exactly one batch",
            )
        if version < ZSTD_MIN_VERSION and header.attributes & COMPRESSION_MASK == Compression.ZSTD:
            raise error_for(
                ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
                f"zstd needs Produce version {ZSTD_MIN_VERSION}, not {version}",
            )
        return partition, header

    def append(
        self, run: ProduceRun, index: int, partition: Partition, verified: bool | VerificationGuard = False
    ) -> None:
        """Append one partition's batch and settle its answer, now or when it is committed."""
        request = run.request
        item = request.partitions[index]
        checked = None if run.checked is None else run.checked.pop(index, None)
        acks, leader = request.acks, partition.leader
        if acks == ACKS_LEADER and leader is not None and not leader.is_alone:
            # Lost at an election, the last batch of a transaction would be missing from it without a gap in sequence.
            acks = ACKS_ALL
        run.take(index, self._append(item, partition, acks, run.version, verified, checked))

    def _append(
        self,
        item: ProducePartition,
        partition: Partition,
        acks: int,
        version: int,
        verified: bool | VerificationGuard,
        checked: CheckedBatch | None,
    ) -> Appended:
        if self.spans is None or self.spans.drops(item.trace):
            return self._append_untraced(item, partition, acks, version, verified, checked)
        span = self.spans.begin(partition.tp, item.trace, len(item.records or b""))
        appended = self._append_untraced(item, partition, acks, version, verified, checked)
        self.spans.end(span, *appended)
        return appended

    def _append_untraced(
        self,
        item: ProducePartition,
        partition: Partition,
        acks: int,
        version: int,
        verified: bool | VerificationGuard,
        checked: CheckedBatch | None,
    ) -> Appended:
        records = item.records
        assert records is not None
        try:
            result = partition.append(
                records, origin=AppendOrigin.CLIENT, acks=acks, verified=verified, checked=checked
            )
        except SemelError as error:
            if error.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
                return self._out_of_order(item, partition, error, version), None, -1, False
            return self.refusal(item, error, version), None, -1, False
        except Exception:
            _log.exception("append failed: partition=%s", partition.tp)
            self.refused_batches += 1
            message = "the append failed: see the node's own log"
            return self.refuse(item, ErrorCode.UNKNOWN_SERVER_ERROR, message, version), None, -1, False
        if result.duplicate:
            self.duplicate_batches += 1
        else:
            self.appended_batches += 1
            self.appended_records += result.last_offset - result.base_offset + 1
            self.appended_bytes += len(records)
        answer = ProducePartitionResponse(
            item.topic,
            item.partition,
            ErrorCode.NONE,
            result.base_offset,
            result.log_append_time_ms,
            partition.log_start_offset,
        )
        if version >= PRODUCE_TOPIC_ID_VERSION:
            answer.topic_id = item.topic_id
        if acks == ACKS_ALL and result.last_offset >= partition.high_watermark:  # D5: a duplicate's answer waits, too
            return answer, partition, result.last_offset, result.duplicate
        return answer, None, -1, result.duplicate

    def _out_of_order(
        self, item: ProducePartition, partition: Partition, error: SemelError, version: int
    ) -> ProducePartitionResponse:
        """Return the answer to a batch that is out of order, by what is known here."""
        assert item.records is not None
        judged = self.overtaking.judged(item, read_header(item.records), partition, error)
        if judged is not error:  # not noted as one that was refused: that is the one before it
            self.refused_batches += 1
            return self.refuse(item, judged.code, judged.message, version)
        if self.confirmations is not None:
            # Counted once it is known what is answered.
            return ProducePartitionResponse(item.topic, item.partition, error.code, error_message=error.message)
        return self.refusal(item, error, version)

    async def close(self) -> None:
        """Give up what still waits for its check or the coordinator; its batches are refused, to be sent again."""
        self.checks.close()
        await asyncio.gather(*self.large_requests, return_exceptions=True)
        await self.gate.close()
        if self.confirmations is not None:
            await self.confirmations.close()


def _is_light(header: BatchHeader, config: LogConfig) -> bool:
    """Whether a batch is checked where it is appended: nothing is to be decompressed or compressed."""
    return not (header.attributes & COMPRESSION_MASK or header.size_bytes > PLAIN_BYTES_MAX or config.recompresses)
