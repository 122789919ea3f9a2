"""An application of Kafka Streams at work (`compat/streams/src/CountsAndJoins.java`): input, instances, and a judge."""

from __future__ import annotations

import json
import random
import re
import shutil
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

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
QUERY_TIMEOUT_S = 20


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

    def outputs(self, count: int) -> int:
        """Return how many words the first lines have."""
        return self.counts(count).total()

    def pairs(self) -> list[tuple[str, str]]:
        """Return each order with each payment of the same customer within the window: a batch's result."""
        reach = (WINDOW_MS + max(DELAYS_MS)) // STEP_MS // CUSTOMERS
        return sorted(
            (f"customer{payment % CUSTOMERS}", f"order{order} payment{payment}")
            for payment, delay_ms in enumerate(self.delays_ms)
            for order in range(payment - reach * CUSTOMERS, payment + reach * CUSTOMERS + 1, CUSTOMERS)
            if 0 <= order < self.count and abs(payment * STEP_MS + delay_ms - order * STEP_MS) <= WINDOW_MS
        )

    @cached_property
    def sizes(self) -> tuple[int, int]:
        """How many counts and how many pairs a batch has."""
        return self.counts().total(), len(self.pairs())


@dataclass
class Results:
    """What a reader of committed records has seen, in each partition's order."""

    counts: dict[str, list[int]] = field(default_factory=dict)
    pairs: list[tuple[str, str]] = field(default_factory=list)

    def add(self, topic: str, key: bytes, value: bytes) -> None:
        if topic == COUNTED:
            self.counts.setdefault(key.decode(), []).append(int(value))
        else:
            self.pairs.append((key.decode(), value.decode()))

    @property
    def seen(self) -> int:
        """How many counts there are."""
        return sum(len(each) for each in self.counts.values())

    def is_enough(self, source: Input) -> bool:
        """Whether there is as much as a batch over the input makes."""
        counts, pairs = source.sizes
        return self.seen >= counts and len(self.pairs) >= pairs

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
