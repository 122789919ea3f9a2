"""Sends the same requests to two brokers, in every version that both serve, and says where their answers differ.

A scenario is a coroutine that talks to one broker through a `Side`, which writes down each answer. It runs against both
at once; then the two lists are compared. What must differ is made equal first: ids are paired as they appear, the
present becomes "now", lists that have no order are sorted, the wording of messages is dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime
import enum
import re
import time
import uuid
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final

from kafka_calls import request_body

from semel.protocol.batch_builder import encode_batch
from semel.protocol.batch_header import read_header
from semel.protocol.compression import Compression
from semel.protocol.kafka.api import ApiKey, build_request_header, parse_response_header
from semel.protocol.kafka.entities import fields_of, known_versions, load_entity
from semel.protocol.kafka.entity_reader import _PRIMITIVES, entity_reader
from semel.protocol.kafka.wire import WireReader
from semel.protocol.record_decoder import decode_records

# kio's own reader refuses the -1 that stands for no time.
_PRIMITIVES.setdefault("datetime_i64", WireReader.read_int64)

ANSWER_TIMEOUT_S: Final = 60.0
RETRY_S: Final = 0.05
RETRY_TIMEOUT_S: Final = 30.0
LONG_AGO: Final = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
"""What is later is the time of the test."""

COORDINATOR_LOADS: Final = frozenset({14, 15, 16})
"""COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR: a broker that has just made a topic."""
CONCURRENT_TRANSACTIONS: Final = 51
"""The markers of the transaction before are on their way."""

IDS: Final = frozenset({"topic_id", "member_id", "producer_id", "session_id", "leader"})
DROPPED: Final = frozenset(
    {"error_message", "host", "port", "cluster_id", "log_dir", "usable_bytes", "total_bytes"}
    | {"batch_index_error_message"}
)

Scenario = Callable[["Side", int], Awaitable[None]]
Entry = tuple[str, str, int, Any]
"""What one request was for, its API, its version, and the answer."""

Scenarios = dict[str, tuple[ApiKey, Scenario]]

SCENARIOS: Final[Scenarios] = {}
CLUSTER_SCENARIOS: Final[Scenarios] = {}
"""Of clusters of three nodes."""
DEGRADED_SCENARIOS: Final[Scenarios] = {}
"""Of such clusters whose third node is gone."""


def scenario(key: ApiKey, of: Scenarios = SCENARIOS) -> Callable[[Scenario], Scenario]:
    """Register a scenario, which runs once for each version of `key` that both brokers serve."""

    def register(function: Scenario) -> Scenario:
        name = function.__name__  # type: ignore[attr-defined]
        assert name not in of, name
        of[name] = (key, function)
        return function

    return register


class Connection:
    """One connection to a broker; opened again where it was closed."""

    def __init__(self, port: int, client_id: str) -> None:
        self._port = port
        self._client_id = client_id
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._correlation_id = 0

    async def call(self, key: ApiKey, version: int, body: bytes) -> Any:
        """Return kio's response, or None where the broker closed the connection instead."""
        self._correlation_id += 1
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 26)
        reader, writer = self._streams
        frame = build_request_header(key, version, self._correlation_id, self._client_id) + body
        try:
            writer.write(len(frame).to_bytes(4, "big") + frame)
            size = int.from_bytes(await reader.readexactly(4), "big")
            answer = await reader.readexactly(size)
        except (asyncio.IncompleteReadError, ConnectionError):
            await self.close()
            return None
        correlation_id, start = parse_response_header(answer, key, version)
        assert correlation_id == self._correlation_id
        reader_ = WireReader(answer[start:])
        response = entity_reader(load_entity(key, version, "response"))(reader_)
        assert not reader_.remaining(), f"{reader_.remaining()} bytes follow the answer to {key.name} version {version}"
        return response

    async def close(self) -> None:
        if self._streams is not None:
            writer = self._streams[1]
            self._streams = None
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


class Side:
    """One broker, or one cluster, as a scenario sees it. `answers` is what it has answered."""

    def __init__(
        self, ports: Sequence[int], run: str, key: ApiKey, version: int, versions: Mapping[ApiKey, Sequence[int]]
    ):
        """`ports`: of the nodes, from number 1 on."""
        self.run = run
        self.answers: list[Entry] = []
        self._ports = ports
        self._key = key
        self._version = version
        self._versions = versions
        self._connections: dict[str, Connection] = {}

    @classmethod
    def beside(cls, other: Side) -> Side:
        """Return one for requests whose answers are not compared, on connections of its own."""
        return cls(other._ports, other.run, other._key, other._version, other._versions)

    def name(self, what: str) -> str:
        """Return a name of this run's own."""
        return f"{self.run}-{what}"

    def version_of(self, key: ApiKey) -> int:
        """Return the version under test, for other APIs the newest that both brokers serve."""
        return self._version if key is self._key else self._versions[key][-1]

    def serves(self, key: ApiKey, version: int) -> bool:
        return version in self._versions[key]

    async def ask(
        self,
        what: str,
        key: ApiKey,
        /,
        *,
        version: int | None = None,
        on: str = "first",
        node: int = 1,
        until_not: Collection[int] = COORDINATOR_LOADS,
        **values: Any,
    ) -> Any:
        """Send a request to a node and write the answer down.

        It is sent again while it has one of the errors in `until_not`.
        """
        used = self.version_of(key) if version is None else version
        strangers = set(_names(values)) - _request_names(key)
        assert not strangers, f"{key.name} has no {strangers}"
        body = request_body(key, used, **values)
        client = f"client-{on}" if node == 1 else f"client-{on}-{node}"
        connection = self._connections.setdefault(client, Connection(self._ports[node - 1], client))
        deadline = time.monotonic() + RETRY_TIMEOUT_S
        while True:
            response = await asyncio.wait_for(connection.call(key, used, body), ANSWER_TIMEOUT_S)
            if response is None or not set(_error_codes(response)) & set(until_not) or time.monotonic() > deadline:
                break
            await asyncio.sleep(RETRY_S)
        self.answers.append((what, key.name, used, "the connection closed" if response is None else plain(response)))
        return response

    async def topic(self, what: str, partitions: int = 1, **configs: str) -> str:
        """Make a topic and wait until it can be used. Returns its name."""
        name = self.name(what)
        # The records of the scenarios are from 1970.
        configs = {"retention_ms": "-1", **configs}
        wanted = {
            "name": name,
            "num_partitions": partitions,
            "replication_factor": 1,
            "assignments": [],
            "configs": [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()],
        }
        port = Connection(self._ports[0], "setup")
        try:
            key = ApiKey.CREATE_TOPICS
            body = request_body(key, 7, topics=[wanted], timeout=60_000, validate_only=False)
            made = await port.call(key, 7, body)
            assert made.topics[0].error_code == 0, made
            await self._see(port, name, partitions)
        finally:
            await port.close()
        return name

    async def wait_for_topic(self, name: str, partitions: int) -> None:
        port = Connection(self._ports[0], "setup")
        try:
            await self._see(port, name, partitions)
        finally:
            await port.close()

    @staticmethod
    async def _see(port: Connection, name: str, partitions: int) -> None:
        deadline = time.monotonic() + RETRY_TIMEOUT_S
        body = request_body(ApiKey.METADATA, 9, topics=[{"name": name}], allow_auto_topic_creation=False)
        while True:
            (topic,) = (await port.call(ApiKey.METADATA, 9, body)).topics
            if len(topic.partitions) == partitions and all(each.leader_id == 1 for each in topic.partitions):
                one = {"current_leader_epoch": -1, "timestamp": -1}
                asked = [{"name": name, "partitions": [{"partition_index": n, **one} for n in range(partitions)]}]
                offsets = request_body(ApiKey.LIST_OFFSETS, 7, replica_id=-1, isolation_level=0, topics=asked)
                if not any(_error_codes(await port.call(ApiKey.LIST_OFFSETS, 7, offsets))):
                    return
            assert time.monotonic() < deadline, f"{name} did not appear"
            await asyncio.sleep(RETRY_S)

    async def topic_id(self, name: str) -> bytes:
        port = Connection(self._ports[0], "setup")
        try:
            body = request_body(ApiKey.METADATA, 12, topics=[{"name": name, "topic_id": bytes(16)}])
            (topic,) = (await port.call(ApiKey.METADATA, 12, body)).topics
            return bytes(topic.topic_id.bytes)
        finally:
            await port.close()

    async def produce(self, what: str, topic: str, data: bytes | None, partition: int = 0, **values: Any) -> Any:
        """Send records to one partition. In versions with topic ids the topic's is asked for first."""
        version = self.version_of(ApiKey.PRODUCE)
        named: dict[str, Any] = {"name": topic} if version < 13 else {"topic_id": await self.topic_id(topic)}
        named["partition_data"] = [{"index": partition, "records": data}]
        values = {"transactional_id": None, "acks": -1, "timeout": 30_000, **values}
        return await self.ask(what, ApiKey.PRODUCE, topic_data=[named], **values)

    async def close(self) -> None:
        for connection in self._connections.values():
            await connection.close()


def batch(
    *values: bytes,
    producer: tuple[int, int] = (-1, -1),
    sequence: int = -1,
    transactional: bool = False,
    compression: Compression = Compression.NONE,
    at_ms: int = 1_000,
    keys: bool = True,
    control: bool = False,
) -> bytes:
    """Return one record batch. Its records are a millisecond apart."""
    return encode_batch(
        [(at_ms + n, b"key" if keys else None, value, ()) for n, value in enumerate(values)],
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=sequence,
        transactional=transactional,
        compression=compression,
        control=control,
    )


# --- Answers made comparable ------------------------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """Return an answer as dictionaries, lists and simple values, without what must differ between two brokers."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        items = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return {name: _plain_field(name, item) for name, item in items.items() if name not in DROPPED}
    if isinstance(value, tuple):
        items_ = [plain(item) for item in value]
        if items_ and isinstance(items_[0], int):
            return sorted(items_)  # partitions, of which no order is promised
        return sorted(items_, key=_order) if items_ and isinstance(items_[0], dict) else items_
    if isinstance(value, enum.Enum):
        return f"{int(value.value)} {value.name}"
    if isinstance(value, datetime.datetime):
        return "now" if value > LONG_AGO else round(value.timestamp() * 1000)
    if isinstance(value, datetime.timedelta):
        return round(value.total_seconds() * 1000)
    return value


def _plain_field(name: str, value: Any) -> Any:
    if name == "records" and value is not None:
        return [_plain_batch(header, data) for header, data in _batches(bytes(value))]
    if name == "configs" and value and hasattr(value[0], "name"):
        return {item.name: {key: each for key, each in plain(item).items() if key != "name"} for item in value}
    if isinstance(value, int) and ("time" in name or "expiry" in name) and value > LONG_AGO.timestamp() * 1000:
        return "now"
    if name == "aborted_transactions" and not value:
        return None  # clients take null and none as the same
    return plain(value)


def _batches(data: bytes) -> Iterator[tuple[Any, bytes]]:
    position = 0
    while position + 61 <= len(data):
        header = read_header(data, position)
        end = position + header.size_bytes
        if end > len(data):
            return
        yield header, data[position:end]
        position = end


def _plain_batch(header: Any, data: bytes) -> Any:
    about = {
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "is_transactional": header.is_transactional,
        "is_control": header.is_control,
    }
    if not header.is_control:
        about["timestamps"] = header.timestamp_type.name
        about["values"] = [(record.key, record.value) for record in decode_records(data)]
    return about


def _order(item: Mapping[str, Any]) -> str:
    """Sort by what identifies an item, ids of chance aside."""
    return repr([(name, value) for name, value in item.items() if not isinstance(value, uuid.UUID) and name not in IDS])


class _Pairs:
    """Ids of the one broker and those of the other that stand in the same places."""

    def __init__(self) -> None:
        self._other: dict[tuple[str, Any], Any] = {}
        self._one: dict[tuple[str, Any], Any] = {}

    def match(self, kind: str, one: Any, other: Any) -> bool:
        """Return whether each stands where the other did before; the first time they are a pair."""
        return self._other.setdefault((kind, one), other) == other and self._one.setdefault((kind, other), one) == one


def _kind_of_id(name: str, value: Any) -> str:
    """Return what a value identifies, if it is an id that the broker made."""
    if isinstance(value, uuid.UUID):
        return "topic"
    if name in ("member_id", "leader") and isinstance(value, str) and value:
        return "member"
    if name == "producer_id" and isinstance(value, int) and value >= 0:
        return "producer"
    return "session" if name == "session_id" and value else ""


def differences(kafka: Sequence[Entry], semel: Sequence[Entry]) -> list[str]:
    """Return a line for each place where the answers differ: what was asked, the field's path, both values."""
    found: list[str] = []
    pairs = _Pairs()
    for (what, api, version, one), (same, *_, other) in zip(kafka, semel, strict=False):
        if what != same:
            return [*found, f"{what} | {api} v{version} | . | Kafka: went another way | Semel: {same}"]
        for path, here, there in _compare("", "", one, other, pairs):
            found.append(f"{what} | {api} v{version} | {path or '.'} | Kafka: {here!r} | Semel: {there!r}")
    return found


def _compare(path: str, name: str, one: Any, other: Any, pairs: _Pairs) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(one, dict) and isinstance(other, dict):
        if one.keys() != other.keys():
            yield f"{path}.keys", sorted(one.keys() - other.keys()), sorted(other.keys() - one.keys())
        for key in sorted(one.keys() & other.keys()):
            yield from _compare(f"{path}.{key}", key, one[key], other[key], pairs)
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for n, (here, there) in enumerate(zip(one, other, strict=True)):
            yield from _compare(f"{path}[{n}]", name, here, there, pairs)
    elif (kind := _kind_of_id(name, one)) and kind == _kind_of_id(name, other):
        if not pairs.match(kind, one, other):
            yield path, f"another {kind}", f"another {kind}"
    elif one != other:
        yield path, one, other


def _error_codes(value: Any) -> Iterator[int]:
    if dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            item = getattr(value, field.name)
            if field.name.endswith("error_code"):
                yield int(item)
            else:
                yield from _error_codes(item)
    elif isinstance(value, tuple):
        for item in value:
            yield from _error_codes(item)


def _names(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        yield from value
        for item in value.values():
            yield from _names(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _names(item)


_request_names_seen: dict[ApiKey, frozenset[str]] = {}


def _request_names(key: ApiKey) -> frozenset[str]:
    """The names of all fields in all versions of a request: a misspelt one would be left out in silence."""
    if key not in _request_names_seen:
        names: set[str] = set()

        def collect(entity: type[Any]) -> None:
            for field in fields_of(entity):
                names.add(field.name)
                if field.nested is not None:
                    collect(field.nested)

        for version in known_versions(key):
            collect(load_entity(key, version, "request"))
        _request_names_seen[key] = frozenset(names)
    return _request_names_seen[key]


# --- Running ----------------------------------------------------------------------------------------------------------


async def served_by_both(ports: Sequence[int]) -> dict[ApiKey, list[int]]:
    """Return the versions of each API that both brokers advertise and kio knows."""
    both: dict[ApiKey, set[int]] = {}
    for n, port in enumerate(ports):
        connection = Connection(port, "setup")
        body = request_body(ApiKey.API_VERSIONS, 3, client_software_name="test", client_software_version="1")
        answer = await connection.call(ApiKey.API_VERSIONS, 3, body)
        await connection.close()
        own = {each.api_key: set(range(each.min_version, each.max_version + 1)) for each in answer.api_keys}
        for key in ApiKey:
            served = own.get(int(key), set()) & set(known_versions(key))
            both[key] = both[key] & served if n else served
    return {key: sorted(versions) for key, versions in both.items() if versions}


async def prepare(port: int) -> None:
    """Have the coordinators' topics made, which Apache Kafka does when a coordinator is looked for."""
    connection = Connection(port, "setup")
    deadline = time.monotonic() + RETRY_TIMEOUT_S
    for kind in (0, 1):
        body = request_body(ApiKey.FIND_COORDINATOR, 3, key_type=kind, key="anything")
        while (await connection.call(ApiKey.FIND_COORDINATOR, 3, body)).error_code:
            assert time.monotonic() < deadline, "no coordinator was found"
            await asyncio.sleep(RETRY_S)
    await connection.close()


async def run_scenario(
    name: str,
    version: int,
    ports: Sequence[Sequence[int]],
    versions: Mapping[ApiKey, Sequence[int]],
    of: Scenarios = SCENARIOS,
) -> tuple[int, list[str]]:
    """Run a scenario against both. Returns how many requests were compared, and the differences.

    ports: of the nodes of each side
    """
    key, function = of[name]
    run = f"{re.sub('_', '-', name)}-{version}"
    sides = [Side(nodes, run, key, version, versions) for nodes in ports]
    try:
        results = await asyncio.gather(*(function(side, version) for side in sides), return_exceptions=True)
    finally:
        for side in sides:
            await side.close()
    for result in results:
        if isinstance(result, BaseException):
            raise result
    kafka, semel = (side.answers for side in sides)
    return len(kafka), differences(kafka, semel)


def run_versions(
    name: str, ports: Sequence[Sequence[int]], versions: Mapping[ApiKey, Sequence[int]], of: Scenarios = SCENARIOS
) -> list[str]:
    """Run a scenario in every version that both serve. Returns the differences, and fails where nothing was asked."""
    found: list[str] = []
    compared = 0
    for version in versions[of[name][0]]:
        count, lines = asyncio.run(run_scenario(name, version, ports, versions, of))
        compared += count
        found += [f"{name}: {line}" for line in lines]
    print(f"{name}: {compared} requests compared")
    assert compared
    return found


class Deliberate:
    """Differences that are meant: a pattern for a line, and why the two differ. Each has to match something."""

    def __init__(self, *reasons: tuple[str, str]) -> None:
        self.patterns = [pattern for pattern, _ in reasons]
        self.matched: set[str] = set()

    def others(self, lines: Sequence[str]) -> list[str]:
        """Return the lines that no pattern matches, and note the patterns that match."""
        left = []
        for line in lines:
            patterns = [pattern for pattern in self.patterns if re.search(pattern, line)]
            self.matched.update(patterns)
            if not patterns:
                left.append(line)
        return left
