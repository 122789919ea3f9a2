"""Settings of the transaction coordinator, by Kafka's names where Kafka has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

TRANSACTIONAL_ID_BYTES_MAX: Final = 2**15 - 1
"""What the string in the record's key can hold."""


@dataclass(frozen=True, slots=True)
class TransactionConfig:
    """What bounds the coordinator. Times are in milliseconds.

    transaction_max_timeout_ms:     the longest timeout that a producer may ask for (`transaction.max.timeout.ms`).
    transactional_id_expiration_ms: an id without a transaction is forgotten so long after its last one
                                    (`transactional.id.expiration.ms`).
    transactional_id_max_bytes:     the longest id that may be initialised with; one that is known continues.
    transactional_ids_bytes_max:    what the ids, open transactions and remembered commits of all partitions may hold.
    two_phase_commit_enable:        whether transactions may be decided outside, which never time out
                                    (`transaction.two.phase.commit.enable`).
    commit_history_max:             how many commits are remembered by key, for tokens and shared transactions (T13).
    commit_history_expiration_ms:   a key without an attempt or a commit for so long is forgotten.
    commit_one_off_expiration_ms:   the same for a key of which it is known that nobody repeats it.
    shared_writers_max:             writers of one shared transaction.
    record_bytes_max:               the largest record of `__transaction_state`; more partitions than fit are refused.
    tick_records_max:               how many timed-out or expired ids one tick takes up; the next follows at once.
    add_partitions_wait_ms:         how long adding partitions waits for the producer's previous transaction to complete
                                    before it has to retry (KIP-890: saves the client its back-off).
    marker_writes_in_flight_max:    marker requests under way at the same time.
    marker_retry_backoff_ms, marker_retry_backoff_max_ms: pauses between attempts to write a marker.
    """

    transaction_max_timeout_ms: int = 900_000
    transactional_id_expiration_ms: int = 604_800_000
    transactional_id_max_bytes: int = 1_024
    transactional_ids_bytes_max: int = 512 << 20
    two_phase_commit_enable: bool = False
    commit_history_max: int = 100
    commit_history_expiration_ms: int = 30 * 86_400_000
    commit_one_off_expiration_ms: int = 900_000
    shared_writers_max: int = 1_000
    record_bytes_max: int = 900_000
    tick_records_max: int = 1_000
    add_partitions_wait_ms: int = 100
    marker_writes_in_flight_max: int = 1_000
    marker_retry_backoff_ms: int = 20
    marker_retry_backoff_max_ms: int = 5_000

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if name != "two_phase_commit_enable" and getattr(self, name) <= 0:
                raise ValueError(f"{name} must be positive, not {getattr(self, name)}")
        if self.transactional_id_max_bytes > TRANSACTIONAL_ID_BYTES_MAX:
            raise ValueError(
                f"transactional_id_max_bytes is at most {TRANSACTIONAL_ID_BYTES_MAX}, not "
                f"{self.transactional_id_max_bytes}"
            )
