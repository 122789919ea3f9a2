"""`semel http`: the gateway for programs that speak HTTP, as a process of its own.

Standard output has one line, once the gateway can be used; everything else goes to standard error.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from semel.broker.node_log import configure_logging
from semel.cli.common import DEFAULT_BOOTSTRAP, Bootstrap, ExitCode, command_app, examples, fail, fails_well
from semel.cli.http_child import UNTIL_INPUT_ENDS
from semel.protocol.extras import imports_of_extra

app = command_app()

DEFAULT_LISTEN = "127.0.0.1:8080"

Listen = Annotated[
    str,
    typer.Option(
        "--listen",
        metavar="HOST:PORT",
        help="Where to serve HTTP; port 0: any free. tls:// before it encrypts, and tls+sasl:// asks for passwords, "
        "too (HTTP Basic), which the node checks.",
    ),
]
Certificate = Annotated[
    Path | None, typer.Option("--certificate", metavar="FILE", help="The certificate for tls://, a PEM file.")
]
Key = Annotated[Path | None, typer.Option("--key", metavar="FILE", help="Its private key, a PEM file.")]
Insecure = Annotated[
    bool,
    typer.Option(
        "--insecure",
        help="Serve other machines without encryption and passwords: the network keeps strangers out.",
    ),
]
ConsoleWrites = Annotated[
    bool,
    typer.Option(
        "--console-writes",
        help="Let the console change settings, offsets and transactions, and publish records. Without this option it "
        "can only do so where this machine alone reaches it (127.0.0.1).",
    ),
]
UntilInputEnds = Annotated[
    bool,
    # For `semel serve --http`: the gateway ends with the node, however that ends.
    typer.Option(UNTIL_INPUT_ENDS, hidden=True, help="End when standard input ends."),
]


@app.command(
    "http",
    epilog=examples(
        "semel http",
        "semel http --bootstrap log1.example.com:9094 --listen 127.0.0.1:8081",
        "semel http --listen tls+sasl://0.0.0.0:8443 --certificate gateway.pem --key gateway-key.pem",
        exit_codes="0 stopped by a signal; 1 the node refused it, or the address is in use; 2 wrong command line",
    ),
)
@fails_well
def http(
    listen: Listen = DEFAULT_LISTEN,
    certificate: Certificate = None,
    key: Key = None,
    insecure: Insecure = False,
    console_writes: ConsoleWrites = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    until_input_ends: UntilInputEnds = False,
) -> None:
    """Serve HTTP for a log: REST, a schema registry with Confluent's API, and a console for browsers.

    It runs until SIGTERM or SIGINT (Ctrl-C). It is a client of the node, and may run anywhere; several of one log may
    run at once. It waits for a node that is not there yet. When it is ready, it prints one line to standard output:

    \b
    ready: http HOST:PORT
    """
    configure_logging("text", "info")
    with imports_of_extra("http", "semel http"):
        from semel.web.gateway import Gateway
        from semel.web.parts import PARTS
        from semel.web.serve import listen_of, serve

    where = listen_of(listen, certificate=str(certificate or ""), key=str(key or ""), is_insecure=insecure)

    async def run() -> None:
        stop = _stop_on_signals()
        if until_input_ends:
            _stop_when_input_ends(stop)
        gateway = Gateway(
            bootstrap, asks_for_passwords=where.has_users, allows_changes=console_writes or where.is_loopback
        )
        await serve(gateway, PARTS, where, stop=stop, ready=lambda address: print(f"ready: http {address}", flush=True))

    try:
        asyncio.run(run())
    except OSError as error:
        raise fail(f"{listen} can't be listened on: {error.strerror or error}", ExitCode.REFUSED) from None


def _stop_on_signals() -> asyncio.Future[None]:
    """Return what is done at the first SIGTERM or SIGINT."""
    loop = asyncio.get_running_loop()
    stop: asyncio.Future[None] = loop.create_future()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _finish, stop)
    return stop


def _stop_when_input_ends(stop: asyncio.Future[None]) -> None:
    loop = asyncio.get_running_loop()
    descriptor = sys.stdin.fileno()

    def readable() -> None:
        if not os.read(descriptor, 1 << 10):
            loop.remove_reader(descriptor)
            _finish(stop)

    loop.add_reader(descriptor, readable)


def _finish(stop: asyncio.Future[None]) -> None:
    if not stop.done():
        stop.set_result(None)
