"""The brokers that take turns: how each is started, what an acknowledgement of it promises, and how it is spoken to."""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import apache_kafka
import dataplane
import kafka_jars
from harness import NodeProcess, Peer, data_folder, process_cpu_s, process_memory_mb, running_node
from workloads.common import batch_of_records
from workloads.kafka_peers import BATCH_BYTES, DISK, OS, delete_topic, new_topic
from workloads.kafka_requests import end_of

from brokers import clients, installed
from brokers.wire import (
    ANSWER_S,
    KafkaLink,
    Link,
    NatsLines,
    NatsLink,
    RedisLink,
    WireError,
    connected,
    nats_api,
    nats_greeted,
    new_inbox,
    read_lines,
    received,
    redis_call,
    redis_command,
)
from semel.protocol.errors import ErrorCode
from semel.protocol.ids import ZERO_TOPIC_ID
from semel.protocol.kafka.api import join_parts
from semel.protocol.kafka.fetch import FetchPartition, FetchRequest, FetchResponse
from semel.runtime.ports import free_ports

SEMEL, KAFKA = "Semel", "Apache Kafka"
NATS, REDIS, REDIS_MEMORY = "NATS JetStream", "Redis streams", "Redis streams, as it comes"
START_S = 30.0
READ_AT_ONCE = 1000
"""Records of one XREAD: about as many as a fetch of 1 MB has of 1 KiB."""
FETCH_BYTES = 1_000_000


class Waiter(Protocol):
    """A consumer that waits at the end of a log."""

    sock: socket.socket

    def arrived(self, data: bytes) -> int:
        """Return how many records end within what has come, and wait for the next."""
        ...


class Broker(Peer, Protocol):
    """A server of one log, which is made again for each turn."""

    name: str
    promise: str
    """What an acknowledgement says."""

    def create(self, log: str) -> None: ...
    def delete(self, log: str) -> None: ...
    def stored(self, log: str) -> int:
        """Return how many records the log has."""
        ...

    def link(self, log: str, size: int, *, batch: bool = False) -> Link:
        """Return a connection that appends records of `size` bytes, one a request, or as many as are usual at once."""
        ...

    def waiter(self, log: str) -> Waiter: ...
    def read(self, log: str, size: int, count: int) -> None:
        """Read `count` records of `size` bytes from the beginning, on one connection."""
        ...

    def client_append(self, log: str, value: bytes, seconds: float) -> int:
        """Append with the usual Python client until all are acknowledged. Returns how many these are."""
        ...

    def client_read(self, log: str, count: int) -> None:
        """Read so many records from the beginning with it."""
        ...


# --- Kafka's protocol -------------------------------------------------------------------------------------------------


@dataclass
class KafkaBroker:
    """Whatever serves Kafka's protocol."""

    name: str
    promise: str
    peer: Peer

    @property
    def address(self) -> tuple[str, int]:
        return self.peer.address

    @property
    def bootstrap(self) -> str:
        return self.peer.bootstrap

    def cpu_s(self) -> float:
        return self.peer.cpu_s()

    def memory_mb(self) -> float:
        return self.peer.memory_mb()

    def create(self, log: str) -> None:
        new_topic(self.peer, log)

    def delete(self, log: str) -> None:
        delete_topic(self.peer, log)

    def stored(self, log: str) -> int:
        return end_of(self.peer, log)

    def link(self, log: str, size: int, *, batch: bool = False) -> Link:
        records = BATCH_BYTES // size if batch else 1
        content = batch_of_records(size, BATCH_BYTES) if batch else dataplane.batch_of(size)
        return KafkaLink(self.address, dataplane.produce_frame(log, 0, content, -1), records)

    def waiter(self, log: str) -> Waiter:
        return KafkaWaiter(self.address, log, self.stored(log))

    def read(self, log: str, size: int, count: int) -> None:
        buffer = bytearray(4 << 20)
        offset = 0
        with dataplane.connect(self.address) as sock:
            sock.settimeout(ANSWER_S)
            while offset < count:
                request = FetchRequest([FetchPartition(log, ZERO_TOPIC_ID, 0, offset, FETCH_BYTES)], 0, 1, FETCH_BYTES)
                sock.sendall(join_parts(request.frame(12, 1, "b")))
                length = dataplane.read_frame(sock, buffer)
                answer = FetchResponse.parse(memoryview(buffer)[:length], 12, 5).partitions[0]
                if answer.error is not ErrorCode.NONE:
                    raise WireError(f"a fetch at {offset} was answered with {answer.error}")
                offset = end_of_batches(memoryview(answer.records or b""), offset)

    def client_append(self, log: str, value: bytes, seconds: float) -> int:
        run = clients.semel_append if isinstance(self.peer, NodeProcess) else clients.confluent_append
        return run(self.peer, log, value, seconds)

    def client_read(self, log: str, count: int) -> None:
        run = clients.semel_read if isinstance(self.peer, NodeProcess) else clients.confluent_read
        run(self.peer, log, count)


def end_of_batches(records: memoryview, offset: int) -> int:
    """Return the offset behind the last whole batch. Raises `WireError` where there is none."""
    at, end = 0, offset
    while at + 61 <= len(records):
        length = 12 + int.from_bytes(records[at + 8 : at + 12], "big")
        if at + length > len(records):
            break
        end = int.from_bytes(records[at : at + 8], "big") + int.from_bytes(records[at + 23 : at + 27], "big") + 1
        at += length
    if end == offset:
        raise WireError(f"nothing came at {offset}")
    return end


class KafkaWaiter:
    """One fetch is always waiting."""

    def __init__(self, address: tuple[str, int], log: str, offset: int) -> None:
        self.sock = connected(address)
        self._log, self._offset, self._data = log, offset, b""
        self._ask()

    def _ask(self) -> None:
        partition = FetchPartition(self._log, ZERO_TOPIC_ID, 0, self._offset, 1 << 20)
        self.sock.sendall(join_parts(FetchRequest([partition], 10_000, 1, 1 << 20).frame(12, 1, "b")))

    def arrived(self, data: bytes) -> int:
        self._data += data
        if len(self._data) < 4 or len(self._data) < (end := 4 + int.from_bytes(self._data[:4], "big")):
            return 0
        answer = FetchResponse.parse(memoryview(self._data)[4:end], 12, 5).partitions[0]
        if answer.error is not ErrorCode.NONE:
            raise WireError(f"a fetch at {self._offset} was answered with {answer.error}")
        before, self._data = self._offset, self._data[end:]
        self._offset = end_of_batches(memoryview(answer.records or b""), before)
        self._ask()
        return self._offset - before


# --- NATS -------------------------------------------------------------------------------------------------------------


@dataclass
class Process:
    """A server in a process of its own."""

    process: subprocess.Popen[bytes]
    address: tuple[str, int]
    folder: str

    @property
    def bootstrap(self) -> str:
        return f"{self.address[0]}:{self.address[1]}"

    def cpu_s(self) -> float:
        return process_cpu_s(self.process.pid)

    def memory_mb(self) -> float:
        return process_memory_mb(self.process.pid)


@contextlib.contextmanager
def running(program: Path, arguments: Sequence[str], address: tuple[str, int], folder: str) -> Iterator[Process]:
    """Run a server until the end of the block. Raises `RuntimeError` with its log where it does not start."""
    path = Path(f"{folder}.log")
    with path.open("wb") as log:
        process = subprocess.Popen(
            [str(program), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=folder,
            env=installed.environment(program),
        )
    try:
        deadline = time.monotonic() + START_S
        while True:
            with contextlib.suppress(OSError), contextlib.closing(socket.create_connection(address, 1.0)):
                break
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(
                    f"{program} did not start; its log says:\n{path.read_text(errors='replace')[-2000:]}"
                )
            time.sleep(0.02)
        yield Process(process, address, folder)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class NatsBroker(Process):
    """A stream with files, of one replica, and one subject of the same name."""

    name = NATS
    promise = ""

    def create(self, log: str) -> None:
        config = {"name": log, "subjects": [log], "storage": "file", "num_replicas": 1, "retention": "limits"}
        nats_api(self.address, f"STREAM.CREATE.{log}", config)

    def delete(self, log: str) -> None:
        nats_api(self.address, f"STREAM.DELETE.{log}", {})

    def stored(self, log: str) -> int:
        return int(nats_api(self.address, f"STREAM.INFO.{log}", {})["state"]["messages"])

    def link(self, log: str, size: int, *, batch: bool = False) -> Link:
        return NatsLink(self.address, log, b"v" * size)

    def waiter(self, log: str) -> Waiter:
        return NatsWaiter(self._subscribed(log, "new"))

    def read(self, log: str, size: int, count: int) -> None:
        with contextlib.closing(self._subscribed(log, "all")) as sock:
            read_messages(sock, count)

    def client_append(self, log: str, value: bytes, seconds: float) -> int:
        return clients.nats_append(self, log, value, seconds)

    def client_read(self, log: str, count: int) -> None:
        clients.nats_read(self, log, count)

    def _subscribed(self, log: str, policy: str) -> socket.socket:
        """Return a connection to which a consumer without acknowledgements pushes what the stream has."""
        subject = new_inbox()
        sock = nats_greeted(self.address, subject)
        config = {"deliver_subject": subject.decode(), "deliver_policy": policy, "ack_policy": "none"}
        nats_api(self.address, f"CONSUMER.CREATE.{log}", {"stream_name": log, "config": config})
        return sock


def read_messages(sock: socket.socket, count: int) -> None:
    """Read what NATS pushes until so many messages have come. Raises `WireError` where more do."""
    lines, left = NatsLines(sock), 2 * count
    while left > 0:
        left -= lines.counted(received(sock))
    if left < 0:
        raise WireError(f"{-left} more lines than expected")


class NatsWaiter:
    """The server pushes: there is nothing to ask for again."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._received = NatsLines(sock)
        self._lines = 0

    def arrived(self, data: bytes) -> int:
        records, self._lines = divmod(self._lines + self._received.counted(data), 2)
        return records


class RedisBroker(Process):
    """A stream is a key. Records get the ids that the server gives, but for those that are read in bulk."""

    name = REDIS
    promise = ""

    def create(self, log: str) -> None:
        """A stream begins with its first record."""

    def delete(self, log: str) -> None:
        redis_call(self.address, "DEL", log)

    def stored(self, log: str) -> int:
        return int(redis_call(self.address, "XLEN", log)[1:])

    def link(self, log: str, size: int, *, batch: bool = False) -> Link:
        return RedisLink(self.address, redis_command("XADD", log, "*", "v", b"v" * size))

    def waiter(self, log: str) -> Waiter:
        return RedisWaiter(connected(self.address), log)

    def read(self, log: str, size: int, count: int) -> None:
        after, seen = b"0", 0
        with contextlib.closing(connected(self.address)) as sock:
            while seen < count:
                most = min(READ_AT_ONCE, count - seen)
                sock.sendall(redis_command("XREAD", "COUNT", str(most), "STREAMS", log, after))
                after = last_id(read_lines(sock, REDIS_HEAD_LINES + REDIS_RECORD_LINES * most, keep=2 * size + 200))
                seen += most

    def client_append(self, log: str, value: bytes, seconds: float) -> int:
        return clients.redis_append(self, log, value, seconds)

    def client_read(self, log: str, count: int) -> None:
        clients.redis_read(self, log, count)


REDIS_HEAD_LINES = 5
"""Of an answer to XREAD: one stream, its pair, its name, and how many records."""
REDIS_RECORD_LINES = 8


def last_id(tail: bytes) -> bytes:
    """Return the id of the last record in the end of an answer to XREAD. Raises `WireError` where there is none."""
    found = re.findall(rb"\*2\r\n\$\d+\r\n(\d+-\d+)\r\n", tail)
    if not found:
        raise WireError("no record's id in the answer")
    identifier: bytes = found[-1]
    return identifier


class RedisWaiter:
    """One XREAD is always waiting, behind the last id that came."""

    def __init__(self, sock: socket.socket, log: str) -> None:
        self.sock = sock
        self._log, self._data = log, b""
        self._ask(b"0")  # the log is new, so nothing is missed, and nothing there before it

    def _ask(self, after: bytes) -> None:
        self.sock.sendall(redis_command("XREAD", "BLOCK", "10000", "STREAMS", self._log, after))

    def arrived(self, data: bytes) -> int:
        self._data += data
        lines = self._data.split(b"\r\n")
        if len(lines) <= REDIS_HEAD_LINES:
            return 0
        count = int(lines[REDIS_HEAD_LINES - 1][1:])
        if len(lines) <= REDIS_HEAD_LINES + REDIS_RECORD_LINES * count:
            return 0
        self._data = b""
        self._ask(lines[-REDIS_RECORD_LINES + 1])
        return count


# --- Which there are --------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def semel(durability: str) -> Iterator[Broker]:
    promise = {
        OS: "in the node's page cache: a killed node keeps it, a power cut may lose it",
        DISK: "synced to disk: a power cut keeps it",
    }[durability]
    with running_node({"durability": durability}) as node:
        yield KafkaBroker(SEMEL, promise, node)


@contextlib.contextmanager
def kafka(durability: str) -> Iterator[Broker]:
    """Run Apache Kafka as against_kafka.py does. Raises `BrokerMissingError`."""
    try:
        kafka_jars.java()
        kafka_jars.jars()
    except kafka_jars.JavaMissingError as error:
        raise installed.BrokerMissingError(str(error)) from None
    promise = {
        OS: "in the broker's page cache: a killed broker keeps it, a power cut may lose it",
        DISK: "synced to disk: a power cut keeps it",
    }[durability]
    with apache_kafka.running_kafka(fsync=durability == DISK) as process:
        yield KafkaBroker(KAFKA, promise, process)


@contextlib.contextmanager
def nats(durability: str) -> Iterator[Broker]:
    """Run NATS with `sync_interval` as it comes (2 minutes), or `always`. Raises `BrokerMissingError`."""
    program = installed.nats_server()
    (port,) = free_ports(1)
    with data_folder() as folder:
        Path(folder).mkdir()
        sync = 'sync_interval: "always"' if durability == DISK else ""
        config = f'listen: "127.0.0.1:{port}"\njetstream {{ store_dir: "{folder}"\n{sync} }}\n'
        Path(f"{folder}.conf").write_text(config)
        with running(program, ["-c", f"{folder}.conf"], ("127.0.0.1", port), folder) as process:
            broker = NatsBroker(process.process, process.address, folder)
            broker.promise = {
                OS: "in the server's page cache: a killed server keeps it, a power cut may lose 2 minutes of them",
                DISK: "synced to disk: a power cut keeps it",
            }[durability]
            yield broker


@contextlib.contextmanager
def redis(durability: str, *, appendonly: bool = True) -> Iterator[Broker]:
    """Run Redis with its append-only file, synced each second or always, or as it comes. Raises `BrokerMissingError`.

    The file is not written again while it grows: that would be seen in whatever is measured then.
    """
    program = installed.redis_server()
    (port,) = free_ports(1)
    with data_folder() as folder:
        Path(folder).mkdir()
        arguments = ["--bind", "127.0.0.1", "--port", str(port), "--dir", folder]
        if appendonly:
            arguments += ["--appendonly", "yes", "--appendfsync", "always" if durability == DISK else "everysec"]
            arguments += ["--auto-aof-rewrite-percentage", "0", "--save", ""]
        with running(program, arguments, ("127.0.0.1", port), folder) as process:
            broker = RedisBroker(process.process, process.address, folder)
            if not appendonly:
                broker.name = REDIS_MEMORY
                broker.promise = (
                    "in the server's memory: a killed server loses all since its last snapshot, minutes ago"
                )
            elif durability == OS:
                broker.promise = (
                    "in the server's page cache: a killed server keeps it, a power cut may lose 1 to 2 seconds"
                )
            else:
                broker.promise = "synced to disk: a power cut keeps it"
            yield broker


@contextlib.contextmanager
def redis_memory(durability: str) -> Iterator[Broker]:
    """Run Redis as it comes: snapshots alone. Raises `BrokerMissingError`."""
    with redis(durability, appendonly=False) as broker:
        yield broker


STARTERS: Mapping[str, Callable[[str], contextlib.AbstractContextManager[Broker]]] = {
    "semel": semel,
    "nats": nats,
    "redis": redis,
    "redis-memory": redis_memory,
    "kafka": kafka,
}
"""What can be chosen, by the name on the command line."""
DEFAULT = ("semel", "nats", "redis", "redis-memory")
"""Apache Kafka has a bench of its own; it is here for those who want all in one run."""
DURABILITIES: Mapping[str, Sequence[str]] = {"redis-memory": (OS,)}
"""Which of them have not both."""
