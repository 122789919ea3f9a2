"""`semel http`: the door for programs that speak HTTP, as a process of its own.

Standard output has one line, once the door can be used; everything else goes to standard error.
"""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Annotated

import typer

from semel.broker.node_log import configure_logging
from semel.cli.common import DEFAULT_BOOTSTRAP, Bootstrap, ExitCode, command_app, examples, fail, fails_well
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


@app.command(
    "http",
    epilog=examples(
        "semel http",
        "semel http --bootstrap log1.example.com:9094 --listen 127.0.0.1:8081",
        "semel http --listen tls+sasl://0.0.0.0:8443 --certificate door.pem --key door-key.pem",
        "curl localhost:8080/subjects",
        exit_codes="0 stopped by a signal; 1 the node refused the door, or the address is in use; 2 wrong command line",
    ),
)
@fails_well
def http(
    listen: Listen = DEFAULT_LISTEN,
    certificate: Certificate = None,
    key: Key = None,
    insecure: Insecure = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Serve HTTP for a log until SIGTERM or SIGINT (Ctrl-C): a schema registry with Confluent's REST API.

    It is a client of the node, and may run anywhere; several doors of one log may run at once. It waits for a node that
    is not there yet. When it is ready, it prints one line to standard output:

    \b
    ready: http HOST:PORT
    """
    configure_logging("text", "info")
    with imports_of_extra("http", "semel http"):
        from semel.web.door import Door
        from semel.web.parts import PARTS
        from semel.web.serve import listen_of, serve

    where = listen_of(listen, certificate=str(certificate or ""), key=str(key or ""), is_insecure=insecure)

    async def run() -> None:
        stop = _stop_on_signals()
        door = Door(bootstrap, asks_for_passwords=where.has_users)
        await serve(door, PARTS, where, stop=stop, ready=lambda address: print(f"ready: http {address}", flush=True))

    try:
        asyncio.run(run())
    except OSError as error:
        raise fail(f"{listen} can't be listened on: {error.strerror or error}", ExitCode.REFUSED) from None


def _stop_on_signals() -> asyncio.Future[None]:
    """Return what is done at the first SIGTERM or SIGINT."""
    loop = asyncio.get_running_loop()
    stop: asyncio.Future[None] = loop.create_future()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: None if stop.done() else stop.set_result(None))
    return stop
