"""What a block of a transaction raises when a call inside it gets no answer in time."""

# ruff: noqa: PT012 - a transaction raises at the end of its block

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from fake_node import Action, FakeNode

from semel.protocol.api.group_offsets import GroupMetadata, OffsetAndMetadata
from semel.protocol.errors import AbortTransactionError, ErrorCode, RetriableError
from semel.protocol.ids import TopicPartition
from semel.sdk.producer.api import Producer

ORDERS = TopicPartition("orders", 0)
WAIT_S = 30
LOST = RetriableError("no answer in time", ErrorCode.REQUEST_TIMED_OUT)


@pytest.fixture
def node() -> Iterator[FakeNode]:
    with FakeNode({"orders": 1}) as node:
        yield node


def impatient_producer(node: FakeNode) -> Producer:
    return Producer(
        node.bootstrap,
        transactional_id="enrich-0",
        linger_ms=0,
        retry_backoff_ms=1,
        buffer_memory_bytes=1_000,
        max_block_ms=100,
    )


def batch_of(rewound: list[bool]) -> Any:
    """Return what a transaction commits the offsets of; it writes down that it was rewound."""
    return SimpleNamespace(
        group_metadata=GroupMetadata("enrich", 3, "member-1"),
        next_offsets={TopicPartition("in", 0): OffsetAndMetadata(1)},
        begin=lambda: None,
        rewind=lambda: rewound.append(True),
    )


@pytest.mark.parametrize("where", ["in the block", "in a call of the producer"])
def test_T7_a_call_without_an_answer_inside_a_block_says_that_nothing_took_effect(node: FakeNode, where: str) -> None:
    """Out of a block, a `RetriableError` means that the outcome is not known: here it is."""
    rewound: list[bool] = []
    with impatient_producer(node) as producer:
        with (
            pytest.raises(AbortTransactionError, match=r"run it again from its input: .*(no answer|is full)") as raised,
            producer.transaction(commits=batch_of(rewound)) as txn,
        ):
            txn.send("orders", b"never").result(WAIT_S)
            if where == "in a call of the producer":
                node.produce_script.extend([Action.LOSE_ANSWER] * 100)
                for _ in range(3):
                    txn.send("orders", b"x" * 700)
            else:
                raise LOST
        assert isinstance(raised.value.__cause__, RetriableError)
        assert rewound == [True]
        node.produce_script.clear()
        with producer.transaction() as txn:
            txn.send("orders", b"again")
    assert node.broker.partitions[ORDERS].committed_values() == [b"again"]


def test_T7_a_block_that_could_not_be_aborted_says_so_on_the_error_that_it_raises(node: FakeNode) -> None:
    with impatient_producer(node) as producer:
        with pytest.raises(AbortTransactionError) as raised, producer.transaction() as txn:
            txn.send("orders", b"never").result(WAIT_S)
            node.stop()
            raise LOST
        assert "could not be aborted" in "".join(raised.value.__notes__)
        node.start()
        while True:  # a call has 100 ms, and connecting again may take longer
            try:
                producer.abort_transaction()
                break
            except RetriableError:
                continue
        with producer.transaction() as txn:
            txn.send("orders", b"again")
    assert node.broker.partitions[ORDERS].committed_values() == [b"again"]
