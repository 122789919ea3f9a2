"""After each test its data directories are verified, as `semel log verify` does: each must be called sound.

A folder of tests has this by importing the three fixtures into its conftest.py. A test that damages a directory on
purpose, or plants a fault in the node that writes it, says why: `@pytest.mark.damages_data("...")`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from everything_diskless import is_everything_diskless

from semel.broker.inspection.findings import Severity
from semel.broker.inspection.verify import is_in_use, verify
from semel.broker.logs.data_folder import META_FILE
from semel.broker.metadata.store import METADATA_FILE, sqlite_url
from semel.cli.local_cluster import SECRET_FILE
from semel.runtime.storage import Storage, read_whole
from semel.sdk.testing.broker import Broker
from semel.sdk.testing.memory_data import FOLDER, MemoryData

DEPTH = 4
"""So far below a session's temporary directory a test puts its data directories."""
CLUSTER_METADATA = "cluster.sqlite"
"""The file that nodes of a cluster share as their metadata, beside their data directories (`NodeProcesses`)."""
FILE_BYTES_MAX = 1 << 30


def wrong_in(data: Path | str, *, metadata_url: str = "") -> list[str]:
    """What `semel log verify` finds wrong with a data directory; empty: it is sound. Some tests make logs alone."""
    has_metadata = bool(metadata_url) or (Path(data) / METADATA_FILE).exists()
    report = verify(str(data), metadata_url=metadata_url, deep=True, needs_metadata=has_metadata)
    return [
        f"{one.severity.value} {one.path} [{one.check.value}]: {one.what} (a start {one.on_start})"
        for one in report.findings
        if one.severity is not Severity.NOTE
    ]


def data_directories(folder: Path, depth: int = DEPTH) -> Iterator[Path]:
    """Yield the data directories in a folder: those that a node has begun to make a cluster's."""
    is_of_several = (folder / SECRET_FILE).exists()  # `semel serve --nodes`: each has a directory in it
    if (folder / META_FILE).exists() or ((folder / METADATA_FILE).exists() and not is_of_several):
        yield folder
    elif depth:
        with suppress(FileNotFoundError, PermissionError):
            for each in sorted(folder.iterdir()):
                if each.is_dir() and not each.is_symlink():
                    yield from data_directories(each, depth - 1)


class SoundData:
    """Knows which data directories of a session were looked at, and which a node of the whole session has."""

    def __init__(self) -> None:
        self._done: set[Path] = set()
        self._in_use: set[Path] = set()

    def check(self, folders: Iterable[Path], *, is_last: bool = True) -> None:
        """Verify those in `folders` that were not yet. One that a node has waits for a later check, if there is one."""
        wrong = []
        for data in (each for folder in folders for each in data_directories(folder)):
            if data in self._done:
                continue
            if is_in_use(str(data)):
                self._in_use.add(data)
                if is_last:
                    wrong.append(f"{data}: a node still runs here when its test has ended")
                continue
            self._done.add(data)
            wrong += [f"{data}: {one}" for one in wrong_in(data, metadata_url=_metadata_beside(data))]
        if wrong:
            pytest.fail("semel log verify calls a sound directory damaged:\n" + "\n".join(wrong), pytrace=False)

    def check_rest(self) -> None:
        """`check` those that a node had when the tests of a module had ended."""
        self.check(sorted(self._in_use))

    def pass_over(self, folder: Path) -> None:
        """Those in `folder` were damaged on purpose."""
        self._done.update(data_directories(folder))


@pytest.fixture(scope="session", autouse=True)
def sound_session_data() -> Iterator[SoundData]:
    """Verifies what a node of the whole session has left."""
    sound = SoundData()
    yield sound
    sound.check_rest()


@pytest.fixture(scope="module", autouse=True)
def sound_module_data(sound_session_data: SoundData, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Verifies what the nodes of a module's fixtures have left: what was not there when its tests began."""
    base = tmp_path_factory.getbasetemp()
    before = set(base.iterdir())
    yield
    made = (each for each in base.iterdir() if not each.is_symlink())  # pytest links to the latest of each name
    sound_session_data.check(sorted(set(made) - before), is_last=False)


@pytest.fixture(autouse=True)
def sound_data(request: pytest.FixtureRequest, sound_session_data: SoundData) -> Iterator[None]:
    """Verifies what a test has left in its `tmp_path`, and what its brokers in memory had."""
    why = request.node.get_closest_marker("damages_data")
    assert why is None or (why.args and why.args[0]), "damages_data says why: damages_data('...')"
    folder: Path | None = request.getfixturevalue("tmp_path") if "tmp_path" in request.fixturenames else None
    wrong: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Broker, "_drop_data", _verifying(Broker._drop_data, wrong))
        yield
    if why is not None:
        if folder is not None:
            sound_session_data.pass_over(folder)
        return
    assert not wrong, "semel log verify calls a broker's sound data damaged:\n" + "\n".join(wrong)
    if folder is not None:
        sound_session_data.check([folder])


def _metadata_beside(data: Path) -> str:
    """Return where the metadata of a diskless node is: what it has on its disk can't be told from damage without it."""
    shared = data.parent / CLUSTER_METADATA
    return sqlite_url(str(shared)) if is_everything_diskless() and shared.exists() else ""


def _verifying(drop_data: Callable[[Broker], None], wrong: list[str]) -> Callable[[Broker], None]:
    def drop(broker: Broker) -> None:
        if broker._data is not None:
            wrong.extend(wrong_in_memory(broker._data))
        drop_data(broker)

    return drop


def wrong_in_memory(data: MemoryData) -> list[str]:
    """`wrong_in` for the data of a `semel.testing.Broker` that has stopped or was killed."""
    with as_directory(data) as folder:
        return wrong_in(folder, metadata_url=data.metadata_url)


@contextmanager
def as_directory(data: MemoryData) -> Iterator[Path]:
    """A copy of a broker's data on the disk, without its metadata."""
    with tempfile.TemporaryDirectory(prefix="semel-memory-data-") as folder:
        _copy(data.storage, FOLDER, Path(folder))
        yield Path(folder)


def _copy(storage: Storage, path: str, target: Path) -> None:
    names = storage.list_folder(path)
    target.mkdir(exist_ok=True)
    for name in names:
        try:
            _copy(storage, f"{path}/{name}", target / name)
        except NotADirectoryError:
            (target / name).write_bytes(read_whole(storage, f"{path}/{name}", size_bytes_max=FILE_BYTES_MAX))
