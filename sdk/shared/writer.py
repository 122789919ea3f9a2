"""A writer of a shared transaction: a producer whose identity comes with the transaction, and which cannot decide."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from semel.protocol.api.commit_decisions import CommitDecision
from semel.protocol.api.shared_transactions import LeaveSharedRequest, OpenSharedRequest
from semel.protocol.errors import (
    AbortTransactionError,
    ErrorCode,
    FencedError,
    RetriableError,
    SemelError,
    UsageError,
)
from semel.protocol.ids import NO_PRODUCER, NO_PRODUCER_ID
from semel.sdk.producer.core import ProducerCore, TransactionScope
from semel.sdk.producer.sender import Sender
from semel.sdk.producer.settings import ProducerOptions
from semel.sdk.shared.calls import describe_shared, leave_shared, open_shared
from semel.sdk.transport.client import ClientCore
from semel.sdk.transport.control import Control

_log = logging.getLogger("semel.producer")

_LEAVE_TIMEOUT_MS = 5_000
"""How long closing a writer may ask for its part to be aborted; the decision, or its timeout, does so besides."""

_OF_THE_END = frozenset(
    {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.TRANSACTION_ABORTABLE,
    }
)
"""What a writer is refused with whose part was ended by somebody else."""


@dataclass(frozen=True, slots=True)
class SharedWriterId:
    """A writer that has finished, to be handed to the committer: small, and picklable.

    key, attempt:               the transaction that it wrote in
    producer_id, producer_epoch: its identity; -1 where it has written nothing, so that nothing of it need be committed
    """

    key: str
    attempt: str
    producer_id: int
    producer_epoch: int

    @property
    def has_written(self) -> bool:
        return self.producer_id != NO_PRODUCER_ID


class _State(Enum):
    JOINING = "joining"
    OPEN = "open"
    FINISHING = "finishing"
    FINISHED = "finished"
    FAILED = "failed"
    LEFT = "left"


class SharedPart:
    """One writer's part of a shared transaction. Coroutines run on the IO thread, everything else on any."""

    def __init__(
        self,
        request: OpenSharedRequest,
        control: Control,
        sender: Sender,
        flush: Callable[[], Coroutine[Any, Any, None]],
        abandon: Callable[[SemelError], object],
        on_change: Callable[[], object],
    ) -> None:
        """`flush` waits for everything sent, `abandon` fails it; `on_change` hears when `may_send` may have changed."""
        self._request = request
        self._control = control
        self._sender = sender
        self._flush = flush
        self._abandon = abandon
        self._on_change = on_change
        self._lock = threading.RLock()
        self._state = _State.JOINING
        self._error: SemelError | None = None
        self._is_explained = False
        self._producer = NO_PRODUCER
        self._wrote = False
        self.transactional_id = ""
        self.committed: CommitDecision | None = None

    @property
    def may_send(self) -> bool:
        return self._state is _State.OPEN and self.committed is None

    @property
    def is_open(self) -> bool:
        """Whether closing aborts this part."""
        return self._state in (_State.OPEN, _State.FINISHING, _State.FAILED)

    @property
    def has_finished(self) -> bool:
        return self._state is _State.FINISHED

    def check_sending(self) -> None:
        """Raise what a send is to raise now."""
        with self._lock:
            if self._state is _State.FAILED and self._error is not None:
                raise self._error
            if self.committed is not None:
                raise UsageError(
                    f"token {self._request.token!r} of {self._request.key!r} is committed already, so there is nothing "
                    "to write; look at `writer.committed` (or `shared.committed`) first"
                )
            if self._state is not _State.OPEN:
                raise UsageError(f"this writer is {self._state.value}; join again for another one")

    def scope_failed(self, error: SemelError) -> None:
        """A record failed for good: this writer's part can't be committed any more."""
        self._move(_State.FAILED, only_from=(_State.OPEN, _State.FINISHING), error=error)

    async def join(self) -> None:
        """Get an identity from the coordinator, or learn that there is nothing to do."""
        response = await open_shared(self._control, self._request)
        self.committed = response.committed
        if response.producer is not None:
            self.transactional_id = response.transactional_id
            self._producer = response.producer
            self._sender.set_producer(response.producer)
        self._move(_State.OPEN, only_from=(_State.JOINING,))

    async def finish(self) -> None:
        """Wait until everything is acknowledged. Raises why the part can't be committed."""
        if self._state is _State.FINISHED:
            return
        self._move(_State.FINISHING, only_from=(_State.OPEN,))
        try:
            await self.flush()
        except RetriableError as error:
            raise AbortTransactionError(f"this writer can't finish: {error.message}", error.code) from error
        with self._lock:
            if self._state is not _State.FINISHING:
                raise UsageError(f"this writer is {self._state.value}: its part of the transaction is not committed")
            self._wrote = self._sender.sent_any
            self._state = _State.FINISHED

    async def flush(self) -> None:
        """Wait until everything sent is acknowledged. Raises why the part can't be committed."""
        await self._flush()
        if self._error is not None:
            if self._error.code in _OF_THE_END and not self._is_explained:
                self._error = await self._explained(self._error)
                self._is_explained = True
                _log.warning("not delivered: %s", self._error)
            raise self._error

    def identity(self) -> SharedWriterId:
        key, attempt = self._request.key, self._request.attempt
        return SharedWriterId(key, attempt, *(self._producer if self._wrote else NO_PRODUCER))

    async def abort(self) -> None:
        """End this part uncommitted. Where the node can't be told, the decision or the timeout does it."""
        if not self.is_open:
            return
        self._move(_State.LEFT)
        self._abandon(AbortTransactionError("the writer was closed before it finished"))
        if self._producer == NO_PRODUCER:
            return
        request = LeaveSharedRequest(self._request.key, self._request.attempt, self._producer)
        try:
            await leave_shared(self._control, request, _LEAVE_TIMEOUT_MS)
        except SemelError as error:
            _log.info("a writer of %r left without saying so: %s", self._request.key, error)

    def _move(
        self, state: _State, *, only_from: tuple[_State, ...] | None = None, error: SemelError | None = None
    ) -> None:
        with self._lock:
            if only_from is not None and self._state not in only_from:
                return
            self._state = state
            self._error = self._error or error
        self._on_change()

    async def _explained(self, error: SemelError) -> SemelError:
        """Say who has ended this part: that decides what the caller should do."""
        key, attempt = self._request.key, self._request.attempt
        try:
            found = await describe_shared(self._control, key)
        except SemelError as unknown:
            _log.debug("who has ended %r is not known: %s", key, unknown)
            return error
        if found.attempt == attempt:
            return AbortTransactionError(
                f"this writer's part of {key!r} timed out after {self._request.timeout_ms} ms (timeout_ms), or was "
                f"aborted: let another writer join and write it again ({error.message})",
                ErrorCode.TRANSACTION_ABORTABLE,
            )
        if any(decision.attempt == attempt for decision in found.decisions):
            why = "it was committed without this writer"
        else:
            why = f"attempt {found.attempt!r} has taken its place" if found.attempt else "it was ended"
        return FencedError(f"attempt {attempt!r} of {key!r} is over: {why}; stop", ErrorCode.PRODUCER_FENCED)


class SharedWriterCore(ProducerCore):
    """A producer's core that writes in a shared transaction."""

    def __init__(
        self, options: ProducerOptions, request: OpenSharedRequest, *, blocking: bool, client: ClientCore | None
    ) -> None:
        self._request = request
        options = replace(options, sender=replace(options.sender, transactional=True))
        super().__init__(options, blocking=blocking, client=client)

    def _tell_failure(self, error: SemelError) -> None:
        """Say it once, when it is known who has ended the part: it comes for each partition, in a node's own words."""
        if error.code not in _OF_THE_END:
            super()._tell_failure(error)

    def _make_scope(self) -> TransactionScope:
        self.shared = SharedPart(
            self._request, self.client.control, self.sender, self.flush, self.abandon, self.update_gate
        )
        return self.shared
