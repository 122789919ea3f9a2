"""Whatever comes over a Kafka connection, it is answered or its connection is closed, and nobody else is harmed.

Plausible and broken requests of every API in every version. An exception that a handler did not expect is a failure,
as is memory that is kept. Runs for a few seconds; SEMEL_FUZZ_SECONDS makes it longer, SEMEL_FUZZ_SEED repeats a run.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import random
import resource
import time
from pathlib import Path

import pytest
from kafka_calls import call
from kafka_fuzz import RequestMaker
from longer_runs import given
from running_node import create_topic, running_node

from semel.broker.node import Node
from semel.protocol.kafka.api import ApiKey

FUZZ_SECONDS = float(given("SEMEL_FUZZ_SECONDS", "6"))
FUZZ_SEED = int(given("SEMEL_FUZZ_SEED", str(random.randrange(2**32))))
REQUESTS_MIN = 100
PATIENCE_S = 0.05
"""Long enough for most answers; those of requests that may wait (a join, a fetch) are not waited for."""

MEMORY_GROWTH_MAX = 400 << 20


class _Unexpected(logging.Handler):
    """Collects what the node logs when a handler raised what it should not."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append(logging.Formatter().format(record))


@pytest.mark.timeout(FUZZ_SECONDS + 120)
def test_no_bytes_harm_the_node_or_other_connections(tmp_path: Path) -> None:
    unexpected = _Unexpected()
    logger = logging.getLogger("semel")
    logger.addHandler(unexpected)
    try:
        asyncio.run(_fuzz(tmp_path, unexpected))
    finally:
        logger.removeHandler(unexpected)


async def _fuzz(folder: Path, unexpected: _Unexpected) -> None:
    async with running_node(folder, max_partitions=300) as node:
        await create_topic(node, "t", 3)
        await create_topic(node, "u")
        assert node.kafka_listener is not None
        listener = node.kafka_listener
        apis = list(listener.registry)
        maker = RequestMaker(FUZZ_SEED, [topic.topic_id.bytes for topic in node.metadata.image.topics.values()])
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        end, sent = time.monotonic() + FUZZ_SECONDS, 0
        while time.monotonic() < end or sent < REQUESTS_MIN:  # on a busy machine it takes longer
            api = apis[sent % len(apis)]
            frame = maker.frame(api)
            try:
                await _send(listener.port, frame)
            except Exception as error:
                raise AssertionError(f"SEMEL_FUZZ_SEED={FUZZ_SEED}: request {sent} of {api.key.name}") from error
            sent += 1
            assert not unexpected.seen, (
                f"SEMEL_FUZZ_SEED={FUZZ_SEED}: request {sent} of {api.key.name}: {frame.hex()}\n{unexpected.seen[0]}"
            )
            if sent % 200 == 0:
                await _is_well(node, listener.port)
        await _is_well(node, listener.port)
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
        assert grown < MEMORY_GROWTH_MAX, f"SEMEL_FUZZ_SEED={FUZZ_SEED}: {grown >> 20} MiB more after {sent} requests"
        await _until_quiet(node)


async def _send(port: int, frame: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        with contextlib.suppress(ConnectionError):
            writer.write(frame)
            await writer.drain()
            with contextlib.suppress(TimeoutError, asyncio.IncompleteReadError):
                async with asyncio.timeout(PATIENCE_S):
                    size = int.from_bytes(await reader.readexactly(4), "big")
                    await reader.readexactly(size)
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def _is_well(node: Node, port: int) -> None:
    """Others are served as ever."""
    assert not node.failed.done()
    async with asyncio.timeout(20):
        versions = await call(port, ApiKey.API_VERSIONS, 3, client_software_name="t", client_software_version="1")
        assert versions.error_code == 0
        metadata = await call(port, ApiKey.METADATA, 9, topics=None)
        assert metadata.brokers


async def _until_quiet(node: Node) -> None:
    """Nothing is kept for connections that are gone."""
    gc.collect()
    async with asyncio.timeout(20):
        while True:
            assert node.kafka_listener is not None
            statistics = node.kafka_listener.statistics()
            if statistics.connections == 0 and statistics.reserved_bytes == 0:
                return
            await asyncio.sleep(0.02)
