"""Somebody who asks where partitions begin and end, and which offset is the first at a time.

What ListOffsets answers is compared with what was answered before, with what fetches are answered in between, and at
the end with the logs: the last stable offset where committed records are asked for, else the high watermark (L2).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from semel.protocol.api.topics import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, MAX_TIMESTAMP, IsolationLevel
from semel.protocol.batch_header import iter_batches
from semel.protocol.errors import ErrorCode
from semel.protocol.ids import TopicId, TopicPartition
from semel.protocol.kafka.api import ApiKey
from semel.protocol.kafka.fetch import FINAL_SESSION_EPOCH, FetchPartition, FetchRequest, FetchResponse
from semel.protocol.record_decoder import decode_records
from semel.runtime.kafka_client.connection import ConnectionLostError
from simulation.actors import INPUT, OUTPUT
from simulation.checks import batches_of
from simulation.kafka_actors import KafkaActor
from simulation.kafka_wire import REQUEST_TIMEOUT_MS, RETRIED, ClusterWire, Party, Wire, code_of, learn_topic_ids
from simulation.machine import START_MS

if TYPE_CHECKING:
    from semel.broker.logs.partition import Partition
    from simulation.ledger import Ledger
    from simulation.world import World

_FETCH_WAIT_MS: Final = 10
_LEVELS: Final = (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)


@dataclass(frozen=True, slots=True)
class _Answer:
    """What was answered. end: up to where the partition was known to be readable before that, at this level"""

    tp: TopicPartition
    timestamp_ms: int
    isolation: IsolationLevel
    end: int
    offset: int
    found_ms: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class _Logged:
    """A record as it stands in the log."""

    offset: int
    timestamp_ms: int
    leader_epoch: int


class KafkaLister(KafkaActor):
    """Asks, and keeps what it was told, over all of its lives."""

    def __init__(self, world: World, ledger: Ledger, name: str, partitions: int, think_s: float) -> None:
        super().__init__(world, ledger, name, partitions, think_s)
        self._ends: dict[tuple[TopicPartition, IsolationLevel], int] = {}
        """Up to where each partition was seen to be readable."""
        self._answers: list[_Answer] = []
        self._times: dict[TopicPartition, list[int]] = {}
        """Timestamps of records that it has seen."""

    async def live(self, worker: str) -> None:
        party = self.party(worker)
        wire = party.wire()
        ids = await learn_topic_ids(wire, INPUT, OUTPUT)
        places = [TopicPartition(topic, number) for topic in (INPUT, OUTPUT) for number in range(self.partitions)]
        while not self.is_stopping:
            tp = self.chance.choice(places)
            try:
                for _ in range(self.chance.randint(2, 6)):
                    await self._ask(party, wire, ids[tp.topic], tp)
            except ConnectionLostError:
                wire.moved(tp)
                await party.pause()
            await self.think(self.think_s / 4)
        wire.close()

    async def _ask(self, party: Party, wire: Wire, topic_id: TopicId, tp: TopicPartition) -> None:
        """Ask one thing. Raises `ConnectionLostError` where the leader is not found, or has no answer."""
        leader, epoch = wire, -1
        if isinstance(wire, ClusterWire):
            await wire.find(tp)
            leader, epoch = wire.to(wire.led[tp].node), wire.led[tp].epoch
        isolation = self.chance.choice(_LEVELS)
        what = self.chance.choice(("latest", "latest", "fetch", "time", "time", "earliest", "max"))
        if what == "latest":
            await self._list(party, leader, tp, epoch, isolation, LATEST_TIMESTAMP)
        elif what == "fetch":
            await self._fetch(party, leader, topic_id, tp, epoch)
        elif what == "time":
            moment_ms = self._moment(tp)
            found = await self._list(party, leader, tp, epoch, isolation, moment_ms)
            end = await self._list(party, leader, tp, epoch, isolation, LATEST_TIMESTAMP)
            if found >= end:
                self._wrong("L2", tp, f"{found} was found for {moment_ms} ms, and {isolation.name} ends at {end}")
        else:
            special = EARLIEST_TIMESTAMP if what == "earliest" else MAX_TIMESTAMP
            await self._list(party, leader, tp, epoch, isolation, special)

    def _moment(self, tp: TopicPartition) -> int:
        """Return a time to ask for: of a record that is known, or any."""
        known = self._times.get(tp)
        if known and self.chance.random() < 0.6:
            return self.chance.choice(known) + self.chance.choice((0, 0, 0, 1))
        ago_s = self.chance.choice((0.3, 2.0, 40.0)) * self.chance.random()
        return START_MS + int((self.world.scheduler.now - ago_s) * 1000)

    async def _list(
        self, party: Party, leader: Wire, tp: TopicPartition, epoch: int, isolation: IsolationLevel, timestamp_ms: int
    ) -> int:
        before = self._ends.get((tp, isolation), 0)
        response = await leader.call(
            ApiKey.LIST_OFFSETS,
            replica_id=-1,
            isolation_level=isolation,
            topics=[
                {
                    "name": tp.topic,
                    "partitions": [
                        {"partition_index": tp.partition, "current_leader_epoch": epoch, "timestamp": timestamp_ms}
                    ],
                }
            ],
            timeout=REQUEST_TIMEOUT_MS,
        )
        ((item,),) = (topic.partitions for topic in response.topics)
        self._expect(party, "ListOffsets", code_of(item.error_code))
        answer = _Answer(tp, timestamp_ms, isolation, before, item.offset, item.timestamp, item.leader_epoch)
        self._answers.append(answer)
        if answer.found_ms >= 0:
            self._times.setdefault(tp, []).append(answer.found_ms)
        if timestamp_ms == LATEST_TIMESTAMP:
            self._seen(tp, isolation, before, item.offset, "ListOffsets")
            if epoch >= 0 and item.leader_epoch != epoch:
                self._wrong("R7", tp, f"the leader of epoch {epoch} says that it leads {item.leader_epoch}")
        return answer.offset

    def _expect(self, party: Party, what: str, code: ErrorCode) -> None:
        if code is ErrorCode.NONE:
            return
        if code not in RETRIED:
            party.wrong("refused", f"{what}: {code.name}")
        raise ConnectionLostError(f"{what}: {code.name}")

    async def _fetch(self, party: Party, leader: Wire, topic_id: TopicId, tp: TopicPartition, epoch: int) -> None:
        ends = [self._ends.get((tp, level), 0) for level in _LEVELS]
        version = party.dialect.versions[ApiKey.FETCH]
        request = FetchRequest(
            [FetchPartition(tp.topic, topic_id, tp.partition, self.chance.randint(0, ends[0]), 1, epoch)],
            _FETCH_WAIT_MS,
            isolation=IsolationLevel.READ_COMMITTED,
            session_id=0,
            session_epoch=FINAL_SESSION_EPOCH,
        )
        connection = await leader.opened()
        await connection.wait_room()
        body = await connection.request(ApiKey.FETCH, version, (request.build(version),), timeout_ms=REQUEST_TIMEOUT_MS)
        response = FetchResponse.parse(bytes(body), version)
        self._expect(party, "Fetch", response.error)
        (item,) = response.partitions
        self._expect(party, "Fetch", item.error)
        if epoch >= 0 and item.high_watermark < max(ends):
            return  # one that has just begun to lead does not know yet how far it is committed
        for level, before, end in zip(_LEVELS, ends, (item.last_stable_offset, item.high_watermark), strict=True):
            self._seen(tp, level, before, end, "Fetch")
        if item.records is not None and len(item.records):
            times = [header.max_timestamp_ms for header in iter_batches(bytes(item.records))]  # type: ignore[arg-type]
            self._times.setdefault(tp, []).extend(times)

    def _seen(self, tp: TopicPartition, isolation: IsolationLevel, before: int, end: int, what: str) -> None:
        """Nothing that was readable once is unreadable later, and what is stable is below the high watermark."""
        if end < before:
            self._wrong("L2", tp, f"{isolation.name} ended at {before}, and then at {end} ({what})")
        self._ends[tp, isolation] = max(before, end, self._ends.get((tp, isolation), 0))

    def judge(self, logs: Iterable[Partition]) -> None:
        """Compare the answers with the logs, once nothing moves."""
        for log in logs:
            records = [
                _Logged(record.offset, record.timestamp_ms, header.leader_epoch)
                for header, data in batches_of(log, 0, log.high_watermark)
                for record in decode_records(data, header.position)
            ]
            for answer in self._answers:
                if answer.tp == log.tp and (trouble := _trouble(answer, records, log.high_watermark)):
                    self._wrong("list", log.tp, f"{trouble}: {answer}")

    def _wrong(self, kind: str, tp: TopicPartition, detail: str) -> None:
        self.ledger.wrong(kind, f"{self.name}: {tp}: {detail}")


def _trouble(answer: _Answer, records: list[_Logged], end: int) -> str:
    """Return what is wrong with an answer, "" where nothing is. `records` are those of the whole log, up to `end`."""
    at = {record.offset: record for record in records}
    if answer.timestamp_ms == LATEST_TIMESTAMP:
        last = max((record.leader_epoch for record in records if record.offset < answer.offset), default=-1)
        return f"it ends at {end}, and {last} was written" if answer.offset > end or answer.leader_epoch < last else ""
    if answer.timestamp_ms == EARLIEST_TIMESTAMP:
        first = records[0].leader_epoch if answer.end and records else answer.leader_epoch
        return f"it begins at 0 of epoch {first}" if (answer.offset, answer.leader_epoch) != (0, first) else ""
    readable = [record for record in records if record.offset < answer.end]
    if answer.timestamp_ms == MAX_TIMESTAMP:
        expected = at.get(answer.offset)
        later = [one for one in readable if (one.timestamp_ms, -one.offset) > (answer.found_ms, -answer.offset)]
        if answer.offset < 0:
            return ""  # a later one may have been there that was not readable yet
    else:
        expected = next((record for record in records if record.timestamp_ms >= answer.timestamp_ms), None)
        later = []
        if answer.offset < 0:
            return f"{expected} was readable" if expected in readable else ""
    if expected is None or later:
        return f"{expected} is there, and {later[:1]}"
    is_right = (expected.offset, expected.timestamp_ms, expected.leader_epoch) == (
        answer.offset,
        answer.found_ms,
        answer.leader_epoch,
    )
    return "" if is_right else f"it is {expected}"
