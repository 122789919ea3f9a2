"""The objects of a remote storage, found by their keys and read piece by piece. No database is asked: each object says
itself what it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any, Final, TypeVar

from semel.broker.inspection.file_kinds import FileKind, Place, object_place
from semel.broker.tiers.object_store import Level, ObjectMissingError, ObjectStore, ObjectStoreError, open_store
from semel.protocol.errors import UsageError
from semel.protocol.ids import TopicPartition
from semel.protocol.wording import listed

T = TypeVar("T")

_TIMEOUT_MS: Final = 30_000
_WINDOW_BYTES: Final = 4 << 20
_TOPIC_ID_CHARS: Final = 22
_TOLD_MAX: Final = 10


class RemoteObjects:
    """Reads a store for a command: each call waits for its answer. `close` at the end."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._runner = asyncio.Runner()
        self._begins = store.location if store.location.endswith("/") else f"{store.location}/"
        """What the path of each object begins with."""

    @classmethod
    def at(cls, url: str) -> RemoteObjects:
        """Return those of a remote.storage.url. Raises `ConfigError` for one that can't work."""
        return cls(open_store(url, timeout_ms=_TIMEOUT_MS, creates=False))

    def close(self) -> None:
        self._store.close()
        self._runner.close()

    def open(self, place: Place) -> RemoteFile:
        """Return an object to be read. Nothing is asked of the store yet."""
        return RemoteFile(self, self._key_of(place.path))

    def read(self, key: str, position: int, size: int) -> bytes:
        return self.ask(self._store.read(key, position, size))

    def size(self, key: str) -> int:
        return self.ask(self._store.size(key))

    def ask(self, call: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(call)

    def places(self, what: str, partition: TopicPartition | None = None) -> Iterator[Place]:
        """Yield the objects that `what` names, in order: TOPIC, TOPIC:PARTITION, a key, or what keys begin with before
        a slash.

        partition: only this one's
        Raises `UsageError` where there are none, and `ObjectStoreError` where the store can't be asked.
        """
        what = self._key_of(what)
        found = False
        for place in self._below_key(what) if "/" in what else self._of_topic(what):
            if partition is None or place.tp == partition:
                found = True
                yield place
        if not found:
            raise UsageError(self._not_there(what if partition is None else f"{what} of {partition}"))

    def _key_of(self, path: str) -> str:
        """Return the key in what a dump has printed, where it begins with the store's address."""
        return path.removeprefix(self._begins)

    def _place(self, key: str) -> Place:
        found = object_place(key)
        return Place(self._begins + key, FileKind.OBJECT, *((None, -1, -1) if found is None else found))

    def _below_key(self, key: str) -> Iterator[Place]:
        if not key.endswith("/"):
            try:
                self.size(key)
            except ObjectMissingError:
                key += "/"
            else:
                yield self._place(key)
                return
        yield from self._below(key)

    def _below(self, prefix: str) -> Iterator[Place]:
        level = self._level(prefix)
        yield from map(self._place, level.keys)
        for folder in sorted(level.folders, key=_in_order):
            yield from self._below(folder)

    def _of_topic(self, what: str) -> Iterator[Place]:
        topic, colon, number = what.partition(":")
        if colon and not number.isdecimal():
            raise UsageError(f"a partition is TOPIC:NUMBER, for example {topic or 'orders'}:0, not {what!r}")
        for folder, name in self._topic_folders():
            if name == topic:
                yield from self._below(f"{folder}{int(number)}/" if colon else folder)

    def _topic_folders(self) -> Iterator[tuple[str, str]]:
        """Yield the folder of each topic of each cluster, and the topic's name."""
        for cluster in self._level("").folders:
            for folder in self._level(cluster).folders:
                yield folder, folder[len(cluster) : -_TOPIC_ID_CHARS - 2]

    def _level(self, prefix: str) -> Level:
        try:
            return self.ask(self._store.level(prefix))
        except ObjectStoreError as error:
            raise ObjectStoreError(
                f"{error.message}. Check that --remote is the nodes' remote.storage.url, and that the credentials are "
                "set, for example AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            ) from error

    def _not_there(self, what: str) -> str:
        topics = sorted({name for _, name in self._topic_folders()})
        if not topics:
            return (
                f"{self._store.location} has no segments at all: give the nodes' remote.storage.url with all of its "
                "prefix, and without what follows it in a key"
            )
        kind = "no object with this key, and none below it" if "/" in what else "nothing of it"
        return (
            f"{what}: {self._store.location} has {kind}. It has segments of the topics "
            f"{listed(tuple(topics), most=_TOLD_MAX)}: give TOPIC, TOPIC:PARTITION, or a key that a dump of them prints"
        )


class RemoteFile:
    """An object as a file that is only read. One stretch of it is in memory: 4 MiB, or one larger batch.

    Each call raises `ObjectStoreError`; `ObjectMissingError` where there is no such object.
    """

    def __init__(self, objects: RemoteObjects, key: str) -> None:
        self._objects = objects
        self._key = key
        self._size = -1
        self._begins = 0
        self._data = b""

    def size(self) -> int:
        if self._size < 0:
            self._size = self._objects.size(self._key)
        return self._size

    def read_at(self, size: int, position: int) -> bytes:
        size = max(0, min(size, self.size() - position))
        if not self._begins <= position <= position + size <= self._begins + len(self._data):
            wanted = min(max(size, _WINDOW_BYTES), self._size)
            self._begins = min(position, self._size - wanted)
            self._data = b""
            self._data = self._objects.read(self._key, self._begins, wanted)
        at = position - self._begins
        return self._data[at : at + size]


def _in_order(folder: str) -> tuple[bool, int, str]:
    """Partitions by their numbers, and all else by its name."""
    name = folder.rstrip("/").rpartition("/")[2]
    return (not name.isdecimal(), int(name) if name.isdecimal() else 0, folder)
