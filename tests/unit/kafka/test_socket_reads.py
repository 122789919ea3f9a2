"""What reads many sockets in one callback of the event loop: compiled, as it is, over real sockets."""

from __future__ import annotations

import random
import selectors
import socket
import struct
import time
from collections.abc import Callable, Iterator

import pytest

socket_reads = pytest.importorskip("semel.broker.listeners.kafka.socket_reads", reason="nothing is compiled")

TOGETHER = 64
LARGE = 1 << 20


@pytest.fixture
def reads() -> Iterator[socket_reads.SocketReads]:
    made = socket_reads.SocketReads()
    yield made
    made.close()


class Reader:
    """One end of a connection, which is read, and what came to it."""

    def __init__(self, then: Callable[[Reader], None] = lambda _: None, size: int = 1 << 10) -> None:
        self.own, self.other = socket.socketpair()
        self.own.setblocking(False)
        self.came = bytearray()
        self.ended: list[Exception | None] = []
        self._buffer = bytearray(size)
        self._then = then

    @property
    def number(self) -> int:
        return self.own.fileno()

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._buffer)

    def buffer_updated(self, nbytes: int) -> None:
        self.came += self._buffer[:nbytes]
        self._then(self)

    def reading_ended(self, error: Exception | None) -> None:
        self.ended.append(error)

    def close(self) -> None:
        self.own.close()
        self.other.close()


@pytest.fixture
def made() -> Iterator[list[Reader]]:
    readers: list[Reader] = []
    yield readers
    for reader in readers:
        reader.close()


def of(made: list[Reader], reads: socket_reads.SocketReads, count: int, **options: object) -> list[Reader]:
    for _ in range(count):
        made.append(Reader(**options))  # type: ignore[arg-type]
        reads.add(made[-1].number, made[-1])
    return made


def has_something(reads: socket_reads.SocketReads) -> bool:
    """Whether the event loop would call `read`."""
    with selectors.DefaultSelector() as selector:
        selector.register(reads.fileno(), selectors.EVENT_READ)
        return bool(selector.select(0))


def test_each_reader_gets_what_came_to_it(reads: socket_reads.SocketReads, made: list[Reader]) -> None:
    readers = of(made, reads, 3 * TOGETHER)
    assert not has_something(reads)
    chance = random.Random(3)
    sent = {reader: chance.randbytes(chance.randrange(1, 5_000)) for reader in chance.sample(readers, 2 * TOGETHER)}
    for reader, content in sent.items():
        reader.other.sendall(content)
    while has_something(reads):
        reads.read()
    assert all(reader.came == sent.get(reader, b"") for reader in readers)
    assert not any(reader.ended for reader in readers)


def test_a_large_buffer_takes_all_at_once(reads: socket_reads.SocketReads, made: list[Reader]) -> None:
    (reader,) = of(made, reads, 1, size=LARGE)
    content = random.Random(1).randbytes(LARGE)
    reader.other.setblocking(False)
    sent = 0
    while sent < LARGE:
        sent += reader.other.send(content[sent:])
        reads.read()
    assert reader.came == content


def test_who_is_taken_out_is_read_no_more_until_it_is_added_again(
    reads: socket_reads.SocketReads, made: list[Reader]
) -> None:
    (reader,) = of(made, reads, 1)
    reader.other.sendall(b"one")
    reads.remove(reader.number)
    reads.remove(reader.number)  # nothing more happens
    assert not has_something(reads)
    reads.read()
    assert not reader.came
    reads.add(reader.number, reader)
    with pytest.raises(OSError, match="exists"):
        reads.add(reader.number, reader)
    reads.read()
    assert reader.came == b"one"


def test_who_is_taken_out_by_one_that_is_read_before_it_is_not_read(
    reads: socket_reads.SocketReads, made: list[Reader]
) -> None:
    def end_others(one: Reader) -> None:
        for other in made:
            if other is not one:
                reads.remove(other.number)
                other.close()

    for reader in of(made, reads, 5, then=end_others):
        reader.other.sendall(b"one")
    reads.read()
    assert sorted(bytes(reader.came) for reader in made) == [b"", b"", b"", b"", b"one"]
    assert not any(reader.ended for reader in made)
    assert not has_something(reads)


def test_a_peer_that_is_gone_is_told_of_once_after_all_that_it_sent(
    reads: socket_reads.SocketReads, made: list[Reader]
) -> None:
    (reader,) = of(made, reads, 1, size=2)
    reader.other.sendall(b"last")
    reader.other.close()
    while has_something(reads):
        reads.read()
    assert reader.came == b"last"
    assert reader.ended == [None]


def test_a_connection_that_is_reset_ends_with_an_error(reads: socket_reads.SocketReads, made: list[Reader]) -> None:
    (reader,) = of(made, reads, 1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        reads.remove(reader.number)
        reader.close()
        reader.other = socket.create_connection(server.getsockname())
        reader.own, _ = server.accept()
    reader.own.setblocking(False)
    reads.add(reader.number, reader)
    reader.other.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    reader.other.close()
    while not reader.ended:
        reads.read()
    assert isinstance(reader.ended[0], ConnectionResetError)
    assert not has_something(reads)


def test_a_reader_that_fails_is_told_and_the_others_are_read(
    reads: socket_reads.SocketReads, made: list[Reader]
) -> None:
    def fail(_: Reader) -> None:
        raise ValueError("no")

    of(made, reads, 1, then=fail)
    made.append(Reader(size=0))
    reads.add(made[-1].number, made[-1])
    of(made, reads, 2)
    for reader in made:
        reader.other.sendall(b"one")
    while has_something(reads):
        reads.read()
    assert [type(reader.ended[0]) for reader in made[:2]] == [ValueError, RuntimeError]
    assert [reader.came for reader in made[2:]] == [b"one", b"one"]
    assert not any(reader.ended for reader in made[2:])


def test_S3_who_takes_long_lets_the_event_loop_have_its_turn_and_the_others_are_next(
    reads: socket_reads.SocketReads, made: list[Reader]
) -> None:
    def take_long(_: Reader) -> None:
        end = time.monotonic() + 0.006
        while time.monotonic() < end:
            pass

    for reader in of(made, reads, 3, then=take_long, size=1):
        reader.other.sendall(b"ab")
    for turn in range(1, 4):
        reads.read()
        assert sorted(len(reader.came) for reader in made) == [0] * (3 - turn) + [1] * turn
    assert has_something(reads)


def test_nothing_is_read_after_the_end(reads: socket_reads.SocketReads, made: list[Reader]) -> None:
    (reader,) = of(made, reads, 1)
    reader.other.sendall(b"one")
    reads.close()
    reads.read()
    reads.remove(reader.number)
    with pytest.raises(OSError, match="descriptor"):
        reads.add(reader.number, reader)
    reads.close()
    assert not reader.came
