"""Programs that run on uvloop, as most under uvicorn do: clients, a log in the program, the test kit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

START = """
import asyncio, sys, uvloop
import semel, semel.aio, semel.testing
uvloop.install()
"""

TEST_KIT = """
with semel.testing.Broker() as broker:
    broker.create_topic("t")
    with semel.Producer(broker.bootstrap, transactional_id="x") as producer, producer.transaction():
        producer.send("t", b"once")
    with semel.Consumer(broker.bootstrap, group="g", topics=["t"]) as consumer:
        print([record.value for record in consumer.poll(10)])
"""

EMBEDDED = """
with semel.open(sys.argv[1]) as log:
    log.create_topic("t")
    with log.producer(transactional_id="x") as producer, producer.transaction():
        producer.send("t", b"once")
    with log.consumer(group="g", topics=["t"]) as consumer:
        print([record.value for record in consumer.poll(10)])
"""

CLIENTS = """
async def main(bootstrap):
    async with semel.aio.Admin(bootstrap) as admin:
        await admin.create_topic("t")
    async with semel.aio.Producer(bootstrap, transactional_id="x") as producer:
        async with producer.transaction():
            await producer.send("t", b"once")
    async with semel.aio.Consumer(bootstrap, group="g", topics=["t"]) as consumer:
        print([record.value for record in await consumer.poll(10)])

with semel.testing.Broker() as broker:
    asyncio.run(main(broker.bootstrap))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there is no uvloop for Windows")
@pytest.mark.parametrize("program", [TEST_KIT, EMBEDDED, CLIENTS], ids=["test kit", "embedded", "clients"])
def test_a_program_on_uvloop_has_its_records_once(program: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", START + program, str(tmp_path / "log")],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[b'once']\n"
