"""Members of groups on the wire, of the classic protocol and of KIP-848, as Kafka's clients are."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final
from uuid import UUID

from semel.group_coordinator.assignor import cooperative_sticky, round_robin
from semel.group_coordinator.assignor.subscription import Assignments, MemberSubscription
from semel.group_coordinator.classic.assignment import ASSIGNORS
from semel.protocol.consumer_protocol import (
    Assignment,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from semel.protocol.errors import ErrorCode
from semel.protocol.ids import TopicId, TopicPartition
from semel.protocol.kafka.api import ApiKey
from semel.runtime.kafka_client.connection import ConnectionLostError
from simulation.kafka_wire import REQUEST_TIMEOUT_MS, RETRIED, NewerInstanceError, Party, code_of

SESSION_MS: Final = 6_000
HEARTBEAT_S: Final = 1.0
LATE_COMMITS: Final = 0.5
"""After how many rebalances a commit of the generation before arrives."""
_LEAVES: Final = -1
_LEAVES_FOR_A_WHILE: Final = -2
"""The epochs of a member of the new kind that leaves, and of a static one that will be back."""


class Member(ABC):
    """A member of a group. `assigned` is what it may read now; it changes only in `poll`.

    instance_id:   makes a static member (KIP-345)
    revokes_for_s: how long it takes at most to give partitions up; its heartbeats continue meanwhile
    """

    instance_id: str | None = None
    revokes_for_s = 0.0

    def __init__(
        self,
        party: Party,
        group: str,
        topics: Mapping[str, tuple[TopicId, int]],
        acknowledged: dict[TopicPartition, int | None] | None = None,
    ) -> None:
        """`topics`: what it subscribes to, with their ids and numbers of partitions.

        acknowledged: what all members of the group were told is committed without a transaction. None for a partition
                      whose commit had no answer: it may arrive late, and take the group back.
        """
        self.party = party
        self.acknowledged = {} if acknowledged is None else acknowledged
        self.group = group
        self.topics = topics
        self.wire = party.wire()
        self.member_id = ""
        self.generation = -1
        self.assigned: frozenset[TopicPartition] = frozenset()
        self._given: frozenset[TopicPartition] | None = None
        """What it will have once it has given up the rest of what it has; None where it has nothing to give up."""
        self._gives_up_s = 0.0
        self.expelled = 0
        """How often it was told that it is no member any more."""
        self.heard_s = 0.0
        """When the last of its calls began that the coordinator answered as a member's."""

    def _version(self, key: ApiKey) -> int:
        return self.party.dialect.versions[key]

    def _who(self) -> dict[str, Any]:
        """What is said of us where commits are asked for."""
        return {"member_id": None, "member_epoch": -1}

    @abstractmethod
    async def poll(self) -> bool:
        """Do what the group asks for. Returns whether the assignment was given again, and positions are to be read."""

    @abstractmethod
    async def leave(self) -> None:
        """Leave, if the node answers. A static member keeps its place for its session timeout."""

    @property
    @abstractmethod
    def is_in(self) -> bool:
        """Whether it has joined, and knows of nothing for which it has to join again."""

    def _take(self, given: frozenset[TopicPartition]) -> bool:
        """Go over to an assignment, as soon as the rest is given up. Returns whether anything has changed by now."""
        if self.assigned <= given or not self.revokes_for_s:
            return self._has(given)
        if self._given is None:
            self._gives_up_s = self.party.world.scheduler.now + self.revokes_for_s * self.party.chance.random()
        self._given = given
        return False

    def _gives_up(self) -> bool:
        """Go over to what was given, if it is time for that. Returns whether it was."""
        if self._given is None or self.party.world.scheduler.now < self._gives_up_s:
            return False
        return self._has(self._given)

    def _has(self, assigned: frozenset[TopicPartition]) -> bool:
        """Have this from now on, and nothing to give up. Returns whether it is anything else than before."""
        changed, self.assigned, self._given = assigned != self.assigned, assigned, None
        return changed

    def _end_if_replaced(self, code: ErrorCode) -> None:
        """Raise `NewerInstanceError` where another process has this static member's place."""
        if code is ErrorCode.FENCED_INSTANCE_ID and self.instance_id is not None:
            self._has(frozenset())
            raise NewerInstanceError(f"another process is instance {self.instance_id} of group {self.group}")

    def close(self) -> None:
        self.wire.close()

    async def committed(self) -> dict[TopicPartition, int] | None:
        """Return where to begin in what is assigned; None where the group has to be asked first."""
        while True:
            acknowledged = dict(self.acknowledged)
            names: dict[str, list[int]] = {}
            for tp in sorted(self.assigned):
                names.setdefault(tp.topic, []).append(tp.partition)
            try:
                answer = await self.wire.call(
                    ApiKey.OFFSET_FETCH,
                    version=self._version(ApiKey.OFFSET_FETCH),
                    groups=[
                        {
                            "group_id": self.group,
                            **self._who(),
                            "topics": [
                                {"name": name, "topic_id": self.topics[name][0].bytes, "partition_indexes": some}
                                for name, some in names.items()
                            ],
                        }
                    ],
                    require_stable=True,
                )
            except ConnectionLostError:
                await self.party.pause()
                continue
            (found,) = answer.groups
            items = {
                TopicPartition(self._name_of(topic), item.partition_index): item
                for topic in found.topics
                for item in topic.partitions
            }
            codes = {code_of(found.error_code), *(code_of(item.error_code) for item in items.values())} - {
                ErrorCode.NONE
            }
            if not codes:
                if items.keys() != self.assigned:
                    self.party.wrong("refused", f"offsets of {sorted(self.assigned)} were asked for, {items} answered")
                found_at = {tp: max(0, item.committed_offset) for tp, item in items.items()}
                for tp, offset in found_at.items():
                    if offset < (acknowledged.get(tp) or 0):
                        self.party.wrong("D1", f"{tp} was committed up to {acknowledged[tp]}, and is at {offset}")
                return found_at
            if codes & _MOVED_ON and self._who()["member_id"] is not None:
                await self._ask_who()
                if not self.assigned:
                    return None
            elif not codes <= RETRIED:
                self.party.wrong("refused", f"OffsetFetch: {codes}")
                return None
            await self.party.pause()

    async def _ask_who(self) -> None:  # noqa: B027  # for those who say who they are
        """We are not in the group as we said: learn what we are."""

    def _name_of(self, topic: Any) -> str:
        """Return the name of a topic in an answer: newer ones have its id."""
        if hasattr(topic, "name"):
            return str(topic.name)
        return next(name for name, (topic_id, _) in self.topics.items() if topic_id == TopicId(topic.topic_id))

    async def commit(
        self, positions: Mapping[TopicPartition, int], epochs: Mapping[TopicPartition, int] | None = None
    ) -> set[ErrorCode]:
        """Commit positions without a transaction; what becomes of it is found out by the next who reads them.

        epochs: the leader epochs of what was read

        Returns what was answered; nothing where nothing was.
        """
        before = {tp: self.acknowledged.get(tp, 0) for tp in positions}
        self.acknowledged |= dict.fromkeys(positions)
        codes = await self._commit(positions, (epochs or {}) if self.party.dialect.is_java else {})
        for tp, offset in positions.items():
            known = before[tp]
            if known is not None and codes == {ErrorCode.NONE}:
                self.acknowledged[tp] = max(known, offset)
            elif codes and codes <= _MOVED_ON:
                self.acknowledged[tp] = known
        if not codes - {ErrorCode.NONE} <= RETRIED | _MOVED_ON:
            self.party.wrong("refused", f"OffsetCommit: {codes}")
        return codes

    async def commit_late(self, generation: int) -> None:
        """What we sent before the rebalance arrives after it: the partitions may be another member's by now (O4)."""
        joined, self.generation = self.generation, generation
        try:
            codes = await self._commit({TopicPartition(topic, 0): 0 for topic in self.topics}, {})
        finally:
            self.generation = joined
        if ErrorCode.NONE in codes:
            self.party.wrong("O4", f"a commit of generation {generation} is accepted in {joined} of {self.group!r}")

    async def _commit(
        self, positions: Mapping[TopicPartition, int], epochs: Mapping[TopicPartition, int]
    ) -> set[ErrorCode]:
        """Return what was answered; nothing where nothing was."""
        try:
            answer = await self.wire.call(
                ApiKey.OFFSET_COMMIT,
                version=self._version(ApiKey.OFFSET_COMMIT),
                group_id=self.group,
                generation_id_or_member_epoch=self.generation,
                member_id=self.member_id,
                group_instance_id=self.instance_id,
                topics=[
                    {
                        "name": tp.topic,
                        "topic_id": self.topics[tp.topic][0].bytes,
                        "partitions": [
                            {
                                "partition_index": tp.partition,
                                "committed_offset": offset,
                                "committed_leader_epoch": epochs.get(tp, -1),
                            }
                        ],
                    }
                    for tp, offset in positions.items()
                ],
            )
        except ConnectionLostError:
            return set()
        return {code_of(item.error_code) for topic in answer.topics for item in topic.partitions}


_MOVED_ON: Final = frozenset(
    {
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.FENCED_MEMBER_EPOCH,
        ErrorCode.FENCED_INSTANCE_ID,
    }
)
"""What a group answers a member that has to join again, or to end because another has its place."""
COOPERATIVE: Final = cooperative_sticky.NAME


class ClassicMember(Member):
    """JoinGroup, SyncGroup and Heartbeat: the leader assigns, and every rebalance takes everything away.

    With the cooperative assignor a member says what it has as it joins, and keeps it. What it is to lose it gives up,
    and joins again, so that another gets that by a second rebalance (KIP-429).
    """

    session_ms = SESSION_MS
    assignor = round_robin.NAME

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._must_join = True
        self._next_beat = 0.0
        self._joined = ("", -1)
        """As whom it joined last, and in which generation."""
        self.subscription = b""
        """What it said of itself when it joined last."""

    @property
    def is_in(self) -> bool:
        return not self._must_join

    @property
    def is_cooperative(self) -> bool:
        return self.assignor == COOPERATIVE

    async def poll(self) -> bool:
        if self._given is not None and not self._gives_up():
            await self._beat()
            return False
        if not self._must_join:
            await self._beat()
        while self._must_join:
            if not self.is_cooperative:
                self._has(frozenset())
            if await self._join():
                return True
            await self.party.pause()
        return False

    async def _call(self, key: ApiKey, **values: Any) -> tuple[Any, ErrorCode]:
        timeout_ms = SESSION_MS + 5_000 if key in (ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP) else REQUEST_TIMEOUT_MS
        begun = self.party.world.scheduler.now
        try:
            answer = await self.wire.call(
                key, timeout_ms=timeout_ms, group_id=self.group, group_instance_id=self.instance_id, **values
            )
        except ConnectionLostError:
            return None, ErrorCode.NETWORK_EXCEPTION
        code = code_of(answer.error_code)
        self._end_if_replaced(code)
        if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
            self._has(frozenset())  # others may have what it had: it was too late to give it up
        elif code is ErrorCode.NONE:
            self.heard_s = begun
        if code is ErrorCode.UNKNOWN_MEMBER_ID:
            self.member_id, self.generation = "", -1
            self.expelled += 1
        if code is not ErrorCode.NONE and code not in RETRIED | _MOVED_ON | {ErrorCode.MEMBER_ID_REQUIRED}:
            self.party.wrong("refused", f"{key.name}: {code.name}")
        return answer, code

    async def _join(self) -> bool:
        self.subscription = self._subscription()
        answer, code = await self._call(
            ApiKey.JOIN_GROUP,
            session_timeout=self.session_ms,
            rebalance_timeout=self.session_ms,
            member_id=self.member_id,
            protocol_type="consumer",
            protocols=[{"name": self.assignor, "metadata": self.subscription}],
        )
        if code is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
            return await self._join()
        if code is not ErrorCode.NONE:
            return False
        self.member_id, self.generation = answer.member_id, answer.generation_id
        leads = answer.leader == self.member_id and not getattr(answer, "skip_assignment", False)
        shares = self._shares(answer.members) if leads else {}
        answer, code = await self._call(
            ApiKey.SYNC_GROUP,
            generation_id=self.generation,
            member_id=self.member_id,
            protocol_type="consumer",
            protocol_name=self.assignor,
            assignments=[
                {"member_id": member, "assignment": encode_assignment(Assignment(tuple(share)), 1)}
                for member, share in shares.items()
            ],
        )
        if code is not ErrorCode.NONE:
            return False
        given = frozenset(decode_assignment(answer.assignment).partitions)
        self._must_join = self.is_cooperative and not self.assigned <= given
        self._take(given)
        self._next_beat = self.party.world.scheduler.now + HEARTBEAT_S
        (was, before), self._joined = self._joined, (self.member_id, self.generation)
        if was == self.member_id and before < self.generation and self.party.chance.random() < LATE_COMMITS:
            await self.commit_late(before)
        return True

    def _subscription(self) -> bytes:
        if not self.is_cooperative:
            return encode_subscription(Subscription(tuple(self.topics)), 1)
        owned = tuple(sorted(self.assigned))
        return encode_subscription(Subscription(tuple(self.topics), None, owned, self._joined[1]))

    def _shares(self, members: Sequence[Any]) -> Assignments:
        """Assign, as a leader does, by what the answer to its join says of all members."""
        said = [(one, decode_subscription(one.metadata)) for one in members]
        return ASSIGNORS[self.assignor](
            [
                MemberSubscription(
                    one.member_id,
                    frozenset(each.topics),
                    each.owned_partitions,
                    each.generation_id,
                    getattr(one, "group_instance_id", None),
                )
                for one, each in said
            ],
            {topic: count for topic, (_, count) in self.topics.items()},
        )

    async def _beat(self) -> None:
        if self.party.world.scheduler.now < self._next_beat:
            return
        self._next_beat = self.party.world.scheduler.now + HEARTBEAT_S
        _, code = await self._call(ApiKey.HEARTBEAT, generation_id=self.generation, member_id=self.member_id)
        self._must_join |= code in _MOVED_ON

    async def leave(self) -> None:
        self._has(frozenset())
        if self.member_id and self.instance_id is None:
            members = [{"member_id": self.member_id}]
            await self._call(ApiKey.LEAVE_GROUP, member_id=self.member_id, members=members)


class NewMember(Member):
    """ConsumerGroupHeartbeat (KIP-848): the coordinator assigns, and each member gives up before another gets.

    server_assignor: the one that it asks for, None where it leaves that to the coordinator
    """

    server_assignor: str | None = None

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        if self.party.dialect.versions[ApiKey.CONSUMER_GROUP_HEARTBEAT] > 0:  # before, the coordinator names it
            self.member_id = str(UUID(int=self.party.chance.getrandbits(128)))
        self._names = {topic_id: name for name, (topic_id, _) in self.topics.items()}
        self._next_beat = 0.0
        self._says_all = True
        self._owned: frozenset[TopicPartition] = frozenset()
        """What the coordinator was last told that we own."""
        self.generation = 0

    @property
    def is_in(self) -> bool:
        return self.generation > 0

    def _version(self, key: ApiKey) -> int:
        dialect = self.party.dialect
        return dialect.new_group_versions.get(key, dialect.versions[key])

    def _who(self) -> dict[str, Any]:
        if not self.party.dialect.is_java:
            return super()._who()
        return {"member_id": self.member_id, "member_epoch": self.generation}

    async def _ask_who(self) -> None:
        self._next_beat = 0.0
        await self.poll()

    async def poll(self) -> bool:
        now, changed = self.party.world.scheduler.now, self._gives_up()
        if now < self._next_beat and self._owned == self.assigned:
            return changed
        self._next_beat = now + HEARTBEAT_S
        says_all, owned = self._says_all or self.generation == 0, self.assigned
        try:
            answer = await self._heartbeat(self.generation, owned, says_all)
        except ConnectionLostError:
            self._says_all = True
            await self.party.pause()
            return changed
        code = code_of(answer.error_code)
        self._end_if_replaced(code)
        if code is ErrorCode.UNRELEASED_INSTANCE_ID and self.instance_id is not None:
            return False  # the process before has not left, and its session lasts yet
        if code in (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID):
            self.generation, self._says_all = 0, True
            self.expelled += 1
            self._owned = frozenset()
            self._next_beat = 0.0
            return self._has(frozenset()) or changed
        if code is not ErrorCode.NONE:
            if code not in RETRIED:
                self.party.wrong("refused", f"ConsumerGroupHeartbeat: {code.name} {answer.error_message}")
            self._says_all = True
            return changed
        if answer.member_epoch < self.generation:
            self.party.wrong("G1", f"the epoch of a member went back from {self.generation} to {answer.member_epoch}")
        self.member_id = answer.member_id or self.member_id
        self.generation, self._says_all, self._owned = answer.member_epoch, False, owned
        self.heard_s = now
        if answer.assignment is None:
            return changed
        assigned = frozenset(
            TopicPartition(self._names[TopicId(topic.topic_id)], number)
            for topic in answer.assignment.topic_partitions
            for number in topic.partitions
        )
        return self._take(assigned) or changed

    async def _heartbeat(self, epoch: int, owned: Iterable[TopicPartition], says_all: bool) -> Any:
        is_java = self.party.dialect.is_java
        names: list[str] | None = list(self.topics) if says_all else None
        leaves = epoch in (_LEAVES, _LEAVES_FOR_A_WHILE)
        if leaves and is_java:
            names = []
        topics: dict[str, list[int]] = {}
        for tp in sorted(owned):
            topics.setdefault(tp.topic, []).append(tp.partition)
        return await self.wire.call(
            ApiKey.CONSUMER_GROUP_HEARTBEAT,
            group_id=self.group,
            member_id=self.member_id,
            member_epoch=epoch,
            instance_id=self.instance_id,
            server_assignor=self.server_assignor if says_all else None,
            rebalance_timeout=SESSION_MS if says_all else -1,
            subscribed_topic_names=names,
            subscribed_topic_regex="" if says_all and not is_java else None,
            topic_partitions=[
                {"topic_id": self.topics[name][0].bytes, "partitions": numbers} for name, numbers in topics.items()
            ]
            if says_all or (not leaves and self._owned != owned) or names == []
            else None,
        )

    async def leave(self) -> None:
        self._has(frozenset())
        if not self.member_id:
            return
        epoch = _LEAVES if self.instance_id is None else _LEAVES_FOR_A_WHILE
        try:
            await self._heartbeat(epoch, (), False)
        except ConnectionLostError:
            await asyncio.sleep(0)
