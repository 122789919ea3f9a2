"""The workloads of all brokers: each means the same for each, and what was acknowledged is counted afterwards."""

from __future__ import annotations

import itertools
import os
import selectors
import socket
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial

from harness import Sample, cpu_us_each, in_turns, measured, number, percentile, rate
from workloads.kafka_peers import OS, WARM_UPS_MAX

from brokers import installed
from brokers.servers import Broker
from brokers.wire import ANSWER_S, Link, WireError, received

SMALL, LARGE = 100, 1024
PIPELINED = 100
IN_FLIGHT_BYTES = 5 * (256 << 10)
"""Of bulk: Semel has five batches of 256 KiB on their way, the others as many records."""
PACE = 500
CLIENT_RECORDS_A_MB = 200
"""What is read by a Python client has a fifth of the bytes that others read."""
_logs = itertools.count(1)


@dataclass(frozen=True)
class Scale:
    """How long and how often. `seconds` is for one turn of one workload, `megabytes` the most that a turn appends."""

    seconds: float
    rounds: int
    megabytes: int


FULL = Scale(2.0, 5, 256)
QUICK = Scale(0.3, 1, 8)


@dataclass(frozen=True)
class BrokerRow:
    """One workload with one durability: samples, CPU and promises by broker. A broker that failed is not in it."""

    workload: str
    durability: str
    unit: str
    samples: Mapping[str, Sequence[float]]
    costs: Mapping[str, str]
    promises: Mapping[str, str]
    less_is_better: bool = False
    failures: Mapping[str, str] = field(default_factory=dict)

    def median(self, broker: str) -> float:
        return statistics.median(self.samples[broker])


Brokers = Mapping[str, Sequence[Broker]]
"""By durability."""


# --- One turn ---------------------------------------------------------------------------------------------------------


def append(links: Sequence[Link], *, seconds: float, in_flight: int, most: int) -> int:
    """Append for so long, or until so many records were sent, and wait for the last answer. Returns how many these are.

    in_flight: records on their way on each connection
    """
    total = 0
    with selectors.DefaultSelector() as selector:
        waiting: dict[socket.socket, int] = {}
        for link in links:
            selector.register(link.sock, selectors.EVENT_READ, link)
            waiting[link.sock] = max(1, in_flight // link.records)
            link.sock.sendall(link.request * waiting[link.sock])
            total += waiting[link.sock] * link.records
        end = time.perf_counter() + seconds
        while any(waiting.values()):
            ready = selector.select(ANSWER_S)
            if not ready:
                raise WireError(f"no answer came for {ANSWER_S:.0f} s")
            over = total >= most or time.perf_counter() >= end
            for key, _ in ready:
                link, sock = key.data, key.fileobj
                assert isinstance(sock, socket.socket)
                answers = link.counted(received(sock))
                if over:
                    waiting[sock] -= answers
                elif answers:
                    sock.sendall(link.request * answers)
                    total += answers * link.records
    return total


@contextmanager
def new_log(brokers: Sequence[Broker]) -> Iterator[str]:
    """Give each broker a log of one name, and delete it at the end. Who ends the bench early does not wait for that."""
    log = f"bench-{next(_logs)}"
    for broker in brokers:
        broker.create(log)
    try:
        yield log
    except Exception:
        for broker in brokers:
            with suppress(Exception):
                broker.delete(log)
        raise
    for broker in brokers:
        broker.delete(log)


def appended(broker: Broker, size: int, scale: Scale, *, connections: int, in_flight: int, batch: bool) -> Sample:
    """Append to a log of its own. Raises `WireError` where it has not what was acknowledged."""
    most = scale.megabytes * 1_000_000 // size
    with new_log([broker]) as log, ExitStack() as stack:
        links = [broker.link(log, size, batch=batch) for _ in range(connections)]
        for link in links:
            stack.enter_context(closing(link.sock))
        sample = measured(broker, lambda: append(links, seconds=scale.seconds, in_flight=in_flight, most=most))
        _check_stored(broker, log, sample)
    return sample


def _check_stored(broker: Broker, log: str, sample: Sample) -> None:
    stored = broker.stored(log)
    if stored != sample.count:
        raise WireError(f"{sample.count:.0f} records were acknowledged, and {stored} are there")


def paced(broker: Broker, scale: Scale) -> Sample:
    """Append 500 records a second, one at a time, with a consumer that waits for each."""
    acknowledged: list[float] = []
    arrived: list[float] = []
    with new_log([broker]) as log:
        link, waiter = broker.link(log, SMALL), broker.waiter(log)
        with closing(link.sock), closing(waiter.sock), selectors.DefaultSelector() as selector:
            selector.register(link.sock, selectors.EVENT_READ, (link.counted, acknowledged))
            selector.register(waiter.sock, selectors.EVENT_READ, (waiter.arrived, arrived))
            cpu_s, begin = broker.cpu_s(), time.perf_counter()
            for n in range(int(scale.seconds * 2 * PACE)):
                while (wait := begin + n / PACE - time.perf_counter()) > 0:
                    time.sleep(wait)
                sent = time.perf_counter()
                link.sock.sendall(link.request)
                while len(acknowledged) <= n or len(arrived) <= n:
                    ready = selector.select(ANSWER_S)
                    if not ready:
                        raise WireError(f"record {n}: no answer came for {ANSWER_S:.0f} s")
                    for key, _ in ready:
                        assert isinstance(key.fileobj, socket.socket)
                        count, times = key.data
                        found = count(received(key.fileobj))
                        times += [time.perf_counter() - sent] * found
            seconds, used = time.perf_counter() - begin, broker.cpu_s() - cpu_s
    figures = {
        f"{what} p{share}": percentile(times, share / 100) * 1e6
        for what, times in (("acknowledged", acknowledged), ("end to end", arrived))
        for share in (50, 99)
    }
    return Sample(len(arrived), seconds, used, figures)


# --- All brokers in turns ---------------------------------------------------------------------------------------------


def turns(
    brokers: Sequence[Broker], run: Callable[[Broker], Sample], rounds: int
) -> tuple[dict[str, list[Sample]], dict[str, str]]:
    """Let them take turns. Returns the samples, and why a broker has none: it failed, and the others go on without."""
    failures: dict[str, str] = {}

    def tried(broker: Broker) -> Sample:
        if broker.name in failures:
            return Sample(0, 1.0)
        try:
            return run(broker)
        except (WireError, OSError, installed.BrokerMissingError) as error:
            failures[broker.name] = f"{type(error).__name__}: {error}"
            return Sample(0, 1.0)

    os.sync()
    samples = in_turns({broker.name: partial(tried, broker) for broker in brokers}, rounds)
    print(".", end="", file=sys.stderr, flush=True)
    return {name: taken for name, taken in samples.items() if name not in failures}, failures


def warm(broker: Broker, scale: Scale) -> None:
    """Do some of everything until it gets no cheaper."""
    cheapest = float("inf")
    for _ in range(WARM_UPS_MAX):
        samples = [
            appended(broker, SMALL, scale, connections=32, in_flight=1, batch=False),
            appended(broker, SMALL, scale, connections=1, in_flight=PIPELINED, batch=False),
        ]
        cost = sum(sample.cpu_s for sample in samples) / sum(sample.count for sample in samples)
        if cost > cheapest * 0.9:
            return
        cheapest = cost


def rate_row(
    workload: str,
    durability: str,
    brokers: Sequence[Broker],
    run: Callable[[Broker], Sample],
    rounds: int,
    size: int = 0,
) -> BrokerRow:
    """Return a row of thousands of records a second, with the CPU a record, or a GB where `size` is given."""
    samples, failures = turns(brokers, run, rounds)
    costs = {
        name: f"{cpu_us_each(taken) * 1e3 / size:.2f} s a GB" if size else f"{number(cpu_us_each(taken))} us a record"
        for name, taken in samples.items()
    }
    rates = {name: [one / 1e3 for one in rate(taken)[1]] for name, taken in samples.items()}
    return BrokerRow(workload, durability, "k records/s", rates, costs, promises_of(brokers), failures=failures)


def promises_of(brokers: Sequence[Broker]) -> dict[str, str]:
    return {broker.name: broker.promise for broker in brokers}


# --- The workloads ----------------------------------------------------------------------------------------------------


def single(brokers: Brokers, scale: Scale) -> list[BrokerRow]:
    """One record of 100 B a request, the next one after the answer: 1 connection, and 32."""
    return [
        rate_row(
            f"append {SMALL} B, one at a time, {connections} connection{'s' * (connections > 1)}",
            durability,
            brokers[durability],
            partial(appended, size=SMALL, scale=scale, connections=connections, in_flight=1, batch=False),
            scale.rounds,
        )
        for durability in brokers
        for connections in (1, 32)
    ]


def pipelined(brokers: Brokers, scale: Scale) -> list[BrokerRow]:
    """One record of 100 B a request, 100 requests in flight on 1 connection."""
    return [
        rate_row(
            f"append {SMALL} B, one a request, {PIPELINED} in flight on 1 connection",
            durability,
            brokers[durability],
            partial(appended, size=SMALL, scale=scale, connections=1, in_flight=PIPELINED, batch=False),
            scale.rounds,
        )
        for durability in brokers
    ]


def bulk(brokers: Brokers, scale: Scale) -> list[BrokerRow]:
    """Records of 1 KiB, 1.25 MiB in flight on 1 connection: Semel in batches of 256 KiB, the others one a request."""
    run = partial(appended, size=LARGE, scale=scale, connections=1, in_flight=IN_FLIGHT_BYTES // LARGE, batch=True)
    return [
        rate_row(f"append {LARGE} B in bulk", durability, brokers[durability], run, scale.rounds, LARGE)
        for durability in brokers
    ]


def consume(brokers: Brokers, scale: Scale) -> list[BrokerRow]:
    """A whole log, from memory or the page cache, on 1 connection: Semel 1 MB a fetch, Redis 1,000 records."""
    return [_consume(brokers[OS], scale, size, scale.megabytes * 1_000) for size in (SMALL, LARGE) if OS in brokers]


def _consume(brokers: Sequence[Broker], scale: Scale, size: int, count: int) -> BrokerRow:
    def read(broker: Broker, log: str, count: int) -> None:
        broker.read(log, size, count)

    return _read_row(f"read {size} B in bulk", brokers, scale, size, count, read)


def _read_row(
    workload: str,
    brokers: Sequence[Broker],
    scale: Scale,
    size: int,
    count: int,
    read: Callable[[Broker, str, int], None],
) -> BrokerRow:
    """Fill a log and read it from its beginning, again and again. No acknowledgement is measured, so none is told."""
    with new_log(brokers) as log:
        counts: dict[str, int] = {}
        for broker in brokers:
            link = broker.link(log, size, batch=True)
            with closing(link.sock):
                counts[broker.name] = append([link], seconds=ANSWER_S, in_flight=IN_FLIGHT_BYTES // size, most=count)

        def again_and_again(broker: Broker) -> float:
            total, end = 0, time.perf_counter() + scale.seconds
            while total == 0 or time.perf_counter() < end:
                read(broker, log, counts[broker.name])
                total += counts[broker.name]
            return total

        def run(broker: Broker) -> Sample:
            return measured(broker, partial(again_and_again, broker))

        return replace(rate_row(workload, OS, brokers, run, scale.rounds, size), promises={})


def latency(brokers: Brokers, scale: Scale) -> list[BrokerRow]:
    """500 records of 100 B a second: until the acknowledgement, and until a waiting consumer has them."""
    rows = []
    for durability in brokers:
        samples, failures = turns(brokers[durability], partial(paced, scale=scale), scale.rounds)
        costs = {name: f"{number(cpu_us_each(taken))} us a record" for name, taken in samples.items()}
        promises = promises_of(brokers[durability])
        for what in ("acknowledged p50", "acknowledged p99", "end to end p50", "end to end p99"):
            values = {name: [one.rates[what] for one in taken] for name, taken in samples.items()}
            rows.append(
                BrokerRow(f"{what}, {PACE} records/s", durability, "us", values, costs, promises, True, failures)
            )
            failures = {}  # one line is enough
    return rows


def clients(brokers: Brokers, scale: Scale) -> list[BrokerRow]:
    """Records of 1 KiB in bulk, by each one's own Python client."""
    value = b"v" * LARGE

    def append_some(broker: Broker) -> Sample:
        with new_log([broker]) as log:
            sample = measured(broker, lambda: broker.client_append(log, value, scale.seconds))
            _check_stored(broker, log, sample)
        return sample

    def read(broker: Broker, log: str, count: int) -> None:
        broker.client_read(log, count)

    rows = [
        rate_row(f"append {LARGE} B, Python client", durability, brokers[durability], append_some, scale.rounds, LARGE)
        for durability in brokers
    ]
    if OS in brokers:
        count = scale.megabytes * CLIENT_RECORDS_A_MB
        rows.append(_read_row(f"read {LARGE} B, Python client", brokers[OS], scale, LARGE, count, read))
    return rows


WORKLOADS: Mapping[str, Callable[[Brokers, Scale], list[BrokerRow]]] = {
    "single": single,
    "pipelined": pipelined,
    "bulk": bulk,
    "consume": consume,
    "latency": latency,
    "clients": clients,
}
