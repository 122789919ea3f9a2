"""Batches that were refused before their partition was here: no later one of their producer may overtake them (P2).

Another node may have made the topic just now. A batch that only names its topic may mean the next one of that name,
which this node has not heard of yet. It can't mean one that was made after it was refused: its producer may have
delivered it to the topic before, wherever that was led, and will never send it again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from semel.broker.metadata.changes import TopicCreated
from semel.protocol.batch_header import BatchHeader
from semel.protocol.ids import ZERO_TOPIC_ID, TopicId

if TYPE_CHECKING:
    from semel.broker.logs.partition import Partition
    from semel.broker.metadata.changes import Change
    from semel.broker.metadata.image import MetadataImage
    from semel.broker.services import Services
    from semel.protocol.kafka.produce import ProducePartition

_MAX: Final = 100
"""So many partitions that are not here, and batches of each, are remembered."""


class _Early(NamedTuple):
    header: BatchHeader
    refused_ms: int
    refused_at: float
    """By the monotonic clock, which nobody sets."""


class EarlyRefusals:
    """Of one node. Bounded; a restart forgets them."""

    def __init__(self, node: Services) -> None:
        self._node = node
        self.noted: dict[tuple[str | TopicId, int], list[_Early]] = {}

    def note(self, item: ProducePartition, header: BatchHeader) -> None:
        """Remember a batch for a partition that is not here."""
        topic = item.topic if item.topic_id == ZERO_TOPIC_ID else item.topic_id
        if len(self.noted) >= _MAX:
            del self.noted[next(iter(self.noted))]
        early = self.noted.setdefault((topic, item.partition), [])
        if len(early) < _MAX:
            clock = self._node.clock
            early.append(_Early(header, clock.now_ms(), clock.monotonic()))

    def tell(self, partition: Partition) -> None:
        """Tell a log of what was refused before it was here."""
        for topic in (partition.tp.topic, partition.topic_id):
            for one in self.noted.pop((topic, partition.tp.partition), ()):
                partition.log.note_refused(one.header, one.refused_ms)

    def follow(self, change: Change, _image: MetadataImage) -> None:
        """Forget what named a topic before the one that has the name now was made."""
        if not isinstance(change, TopicCreated) or not self.noted:
            return
        was_absent_at = self._node.metadata.complete_until
        for place in [place for place in self.noted if place[0] == change.name]:
            kept = [one for one in self.noted.pop(place) if one.refused_at >= was_absent_at]
            if kept:
                self.noted[place] = kept
