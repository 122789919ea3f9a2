"""A process that fills tables from the topic `source`, or relays an outbox, until it is killed."""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import sqlalchemy as sa

import semel
import semel.sql
from semel.protocol.ids import TopicPartition
from semel.sdk.sql.offsets import OffsetsTable, Step

SOURCE, DEAD, GROUP = "source", "dead", "sql"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["append", "upsert", "own", "outbox"])
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--url", required=True)
    parser.add_argument("--instance")
    parser.add_argument("--fault", choices=["offsets-apart"])
    parser.add_argument("--killed", type=Path, help="a file that says that the planted fault has met its kill")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(asctime)s %(name)s %(message)s")
    if arguments.fault == "offsets-apart":
        offsets_apart(arguments.killed)
    try:
        if arguments.what == "outbox":
            relay(arguments)
        elif arguments.what == "own":
            count(arguments)
        else:
            fill(arguments)
    except semel.FencedError as error:
        print(f"fenced: {error}", flush=True)
        return 4
    return 0


def offsets_apart(killed: Path) -> None:
    """Commit the offsets before the rows, to show that the check sees it: a kill in between loses rows (against E3).

    The first process that comes there kills itself, so that it does not depend on luck that a kill hits the place.
    """
    advance = OffsetsTable.advance

    def advance_apart(self: OffsetsTable, connection: sa.Connection, steps: Mapping[TopicPartition, Step]) -> bool:
        moved = advance(self, connection, steps)
        driver_connection = connection.connection.dbapi_connection
        assert driver_connection is not None
        driver_connection.commit()
        if moved:
            with suppress(FileExistsError):
                killed.touch(exist_ok=False)
                os.kill(os.getpid(), signal.SIGKILL)
        return moved

    OffsetsTable.advance = advance_apart  # type: ignore[method-assign]


def fill(arguments: argparse.Namespace) -> None:
    upserts = arguments.what == "upsert"
    with semel.sql.Sink(
        arguments.bootstrap,
        arguments.url,
        group=GROUP,
        topics=[SOURCE],
        table="latest" if upserts else "written",
        mapping=to_latest if upserts else to_written,
        mode=arguments.what,
        dead_letter_topic=DEAD,
        rows_max=300,
        linger_ms=20,
        consumer=consumer_options(arguments),
    ) as sink:
        signal.signal(signal.SIGTERM, lambda *_: sink.stop())
        sink.run()
        print(sink.statistics(), flush=True)


def to_written(record: semel.Record) -> dict[str, Any]:
    value = json.loads(record.value or b"")
    return {
        "source_partition": record.partition,
        "source_offset": record.offset,
        "record_key": (record.key or b"").decode(),
        "number": value["n"],
    }


def to_latest(record: semel.Record) -> dict[str, Any]:
    value = json.loads(record.value or b"")
    return {"record_key": (record.key or b"").decode(), "number": value["n"], "source_offset": record.offset}


def count(arguments: argparse.Namespace) -> None:
    """Add up, which done twice for a record shows for ever."""
    with semel.sql.Sink(
        arguments.bootstrap, arguments.url, group=GROUP, topics=[SOURCE], consumer=consumer_options(arguments)
    ) as sink:
        signal.signal(signal.SIGTERM, lambda *_: sink.stop())
        batches = sink.batches(max_records=300)
        while not sink.is_stopped:
            try:
                for batch in batches:
                    with sink.transaction(batch) as connection:
                        for record in batch:
                            add(connection, record)
            except (semel.AbortTransactionError, semel.RetriableError) as error:
                print(f"again: {error}", flush=True)
                batches = sink.batches(max_records=300)


def add(connection: sa.Connection, record: semel.Record) -> None:
    connection.execute(
        sa.text("UPDATE totals SET n = n + 1, offsets = offsets + :offset WHERE source_partition = :partition"),
        {"offset": record.offset, "partition": record.partition},
    )


def relay(arguments: argparse.Namespace) -> None:
    with semel.sql.Outbox(
        arguments.bootstrap,
        arguments.url,
        lease_ms=1_500,
        rows_max=50,
        producer={"transaction_timeout_ms": 10_000, "connect_timeout_ms": 60_000},
    ) as outbox:
        signal.signal(signal.SIGTERM, lambda *_: outbox.stop())
        outbox.run()
        print(outbox.statistics(), flush=True)


def consumer_options(arguments: argparse.Namespace) -> dict[str, Any]:
    options: dict[str, Any] = {"session_timeout_ms": 6_000, "connect_timeout_ms": 60_000, "max_wait_ms": 100}
    if arguments.instance:
        options["instance_id"] = arguments.instance
    return options


if __name__ == "__main__":
    sys.exit(main())
