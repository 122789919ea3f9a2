"""Files of the journal that are written over: what a crash at any step leaves, and what is left over in them (D1, D2).

`broker/log/journal_spares.py` says why it is safe.
"""

from __future__ import annotations

import random
from contextlib import suppress

import pytest
from small_journal import FOLDER, SMALL, TOPIC, new_storage

from semel.broker.log import journal as journal_module
from semel.broker.log.journal import Journal, JournalConfig
from semel.broker.log.journal_format import (
    ANY_MARK,
    ENTRY_HEADER_BYTES,
    FILE_HEADER_BYTES,
    EntryType,
    build_entry_header,
    build_file_header,
    read_entries,
)
from semel.broker.log.journal_spares import SpareFiles
from semel.broker.logs.disk_space import DiskSpace
from semel.protocol.errors import FatalError, RetriableError
from semel.runtime.clock import ManualClock
from semel.runtime.simulated_storage import SimulatedCrash, SimulatedFile, SimulatedStorage

ONE_FILE = JournalConfig(journal_file_bytes=1 << 16)


def new_journal(storage: SimulatedStorage, config: JournalConfig = SMALL) -> Journal:
    return Journal.open(storage, FOLDER, clock=ManualClock(), config=config)


def bodies(storage: SimulatedStorage, config: JournalConfig = SMALL) -> list[bytes]:
    return [entry.payload for entry in new_journal(storage, config).replay()]


def write(journal: Journal, *payloads: bytes) -> None:
    for payload in payloads:
        journal.append(TOPIC, 0, 0, [payload])
    journal.sync_now()


def retire(journal: Journal, position: int | None = None) -> None:
    """Do what a flush of the logs does: they need nothing below `position` any more."""
    journal.retire_files(journal.take_files_below(journal.position if position is None else position))


def names(storage: SimulatedStorage, suffix: str) -> list[str]:
    return [name for name in storage.list_folder(FOLDER) if name.endswith(suffix)]


def content(storage: SimulatedStorage, name: str) -> bytes:
    file = storage.open(f"{FOLDER}/{name}")
    return file.read_at(file.size(), 0)


def reused(storage: SimulatedStorage, old: list[bytes], new: list[bytes], config: JournalConfig = ONE_FILE) -> Journal:
    """Return a journal whose only file was written over: `new` over `old`, which filled it."""
    journal = new_journal(storage, config)
    write(journal, *old)
    retire(journal)
    assert len(names(storage, ".spare")) == 1
    write(journal, *new)
    assert (len(names(storage, ".journal")), names(storage, ".spare")) == (1, [])
    return journal


def test_files_that_are_finished_with_are_written_over_and_do_not_grow() -> None:
    storage = new_storage()
    journal = new_journal(storage)
    for number in range(10):
        write(journal, *[b"%03d" % number * 30] * 20)
        retire(journal)
        if number == 0:
            files = len(names(storage, ".spare"))
            storage.set_free_bytes(0)
    assert files > 3
    assert len(storage.list_folder(FOLDER)) == files, "on a disk without room for another file"
    write(journal, b"last")
    assert bodies(storage) == [b"last"]


def test_D1_entries_of_a_former_use_end_the_journal_quietly(caplog: pytest.LogCaptureFixture) -> None:
    """Also where one of them begins exactly where the new ones end."""
    for count in range(1, 10):
        for size in (40, 41):
            storage = new_storage()
            reused(storage, [b"o" * 40] * 12, [b"n" * size] * count)
            storage.crash(power=True)
            (name,) = names(storage, ".journal")
            assert len(content(storage, name)) == FILE_HEADER_BYTES + 12 * (ENTRY_HEADER_BYTES + 40)
            assert bodies(storage, ONE_FILE) == [b"n" * size] * count
            assert bodies(storage, ONE_FILE) == [b"n" * size] * count
    assert caplog.text == ""


def test_D1_an_entry_of_a_former_use_is_none_of_the_next_one() -> None:
    """By its sequence alone, though it begins where the last one ends, and has the mark."""
    old, new = (
        build_entry_header(EntryType.APPEND, sequence, 0, TOPIC, 0, 0, b"x", mark=5) + b"x" for sequence in (7, 30)
    )
    entries, size, wanted = read_entries(new + old, 30, 0, ANY_MARK)
    assert ([entry.sequence for entry in entries], size, wanted) == ([30], len(new), 0)


def test_D1_a_file_that_ends_before_its_former_use_is_followed_by_the_next() -> None:
    storage = new_storage()
    journal = new_journal(storage)
    write(journal, *[b"o" * 100] * 9)
    retire(journal)
    for number in range(6):
        write(journal, b"%d" % number)
        journal.begin_file()
    assert len(names(storage, ".journal")) == 6
    storage.crash(power=True)
    assert bodies(storage) == [b"%d" % number for number in range(6)]


@pytest.mark.parametrize("power", [True, False])
@pytest.mark.parametrize("seed", range(40))
def test_D1_a_crash_at_any_step_of_writing_over_files_keeps_what_was_synced(seed: int, power: bool) -> None:
    """Four runs on one disk, each ended by a crash; what was synced, and not retired, is read by the next."""
    chance = random.Random(f"{seed} {power}")
    storage = new_storage(seed)
    expected: list[bytes] = []
    synced = retired = number = 0
    for _ in range(4):
        journal = new_journal(storage)
        found = [entry.payload for entry in journal.replay()]
        begin = expected.index(found[0]) if found else retired
        assert found == expected[begin : begin + len(found)]
        assert begin <= retired
        assert begin + len(found) >= synced
        del expected[begin + len(found) :]
        synced = len(expected)
        if chance.random() < 0.5:
            journal.cut(journal.position)  # as a start does, once the logs are flushed
            retired = synced
        ends: list[tuple[int, int]] = []
        storage.crash_at(chance.randrange(1, 60))
        try:
            while True:
                for _ in range(chance.randrange(1, 6)):
                    number += 1
                    expected.append(b"%05d" % number * chance.choice((1, 8, 50)))
                    ends.append((journal.append(TOPIC, 0, 0, [expected[-1]]), len(expected)))
                if chance.random() < 0.7:
                    journal.sync_now()
                    synced = len(expected)
                if chance.random() < 0.4 and ends:
                    end, count = chance.choice(ends)
                    files = journal.take_files_below(end)
                    retired = max(retired, min(count, synced)) if files else retired
                    journal.retire_files(files)
        except SimulatedCrash:
            storage.crash(power=power)


def test_D1_a_file_under_its_new_name_with_its_old_header_holds_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """The rename reached the disk, the writes did not."""
    storage = new_storage()
    journal = new_journal(storage)
    write(journal, *[b"o" * 100] * 8)
    retire(journal, journal.position - 1)
    assert len(names(storage, ".spare")) == 2
    write(journal, b"kept")
    journal.begin_file()
    journal.append(TOPIC, 0, 0, [b"lost" * 60])
    storage.sync_folder(FOLDER)
    storage.crash(power=True, torn=False)
    last = names(storage, ".journal")[-1]
    assert b"o" * 100 in content(storage, last), "the old content"
    assert bodies(storage)[-1] == b"kept"
    assert caplog.text == ""
    assert last not in names(storage, ".journal")


def test_D1_no_file_is_found_under_its_old_name_with_new_content() -> None:
    """A start would miss what that name promises, and refuse: the name goes for good before the content does."""
    for seed in range(30):
        storage = new_storage(seed)
        journal = new_journal(storage)
        for number in range(8):
            write(journal, b"%d" % number * 100)
        retire(journal, journal.position - 1)
        journal.begin_file()
        for _ in range(2):
            journal.append(TOPIC, 0, 0, [b"n" * 100])
        journal._write()
        storage.crash(power=True)
        assert bodies(storage)[:2] == [b"6" * 100, b"7" * 100], "nobody was refused them"


def test_D1_spares_of_a_former_run_are_removed_whatever_their_sequences() -> None:
    storage = new_storage()
    journal = new_journal(storage, ONE_FILE)
    write(journal, *[b"former" * 9] * 50)
    retire(journal)
    storage.crash(power=True)
    assert names(storage, ".spare")
    journal = new_journal(storage, ONE_FILE)
    assert storage.list_folder(FOLDER) == []
    write(journal, b"new" * 18)
    assert len(content(storage, names(storage, ".journal")[0])) == FILE_HEADER_BYTES + ENTRY_HEADER_BYTES + 54
    storage.crash(power=True)
    assert bodies(storage, ONE_FILE) == [b"new" * 18]


def test_D1_files_of_a_former_run_never_become_spares() -> None:
    """What a crash tore in them has sequences that are still to come."""
    storage = new_storage()
    write(new_journal(storage), *[b"former" * 9] * 20)
    storage.crash(power=True)
    journal = new_journal(storage)
    assert len(list(journal.replay())) == 20
    write(journal, b"own")
    retire(journal)
    assert len(names(storage, ".spare")) == 1
    assert b"former" not in content(storage, names(storage, ".spare")[0])


def test_D2_a_torn_write_over_a_former_use_is_said_and_cut(caplog: pytest.LogCaptureFixture) -> None:
    storage = new_storage()
    journal = reused(storage, [b"o" * 200] * 12, [b"n" * 100] * 2)
    for _ in range(3):
        journal.append(TOPIC, 0, 0, [b"u" * 100])
    journal.sync_now()
    (name,) = names(storage, ".journal")
    torn = FILE_HEADER_BYTES + 2 * (ENTRY_HEADER_BYTES + 100)
    storage.corrupt(f"{FOLDER}/{name}", torn + 1, b"torn")
    storage.crash(power=True)
    assert bodies(storage, ONE_FILE) == [b"n" * 100] * 2
    assert f"ends at byte {torn} of {FOLDER}/{name}: a crash tore what followed" in caplog.text
    assert len(content(storage, name)) == torn


def test_D2_damage_before_what_was_acknowledged_is_loud_in_a_file_that_was_written_over() -> None:
    storage = new_storage()
    journal = reused(storage, [b"o" * 200] * 12, [b"n" * 100])
    write(journal, b"n" * 100)
    write(journal, b"n" * 100)
    (name,) = names(storage, ".journal")
    storage.corrupt(f"{FOLDER}/{name}", FILE_HEADER_BYTES + 70, b"X")
    with pytest.raises(FatalError, match="acknowledged"):
        bodies(storage, ONE_FILE)


@pytest.mark.parametrize("durable", [0, 1 << 40])
def test_S1_D1_what_a_client_made_look_like_entries_is_neither_an_entry_nor_a_proof(
    durable: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Payloads stay behind the end of what is written over them, and clients choose what is in them."""
    forged = b"".join(
        build_entry_header(EntryType.APPEND, sequence, durable, TOPIC, 0, 0, b"", mark=mark)
        for sequence in (1, 2, 3, 1 << 50)
        for mark in (0, 1)
    )
    for at in range(8):
        storage = new_storage()
        payload = b"n" * at * ENTRY_HEADER_BYTES
        reused(storage, [forged], [payload])
        storage.crash(power=False)
        assert bodies(storage, ONE_FILE) == [payload]
    assert caplog.text == ""


@pytest.mark.parametrize(("sequence", "durable"), [(1 << 50, 1 << 50), (1 << 50, 100), (1, 1 << 50)])
def test_S1_D1_an_entry_that_no_file_has_place_for_is_no_proof_even_with_the_right_mark(
    sequence: int, durable: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A client may write a million guesses into one file."""
    monkeypatch.setattr("semel.broker.log.journal.new_secret", lambda bits: 5)
    forged = build_entry_header(EntryType.APPEND, sequence, durable, TOPIC, 0, 0, b"", mark=5)
    storage = new_storage()
    reused(storage, [forged * 8], [b"n"])
    storage.crash(power=False)
    assert bodies(storage, ONE_FILE) == [b"n"]
    assert caplog.text == ""


def test_the_entries_of_older_versions_are_read() -> None:
    """They have no mark."""
    storage = new_storage()
    storage.make_folder(FOLDER)
    file = storage.open(f"{FOLDER}/{0:020d}.journal", create=True)
    file.append([build_file_header(0, 0)])
    for sequence in range(3):
        file.append([build_entry_header(EntryType.APPEND, sequence, 0, TOPIC, 0, 0, b"old"), b"old"])
    journal = new_journal(storage)
    assert [entry.payload for entry in journal.replay()] == [b"old"] * 3
    write(journal, b"new")
    assert bodies(storage) == [b"old"] * 3 + [b"new"]


def test_what_is_durable_is_read_from_a_file_that_is_being_written_over() -> None:
    storage = new_storage()
    journal = reused(storage, [b"o" * 40] * 12, [b"n" * 40] * 3)
    reading = journal.durable_entries()
    journal.append(TOPIC, 0, 0, [b"later"])
    journal.sync_now()
    assert [entry.payload for entry in reading] == [b"n" * 40] * 3
    assert [entry.payload for entry in journal.durable_entries()] == [b"n" * 40] * 3 + [b"later"]


# --- How many, and how long -------------------------------------------------------------------------------------------


def test_spares_are_bounded_by_count_and_size() -> None:
    storage = new_storage()
    journal = new_journal(
        storage, JournalConfig(**{**vars(SMALL), "journal_spare_max_bytes": 2 * SMALL.journal_file_bytes})
    )
    write(journal, *[b"x" * 100] * 40)
    retire(journal)
    assert len(storage.list_folder(FOLDER)) == 2
    journal.close()
    journal = new_journal(storage)
    write(journal, b"x" * 1000)
    retire(journal)
    assert storage.list_folder(FOLDER) == [], "one that a single large entry made larger"


def test_a_journal_that_is_closed_leaves_no_spares() -> None:
    storage = new_storage()
    journal = new_journal(storage)
    write(journal, *[b"x" * 100] * 40)
    retire(journal)
    assert names(storage, ".spare")
    journal.close()
    assert storage.list_folder(FOLDER) == []


def test_D1_a_full_disk_gets_the_room_of_the_spares() -> None:
    storage = new_storage()
    journal = new_journal(storage)
    write(journal, *[b"x" * 100] * 40)
    retire(journal)
    before = len(names(storage, ".spare"))
    write(journal, b"begins a file over a spare")
    storage.set_free_bytes(0)
    write(journal, b"y" * 2000)
    assert journal.full is None
    assert len(names(storage, ".spare")) < before - 2
    while True:
        try:
            write(journal, b"z" * 500)
        except RetriableError:
            break
    assert names(storage, ".spare") == []
    taken = journal.take_files_below(journal.position - 600)
    assert taken
    journal.retire_files(taken)
    assert names(storage, ".spare") == [], "none is kept while the disk is full"
    journal.sync_now()
    storage.crash(power=True)
    assert bodies(storage)[-1] == b"z" * 500


@pytest.mark.parametrize("size", [10, 500])
def test_D1_spares_that_make_no_room_however_many_they_are_lose_nothing(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others may take the room at once, or hold the files by another name."""
    storage = new_storage()
    journal = new_journal(storage)
    write(journal, b"before")
    left = 2000

    def drop_one(spares: SpareFiles) -> bool:
        nonlocal left
        left -= 1
        return left >= 0

    monkeypatch.setattr(SpareFiles, "drop_one", drop_one)
    storage.set_free_bytes(0)
    with pytest.raises(RetriableError):
        write(journal, b"w" * size)
    assert left < 0
    assert journal.full is not None
    storage.set_free_bytes(1 << 20)
    write(journal, b"after")
    assert journal.durable_position == journal.position
    storage.crash(power=True)
    assert bodies(storage) == [b"before", b"w" * size, b"after"]


def test_D1_an_error_that_nobody_expected_while_it_is_written_closes_the_journal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What it appended has a number, and is in no file: what came behind it would not be found."""
    storage = new_storage()
    journal = new_journal(storage)
    write(journal, b"before")

    def fail(file: SimulatedFile, buffers: object, position: int) -> None:
        raise RecursionError("unexpected")

    with monkeypatch.context() as patched:
        patched.setattr(SimulatedFile, "write_many_at", fail)
        with pytest.raises(RetriableError, match="unexpected"):
            write(journal, b"lost")
    with pytest.raises(RetriableError):
        journal.append(TOPIC, 0, 0, [b"after"])
    storage.crash(power=True)
    assert bodies(storage) == [b"before"]


def test_a_disk_that_is_nearly_full_gets_the_room_of_the_spares_before_clients_are_refused() -> None:
    storage = new_storage()
    journal = new_journal(storage)
    write(journal, *[b"x" * 100] * 40)
    retire(journal)
    space = DiskSpace(storage, "/d", 10_000)
    space.make_room = journal.drop_spare
    storage.set_free_bytes(12_000)
    space.take(100)
    count = len(names(storage, ".spare"))
    storage.set_free_bytes(9_500)
    space.refresh()
    assert (space.is_refusing, space.is_scarce) == (False, False)
    assert len(names(storage, ".spare")) == count - 4, "no more of them than it takes"
    space.take(1000)
    storage.set_free_bytes(0)
    while not space.is_refusing:
        with suppress(RetriableError):
            space.take(8000)
    assert (names(storage, ".spare"), space.is_scarce) == ([], True)


def test_the_mark_is_drawn_for_each_run(monkeypatch: pytest.MonkeyPatch) -> None:
    marks = iter((5, 6))
    monkeypatch.setattr(journal_module, "new_secret", lambda bits: next(marks))
    found = []
    for _ in range(2):
        storage = new_storage()
        write(new_journal(storage), b"x")
        data = content(storage, names(storage, ".journal")[0])
        found.append(read_entries(data[FILE_HEADER_BYTES:], 0, 0, ANY_MARK)[0][0].mark)
    assert found == [5, 6]
