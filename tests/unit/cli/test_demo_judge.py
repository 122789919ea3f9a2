"""The demo's judge: what it says of outputs that are whole, cut off, repeated or incomplete."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from semel.cli.demo.flights import Flight
from semel.cli.demo.judge import Verdict, judge
from semel.cli.demo.worker import ENRICHED, PER_CARRIER
from semel.sdk.admin.api import Admin
from semel.sdk.producer.api import Producer
from semel.testing import Broker

FLIGHTS = [Flight(number, "UA" if number % 2 else "AA", b"", b"") for number in range(4)]


@pytest.fixture
def bootstrap() -> Iterator[str]:
    with Broker() as node:
        with Admin(node.bootstrap) as admin:
            for topic in (ENRICHED, PER_CARRIER):
                admin.create_topic(topic, partitions=2)
        yield node.bootstrap


def write(bootstrap: str, numbers: list[int], *, commit: bool = True) -> None:
    with Producer(bootstrap, transactional_id="writer") as producer:
        producer.begin_transaction()
        for number in numbers:
            producer.send(ENRICHED, key=str(number), value=json.dumps({"number": number}))
            producer.send(PER_CARRIER, key=FLIGHTS[number].carrier, value="1")
        producer.flush()
        if commit:
            producer.commit_transaction()
        else:
            producer.abort_transaction()


def verdict(bootstrap: str) -> Verdict:
    return judge(bootstrap, FLIGHTS, isolation="read_committed", progress=lambda _: None)


def test_E1_records_of_aborted_transactions_are_counted_as_hidden_and_not_as_output(bootstrap: str) -> None:
    write(bootstrap, [0, 1, 2], commit=False)
    write(bootstrap, [0, 1, 2, 3])
    found = verdict(bootstrap)
    assert found.is_exactly_once
    assert (found.once, found.missing, found.repeated, found.hidden) == (4, 0, 0, 3)
    assert found.counts == found.truth == {"AA": 2, "UA": 2}


def test_what_is_missing_and_what_is_there_twice_is_seen(bootstrap: str) -> None:
    write(bootstrap, [0, 1])
    write(bootstrap, [1, 2])
    found = verdict(bootstrap)
    assert not found.is_exactly_once
    assert (found.once, found.missing, found.repeated, found.surplus) == (2, 1, 1, 1)
    assert found.wrong_counts == {}


def test_a_wrong_count_is_seen(bootstrap: str) -> None:
    write(bootstrap, [0, 1, 2, 3])
    with Producer(bootstrap) as producer:
        producer.send(PER_CARRIER, key="UA", value="1")
    found = verdict(bootstrap)
    assert found.wrong_counts == {"UA": (3, 2)}
    assert not found.is_exactly_once
