"""What handlers and listeners need of a node: the seam between them and `Node`, and the double in their tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from semel.broker.acls.authorizer import Authorizer
from semel.broker.audit.log import Audit
from semel.broker.config.node_config import NodeConfig
from semel.broker.config.sources import LoadedConfig
from semel.broker.logs.manager import LogManager
from semel.broker.logs.partition import Partition
from semel.broker.logs.replication_quota import ReplicationQuotas
from semel.broker.metadata.metadata import Metadata
from semel.broker.quotas.client_quotas import ClientQuotas
from semel.broker.users.users import Users
from semel.group_coordinator.coordinator import GroupCoordinator
from semel.protocol.ids import TopicPartition
from semel.runtime.clock import Clock
from semel.txn_coordinator.coordinator import TransactionCoordinator


class Commits(NamedTuple):
    """What a node has committed of its diskless partitions since its start, and what waits for that."""

    commits: int
    entries: int
    waiting_bytes: int


class RemoteStatus(Protocol):
    """How a node's remote storage is, for those who look at it. Counters are since the node's start."""

    @property
    def location(self) -> str: ...

    @property
    def error(self) -> str:
        """Why what is done for all partitions fails; empty where it does not."""
        ...

    @property
    def copied_segments(self) -> int: ...

    @property
    def counted_since_ms(self) -> int:
        """Since when requests and bytes are counted, in milliseconds since 1970."""
        ...

    @property
    def sent_bytes(self) -> int:
        """Sent to the store."""
        ...

    @property
    def read_bytes(self) -> int:
        """Read from the store."""
        ...

    @property
    def failed_reads(self) -> int: ...

    @property
    def cached_bytes(self) -> int: ...

    def requests(self) -> Mapping[str, int]:
        """Return how many were sent to the store: put, get, delete, list."""
        ...

    def committed(self) -> Commits:
        """Return what was committed of diskless partitions."""
        ...

    def throttled_s(self) -> Mapping[str, float]:
        """Return for how many seconds copies, reads and appends waited for the quotas of the store."""
        ...

    def troubles(self) -> Mapping[TopicPartition, str]:
        """Return the partitions for which something fails, and why."""
        ...

    def bytes_to_copy(self) -> int:
        """Return how large the closed segments are that this node has still to copy."""
        ...

    def stored_bytes(self) -> int:
        """Return how much is in the store of the partitions that are led here."""
        ...

    async def stored_by_topic(self) -> Mapping[str, tuple[int, int]]:
        """Return how many objects, and bytes, each topic has in the store, of its partitions that are led here."""
        ...


class Services(Protocol):
    """The parts of a running node."""

    @property
    def config(self) -> NodeConfig: ...

    @property
    def loaded_config(self) -> LoadedConfig: ...

    @property
    def clock(self) -> Clock: ...

    @property
    def metadata(self) -> Metadata: ...

    @property
    def audit(self) -> Audit: ...

    @property
    def authorizer(self) -> Authorizer: ...

    @property
    def client_quotas(self) -> ClientQuotas: ...

    @property
    def users(self) -> Users | None:
        """Those whom listeners serve that ask for passwords; None where none does."""
        ...

    @property
    def logs(self) -> LogManager: ...

    @property
    def replication_quotas(self) -> ReplicationQuotas: ...

    @property
    def transactions(self) -> TransactionCoordinator: ...

    @property
    def groups(self) -> GroupCoordinator: ...

    @property
    def tier(self) -> RemoteStatus | None:
        """The remote storage; None where there is none."""
        ...

    def partition(self, tp: TopicPartition) -> Partition | None: ...

    async def caught_up(self) -> None:
        """Wait until all changes of the metadata so far are carried out on this node."""
        ...
