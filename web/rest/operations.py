"""The table of what the REST API serves: routes are made from it, and so is its description."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from semel.web.rest.clusters import Clusters
from semel.web.rest.configs import Configs
from semel.web.rest.consume import Consume
from semel.web.rest.errors import Endpoint
from semel.web.rest.groups import Groups
from semel.web.rest.produce import Produce
from semel.web.rest.service import Service
from semel.web.rest.topics import Topics
from semel.web.rest.transactions import Transactions

CLUSTER: Final = "/v3/clusters/{cluster_id}"
_TOPIC: Final = CLUSTER + "/topics/{topic_name}"
_PARTITION: Final = _TOPIC + "/partitions/{partition_id}"
_GROUP: Final = CLUSTER + "/consumer-groups/{consumer_group_id}"


@dataclass(frozen=True, slots=True)
class Operation:
    """A method of a path.

    name:       unique, as generators of clients use it
    summary:    one sentence
    status:     of its success
    body:       an example of what it takes; None: nothing
    query:      its parameters, with what each says
    key:        what an Idempotency-Key is to it: "", "optional" or "required"
    more:       further statuses that it answers with, besides those of every operation
    """

    method: str
    path: str
    name: str
    summary: str
    endpoint: Endpoint
    status: int = 200
    body: Any = None
    query: tuple[tuple[str, str], ...] = ()
    key: str = ""
    more: tuple[int, ...] = ()
    media_types: tuple[str, ...] = field(default=("application/json",))


_VALUE: Final = {"type": "JSON", "data": {"id": 7}}
_RECORD: Final = {"key": {"type": "STRING", "data": "customer-7"}, "value": _VALUE}
_TOPIC_RECORD: Final = {"topic_name": "orders", **_RECORD}
_READING: Final = (
    ("offset", "where to begin: a number, earliest (a poll's default) or latest (a stream's)"),
    ("max_wait_ms", "how long a poll waits for a record, 0 to 30000 (0)"),
    ("max_records", "the most records of a poll"),
    ("max_bytes", "the most bytes of a poll, one record at least"),
    ("isolation", "read_committed (default) or read_uncommitted"),
    ("key_format", "how keys are shown: BINARY (default), JSON or STRING"),
    ("value_format", "how values are shown: BINARY (default), JSON or STRING"),
)


def operations(service: Service) -> list[Operation]:
    """Return all operations, with the endpoints of one gateway."""
    clusters, topics, configs = Clusters(service), Topics(service), Configs(service)
    groups, produce = Groups(service), Produce(service)
    consume, transactions = Consume(service), Transactions(service)
    return [
        Operation("GET", "/v3/clusters", "listClusters", "The cluster, in a list", clusters.list_clusters),
        Operation("GET", CLUSTER, "getCluster", "The cluster", clusters.get_cluster),
        Operation("GET", CLUSTER + "/brokers", "listBrokers", "The nodes", clusters.list_brokers),
        Operation("GET", CLUSTER + "/brokers/{broker_id}", "getBroker", "A node", clusters.get_broker),
        Operation("GET", CLUSTER + "/topics", "listTopics", "The topics", topics.list_topics),
        Operation(
            "POST",
            CLUSTER + "/topics",
            "createTopic",
            "Create a topic",
            topics.create_topic,
            201,
            {"topic_name": "orders", "partitions_count": 6},
        ),
        Operation("GET", _TOPIC, "getTopic", "A topic", topics.get_topic),
        Operation("DELETE", _TOPIC, "deleteTopic", "Delete a topic with its records", topics.delete_topic, 204),
        Operation("GET", _TOPIC + "/partitions", "listPartitions", "A topic's partitions", topics.list_partitions),
        Operation("GET", _PARTITION, "getPartition", "A partition", topics.get_partition),
        Operation("GET", _TOPIC + "/configs", "listTopicConfigs", "A topic's settings", configs.list_configs),
        Operation("GET", _TOPIC + "/configs/{name}", "getTopicConfig", "One of them", configs.get_config),
        Operation(
            "PUT",
            _TOPIC + "/configs/{name}",
            "updateTopicConfig",
            "Change a setting",
            configs.set_config,
            204,
            {"value": "3600000"},
        ),
        Operation(
            "DELETE",
            _TOPIC + "/configs/{name}",
            "deleteTopicConfig",
            "Give a setting its default back",
            configs.reset_config,
            204,
        ),
        Operation(
            "POST",
            _TOPIC + "/configs:alter",
            "updateTopicConfigBatch",
            "Change several settings, all or none",
            configs.alter_configs,
            204,
            {"data": [{"name": "retention.ms", "value": "3600000"}, {"name": "segment.ms", "operation": "DELETE"}]},
        ),
        Operation("GET", CLUSTER + "/consumer-groups", "listConsumerGroups", "The groups", groups.list_groups),
        Operation("GET", _GROUP, "getConsumerGroup", "A group", groups.get_group),
        Operation("GET", _GROUP + "/consumers", "listConsumers", "A group's members", groups.list_consumers),
        Operation("GET", _GROUP + "/consumers/{consumer_id}", "getConsumer", "A member", groups.get_consumer),
        Operation("GET", _GROUP + "/lags", "listConsumerLags", "How far a group is behind", groups.list_lags),
        Operation("GET", _GROUP + "/lag-summary", "getConsumerGroupLagSummary", "In sum", groups.lag_summary),
        Operation(
            "GET",
            _GROUP + "/offsets",
            "listConsumerGroupOffsets",
            "Where a group stands for certain; 409 while a transaction is about to move it",
            groups.get_offsets,
            more=(409,),
        ),
        Operation(
            "POST",
            _GROUP + "/offsets",
            "commitConsumerGroupOffsets",
            "Move a group without members, wherever it stands",
            groups.commit_offsets,
            204,
            {"offsets": [{"topic_name": "orders", "partition_id": 0, "offset": 42}]},
            more=(409,),
        ),
        Operation(
            "POST",
            _TOPIC + "/records",
            "produceRecord",
            "Write a record, or several as concatenated JSON; with a key all of them, once",
            produce.produce,
            body=_RECORD,
            key="optional",
            more=(409,),
        ),
        Operation(
            "POST",
            _TOPIC + "/records:batch",
            "produceRecordsBatch",
            "Write records each of which succeeds or fails on its own",
            produce.produce_batch,
            207,
            {"entries": [{"id": "1", **_RECORD}]},
        ),
        Operation(
            "POST",
            CLUSTER + "/records",
            "produceRecordsToTopics",
            "Write records of several topics in one transaction, once",
            transactions.produce_to_topics,
            body={"records": [_TOPIC_RECORD]},
            key="required",
            more=(409,),
        ),
        Operation(
            "POST",
            CLUSTER + "/transactions",
            "commitTransaction",
            "Write results and move the group that their input was read for, in one transaction, once",
            transactions.transact,
            body={
                "records": [_TOPIC_RECORD],
                "consumer_group_id": "enrich",
                "offsets": [{"topic_name": "input", "partition_id": 0, "expected_offset": 40, "offset": 42}],
            },
            key="required",
            more=(409,),
        ),
        Operation(
            "GET",
            _PARTITION + "/records",
            "readRecords",
            "Read records of a partition, and wait for some; or follow it as server-sent events",
            consume.read,
            query=_READING,
            media_types=("application/json", "text/event-stream"),
        ),
    ]
