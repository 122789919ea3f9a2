"""The services of semel.v1, ready to be served: by a gRPC server, or to clients in the node's own process."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import grpc

from semel.broker.handlers.fetch.handler import FetchHandler
from semel.broker.handlers.produce.handler import ProduceHandler
from semel.broker.listeners.grpc.acl_service import AclService
from semel.broker.listeners.grpc.callers import rights_of
from semel.broker.listeners.grpc.calls_in_flight import CallsInFlight
from semel.broker.listeners.grpc.cluster_service import ClusterService
from semel.broker.listeners.grpc.data_service import DataService
from semel.broker.listeners.grpc.delegation_token_service import DelegationTokenService
from semel.broker.listeners.grpc.diagnostics_service import DiagnosticsService
from semel.broker.listeners.grpc.edge import CallTimes, service_handler
from semel.broker.listeners.grpc.group_service import GroupService
from semel.broker.listeners.grpc.malformed import Malformed
from semel.broker.listeners.grpc.metadata_service import MetadataService
from semel.broker.listeners.grpc.quota_service import QuotaService
from semel.broker.listeners.grpc.shared_service import SharedTransactionService
from semel.broker.listeners.grpc.topic_service import TopicService
from semel.broker.listeners.grpc.transaction_service import TransactionService
from semel.broker.listeners.grpc.usage import counted_call
from semel.broker.listeners.grpc.user_service import UserService
from semel.broker.listeners.grpc.whereabouts import with_whereabouts
from semel.broker.services import Services
from semel.protocol.listener_names import DEFAULT_LISTENER
from semel.protocol.v1 import (
    acls_pb2,
    cluster_pb2,
    data_pb2,
    delegation_tokens_pb2,
    diagnostics_pb2,
    groups_pb2,
    metadata_pb2,
    quotas_pb2,
    shared_pb2,
    topics_pb2,
    transactions_pb2,
    users_pb2,
)


class SemelServices:
    """What a node answers to the calls of semel.v1."""

    def __init__(
        self,
        node: Services,
        produce: ProduceHandler,
        fetch: FetchHandler,
        times: CallTimes | None = None,
        listener: str = DEFAULT_LISTENER,
    ) -> None:
        """`produce` and `fetch` are those of the Kafka listener: all listeners of a node share them.

        listener: the name of the one that callers come by
        """
        self._listener = listener
        self.malformed = Malformed()
        self.calls = CallsInFlight()
        self._node = node
        self._times = times
        self.data = DataService(node, produce, fetch)

    def handlers(self) -> Mapping[str, grpc.GenericRpcHandler[Any, Any]]:
        """Return the handlers of all services, by the services' full names."""
        node = self._node
        services = (
            (metadata_pb2, "MetadataService", MetadataService(node, self._listener)),
            (topics_pb2, "TopicService", TopicService(node, self._listener)),
            (cluster_pb2, "ClusterService", ClusterService(node)),
            (groups_pb2, "GroupService", GroupService(node)),
            (transactions_pb2, "TransactionService", TransactionService(node)),
            (shared_pb2, "SharedTransactionService", SharedTransactionService(node)),
            (diagnostics_pb2, "DiagnosticsService", DiagnosticsService(node)),
            (acls_pb2, "AclService", AclService(node)),
            (quotas_pb2, "QuotaService", QuotaService(node)),
            (users_pb2, "UserService", UserService(node)),
            (delegation_tokens_pb2, "DelegationTokenService", DelegationTokenService(node)),
            (data_pb2, "DataService", self.data),
        )
        described = [(module.DESCRIPTOR.services_by_name[name], methods) for module, name, methods in services]
        return {
            service.full_name: service_handler(
                service,
                methods,
                max_array_length=node.config.grpc_max_array_length,
                times=self._times,
                malformed=self.malformed,
                explain=partial(with_whereabouts, node, self._listener),
                rights=partial(rights_of, node),
                counts=partial(counted_call, node),
                calls=self.calls,
            )
            for service, methods in described
        }

    def finish(self) -> None:
        """End the streams: the node stops."""
        self.data.finish()
