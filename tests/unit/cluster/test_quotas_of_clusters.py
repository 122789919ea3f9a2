"""A quota that one node takes counts on the others, which read it from the metadata; other nodes are no clients."""

from __future__ import annotations

import asyncio
from pathlib import Path

from cluster import cluster

from semel.broker.handlers.client_quotas import alter_client_quotas
from semel.protocol.quotas import QuotaAlteration, QuotaEntity

EVERYBODY = QuotaEntity("")


def test_nodes_follow_each_others_quotas_and_do_not_count_as_clients(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, 2) as nodes:
            one, two = nodes.nodes[1], nodes.nodes[2]
            assert two.client_quotas.of("anybody", "app") is None
            values = dict.fromkeys(("producer_byte_rate", "consumer_byte_rate"), 1.0)
            await alter_client_quotas(one, [QuotaAlteration(EVERYBODY, {**values, "request_percentage": 0.001})])
            await nodes.until(lambda: two.client_quotas.of("anybody", "app") is not None)
            heard = one.metadata.image.sequence
            await alter_client_quotas(two, [QuotaAlteration(QuotaEntity("bob"), {"producer_byte_rate": 1.0})])
            await nodes.until(lambda: one.metadata.image.sequence > heard)
            assert all(node.client_quotas.remembered == 0 for node in (one, two))
            await alter_client_quotas(
                two, [QuotaAlteration(EVERYBODY, {**dict.fromkeys(values), "request_percentage": None})]
            )
            await nodes.until(lambda: one.client_quotas.of("anybody", "app") is None)

    asyncio.run(main())
