"""The calls of a transactional client over the Kafka protocol, raw, in whichever version a test asks for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kafka_calls import call
from kafka_node import KafkaClient, until
from kafka_node import batch as batch_of

from semel.broker.node import Node
from semel.protocol.api.groups import OffsetFetchRequest
from semel.protocol.errors import ErrorCode
from semel.protocol.ids import ProducerIdAndEpoch, TopicPartition
from semel.protocol.kafka.api import ApiKey
from semel.protocol.kafka.produce import ProducePartition, ProduceRequest

ID, GROUP = "t", "readers"
A, B = TopicPartition("a", 0), TopicPartition("a", 1)
PRODUCE_OLDER, PRODUCE_NEWER = 11, 12
"""The last version of Produce that verifies, and the first that adds the partition (KIP-890)."""


class Kafka:
    """One client, which sends what it is told. `port` is where it connects: the node's own, or a proxy's."""

    def __init__(self, node: Node, kafka: KafkaClient, port: int = 0) -> None:
        self.node = node
        self.kafka = kafka
        self.port = port or node.kafka_address.port

    async def ask(self, key: ApiKey, version: int, **values: Any) -> Any:
        return await call(self.port, key, version, **values)

    async def init(
        self, version: int = 5, name: str | None = ID, timeout_ms: int = 60_000, held: tuple[int, int] = (-1, -1)
    ) -> ProducerIdAndEpoch | ErrorCode:
        answer = await self.ask(
            ApiKey.INIT_PRODUCER_ID,
            version,
            transactional_id=name,
            transaction_timeout=timeout_ms,
            producer_id=held[0],
            producer_epoch=held[1],
        )
        if answer.error_code:
            assert (answer.producer_id, answer.producer_epoch) == (-1, -1)
            return ErrorCode(answer.error_code)
        return ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch)

    async def begin(self, version: int = 5, name: str = ID) -> ProducerIdAndEpoch:
        while not isinstance(producer := await self.init(version, name), ProducerIdAndEpoch):
            assert producer is ErrorCode.CONCURRENT_TRANSACTIONS
        return producer

    async def add(self, producer: ProducerIdAndEpoch, *tps: TopicPartition, version: int = 3) -> list[ErrorCode]:
        answer = await self.ask(
            ApiKey.ADD_PARTITIONS_TO_TXN,
            version,
            v3_and_below_transactional_id=ID,
            v3_and_below_producer_id=producer.producer_id,
            v3_and_below_producer_epoch=producer.producer_epoch,
            v3_and_below_topics=topics_of(tps),
        )
        return codes_of(answer.results_by_topic_v3_and_below)

    async def add_as_node(
        self, *asked: tuple[str, ProducerIdAndEpoch, bool, Sequence[TopicPartition]], version: int = 5
    ) -> dict[str, list[ErrorCode]]:
        answer = await self.ask(
            ApiKey.ADD_PARTITIONS_TO_TXN,
            version,
            transactions=[
                {
                    "transactional_id": name,
                    "producer_id": producer.producer_id,
                    "producer_epoch": producer.producer_epoch,
                    "verify_only": verify_only,
                    "topics": topics_of(tps),
                }
                for name, producer, verify_only, tps in asked
            ],
        )
        assert answer.error_code == 0
        return {item.transactional_id: codes_of(item.topic_results) for item in answer.results_by_transaction}

    async def add_offsets(self, producer: ProducerIdAndEpoch, version: int = 4, group: str = GROUP) -> ErrorCode:
        answer = await self.ask(
            ApiKey.ADD_OFFSETS_TO_TXN, version, transactional_id=ID, group_id=group, **parts_of(producer)
        )
        return ErrorCode(answer.error_code)

    async def commit_offset(
        self, producer: ProducerIdAndEpoch, offset: int, version: int = 4, *, tp: TopicPartition = A, **values: Any
    ) -> ErrorCode:
        values = {"generation_id": -1, "member_id": "", "group_id": GROUP, **values}
        partition = {"partition_index": tp.partition, "committed_offset": offset, "committed_metadata": None}
        if version >= 2:
            partition["committed_leader_epoch"] = 3
        answer = await self.ask(
            ApiKey.TXN_OFFSET_COMMIT,
            version,
            transactional_id=ID,
            topics=[{"name": tp.topic, "partitions": [partition]}],
            **parts_of(producer),
            **values,
        )
        ((item,),) = [topic.partitions for topic in answer.topics]
        return ErrorCode(item.error_code)

    async def end(
        self, producer: ProducerIdAndEpoch, commit: bool = True, version: int = 5
    ) -> ProducerIdAndEpoch | ErrorCode:
        answer = await self.ask(ApiKey.END_TXN, version, transactional_id=ID, committed=commit, **parts_of(producer))
        if answer.error_code:
            return ErrorCode(answer.error_code)
        return ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch) if version >= 5 else ErrorCode.NONE

    async def mark(
        self, producer: ProducerIdAndEpoch, *tps: TopicPartition, commit: bool, version: int = 1, **values: Any
    ) -> list[ErrorCode]:
        topics = [{"name": item["name"], "partition_indexes": item["partitions"]} for item in topics_of(tps)]
        marker = {"transaction_result": commit, "coordinator_epoch": 0, "topics": topics, **parts_of(producer)}
        if version >= 2:
            marker["transaction_version"] = 2
        marker.update(values)
        answer = await self.ask(ApiKey.WRITE_TXN_MARKERS, version, markers=[marker])
        (item,) = answer.markers
        assert item.producer_id == producer.producer_id
        found = {
            TopicPartition(topic.name, each.partition_index): ErrorCode(each.error_code)
            for topic in item.topics
            for each in topic.partitions
        }
        return [found[tp] for tp in tps]

    async def send(
        self, producer: ProducerIdAndEpoch, value: bytes, sequence: int = 0, *, tp: TopicPartition = A, version: int
    ) -> ErrorCode:
        data = batch_of(value, producer=producer, sequence=sequence, transactional=True)
        request = ProduceRequest([ProducePartition(tp.topic, tp.partition, data)], ID, -1, 5_000)
        (answer,) = (await self.kafka.produce(request, version)).partitions
        return answer.error

    async def committed(self) -> int:
        answer = await self.node.groups.fetch_offsets(OffsetFetchRequest(GROUP, (A,), require_stable=False))
        return answer.offsets[A].offset

    async def settled(self) -> None:
        """Wait until nothing is open anywhere; what hangs never lets this end."""
        await until(lambda: self.node.transactions.pending_markers() == 0)
        for partition in self.node.logs.partitions():
            await until(lambda partition=partition: partition.last_stable_offset == partition.log_end_offset)  # type: ignore[misc]


def parts_of(producer: ProducerIdAndEpoch) -> dict[str, int]:
    return {"producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch}


def topics_of(tps: Sequence[TopicPartition]) -> list[dict[str, Any]]:
    return [{"name": tp.topic, "partitions": [tp.partition]} for tp in tps]


def codes_of(topics: Any) -> list[ErrorCode]:
    return [ErrorCode(item.partition_error_code) for topic in topics for item in topic.results_by_partition]


def next_of(producer: ProducerIdAndEpoch) -> ProducerIdAndEpoch:
    return ProducerIdAndEpoch(producer.producer_id, producer.producer_epoch + 1)
