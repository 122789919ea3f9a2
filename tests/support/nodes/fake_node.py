"""A node for tests of clients: the model broker behind a real Kafka listener and a real gRPC server, both scripted.

Entries of a script say what becomes of the next request: an `Action`, or an `ErrorCode` to answer with. Without an
entry left, requests are answered.
"""

from __future__ import annotations

import asyncio
import struct
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from concurrent import futures
from enum import Enum
from typing import Any, Self, TypeAlias

import grpc
from model_broker import ModelBroker

from semel.protocol.api.elsewhere import GO_TO_METADATA, ElsewhereError, elsewhere
from semel.protocol.errors import ErrorCode, SemelError, error_for
from semel.protocol.ids import ProducerIdAndEpoch, TopicPartition
from semel.protocol.kafka.api import (
    ApiKey,
    ApiVersionRange,
    ApiVersionsRequest,
    ApiVersionsResponse,
    frame_response,
    parse_request_header,
)
from semel.protocol.kafka.produce import ProducePartitionResponse, ProduceRequest, ProduceResponse
from semel.protocol.v1 import common_pb2, metadata_pb2, metadata_pb2_grpc, transactions_pb2, transactions_pb2_grpc

NODE_ID = 1
_REQUEST_BYTES_MAX = 100 << 20


class Action(Enum):
    """What becomes of a request in place of an answer."""

    ANSWER = "it is answered"
    LOSE_ANSWER = "it takes effect, and the connection breaks before the answer"
    LOSE_REQUEST = "it never arrives: the connection breaks"
    END_CALL = "the node ends with the call in its hands, which gRPC may report as CANCELLED"
    HOLD = "it waits until `release`"


Step: TypeAlias = Action | ErrorCode


class FakeNode:
    """Listens on the loopback from `start` to `stop`, and on the same ports after a restart. A context manager."""

    def __init__(self, topics: Mapping[str, int], *, produce_versions: tuple[int, int] = (3, 12)) -> None:
        self.broker = ModelBroker(topics)
        self.produce_script: deque[Step] = deque()
        self.call_script: dict[str, deque[Step]] = defaultdict(deque)
        self.calls: list[tuple[str, Any]] = []
        self.call_metadata: list[tuple[str, dict[str, Any]]] = []
        self.produced: list[ProduceRequest] = []
        self.on_produce: Callable[[], object] = lambda: None
        self.lock = threading.RLock()
        self._versions = produce_versions
        self.kafka_port = 0
        self.advertised_kafka_port: int | None = None
        """What the metadata says in place of `kafka_port`."""
        self.others: list[FakeNode] = []
        """Nodes that the metadata names beside this one."""
        self.node_id = NODE_ID
        self.leads: Callable[[TopicPartition], int] = lambda _tp: self.node_id
        """Who leads a partition, by the metadata."""
        self.sends_to: FakeNode | None = None
        """Whom callers are sent to that ask for a coordinator."""
        self._grpc_port = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._server: grpc.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._held = threading.Event()

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self._grpc_port}"

    def names(self) -> list[str]:
        """The gRPC calls so far, without GetMetadata."""
        return [name for name, _ in self.calls if name != "GetMetadata"]

    def start(self) -> None:
        started: futures.Future[int] = futures.Future()
        self._held.clear()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._listen(started)), daemon=True)
        self._thread.start()
        self.kafka_port = started.result(10)
        self._server = grpc.server(futures.ThreadPoolExecutor(8), options=[("grpc.so_reuseport", 0)])
        metadata_pb2_grpc.add_MetadataServiceServicer_to_server(_Metadata(self), self._server)
        transactions_pb2_grpc.add_TransactionServiceServicer_to_server(_Transactions(self), self._server)
        self._grpc_port = self._server.add_insecure_port(f"127.0.0.1:{self._grpc_port}")
        self._server.start()

    def stop(self) -> None:
        """Vanish, as a killed process does."""
        self._held.set()
        if self._server is not None:
            self._server.stop(None).wait(10)
            self._server = None
        if self._loop is not None and self._thread is not None:
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join(10)
            self._loop = None

    def release(self) -> None:
        """Let what is held continue."""
        self._held.set()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # --- The Kafka listener -------------------------------------------------------------------------------------------

    async def _listen(self, started: futures.Future[int]) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        server = await asyncio.start_server(self._serve, "127.0.0.1", self.kafka_port, limit=1 << 26)
        started.set_result(server.sockets[0].getsockname()[1])
        await self._stopping.wait()
        server.close()
        for writer in self._writers:
            writer.transport.abort()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        try:
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                if size > _REQUEST_BYTES_MAX:  # as any broker: gRPC's first bytes say more than a gigabyte
                    break
                frame = await reader.readexactly(size)
                answer = await self._handle(frame)
                if answer is None:
                    break
                writer.writelines(answer)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._writers.discard(writer)
            self._tasks.discard(task)
            writer.transport.abort()

    async def _handle(self, frame: bytes) -> list[Any] | None:
        header = parse_request_header(frame)
        if header.api_key == ApiKey.API_VERSIONS:
            ApiVersionsRequest.parse(frame, header.api_version, header.body)
            response = ApiVersionsResponse([ApiVersionRange(0, *self._versions), ApiVersionRange(18, 0, 4)])
            return response.frame(header.api_version, header.correlation_id)
        request = ProduceRequest.parse(frame, header.api_version, header.body)
        with self.lock:
            step = self.produce_script.popleft() if self.produce_script else Action.ANSWER
            self.produced.append(request)
        if step is Action.LOSE_REQUEST:
            return None
        if step is Action.HOLD:
            await asyncio.to_thread(self._held.wait, 30)
        answers = []
        self.on_produce()
        for item in request.partitions:
            tp = TopicPartition(item.topic, item.partition)
            if isinstance(step, ErrorCode):
                answers.append(ProducePartitionResponse(tp.topic, tp.partition, step))
                continue
            with self.lock:
                error, offset = self.broker.produce(tp, bytes(item.records or b""), request.transactional_id)
            answer = ProducePartitionResponse(tp.topic, tp.partition, error)
            answer.base_offset = offset
            answers.append(answer)
        if step is Action.LOSE_ANSWER:
            return None
        if request.acks == 0:
            return []
        body = ProduceResponse(answers).build(header.api_version)
        return frame_response(header.api_key, header.api_version, header.correlation_id, body)

    # --- The gRPC server ----------------------------------------------------------------------------------------------

    def call(self, name: str, request: Any, context: grpc.ServicerContext, work: Callable[[], Any]) -> Any:
        """Work a call off as the script says."""
        with self.lock:
            self.calls.append((name, request))
            self.call_metadata.append((name, dict(context.invocation_metadata())))
            script = self.call_script[name]
            step = script.popleft() if script else Action.ANSWER
        try:
            if isinstance(step, ErrorCode):
                raise error_for(step, f"scripted {step.name}")
            if self.sends_to is not None and name != "GetMetadata":
                raise elsewhere(ErrorCode.NOT_COORDINATOR, "another node has it", self.sends_to.bootstrap)
            if step is Action.HOLD:
                self._held.wait(30)
            response = None
            if step is not Action.LOSE_REQUEST:
                with self.lock:
                    response = work()
        except SemelError as error:
            trailers = [("semel-error", error.code.name)]
            if isinstance(error, ElsewhereError):
                trailers.append((GO_TO_METADATA, error.go_to))
            context.set_trailing_metadata(tuple(trailers))
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, error.message)
        if step is Action.END_CALL:
            context.abort(grpc.StatusCode.CANCELLED, "CANCELLED")
        if step in (Action.LOSE_ANSWER, Action.LOSE_REQUEST):
            context.abort(grpc.StatusCode.UNAVAILABLE, "scripted: connection lost")
        return response

    def metadata(self, request: metadata_pb2.GetMetadataRequest) -> metadata_pb2.GetMetadataResponse:
        names = list(self.broker.topics) if request.all_topics else request.topics
        topics = []
        for name in names:
            count = self.broker.topics.get(name)
            if count is None:
                unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                topics.append(metadata_pb2.Topic(name=name, error=common_pb2.Error(code=unknown, name=unknown.name)))
                continue
            partitions = [
                metadata_pb2.Partition(partition=number, leader_id=self.leads(TopicPartition(name, number)))
                for number in range(count)
            ]
            topics.append(metadata_pb2.Topic(name=name, topic_id=b"\x01" * 16, partitions=partitions))
        nodes = [
            metadata_pb2.Node(
                node_id=node.node_id,
                kafka_host="127.0.0.1",
                kafka_port=node.advertised_kafka_port or node.kafka_port,
                grpc_host="127.0.0.1",
                grpc_port=node._grpc_port,
            )
            for node in (self, *self.others)
        ]
        return metadata_pb2.GetMetadataResponse(
            cluster_id="fake", controller_id=self.node_id, nodes=nodes, topics=topics
        )


class _Metadata(metadata_pb2_grpc.MetadataServiceServicer):
    def __init__(self, node: FakeNode) -> None:
        self._node = node

    def GetMetadata(self, request: Any, context: Any) -> Any:
        return self._node.call("GetMetadata", request, context, lambda: self._node.metadata(request))


class _Transactions(transactions_pb2_grpc.TransactionServiceServicer):
    def __init__(self, node: FakeNode) -> None:
        self._node = node

    def InitProducerId(self, request: Any, context: Any) -> Any:
        def work() -> Any:
            held = _producer(request) if request.HasField("producer") else None
            producer = self._node.broker.init_producer_id(request.transactional_id, held)
            return transactions_pb2.InitProducerIdResponse(producer=_message(producer))

        return self._node.call("InitProducerId", request, context, work)

    def CommitOffsets(self, request: Any, context: Any) -> Any:
        def work() -> Any:
            items = {
                (request.group_id, TopicPartition(item.topic, item.partition)): item.offset for item in request.items
            }
            self._node.broker.commit_offsets(request.transactional_id, _producer(request), items)
            results = [
                transactions_pb2.TxnCommitOffsetsResponse.Item(topic=i.topic, partition=i.partition)
                for i in request.items
            ]
            return transactions_pb2.TxnCommitOffsetsResponse(items=results)

        return self._node.call("CommitOffsets", request, context, work)

    def EndTransaction(self, request: Any, context: Any) -> Any:
        def work() -> Any:
            producer = self._node.broker.end(request.transactional_id, _producer(request), request.commit)
            return transactions_pb2.EndTransactionResponse(producer=_message(producer))

        return self._node.call("EndTransaction", request, context, work)


def _producer(request: Any) -> ProducerIdAndEpoch:
    return ProducerIdAndEpoch(request.producer.producer_id, request.producer.producer_epoch)


def _message(producer: ProducerIdAndEpoch) -> common_pb2.Producer:
    return common_pb2.Producer(producer_id=producer.producer_id, producer_epoch=producer.producer_epoch)
