"""Sinks restart and rebalance while nodes die, and each record is one row (E1, E3).

The rows and the offsets are in one database, the records and the group on three nodes.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from longer_runs import given
from node_processes import node_processes
from sink_runs import check_appended, check_dead_letters, prepare, run
from sql_chaos import Cast

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
SEED = int(given("SEMEL_CHAOS_SEED", "1"))
ROUNDS = 1 + int(given("SEMEL_CHAOS_SECONDS", "0")) // 20
FAULTS = ["worker", "worker", "freeze", "node", "node-freeze", "node-stop"]


@pytest.mark.drawn(1, "pipelines on three nodes")
def test_E1_E3_each_record_is_one_row_while_nodes_are_away_and_sinks_rebalance(tmp_path: Path) -> None:
    """Workers have no names of their own in the group: with each that dies or comes, partitions move.

    One is frozen until all is done to the nodes. It then finds its partitions with others, and the rows that it has
    in its hands written by them.
    """
    url = f"sqlite:///{tmp_path}/database.db"
    engine = prepare(url)
    settings = {"broker.session.timeout.ms": 2_000, "controller.lease.ms": 2_000}
    with (
        node_processes(tmp_path / "cluster", **settings) as nodes,
        Cast(tmp_path, "append", url, None, nodes=nodes, static=False) as cast,
    ):
        records = run(cast, engine, SEED, FAULTS * ROUNDS, with_poison=True)
        check_dead_letters(cast, engine, records)
    check_appended(engine, records)
