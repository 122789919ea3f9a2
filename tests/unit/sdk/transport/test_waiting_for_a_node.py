"""Programs that start before their node: each client waits for as long as its call may take, and says so in the log.

The clients' clock is moved by hand, so what "more than a minute" means needs no minute.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy as sa

import semel
from semel.protocol.errors import UsageError
from semel.runtime.clock import ManualClock
from semel.sdk.transport import surroundings
from semel.sdk.transport.io_thread import IoThread
from semel.sdk.transport.outage import WARN_EVERY_S, Outage
from semel.sdk.transport.unreachable import Trouble
from semel.testing import Broker

WAIT_S = 60
HOUR_MS = 3_600_000
TP = semel.TopicPartition("orders", 0)
GONE = "refuses connections"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    """The clock of all clients that the test makes."""
    clock = ManualClock()
    monkeypatch.setattr(surroundings, "_MACHINE", surroundings.Surroundings(clock, IoThread))
    return clock


@pytest.fixture
def broker() -> Iterator[Broker]:
    """A broker with one record, that is not running; its addresses are known."""
    with Broker() as broker:
        broker.create_topic("orders", partitions=1)
        with semel.Producer(broker.bootstrap) as producer:
            producer.send("orders", b"first")
        broker.stop()
        yield broker


@pytest.fixture
def failures(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """How many attempts of each client have failed."""
    counted: Counter[int] = Counter()
    failed = Outage.failed

    def count(self: Outage, address: str, trouble: Trouble) -> None:
        failed(self, address, trouble)
        counted[id(self)] += 1

    monkeypatch.setattr(Outage, "failed", count)
    return counted


def wait_until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.005)


def lines(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.name == "semel.client" and one.levelno == level]


def list_topics(address: str) -> object:
    with semel.Admin(address, api_timeout_ms=HOUR_MS) as admin:
        return [topic.name for topic in admin.topics()]


def send(address: str) -> object:
    with semel.Producer(address, max_block_ms=HOUR_MS, delivery_timeout_ms=HOUR_MS) as producer:
        return producer.send("orders", b"second").result(WAIT_S).offset


def send_in_a_transaction(address: str) -> object:
    with (
        semel.Producer(address, max_block_ms=HOUR_MS, transactional_id="enrich-0") as producer,
        producer.transaction() as txn,
    ):
        return txn.send("orders", b"second") is not None


def open_shared(address: str) -> object:
    return semel.SharedTransaction.open(address, "nightly", token="1", max_block_ms=HOUR_MS).committed


def poll(address: str) -> object:
    with semel.Consumer(address, group="enrich", topics=["orders"]) as consumer:
        batch = consumer.poll()
        return None if batch is None else [record.value for record in batch]


def poll_pattern(address: str) -> object:
    with semel.Consumer(address, group="enrich", pattern="ord.*") as consumer:
        batch = consumer.poll()
        return None if batch is None else [record.value for record in batch]


def poll_assigned(address: str) -> object:
    with semel.Consumer(address) as consumer:
        consumer.assign([TP])
        return next(iter(consumer)).value


def in_asyncio(address: str) -> object:
    async def run() -> object:
        async with (
            semel.aio.Admin(address, api_timeout_ms=HOUR_MS) as admin,
            semel.aio.Producer(address, max_block_ms=HOUR_MS) as producer,
            semel.aio.Consumer(address, group="enrich", topics=["orders"]) as consumer,
        ):
            topics, delivery, batch = await asyncio.gather(
                admin.topics(), producer.send("orders", b"second"), consumer.poll()
            )
            assert batch is not None
            return [topic.name for topic in topics], delivery is not None, batch.records[0].value

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("use", "expected"),
    [
        (list_topics, ["orders"]),
        (send, 1),
        (send_in_a_transaction, True),
        (open_shared, None),
        (poll, [b"first"]),
        (poll_pattern, [b"first"]),
        (poll_assigned, b"first"),
        (in_asyncio, (["orders"], True, b"first")),
    ],
)
def test_a_program_that_started_before_its_node_ended_with_an_error_after_three_seconds(
    use: Callable[[str], object],
    expected: object,
    broker: Broker,
    clock: ManualClock,
    failures: Counter[int],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "semel.client")
    address = broker.bootstrap
    clients = 3 if use is in_asyncio else 1
    with ThreadPoolExecutor(1) as pool:
        using: Future[object] = pool.submit(use, address)
        try:
            for _ in range(4):  # each has failed, and fails again after each jump of the clock
                failures.clear()
                wait_until(lambda: len(failures) == clients or using.done(), "no attempt")
                assert not using.done(), using.exception()
                clock.advance(ms=20_000)
        finally:
            broker.start()

        def is_done() -> bool:
            clock.advance(ms=10)  # for what lingers
            return using.done()

        wait_until(is_done, "no result")
        assert using.result() == expected
    warnings = [line for line in lines(caplog, logging.WARNING) if not line.startswith(f"{address} answers, after ")]
    assert len(warnings) >= 3 * clients
    assert all(line.startswith(f"{address} {GONE}, still trying (") for line in warnings), warnings
    assert any(line.startswith(f"{address} answers, after ") for line in lines(caplog, logging.WARNING))


def test_the_log_has_a_line_each_few_seconds_and_one_when_a_node_answers(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "semel.client")
    clock = ManualClock()
    outage = Outage(clock)
    for _ in range(13):
        outage.failed("a:1", Trouble.REFUSED)
        clock.advance(ms=1_000)
    outage.failed("b:2", Trouble.SILENT)
    outage.ended("b:2")
    assert lines(caplog, logging.WARNING) == [
        "a:1 refuses connections, still trying (3 s)",
        "a:1 refuses connections, still trying (6 s)",
        "a:1 refuses connections, still trying (9 s)",
        "a:1 refuses connections, still trying (12 s)",
        "b:2 answers, after 13 s",
    ], "the end has the level of the trouble, or it looks as if there were no end"


def test_a_short_outage_is_no_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "semel.client")
    clock = ManualClock()
    outage = Outage(clock)
    outage.failed("a:1", Trouble.REFUSED)
    clock.advance(ms=int(WARN_EVERY_S * 1000) - 1)
    outage.failed("a:1", Trouble.REFUSED)
    outage.ended("a:1")
    clock.advance(ms=HOUR_MS)
    outage.failed("a:1", Trouble.REFUSED)
    clock.advance(ms=HOUR_MS)
    outage.failed("a:1", Trouble.REFUSED)  # nobody has tried in between: a new one
    assert caplog.records == []


# --- Polls ------------------------------------------------------------------------------------------------------------


def test_polls_of_a_consumer_without_a_node_end_alike_and_the_log_says_why(
    broker: Broker, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """They were None four times, then an error, and None again; the log was empty."""
    with semel.Consumer(broker.bootstrap, group="enrich", topics=["orders"], api_timeout_ms=1_000) as consumer:
        ends: list[object] = []
        while not lines(caplog, logging.WARNING):
            ends.append(consumer.poll(0))
            assert len(ends) < WAIT_S * 1000, "no warning"
            clock.advance(ms=100)
            time.sleep(0.001)
        assert set(ends) == {None}
        broker.start()
        batch = consumer.poll()
        assert batch is not None
        assert [record.value for record in batch] == [b"first"]


def test_polls_of_a_consumer_with_a_wrong_address_end_alike(clock: ManualClock) -> None:
    with semel.Consumer("no-such-host.invalid:9094", group="enrich", topics=["orders"]) as consumer:
        first: list[str] = []

        def has_failed() -> bool:
            clock.advance(ms=100)
            try:
                assert consumer.poll(0) is None
            except semel.UnreachableError as error:
                first.append(str(error))
            return bool(first)

        wait_until(has_failed, "no error")
        assert first[0].startswith("there is no host 'no-such-host.invalid'")
        for timeout_s in (0, 0, 0.2, None, 0):
            with pytest.raises(semel.UnreachableError) as again:
                consumer.poll(timeout_s)
            assert str(again.value) == first[0]


def test_batches_that_end_before_a_node_has_answered_are_an_error(broker: Broker) -> None:
    """A program that reads until nothing comes would take a dead node for an empty topic."""
    with semel.Consumer(broker.bootstrap, group="enrich", topics=["orders"]) as consumer:
        wait_until(lambda: consumer._core.client.control.outage.in_short or consumer.poll(0), "no attempt")
        expected = f"no node has answered yet: {broker.bootstrap} {GONE}"
        with pytest.raises(semel.UnreachableError, match=expected):
            list(consumer.batches(timeout_s=0.1))


def test_a_sink_that_ends_before_a_node_has_answered_says_so(broker: Broker, tmp_path: Path) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path}/shop.db")
    sink = semel.sql.Sink(broker.bootstrap, engine, group="g", topics=["orders"])
    sink.create_tables()
    with (
        sink,
        pytest.raises(semel.UnreachableError, match="whether there is anything to read is not known"),
    ):
        list(sink.batches(timeout_s=0.5))
    engine.dispose()


# --- What does not wait -----------------------------------------------------------------------------------------------


def test_a_connect_timeout_bounds_the_first_contact_of_each_client(broker: Broker, clock: ManualClock) -> None:
    options = {"connect_timeout_ms": 5_000, "api_timeout_ms": HOUR_MS}
    with semel.Admin(broker.bootstrap, **options) as admin:
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(admin.topics)
            wait_until(lambda: admin._core.client.control.outage.in_short, "no attempt")
            assert not asked.done()
            clock.advance(ms=5_000)
            with pytest.raises(semel.UnreachableError, match="nothing listens on"):
                asked.result(WAIT_S)
        with pytest.raises(semel.UnreachableError):  # at the first attempt: the clock stands still
            admin.topics()
        broker.start()
        topics: list[str] = []
        while not topics:
            with contextlib.suppress(semel.UnreachableError):
                topics = [topic.name for topic in admin.topics()]
        assert topics == ["orders"]


def test_a_connect_timeout_that_is_no_time_is_refused() -> None:
    for wrong in (0, "3s", True):
        with pytest.raises(UsageError, match="option connect_timeout_ms must be"):
            semel.Admin(connect_timeout_ms=wrong)  # type: ignore[arg-type]


def test_one_address_that_may_be_a_nodes_keeps_the_client_trying(broker: Broker, clock: ManualClock) -> None:
    """Of two addresses one has no host; the other one's node is about to start."""
    addresses = f"no-such-host.invalid:9094,{broker.bootstrap}"
    with (
        semel.Admin(addresses, api_timeout_ms=HOUR_MS) as admin,
        ThreadPoolExecutor(1) as pool,
    ):
        asked = pool.submit(admin.topics)
        wait_until(lambda: "," in admin._core.client.control.outage.in_short, "not both were tried")
        clock.advance(ms=60_000)
        time.sleep(0.2)
        assert not asked.done(), asked.exception()
        broker.start()
        assert [topic.name for topic in asked.result(WAIT_S)] == ["orders"]
