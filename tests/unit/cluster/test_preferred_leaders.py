"""A node that was away leads again, without an operator (R4)."""

from __future__ import annotations

import asyncio
from pathlib import Path

from cluster import Cluster
from moving_cluster import T0, create, run


def test_R4_a_node_that_comes_back_leads_again_what_prefers_it(tmp_path: Path) -> None:
    async def test(made: Cluster) -> None:
        await create(made, 1, 2, 3, min_isr=2)
        for strike in (made.kill, made.stop):
            await strike(1)
            await made.until(lambda: made.state(T0).leader in (2, 3))
            await made.produce(T0, b"value")
            await made.start(1)
            await made.until(lambda: made.leader(T0) is made.nodes[1])
            await made.produce(T0, b"value")
            assert made.values(1, T0)

    run(tmp_path, test, leader_imbalance_check_interval_seconds=1)


def test_where_an_operator_is_to_say_so_others_lead_on(tmp_path: Path) -> None:
    async def test(made: Cluster) -> None:
        await create(made, 1, 2, 3, min_isr=2)
        await made.kill(1)
        await made.until(lambda: made.state(T0).leader in (2, 3))
        await made.start(1)
        await made.in_sync(T0, 1, 2, 3)
        await asyncio.sleep(2.5)  # some rounds
        assert made.state(T0).leader in (2, 3)

    run(tmp_path, test, leader_imbalance_check_interval_seconds=1, auto_leader_rebalance_enable=False)
