"""Raw calls to one node, on a connection that stays open; and what its metadata says of leaders."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import dataplane
from kafka_calls import request_body

from semel.protocol.kafka.api import ApiKey, build_request_header, parse_response_header
from semel.protocol.kafka.entities import load_entity
from semel.protocol.kafka.entity_reader import entity_reader
from semel.protocol.kafka.wire import WireReader

ANSWER_BYTES_MAX = 64 << 20
METADATA_VERSION = 12


class Calls:
    """A connection to a node, opened when it is needed. Every call raises `OSError` where no answer comes in time."""

    def __init__(self, address: tuple[str, int], timeout_s: float) -> None:
        self._address = address
        self._timeout_s = timeout_s
        self._socket: socket.socket | None = None

    def call(self, key: ApiKey, version: int, **values: Any) -> Any:
        """Send a request, and return the answer as an entity of kio."""
        frame = build_request_header(key, version, 1, "bench") + request_body(key, version, **values)
        answer = self.exchange(len(frame).to_bytes(4, "big") + frame)
        _, start = parse_response_header(bytes(answer), key, version)
        return entity_reader(load_entity(key, version, "response"))(WireReader(bytes(answer[start:])))

    def exchange(self, frame: bytes) -> memoryview:
        """Send a whole frame, and return the answer without its size."""
        try:
            if self._socket is None:
                self._socket = socket.create_connection(self._address, self._timeout_s)
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket.sendall(frame)
            head = bytearray(4)
            dataplane.read_exactly(self._socket, memoryview(head))
            size = int.from_bytes(head, "big")
            if size > ANSWER_BYTES_MAX:
                raise ValueError(f"an answer of {size} bytes")
            answer = memoryview(bytearray(size))
            dataplane.read_exactly(self._socket, answer)
        except OSError:
            self.close()
            raise
        return answer

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


@dataclass(frozen=True)
class Led:
    """A partition as a node knows it. `leader` is -1 where there is none."""

    leader: int
    in_sync: frozenset[int]


def partitions(calls: Calls, *topics: str) -> Mapping[tuple[str, int], Led]:
    """Ask a node for the partitions of these topics, or of all, in the order of their numbers."""
    asked = [{"name": topic, "topic_id": bytes(16)} for topic in topics] or None
    answer = calls.call(ApiKey.METADATA, METADATA_VERSION, topics=asked, allow_auto_topic_creation=False)
    found = {
        (topic.name, one.partition_index): Led(one.leader_id, frozenset(one.isr_nodes))
        for topic in answer.topics
        for one in topic.partitions
    }
    return dict(sorted(found.items()))


def brokers(calls: Calls) -> set[int]:
    """Ask a node for the nodes that it knows."""
    return {one.node_id for one in calls.call(ApiKey.METADATA, METADATA_VERSION, topics=[]).brokers}
