"""What metrics read of a node: its parts, and how it is."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol

from semel.broker.client_listeners import ClientListeners
from semel.broker.cluster_changes import ClusterChanges
from semel.broker.handlers.fetch.handler import FetchHandler
from semel.broker.handlers.produce.handler import ProduceHandler
from semel.broker.services import Services
from semel.protocol.errors import SemelError
from semel.protocol.ids import TopicPartition


class ObservedNode(Services, Protocol):
    """`Services`, and what only the node as a whole knows."""

    @property
    def failed(self) -> asyncio.Future[SemelError]: ...

    @property
    def is_serving(self) -> bool: ...

    @property
    def recovery_seconds(self) -> float: ...

    @property
    def coordinator_load_seconds(self) -> Mapping[str, float]: ...

    @property
    def offline_partitions(self) -> int: ...

    @property
    def client_listeners(self) -> ClientListeners | None: ...

    @property
    def produce(self) -> ProduceHandler: ...

    @property
    def fetch(self) -> FetchHandler: ...

    @property
    def cluster_changes(self) -> ClusterChanges: ...

    @property
    def metadata_behind_max(self) -> int: ...

    @property
    def replication_lag(self) -> Mapping[TopicPartition, int]: ...

    @property
    def failed_fetches(self) -> Mapping[int, int]: ...
