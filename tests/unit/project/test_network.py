"""The tests' own network: what it is told to lose is lost without a word, other ways stay open, and nothing is left."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from network import Network, network, why_not

WHY_NOT = why_not()
pytestmark = pytest.mark.skipif(WHY_NOT is not None, reason=WHY_NOT or "")
ECHO = """
import socket
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("0.0.0.0", 7))
print("ready", flush=True)
while True:
    asked, where = server.recvfrom(100)
    print(asked.decode(), flush=True)
    server.sendto(asked, where)
"""
ASK = """
import socket, sys, time
client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
client.connect((sys.argv[1], 7))
deadline = time.monotonic() + float(sys.argv[3])
client.settimeout(0.2)
found = "silence"
while found == "silence" and time.monotonic() < deadline:
    client.send(sys.argv[2].encode())  # again: a link that has just come up may lose the first ones
    try:
        found = client.recv(100).decode()
    except TimeoutError:
        pass
print(found)
"""


def ask(made: Network, question: str, host: str = "", *, patience_s: float = 0.2) -> str:
    command = [sys.executable, "-c", ASK, made.address("other"), question, str(patience_s)]
    done = subprocess.run(
        made.command(host, *command) if host else command, capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout.strip()


def test_packets_are_lost_as_told_and_nothing_is_left() -> None:
    with network("one", "other") as made, network("of somebody else"):
        server = subprocess.Popen(made.command("other", sys.executable, "-c", ECHO), stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == "ready\n"
            assert ask(made, "first", "one", patience_s=30) == "first"
            made.drop("one", "other")
            assert ask(made, "there", "one") == "silence"
            assert ask(made, "of a third", patience_s=30) == "of a third"
            made.heal()
            made.drop("other", "one")
            assert ask(made, "and back", "one") == "silence"
            made.heal()
            made.cut("one", "other")
            assert ask(made, "neither", "one") == "silence"
            made.heal()
            made.unplug("other")
            assert ask(made, "unplugged") == "silence"
            made.heal()
            assert ask(made, "last", "one", patience_s=30) == "last"
        finally:
            server.kill()
            heard = server.communicate(timeout=30)[0].split("\n")
    assert list(dict.fromkeys(heard)) == ["first", "of a third", "and back", "last", ""]
    assert not Path(f"/sys/class/net/{made.link}").exists()
