"""Compacting the logs of a node in the background: which one next, up to where, and where the next round begins.

The rounds themselves are `semel.broker.log.cleaner`'s: reading and writing in a thread, the swap on the event loop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from semel.broker.log.cleaner import DEFAULT_KEYS_MAX, Compaction, CompactionAbandoned, plan_compaction
from semel.broker.logs.data_folder import PartitionOffsets
from semel.broker.logs.disk_thread import DiskThread
from semel.broker.logs.partition import Partition
from semel.protocol.errors import SemelError
from semel.protocol.ids import TopicId, TopicPartition
from semel.runtime.clock import Clock
from semel.runtime.invariants import BrokenInvariantError

_log = logging.getLogger("semel.logs")


class Compactor:
    """Remembers how far each log is clean. The offsets only save work: losing them means cleaning again."""

    __slots__ = ("_checkpoint", "_clean", "_clock", "_is_current", "_keys_max", "_thread", "_uncleanable", "rounds")

    def __init__(
        self,
        checkpoint: PartitionOffsets,
        is_current: Callable[[TopicPartition, TopicId], bool],
        clock: Clock,
        thread: DiskThread,
        keys_max: int = DEFAULT_KEYS_MAX,
    ) -> None:
        self._checkpoint = checkpoint
        self._is_current = is_current
        self._clock = clock
        self._thread = thread
        self._keys_max = keys_max
        self._clean: dict[TopicPartition, tuple[TopicId, int]] = {}
        self._uncleanable: set[TopicId] = set()
        self.rounds = 0

    def opened(self, ids: Mapping[TopicPartition, TopicId]) -> None:
        """Note how far the logs were clean when they were last open."""
        clean = self._checkpoint.read()
        self._clean = {tp: (topic_id, clean[tp]) for tp, topic_id in ids.items() if tp in clean}

    def forget(self, tp: TopicPartition) -> None:
        """Begin from the start of a log's successor: it is not clean as far as this one was."""
        self._clean.pop(tp, None)

    async def compact(self, partition: Partition, below_offset: int) -> bool:
        """Run a round over a log where one is due, touching nothing at or past `below_offset`. Returns whether it did.

        Raises `SemelError` where the log went offline, and `OSError` where the clean offset cannot be noted.
        """
        tp = partition.tp
        if not partition.config.is_compacted or partition.topic_id in self._uncleanable:
            return False
        topic_id, clean = self._clean.get(tp, (partition.topic_id, 0))
        compaction = plan_compaction(
            partition.log,
            first_dirty_offset=clean if topic_id == partition.topic_id else 0,
            last_stable_offset=min(partition.last_stable_offset, below_offset),
            now_ms=self._clock.now_ms(),
            keys_max=self._keys_max,
        )
        if compaction is None:
            return False
        try:
            await self._round(partition, compaction)
        except CompactionAbandoned as error:
            _log.info("%s", error)
            return False
        except OSError as error:
            # Its sources stay as they are; the next round tries again, unless the partition was deleted under this one.
            if partition.offline_error is None:
                _log.error("%s could not be compacted: %s", tp, error)
            return False
        except (SemelError, BrokenInvariantError) as error:
            if partition.log.offline_error is not None:
                raise
            # As in Kafka: a log that cannot be read through is left as it is, and the others continue.
            self._uncleanable.add(partition.topic_id)
            _log.error("%s is not compacted until the next start: %s", tp, error)
            return False
        if partition.offline_error is None:
            self._clean[tp] = partition.topic_id, compaction.end_offset
        self.rounds += 1
        await self._thread.run(self._checkpoint.write, dict(self._clean), self._is_current)
        return True

    async def _round(self, partition: Partition, compaction: Compaction) -> None:
        def cancel() -> None:
            compaction.cancelled = True

        await self._thread.run(compaction.prepare, on_cancel=cancel)
        while compaction.has_next:
            await self._thread.run(compaction.clean_next, on_cancel=cancel)
            if partition.offline_error is not None:
                raise CompactionAbandoned(f"{partition.tp} went away under its compaction")
            compaction.swap(self._clock.now_ms())
