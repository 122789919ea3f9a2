"""Commits that say where the group must stand (O5): of two that begin at the same place, one alone counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from group_driver import GroupDriver, commit, fetch

from semel.protocol.api.group_offsets import OffsetAndMetadata
from semel.protocol.api.groups import OffsetCommitRequest
from semel.protocol.errors import ErrorCode, FatalError, RetriableError
from semel.protocol.ids import ProducerIdAndEpoch, TopicPartition

P0, P1, P2 = (TopicPartition("orders", number) for number in range(3))
PRODUCER = ProducerIdAndEpoch(4001, 3)
RIVAL = ProducerIdAndEpoch(4002, 0)
THIRD = ProducerIdAndEpoch(4003, 0)


def moving(
    offsets: Mapping[TopicPartition, int],
    expected: Mapping[TopicPartition, int],
    producer: ProducerIdAndEpoch = PRODUCER,
    metadata: str = "",
) -> OffsetCommitRequest:
    places = {tp: OffsetAndMetadata(offset, metadata=metadata) for tp, offset in offsets.items()}
    return replace(commit({}, producer=producer), offsets=places, expected=expected)


def stands_at(driver: GroupDriver, *partitions: TopicPartition) -> list[int]:
    offsets = driver.ask(fetch(*partitions)).offsets
    return [offsets[tp].offset for tp in partitions]


def test_O5_a_commit_counts_where_the_group_stands_at_its_start() -> None:
    driver = GroupDriver()
    driver.ask(commit({P0: 5, P2: 3}))
    driver.ask(moving({P0: 9, P1: 4}, {P0: 5, P1: 0}))  # nothing is committed for P1, and P2 is none of its business
    driver.marker(PRODUCER, committed=True)
    assert stands_at(driver, P0, P1, P2) == [9, 4, 3]


@pytest.mark.parametrize("expected", [4, 6, -1])
def test_O5_a_commit_from_elsewhere_is_refused_whole(expected: int) -> None:
    driver = GroupDriver()
    driver.ask(commit({P1: 5}))
    with pytest.raises(FatalError, match=r"stands at 5 in orders-1, and this commit to 9 expects it") as refused:
        driver.ask(moving({P0: 2, P1: 9}, {P0: 0, P1: expected}))
    assert refused.value.code is ErrorCode.INVALID_UPDATE_VERSION
    driver.marker(PRODUCER, committed=True)
    assert stands_at(driver, P0, P1) == [-1, 5]


def test_O5_of_two_from_the_same_place_the_second_waits_for_the_first_and_is_refused() -> None:
    """Comparing alone would let both pass: the first one's offset is not visible yet when the second one comes."""
    driver = GroupDriver()
    driver.ask(commit({P0: 5}))
    driver.ask(moving({P0: 9}, {P0: 5}))
    with pytest.raises(RetriableError) as waits:
        driver.ask(moving({P0: 9}, {P0: 5}, RIVAL))
    assert waits.value.code is ErrorCode.UNSTABLE_OFFSET_COMMIT
    driver.reload()
    with pytest.raises(RetriableError, match="has an offset of orders-0 pending"):
        driver.ask(moving({P0: 9}, {P0: 5}, RIVAL))
    driver.marker(PRODUCER, committed=True)
    with pytest.raises(FatalError, match="stands at 9"):
        driver.ask(moving({P0: 9}, {P0: 5}, RIVAL))


def test_O5_where_the_first_is_aborted_the_second_counts() -> None:
    driver = GroupDriver()
    driver.ask(commit({P0: 5}))
    driver.ask(moving({P0: 9}, {P0: 5}))
    driver.marker(PRODUCER, committed=False)
    driver.ask(moving({P0: 7}, {P0: 5}, RIVAL))
    driver.marker(RIVAL, committed=True)
    assert stands_at(driver, P0) == [7]


def test_O5_a_commit_that_is_repeated_after_a_lost_answer_counts_once() -> None:
    driver = GroupDriver()
    driver.ask(commit({P0: 5}))
    for _ in range(2):
        driver.ask(moving({P0: 9}, {P0: 5}))
    with pytest.raises(RetriableError):
        driver.ask(moving({P0: 9}, {P0: 5}, RIVAL))
    driver.marker(PRODUCER, committed=True)
    assert stands_at(driver, P0) == [9]


def test_O5_the_same_work_may_move_the_group_twice_and_other_work_to_the_same_place_may_not() -> None:
    """Two sinks of one batch commit one after the other; two drivers may have planned the very same batch."""
    driver = GroupDriver()
    driver.ask(commit({P0: 5}))
    for producer in (PRODUCER, RIVAL):
        driver.ask(moving({P0: 9}, {P0: 5}, producer, "query-a/batch-3"))
        driver.marker(producer, committed=True)
    for metadata in ("query-b/batch-0", ""):
        with pytest.raises(FatalError, match="stands at 9"):
            driver.ask(moving({P0: 9}, {P0: 5}, THIRD, metadata))
    driver.ask(moving({P0: 12}, {P0: 9}, THIRD, ""))
    driver.marker(THIRD, committed=True)
    with pytest.raises(FatalError, match="stands at 12"):
        driver.ask(moving({P0: 12}, {P0: 9}, RIVAL, ""))  # without metadata nothing says that it is the same work


def test_O5_commits_that_expect_nothing_are_taken_as_ever() -> None:
    driver = GroupDriver()
    driver.ask(commit({P0: 5}))
    driver.ask(moving({P0: 9}, {}))
    driver.ask(moving({P0: 2}, {}, RIVAL))
    driver.ask(commit({P0: 1}))
    assert driver.ask(fetch(P0, require_stable=False)).offsets[P0].offset == 1
