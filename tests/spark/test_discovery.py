"""A query that knows a node's Kafka listener alone finds its gRPC listener."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

import pytest

from semel.cli.demo.processes import NodeProcess, free_ports
from semel.protocol.errors import FatalError
from semel.spark.discovery import grpc_addresses

PATIENCE_MS = 60_000


def found(address: str, timeout_ms: float = PATIENCE_MS) -> tuple[str, ...]:
    return asyncio.run(grpc_addresses((address,), "test", timeout_ms=timeout_ms))


def test_a_node_that_is_only_starting_is_waited_for(tmp_path: Path) -> None:
    node = NodeProcess(tmp_path / "data", settings=("disk.min.free.bytes=0",))
    starter = threading.Thread(target=lambda: (time.sleep(0.5), node.start()))
    starter.start()
    try:
        assert found(node.kafka_address) == (node.bootstrap,)
    finally:
        starter.join()
        node.stop()


def test_the_address_of_a_grpc_listener_is_taken_as_it_is(node: NodeProcess) -> None:
    assert found(node.bootstrap) == (node.bootstrap,)


def test_where_nobody_answers_the_error_says_what_to_give() -> None:
    (port,) = free_ports(1)
    with pytest.raises(FatalError, match=f"127.0.0.1:{port}.*Give option bootstrap with the gRPC address"):
        found(f"127.0.0.1:{port}", timeout_ms=500)
