"""Nodes and pipelines in containers. Import the fixtures into a test module, and mark it with `IN_CONTAINERS`."""

from __future__ import annotations

import gc
import io
import os
import tarfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NoReturn

# What would clean up after a run that was killed is an image of a registry's.
os.environ.setdefault("TESTCONTAINERS_RYUK_DISABLED", "true")

import docker
import docker.errors
import pytest
from history import Transaction, load_transactions
from testcontainers.core.container import DockerContainer
from testcontainers.core.image import DockerImage
from testcontainers.core.network import Network

from semel.sdk.testing.container import SemelContainer

IN_CONTAINERS = [pytest.mark.containers, pytest.mark.timeout(900)]
"""The time-out has room for building the image, which is done once."""

ROOT = Path(__file__).parents[3]
PIPELINES = Path(__file__).parents[1] / "pipelines"
DATA = "/var/lib/semel"
BASE_IMAGE = os.environ.get("BASE_IMAGE", "")
DEFAULT_BASE_IMAGE = "python:3.11-slim-bookworm"
LOCAL_BASE_IMAGE = "semel-base:bookworm"


def _unavailable(reason: str) -> NoReturn:
    """Skip; or fail, where the environment says that there is an engine."""
    if os.environ.get("REQUIRE_CONTAINERS"):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def engine() -> Iterator[docker.DockerClient]:
    """A Docker engine, or the test is skipped."""
    client, reason = _connect()
    if client is None:
        _unavailable(f"no Docker engine here (on Debian: apt-get install docker.io): {reason[:200]}")
    yield client
    client.close()


def _connect() -> tuple[docker.DockerClient | None, str]:
    reason = ""
    with warnings.catch_warnings():
        # docker-py does not close the socket of an engine that is not there.
        warnings.simplefilter("ignore", ResourceWarning)
        try:
            return docker.from_env(), ""
        except (docker.errors.DockerException, OSError) as error:
            reason = str(error)
        gc.collect()
    return None, reason


@pytest.fixture(scope="session")
def base_image(engine: docker.DockerClient) -> str:
    """What the image is built on: BASE_IMAGE, one made by docker/base-image.sh, or one of the registry."""
    for name in [BASE_IMAGE] if BASE_IMAGE else [LOCAL_BASE_IMAGE, DEFAULT_BASE_IMAGE]:
        if engine.images.list(name=name):
            return name
    name = BASE_IMAGE or DEFAULT_BASE_IMAGE
    try:
        engine.images.pull(name)
    except docker.errors.DockerException as error:
        _unavailable(
            f"no base image: {name} can't be had ({str(error)[:200]}). Make one with `docker/base-image.sh "
            f"{LOCAL_BASE_IMAGE}`, or name one by BASE_IMAGE"
        )
    return name


@pytest.fixture(scope="session")
def semel_image(request: pytest.FixtureRequest, engine: docker.DockerClient) -> str:
    """The image, built from this checkout, once in a session; or IMAGE, one that is built already."""
    if os.environ.get("IMAGE"):
        return os.environ["IMAGE"]
    base_image = request.getfixturevalue("base_image")
    image = DockerImage(
        ROOT,
        tag="semel:tests",
        dockerfile_path="docker/Dockerfile",
        buildargs={"BASE_IMAGE": base_image},
        clean_up=False,
        rm=True,
    )
    image.build()
    image.get_docker_client().client.close()
    return "semel:tests"


@pytest.fixture
def network() -> Iterator[Network]:
    with Network() as made:
        yield made
    made._docker.client.close()  # which testcontainers leaves open


def node_container(image: str, **kwargs: Any) -> SemelContainer:
    """A node that starts fast: few partitions of the internal topics, and no reserve of the disk."""
    return (
        SemelContainer(image, **kwargs)
        .with_setting("offsets.topic.num.partitions", 4)
        .with_setting("transaction.state.log.num.partitions", 4)
        .with_setting("disk.min.free.bytes", 0)
    )


def wait_until(condition: Callable[[], object], what: str, *, patience_s: float = 90.0) -> None:
    """Wait for a condition, or fail and say which."""
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {patience_s:g} s for {what}"
        time.sleep(0.1)


def gateway_of(engine: docker.DockerClient, network: Network) -> str:
    """The host's address in a network: where containers in it and the host itself reach published ports."""
    return str(engine.networks.get(network.id).attrs["IPAM"]["Config"][0]["Gateway"])


def health_of(container: DockerContainer) -> str:
    wrapped = container.get_wrapped_container()
    wrapped.reload()
    return str(wrapped.attrs["State"]["Health"]["Status"])


def exit_code_of(container: DockerContainer) -> int:
    wrapped = container.get_wrapped_container()
    wrapped.reload()
    return int(wrapped.attrs["State"]["ExitCode"])


def log_of(container: DockerContainer) -> str:
    return b"".join(container.get_logs()).decode(errors="replace")


def signal_node(container: SemelContainer, name: str) -> None:
    """Send a signal to the node's own process; the one that the engine knows is tini."""
    find = (
        "import os, signal, pathlib\n"
        "[number] = [int(path.parent.name) for path in pathlib.Path('/proc').glob('[1-9]*/cmdline')\n"
        "            if b'/semel\\0serve' in path.read_bytes() and not path.read_bytes().startswith(b'tini')]\n"
        f"os.kill(number, signal.{name})"
    )
    done = container.exec(["python3", "-c", find])
    assert done.exit_code == 0, done.output


class Worker(DockerContainer):
    """An instance of the pipeline (pipeline_worker.py) in a container, which keeps its history in itself."""

    def __init__(self, image: str, bootstrap: str, number: int, network: Network, *, abort_rate: float = 0.1) -> None:
        super().__init__(image)
        for name in ("pipeline_worker.py", "history.py"):
            self.with_copy_into_container(PIPELINES / name, f"/opt/pipeline/{name}")
        program = ["python3", "/opt/pipeline/pipeline_worker.py", "--bootstrap", bootstrap, "--instance", str(number)]
        self.with_command([*program, "--history", "/tmp", "--abort-rate", str(abort_rate), "--batch", "20"])
        self.with_kwargs(entrypoint=["tini", "--"], healthcheck={"test": ["NONE"]})
        self.with_network(network)

    def kill(self) -> None:
        wrapped = self.get_wrapped_container()
        wrapped.kill()
        wrapped.wait()

    @property
    def is_running(self) -> bool:
        self.reload()
        return self.status == "running"

    def history(self, folder: Path) -> list[Transaction]:
        """What it wrote down, also after it was killed."""
        kept = folder / self.get_container_id()
        chunks, _ = self.get_wrapped_container().get_archive("/tmp")
        with tarfile.open(fileobj=io.BytesIO(b"".join(chunks))) as archive:
            archive.extractall(kept, filter="data")
        return load_transactions(kept.rglob("*.jsonl"))


class Workers:
    """The instances of a pipeline, started again with their number when they have ended."""

    def __init__(self, image: str, bootstrap: str, network: Network, count: int, folder: Path) -> None:
        self._image, self._bootstrap, self._network, self._folder = image, bootstrap, network, folder
        self._started: list[Worker] = []
        self._stack = ExitStack()
        self.running = [self._start(number) for number in range(count)]

    def start_missing(self) -> None:
        for number, worker in enumerate(self.running):
            if not worker.is_running:
                self.running[number] = self._start(number)

    def _start(self, number: int) -> Worker:
        worker = Worker(self._image, self._bootstrap, number, self._network)
        self._started.append(self._stack.enter_context(worker))
        return worker

    def transactions(self) -> list[Transaction]:
        """End all instances, and return what each of them tried."""
        for worker in self.running:
            if worker.is_running:
                worker.kill()
        return [one for worker in self._started for one in worker.history(self._folder)]

    def logs(self) -> str:
        return "\n".join(f"--- {log_of(worker)}" for worker in self._started)

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
