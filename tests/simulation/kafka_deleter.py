"""Somebody who writes into a topic of their own, deletes its head (KIP-107), and reads what is left.

Retention may take more of it. What was answered as deleted stays deleted over every crash, and under every leader (D1,
D3), what is left is there (D6), and readers that begin at the new start see no aborted record and miss no committed one
(L2, L3).
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

from semel.protocol.api.topics import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, IsolationLevel
from semel.protocol.errors import AbortTransactionError, ErrorCode
from semel.protocol.ids import TopicId, TopicPartition
from semel.protocol.kafka.api import ApiKey
from semel.protocol.kafka.fetch import FetchPartitionResponse
from semel.runtime.kafka_client.connection import ConnectionLostError
from simulation.kafka_actors import Transacting
from simulation.kafka_consumers import Fetcher, Values
from simulation.kafka_producers import IdempotentProducer, TransactionalProducer
from simulation.kafka_wire import RETRIED, ClusterWire, Echo, Party, Wire, code_of, learn_topic_ids
from simulation.ledger import Begins

if TYPE_CHECKING:
    from simulation.ledger import Ledger
    from simulation.world import World

HEADS: Final = TopicPartition("heads", 0)
DELETER_SHARE: Final = 0.25
"""How many worlds have somebody who deletes heads of logs."""
_DELETE_VERSION: Final = 2
_HIGH_WATERMARK: Final = -1
_ANYWHERE: Final = 1 << 62
_RETENTIONS: Final[tuple[dict[str, str], ...]] = (
    {},
    {"retention.bytes": "900"},
    {"retention.ms": "2500"},
)


def has_deleter(world: World) -> bool:
    return _chance_of(world).random() < DELETER_SHARE


def deleting_settings(world: World) -> dict[str, int]:
    """Return what the nodes of such a world have besides what is drawn."""
    return {"log_retention_check_interval_ms": 400} if has_deleter(world) else {}


def _chance_of(world: World) -> random.Random:
    return random.Random(f"deleter of {world.seed}")


class KafkaDeleter(Transacting):
    """Keeps over all of its lives what it wrote, what became of it, and what was answered as deleted."""

    transacts: ClassVar = True

    def __init__(self, world: World, ledger: Ledger, name: str, partitions: int, think_s: float) -> None:
        super().__init__(world, ledger, name, partitions, think_s)
        chance = _chance_of(world)
        chance.random()
        retention = chance.choice(_RETENTIONS)
        self.configs = {
            "segment.bytes": chance.choice(("300", "1500", "1000000")),
            "file.delete.delay.ms": chance.choice(("0", "1000")),
            **retention,
        }
        """Those of its topic, which is made before the world begins."""
        self._begins_at = ledger.begins[HEADS] = Begins(
            retention_bytes=_number(retention, "retention.bytes"), retention_ms=_number(retention, "retention.ms")
        )
        self._values: dict[int, str] = {}
        """What was acknowledged, by its offset."""
        self._outcomes: dict[str, bool] = {}
        """Whether each value's transaction committed, where that is known. One without a transaction is committed."""
        self._answered_in = -1
        """The leader epoch in which a deletion was answered last, as far as it is known: a former leader may not have
        heard of it.
        """

    @property
    def answered(self) -> int:
        """Before this offset everything was answered as deleted."""
        return self._begins_at.answered

    def acknowledged(self, topic: str, partition: int, offset: int, value: str) -> None:
        if offset >= 0:
            self._values[offset] = value
            if not value.startswith("t"):
                self._outcomes[value] = True

    async def live(self, worker: str) -> None:
        party = self.party(worker)
        wire = party.wire()
        ids = await learn_topic_ids(wire, HEADS.topic)
        producer = await self.producer(party) if self.transacts else None
        idempotent = IdempotentProducer(party, Echo(party, self.repeats), self.acknowledged, 5.0)
        await idempotent.begin()
        while not self.is_stopping:
            step = self.chance.random()
            if step < 0.4 and producer is not None:
                await self._transact(worker, producer, wire)
            elif step < 0.6:
                self._count += 1
                idempotent.sender.put(HEADS.topic, HEADS.partition, [f"{worker}-{self._count}"])
                await idempotent.settle()
            elif step < 0.8:
                await self._delete(party, wire)
            else:
                await self._look(party, wire, ids)
            await self.think(self.think_s / 4)
        while not await self._look(party, wire, ids):
            await party.pause()
        if producer is not None:
            producer.close()
        for one in (idempotent, wire):
            one.close()

    async def _transact(self, worker: str, producer: TransactionalProducer, wire: Wire) -> None:
        self._count += 1
        values = [f"t{worker}-{self._count}.{item}" for item in range(self.chance.randint(1, 4))]
        producer.begin()
        try:
            for value in values:
                await producer.send({tuple(HEADS): [[value]]})  # type: ignore[dict-item]
                if self.chance.random() < 0.15:
                    await self._delete(producer.party, wire)
                await self.think(self.pause_s / 4)
        except AbortTransactionError:
            commit = False
        else:
            commit = self.chance.random() > 0.5
        try:
            committed = await producer.end(commit)
        except AbortTransactionError:
            committed = await producer.end(False)
        self._outcomes |= dict.fromkeys(values, committed)

    # --- Deleting -----------------------------------------------------------------------------------------------------

    async def _delete(self, party: Party, wire: Wire) -> None:
        """Delete up to a record, or all; ask again where there was no answer, as an operator does.

        What is behind the last record that was acknowledged may not be committed yet, or not be there.
        """
        known = sorted(self._values)[-20:]
        beyond = known[-1] + self.chance.randint(1, 4) if known else 1
        before = self.chance.choice((_HIGH_WATERMARK, beyond, *known))
        allowed, asked = self._begins_at.latest, 0
        self._begins_at.may(_ANYWHERE if before == _HIGH_WATERMARK else before)
        while True:
            asked += 1
            try:
                answer = await self._ask(
                    wire,
                    ApiKey.DELETE_RECORDS,
                    version=_DELETE_VERSION,
                    topics=[
                        {
                            "name": HEADS.topic,
                            "partitions": [{"partition_index": HEADS.partition, "offset": before}],
                        }
                    ],
                    timeout=1_500,
                )
            except ConnectionLostError:
                await party.pause()
                continue
            (item,) = answer.topics[0].partitions
            code = code_of(item.error_code)
            if code is ErrorCode.NONE:
                break
            if code is ErrorCode.OFFSET_OUT_OF_RANGE and before == beyond:
                return
            if code not in RETRIED:
                party.wrong("refused", f"DeleteRecords before {before} of {known}: {code.name}")
                return
            wire.moved(HEADS)
            await party.pause()
        if item.low_watermark < max(before, 0):
            party.wrong("D6", f"records before {before} are deleted, and the log begins at {item.low_watermark}")
        self._begins_at.answered = max(self._begins_at.answered, item.low_watermark)
        self._answered_in = max(self._answered_in, _epoch_of(wire))
        if before == _HIGH_WATERMARK and asked == 1:  # else an earlier request may still come, and delete more
            self._begins_at.latest = max(allowed, item.low_watermark)

    async def _ask(self, wire: Wire, key: ApiKey, **values: Any) -> Any:
        """Ask the leader. Raises `ConnectionLostError` where it is not known, or does not answer."""
        leader = await _leader(wire)
        try:
            return await leader.call(key, **values)
        except ConnectionLostError:
            wire.moved(HEADS)
            raise

    # --- Reading ------------------------------------------------------------------------------------------------------

    async def _look(self, party: Party, wire: Wire, ids: dict[str, TopicId]) -> bool:
        """Read from the start to the last stable offset; return whether that went through."""
        reading = party.wire()
        try:
            return await self._look_with(party, wire, reading, ids)
        except ConnectionLostError:
            return False
        finally:
            reading.close()

    async def _look_with(self, party: Party, wire: Wire, reading: Wire, ids: dict[str, TopicId]) -> bool:
        """Raises `ConnectionLostError` where who leads is not known, or does not answer."""
        answered, answered_in = self._begins_at.answered, self._answered_in
        start = await self._listed(wire, EARLIEST_TIMESTAMP)
        epoch = _epoch_of(wire)
        stable = await self._listed(wire, LATEST_TIMESTAMP)
        if epoch < answered_in:
            wire.moved(HEADS)  # the same node may lead in a later epoch: then no request of this client's has failed
            return False
        if start < answered:
            party.wrong("D1", f"{HEADS} begins at {start}, and was answered to begin at {answered}")
        if stable < start and epoch == _epoch_of(wire):
            party.wrong("L2", f"{HEADS} begins at {start}, and is stable up to {stable}")
        fetcher = HeadFetcher(party, ids, await _leader(reading))
        # A former leader that reaches no database does not know that it is one, nor of what was deleted since.
        is_former = _epoch_of(reading) < answered_in
        if start and self.chance.random() < 0.3 and not is_former:
            # Another leader may begin before this one did, but not before what was answered.
            await self._look_below(party, fetcher, answered if wire.leaders_change else start)
        due = {
            offset: value
            for offset, value in self._values.items()
            if start <= offset < stable and self._outcomes.get(value)
        }
        found = await self._read(fetcher, start, stable)
        if found is None:
            return False
        missing = {offset: value for offset, value in due.items() if found.get(offset) != value}
        if missing:
            party.wrong("L3", f"{missing} of {HEADS} are committed, and not among {found} from {start} to {stable}")
        aborted = [value for value in found.values() if self._outcomes.get(value) is False]
        if aborted:
            party.wrong("L3", f"{aborted} of {HEADS} were aborted, and read from {start} on")
        return True

    async def _look_below(self, party: Party, fetcher: HeadFetcher, start: int) -> None:
        """What is deleted is out of range, also in the middle of a batch."""
        if not start:
            return
        fetcher.positions = {HEADS: start - 1}
        found = await fetcher.poll()
        if found or (not fetcher.failed and not fetcher.is_out_of_range):
            party.wrong("D6", f"{found} of {HEADS} was read at {start - 1}, below its start")

    async def _read(self, fetcher: HeadFetcher, start: int, end: int) -> dict[int, str] | None:
        """Return what is read of [start, end); None where that is not done, or the head was deleted meanwhile."""
        fetcher.positions = {HEADS: start}
        fetcher.is_out_of_range = False
        found: dict[int, str] = {}
        for _ in range(200):
            if fetcher.positions[HEADS] >= end:
                return found
            values = await fetcher.poll(self.chance.choice((200, 1 << 20)))
            if fetcher.is_out_of_range or (fetcher.failed and len(self.world.nodes) > 1):
                return None  # from several nodes: another one may lead
            found |= dict(values.get(HEADS, ()))
        return None

    async def _listed(self, wire: Wire, timestamp_ms: int) -> int:
        answer = await self._ask(
            wire,
            ApiKey.LIST_OFFSETS,
            replica_id=-1,
            isolation_level=IsolationLevel.READ_COMMITTED,
            topics=[
                {
                    "name": HEADS.topic,
                    "partitions": [
                        {"partition_index": HEADS.partition, "current_leader_epoch": -1, "timestamp": timestamp_ms}
                    ],
                }
            ],
            timeout=1_500,
        )
        ((item,),) = (topic.partitions for topic in answer.topics)
        code = code_of(item.error_code)
        if code is not ErrorCode.NONE:
            if code not in RETRIED:
                wire.party.wrong("refused", f"ListOffsets: {code.name}")
            wire.moved(HEADS)
            raise ConnectionLostError(f"ListOffsets: {code.name}")
        offset: int = item.offset
        return offset


def _number(configs: Mapping[str, str], name: str) -> int | None:
    return int(configs[name]) if name in configs else None


async def _leader(wire: Wire) -> Wire:
    """Return the connection to who leads the partition. Raises `ConnectionLostError` where that is not known."""
    if not isinstance(wire, ClusterWire):
        return wire
    await wire.find(HEADS)
    return wire.to(wire.led[HEADS].node)


def _epoch_of(wire: Wire) -> int:
    """Return the leader epoch of who was asked last, -1 where there is one node."""
    return wire.led[HEADS].epoch if isinstance(wire, ClusterWire) else -1


class ClusterDeleter(KafkaDeleter):
    """Of worlds without transactions."""

    transacts = False


class HeadFetcher(Fetcher):
    """Reads a log whose head goes, from one node."""

    def __init__(self, party: Party, ids: dict[str, TopicId], wire: Wire) -> None:
        super().__init__(party, ids, wire=wire, wait_ms=50)
        self.is_out_of_range = False

    async def _taken(self, tp: TopicPartition, item: FetchPartitionResponse) -> Values:
        if item.error is ErrorCode.OFFSET_OUT_OF_RANGE:
            self.is_out_of_range = True
            return []
        return await super()._taken(tp, item)
