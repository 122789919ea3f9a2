"""What transactional ids, open transactions and remembered commits may hold in memory (S2)."""

from __future__ import annotations

import pytest
from txn_shard import TxnShard

from semel.protocol.api.producer_ids import InitProducerIdRequest
from semel.protocol.api.shared_transactions import CommitSharedRequest, OpenSharedRequest
from semel.protocol.api.transactions import AddPartitionsToTxnRequest, DescribeTransactionRequest, EndTxnRequest
from semel.protocol.errors import ErrorCode, SemelError
from semel.protocol.ids import ProducerIdAndEpoch, TopicPartition
from semel.txn_coordinator.config import TransactionConfig
from semel.txn_coordinator.held_bytes import FIRST_BYTES, ID_BYTES, Held

TIMEOUT_MS = 60_000
ROOM = 100 * FIRST_BYTES


def full_shard(*, known: int = 3) -> TxnShard:
    """A shard in which strangers have taken all that new ids may take, after a few others came."""
    shard = TxnShard(config=TransactionConfig(transactional_ids_max_bytes=ROOM))
    for number in range(known):
        init(shard, f"known-{number}")
    fill_up(shard)
    return shard


def fill_up(shard: TxnShard) -> None:
    for number in range(200):
        try:
            init(shard, f"stranger-{number}")
        except SemelError:
            return
    pytest.fail("new ids had room for ever")


def init(shard: TxnShard, name: str) -> ProducerIdAndEpoch:
    producer: ProducerIdAndEpoch = shard.submit(InitProducerIdRequest(name, TIMEOUT_MS)).producer
    return producer


def add(shard: TxnShard, name: str, producer: ProducerIdAndEpoch, count: int) -> None:
    partitions = tuple(TopicPartition("out", number) for number in range(count))
    shard.submit(AddPartitionsToTxnRequest(name, producer, partitions))


def code_of(shard: TxnShard, request: object) -> ErrorCode:
    with pytest.raises(SemelError) as caught:
        shard.submit(request)
    return caught.value.code


def test_S2_new_transactional_ids_are_refused_beyond_the_bound() -> None:
    shard = full_shard()
    assert shard.machine.held.sum() == (ROOM, 0)
    with pytest.raises(SemelError, match=r"transactional\.ids\.max\.bytes") as caught:
        init(shard, "late")
    assert caught.value.code is ErrorCode.POLICY_VIOLATION
    assert code_of(shard, OpenSharedRequest("late", "a", "0", TIMEOUT_MS)) is ErrorCode.POLICY_VIOLATION


def test_S2_known_ids_continue_when_new_ones_are_refused() -> None:
    shard = full_shard()
    for _ in range(3):
        producer = init(shard, "known-0")
        add(shard, "known-0", producer, 5)
        shard.submit(EndTxnRequest("known-0", producer, committed=True))
        shard.write_markers()
        described = shard.submit(DescribeTransactionRequest("known-0"))
        assert described.state == "CompleteCommit"


def test_S2_a_known_key_of_shared_transactions_gets_writers_when_new_ones_are_refused() -> None:
    shard = TxnShard(config=TransactionConfig(transactional_ids_max_bytes=ROOM))
    shard.submit(CommitSharedRequest("etl", "a0", "0", (), b"", 0))
    fill_up(shard)
    writer = shard.submit(OpenSharedRequest("etl", "a1", "1", TIMEOUT_MS, 1)).producer
    assert shard.submit(CommitSharedRequest("etl", "a1", "1", (writer,), b"", 1)).decision.writers == 1


def test_S2_partitions_of_a_transaction_count_and_are_refused_beyond_the_bound() -> None:
    shard = full_shard()
    producer = init(shard, "known-0")
    partitions = tuple(TopicPartition("out", number) for number in range(2_000))
    request = AddPartitionsToTxnRequest("known-0", producer, partitions)
    assert code_of(shard, request) is ErrorCode.TRANSACTION_ABORTABLE
    add(shard, "known-0", producer, 5)


def test_S2_remembered_commits_count_and_the_transaction_can_be_aborted_instead() -> None:
    shard = full_shard()
    producer = init(shard, "known-0")
    add(shard, "known-0", producer, 1)
    commit = EndTxnRequest("known-0", producer, committed=True, token="t", payload=bytes(ROOM))
    assert code_of(shard, commit) is ErrorCode.TRANSACTION_ABORTABLE
    shard.submit(EndTxnRequest("known-0", producer, committed=False))
    shard.write_markers()


def test_S2_a_commit_of_a_shared_transaction_counts_what_it_is_remembered_by() -> None:
    shard = full_shard()
    assert code_of(shard, CommitSharedRequest("etl", "a", "0", (), bytes(ROOM), 0)) is ErrorCode.TRANSACTION_ABORTABLE


def test_S2_a_full_history_takes_a_commit_because_an_older_one_goes() -> None:
    config = TransactionConfig(transactional_ids_max_bytes=ROOM, commit_history_max=2)
    shard = TxnShard(config=config)
    for batch in range(2):
        shard.submit(CommitSharedRequest("etl", f"a{batch}", str(batch), (), bytes(10_000), batch))
    fill_up(shard)
    before = shard.machine.held.sum()
    for batch in range(2, 20):
        shard.submit(CommitSharedRequest("etl", f"a{batch}", str(batch), (), bytes(10_000), batch))
    assert shard.machine.held.sum().bytes < before.bytes + 10_000


def test_S2_strangers_that_fill_what_is_left_do_not_stop_a_known_id() -> None:
    """They made ids while there was room, and filled it to the last byte with commits by token."""
    shard = TxnShard(config=TransactionConfig(transactional_ids_max_bytes=ROOM))
    for name in ("honest", *(f"stranger-{number}" for number in range(20))):
        init(shard, name)
    for number in range(20):
        for size in (60_000, 6_000, 600, 60, 0):
            for attempt in range(9):
                name = f"stranger-{number}"
                producer = init(shard, name)
                token = EndTxnRequest(name, producer, committed=True, token=f"{size}-{attempt}", payload=bytes(size))
                try:
                    shard.submit(token)
                except SemelError:
                    break
    assert shard.machine.held.sum().bytes > ROOM - 600
    assert code_of(shard, InitProducerIdRequest("new", TIMEOUT_MS)) is ErrorCode.POLICY_VIOLATION
    for number in range(5):
        producer = init(shard, "honest")
        add(shard, "honest", producer, 5)
        shard.submit(EndTxnRequest("honest", producer, committed=True, token=str(number)))
        shard.write_markers()
    writers = shard.machine.held.sum().large
    producer = init(shard, "honest")
    add(shard, "honest", producer, ROOM // 2 // (writers + 1) // 170 - 30)


def test_S2_what_is_forgotten_is_given_back() -> None:
    """All of it: a leak would close the node to new ids one day."""
    shard = TxnShard()
    for number in range(5):
        name = f"id-{number}"
        producer = init(shard, name)
        add(shard, name, producer, 3)
        shard.submit(EndTxnRequest(name, producer, committed=True, token="t", payload=b"p"))
        shard.write_markers()
        writer = shard.submit(OpenSharedRequest(f"key-{number}", "a", "0", TIMEOUT_MS, 0)).producer
        shard.submit(CommitSharedRequest(f"key-{number}", "a", "0", (writer,), b"payload", 0))
    shard.submit(OpenSharedRequest("abandoned", "a", "0", TIMEOUT_MS, 0))
    assert shard.machine.held.sum().bytes > 10 * ID_BYTES
    before = shard.machine.held.sum()
    shard.reload()
    assert shard.machine.held.sum() == before, "what is counted depends on the records alone"
    for _ in range(2):  # what is open times out first
        shard.now_ms += 2 * shard.config.commit_history_expiration_ms
        shard.tick()
    assert shard.machine.held.sum() == (0, 0)


def test_S2_what_all_partitions_hold_counts() -> None:
    shard = TxnShard()
    others = [0]
    config = TransactionConfig(transactional_ids_max_bytes=ROOM)
    shard.machine = type(shard.machine)(0, 3, config, lambda: Held(shard.machine.held.sum().bytes + others[0], 0))
    init(shard, "one")
    others[0] = ROOM
    assert code_of(shard, InitProducerIdRequest("two", TIMEOUT_MS)) is ErrorCode.POLICY_VIOLATION
