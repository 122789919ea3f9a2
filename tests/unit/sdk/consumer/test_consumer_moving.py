"""A reader that moves while a fetch of its waits at the node: it must not wait for that one's end.

No clock is looked at: the node may hold a fetch for longer than any test may last, so what arrives did not wait for it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from consumer_kit import FACES, Kit, read, values
from live_node import LiveNode

LONG_MS = 3_600_000
WAIT_S = 60


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveNode]:
    folder: Path = tmp_path_factory.mktemp("moving")
    with LiveNode(folder) as node:
        yield node


@pytest.fixture(params=sorted(FACES))
def kit(node: LiveNode, request: pytest.FixtureRequest) -> Iterator[Kit]:
    kit = Kit(node, request.param)
    yield kit
    kit.close()


def waits_at_the_node(consumer: Any) -> bool:
    """Whether a fetch of the consumer's was sent and is not answered."""
    connections = consumer._core.client.connections
    connection = connections.opened(0) or connections.opened(1)
    return connection is not None and connection.in_flight > 0


def idle(consumer: Any) -> None:
    """Until the reader has read everything, and its next fetch waits for more."""
    deadline = time.monotonic() + WAIT_S
    still = 0
    while still < 3:
        assert time.monotonic() < deadline
        assert consumer.poll(0.05) is None
        still = still + 1 if waits_at_the_node(consumer) else 0


def test_a_seek_in_an_idle_topic_waited_for_the_old_fetch(kit: Kit) -> None:
    (tp,) = kit.create()
    kit.fill("a", "b", "c")
    consumer = kit.consumer(max_wait_ms=LONG_MS)
    consumer.assign([tp])
    assert read(consumer, 3) == ["a", "b", "c"]
    for _ in range(3):
        idle(consumer)
        consumer.seek(tp, 1)
        assert values(consumer.poll(WAIT_S)) == ["b", "c"]
    idle(consumer)
    consumer.seek_to_beginning([tp])
    assert values(consumer.poll(WAIT_S)) == ["a", "b", "c"]


def test_an_aborted_transaction_in_an_idle_topic_waited_for_the_old_fetch(kit: Kit) -> None:
    (tp,) = kit.create()
    kit.fill("a", "b")
    consumer = kit.consumer(max_wait_ms=LONG_MS)
    consumer.assign([tp])
    batch = consumer.poll(WAIT_S)
    assert values(batch) == ["a", "b"]
    idle(consumer)
    batch.rewind()
    assert values(consumer.poll(WAIT_S)) == ["a", "b"]


def test_a_partition_that_is_resumed_or_added_waited_for_the_fetch_of_the_others(kit: Kit) -> None:
    one, other, third = kit.create(3)
    for number in range(3):
        kit.fill(f"x{number}", partition=number)
    consumer = kit.consumer(max_wait_ms=LONG_MS)
    consumer.assign([one, other])
    consumer.pause([other])
    assert read(consumer, 1) == ["x0"]
    idle(consumer)
    consumer.resume([other])
    assert values(consumer.poll(WAIT_S)) == ["x1"]
    idle(consumer)
    consumer.assign([one, other, third])
    assert values(consumer.poll(WAIT_S)) == ["x2"]


def test_what_waits_beside_a_partition_that_moves_is_not_lost(kit: Kit) -> None:
    one, other = kit.create(2)
    kit.fill("a", partition=0)
    consumer = kit.consumer(max_wait_ms=LONG_MS)
    consumer.assign([one, other])
    assert read(consumer, 1) == ["a"]
    idle(consumer)
    consumer.seek(one, 0)
    assert values(consumer.poll(WAIT_S)) == ["a"]
    kit.fill("b", partition=1)
    assert values(consumer.poll(WAIT_S)) == ["b"]


def test_moving_is_no_failure_of_the_node(kit: Kit, caplog: pytest.LogCaptureFixture) -> None:
    (tp,) = kit.create()
    kit.fill("a")
    consumer = kit.consumer(max_wait_ms=LONG_MS)
    consumer.assign([tp])
    assert read(consumer, 1) == ["a"]
    for _ in range(10):
        idle(consumer)
        consumer.seek(tp, 0)
        assert values(consumer.poll(WAIT_S)) == ["a"]
    assert consumer._core._fetcher._failures == 0
    assert not [record for record in caplog.records if record.levelno > logging.INFO]


def test_the_node_keeps_one_session_for_a_reader_that_moves(kit: Kit) -> None:
    (tp,) = kit.create()
    kit.fill("a")
    consumer = kit.consumer(max_wait_ms=LONG_MS)
    consumer.assign([tp])
    assert read(consumer, 1) == ["a"]
    before = len(kit.node.node.fetch.sessions)
    for _ in range(5):
        idle(consumer)
        consumer.seek(tp, 0)
        assert values(consumer.poll(WAIT_S)) == ["a"]
    assert len(kit.node.node.fetch.sessions) <= before + 1
