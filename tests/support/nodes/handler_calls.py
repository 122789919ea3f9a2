"""The handlers of Kafka's APIs, called without a connection."""

from __future__ import annotations

from semel.broker.acls.authorizer import Access
from semel.broker.acls.rights import ALL_RIGHTS
from semel.broker.listeners.kafka import all_apis
from semel.broker.listeners.kafka.registry import Api, RequestContext
from semel.broker.node import Node
from semel.protocol.kafka.api import ApiKey, RequestHeader
from semel.protocol.listener_names import DEFAULT_LISTENER


class Peer:
    """A connection that is only asked for its address."""

    peer = "127.0.0.1:1"
    listener_name = DEFAULT_LISTENER
    access: Access | None = None
    all_rights = ALL_RIGHTS

    def answered(self, exclusive: bool) -> None: ...

    def warn(self, message: str, *args: object) -> None: ...

    def abort(self, reason: str) -> None:
        raise AssertionError(reason)


def context_of(node: Node, key: ApiKey, version: int) -> RequestContext:
    return RequestContext(node, Peer(), RequestHeader(int(key), version, 1, "test", 0), True, 0)


def api_of(key: ApiKey) -> Api:
    return next(api for api in all_apis.ALL_APIS if api.key == key)
