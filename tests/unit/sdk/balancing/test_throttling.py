"""A throttle of moves is set where they need it, and all of it is removed: here on a cluster that is made up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import pytest

from semel.protocol.api.cluster import NodeState, Reassignment
from semel.protocol.api.topics import TopicDescription
from semel.protocol.errors import ErrorCode, FatalError
from semel.protocol.ids import TopicPartition, new_topic_id
from semel.sdk.admin.api import Admin
from semel.sdk.admin.cluster_calls import ReplicasOfNodes
from semel.sdk.admin.core import ConfigEntry
from semel.sdk.balancing.results import Move
from semel.sdk.balancing.throttling import (
    FOLLOWER_REPLICAS,
    LEADER_REPLICAS,
    RATES,
    MoveThrottle,
    Throttles,
    found,
    remove,
    silent_nodes,
    throttled_nodes,
)


class MadeUp:
    """Nodes 1 to 4, and topics. `of_all` is what was set for all nodes together."""

    def __init__(self, *dead: int) -> None:
        self.dead = set(dead)
        self.silent: set[int] = set()
        """Those that have just died: the cluster takes them for alive."""
        self.of_nodes: dict[int, dict[str, str]] = {node: {} for node in (1, 2, 3, 4)}
        self.of_topics: dict[str, dict[str, str]] = {"a": {}, "b": {}, "__consumer_offsets": {}}
        self.of_all: dict[str, str] = {}
        self.moving = False
        self.calls = 0

    def nodes(self) -> list[NodeState]:
        return [NodeState(node, "", node not in self.dead, False, False, False) for node in self.of_nodes]

    def replicas(self) -> ReplicasOfNodes:
        return ReplicasOfNodes({}, dict.fromkeys(self.silent, "no answer"))

    def topics(self, *, include_internal: bool) -> list[TopicDescription]:
        assert include_internal, "the coordinators' topics are moved as well"
        return [TopicDescription(name, new_topic_id(), False, ()) for name in self.of_topics]

    def reassignments(self) -> list[Reassignment]:
        return [Reassignment(TopicPartition("a", 0), (1, 3, 2), (3,), (2,))] if self.moving else []

    def node_configs(self, node: int, names: Sequence[str]) -> list[ConfigEntry]:
        assert node not in self.dead | self.silent, "it does not answer"
        return [
            entry(name, self.of_nodes[node][name], "DYNAMIC_BROKER")
            if name in self.of_nodes[node]
            else entry(name, self.of_all.get(name, "max"), "DYNAMIC_DEFAULT_BROKER" if self.of_all else "DEFAULT")
            for name in names
        ]

    def topic_configs(self, topic: str, names: Sequence[str]) -> list[ConfigEntry]:
        has = self._topic(topic)
        return [entry(name, has.get(name, ""), "DYNAMIC_TOPIC" if name in has else "DEFAULT") for name in names]

    def alter_node_configs(
        self, node: int, *, changes: Mapping[str, str] | None = None, remove: Iterable[str] = ()
    ) -> None:
        assert node not in self.dead | self.silent, "it does not answer"
        self.calls += 1
        _alter(self.of_nodes[node], changes, remove)

    def alter_topic_configs(
        self, topic: str, *, changes: Mapping[str, str] | None = None, remove: Iterable[str] = ()
    ) -> None:
        _alter(self._topic(topic), changes, remove)

    def _topic(self, topic: str) -> dict[str, str]:
        if topic not in self.of_topics:
            raise FatalError("there is no topic", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return self.of_topics[topic]

    @property
    def is_clear(self) -> bool:
        return not any((*self.of_nodes.values(), *self.of_topics.values()))


def entry(name: str, value: str, source: str) -> ConfigEntry:
    return ConfigEntry(name, value, source, False, False, "", "list")


def _alter(has: dict[str, str], changes: Mapping[str, str] | None, remove: Iterable[str]) -> None:
    has.update(changes or {})
    for name in remove:
        has.pop(name, None)


def move(topic: str, number: int, before: tuple[int, ...], after: tuple[int, ...]) -> Move:
    return Move(TopicPartition(topic, number), before, after, 1, "asked for")


def throttle(made: MadeUp, rate: int = 7) -> MoveThrottle:
    return MoveThrottle(cast(Admin, made), rate)


def test_the_replicas_before_send_those_that_are_added_fetch_and_all_of_their_nodes_have_the_rate() -> None:
    made = MadeUp(2)
    one = throttle(made)
    one.cover([move("a", 0, (1, 2), (3, 1)), move("a", 5, (1, 2), (2, 1)), move("b", 1, (1,), (1, 3))])
    assert made.of_topics["a"] == {LEADER_REPLICAS: "0:1,0:2", FOLLOWER_REPLICAS: "0:3"}, "5 copies nothing"
    assert made.of_topics["b"] == {LEADER_REPLICAS: "1:1", FOLLOWER_REPLICAS: "1:3"}
    both = dict.fromkeys(RATES, "7")
    assert made.of_nodes == {1: both, 2: {}, 3: both, 4: {}}, "2 is away, and 4 has no part"
    calls = made.calls
    one.cover([move("a", 1, (1, 2), (1, 4)), move("a", 0, (1, 2), (3, 1))])
    assert made.of_topics["a"] == {LEADER_REPLICAS: "0:1,0:2,1:1,1:2", FOLLOWER_REPLICAS: "0:3,1:4"}
    assert made.calls == calls + 1, "node 4 alone is new"
    assert one.end() == Throttles()
    assert made.is_clear


def test_a_move_that_was_begun_already_gets_another_rate() -> None:
    """The nodes that it adds are among the replicas that the cluster tells of."""
    made = MadeUp()
    made.moving = True
    throttle(made, 5).cover([move("a", 0, (1, 2), (1, 3))])
    throttle(made, 9).cover([move("a", 0, (1, 3, 2), (1, 3))])
    assert made.of_topics["a"] == {LEADER_REPLICAS: "0:1,0:2", FOLLOWER_REPLICAS: "0:3"}
    assert made.of_nodes[3] == dict.fromkeys(RATES, "9")


def test_where_more_is_moved_than_a_setting_can_name_all_of_the_topic_is_throttled() -> None:
    made = MadeUp()
    moves = [move("a", number, (1, 2), (2, 3)) for number in range(4_000)]
    one = throttle(made)
    one.cover(moves)
    assert made.of_topics["a"][LEADER_REPLICAS] == "*"
    assert made.of_topics["a"][FOLLOWER_REPLICAS].count(":") == 4_000
    one.cover(moves)
    assert made.of_topics["a"][LEADER_REPLICAS] == "*"


def test_while_anything_is_moved_all_of_it_stays() -> None:
    made = MadeUp()
    one = throttle(made)
    one.cover([move("a", 0, (1,), (2,))])
    made.moving = True
    assert one.end() is None
    assert set(made.of_nodes[1]) == set(RATES)
    made.moving = False
    assert one.end() == Throttles()
    assert made.is_clear


def test_a_node_that_died_meanwhile_is_left_and_a_deleted_topic_is_none_that_is() -> None:
    made = MadeUp()
    one = throttle(made)
    one.cover([move("a", 0, (1,), (2,))])
    del made.of_topics["a"]
    made.silent.add(2)
    assert one.end() == Throttles(nodes=(2,))
    made.silent.clear()
    assert found(cast(Admin, made)) == Throttles(nodes=(2,))


def test_leftovers_are_found_whoever_set_them_and_removed() -> None:
    made = MadeUp(4)
    made.of_nodes[3][RATES[1]] = "9"
    made.of_topics["__consumer_offsets"][LEADER_REPLICAS] = "*"
    admin: Any = made
    assert throttled_nodes(admin) == {3: {RATES[1]: "9"}}
    assert found(admin) == Throttles((3,), ("__consumer_offsets",))
    assert not remove(admin, found(admin))
    assert made.is_clear
    assert not found(admin)
    made.of_all[RATES[0]] = "5"
    assert not found(admin), "what is set for all nodes is no move's"


def test_what_else_is_refused_is_told() -> None:
    made: Any = MadeUp()
    made.alter_topic_configs = lambda *_, **__: (_ for _ in ()).throw(FatalError("no", ErrorCode.INVALID_CONFIG))
    with pytest.raises(FatalError, match="no"):
        remove(made, Throttles(topics=("a",)))


def test_a_throttle_that_somebody_has_set_for_good_is_put_back() -> None:
    """A list is what an interrupted command has left, and goes."""
    made = MadeUp()
    lasting = {LEADER_REPLICAS: "*"}
    rate = {RATES[0]: "50000000"}
    made.of_topics["a"] = dict(lasting)
    made.of_topics["b"] = {LEADER_REPLICAS: "0:1"}
    made.of_nodes[1] = dict(rate)
    throttle = MoveThrottle(cast(Admin, made), 5)
    throttle.cover([Move(TopicPartition(topic, 0), (1, 2), (1, 3), 0, "") for topic in ("a", "b")])
    assert made.of_nodes[1] == dict.fromkeys(RATES, "5")
    assert throttle.end() == Throttles()
    assert made.of_topics == {"a": lasting, "b": {}, "__consumer_offsets": {}}
    assert made.of_nodes == {1: rate, 2: {}, 3: {}, 4: {}}


def test_who_does_not_answer_is_named() -> None:
    made = MadeUp(4)
    made.silent = {2}
    assert silent_nodes(cast(Admin, made)) == [2, 4]
