"""Tests with Apache Flink. They take minutes, so they run only where asked for: `make compat-flink`."""

from __future__ import annotations

from pathlib import Path

import kafka_jars
import pytest
from java_programs import compile_java
from sound_data import sound_data, sound_module_data, sound_session_data  # noqa: F401  (fixtures)

HERE = Path(__file__).resolve().parent


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    asked = [Path(str(argument).partition("::")[0]).resolve() for argument in config.args]
    return None if any(path.is_relative_to(HERE) for path in asked) else True


@pytest.fixture(scope="session")
def jars() -> Path:
    """The folder with the jars of Flink and its connector to Kafka."""
    try:
        return kafka_jars.flink_jars()
    except kafka_jars.JavaMissingError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def classes(jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the compiled programs of src/."""
    return compile_java(jars, sorted((HERE / "src").glob("*.java")), tmp_path_factory.mktemp("classes"))
