"""`Consumer.run`: what a handler gets and returns, how a run ends, and its options (E1)."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from run_kit import DEAD, IN, OUT, QUICK, WAIT_S, Kit, wait_until

import semel
from semel.protocol.errors import UsageError
from semel.testing import Broker

# --- What a handler gets and returns ----------------------------------------------------------------------------------


def test_E1_what_the_handler_returns_is_committed_with_the_offsets(kit: Kit) -> None:
    kit.fill(b"a", b"b", b"c")
    kit.fill(b"d", partition=1)
    done = kit.run(kit.enriched)
    kit.out(b"<a>", b"<b>", b"<c>", b"<d>")
    assert kit.stands_at() == {0: 3, 1: 1}
    assert (done.records, done.sent, done.aborted, done.dead_letters) == (4, 4, 0, 0)
    assert kit.run(kit.enriched).records == 0


FORBIDDEN: dict[str, Callable[[Any, semel.TopicPartition], Any]] = {
    "poll": lambda consumer, tp: consumer.poll(0),
    "iterate": lambda consumer, tp: next(iter(consumer)),
    "commit": lambda consumer, tp: consumer.commit(),
    "commit offsets": lambda consumer, tp: consumer.commit({tp: 1}),
    "commit_async": lambda consumer, tp: consumer.commit_async(),
    "seek": lambda consumer, tp: consumer.seek(tp, 3),
    "seek_to_end": lambda consumer, tp: consumer.seek_to_end(),
    "seek_to_timestamp": lambda consumer, tp: consumer.seek_to_timestamp(0),
    "subscribe": lambda consumer, tp: consumer.subscribe(["other"]),
    "assign": lambda consumer, tp: consumer.assign([tp]),
    "unsubscribe": lambda consumer, tp: consumer.unsubscribe(),
    "run": lambda consumer, tp: consumer.run(print),
}


@pytest.mark.parametrize("what", FORBIDDEN)
def test_E1_a_handler_cannot_move_or_commit_the_consumer_of_its_run(shared: Broker, what: str) -> None:
    """A commit of all that was polled, ahead of the transaction, lost what was not handled yet after a crash."""
    kit = Kit(shared, "sync")
    kit.fill(b"a", b"b", b"c")
    said: list[str] = []

    def handler(record: semel.Record) -> semel.ProducerRecord:
        try:
            FORBIDDEN[what](kit.consumer, semel.TopicPartition(record.topic, 0))
        except UsageError as error:
            said.append(str(error))
        return kit.enriched(record)

    kit.run(handler)
    assert len(said) == 3
    assert all("its handler can't: return the records to send" in one for one in said)
    kit.out(b"<a>", b"<b>", b"<c>")
    assert kit.stands_at() == {0: 3}


def test_after_a_run_the_consumer_polls_and_commits_again(shared: Broker) -> None:
    kit = Kit(shared, "sync")
    kit.fill(b"a")
    with semel.Consumer(shared.bootstrap, group=kit.group, topics=[kit.topics[IN]]) as consumer:
        assert consumer.run(kit.enriched, **QUICK).records == 1
        kit.fill(b"b")
        batch = consumer.poll(WAIT_S)
        assert batch is not None
        consumer.commit()
    assert kit.stands_at() == {0: 2}


def test_a_handler_may_return_several_records_a_generator_or_nothing(kit: Kit) -> None:
    kit.fill(b"none", b"list", b"yield")

    def handler(record: semel.Record) -> Any:
        if record.value == b"none":
            return None
        two = [kit.enriched(record), semel.ProducerRecord(kit.topics[DEAD], b"second")]
        return two if record.value == b"list" else (each for each in two)

    assert kit.run(handler).sent == 4
    kit.out(b"<list>", b"<yield>")
    kit.out(b"second", b"second", topic=DEAD)


def test_the_handler_of_the_asyncio_api_may_be_a_coroutine(shared: Broker) -> None:
    kit = Kit(shared, "aio")
    kit.fill(b"a")

    async def handler(record: semel.Record) -> semel.ProducerRecord:
        await asyncio.sleep(0)
        return kit.enriched(record)

    kit.run(handler)
    kit.out(b"<a>")


def test_json_in_and_json_out_is_one_word_each(kit: Kit) -> None:
    kit.fill(b'{"price": 2}')

    def handler(record: semel.Record) -> semel.ProducerRecord:
        return semel.ProducerRecord(kit.topics[OUT], {"double": record.value["price"] * 2})

    kit.run(handler, consumer={"value_deserializer": "json"}, producer={"value_serializer": "json"})
    kit.out(b'{"double":4}')


@pytest.mark.parametrize("wrong", [b"bytes", {"value": 1}, [b"x"], 7])
def test_a_result_that_is_no_record_to_send_is_a_mistake_in_the_program(kit: Kit, wrong: Any) -> None:
    kit.fill(b"a")
    with pytest.raises(UsageError, match=r"a handler returns a semel.ProducerRecord\(topic, value, key=...\)"):
        kit.run(lambda _: wrong)
    kit.out()
    assert kit.stands_at() == {}


def test_an_output_for_a_topic_that_does_not_exist_ends_the_run(kit: Kit) -> None:
    kit.fill(b"a")
    with pytest.raises(semel.FatalError, match="nowhere"):
        kit.run(lambda _: semel.ProducerRecord("nowhere", b"x"))
    assert kit.stands_at() == {}


# --- How it ends ------------------------------------------------------------------------------------------------------


def test_stop_ends_a_run_after_the_record_in_hand_and_commits_it(kit: Kit) -> None:
    kit.fill(b"a", b"b", b"c")

    def handler(record: semel.Record) -> semel.ProducerRecord:
        if record.value == b"b":
            kit.consumer.stop()
        return kit.enriched(record)

    done = kit.run(handler, idle_timeout_s=None)
    assert done.records == 2
    kit.out(b"<a>", b"<b>")
    assert kit.stands_at() == {0: 2}


def test_stop_ends_a_run_that_waits(kit: Kit) -> None:
    kit.fill(b"a")
    handled = threading.Event()
    running = kit.start(lambda record: handled.set() or kit.enriched(record), idle_timeout_s=None)
    assert handled.wait(WAIT_S)
    kit.consumer.stop()
    assert running.result(WAIT_S).records == 1


def test_after_a_stop_no_partition_stays_paused(shared: Broker) -> None:
    kit = Kit(shared, "sync")
    kit.fill(b"bad")

    def failing(record: semel.Record) -> None:
        raise ValueError("not now")

    with semel.Consumer(shared.bootstrap, group=kit.group, topics=[kit.topics[IN]]) as consumer:
        running = ThreadPoolExecutor(1).submit(
            consumer.run, failing, retry_backoff_ms=600_000, retry_backoff_max_ms=600_000
        )
        wait_until(consumer.paused)
        consumer.stop()
        running.result(WAIT_S)
        assert consumer.paused() == frozenset()
        assert consumer.run(kit.enriched, **QUICK).records == 1
    kit.out(b"<bad>")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_run_after_the_record_in_hand(shared: Broker, number: signal.Signals) -> None:
    kit = Kit(shared, "sync")
    kit.fill(b"a", b"b", b"c")
    before = {one: signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:

        def handler(record: semel.Record) -> semel.ProducerRecord:
            if record.value == b"b":
                os.kill(os.getpid(), number)
            return kit.enriched(record)

        assert kit.run(handler, idle_timeout_s=None, handle_signals=True).records == 2
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        for one, handler_before in before.items():
            signal.signal(one, handler_before)
    kit.out(b"<a>", b"<b>")


def test_a_programs_own_signal_handler_is_left_alone(shared: Broker) -> None:
    kit = Kit(shared, "sync")
    kit.fill(b"a")
    seen: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: seen.append(number))
    try:

        def handler(record: semel.Record) -> semel.ProducerRecord:
            os.kill(os.getpid(), signal.SIGTERM)
            return kit.enriched(record)

        assert kit.run(handler, handle_signals=True).records == 1
    finally:
        signal.signal(signal.SIGTERM, before)
    assert seen == [signal.SIGTERM]


def test_progress_is_logged_with_rate_and_lag(kit: Kit, caplog: pytest.LogCaptureFixture) -> None:
    kit.fill(b"a", b"b")
    with caplog.at_level(logging.INFO, "semel.consumer"):
        kit.run(kit.enriched, progress_interval_s=0.01)
    lines = [line for line in caplog.messages if line.startswith(f"group={kit.group} records=")]
    assert any("records=2" in line and "lag 0" in line for line in lines), caplog.messages
    assert lines[-1].endswith("ended: no record came"), caplog.messages


# --- Options ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "consumer", "message"),
    [
        ({"retries": -1}, {}, "option retries must be between 0"),
        ({"max_records": 0}, {}, "option max_records must be between 1"),
        ({"commit_interval_ms": 0}, {}, "option commit_interval_ms must be between 1"),
        ({"idle_timeout_s": -1}, {}, "idle_timeout_s must be seconds"),
        ({"handle_signals": "no"}, {}, "option handle_signals must be True or False"),
        ({"producer": {"acks": 1}}, {}, "option producer can't set acks: transactions need all"),
        ({"producer": {"linger": 1}}, {}, "did you mean 'linger_ms'"),
        ({"producer": "json"}, {}, "option producer takes options of a Producer"),
        ({"producer": {"value_serializer": "avro"}}, {}, 'value_serializer must be a function, "json" or "text"'),
        ({"dead_letter_topic": ""}, {}, "option dead_letter_topic must not be empty"),
        ({}, {"auto_commit_interval_ms": 5}, "leave auto_commit_interval_ms out"),
        ({}, {"group": None, "topics": None}, r"run\(\) commits offsets for a group"),
    ],
)
def test_wrong_options_of_a_run_are_refused(
    kit: Kit, options: dict[str, Any], consumer: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        kit.run(kit.enriched, consumer=consumer, **options)


def test_dead_letters_cannot_go_to_a_topic_that_is_read(kit: Kit) -> None:
    with pytest.raises(UsageError, match="among the topics that are read"):
        kit.run(kit.enriched, dead_letter_topic=kit.topics[IN])


@pytest.mark.parametrize("how", ["pattern", "assign"])
def test_dead_letters_cannot_go_to_a_topic_that_a_pattern_or_an_assignment_reads(shared: Broker, how: str) -> None:
    kit = Kit(shared, "sync")
    pattern = "orders.*" if how == "pattern" else None
    with semel.Consumer(shared.bootstrap, group=kit.group, pattern=pattern) as consumer:
        if how == "assign":
            consumer.assign([semel.TopicPartition(kit.topics[DEAD], 0)])
        with pytest.raises(UsageError, match="among the topics that are read"):
            consumer.run(kit.enriched, dead_letter_topic=kit.topics[DEAD])


def test_a_missing_topic_for_dead_letters_is_found_at_the_start(kit: Kit) -> None:
    kit.fill(b"a")
    with pytest.raises(semel.FatalError, match="not-there"):
        kit.run(kit.enriched, dead_letter_topic="not-there")
    kit.out()


def test_a_handler_is_a_function(kit: Kit) -> None:
    with pytest.raises(UsageError, match=r"run\(\) takes a function that gets a record"):
        kit.run("handler")  # type: ignore[arg-type]
