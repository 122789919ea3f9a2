"""Scenarios about topics, configurations and the cluster: what is asked of both brokers."""

from __future__ import annotations

from typing import Any

from same_answers import Side, scenario

from semel.protocol.kafka.api import ApiKey

TOPIC = 2
BROKER = 4
ABSENT_ID = b"\x01" * 16
LONG_NAME = "x" * 250


def new_topic(name: str, partitions: int = 1, replicas: int = 1, **more: Any) -> dict[str, Any]:
    configs = [{"name": key, "value": value} for key, value in more.get("configs", {}).items()]
    return {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": replicas,
        "assignments": more.get("assignments", []),
        "configs": configs,
    }


def assigned(*replicas: list[int]) -> list[dict[str, Any]]:
    return [{"partition_index": number, "broker_ids": ids} for number, ids in enumerate(replicas)]


@scenario(ApiKey.CREATE_TOPICS)
async def create_topics(at: Side, version: int) -> None:
    async def create(what: str, *topics: dict[str, Any], validate_only: bool = False) -> None:
        await at.ask(what, ApiKey.CREATE_TOPICS, topics=topics, timeout=60_000, validate_only=validate_only)

    name = at.name
    await create("no topics")
    await create("one", new_topic(name("one"), 3))
    await create("it exists", new_topic(name("one"), 3))
    await create("it exists and is bad", new_topic(name("one"), 0))
    await create("twice in a request", new_topic(name("twice")), new_topic(name("twice"), 2), new_topic(name("good")))
    await create("validate only", new_topic(name("validated"), 2), validate_only=True)
    await create("validate what exists", new_topic(name("one"), 2), validate_only=True)
    for what, bad in (
        ("empty name", ""),
        ("dot", "."),
        ("two dots", ".."),
        ("slash", "a/b"),
        ("space", "a b"),
        ("umlaut", "ä"),
        ("long", LONG_NAME),
        ("newline", "a\n"),
        ("internal", "__consumer_offsets"),
        ("cluster metadata", "__cluster_metadata"),
    ):
        await create(what, new_topic(bad))
    await create("longest name", new_topic(name("y" * 249)[:249]))
    await create("collides", new_topic(name("a.b")))
    await create("collides with it", new_topic(name("a_b")))
    await create("collides in a request", new_topic(name("c.d")), new_topic(name("c_d")))
    await create("no partitions", new_topic(name("p0"), 0))
    await create("minus two partitions", new_topic(name("p-2"), -2))
    await create("no replicas", new_topic(name("r0"), 1, 0))
    await create("minus two replicas", new_topic(name("r-2"), 1, -2))
    await create("too many replicas", new_topic(name("r2"), 1, 2))
    await create("defaults", new_topic(name("defaults"), -1, -1))
    await create("assigned", new_topic(name("assigned"), -1, -1, assignments=assigned([1], [1])))
    await create("assigned and counted", new_topic(name("both"), 2, 1, assignments=assigned([1], [1])))
    await create("assigned and replicas", new_topic(name("both2"), -1, 1, assignments=assigned([1], [1])))
    await create("assigned to a stranger", new_topic(name("stranger"), -1, -1, assignments=assigned([9])))
    await create("assigned twice", new_topic(name("same"), -1, -1, assignments=assigned([1, 1])))
    await create("assigned to nobody", new_topic(name("nobody"), -1, -1, assignments=assigned([])))
    holes = [{"partition_index": 1, "broker_ids": [1]}, {"partition_index": 3, "broker_ids": [1]}]
    await create("assigned with holes", new_topic(name("holes"), -1, -1, assignments=holes))
    again = [{"partition_index": 0, "broker_ids": [1]}, {"partition_index": 0, "broker_ids": [1]}]
    await create("assigned the same partition", new_topic(name("again"), -1, -1, assignments=again))
    for key, value in (
        ("cleanup.policy", "compact"),
        ("cleanup.policy", "compact,delete"),
        ("cleanup.policy", "sometimes"),
        ("cleanup.policy", ""),
        ("retention.ms", "1000"),
        ("retention.ms", "-1"),
        ("retention.ms", "-2"),
        ("retention.ms", "soon"),
        ("retention.ms", None),
        ("retention.ms", " 5 "),
        ("retention.bytes", "-1"),
        ("max.message.bytes", "0"),
        ("max.message.bytes", "-1"),
        ("max.message.bytes", "99999999999"),
        ("segment.bytes", "1"),
        ("segment.bytes", "1048576"),
        ("compression.type", "zstd"),
        ("compression.type", "rar"),
        ("message.timestamp.type", "LogAppendTime"),
        ("message.timestamp.type", "whenever"),
        ("min.insync.replicas", "0"),
        ("min.insync.replicas", "1"),
        ("min.cleanable.dirty.ratio", "2"),
        ("unclean.leader.election.enable", "maybe"),
        ("unclean.leader.election.enable", "TRUE"),
        ("no.such.config", "1"),
        ("", "1"),
    ):
        await create(f"config {key}={value}", new_topic(name(f"c-{key}-{len(value or '')}"), configs={key: value}))
    twice = new_topic(name("config-twice"))
    twice["configs"] = [{"name": "retention.ms", "value": "1"}, {"name": "retention.ms", "value": "2"}]
    await create("a config twice", twice)


@scenario(ApiKey.DELETE_TOPICS)
async def delete_topics(at: Side, version: int) -> None:
    one, two = await at.topic("one"), await at.topic("two", 3)
    absent = at.name("absent")

    async def delete(what: str, *names: str) -> None:
        topics = [{"name": name, "topic_id": bytes(16)} for name in names]
        await at.ask(what, ApiKey.DELETE_TOPICS, topic_names=names, topics=topics, timeout=60_000)

    await delete("none")
    await delete("absent", absent)
    await delete("bad name", "a/b")
    await delete("empty name", "")
    await delete("one and absent", one, absent)
    await delete("again", one)
    await delete("a topic twice", two, two)
    if version >= 6:
        three = await at.topic("three")
        topic_id = await at.topic_id(three)

        async def delete_ids(what: str, *topics: tuple[str | None, bytes]) -> None:
            ids = [{"name": name, "topic_id": each} for name, each in topics]
            await at.ask(what, ApiKey.DELETE_TOPICS, topics=ids, timeout=60_000)

        await delete_ids("absent id", (None, ABSENT_ID))
        await delete_ids("neither", (None, bytes(16)))
        await delete_ids("name and id", (three, topic_id))
        await delete_ids("id twice", (None, topic_id), (None, topic_id))
        await delete_ids("id and name apart", (None, topic_id), (three, bytes(16)))
        await delete_ids("id", (None, topic_id))
        await delete_ids("id again", (None, topic_id))


@scenario(ApiKey.METADATA)
async def metadata(at: Side, version: int) -> None:
    one, two = await at.topic("one", 3), await at.topic("two")

    async def ask(what: str, *names: str, make: bool = False) -> Any:
        topics = [{"name": name, "topic_id": bytes(16)} for name in names]
        return await at.ask(what, ApiKey.METADATA, topics=topics, allow_auto_topic_creation=make)

    await ask("two topics", one, two)
    await ask("twice", one, one)
    await ask("absent", at.name("absent"))
    await ask("absent twice", at.name("absent"), at.name("absent"))
    await ask("bad names", "a/b", "", "..", LONG_NAME)
    if version >= 1:
        await ask("no topics")
    if version >= 8:
        topics = [{"name": one, "topic_id": bytes(16)}]
        operations = {"include_topic_authorized_operations": True, "include_cluster_authorized_operations": True}
        await at.ask("operations", ApiKey.METADATA, topics=topics, allow_auto_topic_creation=False, **operations)
    if version >= 4:
        await ask("bad name to make", "a/b", make=True)
    if version >= 10:
        topic_id = await at.topic_id(one)
        for what, asked in (
            ("id", [(None, topic_id)]),
            ("absent id", [(None, ABSENT_ID)]),
            ("id and name", [(one, topic_id)]),
            ("id twice", [(None, topic_id), (None, topic_id)]),
            ("id and name apart", [(None, topic_id), (one, bytes(16))]),
            ("nothing", [(None, bytes(16))]),
        ):
            topics = [{"name": name, "topic_id": each} for name, each in asked]
            await at.ask(what, ApiKey.METADATA, topics=topics, allow_auto_topic_creation=False)


@scenario(ApiKey.CREATE_PARTITIONS)
async def create_partitions(at: Side, version: int) -> None:
    one, two = await at.topic("one", 2), await at.topic("two")

    async def create(what: str, *wanted: tuple[str, int, list[list[int]] | None], validate_only: bool = False) -> None:
        topics = [
            {
                "name": name,
                "count": count,
                "assignments": None if replicas is None else [{"broker_ids": each} for each in replicas],
            }
            for name, count, replicas in wanted
        ]
        await at.ask(what, ApiKey.CREATE_PARTITIONS, topics=topics, timeout=60_000, validate_only=validate_only)

    await create("none")
    await create("absent", (at.name("absent"), 3, None))
    await create("bad name", ("a/b", 3, None))
    await create("as many", (one, 2, None))
    await create("fewer", (one, 1, None))
    await create("zero", (one, 0, None))
    await create("negative", (one, -1, None))
    await create("validate", (one, 4, None), validate_only=True)
    await create("validate fewer", (one, 1, None), validate_only=True)
    await create("twice", (two, 2, None), (two, 3, None))
    await create("assigned", (one, 3, [[1]]))
    await create("assigned too few", (one, 5, [[1]]))
    await create("assigned too many", (one, 4, [[1], [1]]))
    await create("assigned to a stranger", (one, 4, [[9]]))
    await create("assigned to nobody", (one, 4, [[]]))
    await create("assigned twice", (one, 4, [[1, 1]]))
    await create("assigned emptily", (one, 4, []))
    await create("more", (one, 6, None), (at.name("absent"), 3, None))
    await at.wait_for_topic(one, 6)


RESOURCES = (
    ("topic", TOPIC, None),
    ("absent topic", TOPIC, "absent-topic"),
    ("bad topic", TOPIC, "a/b"),
    ("empty topic", TOPIC, ""),
    ("stranger", BROKER, "9"),
    ("no number", BROKER, "one"),
    ("unknown type", 1, "x"),
    ("zero type", 0, "x"),
    ("strange type", 77, "x"),
)
"""Resources that configurations are asked of and set for; None is the topic of the test."""

LOOKED_AT = ("retention.ms", "cleanup.policy", "max.message.bytes", "no.such", "compression.type", "segment.bytes")


@scenario(ApiKey.DESCRIBE_CONFIGS)
async def describe_configs(at: Side, version: int) -> None:
    topic = await at.topic("one", retention_ms="1000")

    async def describe(
        what: str, *asked: tuple[int, str], keys: tuple[str, ...] | None = LOOKED_AT, **more: Any
    ) -> Any:
        resources = [{"resource_type": kind, "resource_name": name, "configuration_keys": keys} for kind, name in asked]
        return await at.ask(what, ApiKey.DESCRIBE_CONFIGS, resources=resources, **more)

    await describe("none")
    for what, kind, name in RESOURCES:
        await describe(what, (kind, topic if name is None else name))
    await describe("no keys", (TOPIC, topic), keys=())
    await describe("a key twice", (TOPIC, topic), keys=("retention.ms", "retention.ms"))
    await describe("a resource twice", (TOPIC, topic), (TOPIC, topic))
    await describe("two resources", (TOPIC, topic), (TOPIC, "absent-topic"))
    if version >= 1:
        synonyms = await describe("synonyms", (TOPIC, topic), keys=("retention.ms",), include_synonyms=True)
        assert synonyms.results[0].configs


@scenario(ApiKey.INCREMENTAL_ALTER_CONFIGS)
async def incremental_alter_configs(at: Side, version: int) -> None:
    topic = await at.topic("one", retention_ms="1000")

    async def alter(what: str, kind: int, name: str, *ops: tuple[str, int, str | None], **more: Any) -> None:
        configs = [{"name": key, "config_operation": operation, "value": value} for key, operation, value in ops]
        resources = [{"resource_type": kind, "resource_name": name, "configs": configs}]
        validate_only = bool(more.get("validate_only"))
        await at.ask(
            what,
            ApiKey.INCREMENTAL_ALTER_CONFIGS,
            resources=resources * more.get("times", 1),
            validate_only=validate_only,
        )

    async def show(what: str) -> None:
        await at.topic(f"after-{what.replace(' ', '-')}")  # once it is there, so is what was altered before it
        resources = [{"resource_type": TOPIC, "resource_name": topic, "configuration_keys": LOOKED_AT}]
        await at.ask(what, ApiKey.DESCRIBE_CONFIGS, resources=resources)

    for what, kind, name in RESOURCES:
        await alter(what, kind, topic if name is None else name, ("retention.ms", 0, "2000"))
        await alter(f"{what}, nothing", kind, topic if name is None else name)
    await show("set")
    for key, operation, value in (
        ("retention.ms", 1, None),
        ("retention.ms", 1, "5"),
        ("retention.ms", 1, None),
        ("retention.ms", 2, "5"),
        ("retention.ms", 3, "5"),
        ("retention.ms", 9, "5"),
        ("retention.ms", 0, None),
        ("retention.ms", 0, "soon"),
        ("retention.ms", 0, ""),
        ("no.such", 0, "1"),
        ("no.such", 1, None),
        ("cleanup.policy", 2, "compact"),
        ("cleanup.policy", 2, "compact"),
        ("cleanup.policy", 3, "delete"),
        ("cleanup.policy", 3, "absent"),
        ("cleanup.policy", 3, "compact"),
        ("cleanup.policy", 2, "sometimes"),
        ("cleanup.policy", 2, None),
        ("cleanup.policy", 0, "delete,compact"),
        ("max.message.bytes", 0, "-1"),
    ):
        await alter(f"{key} {operation} {value}", TOPIC, topic, (key, operation, value))
    await show("after all")
    await alter("a key twice", TOPIC, topic, ("retention.ms", 0, "1"), ("retention.ms", 0, "2"))
    await alter("good and bad", TOPIC, topic, ("retention.ms", 0, "7"), ("no.such", 0, "2"))
    await alter("a resource twice", TOPIC, topic, ("retention.ms", 0, "8"), times=2)
    await alter("validate only", TOPIC, topic, ("retention.ms", 0, "9"), validate_only=True)
    await show("in the end")


@scenario(ApiKey.ALTER_CONFIGS)
async def alter_configs(at: Side, version: int) -> None:
    topic = await at.topic("one", retention_ms="1000", max_message_bytes="5000")

    async def alter(what: str, kind: int, name: str, *pairs: tuple[str, str | None], **more: Any) -> None:
        resource = {
            "resource_type": kind,
            "resource_name": name,
            "configs": [{"name": key, "value": value} for key, value in pairs],
        }
        validate_only = bool(more.get("validate_only"))
        # Not the same resource twice: Apache Kafka 4.3 never answers that.
        await at.ask(what, ApiKey.ALTER_CONFIGS, resources=[resource], validate_only=validate_only)

    async def show(what: str) -> None:
        await at.topic(f"after-{what.replace(' ', '-')}")  # once it is there, so is what was altered before it
        resources = [{"resource_type": TOPIC, "resource_name": topic, "configuration_keys": LOOKED_AT}]
        await at.ask(what, ApiKey.DESCRIBE_CONFIGS, resources=resources)

    for what, kind, name in RESOURCES:
        await alter(what, kind, topic if name is None else name, ("retention.ms", "2000"))
    await show("set")
    await alter("null", TOPIC, topic, ("retention.ms", None))
    await alter("bad value", TOPIC, topic, ("retention.ms", "soon"))
    await alter("unknown", TOPIC, topic, ("no.such", "1"))
    await alter("a key twice", TOPIC, topic, ("retention.ms", "1"), ("retention.ms", "2"))
    await show("kept")
    await alter("validate only", TOPIC, topic, ("retention.ms", "9"), validate_only=True)
    await show("validated")
    await alter("nothing", TOPIC, topic)
    await show("emptied")


@scenario(ApiKey.DESCRIBE_TOPIC_PARTITIONS)
async def describe_topic_partitions(at: Side, version: int) -> None:
    one, two = sorted([await at.topic("one", 3), await at.topic("two", 2)])

    async def describe(what: str, *names: str, limit: int = 100, cursor: tuple[str, int] | None = None) -> None:
        start = None if cursor is None else {"topic_name": cursor[0], "partition_index": cursor[1]}
        topics = [{"name": name} for name in names]
        await at.ask(
            what, ApiKey.DESCRIBE_TOPIC_PARTITIONS, topics=topics, response_partition_limit=limit, cursor=start
        )

    await describe("two", two, one)
    await describe("absent", at.name("absent"))
    await describe("bad name", "a/b", "")
    await describe("twice", one, one)
    await describe("limit", one, two, limit=2)
    await describe("limit at an end", one, two, limit=3)
    await describe("limit zero", one, limit=0)
    await describe("negative limit", one, limit=-1)
    await describe("cursor", one, two, limit=2, cursor=(one, 2))
    await describe("cursor behind", one, two, cursor=(one, 9))
    await describe("cursor negative", one, two, cursor=(one, -1))
    await describe("cursor in the second", one, two, cursor=(two, 0))
    await describe("cursor past all", one, two, cursor=("zzzz", 0))
    await describe("cursor absent", one, at.name("onf"), two, cursor=(at.name("onf"), 0))


@scenario(ApiKey.DESCRIBE_CLUSTER)
async def describe_cluster(at: Side, version: int) -> None:
    await at.ask("cluster", ApiKey.DESCRIBE_CLUSTER)
    await at.ask("operations", ApiKey.DESCRIBE_CLUSTER, include_cluster_authorized_operations=True)
    if version >= 1:
        for kind in (0, 1, 2, 3):
            await at.ask(f"endpoints {kind}", ApiKey.DESCRIBE_CLUSTER, endpoint_type=kind)


@scenario(ApiKey.DESCRIBE_LOG_DIRS)
async def describe_log_dirs(at: Side, version: int) -> None:
    topic = await at.topic("one", 2)
    for what, name, partitions in (
        ("one", topic, [0]),
        ("twice", topic, [0, 0]),
        ("absent partition", topic, [7]),
        ("absent", at.name("absent"), [0]),
        ("no partitions", topic, []),
    ):
        await at.ask(what, ApiKey.DESCRIBE_LOG_DIRS, topics=[{"topic": name, "partitions": partitions}])
    await at.ask("no topics", ApiKey.DESCRIBE_LOG_DIRS, topics=[])


@scenario(ApiKey.ELECT_LEADERS)
async def elect_leaders(at: Side, version: int) -> None:
    topic = await at.topic("one", 2)
    for kind in (0, 1) if version else (0,):
        for what, name, partitions in (
            ("one", topic, [0]),
            ("twice", topic, [0, 0]),
            ("absent partition", topic, [7, -1]),
            ("absent", at.name("absent"), [0]),
        ):
            chosen = [{"topic": name, "partitions": partitions}]
            key = ApiKey.ELECT_LEADERS
            await at.ask(f"{what} {kind}", key, election_type=kind, topic_partitions=chosen, timeout=30_000)
    if version:
        chosen = [{"topic": topic, "partitions": [0]}]
        await at.ask("bad kind", ApiKey.ELECT_LEADERS, election_type=5, topic_partitions=chosen, timeout=30_000)


@scenario(ApiKey.ALTER_PARTITION_REASSIGNMENTS)
async def alter_partition_reassignments(at: Side, version: int) -> None:
    topic = await at.topic("one", 2)
    for what, name, number, replicas in (
        ("same", topic, 0, [1]),
        ("cancel", topic, 0, None),
        ("stranger", topic, 0, [9]),
        ("nobody", topic, 0, []),
        ("twice", topic, 0, [1, 1]),
        ("absent partition", topic, 7, [1]),
        ("absent", at.name("absent"), 0, [1]),
        ("absent cancel", at.name("absent"), 0, None),
    ):
        topics = [{"name": name, "partitions": [{"partition_index": number, "replicas": replicas}]}]
        await at.ask(what, ApiKey.ALTER_PARTITION_REASSIGNMENTS, topics=topics, timeout=30_000)


@scenario(ApiKey.LIST_PARTITION_REASSIGNMENTS)
async def list_partition_reassignments(at: Side, version: int) -> None:
    topic = await at.topic("one", 2)
    await at.ask("all", ApiKey.LIST_PARTITION_REASSIGNMENTS, topics=None, timeout=30_000)
    for what, name in (("one", topic), ("absent", at.name("absent"))):
        topics = [{"name": name, "partition_indexes": [0, 7]}]
        await at.ask(what, ApiKey.LIST_PARTITION_REASSIGNMENTS, topics=topics, timeout=30_000)


@scenario(ApiKey.LIST_CONFIG_RESOURCES)
async def list_config_resources(at: Side, version: int) -> None:
    for kinds in ([16], [77], [1], [4]) if version else ():
        await at.ask(f"types {kinds}", ApiKey.LIST_CONFIG_RESOURCES, resource_types=kinds)
    if not version:
        await at.ask("all", ApiKey.LIST_CONFIG_RESOURCES)


@scenario(ApiKey.DESCRIBE_ACLS)
async def acls_where_there_is_no_authorizer(at: Side, version: int) -> None:
    anything = {
        "resource_type_filter": 1,
        "resource_name_filter": None,
        "pattern_type_filter": 1,
        "principal_filter": None,
        "host_filter": None,
        "operation": 1,
        "permission_type": 1,
    }
    await at.ask("all", ApiKey.DESCRIBE_ACLS, **anything)
    await at.ask("delete", ApiKey.DELETE_ACLS, version=version, filters=[anything])
    one = {
        "resource_type": 2,
        "resource_name": "x",
        "resource_pattern_type": 3,
        "principal": "User:x",
        "host": "*",
        "operation": 3,
        "permission_type": 3,
    }
    await at.ask("create", ApiKey.CREATE_ACLS, version=version, creations=[one, one])
    await at.ask("create none", ApiKey.CREATE_ACLS, version=version, creations=[])


@scenario(ApiKey.DESCRIBE_CLIENT_QUOTAS)
async def describe_client_quotas(at: Side, version: int) -> None:
    await at.ask("all", ApiKey.DESCRIBE_CLIENT_QUOTAS, components=[], strict=False)
    for what, kind, match in (("default", "user", 1), ("strange", "moon", 1), ("bad", "user", 9)):
        component = {"entity_type": kind, "match_type": match, "match": None}
        await at.ask(what, ApiKey.DESCRIBE_CLIENT_QUOTAS, components=[component], strict=False)


@scenario(ApiKey.ALTER_CLIENT_QUOTAS)
async def client_quotas(at: Side, version: int) -> None:
    user = at.name("user")

    async def alter(what: str, entity: dict[str, str | None], key: str, value: float | None, **more: Any) -> None:
        entry = {
            "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity.items()],
            "ops": [{"key": key, "value": value or 0.0, "remove": value is None}],
        }
        await at.ask(what, ApiKey.ALTER_CLIENT_QUOTAS, entries=[entry], **{"validate_only": False, **more})

    async def told(what: str, match: int, name: str | None, strict: bool = False) -> None:
        component = {"entity_type": "user", "match_type": match, "match": name}
        await at.ask(what, ApiKey.DESCRIBE_CLIENT_QUOTAS, version=1, components=[component], strict=strict)

    both: dict[str, str | None] = {"user": user, "client-id": None}
    await alter("validated", both, "producer_byte_rate", 1e6, validate_only=True)
    await told("not set yet", 0, user)
    await alter("set", both, "producer_byte_rate", 1e6)
    await told("set", 0, user)
    await told("strict", 0, user, strict=True)
    await alter("set again", both, "producer_byte_rate", 2e6)
    for what, entity, key, value in (
        ("no entity", {}, "producer_byte_rate", 1.0),
        ("strange entity", {"moon": "x"}, "producer_byte_rate", 1.0),
        ("empty name", {"user": ""}, "producer_byte_rate", 1.0),
        ("address and user", {"user": user, "ip": "127.0.0.1"}, "connection_creation_rate", 1.0),
        ("strange quota", {"user": user}, "speed", 1.0),
        ("of an address", {"user": user}, "connection_creation_rate", 1.0),
        ("of a user", {"ip": "127.0.0.1"}, "producer_byte_rate", 1.0),
        ("nothing", {"user": user}, "producer_byte_rate", 0.0),
        ("fraction", {"user": user}, "producer_byte_rate", 1.5),
        ("too large", {"ip": "127.0.0.1"}, "connection_creation_rate", 3e9),
        ("removed, and never set", {"user": user}, "producer_byte_rate", None),
    ):
        await alter(what, entity, key, value)  # type: ignore[arg-type]
    await alter("removed", both, "producer_byte_rate", None)
    await told("removed", 0, user)
    await told("a name for the default", 1, user)
    await told("no name", 0, None)
