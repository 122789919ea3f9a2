"""A start of the node's logs that changes nothing: the recovery itself, run over an `OverlayStorage` (D1, D2).

Whatever a start would cut, restore, build again or refuse is not guessed here: the same code does it, and what it says
is kept.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final

from semel.broker.config.node_config import NodeConfig
from semel.broker.handlers.topics.rules import partition_log_configs
from semel.broker.inspection.overlay import OverlayStorage
from semel.broker.log.config import LogConfig
from semel.broker.logs.config import LogManagerConfig
from semel.broker.logs.journal_replay import RecoveryReport
from semel.broker.logs.manager import LogManager
from semel.broker.metadata.image import MetadataImage
from semel.protocol.errors import SemelError
from semel.protocol.ids import TopicId, TopicPartition
from semel.runtime.clock import Clock
from semel.runtime.inline_executor import InlineExecutor

OPEN_FILES_MAX: Final = 256
LOGGER: Final = "semel"


@dataclass(slots=True)
class DryRun:
    """What a start did. `refusal` says why it would not start; `logs` are open where it would."""

    storage: OverlayStorage
    logs: LogManager
    said: list[logging.LogRecord] = field(default_factory=list)
    report: RecoveryReport | None = None
    refusal: SemelError | OSError | ValueError | None = None


class _Keeper(logging.Handler):
    """Keeps what this thread logs. What others do is no part of the start: their handlers have it as before."""

    def __init__(self, kept: list[logging.LogRecord], others: Sequence[logging.Handler], others_level: int) -> None:
        super().__init__(logging.INFO)
        self._kept = kept
        self._others = others
        self._others_level = others_level
        self._thread = threading.get_ident()

    def emit(self, record: logging.LogRecord) -> None:
        if record.thread == self._thread:
            self._kept.append(record)
        elif record.levelno >= self._others_level:
            for handler in self._others:
                if record.levelno >= handler.level:
                    handler.handle(record)


@contextmanager
def _keep_what_is_said(kept: list[logging.LogRecord]) -> Iterator[None]:
    """Take what Semel logs, and let nobody else have it: it is about a start that never was."""
    logger = logging.getLogger(LOGGER)
    before = logger.level, logger.propagate, logger.handlers[:]
    others = [*logger.handlers, *(logging.getLogger().handlers if logger.propagate else ())]
    keeper = _Keeper(kept, others, logger.getEffectiveLevel())
    logger.handlers[:] = [keeper]
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield
    finally:
        level, logger.propagate, logger.handlers[:] = before
        logger.setLevel(level)


def dry_run_start(
    storage: OverlayStorage,
    data_dir: str,
    clock: Clock,
    image: MetadataImage | None,
    node_id: int,
    is_alone: bool = False,
    may_be_remote: bool = False,
    progress: Callable[[int, int, TopicPartition], None] | None = None,
) -> DryRun:
    """Start the logs in `data_dir`. Nothing is raised for what is wrong with them: the dry run says it.

    is_alone:      see `verify`
    may_be_remote: nobody says which topics have a remote storage: that first segments are lost can't be told then
    """
    config = NodeConfig()

    def log_config(tp: TopicPartition, topic_id: TopicId) -> LogConfig:
        topic = None if image is None else image.topic_by_id(topic_id)
        found = partition_log_configs(config, topic)(tp.partition)
        return replace(found, remote_storage_enable=True) if may_be_remote else found

    def is_only_replica(tp: TopicPartition, topic_id: TopicId) -> bool:
        """Only of such a log it can be told that something is lost: another replica may have been cut to follow."""
        topic = None if image is None else image.topic_by_id(topic_id)
        if topic is None or tp.partition >= len(topic.partitions):
            return is_alone or image is not None
        return topic.partitions[tp.partition].replicas == (node_id,)

    cluster_id = image.cluster_id if image is not None and image.cluster_id else None
    logs = LogManager(
        storage,
        data_dir,
        clock,
        LogManagerConfig(disk_min_free_bytes=0, log_max_open_files=OPEN_FILES_MAX),
        node_id=node_id,
        cluster_id=cluster_id,
        executor=InlineExecutor(),
    )
    dry_run = DryRun(storage, logs)
    with _keep_what_is_said(dry_run.said):
        try:
            dry_run.report = logs.open(log_config, is_only_replica=is_only_replica, progress=progress)
        except (SemelError, OSError, ValueError) as error:
            dry_run.refusal = error
    return dry_run
