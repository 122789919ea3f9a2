"""The commands on a node that encrypts and asks for certificates, as its operator uses them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from certificates import Authority

from semel.sdk.transport.options import Bootstrap

COMMAND = (sys.executable, "-P", "-m", "semel.cli")
READY = re.compile(r"ready: kafka tls://(?P<kafka>127\.0\.0\.1:\d+) grpc tls://(?P<grpc>127\.0\.0\.1:\d+) data /.*\n")


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SEMEL_")}
    return {**kept, **more}


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")


@pytest.fixture
def bootstraps(tmp_path: Path, authority: Authority) -> Iterator[list[str]]:
    """Both ports of a node, with what a client needs."""
    pair = authority.node()
    settings = {
        "ssl.certificate.location": pair.certificate,
        "ssl.key.location": pair.key,
        "ssl.client.auth": "required",
        "ssl.ca.location": authority.ca,
    }
    flags = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    flags += ["--kafka", "tls://127.0.0.1:0", "--grpc", "tls://127.0.0.1:0"]
    command = [*COMMAND, "serve", "--data-dir", str(tmp_path / "data"), *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as process:
        assert process.stdout is not None
        try:
            found = READY.fullmatch(process.stdout.readline())
            assert found
            tls = authority.tls(authority.client())
            yield [str(Bootstrap((found[name],), tls)) for name in ("grpc", "kafka")]
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
    assert "give ssl.certificate.location and ssl.key.location" in nameless.stderr
    for command in (("health", "--bootstrap", address), ("health", "--bootstrap", f"tls://{address}")):
        assert ran(*command).returncode == 3
