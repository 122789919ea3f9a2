"""Semel: an exactly-once transactional log that any Kafka client can use.

The public names. Each is loaded at its first use (PEP 562), so that `import semel` is quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str

    from semel import aio
    from semel import sql as sql
    from semel import testing as testing
    from semel.protocol.api.groups import OffsetAndMetadata
    from semel.protocol.api.shared_transactions import CommitDecision
    from semel.protocol.errors import (
        AbortTransactionError,
        ErrorCode,
        FatalError,
        FencedError,
        RetriableError,
        SemelError,
        UsageError,
    )
    from semel.protocol.ids import TopicPartition
    from semel.protocol.record_decoder import Record
    from semel.sdk.admin.api import Admin
    from semel.sdk.consumer.api import Consumer
    from semel.sdk.consumer.batch import Batch
    from semel.sdk.consumer.fetched import UnreadableBatchError
    from semel.sdk.consumer.listener import RebalanceListener
    from semel.sdk.producer.api import Producer
    from semel.sdk.producer.delivery import Delivery, RecordMetadata
    from semel.sdk.producer.transaction import CommitSource, GroupMetadata, PreparedTransaction, Transaction
    from semel.sdk.shared.transaction import SharedCommit, SharedTransaction
    from semel.sdk.shared.writer import SharedWriter, SharedWriterId

__all__ = [
    "AbortTransactionError",
    "Admin",
    "Batch",
    "CommitDecision",
    "CommitSource",
    "Consumer",
    "Delivery",
    "ErrorCode",
    "FatalError",
    "FencedError",
    "GroupMetadata",
    "OffsetAndMetadata",
    "PreparedTransaction",
    "Producer",
    "RebalanceListener",
    "Record",
    "RecordMetadata",
    "RetriableError",
    "SemelError",
    "SharedCommit",
    "SharedTransaction",
    "SharedWriter",
    "SharedWriterId",
    "TopicPartition",
    "Transaction",
    "UnreadableBatchError",
    "UsageError",
    "aio",
]

_MODULES = {
    "AbortTransactionError": "protocol.errors",
    "Admin": "sdk.admin.api",
    "Batch": "sdk.consumer.batch",
    "CommitDecision": "protocol.api.shared_transactions",
    "CommitSource": "sdk.producer.transaction",
    "Consumer": "sdk.consumer.api",
    "Delivery": "sdk.producer.delivery",
    "ErrorCode": "protocol.errors",
    "FatalError": "protocol.errors",
    "FencedError": "protocol.errors",
    "GroupMetadata": "sdk.producer.transaction",
    "OffsetAndMetadata": "protocol.api.groups",
    "PreparedTransaction": "sdk.producer.transaction",
    "Producer": "sdk.producer.api",
    "RebalanceListener": "sdk.consumer.listener",
    "Record": "protocol.record_decoder",
    "RecordMetadata": "sdk.producer.delivery",
    "RetriableError": "protocol.errors",
    "SemelError": "protocol.errors",
    "SharedCommit": "sdk.shared.transaction",
    "SharedTransaction": "sdk.shared.transaction",
    "SharedWriter": "sdk.shared.writer",
    "SharedWriterId": "sdk.shared.writer",
    "TopicPartition": "protocol.ids",
    "Transaction": "sdk.producer.transaction",
    "UnreadableBatchError": "sdk.consumer.fetched",
    "UsageError": "protocol.errors",
}
_SUBMODULES = frozenset({"aio", "sql", "testing"})


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        value = getattr(importlib.import_module(f"semel.{_MODULES[name]}"), name)
    elif name in _SUBMODULES:
        value = importlib.import_module(f"semel.{name}")
    elif name == "__version__":
        value = importlib.import_module("importlib.metadata").version("semel")
    else:
        raise AttributeError(f"module 'semel' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
