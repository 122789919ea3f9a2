"""Starts that end before they have registered: the next one that registers tells what they found (R4, R5)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster, CutStore
from moving_cluster import T0, create, run

from semel.broker.metadata.chain import Position
from semel.broker.metadata.changes import BrokerRegistered, Change
from semel.broker.metadata.database import MetadataUnavailableError
from semel.broker.node import Node
from semel.protocol.errors import SemelError
from semel.protocol.ids import NO_LEADER
from semel.runtime.inline_executor import InlineExecutor


class Refusing(CutStore):
    """The database is away when the node registers."""

    def register(self, registered: BrokerRegistered, further: Sequence[Change], **more: Any) -> list[Position]:
        raise MetadataUnavailableError("the database is away")


async def start_in_vain(made: Cluster, node_id: int) -> None:
    config = made.config(node_id)
    store = Refusing(config.metadata_url, timeout_ms=config.metadata_timeout_ms)
    with pytest.raises(SemelError, match="the database is away"):
        await Node.start(config, storage=made.disks[node_id], metadata_store=store, executor=InlineExecutor())


def test_R4_R5_a_replica_that_lost_its_memory_is_elected_by_nobody_after_a_start_that_failed(tmp_path: Path) -> None:
    """The first start recovered, and ended cleanly: the next one told that the replica has all records."""

    async def test(made: Cluster) -> None:
        await create(made, 1, 2, min_isr=2)
        await made.produce(T0, b"acknowledged")
        stays = 1
        await made.kill(2, power=True)
        await made.until(lambda: made.state(T0).isr == (stays,))
        assert made.state(T0).elr == (2,)
        await made.stop(stays)
        await start_in_vain(made, 2)
        await made.start(2)
        await made.until(lambda: made.nodes[3].metadata.image.brokers[stays].is_fenced)
        state = made.state(T0)
        assert (state.leader, state.elr, state.last_known_elr) == (NO_LEADER, (1,), (2,))
        await made.start(stays)
        await made.in_sync(T0, 1, 2)
        assert b"acknowledged" in made.values(2, T0)[0][1]

    run(tmp_path, test, durability="os")


def test_R5_a_start_that_is_no_part_of_the_cluster_tells_nobody_what_it_found(tmp_path: Path) -> None:
    """An operator starts the node alone once, to look at something."""

    async def test(made: Cluster) -> None:
        await create(made, 1, 2, min_isr=2)
        await made.produce(T0, b"acknowledged")
        await made.kill(2, power=True)
        await made.until(lambda: made.state(T0).isr == (1,))
        for node_id in (1, 3):
            await made.stop(node_id)
        alone = await made.start(2, peer_listen="")
        assert not alone.logs.unreported.is_clean
        await made.stop(2)
        again = await made.start(2)
        assert not again.metadata.image.brokers[2].is_clean

    run(tmp_path, test, durability="os")
