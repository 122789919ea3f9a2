"""Fetched bytes on their way to the user: decoded when asked for, without aborted transactions and markers (L3).

A batch that can't be read stands in nobody's way for ever: the error says where it is, and who reads may pass over it.
"""

from __future__ import annotations

import heapq
import struct
from collections.abc import Callable, Iterable
from typing import Any

from semel.protocol.batch_header import BATCH_OVERHEAD, BatchHeader, read_header
from semel.protocol.control_records import ControlType, decode_control
from semel.protocol.errors import ErrorCode, FatalError, SemelError
from semel.protocol.ids import TopicPartition
from semel.protocol.record_decoder import Record, decode_records

_LENGTH_AT = 8
_LENGTH_END = 12
_LAST_OFFSET_DELTA_AT = 23
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")


def whole_batches(data: memoryview) -> tuple[int, int]:
    """Return where the last whole batch of `data` ends, and the offset after it; (0, -1) where there is none."""
    position, next_offset = 0, -1
    while position + BATCH_OVERHEAD <= len(data):
        (length,) = _INT32.unpack_from(data, position + _LENGTH_AT)
        end = position + _LENGTH_END + length
        if length < BATCH_OVERHEAD - _LENGTH_END or end > len(data):
            break
        (base_offset,) = _INT64.unpack_from(data, position)
        (last_offset_delta,) = _INT32.unpack_from(data, position + _LAST_OFFSET_DELTA_AT)
        position, next_offset = end, base_offset + last_offset_delta + 1
    return position, next_offset


class UnreadableBatchError(FatalError):
    """A batch in the log can't be read: its checksum is wrong, or its records are no records.

    tp, first_offset, last_offset: where it is. `consumer.seek(error.tp, error.last_offset + 1)` leaves it out, and
    so does a consumer that was made with `on_unreadable_batch="skip"`.
    """

    def __init__(self, tp: TopicPartition, first_offset: int, last_offset: int, why: str) -> None:
        super().__init__(
            f"{tp} can't be read at offset {first_offset}: the batch of offsets {first_offset} to {last_offset} is "
            f"unreadable: {why}. Seek to {first_offset} to fetch it again, or to {last_offset + 1} to leave it out."
            " A consumer with on_unreadable_batch='skip' passes over such batches",
            ErrorCode.CORRUPT_MESSAGE,
        )
        self.tp = tp
        self.first_offset = first_offset
        self.last_offset = last_offset
        self._why = why

    def __reduce__(self) -> Any:
        return type(self), (self.tp, self.first_offset, self.last_offset, self._why)


class FetchedChunk:
    """The record batches that one fetch returned for one partition.

    data:         whole batches, perhaps followed by a part of one, which is ignored.
    from_offset:  the offset asked for; the first batch may begin before it.
    aborted:      (producer id, first offset) of each aborted transaction that overlaps the data, in any order, or None
                  for a reader of uncommitted records, which sees all but markers.
    on_unreadable: called with each batch that can't be read, which is passed over. Without it that is raised.
    """

    __slots__ = (
        "_aborted",
        "_aborting",
        "_data",
        "_decoded",
        "_decoded_index",
        "_next_batch_offset",
        "_on_unreadable",
        "_position",
        "next_offset",
        "tp",
    )

    def __init__(
        self,
        tp: TopicPartition,
        data: memoryview,
        from_offset: int,
        aborted: Iterable[tuple[int, int]] | None,
        on_unreadable: Callable[[UnreadableBatchError], None] | None = None,
    ) -> None:
        self.tp = tp
        self.next_offset = from_offset
        self._data = data
        self._on_unreadable = on_unreadable
        self._position = 0
        self._next_batch_offset = from_offset
        self._decoded: list[Record] = []
        self._decoded_index = 0
        self._aborted: list[tuple[int, int]] | None = None
        self._aborting: set[int] = set()
        if aborted is not None:
            self._aborted = [(first_offset, producer_id) for producer_id, first_offset in aborted]
            heapq.heapify(self._aborted)

    @property
    def size_bytes(self) -> int:
        return len(self._data)

    def take(self, max_records: int) -> list[Record]:
        """Return up to `max_records` next records, and move `next_offset` past them and past what is not for readers.

        An empty list says that the chunk is used up. Raises `UnreadableBatchError` for a batch that can't be read,
        again and again: nothing is skipped, unless there is an `on_unreadable`.
        """
        taken: list[Record] = []
        while len(taken) < max_records:
            left = len(self._decoded) - self._decoded_index
            if left == 0:
                try:
                    if not self._decode_next_batch():
                        break
                except SemelError:
                    if taken:
                        break  # what is before it is good, and the next call meets it again
                    raise
                continue
            room = max_records - len(taken)
            if left <= room:
                some = self._decoded[self._decoded_index :] if self._decoded_index else self._decoded
                self._decoded, self._decoded_index = [], 0
                # The batch may end in offsets that compaction took away: the next record is after all of them.
                self.next_offset = self._next_batch_offset
            else:
                some = self._decoded[self._decoded_index : self._decoded_index + room]
                self._decoded_index += room
                self.next_offset = some[-1].offset + 1
            if taken:
                taken += some
            else:
                taken = some
        return taken

    def take_batches(self) -> list[memoryview]:
        """Return what is left as views of whole batches that are for the reader, undecoded, and use it up.

        Batches that stand together are one view. Markers may be among them: the decoder of columns leaves them out.
        """
        runs: list[memoryview] = []
        start = self._position
        while len(self._data) - self._position >= BATCH_OVERHEAD:
            header = read_header(self._data, self._position)
            if header.size_bytes > len(self._data) - self._position:
                break
            is_left_out = not self._is_for_reader(header) and not header.is_control
            if is_left_out and start < self._position:
                runs.append(self._data[start : self._position])
            self._position += header.size_bytes
            if is_left_out:
                start = self._position
            self.next_offset = max(self.next_offset, header.next_offset)
        if start < self._position:
            runs.append(self._data[start : self._position])
        return runs

    @property
    def is_used_up(self) -> bool:
        """Whether there is nothing left to take, not even something to pass over."""
        return not self._decoded and len(self._data) - self._position < BATCH_OVERHEAD

    def _decode_next_batch(self) -> bool:
        """Decode the next batch that holds records for the reader; return whether there was one."""
        while len(self._data) - self._position >= BATCH_OVERHEAD:
            base_offset, size_bytes, next_offset = self._extent()
            if size_bytes > len(self._data) - self._position:
                return False
            records: list[Record] = []
            try:
                records = self._decode_batch()
            except SemelError as error:
                self._judge(error, max(base_offset, self.next_offset), next_offset - 1)
            self._position += size_bytes
            self._next_batch_offset = next_offset
            if records:
                self._decoded, self._decoded_index = records, 0
                return True
            self.next_offset = max(self.next_offset, next_offset)
        return False

    def _extent(self) -> tuple[int, int, int]:
        """Return the first offset of the batch at the position, its size, and the offset after it: as it says."""
        (length,) = _INT32.unpack_from(self._data, self._position + _LENGTH_AT)
        (base_offset,) = _INT64.unpack_from(self._data, self._position)
        (last_offset_delta,) = _INT32.unpack_from(self._data, self._position + _LAST_OFFSET_DELTA_AT)
        return base_offset, max(_LENGTH_END + length, BATCH_OVERHEAD), base_offset + last_offset_delta + 1

    def _decode_batch(self) -> list[Record]:
        """Return the records of the batch at the position that are for the reader. Raises `SemelError`."""
        header = read_header(self._data, self._position)
        if not self._is_for_reader(header):
            return []
        records = decode_records(self._data, self._position, topic=self.tp.topic, partition=self.tp.partition)
        if records and records[0].offset < self.next_offset:
            records = [record for record in records if record.offset >= self.next_offset]
        return records

    def _judge(self, error: SemelError, first_offset: int, last_offset: int) -> None:
        """Pass over a batch that can't be read, or raise."""
        unreadable = UnreadableBatchError(self.tp, first_offset, last_offset, error.message)
        if self._on_unreadable is None:
            raise unreadable from error
        self._on_unreadable(unreadable)

    def _is_for_reader(self, header: BatchHeader) -> bool:
        if self._aborted is not None:
            while self._aborted and self._aborted[0][0] <= header.last_offset:
                self._aborting.add(heapq.heappop(self._aborted)[1])
            if header.is_control:
                if decode_control(decode_records(self._data, self._position)[0]).type is ControlType.ABORT:
                    self._aborting.discard(header.producer_id)
            elif header.is_transactional and header.producer_id in self._aborting:
                return False
        return not header.is_control
