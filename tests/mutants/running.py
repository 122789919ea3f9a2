"""Runs the tests of each fault in copies of the checkout, several side by side."""

from __future__ import annotations

import queue
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from mutants.edits import DoesNotApplyError
from mutants.kept_list import Fault
from mutants.named_tests import MissingTestError, TestIndex, covers
from mutants.outcomes import Fate, Outcome
from mutants.workers import Worker


@dataclass(frozen=True, slots=True)
class Clean:
    """What the tests of the list do where no fault is planted.

    cases:    the outcome of each, by its id with parameters.
    troubles: by the id of a test that is no judge, why: it fails, is skipped, or isn't there.
    """

    cases: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    troubles: Mapping[str, str] = field(default_factory=dict)

    def seconds_of(self, tests: Iterable[str]) -> dict[str, float]:
        """Return how long each case of these tests took."""
        return {
            case: found["seconds"] for case, found in self.cases.items() if any(covers(test, case) for test in tests)
        }


class Runner:
    """Workers, one for each job, below a folder that goes at the end."""

    def __init__(self, checkout: Path, jobs: int, *, timeout_s: int) -> None:
        self._timeout_s = timeout_s
        self._folder = tempfile.TemporaryDirectory(prefix="semel-mutants-", ignore_cleanup_errors=True)
        self._pool = ThreadPoolExecutor(jobs, thread_name_prefix="mutants")
        self._workers = [Worker(checkout, Path(self._folder.name) / str(number)) for number in range(jobs)]
        self._free: queue.SimpleQueue[Worker] = queue.SimpleQueue()
        for worker in self._workers:
            self._free.put(worker)
        self._index = TestIndex(checkout / "tests")

    def __enter__(self) -> Runner:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._workers:
            worker.close()
        self._pool.shutdown(cancel_futures=True)
        self._folder.cleanup()

    def clean(self, faults: Sequence[Fault]) -> Clean:
        """Run all tests of these faults without any: what fails then proves nothing later."""
        troubles: dict[str, str] = {}
        tests: dict[str, str] = {}
        for name in dict.fromkeys(test for fault in faults for test in fault.tests):
            try:
                tests[name] = self._index.resolve(name)
            except MissingTestError as error:
                troubles[name] = str(error)
        cases: dict[str, dict[str, Any]] = {}
        broken: list[str] = []
        for told in self._pool.map(self._clean_part, _shared_out(sorted(set(tests.values())), len(self._workers))):
            cases |= told["outcomes"]
            broken += told["broken"]
        for name, test in tests.items():
            found = [each for case, each in cases.items() if covers(test, case)]
            failed = [each for each in found if each["outcome"] == "failed"]
            if failed:
                troubles[name] = f"it fails without a fault: {failed[0]['reason']}"
            elif not found:
                troubles[name] = "; ".join(["it was not run", *broken])
            elif all(each["outcome"] == "skipped" for each in found):
                troubles[name] = f"it is skipped: {found[0]['reason']}"
        return Clean(cases, troubles)

    def _clean_part(self, tests: list[str]) -> dict[str, Any]:
        with self._worker() as worker:
            return worker.run(tests, {}, timeout_s=max(self._timeout_s, 120), stops=False)

    @contextmanager
    def _worker(self) -> Iterator[Worker]:
        worker = self._free.get()
        try:
            yield worker
        finally:
            self._free.put(worker)

    def plant(self, faults: Sequence[Fault], clean: Clean, tell: Callable[[Outcome], None]) -> list[Outcome]:
        """Plant each fault and run its tests; `tell` hears of each as it is known. In the order of `faults`."""
        told: dict[str, Outcome] = {}
        # The longest first, so that none of them is what all wait for at the end.
        order = sorted(faults, key=lambda fault: -sum(clean.seconds_of(fault.tests).values()))
        waiting = [self._pool.submit(self._plant, fault, clean) for fault in order]
        for done in as_completed(waiting):
            outcome = done.result()
            told[outcome.fault.id] = outcome
            tell(outcome)
        return [told[fault.id] for fault in faults]

    def _plant(self, fault: Fault, clean: Clean) -> Outcome:
        usable = [test for test in fault.tests if test not in clean.troubles]
        if not usable and not fault.lives:
            why = "; ".join(f"{test}: {clean.troubles[test]}" for test in fault.tests)
            return Outcome(fault, Fate.NO_JUDGE, why)
        try:
            with self._worker() as worker, worker.tree.planted(fault.edits):
                if not usable:
                    return Outcome(fault, Fate.LIVES, "no test to run")
                tests = [self._index.resolve(test) for test in usable]
                seconds = clean.seconds_of(tests)
                timeout_s = max(self._timeout_s, int(10 * sum(seconds.values())))
                return _judged(fault, worker.run(tests, seconds, timeout_s=timeout_s, stops=True))
        except DoesNotApplyError as error:
            return Outcome(fault, Fate.DOES_NOT_APPLY, str(error))


def _judged(fault: Fault, told: dict[str, Any]) -> Outcome:
    seconds = told["seconds"]
    if told.get("hung"):
        return Outcome(fault, Fate.NOTICED, "by hanging: it could not even be stopped", seconds)
    for test, found in told["outcomes"].items():
        if found["outcome"] == "failed":
            how = f"{test} (by hanging)" if found["is_timeout"] else test
            return Outcome(fault, Fate.NOTICED, how, seconds, found["reason"])
    if told["broken"]:
        return Outcome(fault, Fate.NOTICED, f"by breaking {told['broken'][0]}", seconds)
    return Outcome(fault, Fate.LIVES, f"{len(told['outcomes'])} tests passed", seconds)


def _shared_out(tests: Sequence[str], jobs: int) -> list[list[str]]:
    """Give each job whole folders and files: tests of Spark share a session, all others what their file sets up."""
    files: dict[str, list[str]] = {}
    for test in tests:
        file = test.partition("::")[0]
        files.setdefault("spark/" if file.startswith("spark/") else file, []).append(test)
    parts: list[list[str]] = [[] for _ in range(jobs)]
    for group in sorted(files.values(), key=len, reverse=True):
        min(parts, key=len).extend(group)
    return [part for part in parts if part]
