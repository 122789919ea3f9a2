"""What a consumer reads, and where it stands."""

from __future__ import annotations

import pytest

from semel.protocol.errors import UsageError
from semel.protocol.ids import TopicPartition
from semel.sdk.consumer.subscription import Subscription

A, B, C = (TopicPartition("t", number) for number in range(3))


def assigned(*tps: TopicPartition) -> Subscription:
    subscription = Subscription()
    subscription.assign(tps)
    return subscription


def test_partitions_that_stay_keep_their_position_and_others_go() -> None:
    subscription = assigned(A, B)
    subscription.require(A).move_to(5)
    subscription.set_assignment([A, C])
    assert subscription.assignment == {A, C}
    assert subscription.require(A).position == 5
    assert [state.tp for state in subscription.need_position()] == [C]


def test_a_seek_makes_answers_to_older_fetches_recognisable() -> None:
    state = assigned(A).require(A)
    state.move_to(5)
    epoch = state.epoch
    state.move_to(9)
    assert state.epoch != epoch


def test_a_partition_that_comes_back_is_not_the_one_that_went() -> None:
    subscription = assigned(A)
    before = subscription.require(A).epoch
    subscription.set_assignment([])
    subscription.set_assignment([A])
    assert subscription.require(A).epoch != before


def test_ways_of_reading_do_not_mix() -> None:
    subscription = assigned(A)
    with pytest.raises(UsageError, match="call unsubscribe"):
        subscription.subscribe(["t"])
    subscription.unsubscribe()
    subscription.subscribe(["t"])
    with pytest.raises(UsageError, match="call unsubscribe"):
        subscription.assign([A])


def test_a_pattern_matches_whole_names() -> None:
    subscription = Subscription()
    subscription.subscribe_pattern("orders-.*")
    assert subscription.match(["orders-1", "old-orders-1", "orders-2"])
    assert subscription.topics == {"orders-1", "orders-2"}
    assert not subscription.match(["orders-2", "orders-1"])
    with pytest.raises(UsageError, match="not a regular expression"):
        subscription.subscribe_pattern("(")


def test_what_is_not_assigned_is_named() -> None:
    with pytest.raises(UsageError, match="t-1 is not assigned to this consumer, which has t-0"):
        assigned(A).require(B)
