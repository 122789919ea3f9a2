"""What is remembered of the last recovery: written where there was one, never in the way of a start."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from semel.broker.logs.journal_replay import RecoveryReport
from semel.broker.logs.last_recovery import RecoveryNote, update_note, write_note
from semel.protocol.ids import TopicPartition
from semel.runtime.disk_storage import DiskStorage

CRASHED = RecoveryReport(clean=False, partitions=3, journal_entries=2, restored_batches=1)
T0 = TopicPartition("t", 0)
CLEAN = RecoveryReport(clean=True, partitions=3)


def test_the_last_recovery_is_kept_over_clean_starts(tmp_path: Path) -> None:
    path = str(tmp_path / "note.json")
    storage = DiskStorage()
    assert update_note(storage, path, CLEAN, 1) == RecoveryNote()
    assert not (tmp_path / "note.json").exists(), "there is nothing to remember"
    noted = update_note(storage, path, CRASHED, 2)
    assert (noted.at_ms, "1 batch restored" in noted.found) == (2, True)
    assert update_note(storage, path, CLEAN, 3) == noted
    assert update_note(storage, path, CRASHED, 4).at_ms == 4


def test_damage_is_remembered_over_later_recoveries(tmp_path: Path) -> None:
    """A later start finds only what it reads: the damage would be forgotten, and the records stay lost."""
    path = str(tmp_path / "note.json")
    storage = DiskStorage()
    damage = {TopicPartition("t", n): f"t-{n}: offset 3 unreadable" for n in range(12)}
    noted = update_note(storage, path, replace(CRASHED, damage=damage), 2)
    assert (noted.at_ms, noted.damaged_ms) == (2, 2)
    assert noted.damage.startswith("t-0: offset 3 unreadable; t-1: ")
    assert noted.damage.endswith("; and 2 more partitions")
    assert update_note(storage, path, CLEAN, 3) == noted
    assert update_note(storage, path, CRASHED, 4) == replace(noted, at_ms=4)
    (tmp_path / "note.json").unlink()
    found = update_note(storage, path, replace(CLEAN, damage={T0: damage[T0]}), 5)
    assert (found.at_ms, found.damaged_ms, found.damage) == (-1, 5, damage[T0])
    assert update_note(storage, path, CLEAN, 6) == found
    assert found.without([T0]) == RecoveryNote()


def test_partitions_that_were_repaired_are_left_out_and_the_others_stay(tmp_path: Path) -> None:
    path, storage = str(tmp_path / "note.json"), DiskStorage()
    damage = {TopicPartition("t", n): f"t-{n}: offset 3 unreadable" for n in range(2)}
    noted = update_note(storage, path, replace(CLEAN, damage=damage), 5)
    left = noted.without([T0, TopicPartition("other", 0)])
    assert (left.damaged_ms, left.damage) == (5, "t-1: offset 3 unreadable")
    assert noted.without([TopicPartition("other", 0)]) is noted
    write_note(storage, path, left)
    assert update_note(storage, path, CLEAN, 6) == left
    both = update_note(storage, path, replace(CLEAN, damage={T0: "t-0: offset 9 lost"}), 7)
    assert (both.damaged_ms, both.damage) == (7, "t-1: offset 3 unreadable; t-0: offset 9 lost"), "the former stays"
    # As versions before this one wrote it: which partitions it was is not known, so it stays.
    (tmp_path / "note.json").write_text('{"at_ms": -1, "found": "", "damaged_ms": 5, "damage": "t-0: offset 3 lost"}')
    assert update_note(storage, path, CLEAN, 7).without([T0]).damage == "t-0: offset 3 lost"


def test_a_first_start_is_no_recovery(tmp_path: Path) -> None:
    assert update_note(DiskStorage(), str(tmp_path / "n"), RecoveryReport(clean=False, partitions=0), 1).at_ms == -1


def test_a_note_that_cannot_be_written_or_read_is_no_error(tmp_path: Path) -> None:
    nowhere = str(tmp_path / "no folder" / "note.json")
    assert update_note(DiskStorage(), nowhere, CRASHED, 5).at_ms == 5
    for wrong in (b"", b"{}", b"[1]", b'{"at_ms": "x", "found": 1}', b"\xff" * 9, b" " * (65 << 10)):
        (tmp_path / "note.json").write_bytes(wrong)
        assert update_note(DiskStorage(), str(tmp_path / "note.json"), CLEAN, 6) == RecoveryNote()
