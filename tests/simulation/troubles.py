"""What goes wrong for a while: cuts, pauses, clocks, disks, the database, answers that are lost, leaders that move."""

from __future__ import annotations

import errno
from contextlib import suppress
from typing import TYPE_CHECKING

import semel.aio
from semel.broker.controller.elections import elect
from semel.broker.controller.membership import changed, min_isr_of, partitions_of
from semel.broker.metadata.changes import Change
from semel.protocol.errors import SemelError
from simulation.network import LostAnswers

if TYPE_CHECKING:
    from semel.broker.metadata.image import MetadataImage
    from semel.broker.node import Node
    from simulation.nemesis import Fault, Stage


def cut(stage: Stage, fault: Fault) -> None:
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


def break_connections(stage: Stage, fault: Fault) -> None:
    stage.world.network.break_connections(fault.target, stage.node_of(fault).name)


def pause_node(stage: Stage, fault: Fault) -> None:
    process = stage.node_of(fault).process
    if process is not None and not process.is_dead:
        process.pause()
        stage.later(fault.for_s, process.resume)


def pause_client(stage: Stage, fault: Fault) -> None:
    process = stage.actors[fault.target].process
    if process is not None and not process.is_dead:
        process.pause()
        stage.later(fault.for_s, process.resume)


def replace_client(stage: Stage, fault: Fault) -> None:
    """A supervisor that takes a frozen process for a dead one starts another beside it."""
    pause_client(stage, fault)
    stage.later(fault.for_s / 2, stage.actors[fault.target].start)


def kill_client(stage: Stage, fault: Fault) -> None:
    stage.actors[fault.target].kill()


def abort_open(stage: Stage, fault: Fault) -> None:
    """An operator ends what a client has open. A client without transactions has nothing."""

    async def abort() -> None:
        with suppress(SemelError):
            async with semel.aio.Admin(stage.world.address("operator"), request_timeout_ms=2_000) as admin:
                await admin.abort_transaction(fault.target)

    stage.actors[fault.target].transaction_aborted_by_operator()
    stage.world.client("operator").start(abort())


def jump_clock(stage: Stage, fault: Fault) -> None:
    stage.node_of(fault).clock.jump(fault.amount)


def slow_disk(stage: Stage, fault: Fault) -> None:
    stage.disk_is_slow(stage.node_of(fault), fault.amount / 1000, fault.for_s)


def slow_network(stage: Stage, fault: Fault) -> None:
    weather = stage.world.network.weather
    weather.slow_share, weather.slow_s = 0.3, fault.amount / 1000
    stage.later(fault.for_s, lambda: setattr(weather, "slow_share", 0.01))


def failing_disk(stage: Stage, fault: Fault) -> None:
    operation = {"failed sync": "sync", "failed write": "append"}[fault.kind]
    stage.node_of(fault).storage.fail_next(operation, OSError(errno.EIO, "Input/output error"))


def full_disk(stage: Stage, fault: Fault) -> None:
    storage = stage.node_of(fault).storage
    storage.set_free_bytes(fault.amount)
    stage.later(fault.for_s, lambda: storage.set_free_bytes(None))


def full_disk_at_call(stage: Stage, fault: Fault) -> None:
    """What a call decides may just have room yet, and what follows from it has not."""
    network, key = stage.world.network, (stage.node_of(fault).name, fault.target)

    def arrived(_: str) -> None:
        network.on_call.pop(key, None)
        full_disk(stage, fault)

    network.on_call[key] = arrived


def database_fails(stage: Stage, fault: Fault) -> None:
    database = stage.world.database
    if fault.kind == "database away":
        database.is_away = True
    else:
        database.lost_share, database.refused_share = 0.3, 0.2

    def heal() -> None:
        database.is_away = False
        database.lost_share = database.refused_share = 0.0

    stage.later(fault.for_s, heal)


def lose_answers(stage: Stage, fault: Fault) -> None:
    stage.world.database.lost_writes += fault.amount


def lose_answers_of_calls(stage: Stage, fault: Fault) -> None:
    """What was decided stays decided, and who asks again gets the same answer, also after its patience was over."""
    stage.world.network.lost_answers[fault.target] = LostAnswers(fault.amount, fault.for_s)


def isolate(stage: Stage, fault: Fault) -> None:
    """Cut a node off from all others."""
    network, node = stage.world.network, stage.node_of(fault).name
    ways = [way for other in stage.world.nodes if other != node for way in ((node, other), (other, node))]
    for way in ways:
        network.cut(*way)

    def heal() -> None:
        for way in ways:
            network.heal(*way)

    stage.later(fault.for_s, heal)


def node_without_database(stage: Stage, fault: Fault) -> None:
    cut_off, node = stage.world.database.cut_off, stage.node_of(fault).name
    cut_off.add(node)
    stage.later(fault.for_s, lambda: cut_off.discard(node))


def move_leaders(stage: Stage, fault: Fault) -> None:
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


def answer_late(stage: Stage, fault: Fault) -> None:
    """What coordinators say of transactions comes late, so that their markers, which have a way of their own, may come
    before it.
    """
    network = stage.world.network
    network.late_answers_s = fault.amount / 1000
    stage.later(fault.for_s, lambda: setattr(network, "late_answers_s", 0.0))
