"""What users with passwords cost a node: its CPU for new connections, by mechanism, and for calls over gRPC.

    python -P bench/users.py [--rounds 5] [--connections 300] [--calls 2000]

Two nodes, one with `sasl://`, take turns. The client hashes the password for each connection with SCRAM (10,000 times),
which is in the rates and not in the node's CPU.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import grpc

sys.path.insert(0, str(Path(__file__).resolve().parent))

from harness import NodeProcess, data_folder, spawn_node
from harness import process_cpu_s as cpu_s

from semel.broker.config.sasl import PLAIN
from semel.broker.users.user_file import write_user
from semel.protocol.schemes import without_scheme
from semel.protocol.scram import SCRAM_MECHANISMS, make_verifier
from semel.protocol.v1 import metadata_pb2
from semel.runtime.kafka_client.connection import Connection, connect, dial_tcp
from semel.sdk.transport.login import Login
from semel.sdk.transport.security import Access, Security

USER, PASSWORD = "bench", "a password of the usual length"
Figure = tuple[float, float]
"""How many were done a second, and the node's CPU for one, in us."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--connections", type=int, default=300)
    parser.add_argument("--calls", type=int, default=2_000)
    arguments = parser.parse_args()
    figures: dict[str, list[Figure]] = {}
    print(f"load before: {os.getloadavg()}")
    with ExitStack() as stack, tempfile.TemporaryDirectory() as folder:
        plain = stack.enter_context(started("", {}))
        users = Path(folder) / "users"
        write_user(str(users), USER, [make_verifier(mechanism, PASSWORD) for mechanism in SCRAM_MECHANISMS])
        enabled = ",".join((PLAIN, *SCRAM_MECHANISMS))
        asking = {"sasl.users.location": users, "sasl.enabled.mechanisms": enabled}
        node = stack.enter_context(started("sasl://", asking))
        rows: dict[str, Callable[[], Figure]] = {
            "a connection without a user": lambda: connections(plain, None, arguments.connections)
        }
        for mechanism in (*SCRAM_MECHANISMS, PLAIN):
            login = Login(USER, PASSWORD, mechanism=mechanism)
            rows[f"a connection with {mechanism}"] = (
                lambda login=login: connections(node, login, arguments.connections)  # type: ignore[misc]
            )
        rows["a call over gRPC without a user"] = lambda: calls(plain, None, arguments.calls)
        rows["a call over gRPC with a password"] = lambda: calls(node, Login(USER, PASSWORD), arguments.calls)
        for round_number in range(arguments.rounds + 1):
            for name, measure in rows.items():
                figure = measure()
                if round_number:  # the first one warms up
                    figures.setdefault(name, []).append(figure)
    print(f"load after: {os.getloadavg()}")
    print("\n| workload | a second | us of the node's CPU |")
    print("|---|---:|---:|")
    for name, found in figures.items():
        rates, costs = zip(*found, strict=True)
        print(f"| {name} | {statistics.median(rates):,.0f} | {statistics.median(costs):,.0f} |")


@contextmanager
def started(scheme: str, settings: dict[str, object]) -> Iterator[NodeProcess]:
    with data_folder() as folder:
        process = spawn_node(
            folder, {"durability": "os", **settings}, kafka=f"{scheme}127.0.0.1:0", grpc=f"{scheme}127.0.0.1:0"
        )
        assert process.stdout is not None
        words = process.stdout.readline().split()
        if words[:2] != ["ready:", "kafka"]:
            process.wait()
            raise RuntimeError(f"the node did not start: {Path(folder + '.log').read_text()[-2000:]}")
        host, _, port = without_scheme(words[2]).rpartition(":")
        node = NodeProcess(process, folder, without_scheme(words[4]), (host, int(port)), 0.0, 0.0)
        try:
            yield node
        finally:
            node.kill()


def connections(node: NodeProcess, login: Login | None, count: int) -> Figure:
    """Open connections one after the other, each up to where it can be used."""
    access = Access(Security(None, login))

    async def prove(connection: Connection) -> None:
        await access.prove(connection)

    proof: Callable[[Connection], Awaitable[None]] | None = None if login is None else prove

    async def work() -> None:
        for _ in range(count):
            connection = await connect("127.0.0.1:0", dial_tcp(*node.address), client_id="bench", prove=proof)
            connection.close()

    return timed(node, count, lambda: asyncio.run(work()))


def calls(node: NodeProcess, login: Login | None, count: int) -> Figure:
    """Ask for the metadata of no topic."""
    metadata = Access(Security(None, login)).metadata(node.grpc)
    request = metadata_pb2.GetMetadataRequest().SerializeToString()
    with grpc.insecure_channel(node.grpc) as channel:
        call = channel.unary_unary("/semel.v1.MetadataService/GetMetadata", bytes, bytes)

        def work() -> None:
            for _ in range(count):
                call(request, metadata=metadata)

        return timed(node, count, work)


def timed(node: NodeProcess, count: int, work: Callable[[], None]) -> Figure:
    begun, used = time.perf_counter(), cpu_s(node.pid)
    work()
    return count / (time.perf_counter() - begun), (cpu_s(node.pid) - used) / count * 1e6


if __name__ == "__main__":
    main()
