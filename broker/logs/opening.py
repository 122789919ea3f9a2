"""Opening the logs in a data folder, each for itself: one that can't be opened is offline, and costs no other.

What the journal has of such a partition is kept apart (`kept_entries`), and its checkpoints stay, so that it comes back
as it was: at a start, or, where the disk refused, while the node runs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Final

from semel.broker.log.config import LogConfig
from semel.broker.log.disk_errors import remedy
from semel.broker.log.journal_format import JournalEntry
from semel.broker.log.journal_recovery import JournalCut
from semel.broker.log.open_files import OpenFiles
from semel.broker.log.partition_log import PartitionLog
from semel.broker.log.producer_id_bound import ProducerIdBound
from semel.broker.logs.config import LogManagerConfig
from semel.broker.logs.data_folder import DataFolder
from semel.broker.logs.kept_entries import KEPT_FOLDER, KeptEntries
from semel.broker.logs.known_partitions import PartitionKey
from semel.broker.logs.offline import OfflineKind, OfflineLog, OfflineLogs, kind_of, message_of
from semel.broker.logs.unreported import NotNotedError
from semel.protocol.errors import SemelError
from semel.protocol.ids import TopicId, TopicPartition
from semel.protocol.wording import partition_argument
from semel.runtime.clock import Clock
from semel.runtime.storage import Storage

_log = logging.getLogger("semel.logs")

_TOLD_MAX: Final = 20
"""So many offline partitions have a line of their own, each time some are found."""


class LogOpener:
    """Opens a node's logs. Also says what becomes of journal entries without an open log (`EntriesAside`)."""

    def __init__(self, storage: Storage, folder: DataFolder, clock: Clock, config: LogManagerConfig) -> None:
        self.log_config: Callable[[TopicPartition, TopicId], LogConfig] = lambda tp, topic_id: LogConfig()
        self.is_only_replica: Callable[[TopicPartition, TopicId], bool] = lambda tp, topic_id: True
        """Gives the settings of a partition."""
        self.offline = OfflineLogs(folder.held)
        self.kept = KeptEntries(storage, folder.file(KEPT_FOLDER), clock)
        self.was_clean = True
        """Whether the stop before this start was a clean one."""
        self.suspected: set[TopicPartition] = set()
        """Partitions without a directory that had one, by the word of the checkpoints alone."""
        self._storage = storage
        self._folder = folder
        self._clock = clock
        self.config = config
        self._files = OpenFiles(config.log_max_open_files)
        self.producer_ids = ProducerIdBound(config.producer_ids_per_partition_max, config.producer_ids_max)
        self._replayed: list[PartitionKey] = []
        self.flushed_points: dict[TopicPartition, tuple[TopicId, int]] = {}
        """The recovery points of logs that failed amid the journal and were flushed all the same."""
        self.synced: dict[TopicPartition, int] = {}
        """Up to where each log was on the disk when the start found it."""
        self._on_loss: Callable[[PartitionKey, int], None] = _pass_over

    def open_all(
        self,
        progress: Callable[[int, int, TopicPartition], None] | None,
        *,
        clean: bool,
        on_loss: Callable[[PartitionKey, int], None],
        cuts: Mapping[PartitionKey, Sequence[JournalCut]],
    ) -> dict[PartitionKey, PartitionLog]:
        """Open every log that can be opened; the others are in `offline`. Raises `OSError` for the folder itself.

        on_loss: is called with the first offset that a log has lost of what was synced, before it is repaired
        cuts:    where the journal says that a log was cut
        """
        self.was_clean = clean
        self._on_loss = on_loss
        self._folder.known.read()
        starts = self._folder.log_starts.read()
        points = self._folder.recovery_points.read()
        marks = self._folder.high_watermarks.read()
        is_untouched = self._folder.is_opening
        failed: list[OfflineLog] = []
        found = list(self._folder.find_logs(lambda tp, error: failed.append(self.failed(tp, None, error))))
        logs: dict[PartitionKey, PartitionLog] = {}
        for done, (tp, topic_id) in enumerate(found, 1):
            key = topic_id, tp.partition
            try:
                start, point = starts.get(tp), self._synced_to(key, points.get(tp, 0), cuts.get(key, ()))
                self.synced[tp] = point
                log = self.open_log(
                    tp, topic_id, clean=clean, start=start, point=point, is_untouched=is_untouched,
                    on_loss=partial(on_loss, key),
                )  # fmt: skip
                if self.kept.has(key):
                    self.kept.replay(key, log, point)
                    self._replayed.append(key)
                logs[key] = log
            except NotNotedError:
                raise
            except Exception as error:  # whatever it is, it is this partition's
                failed.append(self.failed(tp, topic_id, error))
            if progress is not None:
                progress(done, len(found), tp)
        missing = ({tp for noted in (points, starts, marks) for tp in noted}) - {tp for tp, _ in found}
        self._folder.held.update(missing)  # until it is known whether they were deleted
        # A folder of an earlier version has no list of its partitions; its checkpoints name those that had records.
        self.suspected = set() if self._folder.known.was_there else missing
        self._folder.known.add((topic_id, tp.partition) for tp, topic_id in found)
        self.take_offline(failed)
        return logs

    def _synced_to(self, key: PartitionKey, noted: int, cuts: Sequence[JournalCut]) -> int:
        """Return up to where a log is on the disk: to the recovery point that was noted, or to where it was cut since.

        What it has from the cut on was written again and not synced, so a power cut may have torn it. The journal, or
        what is kept of it, has all of that.
        """
        return min([noted, *(cut.offset for cut in (*cuts, *self.kept.cuts(key)))])

    def release_missing(self) -> None:
        """Let the checkpoints forget partitions that are neither here nor offline: they were deleted."""
        self.suspected = set()
        self._folder.held.intersection_update({one.tp for one in self.offline})

    def open_log(
        self,
        tp: TopicPartition,
        topic_id: TopicId,
        *,
        clean: bool,
        start: int | None = None,
        point: int = 0,
        start_is_final: bool | None = None,
        is_untouched: bool = False,
        on_loss: Callable[[int], None] = lambda first: None,
        config: LogConfig | None = None,
        files: OpenFiles | None = None,
    ) -> PartitionLog:
        """Open one log. Raises `SemelError` and `OSError`."""
        return PartitionLog.open(
            self._storage,
            self._folder.log_folder(tp),
            tp,
            topic_id,
            config if config is not None else self.log_config(tp, topic_id),
            now_ms=self._clock.now_ms(),
            log_start_offset=start,
            recovery_point=point,
            clean=clean,
            start_is_final=start_is_final,
            is_untouched=is_untouched,
            on_loss=on_loss,
            is_only_replica=self.is_only_replica(tp, topic_id),
            high_watermark=self._folder.high_watermarks.get(tp),
            max_producer_id_expiration_ms=self.config.producer_id_expiration_ms,
            files=files if files is not None else self._files,
            producer_ids=self.producer_ids,
        )

    def failed(
        self, tp: TopicPartition, topic_id: TopicId | None, error: Exception, leader_epoch: int = 0
    ) -> OfflineLog:
        """Return what there is to say of a log that could not be opened."""
        kind = kind_of(error)
        reason, folder = message_of(error), self._folder.log_folder(tp)
        if folder not in reason:
            reason = f"{folder} can't be opened: {reason}"
        if kind is OfflineKind.UNREADABLE:
            reason = (
                f"{reason.rstrip('.')}: {remedy(error if isinstance(error, OSError) else error.__cause__ or error)}"
            )
        return OfflineLog(
            tp, topic_id, kind, reason.rstrip("."), self._clock.now_ms(), leader_epoch, is_clean=self.was_clean
        )

    # --- Offline ------------------------------------------------------------------------------------------------------

    def take_offline(self, logs: list[OfflineLog]) -> None:
        """Take partitions up as offline, and tell of those that were not already."""
        new = [log for log in logs if (before := self.offline.get(log.tp)) is None or before.kind is not log.kind]
        for log in logs:
            self.offline.add(log, self._clock.monotonic())
        for log in new[:_TOLD_MAX]:
            _log.error("%s is offline, the others are not: %s. %s", log.tp, log.reason, next_step(log, self._folder))
        if len(new) > _TOLD_MAX:
            _log.error("%d more partitions are offline: `semel doctor` lists them", len(new) - _TOLD_MAX)

    def discard_replayed(self) -> None:
        """Remove what was kept of logs that have it, and were flushed since. Raises `OSError`."""
        for key in self._replayed:
            self.kept.discard(key)
        self._replayed.clear()

    def recover(self, one: OfflineLog) -> tuple[int, int]:
        """Recover an offline log in its directory, and leave it as a clean stop does; return its start and its end.

        In any thread. What the run so far, or an attempt, left of it is validated from the recovery point on (D2).
        Raises `SemelError` and `OSError`.
        """
        assert one.topic_id is not None
        was_clean, one.is_clean = one.is_clean, False
        key = one.topic_id, one.tp.partition
        noted = self._folder.recovery_points.get(one.tp)
        point = self._synced_to(key, noted, ())
        on_loss = self._loss_noter(one.tp, key)
        log = self.open_log(
            one.tp,
            one.topic_id,
            on_loss=on_loss,
            clean=False,
            start=self._folder.log_starts.all().get(one.tp),
            point=point,
            start_is_final=was_clean,
            files=OpenFiles(self.config.log_max_open_files),
        )
        try:
            if self.kept.has(key):
                self.kept.replay(key, log, point)
            was_cut = log.replayed_cut is not None and log.replayed_cut <= log.log_end_offset
            if log.log_end_offset < noted and not was_cut:
                on_loss(log.log_end_offset)
            self.note_damage(key, log)
            log.flush()
            log.close()
        finally:
            log.release_files()
        if log.recovered_damage:
            _log.error("%s came back damaged: %s", one.tp, log.recovered_damage)
        return log.log_start_offset, log.log_end_offset

    def note_damage(self, key: PartitionKey, log: PartitionLog) -> None:
        """Note what an opened log has lost, or can't read, before it is used. Raises `OSError`."""
        if (first := log.recovered_damage_from) is not None:
            self._loss_noter(log.tp, key)(first)

    def _loss_noter(self, tp: TopicPartition, key: PartitionKey) -> Callable[[int], None]:
        """An only replica has nobody to fetch from, and no registration is to tell of it."""
        return partial(_pass_over if self.is_only_replica(tp, key[0]) else self._on_loss, key)

    def retry_failed(self, one: OfflineLog, error: Exception) -> None:
        """Note that a partition could not be brought back."""
        again = self.failed(one.tp, one.topic_id, error, one.leader_epoch)
        again.is_clean = one.is_clean
        self.take_offline([again])

    # --- Entries of the journal ---------------------------------------------------------------------------------------

    def is_wanted(self, key: PartitionKey) -> bool:
        return key in self._folder.known

    def keep(self, key: PartitionKey, entry: JournalEntry) -> None:
        self.kept.keep(key, entry)

    def keep_all(self, keys: Collection[PartitionKey], entries: Iterable[JournalEntry]) -> None:
        """Keep the entries of some partitions, durably. In any thread. Raises `SemelError` and `OSError`."""
        try:
            for entry in entries:
                key = entry.topic_id, entry.partition
                if key in keys:
                    self.kept.keep(key, entry)
            self.kept.finish()
        except BaseException:
            self.kept.abandon()
            raise

    def log_failed(self, log: PartitionLog, error: Exception) -> bool:
        key = log.topic_id, log.tp.partition
        try:
            log.write_again()
            self.flushed_points[log.tp] = log.topic_id, log.flush()
            is_flushed = True
        except (SemelError, OSError):
            is_flushed = False
        log.release_files()
        failed = self.failed(log.tp, log.topic_id, error)
        if key in self._replayed:
            self._replayed.remove(key)  # what it could not take comes behind that
        kept = self.kept.folder(key)
        failed.reason += (
            f" (what the journal has of it is kept in {kept}; without that, it opens without those records)"
        )
        self.take_offline([failed])
        return is_flushed

    def lost_offsets(self, tp: TopicPartition, topic_id: TopicId) -> tuple[int, int]:
        """Return where a partition whose directory is gone continues: the first offset that can be given back from what
        is kept of it, and the one behind all that it is known to have had (D3).
        """
        folder = self._folder
        noted = max(offsets.get(tp) for offsets in (folder.recovery_points, folder.high_watermarks, folder.log_starts))
        kept = self.kept.offsets((topic_id, tp.partition))
        if kept is None:
            return noted, noted
        return (kept[0] if kept[1] >= noted else noted), max(noted, kept[1])


def _pass_over(key: PartitionKey, first: int) -> None:
    """Tell nobody that records are lost."""


def next_step(log: OfflineLog, folder: DataFolder) -> str:
    """Return what is to be done about an offline partition, as sentences."""
    path = folder.log_folder(log.tp)
    accept = f"semel serve --data-dir {folder.path} --accept-loss-of {partition_argument(log.tp)}"
    match log.kind:
        case OfflineKind.NOT_MADE | OfflineKind.UNREADABLE:
            return "The node keeps retrying"
        case OfflineKind.VANISHED:
            away = f" and move away what is in its place, {path}. Then" if folder.has_log_name(log.tp) else " and"
            return (
                f"Stop the node{away} bring {path} back; or, if its records are gone for good, start it once with "
                f"`{accept}`, which creates the partition again, behind the last offset that is known of it"
            )
        case OfflineKind.DAMAGED:
            return (
                f"Follow that, or stop the node and restore {path} from a backup; or, to continue without its records, "
                f"move {path} away and start once with `{accept}`"
            )
