"""How `semel serve` ends: its exit code says why, and it waits for no thread that still checks a batch."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from lying_batches import NOW_MS

import semel
from semel.protocol.batch_builder import encode_batch
from semel.protocol.compression import Compression
from semel.protocol.kafka.produce import ProducePartition, ProduceRequest

FAILING_NODE = """
import asyncio, sys
from semel.broker import node
from semel.broker.config.node_config import NodeConfig
from semel.cli.main import main
from semel.protocol.errors import SemelError


class FailedNode:
    config = NodeConfig()
    kafka_addresses = grpc_addresses = ("127.0.0.1:1",)
    metrics_address = None
    data_dir = "x"

    def __init__(self):
        self.failed = asyncio.get_running_loop().create_future()
        self.failed.set_result(SemelError("the disk failed"))

    async def stop(self, *, grace_ms=None):
        raise OSError(5, "Input/output error")


async def start(*_, **__):
    return FailedNode()

node.Node.start = start
sys.argv = ["semel", "serve"]
main()
"""

FAILS_WHILE_STOPPING = """
import os, sys
from semel.broker.logs.manager import LogManager
from semel.cli.main import main
from semel.runtime import disk_storage

broken = sys.argv.pop(1)
close, sync = LogManager.close, disk_storage._sync_data


def sync_or_fail(descriptor):
    if broken in os.readlink(f"/proc/self/fd/{descriptor}"):
        raise OSError(5, "Input/output error")
    sync(descriptor)


async def close_on_a_failing_disk(self):
    disk_storage._sync_data = sync_or_fail
    await close(self)

LogManager.close = close_on_a_failing_disk
main()
"""

FAILS_BEFORE_IT_IS_CLOSED = """
from semel.broker.logs.manager import LogManager
from semel.cli.main import main

close = LogManager.close


async def close_after_a_failed_sync(self):
    (partition,) = (one for one in self.partitions() if one.tp.topic == "a")
    begun = partition.log.begin_flush()
    try:
        partition.log.end_flush(begun, OSError(5, "Input/output error", "somewhere"))
    except Exception:
        pass
    await close(self)

LogManager.close = close_after_a_failed_sync
main()
"""

DEFECT_IN_THE_STOP = """
from semel.broker.metadata.metadata import Metadata
from semel.cli.main import main

async def close(self):
    raise ZeroDivisionError("planted")

Metadata.close = close
main()
"""

CHECKS_FOR_EVER = """
import time
from semel.broker.handlers.produce import batch_checks
from semel.cli.main import main


def check(batch, limits):
    print("checking", flush=True)
    time.sleep(3600)

batch_checks._check = check
main()
"""


class Served:
    """A `semel serve` that is ready."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self.process = process
        words = self.line().split()
        assert words[:1] == ["ready:"], log.read_text()
        self.kafka_port, self.bootstrap = int(words[2].rpartition(":")[2]), words[4]
        self._log = log

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def end(self) -> tuple[int, list[str]]:
        """Ask it to stop, and return its exit code and its log once it has ended, however long that takes."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(), self._log.read_text().splitlines()


@contextmanager
def serving(folder: Path, script: str, *more: str) -> Iterator[Served]:
    arguments = [*more, "serve", "--data-dir", str(folder / "data"), "--kafka", "127.0.0.1:0", "--grpc", "127.0.0.1:0"]
    log = folder / "log"
    with open(log, "wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", script, *arguments], stdout=subprocess.PIPE, stderr=errors, text=True
        )
    try:
        yield Served(process, log)
    finally:
        process.kill()
        process.communicate()


def write_one_record(node: Served) -> None:
    with semel.Admin(node.bootstrap) as admin:
        admin.create_topic("a")
    with semel.Producer(node.bootstrap) as producer:
        producer.send("a", b"v")


@pytest.mark.parametrize("log_is_full", [False, True])
def test_S2_a_failed_disk_is_exit_code_6_wherever_the_log_is(tmp_path: Path, log_is_full: bool) -> None:
    with open("/dev/full" if log_is_full else tmp_path / "log", "wb") as log:
        ended = subprocess.run(
            [sys.executable, "-P", "-c", FAILING_NODE], stdout=subprocess.PIPE, stderr=log, cwd=tmp_path, check=False
        )
    assert ended.returncode == 6
    if not log_is_full:
        text = (tmp_path / "log").read_text()
        assert "closing after the failure: [Errno 5]" in text
        assert "stopped, because the disk failed" in text


@pytest.mark.parametrize(
    ("broken", "named"),
    [
        ("/a-0/", "a-0/00000000000000000000.log"),
        ("recovery-point-offset-checkpoint", "recovery-point-offset-checkpoint"),
        (".kafka_cleanshutdown", ".kafka_cleanshutdown"),
    ],
    ids=["a log", "a checkpoint", "the mark of the clean stop"],
)
def test_D1_a_sync_that_fails_while_the_node_stops_is_exit_code_6_and_names_the_file(
    tmp_path: Path, broken: str, named: str
) -> None:
    """It was exit code 0, which says that everything is on the disk."""
    with serving(tmp_path, FAILS_WHILE_STOPPING, broken) as node:
        write_one_record(node)
        code, log = node.end()
    assert code == 6, log
    [said] = [line for line in log if line.startswith("semel serve: ")]
    assert "not all is on the disk" in said
    assert f"{tmp_path / 'data'}/{named}" in said
    assert not (tmp_path / "data" / ".kafka_cleanshutdown").exists()


def test_D1_a_log_that_failed_just_before_the_stop_is_exit_code_6(tmp_path: Path) -> None:
    """The node had not noticed yet, and the stop does not flush what is offline."""
    with serving(tmp_path, FAILS_BEFORE_IT_IS_CLOSED) as node:
        write_one_record(node)
        code, log = node.end()
    assert code == 6, log
    assert any("semel serve: not all is on the disk" in line and "'somewhere'" in line for line in log)
    assert not (tmp_path / "data" / ".kafka_cleanshutdown").exists()


def test_a_defect_in_the_stop_is_exit_code_1_and_the_log_has_the_traceback(tmp_path: Path) -> None:
    with serving(tmp_path, DEFECT_IN_THE_STOP) as node:
        code, log = node.end()
    assert code == 1, log
    assert any("ZeroDivisionError: planted" in line for line in log)


def test_S3_a_stop_does_not_wait_for_a_thread_that_checks_a_batch(tmp_path: Path) -> None:
    """Python waits for its threads when it ends; this one is done in an hour."""
    bomb = bytes(encode_batch([(NOW_MS, b"k", bytes(4 << 20), ())], compression=Compression.ZSTD))
    with serving(tmp_path, CHECKS_FOR_EVER) as node:
        with semel.Admin(node.bootstrap) as admin:
            admin.create_topic("a")
        with socket.create_connection(("127.0.0.1", node.kafka_port)) as client:
            request = ProduceRequest([ProducePartition("a", 0, bomb)], None, -1, 30_000)
            client.sendall(b"".join(bytes(part) for part in request.frame(9, 1, "test")))
            assert node.line() == "checking\n"
            code, log = node.end()
        assert code == 0, log
    assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()
