"""What a connection's output leaves to a thread: in order, counted, and let go of when the connection ends."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import cast

import pytest

from semel.broker.listeners.kafka.output import SENDFILE_BYTES_MIN, Output
from semel.broker.listeners.kafka.send_threads import Sending, SendThreads
from semel.protocol.kafka.wire import Part
from semel.runtime.disk_storage import DiskStorage
from semel.runtime.storage import FileRange, StorageFile

SIZE = 2 * SENDFILE_BYTES_MIN
CONTENT = bytes(range(256)) * (SIZE // 256)


class HeldThread:
    """Stands in for a `SendThread`: it sends when the test says so."""

    def __init__(self) -> None:
        self.jobs: list[tuple[list[Part], Callable[[], None]]] = []
        self.done: dict[int, tuple[int, int] | OSError] = {}
        self.cancelled: list[int] = []
        self.moved = 0

    def submit(self, parts: Sequence[Part], when_told: Callable[[], None]) -> int:
        self.jobs.append((list(parts), when_told))
        return len(self.jobs) - 1

    def finish(self, number: int) -> tuple[int, int] | None:
        outcome = self.done.get(number)
        if isinstance(outcome, OSError):
            raise outcome
        return outcome

    def sent(self, number: int) -> int:
        return self.moved

    def cancel(self, number: int) -> tuple[int, int]:
        self.cancelled.append(number)
        return self.moved, self.moved

    def send(self, own: socket.socket, number: int) -> None:
        parts, when_told = self.jobs[number]
        files = 0
        for part in parts:
            data = part.read() if isinstance(part, FileRange) else bytes(part)
            files += len(data) if isinstance(part, FileRange) else 0
            own.setblocking(True)
            own.sendall(data)
        self.done[number] = sum(map(len, parts)), files
        when_told()


class SocketTransport(asyncio.Transport):
    """What `Output` needs of a transport."""

    def __init__(self, own: socket.socket) -> None:
        super().__init__({"socket": own})
        self.closing = False

    def is_closing(self) -> bool:
        return self.closing

    def write(self, data: bytes | bytearray | memoryview) -> None:
        raise AssertionError("the transport is for what the loop sends and the socket does not take")


class OneThread:
    """Gives each large answer to the one thread."""

    def __init__(self, thread: HeldThread) -> None:
        self._thread = thread

    def submit(self, socket: int, parts: Sequence[Part], now: float, when_told: Callable[[], None]) -> Sending:
        return cast("Sending", _Sending(self._thread, self._thread.submit(parts, when_told)))


class _Sending:
    def __init__(self, thread: HeldThread, number: int) -> None:
        self.thread = thread
        self.number = number


class Case:
    def __init__(self, tmp_path: Path) -> None:
        self.own, self.peer = socket.socketpair()
        for end in (self.own, self.peer):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * SIZE)
        self.peer.settimeout(30)
        self.file: StorageFile = DiskStorage().open(str(tmp_path / "content"), create=True)
        self.file.append([CONTENT])
        self.thread = HeldThread()
        self.told = 0
        self.transport = SocketTransport(self.own)
        self.output = Output(self.transport, cast("SendThreads", OneThread(self.thread)), self._told)

    def _told(self) -> None:
        self.told += 1

    def pump(self) -> None:
        assert not self.output.pump(lambda: 0.0, 1.0)

    def received(self) -> bytes:
        """Everything up to the end, which is made here."""
        self.own.close()
        received = bytearray()
        while more := self.peer.recv(1 << 20):
            received += more
        return bytes(received)

    def close(self) -> None:
        self.own.close()
        self.peer.close()
        self.file.close()


@pytest.fixture
def case(tmp_path: Path) -> Iterator[Case]:
    made = Case(tmp_path)
    yield made
    made.close()


def test_answers_do_not_overtake_what_a_thread_sends(case: Case) -> None:
    output, thread = case.output, case.thread
    output.add([b"head", FileRange(case.file, 0, SIZE), b"tail"])
    case.pump()
    output.add([b"a small one"])
    output.add([FileRange(case.file, 5, SENDFILE_BYTES_MIN), b"and another large one"])
    for _ in range(3):
        case.pump()
        assert not output.idle
    assert len(thread.jobs) == 1
    thread.send(case.own, 0)
    assert case.told == 1
    case.pump()
    thread.send(case.own, 1)
    assert output.idle
    rest = b"a small one" + CONTENT[5 : 5 + SENDFILE_BYTES_MIN] + b"and another large one"
    assert (output.queued_bytes, output.sent_bytes) == (0, 8 + SIZE + len(rest))
    assert output.sendfile_bytes == SIZE + SENDFILE_BYTES_MIN
    case.pump()
    assert case.received() == b"head" + CONTENT + b"tail" + rest


def test_small_answers_and_small_ranges_are_for_the_loop(case: Case) -> None:
    case.output.add([b"small"])
    case.pump()
    case.output.add([b"smaller than what pays", b" "])
    case.pump()
    assert case.thread.jobs == []
    assert case.received() == b"smallsmaller than what pays "


def test_what_a_thread_holds_of_memory_stays_counted_until_it_is_sent(case: Case) -> None:
    case.output.add([bytes(1000), FileRange(case.file, 0, SIZE)])
    case.pump()
    assert case.output.queued_bytes == 1000
    case.output.add([bytes(500)])
    assert case.output.queued_bytes == 1500
    case.thread.send(case.own, 0)
    assert case.output.settle()
    assert case.output.queued_bytes == 500


def test_what_a_thread_could_not_send_fails_when_there_is_more_to_send(case: Case) -> None:
    case.output.add([FileRange(case.file, 0, SIZE)])
    case.pump()
    case.thread.done[0] = BrokenPipeError("the peer is gone")
    assert case.output.idle, "nothing is being sent"
    with pytest.raises(BrokenPipeError):
        case.pump()
    case.pump()


@pytest.mark.parametrize("end", ["the connection is lost", "the transport closes"])
def test_an_output_that_ends_leaves_the_socket_alone(case: Case, end: str) -> None:
    case.output.add([FileRange(case.file, 0, SIZE), b"tail"])
    case.pump()
    case.thread.moved = 100
    if end == "the connection is lost":
        case.output.clear()
    else:
        case.transport.closing = True
        case.pump()
    assert case.thread.cancelled == [0]
    assert (case.output.sent_bytes, case.output.queued_bytes) == (100, 0)
    case.output.clear()
    assert case.thread.cancelled == [0]


def test_S2_an_answer_of_which_nothing_goes_out_is_no_use_of_a_connection(case: Case) -> None:
    assert not case.output.moves()
    case.output.add([FileRange(case.file, 0, SIZE)])
    case.pump()
    for moved, expected in ((0, False), (100, True), (100, False), (101, True)):
        case.thread.moved = moved
        assert case.output.moves() is expected
    case.thread.send(case.own, 0)
    assert not case.output.moves()


def test_who_notes_the_end_of_what_a_thread_sends_has_the_rest_sent(case: Case) -> None:
    """A look at the counters, or at idle connections, may come before the loop has heard of the end."""
    case.output.add([FileRange(case.file, 0, SIZE)])
    case.pump()
    case.output.add([b"behind it"])
    case.pump()
    case.thread.done[0] = (SIZE, SIZE)
    assert not case.output.moves()
    assert case.told == 1
    case.pump()
    assert case.received() == b"behind it"
