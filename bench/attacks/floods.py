"""Attacks by number: of connections, bombs, requests, members, ids."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path

import cramjam
import google_crc32c
from harness import NodeProcess

from attacks.wire import Client, answered, ask_once, batch, create_topics, produce, record, request
from semel.protocol.kafka.api import ApiKey, build_request_header


def producer_batch(producer_id: int) -> bytes:
    """Return the first batch of an idempotent producer."""
    now = int(time.time() * 1000)
    rest = struct.pack(">hiqqqhii", 0, 0, now, now, producer_id, 0, 0, 1) + record(b"v")
    head = struct.pack(">ibI", 0, 2, google_crc32c.value(rest)) + rest
    return struct.pack(">qi", 0, len(head)) + head


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
