"""FindCoordinator, versions 0 to 6: which node coordinates a group or a transactional id (KIP-699: many at once).

The internal topic that says where keys live is created when it is first needed. Keys of share groups are refused, as by
a Kafka without them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from semel.broker.listeners.kafka.apis.coordinator_errors import coordinator_code
from semel.broker.listeners.kafka.large_messages import read_request, write_response
from semel.broker.listeners.kafka.registry import Api, RequestContext
from semel.broker.permitted.transactions import name_of_transaction
from semel.broker.services import Services
from semel.protocol.acls import ResourceType
from semel.protocol.errors import ErrorCode, SemelError, UsageError, error_for
from semel.protocol.ids import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from semel.protocol.kafka.api import ApiKey
from semel.protocol.kafka.messages import Values
from semel.runtime.turns import in_turns

KEY_TYPE_TOPICS: Final = {0: OFFSETS_TOPIC, 1: TRANSACTIONS_TOPIC}
FIRST_BATCHED_VERSION: Final = 4


@dataclass(frozen=True, slots=True)
class _Found:
    key: str
    node_id: int = -1
    host: str = ""
    port: int = -1
    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None

    def values(self) -> Values:
        return {name: getattr(self, name) for name in self.__slots__}


async def handle_find_coordinator(context: RequestContext, body: memoryview) -> bytes:
    version = context.api_version
    request = await read_request(context, body)
    key_type = request.key_type if version >= 1 else 0
    if version >= FIRST_BATCHED_VERSION:
        found = await _find(context, key_type, request.coordinator_keys)
        return await write_response(context, coordinators=[each.values() async for each in in_turns(found)])
    [one] = await _find(context, key_type, (request.key,))
    values = {name: value for name, value in one.values().items() if name != "key"}
    return await write_response(context, **values)


async def _find(context: RequestContext, key_type: int, keys: Sequence[str]) -> list[_Found]:
    node = context.node
    topic = KEY_TYPE_TOPICS.get(key_type)
    try:
        if topic is None:
            raise UsageError(f"there is no coordinator of key type {key_type}: 0 is a group's, 1 a transactional id's")
        denied = await _denied(context, topic, keys)
        if len(denied) < len(keys) and node.metadata.topic(topic) is None:
            coordinator = node.groups if topic == OFFSETS_TOPIC else node.transactions
            await coordinator.topic_ready()
        return [denied.get(key) or _of_key(context, topic, key) async for key in in_turns(keys)]
    except SemelError as error:
        return [_Found(key, error_code=coordinator_code(error), error_message=error.message) for key in keys]


async def _denied(context: RequestContext, topic: str, keys: Sequence[str]) -> Mapping[str, _Found]:
    """Return the refusals of keys that the caller may not describe."""
    if context.rights.are_all:
        return {}
    kind = ResourceType.GROUP if topic == OFFSETS_TOPIC else ResourceType.TRANSACTIONAL_ID
    names = {key: key if topic == OFFSETS_TOPIC else name_of_transaction(key) for key in keys}
    denied = await context.rights.denied(kind, names.values())
    refused: dict[str, _Found] = {}
    async for key, name in in_turns(names.items()):
        if name in denied:
            error = context.rights.refusal(kind, name)
            refused[key] = _Found(key, error_code=error.code, error_message=error.message)
    return refused


def _of_key(context: RequestContext, topic: str, key: str) -> _Found:
    node = context.node
    image = node.metadata.topic(topic)
    if image is None:
        raise error_for(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{topic} is not there; try again")
    number = _partition_for(node, topic, key)
    broker = node.metadata.image.brokers.get(image.partitions[number].leader)
    if broker is None or broker.is_fenced:
        message = f"{topic}-{number} has no leader that is alive; try again"
        return _Found(key, error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE, error_message=message)
    endpoint = broker.kafka_at(context.listener_name)
    if endpoint is None:  # clients know no better error of a coordinator, as in Kafka
        message = f"node {broker.node_id} coordinates it, and has no listener {context.listener_name}: give it one"
        return _Found(key, error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE, error_message=message)
    return _Found(key, broker.node_id, endpoint.host, endpoint.port)


def _partition_for(node: Services, topic: str, key: str) -> int:
    """The coordinators' own rule: a writer of a shared transaction lives where its key does, not where its id would."""
    if topic == OFFSETS_TOPIC:
        return node.groups.offsets_partition(key).partition
    return node.transactions.partition_for(key)


FIND_COORDINATOR = Api(ApiKey.FIND_COORDINATOR, 0, 6, handle_find_coordinator)
