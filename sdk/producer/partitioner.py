# cython: annotation_typing=False
"""Which partition a record goes to: by its key as Kafka's default does, or where its batch is, or as the user says.

Records with a key go where any Kafka client with the default partitioner puts them (murmur2 of the key), so that
Semel's and other clients' records with the same key meet. Records without one stay with one partition until its batch
ends, then change to another at random: batches are as large as can be, and the partitions fill evenly (KIP-480,
KIP-794).
"""

from __future__ import annotations

from typing import Protocol

try:
    import cython
except ModuleNotFoundError:
    from semel.protocol import uncompiled as cython

_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995
_MASK = 0xFFFFFFFF


class Partitioner(Protocol):
    """A partitioner of the user's own, called on the sending thread for each record without an explicit partition."""

    def __call__(self, topic: str, key: bytes | None, value: bytes | None, partition_count: int) -> int:
        """Return a number from 0 to `partition_count` - 1. Key and value are serialised already."""
        ...


if not cython.compiled:

    def part_source(view: memoryview) -> memoryview:
        return view.cast("B")  # Arrow's buffers give signed bytes

    def int32_at(view: memoryview) -> memoryview:
        return view.cast("B").cast("i")

    def int32s_of(view: memoryview) -> memoryview:
        return view.cast("B").cast("i")


def murmur2(data: bytes) -> int:
    """Return the 32-bit MurmurHash2 of `data` with Kafka's seed, as an unsigned number."""
    return _murmur2(data, 0, len(data))


def _murmur2(raw: bytes | memoryview, position: int, size: int) -> int:
    end = position + size
    mixed = (_SEED ^ size) & _MASK
    while end - position >= 4:
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
    if end - position == 3:
        mixed ^= raw[position + 2] << 16
    if end - position >= 2:
        mixed ^= raw[position + 1] << 8
    if end - position >= 1:
        mixed ^= raw[position]
        mixed = (mixed * _MULTIPLIER) & _MASK
    mixed ^= mixed >> 13
    mixed = (mixed * _MULTIPLIER) & _MASK
    mixed ^= mixed >> 15
    return mixed


def partition_for_key(key: bytes, partition_count: int) -> int:
    """Return the partition of a key: Kafka's `toPositive(murmur2(key)) % n`."""
    return (murmur2(key) & 0x7FFFFFFF) % partition_count


def partitions_for_keys(
    offsets: memoryview, data: memoryview, valid: memoryview | None, first: int, partition_count: int, out: memoryview
) -> None:
    """Write the partition of each key of an Arrow binary array into `out`, int32 for each; -1 for a null.

    offsets, data, valid: the array's buffers, of 32-bit offsets. first: the array's first row within them.
    """
    places = int32_at(offsets)
    raw = part_source(data)
    bits_view = memoryview(b"") if valid is None else valid
    bits = part_source(bits_view)
    found = int32s_of(out)
    rows = out.nbytes // 4
    last = first + rows
    size = data.nbytes
    bits_size = bits_view.nbytes
    if offsets.nbytes < 4 * (last + 1) or (valid is not None and 8 * bits_size < last):
        raise ValueError(f"the buffers of an Arrow array are too short for {last} rows")
    row = first
    while row < last:
        start = places[row]
        end = places[row + 1]
        if bits_size and not bits[row >> 3] >> (row & 7) & 1:
            found[row - first] = -1
        elif start < 0 or end < start or end > size:
            raise ValueError(f"the offsets of row {row} of an Arrow array lead outside its bytes")
        else:
            found[row - first] = (_murmur2(raw, start, end - start) & 0x7FFFFFFF) % partition_count
        row = row + 1
