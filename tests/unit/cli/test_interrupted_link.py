"""The demo's links: what is sent arrives, and while a link is cut it neither arrives nor fails."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from semel.cli.demo.interrupted_link import InterruptedLink, InterruptedSocket, Link

NOT_YET_S = 0.2
WAIT_S = 60
HANG_UP = b"hang up"


class Far:
    """Sends back what comes, and counts it."""

    def __init__(self, server: socket.socket) -> None:
        self._server = server
        self.seen = b""
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                one, _ = self._server.accept()
                threading.Thread(target=self._echo, args=(one,), daemon=True).start()

    def _echo(self, one: socket.socket) -> None:
        with closing(one), suppress(OSError):
            while data := one.recv(100):
                self.seen += data
                if data == HANG_UP:
                    return
                one.sendall(data)


@pytest.fixture(params=["tcp", "unix"])
def linked(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Link, Far, socket.AddressFamily, object]]:
    """A link, what is behind it, and where to connect to."""
    link: Link
    if request.param == "tcp":
        server = socket.create_server(("127.0.0.1", 0))
        link = InterruptedLink(server.getsockname()[1])
        family, near = socket.AF_INET, ("127.0.0.1", link.port)
    else:
        server = socket.socket(socket.AF_UNIX)
        server.bind(str(tmp_path / "far"))
        server.listen()
        link = InterruptedSocket(str(tmp_path / "near"), str(tmp_path / "far"))
        family, near = socket.AF_UNIX, str(tmp_path / "near")  # type: ignore[assignment]
    try:
        yield link, Far(server), family, near
    finally:
        link.close()
        server.close()


def connected(family: socket.AddressFamily, near: object) -> socket.socket:
    one = socket.socket(family)
    one.settimeout(WAIT_S)
    one.connect(near)  # type: ignore[arg-type]
    return one


def test_what_is_sent_while_a_link_is_cut_neither_arrives_nor_fails(
    linked: tuple[Link, Far, socket.AddressFamily, object],
) -> None:
    link, far, *where = linked
    with closing(connected(*where)) as before:  # type: ignore[arg-type]
        before.sendall(b"a")
        assert before.recv(1) == b"a"
        link.cut()
        with closing(connected(*where)) as meanwhile:  # type: ignore[arg-type]
            for one in (before, meanwhile):
                one.sendall(b"b")
                one.settimeout(NOT_YET_S)
                with pytest.raises(TimeoutError):
                    one.recv(1)
            assert far.seen == b"a"
            link.heal()
            meanwhile.settimeout(WAIT_S)
            assert meanwhile.recv(1) == b"b", "one that waited gets through"
        before.settimeout(WAIT_S)
        with suppress(ConnectionError):
            assert before.recv(1) == b"", "one from before is ended"
    with closing(connected(*where)) as after:  # type: ignore[arg-type]
        after.sendall(b"c")
        assert after.recv(1) == b"c"


def test_who_waits_for_an_answer_hears_that_the_far_side_has_ended(
    linked: tuple[Link, Far, socket.AddressFamily, object],
) -> None:
    _, _, *where = linked
    with closing(connected(*where)) as waiting:  # type: ignore[arg-type]
        waiting.sendall(HANG_UP)
        waiting.settimeout(5)
        assert waiting.recv(1) == b""
