"""What must hold after every step of a world, whatever happens in it.

The logs are followed batch by batch as the high watermark moves, and kept outside of the nodes: what was once below it
stays, byte for byte, after any crash (D1, D3), offsets are never used again, sequences of a producer have no
gap and no repetition (P1 to P3), the last stable offset is before every open transaction (L1), all markers of one
transaction say the same (T3, T4), and what the journal counts as durable is on the disk (D1).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING

from semel.broker.log.journal_format import ANY_MARK, FILE_HEADER_BYTES, read_entries, read_file_header
from semel.broker.logs.partition import Partition
from semel.broker.tiers.partition_tier import PartitionTier
from semel.protocol.batch_header import BatchHeader, iter_batches
from semel.protocol.control_records import decode_control
from semel.protocol.ids import TopicId, TopicPartition
from semel.protocol.record_decoder import decode_records
from simulation.kept_keys import KeptKeys
from simulation.ledger import Begins, Ledger
from simulation.objects import NodesObjects

if TYPE_CHECKING:
    from semel.broker.node import Node
    from simulation.world import SimulatedNode

_SEQUENCES = 2**31


Markers = dict[tuple[int, int], tuple[str, str]]
"""The first marker of each producer id and epoch, in all logs of a world, and where it is."""
Finding = tuple[str, str]
"""A rule, and how it was broken."""


@dataclass(slots=True)
class CommittedLog:
    """One partition's log as far as it was ever committed, in whatever log it was seen first."""

    end: int = 0
    batches: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    """Checksum, next offset and leader epoch of each batch, by its base offset."""
    sequences: dict[tuple[int, int], int] = field(default_factory=dict)
    """The next sequence of each producer and epoch."""
    epochs: dict[int, int] = field(default_factory=dict)
    open: dict[int, int] = field(default_factory=dict)
    """Where the open transaction of each producer id begins."""
    decided: list[tuple[int, int, int]] = field(default_factory=list)
    """Where each transaction that has ended begins, where its marker is, and whose it is, in the order of the markers.
    """
    keys: KeptKeys | None = None
    """What it says of each key, where it is compacted."""
    newest_ms: dict[int, int] = field(default_factory=dict)
    """The newest timestamp of each batch, by its base offset."""

    def follow(
        self,
        partition: Partition,
        markers: Markers,
        several_an_epoch: Collection[int],
        restarts: Collection[tuple[TopicPartition, int]] = (),
    ) -> Iterator[Finding]:
        """Take in what is committed in a log beyond what was seen, and yield what is wrong with it.

        several_an_epoch: producer ids of which one epoch has several transactions
        restarts:         where a producer may start again, as it was idle for so long that it is forgotten (P8)
        """
        begin = max(self.end, partition.log_start_offset)
        if begin > self.end:  # its head was deleted before it was looked at, and may have ended transactions
            self.sequences.clear()
            self.epochs.clear()  # the first batch of an epoch may be gone
            self.open.clear()
        for header, data in batches_of(partition, begin, partition.high_watermark):
            if header.base_offset < self.end:
                yield "D3", f"offset {header.base_offset} is used again, below {self.end}"
                continue
            self.batches[header.base_offset] = print_of(header)
            self.newest_ms[header.base_offset] = header.max_timestamp_ms
            self.end = header.next_offset
            if self.keys is not None:
                self.keys.take(header, data)
            if header.producer_id < 0:
                continue
            place = f"{partition.tp}@{header.base_offset}"
            producer = (header.producer_id, header.producer_epoch)
            if (partition.tp, header.base_offset) in restarts:
                self.epochs.pop(header.producer_id, None)
                self.sequences.pop(producer, None)
            last_epoch = self.epochs.get(header.producer_id, -1)
            if header.producer_epoch < last_epoch:
                yield "P4", f"{place}: epoch {header.producer_epoch} after {last_epoch}"
            self.epochs[header.producer_id] = max(last_epoch, header.producer_epoch)
            if header.is_control:
                kind = decode_control(decode_records(data, header.position)[0]).type.name
                begun = self.open.pop(header.producer_id, None)
                if begun is not None:
                    self.decided.append((begun, header.base_offset, header.producer_id))
                if header.producer_id in several_an_epoch:
                    continue  # whether such a transaction is torn is seen by its values alone
                before = markers.setdefault(producer, (kind, place))
                if before[0] != kind:
                    yield "T4", f"{place}: {kind} of {producer}, and {before[0]} at {before[1]}"
                continue
            if header.is_transactional:
                self.open.setdefault(header.producer_id, header.base_offset)
            if header.base_sequence < 0:
                continue  # offsets of a transaction, which the coordinator has written
            if -1 < last_epoch < header.producer_epoch and header.base_sequence != 0:
                yield (
                    "P10",
                    f"{place}: {producer} begins with sequence {header.base_sequence}, after epoch {last_epoch}",
                )
            expected = self.sequences.get(producer)
            if expected is not None and header.base_sequence != expected:
                yield "P2", f"{place}: sequence {header.base_sequence} of {producer}, not {expected}"
            self.sequences[producer] = (header.last_sequence + 1) % _SEQUENCES
        self.end = max(self.end, begin)  # all of it may be deleted

    def undecided(self, high_watermark: int) -> dict[int, int]:
        """Return where, by producer id, the transactions begin whose markers are not below a high watermark."""
        found = dict(self.open)
        for begin, marker, producer_id in reversed(self.decided):
            if marker < high_watermark:
                break
            found[producer_id] = begin
        return {producer_id: begin for producer_id, begin in found.items() if begin < high_watermark}

    def missing_in(self, partition: Partition, begin: int, end: int) -> Iterator[tuple[int, str]]:
        """Yield the committed batches from `begin` to `end` that a log does not have as they were, with what it has."""
        begin = max(begin, partition.log_start_offset)
        found = {header.base_offset: print_of(header) for header, _ in batches_of(partition, begin, end)}
        for base, batch in self.batches.items():
            if begin <= base < end and found.get(base) != batch:
                yield base, f"the batch at {base} was {batch}, and is {found.get(base)}"


@dataclass(slots=True)
class _Followed(CommittedLog):
    """The log of the only replica."""

    rolled: int = 0
    """Where the active segment begins: below it, compaction may have written batches of a compacted log again."""
    generation: object = None
    """The process whose log was compared last."""
    stable: int = 0
    """The last stable offset that was seen last."""
    start: int = 0
    """Where the log began when it was seen last."""
    topic_id: TopicId | None = None


def _followed(partition: Partition) -> _Followed:
    return _Followed(
        keys=KeptKeys() if partition.config.is_compacted else None,
        topic_id=partition.topic_id,
    )


class LogWatch:
    """Follows the logs of one node. `look` after every step."""

    def __init__(self, node: SimulatedNode, ledger: Ledger) -> None:
        self._node = node
        self._ledger = ledger
        self._followed: dict[TopicPartition, _Followed] = {}
        self._markers: Markers = {}
        self._process: object = None
        """The process that was looked at last."""
        self._most_off_ms = node.clock.off_ms
        """How far ahead the node's clock has been, at most."""

    @property
    def batches(self) -> int:
        return sum(len(known.batches) for known in self._followed.values())

    def look(self) -> None:
        node, process = self._node.node, self._node.process
        if node is None or process is None or process.is_dead or self._node.storage.crashed:
            return
        if not node.is_serving:
            if self._process is process and node._logs is not None:
                self._note_rolled(node)
            return
        self._most_off_ms = max(self._most_off_ms, self._node.clock.off_ms)
        self._look_at_journal(node)
        if self._process is not process:
            self._process = process
            self._look_for_strays(node)
        for partition in node.logs.partitions():
            self._look_at(partition, process)

    def _note_rolled(self, node: Node) -> None:
        """A node that stops still cleans its logs, and nobody looks at them any more."""
        for partition in node.logs.partitions():
            known = self._followed.get(partition.tp)
            if known is not None and known.topic_id == partition.topic_id:
                known.rolled = partition.log.segments.active.base_offset

    def _look_for_strays(self, node: Node) -> None:
        """What nobody has deleted is there after each start, though aside where the metadata has lost its topic."""
        names = self._node.storage.list_folder(node.data_dir)
        topics = {name: topic.topic_id for name, topic in node.metadata.image.topics.items()}
        for tp, known in self._followed.items():
            if not known.end or topics.get(tp.topic) == known.topic_id or tp.topic in self._ledger.deleted:
                continue
            if not any(name.startswith(f"{tp}.") and name.endswith("-stray") for name in names):
                self._ledger.wrong("D6", f"{tp} with {known.end} records is neither in the metadata nor set aside")

    def _look_at_journal(self, node: Node) -> None:
        """What counts as durable is on the disk: on it rest answers, cuts, and what the next start calls damage."""
        journal = node.logs._journal
        if journal is None or journal.error is not None:
            return
        durable = journal.durable_position
        file = max((one for one in journal._files if one.base <= durable), key=attrgetter("base"), default=None)
        if file is None or file.base == durable:
            return
        # Not by its length: the file may have been longer in a former use.
        data = self._node.storage.durable_bytes(file.path) or b""
        head = read_file_header(data[:FILE_HEADER_BYTES])
        on_disk = file.base
        if head == (file.base, file.first_sequence):
            entries = data[FILE_HEADER_BYTES : FILE_HEADER_BYTES + durable - file.base]
            on_disk += read_entries(entries, file.first_sequence, file.base, ANY_MARK)[1]
        if on_disk < durable:
            self._ledger.wrong("D1", f"{file.path} counts as durable up to {durable}, and its disk holds {on_disk}")

    def _look_at(self, partition: Partition, process: object) -> None:
        known = self._followed.get(partition.tp)
        if known is None or known.topic_id != partition.topic_id:
            known = self._followed[partition.tp] = _followed(partition)
        high_watermark = partition.high_watermark
        is_started = known.generation is not process
        if is_started and partition.log_end_offset < known.end and self._may_be_empty(partition.tp.topic):
            known = self._followed[partition.tp] = _followed(partition)
        if is_started:
            known.generation = process
            self._compare(partition, known, "after a start")
            self._compare_keys(partition, known)
        # Also where nothing is new: what is below may be cleaned before the next look.
        known.rolled = partition.log.segments.active.base_offset
        # A mistake may move the last stable offset alone, while the high watermark stays.
        last_stable = partition.last_stable_offset
        start = partition.log_start_offset
        if high_watermark == known.end and last_stable == known.stable and start == known.start and not is_started:
            return
        if high_watermark < known.end:
            self._wrong("D3", partition, f"the high watermark went back from {known.end} to {high_watermark}")
            return
        if not partition.log_start_offset <= last_stable <= high_watermark <= partition.log_end_offset:
            self._wrong(
                "L1",
                partition,
                f"log start {partition.log_start_offset}, last stable offset {last_stable}, high watermark "
                f"{high_watermark}, log end {partition.log_end_offset}",
            )
        if high_watermark > known.end:
            ledger = self._ledger
            for rule, detail in known.follow(partition, self._markers, ledger.several_an_epoch, ledger.restarts):
                self._wrong(rule, partition, detail)
        if start < known.start == known.stable and is_started:
            known.stable = start  # what was open began before the start, which nobody was told of and which is gone
        if start != known.start or is_started:
            self._look_at_start(partition, known, is_started)
        first_open = max(min(known.open.values(), default=high_watermark), start)
        if last_stable > first_open:
            self._wrong(
                "L1", partition, f"the last stable offset {last_stable} is behind {first_open}, which is undecided"
            )
        if last_stable < known.stable:
            self._wrong("L1", partition, f"the last stable offset went back from {known.stable} to {last_stable}")
        known.stable = last_stable

    def _look_at_start(self, partition: Partition, known: _Followed, is_started: bool) -> None:
        """Nobody finds again what was answered as deleted, and nothing else goes with it."""
        start, allowed = partition.log_start_offset, self._ledger.begins.get(partition.tp, Begins())
        if start < allowed.answered:
            self._wrong("D1", partition, f"it begins at {start}, and was answered to begin at {allowed.answered}")
        if start < known.start and not is_started:
            self._wrong("D3", partition, f"its start went back from {known.start} to {start}")
        if start > allowed.latest and (unasked := self._not_of_retention(partition, known, allowed, is_started)):
            self._wrong("D6", partition, f"it begins at {start}, and nobody deleted {unasked}")
        known.start = start
        if not is_started:
            self._compare(partition, known, "after its head was deleted")

    def _not_of_retention(self, partition: Partition, known: _Followed, allowed: Begins, is_started: bool) -> str:
        """Return what was deleted that nobody asked for and that retention had to leave, or nothing."""
        start, by_bytes, by_ms = partition.log_start_offset, allowed.retention_bytes, allowed.retention_ms
        if not allowed.has_retention:
            return f"what is after {allowed.latest}"
        if is_started:
            return ""  # what retention saw may have ended with the process
        if by_bytes is not None:
            left = sum(header.size_bytes for header, _ in batches_of(partition, start, partition.log_end_offset))
            return f"so much that {left} bytes are left of {by_bytes}" if left < by_bytes else ""
        assert by_ms is not None
        least_ms = self._node.clock.now_ms() + self._most_off_ms - self._node.clock.off_ms - by_ms
        young = {
            base: stamp
            for base, stamp in known.newest_ms.items()
            if max(known.start, allowed.latest) <= base < start and stamp > least_ms
        }
        return f"{young}, which are newer than {least_ms}" if young else ""

    def _may_be_empty(self, topic: str) -> bool:
        return self._node.world.database.failed_over > 0 and topic in self._ledger.deleted

    def _compare(self, partition: Partition, known: _Followed, when: str) -> None:
        """Everything that was committed before, and not deleted, is there, as it was."""
        if partition.log_end_offset < known.end:
            self._wrong("D1", partition, f"committed up to {known.end}, and ends at {partition.log_end_offset}")
            return
        if partition.high_watermark < known.end:
            return  # `_look_at` says so
        for base, difference in known.missing_in(partition, 0, known.end):
            if not (base < known.rolled and partition.config.is_compacted):
                self._wrong("D6" if known.start else "D1", partition, f"{difference} {when}")

    def _compare_keys(self, partition: Partition, known: _Followed) -> None:
        """Whatever became of a cleaning when the node died, the last record of each key is there."""
        if known.keys is None or partition.high_watermark < known.end:
            return
        now = KeptKeys()
        for header, data in batches_of(partition, partition.log_start_offset, known.end):
            now.take(header, data)
        for difference in known.keys.missing_in(now):
            self._wrong("D4", partition, difference)

    def _wrong(self, rule: str, partition: Partition, detail: str) -> None:
        self._ledger.wrong(rule, f"{self._node.name} {partition.tp}: {detail}")


def print_of(header: BatchHeader) -> tuple[int, int, int]:
    """Return what tells a batch from any other at its offset."""
    return header.crc, header.next_offset, header.leader_epoch


def batches_of(partition: Partition, begin: int, end: int) -> Iterator[tuple[BatchHeader, bytes]]:
    """Yield the headers of a log's batches between two offsets, each with the bytes that it is in."""
    here = partition.log.local_start_offset
    if begin < min(here, end) and isinstance(partition.tier, PartitionTier):
        yield from _remote_batches(partition.tier, begin, min(here, end))
        begin = here
    while begin < end:
        found = partition.log.read(begin, 1 << 20, end, True)
        data = found.read()
        for header in iter_batches(data):
            yield header, data
        if found.next_offset <= begin:
            return
        begin = found.next_offset


def _remote_batches(tier: PartitionTier, begin: int, end: int) -> Iterator[tuple[BatchHeader, bytes]]:
    """Yield the same of what only the remote storage has."""
    store = tier._storage.store._store
    assert isinstance(store, NodesObjects)
    while begin < end:
        segment = tier.remote.find(begin)
        assert segment is not None, f"{tier.partition.tp}: no segment has offset {begin}"
        data = store.look(segment.key)[: segment.size_bytes]
        for header in iter_batches(data):
            if header.last_offset >= begin and header.base_offset < end:
                yield header, data
        begin = segment.end_offset
