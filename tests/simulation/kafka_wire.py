"""Clients of Kafka's protocol in a world: connections, requests in real clients' versions, late repetitions."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final

from kafka_calls import request_body
from kio.serial import entity_reader
from request_story import codes_in

from semel.protocol.errors import ErrorCode, RetriableError, SemelError
from semel.protocol.ids import TopicId, TopicPartition
from semel.protocol.kafka.api import ApiKey
from semel.protocol.kafka.entities import load_entity
from semel.runtime.kafka_client.connection import Connection, ConnectionLostError, connect
from semel.sdk.transport.connection import dial_link
from simulation.machine import START_MS
from simulation.network import Link

if TYPE_CHECKING:
    from simulation.ledger import Ledger
    from simulation.world import World

REQUEST_TIMEOUT_MS: Final = 2_000

RETRIED: Final = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    }
)
"""What real clients answer with the same request, a while later."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """The versions in which one client speaks, and what it does where clients differ: as recorded (`recordings/`).

    new_group_versions: those that differ in a group of the new kind.
    is_java:            what a client of Java does: an idempotent producer counts its epoch up without asking and
                        sends batches again one at a time; fetches are in sessions, which it ends; commits say the epoch
                        of what was read, and members of the new kind who they are where they ask for commits.
                        librdkafka asks for another id, sends batches again side by side, and a producer whose batch is
                        refused for its epoch has ended.
    is_newer:           transactions of version 2: no AddPartitionsToTxn, an epoch for each (KIP-890).
    """

    name: str
    versions: Mapping[ApiKey, int]
    is_java: bool
    new_group_versions: Mapping[ApiKey, int] = field(default_factory=dict)
    is_newer: bool = False


LIBRDKAFKA: Final = Dialect(
    "librdkafka",
    {
        ApiKey.METADATA: 13,
        ApiKey.FIND_COORDINATOR: 2,
        ApiKey.OFFSET_FETCH: 9,
        ApiKey.OFFSET_COMMIT: 9,
        ApiKey.CONSUMER_GROUP_HEARTBEAT: 1,
        ApiKey.PRODUCE: 10,
        ApiKey.FETCH: 16,
        ApiKey.LIST_OFFSETS: 7,
        ApiKey.OFFSET_DELETE: 0,
        ApiKey.INIT_PRODUCER_ID: 4,
        ApiKey.ADD_PARTITIONS_TO_TXN: 0,
        ApiKey.ADD_OFFSETS_TO_TXN: 0,
        ApiKey.TXN_OFFSET_COMMIT: 3,
        ApiKey.END_TXN: 1,
        ApiKey.JOIN_GROUP: 5,
        ApiKey.SYNC_GROUP: 3,
        ApiKey.HEARTBEAT: 3,
        ApiKey.LEAVE_GROUP: 1,
    },
    is_java=False,
)
JAVA_3: Final = Dialect(
    "java-3",
    {
        ApiKey.METADATA: 12,
        ApiKey.FIND_COORDINATOR: 6,
        ApiKey.OFFSET_FETCH: 9,
        ApiKey.OFFSET_COMMIT: 9,
        ApiKey.CONSUMER_GROUP_HEARTBEAT: 0,
        ApiKey.PRODUCE: 11,
        ApiKey.FETCH: 17,
        ApiKey.LIST_OFFSETS: 9,
        ApiKey.OFFSET_DELETE: 0,
        ApiKey.INIT_PRODUCER_ID: 5,
        ApiKey.ADD_PARTITIONS_TO_TXN: 3,
        ApiKey.ADD_OFFSETS_TO_TXN: 4,
        ApiKey.TXN_OFFSET_COMMIT: 4,
        ApiKey.END_TXN: 4,
        ApiKey.JOIN_GROUP: 9,
        ApiKey.SYNC_GROUP: 5,
        ApiKey.HEARTBEAT: 4,
        ApiKey.LEAVE_GROUP: 5,
    },
    is_java=True,
)
JAVA_4: Final = Dialect(
    "java-4",
    {
        **{
            key: version
            for key, version in JAVA_3.versions.items()
            if key not in (ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.ADD_OFFSETS_TO_TXN)
        },
        ApiKey.METADATA: 13,
        ApiKey.CONSUMER_GROUP_HEARTBEAT: 1,
        ApiKey.PRODUCE: 13,
        ApiKey.FETCH: 18,
        ApiKey.LIST_OFFSETS: 11,
        ApiKey.TXN_OFFSET_COMMIT: 5,
        ApiKey.END_TXN: 5,
    },
    is_java=True,
    new_group_versions={ApiKey.OFFSET_FETCH: 10, ApiKey.OFFSET_COMMIT: 10},
    is_newer=True,
)
DIALECTS: Final = (LIBRDKAFKA, JAVA_3, JAVA_4)


class NewerInstanceError(SemelError):
    """Another instance has this one's place, or its transaction timed out: a real client ends here."""

    def __init__(self, message: str) -> None:
        super().__init__(message, ErrorCode.PRODUCER_FENCED)


@dataclass(slots=True)
class Party:
    """One life of a client program: what everything that it opens has in common."""

    world: World
    ledger: Ledger
    name: str
    place: str
    chance: random.Random
    dialect: Dialect

    def note(self, what: str) -> None:
        """Keep for the story what it has asked, or was answered."""
        self.world.network.note(self.place, what)

    def wrong(self, kind: str, detail: str) -> None:
        self.ledger.wrong(kind, f"{self.name} ({self.dialect.name}): {detail}")

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes of the world, in the order of their ids."""
        return tuple(self.world.nodes)

    def wire(self) -> Wire:
        """Return a way to the node, or to all of them."""
        return Wire(self) if len(self.nodes) == 1 else ClusterWire(self)

    def now_ms(self) -> int:
        """Return what its clock says, which is off in one of three programs."""
        off_ms = random.Random(f"clock of {self.place} in {self.world.seed}").choice((0, 0, 0, 0, 700, -20_000))
        return START_MS + off_ms + int(self.world.scheduler.now * 1000)

    async def pause(self, longest_s: float = 0.2) -> None:
        await asyncio.sleep(longest_s * (0.3 + 0.7 * self.chance.random()))


class Wire:
    """One connection to a node, opened when it is wanted, and again after it ended."""

    leaders_change: ClassVar = False

    def __init__(self, party: Party, node: str = "node") -> None:
        self.party = party
        self._link = Link(party.world.network, party.place, node)
        self._connection: Connection | None = None
        self._ids: dict[str, TopicId] = {}

    async def opened(self) -> Connection:
        """Return the open connection. Raises `ConnectionLostError` after one attempt."""
        if self._connection is None or not self._connection.is_open:
            self._connection = None
            name = self.party.name
            self._connection = await connect(
                self._link.name,
                dial_link(self._link),
                client_id=name,
                in_flight_max=5,
                timeout_ms=REQUEST_TIMEOUT_MS,
            )
        return self._connection

    async def opened_to(self, tp: TopicPartition) -> Connection:
        """Return the open connection to the leader of a partition. Raises `ConnectionLostError` after one attempt."""
        return await self.opened()

    def moved(self, tp: TopicPartition) -> None:
        """Take note that a partition may have another leader than was known, or its topic another id."""
        self._ids.pop(tp.topic, None)

    async def topic_id(self, topic: str) -> TopicId:
        """Return the id of a topic, by which newer clients write. Raises `ConnectionLostError` after one attempt."""
        if topic not in self._ids:
            answer = await self.ask_metadata(topic)
            self._ids |= {one.name: TopicId(one.topic_id) for one in answer.topics if not one.error_code}
            if topic not in self._ids:
                raise ConnectionLostError("the topic is not known")
        return self._ids[topic]

    async def ask_metadata(self, *topics: str) -> Any:
        """Ask for the metadata of topics. Raises `ConnectionLostError`."""
        return await self.call(
            ApiKey.METADATA,
            topics=[{"name": topic, "topic_id": bytes(16)} for topic in topics],
            allow_auto_topic_creation=False,
        )

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    async def call(
        self, key: ApiKey, /, *, timeout_ms: float = REQUEST_TIMEOUT_MS, version: int | None = None, **values: Any
    ) -> Any:
        """Send one request and return kio's response. Raises `ConnectionLostError`, where its effect is unknown.

        version: by default that of the client
        """
        if version is None:
            version = self.party.dialect.versions[key]
        body = request_body(key, version, **values)
        note = self.party.note
        connection = await self.opened()
        await connection.wait_room()
        note(f"asks {key.name} of version {version}")
        try:
            answer = await connection.request(key, version, (body,), timeout_ms=timeout_ms)
        except ConnectionLostError:
            note(f"gets no answer to {key.name}")
            raise
        response = parsed(key, version, answer)
        codes = sorted({code.name for code in codes_in(response)} - {"NONE"})
        note(f"is answered {key.name}: {', '.join(codes) or 'no error'}")
        return response


@dataclass(frozen=True, slots=True)
class Led:
    """Who leads a partition, as far as a client knows. epoch: of that leader; node: its place"""

    epoch: int
    node: str


_LOST_COORDINATOR: Final = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})


@dataclass(frozen=True, slots=True)
class Coordinated:
    """What has a coordinator: a group, or a transactional id. kind: as FindCoordinator has it"""

    kind: int
    name: str


class ClusterWire(Wire):
    """Connections to all nodes. Leaders are found by the metadata of any node, as real clients do; so are coordinators.

    An answer with an older leader epoch than is known does not count: the node that gave it is behind (KIP-320).
    """

    leaders_change = True

    def __init__(self, party: Party) -> None:
        super().__init__(party)
        self._wires = {node: Wire(party, node) for node in party.nodes}
        self._names = dict(enumerate(party.nodes, start=1))
        self._asked = party.chance.choice(party.nodes)
        """The node that is asked for what any node can do."""
        self.led: dict[TopicPartition, Led] = {}
        self._stale: set[TopicPartition] = set()
        self._coordinators: dict[Coordinated, str] = {}

    def to(self, node: str) -> Wire:
        """Return the connection to one node."""
        return self._wires[node]

    async def opened(self) -> Connection:
        try:
            return await self._wires[self._asked].opened()
        except ConnectionLostError:
            self.ask_another()
            raise

    def ask_another(self) -> None:
        """Ask another node from now on."""
        self._asked = self.party.chance.choice([node for node in self.party.nodes if node != self._asked])

    async def call(
        self, key: ApiKey, /, *, timeout_ms: float = REQUEST_TIMEOUT_MS, version: int | None = None, **values: Any
    ) -> Any:
        coordinated = _coordinated(key, values)
        if coordinated is not None:
            return await self._call_coordinator(coordinated, key, timeout_ms, version, values)
        try:
            return await super().call(key, timeout_ms=timeout_ms, version=version, **values)
        except ConnectionLostError:
            self.ask_another()
            raise

    async def _call_coordinator(
        self, coordinated: Coordinated, key: ApiKey, timeout_ms: float, version: int | None, values: Mapping[str, Any]
    ) -> Any:
        node = self._coordinators.get(coordinated) or await self._find_coordinator(coordinated)
        try:
            answer = await self._wires[node].call(key, timeout_ms=timeout_ms, version=version, **values)
        except ConnectionLostError:
            self._coordinators.pop(coordinated, None)
            raise
        if any(code in _LOST_COORDINATOR for code in codes_in(answer)):
            self._coordinators.pop(coordinated, None)
        return answer

    async def _find_coordinator(self, coordinated: Coordinated) -> str:
        """Ask any node. Raises `ConnectionLostError` where that is not known after one answer."""
        if self.party.chance.random() < 0.3:
            self.ask_another()  # the one that was asked last may be behind for long
        answer = await self.call(
            ApiKey.FIND_COORDINATOR,
            key_type=coordinated.kind,
            key=coordinated.name,
            coordinator_keys=[coordinated.name],
        )
        (found,) = getattr(answer, "coordinators", (answer,))
        node = self._names.get(found.node_id)
        if found.error_code or node is None:
            self.ask_another()
            raise ConnectionLostError("nobody is known to coordinate it")
        self._coordinators[coordinated] = node
        return node

    async def opened_to(self, tp: TopicPartition) -> Connection:
        await self.find(tp)
        try:
            return await self._wires[self.led[tp].node].opened()
        except ConnectionLostError:
            self.moved(tp)
            raise

    def moved(self, tp: TopicPartition) -> None:
        self._stale.add(tp)

    async def find(self, *tps: TopicPartition) -> None:
        """Ask for the metadata of partitions whose leader is not known now.

        Raises `ConnectionLostError` where that is not known after one answer.
        """
        wanted = {tp.topic: None for tp in tps if tp in self._stale or tp not in self.led}
        if wanted:
            if self.party.chance.random() < 0.3:
                self.ask_another()  # the one that was asked last may be behind for long
            answer = await self.ask_metadata(*wanted)
            for topic in answer.topics:
                if not topic.error_code:
                    self._learn(topic)
        if any(tp in self._stale or tp not in self.led for tp in tps):
            self.ask_another()
            raise ConnectionLostError("nobody is known to lead the partition")

    def _learn(self, topic: Any) -> None:
        topic_id = TopicId(topic.topic_id)
        if self._ids.setdefault(topic.name, topic_id) != topic_id:
            self._ids[topic.name] = topic_id
            self.led = {tp: led for tp, led in self.led.items() if tp.topic != topic.name}
        for one in topic.partitions:
            tp = TopicPartition(topic.name, one.partition_index)
            known = self.led.get(tp)
            node = self._names.get(one.leader_id)
            if node is not None and (known is None or one.leader_epoch >= known.epoch):
                self.led[tp] = Led(one.leader_epoch, node)
                self._stale.discard(tp)

    def close(self) -> None:
        for wire in self._wires.values():
            wire.close()


def _coordinated(key: ApiKey, values: Mapping[str, Any]) -> Coordinated | None:
    """Return whose coordinator a request goes to; None for one that any node serves."""
    if key is ApiKey.FIND_COORDINATOR:
        return None
    if "group_id" in values and key is not ApiKey.ADD_OFFSETS_TO_TXN:
        return Coordinated(0, values["group_id"])
    if key is ApiKey.OFFSET_FETCH:
        return Coordinated(0, values["groups"][0]["group_id"])
    transactional_id = values.get("transactional_id") or values.get("v3_and_below_transactional_id")
    return None if transactional_id is None else Coordinated(1, transactional_id)


def parsed(key: ApiKey, version: int, body: memoryview) -> Any:
    response, _ = entity_reader(load_entity(key, version, "response"))(bytes(body), 0)
    return response


def code_of(value: Any) -> ErrorCode:
    """Return our error code for kio's."""
    return ErrorCode(int(value))


class Echo:
    """Repeats frames that were sent before, much later, on a connection of its own: what a network may do.

    The answers are of no interest, and nothing may come of the repetition: that is for the checks to find.
    """

    def __init__(self, party: Party, share: float) -> None:
        self._party = party
        self._share = share
        self._process = party.world.client(f"{party.name}.late") if share else None
        self.repeated = 0

    def draws(self) -> bool:
        """Draw whether something is repeated."""
        return self._process is not None and self._party.chance.random() < self._share

    def sent(self, key: ApiKey, version: int, body: Sequence[Any], only_if: Callable[[], bool] | None = None) -> bool:
        """A request has left: now and then it arrives again, where `only_if` holds then. Returns whether it may."""
        process, party = self._process, self._party
        if process is None or not self.draws():
            return False
        frame = b"".join(bytes(part) for part in body)
        delay_s = party.chance.choice((0.05, 1.0, 12.0)) * party.chance.random()

        def repeat() -> None:
            if only_if is None or only_if():
                process.start(self.repeat(key, version, frame))

        party.world.later(delay_s, repeat)
        return True

    async def repeat(self, key: ApiKey, version: int, frame: bytes) -> memoryview | None:
        """Let a frame arrive once more, at any node. Returns its answer; None where it may be on its way yet."""
        nodes = self._party.nodes
        node = nodes[0] if len(nodes) == 1 else self._party.chance.choice(nodes)
        try:
            link = Link(self._party.world.network, self._party.place, node)
            connection = await connect(
                link.name,
                dial_link(link),
                client_id=self._party.name,
                in_flight_max=1,
                timeout_ms=REQUEST_TIMEOUT_MS,
            )
            self.repeated += 1
            answer = await connection.request(key, version, (frame,), timeout_ms=REQUEST_TIMEOUT_MS)
            connection.close()
        except RetriableError:
            return None
        return answer


async def learn_topic_ids(wire: Wire, *topics: str) -> dict[str, TopicId]:
    """Ask for the metadata until it names the topics."""
    while True:
        try:
            answer = await wire.ask_metadata(*topics)
        except ConnectionLostError:
            await wire.party.pause()
            continue
        found = {topic.name: TopicId(topic.topic_id) for topic in answer.topics if not topic.error_code}
        if found.keys() >= set(topics):
            return found
        await wire.party.pause()
