"""A node: everything it is made of, started in order and stopped in order.

addresses free, lock the folder -> metadata -> logs (recovered) -> coordinators (read) -> listeners -> ready
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import replace
from enum import Enum
from typing import Any, Final

from semel.broker.acls.authorizer import Authorizer
from semel.broker.audit.export import AuditExport
from semel.broker.audit.log import Audit
from semel.broker.client_listeners import ClientListeners, ListenerParts, check_addresses
from semel.broker.cluster_changes import ClusterChanges
from semel.broker.cluster_duties import ClusterDuties
from semel.broker.config.exposure import ALLOW_SETTING, check_exposure, exposed_listeners
from semel.broker.config.listeners import ClientListener, grpc_listeners, kafka_listeners
from semel.broker.config.node_config import NodeConfig
from semel.broker.config.sources import (
    Address,
    LoadedConfig,
    check_ports_differ,
    listen_address,
    parse_address,
    with_dynamic,
)
from semel.broker.coordinators import Coordinators
from semel.broker.directory_lock import DirectoryLock
from semel.broker.diskless.setup import RemoteDatabase, make_remote
from semel.broker.former_runs import RUNS_FILE, FormerRuns
from semel.broker.handlers.delegation_tokens import remove_expired
from semel.broker.handlers.fetch.handler import FetchHandler
from semel.broker.handlers.fetch.replica import ReplicaFetchHandler
from semel.broker.handlers.produce.handler import ProduceHandler
from semel.broker.handlers.topics.rules import partition_log_configs
from semel.broker.listeners.addresses import check_address
from semel.broker.listeners.grpc.server import GrpcListener
from semel.broker.listeners.in_process import InProcessListener
from semel.broker.listeners.interception import Interceptor
from semel.broker.listeners.kafka.listener import KafkaListener
from semel.broker.listeners.peers.listener import PeerListener
from semel.broker.listeners.tls import Certificates, certificates_of, own_certificates
from semel.broker.log.config import LogConfig
from semel.broker.log_duties import LogDuties
from semel.broker.logs.manager import LogManager
from semel.broker.logs.partition import Partition
from semel.broker.logs.replication_quota import ReplicationQuota, ReplicationQuotas
from semel.broker.lost_leaders import LostLeaders
from semel.broker.metadata.chain import MetadataWentBackError
from semel.broker.metadata.changes import (
    METADATA_VERSION,
    STORES_VERSION,
    BrokerRegistered,
    Change,
    Endpoint,
)
from semel.broker.metadata.image import ALL_NODES_ID, MetadataImage, TopicImage
from semel.broker.metadata.metadata import Metadata
from semel.broker.metadata.runs import NodeDeposedError
from semel.broker.metadata.store import MetadataStore
from semel.broker.metadata_follower import MetadataFollower
from semel.broker.metadata_history import MetadataHistory
from semel.broker.metadata_opening import (
    check_directory_is_not_lost,
    check_has_store,
    check_metadata_file,
    create_cluster,
    make_metadata,
    open_metadata,
)
from semel.broker.metrics.setup import NodeMetrics, metrics_callers
from semel.broker.node_numbers import with_number
from semel.broker.open_files import open_files_limit, warn_of_few_open_files
from semel.broker.peers.encryption import PeerEncryption
from semel.broker.peers.peers import Peers
from semel.broker.peers.secret import ClusterSecret, secret_of
from semel.broker.quotas.client_quotas import ClientQuotas
from semel.broker.registration import (
    Return,
    agreed_version,
    check_is_member,
    check_neighbors,
    version_raised,
    wait_for_former_run,
)
from semel.broker.replication.barrier import ReplicationBarrier
from semel.broker.replication.replicas import Replicas
from semel.broker.start_errors import (
    NodeStartError,
    StartFailure,
    as_start_error,
    causes_of,
    peers_not_bound,
)
from semel.broker.telemetry.tracing import NodeTracing
from semel.broker.tiers.no_store import NoStore
from semel.broker.tiers.object_store import ObjectStore
from semel.broker.tiers.tier import Tier
from semel.broker.told_addresses import check_may_name_listeners, named_endpoints, told_endpoints, told_peers
from semel.broker.users.tokens import Tokens, tokens_of
from semel.broker.users.users import Users, follow_cluster, users_of
from semel.group_coordinator.coordinator import GroupCoordinator
from semel.protocol.compiled import warn_if_interpreted
from semel.protocol.errors import SemelError
from semel.protocol.ids import TopicId, TopicPartition
from semel.protocol.randomness import new_token
from semel.protocol.schemes import speaks_tls, without_scheme
from semel.runtime.clock import Clock, SystemClock
from semel.runtime.disk_storage import DiskStorage
from semel.runtime.read_barrier import ONE_NODE
from semel.runtime.setting import ConfigError
from semel.runtime.storage import Storage
from semel.txn_coordinator.coordinator import TransactionCoordinator

_log = logging.getLogger("semel.node")

LOADING_PATIENCE_S: Final = 30.0
"""So long the listeners wait for coordinators to read their logs; after it, clients retry."""

_PROGRESS_EVERY_S: Final = 2.0
_QUICK_CALLS_S: Final = 1.0
"""Calls that wait for nobody are over by then, when the node stops."""


class Listener(Enum):
    """A way by which a node's clients come."""

    KAFKA = "kafka.listen"
    GRPC = "grpc.listen"
    PEERS = "peer.listen"
    """For the other nodes, where peer.listen says so."""
    IN_PROCESS = "in-process"
    """Without a port: for clients in the node's own process."""


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
        accept_metadata_loss: bool = False,
        may_join: bool = True,
        interceptor: Interceptor | None = None,
        metadata_store: MetadataStore | None = None,
        object_store: ObjectStore | None = None,
        remote_database: RemoteDatabase | None = None,
    ) -> None:
        self._configured = loaded
        self._metadata_store = metadata_store
        self._object_store = object_store
        self._remote_database = remote_database
        self._interceptor = interceptor
        self._accept_data_loss = accept_data_loss
        self._may_join = may_join
        self._accept_loss_of = accept_loss_of
        self.loaded_config = loaded
        self.clock = clock
        self.replication_quotas = ReplicationQuotas(
            leader=ReplicationQuota(lambda: self.config.leader_replication_throttled_rate),
            follower=ReplicationQuota(lambda: self.config.follower_replication_throttled_rate),
        )
        self.data_dir = os.path.abspath(loaded.config.data_dir)
        self.failed: asyncio.Future[SemelError] = asyncio.get_running_loop().create_future()
        self._storage = storage
        self._executor = executor
        self._directory_lock = DirectoryLock(storage, self.data_dir)
        self._metadata: Metadata | None = None
        self.audit = Audit(loaded.config.node_id)
        self._authorizer: Authorizer | None = None
        self._client_quotas: ClientQuotas | None = None
        self._history = MetadataHistory(
            storage, self.data_dir, loaded.config.node_id, executor, accepts_loss=accept_metadata_loss
        )
        self._logs: LogManager | None = None
        self._coordinators: Coordinators | None = None
        self._follower: MetadataFollower | None = None
        self._last_log_config: tuple[TopicImage | None, NodeConfig, Callable[[int], LogConfig]] | None = None
        self._produce: ProduceHandler | None = None
        self._fetch: FetchHandler | None = None
        self._clients: ClientListeners | None = None
        self._certificates: Certificates | None = None
        self._own_certificates: Mapping[ClientListener, Certificates] = {}
        self._users: Users | None = None
        self._tokens: Tokens | None = None
        self._secret: ClusterSecret | None = None
        self._peers: Peers | None = None
        self._incarnation = new_token(8)
        self._replicas: Replicas | None = None
        self._cluster: ClusterDuties | None = None
        self._cluster_changes: ClusterChanges | None = None
        self._peer_listener: PeerListener | None = None
        self._listeners: frozenset[Listener] = frozenset()
        self._duties: list[asyncio.Task[None]] = []
        self._metrics: NodeMetrics | None = None
        self._tracing: NodeTracing | None = None
        self._tier: Tier | None = None
        self._audit_export: AuditExport | None = None
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
        listeners: Collection[Listener] = (Listener.KAFKA, Listener.GRPC, Listener.PEERS),
        accept_data_loss: bool = False,
        accept_loss_of: Collection[TopicPartition] = (),
        accept_metadata_loss: bool = False,
        may_join: bool = True,
        interceptor: Interceptor | None = None,
        metadata_store: MetadataStore | None = None,
        object_store: ObjectStore | None = None,
        remote_database: RemoteDatabase | None = None,
    ) -> Node:
        """Start a node and return it when its `listeners` accept.

        Without any it takes no address and is called directly: `produce`, `fetch`, and the other handlers with it as
        their `Services`. `executor` runs what waits for the disk, in place of threads of its own.
        With `accept_data_loss` it starts also in an empty folder though the metadata says that it has partitions, and
        makes them again. Partitions in `accept_loss_of` whose directories are gone are made again, behind their last
        known offsets. With `accept_metadata_loss` it starts though the metadata lacks changes that it has applied, and
        sets aside the logs that the metadata does not know. Without `may_join` it starts only where the metadata has
        its node.id: after it was removed, it does not come back as a new node. `interceptor` stands between the
        listeners and what answers, for tests of clients. `metadata_store`, `object_store` and `remote_database` take
        the places of what metadata.url and remote.storage.url name, for simulations.
        Raises `ConfigError` and `NodeStartError`, and leaves nothing behind.
        """
        warn_if_interpreted()
        if not isinstance(config, LoadedConfig):
            config = LoadedConfig(config or NodeConfig(), {})
        storage, clock = storage or DiskStorage(), clock or SystemClock()
        try:
            config = await with_number(config, storage, clock, metadata_store)
        except SemelError as error:
            raise as_start_error(error, StartFailure.METADATA) from error
        node = cls(
            config,
            storage,
            clock,
            executor,
            accept_data_loss=accept_data_loss,
            accept_loss_of=accept_loss_of,
            accept_metadata_loss=accept_metadata_loss,
            may_join=may_join,
            interceptor=interceptor,
            metadata_store=metadata_store,
            object_store=object_store,
            remote_database=remote_database,
        )
        try:
            await node._take_addresses_and_folder(listeners)
            await node._start()
            await node._serve(frozenset(listeners))
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
    def authorizer(self) -> Authorizer:
        assert self._authorizer is not None, "the node is not started"
        return self._authorizer

    @property
    def client_quotas(self) -> ClientQuotas:
        assert self._client_quotas is not None, "the node is not started"
        return self._client_quotas

    @property
    def users(self) -> Users | None:
        return self._users

    @property
    def logs(self) -> LogManager:
        assert self._logs is not None, "the node is not started"
        return self._logs

    @property
    def transactions(self) -> TransactionCoordinator:
        assert self._coordinators is not None, "the node is not started"
        return self._coordinators.transactions

    @property
    def groups(self) -> GroupCoordinator:
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
    def peers(self) -> Peers:
        """The other nodes, to be asked."""
        assert self._peers is not None, "the node is not started"
        return self._peers

    @property
    def peer_listener(self) -> PeerListener | None:
        """What serves the other nodes, to look at; None where they are not served."""
        return self._peer_listener

    @property
    def client_listeners(self) -> ClientListeners | None:
        """The listeners for clients, to look at; None where there are none."""
        return self._clients

    @property
    def kafka_listener(self) -> KafkaListener | None:
        """The main listener for the Kafka protocol, to look at."""
        return self._clients.kafka[0] if self._clients is not None and self._clients.kafka else None

    @property
    def grpc_listener(self) -> GrpcListener | None:
        """The main listener for gRPC, to look at."""
        return self._clients.grpc[0] if self._clients is not None and self._clients.grpc else None

    @property
    def in_process(self) -> InProcessListener | None:
        """What clients in this process call, where they are served."""
        return None if self._clients is None else self._clients.in_process

    @property
    def coordinator_load_seconds(self) -> Mapping[str, float]:
        """How long reading each coordinator's topic took, the last time."""
        return {} if self._coordinators is None else self._coordinators.load_seconds

    @property
    def cluster_changes(self) -> ClusterChanges:
        """What became of nodes and leaders since the start, counted."""
        assert self._cluster_changes is not None, "the node is not started"
        return self._cluster_changes

    @property
    def tier(self) -> Tier | None:
        """What the node does with its remote storage; None where it has none."""
        return self._tier

    @property
    def metadata_behind_max(self) -> int:
        """How many changes the node lacks that is furthest behind; 0 where this node is not the controller."""
        return 0 if self._cluster is None else self._cluster.behind_max

    @property
    def replication_lag(self) -> Mapping[TopicPartition, int]:
        """How many committed offsets each partition that is followed here lacks, as of its last fetch."""
        return {} if self._replicas is None else self._replicas.lag

    @property
    def failed_fetches(self) -> Mapping[int, int]:
        """How many of this node's fetches as a follower have failed, by the leader's node id."""
        return {} if self._replicas is None else self._replicas.failed_fetches

    @property
    def kafka_address(self) -> Address:
        """Where the main Kafka listener is, with the real port; as configured where there are no listeners."""
        return self.kafka_addresses[0]

    @property
    def grpc_address(self) -> Address:
        """Where the main gRPC listener is, with the real port; as configured where there are no listeners."""
        return self.grpc_addresses[0]

    @property
    def kafka_addresses(self) -> Sequence[Address]:
        """Where each Kafka listener is, in the order of `kafka_listeners(config)`."""
        if self._clients is None:
            return [listen_address(each) for each in kafka_listeners(self.config)]
        return self._clients.kafka_addresses()

    @property
    def grpc_addresses(self) -> Sequence[Address]:
        """Where each gRPC listener is, in the order of `grpc_listeners(config)`."""
        if self._clients is None:
            return [listen_address(each) for each in grpc_listeners(self.config)]
        return self._clients.grpc_addresses()

    # --- Starting -----------------------------------------------------------------------------------------------------

    async def _take_addresses_and_folder(self, listeners: Collection[Listener]) -> None:
        """A port that is taken makes no data directory. A directory that exists comes first: who starts a node twice
        has the same ports, too, and hears that the directory is in use.
        """
        names = [one.value for one in (Listener.KAFKA, Listener.GRPC, Listener.PEERS) if one in listeners]
        check_ports_differ(self.config, (*names, "metrics.listen"))
        check_exposure(self.config)
        self._secret = secret_of(self.config)
        self._certificates = certificates_of(self.config)
        self._own_certificates = own_certificates(self.config)
        self._users = await users_of(self.config)
        self._tokens = tokens_of(self.config)
        if self.config.peer_listen and self.config.ssl_ca_location:
            PeerEncryption(self.config.ssl_ca_location).check()
        is_new = not self._storage.exists(self.data_dir)
        if not is_new:
            self._directory_lock.take()
        self._metrics = await self._start_metrics()
        self._tracing = NodeTracing.start(self.config, os.environ)
        self._audit_export = AuditExport.start(self.config, os.environ)
        await self._check_addresses(listeners)
        if is_new:
            self._directory_lock.take()

    async def _start_metrics(self) -> NodeMetrics | None:
        encryption = None if self._certificates is None else self._certificates.for_metrics
        callers = metrics_callers(self.config, self._users, self._tokens, lambda: self._authorizer, self.audit)
        return await NodeMetrics.start(self, encryption=encryption, callers=callers)

    async def _check_addresses(self, listeners: Collection[Listener]) -> None:
        config = self.config
        await check_addresses(config, kafka=Listener.KAFKA in listeners, grpc=Listener.GRPC in listeners)
        if Listener.PEERS in listeners and config.peer_listen:
            try:
                await check_address(*parse_address("peer.listen", config.peer_listen))
            except OSError as error:
                raise peers_not_bound(config, error) from error

    async def _start(self) -> None:
        try:
            await self._open_metadata()
        except (ConfigError, NodeStartError):
            raise
        except SemelError as error:
            raise as_start_error(error, StartFailure.METADATA) from error
        begun = self.clock.monotonic()
        try:
            self._open_logs()
        except (ConfigError, NodeStartError):
            raise
        except (SemelError, OSError, ValueError) as error:
            raise as_start_error(error, StartFailure.DATA_FOLDER) from error
        self.recovery_seconds = self.clock.monotonic() - begun
        self._peers = Peers(
            self.config.node_id,
            lambda: self.metadata.image,
            self._secret,
            self.config,
            self.clock,
            PeerEncryption(self.config.ssl_ca_location),
        )
        self.metadata.add_listener(self._peers.follow)
        self._cluster_changes = ClusterChanges(self.metadata, self.clock, self.config.node_id)
        self.metadata.add_listener(self._cluster_changes.heard)
        if self.is_clustered:
            self._replicas = Replicas(self, self._peers, self._incarnation)
            self._cluster = ClusterDuties(
                self.metadata,
                self.clock,
                lambda: self.config,
                self._cluster_changes,
                self._peers,
                LostLeaders(self, self._peers),
            )
        self._coordinators = Coordinators(
            self,
            self._peers,
            self._tracing,
            None if self._metrics is None else self._metrics.recorders.transactions,
            barrier=ReplicationBarrier(self) if self.is_clustered else ONE_NODE,
        )
        self._follower = MetadataFollower(
            self.logs,
            self._coordinators,
            self._configure,
            self.client_quotas.update,
            lambda: self.config,
            self._replicas,
        )
        try:
            await self._follower.reconcile(
                self.metadata.image, self._accept_loss_of, keeps_unknown=self._history.loss_is_accepted
            )
        except NodeStartError:
            raise
        except (SemelError, OSError) as error:
            raise as_start_error(error, StartFailure.DATA_FOLDER) from error
        self.metadata.add_listener(self._follower.follow)
        self._begin_duty("follow the metadata", self._follower.run())
        if not await self._coordinators.all_loaded(LOADING_PATIENCE_S):
            _log.warning("coordinators are still reading their logs; clients retry")
        tracing = self._tracing
        self._produce = ProduceHandler(
            self, None if tracing is None else tracing.appends, self._coordinators.verification.check_batches
        )
        self.metadata.add_listener(self._produce.early_refusals.follow)
        self._fetch = FetchHandler(self, self.config, None if tracing is None else tracing.fetches)
        if self._metrics is not None:
            self.logs.measure_commits(self._metrics.recorders.commits)

    async def _serve(self, listeners: frozenset[Listener]) -> None:
        self._listeners = listeners
        if listeners & {Listener.KAFKA, Listener.GRPC}:
            warn_of_few_open_files(self.config, open_files_limit())
            self._tell_of_exposure()
        clients = self._clients = ClientListeners(self, self._listener_parts())
        if listeners & {Listener.KAFKA, Listener.IN_PROCESS}:
            await clients.start_kafka(listens=Listener.KAFKA in listeners)
        if Listener.GRPC in listeners:
            clients.bind_grpc()
        if Listener.IN_PROCESS in listeners:
            clients.start_in_process()
        if self.config.peer_listen:
            await self._start_peer_listener(listens=Listener.PEERS in listeners)
        # Before anybody can ask for the metadata, it has the addresses of this start.
        try:
            await self._register()
        except NodeStartError:
            raise
        except SemelError as error:
            raise as_start_error(error, StartFailure.METADATA) from error
        await self.caught_up()
        await clients.start_grpc()
        self._begin_duty("keep up with the metadata", self.metadata.run())
        if self._replicas is not None and self._cluster is not None:
            self._begin_duty("look after the replicas", self._replicas.run())
            self._begin_duty("watch the other nodes", self._cluster.run())
        self._begin_duty("maintain the logs", self.logs.maintenance.run())
        assert self._coordinators is not None
        assert self._follower is not None
        duties = LogDuties(
            self.logs, self.metadata, self._coordinators, self._follower, clients, self.config.node_id, self._fail
        )
        self._begin_duty("watch the logs", duties.watch())
        self._begin_duty("bring offline partitions back", duties.bring_back())
        if self._tier is not None:
            self._begin_duty("look after the remote storage", self._tier.run())
        self._begin_duty("remove delegation tokens that have expired", remove_expired(self))
        self.is_serving = True

    def _tell_of_exposure(self) -> None:
        exposed = exposed_listeners(self.config)
        if exposed:
            _log.info("everybody who can connect to %s is served, as %s=true says", ", ".join(exposed), ALLOW_SETTING)

    def _listener_parts(self) -> ListenerParts:
        return ListenerParts(
            self.produce,
            self.fetch,
            recorders=None if self._metrics is None else self._metrics.recorders,
            certificates=self._certificates,
            own_certificates=self._own_certificates,
            users=self._users,
            tokens=self._tokens,
            interceptor=self._interceptor,
        )

    async def _start_peer_listener(self, *, listens: bool) -> None:
        config = self.config
        assert self._secret is not None, "checked with the settings"
        self._peer_listener = PeerListener(
            self,
            *parse_address("peer.listen", config.peer_listen),
            self._secret,
            fetches=ReplicaFetchHandler(self) if self.is_clustered else None,
            certificates=self._certificates if speaks_tls(config.peer_listen) else None,
        )
        try:
            await self._peer_listener.start(listens=listens)
        except OSError as error:
            raise peers_not_bound(config, error) from error
        if self._certificates is not None and speaks_tls(config.peer_listen):
            host = without_scheme(self._told_peers().host)
            PeerEncryption(config.ssl_ca_location).warn_of_own(self._certificates.for_nodes(), host)

    async def _open_metadata(self) -> None:
        config = self.config
        in_folder = self._metadata_is_in_folder
        if in_folder:
            check_metadata_file(self._storage, self.data_dir)
        metadata = self._metadata = make_metadata(
            config,
            self.data_dir,
            self.clock,
            self._metadata_store,
            in_folder=in_folder,
            is_clustered=self.is_clustered,
            on_went_back=self._metadata_went_back,
            on_deposed=self._deposed,
        )
        self._authorizer = Authorizer(config, metadata, self.audit)
        self._client_quotas = ClientQuotas(config, metadata, self.clock)
        await open_metadata(metadata, None if self.is_clustered else config.node_id)
        if not metadata.image.cluster_id:
            await create_cluster(metadata, self._storage, self.data_dir)
        follow_cluster(self.config, self._users, metadata, self.clock)
        await self._history.check(metadata)
        check_has_store(metadata, self.config.remote_storage_url)
        self._configure(metadata.image)
        self._client_quotas.update()

    @property
    def is_clustered(self) -> bool:
        """Whether other nodes may run on the same metadata: it is in a database that they can use, and peer.listen says
        where they reach this one.
        """
        return bool(self.config.peer_listen) and not self._metadata_is_in_folder

    def _is_only_replica(self, tp: TopicPartition, topic_id: TopicId) -> bool:
        """Where the metadata does not know a log, nobody else has it either."""
        if not self.is_clustered:
            return True
        topic = self.metadata.topic_by_id(topic_id)
        if topic is None or topic.name != tp.topic or tp.partition >= len(topic.partitions):
            return True
        return topic.partitions[tp.partition].replicas == (self.config.node_id,)

    @property
    def _metadata_is_in_folder(self) -> bool:
        return not self.config.metadata_url and self._metadata_store is None

    async def _metadata_went_back(self, error: MetadataWentBackError) -> None:
        self._fail(await self._history.went_back(error))

    def _deposed(self, error: NodeDeposedError) -> None:
        self._fail(error)

    def _open_logs(self) -> None:
        config, image = self.config, self.metadata.image
        check_directory_is_not_lost(
            self.metadata,
            config.node_id,
            self._storage,
            self.data_dir,
            is_clustered=self.is_clustered,
            accept_data_loss=self._accept_data_loss,
        )
        self._logs = LogManager(
            self._storage,
            self.data_dir,
            self.clock,
            config,
            node_id=config.node_id,
            cluster_id=image.cluster_id,
            on_failure=self._fail,
            executor=self._executor,
        )
        remote = make_remote(
            self,
            self.data_dir,
            self._take_parts,
            self._object_store,
            self._remote_database,
            run=self._incarnation,
            in_folder=self._metadata_is_in_folder,
        )
        self._logs.remote_part = NoStore
        if remote is not None:
            self._tier, diskless = remote
            self._logs.remote_part = self._tier.part_of
            self._logs.diskless_commits = diskless.commits_for
            diskless.on_ready, diskless.on_lost = self._log_was_read, self._log_is_read_again
        self._logs.on_vanished = self._log_is_gone
        self._logs.before_new = self._history.remembered
        report = self._logs.open(
            self._log_config,
            is_only_replica=self._is_only_replica,
            is_diskless=lambda tp, topic_id: (
                (found := image.partition_by_id(topic_id, tp.partition)) is not None and found[0].has_diskless(found[1])
            ),
            progress=_Progress(self.clock),
        )
        if not report.clean or report.partitions:
            _log.info("opened the logs: %s", report)

    def _log_config(self, tp: TopicPartition, topic_id: TopicId) -> LogConfig:
        """Return a partition's settings. Logs come in the order of their topics, so the last is kept."""
        topic = self.metadata.topic_by_id(topic_id)
        known, config = self._last_log_config, self.config
        if known is None or known[0] is not topic or known[1] is not config:
            made = partition_log_configs(config, topic)
            known = self._last_log_config = topic, config, made
        return known[2](tp.partition)

    async def _register(self) -> None:
        config = self.config
        kafka = self._told(Listener.KAFKA, kafka_listeners(config), self.kafka_addresses)
        grpc = self._told(Listener.GRPC, grpc_listeners(config), self.grpc_addresses)
        peer = self._told_peers()
        registered = BrokerRegistered(
            node_id=config.node_id,
            incarnation=self._incarnation,
            directory_id=self.logs.folder.directory_id,
            kafka_host=kafka[0].host,
            kafka_port=kafka[0].port,
            grpc_host=grpc[0].host,
            grpc_port=grpc[0].port,
            rack=config.broker_rack,
            peer_host=peer.host,
            peer_port=peer.port,
            is_clean=self.logs.unreported.is_clean,
            durability=config.durability,
            secret_mark="" if self._secret is None else self._secret.mark(self.metadata.image.cluster_id),
            metadata_version=METADATA_VERSION,
            kafka_listeners=named_endpoints(kafka),
            grpc_listeners=named_endpoints(grpc),
        )

        if not config.remote_storage_url and agreed_version(self.metadata.image, registered) >= STORES_VERSION:
            registered = replace(registered, has_store=False)
        assert self._coordinators is not None
        producer_ids = self._coordinators.producer_ids
        runs = FormerRuns(self._storage, self.logs.folder.file(RUNS_FILE))
        back = Return(registered, self.logs, runs, config.min_insync_replicas)

        def further(image: MetadataImage) -> list[Change]:
            if not self._may_join:
                check_is_member(image, config.node_id)
            check_may_name_listeners(image, registered)
            changes = [*version_raised(image, registered), *self._history.changes_of_registration(image)]
            changes += producer_ids.first_block(image, changes)
            if not self.is_clustered:
                return changes
            raised_epochs = self._history.partitions_after_loss(image)
            if raised_epochs:
                return [*changes, *raised_epochs]  # no replica counts as complete any more, of other nodes neither
            return [*changes, *back.changes(image)]

        if self.is_clustered:
            await check_neighbors(self.metadata, config, registered.secret_mark)
            await wait_for_former_run(self.metadata, config, registered.directory_id)
            back.note_not_read(self.metadata.image)
        back.note_run(self.metadata.image)
        await self.metadata.register(registered, further, alone=not self.is_clustered)
        producer_ids.registered()
        if self.is_clustered:
            try:
                # After a loss nothing counts as incomplete for that reason alone: it is asked who has most.
                self.logs.recovery_reported(frozenset() if self._history.loss_is_accepted else back.not_read)
            except OSError as error:
                _log.warning("the next start tells again what this one found: %s", error)
        await self._history.follow(self.metadata, is_in_folder=self._metadata_is_in_folder)

    def _told(
        self, protocol: Listener, listeners: Sequence[ClientListener], listening: Sequence[Address]
    ) -> tuple[Endpoint, ...]:
        are_served = not self._listeners or protocol in self._listeners
        return told_endpoints(listeners, listening, are_served=are_served)

    def _told_peers(self) -> Address:
        """Return the address that the other nodes are told; port 0 where they are not served."""
        if self._peer_listener is None:
            return Address("", 0)
        return told_peers(self.config.peer_listen, self.config.peer_advertised, self._peer_listener.port)

    def _configure(self, image: MetadataImage) -> None:
        """Take over the dynamic settings. One that this version refuses is left out, so that the node can start."""
        dynamic = image.broker_configs.get(self.config.node_id, {})
        all_nodes = image.broker_configs.get(ALL_NODES_ID, {})
        try:
            self.loaded_config = with_dynamic(self._configured, dynamic, all_nodes)
        except SemelError as error:
            _log.error("the dynamic settings in the metadata are not used: %s", error.message)
            return
        config = self.config
        if self._logs is not None:
            self._logs.reconfigure(config)
        if self._clients is not None:
            self._clients.reconfigure()

    # --- What happens to nodes in tests -------------------------------------------------------------------------------

    async def cut_off(self) -> None:
        """Refuse connections and end those there are, as if the network were gone, until `let_in`."""
        if self._clients is not None:
            await self._clients.cut_off()
        if self._peer_listener is not None:
            await self._peer_listener.cut_off()
        if self._peers is not None:
            self._peers.cut_off()

    async def let_in(self) -> None:
        """Accept connections again, where it was done before."""
        if self._peers is not None:
            self._peers.let_out()
        if self._peer_listener is not None:
            await self._peer_listener.listen()
        if self._clients is not None:
            await self._clients.let_in()

    async def abandon(self) -> None:
        """End as a killed process does: nothing is flushed, and nobody learns of it.

        Files stay as they are, open ones too: it is for storages in memory. What still runs on the event loop is for
        the caller to cancel.
        """
        for duty in self._duties:
            duty.cancel()
        if self._tier is not None:
            self._tier.abandon()
        await self.cut_off()
        if self._metadata is not None:
            self._metadata.abandon()
        self._history.abandon()
        if self._peers is not None:
            self._peers.close()
        if self._audit_export is not None:
            self._audit_export.abandon()

    # --- Watching and stopping ----------------------------------------------------------------------------------------

    def _fail(self, error: SemelError) -> None:
        if not self.failed.done():
            _log.critical("the node can't continue: %s", error.message)
            self.failed.set_result(error)

    def _begin_duty(self, what: str, duty: Coroutine[Any, Any, None]) -> None:
        self._duties.append(asyncio.get_running_loop().create_task(self._run_duty(what, duty), name=what))

    async def _run_duty(self, what: str, duty: Coroutine[Any, Any, None]) -> None:
        """A duty that ends takes the node with it: without it, the node would rot unseen."""
        try:
            await duty
            self._fail(SemelError(f"the background task {what!r} ended"))
        except Exception as error:
            _log.exception("the background task %r failed", what)
            self._fail(SemelError(f"the background task {what!r} failed: {'; '.join(causes_of(error))}"))

    async def _take_parts(self, partitions: Collection[TopicPartition]) -> None:
        """Have partitions that were begun again take their parts: who leads them is in the metadata."""
        if self._follower is not None:
            await self._follower.take_parts(list(partitions), self.metadata.image)

    def _log_was_read(self, tp: TopicPartition) -> None:
        if self._follower is not None:
            self._follower.begin_to_coordinate(tp)

    def _log_is_read_again(self, tp: TopicPartition) -> None:
        if self._follower is not None:
            self._follower.stop_coordinating(tp)

    def _log_is_gone(self, partition: Partition) -> None:
        if self._coordinators is not None and self.is_serving:
            self._coordinators.log_is_gone(partition)

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
        if self.is_serving and not had_failed and grace_s > 0:
            await self._leave_cluster(grace_s)
        self.is_serving = False
        errors += await self._stop_listeners(grace_s)
        for duty in self._duties:
            duty.cancel()
        await asyncio.gather(*self._duties, return_exceptions=True)
        self._duties = []
        if self._replicas is not None:
            await self._replicas.close()
        tier, self._tier = self._tier, None
        if tier is not None:
            await tier.close()
        for part in (self._logs, self._metadata, self._history):
            if part is not None:
                try:
                    await part.close()
                except (SemelError, OSError) as error:
                    _log.error("a part of the node could not be closed: %s", error)
                    errors.append(error)
                except Exception as error:
                    _log.exception("a part of the node could not be closed")
                    errors.append(error)
        self._coordinators = self._logs = self._metadata = None
        self.audit.close()
        if self._tokens is not None:
            self._tokens.close()
        tracing, self._tracing = self._tracing, None
        if tracing is not None:
            await tracing.stop()
        audit_export, self._audit_export = self._audit_export, None
        if audit_export is not None:
            await audit_export.stop()
        self._directory_lock.release()
        if errors:
            raise errors[0]
        if self.failed.done() and not had_failed:
            raise self.failed.result()

    async def _leave_cluster(self, grace_s: float) -> None:
        """Let others lead before this node stops, so that no request fails."""
        if self._cluster is None or self._replicas is None:
            return
        self._replicas.stop_following()
        try:
            await self._cluster.leave(grace_s)
        except SemelError as error:
            _log.warning("this node stops without handing over what it leads: %s", error.message)

    async def _stop_listeners(self, grace_s: float) -> list[BaseException]:
        stops = [] if self._clients is None else self._clients.stops(grace_s)
        if self._peer_listener is not None:
            stops.append(asyncio.ensure_future(self._peer_listener.stop(grace_s)))
        if stops:
            await asyncio.wait(stops, timeout=min(grace_s, _QUICK_CALLS_S))
        self._clients = self._peer_listener = None
        if self._produce is not None:
            await self._produce.close()
        if self._coordinators is not None:
            # What is still there waits for others (a join, the end of a rebalance): it is told to go elsewhere.
            await self._coordinators.close()
        if self._peers is not None:
            self._peers.close()
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
            _log.info("opened %d of %d logs, the last one %s", done, total, tp)
