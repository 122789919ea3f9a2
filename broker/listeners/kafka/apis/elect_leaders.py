"""ElectLeaders, versions 0 to 2 (KIP-183, KIP-460): every partition has its leader already.

Asked for all partitions, by null, only those where something was to be elected are answered, as in Kafka: none.
"""

from __future__ import annotations

from typing import Any, Final

from semel.broker.handlers.leadership import check_election
from semel.broker.listeners.kafka.large_messages import read_request, write_response
from semel.broker.listeners.kafka.registry import Api, RequestContext
from semel.broker.services import Services
from semel.protocol.errors import ErrorCode, SemelError
from semel.protocol.ids import TopicPartition
from semel.protocol.kafka.api import ApiKey
from semel.runtime.turns import in_turns

_PREFERRED: Final = 0
_UNCLEAN: Final = 1


async def handle_elect_leaders(context: RequestContext, body: memoryview) -> bytes:
    request = await read_request(context, body)
    known = getattr(request, "election_type", _PREFERRED) in (_PREFERRED, _UNCLEAN)
    return await write_response(
        context,
        error_code=ErrorCode.NONE if known else ErrorCode.INVALID_REQUEST,
        replica_election_results=[
            {
                "topic": topic.topic,
                "partition_result": [
                    _elected(context.node, TopicPartition(topic.topic, number))
                    async for number in in_turns(dict.fromkeys(topic.partitions))
                ],
            }
            async for topic in in_turns(request.topic_partitions or ())
            if known
        ],
    )


def _elected(node: Services, tp: TopicPartition) -> dict[str, Any]:
    values = {"partition_id": tp.partition}
    try:
        check_election(node, tp)
    except SemelError as error:
        return {**values, "error_code": error.code, "error_message": error.message}
    return values


ELECT_LEADERS = Api(ApiKey.ELECT_LEADERS, 0, 2, handle_elect_leaders)
