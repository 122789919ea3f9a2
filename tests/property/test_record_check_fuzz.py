"""S4, at random: of a batch that was changed anywhere and sealed again, the node refuses what a reader could not read.

SEMEL_FUZZ_SECONDS makes it longer; SEMEL_FUZZ_SEED repeats a run: the seed is in the message of a failure.
"""

from __future__ import annotations

import random
import struct
import time
from types import ModuleType

import pytest
from interpreted import interpreted
from longer_runs import given as given_length

from semel.broker.log import append_validation
from semel.broker.log.append_validation import check_batch
from semel.broker.log.config import LogConfig
from semel.protocol import record_check
from semel.protocol.batch_builder import encode_batch
from semel.protocol.batch_header import ATTRIBUTES_AT, BATCH_OVERHEAD, COMPRESSION_MASK, CRC_AT, read_header
from semel.protocol.compression import Compression, compress
from semel.protocol.crc32c import crc32c
from semel.protocol.errors import SemelError
from semel.protocol.ids import TopicPartition
from semel.protocol.record_check import TIMESTAMP_MS_MAX
from semel.protocol.record_decoder import decode_records

FUZZ_SECONDS = float(given_length("SEMEL_FUZZ_SECONDS", "2"))
FUZZ_SEED = int(given_length("SEMEL_FUZZ_SEED", str(random.randrange(2**32))))
TP = TopicPartition("t", 0)
INTERESTING = (0, 1, 2, 3, 0x0E, 0x7F, 0x80, 0x81, 0xFE, 0xFF)


def a_batch(dice: random.Random) -> tuple[bytearray, bytearray]:
    """A good batch, uncompressed: its header, and its records."""
    records = [
        (
            dice.choice([-1, 0, 1_700_000_000_000 + dice.randrange(-5_000, 5_000)]),
            dice.choice([None, b"", b"key", dice.randbytes(dice.randrange(200))]),
            dice.choice([None, b"", b"value" * 20, dice.randbytes(dice.randrange(300))]),
            tuple((f"h{n}", dice.choice([None, b"", b"x" * 70])) for n in range(dice.choice([0, 0, 0, 1, 3]))),
        )
        for _ in range(dice.choice([1, 2, 5, 70, 200]))
    ]
    batch = bytearray(encode_batch(records))
    return batch[:BATCH_OVERHEAD], batch[BATCH_OVERHEAD:]


def mutated(dice: random.Random) -> bytearray:
    """A batch that was changed in its header, its records or its compressed bytes, or not at all; sealed again."""
    head, records = a_batch(dice)
    codec = dice.choice(list(Compression))
    for _ in range(dice.choice([0, 1, 1, 1, 2, 6])):
        at = dice.randrange(len(records))
        match dice.randrange(5):
            case 0:
                records[at] ^= 1 << dice.randrange(8)
            case 1:
                records[at] = dice.choice(INTERESTING)
            case 2:
                del records[at : at + dice.randrange(1, 4)]
                records = records or bytearray(1)
            case 3:
                records[at:at] = dice.randbytes(dice.randrange(1, 12))
            case _:
                # The numbers that matter are at the beginning.
                records[dice.randrange(min(10, len(records)))] = dice.randrange(256)
    if dice.random() < 0.2:
        # Last offset delta, times, record count.
        at = dice.choice([23, 27, 35, 57]) + dice.randrange(4)
        head[at] = dice.choice(INTERESTING)
    body = bytearray(compress(codec, records))
    if codec and body and dice.random() < 0.2:
        body[dice.randrange(len(body))] = dice.randrange(256)
    (attributes,) = struct.unpack_from(">h", head, ATTRIBUTES_AT)
    struct.pack_into(">h", head, ATTRIBUTES_AT, attributes & ~COMPRESSION_MASK | codec)
    struct.pack_into(">i", head, 8, len(head) + len(body) - 12)
    batch = head + body
    struct.pack_into(">I", batch, CRC_AT, crc32c(batch, ATTRIBUTES_AT))
    return batch


@pytest.mark.parametrize("kind", ["as installed", "interpreted"])
def test_S4_what_is_accepted_can_be_read(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module: ModuleType = record_check
    if kind == "interpreted":
        (module,) = interpreted("semel.protocol.record_check")
        monkeypatch.setattr(append_validation, "summarize_records", module.summarize_records)
    accepted = refused = 0
    seed = FUZZ_SEED
    end = time.monotonic() + FUZZ_SECONDS
    while time.monotonic() < end or accepted < 20 or refused < 20:
        seed += 1
        batch = mutated(random.Random(seed))
        try:
            found = check_batch(TP, bytearray(batch), LogConfig())
        except SemelError:
            refused += 1
            continue
        accepted += 1
        try:
            records = decode_records(found.buffer)
        except SemelError as error:
            raise AssertionError(f"seed {seed}: taken, and nobody can read it: {error}") from error
        header = read_header(found.buffer)
        assert [record.offset - header.base_offset for record in records] == list(range(header.record_count)), seed
        assert all(abs(record.timestamp_ms) <= TIMESTAMP_MS_MAX for record in records), seed
        assert header.max_timestamp_ms == max(record.timestamp_ms for record in records), seed


def test_S4_compiled_and_interpreted_checks_agree() -> None:
    (twin,) = interpreted("semel.protocol.record_check")
    for number in range(3_000):
        seed = FUZZ_SEED + number
        dice = random.Random(seed)
        head, records = a_batch(dice)
        for _ in range(dice.randrange(3)):
            records[dice.randrange(len(records))] = dice.choice(INTERESTING)
        header = read_header(head)
        found, again = (
            each.summarize_records(header, bytes(records), 0, len(records)) for each in (record_check, twin)
        )
        for name in ("fault", "place", "min_timestamp_ms", "max_timestamp_ms", "complaint"):
            assert getattr(found, name) == getattr(again, name), (seed, name)
        if not found.fault:
            assert found.keyless == again.keyless, seed
