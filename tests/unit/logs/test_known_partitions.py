"""Which partitions a folder has had: what a power cut leaves of a removal."""

from __future__ import annotations

import errno

from semel.broker.logs.known_partitions import KNOWN_FILE, KnownPartitions
from semel.protocol.ids import new_topic_id
from semel.runtime.simulated_storage import SimulatedStorage

PATH = f"/data/{KNOWN_FILE}"
FIRST, SECOND = (new_topic_id(), 0), (new_topic_id(), 1)


def made() -> tuple[SimulatedStorage, KnownPartitions]:
    storage = SimulatedStorage()
    storage.make_folder("/data")
    storage.sync_folder("/")
    known = KnownPartitions(storage, PATH)
    known.add([FIRST, SECOND])
    return storage, known


def after_power_cut(storage: SimulatedStorage) -> set[tuple[object, int]]:
    storage.crash(power=True, torn=False)
    again = KnownPartitions(storage, PATH)
    again.read()
    return {key for key in (FIRST, SECOND) if key in again}


def test_R10_a_durable_removal_outlives_a_power_cut_and_another_may_not() -> None:
    storage, known = made()
    known.remove([FIRST])
    assert FIRST not in known
    assert after_power_cut(storage) == {FIRST, SECOND}
    storage, known = made()
    known.remove([FIRST], durably=True)
    assert after_power_cut(storage) == {SECOND}


def test_R10_a_durable_removal_after_a_failed_write_writes_the_file_again() -> None:
    storage, known = made()
    storage.fail_next("append", OSError(errno.EIO, "broken"), path_part=KNOWN_FILE)
    known.remove([FIRST])
    known.remove([SECOND], durably=True)
    assert after_power_cut(storage) == set()


def test_R10_it_stays_known_that_a_partition_was_moved_until_it_is_made_again_or_deleted() -> None:
    storage, known = made()
    known.remove([FIRST, SECOND], durably=True, were_moved=True)
    known.remove([FIRST], durably=True, were_moved=True)  # once more, as after a crash
    assert (known.was_moved(FIRST), FIRST in known) == (True, False)
    storage.crash(power=True, torn=False)
    known = KnownPartitions(storage, PATH)
    known.read()
    assert (known.was_moved(FIRST), known.was_moved(SECOND), FIRST in known) == (True, True, False)
    assert set(known.moved_of([FIRST[0]])) == {FIRST}
    known.add([FIRST])
    known.remove_all_but([FIRST])
    again = KnownPartitions(storage, PATH)
    again.read()
    assert (again.was_moved(FIRST), FIRST in again, again.was_moved(SECOND)) == (False, True, False)


def test_a_file_that_is_written_again_keeps_what_was_moved() -> None:
    storage, known = made()
    known.remove([FIRST], were_moved=True)
    storage.fail_next("append", OSError(errno.EIO, "broken"), path_part=KNOWN_FILE)
    known.remove([SECOND])
    third = (new_topic_id(), 7)
    known.add([third])
    again = KnownPartitions(storage, PATH)
    again.read()
    assert (again.was_moved(FIRST), FIRST in again, third in again) == (True, False, True)


def test_what_is_not_there_costs_nothing() -> None:
    storage, known = made()
    storage.fail_next("append", OSError(errno.EIO, "broken"), path_part=KNOWN_FILE)
    known.remove([(new_topic_id(), 0)], durably=True)
    storage.fail_no_more()
    assert after_power_cut(storage) == {FIRST, SECOND}
