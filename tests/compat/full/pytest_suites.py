"""The integration tests of clients written in Python: pytest runs them, `suite_plugin` points them at a node."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from results import ExpectedList, Outcome, Result
from served import Served, serving
from suite_tools import write_tools

HERE: Final = Path(__file__).resolve().parent
KAFKA_VERSION: Final = "4.3.0"
"""What the suites are told that they run against: decides which of their tests apply."""
OVERHEAD_S: Final = 60
"""For collecting, and for a test's own clean-up."""


@dataclass(frozen=True, slots=True)
class PytestSuite:
    """How a client's suite runs. In a variable `{bootstrap}` stands for all addresses, `{tools}` for Kafka's tools."""

    name: str
    client: str
    """Whose checkout it is in."""
    paths: Sequence[str]
    arguments: Sequence[str]
    variables: Mapping[str, str]
    version_file: str
    version_pattern: str
    settings: Mapping[str, str] = field(default_factory=dict)
    """The node's, with underscores for dots."""

    def version(self, checkout: Path) -> str:
        found = re.search(self.version_pattern, (checkout / self.version_file).read_text())
        return found[1] if found else "unknown"


KAFKA_PYTHON: Final = PytestSuite(
    "kafka-python",
    "kafka-python",
    ("test/integration",),
    (),
    {"KAFKA_VERSION": KAFKA_VERSION, "KAFKA_ROOT": "{tools}"},
    "kafka/version.py",
    r"__version__ = '(.*)'",
    {"group_min_session_timeout_ms": "1000"},
)
CONFLUENT_KAFKA_PYTHON: Final = PytestSuite(
    "confluent-kafka-python",
    "confluent-kafka-python",
    ("tests/integration",),
    ("--ignore=tests/integration/schema_registry", "--ignore=tests/integration/share_consumer_oauth"),
    {"BROKERS": "{bootstrap}"},
    "pyproject.toml",
    r'version = "(.*)"',
    {"min_insync_replicas": "1"},  # one test expects it to be given
)
AIOKAFKA: Final = PytestSuite(
    "aiokafka",
    "aiokafka",
    ("tests",),
    ("--docker-image", f"node:{KAFKA_VERSION}", "--no-pull"),
    {"AIOKAFKA_NO_EXTENSIONS": "1"},
    "aiokafka/__init__.py",
    r'__version__ = "(.*)"',
    {"num_partitions": "2"},
)
CONFLUENT_KAFKA_PYTHON_CONSUMER: Final = replace(
    CONFLUENT_KAFKA_PYTHON,
    name="confluent-kafka-python-consumer",
    variables={**CONFLUENT_KAFKA_PYTHON.variables, "TEST_CONSUMER_GROUP_PROTOCOL": "consumer"},
)
"""With the consumer protocol of KIP-848."""
SUITES: Final = (KAFKA_PYTHON, CONFLUENT_KAFKA_PYTHON, CONFLUENT_KAFKA_PYTHON_CONSUMER, AIOKAFKA)


class Run:
    """Runs one suite, as often as it takes until every test has ended or was cut off."""

    def __init__(
        self,
        suite: PytestSuite,
        checkout: Path,
        folder: Path,
        python: str,
        expected: ExpectedList,
        timeout_s: float,
        nodes: int,
    ) -> None:
        self._suite = suite
        self._checkout = checkout
        self._folder = folder / suite.name
        self._python = python
        self._expected = expected
        self._timeout_s = timeout_s
        self._nodes = nodes
        self._events = self._folder / "events.jsonl"
        self._results: dict[str, Result] = {}
        self._collected: list[str] = []
        self._tools = self._folder.resolve() / "kafka"
        self._node: Served
        if not (checkout / suite.paths[0]).exists():
            raise FileNotFoundError(f"{checkout / suite.paths[0]} is missing: give a checkout of {suite.client}")

    def run(self, wanted: Callable[[str], bool], report: Callable[[Result], None]) -> list[Result]:
        """Run the tests whose name is `wanted`. What fails unexpectedly gets a second try."""
        with serving(self._folder / "node", self._nodes, node_id="0", **self._suite.settings) as self._node:
            write_tools(self._tools, self._node.admin_settings())
            self._collect()
            chosen = {name for name in self._collected if wanted(name)}
            for name in chosen:
                reason = self._expected.left_out(self._suite.name, name)
                if reason is not None:
                    self._results[name] = Result(self._suite.name, name, Outcome.SKIPPED, 0, reason)
            self._run_all(chosen - set(self._results), 1)
            failed = {
                name
                for name, result in self._results.items()
                if result.outcome in (Outcome.FAILED, Outcome.TIMED_OUT)
                and self._expected.find(self._suite.name, name) is None
            }
            for name in failed:
                del self._results[name]
            self._run_all(failed, 2)
        for name in sorted(self._results):
            report(self._results[name])
        return [self._results[name] for name in sorted(self._results)]

    def _collect(self) -> None:
        self._pytest((), "collect", "--collect-only", "-q")
        for event in self._read():
            self._collected += event.get("collected", [])
            if "uncollected" in event:
                name = event["uncollected"]
                self._results[name] = Result(self._suite.name, name, Outcome.FAILED, 0, event["detail"])
        if not self._collected:
            raise RuntimeError(f"no tests were found: see {self._folder / 'collect.log'}")

    def _run_all(self, names: set[str], attempt: int) -> None:
        """Run tests until none is left. Each round that is cut off ends at least one."""
        round_number = 0
        while left := names - set(self._results):
            round_number += 1
            before = len(self._results)
            self._pytest(sorted(left), f"try{attempt}-{round_number}", "-v")
            self._take(attempt)
            if len(self._results) == before:
                for name in left:
                    self._results[name] = Result(self._suite.name, name, Outcome.FAILED, 0, "pytest did not run it")

    def _take(self, attempt: int) -> None:
        """Read the events of one round."""
        begun: dict[str, list[dict[str, Any]]] = {}
        ended: set[str] = set()
        for event in self._read():
            if "begin" in event:
                begun[event["begin"]] = []
            elif "end" in event:
                ended.add(event["end"])
            elif "report" in event and event["report"] in begun:
                begun[event["report"]].append(event)
        for name, events in begun.items():
            if name in ended:
                self._results[name] = replace(result_of(self._suite.name, name, events), attempts=attempt)
            else:
                detail = "the node ended" if not self._node.alive else f"after {self._timeout_s:.0f} s"
                self._results[name] = Result(
                    self._suite.name, name, Outcome.TIMED_OUT, self._timeout_s, detail, attempt
                )

    def _read(self) -> list[dict[str, Any]]:
        if not self._events.exists():
            return []
        return [json.loads(line) for line in self._events.read_text().splitlines()]

    def _pytest(self, plan: Sequence[str], name: str, *arguments: str) -> None:
        """Run pytest once; it is killed when for too long nothing ended."""
        self._events.unlink(missing_ok=True)
        places = {"bootstrap": self._node.bootstrap, "tools": str(self._tools)}
        variables = {key: value.format(**places) for key, value in self._suite.variables.items()}
        environment = {
            **os.environ,
            **variables,
            "PYTHONPATH": str(HERE),
            "PYTHONDONTWRITEBYTECODE": "1",
            "SEMEL_CLIENT": self._suite.client,
            "SEMEL_LISTENERS": json.dumps({name: found[0] for name, found in self._node.listeners.items()}),
            "SEMEL_CERTIFICATES": str(self._node.security.folder.resolve()),
            "SEMEL_TOOLS": str(self._tools),
            "SEMEL_PLAN": json.dumps(plan),
            "SEMEL_EVENTS": str(self._events),
        }
        command = [
            self._python, "-m", "pytest", "-p", "suite_plugin", "-p", "no:cacheprovider", "-p", "no:randomly",
            "--timeout", str(int(self._timeout_s)), "--timeout-method", "signal", "-W", "ignore",
            *self._suite.arguments, *arguments, *self._suite.paths,
        ]  # fmt: skip
        with (self._folder / f"{name}.log").open("w") as out:
            process = subprocess.Popen(
                command, cwd=self._checkout, env=environment, stdout=out, stderr=out, stdin=subprocess.DEVNULL
            )
            try:
                self._watch(process)
            finally:
                if process.poll() is None:
                    process.kill()
                    process.wait()

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        size, since = 0, time.monotonic()
        while process.poll() is None:
            time.sleep(0.5)
            grown = self._events.stat().st_size if self._events.exists() else 0
            if grown != size:
                size, since = grown, time.monotonic()
            if time.monotonic() - since > self._timeout_s + OVERHEAD_S:
                return


def result_of(suite: str, name: str, events: Sequence[Mapping[str, Any]]) -> Result:
    """Return what the reports of a test's set-up, call and clean-up come to."""
    seconds = sum(event["seconds"] for event in events)
    failed = next((event for event in events if event["outcome"] == "failed"), None)
    if failed is not None:
        timed_out = "Timeout" in failed["detail"]
        return Result(suite, name, Outcome.TIMED_OUT if timed_out else Outcome.FAILED, seconds, failed["detail"])
    skipped = next((event for event in events if event["outcome"] == "skipped"), None)
    if skipped is not None:
        return Result(suite, name, Outcome.SKIPPED, seconds, skipped["expected"] or skipped["detail"])
    return Result(suite, name, Outcome.PASSED, seconds)
