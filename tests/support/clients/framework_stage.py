"""A node, and the programs of a page that run against it in environments of their own, to be killed and started."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import framework_environments
import pytest
from committed_values import decided, read_by_librdkafka

import semel
from semel.cli.demo.processes import NodeProcess

DOCS: Final = Path(__file__).resolve().parents[3] / "docs"
BLOCK: Final = re.compile(r"^```python\n# ([\w/]+\.py)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
WITHIN_S: Final = 180.0
CUSTOMERS: Final = 5
KILLS: Final = 3


def wait_for(condition: Callable[[], object], what: Callable[[], str] | str) -> None:
    """Wait until a condition holds, or fail the test with what was waited for."""
    deadline = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain: {what if isinstance(what, str) else what()}"
        time.sleep(0.05)


class Program:
    """One process of a page's program, with those that it starts: they are ended together."""

    def __init__(self, command: list[str], folder: Path, log_path: Path, environment: Mapping[str, str]) -> None:
        self._log_path = log_path
        with log_path.open("a") as log:
            self._process = subprocess.Popen(
                command,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def log(self) -> str:
        return self._log_path.read_text(errors="replace")

    def kill(self) -> None:
        """SIGKILL, which it must not have forestalled: a program that ended on its own has failed."""
        assert self.is_running, self.log()[-6000:]
        self.close()

    def stop(self) -> None:
        """SIGTERM, as a service manager sends it; it ends well."""
        assert self.is_running, self.log()[-6000:]
        self._process.send_signal(signal.SIGTERM)
        code = self.ended()
        assert code in (0, -signal.SIGTERM), f"exit code {code}:\n{self.log()[-6000:]}"

    def ended(self) -> int:
        """Wait until it ends on its own, and return its exit code."""
        return self._process.wait(WITHIN_S)

    def close(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # its group has its number, also when it has ended itself
        self._process.wait()


class Stage:
    """A folder with a node and the programs of a page. What is started here ends with it."""

    def __init__(self, folder: Path, page: str, **settings: Any) -> None:
        self.folder = folder
        chosen = {"offsets.topic.num.partitions": 3, "transaction.state.log.num.partitions": 3} | settings
        self.node = NodeProcess(folder / "data", settings=[f"{name}={value}" for name, value in chosen.items()])
        self._programs: list[Program] = []
        self._open: list[Orders | Output] = []
        self.node.start()
        for name, code in BLOCK.findall((DOCS / page).read_text()):
            path = folder / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(self.here(code))

    def here(self, text: str) -> str:
        """Return a text of the page with this node's addresses in place of the page's."""
        return text.replace("localhost:9092", self.node.kafka_address).replace("localhost:9094", self.node.bootstrap)

    def create_topics(self, *topics: str, partitions: int = 1) -> None:
        with semel.Admin(self.node.bootstrap) as admin:
            for topic in topics:
                admin.create_topic(topic, partitions=partitions)

    def run(self, environment: str, *arguments: str, **variables: str) -> str:
        """Run a program of the page to its end, and return what it printed."""
        program = self.start(environment, *arguments, **variables)
        assert program.ended() == 0, program.log()[-6000:]
        return program.log()

    def start(self, environment: str, *arguments: str, **variables: str) -> Program:
        """Start what Python is given as arguments, in an environment."""
        try:
            python = framework_environments.python_of(environment)
        except framework_environments.FrameworkMissingError as error:
            pytest.skip(str(error))
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SEMEL_", "PYTHON"))}
        path = f"{python.parent}:{kept['PATH']}"
        program = Program(
            [str(python), *arguments],
            self.folder,
            self.folder / f"program-{len(self._programs)}.log",
            kept | {"PATH": path, "PYTHONUNBUFFERED": "1"} | variables,
        )
        self._programs.append(program)
        return program

    def restart_node(self) -> None:
        """End the node with SIGKILL, and start it again."""
        self.node.kill()
        self.node.start()

    def run_under_kills(
        self,
        environment: str,
        *command: str,
        output: str,
        partitions: int = 1,
        between: Callable[[], None] = lambda: None,
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Run a program while orders keep coming, and end it with SIGKILL again and again, and the node once.

        output:  where the program writes; it has handled everything when each order's id is there
        between: called when the program has ended, before it is started again

        Returns the orders that were sent, and what a reader of committed records finds in `output`, both by id.
        """
        orders = self.orders()
        found = self.kill_while_it_works(
            orders.stop, environment, *command, output=output, partitions=partitions, between=between
        )
        return orders.sent, found

    def kill_while_it_works(
        self,
        stop: Callable[[], list[dict[str, Any]]],
        environment: str,
        *command: str,
        output: str,
        partitions: int = 1,
        between: Callable[[], None] = lambda: None,
    ) -> list[dict[str, Any]]:
        """Do the same with work of another kind; `stop` ends what gives it, and returns all that was given."""
        written = self.output(output, partitions)
        program = self.start(environment, *command)
        for _ in range(KILLS):
            written.more(100, program)
            program.kill()
            between()
            program = self.start(environment, *command)
        written.more(100, program)
        self.restart_node()
        written.more(100, program)
        wanted = {order["id"] for order in stop()}
        written.until(lambda: {row["id"] for row in written.values} >= wanted, program)
        program.stop()
        return sorted(self.committed(output, partitions), key=lambda row: int(row["id"]))

    def orders(self, topic: str = "orders") -> Orders:
        feed = Orders(self.node.bootstrap, topic)
        self._open.append(feed)
        return feed

    def output(self, topic: str, partitions: int = 1) -> Output:
        output = Output(self.node.bootstrap, topic, partitions)
        self._open.append(output)
        return output

    def values(self, topic: str, partitions: int = 1) -> list[str]:
        """Return what a reader of committed records finds once all programs have ended, sorted."""
        assert not any(program.is_running for program in self._programs)
        decided(self.node.bootstrap, [semel.TopicPartition(topic, number) for number in range(partitions)])
        return read_by_librdkafka(self.node.kafka_address, topic, partitions)

    def committed(self, topic: str, partitions: int = 1) -> list[Any]:
        """Return the same of values that are JSON."""
        return [json.loads(value) for value in self.values(topic, partitions)]

    def close(self) -> None:
        for program in self._programs:
            program.close()
        for each in self._open:
            each.close()
        self.node.stop()


class Orders:
    """Sends orders until it is stopped, so that whatever is killed meanwhile had something to do."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.sent: list[dict[str, Any]] = []
        self._topic = topic
        self._stops = threading.Event()
        self._error: BaseException | None = None
        self._producer = semel.Producer(bootstrap, linger_ms=5)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> list[dict[str, Any]]:
        """Return all that were sent, once they are acknowledged."""
        self._stops.set()
        self._thread.join(WITHIN_S)
        assert not self._thread.is_alive()
        assert self._error is None, self._error
        return self.sent

    def close(self) -> None:
        self._stops.set()
        self._thread.join(WITHIN_S)

    def _run(self) -> None:
        try:
            with self._producer as producer:
                while not self._stops.wait(0.004):
                    number = len(self.sent)
                    order = {"id": number, "customer": f"c{number % CUSTOMERS}", "amount": number % 11 + 1}
                    producer.send(self._topic, json.dumps(order), key=order["customer"])
                    self.sent.append(order)
        except BaseException as error:
            self._error = error


def with_totals(orders: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what becomes of orders whose amounts are added up by customer, each once."""
    totals: Counter[str] = Counter()
    rows = []
    for order in orders:
        totals[order["customer"]] += order["amount"]
        rows.append({**order, "total": totals[order["customer"]]})
    return rows


class Output:
    """Follows what is committed in a topic."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self.values: list[Any] = []
        self._topic = topic
        self._reader = semel.Consumer(bootstrap)
        self._reader.assign([semel.TopicPartition(topic, number) for number in range(partitions)])

    def more(self, count: int, program: Program) -> None:
        """Wait until so many more values are committed while a program runs, besides those that are there by now."""
        ends = self._reader.end_offsets()
        self.until(lambda: all((self._reader.position(tp) or 0) >= end for tp, end in ends.items()), program)
        wanted = len(self.values) + count
        self.until(lambda: len(self.values) >= wanted, program)

    def until(self, condition: Callable[[], bool], program: Program) -> None:
        """Wait until the values that are committed fulfil a condition."""
        deadline = time.monotonic() + WITHIN_S
        while not condition():
            assert program.is_running, program.log()[-6000:]
            assert time.monotonic() < deadline, f"{len(self.values)} in {self._topic}\n{program.log()[-6000:]}"
            self.values += [json.loads(record.value or b"null") for record in self._reader.poll(0.2) or ()]

    def close(self) -> None:
        self._reader.close()
