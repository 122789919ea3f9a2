"""One node and one session for all tests with Spark: both take long to start."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from everything_diskless import diskless_options
from jvm_start import start_without_fork
from sound_data import sound_data, sound_module_data, sound_session_data  # noqa: F401  (fixtures)

import semel
from semel.cli.demo.processes import NodeProcess
from semel.protocol.errors import UsageError
from semel.spark.java import java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SMALL = (
    "offsets.topic.num.partitions=2",
    "transaction.state.log.num.partitions=2",
    "disk.min.free.bytes=0",
    *diskless_options(),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore"))  # PySpark's own are none of ours
            item.add_marker(pytest.mark.timeout(600))


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    node = NodeProcess(tmp_path_factory.mktemp("node") / "data", settings=SMALL)
    node.start()
    yield node
    node.stop()


@pytest.fixture(scope="session")
def bootstrap(node: NodeProcess) -> str:
    return node.bootstrap


@pytest.fixture
def new_topic(bootstrap: str) -> Callable[..., str]:
    """Makes a topic with a name of its own."""

    def make(partitions: int = 1, **values: list[str]) -> str:
        name = f"t-{uuid.uuid4().hex[:12]}"
        with semel.Admin(bootstrap, connect_timeout_ms=30_000) as admin:
            admin.create_topic(name, partitions=partitions)
        return name

    return make


@pytest.fixture(scope="session")
def spark_environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What processes with Spark need in their environment."""
    try:
        home = java_home(tmp_path_factory.mktemp("java"))
    except UsageError as error:
        pytest.skip(f"no Java can be had: {error}")
    environment = {"PYSPARK_PYTHON": sys.executable, "PYTHONSAFEPATH": "1", "SPARK_LOCAL_IP": "127.0.0.1"}
    return environment if home is None else {**environment, "JAVA_HOME": str(home)}


@pytest.fixture(scope="session")
def spark(spark_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    # Processes that later tests on this worker start are not to have it: it goes when Java has it.
    with pytest.MonkeyPatch.context() as patch:
        for name, value in spark_environment.items():
            patch.setenv(name, value)
        start_without_fork(patch)
        session = _session(tmp_path_factory.mktemp("warehouse"))
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


def _session(warehouse: Path) -> SparkSession:
    from pyspark.sql import SparkSession

    return (
        SparkSession.builder.master("local[2,3]")  # a task is tried three times
        .appName("semel-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(warehouse))
        .config("spark.driver.memory", "1g")
        .getOrCreate()
    )
