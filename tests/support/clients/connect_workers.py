"""Processes of Kafka Connect and MirrorMaker 2, which are killed, frozen and started again; Connect's REST API."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from kafka_jars import ROOT, JavaMissingError
from kafka_tools import KafkaTools
from node_processes import wait_for

from semel.runtime.ports import free_ports

HEAP = ("-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
LOGGED = (
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
    "-Dorg.slf4j.simpleLogger.log.org.apache.kafka.connect.runtime=info",
    "-Dorg.slf4j.simpleLogger.log.org.apache.kafka.connect.runtime.rest=warn",
)
CONNECT_PAGE = "how-to/kafka-connect.md"
QUICK = {
    "heartbeat.interval.ms": 500,
    "offset.flush.interval.ms": 1_000,
    "plugin.discovery": "service_load",
    "scheduled.rebalance.max.delay.ms": 0,
    "session.timeout.ms": 6_000,
    "worker.sync.timeout.ms": 30_000,
    "worker.unsync.backoff.ms": 1_000,
}
"""A worker that has died is missed after seconds, and its work is moved at once: the defaults wait for minutes.

The other way round for `worker.sync.timeout.ms`: tasks fail for good where the log of settings is not read in time.
"""
NOT_ASKED = ("ConnectRestException", "before performing zombie fencing")
"""What a task failed with that could not ask the leader of its group whether it may start, or the leader the log."""
NOT_YET = (404, 409, 500, 503)
"""What a worker answers while its group moves work, or what is asked for is not known to it yet."""
REST_TIMEOUT_S = 20
STOP_TIMEOUT_S = 30


def page_settings(page: str, title: str) -> dict[str, str]:
    """Return the settings of the one block of a page in `docs/` that begins with the comment `title`."""
    text = (ROOT / "docs" / page).read_text()
    (block,) = re.findall(rf"^```properties\n# {re.escape(title)}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    lines = [line for line in block.splitlines() if line.strip() and not line.startswith("#")]
    return {name.strip(): value.strip() for name, _, value in (line.partition("=") for line in lines)}


def page_connector(page: str, name: str) -> dict[str, str]:
    """Return the settings of a connector as a page in `docs/` sends them to a worker: the JSON with this `name`."""
    blocks = re.findall(r"^```json\n(.*?)^```$", (ROOT / "docs" / page).read_text(), re.DOTALL | re.MULTILINE)
    (found,) = [block for block in map(json.loads, blocks) if block["name"] == name]
    settings: dict[str, str] = found["config"]
    return settings


def distributed_settings(kafka_address: str, plugin_path: Path) -> dict[str, object]:
    """Return the settings of docs/how-to/kafka-connect.md for the workers of a group."""
    page = page_settings(CONNECT_PAGE, "distributed.properties")
    return {**page, **QUICK, "bootstrap.servers": kafka_address, "plugin.path": plugin_path}


def plugin_path(folder: Path, name: str, jars: Callable[[], Path]) -> Path:
    """Return a folder with one plugin in it, for `plugin.path`. Skips the test where its jars can't be had."""
    try:
        fetched = jars()
    except JavaMissingError as error:
        pytest.skip(str(error))
    (folder / "plugins").mkdir()
    (folder / "plugins" / name).symlink_to(fetched)
    return folder / "plugins"


@contextmanager
def running_workers(
    tools: KafkaTools, folder: Path, settings: Mapping[str, object], count: int = 2
) -> Iterator[list[Worker]]:
    """Run the workers of one group; they are killed at the end."""
    workers = [Worker(tools, folder, f"worker-{number}", settings) for number in range(count)]
    try:
        for worker in workers:
            worker.start()
        yield workers
    finally:
        for worker in workers:
            worker.kill()


def write_properties(path: Path, settings: Mapping[str, object]) -> Path:
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return path


class JavaProcess:
    """A program that runs until it is stopped. What it logs goes to one file, however often it is started."""

    def __init__(self, command: Sequence[str], log_path: Path) -> None:
        self._command = list(command)
        self._log_path = log_path
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        assert not self.is_running
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(STOP_TIMEOUT_S)

    def freeze(self) -> None:
        """SIGSTOP: it is a zombie once others have taken its work."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT: it continues where it was, as if nothing had happened."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """SIGTERM; a program that has not ended in time is killed."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.kill()

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def log(self) -> str:
        return self._log_path.read_text(errors="replace")

    def log_tail(self, lines: int = 40) -> str:
        return "\n".join(self.log().splitlines()[-lines:])


class Worker(JavaProcess):
    """A worker of Kafka Connect, with its REST API on a port that stays the same."""

    def __init__(
        self,
        tools: KafkaTools,
        folder: Path,
        name: str,
        settings: Mapping[str, object],
        connectors: Sequence[Path] = (),
    ) -> None:
        """`connectors` are files of a standalone worker; without them it is a distributed one."""
        (port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{port}"
        path = write_properties(folder / f"{name}.properties", {**settings, "listeners": self.url})
        program = "connect-standalone" if connectors else "connect-distributed"
        files = [str(path), *map(str, connectors)]
        super().__init__(tools.command(program, *files, jvm=(*HEAP, *LOGGED)), folder / f"{name}.log")

    def start(self) -> None:
        """Start, and wait until it is in its group: one that is not answers no question about connectors."""
        super().start()
        self.wait_for(lambda: self._ask("GET", "/connectors") is not None, "its REST API")

    def wait_for(self, condition: Callable[[], object], what: str) -> None:
        """Wait until a condition holds; fail the test where the worker ends meanwhile."""

        def met() -> object:
            assert self.is_running, f"the worker has ended:\n{self.log_tail()}"
            return condition()

        wait_for(met, f"{what} of {self.url}")

    def configure(self, connector: str, settings: Mapping[str, str]) -> None:
        """Make a connector, or change it."""
        self.wait_for(
            lambda: self._ask("PUT", f"/connectors/{connector}/config", settings) is not None, f"connector {connector}"
        )

    def tasks(self, connector: str) -> list[tuple[str, str]]:
        """Return each task's state and the address of its worker, as the topic of states has them."""
        return [(task["state"], f"http://{task['worker_id']}") for task in self._status(connector)]

    def wait_running(self, *connectors: str, on: Sequence[str] = ()) -> None:
        """Wait until all tasks of these connectors run; `on` names the workers where.

        A task that starts when nobody can say whether it may fails, as Connect is. That one is started again, as an
        operator would. A task that fails for another reason fails the test.
        """

        def runs(connector: str) -> bool:
            for task in self._status(connector):
                if task["state"] == "FAILED":
                    assert any(reason in task["trace"] for reason in NOT_ASKED), task
                    self._ask("POST", f"/connectors/{connector}/tasks/{task['id']}/restart")
            found = self.tasks(connector)
            return bool(found) and all(state == "RUNNING" and (not on or worker in on) for state, worker in found)

        self.wait_for(lambda: all(map(runs, connectors)), f"the tasks of {connectors}")

    def _status(self, connector: str) -> list[dict[str, Any]]:
        tasks: list[dict[str, Any]] = (self._ask("GET", f"/connectors/{connector}/status") or {"tasks": []})["tasks"]
        return tasks

    def _ask(self, method: str, path: str, body: object = None) -> Any:
        """Return the answer, or None where there is none yet."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self.url + path, data=data, method=method, headers={"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=REST_TIMEOUT_S) as response:
                return json.loads(response.read() or b"{}")
        except urllib.error.HTTPError as error:
            with error:
                text = error.read().decode(errors="replace")
            if error.code not in NOT_YET:
                raise AssertionError(f"{method} {path}: {error.code} {text}") from None
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            time.sleep(0.1)
        return None
