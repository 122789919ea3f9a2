"""Somebody who moves groups without members: in transactions, without, and in between, and asks where they stand.

It knows what each answer may be: the last record in the log counts, whenever its marker comes (O1), and nobody who asks
for a stable offset gets one that a transaction is about to replace (O2).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Any, Final

from semel.protocol.errors import AbortTransactionError, ErrorCode
from semel.protocol.kafka.api import ApiKey
from semel.runtime.kafka_client.connection import ConnectionLostError
from simulation.actors import INPUT
from simulation.kafka_actors import KafkaActor
from simulation.kafka_producers import NotCommittedError, Place, TransactionalProducer, ask
from simulation.kafka_wire import RETRIED, Echo, Party, Wire, code_of

if TYPE_CHECKING:
    from simulation.ledger import Ledger
    from simulation.world import World

NOTHING: Final = -1
UNSTABLE: Final = -2
"""What stands in the place of an offset that is pending, where a stable one was asked for."""
_DELETE_VERSION: Final = 0
_STEPS: Final = ("in transaction", "in transaction", "in transaction", "plain", "plain", "ask", "ask", "end", "delete")

_Record = tuple[int, int]
"""The place of an offset's record in the order of what was written, and the offset."""
_Ends = dict[str, bool | None]
"""For each transaction whether its marker has come: True for a commit, False for an abort, None where it has not."""


@dataclass(slots=True, eq=False)
class Standing:
    """What is known of where one group stands.

    doubtful: whether the order of what was written is not known any more, because an answer was lost
    """

    group: str
    committed: dict[int, _Record] = field(default_factory=dict)
    """Of each partition."""
    pending: dict[str, dict[int, _Record]] = field(default_factory=dict)
    """Of each transaction, by partition."""
    outcomes: dict[str, bool] = field(default_factory=dict)
    """How transactions end whose markers may have come or not. Those that are not in it are open."""
    doubtful: bool = False

    def resolved(self, transaction: str, is_committed: bool) -> None:
        """The marker of a transaction has come."""
        self.outcomes.pop(transaction, None)
        for partition, record in self.pending.pop(transaction, {}).items():
            if is_committed:
                self.committed[partition] = max(record, self.committed.get(partition, record))

    def deleted(self, partition: int) -> None:
        for places in (self.committed, *self.pending.values()):
            places.pop(partition, None)

    def answers(self, partition: int, ends: _Ends, *, stable: bool) -> int:
        """Return what is answered of a partition where these markers have come."""
        held = {name: places[partition] for name, places in self.pending.items() if partition in places}
        if stable and any(ends[name] is None for name in held):
            return UNSTABLE
        records = [record for name, record in held.items() if ends[name]]
        if partition in self.committed:
            records.append(self.committed[partition])
        return max(records)[1] if records else NOTHING

    def possible(self, may_have_ended: Callable[[str], bool]) -> Iterator[_Ends]:
        """Yield how far the transactions may have come."""
        names = list(self.pending)
        options: list[list[bool | None]] = []
        for name in names:
            ways = {self.outcomes[name]} if name in self.outcomes else set()
            options.append([None, *sorted(ways | ({False} if may_have_ended(name) else set()))])
        for ends in product(*options):
            yield dict(zip(names, ends, strict=True))

    def take(self, found: dict[int, int], *, stable: bool, may_have_ended: Callable[[str], bool]) -> str:
        """Take in an answer; return what is wrong with it, "" where nothing is."""
        if self.doubtful:
            return ""
        possible = list(self.possible(may_have_ended))
        fitting = [
            ends
            for ends in possible
            if all(self.answers(partition, ends, stable=stable) == offset for partition, offset in found.items())
        ]
        if not fitting:
            return f"{found} is answered; {self.committed} is committed, {self.pending} pending, {self.outcomes} ended"
        for name in list(self.pending):
            ways = {ends[name] for ends in fitting}
            if len(ways) == 1 and (way := ways.pop()) is not None:
                self.resolved(name, way)  # what was seen once stays
        return ""


class KafkaMover(KafkaActor):
    """Moves groups of its own, each for a while, with two producers in transactions, and without."""

    def __init__(self, world: World, ledger: Ledger, name: str, partitions: int, think_s: float) -> None:
        super().__init__(world, ledger, name, partitions, think_s)
        self._pause_s = self.chance.choice((0.05, 0.5, 2.0))
        """How long it thinks about each step, at most."""
        self._producers = 0
        self._groups = 0
        self._offset = 0

    async def live(self, worker: str) -> None:
        party = self.party(worker)
        life = _Mover(self, party)
        while not self.is_stopping:
            await life.move(self._pause_s)
            await self.think(self.think_s / 2)
        life.close()

    def next_producer(self) -> str:
        """Each has a name of its own: nobody takes its place, so only its timeout ends what it has open."""
        self._producers += 1
        return f"{self.name}/{self._producers}"

    def next_group(self) -> str:
        self._groups += 1
        return f"{self.name}-{self._groups}"

    def next_offset(self) -> int:
        self._offset += 1
        return self._offset


class _Mover:
    """One life of a mover."""

    def __init__(self, mover: KafkaMover, party: Party) -> None:
        self._mover = mover
        self._party = party
        self._chance = party.chance
        self._wire: Wire = party.wire()
        self._producers: dict[str, TransactionalProducer] = {}
        self._open: list[str] = []
        """Who has a transaction open."""
        self._standings: list[Standing] = []
        self._record = 0

    def close(self) -> None:
        for one in (self._wire, *self._producers.values()):
            one.close()

    async def move(self, pause_s: float) -> None:
        """Move one group or two for a while, until nothing of them is open any more."""
        await self._renew_producers()
        self._standings = [Standing(self._mover.next_group()) for _ in range(self._chance.choice((1, 2)))]
        for _ in range(self._chance.randint(4, 12)):
            await self._step()
            await self._mover.think(pause_s)
            if any(one.doubtful for one in self._standings):
                break
        self._chance.shuffle(self._open)
        while self._open:
            await self._end(self._open[0])
        for standing in self._standings:
            await self._see_it_end(standing)

    async def _renew_producers(self) -> None:
        """Have two producers of which nobody but their timeout can end a transaction."""
        for name, producer in list(self._producers.items()):
            if producer.may_have_been_ended:
                producer.close()
                del self._producers[name]
        while len(self._producers) < 2:
            name = self._mover.next_producer()
            timeout_ms = self._chance.choice((5_000, 40_000, 60_000))
            echo = Echo(self._party, self._mover.repeats)
            producer = TransactionalProducer(self._party, Place(), echo, self._mover.acknowledged, name, timeout_ms)
            producer.repeats_offsets = False  # in which order it would come is not known
            await producer.init()
            self._producers[name] = producer

    async def _step(self) -> None:
        step, standing = self._chance.choice(_STEPS), self._chance.choice(self._standings)
        if step == "in transaction" and self._producers:
            name, moves_all = self._chance.choice(list(self._producers)), self._chance.random() < 0.5
            for one in self._standings if moves_all else [standing]:
                if name in self._producers:
                    await self._write_in_transaction(one, name)
        elif step in ("in transaction", "plain"):
            await self._write(standing)
        elif step == "delete":
            await self._delete(standing)
        elif step == "ask":
            await self._ask(standing)
        elif self._open:
            await self._end(self._chance.choice(self._open))

    def _partition(self) -> int:
        return self._chance.randrange(min(2, self._mover.partitions))

    def _next_record(self) -> _Record:
        self._record += 1
        return self._record, self._mover.next_offset()

    async def _write_in_transaction(self, standing: Standing, name: str) -> None:
        producer = self._producers[name]
        if name not in self._open:
            producer.begin()
            self._open.append(name)
        partition, record = self._partition(), self._next_record()
        try:
            lost = await producer.send_offsets(standing.group, {(INPUT, partition): record[1]}, -1, "")
        except AbortTransactionError:
            self._all_are_doubtful()
            self._open.remove(name)
            await producer.end(False)
            return
        for one in self._standings:
            if name in one.outcomes:  # it is in the next transaction only when the last one is complete
                one.resolved(name, one.outcomes[name])
        standing.pending.setdefault(name, {})[partition] = record
        standing.doubtful |= bool(lost)

    def _all_are_doubtful(self) -> None:
        for one in self._standings:
            one.doubtful = True

    async def _write(self, standing: Standing) -> None:
        partition, record = self._partition(), self._next_record()
        answer, code, lost = await ask(
            self._wire,
            ApiKey.OFFSET_COMMIT,
            _code_of_one,
            group_id=standing.group,
            generation_id_or_member_epoch=-1,
            member_id="",
            topics=[{"name": INPUT, "partitions": [{"partition_index": partition, "committed_offset": record[1]}]}],
        )
        if code is not ErrorCode.NONE:
            self._party.wrong("refused", f"OffsetCommit of {standing.group}: {answer}")
        standing.committed[partition] = record
        standing.doubtful |= bool(lost)

    async def _delete(self, standing: Standing) -> None:
        partition = self._partition()
        answer, code, lost = await ask(
            self._wire,
            ApiKey.OFFSET_DELETE,
            lambda found: code_of(found.error_code) or _code_of_one(found),
            group_id=standing.group,
            topics=[{"name": INPUT, "partitions": [{"partition_index": partition}]}],
        )
        if code is ErrorCode.NONE:
            standing.deleted(partition)
        elif code is not ErrorCode.GROUP_ID_NOT_FOUND:
            self._party.wrong("refused", f"OffsetDelete of {standing.group}: {answer}")
        standing.doubtful |= bool(lost)

    async def _end(self, name: str) -> None:
        """End a transaction, and ask meanwhile: its marker may come at any time."""
        producer, commits = self._producers[name], self._chance.random() < 0.6
        self._open.remove(name)
        for one in self._standings:
            if name in one.pending:
                one.outcomes[name] = commits
        asking = asyncio.ensure_future(self._ask_meanwhile())
        try:
            committed = await producer.end(commits)
        except NotCommittedError:
            committed = False
            self._producers.pop(name).close()
        await asking
        for one in self._standings:
            if name in one.pending:
                one.outcomes[name] = committed

    async def _ask_meanwhile(self) -> None:
        for _ in range(self._chance.randint(0, 3)):
            await self._mover.think(0.02)
            await self._ask(self._chance.choice(self._standings))

    async def _see_it_end(self, standing: Standing) -> None:
        """Ask until nothing is pending any more, and then without asking for a stable offset: that is the same."""
        while not standing.doubtful and await self._ask(standing, stable=True) is not False:
            await self._party.pause()
        await self._ask(standing, stable=False)

    async def _ask(self, standing: Standing, *, stable: bool | None = None) -> bool | None:
        """Ask once, and judge the answer. Returns whether something is pending, None where that is not known."""
        stable = self._chance.random() < 0.6 if stable is None else stable
        wanted = list(range(min(2, self._mover.partitions)))
        asks_for_all = self._chance.random() < 0.3
        try:
            answer = await self._wire.call(
                ApiKey.OFFSET_FETCH,
                groups=[
                    {
                        "group_id": standing.group,
                        "member_id": None,
                        "member_epoch": -1,
                        "topics": None if asks_for_all else [{"name": INPUT, "partition_indexes": wanted}],
                    }
                ],
                require_stable=stable,
            )
        except ConnectionLostError:
            await self._party.pause()
            return None
        (group,) = answer.groups
        items = [item for topic in group.topics for item in topic.partitions]
        codes = {code_of(group.error_code), *(code_of(item.error_code) for item in items)} - {ErrorCode.NONE}
        if codes - {ErrorCode.UNSTABLE_OFFSET_COMMIT}:
            if not codes <= RETRIED:
                self._party.wrong("refused", f"OffsetFetch of {standing.group}: {codes}")
            return None
        found = dict.fromkeys(wanted, NOTHING)
        found |= {item.partition_index: UNSTABLE if item.error_code else item.committed_offset for item in items}
        trouble = standing.take(found, stable=stable, may_have_ended=self._may_have_been_ended)
        if trouble:
            says = "stable offsets" if stable else "offsets"
            self._party.wrong("O2" if stable else "O1", f"{says} of {standing.group}: {trouble}")
        return UNSTABLE in found.values()

    def _may_have_been_ended(self, name: str) -> bool:
        return name not in self._producers or self._producers[name].may_have_been_ended


def _code_of_one(answer: Any) -> ErrorCode:
    codes: Sequence[ErrorCode] = [code_of(item.error_code) for topic in answer.topics for item in topic.partitions]
    return codes[0] if codes else ErrorCode.NONE
