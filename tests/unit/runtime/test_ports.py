"""Ports for nodes that are started again."""

from __future__ import annotations

import itertools
import socket

import pytest

from semel.protocol.errors import FatalError
from semel.runtime import ports
from semel.runtime.ports import FIXED_PORTS, free_ports, lasting_address


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


@pytest.mark.parametrize("address", ["127.0.0.1:9092", "0.0.0.0:0", "[::1]:0", "off", 5, None])
def test_an_address_that_somebody_chose_stays(address: object) -> None:
    assert lasting_address(address) == address


def test_an_open_port_of_the_loopback_address_is_chosen() -> None:
    host, _, port = lasting_address("127.0.0.1:0").rpartition(":")
    assert host == "127.0.0.1"
    assert int(port) in FIXED_PORTS
