"""Keys go where Kafka's default partitioner puts them. The vectors are those of Kafka's own test of murmur2."""

from __future__ import annotations

from types import ModuleType

import pyarrow as pa
import pytest
from interpreted import interpreted

import semel.sdk.producer.partitioner as imported

VECTORS = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.fixture(params=["as installed", "interpreted"])
def partitioner(request: pytest.FixtureRequest) -> ModuleType:
    return imported if request.param == "as installed" else interpreted("semel.sdk.producer.partitioner")[0]


@pytest.mark.parametrize(("key", "expected"), VECTORS.items())
def test_murmur2_is_kafkas(partitioner: ModuleType, key: bytes, expected: int) -> None:
    assert partitioner.murmur2(key) == expected & 0xFFFFFFFF


def test_partition_for_key_takes_the_positive_hash(partitioner: ModuleType) -> None:
    assert partitioner.partition_for_key(b"21", 7) == (-973932308 & 0x7FFFFFFF) % 7
    assert partitioner.partition_for_key(b"abc", 1) == 0


def test_both_ways_of_running_agree() -> None:
    (other,) = interpreted("semel.sdk.producer.partitioner")
    for size in range(70):
        key = bytes((size * 37 + position * 101) & 0xFF for position in range(size))
        assert imported.murmur2(key) == other.murmur2(key)


def test_a_column_of_keys_goes_where_its_keys_go(partitioner: ModuleType) -> None:
    keys = [
        None if row % 11 == 0 else bytes((row * 37 + at * 101) & 0xFF for at in range(row % 23)) for row in range(90)
    ]
    for column in (pa.array(keys, pa.binary()), pa.array(keys, pa.binary()).slice(5, 70)):
        valid, offsets, data = (memoryview(buffer) for buffer in column.buffers())
        out = bytearray(4 * len(column))
        partitioner.partitions_for_keys(offsets, data, valid, column.offset, 7, memoryview(out))
        expected = [-1 if key is None else partitioner.partition_for_key(key, 7) for key in column.to_pylist()]
        assert memoryview(out).cast("i").tolist() == expected


def test_a_column_whose_offsets_lie_is_refused(partitioner: ModuleType) -> None:
    _, offsets, data = pa.array([b"abc", b"defgh"], pa.binary()).buffers()
    out = memoryview(bytearray(8))
    with pytest.raises(ValueError, match=r"row 1 .* outside its bytes"):
        partitioner.partitions_for_keys(memoryview(offsets), memoryview(data)[:5], None, 0, 3, out)
    with pytest.raises(ValueError, match="too short for 2 rows"):
        partitioner.partitions_for_keys(memoryview(offsets)[:8], memoryview(data), None, 0, 3, out)
    with pytest.raises(ValueError, match="too short for 2 rows"):
        partitioner.partitions_for_keys(memoryview(offsets), memoryview(data), memoryview(b""), 0, 3, out)
