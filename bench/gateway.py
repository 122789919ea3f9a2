"""The HTTP gateway: how long the console's pages take on a large cluster, and what REST and the schema registry do.

.venv/bin/python -P bench/gateway.py [--partitions 10000] [--groups 1000] [--megabytes 10] [--rounds 5] [--quick]

The gateway and the node each have a process of their own; requests come from this one. Of REST there are two rows for
one record a request, without and with an `Idempotency-Key`, beside the SDK's producer that waits for each record.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from harness import ROOT, process_memory_mb, running_node, touch_memory

import semel

TOPIC_PARTITIONS = 100
CLIENTS = 8
JSON = {"Content-Type": "application/json"}
SCHEMA = {"schema": json.dumps({"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]})}


class Client:
    """One connection to the gateway, kept open."""

    def __init__(self, address: str) -> None:
        self._connection = HTTPConnection(address, timeout=60)

    def ask(self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None) -> bytes:
        data = None if body is None else json.dumps(body).encode()
        self._connection.request(method, path, data, {**JSON, **(headers or {})})
        answer = self._connection.getresponse()
        text = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{method} {path}: {answer.status} {text[:300]!r}")
        return text

    def close(self) -> None:
        self._connection.close()


@contextlib.contextmanager
def gateway(bootstrap: str) -> Iterator[tuple[str, int]]:
    """Run a gateway; give its address and its process id."""
    command = [sys.executable, "-P", "-m", "semel.cli", "http", "--bootstrap", bootstrap, "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().split()[-1], process.pid
        finally:
            process.kill()


def fill(bootstrap: str, scale: argparse.Namespace) -> None:
    """Make the topics, the groups, and the large records."""
    with semel.Admin(bootstrap) as admin:
        for number in range(max(1, scale.partitions // TOPIC_PARTITIONS)):
            admin.create_topic(f"topic-{number:03}", partitions=TOPIC_PARTITIONS)
        admin.create_topic("large", partitions=1, configs={"max.message.bytes": str((scale.megabytes + 1) << 20)})
        admin.create_topic("orders", partitions=1)
        for number in range(scale.groups):
            offsets = {semel.TopicPartition("topic-000", partition): 0 for partition in range(10)}
            admin.alter_group_offsets(f"group-{number:04}", offsets)
    size = scale.megabytes << 20
    with semel.Producer(bootstrap, max_request_size=size + (1 << 20), buffer_memory_bytes=4 * size) as producer:
        for _ in range(5):
            producer.send("large", b'{"blob":"' + b"x" * (size - 20) + b'"}')
        for number in range(1_000):
            producer.send("orders", b'{"id":%d}' % number, key=b"%d" % number)
        producer.flush()


def pages(address: str, pid: int, scale: argparse.Namespace) -> None:
    client = Client(address)
    paths = {
        "overview": "",
        "topics": "topics",
        "a topic of 100 partitions": "topic?name=topic-000",
        "groups": "groups",
        "a group": "group?id=group-0000",
        "transactions": "transactions",
        "jobs": "jobs",
        "metrics": "metrics",
        "the last records": "records?topic=orders",
        f"the last records, of {scale.megabytes} MB each": "records?topic=large",
        f"one record of {scale.megabytes} MB": "record?topic=large&partition=0&offset=0",
    }
    print(f"\n{'page':44}{'median ms':>12}{'longest ms':>12}{'KB':>8}")
    for name, path in paths.items():
        client.ask("GET", f"/console/{path}")
        times, size = [], 0
        for _ in range(scale.rounds):
            begun = time.perf_counter()
            size = len(client.ask("GET", f"/console/{path}"))
            times.append((time.perf_counter() - begun) * 1000)
        print(f"{name:44}{statistics.median(times):12,.1f}{max(times):12,.1f}{size / 1000:8,.1f}", flush=True)
    client.close()
    print(f"the gateway's memory: {process_memory_mb(pid):,.0f} MB")


def requests_a_second(address: str, seconds: float, make: Callable[[Client, str], object], clients: int) -> float:
    """Return how many requests are answered a second on some connections, each of which waits for its answer."""
    counts, ends = [0] * clients, time.perf_counter() + seconds
    failures: list[Exception] = []

    def run(place: int) -> None:
        client = Client(address)
        try:
            while time.perf_counter() < ends:
                make(client, f"{place}-{counts[place]}")
                counts[place] += 1
        except Exception as error:
            failures.append(error)
        finally:
            client.close()

    begun = time.perf_counter()
    threads = [threading.Thread(target=run, args=(place,)) for place in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return sum(counts) / (time.perf_counter() - begun)


def sdk_a_second(bootstrap: str, seconds: float, clients: int) -> float:
    """Return how many records the SDK writes a second where each is waited for, by threads of one producer."""
    counts, ends = [0] * clients, time.perf_counter() + seconds
    with semel.Producer(bootstrap, linger_ms=0) as producer:

        def run(place: int) -> None:
            while time.perf_counter() < ends:
                producer.send("orders", b'{"id":1}').result()
                counts[place] += 1

        threads = [threading.Thread(target=run, args=(place,)) for place in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return sum(counts) / seconds


def rates(address: str, bootstrap: str, scale: argparse.Namespace) -> None:
    first = Client(address)
    cluster = json.loads(first.ask("GET", "/v3/clusters"))["data"][0]["cluster_id"]
    first.ask("POST", "/subjects/orders-value/versions", SCHEMA)
    records = f"/v3/clusters/{cluster}/topics/orders/records"
    record = {"value": {"type": "JSON", "data": {"id": 1}}}
    run = f"{time.time_ns():x}"
    hundred = {"records": [{"topic_name": "orders", **record} for _ in range(100)]}
    rows: dict[str, Callable[[Client, str], object]] = {
        "REST: a record": lambda client, name: client.ask("POST", records, record),
        "REST: a record, once": lambda client, name: client.ask(
            "POST", records, record, {"Idempotency-Key": f"{run}-a-{name}"}
        ),
        "REST: 100 records, once": lambda client, name: client.ask(
            "POST", f"/v3/clusters/{cluster}/records", hundred, {"Idempotency-Key": f"{run}-b-{name}"}
        ),
        "REST: read 100 records": lambda client, name: client.ask(
            "GET", f"/v3/clusters/{cluster}/topics/orders/partitions/0/records?offset=0&max_records=100"
        ),
        "registry: a schema by its id": lambda client, name: client.ask("GET", "/schemas/ids/1"),
        "registry: look a schema up": lambda client, name: client.ask("POST", "/subjects/orders-value", SCHEMA),
        "registry: register a new schema": lambda client, name: client.ask(
            "POST",
            f"/subjects/s-{run}-{name}/versions",
            {"schema": json.dumps({"type": "record", "name": f"S{run}_{name}".replace("-", "_"), "fields": []})},
        ),
    }
    taken: dict[str, dict[int, list[float]]] = {name: {1: [], CLIENTS: []} for name in [*rows, "SDK: a record"]}
    for turn in range(scale.rounds):
        for clients in (1, CLIENTS):
            run = f"{time.time_ns():x}"
            for name, make in rows.items():
                taken[name][clients].append(requests_a_second(address, scale.seconds, make, clients))
            taken["SDK: a record"][clients].append(sdk_a_second(bootstrap, scale.seconds, clients))
        print(f"round {turn + 1} of {scale.rounds} is done", file=sys.stderr, flush=True)
    print(f"\n{'a second':44}{'1 client':>12}{f'{CLIENTS} clients':>12}")
    for name, found in taken.items():
        print(f"{name:44}{statistics.median(found[1]):12,.0f}{statistics.median(found[CLIENTS]):12,.0f}")
    first.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="The console's pages, REST and the schema registry.")
    parser.add_argument("--partitions", type=int, default=10_000)
    parser.add_argument("--groups", type=int, default=1_000)
    parser.add_argument("--megabytes", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--quick", action="store_true", help="a small cluster, once")
    scale = parser.parse_args()
    if scale.quick:
        scale.partitions, scale.groups, scale.rounds, scale.seconds = 200, 20, 1, 0.2
    touch_memory()
    with running_node({"message.max.bytes": (scale.megabytes + 1) << 20}) as node:
        begun = time.perf_counter()
        fill(node.bootstrap, scale)
        print(
            f"{scale.partitions:,} partitions, {scale.groups:,} groups, made in {time.perf_counter() - begun:.0f} s",
            flush=True,
        )
        with gateway(node.bootstrap) as (address, pid):
            pages(address, pid, scale)
            rates(address, node.bootstrap, scale)


if __name__ == "__main__":
    main()
