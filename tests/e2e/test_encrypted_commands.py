"""The commands on a node that encrypts and asks for certificates, as its operator uses them."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from certificates import Authority

import semel
from semel.sdk.transport.options import Bootstrap
from semel.sdk.transport.security import Security

COMMAND = (sys.executable, "-P", "-m", "semel.cli")
READY = re.compile(r"ready: kafka tls://(?P<kafka>127\.0\.0\.1:\d+) grpc tls://(?P<grpc>127\.0\.0\.1:\d+) data /.*\n")


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SEMEL_")}
    return {**kept, **more}


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")


def flags_of(authority: Authority) -> list[str]:
    pair = authority.node()
    settings = {
        "ssl.certificate.location": pair.certificate,
        "ssl.key.location": pair.key,
        "ssl.client.auth": "required",
        "ssl.ca.location": authority.ca,
        "offsets.topic.num.partitions": 2,
        "transaction.state.log.num.partitions": 2,
    }
    flags = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    return [*flags, "--kafka", "tls://127.0.0.1:0", "--grpc", "tls://127.0.0.1:0"]


@pytest.fixture
def bootstraps(tmp_path: Path, authority: Authority) -> Iterator[list[str]]:
    """Both ports of a node, with what a client needs."""
    flags = flags_of(authority)
    command = [*COMMAND, "serve", "--data-dir", str(tmp_path / "data"), *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as process:
        assert process.stdout is not None
        try:
            found = READY.fullmatch(process.stdout.readline())
            assert found
            tls = authority.tls(authority.client())
            yield [str(Bootstrap((found[name],), Security(tls))) for name in ("grpc", "kafka")]
        finally:
            process.terminate()
    assert process.returncode == 0


def ran(*command: str, given: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *command],
        input=given,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=environment(**variables),
    )


def test_every_command_goes_by_the_bootstrap_alone(bootstraps: list[str]) -> None:
    for number, bootstrap in enumerate(bootstraps):
        where = {"SEMEL_BOOTSTRAP": bootstrap}
        topic = f"t{number}"
        for command, given in (
            (("health",), ""),
            (("topic", "create", topic), ""),
            (("produce", topic), "one\ntwo\n"),
            (("cluster", "status"), ""),
            (("doctor",), ""),
        ):
            done = ran(*command, given=given, **where)
            assert done.returncode == 0, (command, done.stderr, done.stdout)
        read = ran("consume", topic, "--from-beginning", "--max", "2", **where)
        assert "one" in read.stdout, read.stderr
        assert "two" in read.stdout
        assert topic in ran("topic", "list", "--bootstrap", bootstrap).stdout
        listed = json.loads(ran("topic", "describe", topic, "--json", **where).stdout)
        assert topic in json.dumps(listed)


def test_a_command_that_does_not_encrypt_says_what_to_do(bootstraps: list[str], authority: Authority) -> None:
    address = bootstraps[0].removeprefix("tls://").partition("?")[0]
    plain = ran("topic", "list", "--bootstrap", address)
    assert plain.returncode != 0
    assert f"tls://{address}" in plain.stderr
    nameless = ran("topic", "list", "--bootstrap", f"tls://{address}?ssl.ca.location={authority.ca}")
    assert nameless.returncode != 0
    assert "ssl.certificate.location and ssl.key.location" in nameless.stderr
    for command in (("health", "--bootstrap", address), ("health", "--bootstrap", f"tls://{address}")):
        assert ran(*command).returncode == 3


def test_a_cluster_whose_ports_all_encrypt_replicates_and_loses_a_node(tmp_path: Path, authority: Authority) -> None:
    ready = re.compile(r"ready: node (?P<node>\d+) kafka tls://\S+ grpc tls://(?P<grpc>\S+) data .*\n")
    command = [*COMMAND, "serve", "--nodes", "3", "--data-dir", str(tmp_path / "data"), *flags_of(authority)]
    command += ["--set", "peer.listen=tls://127.0.0.1:0"]
    log = tmp_path / "log"
    with (
        log.open("w") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment()) as process,
    ):
        assert process.stdout is not None
        try:
            found = [ready.fullmatch(process.stdout.readline()) for _ in range(3)]
            addresses = tuple(one["grpc"] for one in found if one is not None)
            assert len(addresses) == 3, log.read_text()
            bootstrap = str(Bootstrap(addresses, Security(authority.tls(authority.client()))))
            with semel.Admin(bootstrap) as admin:
                admin.create_topic("t", partitions=3, replication_factor=3)
            with semel.Producer(bootstrap, transactional_id="t") as producer:
                with producer.transaction():
                    for partition in range(3):
                        producer.send("t", b"before", partition=partition)
                killed = re.search(r"node 1 is process (\d+)", log.read_text())
                assert killed is not None
                os.kill(int(killed[1]), signal.SIGKILL)
                with producer.transaction():
                    for partition in range(3):
                        producer.send("t", b"after", partition=partition)
            with semel.Consumer(bootstrap, group="g", topics=["t"], offset_reset="earliest") as consumer:
                values = [record.value for record in itertools.islice(consumer, 6)]
            assert sorted(filter(None, values)) == [b"after"] * 3 + [b"before"] * 3
        finally:
            process.terminate()
    assert process.returncode == 0
