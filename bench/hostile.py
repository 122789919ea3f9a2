"""What one hostile client costs everybody else: the longest wait of a polite client, the node's CPU, memory and log.

    python -P bench/hostile.py [--only NAME ...] [--list] [--probe-ms 5] [--items 100000]
                                   [--group-partitions 1000] [--turns]

Each attack meets a fresh node. While it runs, a polite client on a connection of its own asks for the API versions
every few milliseconds; the longest it had to wait is what the attack held the node's only loop, and what else the
machine did meanwhile, so the node's CPU seconds stand beside it, and with --turns the longest turns of its event loop
in CPU time. Attacks are bounded in count and time, on loopback.
"""

from __future__ import annotations

import argparse
import contextlib
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parent))

import cramjam
import google_crc32c
from harness import Figure, NodeProcess, percentile, print_table, running_node, write_json

from semel.protocol.kafka import messages
from semel.protocol.kafka.api import ApiKey, ApiVersionsRequest, build_request_header
from semel.protocol.kafka.entities import load_entity
from semel.protocol.schema import Reader

ANSWER_S: Final = 60.0
"""How long an attack waits for an answer. A node that refuses closes the connection, which ends the wait."""
MANY: Final = 100_000
"""Names or numbers in one request, unless --items says otherwise. A node refuses so many; it serves 40,000."""
GROUP_MEMBERS: Final = 1_000
GROUP_ROUNDS: Final = 4
"""In the first one they join, in the others they learn what they are to read, a second apart."""


# --- Requests ---------------------------------------------------------------------------------------------------------


def framed(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


def request(key: ApiKey, version: int, /, **values: Any) -> bytes:
    """Return a framed request of any API, with kio's names of the fields."""
    from kio.serial import entity_writer

    entity = load_entity(key, version, "request")
    sink = messages.Sink()
    names = frozenset(_names(values))
    entity_writer(entity)(sink, messages.build_entity(entity, values, lambda: names))  # type: ignore[arg-type]
    return framed(build_request_header(key, version, 7, "bench") + b"".join(sink.parts))


def _names(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for name, item in value.items():
            yield name
            yield from _names(item)
    elif isinstance(value, list) and value:
        yield from _names(value[0])


def batch(payload: bytes, *, attributes: int = 0, count: int = 1) -> bytes:
    """Return a batch with a right checksum around whatever `payload` is."""
    now = int(time.time() * 1000)
    rest = struct.pack(">hiqqqhii", attributes, count - 1, now, now, -1, -1, -1, count) + payload
    head = struct.pack(">ibI", 0, 2, google_crc32c.value(rest)) + rest
    return struct.pack(">qi", 0, len(head)) + head


def producer_batch(producer_id: int) -> bytes:
    """Return the first batch of an idempotent producer."""
    now = int(time.time() * 1000)
    rest = struct.pack(">hiqqqhii", 0, 0, now, now, producer_id, 0, 0, 1) + record(b"v")
    head = struct.pack(">ibI", 0, 2, google_crc32c.value(rest)) + rest
    return struct.pack(">qi", 0, len(head)) + head


def _varint(number: int) -> bytes:
    number = (number << 1) ^ (number >> 63)
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def record(value: bytes, key: bytes = b"k") -> bytes:
    body = b"\0\0\0" + _varint(len(key)) + key + _varint(len(value)) + value + b"\0"
    return _varint(len(body)) + body


def produce(topic: str, records: bytes, acks: int = 1) -> bytes:
    name = topic.encode()
    body = struct.pack(">hhi", -1, acks, 30_000) + struct.pack(">ih", 1, len(name)) + name
    body += struct.pack(">iii", 1, 0, len(records)) + records
    return framed(build_request_header(ApiKey.PRODUCE, 7, 7, "bench") + body)


# --- Clients ----------------------------------------------------------------------------------------------------------


class Client:
    """A raw connection. `ask` returns the answer, or None where the node closed the connection or said nothing."""

    def __init__(self, node: NodeProcess) -> None:
        self.socket = socket.create_connection(node.address, ANSWER_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, data: bytes) -> None:
        with contextlib.suppress(OSError):
            self.socket.sendall(data)

    def receive(self, timeout_s: float = ANSWER_S) -> bytes | None:
        self.socket.settimeout(timeout_s)
        try:
            size = int.from_bytes(self._exactly(4), "big")
            return self._exactly(size)
        except OSError:
            return None

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            piece = self.socket.recv(size - len(data))
            if not piece:
                raise ConnectionResetError
            data += piece
        return bytes(data)

    def ask(self, data: bytes, timeout_s: float = ANSWER_S) -> bytes | None:
        self.send(data)
        return self.receive(timeout_s)

    def close(self) -> None:
        self.socket.close()


def ask_once(node: NodeProcess, data: bytes, timeout_s: float = ANSWER_S) -> bytes | None:
    client = Client(node)
    try:
        return client.ask(data, timeout_s)
    finally:
        client.close()


def answered(results: list[bytes | None]) -> str:
    got = sum(result is not None for result in results)
    return f"{got} of {len(results)} answered"


class PoliteClient(threading.Thread):
    """Asks for the API versions again and again, and remembers how long each answer took."""

    def __init__(self, node: NodeProcess, pause_s: float) -> None:
        super().__init__(daemon=True)
        self._client = Client(node)
        self._pause_s = pause_s
        self._ends = threading.Event()
        versions = ApiVersionsRequest("semel-bench", "1")
        header = build_request_header(ApiKey.API_VERSIONS, 0, 7, "bench")
        self._request = framed(header + b"".join(bytes(part) for part in versions.build(0)))
        self.waits_s: list[float] = []
        self.lost = 0

    def run(self) -> None:
        while not self._ends.wait(self._pause_s):
            begin = time.perf_counter()
            if self._client.ask(self._request) is None:
                self.lost += 1
                return
            self.waits_s.append(time.perf_counter() - begin)

    def end(self) -> None:
        self._ends.set()
        self.join(ANSWER_S + 5)
        self._client.close()


# --- Attacks ----------------------------------------------------------------------------------------------------------


def create_topics(node: NodeProcess, *names: str, **configs: str) -> None:
    settings = [{"name": name.replace("_", "."), "value": value} for name, value in configs.items()]
    topics = [
        {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": settings}
        for name in names
    ]
    ask_once(node, request(ApiKey.CREATE_TOPICS, 4, topics=topics, timeout=20_000, validate_only=False))


def promised_bytes(node: NodeProcess) -> str:
    """Six connections announce 100 MB each and send nothing; then somebody produces 200 KB."""
    create_topics(node, "plain")
    held = [Client(node) for _ in range(6)]
    for client in held:
        client.send(struct.pack(">i", 100 << 20) + build_request_header(ApiKey.PRODUCE, 7, 7, "bench"))
    time.sleep(1)
    answer = ask_once(node, produce("plain", batch(record(b"v" * 200_000))), 10)
    for client in held:
        client.close()
    return "200 KB of another: answered" if answer is not None else "200 KB of another: NO ANSWER in 10 s"


def bombs(topic: str, **configs: str) -> Callable[[NodeProcess], str]:
    def attack(node: NodeProcess) -> str:
        create_topics(node, topic, **configs)
        packed = bytes(cramjam.zstd.compress(record(b"\0" * (100 << 20)), 9))
        frame = produce(topic, batch(packed, attributes=4))
        clients = [Client(node) for _ in range(20)]
        for client in clients:
            client.send(frame * 3)
        results = [client.receive() for client in clients for _ in range(3)]
        for client in clients:
            client.close()
        return f"{answered(results)}, {len(frame)} B each"

    return attack


def bombs_and_stop(node: NodeProcess) -> str:
    """Bombs whose senders are gone at once; then SIGTERM."""
    create_topics(node, "compact", cleanup_policy="compact")
    packed = bytes(cramjam.zstd.compress(record(b"\0" * (100 << 20)), 9))
    frame = produce("compact", batch(packed, attributes=4))
    clients = [Client(node) for _ in range(20)]
    for client in clients:
        client.send(frame * 5)
        client.close()
    time.sleep(0.2)
    return f"ended in {node.stop():.1f} s"


def patterns(node: NodeProcess) -> str:
    """Heartbeats of KIP-848 whose patterns are costly and all different."""
    create_topics(node, *[f"t{'a' * 200}{number}" for number in range(30)])
    clients = [Client(node) for _ in range(100)]
    for number, client in enumerate(clients):
        client.send(
            request(
                ApiKey.CONSUMER_GROUP_HEARTBEAT,
                1,
                group_id="many",
                member_id=f"m{number:021d}",
                member_epoch=0,
                rebalance_timeout=30_000,
                subscribed_topic_names=[],
                subscribed_topic_regex=f"(?i){'[a-z]{0,30}' * 20}{number}",
                topic_partitions=[],
            )
        )
    results = [client.receive() for client in clients]
    for client in clients:
        client.close()
    return answered(results)


def metadata_names(node: NodeProcess, items: int) -> str:
    names = [{"name": f"auto{number}"} for number in range(items)]
    return answered([ask_once(node, request(ApiKey.METADATA, 4, topics=names, allow_auto_topic_creation=False))])


def auto_created(node: NodeProcess) -> str:
    names = [{"name": f"auto{number}"} for number in range(2_500)]
    return answered([ask_once(node, request(ApiKey.METADATA, 4, topics=names, allow_auto_topic_creation=True))])


def pipelined(node: NodeProcess) -> str:
    """A thousand requests in one go, on one connection."""
    create_topics(node, "plain")
    resource = {"resource_type": 2, "resource_name": "plain", "configuration_keys": None}
    frame = request(ApiKey.DESCRIBE_CONFIGS, 2, resources=[resource], include_synonyms=True)
    client = Client(node)
    threading.Thread(target=client.send, args=(frame * 1_000,), daemon=True).start()
    results = [client.receive() for _ in range(1_000)]
    client.close()
    return answered(results)


def members_metadata(node: NodeProcess) -> str:
    """Groups of one member each, with a quarter of a megabyte of metadata."""
    clients = []
    for number in range(400):
        client = Client(node)
        values = {"group_id": f"g{number}", "session_timeout": 60_000, "rebalance_timeout": 60_000, "member_id": ""}
        protocols = [{"name": "range", "metadata": b"m" * 250_000}]
        client.send(request(ApiKey.JOIN_GROUP, 3, protocol_type="consumer", protocols=protocols, **values))
        clients.append(client)
    results = [client.receive(20) for client in clients[:1] + clients[-1:]]
    for client in clients:
        client.close()
    return f"first and last: {answered(results)}"


def long_ids(node: NodeProcess) -> str:
    """Transactional ids of 32,000 bytes."""
    client = Client(node)
    results = []
    for number in range(1_000):
        name = f"{number:06d}" + "x" * 31_994
        results.append(
            client.ask(request(ApiKey.INIT_PRODUCER_ID, 1, transactional_id=name, transaction_timeout=60_000))
        )
    client.close()
    return answered(results)


def garbage_over_grpc(node: NodeProcess) -> str:
    """Calls whose bytes are no message, and connections that say nothing."""
    import grpc

    host, _, port = node.grpc.rpartition(":")
    quiet = []
    for _ in range(500):
        with contextlib.suppress(OSError):
            quiet.append(socket.create_connection((host, int(port)), 5))
    codes: dict[str, int] = {}
    with grpc.insecure_channel(node.grpc) as channel:
        call = channel.unary_unary("/semel.v1.MetadataService/GetMetadata")
        for _ in range(2_000):
            try:
                call(b"\xff\xff\xff\xff\xff", timeout=10)
                code = "OK"
            except grpc.RpcError as error:
                code = error.code().name
            codes[code] = codes.get(code, 0) + 1
    for each in quiet:
        each.close()
    return ", ".join(f"{count} {code}" for code, count in sorted(codes.items()))


def large_group(node: NodeProcess, partitions: int, *, unequal: bool = False) -> str:
    """A thousand members of one group, which share out the partitions of one topic.

    Or, with unequal subscriptions, those of ten, of which each member wants another three: the costly case for sticky.
    """
    names = [f"wide{number}" for number in range(10)] if unequal else ["wide"]
    topics = [
        {
            "name": name,
            "num_partitions": partitions // len(names),
            "replication_factor": 1,
            "assignments": [],
            "configs": [],
        }
        for name in names
    ]
    ask_once(node, request(ApiKey.CREATE_TOPICS, 4, topics=topics, timeout=60_000, validate_only=False))
    client = Client(node)
    epochs = [0] * GROUP_MEMBERS
    assigned = 0
    for round_number in range(GROUP_ROUNDS):
        for number, epoch in enumerate(epochs):
            wanted = {names[(number * step + step) % len(names)] for step in (1, 3, 7)}
            client.send(
                request(
                    ApiKey.CONSUMER_GROUP_HEARTBEAT,
                    1,
                    group_id="many",
                    member_id=f"m{number:021d}",
                    member_epoch=epoch,
                    rebalance_timeout=30_000,
                    subscribed_topic_names=sorted(wanted),
                    topic_partitions=[],
                )
            )
        results = [client.receive() for _ in epochs]
        told = [_epoch_and_partitions(result) for result in results]
        epochs = [epoch for epoch, _ in told]
        assigned = max(assigned, sum(count for _, count in told))
        if round_number + 1 < GROUP_ROUNDS:
            time.sleep(1)
    client.close()
    return f"{answered(results)}, {assigned} partitions assigned"


def _epoch_and_partitions(answer: bytes | None) -> tuple[int, int]:
    """Read the answer to a heartbeat of KIP-848: the member's epoch, and of how many partitions it was told."""
    if answer is None:
        return 0, 0
    reader = Reader(answer)
    reader.int32()  # the correlation id
    reader.tagged_fields()
    reader.int32()
    if reader.int16():
        return 0, 0
    reader.compact_nullable_string()
    reader.compact_nullable_string()
    epoch = reader.int32()
    reader.int32()
    if reader.int8() < 0:
        return epoch, 0

    def read_topic() -> int:
        reader.uuid()
        count = len(reader.compact_array(reader.int32))
        reader.tagged_fields()
        return count

    return epoch, sum(reader.compact_array(read_topic))


def fetch_partitions(node: NodeProcess, items: int) -> str:
    """One fetch of very many partitions, most of which are not there."""
    create_topics(node, "plain")
    name = b"plain"
    body = struct.pack(">iiiib", -1, 500, 1, 1 << 20, 0) + struct.pack(">ih", 1, len(name)) + name
    body += struct.pack(">i", items) + b"".join(struct.pack(">iqi", number, 0, 1 << 20) for number in range(items))
    frame = framed(build_request_header(ApiKey.FETCH, 4, 7, "bench") + body)
    return f"{answered([ask_once(node, frame)])}, {len(frame) / 1e6:.1f} MB"


def produce_partitions(node: NodeProcess, items: int) -> str:
    """One request that produces a record to each of very many partitions, most of which are not there."""
    create_topics(node, "plain")
    name, records = b"plain", batch(record(b"v"))
    body = struct.pack(">hhi", -1, 1, 30_000) + struct.pack(">ih", 1, len(name)) + name + struct.pack(">i", items)
    body += b"".join(struct.pack(">ii", number, len(records)) + records for number in range(items))
    frame = framed(build_request_header(ApiKey.PRODUCE, 7, 7, "bench") + body)
    return f"{answered([ask_once(node, frame)])}, {len(frame) / 1e6:.1f} MB"


def large_call(method: str, make: Callable[[], Any]) -> Callable[[NodeProcess], str]:
    """One gRPC call with as many items as fit."""

    def attack(node: NodeProcess) -> str:
        import grpc

        create_topics(node, "plain")
        message = make().SerializeToString()
        with grpc.insecure_channel(node.grpc) as channel:
            try:
                channel.unary_unary(f"/semel.v1.{method}")(message, timeout=ANSWER_S)
                code = "OK"
            except grpc.RpcError as error:
                code = error.code().name
        return f"{code}, {len(message) / 1e6:.1f} MB"

    return attack


def _metadata_call(items: int) -> Any:
    from semel.protocol.v1 import metadata_pb2

    return metadata_pb2.GetMetadataRequest(topics=[f"auto{number}" for number in range(items)])


def _list_offsets_call(items: int) -> Any:
    from semel.protocol.v1 import topics_pb2

    item = topics_pb2.ListOffsetsRequest.Item(topic="plain", partition=0, timestamp_ms=-1)
    return topics_pb2.ListOffsetsRequest(items=[item] * items)


def _fetch_offsets_call(items: int) -> Any:
    from semel.protocol.v1 import common_pb2, groups_pb2

    partitions = common_pb2.TopicPartitions(topic="plain", partitions=list(range(items)))
    return groups_pb2.FetchOffsetsRequest(group_id="g", topics=[partitions])


WIDE_PARTITIONS: Final = 10_000
GROUP_OFFSETS: Final = 8_000
LONG_OFFSETS: Final = 9_000
LONG_METADATA: Final = 800


def create_wide_topic(node: NodeProcess, name: str) -> bytes | None:
    settings = {"num_partitions": WIDE_PARTITIONS, "replication_factor": 1, "assignments": [], "configs": []}
    topics = [{"name": name, **settings}]
    return ask_once(node, request(ApiKey.CREATE_TOPICS, 4, topics=topics, timeout=60_000, validate_only=False))


def delete_topic(node: NodeProcess, name: str) -> bytes | None:
    answer = ask_once(node, request(ApiKey.DELETE_TOPICS, 3, topic_names=[name], timeout=60_000))
    time.sleep(2)  # what a deletion leaves to be done is done after its answer
    return answer


def wide_topic(node: NodeProcess) -> str:
    """A topic of many partitions is made and deleted."""
    return answered([create_wide_topic(node, "wide"), delete_topic(node, "wide")])


def offsets_of(group: str, count: int, metadata: str = "") -> bytes:
    """Return the request that commits so many offsets of a wide topic."""
    topics = [{"name": "wide", "partitions": _partitions(count, committed_offset=1, committed_metadata=metadata)}]
    who: dict[str, Any] = {"group_id": group, "generation_id_or_member_epoch": -1, "member_id": ""}
    return request(ApiKey.OFFSET_COMMIT, 5, topics=topics, **who)


def group_offsets(node: NodeProcess) -> str:
    """Groups with many offsets are deleted, and their offsets are deleted; then the topic is that they are of."""
    create_wide_topic(node, "wide")
    numbers = [{"partition_index": number} for number in range(GROUP_OFFSETS)]
    frames = [offsets_of(group, GROUP_OFFSETS) for group in ("one", "two", "three")]
    frames.append(request(ApiKey.DELETE_GROUPS, 1, groups_names=["one"]))
    frames.append(request(ApiKey.OFFSET_DELETE, 0, group_id="two", topics=[{"name": "wide", "partitions": numbers}]))
    return answered([*(ask_once(node, frame) for frame in frames), delete_topic(node, "wide")])


def long_offsets(node: NodeProcess) -> str:
    """Commits of many offsets with much metadata, which are refused, and with less."""
    create_wide_topic(node, "wide")
    frames = [offsets_of(f"g{size}", LONG_OFFSETS, "m" * size) for size in (LONG_METADATA, 30)]
    return f"{answered([ask_once(node, frame) for frame in frames])}, {len(frames[0]) / 1e6:.1f} MB"


def one_large(key: ApiKey, version: int, **values: Any) -> Callable[[NodeProcess], str]:
    """One request with as many items as fit."""

    def attack(node: NodeProcess) -> str:
        create_topics(node, "plain")
        frame = request(key, version, **values)
        return f"{answered([ask_once(node, frame)])}, {len(frame) / 1e6:.1f} MB"

    return attack


def _partitions(items: int, **more: Any) -> list[dict[str, Any]]:
    return [{"partition_index": number, **more} for number in range(items)]


def producer_ids(items: int) -> Callable[[NodeProcess], str]:
    """A batch of each of so many made-up producer ids, all remembered for a day, in segments of a megabyte."""

    def attack(node: NodeProcess) -> str:
        create_topics(node, "plain", segment_bytes=str(1 << 20))
        client = Client(node)
        results: list[bytes | None] = []
        for first in range(0, items, 100):
            client.send(b"".join(produce("plain", producer_batch(10_000 + first + n)) for n in range(100)))
            results += [client.receive() for _ in range(100)]
        client.close()
        # The error follows the correlation id, two counts, the topic's name and the partition.
        refused = sum(result is not None and result[23:25] != b"\0\0" for result in results)
        partition = Path(node.folder) / "plain-0"
        files = sum(file.stat().st_size for file in partition.glob("*.snapshot"))
        return f"{answered(results)}, {refused} of them errors, {files / 1e6:.1f} MB of snapshots"

    return attack


def attacks(items: int, group_partitions: int = 1_000) -> dict[str, Callable[[NodeProcess], str]]:
    """Return all attacks by name; large requests have so many items, and large groups share out so many partitions."""
    return {
        "promised-bytes": promised_bytes,
        "bombs-plain": bombs("plain"),
        "bombs-compact": bombs("compact", cleanup_policy="compact"),
        "bombs-recode": bombs("recode", compression_type="gzip"),
        "bombs-and-stop": bombs_and_stop,
        "patterns": patterns,
        "metadata-names": lambda node: metadata_names(node, items),
        "auto-created": auto_created,
        "pipelined": pipelined,
        "members-metadata": members_metadata,
        "long-ids": long_ids,
        "large-group": lambda node: large_group(node, group_partitions),
        "unequal-group": lambda node: large_group(node, group_partitions, unequal=True),
        "fetch-partitions": lambda node: fetch_partitions(node, items),
        "produce-partitions": lambda node: produce_partitions(node, items),
        "grpc-garbage": garbage_over_grpc,
        "grpc-metadata": large_call("MetadataService/GetMetadata", lambda: _metadata_call(items)),
        "grpc-list-offsets": large_call("TopicService/ListOffsets", lambda: _list_offsets_call(items)),
        "grpc-fetch-offsets": large_call("GroupService/FetchOffsets", lambda: _fetch_offsets_call(items)),
        "offset-fetch": one_large(
            ApiKey.OFFSET_FETCH, 5, group_id="g", topics=[{"name": "plain", "partition_indexes": list(range(items))}]
        ),
        "offset-commit": one_large(
            ApiKey.OFFSET_COMMIT,
            5,
            group_id="g",
            generation_id_or_member_epoch=-1,
            member_id="",
            topics=[{"name": "plain", "partitions": _partitions(items, committed_offset=1, committed_metadata="")}],
        ),
        "list-offsets": one_large(
            ApiKey.LIST_OFFSETS,
            4,
            replica_id=-1,
            isolation_level=0,
            topics=[{"name": "plain", "partitions": _partitions(items, current_leader_epoch=-1, timestamp=-1)}],
        ),
        "wide-topic": wide_topic,
        "group-offsets": group_offsets,
        "long-offsets": long_offsets,
        "describe-groups": one_large(ApiKey.DESCRIBE_GROUPS, 4, groups=[f"g{n}" for n in range(items)]),
        "delete-groups": one_large(ApiKey.DELETE_GROUPS, 1, groups_names=[f"g{n}" for n in range(items)]),
        "describe-configs": one_large(
            ApiKey.DESCRIBE_CONFIGS,
            2,
            resources=[{"resource_type": 2, "resource_name": "plain", "configuration_keys": None}] * 3_000,
            include_synonyms=True,
        ),
        "create-topics": one_large(
            ApiKey.CREATE_TOPICS,
            4,
            topics=[
                {"name": f"c{n}", "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
                for n in range(20_000)
            ],
            timeout=20_000,
            validate_only=True,
        ),
        "delete-records": one_large(
            ApiKey.DELETE_RECORDS,
            1,
            topics=[{"name": "plain", "partitions": _partitions(items, offset=0)}],
            timeout=20_000,
        ),
        "leader-epochs": one_large(
            ApiKey.OFFSET_FOR_LEADER_EPOCH,
            3,
            replica_id=-1,
            topics=[
                {
                    "topic": "plain",
                    "partitions": [
                        {"partition": number, "current_leader_epoch": -1, "leader_epoch": 0} for number in range(items)
                    ],
                }
            ],
        ),
        "describe-producers": one_large(
            ApiKey.DESCRIBE_PRODUCERS, 0, topics=[{"name": "plain", "partition_indexes": list(range(items))}]
        ),
        "add-partitions": one_large(
            ApiKey.ADD_PARTITIONS_TO_TXN,
            3,
            v3_and_below_transactional_id="nobody",
            v3_and_below_producer_id=0,
            v3_and_below_producer_epoch=0,
            v3_and_below_topics=[{"name": "plain", "partitions": list(range(items))}],
        ),
        "producer-ids": producer_ids(items),
        "describe-transactions": one_large(
            ApiKey.DESCRIBE_TRANSACTIONS, 0, transactional_ids=[f"t{n}" for n in range(items)]
        ),
    }


# --- The run ----------------------------------------------------------------------------------------------------------


class PeakMemory(threading.Thread):
    """Looks at the node's memory a few times a second."""

    def __init__(self, node: NodeProcess) -> None:
        super().__init__(daemon=True)
        self._node = node
        self._ends = threading.Event()
        self.peak_mb = 0.0

    def run(self) -> None:
        while not self._ends.wait(0.1):
            with contextlib.suppress(OSError, IndexError):
                self.peak_mb = max(self.peak_mb, self._node.memory_mb())

    def end(self) -> None:
        self._ends.set()
        self.join()


def noted_turns(node: NodeProcess) -> list[str]:
    path = Path(f"{node.folder}.turns")
    return path.read_text().splitlines() if path.exists() else []


def longest(lines: list[str]) -> str:
    """Return the longest of the turns that were noted, and what ran in them."""
    turns: list[tuple[float, str]] = []
    for line in lines:
        ms, _, what = line.partition(" ")
        turns.append((float(ms), what))
    turns.sort(reverse=True)
    return ", ".join(f"{ms:.0f} ms {what}" for ms, what in turns[:3]) or "none of over 10 ms"


def run(name: str, probe_s: float, *, items: int, group_partitions: int, note_turns: bool) -> Figure:
    with running_node(note_turns=note_turns) as node:
        ask_once(node, request(ApiKey.METADATA, 4, topics=[], allow_auto_topic_creation=False))  # kio is imported
        polite, memory = PoliteClient(node, probe_s), PeakMemory(node)
        polite.start()
        memory.start()
        log = Path(f"{node.folder}.log")
        lines_before, cpu_before, memory_before = log.stat().st_size, node.cpu_s(), node.memory_mb()
        turns_before = len(noted_turns(node))
        begin = time.perf_counter()
        said = attacks(items, group_partitions)[name](node)
        seconds = time.perf_counter() - begin
        cpu = f"{node.cpu_s() - cpu_before:.2f} s" if node.process.poll() is None else "-"
        polite.end()
        memory.end()
        waits = polite.waits_s or [0.0]
        more = f"{cpu} in {seconds:.1f} s; memory {memory_before:.0f} to {memory.peak_mb:.0f} MB"
        logged = log.stat().st_size - lines_before
        lost = "; the polite client lost its connection" if polite.lost and name != "bombs-and-stop" else ""
        turns = f"; longest turns: {longest(noted_turns(node)[turns_before:])}" if note_turns else ""
        bound = f"{said}{lost}; {logged:,} B of log{turns}; p99 {percentile(waits, 0.99) * 1000:.1f} ms"
        return Figure("hostile", name, max(waits) * 1000, "ms", goal="50 ms", cost=more, bound=bound)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", nargs="+", metavar="NAME", choices=sorted(attacks(1)), help="some attacks; see --list"
    )
    parser.add_argument("--list", action="store_true", help="list the attacks and exit")
    parser.add_argument("--probe-ms", type=float, default=5.0, help="between two calls of the polite client")
    parser.add_argument("--items", type=int, default=MANY, help="in each large request (default: %(default)s)")
    parser.add_argument(
        "--group-partitions", type=int, default=1_000, help="what a large group shares out (default: %(default)s)"
    )
    parser.add_argument("--turns", action="store_true", help="name the longest turns of the node's event loop")
    arguments = parser.parse_args()
    if arguments.list:
        print("\n".join(attacks(1)))
        return
    figures = []
    for name in arguments.only or attacks(1):
        figure = run(
            name,
            arguments.probe_ms / 1000,
            items=arguments.items,
            group_partitions=arguments.group_partitions,
            note_turns=arguments.turns,
        )
        figures.append(figure)
        print(f"{figure.name}: longest wait {figure.value:.0f} ms; {figure.cost}; {figure.bound}", flush=True)
    print()
    print_table(figures)
    write_json("hostile", figures)


if __name__ == "__main__":
    main()
