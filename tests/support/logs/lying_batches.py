"""Batches with a right checksum whose records are no records, each in one way, in any codec (S4)."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from semel.protocol.batch_header import HEADER
from semel.protocol.compression import Compression, compress
from semel.protocol.crc32c import crc32c
from semel.protocol.errors import ErrorCode

NOW_MS = 1_700_000_000_000


def number(value: int) -> bytes:
    """A zigzag-coded varint."""
    raw = (value << 1) ^ (value >> 63)
    raw &= (1 << 64) - 1
    coded = bytearray()
    while raw > 0x7F:
        coded.append(raw & 0x7F | 0x80)
        raw >>= 7
    coded.append(raw)
    return bytes(coded)


def field(data: bytes | None, size: int | None = None) -> bytes:
    size = (-1 if data is None else len(data)) if size is None else size
    return number(size) + (data or b"")


def record(
    value: bytes | None = b"value",
    *,
    key: bytes | None = None,
    delta: int = 0,
    time: int = 0,
    length: int | None = None,
    key_field: bytes | None = None,
    value_field: bytes | None = None,
    headers: bytes = b"\0",
) -> bytes:
    body = b"\0" + number(time) + number(delta)
    body += (field(key) if key_field is None else key_field) + (field(value) if value_field is None else value_field)
    body += headers
    return number(len(body) if length is None else length) + body


def sealed(
    records: bytes,
    count: int,
    *,
    codec: Compression = Compression.NONE,
    last_delta: int | None = None,
    base_time: int = NOW_MS,
    max_time: int = NOW_MS,
    is_compressed: bool = False,
) -> bytearray:
    """A batch with these records, as they are or compressed, and a right checksum."""
    body = records if is_compressed else bytes(compress(codec, records))
    last = count - 1 if last_delta is None else last_delta
    batch = bytearray(
        HEADER.pack(0, 49 + len(body), -1, 2, 0, int(codec), last, base_time, max_time, -1, -1, -1, count) + body
    )
    struct.pack_into(">I", batch, 17, crc32c(batch, 21))
    return batch


def _garbage(codec: Compression) -> bytearray:
    return sealed(random.Random(60).randbytes(60), 1, codec=codec, is_compressed=True)


def _of(*records: bytes, count: int | None = None, **header: int) -> Callable[[Compression], bytearray]:
    def build(codec: Compression) -> bytearray:
        number_of = len(records) if count is None else count
        return sealed(b"".join(records), number_of, codec=codec, **header)  # type: ignore[arg-type]

    return build


@dataclass(frozen=True)
class Lie:
    """How to build the batch, and what a node answers to it."""

    build: Callable[[Compression], bytearray]
    code: ErrorCode = ErrorCode.INVALID_RECORD


LIES: Mapping[str, Lie] = {
    "count of 40 for one record": Lie(_of(record(), count=40)),
    "count of 2^31-1 for one record": Lie(_of(record(), count=2**31 - 1)),
    "count of one for 40 offsets": Lie(_of(record(), count=1, last_delta=39)),
    "one record more than counted": Lie(_of(record(), record(delta=1), count=1)),
    "bytes behind the records": Lie(_of(record(), b"\0\0\0", count=1)),
    "offset delta twice": Lie(_of(record(), record())),
    "offset deltas that descend": Lie(_of(record(delta=1), record(delta=0))),
    "offset delta that begins at one": Lie(_of(record(delta=1))),
    "offset delta below zero": Lie(_of(record(delta=-1))),
    "offset delta of 2^30": Lie(_of(record(), record(delta=2**30))),
    "record length below zero": Lie(_of(record(length=-3))),
    "record length of 2^31-1": Lie(_of(record(length=2**31 - 1))),
    "record length one too long": Lie(_of(record(length=12), record(delta=1))),
    "record length one too short": Lie(_of(record(length=10), record(delta=1))),
    "key size below -1": Lie(_of(record(key_field=field(b"", -2)))),
    "key size beyond the record": Lie(_of(record(key_field=field(b"k", 100)))),
    "value size of 2^31-1": Lie(_of(record(value_field=field(b"v", 2**31 - 1)))),
    "value size below -1": Lie(_of(record(value_field=field(b"", -5)))),
    "header count of 2^31-1": Lie(_of(record(headers=number(2**31 - 1)))),
    "header count below zero": Lie(_of(record(headers=number(-1)))),
    "header without a name": Lie(_of(record(headers=number(1) + field(None) + field(b"x")))),
    "header value beyond the record": Lie(_of(record(headers=number(1) + field(b"n") + field(b"x", 9)))),
    "number of eleven bytes": Lie(_of(number(20) + b"\0" + b"\xff" * 10 + b"\1" * 9)),
    "number that ends early": Lie(_of(number(6) + b"\0" + b"\xff" * 5)),
    "random bytes": Lie(lambda codec: sealed(random.Random(7).randbytes(60), 1, codec=codec)),
    "garbage in the place of the codec": Lie(_garbage),
    "time of 2^63-1": Lie(_of(record(), base_time=2**63 - 1, max_time=2**63 - 1), ErrorCode.INVALID_TIMESTAMP),
    "time of -2^63": Lie(_of(record(), base_time=-(2**63), max_time=-(2**63)), ErrorCode.INVALID_TIMESTAMP),
    "time delta of 2^63-1": Lie(_of(record(time=2**63 - 1)), ErrorCode.INVALID_TIMESTAMP),
    "time delta of -2^63": Lie(_of(record(time=-(2**63))), ErrorCode.INVALID_TIMESTAMP),
    "time of the year 300,000": Lie(_of(record(), base_time=9_400_000_000_000_000), ErrorCode.INVALID_TIMESTAMP),
}
"""By what is wrong."""
