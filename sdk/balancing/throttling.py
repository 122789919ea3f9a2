"""A throttle of moves is set on the nodes and topics that take part, and taken away again (KIP-73).

It is settings alone, the ones that Kafka's kafka-reassign-partitions.sh sets: a rate on each node, and on each topic
the replicas that send and those that fetch. They stay until they are taken away: what `found` finds, `remove` removes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from semel.protocol.errors import ErrorCode, SemelError
from semel.sdk.balancing.results import Move

if TYPE_CHECKING:
    from semel.sdk.admin.api import Admin

LEADER_REPLICAS: Final = "leader.replication.throttled.replicas"
FOLLOWER_REPLICAS: Final = "follower.replication.throttled.replicas"
RATES: Final = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
REPLICAS: Final = (LEADER_REPLICAS, FOLLOWER_REPLICAS)
_ALL: Final = "*"
_LENGTH_MAX: Final = 32_767
"""So long a setting's value may be. Where more replicas are moved, all of the topic are throttled while not in sync."""
_OF_NODES, _OF_TOPICS = "DYNAMIC_BROKER", "DYNAMIC_TOPIC"


@dataclass(frozen=True, slots=True)
class Throttles:
    """Where throttles are set: nodes by number, and topics by name."""

    nodes: tuple[int, ...] = ()
    topics: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.nodes or self.topics)


@dataclass(slots=True)
class _Replicas:
    """Those of a topic, as (partition, node)."""

    senders: list[tuple[int, int]] = field(default_factory=list)
    fetchers: list[tuple[int, int]] = field(default_factory=list)


class MoveThrottle:
    """Throttles moves from when they are named by `cover` until `end`.

    bytes_per_s: for each node, of what it sends and of what it fetches
    """

    def __init__(self, admin: Admin, bytes_per_s: int) -> None:
        self._admin = admin
        self._bytes_per_s = bytes_per_s
        self._nodes: dict[int, Mapping[str, str]] = {}
        """The rates that nodes had before, set by somebody."""
        self._topics: dict[str, Mapping[str, str]] = {}
        """The replicas that were throttled before."""

    @property
    def is_set(self) -> bool:
        """Whether anything is throttled: moves that copy nothing need no throttle."""
        return bool(self._nodes or self._topics)

    def cover(self, moves: Sequence[Move]) -> None:
        """Throttle these moves as well. Raises `SemelError`; what was set by then is for `end`, or `remove`."""
        under_way = {one.partition: one.adding for one in self._admin.reassignments()}
        by_topic: dict[str, _Replicas] = {}
        concerned: set[int] = set()
        for move in moves:
            # A move that was begun already has its new replicas among those before.
            added = {*move.added, *under_way.get(move.partition, ())}.intersection(move.after)
            if added:
                of_topic = by_topic.setdefault(move.partition.topic, _Replicas())
                of_topic.senders += [(move.partition.partition, node) for node in move.before if node not in added]
                of_topic.fetchers += [(move.partition.partition, node) for node in sorted(added)]
                concerned.update(move.before, added)
        for node in sorted(concerned.intersection(_answering(self._admin)) - self._nodes.keys()):
            self._nodes[node] = _rates_of(self._admin, node)
            self._admin.alter_node_configs(node, changes=dict.fromkeys(RATES, str(self._bytes_per_s)))
        for topic, of_topic in by_topic.items():
            there = {one.name: one.value for one in self._admin.topic_configs(topic, REPLICAS)}
            self._topics.setdefault(topic, there)
            changes = {
                LEADER_REPLICAS: _with(there.get(LEADER_REPLICAS, ""), of_topic.senders),
                FOLLOWER_REPLICAS: _with(there.get(FOLLOWER_REPLICAS, ""), of_topic.fetchers),
            }
            self._admin.alter_topic_configs(topic, changes=changes)

    def end(self) -> Throttles | None:
        """Take the throttle away. Returns what could not be; None: everything stays, for replicas are being moved.

        What somebody has set for good is put back: `*` of a topic, and the nodes' rates with it. Lists are those of a
        command that was interrupted, and go.
        """
        if self._admin.reassignments():
            return None
        left = remove(self._admin, Throttles(tuple(sorted(self._nodes)), tuple(sorted(self._topics))))
        lasting = {
            topic: {name: value for name, value in there.items() if value.strip() == _ALL}
            for topic, there in self._topics.items()
        }
        for topic, values in lasting.items():
            if values:
                self._admin.alter_topic_configs(topic, changes=values)
        if any(lasting.values()):
            for node, rates in self._nodes.items():
                if rates and node not in left.nodes:
                    self._admin.alter_node_configs(node, changes=rates)
        return left


def throttled_nodes(admin: Admin) -> dict[int, Mapping[str, str]]:
    """Return the nodes that answer and have a rate of their own, each with its settings. Raises `SemelError`."""
    found: dict[int, Mapping[str, str]] = {}
    for node in _answering(admin):
        rates = _rates_of(admin, node)
        if rates:
            found[node] = rates
    return found


def _rates_of(admin: Admin, node: int) -> Mapping[str, str]:
    return {one.name: one.value for one in admin.node_configs(node, RATES) if one.source == _OF_NODES}


def silent_nodes(admin: Admin) -> list[int]:
    """Return the nodes whose rates nobody can say now. Raises `SemelError`."""
    there = set(_answering(admin))
    return [node.node_id for node in admin.nodes() if node.node_id not in there]


def found(admin: Admin) -> Throttles:
    """Return where there are throttles in a cluster, no matter who has set them. Raises `SemelError`."""
    topics = [
        topic.name
        for topic in admin.topics(include_internal=True)
        if any(one.source == _OF_TOPICS for one in admin.topic_configs(topic.name, REPLICAS))
    ]
    return Throttles(tuple(throttled_nodes(admin)), tuple(topics))


def remove(admin: Admin, throttles: Throttles) -> Throttles:
    """Take throttles away, and return what is left: of nodes that are away. A rate alone throttles nothing.

    Raises `SemelError` where the cluster can't be asked.
    """
    for topic in throttles.topics:
        try:
            admin.alter_topic_configs(topic, remove=REPLICAS)
        except SemelError as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:  # it was deleted meanwhile
                raise
    there = _answering(admin)
    for node in throttles.nodes:
        if node in there:
            admin.alter_node_configs(node, remove=RATES)
    return Throttles(nodes=tuple(node for node in throttles.nodes if node not in there))


def _answering(admin: Admin) -> Collection[int]:
    """Return the nodes that can be asked: each answers for its own settings. One may just have died, unnoticed yet."""
    unreachable = admin.replicas().unreachable
    return [node.node_id for node in admin.nodes() if node.is_alive and node.node_id not in unreachable]


def _with(there: str, replicas: Iterable[tuple[int, int]]) -> str:
    """Return a list of replicas with more of them."""
    if there.strip() == _ALL:
        return _ALL
    words = dict.fromkeys(word for word in there.split(",") if word)
    text = ",".join(words | dict.fromkeys(f"{partition}:{node}" for partition, node in replicas))
    return text if len(text) <= _LENGTH_MAX else _ALL
