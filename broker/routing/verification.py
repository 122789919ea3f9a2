"""Asks the coordinator of a transaction about its partitions, on whichever node it is (T8).

Of each node there is one question at a time about what to verify, and one about what to add; the next carries all that
came meanwhile. Its answer comes from there and passes the barrier there (R9). A question that fails is answered with
NETWORK_EXCEPTION, or what the other node says: the producer asks again, and by then the metadata was read again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import replace
from typing import Final, NamedTuple

from semel.broker.peers.peers import Peers
from semel.broker.peers.requests import AskTransactions
from semel.broker.routing.fresh_image import FreshImage
from semel.broker.services import Services
from semel.protocol.api.transactions import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse
from semel.protocol.errors import ErrorCode, RetriableError, SemelError
from semel.protocol.ids import NO_LEADER, TRANSACTIONS_TOPIC, TopicPartition

_log = logging.getLogger("semel.routing")

BATCH_PARTITIONS_MAX: Final = 10_000
"""Of all transactions in one request, where it has more than one."""
QUEUED_MAX: Final = 100_000
"""Questions about transactions that wait for one node. More are refused, and their producers try again."""

_MOVED: Final = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})


class VerificationRouter:
    """The word of transaction coordinators, for handlers of batches and coordinators of groups on this node."""

    def __init__(self, node: Services, peers: Peers, fresh: FreshImage) -> None:
        self._node = node
        self._peers = peers
        self._fresh = fresh
        self._lanes: dict[tuple[int, bool], _Lane] = {}

    async def check_batches(self, request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
        """See `TransactionCoordinator.check_batches`."""
        coordinator = self._coordinator_of(request.transactional_id)
        if coordinator is None:
            return await self._node.transactions.check_batches(request)
        return await self._ask(coordinator, request)

    async def add_partitions(self, request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
        """See `TransactionCoordinator.add_partitions`."""
        coordinator = self._coordinator_of(request.transactional_id)
        if coordinator is None:
            return await self._node.transactions.add_partitions(request)
        return await self._ask(coordinator, request)

    async def verify(self, request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
        """See `TransactionCoordinator.verify`."""
        coordinator = self._coordinator_of(request.transactional_id)
        if coordinator is None:
            return await self._node.transactions.verify(request)
        return await self._ask(coordinator, request)

    def close(self) -> None:
        """Ask no more; who waits is refused."""
        for lane in self._lanes.values():
            lane.close()

    def _coordinator_of(self, transactional_id: str) -> int | None:
        """Return the other node that coordinates an id; None where it is this one, or nobody knows.

        Raises COORDINATOR_NOT_AVAILABLE while no node does.
        """
        metadata = self._node.metadata
        image = metadata.image
        if len(image.brokers) < 2 or metadata.topic(TRANSACTIONS_TOPIC) is None:
            return None
        place = TopicPartition(TRANSACTIONS_TOPIC, self._node.transactions.partition_for(transactional_id))
        state = image.partition(place)
        if state is None or state.leader == self._node.config.node_id:
            return None
        if state.leader == NO_LEADER:
            self._fresh.begin()
            raise RetriableError(f"{place} has no leader now: try again", ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return state.leader

    async def _ask(self, node_id: int, request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
        if not request.topic_ids:
            # By its own metadata the other node may know another topic by a name (R8).
            names = {tp.topic for tp in request.partitions}
            image = self._node.metadata.image
            known = {name: topic.topic_id for name in names if (topic := image.topic(name)) is not None}
            request = replace(request, topic_ids=known)
        key = node_id, request.verify_only
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = _Lane(node_id, self._peers)
        try:
            response = await lane.ask(request)
        except SemelError:
            self._fresh.begin()
            raise
        if not _MOVED.isdisjoint(response.errors.values()):
            self._fresh.begin()
        return response


class _Waiting(NamedTuple):
    request: AddPartitionsToTxnRequest
    answer: asyncio.Future[AddPartitionsToTxnResponse]


class _Lane:
    """Questions of one kind to one node."""

    def __init__(self, node_id: int, peers: Peers) -> None:
        self._node_id = node_id
        self._peers = peers
        self._queue: deque[_Waiting] = deque()
        self._task: asyncio.Task[None] | None = None

    async def ask(self, request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
        """Raises `RetriableError`."""
        if len(self._queue) >= QUEUED_MAX:
            raise RetriableError(
                f"{QUEUED_MAX} questions about transactions wait for node {self._node_id} already",
                ErrorCode.NETWORK_EXCEPTION,
            )
        loop = asyncio.get_running_loop()
        waiting = _Waiting(request, loop.create_future())
        self._queue.append(waiting)
        if self._task is None:
            self._task = loop.create_task(self._run(), name=f"verify at node {self._node_id}")
        return await waiting.answer

    async def _run(self) -> None:
        batch: list[_Waiting] = []
        try:
            while batch := self._next_batch():
                await self._ask_about(batch)
        finally:
            self._task = None
            for waiting in (*batch, *self._queue):
                if not waiting.answer.done():
                    waiting.answer.set_exception(
                        RetriableError("this node asks no more", ErrorCode.COORDINATOR_NOT_AVAILABLE)
                    )
            self._queue.clear()

    def _next_batch(self) -> list[_Waiting]:
        """Take from the queue what fits in one request. Those who gave up are passed over."""
        batch: list[_Waiting] = []
        partitions = 0
        while self._queue:
            waiting = self._queue[0]
            if not waiting.answer.done():
                partitions += len(waiting.request.partitions)
                if batch and partitions > BATCH_PARTITIONS_MAX:
                    break
                batch.append(waiting)
            self._queue.popleft()
        return batch

    async def _ask_about(self, batch: list[_Waiting]) -> None:
        try:
            answers = await self._peers.ask(self._node_id, AskTransactions([each.request for each in batch]))
        except SemelError as error:
            _log.info("node %d could not be asked about transactions: %s", self._node_id, error.message)
            for waiting in batch:
                if not waiting.answer.done():
                    waiting.answer.set_exception(RetriableError(error.message, ErrorCode.NETWORK_EXCEPTION))
            return
        for waiting, errors in zip(batch, answers, strict=True):
            if not waiting.answer.done():
                waiting.answer.set_result(AddPartitionsToTxnResponse(errors))

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
