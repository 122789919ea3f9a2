"""A node: everything it is made of, started in order and stopped in order.

lock the folder -> metadata -> logs (recovered) -> coordinators (read) -> listeners -> ready
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import Collection, Coroutine, Iterator, Mapping
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from semel.broker.config.node_config import DAY_MS, NodeConfig
from semel.broker.config.setting import ConfigError
from semel.broker.config.sources import Address, LoadedConfig, parse_address, with_dynamic
from semel.broker.coordinators import Coordinators
from semel.broker.handlers.fetch import FetchHandler
from semel.broker.handlers.produce import ProduceHandler
from semel.broker.handlers.topic_rules import topic_log_config
from semel.broker.listeners.exposure import ALLOW_SETTING, exposed_listeners
from semel.broker.listeners.grpc.edge import CallTimes
from semel.broker.listeners.grpc.server import GrpcListener
from semel.broker.listeners.interception import Interceptor
from semel.broker.listeners.kafka.limits import KafkaLimits
from semel.broker.listeners.kafka.listener import KafkaListener
from semel.broker.log.config import LogConfig
from semel.broker.log.disk_errors import remedy
from semel.broker.logs.data_folder import META_FILE
from semel.broker.logs.manager import LogManager
from semel.broker.logs.open_files import open_files_limit, share_open_files, warn_of_few_open_files
from semel.broker.logs.partition import Partition
from semel.broker.metadata.changes import (
    BrokerRegistered,
    ClusterCreated,
    MetadataCorruptError,
)
from semel.broker.metadata.image import ALL_NODES_ID, MetadataImage, TopicImage
from semel.broker.metadata.metadata import Metadata
from semel.broker.metadata.store import MetadataStore, sqlite_url
from semel.broker.metadata_follower import MetadataFollower
from semel.broker.metrics.setup import NodeMetrics
from semel.broker.parts_config import kafka_limits, log_manager_config
from semel.broker.start_errors import NodeStartError, StartFailure
from semel.broker.telemetry.tracing import NodeTracing
from semel.group_coordinator.service import GroupService
from semel.protocol.compiled import warn_if_interpreted
from semel.protocol.errors import ErrorCode, SemelError
from semel.protocol.ids import TopicId, TopicPartition, format_topic_id, new_topic_id
from semel.protocol.wording import counted
from semel.runtime.clock import Clock, SystemClock
from semel.runtime.disk_storage import DiskStorage
from semel.runtime.storage import Storage, StorageLock, make_lasting_folder
from semel.txn_coordinator.service import TransactionService

logger = logging.getLogger("semel.node")

NODE_LOCK_FILE: Final = ".semel.lock"
METADATA_FILE: Final = "metadata.sqlite"
LOADING_PATIENCE_S: Final = 30.0
"""So long the listeners wait for coordinators to read their logs; after it, clients retry."""

_NAMED_MAX: Final = 10
_PROGRESS_EVERY_S: Final = 2.0
_WATCH_EVERY_S: Final = 1.0
_BRING_BACK_EVERY_S: Final = 0.5
_QUICK_CALLS_S: Final = 1.0
"""Calls that wait for nobody are over by then, when the node stops."""


class Node:
    """A running node. `await Node.start(config)`, then `await node.stop()`.

    `failed` is done, with the reason, once the node can't continue (its disk failed): stop it then.
    """

    def __init__(
        self,
        loaded: LoadedConfig,
        storage: Storage,
        clock: Clock,
        executor: Executor | None,
        *,
        accept_data_loss: bool = False,
        accept_loss_of: Collection[TopicPartition] = (),
        interceptor: Interceptor | None = None,
    ) -> None:
        self._configured = loaded
        self._interceptor = interceptor
        self._accept_data_loss = accept_data_loss
        self._accept_loss_of = accept_loss_of
        self.loaded_config = loaded
        self.clock = clock
        self.data_dir = os.path.abspath(loaded.config.data_dir)
        self.failed: asyncio.Future[SemelError] = asyncio.get_running_loop().create_future()
        self._storage = storage
        self._executor = executor
        self._locks: list[StorageLock] = []
        self._metadata: Metadata | None = None
        self._logs: LogManager | None = None
        self._coordinators: Coordinators | None = None
        self._follower: MetadataFollower | None = None
        self._last_log_config: tuple[TopicImage | None, NodeConfig, LogConfig] | None = None
        self._produce: ProduceHandler | None = None
        self._fetch: FetchHandler | None = None
        self._grpc: GrpcListener | None = None
        self._kafka: KafkaListener | None = None
        self._duties: list[asyncio.Task[None]] = []
        self._metrics: NodeMetrics | None = None
        self._tracing: NodeTracing | None = None
        self.is_serving = False
        """Whether it can be used: it has started, and does not stop yet."""
        self.recovery_seconds = 0.0
        """How long opening the logs took, with the recovery after a crash."""

    @classmethod
    async def start(
        cls,
        config: NodeConfig | LoadedConfig | None = None,
        *,
        storage: Storage | None = None,
        clock: Clock | None = None,
        executor: Executor | None = None,
        listeners: bool = True,
        accept_data_loss: bool = False,
        accept_loss_of: Collection[TopicPartition] = (),
        interceptor: Interceptor | None = None,
    ) -> Node:
        """Start a node and return it when both listeners accept.

        Without `listeners` it takes no address and is called directly: `produce`, `fetch`, and the other handlers with
        it as their `Services`. `executor` runs what waits for the disk, in place of threads of its own.
        With `accept_data_loss` it starts also in an empty folder though the metadata says that it has partitions, and
        makes them again. Partitions in `accept_loss_of` whose directories are gone are made again, behind their last
        known offsets. `interceptor` stands between the listeners and what answers, for tests of clients.
        Raises `ConfigError` and `NodeStartError`, and leaves nothing behind.
        """
        warn_if_interpreted()
        if not isinstance(config, LoadedConfig):
            config = LoadedConfig(config or NodeConfig(), {})
        node = cls(
            config,
            storage or DiskStorage(),
            clock or SystemClock(),
            executor,
            accept_data_loss=accept_data_loss,
            accept_loss_of=accept_loss_of,
            interceptor=interceptor,
        )
        try:
            await node._start()
            await node._serve(listeners)
        except BaseException:
            with suppress(Exception):  # it is logged; the caller needs to know why the start failed
                await node.stop(grace_ms=0)
            raise
        return node

    # --- What handlers and listeners use (`Services`) -----------------------------------------------------------------

    @property
    def config(self) -> NodeConfig:
        return self.loaded_config.config

    @property
    def metadata(self) -> Metadata:
        assert self._metadata is not None, "the node is not started"
        return self._metadata

    @property
    def logs(self) -> LogManager:
        assert self._logs is not None, "the node is not started"
        return self._logs

    @property
    def transactions(self) -> TransactionService:
        assert self._coordinators is not None, "the node is not started"
        return self._coordinators.transactions

    @property
    def groups(self) -> GroupService:
        assert self._coordinators is not None, "the node is not started"
        return self._coordinators.groups

    @property
    def produce(self) -> ProduceHandler:
        """Produce, shared by all listeners so that batches keep their order across them."""
        assert self._produce is not None, "the node is not started"
        return self._produce

    @property
    def fetch(self) -> FetchHandler:
        assert self._fetch is not None, "the node is not started"
        return self._fetch

    def partition(self, tp: TopicPartition) -> Partition | None:
        return self.logs.partition(tp)

    async def internal_topic_ready(self, name: str) -> None:
        assert self._coordinators is not None, "the node is not started"
        await self._coordinators.topic_ready(name)

    async def caught_up(self) -> None:
        """Wait until all changes of the metadata so far are carried out here: logs made and deleted, and so on."""
        assert self._follower is not None, "the node is not started"
        await self._follower.caught_up()

    @property
    def metrics_address(self) -> Address | None:
        """Where Prometheus finds the metrics, with the real port; None where they are not served."""
        return None if self._metrics is None else self._metrics.address

    @property
    def offline_partitions(self) -> int:
        """How many partitions that should be here are not open."""
        return 0 if self._logs is None else len(self._logs.offline)

    @property
    def kafka_listener(self) -> KafkaListener | None:
        """The listener, to look at."""
        return self._kafka

    @property
    def coordinator_load_seconds(self) -> Mapping[str, float]:
        """How long reading each coordinator's topic took, the last time."""
        return {} if self._coordinators is None else self._coordinators.load_seconds

    @property
    def kafka_address(self) -> Address:
        """Where the Kafka protocol is served, with the real port; as configured where there are no listeners."""
        configured = parse_address("kafka.listen", self.config.kafka_listen)
        return configured if self._kafka is None else Address(configured.host, self._kafka.port)

    @property
    def grpc_address(self) -> Address:
        """Where gRPC is served, with the real port; as configured where there are no listeners."""
        return parse_address("grpc.listen", self.config.grpc_listen) if self._grpc is None else self._grpc.address

    # --- Starting -----------------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        self._metrics = await NodeMetrics.start(self)
        self._tracing = NodeTracing.start(self.config, os.environ)
        self._take_folder()
        try:
            await self._open_metadata()
        except ConfigError:
            raise
        except SemelError as error:
            raise _as_start_error(error, StartFailure.METADATA) from error
        begun = self.clock.monotonic()
        try:
            self._open_logs()
        except (SemelError, OSError, ValueError) as error:
            raise _as_start_error(error, StartFailure.DATA_FOLDER) from error
        self.recovery_seconds = self.clock.monotonic() - begun
        self._coordinators = Coordinators(self, self._tracing)
        self._follower = MetadataFollower(self.logs, self._coordinators, self._configure, lambda: self.config)
        try:
            await self._follower.reconcile(self.metadata.image, self._accept_loss_of)
        except (SemelError, OSError) as error:
            raise _as_start_error(error, StartFailure.DATA_FOLDER) from error
        self.metadata.add_listener(self._follower.follow)
        self._begin_duty("follow the metadata", self._follower.run())
        if not await self._coordinators.all_loaded(LOADING_PATIENCE_S):
            logger.warning("coordinators are still reading their logs; clients retry")
        self._produce = ProduceHandler(self)
        self._fetch = FetchHandler(self, kafka_limits(self.config))
        if self._tracing is not None:
            self._produce.spans, self._fetch.spans = self._tracing.appends, self._tracing.fetches
        if self._metrics is not None:
            self.logs.measure_commits(self._metrics.recorders.commits)
            self.transactions.durations = self._metrics.recorders.transactions

    async def _serve(self, listeners: bool) -> None:
        if listeners:
            warn_of_few_open_files(self.config, open_files_limit())
            self._tell_of_exposure()
            await self._start_kafka()
            self._bind_grpc(parse_address("grpc.listen", self.config.grpc_listen))
        # Before anybody can ask for the metadata, it has the addresses of this start.
        await self._register()
        if self._grpc is not None:
            await self._grpc.start()
        self._begin_duty("keep the controller's lease", self.metadata.run())
        self._begin_duty("maintain the logs", self.logs.upkeep.run())
        self._begin_duty("watch the logs", self._watch_logs())
        self._begin_duty("bring offline partitions back", self._bring_back())
        self.is_serving = True

    def _tell_of_exposure(self) -> None:
        exposed = exposed_listeners(self.config)
        if not exposed:
            return
        if self.config.listeners_allow_anonymous:
            logger.info("everybody who can connect to %s is served, as %s=true says", ", ".join(exposed), ALLOW_SETTING)
            return
        logger.warning(
            "everybody who can connect to %s may read, write and delete everything and change settings: there are no "
            "users and no encryption. Listen on 127.0.0.1, or keep strangers out of the network and say so: --set "
            "%s=true",
            ", ".join(exposed), ALLOW_SETTING,
        )  # fmt: skip

    def _bind_grpc(self, address: Address) -> None:
        times = None if self._metrics is None else CallTimes(self.clock, self._metrics.recorders.call)
        self._grpc = GrpcListener(self, address, self.produce, self.fetch, self._interceptor, times)
        self._grpc.bind()

    def _kafka_limits(self) -> KafkaLimits:
        """What was configured, as far as the limit of open files goes."""
        connections_max = share_open_files(self.config, open_files_limit()).kafka
        return replace(kafka_limits(self.config), max_connections=connections_max)

    async def _start_kafka(self) -> None:
        config = self.config
        self._kafka = KafkaListener(
            self,
            *parse_address("kafka.listen", config.kafka_listen),
            self._kafka_limits(),
            produce=self.produce,
            fetch=self.fetch,
            interceptor=self._interceptor,
            request_times=None if self._metrics is None else self._metrics.recorders.requests,
        )
        try:
            await self._kafka.start()
        except OSError as error:
            raise NodeStartError(
                f"the Kafka listener can't have {config.kafka_listen}: {error.strerror or error}. "
                "Choose another with --kafka HOST:PORT.",
                StartFailure.ADDRESS,
            ) from error

    def _take_folder(self) -> None:
        try:
            make_lasting_folder(self._storage, self.data_dir)
            # The folder itself, too: somebody may delete the file under a running node.
            for path in (self.data_dir, f"{self.data_dir}/{NODE_LOCK_FILE}"):
                self._locks.append(self._storage.lock(path))
        except BlockingIOError:
            raise NodeStartError(
                f"the data folder {self.data_dir} is in use by another process. Stop that one, or give this node "
                "another folder with --data-dir.",
                StartFailure.DATA_FOLDER,
            ) from None
        except OSError as error:
            raise NodeStartError(
                f"the data folder {self.data_dir} can't be used: {error.strerror or error}",
                StartFailure.DATA_FOLDER,
            ) from error

    async def _open_metadata(self) -> None:
        config = self.config
        in_folder = not config.metadata_url
        url = sqlite_url(f"{self.data_dir}/{METADATA_FILE}") if in_folder else config.metadata_url
        # In the folder, the folder's lock says that nobody else can hold the lease, so it needs no renewals that keep
        # the disk awake. Elsewhere the name must tell two nodes apart that were given the same number by mistake, and
        # be the same again after a crash.
        holder = (
            f"node {config.node_id}"
            if in_folder
            else f"node {config.node_id} on {socket.gethostname()}:{self.data_dir}"
        )
        self._metadata = Metadata(
            MetadataStore(url, timeout_ms=config.metadata_timeout_ms),
            self.clock,
            holder=holder[:255],
            lease_ms=DAY_MS if in_folder else config.controller_lease_ms,
            snapshot_changes=config.metadata_snapshot_changes,
        )
        try:
            await self._metadata.open()
        except MetadataCorruptError as error:
            raise NodeStartError(
                f"the metadata in {self.metadata.location} is damaged: {error}. Restore it from a backup, and start "
                "the node again; `semel log verify` says what of the data directory can be read",
                StartFailure.METADATA,
            ) from error
        if not self._metadata.image.cluster_id:
            await self._create_cluster()
        self._configure(self._metadata.image)

    async def _create_cluster(self) -> None:
        """Without this check, the data of a lost database would be taken for leftovers."""
        if self._storage.exists(f"{self.data_dir}/{META_FILE}"):
            raise NodeStartError(
                f"the metadata in {self.metadata.location} is empty, but {self.data_dir} holds a node's logs: restore "
                "the metadata from a backup, correct metadata.url, or give this node a new folder",
                StartFailure.METADATA,
            )
        cluster_id = format_topic_id(new_topic_id())
        await self.metadata.change(lambda image: [] if image.cluster_id else [ClusterCreated(cluster_id)])

    def _check_folder_is_not_lost(self) -> None:
        """An empty folder, where the metadata outlived it, must not be filled as if nothing had been there (D1, D3)."""
        image, node_id = self.metadata.image, self.config.node_id
        held = [
            TopicPartition(topic.name, number)
            for topic in image.topics.values()
            for number, state in enumerate(topic.partitions)
            if node_id in state.replicas
        ]
        if (
            node_id not in image.brokers
            or not held
            or self._storage.exists(f"{self.data_dir}/{META_FILE}")
            or any(self._storage.exists(f"{self.data_dir}/{tp}") for tp in held)
        ):
            return
        named = f"{', '.join(map(str, held[:_NAMED_MAX]))}{', ...' if len(held) > _NAMED_MAX else ''}"
        if self._accept_data_loss:
            logger.warning(
                "the data folder %s is empty, and as --accept-data-loss says, what this node held is given up: %s",
                self.data_dir, named,
            )  # fmt: skip
            return
        raise NodeStartError(
            f"the data folder {self.data_dir} is empty, but the metadata in {self.metadata.location} says that node "
            f"{node_id} holds {counted(len(held), 'partition')}: {named}. Mount or restore the folder, or correct "
            "data.dir or metadata.url; or give this node a new node.id; or, if the records are gone for good, start it "
            "once with --accept-data-loss, which makes the partitions again, empty",
            StartFailure.DATA_FOLDER,
            ErrorCode.KAFKA_STORAGE_ERROR,
        )

    def _open_logs(self) -> None:
        self._check_folder_is_not_lost()
        config, image = self.config, self.metadata.image
        self._logs = LogManager(
            self._storage,
            self.data_dir,
            self.clock,
            log_manager_config(config, image.cluster_id),
            on_failure=self._fail,
            executor=self._executor,
        )
        self._logs.on_vanished = self._log_is_gone
        report = self._logs.open(self._log_config, progress=_Progress(self.clock))
        if not report.clean or report.partitions:
            logger.info("opened the logs: %s", report)

    def _log_config(self, tp: TopicPartition, topic_id: TopicId) -> LogConfig:
        """Return a partition's settings. Logs come in the order of their topics, so the last is kept."""
        topic = self.metadata.topic_by_id(topic_id)
        known, config = self._last_log_config, self.config
        if known is None or known[0] is not topic or known[1] is not config:
            made = topic_log_config(config, {} if topic is None else topic.configs)
            known = self._last_log_config = topic, config, made
        return known[2]

    async def _register(self) -> None:
        config = self.config
        kafka = self._advertised("kafka.advertised", config.kafka_advertised, self.kafka_address)
        grpc = self._advertised("grpc.advertised", config.grpc_advertised, self.grpc_address)
        registered = BrokerRegistered(
            node_id=config.node_id,
            incarnation=secrets.token_hex(8),
            directory_id=self.metadata.image.cluster_id,
            kafka_host=kafka.host,
            kafka_port=kafka.port,
            grpc_host=grpc.host,
            grpc_port=grpc.port,
            rack=config.broker_rack,
        )
        await self.metadata.change(lambda _: [registered])

    @staticmethod
    def _advertised(name: str, text: str, listening: Address) -> Address:
        if text:
            return parse_address(name, text)
        if listening.host in ("0.0.0.0", "::"):  # noqa: S104
            return Address(socket.gethostname(), listening.port)
        return listening

    def _configure(self, image: MetadataImage) -> None:
        """Take over the dynamic settings. One that this version refuses is left out, so that the node can start."""
        dynamic = image.broker_configs.get(self.config.node_id, {})
        all_nodes = image.broker_configs.get(ALL_NODES_ID, {})
        try:
            self.loaded_config = with_dynamic(self._configured, dynamic, all_nodes)
        except SemelError as error:
            logger.error("the dynamic settings in the metadata are not used: %s", error.message)
            return
        config = self.config
        if self._logs is not None:
            self._logs.reconfigure(
                flush_interval_ms=config.log_flush_interval_ms,
                cleaner_interval_ms=config.log_cleaner_backoff_ms,
                producer_id_expiration_ms=config.producer_id_expiration_ms,
                producer_ids_max=config.producer_ids_max,
                producer_ids_per_partition_max=config.producer_ids_per_partition_max,
            )
        if self._kafka is not None:
            self._kafka.reconfigure(self._kafka_limits())

    # --- What happens to nodes in tests -------------------------------------------------------------------------------

    async def cut_off(self) -> None:
        """Refuse connections and end those there are, as if the network were gone, until `let_in`."""
        if self._kafka is not None:
            await self._kafka.cut_off()
        if self._grpc is not None:
            await self._grpc.stop(0)

    async def let_in(self) -> None:
        """Accept connections again, where it was done before."""
        if self._kafka is not None:
            await self._kafka.listen()
        if self._grpc is not None:
            self._bind_grpc(self._grpc.address)
            await self._grpc.start()

    async def abandon(self) -> None:
        """End as a killed process does: nothing is flushed, and nobody is told.

        Files stay as they are, open ones too: it is for storages in memory. What still runs on the event loop is for
        the caller to cancel.
        """
        for duty in self._duties:
            duty.cancel()
        await self.cut_off()
        if self._metadata is not None:
            self._metadata.abandon()

    # --- Watching and stopping ----------------------------------------------------------------------------------------

    def _fail(self, error: SemelError) -> None:
        if not self.failed.done():
            logger.critical("the node can't continue: %s", error.message)
            self.failed.set_result(error)

    def _begin_duty(self, what: str, duty: Coroutine[Any, Any, None]) -> None:
        self._duties.append(asyncio.get_running_loop().create_task(self._run_duty(what, duty), name=what))

    async def _run_duty(self, what: str, duty: Coroutine[Any, Any, None]) -> None:
        """A duty that ends takes the node with it: without it, the node would rot unseen."""
        try:
            await duty
            self._fail(SemelError(f"the background task {what!r} ended"))
        except Exception as error:
            logger.exception("the background task %r failed", what)
            self._fail(SemelError(f"the background task {what!r} failed: {'; '.join(_causes(error))}"))

    async def _watch_logs(self) -> None:
        """A log that goes offline has lost its disk, which all logs of the node share, or its directory alone."""
        while True:
            await asyncio.sleep(_WATCH_EVERY_S)
            if self._offline_partition() is None:
                continue
            with suppress(OSError):
                await self.logs.upkeep.take_vanished_offline()
            offline = self._offline_partition()
            if offline is not None and offline.offline_error is not None:
                self._fail(offline.offline_error)

    def _offline_partition(self) -> Partition | None:
        """Return a partition that failed while it was open."""
        return next((one for one in self.logs.partitions() if one.offline_error is not None), None)

    def _log_is_gone(self, partition: Partition) -> None:
        if self._coordinators is not None and self.is_serving:
            self._coordinators.log_is_gone(partition)

    async def _bring_back(self) -> None:
        """Partitions that could not be made or opened come back once the disk does, coordinators' among them."""
        assert self._coordinators is not None
        while True:
            if self._grpc is not None:
                await self._grpc.tell_health_of_partitions(all_online=not len(self.logs.offline))
            await asyncio.sleep(_BRING_BACK_EVERY_S)
            for partition in await self.logs.bring_back():
                self._coordinators.log_is_back(partition)

    async def stop(self, *, grace_ms: int | None = None) -> None:
        """Take no new requests, finish those in flight within the grace time, flush, and leave a clean folder.

        May be called after a failure, and more than once. Raises the first error of what could not be closed, and a
        failure that came while it stopped.
        """
        had_failed = self.failed.done()
        grace_s = (self.config.shutdown_grace_ms if grace_ms is None else grace_ms) / 1000
        errors: list[BaseException] = []
        metrics, self._metrics = self._metrics, None
        if metrics is not None:
            await metrics.stop()
        self.is_serving = False
        errors += await self._stop_listeners(grace_s)
        for duty in self._duties:
            duty.cancel()
        await asyncio.gather(*self._duties, return_exceptions=True)
        self._duties = []
        for part in (self._logs, self._metadata):
            if part is not None:
                try:
                    await part.close()
                except Exception as error:
                    logger.exception("a part of the node could not be closed")
                    errors.append(error)
        self._coordinators = self._logs = self._metadata = None
        tracing, self._tracing = self._tracing, None
        if tracing is not None:
            await tracing.stop()
        locks, self._locks = self._locks, []
        for lock in locks:
            lock.release()
        if errors:
            raise errors[0]
        if self.failed.done() and not had_failed:
            raise self.failed.result()

    async def _stop_listeners(self, grace_s: float) -> list[BaseException]:
        stops = [
            asyncio.ensure_future(listener.stop(grace_s))
            for listener in (self._kafka, self._grpc)
            if listener is not None
        ]
        if stops:
            await asyncio.wait(stops, timeout=min(grace_s, _QUICK_CALLS_S))
        self._kafka = self._grpc = None
        if self._produce is not None:
            await self._produce.close()
        if self._coordinators is not None:
            # What is still there waits for others (a join, the end of a rebalance): it is told to go elsewhere.
            await self._coordinators.close()
        outcomes = await asyncio.gather(*stops, return_exceptions=True)
        return [outcome for outcome in outcomes if isinstance(outcome, BaseException)]


class _Progress:
    """Says how far a long recovery is, not more often than every few seconds."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._next = clock.monotonic() + _PROGRESS_EVERY_S

    def __call__(self, done: int, total: int, tp: TopicPartition) -> None:
        if self._clock.monotonic() >= self._next:
            self._next = self._clock.monotonic() + _PROGRESS_EVERY_S
            logger.info("opened %d of %d logs, the last one %s", done, total, tp)


def _as_start_error(error: Exception, failure: StartFailure) -> NodeStartError:
    if isinstance(error, NodeStartError):
        return error
    if isinstance(error, SemelError):
        return NodeStartError(error.message, failure, error.code)
    return NodeStartError(
        f"the logs can't be opened: {error}. Next step: {remedy(error)}, then start the node again. Nothing was lost "
        "by this start",
        failure,
        ErrorCode.KAFKA_STORAGE_ERROR,
    )


def _causes(error: BaseException) -> Iterator[str]:
    """Yield what failed: of a task group its tasks' errors, since its own message only counts them."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _causes(inner)
    elif isinstance(error, SemelError):
        yield error.message
    else:
        yield f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
