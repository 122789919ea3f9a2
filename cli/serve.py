"""`semel serve`: run a node in the foreground.

Standard output has one line, once the node can be used; everything else goes to standard error.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import shlex
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

import typer

from semel.broker.config.exposure import ALLOW_SETTING, INSECURE, check_exposure
from semel.broker.config.listeners import grpc_listeners, is_item, kafka_listeners
from semel.broker.config.node_config import SETTINGS, value_of
from semel.broker.config.sources import LoadedConfig, load_config
from semel.broker.metadata.chain import MetadataWentBackError
from semel.broker.metadata.runs import LeftBehindError, NodeDeposedError, NodeRemovedError
from semel.broker.node_log import configure_logging
from semel.broker.start_errors import NodeStartError, StartFailure
from semel.cli.common import command_app, examples, fails_well, parse_partition
from semel.cli.http_child import HttpGateway, HttpGatewayError, check_gateway
from semel.cli.node_folders import is_cluster_folder
from semel.cli.serve_exit import ServeExit
from semel.cli.service_manager import tell_service_manager
from semel.protocol.errors import ErrorCode, SemelError, UsageError
from semel.protocol.ids import TopicPartition
from semel.protocol.schemes import with_scheme_of
from semel.runtime.flood_guard import PERIOD_S, FloodGuard
from semel.runtime.setting import ConfigError

if TYPE_CHECKING:
    from semel.broker.node import Node

_log = logging.getLogger("semel.serve")

_START_EXITS: Final = {
    StartFailure.DATA_FOLDER: ServeExit.DATA_FOLDER,
    StartFailure.METADATA: ServeExit.METADATA,
    StartFailure.ADDRESS: ServeExit.ADDRESS,
    StartFailure.REMOVED: ServeExit.REMOVED,
}

_SETTINGS_HELP: Final = (
    "Every setting has a name (Kafka's, where Kafka has it), for example log.retention.ms. It is taken from, strongest "
    "first: an option (--set log.retention.ms=86400000), the environment (SEMEL_LOG_RETENTION_MS=86400000), the TOML "
    "file that --config or SEMEL_CONFIG names (log.retention.ms = 86400000), the default. docs/configuration.md lists "
    "them all; --settings prints them with the values that would be used.\n\n"
)
_EXIT_CODES: Final = (
    "0 stopped by a signal; 1 unexpected; 2 wrong configuration; 3 data directory in use or damaged; 4 metadata "
    "unreachable, or it went back, or the node was away for too many changes of it, or has another's id or secret; "
    "5 address in use; 6 the disk failed while it ran or stopped; 7 removed from the cluster"
)

SAME_SIGNAL_S: Final = 0.3

app = command_app()


def _or_default(text: str, name: str) -> str:
    return f"{text} Default: {SETTINGS[name].default}."


DataDir = Annotated[
    str | None,
    typer.Option("--data-dir", metavar="DIR", help=_or_default("The directory to keep data in.", "data.dir")),
]
Kafka = Annotated[
    list[str] | None,
    typer.Option(
        "--kafka",
        metavar="[NAME=]HOST:PORT",
        help=_or_default(
            "Where to serve the Kafka protocol; port 0: any free. tls:// before it encrypts, and tls+sasl:// asks for "
            "passwords, too. Can be given several times, each with a name, and with ?advertised=HOST:PORT behind it "
            "where its clients connect to another address.",
            "kafka.listen",
        ),
    ),
]
Grpc = Annotated[
    list[str] | None,
    typer.Option(
        "--grpc",
        metavar="[NAME=]HOST:PORT",
        help=_or_default(
            "Where to serve gRPC; port 0: any free. tls:// before it encrypts, and tls+sasl:// asks for passwords, "
            "too. Can be given several times, each with a name, and with ?advertised=HOST:PORT behind it where its "
            "clients connect to another address.",
            "grpc.listen",
        ),
    ),
]
Metrics = Annotated[
    str | None,
    typer.Option(
        "--metrics",
        metavar="HOST:PORT",
        help="Where to serve /metrics for Prometheus, /healthz and /readyz; port 0: any free. tls:// before it "
        "encrypts, and tls+sasl:// asks for passwords, too. Default: nowhere.",
    ),
]
Http = Annotated[
    str | None,
    typer.Option(
        "--http",
        metavar="HOST:PORT",
        help="Where to serve HTTP to this machine beside the node, as `semel http` does: REST, a schema registry and a "
        "console. Port 0: any free. It is a process of its own, which ends with the node. Default: nowhere.",
    ),
]
NodeId = Annotated[
    str | None,
    typer.Option("--node-id", metavar="N", help=_or_default("The node's number, its own in the cluster.", "node.id")),
]
Peer = Annotated[
    str | None,
    typer.Option(
        "--peer",
        metavar="HOST:PORT",
        help="Where the other nodes of a cluster reach this one; needs cluster.secret.file. Default: nowhere.",
    ),
]
MetadataUrl = Annotated[
    str | None,
    typer.Option(
        "--metadata",
        metavar="URL",
        help="The metadata's database, the same for all nodes of a cluster: postgresql://USER@HOST/NAME. Others on the "
        "machine see what is on a command line: SEMEL_METADATA_URL is the place for a password. Default: a file in the "
        "data directory.",
    ),
]
ConfigFile = Annotated[Path | None, typer.Option("--config", metavar="FILE", help="A TOML file with settings.")]
Assignments = Annotated[
    list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Any setting. Can be given several times.")
]
LogFormat = Annotated[
    str | None,
    typer.Option("--log-format", metavar="[text|json]", help=_or_default("The form of log lines.", "log.format")),
]
AcceptDataLoss = Annotated[
    bool,
    typer.Option(
        "--accept-data-loss",
        help="Start in an empty data directory although the metadata's database says that this node has partitions, "
        "and create them again, empty. For one start, after the directory was lost.",
    ),
]
AcceptLossOf = Annotated[
    list[str] | None,
    typer.Option(
        "--accept-loss-of",
        metavar="TOPIC:PARTITION",
        help="Create this partition again, empty, after its directory was lost. New records get offsets after the last "
        "known one. For one start. Can be given several times.",
    ),
]
AcceptMetadataLoss = Annotated[
    bool,
    typer.Option(
        "--accept-metadata-loss",
        help="Start although the metadata's database lacks changes that this node has applied: it was restored from an "
        "older copy, or a fail-over lost its last changes. Directories of partitions that it does not know are set "
        "aside. For one start, after the changes were lost for good. With --nodes it is for all of them.",
    ),
]
Nodes = Annotated[
    int,
    typer.Option(
        "--nodes",
        metavar="N",
        help="Run a cluster of N nodes on this machine, each in a process of its own, on one metadata file. Their "
        "ports are counted up by 10, their directories are in --data-dir. --set broker.rack=A,B,... gives each its "
        "rack.",
    ),
]
Insecure = Annotated[
    bool,
    typer.Option(
        "--insecure",
        help="Serve other machines without knowing who asks: the network keeps strangers out. Short for --set "
        "listeners.allow.anonymous=true.",
    ),
]
NoJoin = Annotated[
    bool,
    # For the supervisor of --nodes: a node that died, and was removed before it runs again, does not come back.
    typer.Option("--no-join", hidden=True, help="Start only if the cluster has this node.id: exit code 7 otherwise."),
]
ShowSettings = Annotated[bool, typer.Option("--settings", help="Print all settings with their values, and exit.")]


@app.command(
    "serve",
    epilog=_SETTINGS_HELP
    + examples(
        "semel serve",
        "semel serve --nodes 3",
        "semel serve --node-id 2 --peer 10.0.0.2:9096 --metadata postgresql://semel@db.example.com/semel",
        "semel serve --data-dir /var/lib/semel --kafka 10.0.0.2:9092 --grpc 10.0.0.2:9094 --insecure",
        "semel serve --kafka tls://10.0.0.2:9092 --grpc tls://10.0.0.2:9094 --config tls.toml",
        exit_codes=_EXIT_CODES,
    ),
)
def serve(
    data_dir: DataDir = None,
    kafka: Kafka = None,
    grpc: Grpc = None,
    metrics: Metrics = None,
    http: Http = None,
    node_id: NodeId = None,
    peer: Peer = None,
    metadata: MetadataUrl = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
    log_format: LogFormat = None,
    insecure: Insecure = False,
    accept_data_loss: AcceptDataLoss = False,
    accept_loss_of: AcceptLossOf = None,
    accept_metadata_loss: AcceptMetadataLoss = False,
    nodes: Nodes = 1,
    no_join: NoJoin = False,
    settings: ShowSettings = False,
) -> None:
    """Run a node until SIGTERM or SIGINT (Ctrl-C).

    When it is ready, it prints one line to standard output. With --metrics, "metrics HOST:PORT" stands before "data",
    and with --http, "http HOST:PORT".
    With --nodes there is a line for each node, and "node N" stands before "kafka".

    \b
    ready: kafka HOST:PORT grpc HOST:PORT data DIR
    """
    named = {
        "--data-dir": ("data.dir", data_dir),
        "--metrics": ("metrics.listen", metrics),
        "--node-id": ("node.id", node_id),
        "--peer": ("peer.listen", peer),
        "--metadata": ("metadata.url", metadata),
        "--log-format": ("log.format", log_format),
        INSECURE: (ALLOW_SETTING, "true" if insecure else None),
    }
    try:
        flags: list[tuple[str, str, object]] = [_assignment(text) for text in assignments or ()]
        flags += [(flag, name, value) for flag, (name, value) in named.items() if value is not None]
        flags += [*_listeners("kafka", kafka or ()), *_listeners("grpc", grpc or ())]
        loaded = load_config(file=config, flags=flags)
        lost = [parse_partition(text) for text in accept_loss_of or ()]
    except (ConfigError, UsageError) as error:
        raise _fail(error.message, ServeExit.CONFIGURATION) from None
    if settings:
        fails_well(_print_settings)(loaded)
        return
    guard = configure_logging(loaded.config.log_format, loaded.config.log_level)
    if http is not None:
        try:
            check_gateway(loaded.config, http, nodes)
        except ConfigError as error:
            raise _fail(error.message, ServeExit.CONFIGURATION) from None
    if nodes != 1:
        if accept_data_loss or lost:
            raise _fail(_how_to_accept_loss(loaded, nodes), ServeExit.CONFIGURATION)
        once = ["--accept-metadata-loss"] if accept_metadata_loss else []
        _end_with(_serve_cluster(loaded, nodes, config, log_format, assignments or (), once))
    if is_cluster_folder(loaded.config.data_dir):
        raise _fail(f"{loaded.config.data_dir} has the nodes of a cluster on this machine: start it with --nodes and "
                    "their number, as before, or give this node another --data-dir", ServeExit.DATA_FOLDER)  # fmt: skip
    _stop_at_once_on_signals()
    start = partial(
        _start_node,
        loaded,
        accept_data_loss=accept_data_loss,
        accept_loss_of=lost,
        accept_metadata_loss=accept_metadata_loss,
        may_join=not no_join,
    )
    code = asyncio.run(run_node(start, guard, http))
    guard.flush()
    _end_with(code)


def _how_to_accept_loss(loaded: LoadedConfig, count: int) -> str:
    """Return what to do with options that are for one of several nodes."""
    from sqlalchemy import make_url

    from semel.cli.local_cluster import plan_nodes

    try:
        last = plan_nodes(loaded, count)[-1]
    except ConfigError as error:
        return error.message
    url = last.settings["metadata.url"]
    shown = replace(last, settings={**last.settings, "metadata.url": make_url(url).render_as_string()})  # no password
    return (
        "--accept-data-loss and --accept-loss-of are for one node: start it alone once, then all of them again. For "
        f"node {last.node_id}: `semel serve {shlex.join(shown.arguments())} --accept-data-loss`, and your own options"
    )


def _serve_cluster(
    loaded: LoadedConfig,
    count: int,
    config: Path | None,
    log_format: str | None,
    assignments: Sequence[str],
    once: Sequence[str],
) -> int:
    """Run several nodes on this machine. `once`: options of their first start. Returns the exit code."""
    from semel.cli.local_cluster import LocalCluster, make_shared_files, plan_nodes

    try:
        check_exposure(loaded.config)
        nodes = plan_nodes(loaded, count)
        make_shared_files(nodes)
    except ConfigError as error:
        return int(_fail(error.message, ServeExit.CONFIGURATION).exit_code)
    except OSError as error:
        return int(_fail(f"{loaded.config.data_dir} can't be used: {error}", ServeExit.DATA_FOLDER).exit_code)
    arguments = [] if config is None else ["--config", str(config)]
    arguments += [] if log_format is None else ["--log-format", log_format]
    for text in assignments:
        if text.partition("=")[0].strip() not in nodes[0].settings:
            arguments += ["--set", text]

    async def run() -> int:
        cluster = LocalCluster(
            nodes, arguments, lambda node, line: print(f"ready: node {node} {line}", flush=True), once=once
        )
        stop = _stop_on_signals()
        stop.add_done_callback(lambda _: cluster.stop())
        return await cluster.run()

    return asyncio.run(run())


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


def _listeners(protocol: str, given: Sequence[str]) -> list[tuple[str, str, object]]:
    """Return the setting that the options of a protocol's listeners are for."""
    flag = f"--{protocol}"
    if len(given) == 1 and not is_item(given[0]):
        return [(flag, f"{protocol}.listen", given[0])]
    nameless = next((text for text in given if not is_item(text)), None)
    if nameless is not None:
        raise ConfigError(
            f"{flag} {nameless}: of several listeners each needs a name, write {flag} NAME={nameless}. The name "
            "default is that of a listener that is alone"
        )
    return [(flag, f"{protocol}.listeners", tuple(given))] if given else []


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


async def _start_node(
    loaded: LoadedConfig,
    *,
    accept_data_loss: bool,
    accept_loss_of: Sequence[TopicPartition],
    accept_metadata_loss: bool,
    may_join: bool,
) -> Node:
    # Heavy, and not needed to say that the configuration is wrong.
    from semel.broker.node import Node

    return await Node.start(
        loaded,
        accept_data_loss=accept_data_loss,
        accept_loss_of=accept_loss_of,
        accept_metadata_loss=accept_metadata_loss,
        may_join=may_join,
    )


async def run_node(start: Callable[[], Awaitable[Node]], guard: FloodGuard, http: str | None = None) -> int:
    """Start a node, say that it is ready, and stop it after a signal or a failure. Returns the exit code.

    http: where the HTTP gateway listens that is started beside it; None: there is none
    """
    # What starting makes is kept for good: looking through it for garbage costs a tenth of the start, and later would
    # hold up every request for as long, each time.
    gc.disable()
    from semel.runtime.disk_storage import raise_open_files_limit

    raise_open_files_limit()
    try:
        node = await start()
    except ConfigError as error:
        return int(_fail(error.message, ServeExit.CONFIGURATION).exit_code)
    except NodeStartError as error:
        return int(_fail(error.message, _START_EXITS[error.failure]).exit_code)
    gc.freeze()
    gc.enable()
    stop = _stop_on_signals()
    flushing = asyncio.get_running_loop().create_task(_flush_now_and_then(guard), name="tell what the log left out")
    metrics = ""
    if node.metrics_address is not None:
        metrics = f" metrics {with_scheme_of(node.config.metrics_listen, node.metrics_address)}"
    from semel.broker.client_listeners import shown_addresses

    kafka = shown_addresses(kafka_listeners(node.config), node.kafka_addresses)
    grpc = shown_addresses(grpc_listeners(node.config), node.grpc_addresses)
    gateway, http_shown = None, ""
    if http is not None:
        gateway = HttpGateway(http, node.grpc_addresses[0])
        try:
            address = await _start_gateway(gateway, (node.failed, stop))
        except HttpGatewayError as error:
            await _stop(node)
            return int(_fail(str(error), ServeExit.ADDRESS).exit_code)
        http_shown = f" http {address}"
    if not (node.failed.done() or stop.done()):
        print(f"ready: kafka {kafka} grpc {grpc}{metrics}{http_shown} data {node.data_dir}", flush=True)
        tell_service_manager("READY=1", f"STATUS=serving Kafka at {kafka}, gRPC at {grpc}")
    await asyncio.wait((node.failed, stop), return_when=asyncio.FIRST_COMPLETED)
    tell_service_manager("STOPPING=1", "STATUS=writing everything to the disk")
    if stop.done():
        _log.info("stopping, because of %s", stop.result().name)
    if gateway is not None:
        await gateway.stop()
    code = await _stop(node)
    flushing.cancel()
    _log.info("stopped")
    return code


async def _start_gateway(gateway: HttpGateway, ends: Sequence[asyncio.Future[Any]]) -> str | None:
    """Return where the gateway listens. None: one of `ends` came first, while it still waited for the node.

    Raises `HttpGatewayError`.
    """
    starting = asyncio.get_running_loop().create_task(gateway.start(), name="start the HTTP gateway")
    await asyncio.wait((starting, *ends), return_when=asyncio.FIRST_COMPLETED)
    if starting.done():
        return starting.result()
    starting.cancel()
    await asyncio.wait((starting,))
    return None


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
            _log.exception("stopping failed")
            return ServeExit.FAILED
    if failure is not None:
        return int(_fail(f"stopped, because {failure.message}", _exit_after(failure)).exit_code)
    return ServeExit.STOPPED


def _exit_after(failure: SemelError) -> ServeExit:
    if isinstance(failure, NodeRemovedError):
        return ServeExit.REMOVED
    of_metadata = isinstance(failure, MetadataWentBackError | NodeDeposedError | LeftBehindError)
    return ServeExit.METADATA if of_metadata else ServeExit.STORAGE


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
