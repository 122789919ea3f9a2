"""Programs of the SDK that look: readers, who asks what was committed, and who keeps places of groups."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from history import Read

import semel
import semel.aio
from semel.protocol.errors import (
    RetriableError,
)
from simulation.actors import INPUT, Actor
from simulation.ledger import Ledger

if TYPE_CHECKING:
    from simulation.world import World

REMEMBERED_COMMITS = 100
"""With so many commits of a key, a node forgets the oldest."""
HURRY_S = 0.4
"""For how long somebody asks without a pause once a commit is asked for."""


class Reader(Actor):
    """Reads the output from its beginning, over and over from a place of its own, and writes down what it saw."""

    def __init__(self, world: World, ledger: Ledger, name: str, topics: dict[str, int]) -> None:
        super().__init__(world, ledger, name)
        self._topics = topics
        self._consumer: semel.aio.Consumer | None = None

    async def live(self, worker: str) -> None:
        seen: dict[tuple[str, int], list[tuple[int, str]]] = {}
        places = [
            semel.TopicPartition(topic, number) for topic, count in self._topics.items() for number in range(count)
        ]
        for place in places:
            runs = seen[place.topic, place.partition] = []
            self.ledger.reads.append(Read(worker, place.topic, place.partition, runs))  # type: ignore[arg-type]  # it grows
        async with semel.aio.Consumer(
            self.bootstrap, offset_reset="earliest", request_timeout_ms=3_000, max_wait_ms=1_000
        ) as consumer:
            consumer.assign(places)
            self._consumer = consumer
            while not self.is_stopping:
                batch = await consumer.poll(1.0)
                for record in batch or ():
                    seen[record.topic, record.partition].append((record.offset, (record.value or b"").decode()))

    def stands_at(self, tp: semel.TopicPartition) -> int:
        """Return how far the present life has read."""
        return -1 if self._consumer is None else (self._consumer.position(tp) or 0)


class Asker(Actor):
    """Asks what was committed under the keys of others. What it was told once must be true for good (T13, D5).

    Now and then it asks while a commit is on its way to the disk, and again and again.
    """

    def __init__(self, world: World, ledger: Ledger, name: str, writers: Sequence[Actor], think_s: float) -> None:
        super().__init__(world, ledger, name)
        self._keys = [writer.name for writer in writers]
        self._think_s = think_s
        self._hurried = ""
        """The key whose commit is under way."""
        self._told: dict[tuple[str, str], bytes] = {}
        """The payload of each commit that it was told of, by key and token."""
        self._woken: asyncio.Event | None = None
        self.on_told: Callable[[str], None] | None = None
        """Called with the key when it has just learned of a commit."""
        for writer in writers:
            writer.on_commit.append(partial(self._wake, writer.name))

    def _wake(self, key: str) -> None:
        process, woken = self.process, self._woken
        if process is not None and woken is not None and self.chance.random() < 0.5:
            self._hurried = key
            process.post(woken.set)

    async def live(self, worker: str) -> None:
        self._woken = woken = asyncio.Event()
        async with semel.aio.Admin(self.bootstrap, request_timeout_ms=2_000) as admin:
            while not self.is_stopping:
                if woken.is_set():
                    woken.clear()
                    await self._hurry(admin, self._hurried)
                for key in self._keys:
                    await self._ask(admin, key)
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._think_s / 4 * self.chance.random()):
                        await woken.wait()

    async def _hurry(self, admin: semel.aio.Admin, key: str) -> None:
        end = self.world.scheduler.now + HURRY_S
        while self.world.scheduler.now < end:
            await self._ask(admin, key)
            await self.think(0.03)

    async def _ask(self, admin: semel.aio.Admin, key: str) -> None:
        before = [place for place in self._told if place[0] == key]
        try:
            commits = await admin.commits(key)
        except RetriableError:
            return
        self._compare(key, before, {commit.token: bytes(commit.payload) for commit in commits})

    def _compare(self, key: str, before: list[tuple[str, str]], found: dict[str, bytes]) -> None:
        for place in before:
            if len(found) < REMEMBERED_COMMITS and found.get(place[1]) != self._told[place]:
                self.ledger.wrong("forgotten", f"{self.name} was told of the commit {place}, and then of {list(found)}")
        learned = [token for token in found if (key, token) not in self._told]
        for token, payload in found.items():
            self._told[key, token] = payload
        if learned and self.on_told is not None:
            self.world.scheduler.world.post(self.on_told, key)


class Keeper(Actor):
    """Commits places of groups that have no members, several at a time, and looks at them meanwhile and afterwards.

    What was answered, or was seen once, is there for good (O4, D1, D5). Each group is committed once, so that a message
    that comes late does not take it back.
    """

    def __init__(self, world: World, ledger: Ledger, name: str, think_s: float) -> None:
        super().__init__(world, ledger, name)
        self._think_s = think_s
        self._place = semel.TopicPartition(INPUT, 0)
        self._count = 0
        self._kept: dict[str, int] = {}
        """The offset of each group that was answered, or seen."""

    async def live(self, worker: str) -> None:
        async with semel.aio.Admin(self.bootstrap, request_timeout_ms=2_000) as admin:
            while not self.is_stopping:
                commits = self.chance.randint(1, 4)
                await asyncio.gather(*(self._keep(admin, commits) for _ in range(4)))
                await self._look_back(admin)
                await self.think(self._think_s)

    async def _keep(self, admin: semel.aio.Admin, commits: int) -> None:
        for _ in range(commits):
            self._count += 1
            group, offset = f"{self.name}-{self._count}", self._count
            await self.think(0.01)
            calls = [self._commit(admin, group, offset)]
            if self.chance.random() < 0.2:
                calls.append(self._look(admin, group, offset))
            await asyncio.gather(*calls)

    async def _commit(self, admin: semel.aio.Admin, group: str, offset: int) -> None:
        with suppress(RetriableError):
            await admin.alter_group_offsets(group, {self._place: offset})
            self._kept[group] = offset

    async def _look(self, admin: semel.aio.Admin, group: str, offset: int) -> None:
        await self.think(0.01)
        is_kept = group in self._kept
        try:
            found = (await admin.group_offsets(group)).get(self._place)
        except RetriableError:
            return
        if found is not None and found.offset == offset:
            self._kept[group] = offset
        elif is_kept:
            self.ledger.wrong("forgotten", f"{group} was committed at {offset}, and is at {found}")

    async def _look_back(self, admin: semel.aio.Admin) -> None:
        """Look at the last ones, which a crash would have taken."""
        for group, offset in list(self._kept.items())[-12:]:
            await self._look(admin, group, offset)
