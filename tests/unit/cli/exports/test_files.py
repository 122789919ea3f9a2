"""`semel import` names every file that is missing, damaged, changed, moved, or was never an export's."""

from __future__ import annotations

import zlib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
from export_kit import Run, read, send

import semel
from semel.cli.common import ExitCode
from semel.testing import Broker


def reseal(path: Path) -> Path:
    """Give a file that was changed the checksum that it has now, so that it is taken for a whole one."""
    stem, _, _ = path.stem.rpartition("-")
    return path.rename(path.with_name(f"{stem}-{zlib.crc32(path.read_bytes()):08x}{path.suffix}"))


@pytest.mark.parametrize(
    ("manifest", "told"),
    [
        (b"", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"[]", "does not say what an export says"),
        (b'{"version": 2}', "has version 2, and this `semel` knows 1"),
        (b'{"version": 1, "topic": "x"}', "does not say what an export says"),
    ],
)
def test_a_manifest_that_is_none_is_refused(
    broker: Broker, run: Run, tmp_path: Path, manifest: bytes, told: str
) -> None:
    broker.create_topic(f"m-{tmp_path.name}", partitions=1)
    (tmp_path / "export.json").write_bytes(manifest)
    for arguments in (("export", f"m-{tmp_path.name}", tmp_path), ("import", tmp_path)):
        failed = run(*arguments)
        assert (failed.exit_code, told in failed.stderr) == (ExitCode.USAGE, True), failed.stderr


@pytest.mark.parametrize("format_", ["parquet", "json"])
def test_spoilt_files_are_named(broker: Broker, run: Run, topic: str, tmp_path: Path, format_: str) -> None:
    send(broker, topic, 10)
    run("export", topic, tmp_path, "--format", format_)
    (path,) = (tmp_path / "partition-0").iterdir()
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    failed = run("import", tmp_path, f"{topic}-copy", "--create")
    assert (failed.exit_code, str(path) in failed.stderr) == (ExitCode.USAGE, True), failed.stderr
    path.write_bytes(whole)
    twice = path.with_name(path.name.replace("00000000-0", "00000001-0"))
    twice.write_bytes(whole)
    failed = run("import", tmp_path, f"{topic}-copy")
    assert f"{path} and {twice} both have offset 1" in failed.stderr
    path.unlink()
    failed = run("import", tmp_path, f"{topic}-copy")
    assert f"{path.parent} has no file with the offsets 0 to 0" in failed.stderr
    twice.rename(path)
    path.write_bytes(next((tmp_path / "partition-1").iterdir()).read_bytes())
    reseal(path)
    assert "a record of partition 1" in run("import", tmp_path, f"{topic}-copy").stderr
    assert not read(broker, f"{topic}-copy")


@pytest.mark.parametrize("format_", ["parquet", "json"])
def test_E1_nothing_is_imported_past_records_that_are_missing(
    broker: Broker, run: Run, topic: str, tmp_path: Path, format_: str
) -> None:
    """They were passed over, and never sent when they were back."""
    copy = f"{topic}-copy"
    for first in (0, 20):
        send(broker, topic, 20, first)
        run("export", topic, tmp_path, "--format", format_)
    first_file, last_file = sorted((tmp_path / "partition-0").iterdir())
    away = tmp_path.with_name(f"{tmp_path.name}-away")
    for missing in (first_file, last_file, tmp_path / "partition-1"):
        missing.rename(away)
        failed = run("import", tmp_path, copy, "--create")
        assert (failed.exit_code, "has no file with the offsets" in failed.stderr) == (ExitCode.USAGE, True)
        again = run("export", topic, tmp_path)
        assert (again.exit_code, "has no file with the offsets" in again.stderr) == (ExitCode.USAGE, True)
        away.rename(missing)
    whole = first_file.read_bytes()
    if format_ == "json":
        first_file.write_bytes(b"".join(whole.splitlines(keepends=True)[:-1]))
    else:
        pyarrow.parquet.write_table(pyarrow.parquet.read_table(first_file)[:-1], first_file)
    failed = run("import", tmp_path, copy)
    assert (failed.exit_code, "has the CRC-32" in failed.stderr) == (ExitCode.USAGE, True), failed.stderr
    sealed = reseal(first_file)
    failed = run("import", tmp_path, copy)
    assert "has 9 records, and its name says 10" in failed.stderr
    sealed.unlink()
    first_file.write_bytes(whole)
    run("import", tmp_path, copy)
    assert read(broker, copy) == read(broker, topic)


@pytest.mark.parametrize("format_", ["parquet", "json"])
def test_a_changed_bit_is_named(broker: Broker, run: Run, topic: str, tmp_path: Path, format_: str) -> None:
    """Two of three such files were taken, with other values."""
    send(broker, topic, 40)
    run("export", topic, tmp_path, "--format", format_)
    (path,) = (tmp_path / "partition-0").iterdir()
    whole = path.read_bytes()
    for position in range(0, len(whole), max(1, len(whole) // 20)):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        failed = run("import", tmp_path, f"{topic}-copy", "--create")
        assert (failed.exit_code, f"{path} has the CRC-32" in failed.stderr) == (ExitCode.USAGE, True), failed.stderr
    path.write_bytes(whole)
    run("import", tmp_path, f"{topic}-copy")
    assert read(broker, f"{topic}-copy") == read(broker, topic)


@pytest.mark.parametrize("format_", ["parquet", "json"])
def test_a_file_of_another_topic_is_named(broker: Broker, run: Run, topic: str, tmp_path: Path, format_: str) -> None:
    other = f"{topic}-other"
    broker.create_topic(other, partitions=2)
    for name in (topic, other):
        send(broker, name, 10)
        run("export", name, tmp_path / name, "--format", format_)
    for path in (tmp_path / topic / "partition-0").iterdir():
        path.unlink()
    for path in (tmp_path / other / "partition-0").iterdir():
        path.rename(tmp_path / topic / "partition-0" / path.name)
    failed = run("import", tmp_path / topic, f"{topic}-copy", "--create")
    said = f"has a record of topic {other}, and this is an export of {topic}"
    assert (failed.exit_code, said in failed.stderr) == (ExitCode.USAGE, True), failed.stderr


def test_files_that_the_manifest_does_not_know_are_named(broker: Broker, run: Run, topic: str, tmp_path: Path) -> None:
    """A copy that was made while an export ran may have it from before."""
    send(broker, topic, 10)
    run("export", topic, tmp_path)
    before = (tmp_path / "export.json").read_bytes()
    broker.create_topic(f"{topic}-copy", partitions=3)
    with semel.Admin(broker.bootstrap) as admin, semel.Producer(broker.bootstrap) as producer:
        admin.add_partitions(topic, 3)
        producer.send(topic, b"new", partition=2)
    run("export", topic, tmp_path)
    (tmp_path / "export.json").write_bytes(before)
    for command in (("import", tmp_path, f"{topic}-copy"), ("export", topic, tmp_path)):
        failed = run(*command)
        said = "does not know partition-2, which has files"
        assert (failed.exit_code, said in failed.stderr) == (ExitCode.USAGE, True), failed.stderr


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("timestamp", pa.array([1], pa.timestamp("ns", tz="UTC"))),
        ("timestamp", pa.array([1], pa.int64())),
        ("timestamp", pa.array([None], pa.timestamp("us", tz="UTC"))),
        ("offset", pa.array([None], pa.int64())),
        ("offset", pa.array(["0"])),
        ("value", pa.array([1])),
        ("headers", pa.array(["x"])),
    ],
)
def test_columns_of_other_types_are_refused(
    broker: Broker, run: Run, topic: str, tmp_path: Path, name: str, column: pa.Array
) -> None:
    with semel.Producer(broker.bootstrap) as producer:
        producer.send(topic, b"v", partition=0)
    run("export", topic, tmp_path)
    (path,) = (tmp_path / "partition-0").iterdir()
    table = pyarrow.parquet.read_table(path)
    pyarrow.parquet.write_table(table.set_column(table.schema.get_field_index(name), name, column), path)
    reseal(path)
    failed = run("import", tmp_path, f"{topic}-copy", "--create")
    assert (failed.exit_code, "`semel export` writes" in failed.stderr) == (ExitCode.USAGE, True), failed.stderr


@pytest.mark.parametrize(
    "line", [b"\xff", b"[" * 100_000, b"1" * 5_000, b'{"offset": 0}'], ids=["bytes", "nested", "number", "bare"]
)
def test_lines_that_are_none_are_refused(broker: Broker, run: Run, topic: str, tmp_path: Path, line: bytes) -> None:
    with semel.Producer(broker.bootstrap) as producer:
        producer.send(topic, b"v", partition=0)
    run("export", topic, tmp_path, "--format", "json")
    (path,) = (tmp_path / "partition-0").iterdir()
    path.write_bytes(line + b"\n")
    path = reseal(path)
    failed = run("import", tmp_path, f"{topic}-copy", "--create")
    assert (failed.exit_code, str(path) in failed.stderr) == (ExitCode.USAGE, True), failed.stderr
    assert isinstance(failed.exception, SystemExit)


def test_nothing_is_created_for_files_that_can_not_be_sent(
    broker: Broker, run: Run, topic: str, tmp_path: Path
) -> None:
    run("export", topic, tmp_path)
    (tmp_path / "partition-7").write_text("a file, which is none of an export")
    assert run("import", tmp_path, f"{topic}-copy", "--create").exit_code == 0
    (tmp_path / "partition-9").mkdir()
    (tmp_path / "partition-9" / "anything").touch()
    failed = run("import", tmp_path, f"{topic}-other", "--create")
    assert (failed.exit_code, "does not know partition-9" in failed.stderr) == (ExitCode.USAGE, True), failed.stderr
    with semel.Admin(broker.bootstrap) as admin:
        assert f"{topic}-other" not in {one.name for one in admin.topics()}
