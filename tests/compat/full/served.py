"""A node, or a cluster on this machine, as processes of its own on free loopback ports, for one run of a suite."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from secured import LISTENERS, Security

READY: Final = re.compile(r"ready: (?:node \d+ )?kafka (?P<kafka>\S+) grpc (?P<grpc>\S+) data .*\n")
STOP_TIMEOUT_S: Final = 60

SETTINGS: Final[Mapping[str, str]] = {
    "num.partitions": "4",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "disk.min.free.bytes": "0",
    "log.level": "warning",
}
"""What all suites run with: four partitions a topic, which is what they were written for, and few internal ones."""
RACK_AWARE: Final = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


@dataclass(frozen=True, slots=True)
class Served:
    """A node that is ready, or the supervisor of several."""

    process: subprocess.Popen[str]
    listeners: Mapping[str, Sequence[str]]
    """By Kafka's name of a way to connect, such as `sasl_ssl`: HOST:PORT of each node."""
    security: Security

    @property
    def addresses(self) -> Sequence[str]:
        """HOST:PORT of each node's listener that neither encrypts nor asks who one is."""
        return self.listeners["plaintext"]

    @property
    def bootstrap(self) -> str:
        """The addresses as clients take them, all in one."""
        return self.bootstrap_of("plaintext")

    def bootstrap_of(self, protocol: str) -> str:
        """Return the addresses of a way to connect, as clients take them."""
        return ",".join(self.listeners[protocol])

    def admin_settings(self) -> dict[str, str]:
        """Return the settings of a client that may do everything, as librdkafka names them."""
        protocol = "sasl_plaintext"
        return {"bootstrap.servers": self.bootstrap_of(protocol), **self.security.client_settings(protocol)}

    @property
    def alive(self) -> bool:
        return self.process.poll() is None


def racks(first: int, nodes: int) -> dict[str, str]:
    """Return the settings that give each node a rack, named as librdkafka's test of reads from followers expects it.

    first: the id of the first node
    """
    names = ",".join(f"RACK{first + number}" for number in range(nodes))
    return {"broker.rack": names, "replica.selector.class": RACK_AWARE}


@contextmanager
def serving(folder: Path, nodes: int, **settings: str) -> Iterator[Served]:
    """Run `semel serve` with its data and its log in `folder` (which must not exist), and stop it at the end.

    It is secured as `secured.py` says, and has a listener that asks for nothing.

    nodes: with more than one they are a cluster, each in a rack of its own that it serves reads in. Settings are given
    with underscores for dots. Raises `RuntimeError` where a node does not start.
    """
    folder.mkdir(parents=True)
    security = Security(folder / "security")
    values = {**SETTINGS, **security.settings(), **{name.replace("_", "."): value for name, value in settings.items()}}
    if values.get("ssl.client.auth") == "required":
        values["ssl.ca.location"] = str(security.ca)
    if nodes > 1:
        values |= racks(int(values.get("node.id", 1)), nodes)
    command = [sys.executable, "-P", "-m", "semel.cli", "serve", "--data-dir", str(folder / "data")]
    for name, scheme in LISTENERS.items():
        command += ["--kafka", f"{name}={scheme}127.0.0.1:0"]
    command += ["--grpc", "127.0.0.1:0"]
    command += ["--nodes", str(nodes)] if nodes > 1 else []
    command += [word for name, value in values.items() for word in ("--set", f"{name}={value}")]
    log = folder / "node.log"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SEMEL_")}
    with log.open("w") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=kept)
        assert process.stdout is not None
        try:
            listeners: dict[str, list[str]] = {name: [] for name in LISTENERS}
            for _ in range(nodes):
                found = READY.fullmatch(process.stdout.readline())
                if found is None:
                    raise RuntimeError(f"the node did not start: {log.read_text().strip()}")
                for item in found["kafka"].split(","):
                    name, _, address = item.partition("=")
                    listeners[name].append(address.rpartition("/")[2])
            served = Served(process, listeners, security)
            security.add_users(served.bootstrap_of("sasl_plaintext"))
            yield served
        finally:
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()
