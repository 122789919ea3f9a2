"""An older copy of a node's data directory is told from the directory itself (R4)."""

from __future__ import annotations

import errno

import pytest

from semel.broker.former_runs import FormerRuns
from semel.broker.metadata.changes import RUNS_NOTED_VERSION
from semel.broker.metadata.image import BrokerImage
from semel.runtime.simulated_storage import SimulatedStorage
from semel.runtime.storage import write_whole

PATH = "/data/runs"
MINE = "my directory"


def ran_last(incarnation: str, *, directory_id: str = MINE, version: int = RUNS_NOTED_VERSION) -> BrokerImage:
    return BrokerImage(1, incarnation, directory_id, "h", 1, "h", 2, "", metadata_version=version)


@pytest.fixture
def disk() -> SimulatedStorage:
    made = SimulatedStorage(1)
    made.make_folder("/data")
    return made


def test_R4_a_directory_that_does_not_know_the_last_run_is_from_before_it(disk: SimulatedStorage) -> None:
    runs = FormerRuns(disk, PATH)
    runs.add("first")
    runs.add("second")
    for known in (runs, FormerRuns(disk, PATH)):
        assert not known.is_before(ran_last("first"), MINE), "the second run was noted, and did not get to register"
        assert not known.is_before(ran_last("second"), MINE)
        assert known.is_before(ran_last("third"), MINE)
    assert not runs.is_before(None, MINE), "the node never ran"
    assert not runs.is_before(ran_last("third", directory_id="another"), MINE), "this one was never the node's"


def test_R4_a_run_is_noted_durably(disk: SimulatedStorage) -> None:
    FormerRuns(disk, PATH).add("first")
    disk.crash(power=True)
    assert not FormerRuns(disk, PATH).is_before(ran_last("first"), MINE)


def test_a_directory_of_an_older_version_is_no_older_copy_until_a_run_has_noted_itself(disk: SimulatedStorage) -> None:
    runs = FormerRuns(disk, PATH)
    assert not runs.is_before(ran_last("first", version=RUNS_NOTED_VERSION - 1), MINE)
    assert runs.is_before(ran_last("first"), MINE), "that run had noted itself in a directory that is not this one"


def test_R4_a_damaged_note_is_taken_for_an_older_copy(disk: SimulatedStorage, caplog: pytest.LogCaptureFixture) -> None:
    write_whole(disk, PATH, b"\xff\x00 nonsense\nfirst\n")
    runs = FormerRuns(disk, PATH)
    assert runs.is_before(ran_last("first"), MINE)
    assert runs.is_before(ran_last("first", version=RUNS_NOTED_VERSION - 1), MINE)
    assert "is damaged" in caplog.text
    runs.add("second")
    assert not FormerRuns(disk, PATH).is_before(ran_last("second"), MINE)


def test_the_last_thousand_runs_are_known(disk: SimulatedStorage) -> None:
    """Metadata that went back, and was accepted, names an earlier run: that is no older copy."""
    runs = FormerRuns(disk, PATH)
    for number in range(1_005):
        runs.add(f"run {number}")
    known = FormerRuns(disk, PATH)
    assert not known.is_before(ran_last("run 5"), MINE)
    assert known.is_before(ran_last("run 4"), MINE)
    assert not known.is_before(ran_last("run 1004"), MINE)


def test_a_run_that_can_not_be_noted_is_not_taken_for_noted(disk: SimulatedStorage) -> None:
    runs = FormerRuns(disk, PATH)
    runs.add("first")
    disk.fail_next("rename", OSError(errno.ENOSPC, "no space left"))
    with pytest.raises(OSError, match="no space"):
        runs.add("second")
    assert runs.is_before(ran_last("second"), MINE)
    assert not FormerRuns(disk, PATH).is_before(ran_last("first"), MINE)
