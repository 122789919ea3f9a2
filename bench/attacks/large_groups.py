"""A consumer group of very many members."""

from __future__ import annotations

import time
from typing import Final

from harness import NodeProcess

from attacks.wire import Client, answered, ask_once, request
from semel.protocol.kafka.api import ApiKey
from semel.protocol.schema import Reader

GROUP_MEMBERS: Final = 1_000
GROUP_ROUNDS: Final = 4
"""In the first one they join, in the others they learn what they are to read, a second apart."""


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
