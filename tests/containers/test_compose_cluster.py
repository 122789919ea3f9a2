"""docker/compose-cluster.yaml in containers: the secrets are made, three nodes become a cluster, and stay one.

An engine often comes without Compose, so the file is read here, and the engine is asked for what it says. Where there
is Compose, it must read the same.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import docker
import docker.errors
import pytest
from deployments import COMPOSE, compose, nodes_of, seconds_of
from docker.models.containers import Container
from docker.types import EndpointConfig
from semel_containers import IN_CONTAINERS, base_image, engine, semel_image, wait_until

__all__ = ["base_image", "engine", "semel_image"]

pytestmark = [*IN_CONTAINERS, pytest.mark.slow]

POSTGRESQL = Path(__file__).parents[1] / "support" / "nodes" / "postgresql_image"
NAMES = {f"NODE_{number}_HOST": f"semel-{number}" for number in (1, 2, 3)}
"""Clients here are in the containers' network."""
TAKEN = {"image", "entrypoint", "command", "environment", "hostname", "healthcheck", "volumes", "network_mode"}
OTHERWISE = {"build", "depends_on", "ports", "restart", "stop_grace_period"}
"""What the fixtures see to, what nobody needs here, and what a test does."""


@pytest.fixture(scope="module")
def postgres_image(engine: docker.DockerClient, request: pytest.FixtureRequest) -> str:
    """The image that the file names, where it can be had; or one of Debian's PostgreSQL that is started like it."""
    named = os.environ.get("POSTGRES_IMAGE") or compose()["services"]["postgres"]["image"]
    with suppress(docker.errors.DockerException):
        if not engine.images.list(name=named):
            engine.images.pull(named)
        return str(named)
    base = request.getfixturevalue("base_image")
    engine.images.build(path=str(POSTGRESQL), tag="semel-postgresql:tests", buildargs={"BASE_IMAGE": base}, rm=True)
    return "semel-postgresql:tests"


class Project:
    """The services of the file, each in its container; what Compose would make beside them has a name of its own."""

    def __init__(self, engine: docker.DockerClient, file: Mapping[str, Any], images: Mapping[str, str]) -> None:
        self._engine = engine
        self._services = file["services"]
        self._images = images
        self._network = engine.networks.create(f"semel-tests-{os.getpid()}")
        self._volumes = {name: engine.volumes.create() for name in file["volumes"]}
        self.containers: dict[str, Container] = {}

    def start(self, name: str) -> Container:
        service = self._services[name]
        assert set(service) <= TAKEN | OTHERWISE, "Compose does more than this test"
        mounts = {}
        for volume in service["volumes"]:
            source, target, *mode = volume.split(":")
            mounts[self._volumes[source].name] = {"bind": target, "mode": mode[0] if mode else "rw"}
        in_network: dict[str, Any] = {"network_mode": service["network_mode"]} if "network_mode" in service else {}
        if not in_network:
            endpoint = EndpointConfig(self._engine.api._version, aliases=[name])
            in_network = {"network": self._network.name, "networking_config": {self._network.name: endpoint}}
        made = self._engine.containers.create(
            self._images.get(name, self._images["semel"]),
            service.get("command"),
            entrypoint=service.get("entrypoint"),
            environment={key: str(value) for key, value in service.get("environment", {}).items()},
            hostname=service.get("hostname"),
            healthcheck=_healthcheck(service["healthcheck"]),
            volumes=mounts,
            **in_network,
        )
        self.containers[name] = made
        made.start()
        return made

    def run(self, name: str) -> None:
        container = self.start(name)
        assert container.wait(timeout=120)["StatusCode"] == 0, container.logs().decode()

    def wait_healthy(self, *names: str) -> None:
        for name in names:
            wait_until(lambda name=name: self.health(name) == "healthy", f"{name} to be healthy")  # type: ignore[misc]

    def health(self, name: str) -> str:
        container = self.containers[name]
        container.reload()
        state = container.attrs["State"]
        assert state["Running"], container.logs().decode()
        return str(state["Health"]["Status"])

    def exit_code(self, name: str, command: str) -> int:
        return int(self.containers[name].exec_run(["sh", "-c", command]).exit_code)

    def call(self, name: str, command: str) -> str:
        code, output = self.containers[name].exec_run(["sh", "-c", command])
        assert code == 0, output.decode()
        return str(output.decode())

    def is_whole(self) -> bool:
        return self.exit_code("semel-1", "semel cluster status") == 0

    def close(self) -> None:
        for container in self.containers.values():
            container.remove(force=True, v=True)
        for volume in self._volumes.values():
            volume.remove(force=True)
        self._network.remove()


def _healthcheck(given: Mapping[str, Any]) -> dict[str, Any]:
    if given.get("disable"):
        return {"test": ["NONE"]}
    times = {key: int(seconds_of(given[key]) * 1e9) for key in ("interval", "timeout", "start_period")}
    return {"test": given["test"], "retries": given["retries"], **times}


@pytest.fixture
def project(engine: docker.DockerClient, semel_image: str, postgres_image: str) -> Iterator[Project]:
    running = Project(engine, compose(**NAMES), {"semel": semel_image, "postgres": postgres_image})
    try:
        yield running
    finally:
        running.close()


def test_R4_the_compose_file_starts_a_cluster_that_survives_its_database_and_a_node(project: Project) -> None:
    nodes = list(nodes_of(compose()))
    project.run("secrets")
    project.start("postgres")
    project.wait_healthy("postgres")
    for name in nodes:
        project.start(name)
    project.wait_healthy(*nodes)
    wait_until(project.is_whole, "all nodes to be up and in sync")

    listed = project.call("semel-1", "stat --format '%U %a %n' /run/semel /run/semel/*").split("\n")
    assert [line.split()[:2] for line in listed if line] == [["semel", "750"], *[["semel", "600"]] * 3]
    assert "may be used by others" not in project.containers["semel-1"].logs().decode()

    project.call("semel-1", "semel topic create orders")
    # One producer for the whole time: while the database is away, a node may have no producer id for a new one.
    lines = "seq 1 10; until test -e /tmp/away; do sleep 0.2; done; seq 11 20"
    project.containers["semel-2"].exec_run(
        ["sh", "-c", f"{{ {lines}; }} | semel produce orders && touch /tmp/sent"], detach=True
    )
    project.call("semel-1", "semel consume orders --from-beginning --max 10")
    wait_until(project.is_whole, "the new topic to be in sync")
    project.containers["postgres"].stop(timeout=60)
    project.call("semel-2", "touch /tmp/away")
    wait_until(lambda: project.exit_code("semel-2", "test -e /tmp/sent") == 0, "records without the database")
    assert [project.health(name) for name in nodes] == ["healthy"] * 3
    project.containers["postgres"].start()
    project.wait_healthy("postgres")

    (grace,) = {compose()["services"][name]["stop_grace_period"] for name in nodes}
    project.containers["semel-3"].stop(timeout=int(seconds_of(grace)))
    assert project.containers["semel-3"].wait(timeout=60)["StatusCode"] == 0, "it was killed"
    assert not project.is_whole()
    found = project.call("semel-1", "semel consume orders --from-beginning --max 20").split()
    assert sorted(map(int, found)) == list(range(1, 21))
    project.containers["semel-3"].start()
    project.wait_healthy("semel-3")
    wait_until(project.is_whole, "the node that was stopped to be in sync")


def test_compose_itself_reads_the_file() -> None:
    try:
        done = subprocess.run(["docker", "compose", "version"], capture_output=True, timeout=60)
    except FileNotFoundError:
        pytest.skip("no docker here")
    if done.returncode != 0:
        pytest.skip("no Compose here")
    checked = subprocess.run(
        ["docker", "compose", "--file", str(COMPOSE), "config", "--format", "json"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert checked.returncode == 0, checked.stderr
    read = json.loads(checked.stdout)
    for name, service in nodes_of(compose()).items():
        assert read["services"][name]["environment"] == service["environment"]
    assert read["services"]["secrets"]["command"] == [compose()["services"]["secrets"]["command"][0]]
