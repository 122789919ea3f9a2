# cython: annotation_typing=False, boundscheck=True, wraparound=True, nonecheck=True
"""Fetch sessions (KIP-227): a client that reads many partitions names only those that changed, and is told only of
those.

A session remembers, for each of its partitions, what the client asked for and what it was last told. The epoch
numbers the requests of a session, so that a lost or repeated one is noticed. The cache is bounded by sessions and by
partitions; a full one gives up what was not used for a while, and otherwise lets a new client continue without a
session.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

from semel.protocol.errors import ErrorCode
from semel.protocol.ids import ZERO_TOPIC_ID, TopicId
from semel.protocol.int_bounds import INT32_MAX
from semel.protocol.kafka.fetch import (
    FINAL_SESSION_EPOCH,
    INITIAL_SESSION_EPOCH,
    NO_SESSION_ID,
    FetchPartition,
    FetchPartitionResponse,
    FetchRequest,
)
from semel.protocol.randomness import source
from semel.runtime.refusals import Refusals

SESSIONS_SETTING: Final = "max.incremental.fetch.session.cache.slots"
PARTITIONS_SETTING: Final = "fetch.session.max.partitions"
OF_ONE_MAX: Final = 41_000
"""Partitions of one session: as many as one request may name by default. More than that go without a session."""

_NO_ERROR: Final = ErrorCode.NONE
"""At hand for compiled code: a member of an enum costs it more than anything else that it looks up."""

PartitionKey = tuple[str | TopicId, int]


def key_of(topic: str, topic_id: TopicId, partition: int) -> PartitionKey:
    """Return what identifies a partition in a session: the topic's id where the request has ids, else its name."""
    return (topic if topic_id == ZERO_TOPIC_ID else topic_id, partition)


def next_epoch(epoch: int) -> int:
    """Return the epoch that follows: 1 after the largest, and never the two with a meaning of their own."""
    return 1 if epoch >= INT32_MAX else epoch + 1


class SessionPartition:
    """One partition of a session. -1: the client was told nothing yet, or of an error."""

    __slots__ = ("high_watermark", "log_start_offset", "request")

    def __init__(self, request: FetchPartition) -> None:
        self.request = request
        self.high_watermark = -1
        self.log_start_offset = -1

    def take(self, response: FetchPartitionResponse) -> bool:
        """Remember what the client is being told. Returns whether there is anything to tell."""
        news = (
            (response.records is not None and len(response.records) > 0)
            or response.high_watermark != self.high_watermark
            or response.log_start_offset != self.log_start_offset
            or response.error is not _NO_ERROR
            or response.diverging_epoch != -1
            or response.preferred_read_replica != -1
        )
        # After an error the next good answer is always sent, so that the client learns that it is over.
        self.high_watermark = -1 if response.error is not _NO_ERROR else response.high_watermark
        self.log_start_offset = response.log_start_offset
        return news


class FetchSession:
    """One client's session: its partitions in the order they are to be read."""

    __slots__ = ("created_ms", "epoch", "id", "last_used_ms", "owner", "partitions", "uses_topic_ids")

    def __init__(self, session_id: int, uses_topic_ids: bool, now_ms: int, owner: str) -> None:
        self.id = session_id
        self.owner = owner
        """Who began it: nobody else continues or ends it (S1)."""
        self.epoch = next_epoch(INITIAL_SESSION_EPOCH)
        self.uses_topic_ids = uses_topic_ids
        self.created_ms = now_ms
        self.last_used_ms = now_ms
        self.partitions: OrderedDict[PartitionKey, SessionPartition] = OrderedDict()

    def update(self, request: FetchRequest) -> None:
        """Take over the partitions that an incremental request adds, changes and forgets."""
        for item in request.partitions:
            key = key_of(item.topic, item.topic_id, item.partition)
            known = self.partitions.get(key)
            if known is None:
                self.partitions[key] = SessionPartition(item)
            else:
                known.request = item
        for gone in request.forgotten:
            self.partitions.pop(key_of(gone.topic, gone.topic_id, gone.partition), None)

    def take(self, responses: Sequence[FetchPartitionResponse]) -> list[FetchPartitionResponse]:
        """Remember what the client gets, and return what of it is news. Partitions that gave records go last."""
        told = []
        for response in responses:
            key = key_of(response.topic, response.topic_id, response.partition)
            known = self.partitions.get(key)
            if known is None:
                continue
            if known.take(response):
                told.append(response)
                if response.records is not None and len(response.records) > 0:
                    self.partitions.move_to_end(key)
        return told


class FetchContext:
    """What one fetch is about: the partitions to read, and the session that it belongs to, or is to begin."""

    __slots__ = ("_begins", "_epoch", "_owner", "_sessions", "_uses_topic_ids", "error", "partitions", "session")

    def __init__(
        self,
        sessions: FetchSessions,
        partitions: Sequence[FetchPartition],
        *,
        uses_topic_ids: bool = False,
        begins: bool = False,
        session: FetchSession | None = None,
        error: ErrorCode = _NO_ERROR,
        owner: str = "",
    ) -> None:
        self._owner = owner
        self._sessions = sessions
        self.partitions = partitions
        self._uses_topic_ids = uses_topic_ids
        self._begins = begins
        self.session = session
        self._epoch = 0 if session is None else session.epoch
        self.error = error

    def answer(
        self, responses: list[FetchPartitionResponse], now_ms: int
    ) -> tuple[ErrorCode, int, list[FetchPartitionResponse]]:
        """Return the error, the session id and the partitions to send."""
        if self.error is not _NO_ERROR:
            return self.error, NO_SESSION_ID, []
        session = self.session
        if session is not None:
            if session.epoch != self._epoch:
                return ErrorCode.INVALID_FETCH_SESSION_EPOCH, session.id, []
            return _NO_ERROR, session.id, session.take(responses)
        if self._begins:
            begun = self._sessions.create(self.partitions, self._uses_topic_ids, now_ms, self._owner)
            if begun is not None:
                begun.take(responses)
                return _NO_ERROR, begun.id, responses
        return _NO_ERROR, NO_SESSION_ID, responses

    def withhold(self) -> tuple[ErrorCode, int]:
        """Return the error and the session id of an answer that says nothing, because a quota is used up (KIP-219).

        What a session has to tell is told by a later answer, and none is begun.
        """
        session = self.session
        if session is None:
            return _NO_ERROR, NO_SESSION_ID
        if session.epoch != self._epoch:
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH, session.id
        return _NO_ERROR, session.id


class FetchSessions:
    """The sessions of one node, least recently used first."""

    def __init__(
        self,
        *,
        sessions_max: int,
        partitions_max: int,
        min_idle_ms: int,
        draw_id: Callable[[], int] = lambda: source().randint(1, INT32_MAX),
    ) -> None:
        self._sessions_max = sessions_max
        self._partitions_max = partitions_max
        self._min_idle_ms = min_idle_ms
        self._draw_id = draw_id
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()
        self._partition_count = 0
        self.evicted = 0
        self.refusals = Refusals()
        """Sessions that there was no room for, or that grew too large."""

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def partition_count(self) -> int:
        """Partitions of all sessions together."""
        return self._partition_count

    def open(self, request: FetchRequest, *, uses_topic_ids: bool, now_ms: int, owner: str = "") -> FetchContext:
        """Find out what a request is about, and bring its session up to date.

        owner: who asks. A session of somebody else is one that there is not
        """
        session = self._sessions.get(request.session_id)
        if session is not None and session.owner != owner:
            session = None
        if request.session_epoch in (INITIAL_SESSION_EPOCH, FINAL_SESSION_EPOCH):
            if session is not None:
                self._remove(session.id)
            begins = request.session_epoch == INITIAL_SESSION_EPOCH
            return FetchContext(self, request.partitions, uses_topic_ids=uses_topic_ids, begins=begins, owner=owner)
        if session is None:
            return FetchContext(self, (), error=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != request.session_epoch:
            return FetchContext(self, (), error=ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.uses_topic_ids != uses_topic_ids:
            return FetchContext(self, (), error=ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        before = len(session.partitions)
        session.update(request)
        self._partition_count += len(session.partitions) - before
        if not session.partitions:
            # Nothing left to follow: the client continues without a session (as in Kafka).
            self._remove(session.id)
            return FetchContext(self, ())
        if self._partition_count > self._partitions_max or len(session.partitions) > OF_ONE_MAX:
            if self._partition_count > self._partitions_max:
                self.refusals.note(PARTITIONS_SETTING)
            self._remove(session.id)
            self.evicted += 1
            return FetchContext(self, (), error=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        session.last_used_ms = now_ms
        session.epoch = next_epoch(session.epoch)
        self._sessions.move_to_end(session.id)
        return FetchContext(self, [each.request for each in session.partitions.values()], session=session)

    def create(
        self, partitions: Sequence[FetchPartition], uses_topic_ids: bool, now_ms: int, owner: str = ""
    ) -> FetchSession | None:
        """Begin a session, or return None where there is no room for one."""
        if not self._make_room(len(partitions), now_ms):
            return None
        session_id = self._draw_id()
        while session_id in self._sessions:
            session_id = self._draw_id()
        session = FetchSession(session_id, uses_topic_ids, now_ms, owner)
        for item in partitions:
            session.partitions[key_of(item.topic, item.topic_id, item.partition)] = SessionPartition(item)
        self._sessions[session_id] = session
        self._partition_count += len(session.partitions)
        return session

    def _make_room(self, wanted: int, now_ms: int) -> bool:
        """Evict what is needed: sessions idle for long, then one that is old and smaller than the new one."""
        if wanted > self._partitions_max:
            self.refusals.note(PARTITIONS_SETTING)
        if wanted == 0 or wanted > min(self._partitions_max, OF_ONE_MAX):
            return False
        while len(self._sessions) >= self._sessions_max or self._partition_count + wanted > self._partitions_max:
            oldest = next(iter(self._sessions.values()))
            if now_ms - oldest.last_used_ms >= self._min_idle_ms:
                self._remove(oldest.id)
            else:
                old = [each for each in self._sessions.values() if now_ms - each.created_ms >= self._min_idle_ms]
                smallest = min(old, key=lambda each: len(each.partitions), default=None)
                if smallest is None or len(smallest.partitions) >= wanted:
                    is_full = len(self._sessions) >= self._sessions_max
                    self.refusals.note(SESSIONS_SETTING if is_full else PARTITIONS_SETTING)
                    return False
                self._remove(smallest.id)
            self.evicted += 1
        return True

    def _remove(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._partition_count -= len(session.partitions)
