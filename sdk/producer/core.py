"""The producer behind its sync and its asyncio API: the shell that feeds the sender and asks the coordinator."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from functools import partial
from typing import Any, Protocol, cast

from semel.protocol.api.metadata import NodeDescription
from semel.protocol.api.producer_ids import InitProducerIdRequest
from semel.protocol.errors import (
    ErrorCode,
    FatalError,
    RetriableError,
    SemelError,
    UsageError,
)
from semel.protocol.ids import TopicPartition
from semel.protocol.kafka.produce import (
    ACKS_NONE,
    PRODUCE,
    PRODUCE_MAX_VERSION,
    PRODUCE_MIN_VERSION,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
)
from semel.protocol.randomness import source
from semel.protocol.trace_context import encode_contexts
from semel.protocol.wording import counted
from semel.runtime.kafka_client.connection import Buffer, Connection, ConnectionLostError
from semel.sdk.producer.accumulator import Accumulator
from semel.sdk.producer.delivery import ProducerBatch
from semel.sdk.producer.meter import producer_meter
from semel.sdk.producer.sender import Attempt, Outcome, Sender
from semel.sdk.producer.settings import ProducerOptions
from semel.sdk.producer.transaction_calls import TransactionCalls, init_producer_id
from semel.sdk.producer.waiters import Waiters
from semel.sdk.telemetry import metrics
from semel.sdk.transport.border import unseen
from semel.sdk.transport.client import ClientCore
from semel.sdk.transport.in_process import NodeGoneError

_log = logging.getLogger("semel.producer")

_TRANSACTIONAL_VERSION_MIN = 12
"""The first version of Produce in which the node adds partitions to the transaction itself (KIP-890)."""

_FAILURES_BEFORE_WARNING = 5

_FENCED = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH})


class NoRoomError(Exception):
    """Raised through `send` to the asyncio API, which waits in place of the thread."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes


class NoTopicError(Exception):
    """Raised through `send` to the asyncio API, which asks for the topic in place of the thread."""


class TransactionScope(Protocol):
    """What the records of a producer with a transactional id belong to: its own transaction, or one that is shared."""

    @property
    def transactional_id(self) -> str: ...

    @property
    def may_send(self) -> bool: ...

    @property
    def is_open(self) -> bool:
        """Whether there is something that `abort` would end."""
        ...

    def check_sending(self) -> None:
        """Raise what a send is to raise now."""
        ...

    def scope_failed(self, error: SemelError) -> None:
        """A record failed for good."""
        ...

    async def abort(self) -> None: ...


class ProducerCore:
    """One producer. Public methods without `async` may be called from any thread; the others run on the IO thread."""

    def __init__(
        self,
        options: ProducerOptions,
        *,
        blocking: bool,
        client: ClientCore | None = None,
    ) -> None:
        """`blocking` says whether `send` may wait on the thread that calls it.

        client: whose thread and connections to use, and leave open at the end; None: the producer has its own
        """
        self.options = options
        self._owns_client = client is None
        self.client = ClientCore("Producer", options.client) if client is None else client
        self._now = self.client.clock.monotonic
        self._blocking = blocking
        self.accumulator = Accumulator(
            options.accumulator,
            self.client.clock,
            partitioner=options.partitioner,
            key_serializer=options.key_serializer,
            value_serializer=options.value_serializer,
            client_id=options.client.client_id,
            seed=source().getrandbits(30),
        )
        self.accumulator.open_topic = self._open_topic
        self.accumulator.wait_room = self._wait_room
        self.accumulator.wake = self._wake
        self.accumulator.refuse = self._refuse
        self.sender = Sender(self.accumulator, options.sender, self._leader_of, self._batch_failed)
        self.transactions: TransactionCalls | None = None
        self.scope: TransactionScope | None = self._make_scope()
        self.meter = producer_meter(self.client.clock)
        if self.meter is not None:
            metrics.producers.add(self)
        self._waiters = Waiters(
            self.accumulator, self.client.io, self._hurry, options.accumulator.buffer_memory_bytes, options.max_block_ms
        )
        self._closing = False
        self._was_dropped = False
        self._stopped = False
        self._timer: asyncio.TimerHandle | None = None
        self._step_soon = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._connecting: set[int] = set()
        self._asking_metadata = False
        self._asking_producer = False
        self._failed_count = 0
        self._first_failure: SemelError | None = None
        self.update_gate()

    def _make_scope(self) -> TransactionScope | None:
        options = self.options
        if options.transactional_id is None:
            return None
        self.transactions = TransactionCalls(
            options.transactional_id,
            options.transaction_timeout_ms,
            options.client,
            self.client.control,
            self.sender,
            self.flush,
            self.abandon,
            self.update_gate,
            self.client.coordinator_connection,
            two_phase=options.two_phase,
        )
        return self.transactions

    # the gate: whether `send` goes through

    def update_gate(self) -> None:
        scope = self.scope
        is_gone = self._closing or self._was_dropped or self.client.io.closed
        if self.transactions is not None:
            self.accumulator.transaction_context = self.transactions.context
        self.accumulator.gate_closed = is_gone or (scope is not None and not scope.may_send)

    def drop(self) -> None:
        """Refuse further sends: nobody has the producer any more, and it is about to be closed."""
        self._was_dropped = True
        self.update_gate()

    @property
    def is_closed(self) -> bool:
        """Whether the end has come, also where the client lives on."""
        return self._stopped or self.client.io.closed

    def check_open(self) -> None:
        """Raise `UsageError` after close, and in a forked child."""
        self.client.io.check()
        if self._closing:
            raise UsageError("this Producer is closed; make a new one")

    @unseen
    def _refuse(self) -> None:
        """Raise what a send is to raise now."""
        if self._was_dropped:
            raise UsageError(
                "nothing was sent: this Producer was closed when the last reference to it went; keep it in a variable, "
                "best in a with-block: `with semel.Producer(...) as producer: producer.send(...)`"
            )
        self.check_open()
        if self.scope is not None:
            self.scope.check_sending()
        raise RetriableError("the transaction changed while a record was sent into it")

    # --- Waiting on the threads that send -----------------------------------------------------------------------------

    @unseen
    def _open_topic(self, topic: str) -> None:
        self.client.io.check()
        if not self._blocking:
            raise NoTopicError(topic)
        self.client.run(self.open_topic(topic), self.options.max_block_ms + 1_000)

    @unseen
    def _wait_room(self, size_bytes: int) -> None:
        if not self._blocking:
            raise NoRoomError(size_bytes)
        self._waiters.wait_room_blocking(size_bytes)

    def _wake(self) -> None:
        self.client.io.call_soon(self._step)

    # --- The IO thread ------------------------------------------------------------------------------------------------

    async def open_topic(self, topic: str) -> None:
        """Make a topic known to the accumulator. Raises `FatalError` if there is none of that name."""
        cluster, timeout_ms = self.client.cluster, self.options.max_block_ms
        if cluster.is_stale and topic in cluster.snapshot.topics:
            await cluster.refresh([topic], timeout_ms=timeout_ms)  # of a client that others have used long ago
        info = await cluster.topic(topic, timeout_ms=timeout_ms, allow_auto_create=self.options.auto_create_topics)
        self.accumulator.add_topic(topic, len(info.partitions))

    async def partition_count(self, topic: str) -> int:
        """Return how many partitions a topic has, as far as is known. Raises `FatalError` if there is no such topic."""
        if not self.accumulator.knows(topic):
            await self.open_topic(topic)
        return self.accumulator.partition_count(topic)

    async def wait_room(self, size_bytes: int) -> None:
        """Wait until a record of this size would be taken. Raises `RetriableError` after max_block_ms."""
        await self._waiters.wait_room(size_bytes)

    async def flush(self) -> None:
        """Wait until everything sent before is acknowledged or has failed."""
        await self._waiters.flush()

    def buffer_bytes(self) -> tuple[int, int]:
        """Return how much memory holds records, and the bound."""
        return self.accumulator.buffered_bytes, self.options.accumulator.buffer_memory_bytes

    def take_failures(self) -> SemelError | None:
        """Return an error for what has failed since the last call, or None."""
        count, first = self._failed_count, self._first_failure
        self._failed_count, self._first_failure = 0, None
        if first is None:
            return None
        return type(first)(
            f"{counted(count, 'record')} sent since the last flush failed, the first of them: {first.message}",
            first.code,
        )

    def _hurry(self) -> None:
        """Let nothing linger that is buffered now."""
        self.sender.flush_serial = self.accumulator.last_serial
        self._step()

    def _now_ms(self) -> int:
        return int(self._now() * 1000)

    def _step_later(self) -> None:
        if not self._step_soon:
            self._step_soon = True
            asyncio.get_running_loop().call_soon(self._step)

    def _step(self) -> None:
        self._step_soon = False
        if self._stopped:
            return
        now_ms = self._now_ms()
        sender = self.sender
        try:
            for attempt in sender.poll(now_ms, self._room_at):
                self._transmit(attempt)
            for node_id in sender.wanted_nodes:
                if node_id not in self._connecting and self.client.connections.opened(node_id) is None:
                    self._connecting.add(node_id)
                    self._spawn(self._connect(node_id))
            sender.wanted_nodes.clear()
            if (sender.wants_metadata or self.client.cluster.is_stale) and not self._asking_metadata:
                self._asking_metadata = True
                sender.wants_metadata = False
                self._spawn(self._refresh())
            if sender.wants_producer and not self._asking_producer and self.scope is None:
                self._asking_producer = True
                self._spawn(self._new_producer_id())
        finally:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            wake_ms = sender.next_wake_ms
            if wake_ms is not None:
                delay_s = max(wake_ms - now_ms, 1) / 1000
                self._timer = asyncio.get_running_loop().call_later(delay_s, self._step)
        self._waiters.settle()

    def _room_at(self, node_id: int) -> int:
        connection = self.client.connections.opened(node_id)
        if connection is None:
            return 0
        return self.options.client.connection_in_flight_max - connection.in_flight

    def _leader_of(self, tp: TopicPartition) -> int | None:
        info = self.client.cluster.snapshot.leader(tp)
        return None if info is None else info.leader_id

    def _transmit(self, attempt: Attempt) -> None:
        options = self.options
        attempt.batches.sort(key=lambda batch: batch.topic)
        request = ProduceRequest(
            [ProducePartition(batch.topic, batch.partition, batch.data) for batch in attempt.batches],
            None if self.scope is None else self.scope.transactional_id,
            options.acks,
            options.client.request_timeout_ms,
        )
        connection = self.client.connections.opened(attempt.node_id)
        trace = self._trace(attempt)
        if self.meter is not None:
            self.meter.sending(attempt)
        try:
            if connection is None:
                raise RetriableError(f"no connection to node {attempt.node_id}", ErrorCode.BROKER_NOT_AVAILABLE)
            version = self._version(connection)
            body = cast(list[Buffer], request.build_parts(version))
            if options.acks == ACKS_NONE:
                connection.send_unanswered(PRODUCE, version, body, trace=trace)
                outcomes = {TopicPartition(batch.topic, batch.partition): _SENT for batch in attempt.batches}
                if self.meter is not None:
                    self.meter.answered(attempt, outcomes)
                self.sender.answered(attempt, outcomes, self._now_ms())
                self._step_later()
                return
            timeout_ms = options.client.request_timeout_ms
            future = connection.request(PRODUCE, version, body, timeout_ms=timeout_ms, trace=trace)
        except RetriableError as error:
            if self.meter is not None:
                self.meter.lost(attempt)
            self.sender.lost(attempt, error, self._now_ms())
            return
        except SemelError as error:
            self._fail(attempt, error)
            return
        future.add_done_callback(partial(self._answered, attempt, version))

    def _trace(self, attempt: Attempt) -> bytes:
        """Return the trace contexts of a request's batches, and begin the spans of those that go out first."""
        tracer = self.accumulator.tracer
        if tracer is None:
            return b""
        transactions = self.transactions
        contexts = []
        for batch in attempt.batches:
            if batch.attempts == 1:
                batch.sent_in = tracer.sending(batch, None if transactions is None else transactions.context)
                if transactions is not None:
                    transactions.note_sent(TopicPartition(batch.topic, batch.partition), batch.record_count)
            contexts.append(batch.sent_in)
        return encode_contexts(contexts) if any(context is not None for context in contexts) else b""

    def _version(self, connection: Connection) -> int:
        if self.scope is None:
            return connection.highest_version(PRODUCE, PRODUCE_MIN_VERSION, PRODUCE_MAX_VERSION)
        return connection.highest_version(PRODUCE, _TRANSACTIONAL_VERSION_MIN, PRODUCE_MAX_VERSION)

    def _answered(self, attempt: Attempt, version: int, future: asyncio.Future[memoryview]) -> None:
        now_ms = self._now_ms()
        try:
            response = ProduceResponse.parse(future.result(), version)
        except (SemelError, asyncio.CancelledError) as error:
            _log.debug("no answer of node %d: %s", attempt.node_id, error)
            lost = (
                error if isinstance(error, ConnectionLostError) else ConnectionLostError(f"unreadable answer: {error}")
            )
            if self.meter is not None:
                self.meter.lost(attempt)
            self.sender.lost(attempt, lost, now_ms)
        else:
            self._take_leaders(response)
            if response.throttle_time_ms > 0 and (connection := self.client.connections.opened(attempt.node_id)):
                connection.note_throttle(response.throttle_time_ms)
            outcomes = {
                TopicPartition(item.topic, item.partition): Outcome(
                    item.error, item.base_offset, item.log_append_time_ms, item.error_message
                )
                for item in response.partitions
            }
            if self.meter is not None:
                self.meter.answered(attempt, outcomes)
            self.sender.answered(attempt, outcomes, now_ms)
        self._step_later()

    def _take_leaders(self, response: ProduceResponse) -> None:
        if not response.node_endpoints:
            return
        nodes = {node.node_id: node for node in response.node_endpoints}
        for item in response.partitions:
            node = nodes.get(item.leader_id)
            if node is not None:
                known = self.client.cluster.snapshot.nodes.get(node.node_id)
                info = known or NodeDescription(node.node_id, node.host, node.port, "", 0, node.rack or "")
                tp = TopicPartition(item.topic, item.partition)
                self.client.cluster.apply_leader(tp, item.leader_id, item.leader_epoch, info)

    def _fail(self, attempt: Attempt, error: SemelError) -> None:
        """Nothing of this request can ever be sent (a node that is too old)."""
        outcomes = {
            TopicPartition(batch.topic, batch.partition): Outcome(error.code, message=error.message)
            for batch in attempt.batches
        }
        if self.meter is not None:
            self.meter.lost(attempt)
        self.sender.answered(attempt, outcomes, self._now_ms())
        self._step_later()

    def _give_up(self, error: SemelError) -> None:
        """Fail everything that is not acknowledged: the node is gone for good."""
        left = self.accumulator.incomplete_records()
        self.sender.abandon(error)
        if left:
            self._failed_count += left
            self._first_failure = self._first_failure or error
            if self.scope is not None:
                self.scope.scope_failed(error)

    def _batch_failed(self, batch: ProducerBatch, error: SemelError) -> None:
        self._failed_count += batch.record_count
        if self._first_failure is None:
            self._first_failure = error
        if self.meter is not None:
            self.meter.failed(batch, error.code)
        self._tell_failure(error)
        if self.scope is not None:
            self.scope.scope_failed(error)

    def _tell_failure(self, error: SemelError) -> None:
        """Log that a batch is given up. Ending its transaction says that another instance has come (T5)."""
        is_told = self.transactions is not None and error.code in _FENCED
        _log.log(logging.INFO if is_told else logging.WARNING, "not delivered: %s", error)

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, node_id: int) -> None:
        try:
            await self.client.connections.get(node_id)
        except RetriableError as error:
            failures = self.client.connections.failures(node_id)
            level = logging.WARNING if failures == _FAILURES_BEFORE_WARNING else logging.DEBUG
            _log.log(level, "no connection to node %d, retrying: %s", node_id, error)
            self.sender.wants_metadata = True
        except FatalError as error:  # it wants another user than the node, or another proof
            self._give_up(error)
        finally:
            self._connecting.discard(node_id)
            self._step_later()

    async def _refresh(self) -> None:
        """Ask where everything is, and fail what is for topics that are gone."""
        cluster = self.client.cluster
        before = cluster.snapshot.topics
        try:
            after = (await cluster.refresh(timeout_ms=self.options.client.request_timeout_ms)).topics
        except NodeGoneError as error:
            self._give_up(error)
        except SemelError as error:
            _log.debug("no metadata: %s", error)
            await asyncio.sleep(self.options.client.retry_backoff_ms / 1000)
            self.sender.wants_metadata = True
        else:
            for name in before.keys() - after.keys():
                cluster.forget([name])
                self.accumulator.remove_topic(name)
                gone = FatalError(f"topic {name!r} was deleted", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                self.sender.fail_topic(name, gone)
            for name, info in after.items():
                if self.accumulator.knows(name):
                    self.accumulator.add_topic(name, len(info.partitions))
            await asyncio.sleep(self.options.client.retry_backoff_ms / 1000)  # not more often than that
        finally:
            self._asking_metadata = False
            self._step_later()

    # --- Producer ids and transactions --------------------------------------------------------------------------------

    async def _new_producer_id(self) -> None:
        try:
            timeout_ms = self.options.client.request_timeout_ms
            response = await init_producer_id(self.client.control, InitProducerIdRequest(None, 0), timeout_ms)
            self.sender.set_producer(response.producer)
        except RetriableError as error:
            _log.debug("no producer id yet: %s", error)
        except SemelError as error:
            _log.error("no producer id: %s", error)
            self.sender.abandon(error)
            self._failed_count += 1
            self._first_failure = self._first_failure or error
        finally:
            self._asking_producer = False
            self._step_later()

    def transactional(self) -> TransactionCalls:
        """Return the transactions. Raises `UsageError` for a producer without, after close, and after a fork."""
        self.client.io.check()
        if self.transactions is None:
            raise UsageError(
                'this Producer has no transactional_id; make it with Producer(..., transactional_id="name"), a name '
                "that stays the same when the process restarts"
            )
        return self.transactions

    def two_phase(self) -> TransactionCalls:
        """Return the transactions of a two-phase producer. Raises `UsageError` for any other."""
        transactions = self.transactional()
        if not transactions.is_two_phase:
            raise UsageError(
                "prepared transactions are for somebody outside to decide about, so they never time out; say that with "
                "Producer(..., transactional_id=..., two_phase=True)"
            )
        return transactions

    @property
    def needs_initializing(self) -> bool:
        """Whether the next transaction must first get its identity from the coordinator, as it does on its own."""
        transactions = self.transactions
        return transactions is not None and transactions.needs_initializing and not transactions.is_two_phase

    def begin(self) -> None:
        """Open a transaction. `initialize` must have run."""
        transactions = self.transactional()
        if self._closing:
            raise UsageError("this Producer is closed; make a new one")
        if transactions.needs_initializing:
            raise UsageError(
                "a two-phase producer is not initialised on its own, which would abort what is prepared: call "
                "init_transactions(keep_prepared=True), and complete_transaction() for what that returns"
            )
        transactions.begin()

    def abandon(self, error: SemelError) -> None:
        """Fail everything that is not acknowledged, and forget what has failed."""
        self.sender.abandon(error)
        self.take_failures()
        self._step()

    # --- The end ------------------------------------------------------------------------------------------------------

    def begin_close(self) -> bool:
        """Refuse further sends. Returns False if the producer is closed already, or is another process's."""
        if self.client.io.closed or self.client.io.forked or self._closing:
            return False
        if self.client.io.on_thread():
            raise UsageError("close() was called inside a delivery callback, where it could never end; close elsewhere")
        self._closing = True
        self.update_gate()
        return True

    async def finish(self) -> None:
        """Bring to the node what was sent; abort a transaction that is open."""
        if self.scope is not None and self.scope.is_open:
            await self.scope.abort()
        else:
            await self.flush()

    def close(self, timeout_s: float | None = None) -> None:
        """Refuse further sends, finish, and stop, waiting on this thread. Raises what failed since the last flush."""
        if not self.begin_close():
            return
        failure: SemelError | None = None
        try:
            self.client.run(self.finish(), None if timeout_s is None else timeout_s * 1000)
        except SemelError as error:
            failure = error
        finally:
            self.end_close()
        failure = self.take_failures() or failure
        if failure is not None:
            raise failure

    def end_close(self) -> None:
        """Fail what is left, and stop the thread."""

        async def abandon() -> None:
            self._stopped = True
            if self._timer is not None:
                self._timer.cancel()
            self.sender.close()
            if self.meter is not None:
                metrics.producers.discard(self)
                self.meter.publish()
            self._waiters.settle()

        if not self.client.io.closed and not self.client.io.forked:
            self.client.run(abandon())
        if self._owns_client:
            self.client.close()
        self.update_gate()


_SENT = Outcome(ErrorCode.NONE)
