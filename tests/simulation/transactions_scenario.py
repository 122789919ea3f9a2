"""Worlds with three nodes in which transactions and groups go over all of them: coordinators move with their logs."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from semel.protocol.api.topics import IsolationLevel
from semel.protocol.ids import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, TopicPartition
from simulation.actors import INPUT, OUTPUT, Actor
from simulation.casting import SOURCES, draw_cast, group_settings, watch_of
from simulation.cluster_actors import ClusterReader
from simulation.cluster_scenario import ClusterScenario
from simulation.kafka_actors import KafkaTransformer
from simulation.kafka_dropper import MarkerWatch, has_dropper
from simulation.kafka_group_members import ClassicMember
from simulation.kafka_lister import KafkaLister
from simulation.kafka_wire import JAVA_4, Party, learn_topic_ids
from simulation.nemesis import Fault
from simulation.node_scenario import CLEANED_OFTEN
from simulation.plans import draw_lags, draw_late_answers, draw_lost_answers, in_order
from simulation.replica_movers import ReplicaMover
from simulation.state_checks import judge_tokens

CLEANED_SHARE: Final = 0.5
"""In how many worlds the coordinators' logs are compacted while there are faults, by each replica for itself."""
FINISH_S: Final = 180.0
"""How long the pipeline may take to work off its input after all faults."""


class TransactionsScenario(ClusterScenario):
    """The clients of a world with one node, and somebody who reads everything that is committed."""

    heal_s = FINISH_S
    end_s = 2 * FINISH_S
    moves = True
    succeeded = (INPUT, OUTPUT, TRANSACTIONS_TOPIC, OFFSETS_TOPIC)
    settings: ClassVar[dict[str, Any]] = {
        "offsets_topic_segment_bytes": 5_000,
        "transaction_state_log_segment_bytes": 5_000,
        "transaction_state_log_num_partitions": 2,
        "transaction_two_phase_commit_enable": True,
        "offsets_topic_num_partitions": 2,
        "default_replication_factor": 3,
    }
    moved: ClassVar[Mapping[str, int]] = {OFFSETS_TOPIC: 2, TRANSACTIONS_TOPIC: 2}

    def __init__(self, seed: int, plan: Sequence[Fault] | None) -> None:
        super().__init__(seed, plan)
        self.markers = MarkerWatch(self.watch, self.ledger)
        if plan is None:
            lags = draw_lags(seed, list(self.world.nodes)) if has_dropper(self.world) else ()
            self.plan = in_order((*self.plan, *draw_late_answers(seed), *draw_lost_answers(seed), *lags))

    def _cast(self) -> list[Actor]:
        world, ledger, count = self.world, self.ledger, self.partitions
        self.topics = {INPUT: count, OUTPUT: count}
        self.ends: dict[tuple[str, int], int] = {}
        """Where the input ended when all of it was transformed."""
        watcher = ClusterReader(world, ledger, "watcher", self.topics, 3.0, IsolationLevel.READ_COMMITTED)
        cast = draw_cast(world, ledger, self.chance, count)
        self.members = watch_of(cast)
        return [*cast, watcher, *self._replica_movers()]

    def _more_settings(self) -> Mapping[str, Any]:
        is_cleaned = random.Random(f"cleaning of {self.world.seed}").random() < CLEANED_SHARE
        return {**group_settings(self.world.seed), **(CLEANED_OFTEN if is_cleaned else {})}

    def _look_closely(self) -> None:
        super()._look_closely()
        if self.members is not None:
            self.members.look()

    def _look(self) -> None:
        super()._look()
        self.markers.look()

    def _finish(self) -> None:
        """Let everybody come to an end, read everything once more, and judge."""
        if not self._stop_all(one for one in self.actors if isinstance(one, ReplicaMover)):
            return
        sources = [one for one in self.actors if isinstance(one, SOURCES)]
        if not self._settle_group() or not self._all_have_committed(sources) or not self._stop_all(sources):
            return
        judge = self.world.client("judge").start(self._all_is_transformed())
        if not self._wait(judge.done, FINISH_S, "all of the input is transformed"):
            return
        judge.result()
        if not self._stop_all(one for one in self.actors if not isinstance(one, ClusterReader)):
            return
        if not self._wait(self._is_settled, FINISH_S, "no transaction is left open, and all replicas are equal"):
            self.ledger.wrong("open", self._what_is_open())
            return
        self.watch.at_end()
        for states in self.states:
            states.at_end()
        judge_tokens(self.world.nodes.values(), self.ledger, self.actors)
        logs = [next(iter(here.values())) for known, _, here in self.watch.replicas() if known.tp.topic in self.topics]
        for actor in self.actors:
            if isinstance(actor, KafkaLister):
                actor.judge(logs)
        if not self.ledger.anomalies and self._stop_all(self.actors):
            self._judge(IsolationLevel.READ_COMMITTED, self.ends)

    def _is_settled(self) -> bool:
        return not self._what_is_open()

    def _what_is_open(self) -> str:
        return self.watch.what_is_unsettled() or ", ".join(filter(None, (one.what_is_open() for one in self.states)))

    async def _all_is_transformed(self) -> None:
        """Wait until the group stands at the end of the input, which has no markers."""
        party = Party(self.world, self.ledger, "judge", "judge", self.chance, JAVA_4)
        ids = await learn_topic_ids(party.wire(), INPUT)
        group = ClassicMember(party, KafkaTransformer.group, {INPUT: (ids[INPUT], self.partitions)})
        group.assigned = frozenset(TopicPartition(INPUT, number) for number in range(self.partitions))
        while True:
            at = await group.committed() or {}
            ends = {tp: end for tp, end in self._ends().items() if tp.topic == INPUT}
            if ends and all(at.get(tp) == end for tp, end in ends.items()):
                # What a late message adds from here on is nobody's to transform.
                self.ends = {(tp.topic, tp.partition): end for tp, end in ends.items()}
                group.close()
                return
            await asyncio.sleep(0.5)
