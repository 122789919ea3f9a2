"""One world: its loop, network, disks, database, nodes and clients, all from one seed."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final

from semel.broker.config.node_config import NodeConfig
from semel.broker.config.sources import LoadedConfig
from semel.broker.metadata.chain import MetadataWentBackError
from semel.broker.node import Listener, Node
from semel.runtime import turns
from semel.runtime.simulated_storage import SimulatedStorage
from semel.sdk.transport.in_process import forget, register
from semel.sdk.transport.surroundings import Surroundings, live_in
from simulation.database import SimulatedDatabase
from simulation.logged_errors import programming_error
from simulation.loop import Process, Scheduler
from simulation.machine import LoopIo, SimulatedExecutor, SkewedClock
from simulation.network import Link, Network, Server
from simulation.objects import SimulatedObjects

SETTINGS: Final[dict[str, Any]] = {
    "data_dir": "/data",
    "offsets_topic_num_partitions": 2,
    "transaction_state_log_num_partitions": 2,
    "disk_min_free_bytes": 0,
    "group_initial_rebalance_delay_ms": 0,
    "group_min_session_timeout_ms": 1_000,
    "controller_lease_ms": 10_000,
    "journal_inline_sync_max_bytes": 1,
}


CLOCKS_OFF_MS: Final = (0, 0, 0, 700, -30_000, 3_600_000)
"""How far the clocks of machines are off."""


class SimulatedNode:
    """A node's machine: its disk stays, its process comes and goes."""

    def __init__(self, world: World, name: str, **settings: Any) -> None:
        self.world = world
        self.name = name
        self.storage = SimulatedStorage(world.chance.getrandbits(32))
        self.storage.on_crash = self._stop_at_once
        self.clock = SkewedClock(world.scheduler)
        self.settings = {**SETTINGS, **settings}
        self.process: Process | None = None
        self.node: Node | None = None
        self.starts = 0
        self.crash_power = False
        """Whether the write that is planned to fail takes the power with it, or the process alone."""
        self.crash_rest_s = 1.0
        self.crashes_in_start: list[int] = []
        """In which write each of the next starts crashes, the next one last."""
        self.is_stopping = False
        """Whether the process is to end, and has been told so."""
        self._is_lost = True
        """Whether the network and the disk know of the death of the last process: another starts only then."""
        self.loses_disk = False
        """Whether what it has on its disk is gone when its process has ended."""
        self.accepts_metadata_loss = False
        """Whether its next starts accept a database that went back."""
        self.operator_accepts_after_s: float | None = None
        """How long after a start that was refused for that an operator accepts it, where there is one."""
        self.failed: list[str] = []
        """Why starts and runs ended that nobody had killed."""

    @property
    def is_up(self) -> bool:
        return self.node is not None and self.process is not None and not self.process.is_dead

    def start(self) -> None:
        """Start its process, if it does not run."""
        if not self._is_lost:
            return
        self._is_lost = False
        self.starts += 1
        self.is_stopping = False
        if self.crashes_in_start:
            self.storage.crash_at(self.crashes_in_start.pop())
        self.process = Process(self.world.scheduler, f"{self.name}#{self.starts}")
        self.process.start(self._run(self.process), name=f"start {self.name}")

    async def _run(self, process: Process) -> None:
        world = self.world
        try:
            node = await Node.start(
                LoadedConfig(NodeConfig(**self.settings), {}),
                storage=self.storage,
                clock=self.clock,
                executor=world.executor,
                listeners=(Listener.IN_PROCESS,),
                accept_metadata_loss=self.accepts_metadata_loss,
                metadata_store=world.database.store(self.name),
                object_store=world.objects.of(process),
                remote_database=world.database.remote(self.name, world.executor),
            )
        except Exception as error:
            world.told(f"{process.name} can't start: {type(error).__name__}: {error}")
            world.unexpected(f"{process.name} can't start", error)
            self.failed.append(f"{type(error).__name__}: {error}")
            if isinstance(error.__cause__, MetadataWentBackError) and self.operator_accepts_after_s is not None:
                world.later(self.operator_accepts_after_s, self._accept_loss)
            world.scheduler.world.post(self.end, process)
            return
        self.accepts_metadata_loss = False  # an operator says so for one start
        assert node.in_process is not None
        self.node = node
        world.network.serve(Server(self.name, process, node.in_process, node.peer_listener))
        world.told(f"{process.name} has started")
        error = await node.failed
        world.told(f"{process.name} can't continue: {error.message}")
        world.unexpected(f"{process.name} can't continue", error)
        self.failed.append(error.message)
        world.scheduler.world.post(self.end, process)

    def _accept_loss(self) -> None:
        if not self.is_up and not self.accepts_metadata_loss:
            self.world.told(f"an operator accepts that {self.name}'s metadata lost changes")
            self.accepts_metadata_loss = True

    def end(self, process: Process) -> None:
        """The process has given up: as a supervisor does, it is killed, to be started again."""
        if process is self.process:
            self._end_process()
            self.world.later(0.2, self.start)

    def stop(self, rest_s: float, *, grace_ms: int) -> None:
        """End the process in good order (SIGTERM), and start it again."""
        node, process = self.node, self.process
        if node is not None and process is not None and not process.is_dead and not self.is_stopping:
            self.is_stopping = True
            process.start(self._stop(node, process, rest_s, grace_ms), name=f"stop {self.name}")

    async def _stop(self, node: Node, process: Process, rest_s: float, grace_ms: int) -> None:
        try:
            await node.stop(grace_ms=grace_ms)
        except Exception as error:
            self.world.told(f"{process.name} stopped in disorder: {type(error).__name__}: {error}")
            self.world.unexpected(f"{process.name} stopped in disorder", error)
        else:
            self.world.told(f"{process.name} has stopped")
        self.world.scheduler.world.post(self._stopped, process, rest_s)

    def _stopped(self, process: Process, rest_s: float) -> None:
        if process is self.process:
            self._end_process()
            self.world.later(rest_s, self.start)

    def _stop_at_once(self) -> None:
        """Its disk has come to the write at which it was to crash: nothing that it does after that reaches anybody."""
        process = self.process
        if process is not None:
            process.kill()
            self.world.scheduler.world.post(self._crashed, process)

    def _crashed(self, process: Process) -> None:
        self.world.told(f"{self.name} crashed in a write ({'power' if self.crash_power else 'process'})")
        self.lost(process, power=self.crash_power)
        self.world.later(self.crash_rest_s, self.start)

    def kill(self, *, power: bool = False, torn: bool = True) -> None:
        """End the process (SIGKILL), or cut the machine's power. torn: see `SimulatedStorage.crash`."""
        if self.process is not None and not self.process.is_dead:
            self.world.told(f"{self.process.name} {'loses its power' if power else 'is killed'}")
            self._end_process(power=power, torn=torn)

    def _end_process(self, *, power: bool = False, torn: bool = True) -> None:
        process = self.process
        if process is not None and not process.is_dead:
            process.kill()
            self.lost(process, power=power, torn=torn)

    def lost(self, process: Process, *, power: bool, torn: bool = True) -> None:
        """Its process is dead: the network and the disk see to what that means for them."""
        if process is self.process:
            self._is_lost = True
            self.node = None
            self.world.network.gone(process, silently=power)
            self.storage.crash(power=power, torn=torn)
            if self.loses_disk:
                self.storage = SimulatedStorage(self.world.chance.getrandbits(32))
                self.storage.on_crash = self._stop_at_once


class World:
    """Everything of one seed. `story` is what happened, in a line each."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.chance = random.Random(seed)
        self.scheduler = Scheduler(random.Random(self.chance.getrandbits(64)))
        self.network = Network(self.scheduler, random.Random(self.chance.getrandbits(64)))
        self.executor = SimulatedExecutor(self.scheduler, random.Random(self.chance.getrandbits(64)))
        self.scheduler.workplace = self.executor
        self.database = SimulatedDatabase(random.Random(self.chance.getrandbits(64)))
        self.database.now_ms = SkewedClock(self.scheduler).now_ms
        self.objects = SimulatedObjects(self.scheduler, random.Random(f"object store of {seed}"))
        self.nodes: dict[str, SimulatedNode] = {}
        self.clients: list[Process] = []
        self.story: list[tuple[float, str]] = []
        self._links: list[Link] = []
        self._looks = 0
        turns.measure_by(self._look)

    def _look(self) -> float:
        """Each look at the time of a turn takes a millisecond, now and then many: turns end where chance has it."""
        self._looks += 1
        return self._looks / 1000

    def digest(self) -> int:
        """Return a number that two runs have in common if they did the same: every step draws from the seed."""
        scheduler = self.scheduler
        drawn = (scheduler.chance.random(), self.network.chance.random(), self.executor.chance.random())
        return hash((*drawn, scheduler.now, scheduler.steps))

    def told(self, what: str) -> None:
        self.story.append((self.scheduler.now, what))

    def unexpected(self, what: str, failed: BaseException) -> None:
        """Count an end as wrong that is no refusal, and no failure of a disk or the network."""
        error = programming_error(failed)
        if error is not None:
            self.scheduler.errors.append(f"{what}: {type(error).__name__}: {error}")

    def add_node(self, name: str = "node", **settings: Any) -> SimulatedNode:
        self.nodes[name] = node = SimulatedNode(self, name, **settings)
        return node

    def client(self, name: str) -> Process:
        """Make a client's process. What it makes of the SDK lives in this world."""
        process = Process(self.scheduler, name)
        clock = SkewedClock(self.scheduler, self.chance.choice(CLOCKS_OFF_MS))
        process.context.run(live_in, Surroundings(clock, lambda owner: LoopIo(process, owner)))
        self.clients.append(process)
        return process

    def address(self, client: str, node: str = "node") -> str:
        """Return the bootstrap by which a client reaches a node."""
        link = Link(self.network, client, node)
        register(link)
        self._links.append(link)
        return link.name

    def at(self, when: float, callback: Callable[[], object]) -> None:
        """Do something to the world at a virtual time."""
        self.scheduler.world.post_at(when, callback)

    def later(self, delay_s: float, callback: Callable[[], object]) -> None:
        """Do something to the world a while from now."""
        self.at(self.scheduler.now + delay_s, callback)

    def run_until(
        self, condition: Callable[[], bool], within_s: float, after_step: Callable[[], None] | None = None
    ) -> bool:
        return self.scheduler.run_until(condition, self.scheduler.now + within_s, after_step)

    def do(self, coroutine: Coroutine[Any, Any, Any], process: Process, within_s: float = 600.0) -> Any:
        """Run a coroutine to its end in a process, and return what it returns."""
        task = process.start(coroutine)
        if not self.run_until(task.done, within_s):
            raise TimeoutError(f"{coroutine!r} did not end within {within_s} virtual seconds")
        return task.result()

    def close(self) -> None:
        for node in self.nodes.values():
            if node.process is not None:
                node.process.on_death = None
                node.process.kill()
        for process in self.clients:
            process.kill()
        for link in self._links:
            forget(link)
        self.database.close()
        turns.measure_by(time.perf_counter)
        self.scheduler.close()
