"""What a plan says: the moves, what is impossible, what was left alone, and what is hot."""

from __future__ import annotations

from dataclasses import dataclass

from semel.protocol.ids import TopicPartition
from semel.sdk.balancing.model import NodeTotals


@dataclass(frozen=True, slots=True)
class Move:
    """The replicas of one partition before and after, the preferred leader first.

    copied_bytes: of all replicas that are new together; 0 where only their order changes
    reason:       why, in a few words: "node 2 is to be emptied", "racks", "leader only", "balance"
    """

    partition: TopicPartition
    before: tuple[int, ...]
    after: tuple[int, ...]
    copied_bytes: int
    reason: str

    @property
    def added(self) -> tuple[int, ...]:
        """The nodes that get a replica."""
        return tuple(node for node in self.after if node not in self.before)

    @property
    def is_copy(self) -> bool:
        """Whether replicas come or go, and not only their order changes."""
        return set(self.before) != set(self.after)


@dataclass(frozen=True, slots=True)
class Impossible:
    """A partition for which what was asked for can't be done, and why, in a sentence."""

    partition: TopicPartition
    reason: str


@dataclass(frozen=True, slots=True)
class LeftAlone:
    """A partition that this plan does not move, or takes off a node that is emptied and nothing else, and why."""

    partition: TopicPartition
    reason: str


@dataclass(frozen=True, slots=True)
class HotPartition:
    """A partition that alone makes its leader's node send far more than the mean, so that no move can spread it.

    node_id:         its preferred leader when all moves are complete
    bytes_out_per_s: what that node sends of it, to consumers and followers
    share:           of all that the node sends, from 0.5 to 1.0
    """

    partition: TopicPartition
    node_id: int
    bytes_out_per_s: float
    share: float


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do, in the order in which it is best done.

    moves:        of each partition at most one. First those that have to be, then those that copy nothing, then those
                  that gain the most for each byte copied
    before:       what each node has now, by node id
    after:        what each has when all moves are complete
    impossible:   replicas that can't leave a node that is to be emptied, or racks that can't be used; these partitions
                  are not moved for that, and the others are
    left_alone:   partitions that are being moved already or have no leader: they stay also on nodes that are emptied.
                  Those with replicas that are not in sync are moved off such nodes, and otherwise copied nowhere
    is_complete:  False where `steps_max` ended the search: plan again when the moves are complete
    hot:          partitions that keep nodes from sending equally much, the hottest first; only where rates are known
    """

    moves: tuple[Move, ...]
    before: tuple[NodeTotals, ...]
    after: tuple[NodeTotals, ...]
    impossible: tuple[Impossible, ...] = ()
    left_alone: tuple[LeftAlone, ...] = ()
    is_complete: bool = True
    hot: tuple[HotPartition, ...] = ()

    @property
    def copied_bytes(self) -> int:
        """All bytes that the moves copy."""
        return sum(move.copied_bytes for move in self.moves)
