"""Reading as Kafka's consumers do, on the wire: fetch sessions, and what was aborted is left out."""

from __future__ import annotations

import heapq
import random
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from semel.protocol.api.topics import IsolationLevel
from semel.protocol.batch_header import iter_batches
from semel.protocol.control_records import ControlType, decode_control
from semel.protocol.errors import ErrorCode
from semel.protocol.ids import TopicId, TopicPartition
from semel.protocol.kafka.api import ApiKey
from semel.protocol.kafka.fetch import FetchPartition, FetchPartitionResponse, FetchRequest, FetchResponse
from semel.protocol.kafka.fetch import ForgottenPartition as Forgotten
from semel.protocol.record_decoder import decode_records
from semel.runtime.kafka_client.connection import ConnectionLostError
from simulation.kafka_wire import REQUEST_TIMEOUT_MS, RETRIED, ClusterWire, Party, Wire

_FETCH_WAIT_MS: Final = 1_000
_CLUSTER_WAIT_MS: Final = 200
_TOPIC_ID_VERSION: Final = 13
_NO_SESSION: Final = -1
_SESSION_END: Final = -1
_SESSION_LOST: Final = (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH)

Values = list[tuple[int, str]]


class Fetcher:
    """Reads partitions in a fetch session; read_committed, it leaves out what the answers say was aborted (L3)."""

    def __init__(
        self,
        party: Party,
        topic_ids: Mapping[str, TopicId],
        isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
        *,
        wire: Wire | None = None,
        wait_ms: int = _FETCH_WAIT_MS,
    ) -> None:
        self._party = party
        self._isolation = isolation
        self._ids = dict(topic_ids)
        self._names = {topic_id: name for name, topic_id in topic_ids.items()}
        self._wire = wire or Wire(party)
        self._wait_ms = wait_ms
        self._begins = (0, 0 if party.dialect.is_java else _NO_SESSION)
        """The id and the epoch of what begins a session, or goes without: librdkafka does."""
        self._session = self._begins
        self._in_session: dict[TopicPartition, int] = {}
        """The partitions that the node's session has, with the offset it was last told; -1: it is to be told again."""
        self._max_bytes = 0
        """What it was last told to return of each at most."""
        self.positions: dict[TopicPartition, int] = {}
        self.epochs: dict[TopicPartition, int] = {}
        """The leader epoch that this client knows of partitions; asked for where it does not."""
        self.read_epochs: dict[TopicPartition, int] = {}
        """The leader epoch of what was read last."""
        self.failed: set[TopicPartition] = set()
        """What the last `poll` got no answer for, or an error."""
        self.from_followers: set[TopicPartition] = set()
        """What is read from a node that does not lead it, as far as is known: it may lack what was read elsewhere."""

    async def end(self) -> None:
        """End the session, as Java's clients do, if the node answers."""
        if self._session[0]:
            self._session, self.positions, self._in_session = (self._session[0], _SESSION_END), {}, {}
            with suppress(ConnectionLostError):
                await self._ask(0)
        self.close()

    def close(self) -> None:
        self._wire.close()

    async def poll(self, max_bytes: int = 1 << 20) -> dict[TopicPartition, Values]:
        """Fetch once; return what committed transactions wrote. Empty where nothing came, or the answer was lost."""
        if not self.positions:
            await self._party.pause()
            return {}
        asked = dict(self.positions)
        self.failed = set(asked)
        try:
            await self._learn_epochs()
            response = await self._ask(max_bytes)
        except ConnectionLostError:
            self._session, self._in_session = self._begins, {}
            await self._party.pause()
            return {}
        if response.error is not ErrorCode.NONE:
            if response.error not in _SESSION_LOST:
                self._party.wrong("refused", f"Fetch: {response.error.name}")
            self._session, self._in_session = self._begins, {}
            return {}
        self.failed.clear()
        self._noted(response.session_id, asked)
        found = {}
        for item in response.partitions:
            tp = TopicPartition(item.topic or self._names.get(item.topic_id, "?"), item.partition)
            if tp in asked and self.positions.get(tp) == asked[tp]:
                found[tp] = await self._taken(tp, item)
        return {tp: values for tp, values in found.items() if values}

    async def _learn_epochs(self) -> None:
        """Ask for the leader epochs that are not known: who reads from several nodes is told them."""
        if all(tp in self.epochs for tp in self.positions):
            return
        answer = await self._wire.ask_metadata(*dict.fromkeys(tp.topic for tp in self.positions))
        self.epochs |= {
            TopicPartition(topic.name, one.partition_index): one.leader_epoch
            for topic in answer.topics
            if not topic.error_code
            for one in topic.partitions
        }

    async def _ask(self, max_bytes: int) -> FetchResponse:
        version = self._party.dialect.versions[ApiKey.FETCH]
        connection = await self._wire.opened()
        body = connection.request(
            ApiKey.FETCH,
            version,
            (self._request(max_bytes).build(version),),
            timeout_ms=self._wait_ms + REQUEST_TIMEOUT_MS,
        )
        self._party.note(f"asks FETCH at {', '.join(f'{tp} {at}' for tp, at in sorted(self.positions.items()))}")
        return FetchResponse.parse(bytes(await body), version)

    def _request(self, max_bytes: int) -> FetchRequest:
        session_id, epoch = self._session
        if max_bytes != self._max_bytes:
            self._max_bytes, self._in_session = max_bytes, dict.fromkeys(self._in_session, -1)
        told = {tp: offset for tp, offset in self.positions.items() if self._in_session.get(tp) != offset}
        forgotten = [tp for tp in self._in_session if tp not in self.positions]
        return FetchRequest(
            [
                FetchPartition(tp.topic, self._ids[tp.topic], tp.partition, offset, max_bytes, self.epochs.get(tp, -1))
                for tp, offset in sorted(told.items())
            ],
            self._wait_ms,
            isolation=self._isolation,
            session_id=session_id,
            session_epoch=epoch,
            forgotten=[Forgotten(tp.topic, self._ids[tp.topic], tp.partition) for tp in forgotten],
        )

    def _noted(self, session_id: int, asked: dict[TopicPartition, int]) -> None:
        if session_id == 0:
            self._session, self._in_session = self._begins, {}
            return
        self._session = session_id, self._session[1] + 1
        self._in_session = asked

    async def _taken(self, tp: TopicPartition, item: FetchPartitionResponse) -> Values:
        if item.error is not ErrorCode.NONE:
            if item.error is ErrorCode.OFFSET_OUT_OF_RANGE and tp not in self.from_followers:
                self._party.wrong("D6", f"offset {self.positions[tp]} of {tp} is out of range: nothing was deleted")
            elif item.error not in (*RETRIED, ErrorCode.OFFSET_OUT_OF_RANGE):
                self._party.wrong("refused", f"Fetch of {tp}: {item.error.name}")
            self._in_session.pop(tp, None)
            self.epochs.pop(tp, None)
            self.failed.add(tp)
            await self._party.pause()
            return []
        if item.records is None or not len(item.records):
            return []
        return self._committed(tp, item, bytes(item.records))  # type: ignore[arg-type]

    def _committed(self, tp: TopicPartition, item: FetchPartitionResponse, data: bytes) -> Values:
        """Leave out what was aborted, as Java's CompletedFetch does: by the answer's list and the markers it reads."""
        position = self.positions[tp]
        ahead = [(first, producer_id) for producer_id, first in item.aborted or ()]
        heapq.heapify(ahead)
        aborted: set[int] = set()
        values: Values = []
        is_committed = self._isolation is IsolationLevel.READ_COMMITTED
        end = item.last_stable_offset if is_committed else item.high_watermark
        for header in iter_batches(data):
            if header.base_offset >= end:
                self._party.wrong("L2" if is_committed else "R1", f"{tp}@{header.base_offset} is not below {end}")
            while ahead and ahead[0][0] <= header.last_offset:
                aborted.add(heapq.heappop(ahead)[1])
            if header.is_control:
                marker = decode_control(decode_records(data, header.position)[0])
                if marker.type is ControlType.ABORT:
                    aborted.discard(header.producer_id)
            elif not (is_committed and header.is_transactional and header.producer_id in aborted):
                values += (
                    (record.offset, record.value.decode())
                    for record in decode_records(data, header.position)
                    if record.offset >= position
                )
            position = max(position, header.next_offset)
            self.read_epochs[tp] = header.leader_epoch
        self.positions[tp] = position
        return values


class ClusterFetcher:
    """Reads partitions from their leaders, in a fetch session with each node.

    elsewhere: chance that now and then has a partition read from another node for a while (KIP-392), if it is given
    """

    def __init__(
        self,
        party: Party,
        topic_ids: Mapping[str, TopicId],
        isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
        elsewhere: random.Random | None = None,
    ) -> None:
        self._elsewhere = elsewhere
        self._chosen: dict[TopicPartition, str] = {}
        self._wire = ClusterWire(party)
        self._party = party
        self._fetchers = {
            node: Fetcher(party, topic_ids, isolation, wire=self._wire.to(node), wait_ms=_CLUSTER_WAIT_MS)
            for node in party.nodes
        }
        self.positions: dict[TopicPartition, int] = {}
        self.read_epochs: dict[TopicPartition, int] = {}

    async def poll(self, max_bytes: int = 1 << 20) -> dict[TopicPartition, Values]:
        """Fetch once from each leader."""
        if not self.positions:
            await self._party.pause()
            return {}
        try:
            await self._wire.find(*self.positions)
        except ConnectionLostError:
            await self._party.pause()
        found: dict[TopicPartition, Values] = {}
        led = self._wire.led
        self._choose()
        for node, fetcher in self._fetchers.items():
            wanted = [tp for tp in self.positions if tp in led and self._chosen.get(tp, led[tp].node) == node]
            if not wanted:
                continue
            fetcher.from_followers = {tp for tp in wanted if led[tp].node != node}
            fetcher.positions = {tp: self.positions[tp] for tp in wanted}
            fetcher.epochs = {tp: led[tp].epoch for tp in wanted}
            found |= await fetcher.poll(max_bytes)
            self.positions |= fetcher.positions
            self.read_epochs |= fetcher.read_epochs
            for tp in fetcher.failed:
                self._chosen.pop(tp, None)
                self._wire.moved(tp)
        return found

    def _choose(self) -> None:
        """Choose another node for some of the partitions, or their leader again."""
        chance = self._elsewhere
        for tp in self.positions if chance is not None else ():
            assert chance is not None
            if chance.random() < 0.1:
                self._chosen[tp] = chance.choice(list(self._fetchers))
            elif chance.random() < 0.05:
                self._chosen.pop(tp, None)

    async def end(self) -> None:
        """End the sessions, if the nodes answer."""
        for fetcher in self._fetchers.values():
            await fetcher.end()
        self.close()

    def close(self) -> None:
        self._wire.close()


def fetching(party: Party, topic_ids: Mapping[str, TopicId], isolation: IsolationLevel) -> Fetcher | ClusterFetcher:
    """Return what reads from the node, or from all of them."""
    return (Fetcher if len(party.nodes) == 1 else ClusterFetcher)(party, topic_ids, isolation)
