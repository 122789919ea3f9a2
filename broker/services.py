"""What handlers and listeners need of a node: the seam between them and `Node`, and the double in their tests."""

from __future__ import annotations

from typing import Protocol

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

    def partition(self, tp: TopicPartition) -> Partition | None: ...

    async def caught_up(self) -> None:
        """Wait until all changes of the metadata so far are carried out on this node."""
        ...
