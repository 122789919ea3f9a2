"""Apache Kafka on this machine, to measure against: one node (KRaft), from the jars that `kafka_jars` finds.

    python -P bench/apache_kafka.py [--fsync]      runs one until Ctrl-C, and prints its address

The configuration is that of a release's `config/server.properties` for a single node, and its start script's options
for the JVM: 1 GB of heap, G1. Two things differ: it logs warnings alone, which spares it writing, and `--fsync` sets
`log.flush.interval.messages=1`, so that it syncs before it answers, as Semel's `durability = "disk"` does.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

# Tests import this module: what they have of the same name as a bench stays first.
sys.path.append(str(Path(__file__).resolve().parent))

from harness import ROOT, data_folder, process_cpu_s, process_memory_mb

from semel.runtime.ports import free_ports

sys.path.insert(0, str(ROOT / "tests" / "support" / "clients"))

import kafka_jars

START_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 60.0
HEAP = ("-Xmx1G", "-Xms1G")
JVM = (
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)
LOGGING = ("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dorg.slf4j.simpleLogger.log.kafka.server=info")
STARTED = "Kafka Server started"


@dataclass
class KafkaProcess:
    """A running broker, with the same methods as the harness's `NodeProcess`."""

    process: subprocess.Popen[bytes]
    folder: str
    address: tuple[str, int]

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def bootstrap(self) -> str:
        return f"{self.address[0]}:{self.address[1]}"

    def cpu_s(self) -> float:
        return process_cpu_s(self.pid)

    def memory_mb(self) -> float:
        return process_memory_mb(self.pid)

    def stop(self) -> None:
        """End it with SIGTERM; it ends with 143 then, as JVMs do."""
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(STOP_TIMEOUT_S)
        assert code in (0, 143), f"the broker ended with {code}"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def properties(
    folder: str, ports: tuple[int, int], *, fsync: bool, node_id: int = 1, controllers: Sequence[int] = ()
) -> str:
    """Return the settings of a node.

    ports:       of the broker and of the controller
    controllers: the ports of all nodes' controllers, from node 1 on, where there are several
    """
    broker_port, controller_port = ports
    quorum = list(controllers) or [controller_port]
    replicas = len(quorum)
    lines = [
        "process.roles=broker,controller",
        f"node.id={node_id}",
        f"controller.quorum.voters={','.join(f'{n}@127.0.0.1:{port}' for n, port in enumerate(quorum, 1))}",
        f"listeners=PLAINTEXT://127.0.0.1:{broker_port},CONTROLLER://127.0.0.1:{controller_port}",
        f"advertised.listeners=PLAINTEXT://127.0.0.1:{broker_port}",
        "controller.listener.names=CONTROLLER",
        f"log.dirs={folder}",
        f"offsets.topic.replication.factor={replicas}",
        f"transaction.state.log.replication.factor={replicas}",
        f"transaction.state.log.min.isr={min(2, replicas)}",
        f"share.coordinator.state.topic.replication.factor={replicas}",
        f"share.coordinator.state.topic.min.isr={min(2, replicas)}",
        "group.initial.rebalance.delay.ms=0",
    ]
    if replicas > 1:
        lines += [f"default.replication.factor={replicas}", "offsets.topic.num.partitions=3"]
        lines.append("transaction.state.log.num.partitions=3")
    if fsync:
        lines.append("log.flush.interval.messages=1")
    return "\n".join(lines) + "\n"


def prepare(folder: str, *, fsync: bool = False, version: str = kafka_jars.NEWEST) -> tuple[str, int]:
    """Write `<folder>.properties` and format the folder. Returns the address that the broker will have."""
    broker_port, controller_port = free_ports(2)
    _format(folder, properties(folder, (broker_port, controller_port), fsync=fsync), _cluster_id(), version)
    return "127.0.0.1", broker_port


def prepare_cluster(
    folders: Sequence[str],
    version: str = kafka_jars.NEWEST,
    *,
    fsync: bool = False,
    settings: Mapping[str, object] | None = None,
) -> list[tuple[str, int]]:
    """Do the same for the nodes of one cluster, from number 1 on. Returns the addresses that they will have.

    settings: more of them for each node; they win
    """
    more = "".join(f"{name}={value}\n" for name, value in (settings or {}).items())
    count, cluster = len(folders), _cluster_id()
    ports = free_ports(2 * count)
    brokers, controllers = ports[:count], ports[count:]
    for number, folder in enumerate(folders):
        pair = brokers[number], controllers[number]
        config = properties(folder, pair, fsync=fsync, node_id=number + 1, controllers=controllers)
        _format(folder, config + more, cluster, version)
    return [("127.0.0.1", port) for port in brokers]


def _cluster_id() -> str:
    return base64.urlsafe_b64encode(os.urandom(16)).decode().strip("=").replace("-", "A")


def _format(folder: str, config: str, cluster: str, version: str) -> None:
    path = f"{folder}.properties"
    Path(path).write_text(config)
    subprocess.run(
        [*command(version), "kafka.tools.StorageTool", "format", "-t", cluster, "-c", path],
        check=True,
        stdout=subprocess.DEVNULL,
        timeout=START_TIMEOUT_S,
    )


def command(version: str) -> list[str]:
    return [kafka_jars.java(), *HEAP, *JVM, *LOGGING, "-cp", f"{kafka_jars.jars(version)}/*"]


def start_prepared(folder: str, address: tuple[str, int], version: str = kafka_jars.NEWEST) -> KafkaProcess:
    """Start the broker and return at once; its log goes to `<folder>.log`."""
    with open(f"{folder}.log", "ab") as log:
        arguments = [*command(version), "kafka.Kafka", f"{folder}.properties"]
        return KafkaProcess(
            subprocess.Popen(arguments, stdout=log, stderr=log, start_new_session=True), folder, address
        )


def wait_started(kafka: KafkaProcess) -> None:
    """Wait until its log says that it has started. Raises `RuntimeError` with the end of its log."""
    path = Path(f"{kafka.folder}.log")
    deadline = time.monotonic() + START_TIMEOUT_S
    while STARTED not in path.read_text(errors="replace"):
        if kafka.process.poll() is not None or time.monotonic() > deadline:
            kafka.kill()
            raise RuntimeError(f"Apache Kafka did not start; its log says:\n{path.read_text(errors='replace')[-2000:]}")
        time.sleep(0.02)


@contextlib.contextmanager
def running_kafka(*, fsync: bool = False, version: str = kafka_jars.NEWEST) -> Iterator[KafkaProcess]:
    """Run a broker on an empty folder, which goes away with it."""
    with data_folder() as folder:
        kafka = start_prepared(folder, prepare(folder, fsync=fsync, version=version), version)
        try:
            wait_started(kafka)
            yield kafka
        finally:
            kafka.kill()


@contextlib.contextmanager
def running_cluster(count: int = 3, version: str = kafka_jars.NEWEST) -> Iterator[list[KafkaProcess]]:
    """Run the brokers of one cluster, from number 1 on. One that was killed meanwhile stays so."""
    with contextlib.ExitStack() as stack:
        folders = [stack.enter_context(data_folder()) for _ in range(count)]
        brokers = []
        for folder, address in zip(folders, prepare_cluster(folders, version), strict=True):
            brokers.append(start_prepared(folder, address, version))
            stack.callback(brokers[-1].kill)
        for broker in brokers:
            wait_started(broker)
        yield brokers


def end_on_sigterm() -> None:
    """Let SIGTERM end this process as an exception does, so that what it started ends too."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def main() -> None:
    end_on_sigterm()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fsync", action="store_true", help="sync each append before it is answered")
    parser.add_argument("--version", default=kafka_jars.NEWEST, help=f"which release (default {kafka_jars.NEWEST})")
    arguments = parser.parse_args()
    with running_kafka(fsync=arguments.fsync, version=arguments.version) as kafka:
        print(f"ready: kafka {kafka.bootstrap} pid {kafka.pid}", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()


if __name__ == "__main__":
    main()
