"""`semel serve`: run a node in the foreground.

Standard output has one line, once the node can be used; everything else goes to standard error.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NoReturn

import typer

from semel.broker.config.node_config import SETTINGS, value_of
from semel.broker.config.setting import ConfigError
from semel.broker.config.sources import LoadedConfig, load_config
from semel.broker.node_log import configure_logging
from semel.broker.start_errors import NodeStartError, StartFailure
from semel.cli.common import parse_partition
from semel.protocol.errors import ErrorCode, SemelError, UsageError
from semel.protocol.ids import TopicPartition
from semel.runtime.flood_guard import PERIOD_S, FloodGuard

if TYPE_CHECKING:
    from semel.broker.node import Node

logger = logging.getLogger("semel.serve")


class ServeExit(IntEnum):
    """What the exit code of `semel serve` says. docs/configuration.md lists them."""

    STOPPED = 0
    """A signal stopped it, and everything is on the disk."""
    FAILED = 1
    """Something that should not happen; the log has the traceback."""
    CONFIGURATION = 2
    """A flag, variable or line of the configuration file is wrong."""
    DATA_FOLDER = 3
    """The data folder is in use, belongs to another node, or can't be read."""
    METADATA = 4
    """The metadata's database can't be used, or another node is the controller."""
    ADDRESS = 5
    """A port is in use, or a host is not this machine's."""
    STORAGE = 6
    """The node ran, and its disk failed: it stopped because of that, or it failed while the node stopped. What was
    acknowledged is kept."""


_START_EXITS: Final = {
    StartFailure.DATA_FOLDER: ServeExit.DATA_FOLDER,
    StartFailure.METADATA: ServeExit.METADATA,
    StartFailure.ADDRESS: ServeExit.ADDRESS,
}

_EPILOG: Final = """
Every setting has a name (Kafka's, where Kafka has it), for example log.retention.ms. It is taken from, strongest first:
a flag (--set log.retention.ms=86400000), the environment (SEMEL_LOG_RETENTION_MS=86400000), the TOML file that --config
or SEMEL_CONFIG names (log.retention.ms = 86400000), the default. docs/configuration.md lists them all; --settings
prints them with the values that would be used.

Exit codes: 0 stopped by a signal; 1 unexpected; 2 wrong configuration; 3 data folder in use or damaged; 4 metadata
unreachable; 5 address in use; 6 the disk failed while it ran or stopped.

Example: semel serve --data-dir /var/lib/semel --kafka 0.0.0.0:9092 --set kafka.advertised=log1.example.com:9092
"""

SAME_SIGNAL_S: Final = 0.3

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def _or_default(text: str, name: str) -> str:
    return f"{text} Default: {SETTINGS[name].default}."


DataDir = Annotated[
    str | None,
    typer.Option("--data-dir", metavar="DIR", help=_or_default("The folder to keep data in.", "data.dir")),
]
Kafka = Annotated[
    str | None,
    typer.Option(
        "--kafka",
        metavar="HOST:PORT",
        help=_or_default("Where to serve the Kafka protocol; port 0: any free.", "kafka.listen"),
    ),
]
Grpc = Annotated[
    str | None,
    typer.Option(
        "--grpc", metavar="HOST:PORT", help=_or_default("Where to serve gRPC; port 0: any free.", "grpc.listen")
    ),
]
Metrics = Annotated[
    str | None,
    typer.Option(
        "--metrics",
        metavar="HOST:PORT",
        help="Where to serve /metrics for Prometheus, /healthz and /readyz; port 0: any free. Default: nowhere.",
    ),
]
ConfigFile = Annotated[Path | None, typer.Option("--config", metavar="FILE", help="A TOML file with settings.")]
Assignments = Annotated[
    list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Any setting. Can be given many times.")
]
LogFormat = Annotated[
    str | None,
    typer.Option("--log-format", metavar="text|json", help=_or_default("The form of log lines.", "log.format")),
]
AcceptDataLoss = Annotated[
    bool,
    typer.Option(
        "--accept-data-loss",
        help="Start in an empty data folder though the metadata's database says that this node holds partitions, and "
        "make them again, empty. For one start, after the folder was lost.",
    ),
]
AcceptLossOf = Annotated[
    list[str] | None,
    typer.Option(
        "--accept-loss-of",
        metavar="TOPIC:PARTITION",
        help="Make this partition again, whose directory is gone: without its records, behind its last known offset. "
        "For one start. Can be given many times.",
    ),
]
ShowSettings = Annotated[bool, typer.Option("--settings", help="Print all settings with their values, and exit.")]


@app.command("serve", epilog=_EPILOG.strip().replace("\n\n", "\0").replace("\n", " ").replace("\0", "\n\n"))
def serve(
    data_dir: DataDir = None,
    kafka: Kafka = None,
    grpc: Grpc = None,
    metrics: Metrics = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
    log_format: LogFormat = None,
    accept_data_loss: AcceptDataLoss = False,
    accept_loss_of: AcceptLossOf = None,
    settings: ShowSettings = False,
) -> None:
    """Run a node until SIGTERM or SIGINT (Ctrl-C).

    Once it can be used, it prints one line to standard output:
    ready: kafka HOST:PORT grpc HOST:PORT data DIR
    With --metrics, "metrics HOST:PORT" comes before the data.
    """
    named = {
        "--data-dir": ("data.dir", data_dir),
        "--kafka": ("kafka.listen", kafka),
        "--grpc": ("grpc.listen", grpc),
        "--metrics": ("metrics.listen", metrics),
        "--log-format": ("log.format", log_format),
    }
    try:
        flags: list[tuple[str, str, object]] = [_assignment(text) for text in assignments or ()]
        flags += [(flag, name, value) for flag, (name, value) in named.items() if value is not None]
        loaded = load_config(file=config, flags=flags)
        lost = [parse_partition(text) for text in accept_loss_of or ()]
    except (ConfigError, UsageError) as error:
        raise _fail(error.message, ServeExit.CONFIGURATION) from None
    if settings:
        _print_settings(loaded)
        return
    guard = configure_logging(loaded.config.log_format, loaded.config.log_level)
    _stop_at_once_on_signals()
    code = asyncio.run(_serve(loaded, accept_data_loss, lost, guard))
    guard.flush()
    _end_with(code)


def _end_with(code: int) -> NoReturn:
    """End at once. The node is closed, and Python would wait for threads that still open batches of clients."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _assignment(text: str) -> tuple[str, str, object]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"--set {text}: write NAME=VALUE")
    return f"--set {name}", name.strip(), value


def _print_settings(loaded: LoadedConfig) -> None:
    for setting in SETTINGS.values():
        value = "(hidden)" if setting.sensitive else setting.format(value_of(loaded.config, setting.name))
        print(f"{setting.name} = {value}  # {loaded.source(setting.name).name.lower()}")


def _fail(message: str, code: ServeExit) -> typer.Exit:
    _say(f"semel serve: {' '.join(message.split())}")
    return typer.Exit(code)


def _say(text: str) -> None:
    """Write to standard error, which may be on the disk that has failed: the exit code still says what happened."""
    with suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)


def _stop_at_once_on_signals() -> None:
    """Until the node runs there is nothing to finish: a start that is cut off is recovered like a crash."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(ServeExit.STOPPED))
    signal.signal(signal.SIGINT, lambda *_: os._exit(128 + signal.SIGINT))


async def _flush_now_and_then(guard: FloodGuard) -> None:
    while True:
        await asyncio.sleep(PERIOD_S)
        guard.flush()


async def _serve(
    loaded: LoadedConfig, accept_data_loss: bool, accept_loss_of: Sequence[TopicPartition], guard: FloodGuard
) -> int:
    # What starting makes is kept for good: looking through it for garbage costs a tenth of the start, and later would
    # hold up every request for as long, each time.
    gc.disable()
    # Heavy, and not needed to say that the configuration is wrong.
    from semel.broker.node import Node
    from semel.runtime.disk_storage import raise_open_files_limit

    raise_open_files_limit()
    try:
        node = await Node.start(loaded, accept_data_loss=accept_data_loss, accept_loss_of=accept_loss_of)
    except ConfigError as error:
        return int(_fail(error.message, ServeExit.CONFIGURATION).exit_code)
    except NodeStartError as error:
        return int(_fail(error.message, _START_EXITS[error.failure]).exit_code)
    gc.freeze()
    gc.enable()
    stop = _stop_on_signals()
    flushing = asyncio.get_running_loop().create_task(_flush_now_and_then(guard), name="tell what the log left out")
    metrics = "" if node.metrics_address is None else f" metrics {node.metrics_address}"
    print(f"ready: kafka {node.kafka_address} grpc {node.grpc_address}{metrics} data {node.data_dir}", flush=True)
    await asyncio.wait((node.failed, stop), return_when=asyncio.FIRST_COMPLETED)
    if stop.done():
        logger.info("stopping, because of %s", stop.result().name)
    code = await _stop(node)
    flushing.cancel()
    logger.info("stopped")
    return code


async def _stop(node: Node) -> int:
    failure = node.failed.result() if node.failed.done() else None
    try:
        await node.stop(grace_ms=None if failure is None else 0)
    except Exception as error:
        if failure is not None:
            _say(f"semel serve: closing after the failure: {error}")
        elif _is_of_the_disk(error):
            return int(_fail(f"not all is on the disk, because stopping failed: {error}", ServeExit.STORAGE).exit_code)
        else:
            logger.exception("stopping failed")
            return ServeExit.FAILED
    if failure is not None:
        return int(_fail(f"stopped, because {failure.message}", ServeExit.STORAGE).exit_code)
    return ServeExit.STOPPED


def _is_of_the_disk(error: Exception) -> bool:
    return isinstance(error, OSError) or (isinstance(error, SemelError) and error.code is ErrorCode.KAFKA_STORAGE_ERROR)


def _stop_on_signals() -> asyncio.Future[signal.Signals]:
    """Return what is done at the first SIGTERM or SIGINT; at a later one the process ends at once.

    Not at one that comes together with the first: `timeout` sends each signal twice, to its child and to its group.
    """
    loop = asyncio.get_running_loop()
    stop: asyncio.Future[signal.Signals] = loop.create_future()
    first_at = 0.0

    def received(number: int) -> None:
        nonlocal first_at
        if not stop.done():
            first_at = loop.time()
            stop.set_result(signal.Signals(number))
        elif number != stop.result() or loop.time() - first_at > SAME_SIGNAL_S:
            os._exit(128 + number)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, received, number)
    return stop
