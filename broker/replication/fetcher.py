"""Fetches what one other node leads and this one follows: one request at a time, for all of these partitions (R1, R3).

What an answer brings is appended, and counts here, before the next request says so: the leader takes the offset that is
asked for as the end of what this replica has on its disk (D1).

A request costs both sides time for each of its partitions. So those that have had records lately are asked for alone,
until it is time for all: producers wait for the acknowledgement of what is busy, and the idle ones are many. The leader
names an idle one that has got records in its answer, and it is asked for at once.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from semel.broker.logs.partition import Partition
from semel.broker.peers.config import ReplicationConfig
from semel.broker.peers.handshake import Role
from semel.broker.peers.peers import Peers
from semel.broker.peers.requests import FetchAsReplica
from semel.broker.replication.following import Followed, is_still_true, next_fetch, take_in
from semel.broker.replication.throttle import FollowerThrottle
from semel.protocol.errors import ErrorCode, SemelError
from semel.protocol.ids import TopicId, TopicPartition
from semel.protocol.kafka.fetch import (
    INITIAL_SESSION_EPOCH,
    FetchPartition,
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
)

_log = logging.getLogger("semel.replication")

_MOVED: Final = frozenset(
    {
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
    }
)
"""One of the two nodes has older metadata than the other: both will have the same shortly."""
PARTITIONS_PER_FETCH_MAX: Final = 2_000
"""More take turns: one request stays within what a node reads and answers at once (S3)."""
BUSY_S: Final = 10.0
"""So long a partition counts as busy after it had records."""
ALL_EVERY_S: Final = 0.5
"""How often all are asked for while some are busy; where they take turns, how often some of them are."""
UNNOTED_WAIT_MS: Final = 20
"""So long the leader may wait while the disk has not noted yet where a log starts: a deletion waits for that (D1)."""
NOTING_S: Final = 2.0
"""So long after a deletion; what the disk has not noted by then waits until all have their turn."""
LOOK_AGAIN_S: Final = 1.0
"""Where all wait for the quota: it may be another one by then, or count for others."""

UNWRITABLE_PAUSE_S: Final = 1.0
"""How long to wait before more is fetched of a partition that could not be written: mostly the disk is full."""

Behind = Callable[[Partition, int], None]
"""Is called with a follower and the leader's start, which is past the follower's end."""


class Fetcher:
    """Follows the partitions that one node leads, in `run`."""

    def __init__(
        self,
        node_id: int,
        leader_id: int,
        peers: Peers,
        config: Callable[[], ReplicationConfig],
        broker_epoch: Callable[[], int],
        noted_start: Callable[[TopicPartition], int],
        throttle: FollowerThrottle,
        on_behind: Behind,
    ) -> None:
        """broker_epoch: gives that of this node's registration

        noted_start: gives where the disk says that a log starts
        """
        self.leader_id = leader_id
        self._node_id = node_id
        self._peers = peers
        self._config = config
        self._broker_epoch = broker_epoch
        self._noted_start = noted_start
        self._throttle = throttle
        self._on_behind = on_behind
        self._followed: dict[TopicPartition, Partition] = {}
        self._by_id: dict[tuple[TopicId, int], TopicPartition] = {}
        self._paused: dict[TopicPartition, float] = {}
        self._busy: dict[TopicPartition, float] = {}
        """When partitions had records last, in the order of that."""
        self._wanted: dict[TopicPartition, None] = {}
        """What is to be asked for next, busy or not."""
        self._all_due = 0.0
        """When all are to be asked for, at the latest."""
        self._unasked = 0
        """How many are to be asked for at once, because the leader may not know yet that this node follows them."""
        self._noting_until = 0.0
        self._is_unnoted = False
        """Whether what is asked for starts where its disk has not noted it yet."""
        self._asks_all = True
        """Whether they were, or only those that are busy, when it was last looked what to ask for."""
        self._leaves_some_out = False
        """Whether the quota was not enough for all that are followed, when it was last looked what to ask for."""
        self._changed = asyncio.Event()
        self._round = 0
        self._is_asking = False
        self._is_failing = False
        self.lag: dict[TopicPartition, int] = {}
        """How many offsets each partition is behind its leader's high watermark, as of its last answer."""
        self.unwritable: dict[TopicPartition, SemelError] = {}
        """Why a partition can't be written: it is offline, or what came last could not be."""
        self.failures = 0
        """Requests that failed; one that was ended to ask for more is none."""

    @property
    def followed(self) -> Mapping[TopicPartition, Partition]:
        return self._followed

    def follow(self, partitions: Mapping[TopicPartition, Partition]) -> None:
        """Follow these partitions from now on, and no others."""
        if partitions == self._followed:
            return
        new = [tp for tp, partition in partitions.items() if self._followed.get(tp) is not partition]
        self._followed = dict(partitions)
        for tp in new:
            self.unwritable.pop(tp, None)  # that was another log
        self._by_id = {(one.topic_id, tp.partition): tp for tp, one in partitions.items()}
        for table in (self.lag, self.unwritable, self._paused, self._busy, self._wanted):
            for tp in table.keys() - partitions.keys():
                del table[tp]
        if new:
            self._ask_for_all()
            self._changed.set()
            if self._is_asking:
                # The answers of a connection come in order: the next request would wait behind the one that waits.
                self._peers.hang_up(self.leader_id, Role.FETCHES)

    async def run(self) -> None:
        """Fetch until cancelled."""
        while True:
            self._changed.clear()
            asked = self._next()
            if not asked:
                await self._pause(self._idle_s())
                continue
            for partition, _ in asked:
                await partition.all_durable()
            if self._changed.is_set():
                continue  # there is more to ask for
            told, asked = asked, []
            for partition, item in told:
                if is_still_true(partition, item):
                    asked.append((partition, item))
                    self._wanted.pop(partition.tp, None)
                elif partition.tp in self._followed:
                    self._wanted[partition.tp] = None
            if not asked and not self._asks_all:
                self._all_due = 0.0  # those that were asked for alone have other parts by now
                continue
            if not asked:
                await self._pause(self._config().replica_fetch_backoff_ms / 1000)
                continue
            response = await self._ask(asked)
            if response is None:
                self._ask_for_all()  # the leader may be another run of its node, which knows of none of them
                continue
            if self._asks_all and not self._changed.is_set():
                is_cut_off = len(told) == PARTITIONS_PER_FETCH_MAX  # else it was all that can be asked for now
                self._unasked = max(self._unasked - len(told), 0) if is_cut_off else 0
                self._all_due = 0.0 if self._unasked else asyncio.get_running_loop().time() + self._all_every_s()
            self._take_in(asked, response)

    def _ask_for_all(self) -> None:
        """Ask for all at once, in as many requests as that takes."""
        self._all_due = 0.0
        self._unasked = len(self._followed)

    async def _pause(self, pause_s: float | None) -> None:
        """Wait until there are other partitions, or the time is over."""
        try:
            async with asyncio.timeout(pause_s):
                await self._changed.wait()
        except TimeoutError:
            pass

    def _idle_s(self) -> float | None:
        """Return how long to wait where there is nothing to ask for; None: until there is something to follow."""
        if not self._followed:
            return None
        backoff_s = self._config().replica_fetch_backoff_ms / 1000
        if not self._leaves_some_out:
            return backoff_s
        return min(self._throttle.free_in_s(), backoff_s if self._paused else LOOK_AGAIN_S)

    def _next(self) -> list[tuple[Partition, FetchPartition]]:
        """Return what to ask for: what is busy alone, or all when they are due."""
        now = asyncio.get_running_loop().time()
        while self._busy and now - next(iter(self._busy.values())) > BUSY_S:
            del self._busy[next(iter(self._busy))]
        self._asks_all = now >= self._all_due
        if not self._asks_all:
            # Those that are named come first, then those that had records longest ago: one answer has room for some.
            asked = self._items({tp: self._followed[tp] for tp in {**self._wanted, **self._busy}}, now)
            if asked:
                return asked
            self._asks_all = True
        return self._items(self._followed, now)

    def _all_every_s(self) -> float:
        """Return how long to wait before the next ones have their turn. A leader must not take any for lagging."""
        lag_max_s = self._config().replica_lag_time_max_ms / 1000
        turns = max(math.ceil(len(self._followed) / PARTITIONS_PER_FETCH_MAX), 1)
        return min(ALL_EVERY_S, lag_max_s / 4 / turns)

    def _items(self, wanted: Mapping[TopicPartition, Partition], now: float) -> list[tuple[Partition, FetchPartition]]:
        """Return what to ask for of some partitions, in turns where it is much, or more than the quota has left."""
        asked: list[tuple[Partition, FetchPartition]] = []
        max_bytes, left_bytes = self._config().replica_fetch_max_bytes, self._throttle.left_bytes()
        self._leaves_some_out = self._is_unnoted = False
        for tp, partition in list(wanted.items()):
            if self._paused.get(tp, 0.0) > now:
                continue
            self._paused.pop(tp, None)
            if partition.offline_error is not None:
                self.unwritable[tp] = partition.offline_error
            if partition.leader is not None or partition.offline_error is not None:
                continue
            if self._throttle.applies(partition, self.lag.get(tp)):
                if left_bytes <= 0:
                    self._leaves_some_out = True
                    continue
                left_bytes -= max_bytes
                self._followed[tp] = self._followed.pop(tp)
            item = next_fetch(partition, max_bytes, self._noted_start(tp))
            self._is_unnoted |= item.log_start_offset < partition.log_start_offset and now < self._noting_until
            asked.append((partition, item))
            if len(asked) == PARTITIONS_PER_FETCH_MAX:
                for done, _ in asked:
                    self._followed[done.tp] = self._followed.pop(done.tp)
                break
        return asked

    def _wait_ms(self) -> int:
        """Return how long the leader may wait: not while others are left out that are to be asked for, too."""
        wait_ms = self._config().replica_fetch_wait_max_ms
        now = asyncio.get_running_loop().time()
        looks_at = [until for until in self._paused.values() if until > now]
        if not self._asks_all:
            looks_at.append(self._all_due)
        elif self._unasked > PARTITIONS_PER_FETCH_MAX:
            looks_at.append(now)
        elif len(self._followed) > PARTITIONS_PER_FETCH_MAX:
            looks_at.append(now + self._all_every_s())
        if looks_at:
            wait_ms = min(wait_ms, max(math.ceil((min(looks_at) - now) * 1000), 0))
        if self._is_unnoted:
            wait_ms = min(wait_ms, UNNOTED_WAIT_MS)
        if self._leaves_some_out and (free_in_s := self._throttle.free_in_s()):
            wait_ms = min(wait_ms, math.ceil(free_in_s * 1000))
        return wait_ms

    async def _ask(self, asked: Iterable[tuple[Partition, FetchPartition]]) -> FetchResponse | None:
        """Return the answer, or None after a pause. A long wait ends where `follow` brings more to ask for.

        It is awaited in this task itself: each turn of the event loop that a task of its own would take comes on top of
        the time that producers wait for the acknowledgement.
        """
        config = self._config()
        request = FetchRequest(
            [item for _, item in asked],
            max_wait_ms=self._wait_ms(),
            max_bytes=config.replica_fetch_response_max_bytes,
            session_id=self._round,
            session_epoch=INITIAL_SESSION_EPOCH,
            replica_id=self._node_id,
            replica_epoch=self._broker_epoch(),
        )
        self._is_asking = True
        try:
            response = await self._peers.ask(self.leader_id, FetchAsReplica(request))
        except SemelError as error:
            self._round = 0
            if not self._changed.is_set():
                self.failures += 1
                if not self._is_failing:
                    _log.info("node %d can't be fetched from, and is tried again: %s", self.leader_id, error.message)
                self._is_failing = True
                await self._pause(config.replica_fetch_backoff_ms / 1000)
            return None
        finally:
            self._is_asking = False
        self._round = response.session_id
        self._is_failing = False
        return response

    def _take_in(self, asked: Iterable[tuple[Partition, FetchPartition]], response: FetchResponse) -> None:
        now = asyncio.get_running_loop().time()
        answers: dict[tuple[TopicId, int], FetchPartitionResponse] = {
            (answer.topic_id, answer.partition): answer for answer in response.partitions
        }
        for partition, item in asked:
            answer = answers.pop((item.topic_id, item.partition), None)
            if answer is None or self._followed.get(partition.tp) is not partition:
                continue
            if answer.records is not None and self._throttle.applies(partition, self.lag.get(partition.tp)):
                self._throttle.record(len(answer.records))
            start_before = partition.log_start_offset
            try:
                followed = take_in(partition, item, answer)
            except SemelError as error:
                known = self.unwritable.get(partition.tp)
                if known is None or known.message != error.message:
                    _log.warning("%s can't follow node %d now: %s", partition.tp, self.leader_id, error.message)
                self.unwritable[partition.tp] = error
                self._pause_one(partition.tp, UNWRITABLE_PAUSE_S)
                continue
            if partition.tp in self.unwritable and followed is Followed.TAKEN_IN:
                del self.unwritable[partition.tp]
                _log.info("%s follows node %d again", partition.tp, self.leader_id)
            if answer.records is not None and len(answer.records):
                self._busy.pop(partition.tp, None)
                self._busy[partition.tp] = now
                self._followed[partition.tp] = self._followed.pop(partition.tp)  # the others come first next time
            if partition.log_start_offset > start_before:
                self._noting_until = now + NOTING_S
            if item.log_start_offset < partition.log_start_offset and now < self._noting_until:
                self._wanted[partition.tp] = None  # the leader waits to hear where it starts now (D1)
            if followed is Followed.TAKEN_IN:
                self.lag[partition.tp] = max(answer.high_watermark - partition.log_end_offset, 0)
            elif followed in (Followed.CUT, Followed.LATE):
                self._wanted[partition.tp] = None
            elif followed is Followed.BEHIND:
                self._on_behind(partition, answer.log_start_offset)
            elif followed is Followed.REFUSED:
                if answer.error not in _MOVED:
                    _log.warning("node %d refused a fetch of %s: %s", self.leader_id, partition.tp, answer.error.name)
                self._pause_one(partition.tp, self._config().replica_fetch_backoff_ms / 1000)
        for key in answers:  # those that were not asked for
            tp = self._by_id.get(key)
            if tp is not None:
                self._wanted[tp] = None

    def _pause_one(self, tp: TopicPartition, pause_s: float) -> None:
        self._paused[tp] = until = asyncio.get_running_loop().time() + pause_s
        self._all_due = min(self._all_due, until)
