"""The first page: nodes, topics, traffic, and what the doctor finds."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from starlette.responses import Response

from semel.protocol.api.diagnostics import Severity
from semel.protocol.errors import FatalError
from semel.web.console.metrics import plots_of
from semel.web.console.transactions import diagnosis_of
from semel.web.console.visit import Handler, Visit

if TYPE_CHECKING:
    from semel.protocol.api.cluster import NodeState

_FINDINGS_MAX: Final = 20


async def _overview(visit: Visit) -> Response:
    topics, (nodes, nodes_refused), (diagnosis, refused) = await asyncio.gather(
        visit.admin.topics(), _nodes(visit), diagnosis_of(visit)
    )
    cluster = None if diagnosis is None else diagnosis.cluster
    findings = [] if diagnosis is None else sorted(diagnosis.findings, key=lambda one: -one.severity.rank)
    told = {} if cluster is None else {node.node_id: node for node in cluster.nodes}
    sampler = visit.console.sampler
    return visit.html(
        "overview.html",
        nodes_refused=nodes_refused,
        nodes=[(node, told.get(node.node_id)) for node in nodes],
        unreachable={} if cluster is None else cluster.unreachable,
        topics=len(topics),
        partitions=sum(len(topic.partitions) for topic in topics),
        size_bytes=sum(sampler.sizes.get(topic.name, 0) for topic in topics),
        findings=findings[:_FINDINGS_MAX],
        more_findings=max(0, len(findings) - _FINDINGS_MAX),
        wrong=sum(one.severity is not Severity.INFO for one in findings),
        refused=refused,
        plots=[] if refused else plots_of(sampler),
        latest=None if refused else sampler.latest,
        trouble="" if refused else sampler.trouble,
        now_ms=max((node.now_ms for node in told.values()), default=0),
    )


async def _nodes(visit: Visit) -> tuple[Sequence[NodeState], str]:
    """Return the nodes; none, and why, where the caller may not ask."""
    try:
        return await visit.admin.nodes(), ""
    except FatalError as error:
        return (), error.message


PAGES: Final[tuple[tuple[str, Handler], ...]] = (("", _overview),)
CHANGES: Final[tuple[tuple[str, Handler], ...]] = ()
