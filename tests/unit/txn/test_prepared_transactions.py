"""Transactions that somebody outside decides, such as a database (KIP-939), in the coordinator's machine."""

from __future__ import annotations

from typing import Any

import pytest
from txn_shard import TxnShard

from semel.protocol.api.producer_ids import InitProducerIdRequest, InitProducerIdResponse
from semel.protocol.api.transactions import (
    AbortTransactionRequest,
    AddPartitionsToTxnRequest,
    DescribeTransactionRequest,
    EndTxnRequest,
    EndTxnResponse,
    TransactionVersion,
)
from semel.protocol.errors import ErrorCode, SemelError
from semel.protocol.ids import MAX_PRODUCER_EPOCH, ProducerIdAndEpoch, TopicPartition
from semel.runtime.machine import CoordinatorRecord
from semel.txn_coordinator.config import TransactionConfig
from semel.txn_coordinator.schemas import encode_key, encode_value
from semel.txn_coordinator.state import (
    TWO_PHASE_EPOCHS_KEPT,
    TWO_PHASE_TIMEOUT_MS,
    TransactionMetadata,
    TransactionState,
)

ID = "bank"
P0, P1 = TopicPartition("out", 0), TopicPartition("out", 1)
YEAR_MS = 365 * 86_400_000
V1, V2 = TransactionVersion.V1, TransactionVersion.V2


class Bank(TxnShard):
    """With shorthands for one two-phase producer."""

    def __init__(self) -> None:
        super().__init__(config=TransactionConfig(transaction_two_phase_commit_enable=True))

    def init(self, *, keep: bool = False, two_phase: bool = True) -> InitProducerIdResponse:
        response: InitProducerIdResponse = self.submit(
            InitProducerIdRequest(ID, 60_000, two_phase=two_phase, keep_prepared=keep)
        )
        return response

    def write(self, producer: ProducerIdAndEpoch, tp: TopicPartition = P0) -> None:
        self.submit(AddPartitionsToTxnRequest(ID, producer, (tp,)))

    def end(
        self, producer: ProducerIdAndEpoch, *, commit: bool, version: TransactionVersion = V2
    ) -> ProducerIdAndEpoch:
        response: EndTxnResponse = self.submit(EndTxnRequest(ID, producer, commit, version))
        return response.producer

    def prepared(self) -> ProducerIdAndEpoch:
        producer = self.init().producer
        self.write(producer)
        return producer

    def refusal(self, request: Any) -> ErrorCode:
        with pytest.raises(SemelError) as caught:
            self.submit(request)
        return caught.value.code


@pytest.fixture
def bank() -> Bank:
    return Bank()


def test_T9_a_prepared_transaction_never_times_out(bank: Bank) -> None:
    bank.prepared()
    bank.reload()
    bank.now_ms += YEAR_MS
    bank.tick()
    assert bank.submit(DescribeTransactionRequest(ID)).state == "Ongoing"


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("version", [V1, V2])
@pytest.mark.parametrize("restarts", [1, 3])
def test_KIP939_another_instance_ends_a_prepared_transaction_after_any_restart(
    bank: Bank, commit: bool, version: TransactionVersion, restarts: int
) -> None:
    first = bank.prepared()
    for _ in range(restarts):
        bank.reload(epoch=bank.epoch + 1)
        taken = bank.init(keep=True)
        assert taken.ongoing == first, "by this the outside decider knows it again"
    bank.reload()
    after = bank.end(taken.producer, commit=commit, version=version)
    marker = bank.markers().marker
    assert marker.committed is commit
    assert marker.partitions == (P0,)
    assert marker.producer.producer_id == first.producer_id
    assert marker.producer.producer_epoch > first.producer_epoch
    bank.write_markers()
    assert bank.end(taken.producer, commit=commit, version=version) == after, "T7"
    bank.write(after, P1)
    bank.end(after, commit=True, version=version)


def test_KIP939_the_instance_before_is_fenced_and_the_new_one_can_only_end_it(bank: Bank) -> None:
    first = bank.prepared()
    taken = bank.init(keep=True).producer
    assert bank.refusal(EndTxnRequest(ID, first, True)) is ErrorCode.PRODUCER_FENCED
    assert bank.refusal(AddPartitionsToTxnRequest(ID, first, (P1,))) is ErrorCode.PRODUCER_FENCED
    assert bank.refusal(AddPartitionsToTxnRequest(ID, taken, (P1,))) is ErrorCode.INVALID_TXN_STATE
    bank.end(taken, commit=True)


def test_KIP939_without_keeping_it_a_new_instance_aborts_the_transaction(bank: Bank) -> None:
    bank.prepared()
    taken = bank.init(keep=True).producer
    assert bank.refusal(InitProducerIdRequest(ID, 60_000, two_phase=True)) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert bank.markers().marker.committed is False
    assert bank.markers().marker.producer.producer_epoch > taken.producer_epoch
    bank.write_markers()
    after = bank.init().producer
    assert after.producer_epoch > taken.producer_epoch
    assert bank.refusal(EndTxnRequest(ID, taken, True)) is ErrorCode.PRODUCER_FENCED


def test_KIP939_an_operator_can_abort_a_prepared_transaction(bank: Bank) -> None:
    bank.prepared()
    taken = bank.init(keep=True).producer
    bank.submit(AbortTransactionRequest(ID))
    assert bank.markers().marker.committed is False
    bank.write_markers()
    assert bank.refusal(EndTxnRequest(ID, taken, True)) in (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_TXN_STATE)


def test_KIP939_with_nothing_open_keeping_is_an_ordinary_beginning(bank: Bank) -> None:
    first = bank.init(keep=True)
    assert first.ongoing is None
    bank.write(first.producer)
    bank.end(first.producer, commit=True)
    assert bank.refusal(InitProducerIdRequest(ID, 1, two_phase=True, keep_prepared=True)) is (
        ErrorCode.CONCURRENT_TRANSACTIONS
    )
    bank.write_markers()
    assert bank.init(keep=True).ongoing is None


def test_KIP939_a_node_that_does_not_allow_it_says_which_setting_does() -> None:
    shard = TxnShard()
    with pytest.raises(SemelError, match=r"transaction\.two\.phase\.commit\.enable") as caught:
        shard.submit(InitProducerIdRequest(ID, 60_000, two_phase=True))
    assert caught.value.code is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def test_KIP939_only_two_phase_transactions_are_kept(bank: Bank) -> None:
    assert bank.refusal(InitProducerIdRequest(ID, 60_000, keep_prepared=True)) is ErrorCode.INVALID_REQUEST
    bank.write(bank.init(two_phase=False).producer)
    request = InitProducerIdRequest(ID, 60_000, two_phase=True, keep_prepared=True)
    assert bank.refusal(request) is ErrorCode.INVALID_TXN_STATE


def put(bank: Bank, epoch: int, next_epoch: int = -1) -> ProducerIdAndEpoch:
    """Set the stage: an open two-phase transaction at these epochs."""
    txn = TransactionMetadata(
        ID,
        5,
        epoch,
        TWO_PHASE_TIMEOUT_MS,
        TransactionState.ONGOING,
        bank.now_ms,
        frozenset({P0}),
        bank.now_ms,
        V2,
        next_producer_epoch=next_epoch,
    )
    bank.log.append(CoordinatorRecord(encode_key(ID), encode_value(txn)))
    bank.reload()
    return txn.holder


def test_T10_epochs_are_kept_in_hand_for_those_who_take_over(bank: Bank) -> None:
    producer = put(bank, MAX_PRODUCER_EPOCH - TWO_PHASE_EPOCHS_KEPT)
    taken = bank.init(keep=True).producer
    assert taken.producer_epoch == producer.producer_epoch + 1
    after = bank.end(taken, commit=True)
    assert after == ProducerIdAndEpoch(bank.next_id, 0), "the producer id rotates while there is still room"
    bank.write_markers()
    bank.write(after)


def test_T10_when_none_is_left_it_can_still_be_ended_or_aborted(bank: Bank) -> None:
    last = put(bank, 7, MAX_PRODUCER_EPOCH)
    request = InitProducerIdRequest(ID, 1, two_phase=True, keep_prepared=True)
    assert bank.refusal(request) is ErrorCode.INVALID_TXN_STATE
    assert bank.end(last, commit=True) == ProducerIdAndEpoch(bank.next_id, 0)
