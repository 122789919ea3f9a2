"""`semel export` and `semel import`: what is written, that it comes back, and what ends them in the middle."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet
import pytest
from export_kit import Run, read, send

import semel
from semel.broker.node import Node
from semel.cli import produce
from semel.cli.common import ExitCode
from semel.cli.exports import export, importing
from semel.protocol.batch_builder import encode_batch
from semel.protocol.errors import SemelError
from semel.testing import Broker

DAY_MS = 86_400_000
ODD = [  # key, value, headers: what a topic may have
    (None, None, ()),
    (b"", b"", (("", b""),)),
    (b"\xff\x00", b"\xfe" * 10, (("h", None), ("h", b"\xff"), ("text", b"a"))),
    ("zwölf".encode(), b'{"line": "one\\ntwo"}\n', ()),
]


@pytest.mark.parametrize("format_", ["parquet", "json"])
def test_a_topic_comes_back_as_it_was(broker: Broker, run: Run, topic: str, tmp_path: Path, format_: str) -> None:
    send(broker, topic, 95)
    with semel.Producer(broker.bootstrap) as producer:
        for key, value, headers in ODD:
            producer.send(topic, value, key=key, headers=headers, partition=1, timestamp_ms=1_700_000_000_123)
    with semel.Admin(broker.bootstrap) as admin:
        admin.alter_topic_configs(topic, changes={"retention.ms": "-1", "max.message.bytes": "2000000"})
    wrote = run("export", topic, tmp_path / "out", "--format", format_)
    assert (wrote.exit_code, wrote.stderr) == (0, f"wrote 99 records of {topic} in 2 files to {tmp_path / 'out'}\n")
    sent = run("import", tmp_path / "out", f"{topic}-copy", "--create")
    assert sent.exit_code == 0
    assert sent.stderr == f"created topic {topic}-copy with 2 partitions\nsent 99 records to {topic}-copy\n"
    found = read(broker, f"{topic}-copy")
    assert found == read(broker, topic)
    assert len(found) == 99
    with semel.Admin(broker.bootstrap) as admin:
        settings = {one.name: one.value for one in admin.topic_configs(f"{topic}-copy")}
    assert (settings["retention.ms"], settings["max.message.bytes"]) == ("-1", "2000000")


def test_others_read_the_files(broker: Broker, run: Run, topic: str, tmp_path: Path) -> None:
    send(broker, topic, 20)
    run("export", topic, tmp_path / "columns")
    run("export", topic, tmp_path / "lines", "--format", "json")
    found = duckdb.sql(f"SELECT count(*), count(DISTINCT value) FROM '{tmp_path}/columns/*/*.parquet'").fetchall()
    assert found == [(20, 20)]
    lines = [
        json.loads(line) for path in (tmp_path / "lines").glob("*/*.jsonl") for line in path.read_text().splitlines()
    ]
    assert sorted(int(line["value"]) for line in lines) == list(range(20))
    again = run("produce", topic, *(tmp_path / "lines").glob("*/*.jsonl"), "--format", "json")
    assert again.stderr == f"sent 20 records to {topic}\n"


def test_E1_an_export_continues_with_what_has_come_since(broker: Broker, run: Run, topic: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run("export", topic, out)
    for first in range(0, 90, 30):
        send(broker, topic, 30, first)
        assert run("export", topic, out, "--json").stdout.startswith(f'{{"topic": "{topic}", "records": 30, "files": 2')
    with semel.Admin(broker.bootstrap) as admin:
        admin.add_partitions(topic, 3)
    with semel.Producer(broker.bootstrap) as producer:
        producer.send(topic, b"new", partition=2)
    assert run("export", topic, out).stderr.startswith("wrote 1 record of")
    assert run("export", topic, out).stderr.startswith("wrote 0 records of")
    run("import", out, f"{topic}-copy", "--create")
    assert read(broker, f"{topic}-copy") == read(broker, topic)


def test_E1_an_import_continues_with_what_was_exported_since(
    broker: Broker, run: Run, topic: str, tmp_path: Path
) -> None:
    copy = f"{topic}-copy"
    for first in (0, 40):
        send(broker, topic, 40, first)
        run("export", topic, tmp_path / "out")
        told = run("import", tmp_path / "out", copy, "--create", "--json").stdout
        assert json.loads(told) == {"topic": copy, "records": 40, "records_before": first}
        assert read(broker, copy) == read(broker, topic)
    again = run("import", tmp_path / "out", copy)
    assert again.stderr == f"sent 0 records to {copy}; 80 records had been sent before\n"
    broker.delete_topic(copy)
    assert run("import", tmp_path / "out", copy, "--create").stderr.endswith(f"sent 80 records to {copy}\n")


def test_E1_an_export_that_is_cut_off_begins_its_file_again(
    broker: Broker, run: Run, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(broker, topic, 60)
    out = tmp_path / "out"
    finish = export._Exporter._finish
    finished: list[int] = []

    def cut_off(self: object, file: object, next_offset: int) -> None:
        if finished:
            os._exit(0)
        finished.append(next_offset)
        finish(self, file, next_offset)  # type: ignore[arg-type]

    child = os.fork()
    if child == 0:
        monkeypatch.setattr(export._Exporter, "_finish", cut_off)
        run("export", topic, out)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert [path.name for path in (out / "partition-1").iterdir()] == ["00000000000000000000.partial"]
    assert run("export", topic, out).stderr.startswith("wrote 30 records of")
    assert not list(out.glob("*/*.partial"))
    run("import", out, f"{topic}-copy", "--create")
    assert read(broker, f"{topic}-copy") == read(broker, topic)


def test_files_are_ended_at_a_size(broker: Broker, run: Run, topic: str, tmp_path: Path) -> None:
    with semel.Producer(broker.bootstrap, batch_size_bytes=100_000) as producer:
        for number in range(60):
            producer.send(topic, b"%d" % number + bytes(100_000), partition=0)
    run("export", topic, tmp_path / "out", "--file-bytes", 1 << 20)
    files = sorted((tmp_path / "out" / "partition-0").iterdir())
    assert len(files) >= 2
    places = [tuple(map(int, path.stem.split("-")[:2])) for path in files]
    assert [begin for begin, _ in places] == [0, *(end for _, end in places[:-1])]
    assert places[-1][1] == 60
    assert sum(pyarrow.parquet.ParquetFile(path).metadata.num_rows for path in files) == 60


def test_a_range_of_time_is_exported(broker: Broker, run: Run, topic: str, tmp_path: Path) -> None:
    now_ms = int(time.time() * 1000)
    with semel.Producer(broker.bootstrap) as producer:
        for hours in range(10, 0, -1):
            producer.send(topic, b"%d" % hours, partition=0, timestamp_ms=now_ms - hours * 3_600_000)
    wrote = run("export", topic, tmp_path / "out", "--since", "7.5h", "--until", "3.5h", "--format", "json")
    assert wrote.stderr.startswith("wrote 4 records of")
    run("export", topic, tmp_path / "out")
    found = [
        json.loads(line)["value"]
        for path in sorted(tmp_path.glob("out/*/*.jsonl"))
        for line in path.read_text().splitlines()
    ]
    assert found == ["7", "6", "5", "4", "3", "2", "1"], "it began where --since said, and continues"


def test_an_export_of_something_else_is_not_continued(broker: Broker, run: Run, topic: str, tmp_path: Path) -> None:
    send(broker, topic, 10)
    out = tmp_path / "out"
    run("export", topic, out)
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "x").touch()
    for arguments, told in (
        (("export", "other", out), "there is no topic 'other'"),
        (("export", topic, out, "--format", "json"), "has an export in parquet: leave out --format"),
        (("export", topic, out, "--since", "1h"), "leave out --since"),
        (("export", topic, tmp_path / "files"), "has files and no export.json"),
        (("export", topic, tmp_path / "files" / "x"), "can't write to"),
        (("import", tmp_path / "files" / "none"), "name a directory that `semel export` has written"),
        (("import", out, f"{topic}-none"), "Give --create for one with 2 partitions"),
    ):
        failed = run(*arguments)
        assert failed.exit_code != 0
        assert told in failed.stderr
    broker.create_topic("other", partitions=1)
    assert f"has an export of topic {topic}: give other another directory" in run("export", "other", out).stderr
    assert "Add some with `semel topic add-partitions other" in run("import", out, "other").stderr
    broker.delete_topic(topic)
    broker.create_topic(topic, partitions=2)
    assert "was deleted and created again since" in run("export", topic, out).stderr


def test_two_exports_do_not_write_to_one_directory(run: Run, topic: str, tmp_path: Path) -> None:
    run("export", topic, tmp_path / "out")
    with (tmp_path / "out" / ".lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        failed = run("export", topic, tmp_path / "out")
    assert (failed.exit_code, "another export writes to" in failed.stderr) == (ExitCode.USAGE, True)


def test_records_that_retention_deleted_before_they_were_written_are_not_passed_over_in_silence(
    broker: Broker, run: Run, topic: str, tmp_path: Path
) -> None:
    send(broker, topic, 10)
    run("export", topic, tmp_path / "out")
    send(broker, topic, 20, 10)
    with semel.Admin(broker.bootstrap) as admin:
        admin.delete_records({semel.TopicPartition(topic, 0): 15})
    failed = run("export", topic, tmp_path / "out")
    assert (failed.exit_code, "is not in the log, which starts at 15" in failed.stderr) == (ExitCode.REFUSED, True)
    assert "--skip-lost" in failed.stderr
    assert run("export", topic, tmp_path / "out", "--skip-lost").exit_code == 0


def test_a_topic_that_is_going_to_delete_what_is_imported_is_told_of(
    broker: Broker, run: Run, topic: str, tmp_path: Path
) -> None:
    with semel.Producer(broker.bootstrap) as producer:
        for partition in (0, 1):
            producer.send(topic, b"old", partition=partition, timestamp_ms=int(time.time() * 1000) - 30 * DAY_MS)
    run("export", topic, tmp_path / "out")
    with semel.Admin(broker.bootstrap) as admin:
        admin.alter_topic_configs(topic, changes={"retention.ms": str(DAY_MS)})
    told = run("import", tmp_path / "out", topic).stderr
    assert told.count("warning: there are records of") == 1
    assert f"`semel topic config {topic} --set retention.ms=-1" in told


def test_E1_an_import_whose_commit_was_not_answered_sends_nothing_twice(
    broker: Broker, run: Run, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(broker, topic, 60)
    run("export", topic, tmp_path / "out")
    monkeypatch.setattr(importing, "_TRANSACTION_RECORDS", 7)
    copy = f"{topic}-copy"
    transactions = importing._Importer._transactions
    given = 0

    def some(self: importing._Importer, *arguments: Any) -> Iterator[object]:
        nonlocal given
        for one in transactions(self, *arguments):
            yield one
            given += 1
            if given % 3 == 0:
                raise KeyboardInterrupt

    monkeypatch.setattr(importing._Importer, "_transactions", some)
    for _ in range(10):
        with broker.drop_commit_answer():
            run("import", tmp_path / "out", copy, "--create")
    assert read(broker, copy) == read(broker, topic)


@pytest.mark.parametrize("is_missed", [False, True])
def test_E1_another_topic_of_the_same_name_is_not_taken_for_the_one_that_is_written_or_sent_to(
    broker: Broker, run: Run, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_missed: bool
) -> None:
    """It was: two topics were mixed in one directory, and what was sent again was there twice."""
    send(broker, topic, 40)
    run("export", topic, tmp_path / "out")
    monkeypatch.setattr(importing, "_TRANSACTION_RECORDS", 5)
    copy = f"{topic}-copy"
    broker.create_topic(copy, partitions=2)
    check = importing._Importer._check_target
    checks: list[None] = []

    def replaced(self: importing._Importer, producer: semel.Producer) -> None:
        checks.append(None)
        if len(checks) == 3:
            broker.delete_topic(copy)
            if is_missed:  # records arrive between the two
                with contextlib.suppress(SemelError):
                    producer.flush()
            broker.create_topic(copy, partitions=2)
        check(self, producer)

    monkeypatch.setattr(importing._Importer, "_check_target", replaced)
    failed = run("import", tmp_path / "out", copy)
    assert (failed.exit_code, "was deleted and created again meanwhile" in failed.stderr) == (ExitCode.REFUSED, True)
    assert run("import", tmp_path / "out", copy).stderr.endswith(f"sent 40 records to {copy}\n")
    assert read(broker, copy) == read(broker, topic)

    begin = export._Exporter._begin

    def begun(self: export._Exporter, partition: int) -> object:
        broker.delete_topic(topic)
        broker.create_topic(topic, partitions=2)
        send(broker, topic, 40)
        return begin(self, partition)

    monkeypatch.setattr(export._Exporter, "_begin", begun)
    failed = run("export", topic, tmp_path / "mixed")
    assert (failed.exit_code, "another one has its name now" in failed.stderr) == (ExitCode.REFUSED, True)


def test_what_a_new_partition_has_lost_is_told_too(broker: Broker, run: Run, topic: str, tmp_path: Path) -> None:
    run("export", topic, tmp_path)
    with semel.Admin(broker.bootstrap) as admin, semel.Producer(broker.bootstrap) as producer:
        admin.add_partitions(topic, 3)
        for number in range(10):
            producer.send(topic, b"%d" % number, partition=2)
        producer.flush()
        admin.delete_records({semel.TopicPartition(topic, 2): 6})
    failed = run("export", topic, tmp_path)
    assert (failed.exit_code, "--skip-lost continues" in failed.stderr) == (ExitCode.REFUSED, True), failed.stderr
    assert run("export", topic, tmp_path, "--skip-lost").stderr.startswith("wrote 4 records")


def test_the_exported_topic_is_not_taken_for_a_copy(broker: Broker, run: Run, topic: str, tmp_path: Path) -> None:
    send(broker, topic, 4)
    run("export", topic, tmp_path)
    failed = run("import", tmp_path)
    assert (failed.exit_code, "would be in it twice" in failed.stderr) == (ExitCode.USAGE, True), failed.stderr
    assert run("import", tmp_path, topic).stderr.endswith(f"sent 4 records to {topic}\n")


def test_times_that_are_none_are_refused_in_words(run: Run, topic: str, tmp_path: Path) -> None:
    for option in ("--since", "--until"):
        failed = run("export", topic, tmp_path, option, "24x")
        assert (failed.exit_code, "24x" in failed.stderr) == (ExitCode.USAGE, True)
        assert "later than any time" not in failed.stderr


def test_records_without_a_key_and_a_compacted_topic(broker: Broker, run: Run, topic: str, tmp_path: Path) -> None:
    send(broker, topic, 2)
    with semel.Producer(broker.bootstrap) as producer:
        producer.send(topic, b"no key", partition=0)
    run("export", topic, tmp_path)
    copy = f"{topic}-copy"
    broker.create_topic(copy, partitions=2, configs={"cleanup.policy": "compact"})
    failed = run("import", tmp_path, copy)
    assert (failed.exit_code, "cleanup.policy=delete" in failed.stderr) == (ExitCode.REFUSED, True), failed.stderr


def test_ctrl_c_ends_an_import_whose_node_is_away(
    broker: Broker, run: Run, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waited for the node to abort the transaction, for minutes."""
    send(broker, topic, 40)
    run("export", topic, tmp_path)
    copy = f"{topic}-copy"
    broker.create_topic(copy, partitions=2)

    with ExitStack() as away:

        def interrupted(self: importing._Importer, producer: semel.Producer) -> None:
            away.enter_context(broker.refuse_connections())
            raise KeyboardInterrupt

        closed: list[float | None] = []
        close = semel.Producer.close

        def noted(self: semel.Producer, timeout_s: float | None = None) -> None:
            closed.append(timeout_s)
            close(self, timeout_s)

        with monkeypatch.context() as patched:
            patched.setattr(semel.Producer, "close", noted)
            patched.setattr(importing._Importer, "_check_target", interrupted)
            patched.setattr(produce, "ABORT_S", 0.2)
            result = run("import", tmp_path, copy)
    assert "interrupted; sent 0 records" in result.stderr
    assert closed[0] == 0.2
    run("import", tmp_path, copy)
    assert read(broker, copy) == read(broker, topic)


def test_a_first_export_that_was_cut_off_early_continues(run: Run, topic: str, tmp_path: Path) -> None:
    """A disk that was full at the first moment made the directory one of something else."""
    (tmp_path / "export.json.partial").touch()
    (tmp_path / ".lock").touch()
    assert run("export", topic, tmp_path).exit_code == 0
    assert run("export", "no-such-topic", tmp_path / "new").exit_code == ExitCode.REFUSED
    assert not (tmp_path / "new").exists()


def test_the_same_command_continues(broker: Broker, run: Run, topic: str, tmp_path: Path) -> None:
    send(broker, topic, 10)
    for said in ("wrote 10 records", "wrote 0 records"):
        assert run("export", topic, tmp_path, "--since", "1h").stderr.startswith(said)
    failed = run("export", topic, tmp_path, "--since", "2h")
    assert "began with --since 1h, and continues where it ended" in failed.stderr
    assert "later than any time" in run("export", topic, tmp_path / "x", "--since", "999999999999999999").stderr


@pytest.mark.parametrize("format_", ["parquet", "json"])
def test_records_without_a_time_get_that_of_the_import(
    broker: Broker, run: Run, topic: str, tmp_path: Path, format_: str
) -> None:
    begun_ms = int(time.time() * 1000) - 1

    async def from_an_old_client(node: Node) -> None:
        partition = node.partition(semel.TopicPartition(topic, 0))
        assert partition is not None
        for time_ms, value in ((-1, b"old client"), (0, b"long ago")):
            partition.append_batch(bytearray(encode_batch([(time_ms, None, value, ())])))

    broker._run(from_an_old_client)
    run("export", topic, tmp_path, "--format", format_)
    assert run("import", tmp_path, f"{topic}-copy", "--create").exit_code == 0
    (first, second) = read(broker, f"{topic}-copy")
    assert first[3].timestamp() * 1000 >= begun_ms  # type: ignore[attr-defined]
    assert second[3].timestamp() == 0  # type: ignore[attr-defined]


def test_the_time_of_arrival_is_told_of(broker: Broker, run: Run, topic: str, tmp_path: Path) -> None:
    with semel.Admin(broker.bootstrap) as admin:
        admin.alter_topic_configs(topic, changes={"message.timestamp.type": "LogAppendTime"})
    send(broker, topic, 10)
    run("export", topic, tmp_path)
    assert "so the times of the export are not kept" in run("import", tmp_path, f"{topic}-copy", "--create").stderr


def test_large_records_and_ones_that_compress_well_go_and_come_back(
    broker: Broker, run: Run, topic: str, tmp_path: Path
) -> None:
    size = 12 << 20
    with semel.Admin(broker.bootstrap) as admin:
        admin.alter_topic_configs(topic, changes={"max.message.bytes": str(2 * size)})
    with semel.Producer(broker.bootstrap, compression="zstd", record_bytes_max=2 * size) as producer:
        producer.send(topic, b"\x01" * size, partition=0)
        for _ in range(2_000):
            producer.send(topic, bytes(100_000), partition=1)
    for format_ in ("parquet", "json"):
        wrote = run("export", topic, tmp_path / format_, "--format", format_)
        assert wrote.exit_code == 0, wrote.stderr
    sent = run("import", tmp_path / "json", f"{topic}-copy", "--create")
    assert sent.exit_code == 0, sent.stderr
    end = {semel.TopicPartition(f"{topic}-copy", 0): -1}
    with semel.Admin(broker.bootstrap) as admin:
        assert [found.offset for found in admin.list_offsets(end).values()] == [2]


@pytest.mark.parametrize("format_", ["parquet", "json"])
def test_D1_a_file_has_its_name_when_it_is_on_the_disk_and_not_before(
    broker: Broker, run: Run, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format_: str
) -> None:
    """The names say how far the export has come: after a power cut, too."""
    sync, replace = os.fsync, Path.replace
    synced: set[tuple[int, int]] = set()
    renamed: list[str] = []

    def noting_sync(descriptor: int) -> None:
        sync(descriptor)
        found = os.fstat(descriptor)
        synced.add((found.st_ino, found.st_size))

    def noting_replace(self: Path, target: Path) -> Path:
        found = self.stat()
        assert (found.st_ino, found.st_size) in synced, "its last bytes were not on the disk"
        renamed.append(target.name)
        return replace(self, target)

    send(broker, topic, 20)
    monkeypatch.setattr(os, "fsync", noting_sync)
    monkeypatch.setattr(Path, "replace", noting_replace)
    assert run("export", topic, tmp_path, "--format", format_).exit_code == 0
    assert [name for name in renamed if name != "export.json"] == [
        path.name for path in sorted(tmp_path.glob("partition-*/*"))
    ]
    for number in (0, 1):
        assert (tmp_path / f"partition-{number}").stat().st_ino in {inode for inode, _ in synced}


def test_an_import_does_not_read_again_what_is_done(
    broker: Broker, run: Run, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind the last record of a file are the markers of transactions, which made it look as if there were more."""
    send(broker, topic, 20)
    run("export", topic, tmp_path)
    run("import", tmp_path, f"{topic}-copy", "--create")
    monkeypatch.setattr(importing, "read_file", None)
    assert run("import", tmp_path, f"{topic}-copy").stderr.startswith("sent 0 records")
