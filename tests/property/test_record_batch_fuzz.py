"""Random records read back as written, and mutated bytes give a clear error, never a crash or unbounded memory.

The fuzzing runs for a few seconds; SEMEL_FUZZ_SECONDS makes it longer. SEMEL_FUZZ_SEED repeats a run: the seed is in
the message of a failure.
"""

from __future__ import annotations

import contextlib
import random
import struct
import time
from typing import Any

import pytest
from codec_twins import codec as codec_twin
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from longer_runs import given as given_length

from semel.protocol.compression import Compression, compress, decompress
from semel.protocol.corruption import CorruptDataError
from semel.protocol.crc32c import crc32c
from semel.protocol.schema import Reader

FUZZ_SECONDS = float(given_length("SEMEL_FUZZ_SECONDS", "2"))
FUZZ_SEED = int(given_length("SEMEL_FUZZ_SEED", str(random.randrange(2**32))))
LIMIT = 1_000_000

maybe_bytes = st.none() | st.binary(max_size=200)
timestamps = st.integers(-1, 2**62 - 1) | st.integers(1_600_000_000_000, 1_800_000_000_000)
names = st.text(max_size=10)
header_lists = st.lists(st.tuples(names, maybe_bytes), max_size=4).map(tuple)
record_lists = st.lists(st.tuples(timestamps, maybe_bytes, maybe_bytes, header_lists), min_size=1, max_size=20)


@pytest.fixture(params=["built", "interpreted"])
def codec(request: pytest.FixtureRequest) -> Any:
    return codec_twin(request.param)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    records=record_lists,
    compression=st.sampled_from(Compression),
    base_offset=st.integers(0, 2**62),
    producer=st.tuples(st.integers(-1, 2**63 - 1), st.integers(-1, 2**15 - 1), st.integers(-1, 2**31 - 1)),
    transactional=st.booleans(),
)
def test_records_round_trip(
    codec: Any,
    records: list[Any],
    compression: Compression,
    base_offset: int,
    producer: tuple[int, int, int],
    transactional: bool,
) -> None:
    options = {"base_offset": base_offset, "producer_id": producer[0], "producer_epoch": producer[1]}
    batch = codec.encode_batch(
        records, compression=compression, base_sequence=producer[2], transactional=transactional, **options
    )
    (header,) = codec.validate_batches(batch, max_batch_bytes=10**9)
    assert header.record_count == len(records)
    assert header.max_timestamp_ms == max(record[0] for record in records)
    assert header.is_transactional is transactional
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == producer
    read = codec.decode_records(batch)
    assert [(r.timestamp_ms, r.key, r.value, r.headers) for r in read] == records
    assert [r.offset for r in read] == list(range(base_offset, base_offset + len(records)))
    assert codec.decode_values(batch) == [record[2] for record in records]
    kept = read[::2]
    assert codec.decode_records(codec.rewrite_batch(header, kept)) == kept


@settings(max_examples=100, deadline=None)
@given(data=st.binary(max_size=5000), codec_id=st.sampled_from(Compression), repeat=st.integers(1, 50))
def test_codecs_round_trip(data: bytes, codec_id: Compression, repeat: int) -> None:
    data *= repeat
    assert bytes(decompress(codec_id, compress(codec_id, data), max_size_bytes=len(data))) == data


def mutate(rng: random.Random, data: bytes) -> bytearray:
    """Change some bytes the way that finds faults in parsers: bits, edges of numbers, cuts, copies, insertions."""
    mutated = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        if not mutated:
            break
        place = rng.randrange(len(mutated))
        match rng.randrange(7):
            case 0:
                mutated[place] ^= 1 << rng.randrange(8)
            case 1:
                mutated[place] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))
            case 2:
                size = rng.randrange(1, 11)
                mutated[place : place + size] = rng.choice((b"\xff", b"\x80", b"\x00")) * size
            case 3:
                del mutated[place:]
            case 4:
                end = rng.randrange(place, len(mutated))
                del mutated[place : min(end, place + 16)]
            case 5:
                source = rng.randrange(len(mutated))
                mutated[place:place] = mutated[source : source + rng.randrange(1, 16)]
            case _:
                mutated[place:place] = rng.randbytes(rng.randrange(1, 9))
    return mutated


def seal(data: bytearray) -> bytearray:
    """Give mutated bytes the right length and checksum, so that the mutation reaches what is behind them."""
    if len(data) >= 61:
        struct.pack_into(">i", data, 8, len(data) - 12)
        data[16] = 2
        struct.pack_into(">I", data, 17, crc32c(data, 21))
    return data


def samples(codec: Any) -> list[bytes]:
    now = 1_700_000_000_000
    plain = [(now + n, b"key%d" % n, b"value" * n, (("h", b"x"), ("n", None)) if n % 2 else ()) for n in range(12)]
    markers = codec.encode_control_batch(
        codec.ControlType.ABORT, producer_id=1, producer_epoch=1, coordinator_epoch=1, timestamp_ms=now
    )
    batches = [codec.encode_batch(plain, compression=codec_id) for codec_id in Compression]
    return [*batches, markers, codec.encode_batch([(now, None, None, ())]), batches[0] + batches[3]]


def check(codec: Any, data: bytearray) -> None:
    """Everything that reads a batch either answers within its bounds or raises the error for corrupt bytes."""
    with contextlib.suppress(CorruptDataError):
        for header in codec.validate_batches(data, max_batch_bytes=2**31, strict_count=False):
            assert 61 <= header.size_bytes <= len(data)
    for check_crc in (True, False):
        with contextlib.suppress(CorruptDataError):
            records = codec.decode_records(data, max_uncompressed_bytes=LIMIT, check_crc=check_crc)
            values = codec.decode_values(data, max_uncompressed_bytes=LIMIT, check_crc=check_crc)
            assert values == [record.value for record in records]
            size = sum(len(record.key or b"") + len(record.value or b"") for record in records)
            assert size <= LIMIT
            for record in records:
                assert all(isinstance(name, str) for name, _ in record.headers)
        with contextlib.suppress(CorruptDataError):
            table = codec.decode_to_arrow([data], max_uncompressed_bytes=LIMIT, check_crc=check_crc)
            table.validate(full=True)


@pytest.mark.parametrize("kind", ["built", "interpreted"])
def test_mutated_batches_never_do_worse_than_raise(kind: str) -> None:
    codec = codec_twin(kind)
    rng = random.Random(FUZZ_SEED)
    sources = samples(codec)
    until = time.monotonic() + FUZZ_SECONDS
    rounds = 0
    while time.monotonic() < until:
        source = rng.choice(sources)
        data = mutate(rng, source)
        if rng.random() < 0.7:
            seal(data)
        try:
            check(codec, data)
        except BaseException as error:
            error.add_note(f"SEMEL_FUZZ_SEED={FUZZ_SEED}, round {rounds}, bytes {bytes(data).hex()}")
            raise
        rounds += 1
    assert rounds > 0


def test_twins_agree_on_mutated_batches() -> None:
    built, interpreted = codec_twin("built"), codec_twin("interpreted")
    rng = random.Random(FUZZ_SEED)
    sources = samples(built)

    def outcome(codec: Any, data: bytearray) -> Any:
        try:
            return [
                (r.offset, r.timestamp_ms, r.key, r.value, r.headers)
                for r in codec.decode_records(data, max_uncompressed_bytes=LIMIT)
            ]
        except CorruptDataError as error:
            return str(error)

    until = time.monotonic() + FUZZ_SECONDS / 2
    while time.monotonic() < until:
        data = seal(mutate(rng, rng.choice(sources)))
        assert outcome(built, data) == outcome(interpreted, data), f"SEMEL_FUZZ_SEED={FUZZ_SEED}, {bytes(data).hex()}"


@pytest.mark.parametrize("codec_id", list(Compression)[1:])
def test_mutated_frames_never_do_worse_than_raise(codec_id: Compression) -> None:
    rng = random.Random(FUZZ_SEED)
    text = b"".join(b"%d, " % n for n in range(20_000))
    sources = [bytes(compress(codec_id, data)) for data in (b"", b"abc", text, rng.randbytes(70_000), bytes(200_000))]
    until = time.monotonic() + FUZZ_SECONDS / 4
    while time.monotonic() < until:
        data = mutate(rng, rng.choice(sources))
        try:
            assert len(decompress(codec_id, data, max_size_bytes=LIMIT)) <= LIMIT
        except CorruptDataError:
            pass
        except BaseException as error:
            error.add_note(f"SEMEL_FUZZ_SEED={FUZZ_SEED}, bytes {bytes(data).hex()[:2000]}")
            raise


def test_random_structs_never_do_worse_than_raise() -> None:
    rng = random.Random(FUZZ_SEED)
    plain = [name for name in dir(Reader) if not name.startswith("_") and "array" not in name]
    plain = [name for name in plain if name not in ("position", "remaining", "raw", "expect_end")]
    arrays = [name for name in dir(Reader) if "array" in name]
    until = time.monotonic() + FUZZ_SECONDS / 4
    while time.monotonic() < until:
        reader = Reader(mutate(rng, rng.randbytes(rng.randrange(40)) + bytes(8)))
        try:
            while reader.remaining:
                if rng.random() < 0.3:
                    getattr(reader, rng.choice(arrays))(getattr(reader, rng.choice(plain)))
                else:
                    getattr(reader, rng.choice(plain))()
        except CorruptDataError:
            pass
