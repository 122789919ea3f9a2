"""The exit code of `semel serve` says why it ended, also where its log is on the disk that has failed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FAILING_NODE = """
import asyncio, sys
from semel.broker import node
from semel.cli.main import main
from semel.protocol.errors import SemelError


class FailedNode:
    kafka_address = grpc_address = "127.0.0.1:1"
    metrics_address = None
    data_dir = "x"

    def __init__(self):
        self.failed = asyncio.get_running_loop().create_future()
        self.failed.set_result(SemelError("the disk failed"))

    async def stop(self, *, grace_ms=None):
        raise OSError(5, "Input/output error")


async def start(*_, **__):
    return FailedNode()

node.Node.start = start
sys.argv = ["semel", "serve"]
main()
"""


@pytest.mark.parametrize("log_is_full", [False, True])
def test_S2_a_failed_disk_is_exit_code_6_wherever_the_log_is(tmp_path: Path, log_is_full: bool) -> None:
    with open("/dev/full" if log_is_full else tmp_path / "log", "wb") as log:
        ended = subprocess.run(
            [sys.executable, "-P", "-c", FAILING_NODE], stdout=subprocess.PIPE, stderr=log, cwd=tmp_path, check=False
        )
    assert ended.returncode == 6
    if not log_is_full:
        text = (tmp_path / "log").read_text()
        assert "closing after the failure: [Errno 5]" in text
        assert "stopped, because the disk failed" in text
