"""Records of transactional ids, as the machine appends them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from semel.runtime.machine import CoordinatorRecord
from semel.txn_coordinator.prepare import prepare_dead
from semel.txn_coordinator.schemas import encode_key, encode_value
from semel.txn_coordinator.state import TransactionMetadata


@dataclass(frozen=True, slots=True)
class DecidedRecord(CoordinatorRecord):
    """A record that the machine just made: what its bytes say is at hand, so its replay needs no decoding.

    Nearly half of a transaction's cost would be that. The model in tests/property holds both ways equal, step by step.
    """

    txn: TransactionMetadata


def record_of(txn: TransactionMetadata) -> CoordinatorRecord:
    return DecidedRecord(encode_key(txn.transactional_id), encode_value(txn), txn)


def tombstone_of(txn: TransactionMetadata) -> CoordinatorRecord:
    """Forget an id. Raises `IllegalTransitionError` for one that is open."""
    return CoordinatorRecord(encode_key(prepare_dead(txn).transactional_id), None)


def size_of(records: Iterable[CoordinatorRecord]) -> int:
    """Return the bytes of keys and values."""
    return sum(len(record.key) + len(record.value or b"") for record in records)
