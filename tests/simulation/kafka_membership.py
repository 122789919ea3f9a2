"""Programs whose only job is to be members of one group: they come and go, in many ways, and commit what they own."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from semel.protocol.errors import ErrorCode
from semel.protocol.ids import TopicId, TopicPartition
from simulation.group_watch import GROUP, GroupWatch
from simulation.kafka_actors import KafkaActor
from simulation.kafka_group_members import LATE_COMMITS, ClassicMember, Member, NewMember
from simulation.kafka_wire import Party, learn_topic_ids

if TYPE_CHECKING:
    from simulation.loop import Process

_POLL_S: Final = 0.5
_COMMITS: Final = 0.15
"""After how many polls what is owned is committed."""
_STAYS_S: Final = (1.5, 8.0)
_REVOKES_FOR_S: Final = (0.0, 3.5, 3.5)
"""How long it takes at most to give up what it is to lose."""
_STATIC_STAYS_S: Final = (1.0, 4.0)
"""For how long it is a member before that, at least and at most."""
_ENDINGS: Final = ("leaves", "leaves", "leaves", "vanishes", "stalls")
"""What a member does after a while: it leaves; its process ends without a word; or it is silent for longer than its
session, and commits before it asks what has become of it.
"""
_RESTS_S: Final = (0.1, 1.0, 8.0)
_STATIC_RESTS_S: Final = (0.1, 1.0, 1.0, 8.0)
"""For how long it then does nothing, at most; static members mostly come back while their place is kept."""


class KafkaMember(KafkaActor):
    """A member of the group that the watch knows. A static one has the same instance id in all lives."""

    def __init__(self, watch: GroupWatch, name: str, partitions: int, *, is_static: bool) -> None:
        super().__init__(watch.world, watch.ledger, name, partitions, 0.0)
        self.watch = watch
        watch.programs.append(self)
        self.instance_id = name if is_static else None

    async def live(self, worker: str) -> None:
        process: Process = asyncio.get_running_loop()  # type: ignore[assignment]  # each has a loop of its own
        party = self.party(worker)
        wire = party.wire()
        ids = await learn_topic_ids(wire, *self.watch.counts)
        wire.close()
        while self._continues(worker):
            member = self._member(party, ids)
            entry = self.watch.enter(process, worker, member)
            try:
                leaves = await self._stay(worker, member)
                if leaves:
                    await member.leave()
                member.assigned = frozenset()
            finally:
                self.watch.leave(entry)
                member.close()
            if self._continues(worker) and not self.watch.is_calm:
                await self.think(self.chance.choice(_RESTS_S if self.instance_id is None else _STATIC_RESTS_S))

    def _continues(self, worker: str) -> bool:
        """Whether it is still wanted: in the end, one process of each name."""
        return not self.is_stopping and (not self.watch.is_calm or self.is_current(worker))

    def _member(self, party: Party, ids: dict[str, TopicId]) -> Member:
        group = self.watch.group
        topics = {topic: (ids[topic], count) for topic, count in self.watch.counts.items()}
        member: Member
        if group.is_new:
            member = new = NewMember(party, GROUP, topics, self.watch.acknowledged)
            new.server_assignor = group.assignor
        else:
            member = classic = ClassicMember(party, GROUP, topics, self.watch.acknowledged)
            classic.assignor, classic.session_ms = group.assignor, group.session_ms
        member.instance_id, member.revokes_for_s = self.instance_id, self.chance.choice(_REVOKES_FOR_S)
        return member

    async def _stay(self, worker: str, member: Member) -> bool:
        """Be a member for a while. Returns whether it is to leave in good order."""
        scheduler, watch = self.world.scheduler, self.watch
        positions: dict[TopicPartition, int] = {}
        expected, has_joined = watch.about_to_return(member), False
        ending, until = self._next_ending()
        while self._continues(worker):
            before = member.generation
            if await member.poll():
                watch.look()
                positions = (await member.committed() or {}) if member.assigned else {}
            if member.is_in and not has_joined:
                has_joined = True
                watch.returned(expected, member)
            if watch.group.is_new and 0 < before < member.generation and self.chance.random() < LATE_COMMITS:
                await member.commit_late(before)
            if self.chance.random() < _COMMITS:
                await self._commit(worker, member, positions)
            if not watch.is_calm and scheduler.now > until:
                if ending != "stalls":
                    return ending == "leaves"
                watch.unrest += 1
                await asyncio.sleep(watch.group.session_ms / 1000 * (1.1 + self.chance.random()))
                await self._commit(worker, member, positions)
                ending, until = self._next_ending()
            await asyncio.sleep(_POLL_S * (0.5 + self.chance.random()))
        return True

    def _next_ending(self) -> tuple[str, float]:
        stays_s = self.chance.uniform(*(_STAYS_S if self.instance_id is None else _STATIC_STAYS_S))
        return self.chance.choice(_ENDINGS), self.world.scheduler.now + stays_s

    async def _commit(self, worker: str, member: Member, positions: dict[TopicPartition, int]) -> None:
        """Commit one more of each partition; where it is expelled already, and does not know it, that is refused."""
        wanted = {tp: positions[tp] + 1 for tp in sorted(member.assigned & positions.keys())}
        if not wanted:
            return
        before = self.watch.view()
        could = before is not None and before.may_commit(member)
        codes = await member.commit(wanted)
        if codes == {ErrorCode.NONE}:
            positions |= wanted
            self.watch.judge_commit(before, could, member, worker)
        elif codes and not could:
            self.watch.refused += 1
