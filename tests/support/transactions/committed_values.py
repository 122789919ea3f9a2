"""What readers of committed records find in a topic: our own and librdkafka, to which all transactions are alike."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping

import confluent_kafka

import semel
from semel.protocol.api.topics import LATEST_TIMESTAMP, IsolationLevel

WAIT_S = 90


def decided(bootstrap: str, tps: Collection[semel.TopicPartition]) -> None:
    """Wait until no transaction is open in these partitions, and none is decided without a marker.

    A producer that was killed amid a transaction holds readers of committed records back until that times out, and
    with them what others have committed behind it.
    """
    latest = dict.fromkeys(tps, LATEST_TIMESTAMP)
    deadline = time.monotonic() + WAIT_S
    with semel.Admin(bootstrap) as admin:
        while _offsets(admin, latest, IsolationLevel.READ_COMMITTED) != _offsets(
            admin, latest, IsolationLevel.READ_UNCOMMITTED
        ):
            assert time.monotonic() < deadline, f"a transaction stays open in {sorted(tps)}"
            time.sleep(0.05)


def _offsets(
    admin: semel.Admin, timestamps: Mapping[semel.TopicPartition, int], isolation: IsolationLevel
) -> list[int]:
    found = admin.list_offsets(timestamps, isolation=isolation)
    return [found[tp].offset for tp in timestamps]


def settled(bootstrap: str, key: str) -> None:
    """Wait until nothing that was decided under a key of shared transactions has markers missing."""
    deadline = time.monotonic() + WAIT_S
    with semel.Admin(bootstrap) as admin:
        while any(writer.state not in ("Ongoing", "Empty") for writer in admin.shared_transaction(key).writers):
            assert time.monotonic() < deadline
            time.sleep(0.01)


def read_by_semel(bootstrap: str, topic: str, partitions: int) -> list[str]:
    """Return the values up to where readers of committed records get now, sorted."""
    tps = [semel.TopicPartition(topic, number) for number in range(partitions)]
    values = []
    with semel.Consumer(bootstrap) as reader:
        reader.assign(tps)
        for tp in tps:
            reader.seek(tp, 0)
        ends = reader.end_offsets(tps)
        while any((reader.position(tp) or 0) < ends[tp] for tp in tps):
            values += [(record.value or b"").decode() for record in reader.poll(0.05) or ()]
    return sorted(values)


def read_by_librdkafka(kafka_addresses: str, topic: str, partitions: int) -> list[str]:
    """Return the same as a foreign client finds it."""
    return sorted(values_by_librdkafka(kafka_addresses, topic, partitions))


def values_by_librdkafka(
    kafka_addresses: str, topic: str, partitions: int = 1, isolation: str = "read_committed"
) -> list[str]:
    """Return the values up to where such readers get now, each partition's in its order."""
    found = messages_by_librdkafka(kafka_addresses, topic, partitions, isolation)
    return [(message.value() or b"").decode() for message in found]


def messages_by_librdkafka(
    kafka_addresses: str, topic: str, partitions: int = 1, isolation: str = "read_committed"
) -> list[confluent_kafka.Message]:
    """Return the records themselves."""
    reader = confluent_kafka.Consumer(
        {
            "bootstrap.servers": kafka_addresses,
            "group.id": "unused",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    try:
        reader.assign([confluent_kafka.TopicPartition(topic, number, 0) for number in range(partitions)])
        found: list[confluent_kafka.Message] = []
        at_end: set[int | None] = set()
        deadline = time.monotonic() + WAIT_S
        while len(at_end) < partitions:
            assert time.monotonic() < deadline, f"{len(found)} records, and no end"
            message = reader.poll(0.1)
            if message is None:
                continue
            error = message.error()
            if error is None:
                found.append(message)
            elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                at_end.add(message.partition())
            else:
                raise confluent_kafka.KafkaException(error)
    finally:
        reader.close()
    return found
