"""A whole broker in the test process: both listeners, real transactions and groups, a disk in memory."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import os
import uuid
from collections.abc import Callable, Coroutine, Mapping
from functools import cached_property
from types import MappingProxyType, TracebackType
from typing import Any, Final, Self, TypeVar

from semel.broker.config.node_config import attribute_of
from semel.broker.config.sources import LoadedConfig, load_config
from semel.broker.handlers.topics.changes import create_topics, delete_topics
from semel.broker.node import Listener, Node
from semel.protocol.api.groups import OffsetFetchRequest
from semel.protocol.api.producer_ids import InitProducerIdRequest
from semel.protocol.api.topics import IsolationLevel, NewTopic
from semel.protocol.api.transactions import DescribeTransactionRequest
from semel.protocol.errors import ErrorCode, RetriableError, SemelError, UsageError, error_for
from semel.protocol.ids import TopicPartition
from semel.protocol.record_decoder import Record
from semel.protocol.schemes import without_scheme
from semel.runtime.inline_executor import InlineExecutor
from semel.runtime.simulated_storage import SimulatedStorage
from semel.sdk.embedded.hosted_node import HostedNode
from semel.sdk.testing.clock import BrokerClock
from semel.sdk.testing.fault import Fault
from semel.sdk.testing.interceptor import FaultInterceptor, Loss
from semel.sdk.testing.lasting_listeners import addresses_again, give_lasting_addresses, main_address
from semel.sdk.testing.memory_data import FOLDER, MemoryData, Unsynced
from semel.sdk.testing.settings import DEFAULTS, START_TIMEOUT_S, STOP_GRACE_MS, setting_name
from semel.sdk.testing.stored_records import partitions_of, read_records
from semel.sdk.testing.users import MECHANISMS, BrokerUsers

_OWN_SETTINGS: Final = ("data.dir", "metadata.url")
_FENCE_TIMEOUT_MS: Final = 60_000
_PAUSE_S: Final = 0.001
_FENCE_PATIENCE_S: Final = 30.0
_MARKERS_PATIENCE_S: Final = 5.0

_Result = TypeVar("_Result")


class Broker:
    """A broker in this process, on a thread and an event loop of its own. Everything it keeps is in memory.

        with semel.testing.Broker() as broker:
            broker.create_topic("orders")
            with semel.Producer(broker.bootstrap) as producer:
                producer.send("orders", b"...")
            assert len(broker.records("orders", at_least=1)) == 1

    It is `semel serve` with another disk and another clock: the same listeners, logs, journal and coordinators, so a
    client finds here what it will find in production, both over gRPC (`bootstrap`) and over Kafka's protocol (`kafka`).
    Its methods may be called from any thread; `aio` has them for coroutines. `async with` works, too.
    """

    def __init__(
        self,
        *,
        frozen_clock: bool = False,
        seed: int = 0,
        users: Mapping[str, str] = MappingProxyType({}),
        **settings: object,
    ) -> None:
        """Nothing runs before `start`, or `with`.

        frozen_clock: the broker's time is frozen but for `advance`: no timeout, retention or expiry on its own
        seed:         of what chance decides, which is what remains of `Unsynced.TORN`
        users:        passwords by name; with some, both listeners serve these users alone (`bootstrap_of`)
        settings:     of the node, with underscores for dots: `num_partitions=3`; docs/configuration.md has them all

        Raises `ConfigError` for a setting that there isn't, or a value that it can't have, and `UsageError`.
        """
        self._values: dict[str, object] = dict(DEFAULTS)
        for attribute, value in settings.items():
            name = setting_name(attribute)
            if name in _OWN_SETTINGS:
                raise UsageError(f"{name} is not for tests: this broker keeps everything in memory")
            self._values[name] = value
        self._users = BrokerUsers(users)
        self._users.prepare(self._values)
        give_lasting_addresses(self._values)
        self._config()
        self._seed = seed
        self._clock = BrokerClock(frozen=frozen_clock)
        self._interceptor = FaultInterceptor()
        self._faults: list[Fault] = []
        self._hosted: HostedNode | None = None
        self._data: MemoryData | None = None
        self._is_closed = False
        self._topic_numbers = itertools.count(1)

    # --- Life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start, or start again after `stop` or `kill`: on the same data and at the same addresses."""
        if self._is_closed:
            raise UsageError("this broker was closed and its data is gone: make another one")
        if self._hosted is not None:
            raise UsageError("the broker runs already: stop() or kill() it before it is started again")
        is_first = self._data is None
        if self._data is None:
            self._data = self._make_data()
        self._interceptor.revive()
        hosted = HostedNode(
            self._config(),
            name="semel-test-broker",
            listeners=(Listener.KAFKA, Listener.GRPC),
            storage=self._data.storage,
            clock=self._clock,
            executor=InlineExecutor(),
            interceptor=self._interceptor,
            stop_grace_ms=STOP_GRACE_MS,
            on_started=self._interceptor.started,
        )
        try:
            hosted.start(START_TIMEOUT_S)
        except BaseException:
            if is_first:
                self._drop_data()
            raise
        self._hosted = hosted
        self._values |= addresses_again(hosted.node)

    def stop(self) -> None:
        """Stop as SIGTERM does: requests in flight end, everything is flushed. The data stays for `start`."""
        self._end(lambda hosted: hosted.stop())

    def kill(self, unsynced: Unsynced = Unsynced.LOST) -> None:
        """Stop as SIGKILL or a power cut does: nobody learns of it, nothing is flushed. The data stays for `start`.

        Faults of the network, the disk and of partitions end with it; those of commits and produce stay.
        """
        if not isinstance(unsynced, Unsynced):
            raise UsageError(f"unsynced is Unsynced.LOST, Unsynced.KEPT or Unsynced.TORN, not {unsynced!r}")
        power = unsynced is not Unsynced.KEPT
        torn = unsynced is Unsynced.TORN
        storage = self._running_storage()

        def crash() -> None:
            self._interceptor.die()
            storage.crash(power=power, torn=torn)

        self._end(lambda hosted: hosted.kill(crash))

    def restart(self, unsynced: Unsynced = Unsynced.LOST) -> None:
        """`kill` and `start`."""
        self.kill(unsynced)
        self.start()

    def reset(self) -> None:
        """Begin again: no topics, groups or transactions, no faults, at the same addresses. Takes some 30 ms."""
        if self._hosted is not None:
            self.kill()
        self._interceptor.forget_all()
        self._faults.clear()
        self._drop_data()
        self.start()

    def close(self) -> None:
        """Stop for good and forget the data. Does nothing the second time."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if self._hosted is not None:
                self.stop()
        finally:
            self._drop_data()

    @property
    def is_running(self) -> bool:
        return self._hosted is not None

    @property
    def failure(self) -> SemelError | None:
        """Why the broker can't continue, its disk having failed; None while it can. `restart` fixes it."""
        failed = self._running().node.failed
        return failed.result() if failed.done() else None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> AioBroker:
        await self.aio.start()
        return self.aio

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aio.close()

    @cached_property
    def aio(self) -> AioBroker:
        """This broker for coroutines: its methods don't block the test's event loop."""
        return AioBroker(self)

    # --- Addresses ----------------------------------------------------------------------------------------------------

    @property
    def bootstrap(self) -> str:
        """HOST:PORT for Semel's own clients (gRPC). Stays the same over restarts."""
        self._check_started()
        return main_address(self._values, "grpc")

    def bootstrap_of(self, user: str) -> str:
        """Return `bootstrap` with a user's name and password in it. Raises `UsageError` where there is no such user."""
        return self._users.bootstrap_of(user, self.bootstrap, self._values.get(MECHANISMS))

    @property
    def kafka(self) -> str:
        """HOST:PORT for Kafka's clients, their `bootstrap.servers`. Stays the same over restarts."""
        self._check_started()
        return without_scheme(main_address(self._values, "kafka"))

    def kafka_config_of(self, user: str) -> dict[str, str]:
        """Return what Kafka's clients need to connect as a user, by librdkafka's names. Raises `UsageError`."""
        self._check_started()
        return self._users.kafka_config_of(user, main_address(self._values, "kafka"), self._values.get(MECHANISMS))

    # --- Topics and what is in them -----------------------------------------------------------------------------------

    def create_topic(
        self, name: str | None = None, *, partitions: int = 1, configs: Mapping[str, str] | None = None
    ) -> str:
        """Create a topic and return its name, which is a new one where none is given. Raises `SemelError`."""
        topic = name or f"topic-{next(self._topic_numbers)}-{uuid.uuid4().hex[:8]}"

        async def create(node: Node) -> None:
            (result,) = await create_topics(node, [NewTopic(topic, partitions, configs=dict(configs or {}))])
            if result.error is not ErrorCode.NONE:
                raise error_for(result.error, result.message)

        self._run(create)
        return topic

    def delete_topic(self, name: str) -> None:
        """Delete a topic with its records. Raises `SemelError`."""

        async def delete(node: Node) -> None:
            (result,) = await delete_topics(node, [name])
            if result.error is not ErrorCode.NONE:
                raise error_for(result.error, result.message)

        self._run(delete)

    def topics(self) -> list[str]:
        """Return the names of all topics but the internal ones, sorted."""

        async def names(node: Node) -> list[str]:
            return sorted(topic.name for topic in node.metadata.image.topics.values() if not topic.is_internal)

        return self._run(names)

    def records(
        self,
        topic: str,
        *,
        uncommitted: bool = False,
        partition: int | None = None,
        at_least: int = 0,
        timeout_s: float = 10.0,
    ) -> list[Record]:
        """Return what a consumer of committed records would read from the topic's start, by partition and offset.

        uncommitted: also what open and aborted transactions wrote (read_uncommitted)
        at_least:    wait until there are so many, for up to `timeout_s` seconds

        Reads past the listeners, so no fault of the network hides anything. Raises `TimeoutError`, and `SemelError`
        (UNKNOWN_TOPIC_OR_PARTITION).
        """
        isolation = IsolationLevel.READ_UNCOMMITTED if uncommitted else IsolationLevel.READ_COMMITTED
        return self._run(
            lambda node: read_records(node, topic, partition, isolation, at_least, timeout_s), timeout_s=timeout_s + 30
        )

    def committed_offsets(self, group: str) -> dict[TopicPartition, int]:
        """Return what a group has committed; empty for a group that has not."""

        async def fetch(node: Node) -> dict[TopicPartition, int]:
            found = await node.groups.fetch_offsets(OffsetFetchRequest(group, None, require_stable=False))
            return {tp: one.offset for tp, one in found.offsets.items() if one.offset >= 0}

        return self._run(fetch)

    # --- Time ---------------------------------------------------------------------------------------------------------

    @property
    def now_ms(self) -> int:
        """The broker's wall clock, in milliseconds since 1970."""
        return self._clock.now_ms()

    def advance(self, seconds: float) -> None:
        """Move the broker's clock forward, and do what is due then before returning.

        Transactions and sessions time out, offsets, transactional ids and producer ids expire, old segments are
        deleted and logs compacted. Clients have clocks of their own: to a member of a group it looks as if the broker
        had not heard of it for so long. Raises `UsageError` for a step back.
        """
        is_number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
        if not is_number or not 0 <= seconds < 1e11:
            raise UsageError(f"time moves forward alone, by seconds: not by {seconds!r}")
        self._run(lambda node: self._advance(node, round(seconds * 1000)))

    async def _advance(self, node: Node, ms: int) -> None:
        self._clock.advance(ms=ms)
        node.transactions.run_due_timers()
        node.groups.run_due_timers()
        maintenance = node.logs.maintenance
        for duty in (
            maintenance.flush,
            maintenance.check_retention,
            maintenance.compact_logs,
            maintenance.expire_producers,
            maintenance.delete_folders,
        ):
            await duty()
        # What was aborted for being late shall be seen as aborted; a paused partition keeps its markers.
        deadline = asyncio.get_running_loop().time() + _MARKERS_PATIENCE_S
        while node.transactions.pending_markers() and asyncio.get_running_loop().time() < deadline:
            if any(one.is_paused for one in node.logs.partitions()):
                return
            await asyncio.sleep(_PAUSE_S)

    # --- Faults -------------------------------------------------------------------------------------------------------

    def drop_commit_answer(self, transactional_id: str | None = None, *, times: int = 1) -> Fault:
        """Let the next commits take effect and their answers get lost: the client sees its connection break.

        transactional_id: whose (or the key of a shared transaction); None: anybody's. Aborts are not concerned
        """
        return self._plan(Loss.COMMIT_ANSWER, transactional_id, times)

    def drop_commit_request(self, transactional_id: str | None = None, *, times: int = 1) -> Fault:
        """Let the next requests to commit get lost on their way: nothing is decided, and the client is not told."""
        return self._plan(Loss.COMMIT_REQUEST, transactional_id, times)

    def drop_produce_answer(self, topic: str | None = None, *, times: int = 1) -> Fault:
        """Let the next batches be appended and their answers get lost: idempotent producers repeat them (P1).

        Over Kafka's protocol, by which all clients but those of the streams of `semel.v1.DataService` produce.
        """
        return self._plan(Loss.PRODUCE_ANSWER, topic, times)

    def fence_producer(self, transactional_id: str) -> None:
        """Fence the user of a transactional id, as its next instance does: what it has open is aborted (T5).

        Raises `SemelError` (TRANSACTIONAL_ID_NOT_FOUND) where nobody has used it.
        """

        async def fence(node: Node) -> None:
            await node.transactions.describe(DescribeTransactionRequest(transactional_id))
            async with asyncio.timeout(_FENCE_PATIENCE_S):
                while True:
                    with contextlib.suppress(RetriableError):  # CONCURRENT_TRANSACTIONS while it is aborted
                        await node.transactions.init_producer_id(
                            InitProducerIdRequest(transactional_id, _FENCE_TIMEOUT_MS)
                        )
                        return
                    await asyncio.sleep(_PAUSE_S)

        self._run(fence)

    def pause_partition(self, topic: str, partition: int | None = None) -> Fault:
        """Block a partition, or all of a topic's: who produces waits, who fetches finds nothing.

        A transaction commits and its markers wait, so its records appear when the fault is taken back. Producers wait
        as long as their own timeouts say. What was appended meanwhile is in the log, and may survive a kill.
        """
        tps: list[TopicPartition] = []

        async def pause(node: Node) -> None:
            found = partitions_of(node, topic, partition)
            tps.extend(one.tp for one in found)
            self._interceptor.hold(tps)
            for one in found:
                one.pause()

        async def resume(node: Node) -> None:
            for tp in tps:
                found = node.partition(tp)
                if found is not None:
                    found.resume()
            self._interceptor.release(tps)

        self._run(pause)
        what = topic if partition is None else f"{topic}-{partition}"
        return self._remember(Fault(f"{what} is paused", lambda: self._run(resume)))

    def refuse_connections(self) -> Fault:
        """End all connections and accept none, on both listeners, until the fault is taken back."""

        async def cut_off(node: Node) -> None:
            await node.cut_off()

        async def let_in(node: Node) -> None:
            await node.let_in()

        self._run(cut_off)
        return self._remember(Fault("connections are refused", lambda: self._run(let_in)))

    def disconnect(self) -> None:
        """End all connections, on both listeners, and accept new ones at once."""
        self.refuse_connections().remove()

    def limit_disk(self, free_bytes: int) -> Fault:
        """Leave the disk so many free bytes: beyond them, producers get KAFKA_STORAGE_ERROR."""
        if free_bytes < 0:
            raise UsageError(f"a disk has 0 free bytes or more: {free_bytes}")
        storage = self._running_storage()
        storage.set_free_bytes(free_bytes)
        return self._remember(Fault("the disk is limited", lambda: storage.set_free_bytes(None)))

    def fail_disk(self) -> Fault:
        """Let the next sync of the journal fail: nothing is acknowledged any more until a `restart` (D1).

        Taken back before that sync, it never happened; after it, `failure` says what it did.
        """
        storage = self._running_storage()
        storage.fail_next("sync", OSError(errno.EIO, os.strerror(errno.EIO)), path_part="journal")
        return self._remember(Fault("the next sync fails", storage.fail_no_more))

    def clear_faults(self) -> None:
        """Take all faults back."""
        for fault in self._faults:
            fault.remove()
        self._faults.clear()

    # --- Inside -------------------------------------------------------------------------------------------------------

    def _plan(self, loss: Loss, name: str | None, times: int) -> Fault:
        if times < 1:
            raise UsageError(f"a fault happens once or more often: times={times}")

        whose = "" if name is None else f" of {name}"
        fault = Fault(f"{loss.value}{whose} is lost", lambda: self._on_loop(lambda: self._interceptor.forget(fault)))
        self._on_loop(lambda: self._interceptor.plan(loss, name, times, fault))
        return self._remember(fault)

    def _on_loop(self, change: Callable[[], None]) -> None:
        """Change what the node's loop looks at; also between two nodes."""

        async def work(_: Node) -> None:
            change()

        if self._hosted is None:
            change()
        else:
            self._run(work)

    def _remember(self, fault: Fault) -> Fault:
        self._faults = [one for one in self._faults if one.is_planted]
        self._faults.append(fault)
        return fault

    def _end(self, how: Callable[[HostedNode], None]) -> None:
        hosted = self._running()
        self._hosted = None
        kept: list[Fault] = []
        for fault in self._faults:
            if self._interceptor.knows(fault):
                kept.append(fault)
            else:
                fault.used_up()  # of the network, the disk or a partition: it ends with the node
        self._faults = kept
        if self._data is not None:
            self._data.storage.set_free_bytes(None)
            self._data.storage.fail_no_more()
        try:
            how(hosted)
        finally:
            self._interceptor.drop_held()

    def _make_data(self) -> MemoryData:
        data = MemoryData(self._seed)
        self._values["metadata.url"], self._values["data.dir"] = data.metadata_url, FOLDER
        self._values |= self._users.write()
        return data

    def _drop_data(self) -> None:
        data, self._data = self._data, None
        if data is not None:
            data.close()
        self._users.close()

    def _config(self) -> LoadedConfig:
        flags = [(f"Broker({attribute_of(name)}=...)", name, value) for name, value in self._values.items()]
        return load_config(environment={}, flags=flags)

    def _running(self) -> HostedNode:
        if self._hosted is None:
            raise UsageError("the broker does not run: start() it, or use it in a with-block")
        return self._hosted

    def _running_storage(self) -> SimulatedStorage:
        self._running()
        assert self._data is not None, "a running broker has data"
        return self._data.storage

    def _check_started(self) -> None:
        if self._data is None:
            raise UsageError("the broker has no address before it is started: start() it, or use it in a with-block")

    def _run(self, work: Callable[[Node], Coroutine[Any, Any, _Result]], timeout_s: float = 60.0) -> _Result:
        hosted = self._running()
        return hosted.run(work(hosted.node), timeout_s)


class AioBroker:
    """What `async with semel.testing.Broker()` gives, and `Broker.aio`. Arguments and errors are those of `Broker`.

    Faults are planted and taken back within a millisecond or so, so they are not here: `sync` is the `Broker` itself,
    and `with broker.sync.drop_commit_answer() as dropped:` is right in a coroutine, too.
    """

    def __init__(self, broker: Broker) -> None:
        self.sync = broker

    @property
    def bootstrap(self) -> str:
        return self.sync.bootstrap

    @property
    def kafka(self) -> str:
        return self.sync.kafka

    def bootstrap_of(self, user: str) -> str:
        return self.sync.bootstrap_of(user)

    def kafka_config_of(self, user: str) -> dict[str, str]:
        return self.sync.kafka_config_of(user)

    async def start(self) -> None:
        await asyncio.to_thread(self.sync.start)

    async def stop(self) -> None:
        await asyncio.to_thread(self.sync.stop)

    async def kill(self, unsynced: Unsynced = Unsynced.LOST) -> None:
        await asyncio.to_thread(self.sync.kill, unsynced)

    async def restart(self, unsynced: Unsynced = Unsynced.LOST) -> None:
        await self.kill(unsynced)
        await self.start()

    async def reset(self) -> None:
        await asyncio.to_thread(self.sync.reset)

    async def close(self) -> None:
        await asyncio.to_thread(self.sync.close)

    async def create_topic(
        self, name: str | None = None, *, partitions: int = 1, configs: Mapping[str, str] | None = None
    ) -> str:
        return await asyncio.to_thread(self.sync.create_topic, name, partitions=partitions, configs=configs)

    async def delete_topic(self, name: str) -> None:
        await asyncio.to_thread(self.sync.delete_topic, name)

    async def topics(self) -> list[str]:
        return await asyncio.to_thread(self.sync.topics)

    async def records(
        self,
        topic: str,
        *,
        uncommitted: bool = False,
        partition: int | None = None,
        at_least: int = 0,
        timeout_s: float = 10.0,
    ) -> list[Record]:
        return await asyncio.to_thread(
            self.sync.records,
            topic,
            uncommitted=uncommitted,
            partition=partition,
            at_least=at_least,
            timeout_s=timeout_s,
        )

    async def committed_offsets(self, group: str) -> dict[TopicPartition, int]:
        return await asyncio.to_thread(self.sync.committed_offsets, group)

    async def advance(self, seconds: float) -> None:
        await asyncio.to_thread(self.sync.advance, seconds)

    async def fence_producer(self, transactional_id: str) -> None:
        await asyncio.to_thread(self.sync.fence_producer, transactional_id)

    async def disconnect(self) -> None:
        await asyncio.to_thread(self.sync.disconnect)
