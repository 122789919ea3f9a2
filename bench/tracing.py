"""What traces cost: a send without an SDK, with one that samples nothing, and with one that samples; a node's appends.

    python -P bench/tracing.py [--records 300000] [--batches 3000] [--rounds 5]

Every variant runs in processes of its own, in turn, and medians count. "CPU" is the client's (of a send, up to the
acknowledgement of all) or the node's (of a batch of ten records). Spans go where a real program's go, through the queue
of OpenTelemetry's batch processor; the client's exporter drops them, the node's sends them to a collector that does.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import semel

GRPC, KAFKA = "127.0.0.1:29194", "127.0.0.1:29192"
TOPIC = "bench"
TICKS = os.sysconf("SC_CLK_TCK")
CLIENTS = ("off", "off, with such a header", "unsampled", "unsampled, in a transaction", "1 in 1,000", "sampled")
NODES: dict[str, dict[str, str]] = {
    "off": {},
    "on, of unsampled clients": {"OTEL_TRACES_SAMPLER": "parentbased_always_off"},
    "on, all sampled": {"OTEL_TRACES_SAMPLER": "always_on"},
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", type=int, default=300_000)
    parser.add_argument("--batches", type=int, default=3_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--child", choices=CLIENTS)
    arguments = parser.parse_args()
    if arguments.child is not None:
        print(json.dumps(send(arguments.child, arguments.records)))
        return
    print(f"load before: {os.getloadavg()}")
    report("send, us of CPU a record", clients(arguments.records, arguments.rounds))
    report("append, us of the node's CPU a batch", nodes(arguments.batches, arguments.rounds))
    print(f"load after: {os.getloadavg()}")


def report(title: str, figures: Mapping[str, Sequence[float]]) -> None:
    print(f"\n{title}")
    base = statistics.median(figures["off"])
    for name, values in figures.items():
        median = statistics.median(values)
        print(f"{name:30} {median:8.2f}  best {min(values):8.2f}  {median / base:5.2f}x")


def clients(records: int, rounds: int) -> dict[str, list[float]]:
    figures: dict[str, list[float]] = {name: [] for name in CLIENTS}
    with node({}):
        for _ in range(rounds):
            for name in CLIENTS:
                command = [sys.executable, "-P", __file__, "--child", name, "--records", str(records)]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                figures[name].append(json.loads(done.stdout))
    return figures


def send(variant: str, records: int) -> float:
    """Return the microseconds of CPU that a record takes. Runs in a process of its own."""
    if not variant.startswith("off"):
        set_sdk(variant)
    in_transaction = "transaction" in variant
    with semel.Producer(GRPC, transactional_id="bench" if in_transaction else None) as producer:
        producer_send: Any = producer.send
        if in_transaction:
            with producer.transaction() as txn:
                return measured(txn.send, producer, records)
        if "header" in variant:
            header = (("traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"),)
            return measured(lambda topic, value: producer_send(topic, value, headers=header), producer, records)
        return measured(producer_send, producer, records)


def measured(call: Any, producer: semel.Producer, records: int) -> float:
    value = b"x" * 100
    for _ in range(1_000):
        call(TOPIC, value)
    producer.flush()
    begun = time.process_time()
    for _ in range(records):
        call(TOPIC, value)
    producer.flush()
    return (time.process_time() - begun) / records * 1e6


def set_sdk(variant: str) -> None:
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
    from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased, TraceIdRatioBased
    from opentelemetry.trace import set_tracer_provider

    class Nowhere(SpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            return SpanExportResult.SUCCESS

    root = {"sampled": ALWAYS_ON, "1 in 1,000": TraceIdRatioBased(0.001)}.get(variant, ALWAYS_OFF)
    provider = TracerProvider(sampler=ParentBased(root))
    provider.add_span_processor(BatchSpanProcessor(Nowhere()))
    set_tracer_provider(provider)


def nodes(batches: int, rounds: int) -> dict[str, list[float]]:
    figures: dict[str, list[float]] = {name: [] for name in NODES}
    with collector() as endpoint:
        for _ in range(rounds):
            for name, more in NODES.items():
                asked = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_METRICS_EXPORTER": "none", **more}
                with node(asked if more else {}) as pid:
                    figures[name].append(append(pid, batches))
    return figures


def append(pid: int, batches: int) -> float:
    """Return the microseconds of the node's CPU that a batch takes."""
    from semel.protocol.batch_builder import encode_batch

    ready = bytes(encode_batch([(1_000, None, b"x" * 100, ())] * 10))
    with semel.Producer(GRPC, linger_ms=0) as producer:
        for _ in range(200):
            producer.send_batch(TOPIC, 0, ready)
        producer.flush()
        begun = cpu_s(pid)
        for _ in range(batches):
            producer.send_batch(TOPIC, 0, ready)
        producer.flush()
        return (cpu_s(pid) - begun) / batches * 1e6


def cpu_s(pid: int) -> float:
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


@contextmanager
def node(environment: Mapping[str, str]) -> Iterator[int]:
    """Run a node with the topic of the bench; gives its process id."""
    with tempfile.TemporaryDirectory(prefix="semel-bench-") as folder:
        command = [sys.executable, "-P", "-m", "semel.cli", "serve"]
        command += ["--data-dir", folder, "--grpc", GRPC, "--kafka", KAFKA, "--set", "durability=os"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment}) as process:
            assert process.stdout is not None
            ready = process.stdout.readline()
            assert "ready" in ready, ready
            try:
                with semel.Admin(GRPC) as admin:
                    admin.create_topic(TOPIC, partitions=1)
                yield process.pid
            finally:
                process.send_signal(signal.SIGTERM)
                process.wait(30)


@contextmanager
def collector() -> Iterator[str]:
    """Take spans in by HTTP, and drop them."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


if __name__ == "__main__":
    main()
