"""`bench/other_brokers.py`: what it counts, whom it leaves out, its table. What it measures no test asserts."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parents[3] / "bench"
sys.path.append(str(BENCH))

import other_brokers  # noqa: E402
from brokers import installed, report, servers, wire, work  # noqa: E402

from semel.protocol.batch_builder import encode_batch  # noqa: E402


@pytest.fixture
def nats_link(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[wire.NatsLink, socket.socket]]:
    ours, theirs = socket.socketpair()
    monkeypatch.setattr(wire, "nats_greeted", lambda *_: ours)
    with ours, theirs:
        yield wire.NatsLink(("127.0.0.1", 0), "log", b"value"), theirs


def in_pieces(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_acknowledgements_of_nats_are_counted_in_whatever_pieces_they_come(nats_link: Any, size: int) -> None:
    link, theirs = nats_link
    answer = b'MSG _inbox.00000001 1 31\r\n{"stream":"log","seq":1,"x":"yz"}\r\n'
    data = answer * 3 + b"PING\r\n" + answer * 2 + b"PING\r\n"
    assert sum(link.counted(piece) for piece in in_pieces(data, size)) == 5
    assert theirs.recv(100) == b"PONG\r\n" * 2


def test_a_question_of_nats_among_messages_is_answered_and_is_none() -> None:
    ours, theirs = socket.socketpair()
    message = b"MSG _inbox.00000001 1 $JS.ACK 1\r\nv\r\n"
    with ours, theirs:
        theirs.sendall(message + b"PING\r\n" + message)
        servers.read_messages(ours, 2)
        assert theirs.recv(100) == b"PONG\r\n"
        waiter = servers.NatsWaiter(ours)
        assert [waiter.arrived(piece) for piece in (message + b"PI", b"NG\r\n" + message[:9], message[9:])] == [1, 0, 1]
        assert theirs.recv(100) == b"PONG\r\n"
        theirs.sendall(message * 2)
        with pytest.raises(wire.WireError, match="2 more lines"):
            servers.read_messages(ours, 1)


def test_a_publish_that_nats_refuses_is_an_error(nats_link: Any) -> None:
    link, _ = nats_link
    with pytest.raises(wire.WireError, match="no space"):
        link.counted(b'MSG _inbox.00000001 1 40\r\n{"error":{"description":"no space"}}\r\n')


def redis_link(monkeypatch: pytest.MonkeyPatch) -> wire.RedisLink:
    monkeypatch.setattr(wire, "connected", lambda _: None)
    return wire.RedisLink(("127.0.0.1", 0), b"XADD")


@pytest.mark.parametrize("size", [1, 5, 13, 1000])
def test_ids_of_redis_are_counted_and_their_dash_is_no_error(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    link = redis_link(monkeypatch)
    data = b"$15\r\n1690000000000-0\r\n" * 4
    assert sum(link.counted(piece) for piece in in_pieces(data, size)) == 4


@pytest.mark.parametrize("size", [1, 1000])
def test_a_command_that_redis_refuses_is_an_error(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    link = redis_link(monkeypatch)
    pieces = in_pieces(b"$15\r\n1690000000000-0\r\n-OOM no memory\r\n", size)
    with pytest.raises(wire.WireError):
        sum(link.counted(piece) for piece in pieces)


def test_what_is_read_has_exactly_the_lines_that_were_asked_for() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"one\r\ntwo\r\n")
        assert wire.read_lines(ours, 2, keep=5).endswith(b"two\r\n")
        theirs.sendall(b"one\r\ntwo\r\n")
        with pytest.raises(wire.WireError, match="1 more lines"):
            wire.read_lines(ours, 1)


def test_the_end_of_fetched_batches_leaves_out_one_that_is_cut_short() -> None:
    whole = encode_batch([(1, None, b"v", ())] * 3)
    records = whole[:8].replace(bytes(8), (20).to_bytes(8, "big")) + whole[8:]
    assert servers.end_of_batches(memoryview(records + whole[:-1]), 20) == 23
    with pytest.raises(wire.WireError, match="nothing came at 20"):
        servers.end_of_batches(memoryview(whole[:-1]), 20)


def test_a_waiting_read_of_redis_goes_on_behind_the_last_record() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        waiter = servers.RedisWaiter(ours, "log")
        theirs.recv(1000)
        record = b"*2\r\n$3\r\n7-%d\r\n*2\r\n$1\r\nv\r\n$1\r\nx\r\n"
        answer = b"*1\r\n*2\r\n$3\r\nlog\r\n*2\r\n" + record % 1 + record % 2
        assert [waiter.arrived(piece) for piece in in_pieces(answer, len(answer) - 1)] == [0, 2]
        assert theirs.recv(1000).endswith(b"$3\r\n7-2\r\n")


class EchoLink:
    """A connection whose server answers each byte with one."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock, self.request, self.records = sock, b"r", 2

    def counted(self, data: bytes) -> int:
        return len(data)


def test_every_record_that_is_sent_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        sent = bytearray()

        def answered(sock: socket.socket) -> bytes:
            data = theirs.recv(1)
            sent.extend(data)
            return data

        monkeypatch.setattr(work, "received", answered)
        theirs.sendall(b"ready")  # readable all the time: what is received is what was sent
        total = work.append([EchoLink(ours)], seconds=60, in_flight=8, most=100)
        theirs.setblocking(False)
        with pytest.raises(BlockingIOError):
            theirs.recv(1)
    assert total == 2 * len(sent)
    assert 100 <= total < 100 + 8


def broker(name: str, run: Callable[[], Any] = lambda: None) -> Any:
    return type("Broker", (), {"name": name, "promise": f"{name}'s word", "run": staticmethod(run)})()


class Deleted:
    """A broker that notes what is deleted, and can not: it has ended."""

    def __init__(self) -> None:
        self.asked = 0

    def create(self, log: str) -> None:
        pass

    def delete(self, log: str) -> None:
        self.asked += 1
        raise ConnectionRefusedError


@pytest.mark.parametrize(("error", "asked"), [(SystemExit, 0), (KeyboardInterrupt, 0), (wire.WireError, 1)])
def test_who_ends_the_bench_is_not_kept_by_a_log_that_can_not_be_deleted(
    error: type[BaseException], asked: int
) -> None:
    one: Any = Deleted()
    with pytest.raises(error), work.new_log([one]):
        raise error
    assert one.asked == asked


def failing() -> Any:
    raise wire.WireError("refused")


def test_a_broker_that_fails_has_a_line_and_the_others_go_on() -> None:
    brokers = [broker("Semel", lambda: work.Sample(3000, 1.0, 0.3)), broker("NATS JetStream", failing)]
    row = work.rate_row("append", "os", brokers, lambda one: one.run(), 2)
    assert report.lines_of(row) == [
        "| append | os | Semel | 3.00 k records/s | 3.00 to 3.00 |  | 100.0 us a record | Semel's word |",
        "| append | os | NATS JetStream | failed |  |  |  | WireError: refused |",
    ]


def test_a_line_has_the_ratio_to_semel_and_says_what_is_better() -> None:
    samples = {"Semel": [200.0, 100.0, 300.0], "Redis streams": [50.0, 100.0, 150.0]}
    row = work.BrokerRow("p50", "disk", "us", samples, {}, {"Redis streams": "synced"}, less_is_better=True)
    assert report.lines_of(row)[1] == (
        "| p50 | disk | Redis streams | 100 us | 50.0 to 150 | 0.50x (less is better) |  | synced |"
    )


@contextlib.contextmanager
def absent(_durability: str) -> Iterator[Any]:
    raise installed.BrokerMissingError("no nats-server found: `make bench-peers` gets it")
    yield


@contextlib.contextmanager
def present(_durability: str) -> Iterator[Any]:
    yield broker("Semel")


def test_a_broker_that_is_not_there_is_left_out_with_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(other_brokers, "STARTERS", {"semel": present, "nats": absent})
    with contextlib.ExitStack() as stack:
        brokers, missing = other_brokers.started(["semel", "nats"], stack)
    assert {durability: [one.name for one in running] for durability, running in brokers.items()} == {
        "os": ["Semel"],
        "disk": ["Semel"],
    }
    assert report.missing_lines(missing) == ["left out: nats: no nats-server found: `make bench-peers` gets it"]


def test_nothing_is_fetched_without_asking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed, "CACHE", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("a program was run"))
    for find, name in ((installed.nats_server, "nats-server"), (installed.redis_server, "redis-server")):
        with pytest.raises(installed.BrokerMissingError, match=f"no {name} found: `make bench-peers` gets it"):
            find()
    with pytest.raises(installed.BrokerMissingError, match="no Python client no_such_client found"):
        installed.use_python_client("no_such_client")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["singel"], "no such workload: singel; there are single"),
        (["--brokers", "semel,rabbit"], "no such broker: rabbit; there are semel"),
        (["--rounds", "0"], "must be at least 1"),
    ],
)
def test_what_can_not_be_measured_is_refused(capsys: pytest.CaptureFixture[str], words: list[str], says: str) -> None:
    with pytest.raises(SystemExit):
        other_brokers.arguments_of(words)
    assert says in capsys.readouterr().err
