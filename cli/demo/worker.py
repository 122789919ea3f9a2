"""One instance of the demo's pipeline, a process of its own: reads flights, enriches them, and counts by carrier.

Started by the demo as `python -m semel.cli.demo.worker`, and killed by it. Says what happened on standard output, a
JSON object a line.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections import Counter
from typing import Any

from semel.cli.demo.flights import enrich, load_airlines
from semel.protocol.errors import AbortTransactionError, FencedError, RetriableError
from semel.sdk.consumer.api import Consumer
from semel.sdk.producer.api import Producer

INPUT = "flights"
ENRICHED = "flights-enriched"
PER_CARRIER = "flights-per-carrier"
GROUP = "flights-pipeline"


def main() -> int:
    """Run until SIGTERM, or until another instance takes this one's place (exit code 4)."""
    arguments = _parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    run = run_exactly_once if arguments.mode == "exactly-once" else run_at_least_once
    try:
        run(arguments.bootstrap, arguments.instance, arguments.batch)
    except FencedError as error:
        say("fenced", reason=str(error))
        return 4
    return 0


def run_exactly_once(bootstrap: str, instance: int, batch_records: int) -> None:
    """The pipeline as one would write it: outputs and source offsets in one transaction."""
    airlines = load_airlines()
    with (
        Producer(bootstrap, transactional_id=f"{GROUP}-{instance}", transaction_timeout_ms=10_000) as producer,
        Consumer(
            bootstrap,
            group=GROUP,
            topics=[INPUT],
            instance_id=f"instance-{instance}",
            session_timeout_ms=6_000,
            max_poll_interval_ms=15_000,
        ) as consumer,
    ):
        say("started")
        for batch in consumer.batches(max_records=batch_records):
            try:
                with producer.transaction(commits=batch) as txn:
                    counts: Counter[str] = Counter()
                    for record in batch:
                        _, carrier, value = enrich(record.value or b"", airlines)
                        txn.send(ENRICHED, key=record.key, value=value)
                        counts[carrier] += 1
                    for carrier, count in counts.items():
                        txn.send(PER_CARRIER, key=carrier.encode(), value=str(count).encode())
            except (AbortTransactionError, RetriableError) as error:
                say("aborted", reason=str(error))
            else:
                say("committed", records=len(batch))


def run_at_least_once(bootstrap: str, instance: int, batch_records: int) -> None:
    """The same without idempotence and transactions: offsets are committed by the clock, whatever became of output."""
    airlines = load_airlines()
    with (
        Producer(bootstrap, idempotent=False, acks=1) as producer,
        Consumer(
            bootstrap,
            group=GROUP,
            topics=[INPUT],
            instance_id=f"instance-{instance}",
            session_timeout_ms=6_000,
            max_poll_interval_ms=15_000,
            isolation="read_uncommitted",
            auto_commit_interval_ms=200,
        ) as consumer,
    ):
        say("started")
        for batch in consumer.batches(max_records=batch_records):
            counts: Counter[str] = Counter()
            for record in batch:
                _, carrier, value = enrich(record.value or b"", airlines)
                producer.send(ENRICHED, key=record.key, value=value)
                counts[carrier] += 1
            for carrier, count in counts.items():
                producer.send(PER_CARRIER, key=carrier.encode(), value=str(count).encode())
            say("handed over", records=len(batch))


def say(event: str, **details: Any) -> None:
    """Tell the demo what happened."""
    print(json.dumps({"event": event, **details}), flush=True)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", required=True, help="the node's gRPC address")
    parser.add_argument("--instance", type=int, required=True, help="this instance's number")
    parser.add_argument("--mode", choices=("exactly-once", "at-least-once"), default="exactly-once")
    parser.add_argument("--batch", type=int, default=2_000, help="records in a transaction, at most")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
