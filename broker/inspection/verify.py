"""Checks a whole data folder without a node, and without changing it: `semel log verify`.

Three looks: the metadata against the folders; a dry run of a start of the logs (`dry_run`); and a walk over every batch
as it lies on the disk, against which all that was derived from them is held (`log_check`).
"""

from __future__ import annotations

import fcntl
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy.exc import SQLAlchemyError

from semel.broker.config.node_config import NodeConfig
from semel.broker.handlers.topics.rules import partition_log_configs
from semel.broker.inspection.dry_run import DryRun, dry_run_start
from semel.broker.inspection.dry_run_outcome import DryRunOutcome
from semel.broker.inspection.file_kinds import FileKind, Place, log_name, misplaced, place_of
from semel.broker.inspection.findings import Check, Findings, Severity
from semel.broker.inspection.log_check import LogCheck, WalkedLog
from semel.broker.inspection.metadata_copy import LoadedMetadata, integrity_fault, load_from, load_image
from semel.broker.inspection.overlay import OverlayStorage, open_to_read
from semel.broker.inspection.remote_check import RemoteReport, check_remote
from semel.broker.inspection.transaction_check import check_transactions
from semel.broker.log.checkpoints import OffsetCheckpoint
from semel.broker.log.disk_errors import next_after_misplaced
from semel.broker.log.journal_recovery import SUFFIX
from semel.broker.log.losses import LOST_OFFSETS, UNSYNCED
from semel.broker.logs.data_folder import (
    CLEAN_FILE,
    CLEANER_FILE,
    HIGH_WATERMARK_FILE,
    JOURNAL_FOLDER,
    LOCK_FILE,
    LOG_START_FILE,
    META_FILE,
    NODE_LOCK_FILE,
    OPENING_FILE,
    PARTITION_FILE,
    RECOVERY_POINT_FILE,
    DataFolder,
)
from semel.broker.logs.known_partitions import KNOWN_FILE, KnownPartitions
from semel.broker.logs.last_recovery import NOTE_FILE
from semel.broker.logs.unreported import UNREPORTED_FILE
from semel.broker.metadata.applied_position import POSITION_FILE, read_applied
from semel.broker.metadata.changes import MetadataCorruptError
from semel.broker.metadata.image import MetadataImage
from semel.broker.metadata.store import METADATA_FILE, misplaced_file
from semel.protocol.errors import SemelError, UsageError
from semel.protocol.ids import TopicId, TopicPartition, format_topic_id
from semel.runtime.clock import Clock, SystemClock
from semel.runtime.storage import read_whole

_SMALL_BYTES_MAX: Final = 64 << 10
_RESTORE: Final = "restore it from a backup"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far it is: what is read now, and bytes of logs done and in all."""

    doing: str
    done_bytes: int
    total_bytes: int


@dataclass(slots=True)
class Report:
    """What was looked at, and what was found."""

    path: str
    node_id: int
    cluster_id: str
    is_running: bool
    """A node has the folder: its files change meanwhile, and may look torn where nothing is wrong."""
    is_clean: bool
    """The last stop says that it left everything whole."""
    start: str = ""
    """What a start of the node would say of the logs, in one line."""
    refusal: str = ""
    """Why it would not start."""
    logs: list[WalkedLog] = field(default_factory=list)
    findings: Findings = field(default_factory=Findings)
    open_transactions: int = 0
    remote: RemoteReport | None = None
    """What was looked at in the remote storage."""
    seconds: float = 0.0

    @property
    def is_whole(self) -> bool:
        return self.findings.is_whole

    @property
    def size_bytes(self) -> int:
        return sum(log.size_bytes for log in self.logs)


def verify(
    path: str,
    *,
    metadata_url: str = "",
    deep: bool = False,
    clock: Clock | None = None,
    progress: Callable[[Progress], None] | None = None,
    needs_metadata: bool = True,
    is_alone: bool = False,
    remote_storage: str = "",
) -> Report:
    """Check the data folder at `path`. Raises `UsageError` where it is none, and `OSError`.

    metadata_url:   where the metadata is, if not in the folder
    deep:           decompress each batch, and read its records
    needs_metadata: a folder without metadata is an error, since a node does not start with it
    remote_storage: also check what the cluster has there: a remote.storage.url
    is_alone:       without metadata, each log counts as the only replica: no other was to be followed by cutting it
    """
    begun = time.monotonic()
    path = os.path.normpath(path)
    if not os.path.isdir(path):
        raise UsageError(f"{path} is not a directory: give a node's data.dir")

    def look() -> Report:
        return _look(
            path, metadata_url, deep, clock or SystemClock(), progress, needs_metadata, is_alone, remote_storage
        )

    report = look()
    if report.is_running and not report.is_whole:
        # What was being written looked torn, perhaps: real damage is there the second time too.
        report = look()
    report.seconds = time.monotonic() - begun
    return report


def _look(
    path: str,
    metadata_url: str,
    deep: bool,
    clock: Clock,
    progress: Callable[[Progress], None] | None,
    needs_metadata: bool,
    is_alone: bool,
    remote_storage: str,
) -> Report:
    before = OverlayStorage(path)
    try:
        if not _is_data_folder(before, path):
            raise UsageError(
                f"{path} is no node's data directory: it has neither {META_FILE} nor logs. Give a data.dir"
            )
        return _Verification(
            before, path, metadata_url, deep, clock, progress, needs_metadata, is_alone, remote_storage
        ).run()
    finally:
        before.close()


def is_in_use(path: str) -> bool:
    """Say whether a process holds the folder's lock. Looks for the length of one system call."""
    try:
        descriptor = open_to_read(f"{path}/{LOCK_FILE}")
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _is_data_folder(storage: OverlayStorage, path: str) -> bool:
    names = storage.list_folder(path)
    return META_FILE in names or METADATA_FILE in names or any(log_name(name) is not None for name in names)


@contextmanager
def _silent() -> Iterator[None]:
    """Let the logs' code say nothing: what it says of a start is taken down in the dry run."""
    logger = logging.getLogger("semel.logs")
    was_disabled, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = was_disabled


class _Verification:
    """One run over one folder."""

    def __init__(
        self,
        before: OverlayStorage,
        path: str,
        metadata_url: str,
        deep: bool,
        clock: Clock,
        progress: Callable[[Progress], None] | None,
        needs_metadata: bool,
        is_alone: bool,
        remote_storage: str,
    ) -> None:
        self._remote_storage = remote_storage
        self._before = before
        self._path = path
        self._metadata_url = metadata_url
        self._deep = deep
        self._clock = clock
        self._progress = progress
        self._needs_metadata = needs_metadata
        self._is_alone = is_alone
        owner = self._read_owner()
        self._report = Report(
            path, owner[0], owner[1], is_running=is_in_use(path), is_clean=before.exists(f"{path}/{CLEAN_FILE}")
        )
        self._findings = self._report.findings
        if not before.exists(f"{path}/{META_FILE}"):
            self._findings.add(
                Severity.WARNING, Check.START, META_FILE,
                "it is missing: which node this directory belongs to is unknown",
                on_start="writes it again, for the node that starts",
            )  # fmt: skip
        self._done_bytes = 0
        self._total_bytes = 0
        self._deleted_topics: frozenset[TopicId] = frozenset()

    def run(self) -> Report:
        report = self._report
        hidden = self._hide_misplaced()
        image = self._load_metadata()
        after = OverlayStorage(self._path)
        try:
            self._tell(Progress("dry run of a start", 0, 0))
            may_be_remote = image is None and self._needs_metadata
            dry_run = dry_run_start(
                after, self._path, self._clock, image, report.node_id, self._is_alone, may_be_remote
            )
            self._tell_of_start(dry_run)
            self._tell_of_misplaced(hidden, dry_run)
            logs = self._dry_run_logs(dry_run)
            self._check_folders(image, dry_run)
            self._walk(image, dry_run)
            self._check_checkpoints(dry_run)
            self._check_changes(dry_run)
            if self._remote_storage and image is not None:
                self._check_remote(image)
            if dry_run.refusal is None:
                check_transactions(logs, self._findings, image)
                report.open_transactions = sum(len(log.producer_state.open_transactions) for log in logs.values())
            else:
                self._findings.add(
                    Severity.NOTE, Check.TRANSACTIONS, "",
                    "transactions and coordinators were not looked at: that needs logs that a start can open",
                )  # fmt: skip
        finally:
            after.close()
        return report

    def _check_remote(self, image: MetadataImage) -> None:
        def tell(doing: str, done_bytes: int, total_bytes: int) -> None:
            self._tell(Progress(doing, done_bytes, total_bytes))

        self._report.remote = check_remote(
            self._remote_storage, self._metadata_url, f"{self._path}/{METADATA_FILE}", image, self._findings, tell
        )

    # --- Whose folder it is -------------------------------------------------------------------------------------------

    def _read_owner(self) -> tuple[int, str]:
        try:
            text = read_whole(self._before, f"{self._path}/{META_FILE}", size_bytes_max=_SMALL_BYTES_MAX)
        except (OSError, ValueError):
            return 0, ""
        lines = (line.partition("=") for line in text.decode("utf-8", "replace").splitlines())
        pairs = {name.strip(): value.strip() for name, _, value in lines}
        node_id = pairs.get("node.id", "0")
        return int(node_id) if node_id.isdecimal() else 0, pairs.get("cluster.id", "")

    def _load_metadata(self) -> MetadataImage | None:
        in_folder = f"{self._path}/{METADATA_FILE}"
        with _silent():
            applied = read_applied(self._before, f"{self._path}/{POSITION_FILE}")
        try:
            if self._metadata_url:
                return self._noted(load_from(self._metadata_url, applied))
            misplaced = misplaced_file(self._path)
            if misplaced is not None:
                path, kind = misplaced
                self._findings.add(
                    Severity.ERROR, Check.METADATA, os.path.basename(path), f"it is {kind}, and a file belongs there",
                    on_start="refuses, unless metadata.url names another database",
                    command=f"stop the node and move it away; if {METADATA_FILE} is not elsewhere, {_RESTORE}",
                )  # fmt: skip
                return None
            if not self._before.exists(in_folder):
                if self._needs_metadata:
                    self._findings.add(
                        Severity.ERROR, Check.METADATA, METADATA_FILE,
                        "it is not there: which topics there are is unknown",
                        on_start="refuses, unless metadata.url names another database",
                        command=f"{_RESTORE}; or, where metadata.url is set, give it here: --metadata-url URL",
                    )  # fmt: skip
                return None
            fault = integrity_fault(in_folder)
            if fault is not None:
                self._add_metadata_fault(f"SQLite finds it damaged: {fault}")
            return self._noted(load_image(in_folder, applied))
        except (SemelError, MetadataCorruptError, SQLAlchemyError, OSError) as error:
            self._add_metadata_fault(str(error))
            return None

    def _noted(self, loaded: LoadedMetadata) -> MetadataImage:
        self._deleted_topics = loaded.deleted_topics
        if loaded.lacks is not None:
            last, applied = loaded.image.sequence, loaded.lacks.sequence
            has = f"changes up to {last} only" if last < applied else f"another change {applied}"
            self._findings.add(
                Severity.ERROR, Check.METADATA, METADATA_FILE,
                f"it went back: the node had applied its changes up to {applied}, and it has {has}",
                on_start="refuses",
                command="restore a newer copy of it; if there is none, start the node once with "
                "`semel serve --accept-metadata-loss`",
            )  # fmt: skip
        return loaded.image

    def _add_metadata_fault(self, what: str) -> None:
        self._findings.add(
            Severity.ERROR, Check.METADATA, METADATA_FILE, what, on_start="refuses, or fails later", command=_RESTORE
        )

    # --- What a start says --------------------------------------------------------------------------------------------

    def _tell_of_start(self, dry_run: DryRun) -> None:
        report = self._report
        if dry_run.report is not None:
            report.start = str(dry_run.report)
            if dry_run.report.restored_batches:
                self._findings.add(
                    Severity.WARNING if report.is_clean else Severity.NOTE, Check.JOURNAL, "journal",
                    f"{dry_run.report.restored_batches} batches are missing in the logs, and are in the journal",
                    on_start="gives them back to the logs",
                )  # fmt: skip
        if report.is_running and isinstance(dry_run.refusal, FileNotFoundError):
            self._gone("", dry_run.refusal)
        elif dry_run.refusal is not None:
            report.refusal = getattr(dry_run.refusal, "message", None) or str(dry_run.refusal)
            self._findings.add(
                Severity.ERROR, Check.START, "", f"a node does not start with this directory: {report.refusal}",
                on_start="refuses", command="do as it says, then: semel log verify again",
            )  # fmt: skip
        if not report.is_clean and not report.is_running and dry_run.refusal is None:
            self._findings.add(
                Severity.NOTE, Check.START, CLEAN_FILE, "the last stop was not a clean one",
                on_start="recovers: it validates the logs from their recovery points on, and reads the journal",
            )  # fmt: skip
        for record in dry_run.said:
            if record.levelno >= logging.WARNING:
                lost = hasattr(record, LOST_OFFSETS) or record.levelno >= logging.ERROR
                is_of_crash = not report.is_clean and getattr(record, UNSYNCED, False)
                severity = Severity.ERROR if lost else Severity.NOTE if is_of_crash else Severity.WARNING
                self._findings.add(
                    severity, Check.START, "", record.getMessage(),
                    on_start="says this in the node's log",
                    command="restore the directory from a backup, if there is one" if lost else "",
                )  # fmt: skip

    def _hide_misplaced(self) -> list[Place]:
        """Return the directories, pipes and devices in place of files, and let the rest of the look see nothing
        there.
        """
        folders = [self._path]
        for name in self._before.list_folder(self._path):
            is_ours = log_name(name) is not None or name == JOURNAL_FOLDER
            if is_ours and self._before.is_folder(f"{self._path}/{name}"):
                folders.append(f"{self._path}/{name}")
        found = []
        for folder in folders:
            for name in self._before.list_folder(folder):
                place = place_of(f"{folder}/{name}")
                if place is None:
                    continue
                if self._before.is_folder(place.path):
                    self._before.remove_tree(place.path)
                elif self._before.special_kind(place.path):
                    self._before.remove(place.path)
                else:
                    continue
                found.append(place)
        return found

    def _tell_of_misplaced(self, hidden: list[Place], dry_run: DryRun) -> None:
        opened = {partition.tp for partition in dry_run.logs.partitions()}
        lock = f"{self._path}/{NODE_LOCK_FILE}"
        if what := self._before.special_kind(lock):
            self._findings.add(
                Severity.ERROR, Check.START, NODE_LOCK_FILE, f"it is {what}, and a file belongs there",
                on_start="refuses", command="move it away; the node makes the file again",
            )  # fmt: skip
        for place in hidden:
            name, what = place.path[len(self._path) + 1 :], misplaced(place.path)
            is_metadata = place.kind is FileKind.METADATA
            if dry_run.refusal is None and not is_metadata and (place.tp is None or place.tp in opened):
                left = dry_run.storage.exists(place.path)
                self._findings.add(
                    Severity.NOTE, Check.FOLDERS, name, what, on_start="leaves it" if left else "removes it"
                )
                continue
            it = "the directory" if os.path.isdir(place.path) else "it"
            self._findings.add(
                Severity.ERROR, Check.FOLDERS, name, what,
                on_start="refuses" if place.tp is None or dry_run.refusal is not None else "keeps it offline",
                command=f"stop the node and move {it} away; {next_after_misplaced(place.path)}",
            )  # fmt: skip

    def _dry_run_logs(self, dry_run: DryRun) -> Mapping[TopicPartition, Any]:
        return {partition.tp: partition.log for partition in dry_run.logs.partitions()}

    def _check_changes(self, dry_run: DryRun) -> None:
        """After a clean stop a start changes nothing but the mark of it: whatever else it does was told above, or is
        told here.
        """
        if not self._report.is_clean or dry_run.refusal is not None:
            return
        told = {finding.path for finding in self._findings.found}
        after = dry_run.storage
        self._check_known()
        quiet = {CLEAN_FILE, OPENING_FILE, LOCK_FILE, NOTE_FILE, KNOWN_FILE, UNREPORTED_FILE}
        for path in self._before.files():
            name = path[len(self._path) + 1 :]
            if name in quiet or name in told or name.endswith((".deleted", ".tmp", ".cleaned", ".swap")):
                continue
            if not after.exists(path) or after.is_changed(path):
                self._findings.add(
                    Severity.WARNING, Check.START, name, "a clean stop left it so that no start touches it",
                    on_start="changes it" if after.exists(path) else "removes it",
                )  # fmt: skip

    def _check_known(self) -> None:
        """A clean stop knows all partitions by their topics' ids: what it does not know has got another id since."""
        known = KnownPartitions(self._before, f"{self._path}/{KNOWN_FILE}")
        with _silent():
            known.read()
        for tp, topic_id in self._topic_ids().items() if known.was_there else ():
            if (topic_id, tp.partition) not in known:
                self._findings.add(
                    Severity.WARNING, Check.FOLDERS, f"{tp}/{PARTITION_FILE}",
                    f"it says the topic id {format_topic_id(topic_id)}, of which this directory had no partition "
                    f"{tp.partition} when the node stopped",
                    on_start="takes the records for that topic's",
                    command=f"compare the file with those of the other partitions of {tp.topic}",
                )  # fmt: skip

    # --- Folders ------------------------------------------------------------------------------------------------------

    def _check_folders(self, image: MetadataImage | None, dry_run: DryRun) -> None:
        names = self._before.list_folder(self._path)
        for name in names:
            if name.endswith("-delete") and self._before.is_folder(f"{self._path}/{name}"):
                self._findings.add(
                    Severity.NOTE, Check.LEFTOVERS, name, "a deleted partition's directory", on_start="removes it"
                )
        if image is None:
            return
        if not image.cluster_id and META_FILE in names:
            self._add_metadata_fault("it is empty, and the directory holds a node's logs")
        found = self._topic_ids()
        known = dry_run.logs.folder.known
        if dry_run.refusal is not None and not found:
            return
        for tp, topic_id in found.items():
            topic = image.topic_by_id(topic_id)
            if topic_id in self._deleted_topics:
                self._findings.add(
                    Severity.NOTE, Check.LEFTOVERS, str(tp), "its topic was deleted, and its directory was not yet",
                    on_start="removes it",
                )  # fmt: skip
            elif topic is None or topic.name != tp.topic or tp.partition >= len(topic.partitions):
                self._findings.add(
                    Severity.WARNING, Check.FOLDERS, str(tp),
                    "the metadata does not know this partition: its topic was deleted, or the metadata is older",
                    on_start="deletes the directory",
                    command="if the records are wanted, copy the directory away before the node starts",
                )  # fmt: skip
            elif self._report.node_id not in topic.partitions[tp.partition].replicas:
                self._findings.add(
                    Severity.NOTE, Check.LEFTOVERS, str(tp), "it was moved to other nodes, its directory not yet",
                    on_start="removes it",
                )  # fmt: skip
        before = KnownPartitions(self._before, f"{self._path}/{KNOWN_FILE}")
        with _silent():
            before.read()
        for topic in image.topics.values():
            for number, state in enumerate(topic.partitions):
                tp = TopicPartition(topic.name, number)
                if self._report.node_id not in state.replicas or found.get(tp) == topic.topic_id:
                    continue
                if before.was_there and (topic.topic_id, number) not in known and str(tp) not in names:
                    self._findings.add(
                        Severity.NOTE, Check.FOLDERS, str(tp), "its topic was created, and its directory was not yet",
                        on_start="makes it, empty",
                    )  # fmt: skip
                    continue
                self._findings.add(
                    Severity.ERROR, Check.FOLDERS, str(tp),
                    "the metadata says that this node holds the partition, and it has no directory here",
                    on_start="keeps it offline" if (topic.topic_id, number) in known else "makes it again, empty",
                    command="bring the directory back before the node starts",
                )  # fmt: skip

    def _topic_ids(self) -> dict[TopicPartition, TopicId]:
        """The partitions as a start finds them. What it says of others was said in the dry run."""
        with _silent(), closing(OverlayStorage(self._path)) as scratch:
            return dict(DataFolder(scratch, self._path).find_logs(lambda tp, error: None))

    # --- Logs ---------------------------------------------------------------------------------------------------------

    def _walk(self, image: MetadataImage | None, dry_run: DryRun) -> None:
        found = {
            name: tp
            for name in self._before.list_folder(self._path)
            if (tp := log_name(name)) is not None and self._before.is_folder(f"{self._path}/{name}")
        }
        self._total_bytes = sum(
            self._size(f"{self._path}/{name}/{file}")
            for name in found
            for file in self._before.list_folder(f"{self._path}/{name}")
            if file.endswith(".log")
        )
        outcome = DryRunOutcome(self._before, dry_run)
        recovery_points, log_starts = self._offsets(RECOVERY_POINT_FILE), self._offsets(LOG_START_FILE)
        cleaned, synced = self._offsets(CLEANER_FILE), dry_run.logs.synced
        journal_is_left = bool(self._journal_files())
        for name, tp in sorted(found.items()):
            topic = None if image is None else image.topic(tp.topic)
            config = partition_log_configs(NodeConfig(), topic)(tp.partition)
            check = LogCheck(
                self._before, f"{self._path}/{name}", name, tp, config, self._findings, outcome,
                is_clean=self._report.is_clean and not journal_is_left,
                was_compacted=cleaned.get(tp, 0) > 0,
                log_start_offset=log_starts.get(tp, 0),
                recovery_point=synced.get(tp, recovery_points.get(tp, 0)),
                now_ms=self._clock.now_ms(),
                deep=self._deep,
                progress=self._was_read,
            )  # fmt: skip
            try:
                self._report.logs.append(check.run())
            except FileNotFoundError as error:
                if not self._report.is_running:
                    raise
                self._gone(name, error)

    def _gone(self, name: str, error: OSError) -> None:
        self._findings.add(
            Severity.NOTE, Check.FOLDERS, name,
            f"the running node has removed {error.filename} meanwhile, so not all of this was looked at",
            command="check again, or stop the node first",
        )  # fmt: skip

    def _journal_files(self) -> list[str]:
        folder = f"{self._path}/journal"
        names = self._before.list_folder(folder) if self._before.is_folder(folder) else []
        return [name for name in names if name.endswith(SUFFIX)]

    def _was_read(self, path: str, more: int) -> None:
        self._done_bytes += more
        self._tell(Progress(path, self._done_bytes, self._total_bytes))

    def _tell(self, progress: Progress) -> None:
        if self._progress is not None:
            self._progress(progress)

    def _size(self, path: str) -> int:
        file = self._before.open(path)
        try:
            return file.size()
        finally:
            file.close()

    # --- Checkpoints --------------------------------------------------------------------------------------------------

    def _offsets(self, name: str) -> Mapping[TopicPartition, int]:
        try:
            return OffsetCheckpoint(self._before, f"{self._path}/{name}").read()
        except SemelError:
            return {}

    def _check_checkpoints(self, dry_run: DryRun) -> None:
        ends = {log.tp: log.end_offset for log in self._report.logs}
        for name in (RECOVERY_POINT_FILE, LOG_START_FILE, HIGH_WATERMARK_FILE, CLEANER_FILE):
            try:
                offsets = OffsetCheckpoint(self._before, f"{self._path}/{name}").read()
            except SemelError as error:
                self._findings.add(
                    Severity.WARNING, Check.CHECKPOINTS, name, error.message,
                    on_start="does without it: more of the logs is read, or compacted again",
                )  # fmt: skip
                continue
            for tp, offset in sorted(offsets.items()):
                end = ends.get(tp)
                if end is None:
                    self._findings.add(
                        Severity.NOTE,
                        Check.CHECKPOINTS,
                        name,
                        f"it names {tp}, which is not here",
                        on_start="leaves it",
                    )
                elif offset < 0 or offset > end:
                    # High watermarks are noted as they are when a flush has ended: maybe behind what it synced.
                    is_of_crash = name == HIGH_WATERMARK_FILE and offset > end and not self._report.is_clean
                    is_of_cut = name == RECOVERY_POINT_FILE and dry_run.logs.synced.get(tp, offset) < offset
                    self._findings.add(
                        Severity.NOTE if is_of_crash or is_of_cut else Severity.WARNING, Check.CHECKPOINTS, name,
                        f"it gives offset {offset} for {tp}, whose log ends at {end}", offset=offset,
                        on_start="takes what the log has",
                    )  # fmt: skip
