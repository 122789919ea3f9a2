"""What a node asks of its remote storage, and what the partitions have there that it leads."""

from __future__ import annotations

import heapq

from semel.broker.services import Services
from semel.protocol.api.diagnostics import RemoteTopic, RemoteUse


async def remote_use(node: Services, most: int) -> RemoteUse | None:
    """Return it, with the `most` topics that have most there; None where the node has no remote storage."""
    tier = node.tier
    if tier is None:
        return None
    held = await tier.stored_by_topic()
    topics = [RemoteTopic(topic, objects, stored_bytes) for topic, (objects, stored_bytes) in held.items()]
    requests = tier.requests()
    return RemoteUse(
        since_ms=tier.counted_since_ms,
        puts=requests["put"],
        gets=requests["get"],
        deletes=requests["delete"],
        lists=requests["list"],
        sent_bytes=tier.sent_bytes,
        read_bytes=tier.read_bytes,
        stored_objects=sum(one.objects for one in topics),
        stored_bytes=sum(one.stored_bytes for one in topics),
        topics=tuple(heapq.nsmallest(most, topics, key=lambda one: (-one.stored_bytes, one.topic))),
        topics_total=len(topics),
    )
