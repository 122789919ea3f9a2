"""What happens to a world: faults, drawn from the seed before the run, so that they can be read and shortened."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from simulation.fault_kinds import KINDS
from simulation.sdk_observers import Asker

if TYPE_CHECKING:
    from simulation.actors import Actor
    from simulation.world import SimulatedNode, World


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that happens at a time.

    at_s:    when, in virtual seconds
    kind:    a name in `KINDS`
    target:  the client, or the other node, that it happens to, where it is one
    for_s:   how long it lasts, or how long until a node that is down is started again
    amount:  how much of it: steps, operations, milliseconds
    node:    the node that it happens to, by its name or by what it is then (`Roles`); "" for the only one
    """

    at_s: float
    kind: str
    target: str = ""
    for_s: float = 0.0
    amount: int = 0
    node: str = ""

    def __str__(self) -> str:
        kind = KINDS[self.kind]
        is_other = kind.needs_other_node and self.target == self.node  # the stage takes any other then
        return f"{self.at_s:8.3f} s  {kind.text}".format(
            target="another node" if is_other else self.target,
            for_s=self.for_s,
            amount=self.amount,
            node=self.node or "the node",
        )


class Stage:
    """Where faults happen: the world, with its nodes and its clients by name."""

    def __init__(
        self, world: World, actors: Sequence[Actor], node_as: Callable[[str], SimulatedNode | None] = lambda _: None
    ) -> None:
        """`node_as` finds the node that is something now, such as the leader of a partition."""
        self.world = world
        self.actors = {actor.name: actor for actor in actors}
        self.usual_disk_s = world.executor.longest_s
        self.is_healed = False
        self._node_as = node_as

    def carry_out(self, plan: Sequence[Fault]) -> None:
        for fault in plan:
            self.world.at(fault.at_s, lambda fault=fault: self._begin(fault))  # type: ignore[misc]

    def _begin(self, fault: Fault) -> None:
        """From here on the fault has the names of its nodes."""
        node, target = self._named(fault.node), fault.target
        if KINDS[fault.kind].needs_other_node:
            target = self._named(target)
            if target == node:
                target = next(name for name in self.world.nodes if name != node)
        fault = replace(fault, node=node, target=target)
        self.world.told(f"FAULT {str(fault)[12:].strip()}")
        KINDS[fault.kind].begin(self, fault)

    def _named(self, node: str) -> str:
        if not node or node in self.world.nodes:
            return node
        return (self._node_as(node) or next(iter(self.world.nodes.values()))).name

    def node_of(self, fault: Fault) -> SimulatedNode:
        """Return the node that a fault happens to."""
        nodes = self.world.nodes
        return nodes[fault.node] if fault.node else next(iter(nodes.values()))

    def later(self, delay_s: float, callback: Callable[[], object]) -> None:
        self.world.later(delay_s, callback)

    def disk_is_slow(self, node: SimulatedNode, longest_s: float, for_s: float) -> None:
        slow = self.world.executor.slow
        slow[node.name] = longest_s
        self.later(for_s, lambda: slow.pop(node.name, None))

    def heal(self) -> None:
        """End everything that lasts."""
        world = self.world
        self.is_healed = True
        world.network.heal_all()
        world.network.on_send.clear()
        world.network.on_answer.clear()
        world.network.on_call.clear()
        world.network.late_answers_s = 0.0
        world.network.lost_answers.clear()
        for actor in self.actors.values():
            if isinstance(actor, Asker):
                actor.on_told = None
        world.network.weather.slow_share = 0.0
        world.executor.longest_s = self.usual_disk_s = 0.002
        world.executor.slow.clear()
        world.database.is_away = False
        world.database.cut_off.clear()
        world.database.refused_share = world.database.lost_share = 0.0
        world.database.lost_writes = 0
        for node in world.nodes.values():
            self._heal_node(node)
        for process in world.clients:
            if process.is_paused and not process.is_dead:
                process.resume()

    @staticmethod
    def _heal_node(node: SimulatedNode) -> None:
        node.storage.fail_no_more()
        node.storage.crash_at(None)
        node.crashes_in_start.clear()
        node.storage.set_free_bytes(None)
        if node.process is not None:
            node.process.kill_in = None
            node.process.resume()
        if not node.is_up and (node.process is None or node.process.is_dead):
            node.start()
