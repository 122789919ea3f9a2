"""`semel health`, for health checks of containers and service managers."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from grpc_health.v1 import health_pb2
from running_node import create_topic, running_node

from semel.broker.handlers.topics.changes import delete_topics
from semel.cli.common import ExitCode
from semel.cli.health import SERVICE


def health(*arguments: str) -> tuple[int, str]:
    return semel("health", *arguments)


def doctor(*arguments: str) -> tuple[int, str]:
    return semel("doctor", *arguments)


def read(url: str) -> tuple[int, str]:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return answer.status, answer.read().decode()


def semel(*arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "semel.cli", *arguments],
        env={**os.environ, "GRPC_VERBOSITY": "NONE"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_a_node_serves_until_it_stops_and_takes_its_word_back_first(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_node(tmp_path) as node:
            address = ("--bootstrap", str(node.grpc_address), "--timeout", "20")
            assert await asyncio.to_thread(health, *address) == (ExitCode.OK, "serving\n")
            assert node.grpc_listener is not None
            await node.grpc_listener._health.set(SERVICE, health_pb2.HealthCheckResponse.NOT_SERVING)
            code, said = await asyncio.to_thread(health, *address)
            assert (code, "is stopping" in said) == (ExitCode.REFUSED, True), said
            node.grpc_listener._health._server_status.clear()
            code, said = await asyncio.to_thread(health, *address)
            assert (code, "is starting" in said) == (ExitCode.REFUSED, True), said

    asyncio.run(main())


def test_nobody_there_is_another_exit_code_and_names_the_address() -> None:
    code, said = health("--bootstrap", "127.0.0.1:1", "--timeout", "5")
    assert code == ExitCode.UNREACHABLE
    assert "127.0.0.1:1 does not answer" in said
    assert "Traceback" not in said


def test_several_addresses_are_refused() -> None:
    code, said = health("--bootstrap", "localhost:9094,localhost:9095")
    assert code == ExitCode.USAGE
    assert "give one address" in said


@pytest.mark.parametrize("text", ["0", "-1", "1e9", "nan"])
def test_a_wrong_time_out_is_refused(text: str) -> None:
    code, said = health("--timeout", text)
    assert code == ExitCode.USAGE
    assert "--timeout takes" in said


def test_partitions_that_are_offline_fail_the_check_unless_only_the_node_is_asked_for(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_node(tmp_path) as node:
            await create_topic(node, "a")
        shutil.rmtree(tmp_path / "data" / "a-0")
        async with running_node(tmp_path, metrics_listen="127.0.0.1:0") as node:
            address = ("--bootstrap", str(node.grpc_address), "--timeout", "20")
            code, said = await asyncio.to_thread(health, *address)
            assert (code, "partitions are offline" in said) == (ExitCode.REFUSED, True), said
            assert await asyncio.to_thread(health, *address, "--only-node") == (ExitCode.OK, "serving\n")
            for path in ("healthz", "readyz"):
                answer = await asyncio.to_thread(read, f"http://{node.metrics_address}/{path}")
                assert answer == (200, "ok, but 1 partition offline: see semel doctor\n")
            _, page = await asyncio.to_thread(read, f"http://{node.metrics_address}/metrics")
            assert 'semel_partitions{semel_state="offline"} 1' in page
            code, said = await asyncio.to_thread(doctor, "--bootstrap", str(node.grpc_address))
            assert code == 1
            assert "partition-vanished: a-0 is offline" in said
            assert "--accept-loss-of a:0" in said
            await delete_topics(node, ["a"])
            async with asyncio.timeout(120):
                while (await asyncio.to_thread(health, *address))[0] != ExitCode.OK:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)

    asyncio.run(main())
