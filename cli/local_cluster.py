"""`semel serve --nodes 3`: a cluster on one machine, each node a process of its own under one supervisor.

The metadata is one SQLite file, which all of them use. A node that dies is started again, unless it was removed from
the cluster; Ctrl-C or SIGTERM stops all.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import logging
import os
import secrets
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from semel.broker.config.listeners import listeners_of
from semel.broker.config.node_config import NodeConfig
from semel.broker.config.sources import (
    Address,
    LoadedConfig,
    Source,
    advertised_address,
    listen_address,
    parse_address,
)
from semel.broker.metadata.store import sqlite_url
from semel.cli.node_folders import is_node_folder
from semel.cli.serve_exit import ServeExit
from semel.protocol.schemes import with_scheme_of
from semel.runtime.disk_storage import DiskStorage
from semel.runtime.setting import ConfigError

_log = logging.getLogger("semel.cluster")

NODES_MAX: Final = 9
"""More on one machine share its cores and its disk, and bring nothing."""
PORT_STEP: Final = 10
"""From one node's port to the next one's: the Kafka and the gRPC port of a node are neighbours."""
SECRET_FILE: Final = "cluster.secret"  # noqa: S105 (a file's name)
METADATA_FILE: Final = "metadata.sqlite"
_RESTART_S: Final = 0.5
_RESTART_S_MAX: Final = 30.0
_FORMER_RUN_S: Final = 20.0
"""Longer than a node takes to stop, with requests in flight (shutdown.grace.ms)."""
_LOOK_EVERY_S: Final = 0.2
_LINE_BYTES_MAX: Final = 1 << 20
_PR_SET_PDEATHSIG: Final = 1


@dataclass(frozen=True, slots=True)
class LocalNode:
    """One node: its number, and the settings that it does not share with the others."""

    node_id: int
    settings: Mapping[str, str]

    def arguments(self) -> list[str]:
        return [text for name, value in self.settings.items() for text in ("--set", f"{name}={value}")]


def plan_nodes(loaded: LoadedConfig, count: int) -> list[LocalNode]:
    """Return the nodes of a cluster on this machine, as the settings of one say. Raises `ConfigError`."""
    config = loaded.config
    if not 2 <= count <= NODES_MAX:
        raise ConfigError(f"--nodes {count}: a cluster on one machine has 2 to {NODES_MAX} nodes")
    racks = _racks(config.broker_rack, count)
    folder = os.path.abspath(config.data_dir)
    if is_node_folder(folder):
        raise ConfigError(
            f"{config.data_dir} is the data directory of one node, and --nodes {count} needs one of its own. Give "
            "--nodes another --data-dir; or start the one node without --nodes. docs/cluster.md says how one node with "
            "its topics becomes a cluster"
        )
    shared = {
        "metadata.url": config.metadata_url or sqlite_url(f"{folder}/{METADATA_FILE}"),
        "cluster.secret.file": config.cluster_secret_file or f"{folder}/{SECRET_FILE}",
    }
    replicas = min(count, 3)
    defaults = {"default.replication.factor": replicas, "min.insync.replicas": max(1, replicas - 1)}
    shared |= {name: str(value) for name, value in defaults.items() if loaded.source(name) is Source.DEFAULT}
    if config.listeners_allow_anonymous:  # the command may have said it as --insecure
        shared["listeners.allow.anonymous"] = "true"
    _check_ports(config, count)
    return [
        LocalNode(
            config.node_id + number,
            {
                **shared,
                "node.id": str(config.node_id + number),
                "data.dir": f"{folder}/node-{config.node_id + number}",
                **_listeners("kafka", config, number),
                **_listeners("grpc", config, number),
                "peer.listen": _counted_up("peer.listen", config.peer_listen or "127.0.0.1:0", number),
                **_where_given(config, number),
                **({"broker.rack": racks[number]} if racks[number] else {}),
            },
        )
        for number in range(count)
    ]


def _check_ports(config: NodeConfig, count: int) -> None:
    """Raise `ConfigError` where two listeners of the nodes would have one port."""
    taken: dict[Address, tuple[str, int]] = {}
    for number in range(count):
        for name, first in _listen_addresses(config):
            if not first.port:
                continue
            node_id, address = config.node_id + number, _counted(first, number)
            if address in taken:
                other, other_id = taken[address]
                raise ConfigError(
                    f"{name} of node {node_id} and {other} of node {other_id} would both be {address}: with --nodes "
                    f"each port is counted up by {PORT_STEP} from node to node. Choose ports that do not differ by a "
                    f"multiple of {PORT_STEP}"
                )
            taken[address] = name, node_id


def _listen_addresses(config: NodeConfig) -> Iterator[tuple[str, Address]]:
    """Yield where the first node listens, with the setting that says so."""
    for protocol in ("kafka", "grpc"):
        for each in listeners_of(config, protocol):
            yield f"{protocol}.listeners {each.name}" if each.is_named else f"{protocol}.listen", listen_address(each)
    for name, text in (("peer.listen", config.peer_listen), ("metrics.listen", config.metrics_listen)):
        if text:
            yield name, parse_address(name, text)


def _racks(text: str, count: int) -> list[str]:
    """Return the rack of each node: its own, of as many as there are nodes, separated by commas; or one for all."""
    racks = [rack.strip() for rack in text.split(",")]
    if len(racks) == 1:
        return racks * count
    if len(racks) != count or not all(racks):
        raise ConfigError(
            f"broker.rack = {text}: with --nodes {count} it is one rack for all nodes, or {count} racks with commas "
            "between them, one for each node"
        )
    return racks


def _listeners(protocol: str, config: NodeConfig, number: int) -> dict[str, str]:
    """Return the settings of a node's listeners for clients of one protocol."""
    several = f"{protocol}.listeners"
    counted: list[str] = []
    for each in listeners_of(config, protocol):
        listen = _counted(listen_address(each), number)
        advertised = str(_counted(advertised_address(each), number)) if each.advertised else ""
        if not each.is_named:
            alone = {f"{protocol}.listen": with_scheme_of(each.listen, listen)}
            return {**alone, f"{protocol}.advertised": advertised} if advertised else alone
        counted.append(each.item(listen, advertised))
    return {several: ",".join(counted)}


def _where_given(config: NodeConfig, number: int) -> dict[str, str]:
    given = {
        "peer.advertised": config.peer_advertised,
        "metrics.listen": config.metrics_listen,
    }
    return {name: _counted_up(name, text, number) for name, text in given.items() if text}


def _counted_up(name: str, text: str, number: int) -> str:
    return with_scheme_of(text, _counted(parse_address(name, text), number))


def _counted(address: Address, number: int) -> Address:
    return Address(address.host, address.port + PORT_STEP * number if address.port else 0)


def make_shared_files(nodes: Sequence[LocalNode]) -> None:
    """Make the directory that the nodes share, and the secret in it. Raises `OSError`."""
    path = Path(nodes[0].settings["cluster.secret.file"])
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.name == SECRET_FILE and not path.exists():
        unfinished = path.with_name(f".{path.name}.{os.getpid()}")
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_urlsafe(48) + "\n")
        unfinished.rename(path)


class LocalCluster:
    """Runs the nodes until it gets a signal to stop."""

    def __init__(
        self,
        nodes: Sequence[LocalNode],
        arguments: Sequence[str],
        ready: Callable[[int, str], None],
        *,
        once: Sequence[str] = (),
    ) -> None:
        """
        arguments: what all nodes are given besides their own settings
        ready:     is called with each ready line
        once:      what they are given at their first start alone, and not when they are started again
        """
        self._nodes = nodes
        self._arguments = list(arguments)
        self._once = list(once)
        self._ready = ready
        self._processes: dict[int, asyncio.subprocess.Process] = {}
        self._were_ready: set[int] = set()
        self._stops = asyncio.Event()
        self._failure = 0

    async def run(self) -> int:
        """Return the exit code: that of a node that could not start; 7 where all nodes were removed; else 0."""
        keepers = asyncio.gather(*(self._keep(node) for node in self._nodes))
        stop = asyncio.get_running_loop().create_task(self._stops.wait())
        await asyncio.wait((stop, keepers), return_when=asyncio.FIRST_COMPLETED)
        if not self._stops.is_set():
            self._failure = ServeExit.REMOVED
        self._stops.set()
        for process in list(self._processes.values()):
            with suppress(ProcessLookupError):
                process.terminate()
        await asyncio.gather(stop, keepers)
        return self._failure

    def stop(self) -> None:
        """Stop all nodes."""
        self._stops.set()

    async def _keep(self, node: LocalNode) -> None:
        """Run a node, and start it again after it died. Returns when all are to stop, or the node was removed."""
        pause_s = _RESTART_S
        await self._former_run_over(node)
        while not self._stops.is_set():
            begun = asyncio.get_running_loop().time()
            code = await self._run(node)
            if self._stops.is_set():
                return
            if code == ServeExit.REMOVED:
                _log.warning(
                    "node %d was removed from the cluster, and is not started again. To have it join as a new, empty "
                    "node, stop this command and start it again", node.node_id,
                )  # fmt: skip
                return
            if node.node_id not in self._were_ready:
                # It says itself what is wrong; another try would say the same.
                if code == ServeExit.METADATA and not self._failure:
                    _log.error(
                        "with --nodes, --accept-metadata-loss is for all of them: where the message of a node asks for "
                        "it, add it to this command, for one start"
                    )
                self._failure = code if code > 0 else 1
                self._stops.set()
                return
            if asyncio.get_running_loop().time() - begun > _RESTART_S_MAX:
                pause_s = _RESTART_S
            how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
            _log.warning("node %d ended %s, and is started again in %g s", node.node_id, how, pause_s)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._stops.wait()
            pause_s = min(2 * pause_s, _RESTART_S_MAX)

    async def _former_run_over(self, node: LocalNode) -> None:
        """Wait for the node of a supervisor that was killed: it is stopping. If it does not, the start says so."""
        folder = node.settings["data.dir"]
        deadline = asyncio.get_running_loop().time() + _FORMER_RUN_S
        is_told = False
        while _is_locked(folder) and not self._stops.is_set() and asyncio.get_running_loop().time() < deadline:
            if not is_told:
                _log.info("%s is in use: waiting up to %d s for a former run to stop", folder, _FORMER_RUN_S)
                is_told = True
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_EVERY_S):
                    await self._stops.wait()

    async def _run(self, node: LocalNode) -> int:
        # One that was ready is in the metadata. If it was removed while it was not running, it does not join again.
        more = ["--no-join"] if node.node_id in self._were_ready else self._once
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "semel.cli", "serve", *self._arguments, *node.arguments(), *more,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=_LINE_BYTES_MAX,
            start_new_session=True,  # so that Ctrl-C reaches this process alone
            preexec_fn=_end_with_parent,
        )  # fmt: skip
        _log.info("node %d is process %d", node.node_id, process.pid)
        self._processes[node.node_id] = process
        if self._stops.is_set():
            process.terminate()
        assert process.stdout is not None
        assert process.stderr is not None
        await asyncio.gather(self._read_ready(node, process.stdout), _pass_on(node.node_id, process.stderr))
        code = await process.wait()
        del self._processes[node.node_id]
        return code

    async def _read_ready(self, node: LocalNode, stream: asyncio.StreamReader) -> None:
        async for line in stream:
            text = line.decode(errors="replace").rstrip("\n")
            if text.startswith("ready: "):
                self._were_ready.add(node.node_id)
                self._ready(node.node_id, text.removeprefix("ready: "))


def _is_locked(folder: str) -> bool:
    if not os.path.isdir(folder):
        return False
    try:
        DiskStorage().lock(folder).release()
    except BlockingIOError:
        return True
    except OSError:
        return False  # the node says what is wrong with it
    return False


async def _pass_on(node_id: int, stream: asyncio.StreamReader) -> None:
    """Write a node's log lines to this process's standard error, each with the node's number."""
    while True:
        try:
            line = await stream.readline()
        except ValueError:  # longer than any line that a node writes
            continue
        if not line:
            return
        with suppress(OSError, ValueError):
            sys.stderr.write(_with_node(node_id, line.decode(errors="replace")))
            sys.stderr.flush()


def _with_node(node_id: int, line: str) -> str:
    if line.startswith("{"):
        with suppress(ValueError):
            return json.dumps({**json.loads(line), "node": node_id}) + "\n"
    return f"node {node_id}: {line}"


def _end_with_parent() -> None:
    """Where the kernel can do it (Linux), a node is stopped when the supervisor dies."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
