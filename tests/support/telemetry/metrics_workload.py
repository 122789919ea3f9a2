"""A small workload after which every metric of a node has something to tell."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from live_node import LiveNode

import semel
from semel.protocol.batch_builder import encode_batch
from semel.protocol.errors import ErrorCode, SemelError
from semel.protocol.kafka.produce import ProducePartition, ProduceRequest

RECORDS = 20


@contextlib.contextmanager
def worked_node(folder: Path, **settings: Any) -> Iterator[LiveNode]:
    """A node with a transaction committed, one aborted and one that is open; a group that is behind; a batch repeated,
    one refused, a call of gRPC refused; and a member that reads.
    """
    settings = {"metrics_listen": "127.0.0.1:0", "remote_storage_url": f"file://{folder}/objects", **settings}
    with LiveNode(folder, **settings) as live, contextlib.ExitStack() as stack:
        admin = stack.enter_context(semel.Admin(live.bootstrap))
        admin.create_topic("orders", partitions=1)
        admin.create_topic("held", partitions=1)
        with pytest.raises(SemelError):
            admin.abort_transaction("nobody")
        with semel.Producer(live.bootstrap, transactional_id="worker") as producer:
            with producer.transaction() as txn:
                _send(txn, "orders")
            with contextlib.suppress(ZeroDivisionError), producer.transaction() as txn:
                _send(txn, "orders")
                producer.flush()
                raise ZeroDivisionError
        holder = stack.enter_context(semel.Producer(live.bootstrap, transactional_id="holder"))
        holder.init_transactions()
        holder.begin_transaction()
        _send(holder, "held")
        holder.flush()
        consumer = semel.Consumer(live.bootstrap, group="readers", topics=["orders"])
        stack.callback(consumer.close)
        batch = consumer.poll(30.0, max_records=5)
        assert batch is not None
        consumer.commit()
        live.run(lambda: _repeat_and_be_refused(live))
        yield live
        holder.abort_transaction()


def _send(sender: Any, topic: str) -> None:
    for _ in range(RECORDS):
        sender.send(topic, value=b"x" * 100)


async def _repeat_and_be_refused(live: LiveNode) -> None:
    produce = live.node.produce
    batch = encode_batch([(1_700_000_000_000, b"k", b"v", ())], producer_id=987_654, producer_epoch=0, base_sequence=0)
    for _ in range(2):  # the second one is a repetition (P1)
        answer = await produce.produce(
            ProduceRequest([ProducePartition("orders", 0, bytearray(batch))], None, -1, 30_000)
        )
        assert answer.partitions[0].error is ErrorCode.NONE
    nowhere = await produce.produce(ProduceRequest([ProducePartition("orders", 7, bytearray(batch))], None, 1, 30_000))
    assert nowhere.partitions[0].error is not ErrorCode.NONE
