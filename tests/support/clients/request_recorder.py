"""Records what a client of Kafka's protocol asks a node for, through a proxy that loses what a scenario says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final

from kafka_proxy import KafkaProxy
from live_node import LiveNode
from request_story import Asked, RequestStory

import semel
from semel.protocol.kafka.api import ApiKey, parse_request_header, parse_response_header

RECORDINGS: Final = Path(__file__).parents[2] / "simulation" / "recordings"
SOURCE, TARGET = "in", "out"
PARTITIONS: Final = {SOURCE: 1, TARGET: 2}
SOURCE_VALUES: Final = ("0", "1", "2")
"""What stands in the source before a client begins."""


@dataclass(frozen=True, slots=True)
class Loss:
    """What happens to the request of an API with this number, from 1 on, and to those after it up to `last`.

    Their answers are withheld until the last has arrived, and then the connection ends. is_swallowed: they do not
    arrive at all, and the connection stays.

    answer_delay_s: how long answers of the API take, so that it is told how many requests a client has in flight
    """

    key: ApiKey
    number: int = 1
    last: int = 0
    is_swallowed: bool = False
    answer_delay_s: float = 0.0


SCENARIOS: Final[Mapping[str, Loss | None]] = {
    "idempotent": None,
    "transaction": None,
    "transform": None,
    "classic-group": None,
    "new-group": None,
    "fenced-end": None,
    "fenced-produce": None,
    "lost-produce": Loss(ApiKey.PRODUCE, 2),
    "lost-pipeline": Loss(ApiKey.PRODUCE, 2, 4, answer_delay_s=0.15),
    "lost-add-partitions": Loss(ApiKey.ADD_PARTITIONS_TO_TXN),
    "lost-add-offsets": Loss(ApiKey.ADD_OFFSETS_TO_TXN),
    "lost-offset-commit": Loss(ApiKey.TXN_OFFSET_COMMIT),
    "lost-end": Loss(ApiKey.END_TXN),
    "given-up": Loss(ApiKey.PRODUCE, 2, is_swallowed=True),
}
"""What a client goes through, and what it loses."""


class Fate(Enum):
    PASS = "pass"
    WITHHOLD = "withhold"
    SWALLOW = "swallow"


class Interference:
    """Decides about the requests of one scenario in the order in which they come."""

    def __init__(self, loss: Loss | None) -> None:
        self._loss = loss
        self._count = 0
        self.due = asyncio.Event()
        """Set when the last request has come whose answer is withheld."""

    def fate(self, key: int) -> Fate:
        loss = self._loss
        if loss is None or key != loss.key:
            return Fate.PASS
        self._count += 1
        if self._count >= max(loss.last, loss.number):
            self.due.set()
        if not loss.number <= self._count <= max(loss.last, loss.number):
            return Fate.PASS
        return Fate.SWALLOW if loss.is_swallowed else Fate.WITHHOLD

    def delay_s(self, key: int) -> float:
        """Return how long an answer is to take."""
        loss = self._loss
        return loss.answer_delay_s if loss is not None and key == loss.key else 0.0


class RecordingProxy(KafkaProxy):
    """Tells its story of all requests that pass."""

    def __init__(self) -> None:
        self.story = RequestStory()
        self._interference = Interference(None)
        super().__init__()

    def begin(self, loss: Loss | None) -> None:
        """Forget what passed so far."""
        self.story = RequestStory()
        self._interference = Interference(loss)

    def _pumps(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        node_reader: asyncio.StreamReader,
        node_writer: asyncio.StreamWriter,
    ) -> list[Coroutine[Any, Any, None]]:
        waiting: dict[bytes, tuple[Asked, Fate]] = {}
        return [self._pass_on(reader, node_writer, waiting), self._pass_back(node_reader, writer, waiting)]

    async def _pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, waiting: dict[bytes, tuple[Asked, Fate]]
    ) -> None:
        async for frame in _frames(reader):
            header = parse_request_header(memoryview(frame))
            fate = self._interference.fate(header.api_key)
            body = frame[header.body :]
            in_flight = None
            if self._interference.delay_s(header.api_key):
                in_flight = sum(one.key == header.api_key for one, _ in waiting.values())
            asked = self.story.asked(header.client_id or "?", header.api_key, header.api_version, body, in_flight)
            if fate is Fate.SWALLOW:
                continue
            waiting[frame[4:8]] = asked, fate
            writer.write(len(frame).to_bytes(4, "big") + frame)
            await writer.drain()

    async def _pass_back(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, waiting: dict[bytes, tuple[Asked, Fate]]
    ) -> None:
        async for frame in _frames(reader):
            asked, fate = waiting[frame[:4]]
            await asyncio.sleep(self._interference.delay_s(asked.key))
            del waiting[frame[:4]]
            if fate is Fate.WITHHOLD:
                await self._interference.due.wait()
                return
            _, body = parse_response_header(frame, asked.key, asked.version)
            self.story.answered(asked, frame[body:])
            writer.write(len(frame).to_bytes(4, "big") + frame)
            with suppress(OSError):
                await writer.drain()


async def _frames(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    with suppress(OSError, asyncio.IncompleteReadError):
        while True:
            size = await reader.readexactly(4)
            yield await reader.readexactly(int.from_bytes(size, "big"))


Streams = dict[str, list[str]]


def record(folder: Path, scenario: str, run: Callable[[str, str], object]) -> Streams:
    """Let a client go through a scenario against a node of its own; `run` is called with the bootstrap and its name."""
    proxy = RecordingProxy()
    try:
        with _node_behind(proxy, folder) as bootstrap:
            proxy.begin(SCENARIOS[scenario])
            run(bootstrap, scenario)
    finally:
        proxy.close()
    return proxy.story.streams()


@contextmanager
def _node_behind(proxy: RecordingProxy, folder: Path) -> Iterator[str]:
    settings = {"group_consumer_heartbeat_interval_ms": 100, "group_consumer_session_timeout_ms": 60_000}
    with LiveNode(folder, kafka_advertised=f"127.0.0.1:{proxy.port}", **settings) as live:
        proxy.aim(live.node.kafka_address.port)
        with semel.Admin(live.bootstrap) as admin:
            for topic, partitions in PARTITIONS.items():
                admin.create_topic(topic, partitions=partitions)
        with semel.Producer(live.bootstrap) as producer:
            for value in SOURCE_VALUES:
                producer.send(SOURCE, value)
        yield f"127.0.0.1:{proxy.port}"


def path_of(client: str, scenario: str) -> Path:
    return RECORDINGS / f"{client}-{scenario}.json"


def write(client: str, version: str, scenario: str, streams: Mapping[str, Sequence[str]]) -> None:
    """Write a recording down."""
    RECORDINGS.mkdir(exist_ok=True)
    made = {"client": client, "version": version, "scenario": scenario, "requests": streams}
    path_of(client, scenario).write_text(json.dumps(made, indent=2) + "\n")


def read(client: str, scenario: str) -> Streams | None:
    """Return the streams of a recording; None where the client has no such scenario."""
    path = path_of(client, scenario)
    if not path.exists():
        return None
    found: Streams = json.loads(path.read_text())["requests"]
    return found
