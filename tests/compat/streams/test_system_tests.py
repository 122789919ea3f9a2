"""The programs of Kafka Streams' own system tests, unchanged, on three nodes: they make the input and judge the output.

Instances and nodes are killed while they work, which Kafka's tests do, too.
"""

from __future__ import annotations

from pathlib import Path

import kafka_jars
import pytest
from fed_programs import nodes_in_turn
from java_programs import JavaProcess
from node_processes import NodeProcesses, wait_for

import semel
from semel.protocol.errors import SemelError

PARTITIONS = 5
STEP = 300
"""How much of the input is committed between two kills, in records."""
ENDED_S = 600
EXACTLY_ONCE = ("data", "echo", "min", "sum", "repartition", "max", "cnt")
SMOKE = (
    *("data", "echo", "max", "min", "min-suppressed", "min-raw", "dif", "sum"),
    *("sws-raw", "sws-suppressed", "cnt", "avg", "tagg", "fk"),
)  # fmt: skip


class Programs:
    """Programs of one of the tests: a driver, which makes the input and looks at the output, and two instances."""

    def __init__(self, nodes: NodeProcesses, folder: Path, version: str, test: str, topics: tuple[str, ...]) -> None:
        try:
            self._jars = kafka_jars.streams_test_jars(version)
        except kafka_jars.JavaMissingError as error:
            pytest.skip(str(error))
        self._nodes = nodes
        self._folder = folder
        self._main = f"org.apache.kafka.streams.tests.{test}"
        self._topics = topics
        self._running: list[JavaProcess] = []
        with semel.Admin(nodes.bootstrap) as admin:
            for topic in topics:
                admin.create_topic(topic, partitions=PARTITIONS, replication_factor=3)

    def __enter__(self) -> Programs:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._running:
            process.kill()

    def start(self, name: str, command: str) -> JavaProcess:
        settings = {
            "bootstrap.servers": ",".join(self._nodes.kafka.values()),
            "processing.guarantee": "exactly_once_v2",
            "state.dir": self._folder / f"state-{name}",
        }
        path = self._folder / f"{name}.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        log = self._folder / f"{name}.log"
        process = JavaProcess(self._jars, self._folder, self._main, str(path), command, log=log)
        process.start()
        self._running.append(process)
        return process

    def committed(self, group: str) -> int:
        """How many records of the input the group has committed, where the cluster can say it now."""
        try:
            with semel.Admin(self._nodes.bootstrap, api_timeout_ms=60_000) as admin:
                return sum(one.offset for tp, one in admin.group_offsets(group).items() if tp.topic == "data")
        except SemelError:
            return 0

    def kill_in_turn(self, group: str, instances: list[JavaProcess], driver: JavaProcess, rounds: int) -> None:
        """Kill an instance, and then a node, each when the group has come further since the last kill."""
        kill_node = nodes_in_turn(self._nodes)
        for number in range(rounds):
            before = self.committed(group)

            def is_further(before: int = before) -> bool:
                assert driver.is_running, driver.log_tail()
                return self.committed(group) >= before + STEP

            wait_for(is_further, f"{STEP} more records that {group} has committed")
            if number % 2:
                kill_node.kill(lambda: None)
            else:
                instance = instances[number // 2 % len(instances)]
                instance.kill()
                instance.start()


def test_E1_their_test_of_exactly_once_finds_every_record_once(nodes: NodeProcesses, tmp_path: Path) -> None:
    """From 4.0 on this one is in an archive that is not published."""
    with Programs(nodes, tmp_path, kafka_jars.OLDER, "StreamsEosTest", EXACTLY_ONCE) as programs:
        instances = [programs.start(f"instance-{number}", "process-complex") for number in (1, 2)]
        driver = programs.start("driver", "run")
        programs.kill_in_turn("EosTest", instances, driver, rounds=5)
        driver.stop()
        for instance in instances:
            instance.stop()
        judge = programs.start("judge", "verify-complex")
        assert judge.wait_ended(ENDED_S) == 0, judge.log_tail()
        assert "ALL-RECORDS-DELIVERED" in judge.log()


def test_E1_their_smoke_test_is_passed(nodes: NodeProcesses, tmp_path: Path) -> None:
    """Windows, suppression, joins by foreign keys: the driver compares with what it has computed itself."""
    with Programs(nodes, tmp_path, kafka_jars.NEWEST, "StreamsSmokeTest", SMOKE) as programs:
        instances = [programs.start(f"instance-{number}", "process") for number in (1, 2)]
        driver = programs.start("driver", "run")
        programs.kill_in_turn("SmokeTest", instances, driver, rounds=3)
        assert driver.wait_ended(ENDED_S) == 0, driver.log_tail()
        assert "SUCCESS" in driver.log(), driver.log_tail()
