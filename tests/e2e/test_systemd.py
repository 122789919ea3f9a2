"""`semel serve` under systemd: what it tells over a socket by sd_notify, and the unit file of the documentation."""

from __future__ import annotations

import configparser
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from semel.broker.config.node_config import SETTINGS
from semel.cli.main import app
from semel.cli.serve_exit import ServeExit

COMMAND = (sys.executable, "-P", "-m", "semel.cli", "serve", "--kafka", "127.0.0.1:0", "--grpc", "127.0.0.1:0")
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "run-a-node.md"


def environment(**more: str) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("SEMEL_")} | more


@pytest.mark.parametrize("kind", ["file", "abstract"])
def test_systemd_hears_that_the_node_is_ready_and_that_it_stops(tmp_path: Path, kind: str) -> None:
    path = str(tmp_path / "notify") if kind == "file" else f"@semel-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(path if kind == "file" else f"\0{path[1:]}")
        receiver.settimeout(60)
        with subprocess.Popen(
            [*COMMAND, "--data-dir", str(tmp_path / "data")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(NOTIFY_SOCKET=path),
        ) as node:
            try:
                ready = receiver.recv(4096).decode().splitlines()
                assert ready[0] == "READY=1"
                found = re.fullmatch(r"STATUS=serving Kafka at 127\.0\.0\.1:(\d+), gRPC at 127\.0\.0\.1:\d+", ready[1])
                assert found, ready
                socket.create_connection(("127.0.0.1", int(found[1])), timeout=30).close()
                node.send_signal(signal.SIGTERM)
                assert receiver.recv(4096).decode().splitlines()[0] == "STOPPING=1"
                _, errors = node.communicate(timeout=60)
                assert node.returncode == 0, errors
            finally:
                node.kill()
        receiver.setblocking(False)
        with pytest.raises(BlockingIOError):  # each is said once
            receiver.recv(4096)


def test_a_node_serves_though_nobody_hears_it(tmp_path: Path) -> None:
    with subprocess.Popen(
        [*COMMAND, "--data-dir", str(tmp_path / "data")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(NOTIFY_SOCKET=str(tmp_path / "nobody")),
    ) as node:
        try:
            assert node.stdout is not None
            assert node.stdout.readline().startswith("ready: ")
            node.send_signal(signal.SIGTERM)
            _, errors = node.communicate(timeout=60)
            assert node.returncode == 0, errors
        finally:
            node.kill()
    assert f"the service manager at NOTIFY_SOCKET={tmp_path}/nobody can't be told READY=1" in errors


def unit() -> configparser.ConfigParser:
    (text,) = re.findall(r"^```ini\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    parser = configparser.ConfigParser(interpolation=None, delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(text)
    return parser


def test_the_unit_of_the_documentation_starts_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    service = unit()["Service"]
    assert service["Type"] == "notify"
    program, *arguments = shlex.split(service["ExecStart"].replace("%S", "/var/lib"))
    assert program.endswith("/bin/semel")
    for variable in [name for name in os.environ if name.startswith("SEMEL_")]:
        monkeypatch.delenv(variable)
    shown = CliRunner().invoke(app, [*arguments, "--settings"])
    assert shown.exit_code == 0, shown.output
    assert 'data.dir = "/var/lib/semel"  # flag' in shown.stdout or "data.dir = /var/lib/semel  # flag" in shown.stdout


def test_the_unit_waits_as_long_as_a_node_takes_and_starts_no_failure_again_that_stays() -> None:
    service = unit()["Service"]
    assert service["TimeoutStartSec"] == "infinity"  # a recovery may take long
    grace_ms = SETTINGS["shutdown.grace.ms"].default
    assert isinstance(grace_ms, int)
    assert int(service["TimeoutStopSec"]) * 1000 > grace_ms
    codes = {ServeExit(int(code)) for code in service["RestartPreventExitStatus"].split()}
    assert codes == {ServeExit.CONFIGURATION, ServeExit.DATA_FOLDER, ServeExit.REMOVED}
