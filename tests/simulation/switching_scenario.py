"""The worlds of transactions whose topics become diskless while they are written to, at a time that the seed draws.

In most worlds the coordinators' topics do, too, which are compacted. What is not switched is on disks: no node loses
its disk.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, Final

from semel.broker.handlers.configs import alter_configs
from semel.broker.node import Node
from semel.protocol.api.metadata import AlterConfigsRequest, ResourceType
from semel.protocol.errors import SemelError
from semel.protocol.ids import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from simulation.diskless_scenario import DisklessScenario
from simulation.nemesis import Fault
from simulation.scenario import BUSY_S
from simulation.transactions_scenario import FINISH_S

_ASKS_EVERY_S: Final = 0.5


class SwitchingScenario(DisklessScenario):
    """The same clients and judges, and an operator."""

    def __init__(self, seed: int, plan: Sequence[Fault] | None) -> None:
        super().__init__(seed, plan)
        chance = random.Random(f"switching {seed}")
        for node in self.world.nodes.values():
            node.loses_disk = False
        coordinators = chance.choice(((), (OFFSETS_TOPIC,), (TRANSACTIONS_TOPIC,), (OFFSETS_TOPIC, TRANSACTIONS_TOPIC)))
        self._switched = (*self.topics, *coordinators)
        for topic in self._switched:
            self.world.at(BUSY_S * chance.uniform(0.1, 0.9), lambda topic=topic: self._ask(topic))  # type: ignore[misc]

    def _more_settings(self) -> Mapping[str, Any]:
        return {**super()._more_settings(), "log_diskless_enable": False}

    def _ask(self, topic: str) -> None:
        """Have a topic made diskless, again and again until the metadata says that it is to be."""
        found = self.watch.image.topic(topic)
        if found is not None and found.is_diskless:
            return
        running = self.watch.running()
        if found is not None and running:
            node_id = self.chance.choice(sorted(running))
            process = self.nodes[node_id].process
            assert process is not None
            self.world.told(f"{topic} is to become diskless, says an operator to n{node_id}")
            process.start(_make_diskless(running[node_id], topic), name="an operator")
        self.world.later(_ASKS_EVERY_S, lambda: self._ask(topic))

    def _left(self) -> list[str]:
        """Return the partitions that are still on disks."""
        image = self.watch.image
        return [
            f"{name}-{number}"
            for name in self._switched
            if (topic := image.topic(name)) is not None
            for number, state in enumerate(topic.partitions)
            if not topic.has_diskless(state)
        ]

    def _finish(self) -> None:
        objects = self.world.objects
        objects.failed_share = objects.lost_share = 0.0  # with small segments and a third lost, copying never ends
        if not self._wait(lambda: not self._left(), FINISH_S, "all topics are diskless"):
            self.ledger.wrong("not finished", f"still on disks: {', '.join(self._left())}")
            return
        super()._finish()


async def _make_diskless(node: Node, topic: str) -> None:
    try:
        await alter_configs(node, AlterConfigsRequest(ResourceType.TOPIC, topic, {"diskless.enable": "true"}))
    except SemelError:
        return  # it is asked again
