"""The transaction coordinator's machine: verification (T8), operators, records."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from txn_producer import ID, P0, P1, TIMEOUT_MS, S, Shard, verify_request
from txn_shard import START_MS

from semel.protocol.api.transactions import (
    AbortTransactionRequest,
    AddPartitionsToTxnRequest,
    DescribeTransactionRequest,
    ListTransactionsRequest,
)
from semel.protocol.errors import ErrorCode, FencedError
from semel.protocol.ids import ProducerIdAndEpoch, TopicPartition
from semel.runtime.machine import CoordinatorRecord
from semel.txn_coordinator.config import TransactionConfig
from semel.txn_coordinator.schemas import encode_key, encode_value
from semel.txn_coordinator.state import TransactionMetadata

# --- T8: the coordinator's word on a partition ------------------------------------------------------------------------


@pytest.mark.parametrize("state", [S.EMPTY, S.ONGOING, S.COMPLETE_COMMIT, S.COMPLETE_ABORT])
def test_T8_verification_knows_the_open_transactions_partitions_and_changes_nothing(state: S) -> None:
    shard = Shard()
    shard.put(state=state, partitions=frozenset({P0} if state is S.ONGOING else ()), start_ms=START_MS)
    size = len(shard.log)
    errors = shard.submit(verify_request(ProducerIdAndEpoch(5, 0), P0, P1)).errors
    within = ErrorCode.NONE if state is S.ONGOING else ErrorCode.TRANSACTION_ABORTABLE
    assert errors == {P0: within, P1: ErrorCode.TRANSACTION_ABORTABLE}
    assert len(shard.log) == size


@pytest.mark.parametrize("verify_only", [True, False])
def test_T8_refusals(verify_only: bool) -> None:
    shard = Shard()
    request = AddPartitionsToTxnRequest(ID, ProducerIdAndEpoch(5, 4), (P0,), verify_only)
    assert shard.refused(request) is ErrorCode.INVALID_PRODUCER_ID_MAPPING, "an unknown id"
    shard.put(producer_epoch=4)
    for producer, expected in [
        (ProducerIdAndEpoch(6, 4), ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (ProducerIdAndEpoch(5, 3), ErrorCode.PRODUCER_FENCED),
        (ProducerIdAndEpoch(5, 5), ErrorCode.PRODUCER_FENCED),
    ]:
        assert shard.refused(replace(request, producer=producer)) is expected
    for state in (S.PREPARE_COMMIT, S.PREPARE_ABORT):
        shard.put(producer_epoch=4, state=state, partitions=frozenset({P0}))
        assert shard.refused(request) is ErrorCode.CONCURRENT_TRANSACTIONS


def test_T8_adding_again_what_is_in_appends_nothing() -> None:
    shard = Shard()
    producer = shard.init()
    shard.add(producer, P0)
    began_ms = shard.stored().start_ms
    shard.now_ms += 10
    shard.add(producer, P0, P1)
    assert shard.stored().partitions == {P0, P1}
    assert shard.stored().start_ms == began_ms
    size = len(shard.log)
    shard.add(producer, P1)
    assert len(shard.log) == size


def test_T8_more_partitions_than_one_record_holds_are_refused_and_the_transaction_can_still_end() -> None:
    shard = Shard(config=TransactionConfig(transaction_record_max_bytes=400))
    producer = shard.init()
    shard.add(producer, *(TopicPartition("t", n) for n in range(50)))
    many = AddPartitionsToTxnRequest(ID, producer, tuple(TopicPartition("t", n) for n in range(100)))
    assert shard.refused(many) is ErrorCode.MESSAGE_TOO_LARGE
    shard.end(producer, commit=True)


# --- Operators --------------------------------------------------------------------------------------------------------


def test_an_operators_abort_fences_the_producer() -> None:
    shard = Shard()
    producer = shard.init()
    shard.add(producer, P0)
    shard.submit(AbortTransactionRequest(ID))
    assert shard.markers().marker.producer == (producer.producer_id, 1)
    shard.submit(AbortTransactionRequest(ID))
    shard.write_markers()
    shard.submit(AbortTransactionRequest(ID))
    with pytest.raises(FencedError):
        shard.end(producer, commit=False)


@pytest.mark.parametrize("state", [S.EMPTY, S.PREPARE_COMMIT, S.COMPLETE_COMMIT])
def test_an_operators_abort_comes_too_late_or_finds_nothing(state: S) -> None:
    shard = Shard()
    assert shard.refused(AbortTransactionRequest(ID)) is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    shard.put(state=state)
    assert shard.refused(AbortTransactionRequest(ID)) is ErrorCode.INVALID_TXN_STATE


def test_describe() -> None:
    shard = Shard()
    producer = shard.init()
    found = shard.submit(DescribeTransactionRequest(ID))
    assert (found.state, found.start_time_ms, found.partitions) == ("Empty", -1, ())
    shard.now_ms += 5
    shard.add(producer, P1, P0)
    found = shard.submit(DescribeTransactionRequest(ID))
    assert (found.state, found.producer, found.partitions) == ("Ongoing", producer, (P0, P1))
    assert (found.timeout_ms, found.start_time_ms, found.last_update_ms) == (TIMEOUT_MS, START_MS + 5, START_MS + 5)
    assert found.coordinator_epoch == shard.epoch
    shard.end(producer, commit=True)
    shard.write_markers()
    found = shard.submit(DescribeTransactionRequest(ID))
    assert (found.start_time_ms, found.partitions) == (-1, ())


def test_list_filters_are_alternatives_within_and_conjunctive_between_themselves() -> None:
    shard = Shard()
    for name, producer_id, state, age_ms in [
        ("a-1", 1, S.ONGOING, 100),
        ("a-2", 2, S.ONGOING, 10),
        ("b-1", 3, S.PREPARE_COMMIT, 100),
        ("b-2", 4, S.EMPTY, 100),
        ("b-3", 5, S.COMPLETE_ABORT, 100),
    ]:
        started_ms = START_MS - age_ms
        txn = TransactionMetadata(name, producer_id, 0, TIMEOUT_MS, state, START_MS, start_ms=started_ms)
        shard.log.append(CoordinatorRecord(encode_key(name), encode_value(txn)))
    shard.reload()

    def found(**filters: Any) -> list[str]:
        response = shard.submit(ListTransactionsRequest(**filters))
        return [item.transactional_id for item in response.transactions]

    assert found() == ["a-1", "a-2", "b-1", "b-2", "b-3"]
    assert found(states=frozenset({"Ongoing", "Empty"})) == ["a-1", "a-2", "b-2"]
    assert found(producer_ids=frozenset({2, 3, 99})) == ["a-2", "b-1"]
    assert found(states=frozenset({"Ongoing"}), producer_ids=frozenset({2, 3})) == ["a-2"]
    assert found(min_duration_ms=50) == ["a-1", "b-1"], "only what is open has a duration"
    assert found(min_duration_ms=100) == []
    assert found(states=frozenset({"Confused"})) == []
    response = shard.submit(ListTransactionsRequest(states=frozenset({"Confused", "Ongoing"})))
    assert response.unknown_states == ("Confused",)
    assert [item.state for item in response.transactions] == ["Ongoing", "Ongoing"]


# --- The log ----------------------------------------------------------------------------------------------------------


def test_kinds_of_records_that_are_not_known_are_stepped_over() -> None:
    shard = Shard()
    shard.machine.replay(CoordinatorRecord(b"\x00\x07whatever", b"x"), 0, None, START_MS)
    assert shard.submit(ListTransactionsRequest()).transactions == ()


def test_markers_and_tickets_are_none_of_its_business() -> None:
    machine = Shard().machine
    assert machine.replay_marker(ProducerIdAndEpoch(1, 0), True, START_MS) is None
    assert machine.closed() == ()
    assert machine.next_deadline_ms() is None


def test_config_refuses_what_makes_no_sense() -> None:
    with pytest.raises(ValueError, match="transaction_record_max_bytes must be positive, not 0"):
        TransactionConfig(transaction_record_max_bytes=0)
