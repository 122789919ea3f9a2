"""Proposes in-sync sets of what this node leads (R5): decided on the newest metadata, written by compare-and-set.

Until it is known what became of a proposal, it counts with the set that is known (`LeaderState.maximal_isr`). So one
whose answer was lost is made again until the metadata has gone past it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final

from semel.broker.controller.isr import IsrResult, ProposedIsr, decide_isr
from semel.broker.controller.membership import full_nodes, stopping_nodes
from semel.broker.logs.partition import Partition
from semel.broker.metadata.changes import Change
from semel.broker.metadata.image import MetadataImage
from semel.broker.metadata.metadata import Metadata
from semel.broker.peers.config import ReplicationConfig
from semel.protocol.errors import ErrorCode, SemelError
from semel.protocol.ids import TopicId
from semel.runtime.clock import Clock

_log = logging.getLogger("semel.replication")

TOGETHER_MAX: Final = 1_000
"""Proposals that are decided and written together."""


@dataclass(slots=True)
class _Proposal:
    """What was asked for, and of which change on it may have been written; None while no attempt was unclear."""

    partition: Partition
    wanted: ProposedIsr
    unclear_after: int | None = None


class InSyncProposals:
    """The proposals of one node."""

    def __init__(
        self, node_id: int, metadata: Metadata, clock: Clock, config: Callable[[], tuple[ReplicationConfig, int]]
    ) -> None:
        """config: gives the settings of replication, and the node's min.insync.replicas"""
        self._node_id = node_id
        self._metadata = metadata
        self._clock = clock
        self._config = config
        self._open: dict[tuple[TopicId, int], _Proposal] = {}

    async def propose(self, led: Iterable[Partition]) -> None:
        """Ask for what is wanted of the partitions that are led here, and again for what is not settled."""
        self._collect(led)
        for first in range(0, len(self._open), TOGETHER_MAX):
            await self._write(list(self._open.values())[first : first + TOGETHER_MAX])

    def _collect(self, led: Iterable[Partition]) -> None:
        """Note what is wanted now, and forget what is settled: the leader's state has moved past it."""
        usable = {
            node_id: broker.epoch
            for node_id, broker in self._metadata.image.brokers.items()
            if not broker.is_fenced and not broker.is_stopping
        }
        full = full_nodes(self._metadata.image)
        now_s, lag_max_s = self._clock.monotonic(), self._config()[0].replica_lag_time_max_ms / 1000
        for partition in led:
            leader = partition.leader
            if leader is None or leader.is_alone:
                continue
            wanted = leader.wanted_isr(
                partition.high_watermark,
                now_s=now_s,
                lag_max_s=lag_max_s,
                log_start_offset=partition.log_start_offset,
                log_end_offset=partition.log_end_offset,
                usable=usable,
                full=full,
            )
            if wanted is not None:
                proposed = ProposedIsr(
                    partition.topic_id, partition.tp.partition, wanted.leader_epoch, wanted.partition_epoch, wanted.isr
                )
                self._open[partition.topic_id, partition.tp.partition] = _Proposal(partition, proposed)
        for key, proposal in list(self._open.items()):
            if _is_settled(proposal):
                del self._open[key]

    async def _write(self, proposals: Collection[_Proposal]) -> None:
        results: list[IsrResult] = []
        decided_on = self._metadata.image.sequence

        def decide(image: MetadataImage) -> list[Change]:
            nonlocal decided_on
            decided_on = image.sequence
            decision = decide_isr(
                image,
                self._node_id,
                self._metadata.broker_epoch,
                [proposal.wanted for proposal in proposals],
                default_min_isr=self._config()[1],
                stopping=stopping_nodes(image),
            )
            results[:] = decision.results
            return decision.changes

        try:
            await self._metadata.change(decide)
        except SemelError as error:
            _log.warning("in-sync replicas could not be changed, and this is tried again: %s", error.message)
            for proposal in proposals:
                proposal.unclear_after = decided_on
            return
        for proposal, result in zip(proposals, results, strict=True):
            self._answered(proposal, result, decided_on)

    def _answered(self, proposal: _Proposal, result: IsrResult, decided_on: int) -> None:
        """Where it was accepted, or did not follow, the metadata's change says what holds, in its turn."""
        state = result.state
        is_same = state is not None and state.partition_epoch == proposal.wanted.partition_epoch
        if result.error is ErrorCode.NONE and not is_same:
            _log.info("%s: in sync are now the nodes %s", proposal.partition.tp, _listed(proposal.wanted.isr))
            return
        unclear_after = proposal.unclear_after
        refused_for_good = is_same or result.error in (ErrorCode.INELIGIBLE_REPLICA, ErrorCode.INVALID_REQUEST)
        if refused_for_good and (unclear_after is None or decided_on > unclear_after):
            if result.message:
                _log.info("%s: the nodes %s are not taken as in sync: %s", proposal.partition.tp,
                          _listed(proposal.wanted.isr), result.message)  # fmt: skip
            leader = proposal.partition.leader
            if leader is not None and not _is_settled(proposal):
                leader.refused()
            self._open.pop((proposal.wanted.topic_id, proposal.wanted.partition), None)


def _is_settled(proposal: _Proposal) -> bool:
    leader = proposal.partition.leader
    return (
        leader is None
        or leader.leader_epoch != proposal.wanted.leader_epoch
        or leader.partition_epoch != proposal.wanted.partition_epoch
        or proposal.partition.offline_error is not None
    )


def _listed(nodes: Iterable[int]) -> str:
    return ", ".join(map(str, nodes))
