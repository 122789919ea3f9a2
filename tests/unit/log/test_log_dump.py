"""`semel log dump`: what is in the files is what it says, damage and all, and nothing is changed."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import random
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from damaged_folder import damage, make_clean_folder, make_folder, open_logs, photograph
from log_model import NOW, make_batch, read_batches
from running_node import create_topic, running_node
from special_files import SPECIAL, make_special
from typer.testing import CliRunner

from semel.broker.inspection.batch_dump import find_batch
from semel.broker.inspection.dump import Dump
from semel.broker.inspection.dump_options import Decoder, DumpOptions
from semel.broker.inspection.internal_topics import decode_internal
from semel.broker.inspection.metadata_copy import rows
from semel.broker.inspection.text import line_of
from semel.broker.log.journal import Journal
from semel.broker.log.producer_snapshot import decode_snapshot
from semel.cli.main import app
from semel.group_coordinator.records import consumer_schemas, schemas
from semel.group_coordinator.records.consumer_state import MemberAssignment, MemberDetails
from semel.protocol.api.commit_decisions import CommitDecision
from semel.protocol.batch_builder import encode_batch
from semel.protocol.compression import Compression
from semel.protocol.corruption import CorruptDataError
from semel.protocol.errors import UsageError
from semel.protocol.ids import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, TopicPartition, new_topic_id
from semel.runtime.clock import SystemClock
from semel.runtime.disk_storage import DiskStorage
from semel.runtime.machine import CoordinatorRecord
from semel.runtime.simulated_storage import SimulatedStorage
from semel.txn_coordinator.commit_records import (
    AttemptState,
    CommitKind,
    encode_attempt,
    encode_attempt_key,
    encode_decision,
    encode_decision_key,
)
from semel.txn_coordinator.schemas import encode_key, encode_value
from semel.txn_coordinator.state import TransactionMetadata, TransactionState


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "data"
    asyncio.run(make_clean_folder(folder))
    return folder


def dump(path: Path, **options: Any) -> list[dict[str, Any]]:
    return list(Dump([str(path)], DumpOptions(**options)).entries())


def of_kind(entries: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [entry for entry in entries if entry["kind"] == kind]


def test_every_file_of_a_folder_is_shown_and_none_is_changed(made: Path) -> None:
    before = photograph(made)
    entries = dump(made, records=True)
    shown = {Path(entry["path"]).name for entry in of_kind(entries, "file")}
    assert shown >= {
        path.name for path in made.rglob("*") if path.suffix in (".log", ".index", ".txnindex", ".snapshot")
    }
    assert shown >= {"meta.properties", "recovery-point-offset-checkpoint", "leader-epoch-checkpoint"}
    assert not of_kind(entries, "damage")
    for entry in entries:
        assert "\n" not in line_of(entry).strip("\n")
        json.dumps(entry)
    assert photograph(made) == before


def test_batches_and_records_are_those_of_the_log(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made, tmp_path / "copy")
    manager = open_logs(tmp_path / "copy")
    log = next(one.log for one in manager.partitions() if str(one.tp) == "small-0")
    expected = read_batches(log)
    manager._abandon()
    entries = dump(made / "small-0", records=True)
    batches = of_kind(entries, "batch")
    assert [(one["base_offset"], one["last_offset"], one["count"], one["size_bytes"]) for one in batches] == [
        (header.base_offset, header.last_offset, header.record_count, header.size_bytes) for header, _ in expected
    ]
    assert [(one["producer_id"], one["producer_epoch"], one["base_sequence"]) for one in batches] == [
        (header.producer_id, header.producer_epoch, header.base_sequence) for header, _ in expected
    ]
    assert [one["control"] is not None for one in batches] == [header.is_control for header, _ in expected]
    assert {one["control"] for one in batches} == {None, "COMMIT", "ABORT"}
    assert all(one["crc_ok"] for one in batches)
    assert len(of_kind(entries, "record")) == sum(header.record_count for header, _ in expected)


def test_snapshots_and_indexes_say_what_is_in_them(made: Path) -> None:
    path = max((made / "large-0").glob("*.snapshot"))
    known = decode_snapshot(path.read_bytes(), now_ms=0)
    assert [(one["producer_id"], one["transaction_first_offset"]) for one in dump(path)[1:]] == [
        (entry.producer_id, entry.transaction_first_offset) for entry in known
    ]
    positions = {one["position"]: one for one in of_kind(dump(made / "large-0"), "batch")}
    entries = dump(made / "large-0" / f"{0:020d}.index")[1:]
    assert entries
    assert all(positions[one["position"]]["last_offset"] == one["offset"] for one in entries)
    aborted = dump(made / "large-0" / f"{0:020d}.txnindex")[1:]
    by_offset = {one["base_offset"]: one for one in positions.values()}
    assert all(by_offset[one["last_offset"]]["control"] == "ABORT" for one in aborted)


def test_filters_choose_batches_and_leave_out_files_without_any(made: Path) -> None:
    everything = of_kind(dump(made / "large-0"), "batch")
    one = everything[len(everything) // 2]
    found = dump(made / "large-0", first_offset=one["base_offset"], last_offset=one["base_offset"], records=True)
    assert of_kind(found, "batch") == [one]
    assert [record["offset"] for record in of_kind(found, "record")] == [one["base_offset"]]
    later = of_kind(dump(made / "large-0", first_offset=one["base_offset"]), "batch")
    assert later == everything[len(everything) // 2 :]
    mine = of_kind(dump(made / "large-0", producer_id=1, transactional=True), "batch")
    assert mine == [each for each in everything if each["producer_id"] == 1 and each["transactional"]]
    assert mine
    files = of_kind(dump(made, partition=TopicPartition("small", 1), transactional=True), "file")
    assert files
    assert all(Path(each["path"]).parent.name == "small-1" for each in files)


def test_an_index_that_misleads_does_not_hide_batches(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made / "large-0", tmp_path / "large-0")
    everything = of_kind(dump(tmp_path / "large-0"), "batch")
    path = tmp_path / "large-0" / f"{0:020d}.index"
    data = bytearray(path.read_bytes())
    data[7] ^= 3
    path.write_bytes(data)
    first = int.from_bytes(data[:4], "big") + 1
    found = of_kind(dump(tmp_path / "large-0" / f"{0:020d}.log", first_offset=first), "batch")
    assert found == [one for one in everything if one["last_offset"] >= first]


def test_D2_what_can_be_read_around_damage_is_shown_with_its_place(made: Path, tmp_path: Path) -> None:
    path = tmp_path / "t-0" / f"{0:020d}.log"
    path.parent.mkdir()
    shutil.copy(made / "large-0" / f"{0:020d}.log", path)
    everything = of_kind(dump(path), "batch")
    data = bytearray(path.read_bytes())
    torn, wrong = everything[5], everything[9]
    data[torn["position"] + 8 : torn["position"] + 12] = b"\xff" * 4
    data[wrong["position"] + 62] ^= 1
    path.write_bytes(data[:-3])
    reading = Dump([str(path)])
    entries = list(reading.entries())
    shown = of_kind(entries, "batch")
    assert [one["base_offset"] for one in shown] == [one["base_offset"] for one in everything[:-1] if one is not torn]
    assert [one["base_offset"] for one in shown if not one["crc_ok"]] == [wrong["base_offset"]]
    first, last = of_kind(entries, "damage")
    assert first["position"] == torn["position"]
    assert f"the next whole one begins at position {everything[6]['position']}" in first["what"]
    assert last["position"] == everything[-1]["position"]
    assert "no whole one follows" in last["what"]
    assert reading.damaged == 3


def test_a_batch_is_found_across_the_pieces_that_are_read() -> None:
    storage = SimulatedStorage()
    file = storage.open("x", create=True)
    chance = random.Random(1)
    for noise in (0, 100, (1 << 20) - 70, (1 << 20) - 30, 3 << 20):
        file.truncate(0)
        good = encode_batch([(NOW, b"k", b"v", ())], base_offset=7)
        file.append([chance.randbytes(noise), good])
        assert find_batch(file, 0, file.size(), 7) == noise
        assert find_batch(file, 0, file.size(), 8) is None


@pytest.mark.parametrize("seed", range(40))
def test_no_damage_makes_the_dump_fail(made: Path, tmp_path: Path, seed: int) -> None:
    shutil.copytree(made, tmp_path / "data")
    chance = random.Random(seed)
    for _ in range(6):
        damage(tmp_path / "data", chance)
    before = photograph(tmp_path / "data")
    for entry in dump(tmp_path / "data", records=True):
        assert line_of(entry)
        json.dumps(entry)
    assert photograph(tmp_path / "data") == before


def test_the_journal_is_shown_up_to_where_it_is_torn(tmp_path: Path) -> None:
    manager = make_folder(tmp_path / "data")
    journal = manager._journal
    assert journal is not None
    partition = manager.partitions()[0]
    for number in range(4):
        partition.append(make_batch([(b"k", b"%d" % number)]))
    journal.sync_now()
    (path,) = (tmp_path / "data" / "journal").iterdir()
    entries = dump(path, records=True)
    manager._abandon()
    appended = of_kind(entries, "journal-entry")[-4:]
    assert {one["topic_id"] for one in appended} == {appended[0]["topic_id"]}
    assert all(one["type"] == "APPEND" and one["crc_ok"] for one in appended)
    assert [one["value"] for one in of_kind(entries, "record")][-4:] == ["0", "1", "2", "3"]
    path.write_bytes(path.read_bytes()[:-5])
    torn = dump(path)
    assert torn[-1]["kind"] == "damage"
    assert torn[-1]["position"] == appended[-1]["position"]


def test_what_a_former_use_has_left_in_a_journal_file_is_no_damage(tmp_path: Path) -> None:
    folder = tmp_path / "journal"
    journal = Journal.open(DiskStorage(), str(folder), clock=SystemClock())
    for count in (9, 2):
        for _ in range(count):
            journal.append(new_topic_id(), 0, 0, [bytes(make_batch([(b"k", b"v")]))])
        journal.sync_now()
        journal.retire_files(journal.take_files_below(journal.position if count == 9 else 0))
    (path,) = folder.iterdir()
    entries = dump(path)
    assert len(of_kind(entries, "journal-entry")) == 2
    assert entries[-1]["kind"] == "note"
    assert "the entries end here; behind are" in line_of(entries[-1])
    assert not of_kind(entries, "damage")
    journal.close()


def test_keys_values_and_headers_are_text_or_base64(tmp_path: Path) -> None:
    folder = tmp_path / "t-0"
    folder.mkdir()
    headers = (("trace", b"\x00\xff"), ("trace", None))
    batch = encode_batch([(NOW, b"\xff\xfe", "naïve\n".encode(), headers)], compression=Compression.ZSTD)
    (folder / f"{0:020d}.log").write_bytes(batch)
    (record,) = of_kind(dump(folder, records=True), "record")
    assert base64.b64decode(record["key_base64"]) == b"\xff\xfe"
    assert record["value"] == "naïve\n"
    assert record["headers"] == [{"name": "trace", "value_base64": "AP8="}, {"name": "trace", "value": None}]
    assert line_of(record).strip().endswith(r'= "na\u00efve\n" ["trace": base64:AP8=] ["trace": null]')


# --- Internal topics --------------------------------------------------------------------------------------------------

ORDERS = TopicPartition("orders", 0)
ONGOING = TransactionMetadata("etl", 7, 3, 60_000, TransactionState.ONGOING, NOW, frozenset({ORDERS}))
ATTEMPT = AttemptState("job", "a1", "t")
DETAILS = MemberDetails(None, None, "client", "/127.0.0.1", ("orders",), None, 300_000, "uniform")
INTERNAL: list[tuple[str, CoordinatorRecord, str, dict[str, Any]]] = [
    (
        TRANSACTIONS_TOPIC, CoordinatorRecord(encode_key("etl"), encode_value(ONGOING)), "transaction",
        {"state": "Ongoing", "producer_epoch": 3, "partitions": ["orders-0"]},
    ),
    (
        TRANSACTIONS_TOPIC, CoordinatorRecord(encode_attempt_key("job"), encode_attempt(ATTEMPT)),
        "shared-attempt", {"attempt": "a1", "token": "t"},
    ),
    (
        TRANSACTIONS_TOPIC,
        CoordinatorRecord(
            encode_decision_key(CommitKind.PRODUCER, "job", "t9"),
            encode_decision(CommitDecision("t9", 4, b"\xff", "", NOW, 1)),
        ),
        "commit-decision", {"token": "t9", "sequence": 4, "payload_base64": "/w=="},
    ),
    (
        OFFSETS_TOPIC, schemas.offset_record("g", ORDERS, schemas.OffsetCommitValue(42, 1, "m", NOW)), "offset-commit",
        {"offset": 42, "metadata": "m"},
    ),
    (
        OFFSETS_TOPIC, schemas.group_record("g", schemas.GroupMetadataValue("consumer", 3, "range", None, NOW, ())),
        "group", {"generation": 3, "protocol": "range"},
    ),
    (
        OFFSETS_TOPIC, consumer_schemas.epoch_record("g", consumer_schemas.GroupEpochValue(5)), "consumer-group-epoch",
        {"epoch": 5},
    ),
    (
        OFFSETS_TOPIC, consumer_schemas.member_record("g", "m", DETAILS), "consumer-group-member",
        {"client_id": "client"},
    ),
    (
        OFFSETS_TOPIC, consumer_schemas.current_record("g", "m", MemberAssignment(2)), "consumer-group-assignment",
        {"epoch": 2, "state": "STABLE"},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("topic", "record", "kind", "fields"), INTERNAL, ids=[one[2] for one in INTERNAL])
def test_records_of_internal_topics_are_decoded(
    topic: str, record: CoordinatorRecord, kind: str, fields: dict[str, Any]
) -> None:
    found = decode_internal(topic, record.key, record.value)
    assert found is not None
    assert found["type"] == kind
    assert fields.items() <= found["value"].items()
    json.dumps(found)
    tombstone = decode_internal(topic, record.key, None)
    assert tombstone == {"type": kind, "key": found["key"], "value": None}
    with pytest.raises((CorruptDataError, ValueError)):
        decode_internal(topic, record.key, b"\0")


def test_target_assignments_and_unknown_kinds_are_decoded() -> None:
    target = consumer_schemas.target_epoch_record("g", 8)
    assert decode_internal(OFFSETS_TOPIC, target.key, target.value) == {
        "type": "consumer-group-target-epoch", "key": {"kind": "TARGET", "group_id": "g", "member_id": ""}, "value": 8,
    }  # fmt: skip
    member = consumer_schemas.target_record("g", "m", frozenset())
    found = decode_internal(OFFSETS_TOPIC, member.key, member.value)
    assert found is not None
    assert found["value"] == []
    for topic in (OFFSETS_TOPIC, TRANSACTIONS_TOPIC):
        strange = decode_internal(topic, b"\x7f\x00rest", b"value")
        assert strange is not None
        assert (strange["type"], strange["key"]["version"]) == ("unknown", 0x7F00)
    assert decode_internal("orders", b"k", b"v") is None


def test_a_lone_file_is_decoded_where_it_is_said_what_it_is(tmp_path: Path) -> None:
    path = tmp_path / f"{0:020d}.log"
    path.write_bytes(encode_batch([(NOW, encode_key("etl"), encode_value(ONGOING), ())]))
    (plain,) = of_kind(dump(path, records=True), "record")
    assert "decoded" not in plain
    (decoded,) = of_kind(dump(path, records=True, decoder=Decoder.TRANSACTIONS), "record")
    assert decoded["decoded"]["value"]["state"] == "Ongoing"
    assert 'transaction {"transactional_id": "etl"}' in line_of(decoded)
    reading = Dump([str(path)], DumpOptions(records=True, decoder=Decoder.OFFSETS))
    assert [entry for entry in reading.entries() if "damage" in entry]
    assert reading.damaged == 1


# --- The command ------------------------------------------------------------------------------------------------------


def test_the_command_prints_lines_or_json_and_says_that_a_node_runs(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_node(tmp_path) as node:
            await create_topic(node, "orders")
            partition = node.partition(ORDERS)
            assert partition is not None
            partition.append(make_batch([(b"k", b"v")]))
            result = await asyncio.to_thread(
                CliRunner().invoke, app, ["log", "dump", str(tmp_path / "data"), "--records"]
            )
            assert result.exit_code == 0, result.output
            assert "a node is running on" in result.stderr
            assert '"k" = "v"' in result.stdout
            assert "topic-created" not in result.stderr

    asyncio.run(main())
    shown = CliRunner().invoke(app, ["log", "dump", str(tmp_path / "data"), "--format", "json"])
    entries = [json.loads(line) for line in shown.stdout.splitlines()]
    changes = [entry for entry in entries if entry["kind"] == "metadata-change"]
    assert {"cluster-created", "topic-created"} <= {entry["change"] for entry in changes}
    assert "a node is running on" not in shown.stderr
    (here,) = [entry for entry in entries if entry["kind"] == "metadata-node"]
    (registered,) = [entry for entry in changes if entry["change"] == "broker-registered"]
    assert here["node_id"] == registered["payload"]["node_id"]
    assert here["broker_epoch"] == registered["sequence"]
    # A database of an older version has no such table, and is no damage.
    path = tmp_path / "data" / "metadata.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("DROP TABLE semel_nodes")
        connection.commit()
    assert "node" not in {row.table for row in rows(str(path))}


def test_the_command_s_exit_code_says_that_something_is_damaged(made: Path, tmp_path: Path) -> None:
    path = tmp_path / f"{0:020d}.log"
    path.write_bytes((made / "large-0" / path.name).read_bytes()[:-1])
    result = CliRunner().invoke(app, ["log", "dump", str(path)])
    assert result.exit_code == 1
    assert "DAMAGED at position" in result.stdout
    assert "semel log verify" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["none"], "is not there"),
        (["."], "no files that belong to a node's logs"),
        (["strange.txt"], "is no file of a node by its name"),
        (["strange.txt", "--offset", "3", "--to", "4"], "--offset is one offset"),
        (["strange.txt", "--from", "5", "--to", "4"], "is after"),
        (["strange.txt", "--partition", "orders"], "TOPIC:NUMBER"),
    ],
)
def test_wrong_use_says_what_is_right(
    arguments: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "strange.txt").write_text("?")
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["log", "dump", *arguments])
    assert result.exit_code == 2
    assert words in result.stderr


def test_a_folder_without_the_partition_is_wrong_use(made: Path) -> None:
    with pytest.raises(UsageError, match="no files of none-3"):
        dump(made, partition=TopicPartition("none", 3))


def test_paths_may_be_relative(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(made / "large-0")
    absolute = of_kind(dump(made / "large-0"), "batch")
    assert of_kind(dump(Path()), "batch") == absolute
    assert of_kind(dump(Path(f"{0:020d}.log")), "batch") == absolute


@pytest.mark.parametrize("kind", SPECIAL)
def test_S3_a_pipe_or_a_device_in_place_of_a_file_is_damage(made: Path, tmp_path: Path, kind: str) -> None:
    shutil.copytree(made, tmp_path / "data")
    path = sorted((tmp_path / "data" / "small-1").glob("*.log"))[0]
    path.unlink()
    make_special(path, kind)
    expected = {"kind": "damage", "position": 0, "what": f"it is {SPECIAL[kind]}, and a file belongs there"}
    assert of_kind(dump(tmp_path / "data"), "damage") == [expected]
    assert [entry["kind"] for entry in dump(path)] == ["file", "damage"]


@pytest.mark.parametrize("suffix", [".log", ".index", ".timeindex", ".txnindex", ".snapshot"])
def test_a_directory_in_place_of_a_file_is_damage_and_the_others_are_shown(
    made: Path, tmp_path: Path, suffix: str
) -> None:
    """In a folder it was passed over in silence; named alone, it was called a folder without files."""
    shutil.copytree(made, tmp_path / "data")
    path = sorted((tmp_path / "data" / "small-1").glob(f"*{suffix}"))[0]
    path.unlink()
    path.mkdir()
    expected = {"kind": "damage", "position": 0, "what": "it is a directory, and a file belongs there"}
    entries = dump(tmp_path / "data")
    assert of_kind(entries, "damage") == [expected]
    assert len(of_kind(entries, "file")) == len(of_kind(dump(made), "file"))
    assert [entry["kind"] for entry in dump(path)] == ["file", "damage"]
    assert of_kind(dump(tmp_path / "data", partition=TopicPartition("small", 1)), "damage") == [expected]
    assert of_kind(dump(tmp_path / "data", partition=TopicPartition("small", 0)), "damage") == []
