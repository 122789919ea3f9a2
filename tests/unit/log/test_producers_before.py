"""What a leader tells of producers to a replica that begins at an offset (P2, P7); the model in
`property/test_producer_state_model.py` has all the rest.
"""

from __future__ import annotations

import pytest

from semel.broker.log.producer_state import ProducerEntry, RememberedBatch
from semel.broker.log.producers_before import entry_before, producers_before

BEGINS = 100


def entry(*offsets: tuple[int, int], coordinator_epoch: int = -1, transaction: int = -1) -> ProducerEntry:
    """Return a producer with batches from one offset to another, one sequence number each."""
    batches = [RememberedBatch(n, n, first, last, first * 10) for n, (first, last) in enumerate(offsets)]
    return ProducerEntry(7, 3, coordinator_epoch, 5_000, transaction, batches, 1)


def before(known: ProducerEntry) -> ProducerEntry | None:
    packed = entry_before(known.packed(), BEGINS)
    return None if packed is None else ProducerEntry.unpacked(packed)


def test_P2_batches_that_end_below_the_offset_are_told_and_no_others() -> None:
    told = before(entry((90, 94), (95, 99), (100, 100), (101, 105)))
    assert told is not None
    assert [batch.last_offset for batch in told.batches] == [94, 99]
    assert (told.epoch, told.last_timestamp_ms) == (3, 950)
    straddling = before(entry((90, 94), (95, 100)))
    assert straddling is not None
    assert [batch.last_offset for batch in straddling.batches] == [94], "the replica fetches the other one"


def test_P7_a_producer_that_has_written_nothing_since_is_told_as_it_is() -> None:
    for known in (entry((98, 99)), entry((90, 90), (98, 99), transaction=90), entry(coordinator_epoch=2)):
        assert before(known) == known


def test_P3_of_one_that_has_written_much_since_nothing_is_told() -> None:
    assert before(entry((100, 100), (101, 101))) is None
    assert before(entry((100, 100), transaction=60)) is None


def test_P9_the_epoch_of_its_coordinator_is_told_also_where_nothing_else_is() -> None:
    told = before(entry((100, 100), coordinator_epoch=4, transaction=60))
    assert told == ProducerEntry(7, -1, 4, 5_000)


@pytest.mark.parametrize(("opened", "told"), [(99, 99), (100, -1), (101, -1)])
def test_L1_a_transaction_is_told_as_open_where_it_began_before_the_offset(opened: int, told: int) -> None:
    found = before(entry((90, 90), transaction=opened))
    assert found is not None
    assert found.transaction_first_offset == told


def test_P2_pages_go_by_producer_id_and_say_whether_more_follow() -> None:
    known = [ProducerEntry(n, 0, batches=[RememberedBatch(0, 0, n, n, 0)]).packed() for n in (5, 3, 99, 120, 8, 101)]

    def page(after_id: int, begins: int = BEGINS) -> tuple[list[int], bool]:
        found, has_more = producers_before(known, begins, after_id, page=2)
        return [one[1] for one in found], has_more

    assert page(-1) == ([3, 5], True)
    assert page(5) == ([8, 99], True), "others are above, of which nothing is told"
    assert page(99) == ([], False)
    assert page(-1, 0) == ([], False)
    assert page(-1, 4) == ([3], False)
