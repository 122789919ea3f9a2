"""franz-go's tests of its client against a broker, run by `go test`.

Wanted is a checkout, and Go with the modules that it needs. Most tests of the client need no broker and are left out.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from results import ExpectedList, Outcome, Result
from secured import PASSWORDS, USER
from served import Served, serving

NAME: Final = "franz-go"
VARIANTS: Final[Mapping[str, str]] = {NAME: "plaintext", f"{NAME}-ssl": "ssl"}
"""The ways to run the suite, and how its clients connect, as Kafka calls it. Its tests of passwords log in always."""
TESTS: Final = (
    "TestAddRemovePartitions",
    "TestClient_Produce",
    "TestClient_ProduceLargeMessages",
    "TestConsumeRegex",
    "TestConsumeTopicRetrieval",
    "TestConsumeTopicRetrieval_Many",
    "TestDirectPartitionPurge",
    "TestGroupETL",
    "TestGroupSimple",
    "TestHookPollStart",
    "TestIssue1034",
    "TestIssue325",
    "TestIssue337",
    "TestIssue434",
    "TestIssue523",
    "TestIssue648",
    "TestIssue769",
    "TestIssue810",
    "TestIssue831",
    "TestIssue865",
    "TestIssueProduceSyncManualPartitionNegativeDoesNotPanic",
    "TestPauseIssue489",
    "TestPauseIssueOct2023",
    "TestPing",
    "TestPooling",
    "TestSCRAMAuth",
    "TestSCRAMAuthBadCredentials",
    "TestTxnEtl",
    "TestUnknownGroupOffsetFetchPinned",
)
"""Those that talk to the broker of KGO_SEEDS."""
RECORDS: Final = {False: "20000", True: "500000"}
"""That go through each of the pipelines, in quick mode and in full."""
OUTCOMES: Final = {"pass": Outcome.PASSED, "fail": Outcome.FAILED, "skip": Outcome.SKIPPED}
DETAIL_LENGTH_MAX: Final = 300


class FranzGoSuite:
    """Runs the tests against a node of their own."""

    def __init__(
        self,
        variant: str,
        checkout: Path,
        folder: Path,
        expected: ExpectedList,
        timeout_s: float,
        *,
        nodes: int,
        full: bool,
    ) -> None:
        self._variant = variant
        self._protocol = VARIANTS[variant]
        self._package = checkout / "pkg" / "kgo"
        self._folder = folder / variant
        self._expected = expected
        self._timeout_s = timeout_s
        self._nodes = nodes
        self._full = full
        if not self._package.exists():
            raise FileNotFoundError(f"{self._package} is missing: give a checkout of {NAME}")

    def version(self) -> str:
        """Return the newest version that its list of changes names."""
        found = re.search(r"^v(\d+\.\d+\.\d+)", (self._package.parents[1] / "CHANGELOG.md").read_text(), re.MULTILINE)
        return found[1] if found else "unknown"

    def run(self, wanted: Callable[[str], bool], report: Callable[[Result], None]) -> list[Result]:
        """Run the tests whose name, without that of a part, is `wanted`."""
        chosen = [name for name in TESTS if wanted(name) and self._expected.left_out(self._variant, name) is None]
        if not chosen:
            return []
        with serving(self._folder / "node", self._nodes) as node:
            results = {result.test: result for result in self._go(chosen, node, 1)}
            again = {
                result.test.partition("/")[0]
                for result in results.values()
                if result.outcome in (Outcome.FAILED, Outcome.TIMED_OUT)
                and self._expected.find(self._variant, result.test) is None
            }
            if again:
                results |= {result.test: replace(result, attempts=2) for result in self._go(sorted(again), node, 2)}
        for result in results.values():
            report(result)
        return list(results.values())

    def _go(self, names: Iterable[str], node: Served, attempt: int) -> list[Result]:
        names = list(names)
        log = self._folder / f"try{attempt}.jsonl"
        timeout_s = self._timeout_s * len(names)
        command = ["go", "test", "-json", "-count=1", f"-timeout={timeout_s:.0f}s", f"-run=^({'|'.join(names)})$", "."]
        environment = {
            **os.environ,
            "KGO_SEEDS": node.bootstrap_of(self._protocol),
            **({} if self._protocol == "plaintext" else {"KGO_TEST_TLS": f"ca:{node.security.ca.resolve()}"}),
            "KGO_TEST_SCRAM_SEEDS": node.bootstrap_of("sasl_plaintext"),
            "KGO_TEST_SCRAM": f"{USER}:{PASSWORDS[USER]}:256",
            "KGO_TEST_RF": str(min(self._nodes, 3)),
            "KGO_TEST_RECORDS": RECORDS[self._full],
            "KGO_TEST_MAX_TOPIC_PARTS": "4",
        }
        with log.open("w") as out:
            subprocess.run(command, cwd=self._package, env=environment, stdout=out, stderr=out, check=False)
        results = read_events(log.read_text().splitlines(), self._variant)
        seen = {result.test.partition("/")[0] for result in results}
        missing = [
            Result(self._variant, name, Outcome.FAILED, 0, f"not run: see {log}") for name in names if name not in seen
        ]
        return results + missing


def _went_wrong(ended: Mapping[str, tuple[Outcome, float]], name: str) -> bool:
    return name not in ended or ended[name][0] is Outcome.FAILED


def read_events(lines: Iterable[str], suite: str = NAME) -> list[Result]:
    """Return what the events of `go test -json` come to: one result for each part, or test without parts.

    A part may have a slash in its name, and none has parts itself. A test that failed though none of its parts did
    has a result, too.
    """
    ended: dict[str, tuple[Outcome, float]] = {}
    begun: dict[str, None] = {}
    said: dict[str, str] = {}
    for line in lines:
        event = json.loads(line) if line.startswith("{") else {}
        name = event.get("Test")
        if name is None:
            continue
        if event["Action"] == "run":
            begun[name] = None
        elif event["Action"] == "output" and not event["Output"].strip().startswith(("===", "---")):
            said[name] = (said.get(name, "") + " " + event["Output"].strip())[-DETAIL_LENGTH_MAX:]
        elif event["Action"] in OUTCOMES:
            ended[name] = OUTCOMES[event["Action"]], float(event["Elapsed"])
    results = []
    for name in begun:
        outcome, seconds = ended.get(name, (Outcome.TIMED_OUT, 0.0))
        parts = [] if "/" in name else [other for other in begun if other.startswith(f"{name}/")]
        if parts and (outcome is Outcome.PASSED or any(_went_wrong(ended, part) for part in parts)):
            continue
        detail = "" if outcome is Outcome.PASSED else said.get(name, "").strip()
        results.append(Result(suite, name, outcome, seconds, detail))
    return results
