"""One request or call with as many items as fit."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from harness import NodeProcess

from attacks.wire import ANSWER_S, answered, ask_once, batch, create_topics, framed, record, request
from semel.protocol.kafka.api import ApiKey, build_request_header


def metadata_names(node: NodeProcess, items: int) -> str:
    names = [{"name": f"auto{number}"} for number in range(items)]
    return answered([ask_once(node, request(ApiKey.METADATA, 4, topics=names, allow_auto_topic_creation=False))])


def auto_created(node: NodeProcess) -> str:
    names = [{"name": f"auto{number}"} for number in range(2_500)]
    return answered([ask_once(node, request(ApiKey.METADATA, 4, topics=names, allow_auto_topic_creation=True))])


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


def metadata_call(items: int) -> Any:
    from semel.protocol.v1 import metadata_pb2

    return metadata_pb2.GetMetadataRequest(topics=[f"auto{number}" for number in range(items)])


def list_offsets_call(items: int) -> Any:
    from semel.protocol.v1 import topics_pb2

    item = topics_pb2.ListOffsetsRequest.Item(topic="plain", partition=0, timestamp_ms=-1)
    return topics_pb2.ListOffsetsRequest(items=[item] * items)


def fetch_offsets_call(items: int) -> Any:
    from semel.protocol.v1 import common_pb2, groups_pb2

    partitions = common_pb2.TopicPartitions(topic="plain", partitions=list(range(items)))
    return groups_pb2.FetchOffsetsRequest(group_id="g", topics=[partitions])


def one_large(key: ApiKey, version: int, **values: Any) -> Callable[[NodeProcess], str]:
    """One request with as many items as fit."""

    def attack(node: NodeProcess) -> str:
        create_topics(node, "plain")
        frame = request(key, version, **values)
        return f"{answered([ask_once(node, frame)])}, {len(frame) / 1e6:.1f} MB"

    return attack


def numbered_partitions(items: int, **more: Any) -> list[dict[str, Any]]:
    return [{"partition_index": number, **more} for number in range(items)]
