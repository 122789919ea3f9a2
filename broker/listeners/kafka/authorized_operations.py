"""What a client may do with a resource (KIP-430), as the bits that answers carry where they are asked for.

There is no authorizer, so everybody may do everything that can be done with the kind of resource.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Final


class AclOperation(IntEnum):
    """Kafka's operations; the number is the bit."""

    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


def _bits(operations: Iterable[AclOperation]) -> int:
    return sum(1 << operation for operation in operations)


NOT_ASKED_FOR: Final = -(1 << 31)

_CONFIGS: Final = (AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS)

TOPIC_OPERATIONS: Final = _bits(
    (
        AclOperation.READ,
        AclOperation.WRITE,
        AclOperation.CREATE,
        AclOperation.DESCRIBE,
        AclOperation.DELETE,
        AclOperation.ALTER,
        *_CONFIGS,
    )
)
GROUP_OPERATIONS: Final = _bits((AclOperation.READ, AclOperation.DESCRIBE, AclOperation.DELETE, *_CONFIGS))
CLUSTER_OPERATIONS: Final = _bits(
    (
        AclOperation.CREATE,
        AclOperation.CLUSTER_ACTION,
        AclOperation.ALTER,
        AclOperation.IDEMPOTENT_WRITE,
        AclOperation.DESCRIBE,
        *_CONFIGS,
    )
)
