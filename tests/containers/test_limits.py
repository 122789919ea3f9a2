"""What a container may run out of: the disk, and memory. Nothing that was acknowledged is lost by either."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress

import docker
import pytest
from docker.models.volumes import Volume
from semel_containers import DATA, IN_CONTAINERS, base_image, engine, log_of, node_container, semel_image, wait_until

import semel
from semel.sdk.testing.container import SemelContainer

__all__ = ["base_image", "engine", "semel_image"]

pytestmark = [*IN_CONTAINERS, pytest.mark.slow]

MIB = 1 << 20
DISK_MIB = 64


@pytest.fixture
def small_disk(engine: docker.DockerClient, semel_image: str) -> Iterator[Volume]:
    """A volume with a file system of its own, and a container that keeps it while nodes come and go."""
    options = {"type": "tmpfs", "device": "tmpfs", "o": f"size={DISK_MIB}m,uid=10092,gid=10092,mode=0750"}
    volume = engine.volumes.create(driver="local", driver_opts=options)
    mounts = {volume.name: {"bind": DATA, "mode": "rw"}}
    keeper = engine.containers.run(semel_image, ["sleep", "infinity"], entrypoint="", volumes=mounts, detach=True)
    yield volume
    keeper.remove(force=True, v=True)
    volume.remove(force=True)


def produce_until_refused(node: SemelContainer, topic: str, most: int) -> list[int]:
    """Send numbered records of 100 KiB until one is not taken. Returns the acknowledged ones."""
    acknowledged: list[int] = []
    producer = semel.Producer(node.get_grpc_address(), delivery_timeout_ms=3_000, request_timeout_ms=2_000)
    try:
        for number in range(most):
            producer.send(topic, b"%08d" % number + os.urandom(100 << 10)).result(30)
            acknowledged.append(number)
    except semel.SemelError:
        return acknowledged
    finally:
        with suppress(semel.SemelError):  # which says the same again
            producer.close()
    raise AssertionError(f"all of {most} records were taken")


def numbers_in(node: SemelContainer, topic: str) -> list[int]:
    place = semel.TopicPartition(topic, 0)
    found: list[int] = []
    with semel.Consumer(node.get_grpc_address()) as consumer:
        consumer.assign([place])
        end = consumer.end_offsets([place])[place]
        while (consumer.position(place) or 0) < end:
            found += [int((record.value or b"")[:8]) for record in consumer.poll(5) or ()]
    return found


@pytest.mark.drawn(1, "full disks in containers")
def test_a_nearly_full_disk_refuses_producers_and_serves_everything_else(semel_image: str, small_disk: Volume) -> None:
    node = node_container(semel_image).with_setting("disk.min.free.bytes", 24 * MIB)
    node.with_setting("journal.flush.bytes", 4 * MIB).with_volume_mapping(small_disk.name, DATA, "rw")
    with node, semel.Admin(node.get_grpc_address()) as admin:
        for topic in ("first", "second"):
            admin.create_topic(topic)
        acknowledged = produce_until_refused(node, "first", 10 * DISK_MIB)
        assert acknowledged
        assert "the disk is nearly full, so producers are refused" in log_of(node)
        assert set(acknowledged) <= set(numbers_in(node, "first"))
        assert node.exec(["semel", "health"]).exit_code == 0
        admin.delete_topic("first")
        with semel.Producer(node.get_grpc_address()) as producer:
            producer.send("second", b"there is room again").result(60)


@pytest.mark.drawn(1, "full disks in containers")
def test_D1_what_was_acknowledged_survives_a_disk_that_is_full_to_the_last_byte(
    semel_image: str, small_disk: Volume
) -> None:
    node = node_container(semel_image).with_volume_mapping(small_disk.name, DATA, "rw")
    with node:
        with semel.Admin(node.get_grpc_address()) as admin:
            admin.create_topic("first")
        with semel.Producer(node.get_grpc_address()) as producer:
            producer.send("first", b"%08d" % 999_999).result(30)
        node.exec(["sh", "-c", f"cat /dev/zero > {DATA}/filler; head -c -1000000 {DATA}/filler > /dev/null"])
        assert "No space" in node.exec(["sh", "-c", f"cat /dev/zero >> {DATA}/filler"]).output.decode()
        acknowledged = produce_until_refused(node, "first", 10 * DISK_MIB)
        assert "No space left on device" in log_of(node)
        assert node.exec(["rm", f"{DATA}/filler"]).exit_code == 0
        node.kill()
        node.restart()
        assert {999_999, *acknowledged} <= set(numbers_in(node, "first"))
        with semel.Producer(node.get_grpc_address()) as producer:
            producer.send("first", b"%08d" % 1_000_000).result(30)
        assert numbers_in(node, "first")[-1] == 1_000_000


def test_a_node_of_256_mib_bears_load(semel_image: str) -> None:
    records, size = 400, 256 << 10
    with node_container(semel_image, mem_limit="256m", memswap_limit="256m") as node:
        with semel.Admin(node.get_grpc_address()) as admin:
            admin.create_topic("load", partitions=6)
        with semel.Producer(node.get_grpc_address()) as producer:
            for number in range(records):
                producer.send("load", b"%08d" % number + os.urandom(size))
            producer.flush()
        seen: set[int] = set()
        with semel.Consumer(node.get_grpc_address(), group="readers", topics=["load"]) as consumer:

            def has_seen_all() -> bool:
                seen.update(int((record.value or b"")[:8]) for record in consumer.poll(5) or ())
                return len(seen) == records

            wait_until(has_seen_all, "all records to come back")
        state = node.get_wrapped_container()
        state.reload()
        assert not state.attrs["State"]["OOMKilled"]
        assert state.status == "running"
