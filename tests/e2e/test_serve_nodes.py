"""`semel serve --nodes 3`: a cluster on one machine, under one supervisor."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from node_processes import wait_for

import semel

READY = re.compile(r"ready: node (?P<node>\d+) kafka \S+ grpc (?P<grpc>\S+) data .*")
PROCESS = re.compile(r"node (?P<node>\d+) is process (?P<pid>\d+)")


class Supervisor:
    """The command, its ready lines and what it logs."""

    def __init__(self, folder: Path, *options: str) -> None:
        settings = ("disk.min.free.bytes=0", "offsets.topic.num.partitions=2", "transaction.state.log.num.partitions=2")
        self.log = folder / "log"
        self._log = self.log.open("a")
        self._seen = self.log.stat().st_size
        self.process = subprocess.Popen(
            [
                *(
                    sys.executable,
                    "-P",
                    "-m",
                    "semel.cli",
                    "serve",
                    "--nodes",
                    "3",
                    "--data-dir",
                    str(folder / "nodes"),
                ),
                *("--kafka", "127.0.0.1:0", "--grpc", "127.0.0.1:0"),
                *(word for setting in settings for word in ("--set", setting)),
                *options,
            ],
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env={name: value for name, value in os.environ.items() if not name.startswith("SEMEL_")},
        )
        self.ready: list[tuple[int, str]] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            found = READY.match(line)
            assert found, line
            self.ready.append((int(found["node"]), found["grpc"]))

    def processes(self) -> dict[int, int]:
        """Return the newest process of each node."""
        with self.log.open() as log:
            log.seek(self._seen)
            return {int(found["node"]): int(found["pid"]) for found in PROCESS.finditer(log.read())}

    def until_ready(self, count: int) -> dict[int, str]:
        wait_for(lambda: len(self.ready) >= count or self.process.poll() is not None, f"{count} ready lines")
        assert self.process.poll() is None, self.log.read_text()
        return dict(self.ready)

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        code = self.process.wait(60)
        self._reader.join(60)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._log.close()
        return code


@contextmanager
def supervisor(folder: Path, *options: str) -> Iterator[Supervisor]:
    started = Supervisor(folder, *options)
    try:
        yield started
    finally:
        if started.process.poll() is None:
            started.end(signal.SIGTERM)


def freeze(pid: int, metadata: Path) -> None:
    """Stop a process at a moment when it does not hold the metadata's database: nobody could take it for dead."""
    while True:
        os.kill(pid, signal.SIGSTOP)
        with closing(sqlite3.connect(metadata, timeout=5, isolation_level=None)) as database, suppress(sqlite3.Error):
            database.execute("BEGIN IMMEDIATE")
            database.execute("ROLLBACK")
            return
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.1)


def is_running(pid: int) -> bool:
    """Whether a process is there, and no zombie: the nodes of a killed supervisor are left for init to reap."""
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat")
        return not (state.exists() and ") Z " in state.read_text())
    except (ProcessLookupError, FileNotFoundError):
        return False


def create(addresses: dict[int, str]) -> None:
    with semel.Admin(list(addresses.values())) as admin:
        admin.create_topic("t", partitions=1)


def read(addresses: dict[int, str], count: int) -> list[bytes | None]:
    bootstrap = list(addresses.values())
    with semel.Consumer(bootstrap, group="g", topics=["t"], offset_reset="earliest") as consumer:
        return [record.value for record in itertools.islice(consumer, count)]


def test_a_node_that_dies_is_started_again_and_all_stop_together(tmp_path: Path) -> None:
    with supervisor(tmp_path) as cluster:
        addresses = cluster.until_ready(3)
        assert set(addresses) == {1, 2, 3}
        create(addresses)
        before = cluster.processes()
        with semel.Producer(list(addresses.values()), transactional_id="t") as producer:
            os.kill(before[1], signal.SIGKILL)
            with producer.transaction():
                producer.send("t", b"after the death")
        cluster.until_ready(4)
        after = cluster.processes()
        assert [node for node in before if before[node] != after[node]] == [1]
        assert read(dict(cluster.ready), 1) == [b"after the death"]
        assert cluster.end(signal.SIGINT) == 0
        assert not any(map(is_running, after.values()))


def test_a_supervisor_that_was_killed_can_be_started_again_at_once(tmp_path: Path) -> None:
    """Its nodes stop by themselves, which takes a while: the next ones wait for it."""
    with supervisor(tmp_path) as cluster:
        addresses = cluster.until_ready(3)
        create(addresses)
        former = cluster.processes()
        with semel.Producer(list(addresses.values())) as producer:
            producer.send("t", b"before").result(60)
        cluster.end(signal.SIGKILL)
        with supervisor(tmp_path) as again:
            addresses = again.until_ready(3)
            assert read(addresses, 1) == [b"before"]
            # Each gives its directory back before the last of it is gone.
            wait_for(lambda: not any(map(is_running, former.values())), "the former nodes end")


def test_a_node_that_was_removed_is_not_started_again_and_the_others_continue(tmp_path: Path) -> None:
    with supervisor(tmp_path) as cluster:
        addresses = cluster.until_ready(3)
        before = cluster.processes()
        with semel.Admin([addresses[1], addresses[3]]) as admin:
            freeze(before[2], tmp_path / "nodes" / "metadata.sqlite")
            wait_for(lambda: not all(node.is_alive for node in admin.nodes()), "the others take it for dead")
            admin.unregister_node(2)
            os.kill(before[2], signal.SIGCONT)
            wait_for(lambda: "node 2 was removed from the cluster, and is not" in cluster.log.read_text(), "its end")
            admin.create_topic("t", partitions=1, replication_factor=2)
            assert [node.node_id for node in admin.nodes()] == [1, 3]
        assert cluster.processes() == before
        assert cluster.end(signal.SIGTERM) == 0
        with supervisor(tmp_path) as again:
            addresses = again.until_ready(3)
            with semel.Admin(list(addresses.values())) as admin:
                assert [(node.node_id, node.is_cordoned) for node in admin.nodes()] == [
                    (1, False), (2, False), (3, False)
                ]  # fmt: skip


def test_lost_metadata_is_accepted_for_all_nodes_by_the_same_command(tmp_path: Path) -> None:
    """The nodes said how one alone is started, and what they said was refused for a node of such a cluster."""
    metadata = tmp_path / "nodes" / "metadata.sqlite"
    with supervisor(tmp_path) as first:
        addresses = first.until_ready(3)
        with closing(sqlite3.connect(metadata)) as database, closing(sqlite3.connect(tmp_path / "older")) as older:
            database.backup(older)
        create(addresses)
        assert first.end(signal.SIGTERM) == 0
    for left in metadata.parent.glob("metadata.sqlite*"):
        left.unlink()
    (tmp_path / "older").rename(metadata)
    with supervisor(tmp_path) as refused:
        wait_for(lambda: refused.process.poll() is not None, "the end of the command")
        assert refused.end(signal.SIGTERM) == 4
    log = (tmp_path / "log").read_text()
    assert "with --nodes, --accept-metadata-loss is for all of them" in log
    with supervisor(tmp_path, "--accept-metadata-loss") as accepted:
        addresses = accepted.until_ready(3)
        killed = accepted.processes()[2]
        os.kill(killed, signal.SIGKILL)
        accepted.until_ready(4)
        create(addresses)
        assert accepted.end(signal.SIGTERM) == 0
    assert "As --accept-metadata-loss says" in (tmp_path / "log").read_text()
    set_aside = list(metadata.parent.glob("node-*/t-0.*-stray"))
    assert len(set_aside) == 3, "the topic that the older metadata does not know, of which each node had a replica"
    for directory in set_aside:
        shutil.rmtree(directory)
