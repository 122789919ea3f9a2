"""A cluster in the test process: whole nodes that replicate, elect and fence, to be killed, paused and cut off."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Final, Self, TypeVar

import sqlalchemy as sa

from semel.broker.config.node_config import attribute_of
from semel.broker.config.sources import LoadedConfig, load_config
from semel.broker.handlers.topics.changes import create_topics
from semel.broker.metadata.database import MetadataUnavailableError
from semel.broker.metadata.image import MetadataImage
from semel.broker.metadata.store import MetadataStore
from semel.broker.node import Listener, Node
from semel.protocol.api.topics import NewTopic
from semel.protocol.errors import ErrorCode, SemelError, UsageError, error_for
from semel.protocol.ids import TopicPartition
from semel.protocol.schemes import with_scheme_of
from semel.runtime.inline_executor import InlineExecutor
from semel.runtime.ports import lasting_address
from semel.runtime.simulated_storage import SimulatedStorage
from semel.runtime.storage import make_lasting_folder
from semel.sdk.embedded.hosted_node import HostedNode
from semel.sdk.testing.lasting_listeners import addresses_again, give_lasting_addresses, main_address
from semel.sdk.testing.memory_data import FOLDER, MemoryData, Unsynced
from semel.sdk.testing.settings import DEFAULTS, START_TIMEOUT_S, STOP_GRACE_MS, setting_name
from semel.sdk.testing.users import MECHANISMS, BrokerUsers, hosts_of

NODES_MAX: Final = 9
_DEFAULTS: Final[Mapping[str, object]] = {
    **DEFAULTS,
    "broker.session.timeout.ms": 2_000,
    "broker.heartbeat.interval.ms": 100,
    "controller.lease.ms": 2_000,
    "peer.listen": "127.0.0.1:0",
}
_OWN_SETTINGS: Final = ("data.dir", "metadata.url", "node.id", "peer.listen", "cluster.secret.file")
_PAUSE_S: Final = 0.01
_PEER: Final = "peer.listen"

_Result = TypeVar("_Result")


class Cluster:
    """Nodes in this process, each on a thread and an event loop of its own. Everything they keep is in memory.

        with semel.testing.Cluster(3) as cluster:
            cluster.create_topic("orders", replicas=3)
            with semel.Producer(cluster.bootstrap) as producer:
                producer.send("orders", b"...").result()
                cluster.kill(cluster.leader("orders"))
                producer.send("orders", b"...").result()

    A node is dead for the others two seconds after it was last heard of (`broker_session_timeout_ms`). Methods may be
    called from any thread.
    """

    def __init__(
        self,
        nodes: int = 3,
        *,
        racks: Sequence[str] = (),
        seed: int = 0,
        users: Mapping[str, str] = MappingProxyType({}),
        **settings: object,
    ) -> None:
        """Nothing runs before `start`, or `with`.

        nodes:    how many, numbered from 1
        racks:    the rack of each node, in the order of their numbers; none has one where it is empty
        seed:     of what chance decides, which is what remains of `Unsynced.TORN`
        users:    passwords by name; with some, the listeners for clients serve these users alone (`bootstrap_of`)
        settings: of all nodes, with underscores for dots; docs/configuration.md has them all. min.insync.replicas is 2
                  where there are three nodes or more, and topics have up to three replicas by default

        Raises `ConfigError` for a setting that there isn't, or a value that it can't have, and `UsageError`.
        """
        if not 1 <= nodes <= NODES_MAX:
            raise UsageError(f"a cluster in one process has 1 to {NODES_MAX} nodes, not {nodes}")
        if racks and (isinstance(racks, str) or len(racks) != nodes):
            raise UsageError(f"racks names one rack for each of the {nodes} nodes, for example {_example(nodes)}")
        values: dict[str, object] = {
            **_DEFAULTS,
            "default.replication.factor": min(nodes, 3),
            "min.insync.replicas": 2 if nodes > 2 else 1,
        }
        for attribute, value in settings.items():
            name = setting_name(attribute)
            if name in _OWN_SETTINGS:
                raise UsageError(f"{name} is set for each node by the cluster")
            values[name] = value
        self._users = BrokerUsers(users)
        self._users.prepare(values)
        self._members = {
            number: _Member(number, {**values, "broker.rack": rack} if rack else dict(values), seed + number)
            for number, rack in enumerate(racks or [""] * nodes, start=1)
        }
        self._members[1].config()
        self._shared: MemoryData | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    # --- Life ---------------------------------------------------------------------------------------------------------

    def start(self, node: int | None = None) -> None:
        """Start a node that does not run, or all of them: on the same data and at the same addresses."""
        if self._shared is None:
            self._shared = MemoryData(0)
            self._folder = tempfile.TemporaryDirectory(prefix="semel-test-cluster-")
            secret = Path(self._folder.name) / "secret"
            secret.touch(mode=0o600)
            secret.write_text("a secret that is as long as one has to be")
            written = self._users.write()
            for member in self._members.values():
                member.values |= {"metadata.url": self._shared.metadata_url, "cluster.secret.file": str(secret)}
                member.values |= written
        for member in self._chosen(node):
            if not member.is_running:
                member.start()

    def stop(self, node: int) -> None:
        """Stop a node as SIGTERM does: others lead what it led before it goes. Its data stays for `start`."""
        self._member(node).end(lambda hosted: hosted.stop())

    def kill(self, node: int, unsynced: Unsynced = Unsynced.LOST) -> None:
        """Stop a node as a power cut does, or SIGKILL (`Unsynced.KEPT`). Its data stays for `start`."""
        self._member(node).kill(unsynced)

    def lose_data(self, node: int) -> None:
        """Take a node's disk away that does not run: it starts with an empty one."""
        self._member(node).lose_data()

    def close(self) -> None:
        """End all nodes, and forget the data. Does nothing the second time."""
        self.heal()
        for member in self._members.values():
            if member.is_running:
                member.kill(Unsynced.LOST)
        shared, self._shared = self._shared, None
        if shared is not None:
            shared.close()
        folder, self._folder = self._folder, None
        if folder is not None:
            folder.cleanup()
        self._users.close()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- Faults -------------------------------------------------------------------------------------------------------

    def pause(self, node: int) -> None:
        """Freeze a node as SIGSTOP does, until `heal`: it answers nothing, and does not know of it."""
        self._member(node).pause()

    def cut_off(self, node: int) -> None:
        """Cut a node off from the others, from clients and from the metadata's database, until `heal`."""
        self._member(node).cut_off()

    def cut_off_from_metadata(self, node: int | None = None) -> None:
        """Let a node, or all of them, not reach the metadata's database, until `heal`."""
        for member in self._chosen(node):
            member.is_cut = True

    def heal(self, node: int | None = None) -> None:
        """End what `pause` and the cuts did to a node, or to all. What was killed or stopped is started by `start`."""
        for member in self._chosen(node):
            member.heal()

    # --- What there is ------------------------------------------------------------------------------------------------

    @property
    def nodes(self) -> list[int]:
        """The numbers of the nodes that run."""
        return [number for number, member in self._members.items() if member.is_running]

    @property
    def bootstrap(self) -> str:
        """The nodes' addresses for Semel's own clients (gRPC), with commas. They stay the same over restarts."""
        return self._addresses("grpc")

    @property
    def kafka(self) -> str:
        """The nodes' addresses for Kafka's clients, their `bootstrap.servers`."""
        return hosts_of(self._addresses("kafka"))

    def bootstrap_of(self, user: str) -> str:
        """Return `bootstrap` with a user's name and password in it. Raises `UsageError` where there is no such user."""
        return self._users.bootstrap_of(user, self.bootstrap, self._members[1].values.get(MECHANISMS))

    def kafka_config_of(self, user: str) -> dict[str, str]:
        """Return what Kafka's clients need to connect as a user, by librdkafka's names. Raises `UsageError`."""
        mechanisms = self._members[1].values.get(MECHANISMS)
        return self._users.kafka_config_of(user, self._addresses("kafka"), mechanisms)

    def create_topic(
        self, name: str, *, partitions: int = 1, replicas: int = -1, configs: Mapping[str, str] | None = None
    ) -> None:
        """Create a topic, and wait until its replicas are in sync. -1: as many as the default. Raises `SemelError`."""

        async def create(node: Node) -> None:
            (result,) = await create_topics(node, [NewTopic(name, partitions, replicas, dict(configs or {}))])
            if result.error is not ErrorCode.NONE:
                raise error_for(result.error, result.message)

        self._reachable().run(create)
        self.wait_in_sync(name)

    def leader(self, topic: str, partition: int = 0) -> int:
        """Return the node that leads a partition by the newest metadata, -1 for none. Raises `SemelError`."""
        state = self._image().partition(TopicPartition(topic, partition))
        if state is None:
            raise error_for(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {topic}-{partition}")
        return state.leader

    def wait_in_sync(self, topic: str, *, timeout_s: float = 30.0) -> None:
        """Wait until all replicas of a topic are in sync. Raises `TimeoutError`."""

        def is_in_sync() -> bool:
            found = self._image().topic(topic)
            return found is not None and all(
                one.leader >= 0 and set(one.isr) == set(one.replicas) for one in found.partitions
            )

        deadline = time.monotonic() + timeout_s
        while not is_in_sync():
            if time.monotonic() >= deadline:
                raise TimeoutError(f"the replicas of {topic} were not all in sync within {timeout_s:g} s")
            time.sleep(_PAUSE_S)

    # --- Inside -------------------------------------------------------------------------------------------------------

    def _member(self, node: int) -> _Member:
        member = self._members.get(node)
        if member is None:
            raise UsageError(f"there is no node {node}: the cluster has 1 to {len(self._members)}")
        return member

    def _chosen(self, node: int | None) -> list[_Member]:
        return list(self._members.values()) if node is None else [self._member(node)]

    def _addresses(self, protocol: str) -> str:
        if self._shared is None:
            raise UsageError("the cluster has no addresses before it is started: start() it, or use a with-block")
        return ",".join(main_address(member.values, protocol) for member in self._members.values())

    def _reachable(self) -> _Member:
        """Return a node that runs and is neither paused nor cut off."""
        member = next((one for one in self._members.values() if one.is_reachable), None)
        if member is None:
            raise UsageError("no node of the cluster runs and can be reached: start() or heal() one")
        return member

    def _image(self) -> MetadataImage:
        images = [one.image() for one in self._members.values() if one.is_reachable]
        if not images:
            self._reachable()
        return max(images, key=lambda image: image.sequence)


def _example(nodes: int) -> list[str]:
    return [chr(ord("a") + number) for number in range(nodes)]


class _Member:
    """One node: its disk and addresses stay, its process comes and goes."""

    def __init__(self, number: int, values: dict[str, object], seed: int) -> None:
        self.values = {**values, "node.id": number, "data.dir": FOLDER}
        self.values[_PEER] = lasting_address(self.values[_PEER])
        give_lasting_addresses(self.values)
        self.is_cut = False
        self._number = number
        self._seed = seed
        self._storage = self._empty_disk()
        self._hosted: HostedNode | None = None
        self._thaw: threading.Event | None = None
        self._is_cut_off = False

    def _empty_disk(self) -> SimulatedStorage:
        storage = SimulatedStorage(self._seed)
        make_lasting_folder(storage, FOLDER)
        return storage

    def config(self) -> LoadedConfig:
        flags = [(f"Cluster({attribute_of(name)}=...)", name, value) for name, value in self.values.items()]
        return load_config(environment={}, flags=flags)

    @property
    def is_running(self) -> bool:
        return self._hosted is not None

    @property
    def is_reachable(self) -> bool:
        return self._hosted is not None and self._thaw is None and not self._is_cut_off

    def start(self) -> None:
        config = self.config()
        hosted = HostedNode(
            config,
            name=f"semel-test-node-{self._number}",
            listeners=(Listener.KAFKA, Listener.GRPC, Listener.PEERS),
            storage=self._storage,
            executor=InlineExecutor(),
            metadata_store=_CutStore(self, config.config.metadata_url),
            stop_grace_ms=max(STOP_GRACE_MS, config.config.broker_session_timeout_ms),
        )
        hosted.start(START_TIMEOUT_S)
        self._hosted = hosted
        node = hosted.node
        assert node.peer_listener is not None
        peer = with_scheme_of(node.config.peer_listen, f"127.0.0.1:{node.peer_listener.port}")
        self.values |= {**addresses_again(node), _PEER: peer}

    def run(self, work: Callable[[Node], Coroutine[Any, Any, _Result]]) -> _Result:
        hosted = self._running()
        return hosted.run(work(hosted.node))

    def image(self) -> MetadataImage:
        return self._running().node.metadata.image

    def end(self, how: Callable[[HostedNode], None]) -> None:
        hosted = self._running()
        self.heal()
        self._hosted = None
        how(hosted)

    def kill(self, unsynced: Unsynced) -> None:
        power, torn = unsynced is not Unsynced.KEPT, unsynced is Unsynced.TORN
        self.end(lambda hosted: hosted.kill(lambda: self._storage.crash(power=power, torn=torn)))

    def lose_data(self) -> None:
        if self.is_running:
            raise UsageError(f"node {self._number} runs: kill() it before its data is lost")
        self._storage = self._empty_disk()

    def pause(self) -> None:
        if self._thaw is not None:
            return
        thaw = self._thaw = threading.Event()
        frozen = threading.Event()

        async def loop_of(_: Node) -> asyncio.AbstractEventLoop:
            return asyncio.get_running_loop()

        def block() -> None:
            frozen.set()
            thaw.wait()

        self.run(loop_of).call_soon_threadsafe(block)
        frozen.wait()

    def cut_off(self) -> None:
        self.is_cut = self._is_cut_off = True
        self.run(lambda node: node.cut_off())

    def heal(self) -> None:
        thaw, self._thaw = self._thaw, None
        if thaw is not None:
            thaw.set()
        self.is_cut = False
        was_cut_off, self._is_cut_off = self._is_cut_off, False
        if was_cut_off and self._hosted is not None:
            with contextlib.suppress(SemelError):
                self.run(lambda node: node.let_in())

    def _running(self) -> HostedNode:
        if self._hosted is None:
            raise UsageError(f"node {self._number} does not run: start({self._number}) it")
        return self._hosted


class _CutStore(MetadataStore):
    """A node's way to the metadata's database, which can be cut."""

    def __init__(self, member: _Member, url: str) -> None:
        super().__init__(url)
        self._member = member

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sa.Connection]:
        if self._member.is_cut:
            raise MetadataUnavailableError("the way to the metadata's database is cut")
        with super()._transaction() as connection:
            yield connection
