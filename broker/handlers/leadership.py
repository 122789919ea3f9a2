"""ElectLeaders: an operator has other replicas lead.

An election is decided in `broker/controller/elections.py` (R4). To elect a replica that may lack committed records is
an operator's word alone, and is said loudly in the log.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from semel.broker.controller.elections import Election, elect_preferred, elect_unclean
from semel.broker.controller.membership import stopping_nodes
from semel.broker.handlers.partition_decisions import Outcomes, decide_on_each
from semel.broker.metadata.changes import Change
from semel.broker.metadata.image import MetadataImage
from semel.broker.services import Services
from semel.protocol.ids import TopicPartition

_log = logging.getLogger("semel.cluster")


async def elect_leaders(node: Services, wanted: Sequence[TopicPartition], *, unclean: bool) -> Outcomes:
    """Elect the preferred replica of each partition, or with `unclean` any that is alive where there is no leader.

    Returns for each None, or why nothing was elected.
    """
    lossy: dict[TopicPartition, str] = {}

    def elected(image: MetadataImage, tp: TopicPartition) -> list[Change]:
        lossy.pop(tp, None)
        election = _elected(node, image, tp, unclean)
        if election.is_unclean:
            lossy[tp] = f"{tp} (node {election.change.state.leader})"
        return [election.change]

    outcomes = await decide_on_each(node, wanted, elected)
    if told := [lossy[tp] for tp in lossy if outcomes[tp] is None]:
        _log.error("elected by an operator's word though committed records may be lost: %s", ", ".join(told)[:1_000])
    return outcomes


def _elected(node: Services, image: MetadataImage, tp: TopicPartition, unclean: bool) -> Election:
    stopping = stopping_nodes(image)
    if unclean:
        return elect_unclean(image, tp, default_min_isr=node.config.min_insync_replicas, stopping=stopping)
    return elect_preferred(image, tp, stopping=stopping)
