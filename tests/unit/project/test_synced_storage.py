"""The tests' disk that loses power with its process: the real one has what was synced, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from synced_storage import SyncedStorage

from semel.runtime.storage import make_lasting_folder, write_whole


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


def on_disk(data: Path) -> dict[str, bytes]:
    return {str(path.relative_to(data)): path.read_bytes() for path in sorted(data.rglob("*")) if path.is_file()}


def started(data: Path) -> SyncedStorage:
    storage = SyncedStorage(str(data))
    make_lasting_folder(storage, str(data))
    return storage


def test_a_name_is_there_once_its_directory_is_synced_and_bytes_once_their_file_is(data: Path) -> None:
    storage = SyncedStorage(str(data))
    storage.make_folder(str(data))
    assert not data.exists()
    storage.sync_folder(str(data.parent))
    assert on_disk(data) == {}
    file = storage.open(f"{data}/log", create=True)
    file.append([b"one"])
    file.sync()
    assert on_disk(data) == {}, "nobody has synced its name"
    file.append([b"two"])
    storage.sync_folder(str(data))
    assert on_disk(data) == {"log": b"one"}
    file.truncate(1)
    file.write_at(b"XY", 0)
    assert on_disk(data) == {"log": b"one"}
    file.sync()
    assert on_disk(data) == {"log": b"XY"}
    assert file.read_at(9, 0) == b"XY"


def test_renames_and_removals_wait_for_their_directory(data: Path) -> None:
    storage = started(data)
    write_whole(storage, f"{data}/a", b"first")
    replaced = storage.open(f"{data}/a")
    storage.make_folder(f"{data}/sub/deep")
    file = storage.open(f"{data}/sub/deep/log", create=True)
    file.append([b"kept"])
    file.sync()
    storage.sync_folder(f"{data}/sub/deep")
    other = storage.open(f"{data}/b", create=True)
    other.append([b"second"])
    other.sync()
    storage.rename(f"{data}/b", f"{data}/a")
    storage.rename(f"{data}/sub", f"{data}/moved")
    assert on_disk(data) == {"a": b"first"}
    storage.sync_folder(f"{data}/moved")
    storage.sync_folder(str(data))
    assert on_disk(data) == {"a": b"second", "moved/deep/log": b"kept"}
    replaced.append([b" and gone"])
    replaced.sync()
    storage.remove(f"{data}/a")
    storage.remove_tree(f"{data}/moved")
    assert on_disk(data) == {"a": b"second", "moved/deep/log": b"kept"}
    storage.sync_folder(str(data))
    assert on_disk(data) == {}


def test_the_next_process_begins_with_what_was_synced(data: Path) -> None:
    storage = started(data)
    write_whole(storage, f"{data}/a", b"synced")
    storage.open(f"{data}/a").append([b" and not"])
    storage.rename(f"{data}/a", f"{data}/b")
    again = SyncedStorage(str(data))
    assert again.list_folder(str(data)) == ["a"]
    file = again.open(f"{data}/a")
    assert file.read_at(99, 0) == b"synced"
    file.append([b" again"])
    file.sync()
    assert on_disk(data) == {"a": b"synced again"}
    with again.lock(f"{data}/.lock"), pytest.raises(BlockingIOError):
        SyncedStorage(str(data)).lock(f"{data}/.lock")
