"""What a program drops without a close starts no thread in a world, which would run at times of its own."""

from __future__ import annotations

import gc
import threading

import pytest

import semel.aio
from simulation.world import World


@pytest.mark.parametrize("kind", ["producer", "consumer"])
def test_a_client_that_is_dropped_in_a_world_starts_no_thread(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(1)
    node = world.add_node()
    node.start()
    assert world.run_until(lambda: node.is_up, 60.0)
    started: list[threading.Thread] = []
    monkeypatch.setattr(threading.Thread, "start", started.append)

    async def use_and_drop() -> None:
        address = world.address("client")
        async with semel.aio.Admin(address) as admin:
            await admin.create_topic("t", partitions=1)
        if kind == "producer":
            producer = semel.aio.Producer(address)
            await producer.send("t", b"v")
            del producer
        else:
            consumer = semel.aio.Consumer(address, group="g", topics=["t"])
            await consumer.poll(0.1)
            del consumer
        gc.collect()

    try:
        world.do(use_and_drop(), world.client("client"))
    finally:
        world.close()
    assert [thread.name for thread in started] == []
