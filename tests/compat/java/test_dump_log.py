"""Apache Kafka's `kafka-dump-log` reads everything in a data folder, and has nothing to complain about.

It decodes every record and checks sizes, checksums, offsets, and that indexes point where they should.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from kafka_tools import Done, KafkaTools

import semel
from semel.cli.demo.processes import NodeProcess
from semel.protocol.batch_header import BATCH_OVERHEAD, read_header
from semel.protocol.corruption import CorruptBatchError

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
RECORDS = 2_000
TRANSACTIONS, ABORTS_EACH = 200, 4
KEYS = 50
SETTINGS = (
    "offsets.topic.num.partitions=1",
    "transaction.state.log.num.partitions=1",
    "log.cleaner.backoff.ms=100",
    "log.flush.interval.ms=100",
    "log.index.interval.bytes=512",
)


@dataclass
class Data:
    """A data folder, and what is in it."""

    folder: Path
    sent: dict[str, list[tuple[str | None, str]]] = field(default_factory=dict)
    committed: dict[str, int] = field(default_factory=dict)
    """The group's offset in partition 0 of topic `none`."""

    def files(self, pattern: str) -> list[Path]:
        found = sorted(self.folder.glob(pattern))
        assert found, f"no {pattern} in the data directory"
        return found


@pytest.fixture(scope="module", params=["stopped", "killed and recovered"])
def data(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Data:
    """Of a node that is traced, too: then its records of transactions have one more tagged field."""
    data = Data(tmp_path_factory.mktemp("dump") / "data")
    node = NodeProcess(data.folder, settings=SETTINGS)
    with pytest.MonkeyPatch.context() as patch:
        if request.param != "stopped":
            patch.setenv("OTEL_TRACES_EXPORTER", "otlp")
            patch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
            patch.setenv("OTEL_METRICS_EXPORTER", "none")
        node.start()
    unfinished = semel.Producer(node.bootstrap, transactional_id="t1")
    try:
        fill(node.bootstrap, data, unfinished)
        if request.param != "stopped":
            node.kill()
            log = b"".join(path.read_bytes() for path in data.files("__transaction_state-0/*.log"))
            assert bytes.fromhex("924e21") in log, "no record of the node while it was traced names a trace"
            for index in [*data.files("tx-*/*index"), *data.files("*/*.snapshot")]:
                index.unlink()
            node.start()
        assert node.stop() == 0
    finally:
        if node.is_running:
            node.kill()
        with suppress(semel.SemelError):
            unfinished.close(0.1)
    return data


def fill(bootstrap: str, data: Data, unfinished: semel.Producer) -> None:
    with semel.Admin(bootstrap) as admin:
        for codec in CODECS:
            admin.create_topic(codec, partitions=1, configs={"segment.bytes": "40000"})
        admin.create_topic("tx", partitions=2, configs={"segment.bytes": "20000"})
        compact = {"cleanup.policy": "compact", "segment.bytes": "10000", "min.cleanable.dirty.ratio": "0"}
        admin.create_topic("compacted", partitions=1, configs=compact)
    for codec in CODECS:
        data.sent[codec] = [(f"k{n % 7}" if n % 3 else None, f"value-{n}" * 3) for n in range(RECORDS)]
        with semel.Producer(bootstrap, compression=codec, linger_ms=0, batch_size_bytes=2_000) as producer:
            for n, (key, value) in enumerate(data.sent[codec]):
                producer.send(codec, value, key=key, headers={"n": str(n)} if n % 5 == 0 else None)
    transactions(unfinished, data)
    groups(bootstrap, data)
    compaction(bootstrap, data)


def transactions(producer: semel.Producer, data: Data) -> None:
    """Commits, aborts, and one that stays open."""
    for n in range(TRANSACTIONS):
        producer.begin_transaction()
        for m in range(4):
            producer.send("tx", f"{n}-{m}", partition=m % 2)
        producer.send_offsets({semel.TopicPartition("none", 0): n}, semel.GroupMetadata("of-transactions"))
        producer.flush()
        if n % ABORTS_EACH == 0:
            producer.abort_transaction()
        else:
            producer.commit_transaction()
            data.committed["of-transactions"] = n
    producer.begin_transaction()
    producer.send("tx", b"left open", partition=0)
    producer.flush()


def groups(bootstrap: str, data: Data) -> None:
    with semel.Consumer(bootstrap, group="classic", topics=["none"], instance_id="static-1") as consumer:
        seen = 0
        for batch in consumer.batches():
            seen += len(batch)
            consumer.commit()
            if seen == RECORDS:
                break
    data.committed["classic"] = RECORDS


def compaction(bootstrap: str, data: Data) -> None:
    with semel.Producer(bootstrap, linger_ms=0, batch_size_bytes=1_000) as producer:
        for n in range(3_000):
            producer.send("compacted", f"v{n}", key=f"k{n % KEYS}")
        producer.send("compacted", None, key="k1")
        producer.flush()
        # the tombstone's segment is compacted once a newer one is there, and the compacted one is small
        while not is_compacted(data.folder / "compacted-0"):
            producer.send("compacted", "more", key="more").result(30)


def is_compacted(folder: Path) -> bool:
    """Whether it is small, and a tombstone has its horizon. Segments go away while they are looked at."""
    with suppress(FileNotFoundError):
        logs = [path.read_bytes() for path in folder.glob("*.log")]
        return sum(map(len, logs)) <= 15_000 and any(map(has_horizon, logs))
    return False


def has_horizon(log: bytes) -> bool:
    position = 0
    with suppress(CorruptBatchError):  # the last one is being written
        while position + BATCH_OVERHEAD <= len(log):
            header = read_header(log, position)
            if header.has_delete_horizon:
                return True
            position += header.size_bytes
    return False


def dumped(tools: KafkaTools, paths: list[Path], *options: str) -> Done:
    done = tools.run("dump-log", *options, "--files", ",".join(str(path) for path in paths)).succeeded()
    bases = {str(int(path.stem)) for path in paths if path.suffix == ".log"}
    # 4.x takes the first record of a segment to follow offset -1, in logs of its own broker too
    quirk = re.compile(r"Non-consecutive offsets in \S+|  -1 is followed by (\d+)")
    odd = [line for line in done.complaints() if not (match := quirk.fullmatch(line)) or match[1] not in {None, *bases}]
    assert not odd, odd[:20]
    wrong = [line for line in done.lines() if "isvalid: false" in line or "ismatch" in line or "out of order" in line]
    assert not wrong, wrong[:20]
    return done


def test_segments(each_tools: KafkaTools, data: Data) -> None:
    for codec in CODECS:
        done = dumped(each_tools, data.files(f"{codec}-0/*.log"), "--deep-iteration", "--print-data-log")
        batches = [line for line in done.lines() if line.startswith("baseOffset:")]
        assert batches
        assert all(f"compresscodec: {codec} " in line for line in batches)
        assert all("isvalid: true" in line for line in batches)
        records = [line for line in done.lines() if line.startswith("| offset:")]
        found = [
            re.search(r"\boffset: (\d+) .*?headerKeys: \[(.*?)\](?: key: (\S+))? payload: (\S+)$", line)
            for line in records
        ]
        assert [match and (match[3], match[4]) for match in found] == data.sent[codec]
        assert [match and int(match[1]) for match in found] == list(range(RECORDS))
        assert [match and match[2] for match in found] == ["n" if n % 5 == 0 else "" for n in range(RECORDS)]


def test_transactions_and_their_markers(each_tools: KafkaTools, data: Data) -> None:
    done = dumped(each_tools, data.files("tx-1/*.log"), "--deep-iteration", "--print-data-log")
    markers = re.findall(r"endTxnMarker: (\w+) coordinatorEpoch: 0", done.output)
    assert len(data.files("tx-1/*.log")) > 1
    assert markers == ["COMMIT" if n % ABORTS_EACH else "ABORT" for n in range(TRANSACTIONS)]
    values = re.findall(r"payload: (\S+)$", done.output, re.MULTILINE)
    assert values == [f"{n}-{m}" for n in range(TRANSACTIONS) for m in (1, 3)]


def test_compacted_segments(each_tools: KafkaTools, data: Data) -> None:
    done = each_tools.run(
        "dump-log",
        "--deep-iteration",
        "--print-data-log",
        "--files",
        ",".join(str(path) for path in data.files("compacted-0/*.log")),
    ).succeeded()
    assert "isvalid: false" not in done.output
    assert "isvalid: true" in done.output
    assert re.search(r"deleteHorizonMs: OptionalLong\[\d+\]", done.output), "the tombstone's horizon (KIP-534)"
    last = dict(re.findall(r"key: (k\d+)(?: payload: (\S+))?$", done.output, re.MULTILINE))
    assert last == {f"k{n}": f"v{2950 + n}" if n != 1 else "" for n in range(KEYS)}
    gaps = [line for line in done.complaints() if "Non-consecutive" not in line and "is followed by" not in line]
    assert not gaps, "compaction leaves gaps between offsets, and nothing else to complain about"


@pytest.mark.parametrize("kind", ["index", "timeindex"])
def test_indexes_are_sane_and_point_at_the_right_batches(each_tools: KafkaTools, data: Data, kind: str) -> None:
    files = [path for path in data.files(f"*/*.{kind}") if path.stat().st_size]
    done = dumped(each_tools, files, "--index-sanity-check")
    assert done.output.count("passed sanity check") == len(files) > len(CODECS)
    plain = [path for path in files if path.parent.name != "compacted-0"]
    entries = [line for line in dumped(each_tools, plain).lines() if not line.startswith("Dumping")]
    word = "offset: " if kind == "index" else "timestamp: "
    assert len(entries) >= len(plain)
    assert all(line.startswith(word) for line in entries)
    compacted = [path for path in files if path not in plain]
    done = each_tools.run("dump-log", "--files", ",".join(str(path) for path in compacted)).succeeded()
    # of a batch that compaction emptied, as Kafka's does, the tool takes -1 for the timestamp
    odd = [
        line for line in done.complaints() if "timestamp mismatch in" not in line and "log timestamp: -1" not in line
    ]
    assert not odd, odd


def test_aborted_transactions_are_indexed(each_tools: KafkaTools, data: Data) -> None:
    for folder in ("tx-0", "tx-1", "__consumer_offsets-0"):
        log = dumped(each_tools, data.files(f"{folder}/*.log"), "--deep-iteration", "--print-data-log")
        aborts = re.findall(r"offset: (\d+) .*endTxnMarker: ABORT", log.output)
        index = dumped(each_tools, data.files(f"{folder}/*.txnindex"))
        entries = re.findall(
            r"version: 0 producerId: (\d+) firstOffset: (\d+) lastOffset: (\d+) lastStableOffset: (\d+)", index.output
        )
        assert [last for _, _, last, _ in entries] == aborts
        assert len(entries) == len(index.lines()) - len(data.files(f"{folder}/*.txnindex"))
        assert all(int(first) < int(last) < int(stable) for _, first, last, stable in entries)


def test_P7_producer_snapshots(each_tools: KafkaTools, data: Data) -> None:
    done = dumped(each_tools, data.files("*/*.snapshot"))
    entries = [line for line in done.lines() if not line.startswith("Dumping")]
    whole = (
        r"producerId: \d+ producerEpoch: \d+ coordinatorEpoch: -?\d+ currentTxnFirstOffset: \S+ lastTimestamp: \d+ .*"
    )
    assert entries
    assert all(re.fullmatch(whole, f"{line} ") for line in entries)
    newest = data.files("tx-0/*.snapshot")[-1]
    (entry,) = [line for line in dumped(each_tools, [newest]).lines() if not line.startswith("Dumping")]
    opened = re.search(r"currentTxnFirstOffset: (?:OptionalLong\[)?(\d+)", entry)
    last = re.search(r"lastOffset: (\d+)", entry)
    assert opened
    assert last
    assert opened[1] == last[1] == str(int(newest.stem) - 1), "the record of the transaction that is still open"


def test_O1_consumer_offsets(each_tools: KafkaTools, data: Data) -> None:
    done = dumped(each_tools, data.files("__consumer_offsets-0/*.log"), "--offsets-decoder", "--deep-iteration")
    assert "nknown" not in done.output, "every record is of a kind that the decoder knows"
    offsets: dict[str, list[int]] = {}
    members: list[list[dict[str, object]]] = []
    for line in done.lines():
        match = re.search(r"key: (\{.*?\}) payload: (\{.*\})$", line)
        if match is None:
            continue
        key, value = json.loads(match[1]), json.loads(match[2])
        if key["type"] == "1":
            assert (key["data"]["topic"], key["data"]["partition"]) == ("none", 0)
            offsets.setdefault(key["data"]["group"], []).append(value["data"]["offset"])
        else:
            assert (key["type"], key["data"]["group"]) == ("2", "classic")
            assert value["data"]["protocolType"] == "consumer"
            members.append(value["data"]["members"])
    assert offsets["of-transactions"] == list(range(TRANSACTIONS))
    assert data.committed["of-transactions"] == TRANSACTIONS - 1
    assert offsets["classic"][-1] == data.committed["classic"]
    (member,) = next(group for group in members if group)
    assert member["groupInstanceId"] == "static-1"
    assert member["sessionTimeout"] == 45_000


STATES = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort")
OLDER_VALUE = re.compile(
    r"key: transaction_metadata::transactionalId=t1 payload: producerId:\d+,producerEpoch:(\d+),state=(\w+),"
    r"partitions=\[(.*?)\],txnLastUpdateTimestamp=\d+,txnTimeoutMs=60000$"
)


def transaction_entry(line: str) -> tuple[int, str, frozenset[str]]:
    """Return epoch, state and partitions, as this or that release prints them."""
    if older := OLDER_VALUE.search(line):
        return int(older[1]), older[2], frozenset(filter(None, older[3].split(",")))
    match = re.search(r"key: (\{.*?\}) payload: (\{.*\})$", line)
    assert match, line
    key, value = json.loads(match[1]), json.loads(match[2])["data"]
    assert key["data"]["transactionalId"] == "t1"
    partitions = frozenset(
        f"{one['topic']}-{n}" for one in value["transactionPartitions"] or () for n in one["partitionIds"]
    )
    assert value["transactionTimeoutMs"] == 60_000
    return value["producerEpoch"], STATES[value["transactionStatus"]], partitions


def test_T1_transaction_state(each_tools: KafkaTools, data: Data) -> None:
    done = dumped(
        each_tools, data.files("__transaction_state-0/*.log"), "--transaction-log-decoder", "--deep-iteration"
    )
    entries = [transaction_entry(line) for line in done.lines() if line.startswith("| offset:")]
    states = [state for _, state, _ in entries if state not in ("Ongoing", "Empty")]
    ends = ["Commit" if n % ABORTS_EACH else "Abort" for n in range(TRANSACTIONS)]
    assert states == [f"{step}{end}" for end in ends for step in ("Prepare", "Complete")]
    decided = {partitions for _, state, partitions in entries if state.startswith("Prepare")}
    assert decided == {frozenset(("__consumer_offsets-0", "tx-0", "tx-1"))}
    assert entries[-1][1:] == ("Ongoing", frozenset(("tx-0",))), "the one that is still open"
    epochs = [epoch for epoch, state, _ in entries if state.startswith("Complete")]
    assert epochs == list(range(epochs[0], epochs[0] + TRANSACTIONS)), "T6: an epoch for each transaction"
