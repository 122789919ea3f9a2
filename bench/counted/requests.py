"""What a node is asked while its instructions are counted: one request at a time, on a connection of the same loop."""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import dataplane

from semel.broker.config.node_config import NodeConfig
from semel.broker.handlers.topics.changes import create_topics
from semel.broker.node import Node
from semel.protocol.api.topics import NewTopic
from semel.protocol.batch_builder import encode_batch
from semel.protocol.errors import ErrorCode
from semel.protocol.ids import ZERO_TOPIC_ID
from semel.protocol.kafka.api import ApiKey, build_request_header, join_parts
from semel.protocol.kafka.fetch import FetchPartition, FetchRequest

sys.path.append(str(Path(__file__).resolve().parent.parent.parent / "tests" / "support" / "clients"))

TOPIC: Final = "bench"
FETCH_BYTES: Final = 1 << 20
_TXN_ID: Final = "counted"
_TIMESTAMP_MS: Final = 1_700_000_000_000

Step = Callable[[], Awaitable[None]]


class Connection:
    """A connection to the node, for one request at a time. Its own part of the work is a `send` and a `recv_into`."""

    def __init__(self, port: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setblocking(False)
        self.buffer = bytearray(4 << 20)
        self._view = memoryview(self.buffer)
        self._got = 0
        self._answered: asyncio.Future[int] | None = None
        self._loop.add_reader(self._socket, self._read)

    async def ask(self, frame: bytes) -> memoryview:
        """Send one request, with its size, and return the answer, behind its size."""
        self._got = 0
        self._answered = self._loop.create_future()
        self._socket.sendall(frame)
        return self._view[4 : await self._answered]

    def close(self) -> None:
        self._loop.remove_reader(self._socket)
        self._socket.close()

    def _read(self) -> None:
        read = self._socket.recv_into(self._view[self._got :])
        self._got += read
        size = 4 + int.from_bytes(self._view[:4], "big")
        answered = self._answered
        if answered is not None and not answered.done():
            if not read:
                answered.set_exception(ConnectionError("the node has closed the connection"))
            elif self._got >= size >= 4:
                answered.set_result(size)


@dataclass
class _Transaction:
    producer_id: int
    epoch: int


async def steps(node: Node, connection: Connection) -> dict[str, tuple[Step, int]]:
    """Return what is counted, by name, and how many of it are counted together."""
    for name in (TOPIC, "txn"):
        (made,) = await create_topics(node, [NewTopic(name, 1, 1, {})])
        assert made.error is ErrorCode.NONE, made
    await _fill(connection)
    return {
        "produce": (_produce(connection), 100),
        "fetch-1mb": (_fetch(connection), 40),
        "commit": (await _commit(connection), 30),
        "heartbeat": (await _heartbeat(connection), 60),
    }


_SESSION_MS: Final = 3_600_000
"""The member is silent while the other requests are counted, which takes minutes where valgrind shares its cores."""
_TIMEOUT_MS: Final = 900_000
"""Of a transaction, for the same reason: as long as a node allows."""
_PRODUCE_ERROR_AT: Final = 15
"""Where an answer of Produce 12 says what became of the first partition, of a topic with a name of three letters."""


def node_config(folder: str) -> NodeConfig:
    return NodeConfig(
        data_dir=folder,
        durability="os",
        kafka_listen="127.0.0.1:0",
        grpc_listen="127.0.0.1:0",
        offsets_topic_num_partitions=1,
        transaction_state_log_num_partitions=1,
        disk_min_free_bytes=0,
        group_consumer_session_timeout_ms=_SESSION_MS,
    )


def _batch(**options: Any) -> bytes:
    return encode_batch([(_TIMESTAMP_MS, None, bytes(100), ())], **options)


async def _fill(connection: Connection) -> None:
    batch = encode_batch([(_TIMESTAMP_MS, None, bytes(1024), ())] * 250)
    for _ in range(8):
        await connection.ask(dataplane.produce_frame(TOPIC, 0, batch, 1))


def _produce(connection: Connection) -> Step:
    frame = dataplane.produce_frame(TOPIC, 0, _batch(), 1)

    async def step() -> None:
        await connection.ask(frame)

    return step


def _fetch(connection: Connection) -> Step:
    request = FetchRequest([FetchPartition(TOPIC, ZERO_TOPIC_ID, 0, 0, FETCH_BYTES)], 0, 1, FETCH_BYTES)
    frame = join_parts(request.frame(12, 1, "b"))

    async def step() -> None:
        answer = await connection.ask(frame)
        assert len(answer) > FETCH_BYTES // 2, len(answer)

    return step


def _frame(key: ApiKey, version: int, **values: Any) -> bytes:
    from kafka_calls import request_body

    frame = build_request_header(key, version, 1, "b") + request_body(key, version, **values)
    return len(frame).to_bytes(4, "big") + frame


async def _commit(connection: Connection) -> Step:
    """A transaction of one record with its commit, as Kafka 4 does it: each has an epoch of its own (KIP-890)."""
    begin = _frame(
        ApiKey.INIT_PRODUCER_ID, 4, transactional_id=_TXN_ID, transaction_timeout=_TIMEOUT_MS, producer_id=-1,
        producer_epoch=-1,
    )  # fmt: skip
    while True:
        error, producer_id, epoch = struct.unpack_from(">hqh", await connection.ask(begin), 9)
        if error == ErrorCode.NONE:
            break
        await asyncio.sleep(0.1)  # the coordinator's partition is being made
    state = _Transaction(producer_id, epoch)

    async def step() -> None:
        batch = _batch(producer_id=state.producer_id, producer_epoch=state.epoch, base_sequence=0, transactional=True)
        produce = _produce_in(batch)
        while True:
            (error,) = struct.unpack_from(">h", await connection.ask(produce), _PRODUCE_ERROR_AT)
            if error != ErrorCode.CONCURRENT_TRANSACTIONS:  # the markers of the one before are being written
                break
        assert error == ErrorCode.NONE, ErrorCode(error)
        end = _end_frame(state)
        answer = await connection.ask(end)
        error, state.producer_id, state.epoch = struct.unpack_from(">hqh", answer, 9)
        assert error == ErrorCode.NONE, ErrorCode(error)

    return step


def _produce_in(batch: bytes) -> bytes:
    from semel.protocol.kafka.produce import ProducePartition, ProduceRequest

    return join_parts(ProduceRequest([ProducePartition("txn", 0, batch)], _TXN_ID, -1, 30_000).frame(12, 1, "b"))


def _end_frame(state: _Transaction) -> bytes:
    """Return EndTxn of version 5, made by hand: what it costs the client must not be what is counted."""
    name = _TXN_ID.encode()
    body = bytes([len(name) + 1]) + name + struct.pack(">qh?b", state.producer_id, state.epoch, True, 0)
    frame = build_request_header(ApiKey.END_TXN, 5, 1, "b") + body
    return len(frame).to_bytes(4, "big") + frame


async def _heartbeat(connection: Connection) -> Step:
    """A heartbeat of a group's only member (KIP-848), which has nothing new to say."""
    member = str(uuid.UUID(int=1))
    joining: dict[str, Any] = {
        "group_id": "counted",
        "member_id": member,
        "instance_id": None,
        "rack_id": None,
        "subscribed_topic_regex": None,
        "server_assignor": None,
    }
    join = _frame(
        ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, **joining, member_epoch=0, rebalance_timeout=60_000,
        subscribed_topic_names=[TOPIC], topic_partitions=[],
    )  # fmt: skip
    while True:
        answer = await connection.ask(join)
        (error,) = struct.unpack_from(">h", answer, 9)
        if error == ErrorCode.NONE:
            break
        await asyncio.sleep(0.1)  # the coordinator's partition is being made
    epoch_at = 11 + 1 + 1 + len(member)  # behind no message and the member's id
    (epoch,) = struct.unpack_from(">i", answer, epoch_at)
    beat = _frame(
        ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, **joining, member_epoch=epoch, rebalance_timeout=-1,
        subscribed_topic_names=None, topic_partitions=None,
    )  # fmt: skip

    async def step() -> None:
        (error,) = struct.unpack_from(">h", await connection.ask(beat), 9)
        assert error == ErrorCode.NONE, ErrorCode(error)

    return step
