"""A start of the node's logs that changes nothing: the recovery itself, run over an `OverlayStorage` (D1, D2).

Whatever a start would cut, restore, build again or refuse is not guessed here: the same code does it, and what it says
is kept.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from semel.broker.config.node_config import NodeConfig
from semel.broker.handlers.topic_rules import topic_log_config
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
class Rehearsal:
    """What a start did. `refusal` says why it would not start; `logs` are open where it would."""

    storage: OverlayStorage
    logs: LogManager
    said: list[logging.LogRecord] = field(default_factory=list)
    report: RecoveryReport | None = None
    refusal: SemelError | OSError | ValueError | None = None


class _Keeper(logging.Handler):
    def __init__(self, kept: list[logging.LogRecord]) -> None:
        super().__init__(logging.INFO)
        self._kept = kept

    def emit(self, record: logging.LogRecord) -> None:
        self._kept.append(record)


@contextmanager
def _keep_what_is_said(kept: list[logging.LogRecord]) -> Iterator[None]:
    """Take what Semel logs, and let nobody else have it: it is about a start that never was."""
    logger, keeper = logging.getLogger(LOGGER), _Keeper(kept)
    before = logger.level, logger.propagate, logger.handlers[:]
    logger.handlers[:] = [keeper]
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield
    finally:
        level, logger.propagate, logger.handlers[:] = before
        logger.setLevel(level)


def rehearse_start(
    storage: OverlayStorage,
    data_dir: str,
    clock: Clock,
    image: MetadataImage | None,
    node_id: int,
    progress: Callable[[int, int, TopicPartition], None] | None = None,
) -> Rehearsal:
    """Start the logs in `data_dir`. Nothing is raised for what is wrong with them: the rehearsal says it."""
    config = NodeConfig()

    def log_config(tp: TopicPartition, topic_id: TopicId) -> LogConfig:
        topic = None if image is None else image.topic_by_id(topic_id)
        return topic_log_config(config, {} if topic is None else topic.configs)

    cluster_id = image.cluster_id if image is not None and image.cluster_id else None
    logs = LogManager(
        storage,
        data_dir,
        clock,
        LogManagerConfig(node_id=node_id, cluster_id=cluster_id, min_free_bytes=0, open_files_max=OPEN_FILES_MAX),
        executor=InlineExecutor(),
    )
    rehearsal = Rehearsal(storage, logs)
    with _keep_what_is_said(rehearsal.said):
        try:
            rehearsal.report = logs.open(log_config, progress=progress)
        except (SemelError, OSError, ValueError) as error:
            rehearsal.refusal = error
    return rehearsal
