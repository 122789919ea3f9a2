"""`semel bench`: produce, consume, transactions and end-to-end, against a Semel node or any Kafka broker."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Final

import typer

from semel.cli.bench.client import Acks, ProducerPlan
from semel.cli.common import (
    DEFAULT_BOOTSTRAP,
    DURATION,
    DURATION_HELP,
    AsJson,
    Bootstrap,
    command_app,
    command_here,
    counted,
    examples,
    fails_well,
    parse_duration,
    print_json,
)
from semel.cli.produce import Compression
from semel.cli.signals import finishing_on_signals
from semel.protocol.errors import ErrorCode, SemelError, UsageError

if TYPE_CHECKING:
    from semel.cli.bench.client import BenchClient
    from semel.cli.bench.measuring import Measured
    from semel.cli.bench.workloads import Load

app = command_app("Measure how fast a node, or a Kafka broker, takes and returns records.")

KAFKA_BOOTSTRAP: Final = "127.0.0.1:9092"
DURATION_S: Final = 10.0
DURATION_MAX_S: Final = 3_600.0
RECORDS_MAX: Final = 1_000_000_000
FILLED_RECORDS: Final = 500_000
STAMP_BYTES: Final = 16


class ClientName(StrEnum):
    SEMEL = "semel"
    CONFLUENT = "confluent"


Client = Annotated[
    ClientName,
    typer.Option(
        help="semel: Semel's client, for a Semel node. confluent: the package confluent-kafka, for the Kafka port of a "
        "Semel node or any Kafka broker."
    ),
]
Topic = Annotated[
    str | None,
    typer.Option(
        metavar="TOPIC",
        help="An existing topic, which is not deleted. Default: a new topic semel-bench-..., deleted at the end.",
    ),
]
Partitions = Annotated[
    int | None, typer.Option(min=1, max=1_000, metavar="N", help="Partitions of the new topic.", show_default="6")
]
Records = Annotated[int | None, typer.Option(min=1, max=RECORDS_MAX, metavar="N", help="End after this many records.")]
Duration = Annotated[
    str | None,
    typer.Option(
        metavar=DURATION,
        show_default="10s, if --records is not given",
        help=f"End after this time, at most an hour. {DURATION_HELP}",
    ),
]
RecordSize = Annotated[int, typer.Option(min=1, max=1_000_000, metavar="BYTES", help="The size of a record's value.")]
Rate = Annotated[
    float | None,
    typer.Option(
        min=0.1,
        max=10_000_000,
        metavar="N",
        show_default="no limit",
        help="Records each second. Latencies then count from when a record was due.",
    ),
]
CompressionOption = Annotated[Compression, typer.Option("--compression", help="How batches are compressed.")]
AcksOption = Annotated[
    Acks, typer.Option("--acks", help="all: durable. 1: written by the leader. 0: sent, not acknowledged.")
]

Run = Callable[["BenchClient", str], "Measured"]


@app.command(
    epilog=examples(
        "semel bench produce",
        "semel bench produce --records 1000000 --record-size 1000 --compression lz4 --partitions 12",
        "semel bench produce --rate 5000 --duration 30s --json",
        "semel bench produce --client confluent --bootstrap localhost:9092",
    )
)
@fails_well
def produce(
    records: Records = None,
    duration: Duration = None,
    record_size: RecordSize = 100,
    rate: Rate = None,
    compression: CompressionOption = Compression.NONE,
    acks: AcksOption = Acks.ALL,
    topic: Topic = None,
    partitions: Partitions = None,
    client: Client = ClientName.SEMEL,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Send records as fast as they go, or at a rate. Latency: from sending to the acknowledgement."""
    from semel.cli.bench import workloads

    load = _load(records, duration, record_size, rate)
    plan = ProducerPlan(compression.value, acks)
    about = {"record_size": record_size, "compression": compression.value, "acks": acks.value}
    _run(
        "produce",
        lambda target, name: workloads.produce(target, name, plan, load),
        about,
        "from sending to the acknowledgement, of every tenth record",
        topic=topic,
        partitions=partitions,
        client=client,
        bootstrap=bootstrap,
        as_json=as_json,
    )


@app.command(
    epilog=examples("semel bench consume", "semel bench consume --topic orders --duration 30s --client confluent")
)
@fails_well
def consume(
    records: Records = None,
    duration: Duration = None,
    record_size: RecordSize = 100,
    compression: CompressionOption = Compression.NONE,
    topic: Topic = None,
    partitions: Partitions = None,
    client: Client = ClientName.SEMEL,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Read records from the start of a topic. Without --topic, a new one is filled first: 500,000 records or --records.

    With --topic it ends at --records, at --duration, or at the end of the topic. --record-size and --compression are
    of the records that fill a new topic.
    """
    from semel.cli.bench import workloads

    limit_s = None if duration is None else _duration(duration)
    filled = None if topic else records or FILLED_RECORDS

    def run(target: BenchClient, name: str) -> Measured:
        if filled is not None:
            print(f"filling it with {counted(filled, 'record')}", file=sys.stderr)
            load = workloads.Load(record_size, filled, None, None)
            workloads.produce(target, name, ProducerPlan(compression.value, Acks.ALL), load)
            print("reading", file=sys.stderr)
        return workloads.consume(target, name, filled or records, limit_s)

    about = {} if topic else {"record_size": record_size, "compression": compression.value}
    _run(
        "consume",
        run,
        about,
        "",
        topic=topic,
        partitions=partitions,
        client=client,
        bootstrap=bootstrap,
        as_json=as_json,
    )


@app.command(
    epilog=examples(
        "semel bench transactions",
        "semel bench transactions --transaction-records 1000 --duration 30s",
    )
)
@fails_well
def transactions(
    transaction_records: Annotated[
        int, typer.Option(min=1, max=1_000_000, metavar="N", help="Records in each transaction.")
    ] = 100,
    records: Records = None,
    duration: Duration = None,
    record_size: RecordSize = 100,
    rate: Rate = None,
    compression: CompressionOption = Compression.NONE,
    topic: Topic = None,
    partitions: Partitions = None,
    client: Client = ClientName.SEMEL,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Send transactions one after the other. Latency: from the begin to the end of the commit."""
    from semel.cli.bench import workloads

    load = _load(records, duration, record_size, rate)
    plan = ProducerPlan(compression.value, Acks.ALL, f"semel-bench-{secrets.token_hex(4)}")
    about = {
        "record_size": record_size,
        "compression": compression.value,
        "acks": Acks.ALL.value,
        "transaction_records": transaction_records,
    }
    _run(
        "transactions",
        lambda target, name: workloads.transactions(target, name, plan, load, transaction_records),
        about,
        "from the begin to the end of the commit, of each transaction",
        topic=topic,
        partitions=partitions,
        client=client,
        bootstrap=bootstrap,
        as_json=as_json,
    )


@app.command(
    epilog=examples("semel bench end-to-end", "semel bench end-to-end --rate 200 --record-size 1000 --duration 1m")
)
@fails_well
def end_to_end(
    records: Records = None,
    duration: Duration = None,
    record_size: Annotated[
        int, typer.Option(min=STAMP_BYTES, max=1_000_000, metavar="BYTES", help="The size of a record's value.")
    ] = 100,
    rate: Annotated[
        float,
        typer.Option(
            min=0.1, max=10_000_000, metavar="N", help="Records each second. Latencies count from when one was due."
        ),
    ] = 1_000,
    compression: CompressionOption = Compression.NONE,
    acks: AcksOption = Acks.ALL,
    topic: Topic = None,
    partitions: Partitions = None,
    client: Client = ClientName.SEMEL,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Send at a rate and read at the same time. Latency: from sending until a consumer has the record."""
    from semel.cli.bench import workloads

    load = _load(records, duration, record_size, rate)
    plan = ProducerPlan(compression.value, acks)
    about = {"record_size": record_size, "compression": compression.value, "acks": acks.value, "rate": rate}
    _run(
        "end-to-end",
        lambda target, name: workloads.end_to_end(target, name, plan, load),
        about,
        "from sending until the consumer has it, of each record",
        topic=topic,
        partitions=partitions,
        client=client,
        bootstrap=bootstrap,
        as_json=as_json,
    )


def _load(records: int | None, duration: str | None, record_size: int, rate: float | None) -> Load:
    from semel.cli.bench.workloads import Load

    duration_s = None if duration is None else _duration(duration)
    if records is None and duration_s is None:
        duration_s = DURATION_S
    return Load(record_size, records, duration_s, rate)


def _duration(text: str) -> float:
    seconds = parse_duration(text, "--duration")
    if not 0 < seconds <= DURATION_MAX_S:
        raise UsageError(f"--duration takes more than 0 and at most an hour, such as 30s, not {text}")
    return seconds


def _run(
    workload: str,
    run: Run,
    about: Mapping[str, object],
    latency_of: str,
    *,
    topic: str | None,
    partitions: int | None,
    client: ClientName,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Measure, and print what came of it."""
    if topic is not None and partitions is not None:
        raise UsageError("--partitions is for the new topic: leave it out, or --topic")
    target = _client(client, bootstrap)
    with finishing_on_signals(), _topic(target, topic, partitions or 6, bootstrap) as (name, count):
        try:
            measured = run(target, name)
        except KeyboardInterrupt:
            print("interrupted: there is no result", file=sys.stderr)
            raise
    settings = {"workload": workload, "client": target.name, "topic": name, "partitions": count, **about}
    if as_json:
        print_json(measured.as_json(settings))
        return
    told = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in settings.items() if key != "workload")
    print(f"{workload}: {told}")
    for line in measured.lines(latency_of):
        print(line)


def _client(name: ClientName, bootstrap: str) -> BenchClient:
    if name is ClientName.CONFLUENT:
        from semel.cli.bench.confluent_client import ConfluentClient

        return ConfluentClient(KAFKA_BOOTSTRAP if bootstrap == DEFAULT_BOOTSTRAP else bootstrap)
    from semel.cli.bench.semel_client import SemelClient

    return SemelClient(bootstrap)


@contextmanager
def _topic(client: BenchClient, given: str | None, partitions: int, bootstrap: str) -> Iterator[tuple[str, int]]:
    """Give a topic and its number of partitions. One that was made here is deleted at the end, however that comes."""
    if given is not None:
        yield given, client.partition_count(given)
        return
    name = f"semel-bench-{secrets.token_hex(4)}"
    is_ours = True
    try:
        try:
            client.create_topic(name, partitions)
        except SemelError:
            is_ours = False
            raise
        print(
            f"created topic {name} with {counted(partitions, 'partition')}; it is deleted at the end", file=sys.stderr
        )
        yield name, partitions
    finally:
        if is_ours:
            _delete(client, name, bootstrap)


def _delete(client: BenchClient, name: str, bootstrap: str) -> None:
    try:
        client.delete_topic(name)
    except SemelError as error:
        if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return  # it was interrupted before the topic was there
        again = command_here(f"semel topic delete {name}", bootstrap)
        print(f"semel: topic {name} could not be deleted: {error}. Delete it with `{again}`", file=sys.stderr)
    else:
        print(f"deleted topic {name}", file=sys.stderr)
