"""Identities that every part of Semel uses: partitions, producers, topic ids."""

from __future__ import annotations

import base64
from typing import NamedTuple, NewType
from uuid import UUID

from semel.protocol.randomness import new_uuid

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_LEADER = -1
NO_LEADER_EPOCH = -1
NO_TIMESTAMP = -1

MAX_PRODUCER_EPOCH = 32766
"""The last epoch a producer id may use (T10): 32767 is kept for fencing, as in Kafka."""

TopicId = NewType("TopicId", UUID)

ZERO_TOPIC_ID = TopicId(UUID(int=0))
"""What the Kafka protocol sends where a topic id is unknown. No topic ever has it."""

OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTIONS_TOPIC = "__transaction_state"
INTERNAL_TOPICS = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC})


class TopicPartition(NamedTuple):
    """One partition of a topic. Partitions are numbered from 0."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class ProducerIdAndEpoch(NamedTuple):
    """A producer id with the epoch that fences its older instances."""

    producer_id: int
    producer_epoch: int


NO_PRODUCER = ProducerIdAndEpoch(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


def new_topic_id() -> TopicId:
    """Return a fresh random topic id that is not one of Kafka's reserved ones and does not begin with a dash.

    Kafka refuses ids whose text begins with a dash because its tools would read them as options.
    """
    while True:
        candidate = new_uuid()
        if not format_topic_id(TopicId(candidate)).startswith("-"):
            return TopicId(candidate)


def format_topic_id(topic_id: TopicId) -> str:
    """Return the 22-character URL-safe Base64 text that Kafka's tools and files use for a topic id."""
    return base64.urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode("ascii")


def parse_topic_id(text: str) -> TopicId:
    """Return the topic id for Kafka's 22-character text. Raises `ValueError` for anything else."""
    if len(text) != 22:
        raise ValueError(f"a topic id has 22 characters of URL-safe Base64, not {len(text)}: {text!r}")
    return TopicId(UUID(bytes=base64.urlsafe_b64decode(text + "==")))
