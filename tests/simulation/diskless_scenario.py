"""The worlds of transactions, with all topics diskless: those of the coordinators, too.

Nodes have nothing on their disks that counts. Half of them lose their disks when they start again.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from simulation.actors import Actor
from simulation.nemesis import Fault
from simulation.scenario import BUSY_S
from simulation.transactions_scenario import TransactionsScenario


class DisklessScenario(TransactionsScenario):
    """The same clients and judges."""

    def __init__(self, seed: int, plan: Sequence[Fault] | None) -> None:
        super().__init__(seed, plan)
        chance = random.Random(f"diskless {seed}")
        objects = self.world.objects
        objects.failed_share = chance.choice((0.0, 0.0, 0.05, 0.3))
        objects.lost_share = chance.choice((0.0, 0.0, 0.05, 0.3))
        for _ in range(chance.choice((0, 0, 1, 3))):
            begins = BUSY_S * chance.random()
            self.world.at(begins, lambda: self._store_is_away(True))
            self.world.at(begins + 2.0 * chance.random(), lambda: self._store_is_away(False))
        are_lost = chance.random() < 0.5
        for node in self.world.nodes.values():
            node.loses_disk = are_lost

    def _store_is_away(self, is_away: bool) -> None:
        self.world.told(f"the store is {'away' if is_away else 'back'}")
        self.world.objects.is_away = is_away

    def _more_settings(self) -> Mapping[str, Any]:
        chance = random.Random(f"settings of diskless {self.world.seed}")
        return {
            **super()._more_settings(),
            "remote_storage_url": "s3://simulated",
            "remote_log_manager_task_interval_ms": chance.choice((300, 2_000)),
            "log_diskless_enable": True,
            "diskless_append_commit_interval_ms": chance.choice((5, 100)),
            "diskless_inline_max_bytes": chance.choice((0, 300, 16 << 10)),
            "diskless_inline_bytes_per_second": chance.choice((1_000, 1 << 20)),
            "log_segment_delete_delay_ms": chance.choice((0, 5_000)),
        }

    def _replica_movers(self) -> list[Actor]:
        return []  # there is one replica, wherever the partition is led

    def _finish(self) -> None:
        objects = self.world.objects
        objects.failed_share = objects.lost_share = 0.0
        super()._finish()
