"""Worlds with one node: clients of the SDK and of Kafka's protocol, transactions, a pipeline between topics."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from typing import Any, Final

import semel.aio
from semel.broker.logs.partition import Partition
from semel.protocol.api.groups import FetchedOffset
from semel.protocol.errors import SemelError
from semel.protocol.ids import TopicPartition
from simulation.actors import INPUT, OUTPUT
from simulation.casting import SOURCES, draw_cast, group_settings, watch_of
from simulation.checks import LogWatch
from simulation.kafka_actors import KafkaTransformer
from simulation.kafka_deleter import HEADS, KafkaDeleter, deleting_settings
from simulation.kafka_lister import KafkaLister
from simulation.kept_producers import expiring_settings
from simulation.nemesis import Fault, Stage
from simulation.plans import draw_ends_in_cleaning, draw_lost_answers, draw_plan, in_order
from simulation.scenario import BUSY_S, HEAL_S, Scenario
from simulation.sdk_observers import Reader
from simulation.sdk_pipelines import Transformer
from simulation.state_checks import StateChecks, judge_tokens
from simulation.world import CLOCKS_OFF_MS

CLEANED_OFTEN: Final[Mapping[str, Any]] = {
    "offsets_topic_segment_bytes": 1_500,
    "transaction_state_log_segment_bytes": 1_500,
    "log_cleaner_backoff_ms": 500,
}
"""Where the node ends in cleanings, there are many."""
JOURNAL_FILE_BYTES: Final = (1 << 12, 1 << 16, 1 << 16)
"""In one of three worlds the journal has many files, of which several go at a time."""


def _draw_settings(chance: random.Random) -> dict[str, Any]:
    """Draw how the node keeps its logs: whether they are flushed, rolled and compacted while there are faults."""
    segment_bytes = chance.choice((1_500, 5_000, 1 << 20))
    return {
        "journal_inline_sync_max_bytes": chance.choice((1, 1, 1 << 20)),
        "journal_direct_write_bytes": chance.choice((200, 1 << 16)),
        "log_flush_interval_ms": chance.choice((300, 2_000, 60_000)),
        "log_segment_bytes": segment_bytes,
        "offsets_topic_segment_bytes": segment_bytes,
        "transaction_state_log_segment_bytes": segment_bytes,
        "transaction_state_log_num_partitions": chance.choice((1, 2)),
        "transaction_two_phase_commit_enable": True,
        "log_index_interval_bytes": chance.choice((100, 4_096)),
        "controller_lease_ms": chance.choice((2_000, 10_000)),
        "log_cleaner_backoff_ms": chance.choice((1_000, 15_000)),
    }


class NodeScenario(Scenario):
    def __init__(self, seed: int, plan: Sequence[Fault] | None) -> None:
        super().__init__(seed)
        world, chance = self.world, self.chance
        more = {**group_settings(seed), **deleting_settings(world), **expiring_settings(world)}
        journal = {"journal_file_bytes": random.Random(f"journal of {seed}").choice(JOURNAL_FILE_BYTES)}
        ends = draw_ends_in_cleaning(seed)
        cleaned = CLEANED_OFTEN if ends else {}
        self.node = world.add_node(**{**_draw_settings(chance), **journal, **more, **cleaned})
        self.node.clock.off_ms = chance.choice(CLOCKS_OFF_MS)
        world.executor.longest_s = chance.choice((0.004, 0.03, 0.2))
        self.partitions = chance.randint(1, 3)
        self.actors = draw_cast(world, self.ledger, chance, self.partitions)
        self.members = watch_of(self.actors)
        self.ends: dict[tuple[str, int], int] = {}
        """Where the input ended when all of it was transformed."""
        self.watch = LogWatch(self.node, self.ledger)
        self.states = StateChecks(world, self.node, self.ledger)
        names = [actor.name for actor in self.actors]
        aside = (*draw_lost_answers(seed), *ends)
        drawn = in_order((*draw_plan(chance, names, BUSY_S, 14), *aside))
        self.plan = drawn if plan is None else tuple(plan)

    @property
    def batches(self) -> int:
        return self.watch.batches

    def _begin(self) -> bool:
        self.node.start()
        if not self._wait(lambda: self.node.is_up, 60.0, "the node starts"):
            return False
        self.world.do(self._prepare(), self.world.client("admin"))
        return True

    def _stage(self) -> Stage:
        return Stage(self.world, self.actors)

    def _look(self) -> None:
        self.states.producers.look()
        self.watch.look()

    def _look_closely(self) -> None:
        self.states.look()
        if self.members is not None:
            self.members.look()

    async def _prepare(self) -> None:
        async with semel.aio.Admin(self.world.address("admin")) as admin:
            for topic in (INPUT, OUTPUT):
                await admin.create_topic(topic, partitions=self.partitions)
            for actor in self.actors:
                if isinstance(actor, KafkaDeleter):
                    await admin.create_topic(HEADS.topic, partitions=1, configs=actor.configs)

    def _finish(self) -> None:
        """Let everybody come to an end, read everything once more, and judge."""
        sources = [actor for actor in self.actors if isinstance(actor, SOURCES)]
        if not self._settle_group() or not self._all_have_committed(sources) or not self._stop_all(sources):
            return
        judge = self.world.client("judge").start(self._all_is_transformed())
        if not self._wait(judge.done, HEAL_S, "all of the input is transformed"):
            return
        judge.result()
        if not self._stop_all(self.actors):
            return
        if not self._wait(self.states.is_settled, HEAL_S, "no transaction is left open"):
            self.ledger.wrong("open", self.states.what_is_open())
            return
        self.states.at_end()
        judge_tokens([self.node], self.ledger, self.actors)
        for actor in self.actors:
            if isinstance(actor, KafkaLister):
                actor.judge(self._logs_of(INPUT, OUTPUT))
        self._judge()

    async def _all_is_transformed(self) -> None:
        """Wait until each group stands at the end of the input, which has no markers."""
        pipelines = [one for one in self.actors if isinstance(one, (Transformer, KafkaTransformer))]
        groups = {one.group for one in pipelines if one.lives}  # not of one that is left out
        async with semel.aio.Admin(self.world.address("judge")) as admin:
            while True:
                try:
                    found = [await admin.group_offsets(group) for group in sorted(groups)]
                    if all(self._is_at_end(offsets) for offsets in found):
                        return
                except SemelError as error:
                    self.world.told(f"the judge has to ask again: {error.message}")
                await asyncio.sleep(0.5)

    def _is_at_end(self, offsets: Mapping[TopicPartition, FetchedOffset]) -> bool:
        at = {tp: found.offset for tp, found in offsets.items()}
        logs = self._logs_of(INPUT)
        if not logs or any(at.get(one.tp, 0) != one.high_watermark for one in logs):
            return False
        # What a late message adds from here on is nobody's to transform.
        self.ends = {(one.tp.topic, one.tp.partition): one.high_watermark for one in logs}
        return True

    def _logs_of(self, *topics: str) -> list[Partition]:
        node = self.node.node
        return [] if node is None else [one for one in node.logs.partitions() if one.tp.topic in topics]

    def _judge(self) -> None:
        final = Reader(self.world, self.ledger, "final", {INPUT: self.partitions, OUTPUT: self.partitions})
        final.start()
        partitions = self._logs_of(INPUT, OUTPUT)
        if not self._wait(
            lambda: all(final.stands_at(one.tp) >= one.high_watermark for one in partitions), HEAL_S, "the final read"
        ):
            return
        found = self.ledger.check(self.ends)
        self.ledger.anomalies[:] = found
