"""What a dump is to show."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from semel.broker.inspection.file_kinds import FileKind
from semel.protocol.ids import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, TopicPartition


class Decoder(StrEnum):
    """What the records' keys and values are."""

    AUTO = "auto"
    """As the topic's name in the folder's says."""
    NONE = "none"
    OFFSETS = "offsets"
    TRANSACTIONS = "transactions"


_WITH_TRANSACTIONS: Final = {FileKind.LOG, FileKind.TRANSACTION_INDEX, FileKind.JOURNAL, FileKind.OBJECT}
_WITH_PRODUCERS: Final = _WITH_TRANSACTIONS | {FileKind.SNAPSHOT}
_WITH_OFFSETS: Final = _WITH_TRANSACTIONS | {FileKind.OFFSET_INDEX, FileKind.TIME_INDEX}
_DECODED_TOPICS: Final = {Decoder.NONE: "", Decoder.OFFSETS: OFFSETS_TOPIC, Decoder.TRANSACTIONS: TRANSACTIONS_TOPIC}


@dataclass(frozen=True, slots=True)
class DumpOptions:
    """What to show. Offsets are inclusive; None: no limit.

    producer_id:   batches, snapshot entries and aborted transactions of this one alone
    transactional: batches of transactions alone, markers among them
    partition:     of a data folder, this partition's files alone
    """

    records: bool = False
    first_offset: int | None = None
    last_offset: int | None = None
    producer_id: int | None = None
    transactional: bool = False
    partition: TopicPartition | None = None
    decoder: Decoder = Decoder.AUTO

    @property
    def selects(self) -> bool:
        """Whether not all is asked for."""
        return (
            self.first_offset is not None
            or self.last_offset is not None
            or self.producer_id is not None
            or self.transactional
        )

    def reads(self, kind: FileKind) -> bool:
        """Say whether a file of this kind, found in a folder, can have anything that is asked for."""
        wanted = set(FileKind)
        if self.first_offset is not None or self.last_offset is not None:
            wanted &= _WITH_OFFSETS
        if self.producer_id is not None:
            wanted &= _WITH_PRODUCERS
        if self.transactional:
            wanted &= _WITH_TRANSACTIONS
        return kind in wanted

    def has_offsets(self, first: int, last: int) -> bool:
        return (self.first_offset is None or last >= self.first_offset) and (
            self.last_offset is None or first <= self.last_offset
        )

    def has_producer(self, producer_id: int) -> bool:
        return self.producer_id is None or self.producer_id == producer_id

    def decoded_topic(self, tp: TopicPartition | None) -> str:
        """Return the internal topic as whose records those of `tp` are to be decoded; empty: none."""
        return _DECODED_TOPICS.get(self.decoder, "" if tp is None else tp.topic)
