"""An HTTP gateway as a process, to be killed; or to die by SIGKILL on its own at a point of its first transaction.

    python -P gateway_process.py BOOTSTRAP [written | committed]

written:   everything is in the log, and the commit was not asked for
committed: the commit was answered, and the request was not
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from semel.aio import Producer
from semel.web.gateway import Gateway
from semel.web.rest import part
from semel.web.serve import Listen, serve

READY = "ready: http "


class GatewayProcess:
    """A gateway that runs from here on; in a with-block."""

    def __init__(self, bootstrap: str, dies: str | None = None) -> None:
        command = [sys.executable, "-P", str(Path(__file__)), bootstrap, *([] if dies is None else [dies])]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line.startswith(READY), f"the gateway did not start: {line!r}"
        self.url = f"http://{line.removeprefix(READY).strip()}"

    def kill(self) -> None:
        self._process.kill()
        self.wait_killed()

    def wait_killed(self) -> None:
        """Wait until it has died by SIGKILL."""
        assert self._process.wait(60) == -signal.SIGKILL

    def __enter__(self) -> GatewayProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


def _die_at(point: str) -> None:
    commit = Producer.commit_transaction

    async def dying(self: Producer, **arguments: Any) -> bool:
        if point == "committed":
            await commit(self, **arguments)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("unreachable")

    Producer.commit_transaction = dying  # type: ignore[assignment]


async def _run(bootstrap: str) -> None:
    stop: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def ready(address: str) -> None:
        print(f"{READY}{address}", flush=True)

    await serve(Gateway(bootstrap), (part,), Listen("127.0.0.1", 0), stop=stop, ready=ready)


if __name__ == "__main__":
    for point in sys.argv[2:]:
        _die_at(point)
    asyncio.run(_run(sys.argv[1]))
