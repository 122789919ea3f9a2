"""What a suite's tests came to, what was expected of them, and the two compared."""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

EXPECTED: Final = Path(__file__).with_name("expected.toml")
BEGIN: Final = "<!-- made from tests/compat/full/expected.toml -->"
END: Final = "<!-- end -->"
"""What stands before and after the tables in docs/compatibility.md."""


class Outcome(Enum):
    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    TIMED_OUT = "timed out"


class Expectation(Enum):
    """What is known of a test that does not simply pass."""

    FAILS = "fails"
    """Runs and fails, or does not end."""
    SKIPPED = "skipped"
    """Skipped on its own, or by us because it could only wait for something that is not there."""
    IF_JAVA = "if java"
    """Passes where Apache Kafka's own client is there, and is skipped where it is not."""
    UNSTABLE = "unstable"
    """Fails now and then, for a reason that is the test's own."""


@dataclass(frozen=True, slots=True)
class Result:
    """One test of one suite. `attempts` is more than one where it failed first."""

    suite: str
    test: str
    outcome: Outcome
    seconds: float
    detail: str = ""
    attempts: int = 1


@dataclass(frozen=True, slots=True)
class Expected:
    """An entry of the list: tests whose name matches `test` (as in a shell), and why they don't pass."""

    suite: str
    test: str
    expectation: Expectation
    reason: str

    def covers(self, suite: str, test: str) -> bool:
        return fnmatchcase(suite, self.suite) and fnmatchcase(test, self.test)

    def allows(self, outcome: Outcome) -> bool:
        match self.expectation:
            case Expectation.FAILS:
                return outcome in (Outcome.FAILED, Outcome.TIMED_OUT)
            case Expectation.SKIPPED:
                return outcome is Outcome.SKIPPED
            case Expectation.IF_JAVA:
                return outcome in (Outcome.PASSED, Outcome.SKIPPED)
            case Expectation.UNSTABLE:
                return outcome is not Outcome.SKIPPED


class ExpectedList:
    """All that is known beforehand. The first entry that covers a test counts."""

    def __init__(self, entries: Sequence[Expected]) -> None:
        self.entries = entries

    @classmethod
    def read(cls, path: Path = EXPECTED, nodes: int | None = None) -> ExpectedList:
        """Read the list. Raises `ValueError` for an entry that is incomplete.

        nodes: how many there are; None: read what is known of one and of several
        """
        entries = []
        for suite, tests in tomllib.loads(path.read_text()).items():
            for entry in tests:
                of_one, of_several = (entry.pop(name, False) for name in ("with_one_node", "with_several_nodes"))
                known = set(entry) & {"tests", "is", "because"}
                if (
                    known != set(entry)
                    or len(known) != 3
                    or not entry["because"]
                    or not (isinstance(of_one, bool) and isinstance(of_several, bool))
                ):
                    raise ValueError(
                        f"{path.name}: [[{suite}]] needs `tests`, `is` and `because`, may have `with_one_node` or "
                        f"`with_several_nodes`, and has {entry}"
                    )
                if nodes is not None and (of_several if nodes == 1 else of_one):
                    continue
                entries += [
                    Expected(suite, test, Expectation(entry["is"]), entry["because"]) for test in entry["tests"]
                ]
        return cls(entries)

    def find(self, suite: str, test: str) -> Expected | None:
        return next((entry for entry in self.entries if entry.covers(suite, test)), None)

    def left_out(self, suite: str, test: str) -> str | None:
        """Return why a test is not to be run at all, or None."""
        entry = self.find(suite, test)
        return entry.reason if entry is not None and entry.expectation is Expectation.SKIPPED else None

    def unexpected(self, results: Iterable[Result]) -> list[str]:
        """Return one line for each result that differs from what the list says."""
        lines = []
        for result in results:
            entry = self.find(result.suite, result.test)
            if entry is None:
                if result.outcome is not Outcome.PASSED:
                    lines.append(f"{result.suite} {result.test}: {result.outcome.value}. {result.detail}")
            elif not entry.allows(result.outcome):
                lines.append(
                    f"{result.suite} {result.test}: {result.outcome.value}, but {EXPECTED.name} says "
                    f"{entry.expectation.value} ({entry.reason}): fix it or the list. {result.detail}"
                )
        return lines


def summary(results: Sequence[Result]) -> str:
    """Return a line per suite: how many tests came to what."""
    suites = dict.fromkeys(result.suite for result in results)
    lines = []
    for suite in suites:
        counts = Counter(result.outcome for result in results if result.suite == suite)
        again = sum(result.attempts > 1 for result in results if result.suite == suite)
        words = [f"{counts[outcome]} {outcome.value}" for outcome in Outcome if counts[outcome]]
        lines.append(f"{suite}: {', '.join(words)}" + (f"; {again} needed a second try" if again else ""))
    return "\n".join(lines)


def table(results: Iterable[Result]) -> str:
    """Return all results as text, one line each."""
    return "".join(
        f"{result.outcome.value:9}  {result.seconds:7.1f} s  {result.suite:24} {result.test}"
        + (f"  {result.detail}" if result.detail else "")
        + (f"  (try {result.attempts})" if result.attempts > 1 else "")
        + "\n"
        for result in results
    )


def write(results: Sequence[Result], folder: Path, versions: Mapping[str, str]) -> None:
    """Write `results.json` and `results.txt`."""
    rows = [{**asdict(result), "outcome": result.outcome.value} for result in results]
    (folder / "results.json").write_text(json.dumps({"versions": dict(versions), "results": rows}, indent=1) + "\n")
    (folder / "results.txt").write_text(table(results) + "\n" + summary(results) + "\n")


def known_page(expected: ExpectedList) -> str:
    """Return the tables of docs/compatibility.md: for each suite, what does not simply pass, and why."""
    lines: list[str] = []
    for suite in dict.fromkeys(entry.suite for entry in expected.entries):
        lines += [f"### {suite.replace('*', ', in every way it is run')}", ""]
        lines += ["| Tests | Outcome | Why |", "|---|---|---|"]
        reasons = dict.fromkeys((each.expectation, each.reason) for each in expected.entries if each.suite == suite)
        for expectation, reason in reasons:
            tests = [
                f"`{each.test}`"
                for each in expected.entries
                if (each.suite, each.expectation, each.reason) == (suite, expectation, reason)
            ]
            lines.append(f"| {', '.join(tests)} | {expectation.value} | {reason} |")
        lines.append("")
    return "\n".join(lines)


def with_known_page(document: str, page: str) -> str:
    """Return a document with the tables between its two markers. Raises `ValueError` where it has none."""
    head, begin, rest = document.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the document has no {BEGIN!r} and {END!r}")
    return f"{head}{begin}\n\n{page}\n{end}{tail}"
