"""`semel health`, for health checks of containers and service managers."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
from grpc_health.v1 import health_pb2
from running_node import running_node

from semel.cli.common import ExitCode
from semel.cli.health import SERVICE


def health(*arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "semel.cli", "health", *arguments],
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
            assert node._grpc is not None
            await node._grpc._health.set(SERVICE, health_pb2.HealthCheckResponse.NOT_SERVING)
            code, said = await asyncio.to_thread(health, *address)
            assert (code, "is stopping" in said) == (ExitCode.REFUSED, True), said
            node._grpc._health._server_status.clear()
            code, said = await asyncio.to_thread(health, *address)
            assert (code, "is starting" in said) == (ExitCode.REFUSED, True), said

    asyncio.run(main())


def test_nobody_there_is_another_exit_code_and_names_the_address() -> None:
    code, said = health("--bootstrap", "127.0.0.1:1", "--timeout", "5")
    assert code == ExitCode.UNREACHABLE
    assert "127.0.0.1:1 does not answer" in said
    assert "Traceback" not in said


@pytest.mark.parametrize("text", ["0", "-1", "1e9", "nan"])
def test_a_wrong_time_out_is_refused(text: str) -> None:
    code, said = health("--timeout", text)
    assert code == ExitCode.USAGE
    assert "--timeout takes" in said
