"""How far new replicas are that moves wait for: how many bytes each has, and how many there are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from semel.protocol.api.cluster import Reassignment
from semel.protocol.ids import TopicPartition

if TYPE_CHECKING:
    from semel.sdk.admin.cluster_calls import ReplicasOfNodes


@dataclass(frozen=True, slots=True)
class Copy:
    """A new replica that is not in sync yet.

    has_bytes:  what it has; None where its node does not answer
    size_bytes: of the largest replica of the partition: what it has to copy, about, because records come and go
    """

    partition: TopicPartition
    node_id: int
    has_bytes: int | None
    size_bytes: int

    @property
    def missing_bytes(self) -> int:
        return max(0, self.size_bytes - (self.has_bytes or 0))


def copies_of(reassignments: Iterable[Reassignment], replicas: ReplicasOfNodes) -> list[Copy]:
    """Return the new replicas of all moves, as far as the nodes' sizes tell."""
    found = []
    for one in reassignments:
        sizes = {node_id: here.sizes.get(one.partition, 0) for node_id, here in replicas.nodes.items()}
        size_bytes = max(sizes.values(), default=0)
        found += [Copy(one.partition, node_id, sizes.get(node_id), size_bytes) for node_id in one.adding]
    return found


class CopyWatch:
    """Finds out whether copies come closer to their end. Times in seconds, of any clock that never goes back."""

    def __init__(self) -> None:
        self._least: dict[tuple[TopicPartition, int], tuple[int, float]] = {}
        """For each copy the fewest bytes that it has lacked, and since when it is no fewer."""

    def stalled_s(self, copies: Iterable[Copy], now: float) -> float:
        """Return for how long no copy has come closer; 0 where there is none that could.

        What has all bytes waits for something else, and what is on a node that does not answer, for the node.
        """
        least: dict[tuple[TopicPartition, int], tuple[int, float]] = {}
        for copy in copies:
            if copy.has_bytes is None or not copy.missing_bytes:
                continue
            key = copy.partition, copy.node_id
            missing_bytes, since = self._least.get(key, (copy.missing_bytes + 1, now))
            least[key] = (copy.missing_bytes, now) if copy.missing_bytes < missing_bytes else (missing_bytes, since)
        self._least = least
        return min((now - since for _, since in least.values()), default=0.0)
