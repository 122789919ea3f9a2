"""Up to where each log of a folder was on the disk when its node stopped, whatever became of the machine (D1)."""

from __future__ import annotations

from collections.abc import Mapping

from semel.broker.log.journal import Journal
from semel.broker.logs.data_folder import JOURNAL_FOLDER
from semel.broker.logs.kept_entries import KEPT_FOLDER, KeptEntries
from semel.protocol.errors import SemelError
from semel.protocol.ids import TopicId, TopicPartition
from semel.runtime.clock import Clock
from semel.runtime.inline_executor import InlineExecutor
from semel.runtime.storage import Storage


def synced_points(
    storage: Storage,
    path: str,
    clock: Clock,
    noted: Mapping[TopicPartition, int],
    topic_ids: Mapping[TopicPartition, TopicId],
) -> dict[TopicPartition, int]:
    """Return the recovery points that were `noted`, or where a log was cut below its own since, as a start does.

    What a log has from the cut on was written again and not synced, so a power cut may have torn it; the journal, or
    what is kept of it, has that. A journal that can't be read says nothing here: the dry run of a start tells of it.
    """
    points = dict(noted)
    kept = KeptEntries(storage, f"{path}/{KEPT_FOLDER}", clock)
    try:
        journal = Journal.open(storage, f"{path}/{JOURNAL_FOLDER}", clock=clock, executor=InlineExecutor())
        cuts = journal.cuts()
        for tp in noted.keys() & topic_ids.keys():
            key = topic_ids[tp], tp.partition
            points[tp] = min([noted[tp], *(cut.offset for cut in (*cuts.get(key, ()), *kept.cuts(key)))])
    except (SemelError, OSError):
        return points
    return points
