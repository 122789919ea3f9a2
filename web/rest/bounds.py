"""What bounds the REST API beside the limits of the gateway: counts, sizes and times."""

from __future__ import annotations

from typing import Final

RECORDS_MAX: Final = 1_000
"""Records of one request, or that one stream of records may have unanswered."""
OFFSETS_MAX: Final = 1_000
"""Offsets of one request."""
BATCH_ENTRIES_MAX: Final = 1_000
HEADERS_MAX: Final = 100
"""Headers of one record."""
JSON_DEPTH_MAX: Final = 64
"""Brackets within brackets in a body."""
KEY_CHARACTERS_MAX: Final = 255
"""Of an Idempotency-Key."""

LANES: Final = 16
"""Transactions of one user that run at once. Never change it: a key's lane follows from it, on every gateway."""
LANE_PRODUCERS_MAX: Final = 64
"""Transactional producers that are open at once, of all users together."""
KEYS_MAX: Final = 1_000_000
"""Keys that a gateway remembers, some 200 bytes each."""
KEYS_KEPT_MS: Final = 24 * 3_600_000
"""How long the topic of answers is made to keep a key; its retention.ms says what counts."""
KEY_WAIT_S: Final = 30.0
"""How long a request with a key may take, waiting for others and for the node included."""
TRANSACTION_TIMEOUT_MS: Final = 15_000
"""How long readers wait at most for the transaction of a gateway that was killed."""
LET_OTHERS_END_S: Final = 2.0
"""How long a gateway lets another one finish a transaction before it takes over its lane."""

PRODUCERS_MAX: Final = 32
"""Producers outside transactions, one for each user."""
READERS_MAX: Final = 64
"""Polls and streams of records that are open at once."""
IDLE_READERS_MAX: Final = 8
POLL_RECORDS_MAX: Final = 10_000
POLL_BYTES_MAX: Final = 4 << 20
POLL_BYTES: Final = 1 << 20
POLL_WAIT_MS_MAX: Final = 30_000
TAIL_SILENCE_S: Final = 10.0
"""After how long without a record a stream of records sends a comment, so that a client that has gone is noticed."""
RETRY_AFTER_S: Final = 1
