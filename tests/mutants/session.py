"""Runs tests in a copy of the checkout, and writes down what came of them.

Started once for each copy. It loads what the tests need of others' packages, which takes longer than most tests, and
forks for each job that it is told of: a line with the path of a JSON file. It answers `begun PID` and `ended CODE`.
Tests of a fault stop at the first failure; Hypothesis draws the same examples each time and does not shrink what fails.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from mutants.named_tests import covers

LOADED_BEFORE: Final = (
    "_hypothesis_pytestplugin",
    "hypothesis.stateful",
    "pytest_timeout",
    "xdist.plugin",
    "xdist.scheduler",
    "cramjam",
    "google_crc32c",
    "google.protobuf.descriptor_pool",
    "grpc.aio",
    "grpc_health.v1.health",
    "grpc_reflection.v1alpha.reflection",
    "kio",
    "opentelemetry.sdk.metrics",
    "opentelemetry.sdk.trace",
    "prometheus_client",
    "rich.console",
    "sqlalchemy.dialects.sqlite",
    "tenacity",
    "typer",
)
"""None of them starts a thread when it is loaded, which a fork would not survive."""


class Chosen:
    """Keeps the tests of a job, quickest first, and their outcomes."""

    def __init__(self, job: dict[str, Any]) -> None:
        self._wanted: list[str] = job["tests"]
        self._seconds: dict[str, float] = job["seconds"]
        self.begun_at = time.monotonic()
        self.outcomes: dict[str, dict[str, Any]] = {}
        self.broken: list[str] = []

    def pytest_configure(self) -> None:
        from hypothesis import HealthCheck, Phase, settings

        settings.register_profile(
            "mutants",
            database=None,
            deadline=None,
            phases=(Phase.explicit, Phase.generate),
            suppress_health_check=list(HealthCheck),
            print_blob=False,
        )
        settings.load_profile("mutants")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        kept = [item for item in items if any(covers(test, short(item.nodeid)) for test in self._wanted)]
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = sorted(kept, key=lambda item: self._seconds.get(short(item.nodeid), 0.0))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.broken.append(f"{report.nodeid}: {_reason(report)}")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        found = self.outcomes.setdefault(
            short(report.nodeid), {"outcome": "passed", "seconds": 0.0, "reason": "", "is_timeout": False}
        )
        found["seconds"] += report.duration
        if report.failed:
            reason = _reason(report)
            found |= {"outcome": "failed", "reason": reason, "is_timeout": reason.startswith("Failed: Timeout")}
        elif report.skipped and found["outcome"] == "passed":
            found["outcome"] = "skipped"
            found["reason"] = str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else ""


def short(node_id: str) -> str:
    return node_id.removeprefix("tests/")


def _reason(report: pytest.CollectReport | pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash is not None else str(report.longrepr)
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[0 if crash is not None else -1][:300] if lines else ""


def run(job: dict[str, Any]) -> int:
    """Run a job's tests and write its result."""
    chosen = Chosen(job)
    arguments = [
        *sorted({f"tests/{test.partition('::')[0]}" for test in job["tests"]}),
        *(["-x"] if job["stops"] else []),
        "-q",
        "-p", "no:cacheprovider",
        "-W", "ignore::pytest.PytestAssertRewriteWarning",  # of what was loaded before
        "--hypothesis-seed=0",
        f"--timeout={job['timeout_s']}",
        f"--basetemp={job['scratch']}",
        "-o", "tmp_path_retention_policy=none",
    ]  # fmt: skip
    code = int(pytest.main(arguments, plugins=[chosen]))
    seconds = time.monotonic() - chosen.begun_at
    told = {"code": code, "seconds": seconds, "outcomes": chosen.outcomes, "broken": chosen.broken}
    result = Path(job["result"])
    result.with_suffix(".part").write_text(json.dumps(told))
    result.with_suffix(".part").rename(result)
    return code


def _in_child(job: dict[str, Any]) -> None:
    """Become a session of its own, which can be ended as a whole, and run the job. Does not return."""
    code = 99
    try:
        os.setsid()
        output = os.open(job["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for copy, number in ((nothing, 0), (output, 1), (output, 2)):
            os.dup2(copy, number)
        if job["stops"]:
            # What Python compiles of a faulty file is not to be found by the next one.
            sys.dont_write_bytecode = True
            os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        code = run(job)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def main() -> None:
    for name in LOADED_BEFORE:
        with suppress(ImportError):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()
    while line := sys.stdin.readline():
        job = json.loads(Path(line.strip()).read_text())
        child = os.fork()
        if child == 0:
            _in_child(job)
        print(f"begun {child}", flush=True)
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child, signal.SIGKILL)  # what the tests have left running
        _, status = os.waitpid(child, 0)
        print(f"ended {os.waitstatus_to_exitcode(status)}", flush=True)


if __name__ == "__main__":
    main()
