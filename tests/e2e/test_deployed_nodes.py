"""The nodes of docker/compose-cluster.yaml and docker/kubernetes, as processes with a PostgreSQL of their own (R4).

Each has the environment that Compose or Kubernetes gives it, over the image's own; only hosts, ports and directories
are this machine's. The commands of health checks, probes, and what makes the secrets are run as written.
"""

from __future__ import annotations

import os
import shlex
import signal
import stat
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from database_servers import PasswordPostgresqlServer
from deployments import (
    compose,
    environment_of,
    image,
    manifests,
    nodes_of,
    pod_environment,
    pod_numbers,
    stateful_set,
)
from node_processes import READY, wait_for

import semel
from semel.runtime.ports import free_ports

pytestmark = [pytest.mark.slow, pytest.mark.postgresql, pytest.mark.timeout(600)]

RUN = "/run/semel"
DATA = "/var/lib/semel"
LISTENERS = ("KAFKA", "GRPC", "PEER", "METRICS")
SECRET = b"a secret of the tests' own, long enough\n"


STOP_WAIT_S = 5


@dataclass
class Check:
    """What asks a node whether it is well, and what it runs before it stops, with little patience; empty: nothing."""

    healthy: Callable[[str], bool]
    """Asks once. A busy machine may take too long to answer: who acts on it asks again."""
    before_stop: list[str]


class Nodes:
    """Processes by the names that they have in the file."""

    def __init__(self, folder: Path, environments: Mapping[str, Mapping[str, str]]) -> None:
        self._folder = folder
        self._bin = folder / "bin"
        self._bin.mkdir()
        program = self._bin / "semel"
        program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -P -m semel.cli "$@"\n')
        program.chmod(0o755)
        self.environments = {name: self._here(name, given) for name, given in environments.items()}
        self.processes: dict[str, subprocess.Popen[str]] = {}

    def _here(self, name: str, given: Mapping[str, str]) -> dict[str, str]:
        """Return the environment with addresses and directories of this machine."""
        made = {key: value for key, value in os.environ.items() if not key.startswith("SEMEL_")}
        made |= {key: value for key, value in given.items() if key != "PATH"}
        made["PATH"] = f"{self._bin}:{os.environ['PATH']}"
        for listener, port in zip(LISTENERS, free_ports(len(LISTENERS)), strict=True):
            assert given[f"SEMEL_{listener}_LISTEN"].startswith("0.0.0.0:")
            made[f"SEMEL_{listener}_LISTEN"] = f"127.0.0.1:{port}"
            if listener != "METRICS":
                assert given[f"SEMEL_{listener}_ADVERTISED"]
                made[f"SEMEL_{listener}_ADVERTISED"] = f"127.0.0.1:{port}"
        made["SEMEL_BOOTSTRAP"] = made["SEMEL_GRPC_LISTEN"]
        made["SEMEL_DATA_DIR"] = given["SEMEL_DATA_DIR"].replace(DATA, str(self._folder / name))
        made["SEMEL_CLUSTER_SECRET_FILE"] = given["SEMEL_CLUSTER_SECRET_FILE"].replace(RUN, str(self._folder / "run"))
        return made

    def start(self, *names: str) -> None:
        """Start nodes, all at once, and wait until they are ready."""
        entrypoint = image().entrypoint
        assert entrypoint[:2] == ["tini", "--"]
        for name in names:
            (self._folder / name).mkdir(exist_ok=True)  # as a volume is there before its node
            with (self._folder / f"{name}.log").open("a") as log:
                self.processes[name] = subprocess.Popen(
                    [*entrypoint[2:], *image().command],
                    env=self.environments[name],
                    cwd=self._folder / name,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                )
        for name in names:
            stdout = self.processes[name].stdout
            assert stdout is not None
            line = stdout.readline()
            assert READY.match(line.replace(" metrics ", " ")), line + self.log(name)

    def end(self, name: str, number: signal.Signals) -> int:
        process = self.processes.pop(name)
        process.send_signal(number)
        process.communicate(timeout=60)
        return process.returncode

    def run(self, name: str, command: Sequence[str]) -> int:
        """Run a command as in the node's container, and return its exit code. Its output is shown if a test fails."""
        done = subprocess.run(
            command, env=self.environments[name], cwd=self._folder, capture_output=True, text=True, timeout=120
        )
        if done.returncode != 0:
            print(f"{name}: {shlex.join(command)}: {done.returncode}\n{done.stdout}{done.stderr}")
        return done.returncode

    def is_whole(self) -> bool:
        return self.run(next(iter(self.processes)), ["semel", "cluster", "status"]) == 0

    def log(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text()

    def addresses(self, listener: str) -> str:
        return ",".join(one[f"SEMEL_{listener}_ADVERTISED"] for one in self.environments.values())

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
        for process in self.processes.values():
            process.communicate(timeout=30)


@dataclass
class Deployed:
    nodes: Nodes
    database: PasswordPostgresqlServer
    check: Check


@contextmanager
def deployed(
    folder: Path,
    password: str,
    environments: Callable[[str], Mapping[str, Mapping[str, str]]],
    check: Callable[[Nodes], Check],
) -> Iterator[Deployed]:
    """environments: what the nodes get, made of a URL of the database with the password in it"""
    database = PasswordPostgresqlServer(password)
    nodes: Nodes | None = None
    try:
        database.start()
        nodes = Nodes(folder, environments(database.new_database("semel")))
        nodes.start(*nodes.environments)
        yield Deployed(nodes, database, check(nodes))
    finally:
        if nodes is not None:
            nodes.close()
        database.close()


@contextmanager
def composed(folder: Path) -> Iterator[Deployed]:
    file = compose()
    run = folder / "run"
    run.mkdir()
    maker = file["services"]["secrets"]
    script = interpolated_command(maker)
    for _ in range(2):  # the second one finds all made, and leaves it
        before = {path.name: path.read_bytes() for path in run.iterdir()}
        subprocess.run(script, cwd=run, check=True, timeout=60)
        made = {path.name: path.read_bytes() for path in run.iterdir()}
        assert not before or made == before
    assert {stat.S_IMODE(path.stat().st_mode) for path in run.iterdir()} == {0o600}
    password_file = Path(file["services"]["postgres"]["environment"]["POSTGRES_PASSWORD_FILE"].replace(RUN, str(run)))

    def environments(url: str) -> dict[str, dict[str, str]]:
        place = url.rpartition("@")[2]
        found = {name: environment_of(service) for name, service in nodes_of(file).items()}
        for one in found.values():
            one["SEMEL_METADATA_URL"] = (
                one["SEMEL_METADATA_URL"].replace("@postgres/semel", f"@{place}").replace(RUN, str(run))
            )
            assert place in one["SEMEL_METADATA_URL"]
        return found

    def check(nodes: Nodes) -> Check:
        def healthy(name: str) -> bool:
            asked = file["services"][name]["healthcheck"]["test"]
            assert asked[0] == "CMD"
            return nodes.run(name, asked[1:]) == 0

        return Check(healthy, [])

    with deployed(folder, password_file.read_text(), environments, check) as running:
        yield running


def interpolated_command(service: Mapping[str, Any]) -> list[str]:
    return [*service["entrypoint"], *service["command"]]


@contextmanager
def in_pods(folder: Path) -> Iterator[Deployed]:
    documents = manifests()
    spec = stateful_set(documents)["spec"]["template"]["spec"]
    run, mounted = folder / "run", folder / "secret"
    for path in (run, mounted):
        path.mkdir()
    (mounted / "cluster-secret").write_bytes(SECRET)
    (init,) = spec["initContainers"]
    command = [word.replace(RUN, str(run)).replace("/secret/", f"{mounted}/") for word in init["command"]]
    for _ in range(2):  # as after the machine's restart
        subprocess.run(command, check=True, timeout=60)
    (made,) = run.iterdir()
    assert stat.S_IMODE(made.stat().st_mode) == 0o400
    assert made.read_bytes() == SECRET
    (container,) = spec["containers"]
    name = stateful_set(documents)["metadata"]["name"]

    def environments(url: str) -> dict[str, dict[str, str]]:
        secrets = {"metadata-url": url}
        return {f"{name}-{number}": pod_environment(documents, number, secrets) for number in pod_numbers(documents)}

    def check(nodes: Nodes) -> Check:
        def healthy(name: str) -> bool:
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                asked = container[probe]["httpGet"]
                listen = nodes.environments[name][f"SEMEL_{asked['port'].upper()}_LISTEN"]
                try:
                    with urllib.request.urlopen(f"http://{listen}{asked['path']}", timeout=5) as answer:
                        assert answer.status == 200
                except (urllib.error.URLError, OSError):
                    return False
            return True

        command = container["lifecycle"]["preStop"]["exec"]["command"]
        assert "timeout 300 " in command[-1]
        return Check(healthy, [*command[:-1], command[-1].replace("timeout 300 ", f"timeout {STOP_WAIT_S} ")])

    with deployed(folder, "a password/with+signs of: URLs", environments, check) as running:
        yield running


def all_are_healthy(running: Deployed, when: str) -> None:
    """As Compose and Kubernetes judge: three checks that fail, one after the other, are too many."""
    for name in running.nodes.processes:
        assert any(running.check.healthy(name) for _ in range(3)), f"{name} is unwell while {when}"


def seconds(call: Callable[[], int]) -> float:
    """How long a command takes that ends with 0."""
    begun = time.monotonic()
    assert call() == 0
    return time.monotonic() - begun


def send(nodes: Nodes, *values: bytes) -> None:
    errors: list[object] = []

    def told(error: object, _: object) -> None:
        if error is not None:
            errors.append(error)

    # Not idempotent: while the database is away, a node may have no producer id for a new producer.
    producer = Producer({"bootstrap.servers": nodes.addresses("KAFKA"), "acks": "all", "log_level": 0})
    for value in values:
        producer.produce("orders", value, on_delivery=told)
    assert producer.flush(60) == 0
    assert not errors


def receive(nodes: Nodes, count: int) -> list[bytes | None]:
    consumer = Consumer(
        {
            "bootstrap.servers": nodes.addresses("KAFKA"),
            "group.id": "readers",
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )
    try:
        consumer.subscribe(["orders"])
        found: list[bytes | None] = []
        while len(found) < count:
            message = consumer.poll(60)
            assert message is not None
            assert message.error() is None, message.error()
            found.append(message.value())
        return found
    finally:
        consumer.close()


@pytest.mark.drawn(1)
@pytest.mark.parametrize("deploy", [composed, in_pods])
def test_R4_the_nodes_of_the_files_become_a_whole_cluster_and_are_well_while_others_are_away(
    tmp_path: Path, deploy: Callable[[Path], Any]
) -> None:
    with deploy(tmp_path) as running:
        nodes, check, first, last = running.nodes, running.check, *list(running.nodes.environments)[::2]
        wait_for(nodes.is_whole, "all nodes to be up and in sync")
        # As in a pod or container: the address is the node's own, in SEMEL_BOOTSTRAP.
        assert nodes.run(first, ["semel", "topic", "create", "orders", "--partitions", "3"]) == 0
        with semel.Admin(nodes.addresses("GRPC")) as admin:
            assert {len(one.replicas) for one in admin.topic("orders").partitions} == {3}
            [least] = admin.topic_configs("orders", ["min.insync.replicas"])
            assert least.value == "2"
        send(nodes, b"1", b"2", b"3")
        assert sorted(value or b"" for value in receive(nodes, 3)) == [b"1", b"2", b"3"]
        wait_for(nodes.is_whole, "the new topics to be in sync")
        all_are_healthy(running, "all is well")
        if check.before_stop:
            patient = [word.replace(f"timeout {STOP_WAIT_S} ", "timeout 90 ") for word in check.before_stop]
            assert seconds(lambda: nodes.run(first, patient)) < 60, "a node of a whole cluster waits before it stops"

        running.database.kill()
        send(nodes, b"4")
        all_are_healthy(running, "the database is away")
        running.database.start()

        nodes.end(last, signal.SIGKILL)
        send(nodes, b"5")
        all_are_healthy(running, "another node is away")
        assert not check.healthy(last)
        assert not nodes.is_whole()
        if check.before_stop:
            waited_s = seconds(lambda: nodes.run(first, check.before_stop))
            assert waited_s >= STOP_WAIT_S, "a node stops though another one is away"
        nodes.start(last)
        wait_for(nodes.is_whole, "the node that was away to be in sync")
        assert not [
            line for name in nodes.processes for line in nodes.log(name).splitlines() if "may be used by others" in line
        ]
        for name in list(nodes.processes):
            assert nodes.end(name, signal.SIGTERM) == 0
