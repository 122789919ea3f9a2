"""A node whose object store answers as slowly as S3 does, by a model: lognormal, with a median and a 99th percentile.

    python -P bench/modelled_node.py DATA_DIR METADATA_URL [NAME=VALUE ...]

Objects are in memory. It prints `ready HOST:PORT HOST:PORT` (Kafka, gRPC), and for each line that it reads what it has
asked of the store and committed so far, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Final

from semel.broker.config.sources import load_config
from semel.broker.diskless.diskless import Diskless
from semel.broker.node import Node
from semel.broker.tiers.object_store import Level, ObjectMissingError
from semel.runtime.storage import Buffer

PUT_MS: Final = (80.0, 300.0)
GET_MS: Final = (20.0, 100.0)
_Z99: Final = 2.3263


class ModelledStore:
    """Objects in memory, as slow as S3 (`ObjectStore`)."""

    location = "modelled://"

    def __init__(self) -> None:
        self._objects: dict[str, bytes] = {}
        self._chance = random.Random(1)

    async def _wait(self, median_ms: float, p99_ms: float) -> None:
        sigma = math.log(p99_ms / median_ms) / _Z99
        await asyncio.sleep(self._chance.lognormvariate(math.log(median_ms), sigma) / 1000)

    async def put(self, key: str, data: Iterator[Buffer], size_bytes: int) -> None:
        body = b"".join(data)
        await self._wait(*PUT_MS)
        self._objects[key] = body

    async def read(self, key: str, position: int, size_bytes: int) -> bytes:
        await self._wait(*GET_MS)
        if key not in self._objects:
            raise ObjectMissingError(f"there is no {key}")
        return self._objects[key][position : position + size_bytes]

    async def size(self, key: str) -> int:
        return len(self._objects[key])

    async def delete(self, key: str) -> None:
        await self._wait(*GET_MS)
        self._objects.pop(key, None)

    async def list(self, prefix: str) -> AsyncIterator[tuple[str, int]]:
        for key in sorted(self._objects):
            if key.startswith(prefix):
                yield key, len(self._objects[key])

    async def level(self, prefix: str) -> Level:
        return Level([], [])

    def close(self) -> None:
        """The objects end with the process."""


async def main() -> None:
    data_dir, url, *settings = sys.argv[1:]
    given: dict[str, str] = {
        "data.dir": data_dir,
        "metadata.url": url,
        "remote.storage.url": "s3://modelled",
        "log.diskless.enable": "true",
        "kafka.listen": "127.0.0.1:0",
        "grpc.listen": "127.0.0.1:0",
        **dict(one.split("=", 1) for one in settings),
    }
    flags = [(f"--set {name}", name, value) for name, value in given.items()]
    node = await Node.start(load_config(flags=flags, environment={}), object_store=ModelledStore())
    print("ready", node.kafka_address, node.grpc_address, flush=True)
    loop = asyncio.get_running_loop()
    tier = node.tier
    assert tier is not None
    tail = tier._tail
    assert isinstance(tail, Diskless)
    while await loop.run_in_executor(None, sys.stdin.readline):
        counted = {
            **tier.requests(),
            "sent_bytes": tier.sent_bytes,
            "read_bytes": tier.read_bytes,
            "commits": tail.writer.commits,
            "entries": tail.writer.entries,
            "objects": tail.writer.objects,
            "inline_bytes": tail.writer.inline_bytes,
        }
        print(json.dumps(counted), flush=True)
    await node.stop(grace_ms=1_000)


if __name__ == "__main__":
    asyncio.run(main())
