"""Ctrl-C and SIGTERM: never a traceback; counts are reported, transactions aborted, topics of benchmarks deleted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import semel
from semel.cli.common import ExitCode
from semel.cli.main import app
from semel.testing import Broker

CODES = {signal.SIGINT: ExitCode.INTERRUPTED, signal.SIGTERM: ExitCode.TERMINATED}
Run = Callable[..., Result]


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with Broker() as node:
        yield node.bootstrap


@pytest.fixture
def run(bootstrap: str) -> Run:
    def run(*arguments: str, stdin: str | None = None) -> Result:
        return CliRunner().invoke(app, list(arguments), input=stdin, env={"SEMEL_BOOTSTRAP": bootstrap})

    return run


def start(bootstrap: str, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-P", "-m", "semel.cli", *arguments]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.Popen(command, env={**os.environ, "SEMEL_BOOTSTRAP": bootstrap}, **pipes)


def ended(process: subprocess.Popen[bytes]) -> tuple[int, str]:
    with process:
        assert process.stderr is not None
        said = process.stderr.read().decode()
        return process.wait(60), said


MARKED = """
import importlib.abc, sys, time
class Marker(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            print("there", flush=True)
            time.sleep(60)
sys.meta_path.insert(0, Marker())
sys.argv = ["semel", *{arguments!r}]
import runpy
runpy.run_module("semel.cli", run_name="__main__")
"""


@pytest.mark.parametrize("number", CODES)
@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ("semel.cli.main", ("topic", "list")),
        ("typer", ("--help",)),
        ("semel.cli.consume", ("consume", "t")),
        ("grpc", ("consume", "t")),
        ("grpc", ("produce", "t")),
        ("grpc", ("topic", "list")),
        ("semel.sdk.admin.api", ("doctor",)),
    ],
)
def test_a_signal_while_modules_are_loaded_ends_in_silence(
    number: signal.Signals, module: str, arguments: tuple[str, ...]
) -> None:
    """It was a traceback of imports, and the exit code of a crash."""
    code = MARKED.format(module=module, arguments=arguments)
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"there\n"
    process.send_signal(number)
    assert ended(process) == (CODES[number], "")


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    """nohup, and `&` in scripts."""
    done = subprocess.run(
        [
            sys.executable,
            "-P",
            "-c",
            "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
            "from semel.cli.signals import end_at_once_on_signals, finishing_on_signals\n"
            "end_at_once_on_signals()\n"
            "with finishing_on_signals():\n    signal.raise_signal(signal.SIGINT)\n"
            "signal.raise_signal(signal.SIGINT)\nprint('lives')",
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "lives\n", "")


def test_sigterm_ends_a_consumer_that_has_committed_what_it_printed(bootstrap: str, run: Run) -> None:
    run("topic", "create", "read", "--partitions", "1")
    run("produce", "read", stdin="a\nb\n")
    process = start(bootstrap, "consume", "read", "--from-beginning", "--group", "terminated")
    assert process.stdout is not None
    assert (process.stdout.readline(), process.stdout.readline()) == (b"a\n", b"b\n")
    process.send_signal(signal.SIGTERM)
    code, said = ended(process)
    assert (code, said) == (ExitCode.TERMINATED, "")
    with semel.Admin(bootstrap) as admin:
        assert admin.group("terminated").state == "Empty"  # it left, and did not wait for its session to end


@pytest.mark.parametrize("arguments", [(), ("--transaction", "terminated")])
def test_sigterm_in_the_midst_of_producing_says_what_was_sent(
    bootstrap: str, run: Run, arguments: tuple[str, ...]
) -> None:
    """It ended at once, and left the transaction open."""
    topic = f"terminated-{len(arguments)}"
    run("topic", "create", topic, "--partitions", "1")
    process = start(bootstrap, "produce", topic, *arguments)
    assert process.stdin is not None
    process.stdin.write(b"one\n")
    process.stdin.flush()
    with semel.Consumer(bootstrap, isolation="read_uncommitted") as everything:
        everything.assign([semel.TopicPartition(topic, 0)])
        assert everything.poll(60) is not None
    process.send_signal(signal.SIGTERM)
    code, said = ended(process)
    assert code == ExitCode.TERMINATED
    expected = (
        "nothing was sent: the transaction is aborted" if arguments else f"interrupted; sent to {topic}: 1 record"
    )
    assert said.startswith(expected)
    assert "Traceback" not in said
    if arguments:
        with semel.Admin(bootstrap) as admin:
            assert admin.transaction("terminated").state in ("PrepareAbort", "CompleteAbort")


@pytest.mark.parametrize("number", CODES)
def test_a_benchmark_that_is_interrupted_deletes_its_topic_and_no_other(
    bootstrap: str, run: Run, number: signal.Signals
) -> None:
    run("topic", "create", "mine", "--partitions", "1", "--if-not-exists")
    for given in ((), ("--topic", "mine")):
        process = start(bootstrap, "bench", "produce", "--rate", "200", "--duration", "1h", *given)
        assert process.stderr is not None
        while b" records/s" not in process.stderr.readline():
            assert process.poll() is None
        process.send_signal(number)
        code, said = ended(process)
        assert code == CODES[number]
        assert "interrupted: there is no result" in said
        assert ("deleted topic semel-bench-" in said) is not bool(given)
        with semel.Admin(bootstrap) as admin:
            names = {topic.name for topic in admin.topics()}
        assert "mine" in names
        assert not [name for name in names if name.startswith("semel-bench-")]


def test_a_second_signal_ends_at_once_and_one_sent_twice_does_not() -> None:
    """`timeout` sends each twice: to its child, and to its group."""
    code = """
import signal, time
from semel.cli import signals
try:
    with signals.finishing_on_signals():
        try:
            signal.raise_signal(signal.SIGTERM)
        except KeyboardInterrupt as error:
            assert isinstance(error, signals.Terminated)
            signal.raise_signal(signal.SIGTERM)
            print("cleaned up", flush=True)
            while True:
                time.sleep(signals.SAME_SIGNAL_S)
                signal.raise_signal(signal.SIGTERM)
finally:
    print("not here", flush=True)
"""
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (143, "cleaned up\n", "")
