"""What `semel log verify` finds: each kind of damage by its name, and nothing where nothing is wrong."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from damaged_folder import make_clean_folder, make_folder, open_logs, photograph, start_copy
from log_model import NOW, make_batch
from running_node import batch, create_topic, running_node
from special_files import SPECIAL, make_special
from typer.testing import CliRunner

from semel.broker.inspection.findings import FINDINGS_OF_A_KIND_MAX, Check, Finding, Findings, Severity
from semel.broker.inspection.log_check import LogCheck, WalkedLog
from semel.broker.inspection.verify import Report, verify
from semel.broker.log.checkpoints import write_checkpoint, write_epochs
from semel.broker.log.config import AppendOrigin, LogConfig
from semel.broker.log.producer_snapshot import decode_snapshot, encode_packed
from semel.broker.logs.data_folder import CLEAN_FILE
from semel.broker.metadata.changes import PartitionState, TopicCreated, TopicDeleted
from semel.broker.metadata.store import METADATA_FILE, MetadataStore, sqlite_url
from semel.broker.node import Node
from semel.cli.main import app
from semel.group_coordinator.records.schemas import OffsetCommitKey, encode_offset_key
from semel.protocol.batch_builder import encode_batch
from semel.protocol.batch_header import set_base_offset
from semel.protocol.errors import UsageError
from semel.protocol.ids import (
    OFFSETS_TOPIC,
    TRANSACTIONS_TOPIC,
    ProducerIdAndEpoch,
    TopicPartition,
    format_topic_id,
    new_topic_id,
)
from semel.runtime.disk_storage import DiskStorage
from semel.txn_coordinator.schemas import encode_key, encode_value
from semel.txn_coordinator.state import TransactionMetadata, TransactionState

ORDERS = TopicPartition("orders", 0)
PRODUCER = ProducerIdAndEpoch(7, 0)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "data"
    asyncio.run(make_clean_folder(folder))
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "data")
    return tmp_path / "data"


def check(folder: Path) -> Report:
    return verify(str(folder), needs_metadata=False)


def wrong(report: Report) -> list[Finding]:
    return [one for one in report.findings if one.severity is not Severity.NOTE]


def only(report: Report, kind: Check) -> Finding:
    """The one thing that is wrong of a kind."""
    found = [one for one in wrong(report) if one.check is kind]
    assert len(found) == 1, wrong(report)
    return found[0]


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x55
    path.write_bytes(data)


def test_a_whole_folder_is_ok_and_stays_as_it_is(folder: Path) -> None:
    before = photograph(folder)
    report = check(folder)
    assert report.is_whole, wrong(report)
    assert (report.is_clean, report.is_running, len(report.logs)) == (True, False, 3)
    assert report.open_transactions > 0
    assert report.size_bytes == sum(path.stat().st_size for path in folder.glob("*/*.log"))
    assert photograph(folder) == before, "no file is changed, its time of last change included"


def test_D1_a_killed_node_s_folder_is_ok_and_says_that_it_was_not_stopped(tmp_path: Path) -> None:
    manager = make_folder(tmp_path / "live")
    for partition in manager.partitions():
        partition.append(make_batch([(b"more", b"v")]))
    shutil.copytree(tmp_path / "live", tmp_path / "data")
    manager._abandon()
    report = check(tmp_path / "data")
    assert report.is_whole, wrong(report)
    assert not report.is_clean
    assert any("not a clean one" in one.what for one in report.findings)


def test_D2_a_batch_that_a_start_does_not_look_at_is_found(folder: Path) -> None:
    path = folder / "large-0" / f"{0:020d}.log"
    flip(path, 63)
    assert not start_copy(folder, folder.parent / "started").warnings, "a clean start does not read so far"
    report = check(folder)
    found = only(report, Check.BATCHES)
    assert (found.severity, found.offset, found.position) == (Severity.ERROR, 0, 0)
    assert found.path == f"large-0/{0:020d}.log"
    assert "checksum" in found.what
    assert "leaves it" in found.on_start
    assert f"semel log dump {path} --from 0" in found.command


def test_D2_lost_records_are_an_error_and_say_which(folder: Path) -> None:
    path = folder / "large-0" / f"{0:020d}.log"
    path.write_bytes(path.read_bytes()[:-100])
    report = check(folder)
    assert any("are lost" in one.what and one.severity is Severity.ERROR for one in report.findings)
    found = only(report, Check.BATCHES)
    assert found.severity is Severity.ERROR
    assert "no whole batch" in found.what


def test_D3_a_segment_that_is_gone_is_a_gap(folder: Path) -> None:
    bases = sorted(int(path.stem) for path in (folder / "small-0").glob("*.log"))
    (folder / "small-0" / f"{bases[1]:020d}.log").unlink()
    found = only(check(folder), Check.OFFSETS)
    assert f"offsets {bases[1]} to {bases[2] - 1} are missing" in found.what
    assert found.severity is Severity.ERROR


@pytest.mark.parametrize("count", [1, 3])
def test_D6_first_segments_that_are_gone_are_an_error_and_a_start_says_the_same(folder: Path, count: int) -> None:
    bases = sorted(int(path.stem) for path in (folder / "small-0").glob("*.log"))
    for base in bases[:count]:
        (folder / "small-0" / f"{base:020d}.log").unlink()
    [found] = [one for one in wrong(check(folder)) if "are lost" in one.what]
    assert found.severity is Severity.ERROR
    assert f"small-0: the records at offsets 0 to {bases[count] - 1} are lost" in found.what
    assert "backup" in found.command
    assert found.what in start_copy(folder, folder.parent / "started").warnings


@pytest.mark.parametrize(
    ("suffix", "entry", "kind"), [(".index", 8, Check.OFFSET_INDEX), (".timeindex", 12, Check.TIME_INDEX)]
)
def test_an_index_entry_that_no_start_looks_at_is_found(folder: Path, suffix: str, entry: int, kind: Check) -> None:
    path = folder / "large-0" / f"{0:020d}{suffix}"
    assert path.stat().st_size > 3 * entry
    flip(path, 2 * entry - 1)
    found = wrong(check(folder))
    assert {one.check for one in found} >= {kind}, found
    assert all(one.severity is Severity.WARNING for one in found)


def test_L3_an_abort_that_is_not_in_its_list_is_an_error_where_a_start_does_not_see_it(folder: Path) -> None:
    """Readers would be shown aborted records. The checksum that a clean stop leaves is what a start goes by."""
    (folder / "large-0" / "aborted-transactions-checkpoint").unlink()
    path = folder / "large-0" / f"{0:020d}.txnindex"
    data = path.read_bytes()
    path.write_bytes(data[:34] + data[68:])
    assert not start_copy(folder, folder.parent / "started").warnings
    found = only(check(folder), Check.TRANSACTION_INDEX)
    assert found.severity is Severity.ERROR
    assert "is not in it" in found.what
    assert found.offset == int.from_bytes(data[34 + 18 : 34 + 26], "big")


def test_P7_a_snapshot_that_is_not_what_the_log_says_is_found(folder: Path) -> None:
    path = max((folder / "large-0").glob("*.snapshot"))
    entries = decode_snapshot(path.read_bytes(), now_ms=NOW)
    entries[0].epoch += 1
    path.write_bytes(encode_packed(each.packed() for each in entries))
    assert not start_copy(folder, folder.parent / "started").warnings
    found = only(check(folder), Check.PRODUCER_SNAPSHOT)
    assert found.severity is Severity.ERROR
    assert f"producer {entries[0].producer_id} has epoch {entries[0].epoch - 1}, not {entries[0].epoch}" in found.what
    assert "believes it" in found.on_start


def test_P7_a_snapshot_that_forgot_an_expired_producer_is_right(folder: Path) -> None:
    path = max((folder / "large-0").glob("*.snapshot"))
    entries = [one for one in decode_snapshot(path.read_bytes(), now_ms=NOW) if one.transaction_first_offset >= 0]
    path.write_bytes(encode_packed(each.packed() for each in entries))
    assert check(folder).is_whole


def test_leader_epochs_that_are_not_the_batches_are_found(folder: Path) -> None:
    write_epochs(DiskStorage(), str(folder / "large-0" / "leader-epoch-checkpoint"), [(0, 0), (5, 20)])
    found = only(check(folder), Check.LEADER_EPOCHS)
    assert found.offset == -1
    assert "leader epoch 5" in found.what


def test_leader_epochs_that_a_start_after_a_kill_does_not_build_again_are_found(tmp_path: Path) -> None:
    manager = make_folder(tmp_path / "live")
    asyncio.run(manager.maintenance.flush())
    shutil.copytree(tmp_path / "live", tmp_path / "data")
    manager._abandon()
    assert not wrong(check(tmp_path / "data"))
    (tmp_path / "data" / "small-1" / "leader-epoch-checkpoint").unlink()
    assert "offset 0" in only(check(tmp_path / "data"), Check.LEADER_EPOCHS).what


def test_R3_a_replica_that_was_cut_below_its_recovery_point_and_was_killed_is_sound(tmp_path: Path) -> None:
    """The points on the disk are those before the cut, and the file of leader epochs is written with the next flush."""
    manager = make_folder(tmp_path / "live")
    log = next(one.log for one in manager.partitions() if str(one.tp) == "large-0")
    end, epoch = log.log_end_offset, log.epochs.latest
    log.append(make_batch([(b"k", b"never committed")]), leader_epoch=epoch, now_ms=NOW)
    log.flush()
    asyncio.run(manager.maintenance._write_checkpoints())
    log.truncate_to(end, now_ms=NOW)
    for _ in range(2):
        log.append(make_batch([(b"k", b"of the next leader")]), leader_epoch=epoch + 1, now_ms=NOW)
    shutil.copytree(tmp_path / "live", tmp_path / "data")
    manager._abandon()
    report = check(tmp_path / "data")
    assert not wrong(report)
    (found,) = [one for one in report.findings if one.check is Check.LEADER_EPOCHS]
    assert (found.severity, found.on_start) == (Severity.NOTE, "builds it again")


@pytest.mark.parametrize("restarted", [False, True])
def test_D1_what_was_written_again_below_the_recovery_point_after_a_cut_may_be_torn(
    tmp_path: Path, restarted: bool
) -> None:
    """A start gives it back from the journal, or from what is kept of it where the log could not be opened."""
    tp, copy = TopicPartition("orders", 0), tmp_path / "data"

    async def write() -> None:
        manager = open_logs(tmp_path / "live", is_alone=False)
        partition = manager.create_partition(tp, new_topic_id(), LogConfig())
        for leader_epoch, offsets in ((0, range(20)), (1, range(5, 12))):
            partition.follow(leader_epoch, 2 + leader_epoch)
            if partition.log_end_offset:
                await manager.maintenance.flush()
                partition.truncate_to(offsets[0])
            for offset in offsets:
                fetched = make_batch([(b"k", b"of epoch %d" % leader_epoch)])
                set_base_offset(fetched, 0, offset, leader_epoch)
                partition.replicate(fetched)
            await partition.all_durable()
        manager.folder.recovery_points.note(tp, 20)  # as an earlier version noted it
        shutil.copytree(tmp_path / "live", copy)
        manager._abandon()

    asyncio.run(write())
    log = copy / "orders-0" / "00000000000000000000.log"
    size = log.stat().st_size // 12
    with log.open("r+b") as file:
        file.seek(8 * size)
        file.write(bytes(size))
    if restarted:
        name = copy / "orders-0" / "partition.metadata"
        good = name.read_bytes()
        name.write_bytes(b"garbage!")
        open_logs(copy, is_alone=False)._abandon()
        assert list((copy / "kept").iterdir())
        name.write_bytes(good)
    report = check(copy)
    assert not wrong(report), "\n".join(map(str, wrong(report)))
    assert any(one.check is Check.BATCHES and one.offset == 8 for one in report.findings)
    manager = open_logs(copy, is_alone=False)
    assert [partition.log_end_offset for partition in manager.partitions()] == [12]
    manager._abandon()


def test_D2_a_leader_epoch_that_is_above_a_later_one_is_found(folder: Path) -> None:
    """No checksum covers it (bytes 12 to 15 of a batch), so only its neighbours tell."""
    path = folder / "small-0" / "00000000000000000000.log"
    flip(path, 12)
    assert "of leader epoch" in next(one.what for one in wrong(check(folder)) if one.offset > 0)


def test_checkpoints_that_cannot_be_are_found(folder: Path) -> None:
    write_checkpoint(DiskStorage(), str(folder / "replication-offset-checkpoint"), ["large 0 999999", "gone 0 1"])
    (folder / "cleaner-offset-checkpoint").write_text("0\n3\nlarge 0 1\n")
    report = check(folder)
    found = {one.path: one for one in wrong(report)}
    assert "999999" in found["replication-offset-checkpoint"].what
    assert "malformed" in found["cleaner-offset-checkpoint"].what
    assert any("gone-0, which is not here" in one.what for one in report.findings)


def test_a_start_that_would_be_refused_is_told_with_its_reason(folder: Path) -> None:
    (folder / "meta.properties").write_text("version=1\n")
    report = check(folder)
    assert "meta.properties is damaged" in report.refusal
    assert any(one.check is Check.START and one.on_start == "refuses" for one in report.findings)


def test_D1_an_acknowledged_entry_of_the_journal_that_is_damaged_refuses_the_start(tmp_path: Path) -> None:
    manager = make_folder(tmp_path / "live")
    journal = manager._journal
    assert journal is not None
    partition = manager.partitions()[0]
    for _ in range(5):
        partition.append(make_batch([(b"more", b"v")]))
        journal.sync_now()
    shutil.copytree(tmp_path / "live", tmp_path / "data")
    manager._abandon()
    (path,) = (tmp_path / "data" / "journal").iterdir()
    flip(path, path.stat().st_size - 260)
    started = start_copy(tmp_path / "data", tmp_path / "started")
    report = check(tmp_path / "data")
    assert started.refusal is not None
    assert "held records that were acknowledged" in report.refusal


# --- Transactions and coordinators ------------------------------------------------------------------------------------


def folder_with(
    path: Path,
    records: list[tuple[bytes, bytes | None]],
    topic: str = TRANSACTIONS_TOPIC,
    *,
    opens: bool = True,
    partition: int = 0,
) -> Path:
    """A folder in which producer 7 has a transaction open on orders-0, and a coordinator's log has these records."""

    async def make() -> None:
        manager = open_logs(path)
        orders = manager.create_partition(ORDERS, new_topic_id(), LogConfig())
        if opens:
            data = make_batch([(b"k", b"v")], producer=PRODUCER, sequence=0, transactional=True)
            orders.log.append(data, leader_epoch=0, now_ms=NOW, verified=True)
        internal = manager.create_partition(TopicPartition(topic, partition), new_topic_id(), LogConfig())
        for key, value in records:
            internal.log.append(
                bytearray(encode_batch([(NOW, key, value, ())])),
                origin=AppendOrigin.COORDINATOR, leader_epoch=0, now_ms=NOW,
            )  # fmt: skip
        await manager.close()

    asyncio.run(make())
    return path


def state(
    number: TransactionState,
    *,
    epoch: int = 0,
    partitions: set[TopicPartition] | None = None,
    attempt: str = "",
    producer_id: int = 7,
) -> Any:
    txn = TransactionMetadata(
        "etl", producer_id, epoch, 60_000, number, NOW, frozenset(partitions or ()), attempt=attempt
    )
    return encode_key("etl"), encode_value(txn)


def test_T8_a_transaction_that_its_coordinator_knows_is_no_finding(tmp_path: Path) -> None:
    records = [state(TransactionState.EMPTY), state(TransactionState.ONGOING, partitions={ORDERS})]
    report = check(folder_with(tmp_path / "data", records))
    assert report.is_whole, wrong(report)
    assert report.open_transactions == 1


def test_T8_a_hanging_transaction_is_found_with_the_command_that_ends_it(tmp_path: Path) -> None:
    found = only(check(folder_with(tmp_path / "data", [state(TransactionState.EMPTY)])), Check.TRANSACTIONS)
    assert (found.severity, found.path, found.offset) == (Severity.ERROR, "orders-0", 0)
    assert "'etl' in the state Empty" in found.what
    assert "semel txn finish --partition orders:0 --start-offset 0" in found.command


@pytest.mark.parametrize(("partition", "has_records"), [(1, True), (0, True), (0, False)])
def test_T8_whether_a_transaction_hangs_is_not_told_where_a_part_of_the_coordinators_is_elsewhere(
    tmp_path: Path, partition: int, has_records: bool
) -> None:
    """Without the metadata nobody says how many partitions it has: its first one may be all, or not."""
    records = [state(TransactionState.EMPTY, producer_id=8)] if has_records else []
    report = check(folder_with(tmp_path / "data", records, partition=partition))
    assert report.is_whole, wrong(report)
    (note,) = (one for one in report.findings if one.check is Check.TRANSACTIONS)
    assert (note.severity, note.path, note.offset) == (Severity.NOTE, "orders-0", 0)
    assert "producer 7 (epoch 0) has a transaction open since offset 0" in note.what
    assert note.command == ""


def test_T3_T7_a_committed_transaction_that_lacks_a_marker_is_to_be_finished_not_aborted(tmp_path: Path) -> None:
    records = [
        state(TransactionState.EMPTY),
        state(TransactionState.ONGOING, partitions={ORDERS}),
        state(TransactionState.PREPARE_COMMIT, epoch=1, partitions={ORDERS}),
        state(TransactionState.COMPLETE_COMMIT, epoch=1),
    ]
    found = only(check(folder_with(tmp_path / "data", records)), Check.TRANSACTIONS)
    assert "the commit of 'etl' is decided: its marker is missing here" in found.what
    assert "semel txn finish --partition orders:0 --start-offset 0" in found.command


def test_T3_what_the_log_does_not_tell_any_more_is_not_to_be_aborted(tmp_path: Path) -> None:
    found = only(check(folder_with(tmp_path / "data", [state(TransactionState.EMPTY, epoch=2)])), Check.TRANSACTIONS)
    assert "does not tell any more" in found.what
    assert "semel txn finish" in found.command


def test_T1_a_move_that_the_table_does_not_have_is_found(tmp_path: Path) -> None:
    records = [
        state(TransactionState.EMPTY),
        state(TransactionState.ONGOING, partitions={ORDERS}),
        state(TransactionState.COMPLETE_COMMIT),
    ]
    found = only(check(folder_with(tmp_path / "data", records, opens=False)), Check.COORDINATOR)
    assert "'etl' goes from Ongoing to CompleteCommit (T1)" in found.what
    assert found.offset == 2


@pytest.mark.parametrize("decided", [TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT])
@pytest.mark.parametrize("attempt", ["first", ""], ids=["of a shared transaction", "of a producer"])
def test_T12_a_shared_writer_is_removed_with_its_completion_and_no_other_id_is(
    tmp_path: Path, decided: TransactionState, attempt: str
) -> None:
    records = [
        state(TransactionState.ONGOING, partitions={ORDERS}, attempt=attempt),
        state(decided, epoch=1, partitions={ORDERS}, attempt=attempt),
        (encode_key("etl"), None),
    ]
    report = check(folder_with(tmp_path / "data", records, opens=False))
    if attempt:
        assert report.is_whole, wrong(report)
    else:
        assert f"is removed in the state {decided.label}" in only(report, Check.COORDINATOR).what


@pytest.mark.parametrize("attempt", ["first", ""])
def test_T1_an_id_that_is_removed_while_its_transaction_is_open_is_found(tmp_path: Path, attempt: str) -> None:
    records = [state(TransactionState.ONGOING, partitions={ORDERS}, attempt=attempt), (encode_key("etl"), None)]
    found = only(check(folder_with(tmp_path / "data", records, opens=False)), Check.COORDINATOR)
    assert "is removed in the state Ongoing" in found.what


def test_T3_a_decision_whose_markers_are_missing_is_a_note_because_a_start_writes_them(tmp_path: Path) -> None:
    records = [
        state(TransactionState.ONGOING, partitions={ORDERS}),
        state(TransactionState.PREPARE_COMMIT, partitions={ORDERS}),
    ]
    report = check(folder_with(tmp_path / "data", records))
    assert report.is_whole, wrong(report)
    assert any("PrepareCommit" in one.what and "(T4)" in one.on_start for one in report.findings)


@pytest.mark.parametrize("topic", [OFFSETS_TOPIC, TRANSACTIONS_TOPIC])
def test_a_coordinator_s_record_that_cannot_be_read_is_an_error(tmp_path: Path, topic: str) -> None:
    key = encode_key("etl") if topic == TRANSACTIONS_TOPIC else encode_offset_key(OffsetCommitKey("g", ORDERS))
    report = check(folder_with(tmp_path / "data", [(key, None), (key, b"\0\1bad")], topic, opens=False))
    found = only(report, Check.COORDINATOR if topic == TRANSACTIONS_TOPIC else Check.GROUP_OFFSETS)
    assert found.offset == 1
    assert "COORDINATOR_NOT_AVAILABLE" in found.on_start


# --- With a node's metadata -------------------------------------------------------------------------------------------


def with_node(folder: Path, work: Callable[[Node], Awaitable[None]]) -> Path:
    async def main() -> None:
        async with running_node(folder) as node:
            await create_topic(node, "orders", 2)
            await work(node)

    asyncio.run(main())
    return folder / "data"


async def write_some(node: Node) -> None:
    partition = node.partition(ORDERS)
    assert partition is not None
    for number in range(10):
        result = partition.append(bytearray(batch(b"%d" % number)))
        await partition.wait_committed(result.last_offset)


def test_a_node_s_own_folder_is_ok_while_it_runs_and_afterwards(tmp_path: Path) -> None:
    async def work(node: Node) -> None:
        await write_some(node)
        report = await asyncio.to_thread(verify, str(tmp_path / "data"))
        assert report.is_running
        assert report.is_whole, wrong(report)

    data = with_node(tmp_path, work)
    report = verify(str(data))
    assert report.is_whole, wrong(report)
    assert (report.is_running, report.is_clean) == (False, True)
    with_node_again = verify(str(data), deep=True)
    assert with_node_again.is_whole


def test_files_that_a_running_node_removes_are_a_note_and_a_torn_look_is_repeated(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []

    class Torn(LogCheck):
        def run(self) -> WalkedLog:
            looks.append(self._name)
            if len(looks) == 1:
                self._findings.add(Severity.ERROR, Check.BATCHES, self._name, "torn")
            if len(looks) in (2, 5):
                raise FileNotFoundError(2, "gone", "00000000000000000000.log")
            return super().run()

    monkeypatch.setattr("semel.broker.inspection.verify.LogCheck", Torn)
    with DiskStorage().lock(str(folder / ".lock")):
        report = check(folder)
    assert report.is_running
    assert report.is_whole, wrong(report)
    assert looks == ["large-0", "small-0", "small-1"] * 2
    assert any("has removed 00000000000000000000.log meanwhile" in one.what for one in report.findings)
    looks.clear()
    with pytest.raises(FileNotFoundError):
        check(folder)


def test_folders_that_the_metadata_does_not_know_or_misses_are_found(tmp_path: Path) -> None:
    data = with_node(tmp_path, write_some)
    shutil.copytree(data / "orders-0", tmp_path / "stray-0")
    shutil.rmtree(data / "orders-0")
    shutil.copytree(tmp_path / "stray-0", data / "stray-0")
    before = photograph(data)
    found = {one.path: one for one in wrong(verify(str(data))) if one.check is Check.FOLDERS}
    assert found["orders-0"].severity is Severity.ERROR
    assert found["orders-0"].on_start == "keeps it offline"
    assert "deletes the directory" in found["stray-0"].on_start
    assert photograph(data) == before, "SQLite leaves files beside what it reads"


def test_folders_of_a_topic_whose_deletion_was_cut_short_are_a_note(tmp_path: Path) -> None:
    """The metadata knows of the deletion: nothing is lost, and the next start ends it."""

    async def delete(node: Node) -> None:
        await write_some(node)
        await node.logs.maintenance.flush()  # what is still being written could be copied without its end
        shutil.copytree(tmp_path / "data" / "orders-0", tmp_path / "orders-0")
        image = node.metadata.image
        topic = image.topic("orders")
        assert topic is not None
        await node.metadata.change(lambda _: [TopicDeleted(topic.name, topic.topic_id)])

    data = with_node(tmp_path, delete)
    for left in [*data.glob("orders-*.*-delete"), *data.glob("orders-0")]:
        shutil.rmtree(left)
    shutil.copytree(tmp_path / "orders-0", data / "orders-0")
    (data / CLEAN_FILE).unlink()
    report = verify(str(data))
    assert wrong(report) == []
    [note] = [one for one in report.findings.found if one.path == "orders-0"]
    assert (note.severity, note.check, note.on_start) == (Severity.NOTE, Check.LEFTOVERS, "removes it")


def test_partitions_whose_creation_was_cut_short_are_a_note(tmp_path: Path) -> None:
    """Nobody was answered, nothing was in them, and the next start makes them. It said "damaged"."""

    data = with_node(tmp_path, write_some)
    store = MetadataStore(sqlite_url(str(data / METADATA_FILE)))
    (session,) = store.sessions(now_ms=2**40)
    topic = TopicCreated("wide", new_topic_id(), tuple(PartitionState(1, 0, (1,), (1,)) for _ in range(3)))
    store.append([topic], after=store.load().position, writer=session.writer, now_ms=2**40)
    store.close()
    (data / CLEAN_FILE).unlink(missing_ok=True)
    report = verify(str(data))
    assert wrong(report) == []
    notes = [one for one in report.findings.found if one.path.startswith("wide-")]
    assert {(one.severity, one.on_start) for one in notes} == {(Severity.NOTE, "makes it, empty")}
    assert len(notes) == 3


def test_a_link_to_itself_keeps_no_folder_from_being_looked_at(folder: Path) -> None:
    """The command ended with the system's message, and no report."""
    (folder / "strange").symlink_to("strange")
    assert wrong(check(folder)) == []


def test_a_pipe_in_place_of_the_metadata_s_write_ahead_log_is_an_error(tmp_path: Path) -> None:
    """The command ended with the system's message."""
    data = with_node(tmp_path, write_some)
    os.mkfifo(data / f"{METADATA_FILE}-wal")
    assert "named pipe" in only(verify(str(data)), Check.METADATA).what


@pytest.mark.parametrize("how", ["missing", "garbage", "rows"])
def test_metadata_that_cannot_be_read_is_an_error(tmp_path: Path, how: str) -> None:
    data = with_node(tmp_path, write_some)
    path = data / METADATA_FILE
    if how == "missing":
        path.unlink()
    elif how == "garbage":
        path.write_bytes(b"not a database" * 500)
    else:
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("UPDATE semel_metadata_changes SET payload = '{' WHERE sequence = 2")
            connection.commit()
    found = [one for one in wrong(verify(str(data))) if one.check is Check.METADATA]
    assert found
    assert found[0].severity is Severity.ERROR
    assert "refuses" in found[0].on_start


# --- The command ------------------------------------------------------------------------------------------------------


def test_the_command_says_what_and_what_next_and_its_exit_code_is_the_verdict(tmp_path: Path) -> None:
    data = with_node(tmp_path, write_some)
    runner = CliRunner()
    result = runner.invoke(app, ["log", "verify", str(data)])
    assert result.exit_code == 0, result.output
    assert "stopped cleanly" in result.stdout
    assert result.stdout.splitlines()[-1].startswith("ok (")
    flip(data / "orders-0" / f"{0:020d}.log", 65)
    result = runner.invoke(app, ["log", "verify", str(data)])
    assert result.exit_code == 1
    assert "checksum" in result.stdout
    assert "restore the directory from a backup" in result.stdout
    shown = runner.invoke(app, ["log", "verify", str(data), "--json"])
    document = json.loads(shown.stdout)
    assert shown.exit_code == 1
    assert document["verdict"] == "damaged"
    (finding,) = [one for one in document["findings"] if one["check"] == "batches"]
    assert (finding["severity"], finding["offset"], finding["position"]) == ("error", 0, 0)


def test_a_path_may_be_relative_and_have_dots(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    (folder / "small-0" / f"{0:020d}.timeindex").unlink()
    expected = {one.path for one in wrong(check(folder))}
    assert expected
    for path in ("data", "./data/", "data/../data"):
        assert {one.path for one in wrong(verify(path, needs_metadata=False))} == expected
    monkeypatch.chdir(folder)
    for path in (".", "../data", "../../" + folder.parent.name + "/data"):
        assert {one.path for one in wrong(verify(path, needs_metadata=False))} == expected
    monkeypatch.chdir(folder / "small-0")
    assert {one.path for one in wrong(verify("..", needs_metadata=False))} == expected


def test_the_command_refuses_what_is_no_data_folder(tmp_path: Path) -> None:
    for path, words in ((tmp_path, "no node's data directory"), (tmp_path / "none", "is not a directory")):
        with pytest.raises(UsageError, match=words):
            verify(str(path))
        result = CliRunner().invoke(app, ["log", "verify", str(path)])
        assert result.exit_code == 2


def test_many_findings_of_a_kind_are_counted() -> None:
    findings = Findings()
    for number in range(FINDINGS_OF_A_KIND_MAX + 7):
        findings.add(Severity.WARNING, Check.OFFSET_INDEX, "t-0/x.index", f"entry {number}")
    findings.add(Severity.ERROR, Check.BATCHES, "t-0/x.log", "torn")
    assert next(iter(findings)).what == "torn"
    assert findings.count(Severity.WARNING) == FINDINGS_OF_A_KIND_MAX + 7
    assert len(findings.found) == FINDINGS_OF_A_KIND_MAX + 1


PLACES = ("log", "index", "timeindex", "txnindex", "snapshot", "leader-epoch-checkpoint", "partition.metadata")


def test_a_missing_owner_file_is_a_finding_because_a_start_writes_it_again(folder: Path) -> None:
    (folder / "meta.properties").unlink()
    found = only(check(folder), Check.START)
    assert (found.path, found.severity) == ("meta.properties", Severity.WARNING)
    assert "writes it again" in found.on_start


def test_a_partition_that_has_another_topic_s_id_is_a_finding(folder: Path) -> None:
    metadata = folder / "small-0" / "partition.metadata"
    metadata.write_text(f"version: 0\ntopic_id: {format_topic_id(new_topic_id())}\n")
    assert "had no partition 0" in only(check(folder), Check.FOLDERS).what


@pytest.mark.parametrize("kind", SPECIAL)
@pytest.mark.parametrize(
    "which",
    ["small-1/00000000000000000001.snapshot", "small-1/00000000000000000007.snapshot.tmp", ".kafka_cleanshutdown"],
)
def test_D2_what_a_start_passes_over_is_a_note(folder: Path, which: str, kind: str) -> None:
    """It was an error that a start keeps the partition offline, which it does not."""
    (folder / which).unlink(missing_ok=True)
    make_special(folder / which, kind)
    report = check(folder)
    assert wrong(report) == []
    [note] = [one for one in report.findings.found if one.path == which and one.check is Check.FOLDERS]
    assert note.what == f"it is {SPECIAL[kind]}, and a file belongs there"
    logs = open_logs(folder)
    assert list(logs.offline) == []
    assert note.on_start == ("leaves it" if os.path.lexists(folder / which) else "removes it")
    asyncio.run(logs.close())


@pytest.mark.parametrize("name", [".lock", ".semel.lock"])
def test_D2_a_pipe_in_place_of_a_lock_s_file_is_an_error(folder: Path, name: str) -> None:
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    assert "named pipe" in " ".join(one.what for one in wrong(check(folder)) if one.severity is Severity.ERROR)


@pytest.mark.parametrize("which", [*PLACES, "recovery-point-offset-checkpoint", "meta.properties", "metadata.sqlite"])
@pytest.mark.parametrize("kind", ["device", "pipe"])
def test_S3_a_pipe_or_a_device_in_place_of_a_file_is_a_finding(folder: Path, kind: str, which: str) -> None:
    """It was passed over, and a start waited for it or read it for ever."""
    in_log = which in PLACES
    parent = folder / "small-1" if in_log else folder
    found = sorted(parent.glob(f"*.{which}"))
    path = found[-1] if found else parent / which
    path.unlink(missing_ok=True)
    make_special(path, kind)
    report = check(folder)
    name = str(path.relative_to(folder))
    [finding] = [one for one in wrong(report) if one.path == name and one.check is Check.FOLDERS]
    assert finding.severity is Severity.ERROR
    assert finding.what == f"it is {SPECIAL[kind]}, and a file belongs there"
    assert finding.on_start == ("keeps it offline" if in_log else "refuses")
    assert [(log.tp, log.records > 0) for log in report.logs if log.tp != TopicPartition("small", 1)] == [
        (TopicPartition("large", 0), True),
        (TopicPartition("small", 0), True),
    ]


@pytest.mark.parametrize("which", [*PLACES, "recovery-point-offset-checkpoint", "meta.properties", "metadata.sqlite"])
def test_a_directory_in_place_of_a_file_is_a_finding_and_the_other_logs_are_read(folder: Path, which: str) -> None:
    """It ended with IsADirectoryError, and nothing else was looked at."""
    in_log = which in PLACES
    parent = folder / "small-1" if in_log else folder
    found = sorted(parent.glob(f"*.{which}"))
    path = found[-1] if found else parent / which
    path.unlink(missing_ok=True)
    path.mkdir()
    (path / "inside").write_text("x")
    before = photograph(folder)
    report = check(folder)
    name = str(path.relative_to(folder))
    [finding] = [one for one in wrong(report) if one.path == name and one.check is Check.FOLDERS]
    assert finding.severity is Severity.ERROR
    assert finding.what == "it is a directory, and a file belongs there"
    assert finding.on_start == ("keeps it offline" if in_log else "refuses")
    again = which in ("index", "timeindex", "txnindex", "snapshot")
    assert ("the node makes the file again" in finding.command) is again
    assert [(log.tp, log.records > 0) for log in report.logs if log.tp != TopicPartition("small", 1)] == [
        (TopicPartition("large", 0), True),
        (TopicPartition("small", 0), True),
    ]
    shown = CliRunner().invoke(app, ["log", "verify", str(folder)])
    assert shown.exit_code == 1
    assert f"{name}: it is a directory" in " ".join(shown.stdout.split())
    assert photograph(folder) == before
