"""An application of Kafka Streams at work (`compat/streams/src/CountsAndJoins.java`): input, instances, and a judge."""

from __future__ import annotations

import json
import random
import re
import shutil
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import confluent_kafka
from foreign_clients import QUIET
from java_programs import JavaProcess

import semel
from semel.runtime.ports import free_ports

APPLICATION = "shop"
PARTITIONS = 3
INPUTS = ("lines", "orders", "payments")
COUNTED, PAID = "counted", "paid"
OUTPUTS = (COUNTED, PAID)
WORDS = [f"word{number}" for number in range(40)]
WORDS_A_LINE = 3
CUSTOMERS = 40
FIRST_MS = 1_700_000_000_000
STEP_MS = 10
DELAYS_MS = (0, 100, 400, 900)
WINDOW_MS = 500
"""`WINDOW` of the application: so far apart an order and its payment may be, the end included."""
SLICE = 20
SLICES_MAX = 50
"""Of a part of the input: lines that are written at once, and how often at most."""
QUERY_TIMEOUT_S = 20
PATIENCE_S = 300
"""A member that was killed is missed after its session's 6 s, its transaction is aborted after 10 s."""


class Input:
    """Lines, orders and payments, all made from one number; and what an application must make of them."""

    def __init__(self, count: int, seed: int = 1) -> None:
        chosen = random.Random(seed)
        # A few words are frequent, as in any text.
        weights = [1 / (rank + 1) for rank in range(len(WORDS))]
        self.count = count
        self.lines = [" ".join(chosen.choices(WORDS, weights, k=WORDS_A_LINE)) for _ in range(count)]
        self.delays_ms = [chosen.choice(DELAYS_MS) for _ in range(count)]

    def send(self, producer: semel.Producer, number: int) -> None:
        """Send a line, an order and a payment."""
        made_ms = FIRST_MS + number * STEP_MS
        customer = f"customer{number % CUSTOMERS}"
        producer.send("lines", self.lines[number], key=str(number), timestamp_ms=made_ms)
        producer.send("orders", f"order{number}", key=customer, timestamp_ms=made_ms)
        paid_ms = made_ms + self.delays_ms[number]
        producer.send("payments", f"payment{number}", key=customer, timestamp_ms=paid_ms)

    def counts(self, lines: int | None = None) -> Counter[str]:
        """Return how often each word occurs in the first lines, or in all: a batch's result."""
        return Counter(word for line in self.lines[:lines] for word in line.split())

    def pairs(self) -> list[tuple[str, str]]:
        """Return each order with each payment of the same customer within the window: a batch's result."""
        steps = (WINDOW_MS + max(DELAYS_MS)) // STEP_MS
        return sorted(
            (f"customer{payment % CUSTOMERS}", f"order{order} payment{payment}")
            for payment, delay_ms in enumerate(self.delays_ms)
            for order in range(max(0, payment - steps), min(self.count, payment + steps + 1))
            if (order - payment) % CUSTOMERS == 0 and abs(payment * STEP_MS + delay_ms - order * STEP_MS) <= WINDOW_MS
        )


class Feeder:
    """Writes the input in a thread, as far as it is allowed to."""

    def __init__(self, bootstrap: str, source: Input) -> None:
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


@dataclass
class Results:
    """What a reader of committed records has seen, in each partition's order."""

    counts: dict[str, list[int]] = field(default_factory=dict)
    pairs: list[tuple[str, str]] = field(default_factory=list)

    def add(self, topic: str, key: bytes | None, value: bytes | None) -> None:
        assert key is not None
        assert value is not None
        if topic == COUNTED:
            self.counts.setdefault(key.decode(), []).append(int(value))
        else:
            self.pairs.append((key.decode(), value.decode()))

    @property
    def counted(self) -> int:
        return sum(len(each) for each in self.counts.values())

    def wrong(self, source: Input) -> list[str]:
        """Compare with a batch over the input: each word counted 1, 2, ... n, and each pair once. Empty: right."""
        wanted = {word: list(range(1, count + 1)) for word, count in source.counts().items()}
        wrong = [
            f"{word}: {_first_difference(self.counts.get(word, []), wanted.get(word, []))}"
            for word in sorted(wanted.keys() | self.counts.keys())
            if self.counts.get(word) != wanted.get(word)
        ]
        found, pairs = Counter(self.pairs), Counter(source.pairs())
        wrong += [f"{one} is missing" for one in (pairs - found).elements()]
        return wrong + [f"{one} is too many" for one in (found - pairs).elements()]


def _first_difference(found: list[int], wanted: list[int]) -> str:
    place = next((n for n, pair in enumerate(zip(found, wanted, strict=False)) if pair[0] != pair[1]), None)
    if place is None:
        return f"{len(found)} counts, not {len(wanted)}"
    return f"{found[place : place + 3]} where {wanted[place : place + 3]} is due ({len(found)} of {len(wanted)} counts)"


class LiveReader:
    """Reads the output with Semel's consumer while it is made."""

    def __init__(self, bootstrap: str) -> None:
        self._consumer = semel.Consumer(bootstrap)
        self._consumer.assign(
            semel.TopicPartition(topic, partition) for topic in OUTPUTS for partition in range(PARTITIONS)
        )
        self.results = Results()

    def __enter__(self) -> LiveReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def read_until(self, condition: Callable[[Results], object], what: str, check: Callable[[], None]) -> None:
        """Read until a condition holds; `check` fails the test early where something has ended."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition(self.results):
            check()
            seen = f"{self.results.counted} counts, {len(self.results.pairs)} pairs seen"
            assert time.monotonic() < deadline, f"waited in vain: {what}; {seen}"
            for record in self._consumer.poll(0.2) or ():
                self.results.add(record.topic, record.key, record.value)


def read_again(kafka: str) -> Results:
    """Read the whole output once more with another client, librdkafka, as read_committed readers do."""
    settings = {"bootstrap.servers": kafka, "group.id": "judge", "isolation.level": "read_committed"}
    settings |= {"enable.partition.eof": "true", "enable.auto.commit": "false"}
    consumer = confluent_kafka.Consumer(settings, logger=QUIET)
    results = Results()
    try:
        places = [confluent_kafka.TopicPartition(one, n, 0) for one in OUTPUTS for n in range(PARTITIONS)]
        consumer.assign(places)
        ended: set[tuple[str, int]] = set()
        while len(ended) < len(places):
            message = consumer.poll(60)
            assert message is not None, "the output can't be read to its end"
            error = message.error()
            if error is None:
                results.add(message.topic() or "", message.key(), message.value())
            elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                ended.add((message.topic() or "", message.partition() or 0))
            else:
                raise confluent_kafka.KafkaException(error)
    finally:
        consumer.close()
    return results


class Application:
    """Instances of the application, each with a state directory of its own."""

    def __init__(
        self, folder: Path, jars: Path, classes: Path, kafka: str, *, instances: int = 2, **settings: object
    ) -> None:
        self.folder = folder
        self.addresses = [f"127.0.0.1:{port}" for port in free_ports(instances)]
        self.processes = []
        for number, address in enumerate(self.addresses):
            own = {
                "application.id": APPLICATION,
                "application.server": address,
                "auto.offset.reset": "earliest",
                "bootstrap.servers": kafka,
                "commit.interval.ms": 1_000,  # for transactions that are open most of the time, with records in them
                "heartbeat.interval.ms": 1_000,
                "linger.ms": 0,
                "num.standby.replicas": instances - 1,
                "probing.rebalance.interval.ms": 60_000,
                "processing.guarantee": "exactly_once_v2",
                "session.timeout.ms": 6_000,
                "state.dir": self.state_dir(number),
                "statestore.cache.max.bytes": 0,  # each count is written, not the last of a while
                **{name.replace("_", "."): value for name, value in settings.items()},
            }
            path = folder / f"instance-{number}.properties"
            path.write_text("".join(f"{name}={value}\n" for name, value in own.items()))
            log = folder / f"instance-{number}.log"
            self.processes.append(JavaProcess(jars, classes, "CountsAndJoins", str(path), log=log))

    def __enter__(self) -> Application:
        for process in self.processes:
            process.start()
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()

    def state_dir(self, number: int) -> Path:
        return self.folder / f"state-{number}"

    def has_open_transaction(self, admin: semel.Admin, number: int | None) -> bool:
        """Whether an instance has a transaction open now, or any has (None)."""
        whose = ".*" if number is None else re.escape(self._process_id(number)) + ".*"
        return any(admin.transactions(states=["Ongoing"], pattern=f"{APPLICATION}-{whose}"))

    def _process_id(self, number: int) -> str:
        """Return what the names of an instance's transactions have in them, as it has it in its state directory."""
        written = self.state_dir(number) / APPLICATION / "kafka-streams-process-metadata"
        return str(json.loads(written.read_text())["processId"]) if written.exists() else "not started"

    def lose_state(self, number: int) -> None:
        """Delete the state directory of an instance that has ended: it gets its state from the changelogs."""
        assert not self.processes[number].is_running
        shutil.rmtree(self.state_dir(number))

    def check(self) -> None:
        """Fail where an instance has ended that nobody has killed."""
        for number, process in enumerate(self.processes):
            assert process.is_running, f"instance {number} has ended:\n{process.log_tail()}"

    def ask(self, number: int, path: str) -> str | None:
        """Ask an instance for a word's count, or for its hosts; None: it can't tell now."""
        try:
            with urllib.request.urlopen(f"http://{self.addresses[number]}/{path}", timeout=QUERY_TIMEOUT_S) as answer:
                return str(answer.read().decode())
        except (urllib.error.HTTPError, urllib.error.URLError, TimeoutError, ConnectionError):
            return None

    def stored(self, number: int, words: Mapping[str, int]) -> dict[str, int | None]:
        """Return each word's count as an instance tells it."""
        answers = {word: self.ask(number, word) for word in words}
        return {word: None if answer is None else int(answer) for word, answer in answers.items()}

    def hosts(self, number: int, word: str) -> list[str]:
        """Return the instances that have a word's count, as one of them knows it: the active, then standbys."""
        return (self.ask(number, f"hosts/{word}") or "").split()


@dataclass(frozen=True)
class Fault:
    """Kills something, calls what it is given while that is away, and starts it again."""

    kill: Callable[[Callable[[], None]], None]
    instance: int | None = None
    """Whose transaction is to be cut off; None: anybody's."""


class Run:
    """Input that is written part by part, with a fault in each, and what comes of it."""

    def __init__(self, application: Application, reader: LiveReader, feeder: Feeder, source: Input) -> None:
        self.application = application
        self.reader = reader
        self.feeder = feeder
        self.source = source
        self.cut_off = 0
        """How many faults came when a transaction was open."""

    def check(self) -> None:
        self.application.check()
        self.feeder.check()

    def with_faults(self, faults: Sequence[Fault], admin: semel.Admin) -> None:
        """Write the input. A fault comes when its part is counted in part, and more of it is in an open transaction.

        What is left of the part is written during the fault.
        """
        begin = 0
        for number, fault in enumerate(faults, 1):
            end = self.source.count * number // len(faults)
            self.cut_off += self._write_until_open(range(begin, end), fault, admin)
            fault.kill(lambda end=end: self.feeder.allow(end))
            begin = end

    def _write_until_open(self, part: range, fault: Fault, admin: semel.Admin) -> bool:
        """Write slice after slice, each when those before it are counted. Returns whether a transaction is open."""
        before = self.source.counts(part.start).total()
        is_open = False

        def is_cut(seen: Results, due: int) -> bool:
            nonlocal is_open
            is_open = seen.counted > before and self.application.has_open_transaction(admin, fault.instance)
            return is_open or seen.counted >= due

        for start in range(part.start, part.stop, max(SLICE, len(part) // SLICES_MAX)):
            due = self.source.counts(start).total()
            self.reader.read_until(lambda seen, due=due: is_cut(seen, due), f"{due} counts", self.check)
            if is_open:
                return True
            self.feeder.allow(min(start + max(SLICE, len(part) // SLICES_MAX), part.stop))
        return False

    def read_to_end(self) -> None:
        """Wait until there is as much output as there must be."""
        counts, pairs = self.source.counts().total(), len(self.source.pairs())
        self.reader.read_until(
            lambda seen: seen.counted >= counts and len(seen.pairs) >= pairs,
            f"{counts} counts, {pairs} pairs",
            self.check,
        )
