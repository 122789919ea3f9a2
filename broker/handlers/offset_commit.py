"""OffsetCommit and TxnOffsetCommit: a group's positions, for partitions that exist (O1, O4, KIP-447).

Inside a transaction, the group coordinator has the partition of `__consumer_offsets` join the transaction by the
transaction coordinator's own word first (T8), so offsets can never be left pending by a transaction that has ended.
"""

from __future__ import annotations

from dataclasses import replace

from semel.broker.handlers.newest import know_partitions
from semel.broker.services import Services
from semel.protocol.api.groups import OffsetCommitRequest, OffsetCommitResponse
from semel.protocol.api.transactions import TransactionVersion
from semel.protocol.errors import ErrorCode
from semel.runtime.turns import in_turns


async def commit_offsets(
    node: Services, request: OffsetCommitRequest, version: TransactionVersion = TransactionVersion.V2
) -> OffsetCommitResponse:
    """Commit the offsets of known partitions; UNKNOWN_TOPIC_OR_PARTITION for the others, as in Kafka.

    `version` is the transaction protocol that the client speaks. Raises `SemelError` of either coordinator.
    """
    await know_partitions(node, request.offsets)
    image = node.metadata.image
    unknown = {
        tp: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        async for tp in in_turns(request.offsets)
        if image.partition(tp) is None
    }
    if not unknown:
        return await node.groups.commit_offsets(request, version=version)
    known = {tp: offset for tp, offset in request.offsets.items() if tp not in unknown}
    # Without any offset the group still judges the member, so that a zombie hears that it is one (O4).
    response = await node.groups.commit_offsets(replace(request, offsets=known), version=version)
    return OffsetCommitResponse({**response.errors, **unknown})
