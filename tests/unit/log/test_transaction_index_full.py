"""A list of aborted transactions on a full disk: readers find what waits for room, and it comes into the file (L3)."""

from __future__ import annotations

import errno

import pytest

from semel.broker.log.log_types import AbortedTransaction
from semel.broker.log.open_files import OpenFiles
from semel.broker.log.transaction_index import TransactionIndex
from semel.runtime.simulated_storage import SimulatedStorage


def aborted(number: int) -> AbortedTransaction:
    return AbortedTransaction(number, 10 * number, 10 * number + 5, 10 * number + 6)


def test_L3_entries_that_a_full_disk_does_not_take_are_found_by_readers_and_written_later() -> None:
    storage = SimulatedStorage()
    index = TransactionIndex(storage, "/i.txnindex", OpenFiles(), exists=False)
    index.add(aborted(0))
    storage.set_free_bytes(3)
    index.add(aborted(1))
    index.add(aborted(2))
    found: list[AbortedTransaction] = []
    index.collect(0, 100, found)
    assert found == [aborted(0), aborted(1), aborted(2)] == list(index)
    assert (len(index), index.entry(2)) == (3, aborted(2))
    later: list[AbortedTransaction] = []
    index.collect(12, 100, later)
    assert later == [aborted(1), aborted(2)]
    with pytest.raises(OSError, match="No space"):
        index.write_waiting()
    index.truncate_to(20)
    assert list(index) == [aborted(0), aborted(1)]
    storage.set_free_bytes(None)
    index.write_waiting()
    again = TransactionIndex(storage, "/i.txnindex", OpenFiles(), exists=True)
    assert list(again) == [aborted(0), aborted(1)]
    assert again.is_sane(0)


def test_L3_any_other_error_of_the_disk_is_raised_and_leaves_no_entry() -> None:
    storage = SimulatedStorage()
    index = TransactionIndex(storage, "/i.txnindex", OpenFiles(), exists=False)
    storage.fail_next("write_at", OSError(errno.EIO, "I/O error"))
    with pytest.raises(OSError, match="I/O"):
        index.add(aborted(0))
    assert not list(index)
