"""A transaction machine as one producer of one transactional id uses it."""

from __future__ import annotations

from typing import Any

import pytest
from txn_shard import TxnShard

from semel.protocol.api.producer_ids import InitProducerIdRequest
from semel.protocol.api.transactions import (
    AddPartitionsToTxnRequest,
    DescribeTransactionRequest,
    EndTxnRequest,
    TransactionVersion,
)
from semel.protocol.errors import ErrorCode, SemelError
from semel.protocol.ids import NO_PRODUCER, ProducerIdAndEpoch, TopicPartition
from semel.runtime.machine import CoordinatorRecord
from semel.txn_coordinator.schemas import decode_value, encode_key, encode_value
from semel.txn_coordinator.state import (
    TransactionMetadata,
    TransactionState,
)

V0, V1, V2 = TransactionVersion.V0, TransactionVersion.V1, TransactionVersion.V2
S = TransactionState
ID = "enrich-0"
P0, P1 = TopicPartition("enriched", 0), TopicPartition("enriched", 1)
TIMEOUT_MS = 60_000


class Shard(TxnShard):
    """With shorthands for one producer of one transactional id."""

    def refused(self, request: object) -> ErrorCode:
        """Return the error code, having made sure that a refusal appends nothing."""
        size = len(self.log)
        with pytest.raises(SemelError) as caught:
            self.submit(request)
        assert len(self.log) == size, "a refusal appends nothing"
        assert ID in caught.value.message or caught.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION
        return caught.value.code

    # --- Shorthands ---------------------------------------------------------------------------------------------------

    def init(self, producer: ProducerIdAndEpoch = NO_PRODUCER, *, timeout_ms: int = TIMEOUT_MS) -> ProducerIdAndEpoch:
        return self.submit(InitProducerIdRequest(ID, timeout_ms, producer)).producer

    def add(self, producer: ProducerIdAndEpoch, *partitions: TopicPartition, version: TransactionVersion = V2) -> None:
        response = self.submit(AddPartitionsToTxnRequest(ID, producer, partitions, version=version))
        assert set(response.errors.values()) <= {ErrorCode.NONE}

    def end(
        self, producer: ProducerIdAndEpoch, *, commit: bool, version: TransactionVersion = V2
    ) -> ProducerIdAndEpoch:
        return self.submit(EndTxnRequest(ID, producer, commit, version)).producer

    def run(
        self, producer: ProducerIdAndEpoch, *, commit: bool = True, version: TransactionVersion = V2
    ) -> ProducerIdAndEpoch:
        """Run a whole transaction and return the producer to continue with."""
        self.add(producer, P0, version=version)
        after = self.end(producer, commit=commit, version=version)
        self.write_markers()
        return after

    def state(self) -> str:
        return self.submit(DescribeTransactionRequest(ID)).state

    def stored(self) -> TransactionMetadata:
        value = self.log[-1].value
        assert value is not None
        return decode_value(ID, value)

    def put(self, **changes: Any) -> TransactionMetadata:
        """Set the stage: append a record with whatever the test needs."""
        txn = TransactionMetadata(ID, 5, 0, TIMEOUT_MS, S.EMPTY, self.now_ms, version=V2)
        txn = txn._replace(**changes)
        record = CoordinatorRecord(encode_key(ID), encode_value(txn))
        self.log.append(record)
        self.machine.replay(record, len(self.log) - 1, None, self.now_ms)
        return txn


def add_request(producer: ProducerIdAndEpoch, version: TransactionVersion = V2) -> AddPartitionsToTxnRequest:
    return AddPartitionsToTxnRequest(ID, producer, (P0,), version=version)


def verify_request(producer: ProducerIdAndEpoch, *partitions: TopicPartition) -> AddPartitionsToTxnRequest:
    return AddPartitionsToTxnRequest(ID, producer, partitions or (P0,), verify_only=True, version=V1)


def shard_codes(shard: Shard, request: object) -> ErrorCode:
    with pytest.raises(SemelError) as caught:
        shard.submit(request)
    return caught.value.code
