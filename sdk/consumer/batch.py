"""What a poll returns: records, with what it takes to commit them or to have them again."""

from __future__ import annotations

import weakref
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from operator import length_hint

from semel.protocol.api.group_offsets import GroupMetadata, OffsetAndMetadata
from semel.protocol.errors import UsageError
from semel.protocol.ids import TopicPartition
from semel.protocol.record_decoder import Record
from semel.protocol.wording import counted
from semel.sdk.consumer.core import ConsumerCore, PolledRecords
from semel.sdk.consumer.processing import processing, processing_all
from semel.sdk.transport.border import ends_tracebacks
from semel.sdk.transport.options import NotPicklable


@ends_tracebacks
class Batch(NotPicklable, Sequence[Record]):
    """Records that one poll returned, with what it takes to commit them or to have them again.

    records:        of each partition in the order of offsets.
    first_offsets:  where the reader stood before them, in each partition they are from.
    next_offsets:   the offset after them, of each partition they are from.

    Batches that have a partition in common are to be processed in the order in which they were returned.
    """

    _in_place_of_pickling = (
        "it belongs to its consumer, which commits and rewinds it; pass on `batch.records`, and commit here"
    )

    __slots__ = ("__weakref__", "_core", "_group_metadata", "_has_begun", "_is_rewound", "_outstanding", "_polled")

    def __init__(self, core: ConsumerCore, polled: PolledRecords, outstanding: Outstanding) -> None:
        self._core = core
        self._polled = polled
        self._group_metadata = core.group_metadata()
        self._outstanding = outstanding
        self._has_begun = False
        self._is_rewound = False

    @property
    def records(self) -> list[Record]:
        return self._polled.records

    @property
    def first_offsets(self) -> Mapping[TopicPartition, int]:
        return self._polled.first_offsets

    @property
    def next_offsets(self) -> Mapping[TopicPartition, OffsetAndMetadata]:
        return self._polled.next_offsets

    @property
    def group_metadata(self) -> GroupMetadata:
        """Who may commit these records now. Raises `UsageError` outside of a group.

        That is this member in its current generation as long as all of the partitions have stayed with it, else in
        the generation in which the batch was read, which the coordinator then refuses (KIP-447).
        """
        if self._group_metadata is None:
            raise UsageError("offsets are committed for a group: make the consumer with Consumer(..., group='name')")
        return self._core.metadata_for(self._polled.states, self._group_metadata)

    def begin(self) -> None:
        """Begin to process these records in a transaction, perhaps again after an abort (`transaction()` calls this).

        Raises `UsageError` when later polls return them again: two batches would process them twice.
        """
        if self._is_rewound:
            is_ours = self._core.continue_after(self._polled)
        else:
            is_ours = not self._core.is_superseded(self._polled)
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
        partitions = set(self._polled.states)
        self._go_back()
        for later in self._outstanding.after(self):
            if not later._has_begun and not partitions.isdisjoint(later._polled.states):
                partitions.update(later._polled.states)
                later._go_back()

    def _go_back(self) -> None:
        self._is_rewound = True
        self._has_begun = False
        self._core.rewind(self._polled, self._polled.first_offsets)

    def continue_at_committed(self) -> None:
        """Continue where the group stands: for records of which nobody knows whether a transaction has committed them.

        The next poll asks the group's coordinator, which answers once no transaction is open over these partitions.
        """
        self._is_rewound = True
        self._has_begun = False
        self._core.look_up_again(self._polled)

    def truncate(self, offsets: Mapping[TopicPartition, int]) -> None:
        """End the batch before `offsets`: later polls return what is after them, and a transaction commits up to there.

        Partitions that are not named keep all of their records. Raises `UsageError` for an offset outside the batch,
        and for a batch that was rewound.
        """
        if self._is_rewound or self._core.is_superseded(self._polled):
            raise UsageError(
                f"{self!r} was rewound, and later polls return its records again; end one of those instead"
            )
        self._polled.end_at(offsets)
        self._core.rewind(self._polled, offsets)

    def processing(self, record: Record | None = None) -> AbstractContextManager[None]:
        """Return a context manager inside of which `record` (None: the batch as a whole) is processed.

        Makes a span "process", linked to where the records were created, and takes their baggage over (one record's).
        Without OpenTelemetry's SDK it does nothing.

            for record in batch:
                with batch.processing(record):
                    ...
        """
        if record is None:
            return processing_all(self._core, self._polled.records)
        return processing(self._core, record)

    def traced(self) -> Generator[Record, None, None]:
        """Yield record after record, each inside of `processing`, until the next is asked for.

        What the loop's body raises is not seen here: for spans that say so, use `with batch.processing(record)`.
        """
        for record in self._polled.records:
            with processing(self._core, record):
                yield record

    def __len__(self) -> int:
        return len(self._polled.records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self._polled.records)

    def __getitem__(self, index):  # type: ignore[no-untyped-def]  # Sequence's overloads add nothing here
        return self._polled.records[index]

    def __repr__(self) -> str:
        places = ", ".join(f"{tp}@{self.first_offsets[tp]}..{end.offset}" for tp, end in self.next_offsets.items())
        return f"<Batch of {counted(len(self), 'record')}: {places}>"


class Outstanding:
    """The batches of a consumer that somebody still holds, oldest first."""

    def __init__(self) -> None:
        self._batches: list[weakref.ref[Batch]] = []

    def add(self, batch: Batch) -> None:
        self._batches = [one for one in self._batches if one() is not None]
        self._batches.append(weakref.ref(batch))

    def after(self, batch: Batch) -> list[Batch]:
        """Return those that were returned after `batch`."""
        held = [one for one in (reference() for reference in self._batches) if one is not None]
        return held[held.index(batch) + 1 :] if any(one is batch for one in held) else []


class RecordByRecord:
    """Polled records on their way to the user one at a time, without any bookkeeping for a record.

    iterator:  gives the records; a record taken from it counts as returned.
    """

    def __init__(self, core: ConsumerCore, polled: PolledRecords) -> None:
        self._core = core
        self._polled = polled
        self._records = polled.records
        self.iterator = iter(polled.records)

    @property
    def is_done(self) -> bool:
        return length_hint(self.iterator) == 0

    def positions(self) -> dict[TopicPartition, int]:
        """Return the offset of the next record to return, of each partition that has one left.

        Not of one in which an older batch was rewound since: the reader stands before these records there.
        """
        found: dict[TopicPartition, int] = {}
        rewound = {state.tp for state in self._polled.redelivered}
        missing = len(self._polled.first_offsets)
        for record in islice(self._records, self._taken, None):
            tp = TopicPartition(record.topic, record.partition)
            if tp not in found:
                found[tp] = record.offset
                if len(found) == missing:
                    break
        return {tp: offset for tp, offset in found.items() if tp not in rewound}

    def stop(self) -> None:
        """Return no more; what was not returned is returned again with the next poll."""
        positions = self.positions()
        del self._records[self._taken :]
        self._core.rewind(self._polled, positions)

    @property
    def _taken(self) -> int:
        return len(self._records) - length_hint(self.iterator)
