"""What the tests of `semel export` and `semel import` share: records to write, and what readers see of a topic."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from typer.testing import Result

import semel
from semel.testing import Broker

Run: TypeAlias = Callable[..., Result]
"""Runs `semel` with these arguments, against the tests' node."""


def send(broker: Broker, topic: str, count: int, first: int = 0) -> None:
    """In transactions of ten, each followed by one that is aborted."""
    with semel.Producer(broker.bootstrap, transactional_id=f"of-{topic}") as producer:
        for begin in range(first, first + count, 10):
            with producer.transaction() as transaction:
                for number in range(begin, min(begin + 10, first + count)):
                    transaction.send(topic, b"%d" % number, key=b"k%d" % number, partition=number % 2)
            producer.begin_transaction()
            producer.send(topic, b"aborted", partition=begin % 2)
            producer.flush()
            producer.abort_transaction()


def read(broker: Broker, topic: str) -> list[tuple[object, ...]]:
    """What read_committed readers see: all but offsets."""
    columns = ("partition", "key", "value", "timestamp", "headers")
    table = semel.arrow.read(topic, bootstrap=broker.bootstrap, columns=columns)
    return [tuple(row.values()) for row in table.to_pylist()]
