"""A small node for tests of the Kafka listener: real partitions over a real folder, a scripted coordinator."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from semel.broker.acls.authorizer import Authorizer
from semel.broker.audit.log import Audit
from semel.broker.config.kafka_limits import KafkaLimits
from semel.broker.config.node_config import NodeConfig
from semel.broker.listeners.kafka.listener import KafkaListener
from semel.broker.log.config import LogConfig
from semel.broker.log.journal import Journal
from semel.broker.log.partition_log import PartitionLog
from semel.broker.logs.commit_tracker import CommitTracker
from semel.broker.logs.offline import OfflineLogs
from semel.broker.logs.partition import Partition
from semel.broker.metadata.changes import PartitionState
from semel.broker.metadata.image import BrokerImage, TopicImage
from semel.broker.quotas.client_quotas import ClientQuotas
from semel.protocol.acls import Acl
from semel.protocol.api.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    TransactionVersion,
)
from semel.protocol.batch_builder import encode_batch
from semel.protocol.compression import Compression
from semel.protocol.errors import ErrorCode, SemelError
from semel.protocol.ids import ProducerIdAndEpoch, TopicId, TopicPartition, new_topic_id
from semel.protocol.kafka import api
from semel.protocol.kafka.fetch import FetchRequest, FetchResponse
from semel.protocol.kafka.produce import ProduceRequest, ProduceResponse
from semel.protocol.kafka.wire import Part
from semel.protocol.quotas import QuotaEntity
from semel.runtime.clock import Clock, ManualClock
from semel.runtime.disk_storage import DiskStorage
from semel.runtime.storage import Storage

NODE_ID = 1


def batch(
    *values: bytes,
    producer: ProducerIdAndEpoch | None = None,
    sequence: int = -1,
    transactional: bool = False,
    compression: Compression = Compression.NONE,
) -> bytes:
    """One record batch with these values."""
    owner = producer or ProducerIdAndEpoch(-1, -1)
    return bytes(
        encode_batch(
            [(ManualClock().now_ms(), None, value, ()) for value in values],
            producer_id=owner.producer_id,
            producer_epoch=owner.producer_epoch,
            base_sequence=sequence,
            transactional=transactional,
            compression=compression,
        )
    )


class FakeMetadata:
    """Topics by name and id."""

    def __init__(self) -> None:
        self.topics: dict[str, TopicImage] = {}
        self.image = self
        self.sequence = 7
        self.acls: frozenset[Acl] = frozenset()
        self.client_quotas: dict[QuotaEntity, dict[str, float]] = {}
        self.brokers = {NODE_ID: BrokerImage(NODE_ID, "", "", "broker.example", 9092, "broker.example", 9094, "")}

    def topic(self, name: str) -> TopicImage | None:
        return self.topics.get(name)

    def topic_name(self, topic_id: TopicId) -> str | None:
        return next((topic.name for topic in self.topics.values() if topic.topic_id == topic_id), None)

    def topic_id(self, name: str) -> TopicId | None:
        topic = self.topics.get(name)
        return None if topic is None else topic.topic_id


Script = Callable[[AddPartitionsToTxnRequest], Mapping[TopicPartition, ErrorCode]]


class FakeTransactions:
    """A coordinator that answers as `added` says, or as a script does; held back while `gate` is closed."""

    def __init__(self) -> None:
        self.added: set[TopicPartition] = set()
        self.requests: list[AddPartitionsToTxnRequest] = []
        self.script: Script | None = None
        self.gate = asyncio.Event()
        self.gate.set()

    async def check_batches(self, request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
        if not request.verify_only:
            assert request.version is TransactionVersion.V2
            if self.script is None:
                self.added.update(request.partitions)
        return await self._answer(request)

    async def _answer(self, request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
        self.requests.append(request)
        await self.gate.wait()
        if self.script is not None:
            return AddPartitionsToTxnResponse(self.script(request))
        return AddPartitionsToTxnResponse(
            {tp: ErrorCode.NONE if tp in self.added else ErrorCode.TRANSACTION_ABORTABLE for tp in request.partitions}
        )


class FakeLogs:
    """What is said of partitions that are not open: here, nothing."""

    def __init__(self) -> None:
        self.offline = OfflineLogs(set())


@dataclass
class FakeNode:
    """What the listener needs of a node. With `journaled`, acks=all waits for the disk."""

    folder: str
    journaled: bool = False
    storage: Storage = field(default_factory=DiskStorage)
    clock: Clock = field(default_factory=ManualClock)

    def __post_init__(self) -> None:
        self.metadata = FakeMetadata()
        self.audit = Audit(1)
        self.authorizer = Authorizer(NodeConfig(), self.metadata, self.audit)
        self.client_quotas = ClientQuotas(NodeConfig(), self.metadata, self.clock)
        self.transactions = FakeTransactions()
        self.config = NodeConfig(node_id=NODE_ID)
        self.logs = FakeLogs()
        self.partitions: dict[TopicPartition, Partition] = {}
        self.journal: Journal | None = None
        if self.journaled:
            self.storage.make_folder(f"{self.folder}/journal")
            self.journal = Journal.open(self.storage, f"{self.folder}/journal", clock=self.clock)
            list(self.journal.replay())
        self.commits = CommitTracker(self.journal)

    def create(self, topic: str, partitions: int = 1, config: LogConfig | None = None) -> list[Partition]:
        topic_id = new_topic_id()
        self.metadata.topics[topic] = TopicImage(
            topic, topic_id, tuple(PartitionState(NODE_ID, 0, (NODE_ID,), (NODE_ID,)) for _ in range(partitions)), {}
        )
        made = []
        for number in range(partitions):
            tp = TopicPartition(topic, number)
            folder = f"{self.folder}/{tp}"
            self.storage.make_folder(folder)
            log = PartitionLog.open(
                self.storage, folder, tp, topic_id, config or LogConfig(), now_ms=self.clock.now_ms()
            )
            self.partitions[tp] = Partition(log, self.commits, self.clock)
            made.append(self.partitions[tp])
        return made

    def partition(self, tp: TopicPartition) -> Partition | None:
        return self.partitions.get(tp)

    def close(self) -> None:
        for partition in self.partitions.values():
            partition.log.close()
        if self.journal is not None:
            self.journal.close()


class KafkaClient:
    """A raw connection: sends frames, reads frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.loop = asyncio.get_running_loop()
        self._correlation_id = 0

    @classmethod
    async def connect(cls, port: int) -> KafkaClient:
        client = cls(*await asyncio.open_connection("127.0.0.1", port, limit=1 << 26))
        _clients.append(client)
        return client

    def send(self, request: ProduceRequest | FetchRequest | api.ApiVersionsRequest, version: int) -> int:
        return self.send_together([request], version)[0]

    def send_together(
        self, requests: Sequence[ProduceRequest | FetchRequest | api.ApiVersionsRequest], version: int
    ) -> list[int]:
        """Send requests in one write, and return their correlation ids. What is small arrives in one piece."""
        first = self._correlation_id + 1
        self._correlation_id += len(requests)
        sent = list(range(first, self._correlation_id + 1))
        frames = (request.frame(version, number, "test") for number, request in zip(sent, requests, strict=True))
        self.writer.writelines([part for frame in frames for part in buffers(frame)])
        return sent

    async def receive(self) -> bytes:
        """Return one frame without its size. Raises `IncompleteReadError` where the connection was closed."""
        size = int.from_bytes(await self.reader.readexactly(4), "big")
        return await self.reader.readexactly(size)

    async def produce(self, request: ProduceRequest, version: int = 9) -> ProduceResponse:
        sent = self.send(request, version)
        return self.produced(await self.receive(), version, sent)

    @staticmethod
    def produced(frame: bytes, version: int, expected_id: int) -> ProduceResponse:
        correlation_id, body = api.parse_response_header(frame, api.ApiKey.PRODUCE, version)
        assert correlation_id == expected_id
        return ProduceResponse.parse(frame, version, body)

    async def fetch(self, request: FetchRequest, version: int = 12) -> FetchResponse:
        sent = self.send(request, version)
        return self.fetched(await self.receive(), version, sent)

    @staticmethod
    def fetched(frame: bytes, version: int, expected_id: int) -> FetchResponse:
        correlation_id, body = api.parse_response_header(frame, api.ApiKey.FETCH, version)
        assert correlation_id == expected_id
        return FetchResponse.parse(frame, version, body)

    async def closed(self) -> bool:
        """Wait until the peer closed the connection. Returns whether nothing came before."""
        try:
            return await self.reader.read() == b""
        except ConnectionResetError:
            return True

    async def close(self) -> None:
        if self in _clients:
            _clients.remove(self)
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


_clients: list[KafkaClient] = []
"""Those that are open. One whose event loop ended before it was closed stays here: it can't be closed any more."""


async def close_clients() -> None:
    """Close what this test has left open."""
    loop = asyncio.get_running_loop()
    for client in [each for each in _clients if each.loop is loop]:
        await client.close()


def buffers(parts: list[Part]) -> list[bytes]:
    return [bytes(part) for part in parts if isinstance(part, (bytes, bytearray, memoryview))]


def run_with_listener(
    test: Callable[[FakeNode, KafkaListener], Any], folder: str, *, limits: KafkaLimits | None = None, **node: Any
) -> None:
    """Run a test coroutine with a fake node and a started listener."""

    async def main() -> None:
        fake = FakeNode(folder, **node)
        listener = KafkaListener(fake, "127.0.0.1", 0, limits)  # type: ignore[arg-type]
        await listener.start()
        try:
            async with asyncio.timeout(60):
                await test(fake, listener)
        finally:
            await close_clients()
            await listener.stop(5.0)
            await listener.produce.close()
            fake.close()

    asyncio.run(main())


async def turns(count: int = 3) -> None:
    """Let the loop go round."""
    for _ in range(count):
        await asyncio.sleep(0)


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop go round until something has happened (bounded by the test's own timeout)."""
    while not condition():  # noqa: ASYNC110  # nothing tells; the sockets are served meanwhile
        await asyncio.sleep(0)


__all__ = ["FakeNode", "KafkaClient", "SemelError", "batch", "run_with_listener", "turns", "until"]
