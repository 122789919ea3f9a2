"""What encryption costs a node: its CPU for small Produce requests, for fetches of 1 MB, and for new connections.

    python -P bench/tls.py [--rounds 5] [--requests 20000] [--fetches 400] [--connections 400]

Two nodes, one with `tls://` and `ssl.client.auth = required`, take turns. The client is one process with blocking
sockets, so what it does costs the same on both sides of a ratio but for its own part of the encryption, which is not in
the node's CPU. Certificates are for elliptic curve keys (P-256), as authorities make them today.
"""

from __future__ import annotations

import argparse
import os
import socket
import ssl
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import trustme

sys.path.insert(0, str(Path(__file__).resolve().parent))

import dataplane
from harness import NodeProcess, data_folder, spawn_node
from harness import process_cpu_s as cpu_s

import semel
from semel.protocol.ids import ZERO_TOPIC_ID
from semel.protocol.kafka.api import join_parts
from semel.protocol.kafka.fetch import FetchPartition, FetchRequest

TOPIC = "bench"
FETCH_BYTES = 1 << 20
IN_FLIGHT = 100

Wrap = Callable[[socket.socket], socket.socket]
Measure = Callable[[NodeProcess, Wrap, int], tuple[float, float]]
"""Returns how many were done a second, and the node's CPU for one, in us."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--fetches", type=int, default=400)
    parser.add_argument("--connections", type=int, default=400)
    arguments = parser.parse_args()
    workloads: dict[str, tuple[Measure, int]] = {
        f"Produce of 100 B, acks=1, {IN_FLIGHT} in flight": (produce, arguments.requests),
        "Fetch of 1 MB": (fetch, arguments.fetches),
        "a connection with one small request": (connect, arguments.connections),
    }
    figures: dict[tuple[str, str], list[tuple[float, float]]] = {}
    print(f"load before: {os.getloadavg()}, {ssl.OPENSSL_VERSION}")
    with ExitStack() as stack:
        pem = stack.enter_context(tempfile.TemporaryDirectory())
        sides = {"plain": (stack.enter_context(plain_node()), lambda plain: plain)}
        sides["TLS 1.3, mutual"] = stack.enter_context(encrypted_node(Path(pem)))
        for round_number in range(arguments.rounds + 1):
            for name, (measure, count) in workloads.items():
                for side, (node, wrap) in sides.items():
                    figure = measure(node, wrap, count)
                    if round_number:  # the first one warms up
                        figures.setdefault((name, side), []).append(figure)
    print(f"load after: {os.getloadavg()}")
    print("\n| workload | plain: a second | TLS | ratio | plain: us of the node's CPU | TLS | ratio |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for name in workloads:
        rates, costs = zip(*(zip(*figures[name, side], strict=True) for side in sides), strict=True)
        cells = []
        for plain, encrypted in (map(statistics.median, rates), map(statistics.median, costs)):
            cells.append(f"{plain:,.1f} | {encrypted:,.1f} | {encrypted / plain:.2f}")
        print(f"| {name} | {' | '.join(cells)} |")


# --- Nodes ------------------------------------------------------------------------------------------------------------


@contextmanager
def started(kafka: str, grpc: str, settings: Mapping[str, object], query: str) -> Iterator[NodeProcess]:
    with data_folder() as folder:
        more = {"durability": "os", "offsets.topic.num.partitions": 1, "transaction.state.log.num.partitions": 1}
        process = spawn_node(folder, {**more, **settings}, kafka=kafka, grpc=grpc)
        assert process.stdout is not None
        words = process.stdout.readline().split()
        if words[:2] != ["ready:", "kafka"]:
            process.wait()
            raise RuntimeError(f"the node did not start: {Path(folder + '.log').read_text()[-2000:]}")
        host, _, port = words[2].removeprefix("tls://").rpartition(":")
        node = NodeProcess(process, folder, words[4], (host, int(port)), 0.0, 0.0)
        try:
            with semel.Admin(f"{words[4]}{query}") as admin:
                admin.create_topic(TOPIC, partitions=1)
            yield node
        finally:
            node.kill()


@contextmanager
def plain_node() -> Iterator[NodeProcess]:
    with started("127.0.0.1:0", "127.0.0.1:0", {}, "") as node:
        yield node


@contextmanager
def encrypted_node(folder: Path) -> Iterator[tuple[NodeProcess, Wrap]]:
    authority = trustme.CA(key_type=trustme.KeyType.ECDSA)
    authority.cert_pem.write_to_path(folder / "ca.pem")
    for name, host in (("node", "127.0.0.1"), ("client", "client@example.com")):
        issued = authority.issue_cert(host, key_type=trustme.KeyType.ECDSA)
        issued.private_key_pem.write_to_path(folder / f"{name}.key")
        issued.cert_chain_pems[0].write_to_path(folder / f"{name}.pem")
    settings = {
        "ssl.certificate.location": folder / "node.pem",
        "ssl.key.location": folder / "node.key",
        "ssl.client.auth": "required",
        "ssl.ca.location": folder / "ca.pem",
    }
    context = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    context.load_cert_chain(folder / "client.pem", folder / "client.key")
    files = f"?ssl.ca.location={folder}/ca.pem&ssl.certificate.location={folder}/client.pem"
    files += f"&ssl.key.location={folder}/client.key"
    with started("tls://127.0.0.1:0", "tls://127.0.0.1:0", settings, files) as node:
        yield node, lambda plain: context.wrap_socket(plain, server_hostname="127.0.0.1")


# --- Workloads --------------------------------------------------------------------------------------------------------


def opened(node: NodeProcess, wrap: Wrap) -> socket.socket:
    plain = socket.create_connection(node.address)
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return wrap(plain)


def timed(node: NodeProcess, count: int, work: Callable[[], None]) -> tuple[float, float]:
    begun, used = time.perf_counter(), cpu_s(node.pid)
    work()
    return count / (time.perf_counter() - begun), (cpu_s(node.pid) - used) / count * 1e6


def produce(node: NodeProcess, wrap: Wrap, count: int) -> tuple[float, float]:
    frame = dataplane.produce_frame(TOPIC, 0, dataplane.batch_of(100), 1)
    buffer = bytearray(1 << 16)
    with opened(node, wrap) as connection:

        def work() -> None:
            connection.sendall(frame * IN_FLIGHT)
            for number in range(count):
                dataplane.read_frame(connection, buffer)
                if number < count - IN_FLIGHT:
                    connection.sendall(frame)

        return timed(node, count, work)


def fetch(node: NodeProcess, wrap: Wrap, count: int) -> tuple[float, float]:
    request = FetchRequest([FetchPartition(TOPIC, ZERO_TOPIC_ID, 0, 0, FETCH_BYTES)], 0, 1, FETCH_BYTES)
    frame = join_parts(request.frame(12, 1, "b"))
    buffer = bytearray(4 << 20)
    with opened(node, wrap) as connection:

        def work() -> None:
            for _ in range(count):
                connection.sendall(frame)
                size = dataplane.read_frame(connection, buffer)
                assert size > FETCH_BYTES // 2, f"{size} bytes: produce more first"

        return timed(node, count, work)


def connect(node: NodeProcess, wrap: Wrap, count: int) -> tuple[float, float]:
    frame = b"\x00\x12\x00\x00\x00\x00\x00\x01\x00\x01b"  # ApiVersions, version 0
    frame = len(frame).to_bytes(4, "big") + frame
    buffer = bytearray(1 << 16)

    def work() -> None:
        for _ in range(count):
            with opened(node, wrap) as connection:
                connection.sendall(frame)
                dataplane.read_frame(connection, buffer)

    return timed(node, count, work)


if __name__ == "__main__":
    main()
