"""A node with a topic to export, and the commands."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from export_kit import Run
from typer.testing import CliRunner, Result

from semel.cli.main import app
from semel.testing import Broker


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as node:
        yield node


@pytest.fixture
def run(broker: Broker) -> Run:
    def run(*arguments: object) -> Result:
        return CliRunner().invoke(app, [str(one) for one in arguments], env={"SEMEL_BOOTSTRAP": broker.bootstrap})

    return run


@pytest.fixture
def topic(broker: Broker, request: pytest.FixtureRequest) -> str:
    """An empty topic of two partitions."""
    name = f"t-{request.node.name[:60].replace('[', '-').replace(']', '')}-{time.monotonic_ns()}"
    broker.create_topic(name, partitions=2)
    return name
