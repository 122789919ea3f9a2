"""Files that were cut or overwritten by hand between a clean stop and the next start, and indexes that mislead a reader
(D2, D3, P7, L3).
"""

from __future__ import annotations

import errno
from dataclasses import replace
from typing import Any

import pytest
from log_model import FOLDER, NOW, SMALL_SEGMENTS, dump, fill, indexes, make_batch, open_log, read_batches

from semel.broker.log.abort_checkpoint import ABORTED_TRANSACTIONS_FILE
from semel.broker.log.config import LogConfig
from semel.broker.log.partition_log import PartitionLog
from semel.protocol.batch_header import BatchHeader
from semel.protocol.errors import ErrorCode, SemelError
from semel.protocol.ids import ProducerIdAndEpoch
from semel.runtime.simulated_storage import SimulatedStorage

ONE_SEGMENT = replace(SMALL_SEGMENTS, segment_bytes=100_000)


def stopped(
    config: LogConfig = SMALL_SEGMENTS, count: int = 150
) -> tuple[SimulatedStorage, PartitionLog, list[tuple[BatchHeader, bytes]], Any]:
    """A log that was closed cleanly: its storage, itself, its batches, and what it knew."""
    storage = SimulatedStorage()
    log = open_log(storage, config)
    fill(log, count)
    expected = dump(log)
    batches = read_batches(log)
    log.close()
    return storage, log, batches, expected


def cut(storage: SimulatedStorage, path: str, size: int) -> None:
    file = storage.open(path)
    file.truncate(file.size() - size if size > 0 else -size)


def offsets(first: int, end: int) -> str:
    return f"offset {first}" if end == first + 1 else f"offsets {first} to {end - 1}"


@pytest.mark.parametrize("size", [1, 61, 100, 700])
@pytest.mark.parametrize("noted", ["checkpoint", "snapshot"])
def test_D3_a_tail_that_was_cut_after_a_clean_stop_is_found_and_its_offsets_are_not_given_away(
    size: int, noted: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The snapshot said where the log ended, so a new record was acknowledged behind a hole and never read."""
    storage, log, batches, _ = stopped(ONE_SEGMENT)
    end = log.log_end_offset
    path = log.segments.active.path(".log")
    cut(storage, path, size)
    again = open_log(storage, ONE_SEGMENT, clean=True, recovery_point=end if noted == "checkpoint" else 0)
    left = storage.open(path).size() - 61
    kept, position = [], 0
    for header, data in batches:
        position += len(data)
        if position <= left:
            kept.append((header, data))
    assert 0 < len(kept) < len(batches)
    lost = kept[-1][0].next_offset
    found = read_batches(again)
    assert [data for _, data in found[:-1]] == [data for _, data in kept]
    assert (found[-1][0].base_offset, found[-1][0].next_offset, found[-1][0].record_count) == (lost, end, 0)
    assert again.log_end_offset == end
    assert again.recovery_point <= lost, "what was fixed is to be synced"
    [warning] = [each.getMessage() for each in caplog.records if "are lost" in each.getMessage()]
    assert f"t-0: the records at {offsets(lost, end)} are lost" in warning
    assert FOLDER in warning
    # P7: the state is the log's, not the snapshot's, which knew of the lost batches.
    model = open_log(SimulatedStorage(), ONE_SEGMENT)
    for _, data in found:
        model.replay_append(None, data, now_ms=NOW)
    assert dump(again)[1:] == dump(model)[1:]
    offset = again.append(make_batch([(b"k", b"new")]), leader_epoch=9, now_ms=NOW).base_offset
    assert offset == end
    assert read_batches(again, end)[0][0].base_offset == end
    again.close()
    caplog.clear()
    once_more = open_log(storage, ONE_SEGMENT, clean=True, recovery_point=end + 1)
    assert not caplog.records, "once is enough"
    assert once_more.log_end_offset == end + 1


@pytest.mark.parametrize("cut_too", [False, True])
def test_D2_a_batch_with_a_wrong_checksum_is_said_and_stays_and_costs_no_other(
    cut_too: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """To cut there would take acknowledged records that are whole, decisions of transactions among them."""
    storage, log, batches, _ = stopped(ONE_SEGMENT)
    path = log.segments.active.path(".log")
    header, data = batches[-2]
    position = sum(len(one) for _, one in batches[:-2])
    storage.corrupt(path, position + len(data) - 3, b"\xff\xff\xff")
    if cut_too:
        cut(storage, path, 10)
    again = open_log(storage, ONE_SEGMENT, clean=True)
    assert again.log_end_offset == log.log_end_offset
    errors = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    assert ["are lost" in each for each in errors] == [False, True][: 1 + cut_too]
    error = errors[0]
    assert f"t-0: the records at {offsets(header.base_offset, header.next_offset)} can't be read" in error
    assert "from a backup" in error
    found = read_batches(again)
    assert [one for _, one in found[:-2]] == [one for _, one in batches[:-2]]
    assert found[-2][0].base_offset == header.base_offset
    assert (found[-1][1] == batches[-1][1]) is not cut_too
    assert found[-1][0].record_count == (0 if cut_too else batches[-1][0].record_count)


def test_D2_bytes_that_are_cut_after_a_clean_stop_are_kept_beside_the_log(caplog: pytest.LogCaptureFixture) -> None:
    storage, log, batches, _ = stopped(ONE_SEGMENT)
    path = log.segments.active.path(".log")
    position = sum(len(one) for _, one in batches[:-1])
    storage.corrupt(path, position, bytes(61))
    expected = storage.open(path).read_at(1 << 20, position)
    again = open_log(storage, ONE_SEGMENT, clean=True)
    assert [one for _, one in read_batches(again)[:-1]] == [one for _, one in batches[:-1]]
    assert again.log_end_offset == log.log_end_offset
    assert storage.open(f"{path}.{position}.cut").read_at(1 << 20, 0) == expected
    assert f"{path}.{position}.cut" in caplog.text
    found = [one for _, one in read_batches(again)]
    again.close()
    assert [one for _, one in read_batches(open_log(storage, ONE_SEGMENT, clean=True))] == found


@pytest.mark.parametrize("size", [100, 0])
def test_D2_an_older_segment_that_was_cut_loses_its_own_tail_alone(size: int, caplog: pytest.LogCaptureFixture) -> None:
    storage, log, batches, _ = stopped()
    segment, after = list(log.segments)[1:3]
    cut(storage, segment.path(".log"), size)
    again = open_log(storage, SMALL_SEGMENTS, clean=True)
    found = read_batches(again)
    stand_in = next(header for header, _ in found if header.record_count == 0)
    assert segment.base_offset <= stand_in.base_offset < stand_in.next_offset == after.base_offset
    expected = [
        data for header, data in batches if not stand_in.base_offset <= header.base_offset < stand_in.next_offset
    ]
    assert [data for header, data in found if header.record_count] == expected
    assert again.log_end_offset == log.log_end_offset
    assert f"at {offsets(stand_in.base_offset, stand_in.next_offset)} are lost" in caplog.text
    # A crash now must find a log without a gap.
    again.flush()
    storage.crash(power=False)
    assert [data for _, data in read_batches(open_log(storage, SMALL_SEGMENTS))] == [data for _, data in found]


def test_D3_a_log_whose_segments_are_all_gone_goes_on_at_its_old_end(caplog: pytest.LogCaptureFixture) -> None:
    storage, log, _, _ = stopped()
    for segment in log.segments:
        storage.remove(segment.path(".log"))
    again = open_log(storage, SMALL_SEGMENTS, clean=True)
    assert (again.log_start_offset, again.log_end_offset) == (log.log_end_offset,) * 2
    assert f"offsets 0 to {log.log_end_offset - 1} are lost" in caplog.text


SPOILT = [
    (suffix, how, which)
    for suffix in (".index", ".timeindex", ".txnindex")
    for how in ("garbage", "torn", "cut", "shuffled")
    for which in (1, -1)
    # Without reading the log it cannot be told that a list of aborted transactions lacks whole entries.
    if (suffix, how) != (".txnindex", "cut") and (suffix, how, which) != (".txnindex", "shuffled", 1)
]


@pytest.mark.parametrize(("suffix", "how", "which"), SPOILT)
def test_an_index_that_was_spoilt_after_a_clean_stop_is_built_again(
    suffix: str, how: str, which: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Consumers waited for ever at the first offset that the index misled them about."""
    config = SMALL_SEGMENTS if which == 1 else ONE_SEGMENT
    storage, log, _, expected = stopped(config)
    segment = list(log.segments)[which]
    path = segment.path(suffix)
    file = storage.open(path)
    size = file.size()
    assert size > 0
    if how == "garbage":
        storage.corrupt(path, 0, b"\x01garbage\xff" * (size // 9) + bytes([7] * (size % 9)))
    elif how == "torn":
        cut(storage, path, 5)
    elif how == "cut":
        cut(storage, path, 0)
    else:
        entry = {".index": 8, ".timeindex": 12, ".txnindex": 34}[suffix]
        data = file.read_at(size, 0)
        assert size >= 2 * entry
        storage.corrupt(path, 0, data[-entry:] + data[entry:-entry] + data[:entry])
    again = open_log(storage, config, clean=True)
    assert dump(again) == expected
    if (suffix, how) != (".index", "cut"):  # fewer entries make look-ups slower, not wrong
        assert "again" in caplog.text
    for offset in range(again.log_end_offset):
        assert again.read(offset, 1 << 20, again.log_end_offset).size > 0
    assert "are lost" not in caplog.text
    assert indexes(again)


def test_a_lookup_that_an_index_misleads_builds_it_again_once(caplog: pytest.LogCaptureFixture) -> None:
    storage, _, batches, _ = stopped(ONE_SEGMENT)
    again = open_log(storage, ONE_SEGMENT, clean=True)
    path = again.segments.active.path(".index")
    data = storage.open(path).read_at(1 << 20, 0)
    entry = len(data) // 16 * 8
    first = int.from_bytes(data[entry : entry + 4], "big")
    for position in (int.from_bytes(data[-4:], "big"), int.from_bytes(data[entry + 4 : entry + 8], "big") + 3, 1 << 30):
        caplog.clear()
        again.release_files()
        storage.corrupt(path, entry + 4, position.to_bytes(4, "big"))
        found = again.read(first, 1 << 20, again.log_end_offset)
        assert found.first_offset <= first < found.next_offset
        assert [each.levelname for each in caplog.records] == ["WARNING"]
        assert "building the indexes" in caplog.text
        assert [one for _, one in read_batches(again)] == [one for _, one in batches]
        again = open_log(storage, ONE_SEGMENT, clean=True)


def test_a_batch_that_cannot_be_read_is_a_clear_error_and_one_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    storage, _, batches, _ = stopped(ONE_SEGMENT)
    again = open_log(storage, ONE_SEGMENT, clean=True)
    header = batches[len(batches) // 2][0]
    position = sum(len(data) for other, data in batches if other.base_offset < header.base_offset)
    storage.corrupt(again.segments.active.path(".log"), position, bytes(61))
    for _ in range(3):
        with pytest.raises(SemelError) as caught:
            again.read(header.base_offset, 1 << 20, again.log_end_offset)
        assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
        assert f"t-0 at offset {header.base_offset} can't be read" in caught.value.message
    errors = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    assert len(errors) == 1
    assert f"restore {FOLDER} from a backup" in errors[0]
    last = batches[-1][0]
    assert again.read(last.base_offset, 1 << 20, again.log_end_offset).first_offset == last.base_offset
    assert again.append(
        make_batch([(b"k", b"v")], producer=ProducerIdAndEpoch(99, 0), sequence=0), leader_epoch=9, now_ms=NOW
    )


def test_L3_a_list_of_aborted_transactions_that_is_spoilt_is_built_again_after_a_crash_too(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Recovery said that it built it again, and built only the other two indexes."""
    storage, log, _, expected = stopped()
    segment = list(log.segments)[1]
    again = open_log(storage, SMALL_SEGMENTS, clean=True)
    point = again.flush()
    path = segment.path(".txnindex")
    storage.corrupt(path, 0, b"\xff" * storage.open(path).size())
    with pytest.raises(SemelError, match="transaction index") as caught:
        again.aborted_transactions(0, point)
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert again.offline_error is not None, "or readers would be shown aborted records"
    storage.crash(power=False)
    again = open_log(storage, SMALL_SEGMENTS, recovery_point=point)
    assert dump(again) == expected
    assert f"{path} cannot be true" in caplog.text


@pytest.mark.parametrize("damage", ["removed", "flipped", "shortened by an entry"])
def test_L3_a_list_of_aborted_transactions_that_changed_since_a_clean_stop_is_built_again(
    damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    """No list says that nothing was aborted, and entries have no checksum: readers were shown aborted records."""
    storage, log, _, expected = stopped()
    segment = next(each for each in log.segments if each.transactions.exists)
    path = segment.path(".txnindex")
    match damage:
        case "removed":
            storage.remove(path)
        case "flipped":
            storage.corrupt(path, 17, b"\x01")
        case _:
            storage.open(path).truncate(storage.open(path).size() - 34)
    again = open_log(storage, SMALL_SEGMENTS, clean=True)
    assert dump(again) == expected
    assert f"{path} is not as it was" in caplog.text
    again.close()
    caplog.clear()
    assert dump(open_log(storage, SMALL_SEGMENTS, clean=True)) == expected
    assert not caplog.records


def test_a_log_in_which_nothing_was_aborted_has_no_checkpoint_of_aborts() -> None:
    storage = SimulatedStorage()
    log = open_log(storage, ONE_SEGMENT)
    log.append(make_batch([(b"k", b"v")]), leader_epoch=0, now_ms=NOW)
    log.close()
    assert ABORTED_TRANSACTIONS_FILE not in storage.list_folder(FOLDER)


# --- After a crash, below the recovery point --------------------------------------------------------------------------


def killed(
    config: LogConfig = SMALL_SEGMENTS, synced: int = 150, more: int = 10
) -> tuple[SimulatedStorage, PartitionLog, list[tuple[BatchHeader, bytes]], int]:
    """A log that was killed some time after a flush: its storage, itself, its batches, and its recovery point."""
    storage = SimulatedStorage()
    log = open_log(storage, config)
    fill(log, synced)
    point = log.flush()
    for _ in range(more):
        log.append(make_batch([(b"k", b"tail")]), leader_epoch=2, now_ms=NOW)
    batches = read_batches(log)
    storage.crash(power=False)
    for name in storage.list_folder(FOLDER):
        if name.endswith(".snapshot"):
            storage.remove(f"{FOLDER}/{name}")
    return storage, log, batches, point


def place_of(log: PartitionLog, batches: list[tuple[BatchHeader, bytes]], header: BatchHeader) -> tuple[str, int]:
    segment = log.segments.from_offset(header.base_offset)[0]
    before = range(segment.base_offset, header.base_offset)
    return segment.path(".log"), sum(len(data) for other, data in batches if other.base_offset in before)


@pytest.mark.parametrize("config", [SMALL_SEGMENTS, ONE_SEGMENT])
@pytest.mark.parametrize("which", [0, 20, 75])
def test_D2_a_rotten_bit_in_synced_records_made_a_start_after_a_kill_throw_away_all_behind_it(
    config: LogConfig, which: int, caplog: pytest.LogCaptureFixture
) -> None:
    """It was taken for a torn tail, and 450 committed transactions were gone for one flipped byte."""
    storage, log, batches, point = killed(config)
    header, data = [one for one in batches if not one[0].is_control][which]
    path, position = place_of(log, batches, header)
    storage.corrupt(path, position + len(data) - 2, bytes([data[-2] ^ 4]))
    again = open_log(storage, config, recovery_point=point)
    assert again.log_end_offset == log.log_end_offset
    found = read_batches(again)
    assert len(found) == len(batches)
    assert [one.base_offset for one, _ in found] == [one.base_offset for one, _ in batches]
    wrong = [at.base_offset for (at, one), (_, written) in zip(found, batches, strict=True) if one != written]
    assert wrong == [header.base_offset]
    assert again.recovered_bytes_cut == 0
    [error] = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    named = offsets(header.base_offset, header.next_offset)
    assert f"t-0: the records at {named} can't be read" in error
    assert f"{path} at position {position} " in error
    assert again.recovered_damage == f"t-0: {named} unreadable"
    again.append(make_batch([(b"k", b"new")]), leader_epoch=9, now_ms=NOW)


def test_D2_what_follows_the_recovery_point_is_cut_as_torn_and_kept_beside_the_log() -> None:
    storage, log, batches, point = killed(ONE_SEGMENT)
    header, data = next(one for one in batches if one[0].base_offset == point)
    path, position = place_of(log, batches, header)
    storage.corrupt(path, position + len(data) - 2, b"\xff\xff")
    expected = storage.open(path).read_at(1 << 20, position)
    again = open_log(storage, ONE_SEGMENT, recovery_point=point)
    assert again.log_end_offset == point
    assert again.recovered_bytes_cut == len(expected)
    assert storage.open(f"{path}.{position}.torn.cut").read_at(1 << 20, 0) == expected
    assert again.recovered_damage == "", "nobody was told that it is there, or the journal has it"


def test_of_torn_tails_only_the_last_is_kept_or_every_kill_would_leave_a_file_for_good() -> None:
    storage, log, _, point = killed(ONE_SEGMENT, more=0)
    path = log.segments.active.path(".log")
    for kill in range(5):
        for _ in range(kill):
            log.append(make_batch([(b"k", b"v")]), leader_epoch=9, now_ms=NOW)
        point = log.flush()
        storage.crash(power=False)
        storage.open(path).append([bytes([kill]) * 26])
        log = open_log(storage, ONE_SEGMENT, recovery_point=point)
        assert log.log_end_offset == point
        [kept] = [name for name in storage.list_folder(FOLDER) if name.endswith(".cut")]
        assert storage.open(f"{FOLDER}/{kept}").read_at(100, 0) == bytes([kill]) * 26


@pytest.mark.parametrize("where", ["length", "offset"])
@pytest.mark.parametrize("config", [SMALL_SEGMENTS, ONE_SEGMENT])
def test_D2_D3_a_rotten_header_in_synced_records_costs_no_other_segment_and_gives_no_offset_away(
    where: str, config: LogConfig, caplog: pytest.LogCaptureFixture
) -> None:
    storage, log, batches, point = killed(config)
    header, _ = batches[40]
    path, position = place_of(log, batches, header)
    storage.corrupt(path, position + (8 if where == "length" else 1), b"\x7f")
    rest = storage.open(path).read_at(1 << 20, position)
    again = open_log(storage, config, recovery_point=point)
    found = read_batches(again)
    [stand_in] = [one for one, _ in found if one.record_count == 0]
    assert stand_in.base_offset == header.base_offset
    following = [base for base in log.segments.base_offsets if base > header.base_offset]
    assert stand_in.next_offset == min([*following, point])
    kept = [one for at, one in batches if at.next_offset <= header.base_offset]
    kept += [one for at, one in batches if stand_in.next_offset <= at.base_offset < point]
    assert [one for at, one in found if at.record_count and at.base_offset < point] == kept
    assert again.log_end_offset >= point
    assert storage.open(f"{path}.{position}.cut").read_at(1 << 20, 0) == rest
    named = offsets(stand_in.base_offset, stand_in.next_offset)
    assert f"the records at {named} are lost" in caplog.text
    assert again.recovered_damage == f"t-0: {named} lost"
    assert again.recovery_point <= stand_in.base_offset, "what was fixed is to be synced"
    # P7: the state is that of a log that never had more.
    model = open_log(SimulatedStorage(), config)
    for _, data in found:
        model.replay_append(None, data, now_ms=NOW)
    assert dump(again)[1:] == dump(model)[1:]


def test_L3_a_rotten_marker_ended_its_transaction_all_the_same_as_the_list_of_aborted_ones_says() -> None:
    """Left open, the transaction was ended by its producer's next marker: committed records were taken for aborted."""
    for committed in (True, False):
        for bumped in (0, 1):
            storage = SimulatedStorage()
            log = open_log(storage, ONE_SEGMENT)
            producer = ProducerIdAndEpoch(7, 0)
            for number in range(2):
                log.append(
                    make_batch([(b"k", b"v")], producer=producer, sequence=0, transactional=True),
                    leader_epoch=0, now_ms=NOW, verified=True,
                )  # fmt: skip
                ending = ProducerIdAndEpoch(7, producer.producer_epoch + bumped)
                log.append_marker(ending, 1, committed is (number == 0), NOW, leader_epoch=0)
                producer = ProducerIdAndEpoch(7, ending.producer_epoch + 1 - bumped)
            expected = log.aborted_transactions(0, log.log_end_offset)
            batches = read_batches(log)
            assert [each.last_offset for each in expected] == [3 if committed else 1]
            point = log.flush()
            storage.crash(power=False)
            header, data = batches[1]
            assert header.is_control
            path, position = place_of(log, batches, header)
            storage.corrupt(path, position + len(data) - 2, b"\xff")
            again = open_log(storage, ONE_SEGMENT, recovery_point=point)
            assert again.log_end_offset == point
            assert again.aborted_transactions(0, point) == expected
            assert again.first_unstable_offset(point) is None


def test_D2_a_torn_tail_is_cut_on_a_full_disk_though_it_cannot_be_kept_there() -> None:
    """A node that had filled its disk and was killed did not start again for the copy of 26 torn bytes."""
    storage, log, batches, point = killed(ONE_SEGMENT, more=0)
    path = log.segments.active.path(".log")
    size = storage.open(path).size()
    storage.open(path).append([bytes(26)])
    storage.fail_next("append", OSError(errno.ENOSPC, "No space left on device"), path_part=".cut")
    again = open_log(storage, ONE_SEGMENT, recovery_point=point)
    assert (again.log_end_offset, again.recovered_bytes_cut) == (point, 26)
    assert not any(name.endswith(f"{size}.cut") for name in storage.list_folder(FOLDER))
    assert [one for _, one in read_batches(again)] == [one for _, one in batches]


def test_D2_the_index_of_aborted_transactions_ends_where_the_cut_log_does() -> None:
    """What it still said of markers that were cut would be told of other records that get their offsets (L3).

    The damage is where the index is trusted until a batch cannot be true: an offset that goes back, which no checksum
    covers, below a snapshot whose place is not to be found. A later segment is too far away for a batch to fill the
    gap up to it.
    """
    storage = SimulatedStorage()
    config = replace(ONE_SEGMENT, index_interval_bytes=0)
    log = open_log(storage, config)
    for number in range(6):
        producer = ProducerIdAndEpoch(number, 0)
        log.append(
            make_batch([(b"k", b"v")], producer=producer, sequence=0, transactional=True),
            leader_epoch=0, now_ms=NOW, verified=True,
        )  # fmt: skip
        log.append_marker(producer, 0, False, NOW, leader_epoch=0)
    log.append(make_batch([(b"k", b"v")]), leader_epoch=0, now_ms=NOW)
    batches = read_batches(log)
    log.close()  # with a snapshot at the end
    path, position = place_of(log, batches, batches[6][0])
    storage.corrupt(path, position, (1).to_bytes(8, "big"))
    path, position = place_of(log, batches, batches[-1][0])
    storage.corrupt(path, position + 16, b"\x07")
    again = open_log(storage, config, recovery_point=1 << 33)
    assert again.log_end_offset == 6
    known = [one for *_, aborted in indexes(again) for one in aborted]
    assert [one.last_offset for one in known] == [1, 3, 5]
    # The same offsets, for another transaction, and this one is committed.
    producer = ProducerIdAndEpoch(70, 0)
    again.append(
        make_batch([(b"k", b"v")], producer=producer, sequence=0, transactional=True),
        leader_epoch=0, now_ms=NOW, verified=True,
    )  # fmt: skip
    again.append_marker(producer, 0, True, NOW, leader_epoch=0)
    assert again.aborted_transactions(6, 8) == []
