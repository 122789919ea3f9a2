"""`Consumer.run`, where a handler, a node or a transaction fails: each record is there once all the same (E1)."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from run_kit import DEAD, IN, OUT, QUICK, WAIT_S, Kit, wait_until

import semel
from semel.protocol.errors import UsageError
from semel.testing import Broker

# --- Failures of the handler ------------------------------------------------------------------------------------------


def test_a_record_that_fails_is_handled_again_and_only_its_partition_waits(kit: Kit) -> None:
    kit.fill(b"a", b"bad", b"c")
    kit.fill(b"x", b"y", partition=1)
    seen: list[bytes | None] = []

    def handler(record: semel.Record) -> semel.ProducerRecord:
        seen.append(record.value)
        if record.value == b"bad" and b"y" not in seen:
            raise ValueError("not before y")
        return kit.enriched(record)

    done = kit.run(handler, retries=1_000)
    kit.out(b"<a>", b"<bad>", b"<c>", b"<x>", b"<y>")
    assert done.retries == seen.count(b"bad") - 1
    assert seen.index(b"c") > max(index for index, value in enumerate(seen) if value == b"bad")
    assert [each for each in seen if each != b"bad"] == sorted({*seen} - {b"bad"}, key=seen.index)


def test_a_partition_whose_record_waits_is_not_read_and_not_handled_before_its_time(kit: Kit) -> None:
    kit.fill(b"bad")
    calls = Counter[bytes]()

    def handler(record: semel.Record) -> semel.ProducerRecord:
        calls[record.value] += 1
        if record.value == b"bad":
            raise ValueError("not now")
        kit.consumer.resume()  # as a rebalance does, which gives partitions back that are not paused
        return kit.enriched(record)

    running = kit.start(handler, retry_backoff_ms=600_000, retry_backoff_max_ms=600_000, idle_timeout_s=None)
    tp = semel.TopicPartition(kit.topics[IN], 0)
    for value in (b"1", b"2"):
        wait_until(lambda: kit.consumer is not None and kit.consumer.paused() == {tp})
        kit.fill(value, partition=1)
        wait_until(lambda value=value: calls[value] == 1)  # type: ignore[misc]
    wait_until(lambda: kit.consumer.paused() == {tp})
    kit.consumer.stop()
    assert running.result(WAIT_S).records == 2
    assert calls[b"bad"] == 1


def test_E1_a_record_that_always_fails_becomes_one_dead_letter_with_its_reason(kit: Kit) -> None:
    kit.fill(b"a", b"bad", b"c")
    calls = Counter[bytes]()

    def handler(record: semel.Record) -> semel.ProducerRecord:
        calls[record.value] += 1
        if record.value == b"bad":
            raise ValueError("no price")
        return kit.enriched(record)

    done = kit.run(handler, retries=2, dead_letter_topic=kit.topics[DEAD])
    kit.out(b"<a>", b"<c>")
    (letter,) = kit.broker.records(kit.topics[DEAD], at_least=1)
    headers = dict(letter.headers)
    assert (letter.key, letter.value) == (b"bad", b"bad")
    assert headers["from"] == b"test"
    assert headers["semel.error.reason"] == b"ValueError: no price"
    assert headers["semel.source.offset"] == b"1"
    assert (done.records, done.sent, done.dead_letters, done.retries) == (3, 3, 1, 2)
    assert calls == {b"a": 1, b"bad": 3, b"c": 1}
    assert kit.stands_at() == {0: 3}


def test_without_a_topic_for_dead_letters_the_run_ends_at_the_record_with_all_before_it_committed(kit: Kit) -> None:
    kit.fill(b"a", b"bad", b"c")

    def handler(record: semel.Record) -> semel.ProducerRecord:
        if record.value == b"bad":
            raise ValueError("no price")
        return kit.enriched(record)

    with pytest.raises(semel.RecordFailedError, match=r"record .*-0@1 failed 2 times: ValueError: no price") as caught:
        kit.run(handler, retries=1)
    assert caught.value.record.value == b"bad"
    kit.out(b"<a>")
    assert kit.stands_at() == {0: 1}
    kit.run(kit.enriched)
    kit.out(b"<a>", b"<bad>", b"<c>")


def test_after_a_run_that_failed_the_next_one_of_the_consumer_begins_with_the_record(kit: Kit) -> None:
    kit.fill(b"bad", b"c")

    def failing(record: semel.Record) -> None:
        raise ValueError("no price")

    def both(consumer: Any, run: Callable[..., Any]) -> None:
        with pytest.raises(semel.RecordFailedError):
            run(consumer.run(failing, **{**QUICK, "retries": 1}))
        assert consumer.paused() == frozenset()
        assert run(consumer.run(kit.enriched, **QUICK)).records == 2

    options = {"group": kit.group, "topics": [kit.topics[IN]], "heartbeat_interval_ms": 20}
    if kit.face == "aio":
        with asyncio.Runner() as runner:

            async def made() -> Any:
                return semel.aio.Consumer(kit.broker.bootstrap, **options)

            consumer = runner.run(made())
            both(consumer, runner.run)
            runner.run(consumer.close())
    else:
        with semel.Consumer(kit.broker.bootstrap, **options) as consumer:
            with pytest.raises(semel.RecordFailedError):
                consumer.run(failing, **{**QUICK, "retries": 1})
            assert consumer.paused() == frozenset()
            assert consumer.run(kit.enriched, **QUICK).records == 2
    kit.out(b"<bad>", b"<c>")


def test_a_run_ends_when_the_record_that_failed_is_gone(kit: Kit) -> None:
    kit.fill(b"bad")
    tp = semel.TopicPartition(kit.topics[IN], 0)

    def handler(record: semel.Record) -> None:
        with semel.Admin(kit.broker.bootstrap) as admin:
            admin.delete_records({tp: 1})
        raise ValueError("never")

    assert kit.run(handler, retries=100).records == 0


class SilentError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize("error", [ValueError("half \udcff"), SilentError()])
def test_whatever_an_error_says_its_record_becomes_a_dead_letter(kit: Kit, error: Exception) -> None:
    kit.fill(b"bad")

    def handler(record: semel.Record) -> None:
        raise error

    assert kit.run(handler, retries=0, dead_letter_topic=kit.topics[DEAD]).dead_letters == 1
    kit.out(b"bad", topic=DEAD)


@pytest.mark.parametrize("topic", ["\udcff", "__consumer_offsets"])
def test_an_output_for_a_topic_that_takes_none_is_the_records_failure(kit: Kit, topic: str) -> None:
    kit.fill(b"bad")
    done = kit.run(lambda _: semel.ProducerRecord(topic, b"x"), retries=0, dead_letter_topic=kit.topics[DEAD])
    assert done.dead_letters == 1
    kit.out(b"bad", topic=DEAD)


def test_a_forgotten_serializer_is_a_mistake_in_the_program(kit: Kit) -> None:
    kit.fill(b"a")
    with pytest.raises(UsageError, match=r'run\(..., producer={"value_serializer": "json"}\)'):
        kit.run(lambda _: semel.ProducerRecord(kit.topics[OUT], {"a": 1}), dead_letter_topic=kit.topics[DEAD])
    kit.out(topic=DEAD)


def test_a_value_that_cannot_be_deserialized_becomes_a_dead_letter_as_it_is(kit: Kit) -> None:
    kit.fill(b'{"id": 1}', b"{not json", b'{"id": 2}')
    kit.run(
        lambda record: semel.ProducerRecord(kit.topics[OUT], str(record.value["id"])),
        retries=0,
        dead_letter_topic=kit.topics[DEAD],
        consumer={"value_deserializer": "json"},
        producer={"value_serializer": "text"},
    )
    kit.out(b"1", b"2")
    kit.out(b"{not json", topic=DEAD)


def test_E1_a_record_half_of_whose_outputs_can_be_sent_sends_none_of_them(kit: Kit) -> None:
    """The second is too large for the producer, when the first is in the transaction already."""
    kit.fill(b"a", b"bad", b"c")

    def handler(record: semel.Record) -> list[semel.ProducerRecord]:
        more = [semel.ProducerRecord(kit.topics[OUT], b"x" * 2_000_000)] if record.value == b"bad" else []
        return [kit.enriched(record), *more]

    done = kit.run(handler, retries=1, dead_letter_topic=kit.topics[DEAD])
    kit.out(b"<a>", b"<c>")
    kit.out(b"bad", topic=DEAD)
    assert done.aborted == 2


UNSENDABLE: dict[str, dict[str, Any]] = {
    "too large": {"value": b"x" * 2_000_000},
    "no such partition": {"partition": 77},
    "partition is text": {"partition": "0"},
    "negative timestamp": {"timestamp_ms": -5},
    "headers": {"headers": 7},
    "topic": {"topic": "no pe"},
}


@pytest.mark.parametrize("what", UNSENDABLE)
def test_E1_several_records_of_a_partition_whose_outputs_cannot_be_sent_become_dead_letters(
    shared: Broker, what: str
) -> None:
    """The failure of the second made the first be forgotten, and the first that of the second, for ever."""
    kit = Kit(shared, "sync")
    kit.fill(b"a", b"bad1", b"bad2", b"b", b"bad3")

    def handler(record: semel.Record) -> semel.ProducerRecord:
        output = kit.enriched(record)
        bad = (record.value or b"").startswith(b"bad")
        return dataclasses.replace(output, **UNSENDABLE[what]) if bad else output

    done = kit.run(handler, retries=1, dead_letter_topic=kit.topics[DEAD])
    assert (done.records, done.dead_letters, done.retries) == (5, 3, 3)
    kit.out(b"<a>", b"<b>")
    kit.out(b"bad1", b"bad2", b"bad3", topic=DEAD)


def test_E1_what_the_node_refuses_is_found_record_by_record(kit: Kit) -> None:
    with semel.Admin(kit.broker.bootstrap) as admin:
        admin.create_topic(kit.topics[OUT] + "-small", configs={"max.message.bytes": "1000"})
    kit.fill(*(b"%d" % number for number in range(20)))
    kit.fill(b"other", partition=1)

    def handler(record: semel.Record) -> semel.ProducerRecord:
        size = 5_000 if record.value == b"13" else 10
        return semel.ProducerRecord(kit.topics[OUT] + "-small", (record.value or b"").ljust(size, b"."))

    done = kit.run(handler, dead_letter_topic=kit.topics[DEAD], producer={"batch_size_bytes": 1})
    found = kit.broker.records(kit.topics[OUT] + "-small", at_least=20)
    assert Counter((record.value or b"").rstrip(b".") for record in found) == Counter(
        [b"%d" % number for number in range(20) if number != 13] + [b"other"]
    )
    kit.out(b"13", topic=DEAD)
    assert done.dead_letters == 1


# --- Failures of everything else --------------------------------------------------------------------------------------


def test_E1_a_lost_answer_to_the_commit_is_asked_for_again(kit: Kit) -> None:
    kit.fill(b"a", b"b")
    quick = {"api_timeout_ms": 300, "request_timeout_ms": 100}
    with kit.broker.drop_commit_answer(times=8) as dropped:
        kit.run(kit.enriched, consumer=quick, idle_timeout_s=3.0)
    assert dropped.count == 8, "more than the producer asks within api_timeout_ms"
    kit.out(b"<a>", b"<b>")


def test_E1_records_whose_transaction_could_not_begin_are_returned_again(
    shared: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit = Kit(shared, "sync")
    kit.fill(b"a", b"b")
    failures = [semel.RetriableError("no coordinator")]
    begin = semel.Producer.begin_transaction

    def begin_transaction(producer: semel.Producer) -> None:
        if failures:
            raise failures.pop()
        begin(producer)

    monkeypatch.setattr(semel.Producer, "begin_transaction", begin_transaction)
    assert kit.run(kit.enriched).records == 2
    assert not failures
    kit.out(b"<a>", b"<b>")


def test_E1_a_node_that_is_killed_under_a_run_is_waited_for(shared: Broker) -> None:
    """One API is enough: what waits is the same for both."""
    with Broker() as broker:
        kit = Kit(broker, "sync")
        kit.fill(*(b"%d" % number for number in range(40)))
        killed = threading.Event()

        def handler(record: semel.Record) -> semel.ProducerRecord:
            if record.value == b"20" and not killed.is_set():
                killed.set()
                broker.restart()
            return kit.enriched(record)

        done = kit.run(handler, max_records=7)
        assert killed.is_set()
        kit.out(*(b"<%d>" % number for number in range(40)))
        assert done.records == 40


def test_E1_a_transaction_that_timed_out_is_run_again(kit: Kit) -> None:
    """The coordinator aborts what takes too long; the producer gets a new epoch, and continues."""
    kit.fill(b"a", b"b")
    name = f"{kit.group}/i0"
    waited = threading.Event()

    def handler(record: semel.Record) -> semel.ProducerRecord:
        if record.value == b"b" and not waited.is_set():
            with semel.Admin(kit.broker.bootstrap) as admin:
                while admin.transaction(name).state != "CompleteAbort":
                    time.sleep(0.01)
            waited.set()
        return kit.enriched(record)

    done = kit.run(
        handler,
        consumer={"instance_id": "i0"},
        producer={"transaction_timeout_ms": 200, "linger_ms": 0, "batch_size_bytes": 1},
        commit_interval_ms=60_000,
    )
    assert done.aborted >= 1
    assert done.records == 2
    kit.out(b"<a>", b"<b>")


def test_T5_a_run_whose_place_is_taken_ends(kit: Kit) -> None:
    kit.fill(b"a")

    def handler(record: semel.Record) -> semel.ProducerRecord:
        kit.broker.fence_producer("enrich-0")
        return kit.enriched(record)

    with pytest.raises(semel.FencedError, match="enrich-0"):
        kit.run(handler, transactional_id="enrich-0")
    kit.out()


def test_T5_O2_a_run_ends_what_its_killed_predecessor_left_open_before_it_reads(kit: Kit) -> None:
    """Killed between its offsets and its commit: the group's position is known only once that transaction has ended."""
    kit.fill(b"a", b"b")
    tp = semel.TopicPartition(kit.topics["orders"], 0)
    killed = semel.Producer(kit.broker.bootstrap, transactional_id=f"{kit.group}/i0", transaction_timeout_ms=900_000)
    killed.begin_transaction()
    killed.send_offsets({tp: 1}, semel.GroupMetadata(kit.group))
    try:
        run = kit.start(kit.enriched, consumer={"instance_id": "i0"})
        assert run.result(WAIT_S).records == 2
    finally:
        with pytest.raises(semel.FencedError):
            killed.commit_transaction()
        killed.close()
    kit.out(b"<a>", b"<b>")


def test_a_run_whose_node_is_away_when_it_starts_can_be_stopped(kit: Kit) -> None:
    kit.fill(b"a")
    with kit.broker.refuse_connections():
        run = kit.start(kit.enriched, idle_timeout_s=None)
        wait_until(lambda: kit.consumer is not None)
        kit.consumer.stop()
        assert run.result(WAIT_S).records == 0
    assert kit.run(kit.enriched).records == 1


def test_E1_two_runs_of_a_group_share_the_work_while_one_comes_and_goes(kit: Kit) -> None:
    kit.fill(*(b"a%d" % number for number in range(150)))
    kit.fill(*(b"b%d" % number for number in range(150)), partition=1)
    first = kit.start(kit.enriched, max_records=3)
    other = Kit.__new__(Kit)
    other.__dict__.update(kit.__dict__)
    second = other.start(kit.enriched, max_records=3)
    done = first.result(WAIT_S), second.result(WAIT_S)
    kit.out(*(b"<a%d>" % number for number in range(150)), *(b"<b%d>" % number for number in range(150)))
    assert sum(each.records for each in done) == 300


def test_E1_a_run_that_ends_in_doubt_leaves_the_records_to_the_next_run_of_the_consumer(shared: Broker) -> None:
    kit = Kit(shared, "sync")
    kit.fill(b"a", b"b")
    quick = {"api_timeout_ms": 200, "request_timeout_ms": 100}
    with semel.Consumer(shared.bootstrap, group=kit.group, topics=[kit.topics[IN]], **quick) as consumer:
        with shared.drop_commit_request(times=10_000) as dropped:
            running = ThreadPoolExecutor(1).submit(consumer.run, kit.enriched, transactional_id=kit.group)
            dropped.wait(3)
            consumer.stop()
            with pytest.raises(semel.RetriableError):
                running.result(WAIT_S)
        kit.fill(b"c")
        assert consumer.run(kit.enriched, transactional_id=kit.group, **QUICK).records == 3
    kit.out(b"<a>", b"<b>", b"<c>")


def test_E1_a_run_that_was_fenced_in_doubt_leaves_the_records_to_the_next_run_of_the_consumer(shared: Broker) -> None:
    kit = Kit(shared, "sync")
    kit.fill(b"a", b"b")
    quick = {"api_timeout_ms": 200, "request_timeout_ms": 100}
    with semel.Consumer(shared.bootstrap, group=kit.group, topics=[kit.topics[IN]], **quick) as consumer:
        with shared.drop_commit_request(times=10_000) as dropped:
            running = ThreadPoolExecutor(1).submit(consumer.run, kit.enriched, transactional_id=kit.group)
            dropped.wait(3)
            shared.fence_producer(kit.group)
        with pytest.raises(semel.FencedError):
            running.result(WAIT_S)
        kit.fill(b"c")
        consumer.run(kit.enriched, transactional_id=f"{kit.group}-next", **QUICK)
    kit.out(b"<a>", b"<b>", b"<c>")


def test_a_slow_record_behind_quick_ones_gets_a_transaction_of_its_own_after_a_timeout(shared: Broker) -> None:
    """The transaction begins with the first output, so that alone the slow record is in time."""
    kit = Kit(shared, "sync")
    kit.fill(b"quick", b"slow")
    name = f"{kit.group}/i0"

    def handler(record: semel.Record) -> semel.ProducerRecord:
        if record.value == b"slow":
            with semel.Admin(shared.bootstrap) as admin:
                while any(one.state == "Ongoing" for one in admin.transactions() if one.transactional_id == name):
                    time.sleep(0.01)
        return kit.enriched(record)

    done = kit.run(
        handler,
        consumer={"instance_id": "i0"},
        producer={"transaction_timeout_ms": 300, "linger_ms": 0, "batch_size_bytes": 1},
        commit_interval_ms=60_000,
    )
    assert done.records == 2
    kit.out(b"<quick>", b"<slow>")
