"""The contract of `Storage`, proven for the real disk and the simulated one alike, and what only the real one has."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from special_files import SPECIAL, make_special

from semel.runtime.disk_storage import DiskStorage
from semel.runtime.simulated_storage import SimulatedStorage
from semel.runtime.storage import Storage, read_whole, write_whole


@pytest.fixture(params=["disk", "simulated"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Storage, str]]:
    if request.param == "disk":
        yield DiskStorage(), str(tmp_path)
    else:
        storage = SimulatedStorage()
        storage.make_folder("/data")
        yield storage, "/data"


def test_appends_go_to_the_end_and_say_where(place: tuple[Storage, str]) -> None:
    storage, folder = place
    file = storage.open(f"{folder}/a", create=True)
    assert file.append([b"one", bytearray(b"two"), memoryview(b"three")]) == 0
    assert file.append([b"x"]) == 11
    assert file.append([b"", b""]) == 12
    assert file.size() == 12
    assert file.read_at(100, 0) == b"onetwothreex"
    assert file.read_at(3, 3) == b"two"
    assert file.read_at(5, 100) == b""
    file.close()


def test_many_buffers_are_one_append(place: tuple[Storage, str]) -> None:
    storage, folder = place
    file = storage.open(f"{folder}/a", create=True)
    file.append([b"head"])
    assert file.append([b"%04d" % n for n in range(3000)]) == 4
    assert file.size() == 12004
    assert file.read_at(12, 12004 - 12) == b"299729982999"
    file.close()


def test_write_at_overwrites_and_extends(place: tuple[Storage, str]) -> None:
    storage, folder = place
    file = storage.open(f"{folder}/a", create=True)
    file.append([b"0123456789"])
    file.write_at(b"ab", 3)
    file.write_at(b"end", 12)
    assert file.read_at(20, 0) == b"012ab56789\0\0end"
    assert file.append([b"!"]) == 15
    file.close()


def test_truncate_shortens_and_appends_follow(place: tuple[Storage, str]) -> None:
    storage, folder = place
    file = storage.open(f"{folder}/a", create=True)
    file.append([b"0123456789"])
    file.truncate(4)
    assert file.append([b"x"]) == 4
    assert file.read_at(20, 0) == b"0123x"
    file.sync()
    file.close()


def test_map_shows_the_first_bytes(place: tuple[Storage, str]) -> None:
    storage, folder = place
    file = storage.open(f"{folder}/a", create=True)
    file.append([b"0123456789"])
    assert bytes(file.map(4)) == b"0123"
    assert file.map(4).readonly
    assert bytes(file.map(0)) == b""
    with pytest.raises(ValueError, match="10 bytes"):
        file.map(11)
    file.close()


def test_open_needs_create_for_a_new_file(place: tuple[Storage, str]) -> None:
    storage, folder = place
    with pytest.raises(FileNotFoundError):
        storage.open(f"{folder}/a")
    storage.open(f"{folder}/a", create=True).close()
    assert storage.exists(f"{folder}/a")
    storage.open(f"{folder}/a").close()


def test_folders_are_made_listed_and_removed(place: tuple[Storage, str]) -> None:
    storage, folder = place
    storage.make_folder(f"{folder}/b/c")
    storage.make_folder(f"{folder}/b")
    write_whole(storage, f"{folder}/b/c/f", b"1")
    write_whole(storage, f"{folder}/a", b"2")
    assert storage.list_folder(folder) == ["a", "b"]
    storage.sync_folder(folder)
    with pytest.raises(NotADirectoryError):
        storage.list_folder(f"{folder}/a")
    with pytest.raises(FileNotFoundError):
        storage.list_folder(f"{folder}/none")
    storage.remove_tree(f"{folder}/b")
    storage.remove(f"{folder}/a")
    assert storage.list_folder(folder) == []
    with pytest.raises(FileNotFoundError):
        storage.remove(f"{folder}/a")


def test_rename_replaces_files_and_moves_folders(place: tuple[Storage, str]) -> None:
    storage, folder = place
    write_whole(storage, f"{folder}/a", b"new")
    write_whole(storage, f"{folder}/b", b"old")
    storage.rename(f"{folder}/a", f"{folder}/b")
    assert read_whole(storage, f"{folder}/b", size_bytes_max=10) == b"new"
    storage.make_folder(f"{folder}/d")
    write_whole(storage, f"{folder}/d/f", b"1")
    storage.rename(f"{folder}/d", f"{folder}/e")
    assert storage.list_folder(folder) == ["b", "e"]
    assert storage.list_folder(f"{folder}/e") == ["f"]


def test_removed_file_stays_readable_for_who_has_it_open(place: tuple[Storage, str]) -> None:
    storage, folder = place
    file = storage.open(f"{folder}/a", create=True)
    file.append([b"0123"])
    storage.remove(f"{folder}/a")
    assert file.read_at(4, 0) == b"0123"
    file.close()


def test_lock_is_held_against_others_until_released(place: tuple[Storage, str]) -> None:
    storage, folder = place
    lock = storage.lock(f"{folder}/.lock")
    with pytest.raises(BlockingIOError, match="held by"):
        storage.lock(f"{folder}/.lock")
    lock.release()
    with storage.lock(f"{folder}/.lock"):
        pass
    storage.lock(f"{folder}/.lock").release()


def test_free_bytes_is_a_size(place: tuple[Storage, str]) -> None:
    storage, folder = place
    assert 0 < storage.free_bytes(folder) <= storage.total_bytes(folder)


def test_small_files_are_bounded(place: tuple[Storage, str]) -> None:
    storage, folder = place
    write_whole(storage, f"{folder}/a", b"x" * 100)
    with pytest.raises(ValueError, match="100 bytes"):
        read_whole(storage, f"{folder}/a", size_bytes_max=99)


def test_lock_of_another_process_names_it(tmp_path: Path) -> None:
    program = (
        "import sys; from semel.runtime.disk_storage import DiskStorage\n"
        "lock = DiskStorage().lock(sys.argv[1]); print('held', flush=True); sys.stdin.read()"
    )
    path = str(tmp_path / ".lock")
    with subprocess.Popen(
        [sys.executable, "-P", "-c", program, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdin is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(BlockingIOError, match=f"held by process {other.pid}"):
            DiskStorage().lock(path)
        other.stdin.close()
        other.wait(30)
    DiskStorage().lock(path).release()


@pytest.mark.parametrize("shortest", [1, 3, 1000])
def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shortest: int) -> None:
    file = DiskStorage().open(str(tmp_path / "a"), create=True)
    real_vectored: Callable[..., int] = os.pwritev
    real: Callable[..., int] = os.pwrite
    monkeypatch.setattr(
        os, "pwritev", lambda fd, parts, at: real(fd, b"".join(bytes(part) for part in parts)[:shortest], at)
    )
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: real(fd, bytes(data)[:shortest], at))
    assert file.append([b"ab", bytearray(b"cdefg"), memoryview(b"hij")]) == 0
    assert file.append([b"0123456789"]) == 10
    monkeypatch.setattr(os, "pwritev", real_vectored)
    monkeypatch.setattr(os, "pwrite", real)
    assert file.read_at(100, 0) == b"abcdefghij0123456789"
    file.close()


def test_failed_append_leaves_the_true_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = DiskStorage().open(str(tmp_path / "a"), create=True)
    file.append([b"0123"])
    real: Callable[..., int] = os.pwrite
    calls = iter([2])

    def full(fd: int, data: bytes, at: int) -> int:
        for size in calls:
            return real(fd, bytes(data)[:size], at)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space"):
        file.append([b"abcd"])
    monkeypatch.setattr(os, "pwrite", real)
    assert file.size() == 6
    file.truncate(4)
    assert file.append([b"x"]) == 4
    file.close()


def test_a_failed_sync_names_what_was_to_be_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system knows only a descriptor, and "Input/output error" alone says nothing."""
    file = DiskStorage().open(str(tmp_path / "file"), create=True)

    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, fail)
    with pytest.raises(OSError, match=rf"Input/output error: '{tmp_path}/file'"):
        file.sync()
    with pytest.raises(OSError, match=rf"Input/output error: '{tmp_path}'"):
        DiskStorage().sync_folder(str(tmp_path))
    file.close()


@pytest.mark.parametrize("kind", ["directory", "file", "link to a file", *SPECIAL])
def test_D6_what_stands_by_the_name_of_a_temporary_file_keeps_nothing_from_being_written(
    tmp_path: Path, kind: str
) -> None:
    """It failed every flush; or a link was followed, and the file that it led to, a log, was overwritten."""
    path, in_the_way = str(tmp_path / "checkpoint"), tmp_path / "checkpoint.tmp"
    victim = tmp_path / "log"
    victim.write_bytes(b"acknowledged")
    if kind == "directory":
        in_the_way.mkdir()
    elif kind == "file":
        in_the_way.write_bytes(b"left by a crash, and longer than what comes")
        in_the_way.chmod(0o400)
    elif kind == "link to a file":
        in_the_way.symlink_to(victim)
    else:
        make_special(in_the_way, kind)
    for data in (b"first", b"second"):
        write_whole(DiskStorage(), path, data)
        assert read_whole(DiskStorage(), path, size_bytes_max=100) == data
        assert not os.path.islink(path)
    assert victim.read_bytes() == b"acknowledged"
    assert os.path.lexists(in_the_way) is (kind == "directory"), "a directory is not ours to remove"
    left = {"checkpoint", "log"} | ({"checkpoint.tmp"} if kind == "directory" else set())
    assert {one.name for one in tmp_path.iterdir()} - {"pipe"} == left


@pytest.mark.parametrize("kind", ["link to nothing", "link to itself"])
def test_no_file_is_made_where_a_link_leads(tmp_path: Path, kind: str) -> None:
    make_special(tmp_path / "log", kind)
    storage = DiskStorage()
    assert storage.exists(str(tmp_path / "log"))
    for create in (False, True):
        with pytest.raises(OSError, match="it is a symbolic link that leads nowhere, and a file belongs there"):
            storage.open(str(tmp_path / "log"), create=create)
    assert [one.name for one in tmp_path.iterdir()] == ["log"]
