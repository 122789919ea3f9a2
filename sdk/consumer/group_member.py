"""A consumer's membership in its group: joins, keeps the membership alive, and says what is revoked and assigned.

Runs on the IO thread. Joining happens inside the user's polls, step by step, so that records returned before are
worked off before their partitions go; heartbeats run on their own. KIP-429 is the cooperative protocol, KIP-345 static
members.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass
from enum import Enum

from semel.protocol.api.group_offsets import NO_GENERATION, GroupMetadata
from semel.protocol.consumer_protocol import (
    CONSUMER_PROTOCOL_TYPE,
    decode_assignment,
    encode_subscription,
)
from semel.protocol.consumer_protocol import (
    Subscription as MemberSubscription,
)
from semel.protocol.errors import ErrorCode, FatalError, FencedError, RetriableError, SemelError
from semel.protocol.ids import TopicPartition
from semel.protocol.v1 import groups_pb2
from semel.sdk.telemetry import tracing
from semel.sdk.transport.client import ClientCore
from semel.sdk.transport.item_errors import item_error
from semel.sdk.transport.rpcs import HEARTBEAT, JOIN_GROUP, LEAVE_GROUP, SYNC_GROUP

_log = logging.getLogger("semel.consumer")

FAILURES_BEFORE_WARNING = 5
LEAVE_TIMEOUT_MS = 5_000
COOPERATIVE = "cooperative-sticky"
ASSIGNORS = ("range", "roundrobin", "sticky", COOPERATIVE)

_JOIN_AGAIN = frozenset(
    {
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
    }
)
_LOST = frozenset({ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID})
"""A client that gets one of these is no member any more, and its partitions are free for others."""


@dataclass(frozen=True, slots=True)
class GroupOptions:
    """How a consumer is a member. Times in milliseconds."""

    group: str
    instance_id: str | None
    assignors: tuple[str, ...]
    session_timeout_ms: int
    heartbeat_interval_ms: int
    max_poll_interval_ms: int
    rack: str

    @property
    def is_cooperative(self) -> bool:
        return set(self.assignors) == {COOPERATIVE}


class ChangeKind(Enum):
    REVOKED = "revoked"
    LOST = "lost"
    ASSIGNED = "assigned"


@dataclass(frozen=True, slots=True)
class AssignmentChange:
    """What the user's listener gets before (REVOKED, LOST) or after (ASSIGNED) the consumer acts on it."""

    kind: ChangeKind
    partitions: frozenset[TopicPartition]


class MemberState(Enum):
    UNJOINED = "unjoined"
    JOINING = "joining"
    STABLE = "stable"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class Membership:
    """Who this member is to the coordinator, and what it was given; replaced as a whole, so any thread may read it.

    assigned: the partitions of this generation, or None as long as the member has not been told (or is none).
    """

    metadata: GroupMetadata
    assigned: frozenset[TopicPartition] | None = None


class _MembershipLostError(Exception):
    """The coordinator has given this member up while it was joining again."""


class GroupMember:
    """The membership of one consumer.

    topics:        gives the topics to subscribe to, when joining.
    on_assigned:   takes the partitions that the consumer shall read from now on, all of them.
    on_attention:  called when the user's next poll should call `step`, or there is an error.
    fenced:        why this instance must stop: another one has taken its place (KIP-345).
    last_joined:   who this member was in the last generation that it came into, also once it was given up since.
    """

    def __init__(
        self,
        core: ClientCore,
        options: GroupOptions,
        *,
        topics: Callable[[], frozenset[str]],
        on_assigned: Callable[[frozenset[TopicPartition]], None],
        on_attention: Callable[[], None],
    ) -> None:
        self.options = options
        self._now = core.clock.monotonic
        self.membership = Membership(GroupMetadata(options.group, group_instance_id=options.instance_id))
        self.last_joined = self.membership.metadata
        self.state = MemberState.UNJOINED
        self.error: SemelError | None = None
        self.fenced: FencedError | None = None
        self.polled_at = self._now()
        self.is_lost = False
        self.owned: frozenset[TopicPartition] = frozenset()
        self._core = core
        self._topics = topics
        self._on_assigned = on_assigned
        self._on_attention = on_attention
        self._owned_generation = NO_GENERATION
        self._wants_join = True
        self._to_announce: deque[AssignmentChange] = deque()
        self._announced: AssignmentChange | None = None
        self._joining: asyncio.Task[frozenset[TopicPartition]] | None = None
        self._heartbeats: asyncio.Task[None] | None = None

    @property
    def needs_step(self) -> bool:
        """Whether the next poll should call `step`. From any thread."""
        return (
            self._wants_join
            or self._joining is not None
            or self._announced is not None
            or bool(self._to_announce)
            or self.error is not None
        )

    def request_rejoin(self) -> None:
        """Join again: the subscription, or the topics behind it, have changed."""
        self._wants_join = True
        self._on_attention()

    def step(self) -> AssignmentChange | None:
        """Go one step on in the rebalance: return what the user's listener is to be told, or None for nothing yet.

        Partitions that a change takes away go at the next call, so the user can still commit for them; those that it
        brings are there at once, so the user can seek in them. Raises `SemelError` where the membership has failed for
        good.
        """
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        self._finish_announced()
        if self._joining is not None and self._joining.done():
            self._take_join()
        if self.is_lost:
            self._to_announce.clear()
        if self._to_announce:
            return self._announce(self._to_announce.popleft())
        if self._wants_join and self._joining is None:
            change = self._before_join()
            if change is not None:
                return self._announce(change)
            self._begin_join()
        return None

    def _announce(self, change: AssignmentChange) -> AssignmentChange:
        self._announced = change
        if change.kind is ChangeKind.ASSIGNED:
            self._set_owned(self.owned | change.partitions)
        return change

    def _finish_announced(self) -> None:
        """Let what was announced as going go."""
        change, self._announced = self._announced, None
        if change is None or change.kind is ChangeKind.ASSIGNED:
            return
        self._set_owned(self.owned - change.partitions)
        if change.kind is ChangeKind.LOST:
            self.is_lost = False
        elif self.options.is_cooperative:
            self._wants_join = True  # so that those who are to have the revoked ones get them

    def _before_join(self) -> AssignmentChange | None:
        if not self.owned:
            self.is_lost = False
            return None
        if self.is_lost:
            return AssignmentChange(ChangeKind.LOST, self.owned)
        if not self.options.is_cooperative:
            return AssignmentChange(ChangeKind.REVOKED, self.owned)
        return None

    def _set_owned(self, partitions: frozenset[TopicPartition]) -> None:
        self.owned = partitions
        self._on_assigned(partitions)

    def _begin_join(self) -> None:
        self._wants_join = False
        self.state = MemberState.JOINING
        self._joining = asyncio.get_running_loop().create_task(self._join(), name=f"join {self.options.group}")
        self._joining.add_done_callback(lambda _: self._on_attention())

    def _take_join(self) -> None:
        """Take what a join has come to. Raises `SemelError` where it failed for good."""
        assert self._joining is not None
        task, self._joining = self._joining, None
        try:
            assigned = task.result()
        except _MembershipLostError:
            self.is_lost = True
            self._wants_join = True
            return
        except SemelError as error:
            if isinstance(error, FencedError):
                self.fenced = error
            # Without heartbeats from here on, the partitions go to others. The next poll tries again.
            self.state = MemberState.UNJOINED
            self.is_lost = self._wants_join = True
            raise
        if self.is_lost:
            return  # since the join: `_before_join` says so, and joins again
        self._owned_generation = self.membership.metadata.generation_id
        revoked = self.owned - assigned
        if revoked:
            self._to_announce.append(AssignmentChange(ChangeKind.REVOKED, revoked))
        self._to_announce.append(AssignmentChange(ChangeKind.ASSIGNED, assigned - self.owned))

    # --- Joining ------------------------------------------------------------------------------------------------------

    async def _join(self) -> frozenset[TopicPartition]:
        failures = 0
        while True:
            try:
                assigned = await self._join_once()
                self._begin_heartbeats()
                return assigned
            except RetriableError as error:
                if error.code not in _JOIN_AGAIN:
                    failures += 1
                    if failures == FAILURES_BEFORE_WARNING:
                        _log.warning("joining fails, retrying: group=%s error=%s", self.options.group, error)
            except FencedError:
                raise
            except SemelError as error:
                if error.code not in _JOIN_AGAIN:
                    raise
                self._forget_membership(error.code)
                if self.owned and error.code in _LOST:
                    # Others may have had the partitions since: nothing of what this member knows of them holds.
                    raise _MembershipLostError from error
            await asyncio.sleep(self._core.options.backoff.jittered_s(failures))

    async def _join_once(self) -> frozenset[TopicPartition]:
        group, client_id = self.options.group, self._core.options.client_id
        with tracing.operation("join", "", client_id=client_id, consumer__group__name=group):
            return await self._join_and_sync()

    async def _join_and_sync(self) -> frozenset[TopicPartition]:
        options = self.options
        request = groups_pb2.JoinGroupRequest(
            group_id=options.group,
            member_id=self.membership.metadata.member_id,
            group_instance_id=options.instance_id or "",
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            protocols=self._protocols(),
            session_timeout_ms=options.session_timeout_ms,
            rebalance_timeout_ms=options.max_poll_interval_ms,
            client_id=self._core.options.client_id,
        )
        wait_ms = options.max_poll_interval_ms + self._core.options.request_timeout_ms
        joined = await self._core.control.call(
            JOIN_GROUP, request, timeout_ms=wait_ms, attempt_timeout_ms=wait_ms, retry=False
        )
        if joined.error.code == ErrorCode.MEMBER_ID_REQUIRED:
            self.membership = Membership(GroupMetadata(options.group, -1, joined.member_id, options.instance_id))
            return await self._join_and_sync()
        if joined.error.code:
            raise item_error(joined.error, f"group {options.group!r} refused this member")
        metadata = GroupMetadata(options.group, joined.generation_id, joined.member_id, options.instance_id)
        # Known already here: a member whose sync fails is a member all the same.
        self.membership = Membership(metadata)
        self.last_joined = metadata
        sync = groups_pb2.SyncGroupRequest(
            group_id=options.group,
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            group_instance_id=options.instance_id or "",
            protocol_type=joined.protocol_type,
            protocol_name=joined.protocol_name,
            assign=joined.leader_id == joined.member_id and not joined.skip_assignment,
        )
        synced = await self._core.control.call(
            SYNC_GROUP, sync, timeout_ms=wait_ms, attempt_timeout_ms=wait_ms, retry=False
        )
        assigned = frozenset(decode_assignment(synced.assignment).partitions if synced.assignment else ())
        self.membership = Membership(metadata, assigned)
        return assigned

    def _protocols(self) -> list[groups_pb2.GroupProtocol]:
        owned = tuple(sorted(self.owned))
        subscription = MemberSubscription(
            tuple(sorted(self._topics())),
            None,
            owned,
            self._owned_generation if owned else NO_GENERATION,
            self.options.rack or None,
        )
        metadata = encode_subscription(subscription)
        return [groups_pb2.GroupProtocol(name=name, metadata=metadata) for name in self.options.assignors]

    def _forget_membership(self, code: ErrorCode) -> None:
        member_id = "" if code is ErrorCode.UNKNOWN_MEMBER_ID else self.membership.metadata.member_id
        self.membership = Membership(
            GroupMetadata(self.options.group, NO_GENERATION, member_id, self.options.instance_id)
        )

    # --- Staying ------------------------------------------------------------------------------------------------------

    def _begin_heartbeats(self) -> None:
        """From here on the session must be kept alive, whether or not the user polls soon."""
        self.state = MemberState.STABLE
        if self._heartbeats is None or self._heartbeats.done():
            # In no trace: they continue for long after what is current now has ended.
            self._heartbeats = asyncio.get_running_loop().create_task(
                self._beat(), name=f"beat {self.options.group}", context=Context()
            )

    async def _beat(self) -> None:
        interval_s = self.options.heartbeat_interval_ms / 1000
        alive_at = self._now()
        while True:
            await asyncio.sleep(interval_s)
            if self.state is not MemberState.STABLE:
                alive_at = self._now()
                continue
            idle_s = self._now() - self.polled_at
            if idle_s * 1000 > self.options.max_poll_interval_ms:
                await self._give_up(idle_s)
                continue
            asked_as = self.membership
            try:
                await self._heartbeat(asked_as.metadata)
                alive_at = self._now()
            except SemelError as error:
                silent_s = self._now() - alive_at
                # An answer to who this member was before it joined again says nothing of who it is now.
                if self.membership is asked_as and self.state is MemberState.STABLE:
                    self._heartbeat_failed(error, is_expired=silent_s * 1000 > self.options.session_timeout_ms)
            except Exception as error:  # a bug of ours: the next poll raises it
                _log.exception("a heartbeat failed group=%s", self.options.group)
                self.error = FatalError(f"a heartbeat of group {self.options.group!r} failed: {error!r}")
                self._on_attention()

    async def _give_up(self, idle_s: float) -> None:
        """Let others have the partitions of a member that is stuck.

        A static member only falls silent (KIP-345): it has until the end of its session to come back.
        """
        _log.warning(
            "gave the partitions up: no poll for longer than max_poll_interval_ms group=%s idle_s=%.1f",
            self.options.group,
            idle_s,
        )
        metadata = self.membership.metadata
        self._lose(ErrorCode.UNKNOWN_MEMBER_ID)
        if self.options.instance_id is None:
            with suppress(SemelError):
                await self._leave(metadata.member_id, f"no poll for {idle_s:.0f} s")

    async def _heartbeat(self, metadata: GroupMetadata) -> None:
        request = groups_pb2.HeartbeatRequest(
            group_id=metadata.group_id,
            generation_id=metadata.generation_id,
            member_id=metadata.member_id,
            group_instance_id=metadata.group_instance_id or "",
        )
        timeout_ms = max(self.options.heartbeat_interval_ms, 1_000)
        await self._core.control.call(HEARTBEAT, request, timeout_ms=timeout_ms, retry=False)

    def _heartbeat_failed(self, error: SemelError, *, is_expired: bool) -> None:
        if error.code is ErrorCode.REBALANCE_IN_PROGRESS:
            self.request_rejoin()
        elif error.code in _LOST:
            self._lose(error.code)
        elif isinstance(error, FencedError):
            self.error = self.fenced = error
            self._lose(error.code)
        elif is_expired:
            _log.warning("the group can't be reached for longer than the session group=%s", self.options.group)
            self._lose(ErrorCode.UNKNOWN_MEMBER_ID)
        elif not isinstance(error, RetriableError):
            self.error = error
            self._on_attention()

    def _lose(self, code: ErrorCode) -> None:
        self.state = MemberState.UNJOINED
        self._forget_membership(code)
        self.is_lost = True
        self.request_rejoin()

    async def _leave(self, member_id: str, reason: str) -> None:
        if not member_id:
            return
        request = groups_pb2.LeaveGroupRequest(
            group_id=self.options.group,
            members=[groups_pb2.LeaveGroupRequest.Member(member_id=member_id, reason=reason)],
        )
        await self._core.control.call(LEAVE_GROUP, request, timeout_ms=LEAVE_TIMEOUT_MS)

    async def close(self) -> None:
        """Stop; a dynamic member also leaves, so that the others need not wait for its session to end."""
        self.state = MemberState.CLOSED
        tasks = [task for task in (self._joining, self._heartbeats) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._joining = None
        if self.options.instance_id is None:
            with suppress(SemelError):
                await self._leave(self.membership.metadata.member_id, "the consumer was closed")
        self.membership = Membership(GroupMetadata(self.options.group, group_instance_id=self.options.instance_id))
