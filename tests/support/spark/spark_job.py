"""A query that copies a topic in several batches, and what its tasks have noted (`spark_faults`)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import spark_faults
from pyspark import cloudpickle
from spark_cluster import WAIT_S, wait_until
from spark_query import read_table, settled_values

import semel
from semel.protocol.ids import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NewTopic = Callable[..., str]

ROWS = 2_400
ROWS_PER_BATCH = 800
BATCHES = 3


class AnyDriver(Protocol):
    """Who runs the query: a process, or a thread of the test."""

    def tell(self, do: str, **order: Any) -> None: ...

    def hear(self) -> dict[str, Any]: ...

    def check(self) -> None:
        """Raise where nothing more is to be expected."""


class DriverThread:
    """The session of the tests as a driver, whose executor is the session's own."""

    def __init__(self, session: SparkSession, bootstrap: str, more: Mapping[str, str]) -> None:
        """`more` are further options of source and sink."""
        cloudpickle.register_pickle_by_value(spark_faults)  # Spark's processes for tasks do not have the tests' path
        session.dataSource.register(spark_faults.FaultySource)
        self._driver = spark_faults.Driver(session, bootstrap, more)
        self._session = session
        self._pool = ThreadPoolExecutor(1, initializer=self._make_active)
        self._orders: list[Future[dict[str, Any]]] = []

    def tell(self, do: str, **order: Any) -> None:
        self._orders.append(self._pool.submit(getattr(self._driver, do), **order))

    def hear(self) -> dict[str, Any]:
        return self._orders.pop(0).result(WAIT_S)

    def check(self) -> None:
        if self._orders and self._orders[0].done():
            raise AssertionError(f"the driver is through already: {self.hear()}")

    def settle(self) -> None:
        """Wait until every order is done, whatever came of it."""
        self._pool.shutdown()

    def _make_active(self) -> None:
        """A thread has no session that is active, and Spark looks for data sources of Python in that one alone."""
        java: Any = self._session.sparkContext._jvm
        java.org.apache.spark.sql.classic.SparkSession.setActiveSession(self._session._jsparkSession)


class Job:
    """A query that copies a topic in several batches, and what its tasks have noted."""

    def __init__(self, driver: AnyDriver, bootstrap: str, new_topic: NewTopic, folder: Path) -> None:
        self._driver = driver
        self._bootstrap = bootstrap
        self._folder = folder
        self._source, self.topic = new_topic(2), new_topic(2)
        self._holds: tuple[str, ...] = ()
        self._expected = Counter(f"row-{number}" for number in range(ROWS))

    @property
    def key(self) -> str:
        """Whose shared transactions the query's are."""
        metadata = json.loads((self._folder / "checkpoint" / "metadata").read_text())
        return f"spark/{metadata['id']}/{self.topic}"

    def start(self, *holds: str) -> None:
        """Copy ROWS unique rows. `holds` are where attempts at tasks stop: BATCH-PARTITION-ATTEMPT-PLACE."""
        self._holds = holds
        with semel.Producer(self._bootstrap) as producer:
            for number in range(ROWS):
                producer.send(self._source, f"row-{number}".encode(), partition=number % 2)
                if number % 200 == 0:
                    producer.flush()  # so that it is read in several parts
            producer.flush()
        self._driver.tell(
            "copy",
            read=self._source,
            write=self.topic,
            folder=str(self._folder),
            holds=holds,
            rows_per_batch=ROWS_PER_BATCH,
        )

    def start_batch_write(self, *holds: str, shuffled: bool = False) -> None:
        """Write the same rows as one batch query; `shuffled`: as the second stage of it."""
        self._holds = holds
        self._driver.tell(
            "write", rows=ROWS, write=self.topic, folder=str(self._folder), holds=holds, shuffled=shuffled
        )

    def held(self, name: str) -> dict[str, Any]:
        """Wait until an attempt stands where it is to stand; return its processes."""
        return self._noted(f"{name}.held", self._driver.check)

    def outcome(self, attempt: str) -> dict[str, Any]:
        """Wait for what became of an attempt's write."""
        return self._noted(f"{attempt}.outcome", lambda: None)

    def has_outcome(self, attempt: str) -> bool:
        return (self._folder / f"{attempt}.outcome").exists()

    def let_go(self, name: str) -> None:
        (self._folder / f"{name}.go").touch()

    def let_all_go(self) -> None:
        for hold in self._holds:
            self.let_go(hold)

    def wait_written_by(self, attempt: str) -> int:
        """Wait until the log holds rows of an attempt, decided or not; return how many."""
        return int(wait_until(lambda: self.written_by()[attempt], f"{attempt} has written", self._driver.check))

    def wait_committed(self, batch_id: int) -> None:
        path = self._folder / "checkpoint" / "commits" / str(batch_id)
        wait_until(path.exists, f"batch {batch_id} is committed")

    def written_by(self, isolation: str = "read_uncommitted") -> Counter[str]:
        """How many rows of each attempt the log holds."""
        table = read_table(bootstrap=self._bootstrap, subscribe=self.topic, kafka__isolation__level=isolation)
        return Counter(key.decode() for key in table.column("key").to_pylist())

    def end(self) -> None:
        """Wait for the query's end. Every row is there once, and the group stands where the output does."""
        assert self._driver.hear() == {"batches": BATCHES}
        self.check_rows()
        expected = {TopicPartition(self._source, partition): ROWS // 2 for partition in range(2)}
        # The commit is answered with its decision; the marker of the offsets may come later than those of the rows.
        with semel.Admin(self._bootstrap) as admin:
            group = f"copy-{self.topic}"
            wait_until(
                lambda: {tp: place.offset for tp, place in admin.group_offsets(group).items()} == expected,
                f"the group stands at {expected}",
            )
        ends = json.loads((self._folder / "checkpoint" / "offsets" / str(BATCHES - 1)).read_text().splitlines()[2])
        assert ends == {self._source: {"0": ROWS // 2, "1": ROWS // 2}}

    def end_batch_write(self) -> None:
        assert self._driver.hear() == {}
        self.check_rows()

    def check_rows(self) -> None:
        found = Counter(settled_values(self._bootstrap, self.topic))
        assert (found - self._expected, self._expected - found) == (Counter(), Counter()), "duplicated, lost"

    def _noted(self, name: str, meanwhile: Callable[[], object]) -> dict[str, Any]:
        path = self._folder / name
        wait_until(path.exists, f"there is {name}", meanwhile)
        noted: dict[str, Any] = json.loads(path.read_text())
        return noted
