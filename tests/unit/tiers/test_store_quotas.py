"""The quotas of the remote storage: so many bytes and requests a second, and no more (KIP-956, S2)."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from pathlib import Path

import pytest
from memory_objects import MemoryObjects
from running_node import create_topic
from tiered_topic import (
    NOTHING_LOCAL,
    all_copied,
    fill,
    left_the_disk,
    read_all,
    run_tiered,
    serving,
    tier_of,
    tiered_node,
    until,
)

from semel.broker.config.node_config import NodeConfig
from semel.broker.handlers.configs import alter_configs
from semel.broker.node import Node
from semel.broker.tiers.object_store import PIECE_BYTES
from semel.broker.tiers.store_quotas import StoreQuotas
from semel.protocol.api.metadata import AlterConfigsRequest, ResourceType
from semel.protocol.int_bounds import INT64_MAX
from semel.runtime.clock import ManualClock

MIB = 1 << 20


class Quotas:
    """Those of a node whose settings and clock are the test's."""

    def __init__(self, **settings: int) -> None:
        self.config = NodeConfig(data_dir="unused", **settings)  # type: ignore[arg-type]
        self.clock = ManualClock()
        self.quotas = StoreQuotas(lambda: self.config, self.clock)


def test_without_a_setting_nothing_waits() -> None:
    known = Quotas()

    async def test() -> None:
        for _ in range(1_000):
            await known.quotas.wait_to_copy()
            known.quotas.copies(1 << 40)
            await known.quotas.fetch(1 << 40, lambda: True)
        assert known.quotas.put_wait_s() == 0

    asyncio.run(test())
    assert set(known.quotas.throttled_s.values()) == {0.0}


@pytest.mark.parametrize(("size", "puts"), [(100, 1), (PIECE_BYTES, 3), (2 * PIECE_BYTES + 1, 5)])
def test_an_object_counts_for_as_many_puts_as_the_store_is_sent(size: int, puts: int) -> None:
    known = Quotas(remote_storage_put_requests_per_second=1)
    known.quotas.puts(size)
    known.quotas.puts(100)
    known.quotas.puts(100)
    assert known.quotas.put_wait_s() == pytest.approx(puts)


def test_two_seconds_worth_may_be_taken_at_once_and_one_request_more() -> None:
    known = Quotas(remote_log_manager_copy_max_bytes_per_second=MIB)
    for _ in range(2):
        known.quotas.copies(MIB)
        assert known.quotas._copy_wait_s() == 0
    known.quotas.copies(10 * MIB)
    assert known.quotas._copy_wait_s() == pytest.approx(10)
    known.clock.advance(ms=9_000)
    assert known.quotas._copy_wait_s() == pytest.approx(1)
    known.config = replace(known.config, remote_log_manager_copy_max_bytes_per_second=10 * MIB)
    assert known.quotas._copy_wait_s() == pytest.approx(0.1), "a setting that was raised counts at once"


def test_S3_appends_come_before_copies() -> None:
    """A segment of 64 MiB is six puts. Appends wait for what appends have taken, and copies for what both have."""
    known = Quotas(remote_storage_put_requests_per_second=1)
    known.quotas.copies(64 * MIB)
    assert (known.quotas.put_wait_s(), known.quotas._copy_wait_s()) == (0, pytest.approx(4))
    for _ in range(3):
        known.quotas.puts(100)
    assert (known.quotas.put_wait_s(), known.quotas._copy_wait_s()) == (pytest.approx(1), pytest.approx(7))


def test_what_nobody_wants_any_more_takes_nothing_of_the_quota() -> None:
    known = Quotas(remote_log_manager_fetch_max_bytes_per_second=1)
    known.quotas._fetched.take(1_000, 1, 0.0)
    assert not asyncio.run(known.quotas.fetch(1_000_000, lambda: False))
    assert known.quotas._fetch_wait_s() == pytest.approx(998)


@pytest.mark.parametrize("seed", range(5))
def test_S2_no_more_is_taken_than_the_settings_say_however_it_comes(seed: int) -> None:
    """Whatever the sizes and pauses: in any stretch of time no more than two seconds' worth, the time's, and one."""
    chance = random.Random(seed)
    rate, gets = chance.choice((1_000, 50_000)), chance.choice((1, 20, INT64_MAX))
    known = Quotas(remote_log_manager_fetch_max_bytes_per_second=rate, remote_storage_get_requests_per_second=gets)
    taken: list[tuple[float, int]] = []
    for _ in range(300):
        known.clock.advance(ms=chance.choice((0, 1, 40, 3_000)))
        while (left_s := known.quotas._fetch_wait_s()) > 0:
            known.clock.advance(ms=int(left_s * 1000) + 1)
        size = chance.choice((1, 900, 20_000))
        asyncio.run(known.quotas.fetch(size, lambda: True))
        taken.append((known.clock.monotonic(), size))
    for first in range(0, len(taken), 7):
        begun_s, total, count = taken[first][0], 0, 0
        for now_s, size in taken[first:]:
            assert total <= rate * (2 + now_s - begun_s) + 20_000
            assert count <= gets * (2 + now_s - begun_s) + 1
            total, count = total + size, count + 1


def test_a_node_copies_no_faster_than_its_quota_and_goes_on_when_it_is_raised(tmp_path: Path) -> None:
    async def main() -> None:
        objects = MemoryObjects()
        async with tiered_node(tmp_path, objects, remote_storage_put_requests_per_second=1) as node:
            await create_topic(node, "t", **NOTHING_LOCAL)
            await serving(node)
            begun_s = node.clock.monotonic()
            await fill(node, 100)
            await until(lambda: objects.requests["put"] >= 3)
            assert objects.requests["put"] <= 2 + (node.clock.monotonic() - begun_s) + 1
            tier = node.tier
            assert tier is not None
            await until(lambda: tier.throttled_s()["copy"] > 0)
            await raise_to(node, "remote.storage.put.requests.per.second", 1_000_000)
            await all_copied(node)
            assert len(objects.objects) > 20

    asyncio.run(main())


def test_D6_retention_has_its_turn_while_copies_wait(tmp_path: Path) -> None:
    async def main() -> None:
        objects = MemoryObjects()
        async with tiered_node(tmp_path, objects, remote_storage_put_requests_per_second=2) as node:
            await create_topic(node, "t", **NOTHING_LOCAL)
            await serving(node)
            await fill(node, 200)
            await until(lambda: objects.requests["put"] >= 5)
            part = tier_of(node)
            assert part.bytes_to_copy > 0
            await alter_configs(
                node,
                AlterConfigsRequest(ResourceType.TOPIC, "t", {"retention.bytes": "3000", "local.retention.bytes": "1"}),
            )
            await until(lambda: part.remote.start_offset > 5)
            assert part.bytes_to_copy > 0, "it had its turn before all was copied"

    asyncio.run(main())


def test_S2_readers_get_all_of_it_no_faster_than_the_quota(tmp_path: Path) -> None:
    async def test(node: Node, objects: MemoryObjects) -> None:
        values = await fill(node, 60)
        await left_the_disk(node)
        await raise_to(node, "remote.storage.get.requests.per.second", 5)
        begun_s, before = node.clock.monotonic(), objects.requests["read"]
        assert await read_all(node) == list(enumerate(values))
        reads = objects.requests["read"] - before
        assert 10 < reads <= 2 * 5 + 5 * (node.clock.monotonic() - begun_s) + 1
        tier = node.tier
        assert tier is not None
        assert tier.throttled_s()["fetch"] > 0

    run_tiered(tmp_path, test)


async def raise_to(node: Node, name: str, value: int) -> None:
    """Change a setting of the node while it runs."""
    node_id = str(node.config.node_id)
    await alter_configs(node, AlterConfigsRequest(ResourceType.BROKER, node_id, {name: str(value)}))
