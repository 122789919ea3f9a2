"""What happens to a world: faults, drawn from the seed before the run, so that they can be read and shortened."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Final

import semel.aio
from semel.broker.controller.elections import elect
from semel.broker.controller.membership import changed, min_isr_of, partitions_of
from semel.broker.log.segment import CLEANED_SUFFIX
from semel.broker.metadata.changes import Change
from semel.protocol.errors import SemelError
from simulation.actors import Asker
from simulation.failover import AFTER_RESTART, fail_over
from simulation.network import LostAnswers
from simulation.successions import depose, leave_behind, short_reign

if TYPE_CHECKING:
    from semel.broker.log.journal import Journal
    from semel.broker.metadata.image import MetadataImage
    from semel.broker.node import Node
    from simulation.actors import Actor
    from simulation.loop import Process
    from simulation.world import SimulatedNode, World


RETRY_DISK_S = 2.0
"""How long each work of the disk takes at most where a client sends again what the disk still has to take in."""
ANSWER_DISK_S = 0.5
"""The same where a call's answer is the last one."""
ANSWER_S = 0.004
"""So long takes an answer to arrive, mostly."""
AMBUSH_S = 8.0
AMBUSH_PAUSE_S = 0.003
"""For how long, and how often, it is looked whether what a fault waits for has come."""
RETRY_S = 3.0
RETRY_AFTER_S = 0.01
"""How long a message has to arrive before its connection breaks."""


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
        text = f"{self.at_s:8.3f} s  {KINDS[self.kind].text}"
        return text.format(target=self.target, for_s=self.for_s, amount=self.amount, node=self.node or "the node")


class Worlds(Enum):
    """In which worlds a kind of fault comes."""

    OF_ONE = "with one node"
    OF_SEVERAL = "with several nodes"
    OF_COORDINATORS = "with several nodes, and transactions and groups"
    ALL = "all"
    ASIDE = "drawn by itself, beside the others"


@dataclass(frozen=True, slots=True)
class _Kind:
    text: str
    weight: float
    begin: Callable[[Stage, Fault], None]
    needs_client: bool = False
    """Whether the target is a client; where it is another thing, `targets` has them."""
    longest_s: float = 3.0
    amount: tuple[int, int] = (0, 0)
    targets: tuple[str, ...] = ()
    worlds: Worlds = Worlds.ALL
    needs_other_node: bool = False
    """Whether the target is another node."""
    is_of_all: bool = False
    """Whether all nodes die of it."""
    is_of_node: bool = True
    """Whether it happens to one node."""


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


def _kill(stage: Stage, fault: Fault) -> None:
    node = stage.node_of(fault)
    node.kill(power=fault.kind == "power cut")
    stage.later(fault.for_s, node.start)


def _stop(stage: Stage, fault: Fault) -> None:
    stage.node_of(fault).stop(fault.for_s, grace_ms=fault.amount)


def _kill_in(stage: Stage, fault: Fault) -> None:
    process = stage.node_of(fault).process
    if process is not None and not process.is_dead:
        process.kill_in = fault.amount
        process.on_death = lambda: stage.world.scheduler.world.post(_died, stage, process, fault)


def _died(stage: Stage, process: Process, fault: Fault) -> None:
    node = stage.node_of(fault)
    node.lost(process, power=fault.kind == "power cut in steps")
    stage.later(fault.for_s, node.start)


def _crash_at(stage: Stage, fault: Fault) -> None:
    node = stage.node_of(fault)
    node.storage.crash_at(fault.amount)
    node.crash_power = fault.kind == "power cut at a write"
    node.crash_rest_s = fault.for_s


def _end_in_cleaning(stage: Stage, fault: Fault) -> None:
    """A cleaned segment takes the place of those that it was made of in several steps, and any may be the last."""
    node = stage.node_of(fault)
    node.storage.crash_at(fault.amount, CLEANED_SUFFIX)
    node.crash_power, node.crash_rest_s = fault.target == LOSES_POWER, fault.for_s


def _cut_in_start(stage: Stage, fault: Fault) -> None:
    """What a start finds in the journal, and puts back, has to survive the next power cut, and the one after it."""
    node = stage.node_of(fault)
    node.crashes_in_start = [(fault.amount * factor - 1) % 60 + 1 for factor in (13, 7, 1)]
    node.crash_power, node.crash_rest_s = True, fault.for_s
    node.kill(power=True)
    stage.later(fault.for_s, node.start)


def _cut_at_answer(stage: Stage, fault: Fault) -> None:
    """What the node says with its last breath reaches clients, so it has to be true of its disk."""
    network, node = stage.world.network, stage.node_of(fault)
    if fault.target:
        # So that much of what was asked for is not on the disk yet.
        stage.disk_is_slow(node, ANSWER_DISK_S, RETRY_S)
        watchers, key = network.on_answer, (node.name, fault.target)
    else:
        watchers, key = network.on_send, (node.name, "")
    _cut_when(stage, fault, watchers, key)


def _cut_when(
    stage: Stage, fault: Fault, watchers: dict[tuple[str, str], Callable[[], None]], key: tuple[str, str]
) -> None:
    """Cut the power after so many calls of a watcher."""
    node, left = stage.node_of(fault), fault.amount

    def sent() -> None:
        nonlocal left
        left -= 1
        process = node.process
        if left <= 0 and process is not None and not process.is_dead:
            watchers.pop(key, None)
            process.kill()
            stage.world.scheduler.world.post(lost, process)

    def lost(process: Process) -> None:
        node.lost(process, power=True)
        stage.later(fault.for_s, node.start)

    watchers[key] = sent


def _cut_at_question(stage: Stage, fault: Fault) -> None:
    """An answer about a commit on its way to a slow disk stays true, though the client that commits dies, too."""
    node = stage.node_of(fault)
    network, key = stage.world.network, (node.name, fault.target)
    askers = [actor for actor in stage.actors.values() if isinstance(actor, Asker)]

    def commits(client: str) -> None:
        actor = stage.actors.get(client)
        if actor is not None and actor.on_commit:
            stage.disk_is_slow(node, ANSWER_DISK_S, RETRY_S)
            for asker in askers:
                asker.on_told = told

    def told(client: str) -> None:
        for asker in askers:
            asker.on_told = None
        network.on_call.pop(key, None)
        node.kill(power=True)
        stage.actors[client].kill()
        stage.later(fault.for_s, node.start)

    network.on_call[key] = commits


def _cut_after_sync(stage: Stage, fault: Fault) -> None:
    """A sync makes durable what was written before it began: what came meanwhile is not to be answered at its end."""
    node, left, calls = stage.node_of(fault), fault.amount, stage.world.network.on_call
    key, watched, came = (node.name, fault.target), None, False

    def arrived(_: str) -> None:
        nonlocal watched, came
        journal = None if node.node is None else node.node.logs._journal
        if journal is not None and journal is not watched:
            watched, came = journal, False
            stage.disk_is_slow(node, ANSWER_DISK_S, RETRY_S)
            journal.add_listener(lambda _: synced(journal))
        came |= journal is not None and journal._job is not None

    def synced(journal: Journal) -> None:
        nonlocal came
        if came and journal.position > journal.durable_position:
            process = node.process
            stage.later(ANSWER_S, lambda: cut(process))
        came = False

    def cut(process: Process | None) -> None:
        nonlocal left
        if left and not stage.is_healed and process is node.process and node.is_up:
            left -= 1
            if not left:
                calls.pop(key, None)
            node.kill(power=True, torn=False)
            stage.later(fault.for_s, node.start)

    calls[key] = arrived


def _stop_when_open(stage: Stage, fault: Fault) -> None:
    """What a start finds of several open transactions of one log holds its readers back where the first one begins,
    whichever producer has that one.
    """
    end = stage.world.scheduler.now + AMBUSH_S

    def look() -> None:
        node = stage.node_of(fault).node
        logs = [] if node is None else [one.log for one in node.logs.partitions()]
        opened = [list(log.producer_state.open_transactions.values()) for log in logs]
        if any(ids != sorted(ids) for ids in opened):
            _stop(stage, fault)
        elif stage.world.scheduler.now < end and not stage.is_healed:
            stage.later(AMBUSH_PAUSE_S, look)

    look()


def _cut_at_retry(stage: Stage, fault: Fault) -> None:
    """What a client sends again, while a slow disk still has the first of it, is answered as the power goes."""
    network, node, client = stage.world.network, stage.node_of(fault).name, fault.target
    stage.disk_is_slow(stage.node_of(fault), RETRY_DISK_S, RETRY_S)

    def sent() -> None:
        network.on_send.pop((client, node), None)
        stage.later(RETRY_AFTER_S, lose_answer)

    def lose_answer() -> None:
        network.break_connections(client, node)
        _cut_when(stage, fault, network.on_send, (node, client))

    network.on_send[client, node] = sent


def _cut(stage: Stage, fault: Fault) -> None:
    """Cut a node off from a client, or from another node."""
    network, node = stage.world.network, stage.node_of(fault).name
    ways = {
        "cut": [(fault.target, node), (node, fault.target)],
        "cut towards node": [(fault.target, node)],
        "cut towards client": [(node, fault.target)],
        "cut of nodes": [(fault.target, node), (node, fault.target)],
        "cut towards other node": [(node, fault.target)],
    }[fault.kind]
    for way in ways:
        network.cut(*way)

    def heal() -> None:
        if fault.amount:
            network.break_connections(fault.target, node)
        for way in ways:
            network.heal(*way)

    stage.later(fault.for_s, heal)


def _break(stage: Stage, fault: Fault) -> None:
    stage.world.network.break_connections(fault.target, stage.node_of(fault).name)


def _pause_node(stage: Stage, fault: Fault) -> None:
    process = stage.node_of(fault).process
    if process is not None and not process.is_dead:
        process.pause()
        stage.later(fault.for_s, process.resume)


def _pause_client(stage: Stage, fault: Fault) -> None:
    process = stage.actors[fault.target].process
    if process is not None and not process.is_dead:
        process.pause()
        stage.later(fault.for_s, process.resume)


def _replace_client(stage: Stage, fault: Fault) -> None:
    """A supervisor that takes a frozen process for a dead one starts another beside it."""
    _pause_client(stage, fault)
    stage.later(fault.for_s / 2, stage.actors[fault.target].start)


def _kill_client(stage: Stage, fault: Fault) -> None:
    stage.actors[fault.target].kill()


def _abort(stage: Stage, fault: Fault) -> None:
    """An operator ends what a client has open. A client without transactions has nothing."""

    async def abort() -> None:
        with suppress(SemelError):
            async with semel.aio.Admin(stage.world.address("operator"), request_timeout_ms=2_000) as admin:
                await admin.abort_transaction(fault.target)

    stage.actors[fault.target].transaction_aborted_by_operator()
    stage.world.client("operator").start(abort())


def _clock(stage: Stage, fault: Fault) -> None:
    stage.node_of(fault).clock.jump(fault.amount)


def _slow_disk(stage: Stage, fault: Fault) -> None:
    stage.disk_is_slow(stage.node_of(fault), fault.amount / 1000, fault.for_s)


def _slow_network(stage: Stage, fault: Fault) -> None:
    weather = stage.world.network.weather
    weather.slow_share, weather.slow_s = 0.3, fault.amount / 1000
    stage.later(fault.for_s, lambda: setattr(weather, "slow_share", 0.01))


def _failing_disk(stage: Stage, fault: Fault) -> None:
    operation = {"failed sync": "sync", "failed write": "append"}[fault.kind]
    stage.node_of(fault).storage.fail_next(operation, OSError(errno.EIO, "Input/output error"))


def _full_disk(stage: Stage, fault: Fault) -> None:
    storage = stage.node_of(fault).storage
    storage.set_free_bytes(fault.amount)
    stage.later(fault.for_s, lambda: storage.set_free_bytes(None))


def _full_disk_at_call(stage: Stage, fault: Fault) -> None:
    """What a call decides may just have room yet, and what follows from it has not."""
    network, key = stage.world.network, (stage.node_of(fault).name, fault.target)

    def arrived(_: str) -> None:
        network.on_call.pop(key, None)
        _full_disk(stage, fault)

    network.on_call[key] = arrived


def _database(stage: Stage, fault: Fault) -> None:
    database = stage.world.database
    if fault.kind == "database away":
        database.is_away = True
    else:
        database.lost_share, database.refused_share = 0.3, 0.2

    def heal() -> None:
        database.is_away = False
        database.lost_share = database.refused_share = 0.0

    stage.later(fault.for_s, heal)


def _lose_answers(stage: Stage, fault: Fault) -> None:
    stage.world.database.lost_writes += fault.amount


def _lose_answers_of_calls(stage: Stage, fault: Fault) -> None:
    """What was decided stays decided, and who asks again gets the same answer, also after its patience was over."""
    stage.world.network.lost_answers[fault.target] = LostAnswers(fault.amount, fault.for_s)


def _isolate(stage: Stage, fault: Fault) -> None:
    """Cut a node off from all others."""
    network, node = stage.world.network, stage.node_of(fault).name
    ways = [way for other in stage.world.nodes if other != node for way in ((node, other), (other, node))]
    for way in ways:
        network.cut(*way)

    def heal() -> None:
        for way in ways:
            network.heal(*way)

    stage.later(fault.for_s, heal)


def _node_without_database(stage: Stage, fault: Fault) -> None:
    cut_off, node = stage.world.database.cut_off, stage.node_of(fault).name
    cut_off.add(node)
    stage.later(fault.for_s, lambda: cut_off.discard(node))


def _move_leaders(stage: Stage, fault: Fault) -> None:
    """An operator has other leaders elected, and soon others again: no process ends, and nobody is cut off."""

    def decide(image: MetadataImage) -> list[Change]:
        changes: list[Change] = []
        for topic, number, state in partitions_of(image):
            if topic.name == fault.target:
                moved = elect(state, image, min_isr=min_isr_of(topic, 1), stopping=(state.leader,))
                changes += changed(topic, number, moved)
        return changes

    def move() -> None:
        node, process = stage.node_of(fault).node, stage.node_of(fault).process
        if node is not None and process is not None and not process.is_dead and not stage.is_healed:
            process.start(ask(node))

    async def ask(node: Node) -> None:
        with suppress(SemelError):
            await node.metadata.change(decide)

    for number in range(fault.amount):
        stage.later(fault.for_s * number / fault.amount, move)


def _answer_late(stage: Stage, fault: Fault) -> None:
    """What coordinators say of transactions comes late, so that their markers, which have a way of their own, may come
    before it.
    """
    network = stage.world.network
    network.late_answers_s = fault.amount / 1000
    stage.later(fault.for_s, lambda: setattr(network, "late_answers_s", 0.0))


def _kill_all(stage: Stage, fault: Fault) -> None:
    """All at once; they come back one after the other, in any order."""
    nodes = list(stage.world.nodes.values())
    for number, node in enumerate(nodes):
        node.kill(power=fault.kind == "power cut of all")
        stage.later(fault.for_s + 0.4 * ((number + fault.amount) % len(nodes)), node.start)


END_IN_CLEANING: Final = "end in a cleaning"
LOSES_POWER: Final = "loses power"
LATE_ANSWERS: Final = "late answers"
LOST_ANSWERS: Final = "lost answers of calls"
SHORT_REIGN: Final = "short reign"
LEFT_BEHIND: Final = "replica left behind"
DEPOSED: Final = "deposed leader"


KINDS: dict[str, _Kind] = {
    "kill": _Kind("{node} is killed, and started again after {for_s:.2f} s", 3, _kill),
    "power cut": _Kind("{node} loses power, and is started again after {for_s:.2f} s", 3, _kill),
    "stop": _Kind("{node} is stopped, and started again after {for_s:.2f} s", 2, _stop, amount=(0, 2_000)),
    "stop with transactions open": _Kind(
        "{node} is stopped when a log has open transactions that began in another order than their producers, and "
        "started again after {for_s:.2f} s",
        2,
        _stop_when_open,
        amount=(0, 200),
        worlds=Worlds.OF_ONE,
    ),
    "kill in steps": _Kind("{node} is killed {amount} steps later, for {for_s:.2f} s", 4, _kill_in, amount=(1, 400)),
    "power cut in steps": _Kind(
        "{node} loses power {amount} steps later, for {for_s:.2f} s", 4, _kill_in, amount=(1, 400)
    ),
    "kill at a write": _Kind(
        "{node} is killed in its write {amount} from here, for {for_s:.2f} s", 3, _crash_at, amount=(1, 60)
    ),
    "power cut at a write": _Kind(
        "{node} loses power in its write {amount} from here, for {for_s:.2f} s", 3, _crash_at, amount=(1, 60)
    ),
    "power cut in the start": _Kind(
        "{node} loses power, is started again after {for_s:.2f} s, and loses it in write {amount}, and in two more "
        "starts",
        2,
        _cut_in_start,
        amount=(1, 60),
    ),
    "power cut at a retry": _Kind(
        "the next message of {target} has no answer, as the connection breaks, the disk is slow, and {node} loses "
        "power when its message {amount} after that to {target} has left, for {for_s:.2f} s",
        3,
        _cut_at_retry,
        True,
        amount=(1, 8),
    ),
    "power cut at a call's answer": _Kind(
        "{node} loses power when its answer {amount} from here to {target} has left, for {for_s:.2f} s",
        4,
        _cut_at_answer,
        amount=(1, 6),
        targets=(
            "EndTransaction",
            "CommitSharedTransaction",
            "CommitOffsets",
            "InitProducerId",
            "OpenSharedTransaction",
            "DescribeSharedTransaction",
            "FetchOffsets",
        ),
        worlds=Worlds.OF_ONE,
    ),
    "power cut at a question": _Kind(
        "from the next {target} on the disk is slow, and the node and who commits lose power when somebody else "
        "learns of a commit, for {for_s:.2f} s",
        4,
        _cut_at_question,
        targets=("EndTransaction", "CommitSharedTransaction"),
        worlds=Worlds.OF_ONE,
    ),
    "power cut after a sync": _Kind(
        "from the next {target} on the disk is slow, and the node loses power right after a sync during which "
        "another came, {amount} times, for {for_s:.2f} s; what was not synced is gone",
        6,
        _cut_after_sync,
        amount=(1, 3),
        targets=("CommitOffsets", "CommitOffsets", "EndTransaction"),
        worlds=Worlds.OF_ONE,
    ),
    "power cut at an answer": _Kind(
        "{node} loses power when its message {amount} from here has left, for {for_s:.2f} s",
        5,
        _cut_at_answer,
        amount=(1, 40),
    ),
    "cut": _Kind("{target} and {node} are cut off from each other for {for_s:.2f} s", 2, _cut, True, 8.0, (0, 1)),
    "cut towards node": _Kind("nothing of {target} reaches {node} for {for_s:.2f} s", 2, _cut, True, 8.0, (0, 1)),
    "cut towards client": _Kind("nothing of {node} reaches {target} for {for_s:.2f} s", 2, _cut, True, 8.0, (0, 1)),
    "break connections": _Kind("the connections of {target} break", 3, _break, True),
    "pause node": _Kind("{node} is paused for {for_s:.2f} s", 1, _pause_node, longest_s=8.0),
    "pause client": _Kind("{target} is paused for {for_s:.2f} s", 2, _pause_client, True, 15.0, is_of_node=False),
    "replace client": _Kind(
        "{target} is paused for {for_s:.2f} s, and another is started in its place",
        2,
        _replace_client,
        True,
        10.0,
        is_of_node=False,
    ),
    "kill client": _Kind("{target} is killed", 3, _kill_client, True, is_of_node=False),
    "abort": _Kind(
        "an operator aborts the transaction of {target}", 3, _abort, True, is_of_node=False, worlds=Worlds.OF_ONE
    ),
    "clock": _Kind("{node}'s clock jumps by {amount} ms", 1, _clock, amount=(-20_000, 20_000)),
    "slow disk": _Kind(
        "each work of {node}'s disk lasts at most {amount} ms for {for_s:.2f} s", 1, _slow_disk, amount=(50, 1500)
    ),
    "slow network": _Kind(
        "messages are delayed by at most {amount} ms for {for_s:.2f} s",
        2,
        _slow_network,
        amount=(100, 4000),
        is_of_node=False,
    ),
    "failed sync": _Kind("a sync of {node} fails", 0.7, _failing_disk),
    "failed write": _Kind("a write of {node} fails", 0.7, _failing_disk),
    "full disk": _Kind(
        "{node}'s disk has {amount} bytes left for {for_s:.2f} s", 1.5, _full_disk, longest_s=8.0, amount=(0, 1500)
    ),
    "full disk at a call": _Kind(
        "{node}'s disk has {amount} bytes left for {for_s:.2f} s from the next {target} on",
        1,
        _full_disk_at_call,
        amount=(200, 2000),
        targets=("EndTransaction", "CommitSharedTransaction", "OpenSharedTransaction", "CommitOffsets"),
        worlds=Worlds.OF_ONE,
    ),
    "database away": _Kind("the database is away for {for_s:.2f} s", 1, _database, longest_s=6.0, is_of_node=False),
    "database loses answers": _Kind(
        "the database loses answers for {for_s:.2f} s", 1, _database, longest_s=6.0, is_of_node=False
    ),
    "lost answers of the database": _Kind(
        "the database takes the next {amount} changes, and its answers are lost",
        3,
        _lose_answers,
        amount=(1, 4),
        is_of_node=False,
    ),
    "fail-over of the database": _Kind(
        "the database's standby gets no further, and takes over after {for_s:.2f} s: what was committed in between is "
        "gone, and an operator accepts that {amount} ms after a start was refused",
        3,
        fail_over,
        longest_s=8.0,
        amount=(0, 2_000),
        worlds=Worlds.OF_ONE,
        is_of_node=False,
    ),
    AFTER_RESTART: _Kind(
        "the database's standby gets no further, the node and all clients are killed and started again, the standby "
        "takes over {for_s:.2f} s after they have begun: what was committed in between is gone, an operator accepts "
        "that {amount} ms after a start was refused, and every second client is killed again",
        2,
        fail_over,
        longest_s=8.0,
        amount=(0, 2_000),
        worlds=Worlds.OF_ONE,
        is_of_node=False,
    ),
    "kill all": _Kind(
        "all nodes are killed, and started again after {for_s:.2f} s, one after the other",
        0.7,
        _kill_all,
        amount=(0, 2),
        worlds=Worlds.OF_SEVERAL,
        is_of_all=True,
        is_of_node=False,
    ),
    "power cut of all": _Kind(
        "all nodes lose power, and are started again after {for_s:.2f} s, one after the other",
        1,
        _kill_all,
        amount=(0, 2),
        worlds=Worlds.OF_SEVERAL,
        is_of_all=True,
        is_of_node=False,
    ),
    "cut of nodes": _Kind(
        "{node} and {target} are cut off from each other for {for_s:.2f} s",
        3,
        _cut,
        longest_s=8.0,
        amount=(0, 1),
        worlds=Worlds.OF_SEVERAL,
        needs_other_node=True,
    ),
    "cut towards other node": _Kind(
        "nothing of {node} reaches {target} for {for_s:.2f} s",
        3,
        _cut,
        longest_s=8.0,
        amount=(0, 1),
        worlds=Worlds.OF_SEVERAL,
        needs_other_node=True,
    ),
    "isolated node": _Kind(
        "{node} is cut off from all other nodes for {for_s:.2f} s",
        3,
        _isolate,
        longest_s=8.0,
        worlds=Worlds.OF_SEVERAL,
    ),
    "leaders move": _Kind(
        "other leaders of {target} are elected by way of {node}, {amount} times in {for_s:.2f} s",
        8,
        _move_leaders,
        amount=(1, 5),
        targets=("__transaction_state", "__consumer_offsets", "in", "out"),
        worlds=Worlds.OF_COORDINATORS,
    ),
    LATE_ANSWERS: _Kind(
        "what nodes answer each other comes {amount} ms later for {for_s:.2f} s, but for markers and fetches",
        0,
        _answer_late,
        longest_s=8.0,
        amount=(50, 2_500),
        worlds=Worlds.ASIDE,
        is_of_node=False,
    ),
    LOST_ANSWERS: _Kind(
        "the next answers to {target} are lost for {for_s:.2f} s, {amount} at most, as their connections break",
        0,
        _lose_answers_of_calls,
        longest_s=5.0,
        targets=("CommitSharedTransaction", "EndTransaction", "EndTransaction", "OpenSharedTransaction"),
        worlds=Worlds.ASIDE,
        is_of_node=False,
    ),
    END_IN_CLEANING: _Kind(
        "{node} {target} in write {amount} from the beginning of its next cleaning, for {for_s:.2f} s",
        0,
        _end_in_cleaning,
        targets=(LOSES_POWER, "is killed"),
        worlds=Worlds.ASIDE,
    ),
    SHORT_REIGN: _Kind(
        "when the third replica of {target}-0 has more than the second, its leader is killed, and the second when it "
        "leads and has written; they are started again after {for_s:.2f} s, one after the other",
        0,
        short_reign,
        worlds=Worlds.ASIDE,
        is_of_node=False,
    ),
    LEFT_BEHIND: _Kind(
        "the third replica of {target}-0 is cut off until it is out of sync, and its leader is killed when the second "
        "does not know of all that is committed, and started again after {for_s:.2f} s",
        0,
        leave_behind,
        worlds=Worlds.ASIDE,
        is_of_node=False,
    ),
    DEPOSED: _Kind(
        "the leader of {target}-0 reaches neither other nodes nor the database for {for_s:.2f} s",
        0,
        depose,
        worlds=Worlds.ASIDE,
        is_of_node=False,
    ),
    "node without database": _Kind(
        "{node} does not reach the database for {for_s:.2f} s",
        3,
        _node_without_database,
        longest_s=8.0,
        worlds=Worlds.OF_SEVERAL,
    ),
}
