"""ElectLeaders, versions 0 to 2 (KIP-183, KIP-460).

Asked for all partitions, by null, only those where something was to be elected are answered, as in Kafka.
"""

from __future__ import annotations

from typing import Any, Final

from semel.broker.listeners.kafka.large_messages import read_request, write_response
from semel.broker.listeners.kafka.registry import Api, RequestContext
from semel.broker.permitted.cluster import elect
from semel.protocol.errors import ErrorCode, SemelError
from semel.protocol.ids import TopicPartition
from semel.protocol.kafka.api import ApiKey
from semel.runtime.turns import in_turns

_PREFERRED: Final = 0
_UNCLEAN: Final = 1


async def handle_elect_leaders(context: RequestContext, body: memoryview) -> bytes:
    request = await read_request(context, body)
    kind = getattr(request, "election_type", _PREFERRED)
    if kind not in (_PREFERRED, _UNCLEAN):
        return await write_response(context, error_code=ErrorCode.INVALID_REQUEST, replica_election_results=[])
    refusal: SemelError | None = None
    asks_for_all = request.topic_partitions is None
    wanted: dict[TopicPartition, None] = {}
    if asks_for_all:
        async for topic in in_turns(tuple(context.node.metadata.image.topics.values())):
            wanted.update((TopicPartition(topic.name, number), None) for number in range(len(topic.partitions)))
    else:
        async for chosen in in_turns(request.topic_partitions):
            wanted.update((TopicPartition(chosen.topic, number), None) for number in chosen.partitions)
    try:
        outcomes = await elect(context.node, context.rights, list(wanted), unclean=kind == _UNCLEAN)
    except SemelError as error:
        # Of all partitions none is named: to hear which there are takes a right, too.
        refusal = error
        wanted = {} if asks_for_all else wanted
        outcomes = dict.fromkeys(wanted, error)
    results: dict[str, list[dict[str, Any]]] = {}
    async for tp in in_turns(list(wanted)):
        outcome = outcomes[tp]
        if asks_for_all and outcome is not None and outcome.code is ErrorCode.ELECTION_NOT_NEEDED:
            continue
        results.setdefault(tp.topic, []).append(_result(tp.partition, outcome))
    return await write_response(
        context,
        error_code=ErrorCode.NONE if refusal is None else refusal.code,
        replica_election_results=[
            {"topic": topic, "partition_result": partitions} for topic, partitions in results.items()
        ],
    )


def _result(partition: int, error: SemelError | None) -> dict[str, Any]:
    values = {"partition_id": partition}
    return values if error is None else {**values, "error_code": error.code, "error_message": error.message}


ELECT_LEADERS = Api(ApiKey.ELECT_LEADERS, 0, 2, handle_elect_leaders)
