"""The HTTP gateway of `semel serve --http`: `semel http` as a process beside the node, which ends with it.

A process of its own, because the node runs on one event loop: a schema that takes a second to compare must not hold up
its clients.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from contextlib import suppress
from typing import Final

from semel.broker.config.listeners import grpc_listeners
from semel.broker.config.node_config import NodeConfig
from semel.broker.config.sources import Address
from semel.protocol.errors import UsageError
from semel.protocol.extras import MissingExtraError, imports_of_extra
from semel.protocol.schemes import scheme_of
from semel.runtime.backoff import Backoff
from semel.runtime.setting import ConfigError

_log = logging.getLogger("semel.serve")

BOOTSTRAP_VARIABLE: Final = "SEMEL_BOOTSTRAP"
UNTIL_INPUT_ENDS: Final = "--until-input-ends"
"""The option of `semel http` that ends it with the process that started it, however that ends."""
READY: Final = "ready: http "
_LOOPBACK: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 (where a gateway reaches a node that has all)
_STOP_S: Final = 15.0
_PAUSES: Final = Backoff(500, 10_000)


class HttpGatewayError(Exception):
    """The gateway could not be started: the address is in use, or it can't reach the node. The message is of the gateway."""


def check_gateway(config: NodeConfig, listen: str, nodes: int) -> None:
    """Raise `ConfigError` where a gateway can't be started beside this node.

    nodes: how many are started at once
    """
    if nodes != 1:
        raise ConfigError("--http is for one node: run `semel http` beside the cluster")
    try:
        with imports_of_extra("http", "--http"):
            from semel.web.serve import listen_of
        where = listen_of(listen, is_insecure=True)
    except MissingExtraError as error:
        raise ConfigError(str(error)) from None
    except UsageError as error:
        raise ConfigError(f"--http: {error.message}") from None
    if not where.is_loopback or where.has_users:
        raise ConfigError(
            f"--http {listen}: it serves this machine alone. For others, run `semel http --listen {listen}`"
        )
    scheme = scheme_of(grpc_listeners(config)[0].listen)
    if scheme and not os.environ.get(BOOTSTRAP_VARIABLE):
        raise ConfigError(
            f"--http: the node's clients need {scheme} and what belongs to it (a file of authorities, a user): set "
            f"{BOOTSTRAP_VARIABLE}={scheme}HOST:PORT?... for the gateway, too"
        )


class HttpGateway:
    """The gateway's process: started, started again where it dies, and stopped."""

    def __init__(self, listen: str, node: Address) -> None:
        """`node`: where its gRPC listener is, which the gateway uses where SEMEL_BOOTSTRAP does not say another one."""
        host = _LOOPBACK.get(node.host, node.host)
        bootstrap = os.environ.get(BOOTSTRAP_VARIABLE) or str(Address(host, node.port))
        self._arguments = ["--listen", listen, UNTIL_INPUT_ENDS]
        self._environment = {**os.environ, BOOTSTRAP_VARIABLE: bootstrap}  # it may have a password in it
        self._process: asyncio.subprocess.Process | None = None
        self._watching: asyncio.Task[None] | None = None

    async def start(self) -> str:
        """Start the gateway and return the address that it listens on. Raises `HttpGatewayError`."""
        address = await self._start()
        if address is None:
            raise HttpGatewayError("the HTTP gateway did not start: see above")
        self._arguments[1] = address  # where port 0 was asked for, it stays what it is
        self._watching = asyncio.get_running_loop().create_task(self._watch(), name="watch the HTTP gateway")
        return address

    async def stop(self) -> None:
        """Let the gateway answer what it was asked, and end it."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait((self._watching,))
        process = self._process
        if process is None or process.returncode is not None:
            return
        with suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(_STOP_S):
                await process.wait()
        except TimeoutError:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _start(self) -> str | None:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "semel.cli", "http", *self._arguments,
            env=self._environment,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,  # so that Ctrl-C reaches the node alone, which ends the gateway
        )  # fmt: skip
        assert self._process.stdout is not None
        line = (await self._process.stdout.readline()).decode().strip()
        if line.startswith(READY):
            return line.removeprefix(READY)
        await self._process.wait()
        return None

    async def _watch(self) -> None:
        failures = 0
        while True:
            assert self._process is not None
            code = await self._process.wait()
            failures += 1
            _log.error("the HTTP gateway ended with the exit code %d, and is started again", code)
            await asyncio.sleep(_PAUSES.jittered_s(failures))
            if await self._start() is not None:
                failures = 0
