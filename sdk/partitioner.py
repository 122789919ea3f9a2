"""Which partition a record goes to: by its key as Kafka's default does, or where its batch is, or as the user says.

Records with a key go where any Kafka client with the default partitioner puts them (murmur2 of the key), so that
Semel's and other clients' records with the same key meet. Records without one stay with one partition until its batch
ends, then change to another at random: batches are as large as can be, and the partitions fill evenly (KIP-480,
KIP-794).
"""

from __future__ import annotations

from typing import Protocol

import cython

_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995
_MASK = 0xFFFFFFFF


class Partitioner(Protocol):
    """A partitioner of the user's own, called on the sending thread for each record without an explicit partition."""

    def __call__(self, topic: str, key: bytes | None, value: bytes | None, partition_count: int) -> int:
        """Return a number from 0 to `partition_count` - 1. Key and value are serialised already."""
        ...


def murmur2(data: bytes) -> int:
    """Return the 32-bit MurmurHash2 of `data` with Kafka's seed, as an unsigned number."""
    size: cython.Py_ssize_t = len(data)
    raw: cython.p_const_uchar = data
    position: cython.Py_ssize_t = 0
    word: cython.uint
    mixed: cython.uint = (_SEED ^ size) & _MASK
    while size - position >= 4:
        word = (
            raw[position]
            | raw[position + 1] << 8
            | raw[position + 2] << 16
            | cython.cast(cython.uint, raw[position + 3]) << 24
        )
        word = (word * _MULTIPLIER) & _MASK
        word ^= word >> 24
        word = (word * _MULTIPLIER) & _MASK
        mixed = (mixed * _MULTIPLIER) & _MASK
        mixed ^= word
        position += 4
    if size - position == 3:
        mixed ^= raw[position + 2] << 16
    if size - position >= 2:
        mixed ^= raw[position + 1] << 8
    if size - position >= 1:
        mixed ^= raw[position]
        mixed = (mixed * _MULTIPLIER) & _MASK
    mixed ^= mixed >> 13
    mixed = (mixed * _MULTIPLIER) & _MASK
    mixed ^= mixed >> 15
    return mixed  # type: ignore[no-any-return]


def partition_for_key(key: bytes, partition_count: cython.int) -> int:
    """Return the partition of a key: Kafka's `toPositive(murmur2(key)) % n`."""
    return (murmur2(key) & 0x7FFFFFFF) % partition_count  # type: ignore[no-any-return]
