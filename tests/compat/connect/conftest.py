"""Tests with Kafka Connect and its connectors. They take minutes: `make compat-connect` alone runs them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import kafka_jars
import pytest
from kafka_tools import KafkaTools

from semel.cli.demo.processes import NodeProcess


@pytest.fixture(scope="session")
def connect_tools() -> KafkaTools:
    try:
        return KafkaTools(jars=kafka_jars.connect_jars)
    except kafka_jars.JavaMissingError as error:
        pytest.skip(str(error))


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    """A node of its own for each test. It is killed by some, and must run at the end."""
    settings = ("offsets.topic.num.partitions=3", "transaction.state.log.num.partitions=3")
    node = NodeProcess(tmp_path / "data", settings=settings)
    node.start()
    yield node
    running = node.is_running
    assert node.stop() == 0
    assert running, node.log_tail()
