"""Runs one seed in a process that other seeds have used before: nothing of them reaches it."""

from __future__ import annotations

import gc
import sys
import warnings
from collections.abc import Collection, Sequence
from typing import Final

from history import Anomaly

from semel.protocol.kafka import messages
from simulation.cluster_scenario import ClusterScenario
from simulation.diskless_scenario import DisklessScenario
from simulation.few_epochs import few_epochs
from simulation.logged_errors import unexpected_errors
from simulation.nemesis import Fault
from simulation.node_scenario import NodeScenario
from simulation.scenario import Verdict
from simulation.switching_scenario import SwitchingScenario
from simulation.transactions_scenario import TransactionsScenario

ONE_NODE: Final = "node"
CLUSTER: Final = "cluster"
TRANSACTIONS: Final = "transactions"
DISKLESS: Final = "diskless"
SWITCHING: Final = "switching"
WORLDS: Final = {
    ONE_NODE: NodeScenario,
    CLUSTER: ClusterScenario,
    TRANSACTIONS: TransactionsScenario,
    DISKLESS: DisklessScenario,
    SWITCHING: SwitchingScenario,
}
"""The kinds of worlds."""


def run(
    seed: int, plan: Sequence[Fault] | None = None, world: str = ONE_NODE, without: Collection[str] = ()
) -> Verdict:
    """Run one world.

    plan:    in place of the faults that the seed draws
    without: the names of clients that do nothing
    """
    gc.disable()  # the collector would end what a killed process has left, at times of its own
    messages._prepared.clear()  # a node prepares what it speaks when it is first asked: in each world, as in a process
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "coroutine .* was never awaited")  # a killed process leaves some
            with few_epochs(seed), unexpected_errors() as logged:
                verdict = WORLDS[world](seed, plan).run(without)
                verdict.anomalies += [Anomaly("callback", error) for error in logged]
                sys.unraisablehook = lambda _: None  # what a killed process has left can't await in its `finally`
                gc.collect()
            return verdict
    finally:
        sys.unraisablehook = sys.__unraisablehook__
        gc.freeze()  # what is left is not looked through again after the next seed
        gc.enable()
