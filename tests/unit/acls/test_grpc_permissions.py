"""What each call of semel.v1 asks for: refused without it, and answered with it; and who calls."""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest
from certificates import Authority, Pair, encrypted
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from kafka_calls import call
from permitted_node import PERMITTED, acl, allow, only
from running_node import SMALL, batch, channel_to, create_topic, running_node
from user_files import ALICE, PASSWORD, set_user

from semel.broker.acls.principals import der_of_pem, principal_of_certificate
from semel.broker.acls.requirements import GRPC
from semel.broker.handlers.offset_commit import commit_offsets
from semel.broker.listeners.grpc.errors import ERROR_METADATA
from semel.broker.node import Node
from semel.protocol.api.group_offsets import NO_GENERATION, NO_MEMBER_ID, OffsetAndMetadata
from semel.protocol.api.groups import OffsetCommitRequest
from semel.protocol.api.producer_ids import InitProducerIdRequest
from semel.protocol.api.shared_transactions import OpenSharedRequest
from semel.protocol.api.transactions import AddPartitionsToTxnRequest, TransactionVersion
from semel.protocol.errors import ErrorCode
from semel.protocol.ids import OFFSETS_TOPIC, TopicPartition
from semel.protocol.kafka.api import ApiKey
from semel.protocol.v1 import (
    acls_pb2,
    cluster_pb2,
    common_pb2,
    data_pb2,
    delegation_tokens_pb2,
    diagnostics_pb2,
    groups_pb2,
    metadata_pb2,
    quotas_pb2,
    shared_pb2,
    topics_pb2,
    transactions_pb2,
    users_pb2,
)

MODULES = (
    acls_pb2, cluster_pb2, data_pb2, delegation_tokens_pb2, diagnostics_pb2, groups_pb2, metadata_pb2, quotas_pb2,
    shared_pb2, topics_pb2, transactions_pb2, users_pb2,
)  # fmt: skip
TOPIC = "TOPIC_AUTHORIZATION_FAILED"
GROUP = "GROUP_AUTHORIZATION_FAILED"
GROUP_CODE = ErrorCode.GROUP_AUTHORIZATION_FAILED
CLUSTER = "CLUSTER_AUTHORIZATION_FAILED"
TRANSACTION = "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"

_T = {"topic": "t", "partition": 0}
_TOPICS = {"topics": [{"topic": "t", "partitions": [0]}]}
_PRODUCER = {"producer": {"producer_id": 1, "producer_epoch": 0}}
_X = {"transactional_id": "x"}
_KEY = {"key": "x", "attempt": "1", "token": "1"}
_MEMBER = {"group_id": "g", "member_id": "m", "generation_id": 1}
_W, _D = ("WRITE", "transactional-id:x"), ("DESCRIBE", "transactional-id:x")
_READ_G = ("READ", "group:g")
_ALTER, _DESCRIBE = [("ALTER", "cluster")], [("DESCRIBE", "cluster")]

CASES: Sequence[tuple[str, dict[str, Any], str, Sequence[Sequence[tuple[str, str]]]]] = (
    ("MetadataService/GetMetadata", {"topics": ["t"]}, TOPIC, ([("DESCRIBE", "topic:t")],)),
    (
        "TopicService/CreateTopics",
        {"topics": [{"name": "new"}], "validate_only": True},
        TOPIC,
        ([("CREATE", "topic:new")], [("CREATE", "cluster")]),
    ),
    ("TopicService/DeleteTopics", {"topics": ["gone"]}, TOPIC, ([("DELETE", "topic:gone")],)),
    (
        "TopicService/CreatePartitions",
        {"topic": "t", "total_count": 3, "validate_only": True},
        TOPIC,
        ([("ALTER", "topic:t")],),
    ),
    (
        "TopicService/DescribeConfigs",
        {"resource_type": "TOPIC", "resource_name": "t"},
        TOPIC,
        ([("DESCRIBE_CONFIGS", "topic:t")], [("ALTER_CONFIGS", "topic:t")]),
    ),
    ("TopicService/DescribeConfigs", {"resource_type": "BROKER"}, CLUSTER, ([("DESCRIBE_CONFIGS", "cluster")],)),
    (
        "TopicService/AlterConfigs",
        {"resource_type": "TOPIC", "resource_name": "t", "validate_only": True},
        TOPIC,
        ([("ALTER_CONFIGS", "topic:t")],),
    ),
    (
        "TopicService/AlterConfigs",
        {"resource_type": "BROKER", "validate_only": True},
        CLUSTER,
        ([("ALTER_CONFIGS", "cluster")],),
    ),
    ("TopicService/ListOffsets", {"items": [{**_T, "timestamp_ms": -1}]}, TOPIC, ([("DESCRIBE", "topic:t")],)),
    ("TopicService/DeleteRecords", {"items": [{**_T, "before_offset": -1}]}, TOPIC, ([("DELETE", "topic:t")],)),
    (
        "GroupService/JoinGroup",
        {"group_id": "g", "protocol_type": "consumer", "protocols": [{"name": "range"}], "session_timeout_ms": 10_000},
        GROUP,
        ([_READ_G],),
    ),
    ("GroupService/SyncGroup", _MEMBER, GROUP, ([_READ_G],)),
    ("GroupService/Heartbeat", _MEMBER, GROUP, ([_READ_G],)),
    ("GroupService/LeaveGroup", {"group_id": "g", "members": [{"member_id": "m"}]}, GROUP, ([_READ_G],)),
    (
        "GroupService/CommitOffsets",
        {"group_id": "g", "generation_id": -1, "items": [{**_T, "offset": 1}]},
        GROUP,
        ([_READ_G, ("READ", "topic:t")],),
    ),
    (
        "GroupService/FetchOffsets",
        {"group_id": "g", **_TOPICS},
        GROUP,
        ([("DESCRIBE", "group:g"), ("DESCRIBE", "topic:t")],),
    ),
    (
        "GroupService/DeleteOffsets",
        {"group_id": "g", **_TOPICS},
        GROUP,
        ([("DELETE", "group:g"), ("READ", "topic:t")],),
    ),
    ("GroupService/DescribeGroup", {"group_id": "g"}, GROUP, ([("DESCRIBE", "group:g")],)),
    ("GroupService/DeleteGroup", {"group_id": "missing"}, GROUP, ([("DELETE", "group:missing")],)),
    ("TransactionService/InitProducerId", {**_X, "transaction_timeout_ms": 60_000}, TRANSACTION, ([_W],)),
    (
        "TransactionService/InitProducerId",
        {**_X, "transaction_timeout_ms": 60_000, "two_phase": True},
        TRANSACTION,
        ([_W, ("TWO_PHASE_COMMIT", "transactional-id:x")],),
    ),
    (
        "TransactionService/InitProducerId",
        {},
        CLUSTER,
        ([("IDEMPOTENT_WRITE", "cluster")], [("WRITE", "topic:any")]),
    ),
    (
        "TransactionService/AddPartitions",
        {**_X, **_PRODUCER, **_TOPICS},
        TRANSACTION,
        ([_W, ("WRITE", "topic:t")],),
    ),
    (
        "TransactionService/CommitOffsets",
        {**_X, **_PRODUCER, "group_id": "g", "generation_id": -1, "items": [{**_T, "offset": 1}]},
        TRANSACTION,
        ([_W, _READ_G, ("READ", "topic:t")],),
    ),
    ("TransactionService/EndTransaction", {**_X, **_PRODUCER, "commit": True}, TRANSACTION, ([_W],)),
    ("TransactionService/AbortTransaction", _X, TRANSACTION, ([_W],)),
    ("TransactionService/DescribeTransaction", _X, TRANSACTION, ([_D], [_W])),
    ("SharedTransactionService/OpenSharedTransaction", {**_KEY, "timeout_ms": 60_000}, TRANSACTION, ([_W],)),
    ("SharedTransactionService/CommitSharedTransaction", _KEY, TRANSACTION, ([_W],)),
    ("SharedTransactionService/AbortSharedTransaction", {"key": "x", "attempt": "1"}, TRANSACTION, ([_W],)),
    (
        "SharedTransactionService/LeaveSharedTransaction",
        {"key": "x", "attempt": "1", **_PRODUCER},
        TRANSACTION,
        ([_W],),
    ),
    ("SharedTransactionService/DescribeSharedTransaction", {"key": "x"}, TRANSACTION, ([_D],)),
    ("ClusterService/DescribeNodes", {}, CLUSTER, (_DESCRIBE,)),
    ("ClusterService/DescribeReplicas", {}, CLUSTER, (_DESCRIBE,)),
    ("ClusterService/ReassignPartitions", {"items": [{"partition": _T}]}, CLUSTER, (_ALTER,)),
    ("ClusterService/ListReassignments", {}, CLUSTER, (_DESCRIBE,)),
    ("ClusterService/ElectLeaders", {"partitions": [_T]}, CLUSTER, (_ALTER,)),
    ("ClusterService/CordonNode", {"node_id": 77, "cordoned": True}, CLUSTER, (_ALTER,)),
    ("ClusterService/UnregisterNode", {"node_id": 77}, CLUSTER, (_ALTER,)),
    ("DiagnosticsService/GetSnapshot", {}, CLUSTER, (_DESCRIBE,)),
    ("DiagnosticsService/GetTransactionHistory", {"key": "x"}, TRANSACTION, ([_D], _DESCRIBE)),
    (
        "DiagnosticsService/AbortHangingTransaction",
        {"partition": _T, "start_offset": 0, "end": 0},
        CLUSTER,
        (_ALTER,),
    ),
    ("AclService/CreateAcls", {"acls": []}, CLUSTER, (_ALTER,)),
    ("AclService/DeleteAcls", {"filters": []}, CLUSTER, (_ALTER,)),
    ("AclService/DescribeAcls", {}, CLUSTER, (_DESCRIBE,)),
    ("QuotaService/AlterClientQuotas", {}, CLUSTER, ([("ALTER_CONFIGS", "cluster")],)),
    ("QuotaService/DescribeClientQuotas", {}, CLUSTER, ([("DESCRIBE_CONFIGS", "cluster")],)),
    ("UserService/AlterUserCredentials", {"removed": ["bob"]}, CLUSTER, (_ALTER,)),
    ("UserService/DescribeUserCredentials", {}, CLUSTER, (_DESCRIBE,)),
)
ELSEWHERE = frozenset(
    {"DataService/Produce", "DataService/Fetch", "GroupService/ListGroups", "TransactionService/ListTransactions"}
    | {"SharedTransactionService/ListSharedTransactions"}
    | {f"DelegationTokenService/{verb}DelegationToken" for verb in ("Create", "Renew", "Expire")}
    | {"DelegationTokenService/DescribeDelegationTokens"}
)
_METHODS = {
    f"{service.name}/{method.name}": method
    for module in MODULES
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}


async def refusals(channel: grpc.aio.Channel, name: str, values: dict[str, Any], **options: Any) -> set[str]:
    """Make a call; return the names of all errors in its answer, or of the one that refused it."""
    method = _METHODS[name]
    call: Any = channel.unary_unary(
        f"/semel.v1.{name}",
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=GetMessageClass(method.output_type).FromString,
    )
    try:
        return set(errors(await call(GetMessageClass(method.input_type)(**values), **options)))
    except grpc.aio.AioRpcError as error:
        return {str(dict(error.trailing_metadata() or ())[ERROR_METADATA])}


def errors(message: Message) -> list[str]:
    """The names of all errors in a message, at every depth."""
    if isinstance(message, common_pb2.Error):
        return [message.name] if message.code else []
    found: list[str] = []
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        for each in value if field.is_repeated else (value,):
            found += errors(each)
    return found


def _words(value: object) -> str:
    return value if isinstance(value, str) else ""


@pytest.mark.parametrize(("name", "values", "refused", "enough"), CASES, ids=_words)
def test_S7_a_call_is_refused_without_its_rights_and_answered_with_them(
    tmp_path: Path, name: str, values: dict[str, Any], refused: str, enough: Sequence[Sequence[tuple[str, str]]]
) -> None:
    async def main() -> None:
        more = {**PERMITTED, "transaction_two_phase_commit_enable": True}
        async with running_node(tmp_path, **more) as node, channel_to(node) as channel:
            await create_topic(node, "t")
            await node.groups.commit_offsets(
                OffsetCommitRequest("g", -1, "", None, {TopicPartition("t", 0): OffsetAndMetadata(3)})
            )
            unrelated = [] if refused == CLUSTER else [("ALL", "topic:other"), ("ALL", "group:other")]
            await only(node, unrelated)
            assert await refusals(channel, name, values) == {refused}
            for rights in enough:
                for missing in rights if len(rights) > 1 else ():
                    await only(node, [right for right in rights if right != missing])
                    assert await refusals(channel, name, values) & {TOPIC, GROUP, CLUSTER, TRANSACTION}, missing
                await only(node, rights)
                assert not await refusals(channel, name, values) & {TOPIC, GROUP, CLUSTER, TRANSACTION}, rights

    asyncio.run(main())


def test_every_call_is_in_the_table_and_has_a_case() -> None:
    assert set(_METHODS) == set(GRPC) == {name for name, *_ in CASES} | ELSEWHERE


def test_lists_have_what_the_caller_may_describe(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_node(tmp_path, **PERMITTED) as node, channel_to(node) as channel:
            await create_topic(node, "t")
            for name in ("a", "b"):
                await node.groups.commit_offsets(
                    OffsetCommitRequest(name, -1, "", None, {TopicPartition("t", 0): OffsetAndMetadata(3)})
                )
                await node.transactions.init_producer_id(InitProducerIdRequest(name, 60_000))
                await node.transactions.open_shared(OpenSharedRequest(name, "1", "t", 60_000, writer=False))
            groups: Any = channel.unary_unary(
                "/semel.v1.GroupService/ListGroups",
                request_serializer=groups_pb2.ListGroupsRequest.SerializeToString,
                response_deserializer=groups_pb2.ListGroupsResponse.FromString,
            )
            transactions: Any = channel.unary_unary(
                "/semel.v1.TransactionService/ListTransactions",
                request_serializer=transactions_pb2.ListTransactionsRequest.SerializeToString,
                response_deserializer=transactions_pb2.ListTransactionsResponse.FromString,
            )
            shared: Any = channel.unary_unary(
                "/semel.v1.SharedTransactionService/ListSharedTransactions",
                request_serializer=shared_pb2.ListSharedTransactionsRequest.SerializeToString,
                response_deserializer=shared_pb2.ListSharedTransactionsResponse.FromString,
            )
            metadata: Any = channel.unary_unary(
                "/semel.v1.MetadataService/GetMetadata",
                request_serializer=metadata_pb2.GetMetadataRequest.SerializeToString,
                response_deserializer=metadata_pb2.GetMetadataResponse.FromString,
            )
            for rights, seen in (
                ([], []),
                ([("DESCRIBE", "group:b"), ("DESCRIBE", "transactional-id:b")], ["b"]),
            ):
                await only(node, rights)
                assert [each.group_id for each in (await groups(groups_pb2.ListGroupsRequest())).items] == seen
                listed = await transactions(transactions_pb2.ListTransactionsRequest())
                assert [each.transactional_id for each in listed.items] == seen
                keys = await shared(shared_pb2.ListSharedTransactionsRequest())
                assert [each.key for each in keys.items] == seen
                everything = await metadata(metadata_pb2.GetMetadataRequest(all_topics=True, include_internal=True))
                assert not everything.topics

    asyncio.run(main())


async def produced(channel: grpc.aio.Channel, *topics: str, **options: Any) -> dict[str, str]:
    """Produce a batch to each topic in one request; return each one's error."""
    call: Any = channel.stream_stream(
        "/semel.v1.DataService/Produce",
        request_serializer=data_pb2.ProduceRequest.SerializeToString,
        response_deserializer=data_pb2.ProduceResponse.FromString,
    )
    items = [data_pb2.ProduceRequest.Item(topic=name, partition=0, record_batches=batch(b"x")) for name in topics]

    async def requests() -> AsyncIterator[data_pb2.ProduceRequest]:
        yield data_pb2.ProduceRequest(items=items, acks=-1)

    async for answer in call(requests(), **options):
        return {item.topic: item.error.name for item in answer.items}
    raise AssertionError("no answer")


def test_a_stream_of_batches_appends_what_the_caller_may_write(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_node(tmp_path, **PERMITTED) as node, channel_to(node) as channel:
            for name in ("t", "u"):
                await create_topic(node, name)
            await only(node, [("WRITE", "topic:t")])
            assert await produced(channel, "u", "t", "u") == {"t": "", "u": TOPIC}
            assert node.logs.partition(TopicPartition("t", 0)).log_end_offset == 1  # type: ignore[union-attr]
            assert node.logs.partition(TopicPartition("u", 0)).log_end_offset == 0  # type: ignore[union-attr]

    asyncio.run(main())


def test_S7_a_right_that_is_taken_away_counts_for_a_stream_that_is_open(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_node(tmp_path, **PERMITTED) as node, channel_to(node) as channel:
            await create_topic(node, "t")
            await only(node, [("ALL", "topic:t")])
            await produced(channel, "t")
            asked: asyncio.Queue[data_pb2.FetchRequest | None] = asyncio.Queue()

            async def requests() -> AsyncIterator[data_pb2.FetchRequest]:
                while (request := await asked.get()) is not None:
                    yield request

            call: Any = channel.stream_stream(
                "/semel.v1.DataService/Fetch",
                request_serializer=data_pb2.FetchRequest.SerializeToString,
                response_deserializer=data_pb2.FetchResponse.FromString,
            )
            answers = call(requests())
            item = data_pb2.FetchRequest.Item(topic="t", partition=0, offset=0)
            await asked.put(data_pb2.FetchRequest(items=[item], credit_bytes=1 << 20, max_wait_ms=100))
            first = await answers.read()
            assert (first.items[0].error.name, len(first.items[0].record_batches) > 0) == ("", True)
            await only(node, [("WRITE", "topic:t")])
            await produced(channel, "t")
            second = await answers.read()
            assert (second.items[0].error.name, second.items[0].record_batches) == (TOPIC, b"")
            await asked.put(None)
            answers.cancel()

    asyncio.run(main())


def test_the_user_of_the_password_has_the_rights_and_a_super_user_all(tmp_path: Path) -> None:
    def as_user(name: str) -> dict[str, Any]:
        token = base64.b64encode(f"{name}:{PASSWORD}".encode()).decode()
        return {"metadata": (("authorization", f"Basic {token}"),)}

    async def main() -> None:
        users = set_user(set_user(tmp_path / "users"), "admin")
        more = {"grpc_listen": "sasl://127.0.0.1:0", "sasl_users_location": str(users), **PERMITTED}
        async with running_node(tmp_path, **more) as node, channel_to(node) as channel:
            await create_topic(node, "t")
            for each in ("GroupService/DescribeGroup", "MetadataService/GetMetadata"):
                values = {"group_id": "g"} if "Group" in each else {"topics": ["t"]}
                assert await refusals(channel, each, values, **as_user(ALICE)), each
                assert not await refusals(channel, each, values, **as_user("admin")), each
            assert await produced(channel, "t", **as_user(ALICE)) == {"t": TOPIC}
            assert await produced(channel, "t", **as_user("admin")) == {"t": ""}
            await allow(node, acl("WRITE", "topic:t", principal=f"User:{ALICE}"))
            assert await produced(channel, "t", **as_user(ALICE)) == {"t": ""}
            assert not await refusals(channel, "MetadataService/GetMetadata", {"topics": ["t"]}, **as_user(ALICE))

    asyncio.run(main())


def test_S7_an_acl_counts_at_its_host_alone(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_node(tmp_path, **PERMITTED) as node, channel_to(node) as channel:
            for host, refused in (("10.1.2.3", {GROUP}), ("127.0.0.1", set())):
                await allow(node, acl("DESCRIBE", "group:g", host=host))
                assert await refusals(channel, "GroupService/DescribeGroup", {"group_id": "g"}) == refused

    asyncio.run(main())


async def code_at_the_kafka_listener(node: Node, authority: Authority, pair: Pair) -> int:
    """Describe the group g with a certificate, and return the error."""
    context = ssl.create_default_context(cafile=str(authority.ca))
    context.load_cert_chain(pair.certificate, pair.key)
    found = await call(node.kafka_address.port, ApiKey.DESCRIBE_GROUPS, 4, tls=context, groups=("g",))
    return int(found.groups[0].error_code)


def test_the_owner_of_a_certificate_has_the_rights(tmp_path: Path) -> None:
    async def main() -> None:
        authority = Authority(tmp_path / "ca")
        mine = authority.client("me")
        settings = {**SMALL, **PERMITTED, **encrypted(authority.node(), authority)}
        async with running_node(tmp_path, **settings) as node:
            credentials = grpc.ssl_channel_credentials(
                authority.ca.read_bytes(), mine.key.read_bytes(), mine.certificate.read_bytes()
            )
            channel = grpc.aio.secure_channel(f"localhost:{node.grpc_address.port}", credentials)
            try:
                await only(node, [])
                assert await refusals(channel, "GroupService/DescribeGroup", {"group_id": "g"}) == {GROUP}
                owner = principal_of_certificate(der_of_pem(mine.certificate.read_bytes()))
                assert owner is not None
                assert owner.startswith("User:CN=me,OU=")
                assert await code_at_the_kafka_listener(node, authority, mine) == GROUP_CODE
                await allow(node, acl("DESCRIBE", "group:g", principal=owner))
                assert not await refusals(channel, "GroupService/DescribeGroup", {"group_id": "g"})
                assert await code_at_the_kafka_listener(node, authority, mine) == 0
            finally:
                await channel.close()

    asyncio.run(main())


def test_S7_a_rule_names_the_owner_of_a_certificate_and_who_has_none_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        authority = Authority(tmp_path / "ca")
        settings = {**SMALL, **PERMITTED, **encrypted(authority.node(), authority)}
        rules = {"ssl_principal_mapping_rules": r"RULE:^CN=(m\w+),.*$/$1/U"}
        async with running_node(tmp_path, **settings, **rules) as node:
            for pair, is_named in ((authority.client("me"), True), (authority.client("you"), False)):
                await only(node, [("DESCRIBE", "group:g")])  # what anybody without a certificate may
                await allow(node, acl("DESCRIBE", "group:g", principal="User:ME"))
                credentials = grpc.ssl_channel_credentials(
                    authority.ca.read_bytes(), pair.key.read_bytes(), pair.certificate.read_bytes()
                )
                channel = grpc.aio.secure_channel(f"localhost:{node.grpc_address.port}", credentials)
                try:
                    if is_named:
                        assert not await refusals(channel, "GroupService/DescribeGroup", {"group_id": "g"})
                        assert await code_at_the_kafka_listener(node, authority, pair) == 0
                    else:
                        refused = await refusals(channel, "GroupService/DescribeGroup", {"group_id": "g"})
                        assert refused == {ErrorCode.SASL_AUTHENTICATION_FAILED.name}
                        with pytest.raises((OSError, EOFError)):
                            await code_at_the_kafka_listener(node, authority, pair)
                finally:
                    await channel.close()

    asyncio.run(main())
    assert sum("subject='CN=you,OU=" in record.getMessage() for record in caplog.records) == 2


def test_of_a_transaction_only_topics_are_told_that_the_caller_may_describe(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_node(tmp_path, **PERMITTED) as node, channel_to(node) as channel:
            for name in ("t", "u"):
                await create_topic(node, name)
            producer = (await node.transactions.init_producer_id(InitProducerIdRequest("x", 60_000))).producer
            await node.transactions.add_partitions(
                AddPartitionsToTxnRequest("x", producer, (TopicPartition("t", 0), TopicPartition("u", 0)))
            )
            await only(node, [_D, ("DESCRIBE", "topic:u")])
            call: Any = channel.unary_unary(
                "/semel.v1.TransactionService/DescribeTransaction",
                request_serializer=transactions_pb2.DescribeTransactionRequest.SerializeToString,
                response_deserializer=transactions_pb2.TransactionDescription.FromString,
            )
            found = await call(transactions_pb2.DescribeTransactionRequest(transactional_id="x"))
            assert [topic.topic for topic in found.topics] == ["u"]

    asyncio.run(main())


def test_S7_the_story_of_a_transaction_names_what_the_caller_may_describe(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_node(tmp_path, **PERMITTED) as node, channel_to(node) as channel:
            for name in ("t", "u"):
                await create_topic(node, name)
            producer = (await node.transactions.init_producer_id(InitProducerIdRequest("x", 60_000))).producer
            partitions = (TopicPartition("t", 0), TopicPartition("u", 0))
            await node.transactions.add_partitions(AddPartitionsToTxnRequest("x", producer, partitions))
            await node.groups.add_to_transaction("x", producer, "g")
            offsets = {tp: OffsetAndMetadata(1) for tp in partitions}
            commit = OffsetCommitRequest(
                "g", NO_GENERATION, NO_MEMBER_ID, None, offsets, transactional_id="x", producer=producer
            )
            await commit_offsets(node, commit, TransactionVersion.V1)
            call: Any = channel.unary_unary(
                "/semel.v1.DiagnosticsService/GetTransactionHistory",
                request_serializer=diagnostics_pb2.TransactionHistoryRequest.SerializeToString,
                response_deserializer=diagnostics_pb2.TransactionHistory.FromString,
            )

            async def named(*acls: tuple[str, str]) -> tuple[set[str], set[str]]:
                """The topics that events name, and the topics of committed offsets."""
                await only(node, acls)
                found = await call(diagnostics_pb2.TransactionHistoryRequest(key="x"))
                topics = {tp.topic for event in found.events for tp in event.partitions}
                assert all(event.partitions_total == len(event.partitions) for event in found.events)
                return topics, {write.committed.topic for write in found.writes if write.HasField("committed")}

            everything = {"t", "u", OFFSETS_TOPIC}
            assert await named(_D, ("DESCRIBE", "topic:u")) == ({"u"}, set())
            described = [_D, ("DESCRIBE", "topic:u"), ("DESCRIBE", f"topic:{OFFSETS_TOPIC}")]
            assert await named(*described) == ({"u", OFFSETS_TOPIC}, set())
            assert await named(*described, ("DESCRIBE", "group:g")) == ({"u", OFFSETS_TOPIC}, {"u"})
            assert await named(("DESCRIBE", "cluster")) == (everything, {"t", "u"})

    asyncio.run(main())
