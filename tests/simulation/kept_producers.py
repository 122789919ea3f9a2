"""What a partition has to know of its producers where heads of logs are deleted, and where producers expire (P7, P8).

A replay of the log knows nothing of what was deleted, and the node may: nobody minds. The node may have forgotten an
idle producer whom the replay knows: only one that was idle for so long, and never with a transaction open.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from semel.broker.log.producer_state import ProducerEntry, ProducerState, RememberedBatch
from semel.broker.logs.partition import Partition
from semel.protocol.ids import TopicPartition
from simulation.checks import batches_of

if TYPE_CHECKING:
    from simulation.ledger import Ledger
    from simulation.world import SimulatedNode, World

EXPIRY_SHARE: Final = 0.15
"""In how many worlds producers expire after seconds, and not after a day."""
_SLACK_S: Final = 0.5
"""A node's clock is read a little before a batch is appended."""

_Producer = tuple[TopicPartition, int]


def expiring_settings(world: World) -> dict[str, int]:
    """Return what the node of a world has in which producers expire, nothing in others."""
    chance = random.Random(f"expiry of {world.seed}")
    if chance.random() >= EXPIRY_SHARE:
        return {}
    return {
        "producer_id_expiration_ms": chance.choice((3_000, 6_000)),
        "producer_id_expiration_check_interval_ms": chance.choice((50, 500)),
    }


class KeptProducers:
    """When each producer was last heard of in each partition: seen from outside, at its batches and markers."""

    def __init__(self, world: World, node: SimulatedNode, ledger: Ledger) -> None:
        self._world = world
        self._node = node
        self._ledger = ledger
        settings = expiring_settings(world)
        self._expires_s = settings["producer_id_expiration_ms"] / 1000 if settings else None
        self._ends: dict[TopicPartition, int] = {}
        self._heard: dict[_Producer, float] = {}
        self._restarts: defaultdict[_Producer, list[int]] = defaultdict(list)
        """Offsets from which on a producer may be known as if it had begun there."""
        self._off_ms = node.clock.off_ms
        self._jumped_s = 0.0
        """How far the node's clock has jumped in sum: in that time, nobody was idle for less than the node thinks."""
        self._appended_s: dict[tuple[TopicPartition, int], float] = {}
        """When batches were appended, at the earliest: a slow disk commits them a while later."""
        self._looked_s = 0.0
        """When the logs were last looked at: what is found next was appended after that. A node that stops, or starts,
        is not looked at.
        """

    def look(self) -> None:
        """Take in what was appended. To be called before the logs are looked at."""
        node = self._node.node
        if self._expires_s is None or node is None or self._node.storage.crashed or not node.is_serving:
            return
        self._jumped_s += abs(self._node.clock.off_ms - self._off_ms) / 1000
        self._off_ms = self._node.clock.off_ms
        for partition in node.logs.partitions():
            end = self._ends.get(partition.tp, 0)
            if partition.log_end_offset != end:
                self._take_in(partition, min(end, partition.high_watermark))
        self._looked_s = self._now()

    def _now(self) -> float:
        return self._world.scheduler.now + self._jumped_s

    def _take_in(self, partition: Partition, begin: int) -> None:
        """What is not committed may be gone after a crash: it is looked at again, and keeps nobody from expiring."""
        tp, committed = partition.tp, partition.high_watermark
        for header, _ in batches_of(partition, max(begin, partition.log_start_offset), partition.log_end_offset):
            if header.producer_id < 0:
                continue
            producer = (tp, header.producer_id)
            if self._may_have_expired(producer) and header.base_offset not in self._restarts[producer]:
                self._restarts[producer].append(header.base_offset)
                self._ledger.restarts.add((tp, header.base_offset))
            begun = max((offset for offset in self._restarts[producer] if offset <= header.base_offset), default=None)
            if begun is not None:
                # Several batches may have been on their way: each may stand before the new beginning, and after it.
                offsets = range(header.base_offset, header.next_offset)
                self._ledger.after_restart |= {(tp.topic, tp.partition, offset): begun for offset in offsets}
            appended_s = self._appended_s.setdefault((tp, header.base_offset), self._looked_s)
            if header.next_offset <= committed:
                self._heard[producer] = appended_s
        self._ends[tp] = committed  # not before: a look may count as the write at which the disk crashes

    def _may_have_expired(self, producer: _Producer) -> bool:
        heard = self._heard.get(producer)
        return self._expires_s is not None and heard is not None and self._now() - heard > self._expires_s - _SLACK_S

    def difference(self, partition: Partition, replayed: ProducerState) -> str:
        """Return what a partition must not know, or not have forgotten; "" where nothing is wrong."""
        live, start = partition.log.producer_state, partition.log_start_offset
        known, logged = ({one.producer_id: one for one in state} for state in (live, replayed))
        for producer_id in known.keys() | logged.keys():
            if not self._is_right((partition.tp, producer_id), known.get(producer_id), logged.get(producer_id), start):
                return (
                    f"{partition.tp} from {start} on: the log says {logged.get(producer_id)}, and the node holds "
                    f"{known.get(producer_id)}"
                )
        if live.end_offset != partition.log_end_offset:
            return (
                f"{partition.tp} ends at {partition.log_end_offset}, and its producers are known to {live.end_offset}"
            )
        opened = {one.transaction_first_offset: one.producer_id for one in known.values() if _is_open(one)}
        return "" if opened == live.open_transactions else f"{partition.tp}: {live.open_transactions}, not {opened}"

    def _is_right(
        self, producer: _Producer, live: ProducerEntry | None, logged: ProducerEntry | None, start: int
    ) -> bool:
        restarts = self._restarts.get(producer, ())
        if live is None:
            return logged is None or (not _is_open(logged) and self._may_have_expired(producer))
        left = tuple(batch for batch in live.batches if batch.last_offset >= start)
        if logged is None:
            return start > 0 and not left and live.transaction_first_offset < start
        is_epoch_right = live.coordinator_epoch == logged.coordinator_epoch or start > 0 or bool(restarts)
        return (
            (live.epoch, live.last_timestamp_ms) == (logged.epoch, logged.last_timestamp_ms)
            and is_epoch_right
            and _is_open(live) == _is_open(logged)
            and (
                live.transaction_first_offset == logged.transaction_first_offset
                or 0 <= live.transaction_first_offset < start
            )
            and _may_be_left(left, logged.batches, restarts)
        )


def _is_open(entry: ProducerEntry) -> bool:
    return entry.transaction_first_offset >= 0


def _may_be_left(
    left: tuple[RememberedBatch, ...], logged: tuple[RememberedBatch, ...], restarts: Sequence[int]
) -> bool:
    return any(left == tuple(batch for batch in logged if batch.first_offset >= begin) for begin in (0, *restarts))
