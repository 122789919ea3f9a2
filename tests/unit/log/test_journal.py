"""The journal: group commit, what is durable when, rolling, cutting, and reading it back after a crash (D1, D2)."""

from __future__ import annotations

import asyncio
import errno
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from held_executor import HeldExecutor
from small_journal import FOLDER, SMALL, TOPIC, new_storage

from semel.broker.log.journal import Journal, JournalConfig
from semel.broker.log.journal_format import ENTRY_HEADER_BYTES, FILE_HEADER_BYTES, EntryType, JournalEntry
from semel.protocol.errors import ErrorCode, FatalError, RetriableError, SemelError
from semel.protocol.ids import TopicId
from semel.runtime.clock import ManualClock
from semel.runtime.simulated_storage import SimulatedStorage
from semel.runtime.storage import StorageFile


def new_journal(storage: SimulatedStorage, config: JournalConfig | None = None, **more: Any) -> Journal:
    return Journal.open(storage, FOLDER, clock=ManualClock(), config=config, **more)


def replayed(storage: SimulatedStorage, config: JournalConfig | None = None) -> list[JournalEntry]:
    return list(new_journal(storage, config).replay())


def bodies(storage: SimulatedStorage) -> list[bytes]:
    return [entry.payload for entry in replayed(storage)]


async def turn() -> None:
    """Let the event loop make a few turns."""
    for _ in range(5):
        await asyncio.sleep(0)


def test_entries_come_back_in_order_with_all_they_had() -> None:
    storage = new_storage()
    journal = new_journal(storage)
    first = journal.append(TOPIC, 3, 100, [b"one"])
    second = journal.append(TopicId(UUID(int=8)), 0, 5, [b"tw", memoryview(b"o")])
    third = journal.append_truncation(TOPIC, 3, 101)
    assert 0 < first < second < third == journal.position
    journal.close()
    entries = replayed(storage)
    assert [(e.type, e.topic_id, e.partition, e.base_offset, e.payload, e.end_position) for e in entries] == [
        (EntryType.APPEND, TOPIC, 3, 100, b"one", first),
        (EntryType.APPEND, TopicId(UUID(int=8)), 0, 5, b"two", second),
        (EntryType.TRUNCATE, TOPIC, 3, 101, b"", third),
    ]


def test_appends_of_one_turn_of_the_loop_share_a_sync() -> None:
    async def run() -> None:
        storage = new_storage()
        journal = new_journal(storage)
        seen: list[int] = []
        journal.add_listener(seen.append)
        await asyncio.gather(*(journal.wait_durable(journal.append(TOPIC, n, 0, [b"x"])) for n in range(1000)))
        assert journal.statistics().syncs == 1
        assert journal.statistics().syncs_inline == 1
        assert journal.statistics().entries == 1000
        assert seen == [journal.position] == [journal.durable_position]
        journal.close()

    asyncio.run(run())


def test_buffers_may_be_reused_after_the_append() -> None:
    storage = new_storage()
    journal = new_journal(storage, SMALL)
    for size in (10, 300):
        buffer = bytearray(b"a" * size)
        journal.append(TOPIC, 0, 0, [memoryview(buffer)])
        buffer[:] = b"b" * size
    journal.close()
    assert bodies(storage) == [b"a" * 10, b"a" * 300]


def test_D1_nothing_is_durable_before_the_sync() -> None:
    async def run() -> None:
        storage = new_storage()
        executor = HeldExecutor()
        config = JournalConfig(journal_inline_sync_max_bytes=0)
        journal = new_journal(storage, config, executor=executor)
        first = asyncio.create_task(journal.wait_durable(journal.append(TOPIC, 0, 0, [b"first"])))
        await turn()
        second_position = journal.append(TOPIC, 0, 1, [b"second"])
        second = asyncio.create_task(journal.wait_durable(second_position))
        await turn()
        assert not first.done()
        assert journal.durable_position == 0
        assert len(executor.held) == 1, "while one sync runs the next group collects"
        executor.run()
        await turn()
        assert first.done()
        assert not second.done()
        assert len(executor.held) == 1, "the end of a sync begins the next"
        executor.run()
        await second
        assert journal.durable_position == second_position
        assert journal.statistics().syncs_inline == 0
        journal.close()
        storage.crash(power=True)
        assert bodies(storage) == [b"first", b"second"]

    asyncio.run(run())


def test_large_groups_and_slow_disks_are_synced_in_a_thread() -> None:
    class SlowClock(ManualClock):
        def monotonic(self) -> float:
            self.advance(ms=20)
            return super().monotonic()

    async def run() -> None:
        journal = Journal.open(new_storage(), FOLDER, clock=SlowClock(), config=JournalConfig())
        await journal.wait_durable(journal.append(TOPIC, 0, 0, [bytes(1 << 20)]))
        assert journal.statistics().syncs_inline == 0
        await journal.wait_durable(journal.append(TOPIC, 0, 0, [b"small"]))
        assert journal.statistics().syncs_inline == 1
        for _ in range(3):
            await journal.wait_durable(journal.append(TOPIC, 0, 0, [b"small"]))
        assert journal.statistics().syncs_inline == 1, "the disk has proven slow"
        assert journal.statistics().syncs == 5
        assert sum(journal.statistics().sync_seconds_buckets) == 5
        journal.close()

    asyncio.run(run())


def test_sync_now_waits_for_the_sync_that_runs() -> None:
    async def run() -> None:
        storage = new_storage()
        may_run = threading.Event()
        with ThreadPoolExecutor(1) as executor:
            executor.submit(may_run.wait, 30)
            journal = new_journal(storage, JournalConfig(journal_inline_sync_max_bytes=0), executor=executor)
            journal.append(TOPIC, 0, 0, [b"a"])
            await turn()
            journal.append(TOPIC, 0, 1, [b"b"])
            assert journal.durable_position == 0
            may_run.set()
            journal.sync_now()
            assert journal.durable_position == journal.position
            assert journal.statistics().syncs == 2
            await turn()
            journal.close()
        storage.crash(power=True)
        assert bodies(storage) == [b"a", b"b"]

    asyncio.run(run())


def test_D1_file_written_during_its_own_sync_and_then_rolled_is_synced_again() -> None:
    async def run() -> None:
        storage = new_storage()
        executor = HeldExecutor()
        config = replace(SMALL, journal_inline_sync_max_bytes=0)
        journal = new_journal(storage, config, executor=executor)
        waits = [asyncio.ensure_future(journal.wait_durable(journal.append(TOPIC, 0, 0, [b"a"])))]
        await turn()
        assert len(executor.held) == 1, "the first sync is under way"
        positions = [journal.append(TOPIC, 0, offset, [bytes(250)]) for offset in range(1, 5)]
        waits += [asyncio.ensure_future(journal.wait_durable(position)) for position in positions]
        assert len(storage.list_folder(FOLDER)) > 1, "the file was rolled"
        while executor.held:
            executor.run()
            await turn()
        await asyncio.gather(*waits)
        assert journal.durable_position == journal.position
        journal.close()
        storage.crash(power=True)
        assert bodies(storage) == [b"a", *[bytes(250)] * 4]

    asyncio.run(run())


def test_unsynced_bytes_are_bounded() -> None:
    storage = new_storage()
    config = JournalConfig(
        journal_buffer_max_bytes=1000, journal_direct_write_bytes=1000, journal_unsynced_max_bytes=10_000
    )
    journal = new_journal(storage, config)
    for n in range(1000):
        journal.append(TOPIC, 0, n, [bytes(100)])
        assert journal.statistics().unsynced_bytes <= 10_000 + ENTRY_HEADER_BYTES + 100
    journal.close()


def test_files_are_rolled_by_size_and_read_on() -> None:
    storage = new_storage()
    journal = new_journal(storage, SMALL)
    for n in range(40):
        journal.append(TOPIC, 0, n, [b"%03d" % n * 10])
        if n % 3 == 0:
            journal.sync_now()
    journal.close()
    assert len(storage.list_folder(FOLDER)) > 4
    assert bodies(storage) == [b"%03d" % n * 10 for n in range(40)]


@pytest.mark.parametrize("seed", range(60))
def test_D1_what_was_synced_survives_any_power_cut(seed: int) -> None:
    storage = new_storage(seed)
    journal = new_journal(storage, SMALL)
    synced = 0
    for n in range(25):
        journal.append(TOPIC, 0, n, [b"%02d" % n * (1 + seed * n % 150)])
        if (seed + n) % 7 == 0:
            journal.sync_now()
            synced = n + 1
    storage.crash(power=True)
    expected = [b"%02d" % n * (1 + seed * n % 150) for n in range(25)]
    found = bodies(storage)
    assert found == expected[: len(found)]
    assert len(found) >= synced
    assert bodies(storage) == found, "the tail was cut, so the next reading finds an end"


@pytest.mark.parametrize("seed", range(40))
def test_D1_no_file_of_the_journal_is_there_without_the_one_before_it(seed: int) -> None:
    """Entries without the ones before them would look like a loss of records that were flushed."""

    async def run() -> None:
        storage = new_storage(seed)
        executor = HeldExecutor()
        config = replace(SMALL, journal_inline_sync_max_bytes=0)
        journal = new_journal(storage, config, executor=executor)
        journal.append(TOPIC, 0, 0, [b"000" * 70])
        if seed % 2:
            await turn()
            assert len(executor.held) == 1, "a sync that brings the first name to the disk is under way"
        for n in range(1, 8):
            journal.append(TOPIC, 0, n, [b"%03d" % n * 70])
        storage.crash(power=True)
        found = bodies(storage)
        assert found == [b"%03d" % n * 70 for n in range(len(found))]

    asyncio.run(run())


def test_D1_journal_goes_on_where_it_was_cut() -> None:
    storage = new_storage()
    journal = new_journal(storage, SMALL)
    for n in range(10):
        journal.append(TOPIC, 0, n, [b"a" * 100])
    journal.close()
    path = f"{FOLDER}/{storage.list_folder(FOLDER)[-1]}"
    file = storage.open(path)
    file.truncate(file.size() - 10)
    journal = new_journal(storage, SMALL)
    assert len(list(journal.replay())) == 9
    journal.append(TOPIC, 0, 9, [b"again"])
    journal.close()
    assert bodies(storage) == [b"a" * 100] * 9 + [b"again"]


def test_D2_damage_to_what_was_acknowledged_is_loud_and_names_the_way_out() -> None:
    storage = new_storage()
    journal = new_journal(storage)
    for n in range(5):
        journal.append(TOPIC, 0, n, [b"a" * 100])
        journal.sync_now()
    journal.close()
    (name,) = storage.list_folder(FOLDER)
    storage.corrupt(f"{FOLDER}/{name}", FILE_HEADER_BYTES + ENTRY_HEADER_BYTES + 150, b"X")
    with pytest.raises(
        FatalError, match=r"Restore the file from a backup.* move the directory /d/journal away"
    ) as caught:
        replayed(storage)
    assert name in str(caught.value)
    with pytest.raises(FatalError):
        replayed(storage)


def test_D2_damage_to_an_earlier_file_is_loud() -> None:
    for damage in ("entry", "header", "lost"):
        storage = new_storage()
        journal = new_journal(storage, SMALL)
        for n in range(30):
            journal.append(TOPIC, 0, n, [b"a" * 50])
            journal.sync_now()
        journal.close()
        names = storage.list_folder(FOLDER)
        if damage == "entry":
            storage.corrupt(f"{FOLDER}/{names[1]}", FILE_HEADER_BYTES + 20, b"X")
        elif damage == "header":
            storage.corrupt(f"{FOLDER}/{names[1]}", 13, b"X")
        else:
            storage.remove(f"{FOLDER}/{names[1]}")
        with pytest.raises(FatalError, match="acknowledged"):
            replayed(storage)


@pytest.mark.parametrize("place", ["last", "acknowledged"])
def test_D2_an_entry_with_a_damaged_payload_ends_the_journal(place: str) -> None:
    """Each byte of a payload, under a header that is whole."""
    payloads = [b"one", b"two two", b"three"]
    at = len(payloads) - 1 if place == "last" else 1
    begin = FILE_HEADER_BYTES + sum(ENTRY_HEADER_BYTES + len(each) for each in payloads[:at]) + ENTRY_HEADER_BYTES
    for position in range(begin, begin + len(payloads[at])):
        storage = new_storage()
        journal = new_journal(storage)
        for offset, payload in enumerate(payloads):
            journal.append(TOPIC, 0, offset, [payload])
            journal.sync_now()
        journal.close()
        (name,) = storage.list_folder(FOLDER)
        path = f"{FOLDER}/{name}"
        storage.corrupt(path, position, bytes([storage.open(path).read_at(1, position)[0] ^ 0x10]))
        if place == "last":
            assert bodies(storage) == payloads[:at], "nothing later says that it was acknowledged"
        else:
            with pytest.raises(FatalError, match="acknowledged"):
                replayed(storage)


@pytest.mark.parametrize("damage", ["header", "payload", "cut in the entry", "cut before the entry"])
def test_D2_damage_at_the_end_of_a_file_is_loud_where_the_next_one_was_acknowledged(damage: str) -> None:
    """The file itself holds nothing behind the damage: only the next one tells."""
    storage = new_storage()
    journal = new_journal(storage, SMALL)
    for _ in range(20):
        journal.append(TOPIC, 0, 0, [b"a" * 50])
        journal.sync_now()
    journal.close()
    path = f"{FOLDER}/{storage.list_folder(FOLDER)[0]}"
    file = storage.open(path)
    last = file.size()
    entry = last - ENTRY_HEADER_BYTES - 50
    if damage.startswith("cut"):
        file.truncate(entry if "before" in damage else entry + 5)
    else:
        storage.corrupt(path, entry + 9 if damage == "header" else last - 1, b"X")
    with pytest.raises(FatalError, match="acknowledged"):
        replayed(storage)


def test_D2_damage_to_what_nobody_was_told_about_is_a_torn_tail() -> None:
    storage = new_storage()
    journal = new_journal(storage)
    journal.append(TOPIC, 0, 0, [b"a" * 100])
    journal.sync_now()
    for n in range(1, 5):
        journal.append(TOPIC, 0, n, [b"a" * 100])
    journal.close()
    (name,) = storage.list_folder(FOLDER)
    storage.corrupt(f"{FOLDER}/{name}", FILE_HEADER_BYTES + 2 * (ENTRY_HEADER_BYTES + 100) + 1, b"X")
    assert len(replayed(storage)) == 2


@pytest.mark.parametrize("size", [0, 1, FILE_HEADER_BYTES - 1, FILE_HEADER_BYTES, FILE_HEADER_BYTES + 5])
def test_D2_file_torn_while_it_was_made_is_no_obstacle(size: int) -> None:
    storage = new_storage()
    journal = new_journal(storage, SMALL)
    journal.append(TOPIC, 0, 0, [b"a" * 100])
    journal.close()
    (name,) = storage.list_folder(FOLDER)
    storage.open(f"{FOLDER}/{name}").truncate(size)
    journal = new_journal(storage, SMALL)
    assert list(journal.replay()) == []
    journal.append(TOPIC, 0, 0, [b"new"])
    journal.close()
    assert bodies(storage) == [b"new"]


def test_lengths_read_from_a_damaged_header_allocate_nothing() -> None:
    storage = new_storage()
    journal = new_journal(storage)
    journal.append(TOPIC, 0, 0, [b"abc"])
    journal.close()
    (name,) = storage.list_folder(FOLDER)
    storage.corrupt(f"{FOLDER}/{name}", FILE_HEADER_BYTES + 12, b"\xff\xff\xff\xff")
    assert replayed(storage) == []


def test_foreign_file_in_the_folder_is_an_error() -> None:
    storage = new_storage()
    storage.make_folder(FOLDER)
    storage.open(f"{FOLDER}/notes.txt", create=True).close()
    with pytest.raises(FatalError, match=r"notes.txt is not a file of the journal"):
        new_journal(storage)


def test_cut_removes_whole_files_below_and_leaves_the_rest() -> None:
    storage = new_storage()
    journal = new_journal(storage, SMALL)
    positions = []
    for n in range(40):
        positions.append(journal.append(TOPIC, 0, n, [b"%02d" % n]))
        journal.sync_now()
    before = journal.size_bytes
    journal.cut(positions[19])
    assert journal.size_bytes < before
    left = bodies(storage)
    assert left == [b"%02d" % n for n in range(40 - len(left), 40)]
    assert 20 <= len(left) < 40


def test_cut_of_everything_leaves_nothing_to_replay_and_appends_go_on() -> None:
    storage = new_storage()
    journal = new_journal(storage, SMALL)
    journal.append(TOPIC, 0, 0, [b"old"])
    journal.sync_now()
    journal.cut(journal.position)
    assert journal.size_bytes == 0
    assert journal.is_empty
    assert storage.list_folder(FOLDER) == []
    journal.append(TOPIC, 0, 1, [b"new"])
    journal.close()
    assert bodies(storage) == [b"new"]


def test_cut_spares_what_is_not_durable_yet() -> None:
    storage = new_storage()
    journal = new_journal(storage)
    journal.append(TOPIC, 0, 0, [b"a"])
    journal.sync_now()
    journal.append(TOPIC, 0, 1, [b"b"])
    journal.cut(journal.position)
    journal.close()
    assert bodies(storage) == [b"a", b"b"]


class Counting(SimulatedStorage):
    """Keeps the files that are open."""

    def __init__(self) -> None:
        super().__init__(0)
        self.opened: list[StorageFile] = []

    def open(self, path: str, *, create: bool = False) -> StorageFile:
        file = super().open(path, create=create)
        self.opened.append(file)
        return file

    @property
    def open_paths(self) -> list[str]:
        return [file.path for file in self.opened if not file._closed]  # type: ignore[attr-defined]


@pytest.mark.parametrize("begins", [False, True])
def test_S2_a_file_that_another_one_follows_is_closed(begins: bool) -> None:
    """One that was synced when the next began stayed open for good: a descriptor, and the room of the whole file."""
    storage = Counting()
    storage.make_folder("/d")
    journal = new_journal(storage, SMALL)
    for number in range(30):
        if begins:
            journal.begin_file()
        end = journal.append(TOPIC, 0, number, [b"x" * 300])
        journal.sync_now()
        assert len(storage.open_paths) == 1
        if number % 7 == 6:
            journal.cut(end)
    assert journal.statistics().syncs == 30
    journal.close()
    assert storage.open_paths == []


def test_S2_a_file_that_another_one_follows_while_it_is_synced_is_closed_behind_the_sync() -> None:
    async def run() -> None:
        storage, executor = Counting(), HeldExecutor()
        storage.make_folder("/d")
        config = replace(SMALL, journal_inline_sync_max_bytes=0)
        journal = new_journal(storage, config, executor=executor)
        for number in range(4):
            journal.append(TOPIC, 0, number, [b"x" * 300])
            await turn()
        assert len(storage.open_paths) > 1
        while executor.held:
            executor.run()
            await turn()
        assert journal.durable_position == journal.position
        assert len(storage.open_paths) == 1
        journal.close()

    asyncio.run(run())


@pytest.mark.parametrize("seed", range(40))
def test_D1_power_cut_while_cutting_leaves_no_gap(seed: int) -> None:
    storage = new_storage(seed)
    journal = new_journal(storage, SMALL)
    positions = []
    for n in range(60):
        positions.append(journal.append(TOPIC, 0, n, [b"%02d" % n]))
        journal.sync_now()
    storage.crash_at(1 + seed % 12)
    try:
        journal.cut(positions[49])
    except BaseException:
        assert storage.crashed
    storage.crash(power=True)
    left = bodies(storage)
    assert left == [b"%02d" % n for n in range(60 - len(left), 60)]
    assert len(left) >= 10


@pytest.mark.parametrize("operation", ["append", "sync", "sync_folder", "open"])
def test_D1_failed_journal_fails_every_waiter_and_stays_closed(operation: str) -> None:
    async def run() -> None:
        storage = new_storage()
        failures: list[SemelError] = []
        journal = new_journal(storage, on_failure=failures.append)
        waits = [asyncio.create_task(journal.wait_durable(journal.append(TOPIC, n, 0, [b"x"]))) for n in range(3)]
        storage.fail_next(operation, OSError(errno.EIO, "Input/output error"), path_part="journal")
        results = await asyncio.gather(*waits, return_exceptions=True)
        assert all(isinstance(one, RetriableError) and one.code is ErrorCode.KAFKA_STORAGE_ERROR for one in results)
        assert "Input/output error" in str(results[0])
        assert len(failures) == 1
        assert journal.durable_position == 0
        with pytest.raises(RetriableError, match="restart"):
            journal.append(TOPIC, 0, 1, [b"y"])
        with pytest.raises(RetriableError):
            await journal.wait_durable(1)
        with pytest.raises(RetriableError):
            journal.sync_now()
        syncs = storage.sync_count
        journal.close()
        assert storage.sync_count == syncs, "a failed sync is never tried again"
        assert len(failures) == 1

    asyncio.run(run())


def test_D1_failed_sync_in_the_thread_fails_the_waiters_too() -> None:
    async def run() -> None:
        storage = new_storage()
        executor = HeldExecutor()
        failures: list[SemelError] = []
        journal = new_journal(
            storage, JournalConfig(journal_inline_sync_max_bytes=0), executor=executor, on_failure=failures.append
        )
        wait = asyncio.create_task(journal.wait_durable(journal.append(TOPIC, 0, 0, [b"x"])))
        await turn()
        storage.fail_next("sync", OSError(errno.EIO, "Input/output error"))
        executor.run()
        with pytest.raises(RetriableError):
            await wait
        assert len(failures) == 1
        journal.close()

    asyncio.run(run())


@pytest.mark.parametrize("in_thread", [True, False])
def test_D1_a_sync_that_fails_with_another_error_than_the_disks_closes_the_journal_too(in_thread: bool) -> None:
    """The files of that sync are in no later one, which would say that they are durable."""

    async def run() -> None:
        storage = new_storage()
        executor = HeldExecutor()
        failures: list[SemelError] = []
        config = JournalConfig(journal_inline_sync_max_bytes=0 if in_thread else 1 << 20)
        journal = new_journal(storage, config, executor=executor, on_failure=failures.append)
        storage.fail_next("sync", MemoryError())
        position = journal.append(TOPIC, 0, 0, [b"x"])
        waiting = asyncio.ensure_future(journal.wait_durable(position))
        if in_thread:
            await turn()
            executor.run()
        else:
            with pytest.raises(RetriableError, match=r"could not be synced: MemoryError\(\)"):
                journal.sync_now()
        await turn()
        assert waiting.done()
        assert isinstance(waiting.exception(), RetriableError)
        assert len(failures) == 1
        with pytest.raises(RetriableError, match="restart"):
            journal.append(TOPIC, 0, 1, [b"y"])
        assert journal.durable_position == 0
        journal.close()

    asyncio.run(run())


def test_D1_what_a_full_disk_does_not_take_waits_and_is_not_durable_until_there_is_room(
    caplog: pytest.LogCaptureFixture,
) -> None:
    storage = new_storage()
    journal = new_journal(storage)
    told: list[str] = []
    journal.when_full(lambda: told.append("full"))
    journal.append(TOPIC, 0, 0, [b"kept"])
    journal.sync_now()
    durable = journal.durable_position
    storage.set_free_bytes(10)
    journal.append(TOPIC, 0, 1, [b"waits"])
    for _ in range(2):
        with pytest.raises(RetriableError, match="No space left"):
            journal.sync_now()
        assert journal.durable_position == durable
        journal.append(TOPIC, 0, 2, [b"also"])
    assert (journal.error, told[0]) == (None, "full")
    assert "the disk is full: the journal" in caplog.text
    assert "make room on the disk" in caplog.text
    storage.set_free_bytes(None)
    journal.sync_now()
    assert journal.durable_position == journal.position
    assert (journal.full, journal.waiting_bytes) == (None, 0)
    storage.crash(power=True)
    assert bodies(storage) == [b"kept", b"waits", b"also", b"also"]


def test_D1_a_full_disk_that_loses_power_keeps_what_was_durable() -> None:
    for seed in range(20):
        storage = new_storage()
        storage.random.seed(seed)
        journal = new_journal(storage)
        journal.append(TOPIC, 0, 0, [b"kept"])
        journal.sync_now()
        storage.set_free_bytes(seed * 3)
        journal.append(TOPIC, 0, 1, [b"lost"])
        with pytest.raises(RetriableError):
            journal.sync_now()
        storage.crash(power=True)
        assert bodies(storage) == [b"kept"]


def test_a_sync_that_fails_for_want_of_room_closes_the_journal_for_good() -> None:
    """After a failed sync nobody knows what of it is on the disk, whatever the reason was."""
    storage = new_storage()
    journal = new_journal(storage)
    journal.append(TOPIC, 0, 0, [b"lost"])
    storage.fail_next("sync", OSError(errno.ENOSPC, "No space left on device"))
    with pytest.raises(RetriableError, match=r"is kept\. Next step: make room on the disk .*then restart"):
        journal.sync_now()
    assert journal.error is not None


def test_a_journal_file_that_a_full_disk_could_not_begin_is_begun_later() -> None:
    storage = new_storage()
    journal = new_journal(storage, JournalConfig(journal_file_bytes=120))
    for number in range(3):
        journal.append(TOPIC, 0, number, [b"x" * 100])
        journal.sync_now()
    storage.set_free_bytes(5)
    journal.append(TOPIC, 0, 3, [b"y" * 100])
    with pytest.raises(RetriableError):
        journal.sync_now()
    storage.set_free_bytes(None)
    journal.append(TOPIC, 0, 4, [b"z" * 100])
    journal.sync_now()
    storage.crash(power=True)
    assert [one[:1] for one in bodies(storage)] == [b"x", b"x", b"x", b"y", b"z"]


def test_listener_that_fails_does_not_stop_the_others() -> None:
    storage = new_storage()
    journal = new_journal(storage)
    seen: list[int] = []

    def broken(position: int) -> None:
        raise RuntimeError("broken")

    journal.add_listener(broken)
    journal.add_listener(seen.append)
    journal.append(TOPIC, 0, 0, [b"x"])
    journal.sync_now()
    assert seen == [journal.position]
    journal.close()


def test_closed_journal_takes_nothing() -> None:
    journal = new_journal(new_storage())
    journal.close()
    journal.close()
    with pytest.raises(FatalError, match="closed"):
        journal.append(TOPIC, 0, 0, [b"x"])


@pytest.mark.parametrize(
    "bad",
    [
        {"journal_file_bytes": 10},
        {"journal_direct_write_bytes": 0},
        {"journal_buffer_max_bytes": 10, "journal_direct_write_bytes": 20},
        {"journal_unsynced_max_bytes": 10},
    ],
)
def test_config_that_cannot_work_is_refused(bad: dict[str, int]) -> None:
    with pytest.raises(ValueError):
        JournalConfig(**bad)  # type: ignore[arg-type]
