"""The seam between the listeners and what answers: code that stands there sees requests, and may lose answers.

A node has nothing in this place; the test kit's faults stand here (`semel.testing`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import grpc

    from semel.broker.listeners.kafka.registry import Api


class Interceptor(Protocol):
    """What is put between both listeners of a node and its handlers, for as long as the node runs."""

    def kafka_api(self, api: Api) -> Api:
        """Return what is to serve an API of the Kafka listener in place of `api`."""
        ...

    def grpc_interceptors(self) -> Sequence[grpc.aio.ServerInterceptor[Any, Any]]:
        """Return what is put in front of every gRPC call."""
        ...
