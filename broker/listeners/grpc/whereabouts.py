"""Where a caller should go instead: the node that by the metadata has what a request is about."""

from __future__ import annotations

from google.protobuf.message import Message

from semel.broker.handlers.partitions.leader_hints import current_leader
from semel.broker.metadata.changes import Endpoint
from semel.broker.services import Services
from semel.protocol.api.elsewhere import SENT_AWAY, ElsewhereError, elsewhere
from semel.protocol.errors import ErrorCode, SemelError
from semel.protocol.ids import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, TopicPartition
from semel.protocol.plain_messages import from_message


def with_whereabouts(node: Services, listener: str, request: Message, error: SemelError) -> SemelError:
    """Return what to refuse a request with: an error of `SENT_AWAY` with the other node's address, where that is known.

    listener: the name of the one that the caller came by

    Where the metadata knows of no other node the error stays as it is, and the caller asks again later.
    """
    if error.code not in SENT_AWAY or isinstance(error, ElsewhereError):
        return error
    try:
        tp = _partition_of(node, request, error.code)
    except SemelError:  # the topic of the coordinators is not there yet
        tp = None
    if tp is None:
        return error
    leader, _ = current_leader(node, tp)
    address = address_of_other(node, leader, listener)
    return elsewhere(error.code, error.message, address) if address else error


def address_of_other(node: Services, node_id: int, listener: str) -> str:
    """Return the gRPC address that another node has for callers who come by the listener of this name.

    "" for this node, for one that is not known, and for one that has no such listener.

    Where this node runs alone, what else is registered is a former id of it.
    """
    broker = node.metadata.image.brokers.get(node_id)
    is_other = broker is not None and node_id != node.config.node_id and bool(node.config.peer_listen)
    return _address(broker.grpc_at(listener)) if broker is not None and is_other else ""


def _address(at: Endpoint | None) -> str:
    if at is None or not at.host or not at.port:
        return ""
    return f"[{at.host}]:{at.port}" if ":" in at.host else f"{at.host}:{at.port}"


def _partition_of(node: Services, request: Message, code: ErrorCode) -> TopicPartition | None:
    """Return the partition whose leader answers a request. What names a group is the group coordinator's.

    So an offset that is committed in a transaction is, though it names the transaction too.
    """
    fields = request.DESCRIPTOR.fields_by_name
    if code is ErrorCode.NOT_LEADER_OR_FOLLOWER and "partition" in fields:
        return from_message(getattr(request, "partition"), TopicPartition)  # noqa: B009 - not of every message
    if "group_id" in fields:
        group: str = getattr(request, "group_id")  # noqa: B009
        return TopicPartition(OFFSETS_TOPIC, node.groups.offsets_partition(group).partition)
    name = next((each for each in ("transactional_id", "key") if each in fields), None)
    if name is None:
        return None
    return TopicPartition(TRANSACTIONS_TOPIC, node.transactions.partition_for(getattr(request, name)))
