"""Commit tokens of one producer, and transactions that a database decides, through the client (T13, E5, KIP-939)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest

import semel
from semel.protocol.errors import AbortTransactionError, ErrorCode, FatalError, FencedError, UsageError
from semel.protocol.ids import TopicPartition
from semel.testing import Broker

WAIT_S = 30


@pytest.fixture(scope="module")
def node() -> Iterator[Broker]:
    with Broker(transaction_two_phase_commit_enable=True) as node:
        yield node


@pytest.fixture
def topic(node: Broker, request: pytest.FixtureRequest) -> str:
    name = request.node.name.translate(str.maketrans("[]", ".."))
    with semel.Admin(node.bootstrap) as admin:
        admin.create_topic(name, partitions=1)
    return name


def producer_of(node: Broker, name: str, **options: Any) -> semel.Producer:
    return semel.Producer(node.bootstrap, transactional_id=name, **options)


def committed_values(node: Broker, topic: str) -> list[bytes | None]:
    """What a read_committed reader sees once nothing of the topic's transaction is under way."""
    tp = TopicPartition(topic, 0)
    with semel.Admin(node.bootstrap) as admin:
        deadline = time.monotonic() + WAIT_S
        while any(one.state.startswith("Prepare") for one in admin.transactions(pattern=topic)):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        end = admin.list_offsets({tp: -1})[tp].offset
    with semel.Consumer(node.bootstrap) as consumer:
        consumer.assign([tp])
        consumer.seek(tp, 0)
        values: list[bytes | None] = []
        while (consumer.position(tp) or 0) < end:
            values += [record.value for record in consumer.poll(0.05) or ()]
    return values


def test_T13_a_token_commits_once_and_says_so_the_second_time(node: Broker, topic: str) -> None:
    for run in range(2):
        with producer_of(node, topic) as producer:
            with producer.transaction(token="batch 7", payload=b"1-9", sequence=7) as txn:
                txn.send(topic, b"%d" % run)
                with pytest.raises(UsageError, match="once the transaction's block has ended"):
                    txn.already_committed  # noqa: B018
            assert txn.already_committed is (run == 1)
    assert committed_values(node, topic) == [b"0"]


def test_E5_the_last_commit_is_known_to_later_instances(node: Broker, topic: str) -> None:
    with producer_of(node, topic) as producer:
        assert producer.last_commit() is None
        with producer.transaction() as txn:
            txn.send(topic, b"without a token")
        for number in (1, 2):
            with producer.transaction(token=f"batch {number}", payload=b"p", sequence=number) as txn:
                txn.send(topic, b"%d" % number)
        producer.begin_transaction()
        producer.send(topic, b"never committed")
    with producer_of(node, topic) as later:
        last = later.last_commit()
        assert last is not None
        assert (last.token, last.payload, last.sequence, last.attempt) == ("batch 2", b"p", 2, "")
    with semel.Admin(node.bootstrap) as admin:
        assert [commit.token for commit in admin.commits(topic)] == ["batch 1", "batch 2"]
        assert admin.commits("nobody") == []


def test_T13_another_payload_or_an_old_sequence_is_fatal_and_the_producer_goes_on(node: Broker, topic: str) -> None:
    with producer_of(node, topic) as producer:
        with producer.transaction(token="a", payload=b"1", sequence=5) as txn:
            txn.send(topic, b"a")
        for arguments in ({"token": "a", "payload": b"2", "sequence": 5}, {"token": "b", "sequence": 5}):
            with (
                pytest.raises(FatalError, match="Was a checkpoint rolled back") as caught,
                producer.transaction(**arguments) as txn,  # type: ignore[arg-type]
            ):
                txn.send(topic, b"never")
            assert caught.value.code is ErrorCode.INVALID_TXN_STATE
        with producer.transaction(token="b", sequence=6) as txn:
            txn.send(topic, b"b")
    assert committed_values(node, topic) == [b"a", b"b"]


def test_T13_a_transaction_of_nothing_is_remembered_by_its_token(node: Broker, topic: str) -> None:
    with producer_of(node, topic) as producer:
        with producer.transaction(token="nothing to do") as txn:
            pass
        assert not txn.already_committed
        with producer.transaction(token="nothing to do") as txn:
            txn.send(topic, b"never")
        assert txn.already_committed
        with producer.transaction() as txn:
            txn.send(topic, b"next")
    assert committed_values(node, topic) == [b"next"]


def test_T13_commit_transaction_says_whether_it_was_this_one(node: Broker, topic: str) -> None:
    with producer_of(node, topic) as producer:
        for expected in (True, False):
            producer.begin_transaction()
            producer.send(topic, b"once")
            assert producer.commit_transaction(token="t") is expected
    assert committed_values(node, topic) == [b"once"]


def test_T13_tokens_from_asyncio(node: Broker, topic: str) -> None:
    async def run() -> list[bool]:
        async with semel.aio.Producer(node.bootstrap, transactional_id=topic) as producer:
            told = []
            for _ in range(2):
                async with producer.transaction(token="t") as txn:
                    await txn.send(topic, b"once")
                told.append(txn.already_committed)
            last = await producer.last_commit()
            assert last is not None
            assert last.token == "t"
            async with semel.aio.Admin(node.bootstrap) as admin:
                assert await admin.commits(topic) == [last]
                assert (await admin.shared_transaction(topic)).decisions == (last,)
        return told

    assert asyncio.run(run()) == [False, True]
    assert committed_values(node, topic) == [b"once"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"token": ""}, "token must not be empty"),
        ({"token": 5}, "token must be text"),
        ({"token": "t", "payload": "text"}, "payload is bytes"),
        ({"token": "t", "payload": bytes(65537)}, "65536 at most"),
        ({"token": "t", "sequence": -1}, "sequence must be between 0"),
        ({"payload": b"x"}, "are recorded with a token"),
        ({"sequence": 1}, "are recorded with a token"),
    ],
)
def test_bad_tokens_are_refused_at_once(arguments: dict[str, Any], message: str) -> None:
    producer = semel.Producer("localhost:1", transactional_id="t")
    with pytest.raises(UsageError, match=message):
        producer.transaction(**arguments)
    producer.close()


# --- Prepared transactions --------------------------------------------------------------------------------------------


def prepared_and_gone(node: Broker, topic: str, value: bytes = b"prepared") -> semel.PreparedTransaction:
    """Prepare a transaction and leave, as a process does that dies before the decision."""
    producer = producer_of(node, topic, two_phase=True)
    producer.init_transactions(keep_prepared=True)
    producer.begin_transaction()
    producer.send(topic, value)
    prepared = producer.prepare_transaction()
    producer.close()
    return prepared


@pytest.mark.parametrize("decided", [True, False])
def test_a_prepared_transaction_ends_as_was_decided_after_a_restart(node: Broker, topic: str, decided: bool) -> None:
    stored = str(prepared_and_gone(node, topic)) if decided else None
    if not decided:
        prepared_and_gone(node, topic)
    assert committed_values(node, topic) == []
    with producer_of(node, topic, two_phase=True) as producer:
        kept = producer.init_transactions(keep_prepared=True)
        assert kept is not None
        assert stored in (None, str(kept))
        producer.complete_transaction(stored)
        producer.complete_transaction(stored)  # nothing is open any more
        producer.begin_transaction()
        producer.send(topic, b"next")
        producer.commit_transaction()
    assert committed_values(node, topic) == ([b"prepared", b"next"] if decided else [b"next"])


def test_another_prepared_transaction_than_the_decided_one_is_aborted(node: Broker, topic: str) -> None:
    """The database knows the one before: the process died before it stored the decision about this one."""
    before = prepared_and_gone(node, topic, b"first")
    with producer_of(node, topic, two_phase=True) as producer:
        producer.init_transactions(keep_prepared=True)
        producer.complete_transaction(before)
        producer.begin_transaction()
        producer.send(topic, b"second")
        assert producer.prepare_transaction() != before
    with producer_of(node, topic, two_phase=True) as producer:
        assert producer.init_transactions(keep_prepared=True) is not None
        producer.complete_transaction(before)
    assert committed_values(node, topic) == [b"first"]


@pytest.mark.parametrize("commit", [True, False])
def test_what_was_kept_can_be_ended_by_hand(node: Broker, topic: str, commit: bool) -> None:
    prepared_and_gone(node, topic)
    with producer_of(node, topic, two_phase=True) as producer:
        producer.init_transactions(keep_prepared=True)
        with pytest.raises(UsageError, match="a transaction is prepared on this producer"):
            producer.begin_transaction()
        if commit:
            producer.commit_transaction()
        else:
            producer.abort_transaction()
    assert committed_values(node, topic) == ([b"prepared"] if commit else [])


def test_without_keeping_it_what_is_prepared_is_aborted(node: Broker, topic: str) -> None:
    prepared_and_gone(node, topic)
    with producer_of(node, topic, two_phase=True) as producer:
        assert producer.init_transactions() is None
        producer.complete_transaction(None)
    assert committed_values(node, topic) == []


def test_a_block_prepares_and_commits_and_stays_prepared_when_the_decision_fails(node: Broker, topic: str) -> None:
    with producer_of(node, topic, two_phase=True) as producer:
        producer.init_transactions()
        with producer.transaction() as txn:
            txn.send(topic, b"a")
            txn.prepare()
            with pytest.raises(UsageError, match="nothing can be added to it"):
                txn.send(topic, b"too late")
        prepared = []

        def decide_in_vain() -> None:
            with producer.transaction() as txn:
                txn.send(topic, b"b")
                prepared.append(txn.prepare())
                raise ZeroDivisionError("the database went away amid its commit")

        with pytest.raises(ZeroDivisionError):
            decide_in_vain()
    with producer_of(node, topic, two_phase=True) as producer:
        assert [producer.init_transactions(keep_prepared=True)] == prepared
        producer.complete_transaction(*prepared)
    assert committed_values(node, topic) == [b"a", b"b"]


def test_an_older_instance_is_fenced_from_what_a_newer_one_took_over(node: Broker, topic: str) -> None:
    older = producer_of(node, topic, two_phase=True)
    older.init_transactions()
    older.begin_transaction()
    older.send(topic, b"prepared")
    prepared = older.prepare_transaction()
    with producer_of(node, topic, two_phase=True) as newer:
        assert newer.init_transactions(keep_prepared=True) == prepared
        with pytest.raises(FencedError):
            older.abort_transaction()
        older.close()
        newer.commit_transaction()
    assert committed_values(node, topic) == [b"prepared"]


def test_a_prepared_transaction_of_nothing_commits(node: Broker, topic: str) -> None:
    with producer_of(node, topic, two_phase=True) as producer:
        producer.init_transactions()
        for end in (producer.commit_transaction, producer.abort_transaction):
            producer.begin_transaction()
            prepared = producer.prepare_transaction()
            assert producer.prepare_transaction() == prepared
            end()
        producer.begin_transaction()
        producer.send(topic, b"a")
        producer.commit_transaction()
    assert committed_values(node, topic) == [b"a"]


def test_T13_a_prepared_transaction_commits_with_a_token(node: Broker, topic: str) -> None:
    prepared_and_gone(node, topic)
    with producer_of(node, topic, two_phase=True) as producer:
        producer.init_transactions(keep_prepared=True)
        assert producer.commit_transaction(token="t")
        last = producer.last_commit()
        assert last is not None
        assert last.token == "t"


def test_prepared_transactions_from_asyncio(node: Broker, topic: str) -> None:
    async def run() -> None:
        async with semel.aio.Producer(node.bootstrap, transactional_id=topic, two_phase=True) as producer:
            await producer.init_transactions()
            async with producer.transaction() as txn:
                await txn.send(topic, b"a")
                await txn.prepare()
            await producer.begin_transaction()
            await (await producer.send(topic, b"b"))
            prepared = await producer.prepare_transaction()
        async with semel.aio.Producer(node.bootstrap, transactional_id=topic, two_phase=True) as producer:
            assert await producer.init_transactions(keep_prepared=True) == prepared
            await producer.complete_transaction(str(prepared))

    asyncio.run(run())
    assert committed_values(node, topic) == [b"a", b"b"]


def test_a_record_that_failed_can_not_be_prepared(node: Broker, topic: str) -> None:
    with semel.Admin(node.bootstrap) as admin:
        admin.alter_topic_configs(topic, changes={"max.message.bytes": "2000"})
    with producer_of(node, topic, two_phase=True) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, bytes(3_000))
        with pytest.raises(AbortTransactionError):
            producer.prepare_transaction()
        producer.abort_transaction()


def test_prepared_transactions_are_asked_for_on_purpose(node: Broker, topic: str) -> None:
    with pytest.raises(UsageError, match="which need a transactional_id"):
        semel.Producer(node.bootstrap, two_phase=True)
    with producer_of(node, topic) as producer:
        for call in (
            producer.prepare_transaction,
            lambda: producer.complete_transaction("7:3"),
            lambda: producer.init_transactions(keep_prepared=True),
        ):
            with pytest.raises(UsageError, match="two_phase=True"):
                call()
    with producer_of(node, topic, two_phase=True) as producer:
        with pytest.raises(UsageError, match=r"call init_transactions\(keep_prepared=True\)"):
            producer.begin_transaction()
        producer.init_transactions()
        with pytest.raises(UsageError, match="such as \"7:3\", not 'seven'"):
            producer.complete_transaction("seven")
        producer.begin_transaction()
        with pytest.raises(UsageError, match="nothing prepared"):
            producer.complete_transaction("7:3")


def test_a_node_that_allows_no_two_phase_producer_says_which_setting_does() -> None:
    with (
        Broker() as strict,
        producer_of(strict, "bank", two_phase=True) as producer,
        pytest.raises(FatalError, match=r"transaction\.two\.phase\.commit\.enable to true"),
    ):
        producer.init_transactions()
