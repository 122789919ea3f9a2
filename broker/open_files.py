"""How the process's open files are shared out, so that no listener can take those of another, or of the logs."""

from __future__ import annotations

import logging
import resource
from dataclasses import dataclass
from typing import Final

from semel.broker.config.node_config import NodeConfig

_log = logging.getLogger("semel.node")

_OWN_FILES: Final = 64
"""What a node has open besides logs and connections: libraries, the journal, the metadata, listeners, epoll."""
_CONNECTIONS_MIN: Final = 4
_UNLIMITED: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class OpenFilesShares:
    """How many connections there may be at once."""

    kafka: int
    grpc: int


def open_files_limit() -> int:
    """Return how many files this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _UNLIMITED if soft == resource.RLIM_INFINITY else soft


def share_open_files(config: NodeConfig, limit: int) -> OpenFilesShares:
    """Return how many connections there may be under a limit of open files: what was configured, where it fits."""
    metrics = 2 * config.metrics_max_connections if config.metrics_listen else 0
    logs = min(config.log_max_open_files, limit // 2)
    left = max(limit - _OWN_FILES - logs - metrics, 2 * _CONNECTIONS_MIN)
    grpc = min(config.grpc_max_connections, max(left // 4, _CONNECTIONS_MIN))
    return OpenFilesShares(kafka=min(config.max_connections, left - grpc), grpc=grpc)


def warn_of_few_open_files(config: NodeConfig, limit: int) -> None:
    """Say at the start where there are too few for what was configured."""
    shares = share_open_files(config, limit)
    if (shares.kafka, shares.grpc) != (config.max_connections, config.grpc_max_connections):
        _log.warning(
            "this process may open %d files, too few for max.connections=%d, grpc.max.connections=%d and "
            "log.max.open.files=%d: it serves %d Kafka and %d gRPC connections at once. Raise the hard limit "
            "(ulimit -Hn, LimitNOFILE= of systemd, --ulimit nofile= of Docker), or lower these settings",
            limit,
            config.max_connections,
            config.grpc_max_connections,
            config.log_max_open_files,
            shares.kafka,
            shares.grpc,
        )
