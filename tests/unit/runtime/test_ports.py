"""Ports for nodes that are started again."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from semel.protocol.errors import FatalError
from semel.runtime import ports
from semel.runtime.ports import FIXED_PORTS, Reservations, free_ports, lasting_address


def test_free_ports_differ_and_are_none_that_clients_are_given() -> None:
    found = free_ports(20)
    assert len(set(found)) == 20
    assert set(found) <= set(FIXED_PORTS)
    for port in found:
        socket.create_server(("127.0.0.1", port)).close()


def test_no_port_that_is_taken_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", free_ports(1)[0])) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(ports, "FIXED_PORTS", range(port, port + 1))
        monkeypatch.setattr(ports, "_in_turn", lambda: itertools.repeat(port))
        with pytest.raises(FatalError, match=f"fewer than 1 of the ports {port} to {port} are free"):
            free_ports(1)


def test_no_port_is_given_twice_though_nobody_listens_on_it_yet() -> None:
    """Addresses are chosen one by one, and the nodes that are to have them start later."""
    found = [free_ports(1)[0] for _ in range(500)]
    assert len(set(found)) == len(found)


CHOOSES = """
import sys
from pathlib import Path
from semel.runtime.ports import Reservations
mine = Reservations(Path(sys.argv[1]), keep=3)
print([port for port in range(1, 6) if mine.reserve(port)], flush=True)
sys.stdin.read()
"""


def test_no_port_is_given_that_another_process_has_chosen_lately(tmp_path: Path) -> None:
    """It keeps the last ones, here three, until it ends, even by SIGKILL."""
    path = tmp_path / "ports"
    command = [sys.executable, "-P", "-c", CHOOSES, str(path)]
    mine = Reservations(path)
    try:
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
            assert other.stdout is not None
            assert other.stdout.readline() == "[1, 2, 3, 4, 5]\n"
            assert [port for port in range(1, 7) if mine.reserve(port)] == [1, 2, 6]
            other.send_signal(signal.SIGKILL)
        assert all(mine.reserve(port) for port in (3, 4, 5))
    finally:
        os.close(mine._file)


def test_a_file_of_reservations_of_another_user_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ports").touch()
    monkeypatch.setattr(ports.os, "getuid", lambda: os.geteuid() + 1)
    with pytest.raises(PermissionError, match="another user's"):
        Reservations(tmp_path / "ports")


def test_ports_are_chosen_where_the_file_of_reservations_can_not_be_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ports.tempfile, "gettempdir", lambda: str(tmp_path / "missing"))
    ports._reservations.cache_clear()
    try:
        assert len(free_ports(3)) == 3
    finally:
        ports._reservations.cache_clear()


@pytest.mark.parametrize("address", ["127.0.0.1:9092", "0.0.0.0:0", "[::1]:0", "off", 5, None])
def test_an_address_that_somebody_chose_stays(address: object) -> None:
    assert lasting_address(address) == address


def test_an_open_port_of_the_loopback_address_is_chosen() -> None:
    host, _, port = lasting_address("127.0.0.1:0").rpartition(":")
    assert host == "127.0.0.1"
    assert int(port) in FIXED_PORTS
