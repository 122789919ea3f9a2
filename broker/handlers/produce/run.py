"""One Produce request on its way: answers arrive partition by partition, the last of them completes the response."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeAlias

from semel.broker.log.append_validation import CheckedBatch
from semel.protocol.errors import ErrorCode, SemelError, error_for
from semel.protocol.ids import TopicPartition
from semel.protocol.kafka.produce import ProducePartition, ProducePartitionResponse, ProduceRequest, ProduceResponse
from semel.protocol.wording import counted

if TYPE_CHECKING:
    from semel.broker.handlers.produce.confirmations import Confirmations
    from semel.broker.logs.partition import Partition

Done = Callable[[ProduceResponse], None]

Appended: TypeAlias = "tuple[ProducePartitionResponse, Partition | None, int, bool]"
"""An answer, the partition and offset whose commit it has to wait for (if any), and whether it was a duplicate."""


def is_doubtful(answer: ProducePartitionResponse) -> bool:
    """Return whether a batch is refused as only a node may that leads (P2)."""
    return answer.error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


class Answers(Protocol):
    """What a request needs of the handler."""

    timed_out_requests: int
    confirmations: Confirmations | None
    """What is asked before a batch is refused as out of order; None where the node is alone."""

    def refusal(self, item: ProducePartition, error: SemelError, version: int) -> ProducePartitionResponse:
        """Count a refused batch, and return the answer to it."""
        ...


class ProduceRun:
    """One request on its way: an answer for each partition, and how many are still to come."""

    __slots__ = (
        "_done",
        "_loop",
        "_pending",
        "_responses",
        "_timer",
        "_waits",
        "checked",
        "handler",
        "request",
        "version",
    )

    def __init__(self, handler: Answers, request: ProduceRequest, version: int, done: Done) -> None:
        self.handler = handler
        self.request = request
        self.version = version
        self.checked: dict[int, CheckedBatch] | None = None
        """Batches that were checked before they can be appended, by their place."""
        self._done: Done | None = done
        self._responses: list[ProducePartitionResponse | None] = [None] * len(request.partitions)
        self._pending = len(request.partitions)
        self._timer: asyncio.TimerHandle | None = None
        self._waits: dict[int, Partition] = {}
        """Whose commits are waited for, by place."""
        self._loop: asyncio.AbstractEventLoop | None = None

    def settle(self, index: int, response: ProducePartitionResponse) -> None:
        """Take the answer for one partition. Only the first counts."""
        if self._responses[index] is not None:
            return
        self._responses[index] = response
        self._pending -= 1
        if self._pending == 0 and self._loop is not None:
            self._finish()

    def fail(self, index: int, error: SemelError, base_offset: int = -1) -> None:
        """Answer one partition with an error. base_offset: of a batch that was appended, and may yet be committed."""
        answer = self.handler.refusal(self.request.partitions[index], error, self.version)
        answer.base_offset = base_offset
        self.settle(index, answer)

    def fail_all(self, code: ErrorCode, message: str) -> None:
        for index in range(len(self._responses)):
            if self._responses[index] is None:
                self.fail(index, error_for(code, message))

    def result(self) -> ProduceResponse | None:
        """Return the response if it is complete; otherwise `done` is called with it later."""
        if self._pending == 0:
            return self._response()
        self._loop = asyncio.get_running_loop()
        return None

    def take(self, index: int, appended: Appended) -> None:
        """Take what became of one partition's batch; where it is to be waited for, answer once it is committed."""
        answer, partition, offset, _ = appended
        if partition is None:
            confirmations = self.handler.confirmations
            if confirmations is not None and is_doubtful(answer):
                error = error_for(answer.error, answer.error_message or "")
                confirmations.begin(self, index, error, TopicPartition(answer.topic, answer.partition))
            else:
                self.settle(index, answer)
            return

        def committed(error: SemelError | None) -> None:
            if error is None:
                self.settle(index, answer)
            else:
                self.fail(index, error, answer.base_offset)

        partition.when_committed(offset, committed)
        if self._responses[index] is None:
            self._waits[index] = partition
            if self._timer is None:
                timeout_s = max(self.request.timeout_ms, 0) / 1000
                self._timer = asyncio.get_running_loop().call_later(timeout_s, self._timed_out)

    def _timed_out(self) -> None:
        self._timer = None
        self.handler.timed_out_requests += 1
        for index, partition in self._waits.items():
            leader = partition.leader
            if self._responses[index] is None and leader is not None and leader.lacks_replicas:
                # As good as a time-out to clients, and it says why (R2).
                self.fail(
                    index,
                    error_for(
                        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
                        f"the batch was appended, and {partition.tp} has {counted(len(leader.isr), 'replica')} in "
                        f"sync, fewer than min.insync.replicas={leader.effective_min_isr}; it may still be committed "
                        "when more are. `semel doctor` names the nodes that are away",
                    ),
                )
        self.fail_all(
            ErrorCode.REQUEST_TIMED_OUT,
            f"the batch was not durable within timeout_ms={self.request.timeout_ms}; it may still become so",
        )

    def _response(self) -> ProduceResponse:
        return ProduceResponse([response for response in self._responses if response is not None])

    def _finish(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        done, self._done = self._done, None
        if done is not None:
            done(self._response())
