"""S7: an ACL that one node takes counts on the others, which read it from the metadata."""

from __future__ import annotations

import asyncio
from pathlib import Path

from cluster import cluster
from kafka_calls import call
from permitted_node import PERMITTED, acl, allow, only

from semel.broker.node import Node
from semel.protocol.errors import ErrorCode
from semel.protocol.kafka.api import ApiKey

DENIED = ErrorCode.GROUP_AUTHORIZATION_FAILED


async def code_at(node: Node) -> int:
    found = await call(node.kafka_address.port, ApiKey.DESCRIBE_GROUPS, 0, groups=("g",))
    return int(found.groups[0].error_code)


def test_S7_nodes_follow_each_others_acls_also_after_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, 2, **PERMITTED) as nodes:
            one, two = nodes.nodes[1], nodes.nodes[2]
            assert await code_at(two) == DENIED
            right = acl("DESCRIBE", "group:g")
            await allow(one, right)
            await nodes.until(lambda: two.metadata.image.acls == {right})
            assert await code_at(two) != DENIED
            await only(two, [])
            await nodes.until(lambda: one.metadata.image.acls == frozenset())
            assert await code_at(one) == DENIED
            await allow(two, right)
            await nodes.stop(1)
            again = await nodes.start(1)
            await nodes.until(lambda: again.metadata.image.acls == {right})
            assert await code_at(again) != DENIED

    asyncio.run(main())
