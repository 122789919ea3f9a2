"""A replica whose disk has lost records that were synced fetches them again (R1, D1).

Its start has noted the first of them (`broker/logs/unreported.py`), and it is out of sync. A follower compares epochs
and ends with its leader, which shows no hole. So it is cut there before it follows.
"""

from __future__ import annotations

import asyncio
import logging

from semel.broker.logs.manager import LogManager
from semel.broker.logs.offline import message_of
from semel.broker.logs.partition import Partition
from semel.protocol.errors import SemelError
from semel.protocol.ids import TopicId, TopicPartition

_log = logging.getLogger("semel.replication")


class LostRecords:
    """What is done about them in one run of a node."""

    def __init__(self, logs: LogManager) -> None:
        self._logs = logs
        self._notes: set[asyncio.Task[None]] = set()

    def has_some(self, partition: Partition) -> bool:
        """Say whether a partition lacks some that it has not been cut for yet."""
        return self._logs.unreported.damaged_from(_key(partition)) is not None

    def leads(self, partition: Partition) -> None:
        """An operator had it elected: what it lacks is lost, and its offsets stay empty (D3). Raises `OSError`."""
        self._logs.unreported.repaired(_key(partition))

    def before_start(self, partition: Partition) -> int | None:
        """Return the first offset that a partition has lost, where that is before its start: it can't be cut there."""
        lost = self._logs.unreported.damaged_from(_key(partition))
        if lost is None or lost >= partition.log_start_offset or partition.offline_error is not None:
            return None
        return lost

    def cut(self, partition: Partition) -> None:
        """Cut a partition that is to follow. Once in a run: what it fetches after that may be committed.

        Raises `SemelError`.
        """
        tp, lost = partition.tp, self._logs.unreported.damaged_from(_key(partition))
        if lost is None or partition.offline_error is not None:
            return
        end = partition.log_end_offset
        partition.truncate_to(lost)
        _log.warning(
            "%s: this replica was cut from %d to %d, where it had lost records, and fetches them again", tp, end, lost
        )
        self.was_cut(partition)

    def was_cut(self, partition: Partition) -> None:
        """Note that a partition was cut, or begun again there, once that is durable.

        After a crash before that it is cut again.
        """
        self._logs.unreported.was_cut(_key(partition))
        note = asyncio.get_running_loop().create_task(
            self._note(partition.tp), name=f"note that {partition.tp} is repaired"
        )
        self._notes.add(note)
        note.add_done_callback(self._notes.discard)

    async def _note(self, tp: TopicPartition) -> None:
        partition = self._logs.partition(tp)
        if partition is not None:
            try:
                await partition.all_durable()
                self._logs.unreported.repaired(_key(partition))
            except (SemelError, OSError) as error:
                _log.warning("%s is cut once more at the next start: %s", tp, message_of(error))

    async def close(self) -> None:
        """Note nothing more."""
        notes = list(self._notes)
        for note in notes:
            note.cancel()
        await asyncio.gather(*notes, return_exceptions=True)


def _key(partition: Partition) -> tuple[TopicId, int]:
    return partition.topic_id, partition.tp.partition
