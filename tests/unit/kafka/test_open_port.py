"""What everybody who can connect may do to others, as docs/how-to/run-a-node.md says it: as in Kafka without ACLs."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from kafka_calls import call
from live_node import LiveNode
from running_node import batch

import semel
from semel.protocol.errors import ErrorCode
from semel.protocol.kafka.api import ApiKey

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "run-a-node.md"


def produce(node: LiveNode, topic: str, records: bytes) -> ErrorCode:
    topics = [{"name": topic, "partition_data": [{"index": 0, "records": records}]}]
    answer: Any = asyncio.run(
        call(
            node.node.kafka_address.port, ApiKey.PRODUCE, 9,
            transactional_id=None, acks=-1, timeout=10_000, topic_data=topics,
        )
    )  # fmt: skip
    return ErrorCode(int(answer.responses[0].partition_responses[0].error_code))


@pytest.mark.parametrize("name", [None, "etl"])
def test_a_stranger_who_guesses_a_producer_id_can_stop_that_producer(tmp_path: Path, name: str | None) -> None:
    with LiveNode(tmp_path) as node, semel.Admin(node.bootstrap) as admin:
        admin.create_topic("a", partitions=1)
        with (
            semel.Producer(node.bootstrap, transactional_id=name) as producer,
            producer.transaction() if name else nullcontext(),
        ):
            producer.send("a", b"mine").result(30)
        (one,) = node.node.partition(semel.TopicPartition("a", 0)).log.producer_state
        owner, epoch = one.producer_id, one.epoch
        forged = batch(b"theirs", producer_id=owner, producer_epoch=epoch + 1, base_sequence=0)
        assert produce(node, "a", forged) is ErrorCode.NONE
        mine = batch(b"mine, too", producer_id=owner, producer_epoch=epoch, base_sequence=1)
        assert produce(node, "a", mine) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert "higher epoch" in PAGE.read_text()


def test_a_stranger_who_guesses_a_transactional_id_can_abort_its_transaction(tmp_path: Path) -> None:
    with LiveNode(tmp_path) as node, semel.Admin(node.bootstrap) as admin:
        admin.create_topic("a", partitions=1)
        with semel.Producer(node.bootstrap, transactional_id="etl") as producer:
            producer.begin_transaction()
            producer.send("a", b"mine")
            producer.flush()
            semel.Producer(node.bootstrap, transactional_id="etl").__enter__().close()
            with pytest.raises(semel.FencedError):
                producer.commit_transaction()
    assert "transactional id" in PAGE.read_text()
