"""The image that docker/Dockerfile makes: who runs in it, what is in it, how it tells its health and stops."""

from __future__ import annotations

import docker
import pytest
from semel_containers import (
    IN_CONTAINERS,
    base_image,
    engine,
    exit_code_of,
    health_of,
    log_of,
    node_container,
    semel_image,
    signal_node,
    wait_until,
)

import semel

__all__ = ["base_image", "engine", "semel_image"]

pytestmark = IN_CONTAINERS

QUICK_CHECKS = {"interval": 500_000_000, "timeout": 1_000_000_000, "retries": 1, "start_period": 0}
"""In nanoseconds. The check itself is the image's."""


def run(engine: docker.DockerClient, image: str, *command: str) -> str:
    """Run a program in the image, and return what it printed."""
    container = engine.containers.create(image, list(command), entrypoint="")
    try:
        container.start()
        code = container.wait()["StatusCode"]
        assert code == 0, container.logs().decode()
        return str(container.logs(stderr=False).decode())
    finally:
        container.remove(force=True, v=True)


def test_the_node_is_not_root_and_can_write_its_data_alone(engine: docker.DockerClient, semel_image: str) -> None:
    assert run(engine, semel_image, "id", "-u", "-n").strip() == "semel"
    search = "find / -xdev -writable -type d -not -path '/proc/*' -not -path '/dev/*' 2> /dev/null || true"
    writable = run(engine, semel_image, "sh", "-c", search)
    assert {folder for folder in writable.split() if not folder.startswith("/tmp")} <= {
        "/var/tmp",
        "/var/lock",
        "/run/lock",
        "/var/lib/semel",
    }


def test_the_image_holds_no_compiler_and_no_installer_and_runs_compiled(
    engine: docker.DockerClient, semel_image: str, base_image: str
) -> None:
    question = (
        "import shutil; from semel.protocol.compiled import is_compiled; print(is_compiled(), shutil.which('cc'))"
    )
    assert run(engine, semel_image, "/opt/semel/bin/python", "-c", question).split() == ["True", "None"]
    assert run(engine, semel_image, "sh", "-c", "ls /opt/semel/bin").split().count("pip") == 0
    added = engine.images.get(semel_image).attrs["Size"] - engine.images.get(base_image).attrs["Size"]
    assert added < 160_000_000, f"{added / 1e6:.0f} MB on top of {base_image}"


def test_the_node_runs_on_a_read_only_root(semel_image: str) -> None:
    with node_container(semel_image, read_only=True).with_tmpfs_mount("/tmp") as container:
        with semel.Admin(container.get_grpc_address()) as admin:
            admin.create_topic("orders")
        assert container.terminate() == 0


def test_health_follows_the_node(semel_image: str) -> None:
    with node_container(semel_image, healthcheck=QUICK_CHECKS) as container:
        wait_until(lambda: health_of(container) == "healthy", "the node to be healthy")
        signal_node(container, "SIGSTOP")
        wait_until(lambda: health_of(container) == "unhealthy", "the frozen node to be unhealthy")
        signal_node(container, "SIGCONT")
        wait_until(lambda: health_of(container) == "healthy", "the node to be healthy again")


def test_sigterm_ends_the_node_cleanly_though_a_client_waits_for_records(semel_image: str) -> None:
    with node_container(semel_image) as container:
        address = container.get_grpc_address()
        with semel.Admin(address) as admin:
            admin.create_topic("orders")
        with semel.Producer(address) as producer, semel.Consumer(address) as consumer:
            producer.send("orders", b"one").result(30)
            consumer.assign([semel.TopicPartition("orders", 0)])
            assert [record.value for record in consumer.poll(30)] == [b"one"]
            assert container.terminate(timeout_s=20) == 0
        assert "stopping, because of SIGTERM" in log_of(container)
        container.restart()
        opened = [line for line in log_of(container).splitlines() if "opened the logs" in line]
        assert len(opened) == 2
        assert "after a clean stop" in opened[1], opened


def test_a_wrong_setting_ends_the_container_and_says_which(engine: docker.DockerClient, semel_image: str) -> None:
    container = node_container(semel_image).with_env("SEMEL_LOG_RETENTION_MINUTES", "5")
    with pytest.raises(RuntimeError, match="SEMEL_LOG_RETENTION_MINUTES is not a setting"), container:
        pass
    container = node_container(semel_image).with_setting("durability", "perhaps")
    try:
        with pytest.raises(RuntimeError, match="SEMEL_DURABILITY"):
            container.start()
        assert exit_code_of(container) == 2
    finally:
        container.stop()


def test_commands_work_in_the_container(semel_image: str) -> None:
    with node_container(semel_image, clients_in_network=False) as container:
        assert container.exec(["semel", "health"]).output == b"serving\n"
        made = container.exec(["semel", "topic", "create", "orders", "--partitions", "3"])
        assert made.exit_code == 0, made.output
