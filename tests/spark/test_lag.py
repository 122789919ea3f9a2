"""How far a query is behind, and how that is told."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from semel.protocol.ids import TopicPartition
from semel.spark import LagListener
from semel.spark.source.lag import lag_of


def after_a_batch(*ends_and_latest: tuple[object, object]) -> Any:
    sources = [SimpleNamespace(endOffset=end, latestOffset=latest) for end, latest in ends_and_latest]
    return SimpleNamespace(progress=SimpleNamespace(sources=sources, name="orders", id="1"))


def test_lag_is_what_lies_between_and_nothing_for_other_sources() -> None:
    assert lag_of('{"t": {"0": 5}}', {"t": {"0": 7, "1": 2}}) == {TopicPartition("t", 0): 2, TopicPartition("t", 1): 2}
    assert lag_of("17", "19") == {}
    assert lag_of(None, None) == {}


def test_a_listener_without_a_function_says_the_lag_where_nobody_set_up_logging(
    capfd: pytest.CaptureFixture[str],
) -> None:
    listener = LagListener()
    listener.onQueryProgress(after_a_batch(('{"a":{"0":1,"1":4}}', '{"a":{"0":9,"1":4}}')))
    assert capfd.readouterr().err == "query orders is behind by 8 records: a-0 by 8\n"
    listener.onQueryProgress(after_a_batch(('{"a":{"0":9}}', '{"a":{"0":9}}')))
    assert capfd.readouterr().err == "query orders is behind by 0 records\n"
    listener.onQueryProgress(after_a_batch(("17", "19")))
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("turn", [1, -1])
def test_of_two_sources_that_read_one_partition_the_one_that_is_most_behind_counts(turn: int) -> None:
    found: list[Mapping[TopicPartition, int]] = []
    sources = [('{"a":{"0":1,"1":7}}', '{"a":{"0":9,"1":9}}'), ('{"a":{"0":9,"1":5}}', '{"a":{"0":9,"1":9}}')]
    LagListener(lambda name, lag: found.append(lag)).onQueryProgress(after_a_batch(*sources[::turn]))
    assert found == [{TopicPartition("a", 0): 8, TopicPartition("a", 1): 4}]
