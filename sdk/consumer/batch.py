"""What a poll hands out: records, with what it takes to commit them or to have them again."""

from __future__ import annotations

import weakref
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from operator import length_hint

from semel.protocol.api.groups import OffsetAndMetadata
from semel.protocol.errors import UsageError
from semel.protocol.ids import TopicPartition
from semel.protocol.record_decoder import Record
from semel.sdk.consumer.core import ConsumerCore, Handout
from semel.sdk.consumer.processing import processing, processing_all
from semel.sdk.producer.transaction import GroupMetadata
from semel.sdk.transport.options import NotPicklable


class Batch(NotPicklable, Sequence[Record]):
    """Records that one poll handed out, with what it takes to commit them or to have them again.

    records:        of each partition in the order of offsets.
    first_offsets:  where the reader stood before them, in each partition they are from.
    next_offsets:   the offset after them, of each partition they are from.

    Batches that have a partition in common are to be processed in the order in which they were handed out.
    """

    _in_place_of_pickling = (
        "it belongs to its consumer, which commits and rewinds it; pass on `batch.records`, and commit here"
    )

    __slots__ = ("__weakref__", "_core", "_group_metadata", "_handout", "_has_begun", "_is_rewound", "_outstanding")

    def __init__(self, core: ConsumerCore, handout: Handout, outstanding: Outstanding) -> None:
        self._core = core
        self._handout = handout
        self._group_metadata = core.group_metadata()
        self._outstanding = outstanding
        self._has_begun = False
        self._is_rewound = False

    @property
    def records(self) -> list[Record]:
        return self._handout.records

    @property
    def first_offsets(self) -> Mapping[TopicPartition, int]:
        return self._handout.first_offsets

    @property
    def next_offsets(self) -> Mapping[TopicPartition, OffsetAndMetadata]:
        return self._handout.next_offsets

    @property
    def group_metadata(self) -> GroupMetadata:
        """Who may commit these records now. Raises `UsageError` outside of a group.

        That is this member in its generation of today as long as all of the partitions have stayed with it, else in
        the generation in which the batch was read, which the coordinator then refuses (KIP-447).
        """
        if self._group_metadata is None:
            raise UsageError("offsets are committed for a group: make the consumer with Consumer(..., group='name')")
        return self._core.metadata_for(self._handout.states, self._group_metadata)

    def begin(self) -> None:
        """Begin to process these records in a transaction, perhaps again after an abort (`transaction()` calls this).

        Raises `UsageError` when they come again with later polls: two batches would process them twice.
        """
        if self._is_rewound:
            is_ours = self._core.go_on_after(self._handout)
        else:
            is_ours = not self._core.is_superseded(self._handout)
        if not is_ours:
            raise UsageError(
                f"{self!r} was rewound, and later polls return its records again; process those batches instead"
            )
        self._is_rewound = False
        self._has_begun = True

    def rewind(self) -> None:
        """Go back, so that the next poll hands these records out again (`transaction()` calls this when it aborts).

        So it does with those of later batches that were not begun and have a partition in common with this one.
        Partitions that have gone to another member stay there; it begins where the group stands.
        """
        if self._is_rewound:
            return
        partitions = set(self._handout.states)
        self._go_back()
        for later in self._outstanding.after(self):
            if not later._has_begun and not partitions.isdisjoint(later._handout.states):
                partitions.update(later._handout.states)
                later._go_back()

    def _go_back(self) -> None:
        self._is_rewound = True
        self._has_begun = False
        self._core.rewind(self._handout, self._handout.first_offsets)

    def processing(self, record: Record | None = None) -> AbstractContextManager[None]:
        """Return a context manager inside of which `record` (None: the batch as a whole) is processed.

        Makes a span "process", linked to where the records were created, and takes their baggage over (one record's).
        Without OpenTelemetry's SDK it does nothing.

            for record in batch:
                with batch.processing(record):
                    ...
        """
        if record is None:
            return processing_all(self._core, self._handout.records)
        return processing(self._core, record)

    def traced(self) -> Generator[Record, None, None]:
        """Yield record after record, each inside of `processing`, until the next is asked for.

        What the loop's body raises is not seen here: for spans that say so, use `with batch.processing(record)`.
        """
        for record in self._handout.records:
            with processing(self._core, record):
                yield record

    def __len__(self) -> int:
        return len(self._handout.records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self._handout.records)

    def __getitem__(self, index):  # type: ignore[no-untyped-def]  # Sequence's overloads add nothing here
        return self._handout.records[index]

    def __repr__(self) -> str:
        places = ", ".join(f"{tp}@{self.first_offsets[tp]}..{end.offset}" for tp, end in self.next_offsets.items())
        return f"<Batch of {len(self)} records: {places}>"


class Outstanding:
    """The batches of a consumer that somebody still holds, oldest first."""

    def __init__(self) -> None:
        self._batches: list[weakref.ref[Batch]] = []

    def add(self, batch: Batch) -> None:
        self._batches = [one for one in self._batches if one() is not None]
        self._batches.append(weakref.ref(batch))

    def after(self, batch: Batch) -> list[Batch]:
        """Return those that were handed out after `batch`."""
        held = [one for one in (reference() for reference in self._batches) if one is not None]
        return held[held.index(batch) + 1 :] if any(one is batch for one in held) else []


class RecordByRecord:
    """A handout on its way to the user one record at a time, without any bookkeeping for a record.

    iterator:  gives the records; whoever takes from it has been handed them out.
    """

    def __init__(self, core: ConsumerCore, handout: Handout) -> None:
        self._core = core
        self._handout = handout
        self._records = handout.records
        self.iterator = iter(handout.records)

    @property
    def is_done(self) -> bool:
        return length_hint(self.iterator) == 0

    def positions(self) -> dict[TopicPartition, int]:
        """Return the offset of the next record to hand out, of each partition that has one left."""
        found: dict[TopicPartition, int] = {}
        missing = len(self._handout.first_offsets)
        for record in islice(self._records, self._taken, None):
            tp = TopicPartition(record.topic, record.partition)
            if tp not in found:
                found[tp] = record.offset
                if len(found) == missing:
                    break
        return found

    def stop(self) -> None:
        """Hand out no more; what was not handed out comes again with the next poll."""
        positions = self.positions()
        del self._records[self._taken :]
        self._core.rewind(self._handout, positions)

    @property
    def _taken(self) -> int:
        return len(self._records) - length_hint(self.iterator)
