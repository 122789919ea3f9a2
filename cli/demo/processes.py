"""The demo's processes: a node and the pipeline's instances, to be started, frozen and killed with SIGKILL."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from semel.protocol.errors import FatalError
from semel.runtime.ports import free_ports

READY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0


class NodeProcess:
    """`semel serve` on free ports of this machine, which stay the same when it is started again."""

    def __init__(
        self,
        data_dir: Path,
        *,
        program: Sequence[str] = ("-P", "-m", "semel.cli"),
        settings: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`program` is what Python runs; `settings` are NAME=VALUE for `--set`; `environment` is added to ours."""
        self.data_dir = data_dir
        self._base_command = [sys.executable, *program, "serve", "--data-dir", str(data_dir)]
        self._settings = list(settings)
        self._environment = dict(environment or {})
        grpc_port, kafka_port = free_ports(2)
        self.bootstrap: str = f"127.0.0.1:{grpc_port}"
        self.kafka_address = f"127.0.0.1:{kafka_port}"
        self.kills = 0
        self._process: subprocess.Popen[str] | None = None
        self._log_path = data_dir.with_name("node.log")

    def add_setting(self, setting: str) -> None:
        """Start with this NAME=VALUE from now on."""
        self._settings.append(setting)

    def take_place_of(self, other: NodeProcess) -> None:
        """Start at the addresses of another node, which has ended."""
        self.bootstrap, self.kafka_address = other.bootstrap, other.kafka_address

    def start(self) -> None:
        """Start, and wait for the ready line. Raises `FatalError` with the end of the node's log."""
        command = [*self._base_command, "--grpc", self.bootstrap, "--kafka", self.kafka_address]
        for setting in self._settings:
            command += ["--set", setting]
        with self._log_path.open("a") as log:
            self._process = subprocess.Popen(  # noqa: S603
                command, stdout=subprocess.PIPE, stderr=log, text=True, env={**os.environ, **self._environment}
            )
        watchdog = threading.Timer(READY_TIMEOUT_S, self._process.kill)
        watchdog.start()
        try:
            assert self._process.stdout is not None
            line = self._process.stdout.readline()
        finally:
            watchdog.cancel()
        if not line.startswith("ready"):
            self._process.wait()
            self._process.stdout.close()
            raise FatalError(f"the node did not start; the end of its log:\n{self.log_tail()}")

    def kill(self) -> None:
        """SIGKILL: no goodbye, no flush."""
        self.kills += 1
        _end(self._process, signal.SIGKILL, closes_output=True)

    def stop(self) -> int:
        """SIGTERM, as a person would stop it; return the exit code."""
        return _end(self._process, signal.SIGTERM, closes_output=True)

    def wait_for_end(self, timeout_s: float) -> int:
        """Wait until it ends on its own, and return its exit code."""
        assert self._process is not None
        try:
            return self._process.wait(timeout_s)
        finally:
            if self._process.stdout is not None:
                self._process.stdout.close()

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def log_tail(self, lines: int = 20) -> str:
        return "\n".join(self._log_path.read_text(errors="replace").splitlines()[-lines:])


class Instance:
    """One process of the pipeline, and those that came in its place."""

    def __init__(
        self, bootstrap: str, number: int, mode: str, batch: int, log_path: Path, events: Counter[str]
    ) -> None:
        self.number = number
        self.events = events
        self._command = [sys.executable, "-P", "-m", "semel.cli.demo.worker", "--bootstrap", bootstrap]
        self._command += ["--instance", str(number), "--mode", mode, "--batch", str(batch)]
        self._log_path = log_path
        self._process: subprocess.Popen[str] | None = None
        self._frozen: list[subprocess.Popen[str]] = []
        self._readers: list[threading.Thread] = []

    def start(self) -> None:
        with self._log_path.open("a") as log:
            process = subprocess.Popen(self._command, stdout=subprocess.PIPE, stderr=log, text=True)  # noqa: S603
        reader = threading.Thread(target=self._read, args=(process,), daemon=True)
        reader.start()
        self._readers.append(reader)
        self._process = process

    def kill(self) -> None:
        """SIGKILL."""
        _end(self._process, signal.SIGKILL)

    def freeze(self) -> None:
        """SIGSTOP the process and forget it: the process started in its place will find a zombie behind it."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        self._frozen.append(self._process)
        self._process = None

    def thaw(self) -> None:
        """SIGCONT what was frozen: it continues where it was, as if nothing had happened."""
        for process in self._frozen:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def stop(self) -> None:
        """End all of its processes."""
        for process in self._frozen:
            _end(process, signal.SIGKILL)
        _end(self._process, signal.SIGTERM)
        for reader in self._readers:
            reader.join(STOP_TIMEOUT_S)

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for event in _events(process.stdout):
            self.events[event["event"]] += 1
            self.events["records"] += event.get("records", 0)
        process.stdout.close()


class Log(Protocol):
    """What the pipeline runs on: a node, or several."""

    @property
    def bootstrap(self) -> str: ...

    def start(self) -> None: ...

    def stop(self) -> object: ...

    def log_tail(self) -> str: ...


class Ensemble:
    """A node, or several, and instances; everything that was started ends with it."""

    def __init__(self, node: Log, folder: Path, *, instances: int, mode: str, batch: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.node = node
        self.events: Counter[str] = Counter()
        self.instances = [
            Instance(self.node.bootstrap, number, mode, batch, folder / f"instance-{number}.log", self.events)
            for number in range(instances)
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for instance in self.instances:
            instance.stop()
        self.node.stop()


def _events(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        with suppress(json.JSONDecodeError):
            yield json.loads(line)


def _end(process: subprocess.Popen[str] | None, how: signal.Signals, *, closes_output: bool = False) -> int:
    if process is None:
        return 0
    with suppress(ProcessLookupError):
        process.send_signal(how)
    try:
        return process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()
    finally:
        if closes_output and process.stdout is not None:
            process.stdout.close()


def has_enough_disk(folder: Path, needed_bytes: int) -> bool:
    """Return whether the file system under `folder` has room."""
    stats = os.statvfs(folder)
    return stats.f_bavail * stats.f_frsize >= needed_bytes
