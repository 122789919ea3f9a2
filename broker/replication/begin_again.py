"""A replica begins its log again, at an offset that is not its end, with what its leader knows of producers (P2).

What it needs next is deleted at its leader, or it has lost its first records. The records before that offset never
come here, and their producers may still repeat them: a client's retry, or a late copy on the network. Who leads has to
know them as duplicates.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Container, Coroutine
from typing import Any, Final

from semel.broker.log.producer_snapshot import CorruptSnapshotError, decode_packed
from semel.broker.log.producer_state import PackedEntry
from semel.broker.logs.offline import message_of
from semel.broker.logs.partition import Partition
from semel.broker.peers.peers import Peers
from semel.broker.peers.requests import AskProducers
from semel.broker.replication.lost_records import LostRecords
from semel.broker.services import Services
from semel.protocol.errors import ErrorCode, RetriableError, SemelError
from semel.protocol.ids import TopicPartition
from semel.protocol.kafka.producers_before import ProducersBefore
from semel.protocol.wording import counted

_log = logging.getLogger("semel.replication")

_TRANSFER_MAX: Final = 8
"""So many replicas ask for producers at once."""
_PAUSE_S: Final = 5.0
"""The pause before what the disk refused is tried again: each attempt is logged."""
FAULT_PAUSE_S: Final = 30.0
"""The pause after what nobody expected."""


class BeginAgain:
    """Begins logs again, each in a task of its own, which has the partition take its part in the end."""

    def __init__(
        self,
        node: Services,
        peers: Peers,
        lost_records: LostRecords,
        take_part: Callable[[TopicPartition], Awaitable[None]],
    ) -> None:
        self._node = node
        self._node_id = node.config.node_id
        self._peers = peers
        self._lost_records = lost_records
        self._take_part = take_part
        self._underway: set[TopicPartition] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._transfers = asyncio.Semaphore(_TRANSFER_MAX)

    @property
    def underway(self) -> Container[TopicPartition]:
        """What is begun again now, and is not to be followed before that is done."""
        return self._underway

    def begin(self, partition: Partition, offset: int, leader_id: int, leader_epoch: int) -> None:
        """Begin a follower's log again at `offset`, unless that is underway. It does not take its part meanwhile."""
        if partition.tp not in self._underway:
            self._start(partition.tp, self._try(partition, offset, leader_id, leader_epoch))

    def try_later(self, tp: TopicPartition) -> None:
        """Have a partition take its part after a pause: what is to be done before that can't be done now."""
        if tp not in self._underway:
            self._start(tp, self._pause())

    def _start(self, tp: TopicPartition, attempt: Coroutine[Any, Any, bool]) -> None:
        self._underway.add(tp)
        task = asyncio.get_running_loop().create_task(self._run(tp, attempt), name=f"begin {tp} again")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, tp: TopicPartition, attempt: Coroutine[Any, Any, bool]) -> None:
        try:
            takes_part = await attempt
        except Exception:  # whatever it is, it is this partition's
            _log.exception("%s could not be begun again, and this is tried again in %.0f s", tp, FAULT_PAUSE_S)
            await asyncio.sleep(FAULT_PAUSE_S)
            takes_part = True
        finally:
            self._underway.discard(tp)
        if takes_part:
            await self._take_part(tp)

    async def _pause(self) -> bool:
        await asyncio.sleep(_PAUSE_S)
        return True

    async def _try(self, partition: Partition, offset: int, leader_id: int, leader_epoch: int) -> bool:
        """Return whether the partition is to take its part: also where that is to try it again."""
        tp = partition.tp
        try:
            async with self._transfers:
                producers = await self._producers(partition, offset, leader_id, leader_epoch)
        except SemelError as error:
            _log.info(
                "%s can't begin again at %d now, because node %d does not say who wrote before that, and this is tried "
                "again: %s", tp, offset, leader_id, error.message,
            )  # fmt: skip
            await asyncio.sleep(self._node.config.replica_fetch_backoff_ms / 1000)
            return True
        if producers is None or self._node.partition(tp) is not partition:
            return True
        _log.warning(
            "%s: this replica, from %d to %d, begins again at %d; its leader knows of %s from before that",
            tp, partition.log_start_offset, partition.log_end_offset, offset, counted(len(producers), "producer"),
        )  # fmt: skip
        try:
            is_done = await self._node.logs.restart_at(partition, offset, producers)
        except (SemelError, OSError) as error:
            _log.error("%s could not be begun again, and this is tried again: %s", tp, message_of(error))
            return False
        if is_done:
            await self._begun(partition)
        return True

    async def _begun(self, partition: Partition) -> None:
        """Look whether a log is still wanted that was begun again. Raises `OSError` and `SemelError`."""
        tp = partition.tp
        again = self._node.partition(tp)
        if again is not None and self._lost_records.has_some(again):
            self._lost_records.was_cut(again)
        topic = self._node.metadata.image.topic_by_id(partition.topic_id)
        if topic is None:
            self._node.logs.delete_partition(tp)  # its topic was deleted meanwhile
        elif self._node_id not in topic.partitions[tp.partition].replicas:
            await self._node.logs.move_away([(partition.topic_id, tp.partition)])

    def _is_led(self, partition: Partition, leader_id: int, leader_epoch: int) -> bool:
        found = self._node.metadata.image.partition_by_id(partition.topic_id, partition.tp.partition)
        return found is not None and (found[1].leader, found[1].leader_epoch) == (leader_id, leader_epoch)

    async def _producers(
        self, partition: Partition, offset: int, leader_id: int, leader_epoch: int
    ) -> list[PackedEntry] | None:
        """Return what the leader knows of the producers before an offset; None where it leads no longer.

        A leader of an earlier version can't be asked: then they stay unknown here, as they do in that version.
        Raises `SemelError`: it can't be asked now.
        """
        known: list[PackedEntry] = []
        after_id, now_ms = -1, self._node.clock.now_ms()
        while offset > 0:
            if not self._is_led(partition, leader_id, leader_epoch):
                return None
            asked = ProducersBefore(partition.tp, partition.topic_id, leader_epoch, offset, after_id)
            try:
                answer = await self._peers.ask(leader_id, AskProducers(asked))
            except SemelError as error:
                if error.code is not ErrorCode.UNSUPPORTED_VERSION:
                    raise
                return []
            if answer.error is not ErrorCode.NONE:
                raise RetriableError(answer.message or answer.error.name, answer.error)
            try:
                page = decode_packed(answer.snapshot, now_ms=now_ms)
            except CorruptSnapshotError as error:
                raise RetriableError(f"what it says of producers can't be read: {error}") from error
            known += [(now_ms, *entry[1:]) for entry in page]  # here they are new, and clocks may be apart (P8)
            if not answer.has_more:
                break
            if not page or page[-1][1] <= after_id:
                raise RetriableError(f"it says that producers follow behind {after_id}, and names none")
            after_id = page[-1][1]
        return known

    async def close(self) -> None:
        """Begin nothing again any more."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
