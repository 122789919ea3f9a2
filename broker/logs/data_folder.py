"""A node's data folder: whose it is, what is in it, and the small files that Kafka's tools expect there.

meta.properties  .lock  .kafka_cleanshutdown  recovery-point-offset-checkpoint  log-start-offset-checkpoint
replication-offset-checkpoint  cleaner-offset-checkpoint  known-partitions  metadata-position  last-recovery.json
recovery-to-report.json  runs  <topic>-<n>/
<topic>-<n>.<id>-delete/  <topic>-<n>.<id>-stray/  journal/  kept/
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, Literal

from semel.broker.log.checkpoints import OffsetCheckpoint
from semel.broker.log.producer_snapshot import SNAPSHOT_SUFFIX
from semel.broker.log.segment import LOG_SUFFIX, segment_path
from semel.broker.logs.known_partitions import KNOWN_FILE, KnownPartitions
from semel.protocol.errors import ErrorCode, FatalError, SemelError
from semel.protocol.ids import TopicId, TopicPartition, format_topic_id, new_topic_id, parse_topic_id
from semel.protocol.randomness import new_token
from semel.runtime.storage import Storage, StorageLock, make_lasting_folder, read_whole, write_whole

_log = logging.getLogger("semel.logs")

LOCK_FILE: Final = ".lock"
NODE_LOCK_FILE: Final = ".semel.lock"
"""Locked by the whole node, from before its metadata is opened."""
CLEAN_FILE: Final = ".kafka_cleanshutdown"
OPENING_FILE: Final = ".semel_opening"
"""Says that a start after a clean stop has not noted yet what it found."""
META_FILE: Final = "meta.properties"
RECOVERY_POINT_FILE: Final = "recovery-point-offset-checkpoint"
LOG_START_FILE: Final = "log-start-offset-checkpoint"
HIGH_WATERMARK_FILE: Final = "replication-offset-checkpoint"
CLEANER_FILE: Final = "cleaner-offset-checkpoint"
PARTITION_FILE: Final = "partition.metadata"
JOURNAL_FOLDER: Final = "journal"

_LOG_FOLDER: Final = re.compile(r"(?P<topic>[a-zA-Z0-9._-]{1,249})-(?P<partition>0|[1-9][0-9]{0,9})")
_GOING_FOLDER: Final = re.compile(r"\S+\.[0-9a-f]{32}-(?P<why>delete|future|stray)")
_UNNAMED_FILE: Final = PARTITION_FILE + ".tmp"
_FIRST_LOG_FILE: Final = segment_path("", 0, LOG_SUFFIX)[1:]
_NAME_BYTES_MAX: Final = 255
_SMALL_FILE_BYTES_MAX: Final = 64 << 10


def number_in(storage: Storage, path: str) -> int | None:
    """Return the number of the node that a meta.properties names; None where there is none, or it says nothing."""
    if not storage.exists(path):
        return None
    lines = read_whole(storage, path, size_bytes_max=_SMALL_FILE_BYTES_MAX).decode(errors="replace").splitlines()
    found = next((line.partition("=")[2].strip() for line in lines if line.startswith("node.id=")), "")
    return int(found) if found.isdecimal() else None


class DataFolder:
    """The folder of one node. `take` it before anything else is done with it."""

    __slots__ = (
        "_lock",
        "_storage",
        "clean_offsets",
        "cluster_id",
        "directory_id",
        "held",
        "high_watermarks",
        "known",
        "log_starts",
        "path",
        "recovery_points",
    )

    def __init__(self, storage: Storage, path: str) -> None:
        self.path = path.rstrip("/") or "/"
        self.cluster_id = ""
        self.directory_id = ""
        """The folder's own: another one in its place is found out by it (KIP-858)."""
        self._storage = storage
        self._lock: StorageLock | None = None
        self.held: set[TopicPartition] = set()
        """Partitions that are not open: what the checkpoints have of them stays."""
        self.recovery_points = PartitionOffsets(storage, self.file(RECOVERY_POINT_FILE), self.held)
        self.log_starts = PartitionOffsets(storage, self.file(LOG_START_FILE), self.held, with_zeros=True)
        self.high_watermarks = PartitionOffsets(storage, self.file(HIGH_WATERMARK_FILE), self.held)
        self.clean_offsets = PartitionOffsets(storage, self.file(CLEANER_FILE), self.held)
        self.known = KnownPartitions(storage, self.file(KNOWN_FILE))

    def file(self, name: str) -> str:
        """Return the path of something in the folder."""
        return f"{self.path}/{name}"

    def log_folder(self, tp: TopicPartition) -> str:
        return f"{self.path}/{tp}"

    # --- Whose it is --------------------------------------------------------------------------------------------------

    def take(self, node_id: int, cluster_id: str | None) -> None:
        """Make the folder where it is missing, lock it, and check that it is this node's.

        A `cluster_id` of None takes the one that is there, or makes a new one. Raises `FatalError` if another process
        holds the folder, or it belongs to another node or cluster.
        """
        make_lasting_folder(self._storage, self.path)
        try:
            self._lock = self._storage.lock(self.file(LOCK_FILE))
        except BlockingIOError as error:
            raise FatalError(
                f"the data directory {self.path} is in use: {error.strerror}. Stop that process, or give this node "
                "another directory.",
                ErrorCode.KAFKA_STORAGE_ERROR,
            ) from error
        try:
            self._check_owner(node_id, cluster_id)
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Let other processes have the folder."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _check_owner(self, node_id: int, cluster_id: str | None) -> None:
        """Read or write meta.properties (Kafka's version 1)."""
        path = self.file(META_FILE)
        if not self._storage.exists(path):
            self.cluster_id = cluster_id or format_topic_id(new_topic_id())
            self._write_owner(path, node_id)
            return
        found = self._read_pairs(path, "=")
        if not found.get("cluster.id") or not found.get("node.id"):
            raise FatalError(
                f"{path} is damaged: it does not say cluster.id and node.id. If the directory is this node's, remove "
                "the file, and it is written again; what is in the directory stays.",
                ErrorCode.KAFKA_STORAGE_ERROR,
            )
        self.cluster_id = found["cluster.id"]
        if cluster_id is not None and self.cluster_id != cluster_id:
            raise FatalError(
                f"the data directory {self.path} belongs to the cluster {self.cluster_id}, not to {cluster_id}. "
                "Give this node its own directory.",
                ErrorCode.INCONSISTENT_CLUSTER_ID,
            )
        if found.get("node.id") != str(node_id):
            raise FatalError(
                f"the data directory {self.path} belongs to node {found.get('node.id')}, not to node {node_id}. "
                "Give this node its own directory, or its former id.",
                ErrorCode.KAFKA_STORAGE_ERROR,
            )
        self.directory_id = found.get("directory.id", "")
        if not self.directory_id:
            self._write_owner(path, node_id)

    def _write_owner(self, path: str, node_id: int) -> None:
        """Write whose folder it is, with a new id of its own."""
        self.directory_id = format_topic_id(new_topic_id())
        lines = (
            "version=1",
            f"cluster.id={self.cluster_id}",
            f"node.id={node_id}",
            f"directory.id={self.directory_id}",
        )
        write_whole(self._storage, path, ("\n".join(lines) + "\n").encode("ascii"))

    def _read_pairs(self, path: str, separator: str) -> dict[str, str]:
        text = read_whole(self._storage, path, size_bytes_max=_SMALL_FILE_BYTES_MAX).decode("utf-8", "replace")
        pairs = (line.split(separator, 1) for line in text.splitlines() if separator in line and line[0] != "#")
        return {key.strip(): value.strip() for key, value in pairs}

    # --- Clean stops --------------------------------------------------------------------------------------------------

    def mark_clean(self) -> None:
        """Say that everything is on the disk and closed, in Kafka's form.

        The broker epoch in it is for registering with a controller (KIP-966); without one it is -1.
        """
        content = json.dumps({"version": 0, "brokerEpoch": -1})
        write_whole(self._storage, self.file(CLEAN_FILE), content.encode("ascii"))

    def take_clean_mark(self) -> bool:
        """Return whether the last stop was clean, and forget it: from now on the logs are what recovery finds."""
        path = self.file(CLEAN_FILE)
        if not self._storage.exists(path):
            return False
        self._storage.rename(path, self.file(OPENING_FILE))
        self._storage.sync_folder(self.path)
        return True

    @property
    def is_opening(self) -> bool:
        """Whether nothing was written since a clean stop but what starts have repaired: none came to `opened`."""
        return self._storage.exists(self.file(OPENING_FILE))

    def opened(self) -> None:
        """Take note that what this start found is noted."""
        if self.is_opening:
            self._storage.remove(self.file(OPENING_FILE))
            self._storage.sync_folder(self.path)

    # --- Logs' folders ------------------------------------------------------------------------------------------------

    def find_logs(
        self, on_error: Callable[[TopicPartition, SemelError | OSError], None] | None = None
    ) -> Iterator[tuple[TopicPartition, TopicId]]:
        """Yield the partitions that have a folder here. What is no log is named in the warnings and left alone.

        `on_error` is told of those of which it can't be said whose they are; without it, that is raised.
        """
        for name in self._storage.list_folder(self.path):
            match = _LOG_FOLDER.fullmatch(name)
            if match is not None:
                tp = TopicPartition(match["topic"], int(match["partition"]))
                try:
                    topic_id = self._read_topic_id(self.file(name))
                except (SemelError, OSError) as error:
                    if on_error is None:
                        raise
                    on_error(tp, error)
                    continue
                if topic_id is not None:
                    yield tp, topic_id
            elif (going := _GOING_FOLDER.fullmatch(name)) is not None and going["why"] != "delete":
                _log.warning("the directory %s is a log that was set aside; it is not opened", self.file(name))

    def find_deleted(self) -> list[str]:
        """Return the paths of the folders that a crash kept from being deleted."""
        names = self._storage.list_folder(self.path)
        found = ((name, _GOING_FOLDER.fullmatch(name)) for name in names)
        return [self.file(name) for name, match in found if match is not None and match["why"] == "delete"]

    def has_log_name(self, tp: TopicPartition) -> bool:
        """Whether there is anything by the name of a log's directory."""
        return self._storage.exists(self.log_folder(tp))

    def read_topic_id(self, tp: TopicPartition) -> TopicId:
        """Return the topic id that a log's folder names. Raises `SemelError` and `OSError`."""
        found = self._read_topic_id(self.log_folder(tp))
        if found is None:
            raise FatalError(f"{self.log_folder(tp)} is no log's directory", ErrorCode.KAFKA_STORAGE_ERROR)
        return found

    def _read_topic_id(self, folder: str) -> TopicId | None:
        """Return the topic id in a log's folder, or None, with a warning, where it is no whole folder of a log."""
        try:
            names = self._storage.list_folder(folder)
        except NotADirectoryError:
            _log.warning("%s has the name of a log's directory and is a file; it is left alone", folder)
            return None
        path = f"{folder}/{PARTITION_FILE}"
        if PARTITION_FILE not in names:
            if self._is_half_made(folder, names):
                # The crash came while the partition was being made: nobody was told that it exists.
                self._storage.remove_tree(folder)
            else:
                _log.warning("%s has no %s, so its topic is not known; it is left alone", folder, PARTITION_FILE)
            return None
        try:
            found = self._read_pairs(path, ":")
            if found.get("version") != "0":
                raise ValueError("its version is not 0")
            return parse_topic_id(found.get("topic_id", ""))
        except ValueError as error:
            raise FatalError(
                f"{path} is damaged: {error}. Rewrite it as 'version: 0' and 'topic_id: <id>', with the id that the "
                "topic's other partitions have.",
                ErrorCode.KAFKA_STORAGE_ERROR,
            ) from error

    def _is_half_made(self, folder: str, names: Collection[str], *, had_name: bool = False) -> bool:
        """Say whether nothing is in a log's folder but what its making puts there; a crash keeps it in any order.

        had_name: whose log it is may have been written already. Else a log that begins behind offset 0 is taken for one
            that is being made only by the file that gets that name last: it tells where its partition continues
        """
        left = set(names) - {_UNNAMED_FILE}
        if had_name or _UNNAMED_FILE in names:
            left = {name for name in left if not name.endswith(SNAPSHOT_SUFFIX)}
            is_first = len(left) == 1 and next(iter(left)).endswith(LOG_SUFFIX)
        else:
            is_first = left == {_FIRST_LOG_FILE}
        return not left or (is_first and self._is_empty(f"{folder}/{next(iter(left))}"))

    def _is_empty(self, path: str) -> bool:
        file = self._storage.open(path)
        try:
            return file.size() == 0
        finally:
            file.close()

    def make_log_folder(
        self, tp: TopicPartition, topic_id: TopicId, *, start: int | None = None, producers: bytes = b""
    ) -> str:
        """Make the folder of one new log, as `make_log_folders` does, and return its path. Raises what it returns.

        start: where the log begins, which is noted before there is a log
        producers: the snapshot of who had written before that; there is no log without it
        """
        for error in self.make_log_folders([(tp, topic_id)], start=start, producers=producers).values():
            raise error
        return self.log_folder(tp)

    def make_log_folders(
        self,
        wanted: Sequence[tuple[TopicPartition, TopicId]],
        *,
        start: int | None = None,
        producers: bytes = b"",
    ) -> dict[TopicPartition, SemelError | OSError]:
        """Make the folders of new logs, durably, with their first, empty segments. Returns those that failed, and why.

        In any thread. Each step is done for all before the next, because a file system syncs many files that were
        just made for little more than the price of one. The names must be there before the journal has entries for the
        logs: without a folder they would be skipped.
        """
        failures: dict[TopicPartition, SemelError | OSError] = {}
        left = dict(wanted)
        steps = (
            self._check_unused,
            self._write_topic_id,
            self._sync_topic_id,
            partial(self._make_first_files, start=start or 0, producers=producers),
            self._name,
            self._sync,
        )
        try:
            if start is not None:
                for tp in left:  # before that is forgotten which tells how far a log had come that is gone
                    self.log_starts.note(tp, start)
            for offsets in (self.recovery_points, self.high_watermarks, self.log_starts, self.clean_offsets):
                if offsets is not self.log_starts or start is None:
                    offsets.forget(left)
            for step in steps:
                for tp, topic_id in list(left.items()):
                    try:
                        step(self.log_folder(tp), topic_id)
                    except (SemelError, OSError) as error:
                        failures[tp] = error
                        del left[tp]
                        if step != self._check_unused:
                            self._remove_half_made(tp)
            if left:
                self._storage.sync_folder(self.path)
                self.known.add((topic_id, tp.partition) for tp, topic_id in left.items())
        except OSError as error:
            failures.update(dict.fromkeys(left, error))
            for tp in left:
                self._remove_half_made(tp)
        return failures

    def _check_unused(self, folder: str, topic_id: TopicId) -> None:
        names = self._storage.list_folder(folder) if self._storage.exists(folder) else []
        if self._is_half_made(folder, set(names) - {PARTITION_FILE}, had_name=PARTITION_FILE in names) and (
            PARTITION_FILE not in names or self._read_topic_id(folder) == topic_id
        ):
            if names:
                self._storage.remove_tree(folder)  # of an attempt that failed, and could not be undone
            return
        if PARTITION_FILE not in names and any(name.endswith(LOG_SUFFIX) for name in names):
            raise FatalError(
                f"{folder} is there and was not opened as a log, because it has no {PARTITION_FILE}. If it is this "
                f"topic's, rewrite that as 'version: 0' and 'topic_id: {format_topic_id(topic_id)}', two lines, and "
                "start the node again.",
                ErrorCode.KAFKA_STORAGE_ERROR,
            )
        raise FatalError(
            f"{folder} is there and was not opened as a log; see the warnings at the start. Move it away.",
            ErrorCode.KAFKA_STORAGE_ERROR,
        )

    def _write_topic_id(self, folder: str, topic_id: TopicId) -> None:
        self._storage.make_folder(folder)
        file = self._storage.open(f"{folder}/{_UNNAMED_FILE}", create=True)
        try:
            file.append([f"version: 0\ntopic_id: {format_topic_id(topic_id)}\n".encode("ascii")])
        finally:
            file.close()

    def _sync_topic_id(self, folder: str, _: TopicId) -> None:
        file = self._storage.open(f"{folder}/{_UNNAMED_FILE}")
        try:
            file.sync()
        finally:
            file.close()

    def _make_first_files(self, folder: str, _: TopicId, *, start: int, producers: bytes) -> None:
        if start or producers:
            self._storage.sync_folder(folder)  # what says that the log is being made outlives what is made
        self._storage.open(segment_path(folder, start, LOG_SUFFIX), create=True).close()
        if producers:
            file = self._storage.open(segment_path(folder, start, SNAPSHOT_SUFFIX), create=True)
            try:
                file.append([producers])
                file.sync()
            finally:
                file.close()
        if start or producers:
            self._storage.sync_folder(folder)  # what says whose log it is does not outlive what is in it

    def _name(self, folder: str, _: TopicId) -> None:
        self._storage.rename(f"{folder}/{_UNNAMED_FILE}", f"{folder}/{PARTITION_FILE}")

    def _sync(self, folder: str, _: TopicId) -> None:
        self._storage.sync_folder(folder)

    def _remove_half_made(self, tp: TopicPartition) -> None:
        with contextlib.suppress(OSError):
            self._storage.remove_tree(self.log_folder(tp))

    def drop_log_folder(self, tp: TopicPartition, why: Literal["delete", "stray"] = "delete") -> str:
        """Rename a log's folder, durably, to what Kafka names one to delete, or one that is nobody's; return that path.

        So a crash in the middle of the deletion never leaves half of a log under its own name.
        """
        suffix = f"-{tp.partition}.{new_token(16)}-{why}"
        target = self.file(tp.topic[: _NAME_BYTES_MAX - len(suffix)] + suffix)
        self._storage.rename(self.log_folder(tp), target)
        self._storage.sync_folder(self.path)
        return target


class PartitionOffsets:
    """One of Kafka's checkpoint files, kept from taking a topic for an earlier one of the same name.

    The files name partitions by topic, not by topic id. An offset that outlived its partition would be believed for the
    next one of that name: its recovery point would hide a torn tail, its start offset would delete records.
    """

    __slots__ = ("_checkpoint", "_held", "_least", "_lock", "_written")

    def __init__(
        self, storage: Storage, path: str, held: Collection[TopicPartition] = (), *, with_zeros: bool = False
    ) -> None:
        """held: partitions whose offsets stay as they are while `write` has none for them

        with_zeros: keep offsets of 0 too, since 0 says something else than no entry
        """
        self._least = 0 if with_zeros else 1
        self._checkpoint = OffsetCheckpoint(storage, path)
        self._held = held
        self._lock = threading.Lock()
        self._written: dict[TopicPartition, int] = {}

    def read(self) -> Mapping[TopicPartition, int]:
        """Read the file; a damaged one counts as empty, with a warning, because the offsets only save work."""
        try:
            self._written = self._checkpoint.read()
        except SemelError as error:
            _log.warning("a checkpoint is not used: %s", error)
            self._written = {}
        return self._written

    def get(self, tp: TopicPartition) -> int:
        """Return what is durably in the file for a partition, or 0."""
        return self._written.get(tp, 0)

    def write(
        self,
        offsets: Mapping[TopicPartition, tuple[TopicId, int]],
        is_current: Callable[[TopicPartition, TopicId], bool] | None = None,
        at_most: Callable[[TopicPartition], int] | None = None,
    ) -> None:
        """Replace the file, leaving out what `is_current` denies; in any thread. Raises `OSError`.

        at_most: what an offset has become meanwhile, where that is less
        """
        with self._lock:
            now = {
                tp: offset if at_most is None else min(offset, at_most(tp))
                for tp, (topic_id, offset) in offsets.items()
                if is_current is None or is_current(tp, topic_id)
            }
            found = {tp: offset for tp, offset in now.items() if offset >= self._least}
            for tp in tuple(self._held):
                if tp in self._written:
                    found.setdefault(tp, self._written[tp])
            if found != self._written:
                self._checkpoint.write(found)
                self._written = found

    def all(self) -> Mapping[TopicPartition, int]:
        """Return all that is durably in the file."""
        return self._written

    def note(self, tp: TopicPartition, offset: int) -> None:
        """Durably put one partition's offset into the file. Raises `OSError`."""
        with self._lock:
            left = {**self._written, tp: offset}
            if offset >= self._least and left != self._written:
                self._checkpoint.write(left)
                self._written = left

    def lower(self, tp: TopicPartition, offset: int) -> None:
        """Durably put one partition's offset down to `offset`, where it is above. Raises `OSError`."""
        with self._lock:
            if self._written.get(tp, 0) > offset:
                left = {**self._written, tp: offset}
                if offset < self._least:
                    del left[tp]
                self._checkpoint.write(left)
                self._written = left

    def forget(self, gone: Iterable[TopicPartition]) -> None:
        """Durably take out partitions that are gone, before others get their names. Raises `OSError`."""
        with self._lock:
            left = dict(self._written)
            for tp in gone:
                left.pop(tp, None)
            if len(left) < len(self._written):
                self._checkpoint.write(left)
                self._written = left
