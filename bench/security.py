"""What security costs a node: its CPU for new connections by how the client proves itself, for calls over gRPC, and for
quotas at the smallest Produce.

    python -P bench/security.py [--rounds 3] [--connections 200] [--calls 2000] [--requests 10000]

Three nodes take turns: one that asks for nothing, one with `sasl://` (passwords and tokens) and one with `tls://`. The
client hashes its password for each connection with SCRAM (10,000 times), which is in the rates and not in the node's
CPU. Quotas are far above what the client takes, so nothing waits: what is measured is the counting.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import grpc
import jwt
import trustme
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

sys.path.insert(0, str(Path(__file__).resolve().parent))

import dataplane
from harness import NodeProcess, data_folder, spawn_node
from harness import process_cpu_s as cpu_s

import semel
from semel.broker.config.sasl import PLAIN
from semel.broker.users.user_file import write_user
from semel.protocol.quotas import QuotaAlteration, QuotaEntity
from semel.protocol.schemes import without_scheme
from semel.protocol.scram import SCRAM_MECHANISMS, make_verifier
from semel.protocol.v1 import metadata_pb2
from semel.runtime.kafka_client.connection import Connection, connect, dial_tcp
from semel.sdk.transport.login import Login
from semel.sdk.transport.security import Access, Security, Tls

TOPIC = "bench"
IN_FLIGHT = 100
AUDIENCE = "bench"
USER, PASSWORD = "bench", "a password of the usual length"
Figure = tuple[float, float]
"""How many were done a second, and the node's CPU for one, in us."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--connections", type=int, default=200)
    parser.add_argument("--calls", type=int, default=2_000)
    parser.add_argument("--requests", type=int, default=10_000)
    arguments = parser.parse_args()
    figures: dict[str, list[Figure]] = {}
    print(f"load before: {os.getloadavg()}")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        plain = stack.enter_context(started("", {}))
        asking = stack.enter_context(started("sasl://", asking_settings(folder)))
        encrypting = stack.enter_context(started("tls://", tls_settings(folder)))
        token = Login("", mechanism="OAUTHBEARER", token_url=(folder / "token").as_uri())
        count = arguments.connections
        rows: dict[str, Callable[[], Figure]] = {
            "a connection, nothing asked for": lambda: connections(plain, Security(), count),
            "with TLS": lambda: connections(encrypting, Security(Tls(str(folder / "ca.pem"))), count),
            "with a token (ES256)": lambda: connections(asking, Security(None, token), count),
        }
        for mechanism in (*SCRAM_MECHANISMS, PLAIN):
            login = Login(USER, PASSWORD, mechanism=mechanism)
            rows[f"with {mechanism}"] = lambda login=login: connections(  # type: ignore[misc]
                asking, Security(None, login), count
            )
        rows["a call over gRPC"] = lambda: calls(plain, None, arguments.calls)
        rows["with a password"] = lambda: calls(asking, Login(USER, PASSWORD), arguments.calls)
        with semel.Admin(plain.grpc) as admin:
            admin.create_topic(TOPIC, partitions=1)
        for name, entity in (
            ("a Produce of 100 B, no quota", None),
            ("somebody else has a quota", QuotaEntity(client_id="another")),
            ("this client has quotas", QuotaEntity(client_id="b")),
        ):
            rows[name] = lambda entity=entity: produces(plain, entity, arguments.requests)  # type: ignore[misc]
        for round_number in range(arguments.rounds + 1):
            for name, measure in rows.items():
                figure = measure()
                if round_number:  # the first one warms up
                    figures.setdefault(name, []).append(figure)
    print(f"load after: {os.getloadavg()}")
    print("\n| workload | a second | us of the node's CPU | beyond the first of its kind |")
    print("|---|---:|---:|---:|")
    first = 0.0
    for name, found in figures.items():
        rate, cost = (statistics.median(values) for values in zip(*found, strict=True))
        first = cost if name.startswith("a ") else first
        print(f"| {name} | {rate:,.0f} | {cost:,.1f} | {cost - first:+,.1f} |")


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


def asking_settings(folder: Path) -> dict[str, object]:
    """Return the settings of a node for users with passwords and for tokens, and write what clients need."""
    write_user(str(folder / "users"), USER, [make_verifier(mechanism, PASSWORD) for mechanism in SCRAM_MECHANISMS])
    key = ec.generate_private_key(ec.SECP256R1())
    public = {**ECAlgorithm.to_jwk(key.public_key(), as_dict=True), "kid": "k", "use": "sig"}
    (folder / "jwks").write_text(json.dumps({"keys": [public]}))
    now = int(time.time())
    claims = {"sub": USER, "aud": AUDIENCE, "iat": now, "exp": now + 3_600}
    (folder / "token").write_text(jwt.encode(claims, key, "ES256", headers={"kid": "k"}))
    return {
        "sasl.users.location": folder / "users",
        "sasl.enabled.mechanisms": ",".join(("OAUTHBEARER", PLAIN, *SCRAM_MECHANISMS)),
        "sasl.oauthbearer.jwks.endpoint.url": (folder / "jwks").as_uri(),
        "sasl.oauthbearer.expected.audience": AUDIENCE,
    }


def tls_settings(folder: Path) -> dict[str, object]:
    """Return the settings of a node that encrypts, with files for it and for clients."""
    authority = trustme.CA(key_type=trustme.KeyType.ECDSA)
    authority.cert_pem.write_to_path(folder / "ca.pem")
    issued = authority.issue_cert("127.0.0.1", key_type=trustme.KeyType.ECDSA)
    issued.private_key_pem.write_to_path(folder / "node.key")
    issued.cert_chain_pems[0].write_to_path(folder / "node.pem")
    return {"ssl.certificate.location": folder / "node.pem", "ssl.key.location": folder / "node.key"}


def connections(node: NodeProcess, security: Security, count: int) -> Figure:
    """Open connections one after the other, each up to where it can be used."""
    access = Access(security)
    encryption = access.context()

    async def prove(connection: Connection) -> None:
        await access.prove(connection)

    async def work() -> None:
        for _ in range(count):
            dial = dial_tcp(*node.address, encryption)
            connection = await connect(
                "127.0.0.1:0", dial, client_id="bench", prove=None if security.login is None else prove
            )
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


def produces(node: NodeProcess, entity: QuotaEntity | None, count: int) -> Figure:
    """Produce small records, many in flight on one connection, while an entity has quotas that it never reaches."""
    values = {"producer_byte_rate": 1e12, "request_percentage": 1e6}
    frame = dataplane.produce_frame(TOPIC, 0, dataplane.batch_of(100), 1)
    buffer = bytearray(1 << 16)
    with semel.Admin(node.grpc) as admin:
        if entity is not None:
            admin.alter_client_quotas([QuotaAlteration(entity, values)])
        with dataplane.connect(node.address) as connection:

            def work() -> None:
                connection.sendall(frame * IN_FLIGHT)
                for number in range(count):
                    dataplane.read_frame(connection, buffer)
                    if number < count - IN_FLIGHT:
                        connection.sendall(frame)

            figure = timed(node, count, work)
        if entity is not None:
            admin.alter_client_quotas([QuotaAlteration(entity, dict.fromkeys(values))])
        return figure


def timed(node: NodeProcess, count: int, work: Callable[[], None]) -> Figure:
    begun, used = time.perf_counter(), cpu_s(node.pid)
    work()
    return count / (time.perf_counter() - begun), (cpu_s(node.pid) - used) / count * 1e6


if __name__ == "__main__":
    main()
