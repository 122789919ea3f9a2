"""What breaks in a consumer's background work: the next poll says so, and the work continues."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from consumer_kit import PATIENCE_S, Kit, poll_until, read

from semel.protocol.errors import FatalError
from semel.sdk.consumer import topic_watch
from semel.sdk.consumer.fetcher import Fetcher
from semel.sdk.consumer.position_lookup import PositionLookup
from semel.sdk.consumer.topic_watch import TopicWatch
from semel.testing import Broker


@pytest.fixture(scope="module")
def node() -> Iterator[Broker]:
    with Broker() as node:
        yield node


@pytest.fixture
def kit(node: Broker) -> Iterator[Kit]:
    kit = Kit(node, "sync")
    yield kit
    kit.close()


@pytest.mark.parametrize(
    ("where", "name", "message"),
    [
        (Fetcher, "_send_fetches", "looking for what to fetch failed"),
        (PositionLookup, "_take_reset", "where to begin could not be looked up"),
    ],
)
def test_what_breaks_before_a_fetch_is_raised_by_poll_and_the_next_poll_reads_on(
    kit: Kit, monkeypatch: pytest.MonkeyPatch, where: type, name: str, message: str
) -> None:
    (tp,) = kit.create()
    kit.fill(*"abc")
    whole = getattr(where, name)
    failures = [RuntimeError("planted")]

    def broken(*arguments: Any) -> Any:
        if failures:
            raise failures.pop()
        return whole(*arguments)

    monkeypatch.setattr(where, name, broken)
    reader = kit.consumer()
    reader.assign([tp])
    with pytest.raises(FatalError, match=rf"{message}: RuntimeError\('planted'\)"):
        reader.poll(PATIENCE_S)
    assert read(reader, 3) == list("abc")


def test_a_look_for_new_topics_that_breaks_is_logged_and_the_next_one_finds_them(
    kit: Kit, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(topic_watch, "TOPICS_CHECK_INTERVAL_S", 0.02)
    (a,) = kit.create(topic=f"{kit.topic}-a")
    reader = kit.member(pattern=f"{kit.topic}-.*")
    poll_until(lambda: reader.assignment() == {a}, reader)
    whole = TopicWatch._match_pattern
    failures = [RuntimeError("planted")]

    async def broken(*arguments: Any) -> None:
        if failures:
            raise failures.pop()
        await whole(*arguments)

    monkeypatch.setattr(TopicWatch, "_match_pattern", broken)
    poll_until(lambda: not failures, reader)
    (b,) = kit.create(topic=f"{kit.topic}-b")
    poll_until(lambda: reader.assignment() == {a, b}, reader)
    assert sum("looking for new topics and partitions failed" in message for message in caplog.messages) == 1
