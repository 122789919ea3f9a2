"""The controller finds out which replicas have most, where an operator has accepted that metadata was lost (R4, R10).

What is decided from the answers: `controller/metadata_loss.py`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

from semel.broker.controller.membership import alive_nodes, stopping_nodes
from semel.broker.controller.metadata_loss import ReplicaEnd, most_complete, waits_for_ends
from semel.broker.handlers.replica_ends import replica_ends
from semel.broker.metadata.changes import Change
from semel.broker.metadata.image import MetadataImage
from semel.broker.peers.peers import Peers
from semel.broker.peers.requests import AskReplicaEnds
from semel.broker.services import Services
from semel.protocol.errors import ErrorCode, SemelError
from semel.protocol.ids import TopicId, TopicPartition
from semel.protocol.kafka.replica_ends import EpochAndEnd
from semel.protocol.wording import counted
from semel.runtime.turns import in_turns

_log = logging.getLogger("semel.cluster")

TOGETHER_MAX: Final = 1_000
"""Partitions that are asked about together; the next round continues with others."""

Asked = tuple[TopicId, int, int]
"""A topic, a partition, and the leader epoch in which it has no leader."""


class LostLeaders:
    """What one node does about them while it is the controller."""

    def __init__(self, node: Services, peers: Peers) -> None:
        self._node = node
        self._node_id = node.config.node_id
        self._peers = peers
        self._none_in: MetadataImage | None = None
        """With this, no partition waits."""
        self._first = 0
        """Which of those that wait is asked about next."""
        self._told: tuple[int, ...] = ()

    async def look(self) -> None:
        """Ask those that live where their replicas end, and elect. Raises `SemelError` of the metadata."""
        image = self._node.metadata.image
        if image is self._none_in:
            return
        waiting: dict[TopicPartition, Asked] = {}
        async for topic in in_turns(image.topics.values()):
            for number, state in enumerate(topic.partitions):
                if waits_for_ends(state):
                    waiting[TopicPartition(topic.name, number)] = topic.topic_id, number, state.leader_epoch
        if not waiting:
            self._none_in, self._first, self._told = image, 0, ()
            return
        self._first = self._first if self._first < len(waiting) else 0
        chosen = dict(list(waiting.items())[self._first : self._first + TOGETHER_MAX])
        await self._elect(image, chosen)
        now = self._node.metadata.image
        left = [tp for tp in waiting if (found := now.partition(tp)) is not None and waits_for_ends(found)]
        self._first = self._first + TOGETHER_MAX if len(left) == len(waiting) else 0
        self._tell_of_absent(left)

    async def _elect(self, image: MetadataImage, waiting: Mapping[TopicPartition, Asked]) -> None:
        wanted: dict[int, dict[TopicPartition, int]] = {}
        usable = alive_nodes(image) - stopping_nodes(image)
        for tp, (_, _, leader_epoch) in waiting.items():
            state = image.partition(tp)
            assert state is not None
            for node_id in usable.intersection(state.replicas):
                wanted.setdefault(node_id, {})[tp] = leader_epoch
        answers = await asyncio.gather(*(self._ask(node_id, asked) for node_id, asked in wanted.items()))
        found: dict[Asked, dict[int, ReplicaEnd]] = {}
        for node_id, ends in zip(wanted, answers, strict=True):
            for tp, (last_epoch, end_offset) in ends.items():
                if tp in waiting:
                    end = ReplicaEnd(image.brokers[node_id].epoch, last_epoch, end_offset)
                    found.setdefault(waiting[tp], {})[node_id] = end
        elected = 0

        def decide(image: MetadataImage) -> list[Change]:
            nonlocal elected
            changes = most_complete(image, found, default_min_isr=self._node.config.min_insync_replicas)
            elected = len(changes)
            return changes

        if not decide(image):
            return
        await self._node.metadata.change(decide, as_controller=True)
        if elected:
            _log.warning(
                "%s led again, after lost metadata was given up: by the replica that has most of each",
                counted(elected, "partition is", "partitions are"),
            )

    async def _ask(self, node_id: int, asked: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, EpochAndEnd]:
        if node_id == self._node_id:
            ends = await replica_ends(self._node, asked)
            return {tp: end for tp, end in ends.items() if not isinstance(end, ErrorCode)}
        try:
            timeout_ms = self._node.config.broker_session_timeout_ms / 2
            return await self._peers.ask(node_id, AskReplicaEnds(self._node_id, asked), timeout_ms=timeout_ms)
        except SemelError:
            return {}  # it is asked again

    def _tell_of_absent(self, left: list[TopicPartition]) -> None:
        """Say once who is waited for: the operator may have forgotten to start a node."""
        image = self._node.metadata.image
        alive = alive_nodes(image)
        states = [image.partition(tp) for tp in left]
        away = tuple(sorted({each for state in states if state for each in state.replicas if each not in alive}))
        if away and away != self._told:
            _log.warning(
                "%s no leader until it is known which replica has most: start node %s, or elect one of the others with "
                "`semel partition elect TOPIC:PARTITION --unclean`",
                counted(len(left), "partition has", "partitions have"), ", ".join(map(str, away)),
            )  # fmt: skip
        self._told = away
