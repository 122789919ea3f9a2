"""What operators ask about nodes and replicas. The fields are those of cluster.proto."""

from __future__ import annotations

from dataclasses import dataclass

from semel.protocol.ids import TopicPartition


@dataclass(frozen=True, slots=True)
class Listener:
    """Where clients reach a listener of a node.

    protocol: "kafka" or "grpc"
    name: in lower case; "default" for a listener without a name
    port: 0 where it does not listen
    """

    protocol: str
    name: str
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class NodeState:
    """A registered node.

    is_alive: the others have heard of it in time
    is_stopping: it was asked to stop, and has not registered since
    is_cordoned: it gets no new replicas (KIP-1066)
    is_alone: it has no peer.listen, so it can't have replicas beside others
    is_full: its disk has no room for producers, and others lead in its place
    listeners: where clients reach it, the main one of each protocol first; none where an older node is asked
    """

    node_id: int
    rack: str
    is_alive: bool
    is_stopping: bool
    is_cordoned: bool
    is_alone: bool
    is_full: bool = False
    listeners: tuple[Listener, ...] = ()


@dataclass(frozen=True, slots=True)
class ReplicaSize:
    """A replica on a node's disk, with the bytes of its log, and those that consumers were sent of it.

    fetched_bytes: since the node opened the partition; what followers fetch is not in it
    """

    partition: TopicPartition
    size_bytes: int
    fetched_bytes: int


@dataclass(frozen=True, slots=True)
class Reassignment:
    """A partition whose replicas are being moved (KIP-455).

    replicas: all that it has meanwhile, those that it is to have first
    adding, removing: those of them that the move has added and that stay, and those that leave at its end
    """

    partition: TopicPartition
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]

    @property
    def target(self) -> tuple[int, ...]:
        """The nodes that have it when the move is complete, the preferred leader first."""
        return tuple(node for node in self.replicas if node not in self.removing)
