"""Why a node could not start, or stopped on its own: the kinds that an operator acts on differently."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import TYPE_CHECKING

from semel.broker.log.disk_errors import remedy
from semel.protocol.errors import ErrorCode, FatalError, SemelError

if TYPE_CHECKING:
    from semel.broker.config.listeners import ClientListener
    from semel.broker.config.node_config import NodeConfig


class StartFailure(Enum):
    """What was in the way of a start."""

    DATA_FOLDER = "data directory"
    """In use by another process, another node's, or damaged."""
    METADATA = "metadata"
    """The database can't be reached, or another node is the controller."""
    ADDRESS = "address"
    """A port is in use, or a host is not this machine's."""
    REMOVED = "removed"
    """The node was removed from the cluster, and was to be started only as one of its nodes."""


class NodeStartError(FatalError):
    """The node could not start. The message says what to do."""

    def __init__(self, message: str, failure: StartFailure, code: ErrorCode = ErrorCode.UNKNOWN_SERVER_ERROR) -> None:
        super().__init__(message, code)
        self.failure = failure


def kafka_not_bound(listener: ClientListener, error: OSError) -> NodeStartError:
    name = f"Kafka listener {listener.name}" if listener.is_named else "Kafka listener"
    return NodeStartError(
        f"the {name} can't have {listener.listen}: {error.strerror or error}. "
        "Choose another address (--kafka of `semel serve`, kafka= of semel.open()).",
        StartFailure.ADDRESS,
    )


def peers_not_bound(config: NodeConfig, error: OSError) -> NodeStartError:
    return NodeStartError(
        f"the listener of the other nodes can't have peer.listen = {config.peer_listen}: {error.strerror or error}. "
        "Choose another address.",
        StartFailure.ADDRESS,
    )


def as_start_error(error: Exception, failure: StartFailure) -> NodeStartError:
    """Return the error of a start for what broke it, where that is not one already."""
    if isinstance(error, SemelError):
        return NodeStartError(error.message, failure, error.code)
    return NodeStartError(
        f"the logs can't be opened: {error}. Next step: {remedy(error)}, then start the node again. Nothing was lost "
        "by this start",
        failure,
        ErrorCode.KAFKA_STORAGE_ERROR,
    )


def causes_of(error: BaseException) -> Iterator[str]:
    """Yield what failed: of a task group its tasks' errors, since its own message only counts them."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from causes_of(inner)
    elif isinstance(error, SemelError):
        yield error.message
    else:
        yield f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
