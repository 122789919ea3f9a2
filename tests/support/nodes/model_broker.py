"""A broker as simple as can be, for testing clients: partitions as lists, rules of producer state, one coordinator."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from semel.protocol.batch_header import read_header
from semel.protocol.errors import ErrorCode, error_for
from semel.protocol.ids import MAX_PRODUCER_EPOCH, ProducerIdAndEpoch, TopicPartition
from semel.protocol.record_decoder import Record, decode_records

SEQUENCES = 2**31


@dataclass
class ModelProducer:
    """What a partition knows of a producer: its epoch, and its last five batches (P1)."""

    epoch: int
    batches: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=5))  # first, last, base offset
    in_transaction: bool = False


@dataclass
class StoredBatch:
    base_offset: int
    producer: ProducerIdAndEpoch
    transactional: bool
    records: list[Record]


class ModelPartition:
    """One partition: what was appended, and the producers' state."""

    def __init__(self) -> None:
        self.batches: list[StoredBatch] = []
        self.markers: list[tuple[ProducerIdAndEpoch, bool]] = []
        self.producers: dict[int, ModelProducer] = {}
        self.next_offset = 0

    def append(self, data: bytes) -> tuple[ErrorCode, int]:
        """Append a batch by P1 to P6. Returns the error and the base offset."""
        header = read_header(data)
        producer_id, epoch, first = header.producer_id, header.producer_epoch, header.base_sequence
        if producer_id >= 0:
            known = self.producers.get(producer_id)
            last = (first + header.record_count - 1) % SEQUENCES
            if known is not None:
                if epoch < known.epoch:
                    return ErrorCode.INVALID_PRODUCER_EPOCH, -1
                if epoch == known.epoch:
                    for one_first, one_last, base_offset in known.batches:
                        if (one_first, one_last) == (first, last):
                            return ErrorCode.NONE, base_offset
                    if known.batches and first != (known.batches[-1][1] + 1) % SEQUENCES:
                        return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
                elif first != 0:
                    return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
            if known is None or epoch > known.epoch:
                known = self.producers[producer_id] = ModelProducer(epoch)
            known.batches.append((first, last, self.next_offset))
            known.in_transaction = header.is_transactional
        records = decode_records(data)
        base_offset = self.next_offset
        producer = ProducerIdAndEpoch(producer_id, epoch)
        self.batches.append(StoredBatch(base_offset, producer, header.is_transactional, records))
        self.next_offset += len(records)
        return ErrorCode.NONE, base_offset

    def mark(self, producer: ProducerIdAndEpoch, committed: bool) -> None:
        """Write a marker; data of older epochs is refused from now on (P10)."""
        self.markers.append((producer, committed))
        self.producers[producer.producer_id] = ModelProducer(producer.producer_epoch)
        self.next_offset += 1

    def records(self) -> list[tuple[int, Record]]:
        """Every record with its offset."""
        return [
            (batch.base_offset + delta, record) for batch in self.batches for delta, record in enumerate(batch.records)
        ]

    def values(self) -> list[bytes | None]:
        return [record.value for _, record in self.records()]

    def committed_values(self) -> list[bytes | None]:
        """What a read_committed reader sees: batches whose producer's epoch has a commit marker, or needs none."""
        return [
            record.value
            for batch in self.batches
            if not batch.transactional
            or any(
                committed and (marker.producer_id, marker.producer_epoch - 1) == batch.producer
                for marker, committed in self.markers
            )
            for record in batch.records
        ]


@dataclass
class ModelTransaction:
    """The coordinator's view of a transactional id, under the protocol of an epoch for each transaction (T6)."""

    producer: ProducerIdAndEpoch
    previous: ProducerIdAndEpoch | None = None
    partitions: set[TopicPartition] = field(default_factory=set)
    offsets: dict[tuple[str, TopicPartition], int] = field(default_factory=dict)
    last_committed: bool | None = None

    @property
    def ongoing(self) -> bool:
        return bool(self.partitions or self.offsets)


class ModelBroker:
    """Topics, producer ids and transactions. Not thread-safe."""

    def __init__(self, topics: Mapping[str, int]) -> None:
        self.topics = dict(topics)
        self.partitions = {
            TopicPartition(topic, number): ModelPartition()
            for topic, count in topics.items()
            for number in range(count)
        }
        self.transactions: dict[str, ModelTransaction] = {}
        self.offsets: dict[tuple[str, TopicPartition], int] = {}
        self._next_producer_id = 1000

    def produce(self, tp: TopicPartition, data: bytes, transactional_id: str | None = None) -> tuple[ErrorCode, int]:
        partition = self.partitions.get(tp)
        if partition is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1
        if transactional_id is not None:
            header = read_header(data)
            transaction = self.transactions[transactional_id]
            if (header.producer_id, header.producer_epoch) != transaction.producer:
                return ErrorCode.INVALID_PRODUCER_EPOCH, -1
            transaction.partitions.add(tp)
        return partition.append(data)

    def init_producer_id(self, transactional_id: str, held: ProducerIdAndEpoch | None) -> ProducerIdAndEpoch:
        """Give an id. Fences older instances of a transactional id, unless the caller is the current one (KIP-360)."""
        self._next_producer_id += 1
        if not transactional_id:
            return ProducerIdAndEpoch(self._next_producer_id, 0)
        known = self.transactions.get(transactional_id)
        if known is None:
            known = ModelTransaction(ProducerIdAndEpoch(self._next_producer_id, 0))
            self.transactions[transactional_id] = known
            return known.producer
        if held is not None and held not in (known.producer, known.previous):
            raise error_for(ErrorCode.PRODUCER_FENCED, f"{held} is not the current producer of {transactional_id}")
        if known.ongoing:
            self._finish(known, committed=False)
        self._bump(known)
        if held is None:
            known.previous = None
        return known.producer

    def commit_offsets(
        self, transactional_id: str, producer: ProducerIdAndEpoch, offsets: Mapping[tuple[str, TopicPartition], int]
    ) -> None:
        transaction = self._current(transactional_id, producer)
        transaction.offsets.update(offsets)

    def end(self, transactional_id: str, producer: ProducerIdAndEpoch, committed: bool) -> ProducerIdAndEpoch:
        """Decide. Repeating the last decision gives the same answer (T7)."""
        transaction = self.transactions[transactional_id]
        if producer == transaction.previous and not transaction.ongoing and transaction.last_committed is not None:
            if transaction.last_committed is not committed:
                raise error_for(ErrorCode.INVALID_TXN_STATE, "the transaction was decided otherwise")
            return transaction.producer
        transaction = self._current(transactional_id, producer)
        if committed and not transaction.ongoing:
            raise error_for(ErrorCode.INVALID_TXN_STATE, "there is no transaction to commit")
        self._finish(transaction, committed=committed)
        return transaction.producer

    def time_out(self, transactional_id: str) -> None:
        """Abort as the coordinator does when transaction_timeout_ms has passed (T9)."""
        self._finish(self.transactions[transactional_id], committed=False)

    def _current(self, transactional_id: str, producer: ProducerIdAndEpoch) -> ModelTransaction:
        transaction = self.transactions.get(transactional_id)
        if transaction is None:
            raise error_for(ErrorCode.INVALID_PRODUCER_ID_MAPPING, f"no transactional id {transactional_id}")
        if producer != transaction.producer:
            raise error_for(ErrorCode.PRODUCER_FENCED, f"{producer} is fenced by {transaction.producer}")
        return transaction

    def _finish(self, transaction: ModelTransaction, *, committed: bool) -> None:
        self._bump(transaction)
        for tp in transaction.partitions:
            self.partitions[tp].mark(transaction.producer, committed)
        if committed:
            self.offsets.update(transaction.offsets)
        transaction.partitions.clear()
        transaction.offsets.clear()
        transaction.last_committed = committed

    def _bump(self, transaction: ModelTransaction) -> None:
        old = transaction.producer
        assert old.producer_epoch < MAX_PRODUCER_EPOCH
        transaction.previous = old
        transaction.producer = ProducerIdAndEpoch(old.producer_id, old.producer_epoch + 1)
