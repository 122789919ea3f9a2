"""How nodes end: killed, stopped, without power, at once or at a moment that is waited for."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from semel.broker.log.segment import CLEANED_SUFFIX
from simulation.sdk_observers import Asker

if TYPE_CHECKING:
    from semel.broker.log.journal import Journal
    from simulation.loop import Process
    from simulation.nemesis import Fault, Stage

LOSES_POWER: Final = "loses power"
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


def kill(stage: Stage, fault: Fault) -> None:
    node = stage.node_of(fault)
    node.kill(power=fault.kind == "power cut")
    stage.later(fault.for_s, node.start)


def stop(stage: Stage, fault: Fault) -> None:
    stage.node_of(fault).stop(fault.for_s, grace_ms=fault.amount)


def kill_in(stage: Stage, fault: Fault) -> None:
    process = stage.node_of(fault).process
    if process is not None and not process.is_dead:
        process.kill_in = fault.amount
        process.on_death = lambda: stage.world.scheduler.world.post(_died, stage, process, fault)


def _died(stage: Stage, process: Process, fault: Fault) -> None:
    node = stage.node_of(fault)
    node.lost(process, power=fault.kind == "power cut in steps")
    stage.later(fault.for_s, node.start)


def crash_at(stage: Stage, fault: Fault) -> None:
    node = stage.node_of(fault)
    node.storage.crash_at(fault.amount)
    node.crash_power = fault.kind == "power cut at a write"
    node.crash_rest_s = fault.for_s


def end_in_cleaning(stage: Stage, fault: Fault) -> None:
    """A cleaned segment takes the place of those that it was made of in several steps, and any may be the last."""
    node = stage.node_of(fault)
    node.storage.crash_at(fault.amount, CLEANED_SUFFIX)
    node.crash_power, node.crash_rest_s = fault.target == LOSES_POWER, fault.for_s


def cut_in_start(stage: Stage, fault: Fault) -> None:
    """What a start finds in the journal, and puts back, has to survive the next power cut, and the one after it."""
    node = stage.node_of(fault)
    node.crashes_in_start = [(fault.amount * factor - 1) % 60 + 1 for factor in (13, 7, 1)]
    node.crash_power, node.crash_rest_s = True, fault.for_s
    node.kill(power=True)
    stage.later(fault.for_s, node.start)


def cut_at_answer(stage: Stage, fault: Fault) -> None:
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


def cut_at_question(stage: Stage, fault: Fault) -> None:
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


def cut_after_sync(stage: Stage, fault: Fault) -> None:
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


def stop_when_open(stage: Stage, fault: Fault) -> None:
    """What a start finds of several open transactions of one log holds its readers back where the first one begins,
    whichever producer has that one.
    """
    end = stage.world.scheduler.now + AMBUSH_S

    def look() -> None:
        node = stage.node_of(fault).node
        logs = [] if node is None else [one.log for one in node.logs.partitions()]
        opened = [list(log.producer_state.open_transactions.values()) for log in logs]
        if any(ids != sorted(ids) for ids in opened):
            stop(stage, fault)
        elif stage.world.scheduler.now < end and not stage.is_healed:
            stage.later(AMBUSH_PAUSE_S, look)

    look()


def cut_at_retry(stage: Stage, fault: Fault) -> None:
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


def kill_all(stage: Stage, fault: Fault) -> None:
    """All at once; they come back one after the other, in any order."""
    nodes = list(stage.world.nodes.values())
    for number, node in enumerate(nodes):
        node.kill(power=fault.kind == "power cut of all")
        stage.later(fault.for_s + 0.4 * ((number + fault.amount) % len(nodes)), node.start)
