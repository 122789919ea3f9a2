"""`semel log verify` and a real start agree, whatever was done to the folder (D1, D2, L3, P7)."""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
from pathlib import Path

import pytest
from damaged_folder import contents, damage, make_clean_folder, make_folder, photograph, start_copy
from hypothesis import given, settings
from hypothesis import strategies as st
from log_model import make_batch

from semel.broker.inspection.findings import Severity
from semel.broker.inspection.verify import Report, verify
from semel.broker.logs.data_folder import RECOVERY_POINT_FILE
from semel.broker.logs.known_partitions import KNOWN_FILE
from semel.broker.logs.last_recovery import NOTE_FILE

TORN = (" is cut at position ", "the journal ends at byte ", "the producer snapshot ")
"""What a start says of what a crash tears. Of records that had been synced it says besides that they are lost."""


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clean") / "data"
    asyncio.run(make_clean_folder(folder))
    return folder


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As a kill leaves it: some of it flushed, the rest in the journal and the page cache, and all acknowledged."""
    base = tmp_path_factory.mktemp("killed")
    manager = make_folder(base / "live")
    asyncio.run(manager.maintenance.flush())
    for partition in manager.partitions():
        for number in range(20):
            partition.append(make_batch([(b"more", b"%d" % number)]))
    journal = manager._journal
    assert journal is not None
    journal.sync_now()
    shutil.copytree(base / "live", base / "data")
    manager._abandon()
    return base / "data"


def check(folder: Path, *, is_alone: bool = True) -> Report:
    return verify(str(folder), needs_metadata=False, is_alone=is_alone)


def journal_of(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(folder.glob("journal/*"))]


def told(report: Report) -> str:
    return "\n".join(f"{one.severity.value} {one.path} {one.what} | {one.on_start}" for one in report.findings)


@pytest.mark.parametrize("is_alone", [True, False], ids=["alone", "one of several replicas"])
@pytest.mark.parametrize("which", ["clean", "killed"])
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_D2_verify_says_what_a_start_does(which: str, is_alone: bool, clean: Path, killed: Path, seed: int) -> None:
    """Never ok where a start would fix, lose or refuse something; and where it is ok, all is as it was.

    But what a crash can have torn, behind the last sync, is ok: it is as it was where the journal has all of it.
    """
    original = clean if which == "clean" else killed
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "data"
        shutil.copytree(original, folder)
        what = [damage(folder, chance) for _ in range(chance.choice([1, 1, 1, 2, 3]))]
        is_same = contents(folder) == contents(original)
        before = photograph(folder)
        report = check(folder, is_alone=is_alone)
        assert photograph(folder) == before, "verify has changed something"
        started = start_copy(folder, Path(scratch) / "started", is_alone=is_alone)
        context = f"{what}\n{told(report)}\n--- start: {started.refusal}, {started.warnings}, {started.changed}"
        assert (started.refusal is None) == (not report.refusal), context
        torn = [said for said in started.warnings if not report.is_clean and any(words in said for words in TORN)]
        if started.refusal is not None or len(started.warnings) > len(torn):
            assert not report.is_whole, context
        if report.is_clean:
            assert not (started.restored_batches and report.is_whole), context
        for warning in started.warnings:
            assert any(warning == one.what for one in report.findings) or report.findings.more, context
        if is_same:
            assert report.is_whole, context
        if report.is_whole and report.is_clean:
            assert started.changed <= {".kafka_cleanshutdown", ".lock", NOTE_FILE, KNOWN_FILE} | {
                name for name in started.changed if name.startswith("journal/")
            }, context
        # Without recovery points nothing is known to have been synced: a kill may have torn all of it.
        is_known = journal_of(folder) == journal_of(original) and (folder / RECOVERY_POINT_FILE).exists()
        if report.is_whole and (is_known or not (torn or started.restored_batches)):
            reference = start_copy(original, Path(scratch) / "reference", is_alone=is_alone)
            assert started.state == reference.state, context
        lost = any("are lost" in warning for warning in started.warnings)
        if lost:
            assert report.findings.count(Severity.ERROR), context
