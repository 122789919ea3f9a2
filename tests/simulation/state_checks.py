"""What a node holds in memory is what its logs and its database say: looked at now and then, and at the end.

Producers are a replay of their log (P7), the metadata is the fold of its changes, no group gives one partition to two
members (G2), committed offsets are a replay of `__consumer_offsets` (O1), tokens answer what was decided (T13), and
nothing stays open once everybody is done.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING

from history import Outcome

from semel.broker.log.producer_state import ProducerState
from semel.broker.log.replay import apply_batch
from semel.broker.logs.partition import Partition
from semel.broker.metadata.chain import START, MetadataWentBackError
from semel.broker.metadata.image import EMPTY_IMAGE, MetadataImage, encode_image
from semel.broker.metadata.store import MetadataConflictError
from semel.group_coordinator.records.schemas import OffsetCommitKey, decode_key, decode_offset_value
from semel.protocol.control_records import ControlType, decode_control
from semel.protocol.ids import INTERNAL_TOPICS, OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from semel.protocol.record_decoder import decode_records
from semel.txn_coordinator.commit_records import CommitKind
from simulation.checks import batches_of
from simulation.group_watch import owned_twice
from simulation.kept_producers import KeptProducers
from simulation.sdk_writers import Sharer, Writer

if TYPE_CHECKING:
    from semel.broker.node import Node
    from simulation.actors import Actor
    from simulation.ledger import Ledger
    from simulation.world import SimulatedNode, World

OffsetKey = tuple[str, str, int]


class StateChecks:
    """Compares what one node holds with what is stored."""

    def __init__(self, world: World, node: SimulatedNode, ledger: Ledger) -> None:
        self.producers = KeptProducers(world, node, ledger)
        self._world = world
        self._node = node
        self._ledger = ledger
        self.looks = 0
        self._folded = EMPTY_IMAGE
        self._failed_over = 0
        """How many fail-overs of the database it has seen."""
        self._noticed_at = 0.0
        """When a node that the last one took changes from has looked at the database at the latest."""

    def look(self) -> None:
        """Compare what must be equal at any time."""
        node, process = self._node.node, self._node.process
        if node is None or process is None or process.is_dead or self._node.storage.crashed or not node.is_serving:
            return
        self.looks += 1
        for partition in node.logs.partitions():
            if partition.tp.topic not in INTERNAL_TOPICS and partition.offline_error is None:
                self._producers(partition)
        for machine in node.groups.machines():
            for trouble in owned_twice(machine):
                self._wrong("G2", trouble)
        self._metadata(node)

    def is_settled(self) -> bool:
        """Say whether nothing is open any more: every log's readers may read all of it, no transaction is pending."""
        return not self.what_is_open()

    def what_is_open(self) -> str:
        """Return what keeps a node from being settled."""
        node = self._node.node
        if node is None:
            return "the node is down"
        if not node.is_serving:
            return "the node does not serve yet"
        logs = [
            f"{one.tp} is stable to {one.last_stable_offset} of {one.high_watermark} of {one.log_end_offset}"
            for one in node.logs.partitions()
            if not one.last_stable_offset == one.high_watermark == one.log_end_offset
        ]
        transactions = [
            f"{name} is {txn.state.label}"
            for machine in node.transactions.machines()
            for name, txn in machine.open_transactions.items()
        ]
        return ", ".join(logs + transactions + _not_coordinated(node))

    def at_end(self) -> None:
        """Compare what is equal once nothing moves."""
        self.look()
        node = self._node.node
        if node is None:
            return
        self._offsets(node)

    def _producers(self, partition: Partition) -> None:
        replayed = ProducerState(partition.tp)
        for header, data in batches_of(partition, partition.log_start_offset, partition.log_end_offset):
            view = memoryview(data)[header.position : header.position + header.size_bytes]
            apply_batch(replayed, header, view, 0)
        if replayed != partition.log.producer_state and (wrong := self.producers.difference(partition, replayed)):
            self._wrong("P7", wrong)

    def _metadata(self, node: Node) -> None:
        database = self._world.database
        now, lease_s = self._world.scheduler.now, node.config.controller_lease_ms / 1000
        if database.failed_over > self._failed_over:
            self._failed_over = database.failed_over
            self._noticed_at = now + lease_s
        if database.is_away and now < self._noticed_at:
            self._noticed_at = now + lease_s  # it has to be reached first
        if self._world.scheduler.now < self._noticed_at:
            return
        image = node.metadata.image
        folded = self._folded_to(image.sequence)
        if folded is not None and (folded.digest, encode_image(folded)) != (image.digest, encode_image(image)):
            self._wrong("R10", f"the changes make {encode_image(folded)}, and the node holds {encode_image(image)}")

    def _folded_to(self, sequence: int) -> MetadataImage | None:
        """Return the fold of the changes up to one; None where only a snapshot has some of them.

        It continues what was folded before: the database drops changes that its snapshots have.
        """
        store = self._world.database.store_of_the_judge()
        if self._folded.sequence > sequence:
            self._folded = EMPTY_IMAGE
        try:
            stored = store.changes_after(self._folded.position)
        except MetadataWentBackError:
            self._folded, stored = EMPTY_IMAGE, store.changes_after(START)
        except MetadataConflictError:
            self._folded = store.load()  # nodes that are further on are compared with what follows
            return None
        self._folded = self._folded.apply_all(
            [(place, change) for place, change in stored if place.sequence <= sequence]
        )
        return self._folded

    def _offsets(self, node: Node) -> None:
        held = {
            (group, topic, number): offset
            for machine in node.groups.machines()
            for group, topic, number, offset in machine.committed_offsets()
        }
        stored: dict[OffsetKey, int] = {}
        for partition in node.logs.partitions():
            if partition.tp.topic == OFFSETS_TOPIC and partition.leader is not None:
                stored |= _folded_offsets(partition)
        if stored != held:
            self._wrong("O1", f"the log says that {stored} are committed, and the node {held}")

    def _wrong(self, rule: str, detail: str) -> None:
        self._ledger.wrong(rule, f"{self._node.name}: {detail}")


def _not_coordinated(node: Node) -> list[str]:
    """Return of which topics a node leads partitions that it does not coordinate yet: it is still reading them."""
    found = []
    for topic, coordinator in ((OFFSETS_TOPIC, node.groups), (TRANSACTIONS_TOPIC, node.transactions)):
        led = sum(one.tp.topic == topic and one.leader is not None for one in node.logs.partitions())
        states = coordinator.shard_states()
        if states["active"] != led or sum(states.values()) != led:
            found.append(f"{led} partitions of {topic} are led here, and coordinated are {dict(states)}")
    return found


def judge_tokens(nodes: Iterable[SimulatedNode], ledger: Ledger, actors: Iterable[Actor]) -> None:
    """Of each token at least the one attempt that was answered as committed is known, and none that was aborted (T13).

    nodes: the world's, of which any may be the coordinator of a name
    """
    machines = [machine for one in nodes if one.node is not None for machine in one.node.transactions.machines()]
    for actor in actors:
        if not isinstance(actor, (Writer, Sharer)):
            continue
        kind = CommitKind.PRODUCER if isinstance(actor, Writer) else CommitKind.SHARED
        known = {token for machine in machines for token in machine._history.of(kind, actor.name)}
        for token, numbers in list(actor.tokens.items())[-50:]:
            outcomes = {ledger.outcome(number) for number in numbers}
            what = f"{token} of {actor.name}"
            if Outcome.COMMITTED in outcomes and token not in known:
                ledger.wrong("T13", f"{what} was answered as committed, and is not known: {sorted(known)}")
            if outcomes == {Outcome.ABORTED} and token in known:
                ledger.wrong("T13", f"{what} was answered as aborted, and is known as committed")


def _folded_offsets(partition: Partition) -> dict[OffsetKey, int]:
    """Return the offsets that a partition of `__consumer_offsets` says are committed, read from nothing but its log."""
    committed: dict[OffsetKey, tuple[int, int]] = {}
    pending: defaultdict[int, dict[OffsetKey, tuple[int, int]]] = defaultdict(dict)
    for header, data in batches_of(partition, partition.log_start_offset, partition.log_end_offset):
        records = decode_records(data, header.position)
        if header.is_control:
            moved = pending.pop(header.producer_id, {})
            if decode_control(records[0]).type is ControlType.COMMIT:
                # One that was written after it, and committed before, is newer: the order of the records counts.
                committed |= {
                    name: one for name, one in moved.items() if name not in committed or one > committed[name]
                }
            continue
        place = pending[header.producer_id] if header.is_transactional else committed
        for record in records:
            key = decode_key(record.key)
            if not isinstance(key, OffsetCommitKey):
                continue
            name = (key.group_id, key.partition.topic, key.partition.partition)
            if record.value is None:
                for one in (committed, *pending.values()):
                    one.pop(name, None)
            else:
                place[name] = (record.offset, decode_offset_value(record.value).offset)
    return {name: offset for name, (_, offset) in committed.items()}
