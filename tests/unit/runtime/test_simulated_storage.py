"""What the simulated disk may lose and must keep. The contract it shares with the real one is in test_disk_storage."""

from __future__ import annotations

import errno

import pytest

from semel.runtime.simulated_storage import SimulatedCrash, SimulatedStorage
from semel.runtime.storage import make_lasting_folder, read_whole, write_whole

PAGE = 4096


def new_storage(seed: int = 0) -> SimulatedStorage:
    storage = SimulatedStorage(seed)
    storage.make_folder("/d")
    storage.sync_folder("/")
    return storage


def outcomes(write: bytes, *, rounds: int = 300) -> set[bytes | None]:
    """What a file may hold after a power cut, that had `0` * PAGE synced and then `write` appended."""
    found: set[bytes | None] = set()
    for seed in range(rounds):
        storage = new_storage(seed)
        file = storage.open("/d/a", create=True)
        file.append([b"0" * PAGE])
        file.sync()
        storage.sync_folder("/d")
        file.append([write])
        storage.crash(power=True)
        found.add(read_whole(storage, "/d/a", size_bytes_max=1 << 20)[PAGE:])
    return found


def test_synced_bytes_and_names_survive_a_power_cut() -> None:
    for seed in range(50):
        storage = new_storage(seed)
        write_whole(storage, "/d/a", b"kept")
        storage.crash(power=True)
        assert storage.list_folder("/d") == ["a"]
        assert read_whole(storage, "/d/a", size_bytes_max=10) == b"kept"


def test_the_folders_above_a_new_data_folder_survive_a_power_cut_too() -> None:
    for seed in range(50):
        storage = new_storage(seed)
        make_lasting_folder(storage, "/d/new/deep/data")
        storage.crash(power=True)
        assert storage.exists("/d/new/deep/data")


def test_unsynced_bytes_may_be_lost_torn_reordered_or_kept() -> None:
    pages = [bytes([65 + n]) * PAGE for n in range(3)]
    found = outcomes(b"".join(pages))
    assert b"" in found
    assert b"".join(pages) in found
    assert any(one is not None and one.startswith(pages[0]) and len(one) == PAGE for one in found), "a prefix"
    assert bytes(PAGE) + pages[1] + pages[2] in found, "a hole"
    assert any(one is not None and 0 < len(one) < PAGE for one in found), "a torn page"
    assert bytes(3 * PAGE) in found, "the size without the bytes"


def test_unsynced_names_may_be_lost_and_may_survive() -> None:
    found = set()
    for seed in range(50):
        storage = new_storage(seed)
        file = storage.open("/d/a", create=True)
        file.append([b"x"])
        file.sync()
        storage.crash(power=True)
        found.add(tuple(storage.list_folder("/d")))
    assert found == {(), ("a",)}


def test_rename_happens_wholly_or_not_at_all() -> None:
    found = set()
    for seed in range(50):
        storage = new_storage(seed)
        write_whole(storage, "/d/a", b"new")
        write_whole(storage, "/d/b", b"old")
        storage.rename("/d/a", "/d/b")
        storage.crash(power=True)
        found.add((tuple(storage.list_folder("/d")), read_whole(storage, "/d/b", size_bytes_max=10)))
    assert found == {(("a", "b"), b"old"), (("b",), b"new")}


def test_killed_process_keeps_everything_written() -> None:
    storage = new_storage()
    file = storage.open("/d/a", create=True)
    file.append([b"written"])
    lock = storage.lock("/d/.lock")
    storage.crash(power=False)
    assert read_whole(storage, "/d/a", size_bytes_max=10) == b"written"
    with pytest.raises(SimulatedCrash):
        file.append([b"more"])
    storage.lock("/d/.lock")
    lock.release()
    with pytest.raises(BlockingIOError):
        storage.lock("/d/.lock")


def test_unsynced_bytes_stay_unsynced_over_a_killed_process() -> None:
    found = set()
    for seed in range(50):
        storage = new_storage(seed)
        write_whole(storage, "/d/a", b"")
        storage.open("/d/a").append([b"x"])
        storage.crash(power=False)
        storage.crash(power=True)
        found.add(read_whole(storage, "/d/a", size_bytes_max=10))
    assert {b"", b"x"} <= found


def test_crash_point_stops_everything_until_the_restart() -> None:
    storage = new_storage()
    file = storage.open("/d/a", create=True)
    storage.crash_at(3)
    file.append([b"one"])
    file.append([b"two"])
    with pytest.raises(SimulatedCrash):
        file.append([b"three"])
    assert storage.crashed
    with pytest.raises(SimulatedCrash):
        file.read_at(1, 0)
    with pytest.raises(SimulatedCrash):
        storage.list_folder("/d")
    storage.crash(power=False)
    assert not storage.crashed
    left = read_whole(storage, "/d/a", size_bytes_max=20)
    assert left[:6] == b"onetwo"
    assert b"three".startswith(left[6:])


def test_crash_point_may_be_counted_from_the_first_operation_on_a_kind_of_file() -> None:
    storage = new_storage()
    storage.open("/d/a", create=True)
    storage.crash_at(2, ".cleaned")
    for number in range(4):
        storage.open(f"/d/{number}", create=True)
    storage.open("/d/a.cleaned", create=True)
    with pytest.raises(SimulatedCrash):
        storage.open("/d/5", create=True)
    storage.crash(power=False)
    storage.crash_at(1, ".cleaned")
    storage.crash_at(None)
    storage.open("/d/b.cleaned", create=True)


def test_failed_sync_is_never_made_good_by_a_later_one() -> None:
    found = set()
    for seed in range(100):
        storage = new_storage(seed)
        file = storage.open("/d/a", create=True)
        storage.sync_folder("/d")
        file.append([b"x" * PAGE])
        storage.fail_next("sync", OSError(errno.EIO, "Input/output error"))
        with pytest.raises(OSError, match="Input/output"):
            file.sync()
        file.sync()
        storage.crash(power=True)
        found.add(read_whole(storage, "/d/a", size_bytes_max=PAGE))
    assert found == {b"", b"x" * PAGE}


def test_faults_hit_the_named_operation_and_path_once() -> None:
    storage = new_storage()
    storage.fail_next("open", OSError(errno.EIO, "broken"), path_part="b")
    storage.open("/d/a", create=True).close()
    with pytest.raises(OSError, match="broken"):
        storage.open("/d/b", create=True)
    storage.open("/d/b", create=True).close()
    storage.fail_next("read_at", OSError(errno.EIO, "broken"), times=2)
    for _ in range(2):
        with pytest.raises(OSError, match="broken"):
            storage.open("/d/a").read_at(1, 0)
    assert storage.open("/d/a").read_at(1, 0) == b""


def test_full_disk_takes_what_fits_and_says_so() -> None:
    storage = new_storage()
    file = storage.open("/d/a", create=True)
    file.append([b"1234"])
    storage.set_free_bytes(3)
    assert storage.free_bytes("/d") == 3
    with pytest.raises(OSError, match=r"No space") as caught:
        file.append([b"abcdef"])
    assert caught.value.errno == errno.ENOSPC
    assert file.size() == 7
    file.write_at(b"ok", 0)
    file.truncate(4)
    assert storage.free_bytes("/d") == 3
    storage.set_free_bytes(None)
    file.append([b"abcdef"])


def test_corruption_reaches_the_disk_itself() -> None:
    storage = new_storage()
    write_whole(storage, "/d/a", b"0123")
    storage.corrupt("/d/a", 1, b"X")
    storage.crash(power=True)
    assert read_whole(storage, "/d/a", size_bytes_max=4) == b"0X23"


def test_same_seed_loses_the_same() -> None:
    def run(seed: int) -> bytes:
        storage = new_storage(seed)
        write_whole(storage, "/d/a", b"")
        for n in range(20):
            storage.open("/d/a").append([bytes([n]) * 3000])
        storage.crash(power=True)
        return read_whole(storage, "/d/a", size_bytes_max=1 << 20)

    assert [run(seed) for seed in range(20)] == [run(seed) for seed in range(20)]
    assert len({run(seed) for seed in range(20)}) > 5
