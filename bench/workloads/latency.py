"""Requests one at a time: tiny ones, acknowledgements, and from end to end."""

from __future__ import annotations

import selectors
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Final

import dataplane
from harness import (
    Figure,
    NodeProcess,
    Peer,
    Sample,
    Stopwatch,
    cpu_us_each,
    in_turns,
    measured,
    percentile,
    rate_figure,
)

import semel
from semel.protocol.errors import ErrorCode
from semel.protocol.ids import ZERO_TOPIC_ID, TopicPartition
from semel.protocol.kafka.api import join_parts
from semel.protocol.kafka.fetch import FetchPartition, FetchRequest, FetchResponse
from workloads.common import PARTITIONS, TOPIC, Nodes, Scale, new_topic

PACE: Final = 500
"""Records a second of the paced workloads."""
WARM: Final = b"-" * 100


def tiny(scale: Scale) -> list[Figure]:
    """One record of 100 B a request: 1, 8 and 32 connections with one request in flight, and 100 in flight on one."""
    figures = []
    batch = dataplane.batch_of(100)
    with ExitStack() as stack:
        nodes = Nodes(stack)
        variants: dict[str, Callable[[], Sample]] = {}
        for durability, node in nodes:
            for connections in (1, 8, 32):
                frames = [dataplane.produce_frame(TOPIC, n % PARTITIONS, batch, -1) for n in range(connections)]
                variants[f"{connections} connection{'s' * (connections > 1)}, {durability}"] = (
                    lambda node=node, frames=frames: measured(
                        node, lambda: dataplane.unpipelined(node, frames, scale.seconds)
                    )
                )
            variants[f"100 in flight on 1 connection, {durability}"] = lambda node=node: measured(
                node,
                lambda: dataplane.pipelined(node, dataplane.produce_frame(TOPIC, 0, batch, -1), scale.seconds, 100),
            )
        goals = {
            "1 connection, os": "10 k (Kafka's 9.1 k x 1.1)",
            "32 connections, os": "40 k (Kafka's 50 k x 0.8)",
            "100 in flight on 1 connection, os": "25 k (Kafka's 12.5 k x 2)",
            "32 connections, disk": "27 k (Kafka's 9.0 k, fsync, x 3)",
        }
        for name, samples in in_turns(variants, scale.rounds).items():
            figures.append(
                rate_figure(
                    "tiny",
                    f"requests of one 100 B record, {name}",
                    samples,
                    "requests/s",
                    goal=goals.get(name, ""),
                    cost=f"{cpu_us_each(samples):.1f} us a request",
                    bound="the journal's sync, one for each group" if "disk" in name else "Python and system calls",
                )
            )
    return figures


def latency(scale: Scale) -> list[Figure]:
    """500 records of 100 B a second: until the acknowledgement, and until a waiting consumer has them."""
    figures = []
    with ExitStack() as stack:
        nodes = Nodes(stack)
        variants: dict[str, Callable[[], Sample]] = {}
        for durability, node in nodes:
            topic = f"latency-{durability}"
            new_topic(node, topic, 1)
            variants[f"raw, {durability}"] = lambda node=node, topic=topic: paced_raw(
                node, topic, scale.seconds * 2, end_offset(node, topic)
            )
            variants[f"SDK, {durability}"] = lambda node=node, topic=topic: paced_sdk(node, topic, scale.seconds * 2)
        goals = {
            "acknowledged p50, raw, os": "134 us (Kafka's 191 x 0.7)",
            "acknowledged p99, raw, os": "580 us (Kafka's 829 x 0.7)",
            "end to end p50, raw, os": "187 us (Kafka's 267 x 0.7)",
            "end to end p99, raw, os": "1,948 us (Kafka's 2,783 x 0.7)",
        }
        for name, samples in in_turns(variants, scale.rounds).items():
            for what in samples[0].rates:
                values = [sample.rates[what] for sample in samples]
                label = f"{what}, {name}"
                figures.append(
                    Figure(
                        "latency",
                        f"{label}, at 500/s",
                        statistics.median(values),
                        "us",
                        values,
                        goals.get(label, ""),
                        f"{cpu_us_each(samples):.0f} us a record",
                        "wake-ups of two processes" + (", and a sync of the journal" if "disk" in name else ""),
                    )
                )
    return figures


def _percentiles(acknowledged: list[float], arrived: list[float]) -> dict[str, float]:
    return {
        f"{what} p{share:.0f}": percentile(times, share / 100) * 1e6
        for what, times in (("acknowledged", acknowledged), ("end to end", arrived))
        for share in (50.0, 99.0)
    }


def paced_raw(node: Peer, topic: str, seconds: float, offset: int) -> Sample:
    """Produce on one connection, with a fetch always waiting on another, from the partition's end on."""
    frame = dataplane.produce_frame(topic, 0, dataplane.batch_of(100), -1)
    producing, fetching = dataplane.connect(node.address), dataplane.connect(node.address)
    buffer = bytearray(1 << 20)
    acknowledged: list[float] = []
    arrived: list[float] = []
    cpu_s, begin = node.cpu_s(), time.perf_counter()
    with producing, fetching, selectors.DefaultSelector() as selector:
        selector.register(producing, selectors.EVENT_READ)
        selector.register(fetching, selectors.EVENT_READ)
        fetching.sendall(_long_poll(topic, offset))
        for n in range(int(seconds * PACE)):
            while (wait := begin + n / PACE - time.perf_counter()) > 0:
                time.sleep(wait)
            sent = time.perf_counter()
            producing.sendall(frame)
            waiting: set[socket.socket] = {producing, fetching}
            while waiting:
                for key, _ in selector.select(10):
                    sock = key.fileobj
                    assert isinstance(sock, socket.socket)
                    size = dataplane.read_frame(sock, buffer)
                    (acknowledged if sock is producing else arrived).append(time.perf_counter() - sent)
                    if sock is fetching:
                        answer = FetchResponse.parse(memoryview(buffer)[:size], 12, 5)
                        assert answer.partitions[0].error is ErrorCode.NONE
                        offset += 1
                        fetching.sendall(_long_poll(topic, offset))
                    waiting.discard(sock)
    return Sample(len(arrived), time.perf_counter() - begin, node.cpu_s() - cpu_s, _percentiles(acknowledged, arrived))


def _long_poll(topic: str, offset: int) -> bytes:
    partition = FetchPartition(topic, ZERO_TOPIC_ID, 0, offset, 1 << 20)
    return join_parts(FetchRequest([partition], 10_000, 1, 1 << 20).frame(12, 1, "b"))


def end_offset(node: NodeProcess, topic: str) -> int:
    with semel.Consumer(node.grpc) as consumer:
        tp = TopicPartition(topic, 0)
        return consumer.end_offsets([tp])[tp]


def paced_sdk(node: NodeProcess, topic: str, seconds: float) -> Sample:
    """A producer that sends without lingering and a consumer that waits, in one process."""
    with semel.Consumer(node.grpc) as consumer, semel.Producer(node.grpc, linger_ms=0) as producer:
        tp = TopicPartition(topic, 0)
        consumer.assign([tp])
        consumer.seek(tp, consumer.end_offsets([tp])[tp])

        def poll() -> list[bytes | None]:
            found = consumer.poll(10, 100)
            assert found is not None, "nothing came for 10 s"
            return [record.value for record in found]

        return paced_threads(node, seconds, lambda value: producer.send(topic, value).result(10), poll)


def paced_threads(
    node: NodeProcess, seconds: float, send: Callable[[bytes], object], poll: Callable[[], Sequence[bytes | None]]
) -> Sample:
    """Send 500 records a second on this thread, while another one waits for them.

    send: returns when the record is acknowledged
    poll: returns the next values
    """
    times = Times(int(seconds * PACE))
    send(WARM)  # connects
    poll()

    def consume() -> None:
        while not times.are_complete:
            times.arrive(poll())

    thread = threading.Thread(target=consume, daemon=True)
    thread.start()
    watch, begin = Stopwatch(node), time.perf_counter()
    for n in range(times.count):
        while (wait := begin + n / PACE - time.perf_counter()) > 0:
            time.sleep(wait)
        value = times.next_value(n)
        send(value)
        times.acknowledged[n] = time.perf_counter()
    thread.join(10)
    return times.sample(watch.stop(times.count))


class Times:
    """When each of so many records was sent, was acknowledged, and arrived."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.sent, self.acknowledged, self.arrived = ([0.0] * count for _ in range(3))
        self._seen = 0

    @property
    def are_complete(self) -> bool:
        return self._seen == self.count

    def next_value(self, number: int) -> bytes:
        """Return the value of a record that is sent now."""
        value = b"%010d" % number + WARM[10:]
        self.sent[number] = time.perf_counter()
        return value

    def arrive(self, values: Iterable[bytes | None]) -> None:
        now = time.perf_counter()
        for value in values:
            assert value is not None
            self.arrived[int(value[:10])] = now
            self._seen += 1

    def sample(self, measured: Sample) -> Sample:
        """Return what was measured with the percentiles."""
        assert self.are_complete, f"{self._seen} of {self.count} records arrived"
        acknowledged, arrived = (
            [at - start for at, start in zip(times, self.sent, strict=True)]
            for times in (self.acknowledged, self.arrived)
        )
        return replace(measured, rates=_percentiles(acknowledged, arrived))
