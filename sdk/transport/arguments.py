"""Topics, partitions and offsets as callers give them, checked at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from semel.protocol.api.commit_decisions import PAYLOAD_BYTES_MAX
from semel.protocol.api.group_offsets import OffsetAndMetadata
from semel.protocol.errors import UsageError
from semel.protocol.ids import TopicPartition
from semel.protocol.int_bounds import INT64_MAX
from semel.sdk.transport.options import check_int, check_text

Offsets = Mapping[TopicPartition, OffsetAndMetadata | int]


def check_payload(payload: object) -> bytes:
    """Return what is to be recorded with a commit. Raises `UsageError`."""
    if not isinstance(payload, bytes) or len(payload) > PAYLOAD_BYTES_MAX:
        raise UsageError(
            f"payload is bytes, {PAYLOAD_BYTES_MAX} at most; put large data into a topic, and name it here"
        )
    return payload


def check_seconds(name: str, seconds: float | None) -> float | None:
    """Return how long to wait, None for no limit of the caller's own. Raises `UsageError`."""
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not seconds >= 0:
        raise UsageError(f"{name} must be seconds, 0 or more, or None; not {seconds!r}")
    return seconds


def check_topics(topics: object) -> list[str]:
    """Return the topics as a list. Raises `UsageError`: a single text would be read as its letters."""
    if isinstance(topics, str):
        raise UsageError(f"topics takes a list of names: [{topics!r}], not the text {topics!r}")
    if not isinstance(topics, Iterable):
        raise UsageError(f"topics takes a list of names, not {type(topics).__name__}")
    names = [check_text("topics", topic) for topic in topics]
    if not names:
        raise UsageError("topics is empty; name at least one, or call unsubscribe() to read nothing")
    return names


def check_partition(partition: object) -> TopicPartition:
    """Return a partition, also one given as a pair. Raises `UsageError`."""
    if not isinstance(partition, tuple) or len(partition) != 2:
        raise UsageError(f'a partition is TopicPartition("orders", 0), not {partition!r}')
    topic, number = partition
    return TopicPartition(check_text("topic", topic), check_int("partition", number, 0))


def check_partitions(partitions: object) -> list[TopicPartition]:
    """Return partitions as a list. Raises `UsageError`."""
    if not isinstance(partitions, Iterable) or isinstance(partitions, (str, TopicPartition)):
        raise UsageError(f'partitions takes a list such as [TopicPartition("orders", 0)], not {partitions!r}')
    return [check_partition(partition) for partition in partitions]


def as_expected_offsets(
    expected: Mapping[TopicPartition, int], offsets: Mapping[TopicPartition, OffsetAndMetadata]
) -> dict[TopicPartition, int]:
    """Return where a group must stand for a commit of `offsets`, -1 for nowhere. Raises `UsageError`."""
    if not isinstance(expected, Mapping):
        raise UsageError(
            f'expected_offsets takes a mapping such as {{TopicPartition("orders", 0): 42}}, not {expected!r}'
        )
    checked = {}
    for partition, place in expected.items():
        tp = check_partition(partition)
        if tp not in offsets:
            raise UsageError(
                f"expected_offsets names {tp}, and offsets does not: the group is moved in the partitions of offsets"
            )
        checked[tp] = check_int(f"expected offset of {tp}", place, -1, INT64_MAX)
    return checked


def as_offsets(offsets: Offsets) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return offsets given as numbers or whole, all whole. Raises `UsageError`."""
    if not isinstance(offsets, Mapping):
        raise UsageError(f'offsets takes a mapping such as {{TopicPartition("orders", 0): 42}}, not {offsets!r}')
    whole = {}
    for tp, place in offsets.items():
        if not isinstance(place, OffsetAndMetadata):
            place = OffsetAndMetadata(check_int(f"offset of {tp}", place, 0, INT64_MAX))
        whole[check_partition(tp)] = place
    return whole
