"""Tests with Apache Beam. They take minutes, so they run only where asked for: `make compat-beam`."""

from __future__ import annotations

from pathlib import Path

import kafka_jars
import pytest
from fed_nodes import node, nodes  # noqa: F401 (fixtures)
from java_programs import compile_java

HERE = Path(__file__).resolve().parent


@pytest.fixture(scope="session")
def jars() -> Path:
    """The folder with the jars of Beam, its KafkaIO and its runner on Flink."""
    try:
        return kafka_jars.beam_jars()
    except kafka_jars.JavaMissingError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def classes(jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the compiled programs of src/."""
    return compile_java(jars, sorted((HERE / "src").glob("*.java")), tmp_path_factory.mktemp("classes"))
