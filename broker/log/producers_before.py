"""What a partition knew of its producers at an offset that lies behind it, as far as that is still of use (P2, P7).

A replica that begins at an offset replays what follows, and only has to be told what came before. That is read off
what its leader knows now. A batch from the offset on only ever takes the place of older ones, so one page of producers
after the other may be asked for while the leader continues to append.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final

from semel.broker.log.producer_state import (
    FIELDS,
    HEAD,
    NO_COORDINATOR_EPOCH,
    NO_TRANSACTION,
    PackedEntry,
    ProducerEntry,
)
from semel.protocol.ids import NO_PRODUCER_EPOCH

PAGE_PRODUCERS: Final = 5_000
"""How many producers one answer has at most."""
_GIVE_WAY_EVERY: Final = 256


def producers_before(
    entries: Iterable[PackedEntry], offset: int, after_id: int, page: int = PAGE_PRODUCERS
) -> tuple[list[PackedEntry], bool]:
    """Return the next page of what was known at `offset`, by producer id, and whether more follow.

    The ids are above `after_id`. May be called in any thread.
    """
    found: list[PackedEntry] = []
    if offset <= 0:
        return found, False
    left = sorted((entry for entry in entries if entry[1] > after_id), key=_id_of)
    for number, entry in enumerate(left, 1):
        if number % _GIVE_WAY_EVERY == 0:
            time.sleep(0)  # in a thread: lets the event loop have the interpreter within a millisecond
        if (before := entry_before(entry, offset)) is not None:
            found.append(before)
            if len(found) == page:
                return found, number < len(left)
    return found, False


def _id_of(entry: PackedEntry) -> int:
    return entry[1]


def entry_before(entry: PackedEntry, offset: int) -> PackedEntry | None:
    """Return what was known at `offset` of a producer that is known as `entry` now, or None for nothing.

    Its batches below the offset, and the transaction that has been open since before it. Where it has written so much
    since that none of those batches is remembered, its sequence at the offset is not known, and no client can repeat
    what came before it any more (P1): it counts as a producer that has expired, so that its next batch may have any
    sequence (P3). What no batch tells, the coordinator's epoch, stays (P9).
    """
    before = ProducerEntry.unpacked(entry)
    if len(entry) > HEAD:
        before.batches = tuple(batch for batch in before.batches if batch.last_offset < offset)
        if not before.batches:
            if before.coordinator_epoch == NO_COORDINATOR_EPOCH:
                return None
            before.epoch, before.transaction_first_offset = NO_PRODUCER_EPOCH, NO_TRANSACTION
        elif len(before.batches) < (len(entry) - HEAD) // FIELDS:
            before.last_timestamp_ms = before.batches[-1].timestamp_ms
    if before.transaction_first_offset >= offset:
        before.transaction_first_offset = NO_TRANSACTION
    return before.packed()
