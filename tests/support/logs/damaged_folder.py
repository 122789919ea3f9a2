"""Data folders on the disk for tests of what reads them offline: made, photographed, damaged, and really started."""

from __future__ import annotations

import hashlib
import logging
import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from log_model import NOW, SMALL_SEGMENTS, dump, fill

from semel.broker.config.node_config import NodeConfig
from semel.broker.handlers.topics.rules import node_log_config
from semel.broker.log.config import LogConfig
from semel.broker.logs.config import LogManagerConfig
from semel.broker.logs.manager import LogManager
from semel.protocol.errors import SemelError
from semel.protocol.ids import TopicPartition, new_topic_id
from semel.runtime.clock import ManualClock
from semel.runtime.disk_storage import DiskStorage
from semel.runtime.inline_executor import InlineExecutor

LOGS = (TopicPartition("small", 0), TopicPartition("small", 1), TopicPartition("large", 0))
"""The first two have many segments, the last one has one."""


def open_logs(
    folder: Path, log_config: Callable[[TopicPartition], LogConfig] | None = None, *, is_alone: bool = True
) -> LogManager:
    """Open a data folder as a node does, without its metadata. `is_alone`: no other node has replicas of its logs."""
    manager = LogManager(
        DiskStorage(), str(folder), ManualClock(NOW), LogManagerConfig(disk_min_free_bytes=0),
        executor=InlineExecutor(),
    )  # fmt: skip
    config = node_log_config(NodeConfig())
    manager.open(
        lambda tp, topic_id: config if log_config is None else log_config(tp),
        is_only_replica=lambda tp, topic_id: is_alone,
    )
    return manager


def _config_of(tp: TopicPartition) -> LogConfig:
    return SMALL_SEGMENTS if tp.topic == "small" else LogConfig(index_interval_bytes=200)


def make_folder(folder: Path, count: int = 120) -> LogManager:
    """Fill a folder with logs in which transactions were committed, aborted and left open. It is not closed yet."""
    manager = open_logs(folder, _config_of)
    for number, tp in enumerate(LOGS):
        partition = manager.create_partition(tp, new_topic_id(), _config_of(tp))
        fill(partition.log, count + number)
        partition.leader_epoch = partition.log.epochs.entries()[-1][0]
        partition.log.flush()
    return manager


async def make_clean_folder(folder: Path, count: int = 120) -> None:
    await make_folder(folder, count).close()


def photograph(folder: Path) -> dict[str, tuple[int, int, int, str]]:
    """What no reader may change: each file's inode, size, time of its last change, and content; folders' times too."""
    found = {}
    for path in [folder, *sorted(folder.rglob("*"))]:
        status = path.stat()
        content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        found[str(path.relative_to(folder))] = (status.st_ino, status.st_size, status.st_mtime_ns, content)
    return found


def contents(folder: Path) -> dict[str, str]:
    """Content of each file."""
    return {name: photo[3] for name, photo in photograph(folder).items() if photo[3]}


@dataclass(slots=True)
class Started:
    """What a real start of a folder did."""

    refusal: Exception | None = None
    warnings: list[str] = field(default_factory=list)
    restored_batches: int = 0
    changed: set[str] = field(default_factory=set)
    """Files that it changed, removed or made."""
    state: dict[str, Any] = field(default_factory=dict)
    """What each log knows then."""


class _Collector(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def start_copy(folder: Path, copy: Path, *, is_alone: bool = True) -> Started:
    """Start a copy of a folder for real, and say what that did to it. Paths in its messages are the folder's."""
    shutil.copytree(folder, copy)
    started = Started()
    collector = _Collector()
    logger = logging.getLogger("semel")
    logger.addHandler(collector)
    before = contents(copy)
    try:
        manager = open_logs(copy, is_alone=is_alone)
        logger.removeHandler(collector)  # what reading it says is not the start's
        started.restored_batches = manager.recovery.restored_batches
        started.state = {str(one.tp): _state(one.log) for one in manager.partitions()}
        for partition in manager.partitions():
            partition.log.release_files()
        manager._abandon()
    except (SemelError, OSError, ValueError) as error:
        started.refusal = error
    finally:
        logger.removeHandler(collector)
    after = contents(copy)
    started.changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    started.warnings = [message.replace(str(copy), str(folder)) for message in collector.messages]
    return started


def _state(log: Any) -> Any:
    try:
        return dump(log)
    except SemelError as error:
        return f"unreadable: {error.code.name}"


def damage(folder: Path, chance: random.Random, suffixes: tuple[str, ...] = ()) -> str:
    """Do something bad to a file, and say what."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name not in (".lock",))
    if suffixes:
        files = [path for path in files if path.name.endswith(suffixes)]
    path = chance.choice(files)
    size = path.stat().st_size
    how = chance.choice(["flip", "cut", "empty", "remove", "append", "zeros"])
    name = path.relative_to(folder)
    if how == "remove":
        path.unlink()
    elif how == "append":
        with path.open("ab") as file:
            file.write(chance.randbytes(chance.randint(1, 100)))
    elif size == 0 or how == "empty":
        path.write_bytes(b"")
    elif how == "cut":
        os.truncate(path, chance.randrange(size))
    else:
        at = chance.randrange(size)
        data = bytearray(path.read_bytes())
        data[at : at + (1 if how == "flip" else 20)] = (
            bytes([data[at] ^ 1 << chance.randrange(8)]) if how == "flip" else bytes(20)
        )
        path.write_bytes(data[:size])
    return f"{how} {name}"
