"""Tests with Apache Kafka's own Java code. They take minutes, so they run only where asked for: `make compat-java`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import kafka_jars
import pytest
from kafka_tools import Done, KafkaTools

from semel.cli.demo.processes import NodeProcess

HERE = Path(__file__).resolve().parent


def tools_of(version: str) -> KafkaTools:
    try:
        return KafkaTools(version)
    except kafka_jars.JavaMissingError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def tools() -> KafkaTools:
    """The newest release's tools."""
    return tools_of(kafka_jars.NEWEST)


@pytest.fixture(scope="session", params=[kafka_jars.NEWEST, kafka_jars.OLDER])
def each_tools(request: pytest.FixtureRequest) -> KafkaTools:
    """The tools of each release that is tested with."""
    return tools_of(request.param)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A node of its own for each file of tests."""
    settings = ("offsets.topic.num.partitions=3", "transaction.state.log.num.partitions=3")
    node = NodeProcess(tmp_path_factory.mktemp("node") / "data", settings=settings)
    node.start()
    yield node
    assert node.is_running, node.log_tail()
    assert node.stop() == 0


Program = Callable[..., list[str]]


@pytest.fixture(scope="session")
def java_program(each_tools: KafkaTools, tmp_path_factory: pytest.TempPathFactory) -> Program:
    """Run a class of src/ to its end, and return the steps that it says have passed."""
    classes = each_tools.compile(HERE / "src", tmp_path_factory.mktemp("classes"))

    def run(name: str, *arguments: str) -> list[str]:
        done: Done = each_tools.run(name, *arguments, classes=classes).succeeded()
        return [line.removeprefix("passed: ") for line in done.lines()]

    return run
