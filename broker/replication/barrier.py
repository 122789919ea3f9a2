"""Shows that this node still leads a partition of an internal topic, before a coordinator answers from its state (R9).

Another node can only lead if it was elected, from those that are in sync or may be. So this node still led when each of
them has sent a fetch under this leader epoch after the question: had one been elected before it, it would not have. All
questions about a partition that come while nobody was asked yet share one proof. Followers fetch all the time, so it
takes one or two round trips. Where followers can't show it, or don't in time, the metadata database is read instead.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from functools import partial
from typing import TYPE_CHECKING, Final

from semel.broker.logs.proofs import Proof
from semel.broker.routing.fresh_image import FreshImage
from semel.protocol.errors import ErrorCode, RetriableError, SemelError
from semel.protocol.ids import TopicPartition

if TYPE_CHECKING:
    from semel.broker.logs.leader_state import LeaderState
    from semel.broker.metadata.changes import PartitionState
    from semel.broker.services import Services

_log = logging.getLogger("semel.replication")

PATIENCE_S: Final = 0.5
"""So long followers may take; then the database is asked."""


class ReplicationBarrier:
    """The `ReadBarrier` of a node that shares partitions with others."""

    def __init__(self, node: Services) -> None:
        self._node = node
        self._fresh = FreshImage(node.metadata)
        self._asking: dict[TopicPartition, _Asking] = {}

    def begin(self, tp: TopicPartition, leader_epoch: int) -> Awaitable[None] | None:
        """See `ReadBarrier.begin`. Raises NOT_COORDINATOR, or COORDINATOR_NOT_AVAILABLE where it can't be told."""
        partition = self._node.partition(tp)
        leader = None if partition is None else partition.leader
        is_diskless = partition is not None and partition.config.diskless_enable
        if leader is not None and leader.is_alone and not is_diskless:
            return None
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if is_diskless:
            # Any node may have been elected. It serves nobody before the metadata says that it leads.
            self._read(tp, leader_epoch, [waiting])
            return waiting
        state = self._led(tp, leader_epoch)
        if leader is None or leader.leader_epoch != leader_epoch or state is None:
            _refuse([waiting], _moved(tp, leader_epoch))
        elif not leader.has_min_isr or not leader.electors.issuperset(_electable(state) - {leader.node_id}):
            # Others may be elected than those whose word would be waited for.
            self._read(tp, leader_epoch, [waiting])
        elif not leader.electors:
            return None
        elif leader.has_silent_elector:
            self._read(tp, leader_epoch, [waiting])
        else:
            self._ask(tp, leader, waiting)
        return waiting

    def _led(self, tp: TopicPartition, leader_epoch: int) -> PartitionState | None:
        """Return the partition's state, None where this node does not lead it under that epoch by the image."""
        state = self._node.metadata.image.partition(tp)
        is_led = state is not None and (state.leader, state.leader_epoch) == (self._node.config.node_id, leader_epoch)
        return state if is_led else None

    # --- By the followers' word ---------------------------------------------------------------------------------------

    def _ask(self, tp: TopicPartition, leader: LeaderState, waiting: asyncio.Future[None]) -> None:
        asking = self._asking.get(tp)
        if asking is not None and asking.leader is not leader:
            self._end(asking)
            _refuse(asking.all_waiting(), _moved(tp, asking.leader.leader_epoch))
            asking = None
        if asking is None:
            self._begin_asking(tp, leader, [waiting])
        elif asking.proof.begun == self._node.logs.fetch_rounds.begin():
            asking.waiting.append(waiting)  # nobody was told of this round yet
        else:
            asking.later.append(waiting)

    def _begin_asking(self, tp: TopicPartition, leader: LeaderState, waiting: list[asyncio.Future[None]]) -> None:
        asking = _Asking(tp, leader, waiting)
        proof = Proof(self._node.logs.fetch_rounds.begin(), leader.electors, partial(self._proven, asking))
        asking.proof = proof
        asking.timer = asyncio.get_running_loop().call_later(PATIENCE_S, self._patience_over, asking)
        self._asking[tp] = asking
        leader.prove(proof)
        partition = self._node.partition(tp)
        if partition is not None:
            partition.ask_replicas()

    def _proven(self, asking: _Asking) -> None:
        self._end(asking)
        _pass(asking.waiting)
        self._begin_later(asking)

    def _patience_over(self, asking: _Asking) -> None:
        self._end(asking)
        asking.leader.give_up(asking.proof)
        _log.info("followers of %s did not show in time that it is led here: the database is asked", asking.tp)
        self._read(asking.tp, asking.leader.leader_epoch, asking.all_waiting())

    def _begin_later(self, asking: _Asking) -> None:
        """Begin the next proof, for who came after the one before had begun."""
        later = [each for each in asking.later if not each.done()]
        if later:
            self._begin_asking(asking.tp, asking.leader, later)

    def _end(self, asking: _Asking) -> None:
        if asking.timer is not None:
            asking.timer.cancel()
        if self._asking.get(asking.tp) is asking:
            del self._asking[asking.tp]

    # --- By the database's word ---------------------------------------------------------------------------------------

    def _read(self, tp: TopicPartition, leader_epoch: int, waiting: list[asyncio.Future[None]]) -> None:
        """Let them wait for a reading that begins from now on."""
        if any(not each.done() for each in waiting):
            self._fresh.begin().add_done_callback(partial(self._was_read, tp, leader_epoch, waiting))

    def _was_read(
        self,
        tp: TopicPartition,
        leader_epoch: int,
        waiting: list[asyncio.Future[None]],
        reading: asyncio.Task[SemelError | None],
    ) -> None:
        if reading.cancelled():
            failure: BaseException | None = RetriableError("the node stops")
        else:
            failure = reading.exception() or reading.result()
        if self._led(tp, leader_epoch) is None:
            _refuse(waiting, _moved(tp, leader_epoch))
        elif failure is None:
            _pass(waiting)
        else:
            why = failure.message if isinstance(failure, SemelError) else repr(failure)
            _refuse(
                waiting,
                f"it can't be told whether {tp} is still led here: its followers don't say so, and the metadata can't "
                f"be read ({why}); try again",
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
            )


class _Asking:
    """A proof by followers on its way, and who waits for it. `later` came after others had been told of its round."""

    __slots__ = ("later", "leader", "proof", "timer", "tp", "waiting")

    proof: Proof

    def __init__(self, tp: TopicPartition, leader: LeaderState, waiting: list[asyncio.Future[None]]) -> None:
        self.tp = tp
        self.leader = leader
        self.waiting = waiting
        self.later: list[asyncio.Future[None]] = []
        self.timer: asyncio.TimerHandle | None = None

    def all_waiting(self) -> list[asyncio.Future[None]]:
        return [*self.waiting, *self.later]


def _electable(state: PartitionState) -> frozenset[int]:
    """Return who may lead without an operator's word."""
    return frozenset((*state.isr, *state.elr))


def _moved(tp: TopicPartition, leader_epoch: int) -> str:
    return f"{tp} is not led here any more under epoch {leader_epoch}; find its coordinator again"


def _pass(waiting: list[asyncio.Future[None]]) -> None:
    for each in waiting:
        if not each.done():
            each.set_result(None)


def _refuse(waiting: list[asyncio.Future[None]], message: str, code: ErrorCode = ErrorCode.NOT_COORDINATOR) -> None:
    for each in waiting:
        if not each.done():
            each.set_exception(RetriableError(message, code))
            each.exception()  # who waited may be gone
