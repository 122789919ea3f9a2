"""A topic of very many partitions, and groups with offsets in all of them."""

from __future__ import annotations

import time
from typing import Any, Final

from harness import NodeProcess

from attacks.large_requests import numbered_partitions
from attacks.wire import answered, ask_once, request
from semel.protocol.kafka.api import ApiKey

WIDE_PARTITIONS: Final = 10_000
GROUP_OFFSETS: Final = 8_000
GROUPS: Final = 60
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
    topics = [
        {"name": "wide", "partitions": numbered_partitions(count, committed_offset=1, committed_metadata=metadata)}
    ]
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


def many_groups(node: NodeProcess) -> str:
    """Groups with 2,000 offsets each are read in one request, and deleted in one."""
    create_wide_topic(node, "wide")
    names = [f"g{number}" for number in range(GROUPS)]
    committed = [ask_once(node, offsets_of(name, 2_000)) for name in names]
    everything = [{"group_id": name, "topics": None} for name in names]
    read = ask_once(node, request(ApiKey.OFFSET_FETCH, 8, groups=everything, require_stable=True))
    return answered([*committed, read, ask_once(node, request(ApiKey.DELETE_GROUPS, 1, groups_names=names))])


def long_offsets(node: NodeProcess) -> str:
    """Commits of many offsets with much metadata, which are refused, and with less."""
    create_wide_topic(node, "wide")
    frames = [offsets_of(f"g{size}", LONG_OFFSETS, "m" * size) for size in (LONG_METADATA, 30)]
    return f"{answered([ask_once(node, frame) for frame in frames])}, {len(frames[0]) / 1e6:.1f} MB"
