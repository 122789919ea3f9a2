"""What an operator may set about the transaction coordinator, by Kafka's names where Kafka has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from semel.protocol.int_bounds import INT16_MAX, INT32_MAX
from semel.protocol.time_units import DAY_MS
from semel.runtime.setting import ConfigError, PartConfig, setting

TRANSACTIONAL_ID_BYTES_MAX: Final = INT16_MAX
"""What the string in the record's key can hold."""


@dataclass(frozen=True)
class TransactionConfig(PartConfig):
    """What bounds the coordinator."""

    transaction_max_timeout_ms: int = setting(
        900_000, "The longest transaction timeout that a producer may ask for.", unit="ms", minimum=1, maximum=INT32_MAX
    )
    transactional_id_expiration_ms: int = setting(
        7 * DAY_MS,
        "After how long without a transaction a transactional id is forgotten.",
        unit="ms",
        minimum=1,
        maximum=INT32_MAX,
    )
    transactional_id_max_bytes: int = setting(
        1_024,
        "The longest transactional id that a producer may initialise with. Each is kept in memory, and read at each "
        "start, until it expires.",
        unit="bytes",
        minimum=1,
        maximum=TRANSACTIONAL_ID_BYTES_MAX,
    )
    transactional_ids_max_bytes: int = setting(
        512 << 20,
        "What the transactional ids, open transactions and remembered commits of this node may hold in memory "
        "together: 4 KiB for each id or key of shared transactions, and what it holds beyond that: 170 bytes for a "
        "partition in a transaction, and 500 bytes and its payload for a commit with a token. Beyond it new ids are "
        "refused with POLICY_VIOLATION. Known ones continue within their 4 KiB and a fair share; those that hold more "
        "can't add partitions nor commit with a token (TRANSACTION_ABORTABLE).",
        unit="bytes",
        minimum=1,
    )
    transaction_two_phase_commit_enable: bool = setting(
        False,
        "Whether somebody outside, such as a database, may decide about transactions (KIP-939). They never time "
        "out: one that is forgotten holds its partitions' readers until an operator aborts it.",
    )
    commit_history_max: int = setting(
        100,
        "How many commits with a token are remembered for each transactional id, or key of shared transactions.",
        minimum=1,
        maximum=10_000,
    )
    commit_history_expiration_ms: int = setting(
        30 * DAY_MS,
        "After how long without a commit or an attempt the commits of a key are forgotten.",
        unit="ms",
        minimum=1,
        long=True,
    )
    commit_one_off_expiration_ms: int = setting(
        15 * 60_000,
        "After how long without a commit or an attempt a key is forgotten of which it is known that nobody uses it "
        "again, such as that of a single batch write.",
        unit="ms",
        minimum=1_000,
        long=True,
    )
    shared_transaction_max_writers: int = setting(
        1_000, "The most writers of one shared transaction.", minimum=1, maximum=10_000
    )
    add_partitions_to_txn_retry_backoff_max_ms: int = setting(
        100,
        "How long adding a partition waits for the producer's previous transaction to complete, before the producer "
        "gets CONCURRENT_TRANSACTIONS and retries (KIP-890).",
        unit="ms",
        minimum=1,
        maximum=60_000,
    )
    transaction_markers_max_in_flight: int = setting(
        1_000, "Decided transactions whose markers are being written at once.", minimum=1, maximum=1_000_000
    )
    transaction_marker_retry_backoff_ms: int = setting(
        20,
        "The first pause before a marker is tried again.",
        unit="ms",
        minimum=1,
        maximum=60_000,
        at_most="transaction.marker.retry.backoff.max.ms",
    )
    transaction_marker_retry_backoff_max_ms: int = setting(
        5_000, "The longest pause before a marker is tried again.", unit="ms", minimum=1, maximum=600_000
    )
    transaction_record_max_bytes: int = 900_000
    """The largest record of `__transaction_state`; more partitions than fit are refused."""
    transaction_tick_max_records: int = 1_000
    """How many timed-out or expired ids one tick processes; the next follows at once."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("transaction_record_max_bytes", "transaction_tick_max_records"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} must be positive, not {getattr(self, name)}")
