"""A program of others that transforms topics at work: input that is written part by part, faults, and its output."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import confluent_kafka
from foreign_clients import QUIET
from node_processes import NodeProcesses, is_in_sync, wait_for

import semel
from semel.cli.demo.processes import NodeProcess

SLICE = 20
SLICES_MAX = 50
"""Of a part of the input: records that are written at once, and how often at most."""
RECORDS_A_FAULT = 2_000
PATIENCE_S = 300
"""A member that was killed is missed after its session's 6 s, its transaction is aborted after 10 s."""


class Source(Protocol):
    """Numbered input, all of it made before."""

    @property
    def count(self) -> int: ...

    def send(self, producer: semel.Producer, number: int) -> None: ...

    def outputs(self, count: int) -> int:
        """Return how many outputs the first `count` of the input have, of the kind that `Results.seen` counts."""


class Results(Protocol):
    """What a reader of committed records has seen."""

    @property
    def seen(self) -> int: ...

    def add(self, topic: str, key: bytes, value: bytes) -> None: ...


ResultsT = TypeVar("ResultsT", bound=Results)


class Program(Protocol):
    """What is fed: one process, or several."""

    def check(self) -> None:
        """Fail where a process has ended that nobody has killed."""

    def has_open_transaction(self, admin: semel.Admin, instance: int | None) -> bool:
        """Whether an instance has a transaction open now, or any has (None)."""


class Feeder:
    """Writes the input in a thread, as far as it is allowed to."""

    def __init__(self, bootstrap: str, source: Source) -> None:
        self._bootstrap = bootstrap
        self._source = source
        self._allowed = 0
        self._is_over = False
        self._changed = threading.Condition()
        self._failed: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, name="feeds")

    def __enter__(self) -> Feeder:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        self._thread.join()

    def allow(self, count: int) -> None:
        """Let it write so many of each in all; returns at once."""
        with self._changed:
            self._allowed = max(self._allowed, min(count, self._source.count))
            self._changed.notify_all()

    def check(self) -> None:
        if self._failed:
            raise self._failed[0]

    def _run(self) -> None:
        try:
            with semel.Producer(self._bootstrap) as producer:
                for number in range(self._source.count):
                    with self._changed:
                        self._changed.wait_for(lambda number=number: self._is_over or number < self._allowed)
                        if self._is_over and number >= self._allowed:
                            return
                    self._source.send(producer, number)
        except BaseException as error:  # told by `check`
            self._failed.append(error)


class LiveReader(Generic[ResultsT]):
    """Reads topics with Semel's consumer while they are written."""

    def __init__(self, bootstrap: str, topics: Sequence[str], partitions: int, results: ResultsT) -> None:
        self._consumer = semel.Consumer(bootstrap)
        self._consumer.assign(semel.TopicPartition(topic, number) for topic in topics for number in range(partitions))
        self.results = results

    def __enter__(self) -> LiveReader[ResultsT]:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def read_until(self, condition: Callable[[ResultsT], object], what: str, check: Callable[[], None]) -> None:
        """Read until a condition holds; `check` fails the test early where something has ended."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition(self.results):
            check()
            assert time.monotonic() < deadline, f"waited in vain: {what}; {self.results.seen} seen"
            for record in self._consumer.poll(0.2) or ():
                assert record.key is not None
                assert record.value is not None
                self.results.add(record.topic, record.key, record.value)


def read_again(kafka: str, topics: Sequence[str], partitions: int, results: ResultsT) -> ResultsT:
    """Read topics to their end with another client, librdkafka, as read_committed readers do."""
    settings = {"bootstrap.servers": kafka, "group.id": "judge", "isolation.level": "read_committed"}
    settings |= {"enable.partition.eof": "true", "enable.auto.commit": "false"}
    consumer = confluent_kafka.Consumer(settings, logger=QUIET)
    try:
        places = [confluent_kafka.TopicPartition(one, number, 0) for one in topics for number in range(partitions)]
        consumer.assign(places)
        ended: set[tuple[str, int]] = set()
        while len(ended) < len(places):
            message = consumer.poll(60)
            assert message is not None, "the output can't be read to its end"
            error = message.error()
            if error is None:
                results.add(message.topic() or "", message.key() or b"", message.value() or b"")
            elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                ended.add((message.topic() or "", message.partition() or 0))
            else:
                raise confluent_kafka.KafkaException(error)
    finally:
        consumer.close()
    return results


@dataclass(frozen=True)
class Fault:
    """Kills something, calls what it is given while that is away, and starts it again."""

    kill: Callable[[Callable[[], None]], None]
    instance: int | None = None
    """Whose transaction is to be cut off; None: anybody's."""


class Killable(Protocol):
    """One process, which continues where it was when it is started again."""

    def kill(self) -> None: ...

    def start(self) -> None: ...


def kill_program(program: Killable, instance: int | None = None) -> Fault:
    def kill(meanwhile: Callable[[], None]) -> None:
        program.kill()
        meanwhile()
        program.start()

    return Fault(kill, instance)


def kill_node(node: NodeProcess) -> Fault:
    def kill(meanwhile: Callable[[], None]) -> None:
        meanwhile()
        node.kill()
        node.start()

    return Fault(kill)


def kill_both(program: Killable, node: NodeProcess, instance: int | None = None) -> Fault:
    return Fault(lambda meanwhile: kill_program(program).kill(lambda: kill_node(node).kill(meanwhile)), instance)


def repeated(faults: Sequence[Fault], records: int) -> list[Fault]:
    """Return each of these, and again where there is more input."""
    return list(itertools.islice(itertools.cycle(faults), max(len(faults), records // RECORDS_A_FAULT)))


def nodes_in_turn(nodes: NodeProcesses) -> Fault:
    """Kills another node of three each time, when all topics are in sync again, and has it back when others lead."""
    victims = itertools.cycle((1, 2, 3))

    def are_in_sync() -> bool:
        with semel.Admin(nodes.bootstrap, api_timeout_ms=60_000) as admin:
            topics = admin.topics(include_internal=True)
        return all(is_in_sync(one, (1, 2, 3)) for topic in topics for one in topic.partitions)

    def kill(meanwhile: Callable[[], None]) -> None:
        wait_for(are_in_sync, "all replicas in sync")
        victim = next(victims)
        nodes.kill(victim)
        meanwhile()
        nodes.wait_replaced(victim)
        nodes.start(victim)

    return Fault(kill)


class Run(Generic[ResultsT]):
    """Input that is written part by part, with a fault in each, and what comes of it."""

    def __init__(self, program: Program, reader: LiveReader[ResultsT], feeder: Feeder, source: Source) -> None:
        self.program = program
        self.reader = reader
        self.feeder = feeder
        self.source = source
        self.cut_off = 0
        """How many faults came when a transaction was open."""

    def check(self) -> None:
        self.program.check()
        self.feeder.check()

    def with_faults(self, faults: Sequence[Fault], admin: semel.Admin) -> None:
        """Write the input. A fault comes when some of its part is in the output, and more is in an open transaction.

        What is left of the part is written during the fault.
        """
        begin = 0
        for number, fault in enumerate(faults, 1):
            end = self.source.count * number // len(faults)
            self.cut_off += self._write_until_open(range(begin, end), fault, admin)
            fault.kill(lambda end=end: self.feeder.allow(end))
            begin = end

    def read_until(self, condition: Callable[[ResultsT], object], what: str) -> None:
        self.reader.read_until(condition, what, self.check)

    def _write_until_open(self, part: range, fault: Fault, admin: semel.Admin) -> bool:
        """Write slice after slice, each when those before it are done. Returns whether a transaction is open."""
        before = self.source.outputs(part.start)
        step = max(SLICE, len(part) // SLICES_MAX)
        is_open = False

        def is_cut(results: ResultsT, due: int) -> bool:
            nonlocal is_open
            is_open = results.seen > before and self.program.has_open_transaction(admin, fault.instance)
            return is_open or results.seen >= due

        for start in range(part.start, part.stop, step):
            due = self.source.outputs(start)
            self.read_until(lambda results, due=due: is_cut(results, due), f"{due} outputs")
            if is_open:
                return True
            self.feeder.allow(min(start + step, part.stop))
        return False
