"""What `semel bench` does: produce, consume, transactions, and end to end, through any `BenchClient`."""

from __future__ import annotations

import random
import string
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle
from typing import Final

from semel.cli.bench.client import BenchClient, BenchConsumer, BenchProducer, ProducerPlan
from semel.cli.bench.measuring import Histogram, Measured, Progress
from semel.protocol.errors import FatalError, RetriableError

SAMPLE_EVERY: Final = 10
"""The latency of every tenth record is measured: measuring each costs as much as sending it."""
LOOK_EVERY: Final = 100
STALLED_S: Final = 30.0
POLL_S: Final = 0.5
IDLE_S: Final = 3.0
"""A topic that is not ours is read to its end where nothing more has come for this long."""
STAMP_BYTES: Final = 16
_VALUES_MAX: Final = 10_000
_VALUES_BYTES_MAX: Final = 16 << 20
_NAP_NS: Final = 500_000


@dataclass(frozen=True, slots=True)
class Load:
    """What is sent: until a count or a duration is reached, whichever is first."""

    record_size: int
    records: int | None
    duration_s: float | None
    rate: float | None
    """Records each second; None: as many as go."""

    def moments(self) -> Iterator[int]:
        """Yield for each record when it is due, in nanoseconds of the performance counter, waiting for it.

        A latency begins there: a record that waits for its turn, because those before it are slow, is late.
        """
        began = now = time.perf_counter_ns()
        end = None if self.duration_s is None else began + int(self.duration_s * 1e9)
        sent = 0
        while (self.records is None or sent < self.records) and (end is None or now < end):
            due = now
            if self.rate is not None:
                due = began + int(sent * 1e9 / self.rate)
                if due - now > _NAP_NS:
                    time.sleep((due - now) / 1e9)
            yield due
            sent += 1
            now = time.perf_counter_ns()


def values(size: int) -> list[bytes]:
    """Return random letters of a size, as often as differ enough: what compression makes of them is near the truth."""
    draw = random.Random(1)  # noqa: S311 (repeatable, not secret)
    count = max(1, min(_VALUES_MAX, _VALUES_BYTES_MAX // size))
    text = "".join(draw.choices(string.ascii_letters, k=size + count * 8)).encode()
    return [text[at * 8 : at * 8 + size] for at in range(count)]


def produce(client: BenchClient, topic: str, plan: ProducerPlan, load: Load) -> Measured:
    """Send records, and wait until they are acknowledged. Latency: from `send` to the acknowledgement."""
    latencies = Histogram()
    failed: list[BaseException] = []
    sent = 0
    with _producing(client, topic, plan) as producer:
        progress = Progress()
        for due, value in zip(load.moments(), cycle(values(load.record_size)), strict=False):
            if sent % SAMPLE_EVERY == 0:
                producer.send(value, _Timer(due, latencies, failed))
            else:
                producer.send(value, None)
            sent += 1
            if sent % LOOK_EVERY == 0 or load.rate is not None:
                progress.show(sent, load.record_size, latencies)
                if failed:
                    raise failed[0]
        producer.flush()
        seconds = time.perf_counter() - progress.began
    return Measured(sent, sent * load.record_size, seconds, latencies)


def transactions(client: BenchClient, topic: str, plan: ProducerPlan, load: Load, each: int) -> Measured:
    """Send transactions of `each` records. Latency: from the begin to the end of the commit."""
    latencies = Histogram()
    sent = committed = began = 0
    with _producing(client, topic, plan) as producer:
        progress = Progress()
        for _, value in zip(load.moments(), cycle(values(load.record_size)), strict=False):
            if sent % each == 0:
                began = time.perf_counter_ns()
                producer.begin()
            producer.send(value, None)
            sent += 1
            if sent % each == 0:
                producer.commit()
                committed += 1
                latencies.add(time.perf_counter_ns() - began)
                progress.show(sent, load.record_size, latencies)
        if sent % each:
            producer.commit()
            committed += 1
            latencies.add(time.perf_counter_ns() - began)
        seconds = time.perf_counter() - progress.began
    return Measured(sent, sent * load.record_size, seconds, latencies, committed)


def consume(client: BenchClient, topic: str, expected: int | None, duration_s: float | None) -> Measured:
    """Read a topic from its start: `expected` records, or to its end. There is no latency to measure."""
    latencies = Histogram()
    consumer = client.consumer(topic, from_end=False)
    progress = Progress()
    read = size = 0
    began = heard = time.perf_counter()
    try:
        while expected is None or read < expected:
            got = consumer.poll(POLL_S)[: None if expected is None else expected - read]
            now = time.perf_counter()
            if got:
                heard = now
                read += len(got)
                size += sum(map(len, got))
                progress.show(read, size // read, latencies)
            elif expected is None and read and now - heard > IDLE_S:
                break
            elif now - heard > STALLED_S:
                _raise_stalled(read, expected)
            if duration_s is not None and now - began > duration_s:
                break
    finally:
        consumer.close()
    return Measured(read, size, heard - began, latencies)


def _raise_stalled(read: int, expected: int | None) -> None:
    of = "" if expected is None else f" of {expected:,}"
    raise RetriableError(
        f"no record arrived for {STALLED_S:.0f} s, after {read:,}{of}; `semel doctor` says whether a transaction "
        f"blocks "
        "readers"
    )


def end_to_end(client: BenchClient, topic: str, plan: ProducerPlan, load: Load) -> Measured:
    """Send records and read them at the same time. Latency: from `send` until a consumer has the record."""
    run = random.SystemRandom().randbytes(8)
    reader = _Reader(client.consumer(topic, from_end=True), run)
    filling = b"." * (load.record_size - STAMP_BYTES)
    sent = 0
    try:
        with _producing(client, topic, plan) as producer:
            progress = Progress()
            for due in load.moments():
                producer.send(run + due.to_bytes(8, "big") + filling, None)
                sent += 1
                reader.check()
                progress.show(reader.read, load.record_size, reader.latencies)
            producer.flush()
        reader.wait_for(sent)
        seconds = time.perf_counter() - progress.began
    finally:
        reader.stop()
    return Measured(sent, sent * load.record_size, seconds, reader.latencies)


class _Timer:
    """Takes the time of a record. Called on the client's thread."""

    __slots__ = ("_due", "_failed", "_latencies")

    def __init__(self, due: int, latencies: Histogram, failed: list[BaseException]) -> None:
        self._due = due
        self._latencies = latencies
        self._failed = failed

    def __call__(self, error: BaseException | None) -> None:
        if error is None:
            self._latencies.add(time.perf_counter_ns() - self._due)
        else:
            self._failed.append(error)


class _Reader:
    """Reads on a thread of its own what this run has sent."""

    def __init__(self, consumer: BenchConsumer, run: bytes) -> None:
        self._consumer = consumer
        self._run = run
        self._stopping = threading.Event()
        self._error: BaseException | None = None
        self.latencies = Histogram()
        self.read = 0
        self._thread = threading.Thread(target=self._work, name="semel-bench-reader", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        try:
            while not self._stopping.is_set():
                for value in self._consumer.poll(POLL_S):
                    if value.startswith(self._run):
                        self.latencies.add(time.perf_counter_ns() - int.from_bytes(value[8:STAMP_BYTES], "big"))
                        self.read += 1
        except Exception as error:
            self._error = error

    def check(self) -> None:
        """Raise what ended the reading."""
        if self._error is not None:
            raise self._error

    def wait_for(self, count: int) -> None:
        """Wait until so many records are read. Raises where no more arrive."""
        read, heard = self.read, time.perf_counter()
        while self.read < count:
            self.check()
            time.sleep(0.01)
            if self.read != read:
                read, heard = self.read, time.perf_counter()
            elif time.perf_counter() - heard > STALLED_S:
                _raise_stalled(read, count)
        if self.read > count:
            raise FatalError(f"{self.read:,} records arrived of {count:,} that were sent: some arrived twice")

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(POLL_S * 10)
        self._consumer.close()


@contextmanager
def _producing(client: BenchClient, topic: str, plan: ProducerPlan) -> Iterator[BenchProducer]:
    """Give a producer that is connected, and close it; where something was raised, without waiting for it to send.

    It has sent one record that is not measured: connecting is no part of a record's latency.
    """
    producer = client.producer(topic, plan)
    try:
        if plan.transactional_id is not None:
            producer.begin()
        producer.send(b"", None)
        if plan.transactional_id is None:
            producer.flush()
        else:
            producer.commit()
        yield producer
    except BaseException:
        producer.abandon()
        raise
    producer.close()
