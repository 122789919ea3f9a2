"""Faults of several nodes that come when they hurt most: leaders die, or are cut off, at a moment that is waited for.

Each is a history that has forked logs, or lost records, in systems that replicate. Drawn at random, their steps would
hardly ever come in that order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from semel.broker.controller.elections import elect
from semel.broker.controller.membership import min_isr_of
from semel.broker.metadata.image import EMPTY_IMAGE, MetadataImage
from semel.protocol.ids import TopicPartition
from simulation.kafka_deleter import KafkaDeleter

if TYPE_CHECKING:
    from semel.broker.logs.partition import Partition
    from semel.broker.metadata.changes import PartitionState
    from simulation.nemesis import Fault, Stage
    from simulation.world import SimulatedNode

PATIENCE_S = 12.0
LOOK_S = 0.003
"""For how long, and how often, it is looked whether the moment has come."""
_SLOW_S = 0.3
"""How long each work of a disk takes at most that is slow."""


def short_reign(stage: Stage, fault: Fault) -> None:
    """Who follows a leader reigns for one write, and comes back to one that has more of the epoch before (KIP-279).

    It has to cut its log where that epoch ended in its own, not where it ended in its new leader's.
    """
    _Succession(stage, fault).reign_shortly()


def leave_behind(stage: Stage, fault: Fault) -> None:
    """A replica that lacks records comes back to a leader that does not know yet that these are committed.

    The high watermark is behind then. Such a replica joins with all from before the epoch, not before (KIP-101).
    """
    _Succession(stage, fault).leave_one_behind()


def depose(stage: Stage, fault: Fault) -> None:
    """A leader hears nothing of the nodes and of the database, and answers its clients: what it says must be true."""
    _Succession(stage, fault).depose()


def take_deletion_back(stage: Stage, fault: Fault) -> None:
    """All lose power once a deletion of records is answered, and its leader comes back last: they stay deleted."""
    _Succession(stage, fault).take_deletion_back()


class _Succession:
    """The partition 0 of a topic, its leader, who is elected after it, and the third replica."""

    def __init__(self, stage: Stage, fault: Fault) -> None:
        self._stage = stage
        self._for_s = fault.for_s
        self._tp = TopicPartition(fault.target, 0)
        self._cuts: set[tuple[str, str]] = set()
        self._down: list[SimulatedNode] = []

    # --- The histories ------------------------------------------------------------------------------------------------

    def reign_shortly(self) -> None:
        found = self._in_line()
        if found is None:
            return
        first, second, third = found
        self._cut(first, second)

        def third_has_more() -> bool:
            return self._end(third) > self._end(second)

        def first_dies() -> None:
            self._kill(first)
            self._cut(second, third)
            begin = self._end(second)
            self._when(lambda: self._leads(second) and self._end(second) > begin, second_dies)

        def second_dies() -> None:
            self._kill(second)
            self._end_all()

        self._when(third_has_more, first_dies)

    def leave_one_behind(self) -> None:
        found = self._in_line()
        if found is None:
            return
        first, second, third = found
        self._cut(third, first)
        self._cut(third, second)

        def first_knows_more() -> bool:
            logs, state = [self._log(node) for node in (first, second, third)], self._state()
            if state is None or _id_of(third) in state.isr or _id_of(second) not in state.isr:
                return False
            return None not in logs and logs[2].log_end_offset < logs[1].high_watermark < logs[0].high_watermark  # type: ignore[union-attr]

        def first_dies() -> None:
            self._kill(first)
            self._end_all()

        self._when(first_knows_more, first_dies)

    def depose(self) -> None:
        state = self._state()
        leader = None if state is None else self._stage.world.nodes.get(f"n{state.leader}")
        if leader is None:
            return
        for other in self._stage.world.nodes.values():
            if other is not leader:
                self._cut(leader, other)
        cut_off = self._stage.world.database.cut_off
        cut_off.add(leader.name)

        def heal() -> None:
            cut_off.discard(leader.name)
            self._end_all()

        self._stage.later(self._for_s, heal)

    def take_deletion_back(self) -> None:
        found, deleter = self._in_line(), self._stage.actors.get("deleter")
        if found is None or not isinstance(deleter, KafkaDeleter):
            return
        for follower in found[1:]:
            # So that what was answered may be on no disk of theirs yet.
            self._stage.disk_is_slow(follower, _SLOW_S, PATIENCE_S)
        before = deleter.answered

        def all_lose_power() -> None:
            for node in found:
                self._kill(node, power=True)
            self._end_all()

        self._when(lambda: deleter.answered > before, all_lose_power)

    # --- What they are made of ----------------------------------------------------------------------------------------

    def _in_line(self) -> tuple[SimulatedNode, SimulatedNode, SimulatedNode] | None:
        """Return the leader, its successor and the third replica, or None where not all are in sync."""
        image, state = self._image(), self._state()
        topic = image.topics.get(self._tp.topic)
        if topic is None or state is None or len(state.isr) < 3 or state.leader not in state.isr:
            return None
        after = elect(state, image, min_isr=min_isr_of(topic, 1), stopping=(state.leader,)).leader
        last = [each for each in state.isr if each not in (state.leader, after)]
        nodes = self._stage.world.nodes
        return None if len(last) != 1 else (nodes[f"n{state.leader}"], nodes[f"n{after}"], nodes[f"n{last[0]}"])

    def _image(self) -> MetadataImage:
        """Return what the node says that has heard most."""
        images = [one.node.metadata.image for one in self._stage.world.nodes.values() if one.node is not None]
        return max(images, key=lambda image: image.sequence, default=EMPTY_IMAGE)

    def _state(self) -> PartitionState | None:
        return self._image().partition(self._tp)

    def _log(self, node: SimulatedNode) -> Partition | None:
        return None if node.node is None or not node.is_up else node.node.partition(self._tp)

    def _end(self, node: SimulatedNode) -> int:
        log = self._log(node)
        return -1 if log is None else log.log_end_offset

    def _leads(self, node: SimulatedNode) -> bool:
        log = self._log(node)
        return log is not None and log.leader is not None

    def _cut(self, one: SimulatedNode, other: SimulatedNode) -> None:
        for way in ((one.name, other.name), (other.name, one.name)):
            self._cuts.add(way)
            self._stage.world.network.cut(*way)

    def _kill(self, node: SimulatedNode, *, power: bool = False) -> None:
        self._stage.world.told(f"the moment has come: {node.name} {'loses its power' if power else 'is killed'}")
        node.kill(power=power)
        self._down.append(node)

    def _when(self, condition: Callable[[], bool], then: Callable[[], None]) -> None:
        """Go on at the moment at which something holds; where it does not come, everything heals."""
        end = self._stage.world.scheduler.now + PATIENCE_S

        def look() -> None:
            if self._stage.is_healed:
                return
            if condition():
                then()
            elif self._stage.world.scheduler.now < end:
                self._stage.later(LOOK_S, look)
            else:
                self._end_all()

        look()

    def _end_all(self) -> None:
        """Let messages through again, and start nodes: who died last comes back first."""
        for way in sorted(self._cuts):
            self._stage.world.network.heal(*way)
        for number, node in enumerate(reversed(self._down), start=1):
            self._stage.later(self._for_s * number, node.start)


def _id_of(node: SimulatedNode) -> int:
    return int(node.name.removeprefix("n"))
