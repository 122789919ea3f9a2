"""A marker and the coordinator's word on the next transaction come from two places, so either may come first (T8)."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest
from kafka_node import FakeNode, KafkaClient, batch, run_with_listener, turns, until
from leader_states import of_two

from semel.broker.handlers.write_txn_markers import LocalMarkerWriter
from semel.broker.listeners.kafka.listener import KafkaListener
from semel.broker.logs.leader_state import LeaderState
from semel.protocol.api.transactions import AddPartitionsToTxnRequest, TransactionVersion, TxnMarker
from semel.protocol.errors import ErrorCode
from semel.protocol.ids import ProducerIdAndEpoch, TopicPartition
from semel.protocol.kafka.produce import ProducePartition, ProduceRequest

TP = TopicPartition("t", 0)
FIRST, NEXT = ProducerIdAndEpoch(4000, 0), ProducerIdAndEpoch(4000, 1)


def in_transaction(producer: ProducerIdAndEpoch) -> ProduceRequest:
    data = batch(b"v", producer=producer, sequence=0, transactional=True)
    return ProduceRequest([ProducePartition(TP.topic, TP.partition, data)], "tx", 1, 30_000)


def test_T8_a_marker_that_comes_amid_the_question_about_the_next_transaction_aborted_that_one(tmp_path: Path) -> None:
    """The coordinator has said yes about the next transaction before this node has heard how the last one ended."""

    async def test(node: FakeNode, listener: KafkaListener) -> None:
        (partition,) = node.create("t")
        client = await KafkaClient.connect(listener.port)
        assert (await client.produce(in_transaction(FIRST), 12)).partitions[0].error is ErrorCode.NONE
        partition.append_marker(NEXT, 0, True, TransactionVersion.V2)
        asked: list[AddPartitionsToTxnRequest] = []

        def marker_again(request: AddPartitionsToTxnRequest) -> Mapping[TopicPartition, ErrorCode]:
            asked.append(request)
            if len(asked) == 1:  # it was lost once, and is written again
                partition.append_marker(NEXT, 0, True, TransactionVersion.V2)
            return dict.fromkeys(request.partitions, ErrorCode.NONE)

        node.transactions.script = marker_again
        assert (await client.produce(in_transaction(NEXT), 12)).partitions[0].error is ErrorCode.NONE
        assert len(asked) == 2, "what was said before the marker is not relied on"
        assert listener.produce.gate.waiting == 0

    run_with_listener(test, str(tmp_path))


@pytest.mark.parametrize("version", [11, 12], ids=["older protocol", "newer protocol"])
def test_T8_who_leads_a_new_epoch_asks_again_and_refuses_nobody_for_it(tmp_path: Path, version: int) -> None:
    """What was asked in the former epoch counts no more, and says nothing against the batch."""

    async def test(node: FakeNode, listener: KafkaListener) -> None:
        (partition,) = node.create("t")
        client = await KafkaClient.connect(listener.port)
        asked: list[AddPartitionsToTxnRequest] = []

        def script(request: AddPartitionsToTxnRequest) -> Mapping[TopicPartition, ErrorCode]:
            asked.append(request)
            if len(asked) == 1:
                partition.lead(LeaderState.alone(1, partition.log_end_offset))
            return dict.fromkeys(request.partitions, ErrorCode.NONE)

        node.transactions.script = script
        assert (await client.produce(in_transaction(FIRST), version)).partitions[0].error is ErrorCode.NONE
        assert len(asked) == 2
        assert listener.produce.gate.waiting == 0

    run_with_listener(test, str(tmp_path))


def test_T8_a_batch_whose_transaction_a_marker_has_ended_is_refused_by_the_second_answer(tmp_path: Path) -> None:
    async def test(node: FakeNode, listener: KafkaListener) -> None:
        (partition,) = node.create("t")
        client = await KafkaClient.connect(listener.port)
        answers = iter((ErrorCode.NONE, ErrorCode.INVALID_PRODUCER_EPOCH))

        def script(request: AddPartitionsToTxnRequest) -> Mapping[TopicPartition, ErrorCode]:
            answer = next(answers)
            if answer is ErrorCode.NONE:
                partition.append_marker(NEXT, 0, False, TransactionVersion.V2)
            return dict.fromkeys(request.partitions, answer)

        node.transactions.script = script
        answer = await client.produce(in_transaction(FIRST), 12)
        assert answer.partitions[0].error is ErrorCode.INVALID_PRODUCER_EPOCH
        assert next(answers, None) is None, "the coordinator was asked twice"
        assert partition.log_end_offset == 1, "the marker alone"

    run_with_listener(test, str(tmp_path))


def test_who_waits_for_markers_and_is_gone_leaves_no_failure_that_nobody_hears(tmp_path: Path) -> None:
    """The partition that could not commit the marker moved to another leader: the node's log had a traceback."""
    unheard: list[dict[str, Any]] = []

    async def test(node: FakeNode, listener: KafkaListener) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context))
        (partition,) = node.create("t")
        partition.lead(of_two(1))
        marker = TxnMarker(FIRST, 0, True, (TP,))
        writing = asyncio.ensure_future(LocalMarkerWriter(cast(Any, node), wait_s=30.0).write_markers(marker))
        await until(lambda: partition.log_end_offset == 1)
        writing.cancel()
        await asyncio.wait([writing])
        partition.follow(2, 2)
        await turns(5)
        gc.collect()
        await turns(5)

    run_with_listener(test, str(tmp_path))
    assert unheard == []
