"""A cluster of Spark on this machine, drivers on it, and the processes of its executors, to be stopped and killed.

`LocalCluster` is `local-cluster[2,1,1024]`. `Cluster` differs from it in that its workers have different addresses:
Spark runs no speculative copy on the host of the first attempt. Neither writes into the installed PySpark's folder.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import pyspark

from semel.runtime.ports import free_ports

DRIVER = Path(__file__).parent / "spark_faults.py"
HOSTS = ("127.0.0.1", "127.0.0.2")
WAIT_S = 240.0
STOP_S = 20.0

QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For JVMs that live for a minute."""

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "512m",
    "spark.driver.host": HOSTS[0],
    "spark.executor.memory": "512m",
    "spark.driver.extraJavaOptions": QUICK_START,
    "spark.executor.extraJavaOptions": QUICK_START,
    "spark.executor.cores": "1",
    "spark.cores.max": "2",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",  # both executors are there before the first task
    "spark.executor.heartbeatInterval": "1s",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100",
}


def wait_until(condition: Callable[[], Any], what: str, meanwhile: Callable[[], object] = lambda: None) -> Any:
    """Wait until a condition gives something, and return it. `meanwhile` may raise to give up early."""
    deadline = time.monotonic() + WAIT_S
    while not (found := condition()):
        meanwhile()
        assert time.monotonic() < deadline, f"waited {WAIT_S:.0f} s in vain until {what}"
        time.sleep(0.05)
    return found


def is_alive(pid: int) -> bool:
    """Whether a process runs or is stopped; one that has ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def family(pid: int) -> list[int]:
    """Return a process and all of its descendants, parents first."""
    found = [pid]
    for each in found:
        for listed in Path(f"/proc/{each}/task").glob("*/children"):
            with suppress(FileNotFoundError, ProcessLookupError):
                found += [int(child) for child in listed.read_text().split()]
    return found


def send(pids: list[int], how: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, how)


class Cluster:
    """A master and two workers, each a JVM. Everything that they started ends with them."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        home = Path(pyspark.__file__).parent
        self.environment = {
            **os.environ,
            **environment,
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_DIRS": str(folder / "local"),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": QUICK_START,
        }
        self._class = str(home / "bin" / "spark-class")
        (port,) = free_ports(1)
        self.master = f"spark://{HOSTS[0]}:{port}"
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        host, port = self.master.removeprefix("spark://").split(":")
        try:
            self._start("master.Master", host, "--port", port)
            wait_until(lambda: _listens(host, int(port)), "the master listens", self._check)
            for each in HOSTS:
                work = str(self._folder / f"work-{each}")
                self._start("worker.Worker", each, "--cores", "2", "--memory", "2g", "--work-dir", work, self.master)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        below = [pid for process in self._processes for pid in family(process.pid)[1:]]
        send(below, signal.SIGCONT)
        for process in reversed(self._processes):
            _end(process)
        send([pid for pid in below if is_alive(pid)], signal.SIGKILL)

    def log(self) -> str:
        """The ends of the logs of all executors."""
        return _ends_of(sorted(self._folder.glob("work-*/*/*/stderr")))

    def _start(self, name: str, host: str, *arguments: str) -> None:
        command = [self._class, f"org.apache.spark.deploy.{name}", "--host", host, "--webui-port", "0", *arguments]
        with (self._folder / "daemons.log").open("ab") as log:
            self._processes.append(
                subprocess.Popen(
                    command, env={**self.environment, "SPARK_LOCAL_IP": host}, stdout=log, stderr=log, cwd=self._folder
                )
            )

    def _check(self) -> None:
        for process in self._processes:
            log = self._folder / "daemons.log"
            assert process.poll() is None, f"a process of Spark's has ended: {log.read_text()[-3_000:]}"


class LocalCluster:
    """`local-cluster[2,1,1024]`: master and workers are in the driver's JVM, each executor is a JVM of its own."""

    master = "local-cluster[2,1,1024]"

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._home = folder / "home"
        self._home.mkdir(parents=True)
        for each in Path(pyspark.__file__).parent.iterdir():  # its executors' logs go below SPARK_HOME
            (self._home / each.name).symlink_to(each)
        home, local = str(self._home), str(folder / "local")
        self.environment = {**os.environ, **environment, "SPARK_HOME": home, "SPARK_LOCAL_DIRS": local}

    def log(self) -> str:
        """The ends of the logs of all executors."""
        return _ends_of(sorted(self._home.glob("work/*/*/stderr")))


class Driver:
    """A driver on a cluster, with two executors of its own: a process that takes orders."""

    def __init__(self, cluster: Cluster | LocalCluster, bootstrap: str, folder: Path, **settings: str) -> None:
        """`settings` are Spark's; "__" in a name stands for a dot."""
        folder.mkdir(parents=True, exist_ok=True)
        given = {f"spark.{name.replace('__', '.')}": value for name, value in settings.items()}
        arguments = [cluster.master, bootstrap, json.dumps({**SETTINGS, **given})]
        self._cluster = cluster
        self._log_path = folder / "driver.log"
        self._answers: queue.Queue[str] = queue.Queue()
        self._open_orders = 0
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(DRIVER), *arguments],
                env={**cluster.environment, "SPARK_LOCAL_IP": HOSTS[0]},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=folder,
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        below = family(self._process.pid)[1:]
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        _end(self._process, how=None)
        send([pid for pid in below if is_alive(pid)], signal.SIGKILL)
        self._reader.join(STOP_S)

    def tell(self, do: str, **order: Any) -> None:
        """Give an order without waiting for it to be done."""
        self._open_orders += 1
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **order}) + "\n")
        self._process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        """Wait until an order is done, and return what came of it."""
        line: str = wait_until(lambda: not self._answers.empty() and self._answers.get(), "the driver answers")
        if line == "ended":
            self._open_orders = 0
            raise AssertionError(f"the driver has ended\n{self.log()}")
        self._open_orders -= 1
        answer: dict[str, Any] = json.loads(line)
        assert "error" not in answer, f"{answer['error']}\n{self.log()}"
        return answer

    def settle(self) -> None:
        """Wait until every order is done, whatever came of it."""
        for _ in range(self._open_orders):
            with suppress(AssertionError):
                self.hear()

    def check(self) -> None:
        """Raise where there is nothing to wait for any more: an order is done already, or the driver has ended."""
        if not self._answers.empty():
            raise AssertionError(f"the driver is through already: {self.hear()}\n{self.log()}")

    def log(self) -> str:
        return f"{self._log_path.read_text(errors='replace')[-6_000:]}\n{self._cluster.log()}"

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._answers.put(line)
        self._answers.put("ended")


def _ends_of(logs: list[Path]) -> str:
    return "\n".join(f"--- {path}\n{path.read_text(errors='replace')[-3_000:]}" for path in logs)


def _end(process: subprocess.Popen[Any], how: signal.Signals | None = signal.SIGTERM) -> None:
    if how is not None:
        process.send_signal(how)
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _listens(host: str, port: int) -> bool:
    with suppress(OSError), socket.create_connection((host, port), timeout=1):
        return True
    return False
