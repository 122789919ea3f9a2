"""A follower that can't write a replica takes itself out of the in-sync replicas, and nobody waits for it."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

from cluster import Cluster
from moving_cluster import T0, create, run

HOUR_MS = 3_600_000


def fill(made: Cluster, node_id: int) -> None:
    error = OSError(errno.ENOSPC, "No space left on device")
    made.disks[node_id].fail_next("append", error, path_part="/t-0/", times=1_000_000)


def test_R2_R5_producers_do_not_wait_for_a_follower_whose_disk_is_full(tmp_path: Path) -> None:
    """They waited for replica.lag.time.max.ms, 30 s, until it counted as lagging."""

    async def test(made: Cluster) -> None:
        await create(made, 1, 2, 3, min_isr=2)
        await made.produce(T0, b"before")
        full, other = (node for node in (1, 2, 3) if node != made.state(T0).leader)
        await made.until(lambda: made.nodes[full].partition(T0).high_watermark == 1)  # type: ignore[union-attr]
        fill(made, full)
        await made.produce(T0, b"during")
        assert set(made.state(T0).isr) == {1, 2, 3} - {full}
        await made.produce(T0, b"without it")
        made.disks[full].fail_no_more()
        await made.in_sync(T0, 1, 2, 3)
        assert [data for _, data in made.values(full, T0)] == [data for _, data in made.values(other, T0)]

    run(tmp_path, test, replica_lag_time_max_ms=HOUR_MS)


def test_R2_a_follower_whose_disk_is_full_stays_where_too_few_would_be_left(tmp_path: Path) -> None:
    """Without it nothing is committed either, and fewer replicas would count as complete."""

    async def test(made: Cluster) -> None:
        await create(made, 1, 2, min_isr=2)
        await made.produce(T0, b"before")
        (full,) = {1, 2} - {made.state(T0).leader}
        fill(made, full)
        epoch = made.state(T0).partition_epoch
        waiting = asyncio.ensure_future(made.produce(T0, b"during"))
        replicas = made.nodes[full]._replicas
        assert replicas is not None
        await made.until(replicas._unwritable)
        await replicas._departures.leave(replicas._unwritable())
        assert (made.state(T0).partition_epoch, waiting.done()) == (epoch, False)
        made.disks[full].fail_no_more()
        await waiting

    run(tmp_path, test, replica_lag_time_max_ms=HOUR_MS)
