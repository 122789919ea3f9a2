"""How fast record batches are encoded and decoded, beside aiokafka and kafka-python in the same run.

    python -P bench/codec.py
    python -P bench/codec.py --value-bytes 1000 --compression lz4

Every round runs each contender in turn, so that a change in the machine's mood meets all of them. The figures are CPU
time, because codecs wait for nothing and the machine may be shared: medians over the rounds, and the best round beside
them. Without compiled modules the interpreted ones are measured, and the first line says so.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import time
import warnings
from collections.abc import Callable
from typing import NamedTuple

import pyarrow as pa
from aiokafka.record.default_records import DefaultRecordBatch as AioBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AioBuilder

from semel.protocol import record_decoder
from semel.protocol.arrow import decode_to_arrow, encode_from_arrow
from semel.protocol.batch_builder import BatchBuilder
from semel.protocol.batch_header import validate_batches
from semel.protocol.compression import Compression
from semel.protocol.record_decoder import decode_records, decode_values

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.record.default_records import DefaultRecordBatch as KafkaBatch
    from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaBuilder

NOW = 1_700_000_000_000
ARROW_BATCHES = 10
TRACE = (("traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),)
KAFKA_PYTHON_CODECS = (Compression.NONE, Compression.GZIP)
"""kafka-python needs further packages for the others."""


class Contender(NamedTuple):
    task: str
    name: str
    run: Callable[[], object]
    batches: int = 1
    """How many batches one run handles."""


def contenders(keys: list[bytes], values: list[bytes], headers: int, compression: Compression) -> list[Contender]:
    """Return what is measured.

    Rows are made of the first tenth of `keys` and `values`; the Arrow columns are ten times as long, as those of a
    reader of megabytes, and without headers.
    """
    pairs = [(f"header-{n}", b"0123456789abcdef") for n in range(headers)]
    header_tuple = tuple(pairs)
    records = len(keys) // ARROW_BATCHES
    items = list(zip(keys[:records], values[:records], strict=True))

    def semel_encode() -> bytearray:
        builder = BatchBuilder(compression, capacity_bytes=16384)
        append = builder.append
        for key, value in items:
            append(NOW, key, value, header_tuple)
        return builder.build()

    def aiokafka_encode() -> bytearray:
        builder = AioBuilder(2, compression, 0, -1, -1, -1, 2**31 - 1)
        append = builder.append
        for offset, (key, value) in enumerate(items):
            append(offset, NOW, key, value, pairs)
        return builder.build()

    def kafka_encode() -> bytearray:
        builder = KafkaBuilder(2, int(compression), False, -1, -1, -1, 2**31 - 1)
        append = builder.append
        for offset, (key, value) in enumerate(items):
            append(offset, NOW, key, value, pairs)
        return builder.build()

    def aiokafka_decode() -> list[object]:
        batch = AioBatch(data)
        batch.validate_crc()
        return list(batch)

    def kafka_decode() -> list[object]:
        batch = KafkaBatch(data)
        batch.validate_crc()
        return list(batch)

    data = bytes(semel_encode())
    stamps = pa.array([NOW] * len(keys), pa.timestamp("ms"))
    columns = pa.RecordBatch.from_arrays([pa.array(keys), pa.array(values), stamps], ["key", "value", "timestamp"])

    def semel_from_arrow() -> bytearray:
        return encode_from_arrow(columns, compression=compression)

    def semel_from_arrow_traced() -> bytearray:
        return encode_from_arrow(columns, compression=compression, default_headers=TRACE)

    def semel_to_arrow() -> pa.RecordBatch:
        return decode_to_arrow([data] * ARROW_BATCHES, columns=["key", "value", "offset", "timestamp"])

    chosen = [
        Contender("encode", "semel", semel_encode),
        Contender("encode", "aiokafka", aiokafka_encode),
        Contender("encode", "semel from Arrow", semel_from_arrow, ARROW_BATCHES),
        Contender("encode", "semel from Arrow, traced", semel_from_arrow_traced, ARROW_BATCHES),
        Contender("decode", "semel", lambda: decode_records(data)),
        Contender("decode", "aiokafka", aiokafka_decode),
        Contender("decode", "semel, values only", lambda: decode_values(data)),
        Contender("decode", "semel to Arrow", semel_to_arrow, ARROW_BATCHES),
        Contender("check", "semel, broker's checks", lambda: validate_batches(data, max_batch_bytes=2**31)),
    ]
    if headers:
        chosen = [contender for contender in chosen if "Arrow" not in contender.name]
    if compression in KAFKA_PYTHON_CODECS:
        chosen.insert(2, Contender("encode", "kafka-python", kafka_encode))
        chosen.insert(-2, Contender("decode", "kafka-python", kafka_decode))
    return chosen


def measure(chosen: list[Contender], rounds: int, seconds: float) -> dict[Contender, list[float]]:
    """Return the seconds that one batch took, for each round; a round of one contender lasts about `seconds`."""
    repeats = {}
    for contender in chosen:
        contender.run()
        begin = time.process_time()
        contender.run()
        repeats[contender] = max(1, int(seconds / max(1e-9, time.process_time() - begin)))
    times: dict[Contender, list[float]] = {contender: [] for contender in chosen}
    for _ in range(rounds):
        for contender in chosen:
            begin = time.process_time()
            for _ in range(repeats[contender]):
                contender.run()
            times[contender].append((time.process_time() - begin) / repeats[contender] / contender.batches)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1000, help="records in a batch (default 1000)")
    parser.add_argument("--key-bytes", type=int, default=10, help="bytes of a key (default 10)")
    parser.add_argument("--value-bytes", type=int, default=90, help="bytes of a value (default 90)")
    parser.add_argument("--headers", type=int, default=0, help="headers of a record, 16 bytes each (default 0)")
    names = [codec.name.lower() for codec in Compression]
    parser.add_argument("--compression", choices=names, default="none", help="codec of the batches (default none)")
    parser.add_argument("--rounds", type=int, default=7, help="rounds, of which the median is taken (default 7)")
    parser.add_argument("--seconds", type=float, default=0.1, help="seconds for a contender in a round (default 0.1)")
    options = parser.parse_args()
    if options.records < 1 or options.rounds < 1 or options.key_bytes < 0 or options.value_bytes < 0:
        parser.error("records and rounds must be at least 1, and sizes not negative")

    rng = random.Random(1)
    words = [rng.randbytes(8).hex().encode() for _ in range(64)]
    keys = [(b"%0*d" % (options.key_bytes, n))[: options.key_bytes] for n in range(options.records * ARROW_BATCHES)]
    values = [
        b" ".join(rng.choices(words, k=options.value_bytes // 16 + 1))[: options.value_bytes]
        for _ in range(options.records * ARROW_BATCHES)
    ]
    chosen = contenders(keys, values, options.headers, Compression[options.compression.upper()])
    kind = "compiled" if str(record_decoder.__file__).endswith(".so") else "interpreted"
    print(
        f"semel {kind}; batches of {options.records} records with {options.key_bytes} B keys, "
        f"{options.value_bytes} B values, {options.headers} headers, compression {options.compression}; "
        f"medians of {options.rounds} rounds, CPU time\n"
    )
    # Full collections over the modules of four libraries would otherwise be most of what decoding to objects costs.
    gc.collect()
    gc.freeze()
    times = measure(chosen, options.rounds, options.seconds)
    base = {c.task: statistics.median(times[c]) for c in chosen if c.name == "aiokafka"}
    print("| task | contender | ns/record | best | records/s | MB/s | speed against aiokafka |")
    print("|---|---|---:|---:|---:|---:|---:|")
    for contender in chosen:
        seconds = statistics.median(times[contender])
        rate = options.records / seconds
        megabytes = rate * (options.key_bytes + options.value_bytes) / 1e6
        ratio = f"{base[contender.task] / seconds:.2f}x" if contender.task in base else "-"
        nanoseconds = seconds / options.records * 1e9
        best = min(times[contender]) / options.records * 1e9
        print(
            f"| {contender.task} | {contender.name} | {nanoseconds:.1f} | {best:.1f} | "
            f"{rate:,.0f} | {megabytes:,.0f} | {ratio} |"
        )


if __name__ == "__main__":
    main()
