"""Answers that were given, in the topic `_semel_rest_answers`: each is written by the transaction that it tells of.

The topic is the only memory. Each answer is a record with the digest of its key, in the partition of the key's lane; a
gateway keeps where each is, and reads the partition on whenever it takes over a lane. So every gateway knows the same
keys, after any crash, for as long as the topic keeps its records (retention.ms).
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from semel.protocol.api.topics import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, IsolationLevel
from semel.protocol.errors import AbortTransactionError, ErrorCode, FatalError, RetriableError, SemelError
from semel.protocol.ids import TopicId, TopicPartition
from semel.web.gateway import Caller
from semel.web.problems import Problem
from semel.web.rest.bounds import KEYS_KEPT_MS, KEYS_MAX, LANES, RETRY_AFTER_S

if TYPE_CHECKING:
    from semel.protocol.record_decoder import Record
    from semel.web.gateway import Gateway
    from semel.web.rest.readers import Readers

TOPIC: Final = "_semel_rest_answers"
_CONFIGS: Final = {
    "cleanup.policy": "delete",
    "retention.ms": str(KEYS_KEPT_MS),
    "segment.ms": "3600000",  # what is open is not deleted
    "compression.type": "producer",
}
_THE_GATEWAY: Final = Caller()
_POLL_S: Final = 0.5
_FORGET_EVERY: Final = 10_000
"""After how many new keys it is looked which of the old ones have gone."""
_BEGINS: Final = re.compile(rb'{"fingerprint":"([0-9a-f]{64})","status":([2-5][0-9]{2}),"body":[\[{]')
_GONE: Final = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer as it was first given. fingerprint: of the request; replayed: it is given again."""

    fingerprint: str
    status: int
    body: Any
    replayed: bool = False

    def encoded(self) -> bytes:
        stored = {"fingerprint": self.fingerprint, "status": self.status, "body": self.body}
        return json.dumps(stored, ensure_ascii=False, separators=(",", ":")).encode()


class Answers:
    """Where the answers of each lane are, as far as this gateway has read."""

    def __init__(self, gateway: Gateway, readers: Readers) -> None:
        self._gateway = gateway
        self._readers = readers
        self._offsets: list[dict[bytes, int]] = [{} for _ in range(LANES)]
        self._read_to = [0] * LANES
        self._topic_ids: list[TopicId | None] = [None] * LANES
        """Of the topic that this was read from: one of the same name that is made again has other records."""
        self._reading = [asyncio.Lock() for _ in range(LANES)]
        self._new = 0

    async def catch_up(self, lane: int) -> None:
        """Read what a lane's partition has. What transactions of others hold back is waited for, until it times out.

        The caller's transactional id has nothing open, so afterwards all of its answers are known.
        """
        with topic_may_be_gone():
            topic_id = await self._make_topic()
        partition = TopicPartition(TOPIC, lane)
        async with self._reading[lane]:
            with topic_may_be_gone():
                await self._read(lane, partition, topic_id)

    async def _read(self, lane: int, partition: TopicPartition, topic_id: TopicId) -> None:
        admin = self._gateway.own.admin()
        start = await self._start(partition)
        latest = {partition: LATEST_TIMESTAMP}
        end = (await admin.list_offsets(latest, isolation=IsolationLevel.READ_UNCOMMITTED))[partition].offset
        if topic_id != self._topic_ids[lane]:
            self._topic_ids[lane] = topic_id
            self._read_to[lane] = 0
            self._offsets[lane].clear()
        self._forget(lane, start)
        at = max(self._read_to[lane], start)
        if at >= end:
            return
        async with self._readers.at(_THE_GATEWAY, partition, at) as reader:
            while at < end:
                batch = await reader.poll(_POLL_S, 2_000)
                for record in () if batch is None else batch.records:
                    self._note(lane, record)
                at = reader.position(partition) or at
        self._read_to[lane] = at

    async def _start(self, partition: TopicPartition) -> int:
        with topic_may_be_gone():
            asked = {partition: EARLIEST_TIMESTAMP}
            return (await self._gateway.own.admin().list_offsets(asked))[partition].offset

    def _note(self, lane: int, record: Record) -> None:
        if isinstance(record.key, bytes) and _looks_like_answer(record.value):
            self._offsets[lane][record.key] = record.offset

    def _forget(self, lane: int, start: int) -> None:
        known = self._offsets[lane]
        if any(offset < start for offset in known.values()):
            self._offsets[lane] = {digest: offset for digest, offset in known.items() if offset >= start}

    async def written(self, lane: int, digest: bytes, offset: int) -> None:
        """Remember an answer whose transaction this gateway has committed."""
        self._offsets[lane][digest] = offset
        self._new += 1
        if self._new >= _FORGET_EVERY:
            self._new = 0
            await self._forget_all()

    async def check_room(self) -> None:
        """Raise `Problem` 503 where the gateway remembers as many keys as it may."""
        if sum(map(len, self._offsets)) >= KEYS_MAX:
            await self._forget_all()
            if sum(map(len, self._offsets)) >= KEYS_MAX:
                raise Problem(
                    503,
                    f"{KEYS_MAX} keys are remembered, and there is room for no more: they go after retention.ms of the "
                    f"topic {TOPIC}, which an operator may shorten",
                    error_code=50301,
                    retry_after_s=60,
                )

    async def _forget_all(self) -> None:
        partitions = {TopicPartition(TOPIC, lane): EARLIEST_TIMESTAMP for lane in range(LANES)}
        with topic_may_be_gone():
            for partition, found in (await self._gateway.own.admin().list_offsets(partitions)).items():
                self._forget(partition.partition, found.offset)

    async def find(self, lane: int, digest: bytes) -> Answer | None:
        """Return the answer that a key got; None where it has none, or the topic does not keep it any more.

        Raises `RetriableError` where the topic was deleted: the lane's next producer makes it again.
        """
        offset = self._offsets[lane].get(digest)
        if offset is None:
            return None
        partition = TopicPartition(TOPIC, lane)
        try:
            async with self._readers.at(_THE_GATEWAY, partition, offset) as reader:
                batch = None
                while batch is None:
                    batch = await reader.poll(_POLL_S, 1)
        except SemelError as error:
            if error.code in _GONE:
                self._topic_ids[lane] = None
                raise _gone(error) from error
            if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
                raise
            if offset >= await self._start(partition):  # it is another topic than the reader knew
                self._topic_ids[lane] = None
                raise _gone(error) from error
            self._offsets[lane].pop(digest, None)
            return None
        record = batch.records[0]
        answer = _decoded(record.value) if record.key == digest else None
        if answer is None:  # the topic was deleted and made again, or somebody else wrote there
            self._offsets[lane].pop(digest, None)
        return answer

    async def _make_topic(self) -> TopicId:
        """Return the id of the topic, which is made where it does not exist."""
        admin = self._gateway.own.admin()
        try:
            topic = await admin.topic(TOPIC)
        except FatalError as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            try:
                topic = await admin.create_topic(TOPIC, partitions=LANES, configs=_CONFIGS)
            except FatalError as made:
                if made.code is not ErrorCode.TOPIC_ALREADY_EXISTS:  # by another gateway
                    raise
                topic = await admin.topic(TOPIC)
        if len(topic.partitions) < LANES:
            raise FatalError(
                f"topic {TOPIC} has {len(topic.partitions)} partitions, and answers need {LANES}: "
                f"`semel topic add-partitions {TOPIC} {LANES}`"
            )
        return topic.topic_id


@contextmanager
def topic_may_be_gone() -> Iterator[None]:
    """Raise `RetriableError` where the topic of answers is not there: no word of what the request asks for."""
    try:
        yield
    except (AbortTransactionError, FatalError) as error:
        if error.code not in (*_GONE, ErrorCode.OFFSET_OUT_OF_RANGE):
            raise
        raise _gone(error) from error


def _gone(error: SemelError) -> RetriableError:
    return RetriableError(f"the topic {TOPIC} was deleted, and is made again", error.code)


def _looks_like_answer(value: object) -> bool:
    """Say whether a record may be an answer, without reading all of it."""
    return isinstance(value, bytes) and _BEGINS.match(value) is not None and value.endswith(b"}")


def _decoded(value: object) -> Answer | None:
    """Return a stored answer; None for what is none: other users may write to the topic, too, and anything."""
    if not isinstance(value, bytes) or not _looks_like_answer(value):
        return None
    try:
        stored = json.loads(value.decode())
        return Answer(stored["fingerprint"], int(stored["status"]), stored["body"], replayed=True)
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def too_busy(detail: str) -> Problem:
    """Return the refusal of a request that may be sent again with the same key."""
    return Problem(503, f"{detail}: send it again with the same key", error_code=50302, retry_after_s=RETRY_AFTER_S)
