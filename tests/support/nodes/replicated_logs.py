"""Three nodes' real logs of one partition, whose messages, syncs, crashes and elections a seed draws.

Each machine has a disk that loses power, a journal, and the partition with its part in it. Between them go real
fetches that come late, out of order, twice or never. The metadata is decided by the controller's functions; machines
hear of it late. After each step the rules are checked: what was once committed is the same in the log of every leader
that may be elected (R1, R4), and below the high watermarks all logs are the same (R3).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final, cast

from chained_changes import chained

from semel.broker.config.node_config import NodeConfig
from semel.broker.controller.elections import node_registered, nodes_fenced, nodes_unfenced
from semel.broker.controller.isr import ProposedIsr, decide_isr
from semel.broker.handlers.fetch.replica import ReplicaFetch, ReplicaFetchHandler
from semel.broker.log.config import LogConfig
from semel.broker.logs.config import LogManagerConfig
from semel.broker.logs.manager import LogManager
from semel.broker.logs.partition import Partition
from semel.broker.logs.replication_quota import ReplicationQuota, ReplicationQuotas
from semel.broker.metadata.changes import BrokerRegistered, Change, PartitionState, TopicCreated
from semel.broker.metadata.image import EMPTY_IMAGE, MetadataImage
from semel.broker.replication.following import next_fetch, take_in
from semel.broker.replication.parts import take_part
from semel.protocol.batch_builder import encode_batch
from semel.protocol.batch_header import iter_batches
from semel.protocol.errors import SemelError
from semel.protocol.ids import TopicPartition, new_topic_id
from semel.protocol.int_bounds import INT64_MAX
from semel.protocol.kafka.fetch import FetchPartition, FetchPartitionResponse, FetchRequest
from semel.runtime.clock import ManualClock
from semel.runtime.simulated_storage import SimulatedStorage

TP: Final = TopicPartition("t", 0)
NODES: Final = (1, 2, 3)


@dataclass
class Message:
    """A fetch or its answer on the way. `asker` is the start of the follower that asked."""

    target: int
    asker: tuple[int, int]
    request: FetchRequest
    answer: FetchPartitionResponse | None = None


class Machine:
    """One node's disk, its logs and its part. `view` is how many images of the metadata it has applied."""

    def __init__(self, world: ReplicatedLogs, node_id: int, durability: str) -> None:
        self.world = world
        self.node_id = node_id
        self.durability = durability
        self.storage = SimulatedStorage(world.random.getrandbits(32))
        self.clock = ManualClock()
        self.starts = 0
        self.view = 0
        self.broker_epoch = -1
        self.logs: LogManager | None = None
        self.is_asking = False
        self.rate = INT64_MAX
        """Bytes per second of throttled replicas, each way."""

    @property
    def is_up(self) -> bool:
        return self.logs is not None

    @property
    def partition(self) -> Partition:
        assert self.logs is not None
        found = self.logs.partition(TP)
        assert found is not None
        return found

    def start(self) -> None:
        world = self.world
        config = LogManagerConfig(durability=self.durability)
        logs = LogManager(self.storage, "/data", self.clock, config, node_id=self.node_id, cluster_id="c")
        logs.open(lambda tp, topic_id: world.log_config, is_only_replica=lambda tp, topic_id: False)
        logs.create_partition(TP, world.topic_id, world.log_config)
        self.logs = logs
        self.starts += 1
        self.is_asking = False
        metadata = SimpleNamespace(topic_name=lambda topic_id: TP.topic)
        self.quotas = ReplicationQuotas(ReplicationQuota(lambda: self.rate), ReplicationQuota(lambda: self.rate))
        self.node = node = SimpleNamespace(
            metadata=metadata, logs=logs, partition=lambda tp: self.partition, clock=self.clock,
            replication_quotas=self.quotas, config=NodeConfig(),
        )  # fmt: skip
        self.fetches = ReplicaFetchHandler(cast(Any, node))

    def crash(self) -> None:
        self.logs = None
        self.storage.crash(power=True)

    def sync(self) -> None:
        assert self.logs is not None
        journal = self.logs._journal
        if journal is not None:
            journal.sync_now()

    def apply(self, view: int) -> None:
        """Apply the metadata, one transaction after the other; what is older than this start does not concern it."""
        for index in range(self.view + 1, view + 1):
            image = self.world.images[index]
            self.view = index
            broker = image.brokers.get(self.node_id)
            state = image.partition(TP)
            if broker is not None and broker.epoch == self.broker_epoch and state is not None:
                note = take_part(self.partition, state, self.node_id, self.clock.monotonic())
                if note is not None:
                    note.run()

    def batches(self, end: int) -> list[bytes]:
        """Return the batches below `end`, as they are in the log."""
        log, found, offset = self.partition.log, [], 0
        while offset < end:
            data = log.read(offset, 1 << 20, end, True).read()
            position = 0
            for header in iter_batches(data):
                found.append(bytes(data[position : position + header.size_bytes]))
                position += header.size_bytes
                offset = header.next_offset
        return found


class ReplicatedLogs:
    """The world of one seed. `run` takes steps, and raises AssertionError where a rule is broken."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.min_isrs = self.random.choice([(1,), (2,), (1, 2), (1, 2, 3)])
        self.segment_bytes = self.random.choice([300, 1 << 20])
        self.topic_id = new_topic_id()
        self.images: list[MetadataImage] = [EMPTY_IMAGE]
        self.messages: list[Message] = []
        self.committed: list[bytes] = []
        self.written = 0
        self.counts: dict[str, int] = {}
        # With "os" a power cut may take what the whole in-sync set had: that is what the setting says.
        self.machines = {node_id: Machine(self, node_id, "disk") for node_id in NODES}
        for machine in self.machines.values():
            self.start(machine)
        state = PartitionState(1, 0, NODES, NODES)
        self.commit([TopicCreated(TP.topic, self.topic_id, (state,), {})])
        for machine in self.machines.values():
            machine.apply(len(self.images) - 1)

    @property
    def min_isr(self) -> int:
        """min.insync.replicas as one node knows it just now: after a change, some have the old one and some the new."""
        return self.random.choice(self.min_isrs)

    @property
    def log_config(self) -> LogConfig:
        return LogConfig(segment_bytes=self.segment_bytes, min_insync_replicas=self.min_isr)

    @property
    def image(self) -> MetadataImage:
        return self.images[-1]

    def commit(self, changes: list[Change]) -> None:
        if changes:
            self.images.append(self.image.apply_all(chained(changes, self.image.position)))

    def start(self, machine: Machine) -> None:
        """Start a node and register it: in the same transaction, what its former start was is over."""
        machine.start()
        registration = BrokerRegistered(
            machine.node_id, f"{machine.node_id}-{machine.starts}", f"d{machine.node_id}", "h", 1, "h", 2,
            is_clean=False, durability=machine.durability,
        )  # fmt: skip
        self.commit([registration, *node_registered(self.image, registration, default_min_isr=self.min_isr)])
        machine.broker_epoch = self.image.brokers[machine.node_id].epoch

    # --- Steps --------------------------------------------------------------------------------------------------------

    def run(self, steps: int) -> None:
        kinds: list[tuple[int, Callable[[], None]]] = [
            (8, self.step_append),
            (20, self.step_fetch),
            (45, self.step_deliver),
            (8, self.step_sync),
            (14, self.step_learn),
            (4, self.step_propose),
            (2, self.step_crash),
            (4, self.step_restart),
            (3, self.step_fence),
            (4, self.step_unfence),
            (2, self.step_checkpoint),
            (2, self.step_setting),
        ]
        # Some worlds are all crashes and elections, others all fetches: chance alone would make them all alike.
        weights = [weight * self.random.choice([0.3, 1, 1, 3]) for weight, _ in kinds]
        for _ in range(steps):
            self.random.choices(kinds, weights)[0][1]()
            self.check()

    def a_machine(self, where: Callable[[Machine], bool]) -> Machine | None:
        found = [machine for machine in self.machines.values() if machine.is_up and where(machine)]
        return self.random.choice(found) if found else None

    def step_append(self) -> None:
        machine = self.a_machine(lambda one: one.partition.leader is not None)
        if machine is None:
            return
        for _ in range(self.random.choice([1, 1, 3])):
            self.written += 1
            value = b"%d at %d" % (self.written, machine.node_id)
            machine.partition.append(bytearray(encode_batch([(1, None, value, ())])), acks=1)

    def step_sync(self) -> None:
        machine = self.a_machine(lambda one: True)
        if machine is not None:
            machine.sync()

    def step_checkpoint(self) -> None:
        """Note the high watermark on the disk, as a flush does now and then."""
        machine = self.a_machine(lambda one: True)
        if machine is not None and machine.logs is not None:
            machine.logs.folder.high_watermarks.write({TP: (self.topic_id, machine.partition.high_watermark)})

    def step_setting(self) -> None:
        """A node hears of another min.insync.replicas."""
        machine = self.a_machine(lambda one: True)
        if machine is not None:
            machine.partition.update_config(self.log_config)

    def step_fetch(self) -> None:
        """A follower asks for what comes next, once all that it has is on its disk."""
        machine = self.a_machine(lambda one: one.partition.leader is None)
        if machine is None or (machine.is_asking and self.random.random() < 0.8):
            return
        machine.sync()
        state = self.images[machine.view].partition(TP)
        if state is None or state.leader < 0 or state.leader == machine.node_id:
            return
        machine.is_asking = True
        item = next_fetch(machine.partition, self.random.choice([1, 100, 1 << 20]), machine.partition.log_start_offset)
        item.topic_id = self.topic_id
        request = FetchRequest([item], 0, replica_id=machine.node_id, replica_epoch=machine.broker_epoch)
        self.messages.append(Message(state.leader, (machine.node_id, machine.starts), request))

    def step_deliver(self) -> None:
        """One message arrives, out of order; now and then twice, or never."""
        if not self.messages:
            return
        index = self.random.randrange(len(self.messages))
        message = self.messages[index]
        fate = self.random.random()
        if fate > 0.05 or len(self.messages) > 10:
            del self.messages[index]
        if fate > 0.95:
            return
        if message.answer is None:
            leader = self.machines[message.target]
            if leader.is_up:
                (answer,), _ = leader.fetches.read(message.request)
                self.messages.append(Message(message.asker[0], message.asker, message.request, answer))
            return
        follower = self.machines[message.asker[0]]
        if follower.is_up and follower.starts == message.asker[1]:
            follower.is_asking = False
            asked: FetchPartition = message.request.partitions[0]
            became = take_in(follower.partition, asked, message.answer)
            self.counts[became.name] = self.counts.get(became.name, 0) + 1

    def step_learn(self) -> None:
        machine = self.a_machine(lambda one: one.view < len(self.images) - 1)
        if machine is not None:
            machine.apply(self.random.randint(machine.view + 1, len(self.images) - 1))

    def step_propose(self) -> None:
        """A leader asks for another in-sync set; its answer may be lost, and comes with the metadata then."""
        machine = self.a_machine(lambda one: one.partition.leader is not None)
        if machine is None or machine.partition.leader is None:
            return
        partition, leader = machine.partition, machine.partition.leader
        machine.clock.advance(ms=self.random.choice([1, 1, 4_000]))
        brokers = self.images[machine.view].brokers
        wanted = leader.wanted_isr(
            partition.high_watermark,
            now_s=machine.clock.monotonic(),
            lag_max_s=10.0,
            log_start_offset=partition.log_start_offset,
            log_end_offset=partition.log_end_offset,
            usable={node: broker.epoch for node, broker in brokers.items() if not broker.is_fenced},
        )
        if wanted is None:
            return
        proposal = ProposedIsr(self.topic_id, 0, wanted.leader_epoch, wanted.partition_epoch, wanted.isr)
        decision = decide_isr(
            self.image, machine.node_id, machine.broker_epoch, [proposal], default_min_isr=self.min_isr
        )
        self.commit(decision.changes)
        self.counts["isr"] = self.counts.get("isr", 0) + len(decision.changes)
        if not decision.changes and self.random.random() < 0.7:
            leader.refused()

    def step_crash(self) -> None:
        machine = self.a_machine(lambda one: True)
        if machine is not None and sum(one.is_up for one in self.machines.values()) > self.random.choice([0, 1, 1]):
            machine.crash()

    def step_restart(self) -> None:
        down = [machine for machine in self.machines.values() if not machine.is_up]
        if down:
            self.start(self.random.choice(down))

    def step_fence(self) -> None:
        """The controller takes a node for dead: most often rightly."""
        brokers = [node for node, broker in self.image.brokers.items() if not broker.is_fenced]
        down = [node for node in brokers if not self.machines[node].is_up]
        if down or (brokers and self.random.random() < 0.5):
            node = self.random.choice(down or brokers)
            self.commit(nodes_fenced(self.image, [node], default_min_isr=self.min_isr))

    def step_unfence(self) -> None:
        """The controller hears of a node again that it took for dead."""
        brokers = self.image.brokers
        alive = [
            node
            for node, machine in self.machines.items()
            if machine.is_up and brokers[node].is_fenced and brokers[node].epoch == machine.broker_epoch
        ]
        if alive:
            self.commit(nodes_unfenced(self.image, [self.random.choice(alive)], default_min_isr=self.min_isr))

    # --- What must hold -----------------------------------------------------------------------------------------------

    def check(self) -> None:
        up = [machine for machine in self.machines.values() if machine.is_up]
        for machine in up:
            partition = machine.partition
            assert partition.offline_error is None, f"node {machine.node_id}: {partition.offline_error}"
            assert partition.log_start_offset <= partition.high_watermark <= partition.log_end_offset
            seen = machine.batches(partition.high_watermark)
            shorter = min(len(seen), len(self.committed))
            assert seen[:shorter] == self.committed[:shorter], f"R1, R3: node {machine.node_id} has committed otherwise"
            if len(seen) > len(self.committed):
                self.committed = seen
                self.counts["committed"] = len(seen)
        state = self.image.partition(TP)
        if state is None:
            return
        leads = {}
        for machine in up:
            if machine.partition.leader is not None:
                first = leads.setdefault(machine.partition.leader_epoch, machine.node_id)
                assert first == machine.node_id, "R4: two leaders in one epoch"
        for member in (*state.isr, *state.elr):
            machine = self.machines[member]
            if machine.is_up and machine.broker_epoch == self.image.brokers[member].epoch:
                log = machine.batches(machine.partition.log_end_offset)
                assert log[: len(self.committed)] == self.committed, f"R4, R5: node {member} lacks records"


def run_seed(seed: int, steps: int = 1_000) -> dict[str, int]:
    """Run one seed; return how often what happened. Raises AssertionError, or `SemelError` where a log is broken."""
    world = ReplicatedLogs(seed)
    try:
        world.run(steps)
    except SemelError as error:
        raise AssertionError(f"seed {seed}: {error.message}") from error
    return world.counts


def waiting_fetches(partition: Partition) -> int:
    """Return how many fetches of followers wait for something to come to a partition."""
    owners = [getattr(listener, "__self__", None) for listener in partition._replica_listeners or ()]
    return sum(isinstance(owner, ReplicaFetch) for owner in owners)
