"""`semel serve` as a process: the ready line, stopping, being killed, and what it refuses to start with."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from semel.protocol.v1 import metadata_pb2, metadata_pb2_grpc, topics_pb2, topics_pb2_grpc

READY = re.compile(r"ready: kafka 127\.0\.0\.1:(?P<kafka>\d+) grpc (?P<grpc>127\.0\.0\.1:\d+) data (?P<data>/.*)\n")
COMMAND = (sys.executable, "-P", "-m", "semel.cli")
ANY_PORTS = ("--kafka", "127.0.0.1:0", "--grpc", "127.0.0.1:0")


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SEMEL_")}
    return {**kept, **more}


class Served:
    """A node process that is ready."""

    def __init__(self, process: subprocess.Popen[str], kafka_port: int, grpc_address: str, data_dir: str) -> None:
        self.process = process
        self.kafka_port = kafka_port
        self.grpc_address = grpc_address
        self.data_dir = data_dir

    def end(self, number: signal.Signals) -> tuple[int, str]:
        self.process.send_signal(number)
        _, errors = self.process.communicate(timeout=30)
        return self.process.returncode, errors

    def topics(self) -> set[str]:
        with grpc.insecure_channel(self.grpc_address) as channel:
            stub = metadata_pb2_grpc.MetadataServiceStub(channel)
            return {topic.name for topic in stub.GetMetadata(metadata_pb2.GetMetadataRequest(all_topics=True)).topics}

    def create(self, name: str) -> None:
        with grpc.insecure_channel(self.grpc_address) as channel:
            request = topics_pb2.CreateTopicsRequest(topics=[topics_pb2.NewTopic(name=name)])
            (topic,) = topics_pb2_grpc.TopicServiceStub(channel).CreateTopics(request, timeout=30).topics
            assert not topic.error.name


@contextmanager
def serving(folder: Path, *more: str, **variables: str) -> Iterator[Served]:
    process = subprocess.Popen(
        [*COMMAND, "serve", "--data-dir", str(folder), *ANY_PORTS, *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(**variables),
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        line = process.stdout.readline()
        found = READY.fullmatch(line)
        assert found, line + process.stderr.read()
        yield Served(process, int(found["kafka"]), found["grpc"], found["data"])
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def refused(arguments: Sequence[str], **variables: str) -> tuple[int, str]:
    """Return the exit code and what was said of a node that does not start."""
    done = subprocess.run(
        [*COMMAND, "serve", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=environment(**variables),
    )
    assert done.stdout == ""
    return done.returncode, done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    with serving(tmp_path / "data") as node:
        socket.create_connection(("127.0.0.1", node.kafka_port)).close()
        node.create("a")
        assert node.topics() == {"a"}
        code, errors = node.end(number)
        assert code == 0, errors
        assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()
    with serving(tmp_path / "data") as node:
        assert node.topics() == {"a"}
        code, errors = node.end(number)
        assert "after a clean stop" in errors


def test_a_signal_that_comes_twice_at_once_stops_it_cleanly(tmp_path: Path) -> None:
    """As `timeout 60 semel serve` sends it: to its child, and to the group that the child is in."""
    with serving(tmp_path / "data") as node:
        node.process.send_signal(signal.SIGTERM)
        code, errors = node.end(signal.SIGTERM)
        assert code == 0, errors
        assert "stopping, because of SIGTERM" in errors
        assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()


def test_D1_topics_survive_sigkill(tmp_path: Path) -> None:
    with serving(tmp_path) as node:
        node.create("a")
        node.end(signal.SIGKILL)
    with serving(tmp_path) as node:
        node.create("b")
        node.end(signal.SIGKILL)
    with serving(tmp_path) as node:
        assert node.topics() == {"a", "b"}


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    with serving(tmp_path) as node:
        code, errors = refused(["--data-dir", str(tmp_path), *ANY_PORTS])
        assert code == 3
        assert re.fullmatch(r"semel serve: the data directory .* is in use by process \d+\. .*--data-dir.*\n", errors)
        assert node.topics() == set()


def test_exit_codes_hold_where_standard_error_can_not_be_written(tmp_path: Path) -> None:
    """A log on the disk that failed: the exit code is all that is left to be told."""
    with serving(tmp_path), open("/dev/full", "w") as full:
        for arguments, code in ((["--set", "bogus=1"], 2), (["--data-dir", str(tmp_path), *ANY_PORTS], 3)):
            done = subprocess.run(
                [*COMMAND, "serve", *arguments], stderr=full, timeout=300, check=False, env=environment()
            )
            assert done.returncode == code


def test_D3_a_second_process_is_refused_where_the_lock_files_were_deleted(tmp_path: Path) -> None:
    with serving(tmp_path) as node:
        for name in (".lock", ".semel.lock"):
            (tmp_path / name).unlink()
        code, errors = refused(["--data-dir", str(tmp_path), *ANY_PORTS])
        assert code == 3, errors
        assert "is in use by another process" in errors
        node.create("a")
        node.end(signal.SIGKILL)
    with serving(tmp_path) as node:
        assert node.topics() == {"a"}, "a killed process leaves no lock"


@pytest.mark.parametrize("listener", ["--kafka", "--grpc"])
def test_a_port_in_use_is_named(tmp_path: Path, listener: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        arguments = list(ANY_PORTS)
        arguments[arguments.index(listener) + 1] = address
        code, errors = refused(["--data-dir", str(tmp_path), *arguments])
    last = errors.splitlines()[-1]
    assert code == 5, errors
    assert address in last
    assert listener in last
    # Nothing is left locked or half-made.
    with serving(tmp_path):
        pass


@pytest.mark.parametrize("listener", ["--kafka", "--grpc", "--metrics"])
def test_a_port_in_use_costs_no_data_directory(tmp_path: Path, listener: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        ports = {"--kafka": "127.0.0.1:0", "--grpc": "127.0.0.1:0", listener: address}
        code, errors = refused(
            ["--data-dir", str(tmp_path / "new"), *(word for pair in ports.items() for word in pair)]
        )
    assert (code, address in errors) == (5, True), errors
    assert "opened the logs" not in errors
    assert list(tmp_path.iterdir()) == []


def test_a_second_process_with_the_same_ports_hears_that_the_directory_is_in_use(tmp_path: Path) -> None:
    with serving(tmp_path) as node:
        ports = ["--kafka", f"127.0.0.1:{node.kafka_port}", "--grpc", node.grpc_address]
        code, errors = refused(["--data-dir", str(tmp_path), *ports])
        assert (code, "in use by process" in errors) == (3, True), errors
        assert node.topics() == set()


@pytest.mark.parametrize(
    ("arguments", "variables", "code", "said"),
    [
        (["--set", "log.retenton.ms=1"], {}, 2, "did you mean log.retention.ms?"),
        (["--set", "nonsense"], {}, 2, "write NAME=VALUE"),
        ([], {"SEMEL_NUM_PARTITION": "1"}, 2, "did you mean SEMEL_NUM_PARTITIONS?"),
        (["--kafka", "9092"], {}, 2, "--kafka: kafka.listen = 9092 is not HOST:PORT"),
        (["--config", "/nonexistent.toml"], {}, 2, "can't be read"),
        (["--data-dir", "/dev/null/x"], {}, 3, "can't be used"),
        (["--set", "metadata.url=postgresql://u:secret@127.0.0.1:1/x"], {}, 4, "u:***@127.0.0.1:1/x failed"),
        (["--metadata", "mysql://x"], {}, 2, "metadata.url names mysql"),
        (["--node-id", "second"], {}, 2, "--node-id: node.id = 'second' is not an int"),
        (["--peer", "9096"], {}, 2, "--peer: peer.listen = 9096 is not HOST:PORT"),
        (["--accept-loss-of", "orders"], {}, 2, "a partition is TOPIC:NUMBER, for example orders:0, not 'orders'"),
        (["--accept-loss-of", "orders:0"], {}, 3, "--accept-loss-of orders:0: this data directory never had such"),
    ],
)
def test_what_it_does_not_start_with(
    tmp_path: Path, arguments: list[str], variables: dict[str, str], code: int, said: str
) -> None:
    if "--data-dir" not in arguments:
        arguments = ["--data-dir", str(tmp_path), *arguments]
    found, errors = refused(arguments, **variables)
    assert (found, said in errors.splitlines()[-1]) == (code, True), errors
    assert "secret" not in errors


@pytest.mark.damages_data("the metadata is removed, and an empty one made in its place")
def test_lost_metadata_is_not_taken_for_an_empty_cluster(tmp_path: Path) -> None:
    with serving(tmp_path) as node:
        node.create("a")
        node.end(signal.SIGTERM)
    (tmp_path / "metadata.sqlite").unlink()
    code, errors = refused(["--data-dir", str(tmp_path), *ANY_PORTS])
    assert code == 4
    assert "restore the metadata" in errors
    assert (tmp_path / "a-0").is_dir()


def test_a_folder_of_another_node_is_refused(tmp_path: Path) -> None:
    with serving(tmp_path) as node:
        node.end(signal.SIGTERM)
    code, errors = refused(["--data-dir", str(tmp_path), *ANY_PORTS, "--set", "node.id=2"])
    assert code == 3, errors
    assert "belongs to node 1" in errors


@pytest.mark.damages_data("the file that says whose directory it is is overwritten")
def test_damaged_properties_of_the_folder_are_named(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as node:
        node.end(signal.SIGTERM)
    (tmp_path / "data" / "meta.properties").write_text("version=1\nnode.id=1\n")
    code, said = refused(["--data-dir", str(tmp_path / "data"), *ANY_PORTS])
    assert code == 3
    assert "meta.properties is damaged" in said
    assert "remove the file" in said


def test_D3_a_log_that_is_gone_is_offline_until_its_loss_is_accepted(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as node:
        node.create("kept")
        node.create("gone")
        node.end(signal.SIGTERM)
    shutil.rmtree(tmp_path / "data" / "gone-0")
    with serving(tmp_path / "data") as node:
        assert node.topics() == {"kept", "gone"}
        _, errors = node.end(signal.SIGTERM)
    assert "gone-0 is offline, the others are not: its directory" in errors
    assert f"`semel serve --data-dir {tmp_path / 'data'} --accept-loss-of gone:0`" in errors
    assert not (tmp_path / "data" / "gone-0").exists()
    with serving(tmp_path / "data", "--accept-loss-of", "gone:0") as node:
        _, errors = node.end(signal.SIGTERM)
    assert "the loss of gone-0 is accepted" in errors
    assert (tmp_path / "data" / "gone-0").exists()


def test_json_log_lines_are_json_one_an_event(tmp_path: Path) -> None:
    with serving(tmp_path, "--log-format", "json", "--set", "log.level=debug") as node:
        node.create("a")
        _, errors = node.end(signal.SIGTERM)
    events = [json.loads(line) for line in errors.splitlines()]
    assert events
    assert all({"time", "level", "logger", "message"} <= set(event) for event in events)


def test_settings_can_be_seen_with_their_sources(tmp_path: Path) -> None:
    file = tmp_path / "semel.toml"
    file.write_text("num.partitions = 7\n")
    done = subprocess.run(
        [*COMMAND, "serve", "--settings", "--config", str(file), "--set", "node.id=4"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env=environment(SEMEL_METADATA_URL="postgresql://u:hunter2@h/d"),
    )
    assert "num.partitions = 7  # file\n" in done.stdout
    assert "node.id = 4  # flag\n" in done.stdout
    assert "metadata.url = (hidden)  # environment\n" in done.stdout
    assert "hunter2" not in done.stdout


def test_help_teaches_where_settings_come_from() -> None:
    done = subprocess.run(
        [*COMMAND, "serve", "--help"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env=environment(COLUMNS="200"),
    )
    for word in ("--data-dir", "SEMEL_LOG_RETENTION_MS", "--set", "Exit codes", "127.0.0.1:9092", "semel-data"):
        assert word in done.stdout
