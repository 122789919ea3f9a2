"""Where timestamps are in partitions: ListOffsets as clients call it."""

from __future__ import annotations

from collections.abc import Mapping

from semel.protocol.api.topics import IsolationLevel, ListOffset
from semel.protocol.errors import ErrorCode, RetriableError, SemelError
from semel.protocol.ids import TopicPartition
from semel.protocol.v1 import common_pb2, topics_pb2
from semel.sdk.transport.client import ClientCore
from semel.sdk.transport.item_errors import item_error
from semel.sdk.transport.leader_calls import ask_leaders
from semel.sdk.transport.rpcs import LIST_OFFSETS


async def look_up_offsets(
    client: ClientCore, timestamps: Mapping[TopicPartition, int], isolation: IsolationLevel, *, patience_ms: float = 0
) -> dict[TopicPartition, ListOffset | SemelError]:
    """Look up offsets by timestamp (ms since 1970), or by a special one; an offset of -1 says that there is none.

    Returns for each partition what was found, or why nothing was; `patience_ms`: how long to try where leaders
    change. Raises `SemelError` where the call itself fails.
    """

    async def ask(tps: list[TopicPartition], address: str | None) -> dict[TopicPartition, ListOffset | SemelError]:
        request = topics_pb2.ListOffsetsRequest(
            items=[
                topics_pb2.ListOffsetsRequest.Item(topic=tp.topic, partition=tp.partition, timestamp_ms=timestamps[tp])
                for tp in tps
            ],
            isolation=common_pb2.IsolationLevel.Name(isolation.value),
        )
        response = await client.control.call(LIST_OFFSETS, request, address=address, retry=address is None)
        found: dict[TopicPartition, ListOffset | SemelError] = {
            tp: RetriableError(f"the node said nothing about {tp}", ErrorCode.UNKNOWN_SERVER_ERROR) for tp in tps
        }
        for item in response.items:
            tp = TopicPartition(item.topic, item.partition)
            found[tp] = (
                item_error(item.error, str(tp))
                if item.error.code
                else ListOffset(item.offset, item.timestamp_ms, item.leader_epoch)
            )
        return found

    return await ask_leaders(client, timestamps, ask, patience_ms=patience_ms)


async def list_offsets(
    client: ClientCore, timestamps: Mapping[TopicPartition, int], isolation: IsolationLevel
) -> dict[TopicPartition, ListOffset]:
    """Look up offsets as `look_up_offsets` does. Raises the `SemelError` of the first partition that has one."""
    found = {}
    patience_ms = client.options.api_timeout_ms
    for tp, place in (await look_up_offsets(client, timestamps, isolation, patience_ms=patience_ms)).items():
        if isinstance(place, SemelError):
            raise place
        found[tp] = place
    return found
