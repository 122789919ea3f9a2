"""This node's replicas of partitions that other nodes have, too: their parts, their fetches, their in-sync sets.

Parts come from the metadata alone, in the order of its changes, and only from metadata that knows of this run of the
node: what it was before is over (R4, R5).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from semel.broker.log.epochs_file import EpochsWrite
from semel.broker.logs.offline import OfflineKind, message_of
from semel.broker.logs.partition import Partition
from semel.broker.metadata.changes import PartitionState
from semel.broker.metadata.image import MetadataImage
from semel.broker.peers.peers import Peers
from semel.broker.replication.begin_again import BeginAgain
from semel.broker.replication.fetcher import Fetcher
from semel.broker.replication.full_disk import FullDisk
from semel.broker.replication.in_sync import InSyncProposals
from semel.broker.replication.lost_records import LostRecords
from semel.broker.replication.parts import take_part
from semel.broker.replication.readable_again import ReadableAgain
from semel.broker.replication.throttle import FollowerThrottle
from semel.broker.replication.unwritable import Reason, UnwritableReplicas
from semel.broker.services import Services
from semel.protocol.errors import SemelError
from semel.protocol.ids import NO_LEADER, TopicId, TopicPartition
from semel.runtime.turns import Turns

_log = logging.getLogger("semel.replication")

PROPOSE_EVERY_S: Final = 0.2


class Replicas:
    """What this node does about its replicas: `take_parts` when the metadata changes, `run` beside it."""

    def __init__(self, node: Services, peers: Peers, incarnation: str) -> None:
        """incarnation: that of this run's registration"""
        self._node = node
        self._node_id = node.config.node_id
        self._peers = peers
        self._incarnation = incarnation
        self._fetchers: dict[int, Fetcher] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._leaders: dict[TopicPartition, int] = {}
        self._lost_records = LostRecords(node.logs)
        self._begin_again = BeginAgain(node, peers, self._lost_records, self._take_part)
        self._throttle = FollowerThrottle(self._node_id, node.replication_quotas.follower, node.clock, self._is_in_sync)
        self._follows = True
        self._stopped: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._unwritable = UnwritableReplicas(
            self._node_id, node.metadata, node.clock, lambda: node.config.min_insync_replicas
        )
        self._full_disk = FullDisk(self._node_id, node.metadata, node.clock, lambda: node.logs.space.is_refusing)
        self._readable_again = ReadableAgain(
            self._node_id, node.metadata, node.logs, node.clock, lambda: node.config.min_insync_replicas
        )
        self._proposals = InSyncProposals(
            self._node_id, node.metadata, node.clock, lambda: (node.config, node.config.min_insync_replicas)
        )

    def is_known(self, image: MetadataImage) -> bool:
        """Say whether an image has the registration of this run of the node."""
        broker = image.brokers.get(self._node_id)
        return broker is not None and broker.incarnation == self._incarnation

    async def take_parts(self, wanted: Iterable[TopicPartition], image: MetadataImage) -> None:
        """Lead or follow as an image says. The only replica of a partition leads since its log was opened."""
        if not self.is_known(image):
            return
        notes: list[tuple[Partition, EpochsWrite]] = []
        turns = Turns(ends_with_caller=False)
        for tp in wanted:
            state, partition = image.partition(tp), self._node.partition(tp)
            topic = image.topic(tp.topic)
            if state is None or partition is None or topic is None or partition.topic_id != topic.topic_id:
                self._leaders.pop(tp, None)
                continue
            if self._lost_records.has_some(partition):
                partition = self._without_losses(partition, state)
                if partition is None:
                    self._leaders.pop(tp, None)
                    continue
            leads_alone = partition.leader is not None and partition.leader.is_alone
            if leads_alone and state.replicas == (self._node_id,) and state.leader_epoch <= partition.leader_epoch:
                continue
            note = take_part(partition, state, self._node_id, self._node.clock.monotonic())
            if note is not None:
                notes.append((partition, note))
            if state.leader in (self._node_id, NO_LEADER) or self._node_id not in state.replicas:
                self._leaders.pop(tp, None)
            else:
                self._leaders[tp] = state.leader
            await turns.give_way()
        self.assign()
        await self._node.logs.note_epochs(notes)

    async def _take_part(self, tp: TopicPartition) -> None:
        await self.take_parts([tp], self._node.metadata.image)

    def _without_losses(self, partition: Partition, state: PartitionState) -> Partition | None:
        """Return a partition that had lost records, as it takes its part; None where it can't now."""
        tp = partition.tp
        try:
            if state.leader == self._node_id:
                self._lost_records.leads(partition)
            elif state.leader != NO_LEADER and self._node_id in state.replicas:
                if (lost := self._lost_records.before_start(partition)) is not None:
                    self._begin_again.begin(partition, lost, state.leader, state.leader_epoch)
                    return None
                self._lost_records.cut(partition)
        except (SemelError, OSError) as error:
            _log.error(
                "%s has lost records, and can't be cut there now. This is tried again: %s", tp, message_of(error)
            )
            self._begin_again.try_later(tp)
            return None
        return self._node.partition(tp)

    def assign(self) -> None:
        """Give each fetcher what it is to follow, of the partitions that are here."""
        wanted: dict[int, dict[TopicPartition, Partition]] = {}
        if self._follows:
            for tp, leader_id in self._leaders.items():
                partition = self._node.partition(tp)
                if partition is not None and partition.leader is None and tp not in self._begin_again.underway:
                    wanted.setdefault(leader_id, {})[tp] = partition
        for leader_id in wanted.keys() - self._fetchers.keys():
            self._fetchers[leader_id] = fetcher = Fetcher(
                self._node_id,
                leader_id,
                self._peers,
                lambda: self._node.config,
                lambda: self._node.metadata.broker_epoch,
                self._node.logs.noted_start,
                self._throttle,
                self._behind,
            )
            task = asyncio.get_running_loop().create_task(fetcher.run(), name=f"fetch from node {leader_id}")
            task.add_done_callback(self._fetcher_ended)
            self._tasks[leader_id] = task
        for leader_id, fetcher in self._fetchers.items():
            fetcher.follow(wanted.get(leader_id, {}))

    def _is_in_sync(self, tp: TopicPartition) -> bool:
        state = self._node.metadata.image.partition(tp)
        return state is not None and self._node_id in state.isr

    def _fetcher_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and not self._stopped.done():
            self._stopped.set_exception(task.exception() or RuntimeError(f"the task {task.get_name()!r} ended"))

    def _behind(self, partition: Partition, leader_start: int) -> None:
        leader_id = self._leaders.get(partition.tp)
        if leader_id is not None:  # else it has another part by now
            self._begin_again.begin(partition, leader_start, leader_id, partition.leader_epoch)
        self.assign()

    async def run(self) -> None:
        """Propose in-sync sets, and leave what can't be written to others. Raises what ended a fetcher."""
        try:
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(PROPOSE_EVERY_S):
                        await asyncio.shield(self._stopped)
                led = [
                    one for one in self._node.logs.partitions() if one.leader is not None and not one.leader.is_alone
                ]
                if self.is_known(self._node.metadata.image):
                    await self._readable_again.look()
                await self._unwritable.leave(self._why_unwritable(led))
                await self._full_disk.look(led)
                await self._proposals.propose(led)
        finally:
            await self.close()

    def _why_unwritable(self, led: Iterable[Partition]) -> dict[tuple[TopicId, int], Reason]:
        """Return what can't be written here, with the reasons: what is followed, what is led, and what is not open."""
        reasons: dict[tuple[TopicId, int], Reason] = {}
        if full := self._node.logs.journal_full:
            # What was fetched last stays in memory, and nothing more is fetched before that is on the disk.
            for partition in (one for fetcher in self._fetchers.values() for one in fetcher.followed.values()):
                reasons[partition.topic_id, partition.tp.partition] = Reason(f"the disk is full: {full}")
        for fetcher in self._fetchers.values():
            for tp, error in fetcher.unwritable.items():
                reasons[fetcher.followed[tp].topic_id, tp.partition] = Reason(error.message)
        for partition in led:
            if partition.offline_error is not None:
                reasons[partition.topic_id, partition.tp.partition] = Reason(partition.offline_error.message)
        for log in self._node.logs.offline:
            if log.topic_id is not None:
                is_lost = log.kind is not OfflineKind.NOT_MADE
                reasons[log.topic_id, log.tp.partition] = Reason(log.reason, is_lost)
        return reasons

    def stop_following(self) -> None:
        """Fetch nothing any more: a node that stops leaves the in-sync sets, and must not join them again."""
        self._follows = False
        self.assign()

    async def close(self) -> None:
        """End all fetches."""
        if not self._stopped.done():
            self._stopped.cancel()
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._begin_again.close()
        await self._lost_records.close()

    @property
    def lag(self) -> dict[TopicPartition, int]:
        """How many offsets each follower is behind its leader's high watermark, as of its last fetch."""
        return {tp: lag for fetcher in self._fetchers.values() for tp, lag in fetcher.lag.items()}

    @property
    def failed_fetches(self) -> dict[int, int]:
        """How many fetches from each leader have failed since the start."""
        return {leader_id: fetcher.failures for leader_id, fetcher in self._fetchers.items()}
