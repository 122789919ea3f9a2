"""Semel: an exactly-once transactional log that any Kafka client can use.

The public names. Each is loaded at its first use (PEP 562), so that `import semel` is quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str

    from semel import aio
    from semel import arrow as arrow
    from semel import schemas as schemas
    from semel import sql as sql
    from semel import testing as testing
    from semel.broker.start_errors import NodeStartError
    from semel.protocol.acls import Acl, AclFilter, AclOperation, AclPermission, PatternType, ResourceType
    from semel.protocol.api.commit_decisions import CommitDecision
    from semel.protocol.api.group_offsets import GroupMetadata, OffsetAndMetadata
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
    from semel.protocol.quotas import ClientQuota, QuotaAlteration, QuotaEntity, QuotaFilter
    from semel.protocol.record_decoder import Record
    from semel.runtime.setting import ConfigError
    from semel.sdk.admin.api import Admin
    from semel.sdk.consumer.api import Consumer, RebalanceListener
    from semel.sdk.consumer.batch import Batch
    from semel.sdk.consumer.deserialization import DeserializationError
    from semel.sdk.consumer.fetched import UnreadableBatchError
    from semel.sdk.embedded.api import EmbeddedLog
    from semel.sdk.embedded.api import open as open  # noqa: A004
    from semel.sdk.pipeline.failures import RecordFailedError
    from semel.sdk.pipeline.progress import RunStatistics
    from semel.sdk.pipeline.records import ProducerRecord
    from semel.sdk.producer.api import Producer, Transaction
    from semel.sdk.producer.delivery import Delivery, RecordMetadata
    from semel.sdk.producer.transaction import CommitSource, PreparedTransaction
    from semel.sdk.shared.api import SharedTransaction, SharedWriter
    from semel.sdk.shared.transaction import SharedCommit
    from semel.sdk.shared.writer import SharedWriterId
    from semel.sdk.transport.unreachable import UnreachableError

__all__ = [
    "AbortTransactionError",
    "Acl",
    "AclFilter",
    "AclOperation",
    "AclPermission",
    "Admin",
    "Batch",
    "ClientQuota",
    "CommitDecision",
    "CommitSource",
    "ConfigError",
    "Consumer",
    "Delivery",
    "DeserializationError",
    "EmbeddedLog",
    "ErrorCode",
    "FatalError",
    "FencedError",
    "GroupMetadata",
    "NodeStartError",
    "OffsetAndMetadata",
    "PatternType",
    "PreparedTransaction",
    "Producer",
    "ProducerRecord",
    "QuotaAlteration",
    "QuotaEntity",
    "QuotaFilter",
    "RebalanceListener",
    "Record",
    "RecordFailedError",
    "RecordMetadata",
    "ResourceType",
    "RetriableError",
    "RunStatistics",
    "SemelError",
    "SharedCommit",
    "SharedTransaction",
    "SharedWriter",
    "SharedWriterId",
    "TopicPartition",
    "Transaction",
    "UnreachableError",
    "UnreadableBatchError",
    "UsageError",
    "aio",
]

_MODULES = {
    "AbortTransactionError": "protocol.errors",
    "Acl": "protocol.acls",
    "AclFilter": "protocol.acls",
    "AclOperation": "protocol.acls",
    "AclPermission": "protocol.acls",
    "Admin": "sdk.admin.api",
    "Batch": "sdk.consumer.batch",
    "ClientQuota": "protocol.quotas",
    "CommitDecision": "protocol.api.commit_decisions",
    "CommitSource": "sdk.producer.transaction",
    "ConfigError": "runtime.setting",
    "Consumer": "sdk.consumer.api",
    "Delivery": "sdk.producer.delivery",
    "DeserializationError": "sdk.consumer.deserialization",
    "EmbeddedLog": "sdk.embedded.api",
    "ErrorCode": "protocol.errors",
    "FatalError": "protocol.errors",
    "FencedError": "protocol.errors",
    "GroupMetadata": "protocol.api.group_offsets",
    "NodeStartError": "broker.start_errors",
    "OffsetAndMetadata": "protocol.api.group_offsets",
    "PatternType": "protocol.acls",
    "PreparedTransaction": "sdk.producer.transaction",
    "Producer": "sdk.producer.api",
    "ProducerRecord": "sdk.pipeline.records",
    "QuotaAlteration": "protocol.quotas",
    "QuotaEntity": "protocol.quotas",
    "QuotaFilter": "protocol.quotas",
    "RebalanceListener": "sdk.consumer.api",
    "Record": "protocol.record_decoder",
    "RecordFailedError": "sdk.pipeline.failures",
    "RecordMetadata": "sdk.producer.delivery",
    "ResourceType": "protocol.acls",
    "RetriableError": "protocol.errors",
    "RunStatistics": "sdk.pipeline.progress",
    "SemelError": "protocol.errors",
    "SharedCommit": "sdk.shared.transaction",
    "SharedTransaction": "sdk.shared.api",
    "SharedWriter": "sdk.shared.api",
    "SharedWriterId": "sdk.shared.writer",
    "TopicPartition": "protocol.ids",
    "Transaction": "sdk.producer.api",
    "UnreachableError": "sdk.transport.unreachable",
    "UnreadableBatchError": "sdk.consumer.fetched",
    "UsageError": "protocol.errors",
    "open": "sdk.embedded.api",
}
_OF_A_NODE = frozenset({"EmbeddedLog", "NodeStartError", "open"})
_SUBMODULES = frozenset({"aio", "arrow", "schemas", "sql", "testing"})


def __getattr__(name: str) -> Any:
    if name in _OF_A_NODE:
        from semel.protocol.extras import imports_of_extra

        with imports_of_extra("node", f"semel.{name}"):
            value = getattr(importlib.import_module(f"semel.{_MODULES[name]}"), name)
    elif name in _MODULES:
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
    return sorted([*__all__, *_SUBMODULES, "__doc__", "__file__", "__name__", "__path__", "__version__"])
