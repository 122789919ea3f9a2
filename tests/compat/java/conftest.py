"""Tests with Apache Kafka's own Java code. They take minutes, so they run only where asked for: `make compat-java`."""

from __future__ import annotations

from pathlib import Path

import kafka_jars
import pytest
from kafka_tools import KafkaTools

HERE = Path(__file__).resolve().parent


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    asked = [Path(str(argument).partition("::")[0]).resolve() for argument in config.args]
    return None if any(path.is_relative_to(HERE) for path in asked) else True


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
