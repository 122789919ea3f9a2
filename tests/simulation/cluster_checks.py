"""What must hold of replicas after every step of a world with several nodes, whatever happens in it.

What any high watermark has ever covered is kept outside of the nodes, batch by batch. No replica has anything else
there below its own high watermark (R3, D3), and those who may lead lack nothing of it: the leader and the others in
sync, and who is eligible (R1, R4, R5). Nobody is in sync by what an earlier start of its node has fetched (R5), one
node leads in an epoch (R4), and followers hear nothing of an epoch that is not on its leader's disk (R7).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from semel.broker.logs.leader_state import NOT_HEARD
from semel.broker.logs.partition import Partition
from semel.broker.metadata.changes import PartitionChanged, PartitionState
from semel.broker.metadata.image import EMPTY_IMAGE, MetadataImage
from semel.protocol.ids import TopicId, TopicPartition
from simulation.checks import CommittedLog, Markers, batches_of
from simulation.kept_keys import KeptKeys
from simulation.ledger import Begins, Ledger

if TYPE_CHECKING:
    from semel.broker.node import Node
    from simulation.world import SimulatedNode, World

Place = tuple[TopicId, int]

_ON_DISK: Final = "disk"


@dataclass(slots=True)
class _Seen:
    """What was seen of one replica. run, log, epoch: since when; compared: up to where its log was compared with what
    was committed; noted: the last epoch that its disk was seen to have.
    """

    run: object
    log: object
    epoch: int
    compared: int = 0
    high_watermark: int = 0
    start: int = 0
    place: tuple[int, int] = (-1, -1)
    """Its high watermark and last stable offset when these were looked at last."""
    last: tuple[int, ...] = ()
    """All that comparing its log depends on, as it was when that was done last."""
    noted: int = -1


@dataclass(slots=True)
class _Replicated:
    """One partition, of all nodes."""

    tp: TopicPartition
    committed: CommittedLog = field(default_factory=CommittedLog)
    seen: dict[int, _Seen] = field(default_factory=dict)
    rolled: int = 0
    """Where an active segment has begun, at most: below, compaction may have written batches again, on any node."""
    leaders: dict[int, str] = field(default_factory=dict)
    """The process that led in each epoch."""
    replicas: tuple[int, ...] = ()
    left: Counter[int] = field(default_factory=Counter)
    """How often it was moved away from each node: one that gets it again begins with nothing."""


class ReplicaWatch:
    """Follows the logs of all nodes. `look` after every step."""

    def __init__(self, world: World, nodes: dict[int, SimulatedNode], ledger: Ledger) -> None:
        self._world = world
        self._nodes = nodes
        self._ledger = ledger
        self._partitions: dict[Place, _Replicated] = {}
        self._markers: Markers = {}
        self.image: MetadataImage = EMPTY_IMAGE
        """What the database says now."""
        self._logs: dict[int, list[Partition]] = {}
        self._laid_out: list[tuple[_Replicated, PartitionState, dict[int, Partition]]] = []
        """All partitions with their replicas, as of `_logs` and of the image that it was made of."""
        self._laid_out_of: MetadataImage = EMPTY_IMAGE

    @property
    def batches(self) -> int:
        return sum(len(known.committed.batches) for known in self._partitions.values())

    def running(self) -> dict[int, Node]:
        """Return the nodes that can be looked at, by their ids."""
        return {
            node_id: one.node
            for node_id, one in self._nodes.items()
            if one.node is not None
            and one.process is not None
            and not one.process.is_dead
            and not one.storage.crashed
            and one.node.is_serving
        }

    def replicas(self) -> Iterator[tuple[_Replicated, PartitionState, dict[int, Partition]]]:
        """Go through the partitions of all topics, each with its replicas that can be looked at."""
        logs = {node_id: node.logs.partitions() for node_id, node in self.running().items()}
        if logs != self._logs or self.image is not self._laid_out_of:
            self._logs, self._laid_out_of = logs, self.image
            self._laid_out = list(self._lay_out())
        for known, state, here in self._laid_out:
            if any(map(_is_not_here, here.values())):
                here = {node_id: one for node_id, one in here.items() if not _is_not_here(one)}
            yield known, state, here

    def _lay_out(self) -> Iterator[tuple[_Replicated, PartitionState, dict[int, Partition]]]:
        by_place = {
            node_id: {(one.topic_id, one.tp.partition): one for one in partitions}
            for node_id, partitions in self._logs.items()
        }
        for topic in self.image.topics.values():
            for number, state in enumerate(topic.partitions):
                place = topic.topic_id, number
                known = self._partitions.get(place)
                if known is None:
                    known = _Replicated(TopicPartition(topic.name, number), replicas=state.replicas)
                    self._partitions[place] = known
                yield known, state, {node_id: logs[place] for node_id, logs in by_place.items() if place in logs}

    def look(self) -> None:
        self._read_database()
        for known, state, here in self.replicas():
            if any(one.high_watermark > known.committed.end for one in here.values()):
                self._follow(known, here)
            for node_id, one in here.items():
                self._look_at(known, state, node_id, one, here)

    def _follow(self, known: _Replicated, here: dict[int, Partition]) -> None:
        # A leader's high watermark comes first: what it covers is what the others must have.
        for one in sorted(here.values(), key=lambda one: (one.leader is None, -one.high_watermark)):
            if one.high_watermark > known.committed.end:
                if known.committed.end == 0 and one.config.is_compacted:
                    known.committed.keys = KeptKeys()
                for rule, detail in known.committed.follow(one, self._markers, self._ledger.several_an_epoch):
                    self._wrong(rule, known, 0, detail)

    def look_closely(self) -> None:
        """Compare all that is committed with all logs once more."""
        for known, _, _ in self.replicas():
            for seen in known.seen.values():
                seen.compared, seen.last = 0, ()
        self.look()
        for known, state, here in self.replicas():
            for node_id, one in here.items():
                if known.committed.keys is not None and self._must_be_complete(state, node_id, one):
                    self._compare_keys(known, known.committed.keys, node_id, one)

    def _compare_keys(self, known: _Replicated, keys: KeptKeys, node_id: int, one: Partition) -> None:
        """Each replica cleans its log for itself, and keeps the last record of each key (D4)."""
        now = KeptKeys()
        for header, data in batches_of(one, one.log_start_offset, known.committed.end):
            now.take(header, data)
        for difference in keys.missing_in(now):
            self._wrong("D4", known, node_id, difference)

    def _read_database(self) -> None:
        database = self._world.database
        if database.last_change() != self.image.sequence:
            changes = database.store_of_the_judge().changes_after(self.image.position)
            for _, change in changes:
                if isinstance(change, PartitionChanged):
                    known = self._partitions.get((change.topic_id, change.partition))
                    if known is not None:
                        known.left.update(set(known.replicas).difference(change.state.replicas))
                        known.replicas = change.state.replicas
            self.image = self.image.apply_all(changes)

    def _look_at(
        self, known: _Replicated, state: PartitionState, node_id: int, one: Partition, here: Mapping[int, Partition]
    ) -> None:
        node = self._nodes[node_id]
        seen = known.seen.get(node_id)
        is_complete = self._must_be_complete(state, node_id, one)
        if seen is None or seen.run is not node.process:
            seen = known.seen[node_id] = _Seen(node.process, one, one.leader_epoch)
        elif seen.log is not one and (not is_complete or known.left[node_id] > 0):
            # It was moved away, and back; or it is out of sync, and begins again: what it needs next was deleted.
            seen = known.seen[node_id] = _Seen(node.process, one, one.leader_epoch)
            known.left[node_id] = max(known.left[node_id] - 1, 0)
        seen.log = one
        known.rolled = max(known.rolled, one.log.segments.active.base_offset)
        now = (
            is_complete,
            one.high_watermark,
            one.log_end_offset,
            one.last_stable_offset,
            one.durable_end,
            one.leader_epoch,
            one.log_start_offset,
            known.committed.end,
        )
        if now != seen.last:
            seen.last = now
            self._compare(known, state, node_id, one, is_complete=is_complete)
        if one.leader is not None and not one.leader.is_alone:  # what followers have said is not in what was compared
            self._look_at_leader(known, state, node_id, one, here)

    def _compare(
        self, known: _Replicated, state: PartitionState, node_id: int, one: Partition, *, is_complete: bool
    ) -> None:
        seen = known.seen[node_id]
        if seen.epoch != one.leader_epoch:
            seen.epoch, seen.compared = one.leader_epoch, 0
        if one.high_watermark < seen.high_watermark:
            self._wrong(
                "R1", known, node_id, f"the high watermark {seen.high_watermark} went back to {one.high_watermark}"
            )
        seen.high_watermark = one.high_watermark
        if one.log_start_offset != seen.start:
            self._look_at_start(known, node_id, one)
        committed = known.committed
        place = one.high_watermark, one.last_stable_offset
        if place != seen.place:
            seen.place = place
            offset = _first_undecided(one, committed.undecided(one.high_watermark))
            if offset is not None:
                detail = f"it is stable to {one.last_stable_offset} of {one.high_watermark}, and {offset} is undecided"
                self._wrong("L1", known, node_id, detail)
        if is_complete and one.durable_end < committed.end:
            self._wrong(
                "R4" if state.leader == node_id else "R5",
                known,
                node_id,
                f"it counts to {one.durable_end} (of {one.log_end_offset}), and {committed.end} is committed; {state}",
            )
        end = committed.end if is_complete else min(one.high_watermark, committed.end)
        if one.log_end_offset < seen.compared:
            self._wrong("R3", known, node_id, f"cut to {one.log_end_offset}, and {seen.compared} was committed in it")
        elif end > seen.compared:
            rolled = known.rolled if one.config.is_compacted else 0
            for base, difference in committed.missing_in(one, seen.compared, end):
                if base >= rolled:  # below, compaction may have written it again
                    self._wrong("R3", known, node_id, f"{difference} here; {state}")
            seen.compared = end

    def _look_at_start(self, known: _Replicated, node_id: int, one: Partition) -> None:
        """Heads go where somebody deleted them, and stay away. What retention took is not looked at here."""
        seen, start, allowed = known.seen[node_id], one.log_start_offset, self._ledger.begins.get(known.tp, Begins())
        if start < seen.start:
            self._wrong("D3", known, node_id, f"its start went back from {seen.start} to {start}")
        if start > allowed.latest and not allowed.has_retention:
            self._wrong(
                "D6", known, node_id, f"it begins at {start}, and nobody deleted what is after {allowed.latest}"
            )
        seen.start = start

    def _must_be_complete(self, state: PartitionState, node_id: int, one: Partition) -> bool:
        """Say whether a node's log must have all that is committed: it is in sync, or eligible.

        Where power may take what is not on the disk, that holds of the run that has registered. What any node leads
        that is diskless is what it reads when it hears of that; what it had before is not looked at any more.
        """
        if node_id not in state.isr and node_id not in state.elr:
            return False
        topic = self.image.topic_by_id(one.topic_id)
        is_diskless = topic is not None and topic.has_diskless(state)
        if is_diskless and not (one.config.diskless_enable and one.leader_epoch == state.leader_epoch):
            return False
        node, broker = self._nodes[node_id].node, self.image.brokers.get(node_id)
        if node is None or broker is None:
            return False
        return node.config.durability == _ON_DISK or broker.epoch == node.metadata.broker_epoch

    def _look_at_leader(
        self, known: _Replicated, state: PartitionState, node_id: int, one: Partition, here: Mapping[int, Partition]
    ) -> None:
        leader, node = one.leader, self._nodes[node_id]
        assert leader is not None
        assert node.process is not None
        process = known.leaders.setdefault(leader.leader_epoch, node.process.name)
        if process != node.process.name and not leader.is_alone:  # the only replica leads on after a restart
            self._wrong("R4", known, node_id, f"it leads epoch {leader.leader_epoch} that {process} has led")
        is_current = (leader.leader_epoch, leader.partition_epoch) == (state.leader_epoch, state.partition_epoch)
        heard = [(other, follower) for other in state.replicas if (follower := leader.follower(other)) is not None]
        if is_current and state.leader != node_id:
            self._wrong("R4", known, node_id, f"it leads, and the metadata says {state}")
        allowed = self._ledger.begins.get(known.tp)
        if is_current and allowed is not None and one.log_start_offset < allowed.answered:
            answered = allowed.answered
            self._wrong("D1", known, node_id, f"it begins at {one.log_start_offset}, and was answered as {answered}")
        for other, follower in heard if is_current else ():
            broker = self.image.brokers[other]
            if other in state.isr and follower.broker_epoch not in (NOT_HEARD, broker.epoch):
                self._wrong(
                    "R5",
                    known,
                    node_id,
                    f"node {other} is in sync by fetches of epoch {follower.broker_epoch}, and has {broker.epoch}",
                )
        # Who has nothing asks for no epoch's end. A follower tells of the start on its disk, which is noted late: where
        # it has really begun was seen while it ran.
        starts = {other: seen.start for other, seen in known.seen.items()}
        starts |= {other: follower.log_start_offset for other, follower in here.items()}
        was_heard = any(
            follower.broker_epoch != NOT_HEARD
            and follower.end_offset > max(follower.log_start_offset, starts.get(other, 0))
            for other, follower in heard
        )
        if was_heard and leader.begin_offset > 0:  # before the first epoch is nothing to tell of
            self._look_at_note(known, node_id, leader.leader_epoch)

    def _look_at_note(self, known: _Replicated, node_id: int, epoch: int) -> None:
        """An epoch of which followers have heard where the last one ended is on the disk."""
        seen = known.seen[node_id]
        if seen.noted >= epoch:
            return
        seen.noted = epoch
        content = self._nodes[node_id].storage.durable_bytes(f"/data/{known.tp}/leader-epoch-checkpoint")
        entries = [line.split() for line in (content or b"").decode().splitlines()[2:]]
        if not any(int(noted) == epoch for noted, _ in entries):
            self._wrong("R7", known, node_id, f"followers know of epoch {epoch}, and the disk has {entries}")

    # --- The end ------------------------------------------------------------------------------------------------------

    def is_settled(self) -> bool:
        """Say whether all replicas of all partitions are in sync and have the same."""
        return not self.what_is_unsettled()

    def what_is_unsettled(self) -> str:
        """Return what keeps the replicas from being settled, "" where nothing does."""
        self._read_database()
        if len(self.running()) < len(self._nodes):
            return f"only the nodes {list(self.running())} are up"
        for known, state, here in self.replicas():
            ends = {node_id: (one.high_watermark, one.log_end_offset) for node_id, one in here.items()}
            is_equal = (
                not state.is_moving
                and set(ends) == set(state.replicas)
                and len({end for pair in ends.values() for end in pair}) == 1
            )
            if not is_equal or set(state.isr) != set(state.replicas):
                return f"{known.tp}: {state}, with the high watermarks and ends {ends}"
        return ""

    def at_end(self) -> None:
        """Compare all replicas, once nothing moves."""
        self.look_closely()
        for known, _, here in self.replicas():
            for node_id, one in here.items():
                if one.log_end_offset != known.committed.end:
                    self._wrong("R3", known, node_id, f"it ends at {one.log_end_offset}, not {known.committed.end}")

    def _wrong(self, rule: str, known: _Replicated, node_id: int, detail: str) -> None:
        where = f"{self._nodes[node_id].name} " if node_id else ""
        self._ledger.wrong(rule, f"{where}{known.tp}: {detail}")


def _is_not_here(partition: Partition) -> bool:
    """Whether a log is offline, or of a diskless topic and not read yet."""
    is_to_be_read = partition.config.diskless_enable and partition.refused is not None
    return partition.offline_error is not None or is_to_be_read


def _first_undecided(partition: Partition, undecided: Mapping[int, int]) -> int | None:
    """Return the first offset that a read_committed reader is given of transactions that begin there, or None.

    Heads are deleted, and cleaning empties batches whose transaction is aborted: a replica that takes such a batch over
    has nothing to hold back, though the marker has not come yet.
    """
    first = min(undecided.values(), default=partition.last_stable_offset)
    for header, _ in batches_of(partition, max(first, partition.log_start_offset), partition.last_stable_offset):
        begin = undecided.get(header.producer_id) if header.is_transactional and not header.is_control else None
        if begin is not None and header.base_offset >= begin and header.record_count > 0:
            return header.base_offset
    return None
