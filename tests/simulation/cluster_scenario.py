"""Worlds with three nodes on one database: replication, elections, and clients that follow the leaders."""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from semel.protocol.api.topics import IsolationLevel
from semel.protocol.ids import TopicPartition
from simulation.actors import INPUT, OUTPUT, Actor
from simulation.cluster_actors import ClusterReader, TopicMaker, create_topic
from simulation.cluster_checks import ReplicaWatch
from simulation.kafka_actors import KafkaFeeder
from simulation.kafka_deleter import HEADS, ClusterDeleter, KafkaDeleter, deleting_settings, has_deleter
from simulation.kafka_wire import JAVA_4, ClusterWire, Party
from simulation.nemesis import Fault, Stage
from simulation.plans import CONTROLLER, LEADER, draw_deletions, draw_plan, draw_successions, in_order
from simulation.replica_movers import ReplicaMover, has_replica_mover
from simulation.scenario import BUSY_S, Scenario
from simulation.state_checks import StateChecks
from simulation.world import CLOCKS_OFF_MS, SimulatedNode

NODES: Final = 3
SETTLE_S: Final = 60.0
"""How long replicas may take to be equal after all faults, and clients to finish."""
_SECRET: Final = b"what the nodes of a simulated world share"


def _draw_settings(chance: random.Random) -> dict[str, Any]:
    """Draw what all nodes have in common."""
    segment_bytes = chance.choice((1_500, 5_000, 1 << 20))
    return {
        "durability": chance.choice(("disk", "disk", "disk", "os")),
        "journal_inline_sync_max_bytes": chance.choice((1, 1 << 20)),
        "journal_file_bytes": 1 << 16,
        "log_flush_interval_ms": chance.choice((300, 2_000, 60_000)),
        "log_segment_bytes": segment_bytes,
        "log_index_interval_bytes": chance.choice((100, 4_096)),
        "broker_session_timeout_ms": chance.choice((600, 1_500, 3_000)),
        "broker_heartbeat_interval_ms": chance.choice((100, 300)),
        "controller_lease_ms": chance.choice((2_000, 5_000)),
        "replica_lag_time_max_ms": chance.choice((500, 2_000, 10_000)),
        "replica_fetch_wait_max_ms": chance.choice((50, 500)),
        "replica_fetch_backoff_ms": chance.choice((20, 200)),
        "replica_fetch_max_bytes": chance.choice((150, 1 << 20)),
        "peer_request_timeout_ms": 2_000,
        "min_insync_replicas": 2,
    }


def _leaders_settings(seed: int) -> dict[str, Any]:
    """Draw how soon preferred replicas lead again; in half of the worlds an operator would have to say so."""
    chance = random.Random(f"preferred leaders of {seed}")
    if chance.random() < 0.5:
        return {}
    return {
        "leader_imbalance_check_interval_seconds": chance.randint(1, 5),
        "leader_imbalance_per_broker_percentage": chance.choice((0, 10, 50)),
    }


class ClusterScenario(Scenario):
    """Producers and readers of two topics, and somebody who makes topics and deletes them."""

    heal_s = SETTLE_S
    end_s = 2 * SETTLE_S
    look_steps = 32
    state_steps = 256 * 32
    moves: ClassVar = False
    """Whether leaders are moved while all nodes live."""
    succeeded: ClassVar[tuple[str, ...]] = (INPUT, OUTPUT)
    """The topics whose leaders are brought down at moments that are waited for."""
    settings: ClassVar[Mapping[str, Any]] = {}
    """What all nodes have besides what is drawn."""
    moved: ClassVar[Mapping[str, int]] = {}
    """Topics whose replicas are moved besides those that are written to, with how many partitions they have."""

    def __init__(self, seed: int, plan: Sequence[Fault] | None) -> None:
        super().__init__(seed)
        world, chance = self.world, self.chance
        world.database.is_shared = True
        descriptor, self._secret_file = tempfile.mkstemp(prefix="semel-simulated-secret-")
        with os.fdopen(descriptor, "wb") as file:
            file.write(_SECRET)
        settings = {**_draw_settings(chance), **self.settings, **self._more_settings(), **deleting_settings(world)}
        settings |= _leaders_settings(seed)
        self.nodes = {number: self._add_node(number, settings) for number in range(1, NODES + 1)}
        world.executor.longest_s = chance.choice((0.004, 0.03, 0.2))
        self.partitions = chance.randint(1, 3)
        self.is_durable = settings["durability"] == "disk"
        self.min_isr = chance.choice((2, 2, 1)) if self.is_durable else 2
        self.actors = self._cast()
        self.watch = ReplicaWatch(world, self.nodes, self.ledger)
        self.states = [StateChecks(world, node, self.ledger) for node in self.nodes.values()]
        names = [*world.nodes, LEADER, LEADER, CONTROLLER]
        # A node that does not wait for its disk may lose what it has: one such node at most, for others have it then.
        mortal = None if self.is_durable else chance.choice(list(world.nodes))
        drawn = draw_plan(
            chance, [actor.name for actor in self.actors], BUSY_S, 24, names, mortal=mortal, moves=self.moves
        )
        successions = draw_successions(seed, self.succeeded) if self.is_durable else ()
        if self.is_durable and has_deleter(world):
            successions += draw_deletions(seed, HEADS.topic)
        self.plan = in_order((*drawn, *successions)) if plan is None else tuple(plan)

    def _more_settings(self) -> Mapping[str, Any]:
        """Return what nodes are told because of the clients that there will be."""
        return {}

    def _add_node(self, number: int, settings: dict[str, Any]) -> SimulatedNode:
        name = f"n{number}"
        node = self.world.add_node(
            name,
            node_id=number,
            peer_listen="127.0.0.1:9094",
            peer_advertised=f"{name}:9094",
            kafka_advertised=f"{name}:9092",
            grpc_advertised=f"{name}:9093",
            cluster_secret_file=self._secret_file,
            **settings,
        )
        node.clock.off_ms = self.chance.choice(CLOCKS_OFF_MS)
        return node

    def _cast(self) -> list[Actor]:
        world, ledger, chance = self.world, self.ledger, self.chance
        think_s = chance.choice((0.5, 1.5, 3.0))
        count = self.partitions
        self.topics = {INPUT: count, OUTPUT: count}
        cast: list[Actor] = [
            KafkaFeeder(world, ledger, "feeder-1", count, think_s, INPUT),
            KafkaFeeder(world, ledger, "feeder-2", count, think_s, INPUT),
            KafkaFeeder(world, ledger, "feeder-3", count, think_s, OUTPUT),
            ClusterReader(world, ledger, "reader", self.topics, think_s),
        ]
        if chance.random() < 0.4:
            # Where power may take what a node has, a topic that is committed on one alone can be left without a leader.
            cast.append(TopicMaker(world, ledger, "maker", think_s, min_isr=1 if self.is_durable else 2))
        if has_deleter(world):
            cast.append(ClusterDeleter(world, ledger, "deleter", count, think_s))
        return [*cast, *self._replica_movers()]

    def _replica_movers(self) -> list[Actor]:
        """Return who moves replicas, in some of the worlds."""
        if not has_replica_mover(self.world):
            return []
        topics = {**self.topics, **self.moved}
        return [ReplicaMover(self.world, self.ledger, "moves", topics, 1.0, is_durable=self.is_durable)]

    @property
    def batches(self) -> int:
        return self.watch.batches

    def close(self) -> None:
        super().close()
        os.unlink(self._secret_file)

    def _begin(self) -> bool:
        world, chance = self.world, self.chance
        for node in self.nodes.values():
            world.later(chance.choice((0.0, 0.5)) * chance.random(), node.start)
        if not self._wait(lambda: all(node.is_up for node in self.nodes.values()), 60.0, "the nodes start"):
            return False
        world.do(self._prepare(), world.client("admin"))
        return True

    async def _prepare(self) -> None:
        wire = ClusterWire(Party(self.world, self.ledger, "admin", "admin", self.chance, JAVA_4))
        replicas = {INPUT: 3, OUTPUT: self.chance.choice((2, 3)) if self.is_durable else 3}
        for topic, count in self.topics.items():
            await create_topic(wire, topic, count, replicas=replicas[topic], min_isr=self.min_isr)
        for actor in self.actors:
            if isinstance(actor, KafkaDeleter):
                await create_topic(wire, HEADS.topic, 1, replicas=3, min_isr=self.min_isr, configs=actor.configs)
        wire.close()

    def _stage(self) -> Stage:
        return Stage(self.world, self.actors, self._node_as)

    def _node_as(self, what: str) -> SimulatedNode | None:
        """Return the node that leads the input's first partition, or has the controller's lease."""
        if what == LEADER:
            topic = self.watch.image.topics.get(INPUT)
            return None if topic is None else self.nodes.get(topic.partitions[0].leader)
        running = self.watch.running()
        return next((self.nodes[each] for each, node in running.items() if node.metadata.controller_epoch >= 0), None)

    def _look(self) -> None:
        self.watch.look()

    def _look_closely(self) -> None:
        self.watch.look_closely()
        for states in self.states:
            states.look()

    def _finish(self) -> None:
        sources = [actor for actor in self.actors if not isinstance(actor, ClusterReader)]
        if not self._all_have_committed(one for one in sources if isinstance(one, KafkaFeeder)):
            return
        if not self._stop_all(sources):
            return
        if not self._wait(self.watch.is_settled, SETTLE_S, "all replicas are in sync and equal"):
            self.ledger.wrong("not finished", self.watch.what_is_unsettled())
            return
        self.watch.at_end()
        for states in self.states:
            states.look()
        if not self.ledger.anomalies and self._stop_all(self.actors):
            self._judge(IsolationLevel.READ_UNCOMMITTED, {})

    def _ends(self) -> dict[TopicPartition, int]:
        """Return up to where the topics' partitions are committed."""
        return {known.tp: known.committed.end for known, _, _ in self.watch.replicas() if known.tp.topic in self.topics}

    def _judge(self, isolation: IsolationLevel, source_ends: dict[tuple[str, int], int]) -> None:
        """Read everything once more, and compare it with what was tried."""
        final = ClusterReader(self.world, self.ledger, "final", self.topics, 0.1, isolation)
        final.start()
        ends = self._ends()
        if not self._wait(
            lambda: all(final.stands_at.get(tp, 0) >= end for tp, end in ends.items()), SETTLE_S, "the final read"
        ):
            return
        self.ledger.anomalies[:] = self.ledger.check(source_ends)
