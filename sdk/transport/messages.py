"""Between what gRPC carries and what the rest of the client works with."""

from __future__ import annotations

from semel.protocol.api.shared_transactions import CommitDecision
from semel.protocol.ids import ProducerIdAndEpoch
from semel.protocol.v1 import common_pb2, shared_pb2


def producer_message(producer: ProducerIdAndEpoch) -> common_pb2.Producer:
    return common_pb2.Producer(producer_id=producer.producer_id, producer_epoch=producer.producer_epoch)


def producer_of(message: common_pb2.Producer) -> ProducerIdAndEpoch:
    return ProducerIdAndEpoch(message.producer_id, message.producer_epoch)


def decision_of(message: shared_pb2.CommitDecision) -> CommitDecision:
    return CommitDecision(
        message.token, message.sequence, message.payload, message.attempt, message.decided_ms, message.writers
    )
