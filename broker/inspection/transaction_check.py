"""The coordinators' logs, read as a start reads them, and the open transactions of all logs held against them (T1, T8).

It reads the logs after the dry run of a start: what the journal gives back belongs to them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from semel.broker.inspection.findings import Check, Findings, Severity
from semel.broker.inspection.internal_topics import decode_internal
from semel.broker.log.partition_log import PartitionLog
from semel.broker.metadata.image import MetadataImage
from semel.protocol.batch_header import BatchHeader, iter_batches
from semel.protocol.corruption import CorruptDataError
from semel.protocol.errors import SemelError
from semel.protocol.ids import NO_PRODUCER_ID, OFFSETS_TOPIC, TRANSACTIONS_TOPIC, ProducerIdAndEpoch, TopicPartition
from semel.protocol.record_decoder import Record, decode_records
from semel.txn_coordinator.outcome import Outcome, outcome_of
from semel.txn_coordinator.schemas import decode_key, decode_value
from semel.txn_coordinator.state import (
    OPEN,
    PREPARED,
    TransactionMetadata,
    is_legal,
    may_be_removed,
)

_READ_BYTES = 1 << 20


@dataclass(slots=True)
class CoordinatorView:
    """What `__transaction_state` says: each transactional id's last state."""

    transactions: dict[str, TransactionMetadata] = field(default_factory=dict)
    unreadable: list[TopicPartition] = field(default_factory=list)
    """Partitions of which not all could be read: what they say of a transaction is not known."""
    holders: frozenset[int] = frozenset()
    """The producer ids that have a transaction open on a partition."""
    has_all: bool = True
    """Whether no partition of it is on other nodes alone."""
    records: list[TransactionMetadata] = field(default_factory=list)
    """All that the logs say of these, each log in its order."""


def read_log(log: PartitionLog) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Yield all batches. Raises `SemelError` where a part can't be read."""
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        found = log.read(offset, _READ_BYTES, log.log_end_offset)
        if found.records is None:
            return
        data = memoryview(found.read())
        for header in iter_batches(data):
            yield header, data[header.position : header.position + header.size_bytes]
        if found.next_offset <= offset:
            raise CorruptDataError(f"{log.tp} can't be read on from offset {offset}")
        offset = found.next_offset


def check_transactions(
    logs: Mapping[TopicPartition, PartitionLog], findings: Findings, image: MetadataImage | None
) -> CoordinatorView:
    """Read the coordinators' topics, and look for transactions that nobody will end.

    A diskless partition is only a copy here, of what its leader knew when this node was that: those say nothing here.

    image: None where the metadata could not be read
    """
    copies = _copies(image)
    all_logs, logs = logs, {tp: log for tp, log in logs.items() if tp not in copies}
    holders = {holder for log in logs.values() for holder in log.producer_state.open_transactions.values()}
    view = CoordinatorView(holders=frozenset(holders), has_all=_has_all_coordinators(image, logs))
    for tp, log in sorted(all_logs.items()):
        if tp.topic == TRANSACTIONS_TOPIC:
            _TransactionLog(log, view if tp in logs else CoordinatorView(), findings).read()
        elif tp.topic == OFFSETS_TOPIC:
            _check_readable(log, findings, Check.GROUP_OFFSETS, "groups")
    if image is not None or any(tp.topic == TRANSACTIONS_TOPIC for tp in logs):
        _find_hanging(logs, view, findings)
    elif any(log.producer_state.open_transactions for log in logs.values()):
        findings.add(
            Severity.NOTE, Check.TRANSACTIONS, TRANSACTIONS_TOPIC,
            "transactions are open, and no log of the transaction coordinator is here to say whose they are",
        )  # fmt: skip
    return view


def _copies(image: MetadataImage | None) -> frozenset[TopicPartition]:
    return frozenset(
        TopicPartition(topic.name, number)
        for topic in (() if image is None else image.topics.values())
        for number, state in enumerate(topic.partitions)
        if topic.has_diskless(state)
    )


def _has_all_coordinators(image: MetadataImage | None, logs: Mapping[TopicPartition, PartitionLog]) -> bool:
    here = {tp.partition for tp in logs if tp.topic == TRANSACTIONS_TOPIC}
    if image is None:
        return False  # how many there are is not known
    topic = image.topic(TRANSACTIONS_TOPIC)
    return topic is None or here.issuperset(range(len(topic.partitions)))


def _check_readable(log: PartitionLog, findings: Findings, check: Check, whose: str) -> bool:
    """Say whether all records of a coordinator's log can be read."""
    record: Record | None = None
    try:
        for header, batch in read_log(log):
            if header.is_control or not header.record_count:
                continue
            for record in decode_records(batch):
                decode_internal(log.tp.topic, record.key, record.value)
            record = None
        return True
    except (SemelError, ValueError) as error:
        offset = -1 if record is None else record.offset
        place = "" if record is None else f" at offset {offset}"
        findings.add(
            Severity.ERROR, check, str(log.tp), f"a record{place} can't be read: {error}",
            on_start=f"starts without the {whose} of this partition: their clients get COORDINATOR_NOT_AVAILABLE",
            command="restore the directory from a backup", offset=offset,
        )  # fmt: skip
        return False


class _TransactionLog:
    """One partition of `__transaction_state`, replayed."""

    def __init__(self, log: PartitionLog, view: CoordinatorView, findings: Findings) -> None:
        self._log = log
        self._view = view
        self._findings = findings
        self._known: dict[str, TransactionMetadata] = {}

    def read(self) -> None:
        if not _check_readable(self._log, self._findings, Check.COORDINATOR, "transactional ids"):
            self._view.unreadable.append(self._log.tp)
        try:
            for header, batch in read_log(self._log):
                if not header.is_control and header.record_count:
                    for record in decode_records(batch):
                        self._take(record)
        except (SemelError, ValueError):
            pass  # said above; what was read up to there counts
        self._view.transactions |= self._known

    def _take(self, record: Record) -> None:
        name = None if record.key is None else decode_key(record.key)
        if name is None:
            return
        before = self._known.get(name)
        if record.value is None:
            if before is not None and not may_be_removed(before):
                self._illegal(record, name, f"is removed in the state {before.state.label}")
            self._known.pop(name, None)
            return
        after = decode_value(name, record.value)
        if not self._view.holders.isdisjoint((after.producer_id, after.previous_producer_id)):
            self._view.records.append(after)
        if before is not None:
            # Compaction takes older records of an id first, so two that follow each other here always did (D4).
            if not is_legal(before.state, after.state, max(before.version, after.version)):
                self._illegal(record, name, f"goes from {before.state.label} to {after.state.label}")
            if after.producer_id == before.producer_id and after.producer_epoch < before.producer_epoch:
                self._illegal(record, name, f"goes back from epoch {before.producer_epoch} to {after.producer_epoch}")
        self._known[name] = after

    def _illegal(self, record: Record, name: str, what: str) -> None:
        self._findings.add(
            Severity.ERROR, Check.COORDINATOR, str(self._log.tp), f"the transactional id {name!r} {what} (T1)",
            on_start="takes the last record as it is",
            command=f"semel log dump {self._log.folder} --records --from {record.offset}; then report a bug",
            offset=record.offset,
        )  # fmt: skip


def _find_hanging(logs: Mapping[TopicPartition, PartitionLog], view: CoordinatorView, findings: Findings) -> None:
    """A partition's transaction that its coordinator does not know holds the last stable offset for ever (T8)."""
    owners: dict[int, list[TransactionMetadata]] = {}
    for txn in view.transactions.values():
        for producer_id in {txn.producer_id, txn.previous_producer_id, txn.next_producer_id} - {NO_PRODUCER_ID}:
            owners.setdefault(producer_id, []).append(txn)
        if txn.state in PREPARED:
            findings.add(
                Severity.NOTE, Check.TRANSACTIONS, TRANSACTIONS_TOPIC,
                f"the transaction of {txn.transactional_id!r} is decided ({txn.state.label}), and not all of its "
                f"{len(txn.partitions)} partitions have their marker",
                on_start="writes the markers (T4)",
            )  # fmt: skip
    for tp, log in sorted(logs.items()):
        for first_offset, producer_id in log.producer_state.open_transactions.items():
            mine = owners.get(producer_id, [])
            if any(txn.state in OPEN and tp in txn.partitions for txn in mine):
                continue
            if not mine and view.unreadable:
                known = "whose it is can't be told, because a coordinator's partition can't be read"
            elif mine:
                known = (
                    f"its coordinator has {mine[0].transactional_id!r} in the state {mine[0].state.label}, without it"
                )
            else:
                known = "no coordinator knows this producer id"
            entry = log.producer_state.entry(producer_id)
            epoch = -1 if entry is None else entry.epoch
            ended = outcome_of(view.records, ProducerIdAndEpoch(producer_id, epoch), tp)
            if ended.outcome is Outcome.NOT_TOLD:
                known = (
                    f"it is of {ended.transactional_id!r}: how it was decided, its coordinator's log does not tell any "
                    "more; its markers in other partitions do"
                )
            elif ended.outcome is not Outcome.NOT_KNOWN:
                known = (
                    f"the {ended.outcome.value} of {ended.transactional_id!r} is decided: its marker is missing here"
                )
            elif not mine and not view.has_all and not view.unreadable:
                findings.add(
                    Severity.NOTE, Check.TRANSACTIONS, str(tp),
                    f"producer {producer_id} (epoch {epoch}) has a transaction open since offset {first_offset}; "
                    "whether it hangs can't be told: the coordinators' topic may have partitions that are not here",
                    offset=first_offset,
                )  # fmt: skip
                continue
            findings.add(
                Severity.WARNING if not mine and view.unreadable else Severity.ERROR, Check.TRANSACTIONS, str(tp),
                f"a hanging transaction: producer {producer_id} (epoch {epoch}) has one open since offset "
                f"{first_offset}, and {known}. read_committed readers wait there for ever",
                on_start="leaves it",
                command=f"start the node, then: semel txn finish --partition {tp.topic}:{tp.partition} "
                f"--start-offset {first_offset}",
                offset=first_offset,
            )  # fmt: skip
