"""The gRPC API on a real node: every service, its errors and its bounds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from opentelemetry import trace
from running_node import batch, channel_to, create_topic, running_node

from semel.broker.listeners.grpc import metadata_service
from semel.broker.listeners.grpc.errors import ERROR_METADATA, item_error, message_of, status_message, status_of
from semel.broker.node import Node
from semel.protocol.errors import ErrorCode, FatalError, error_for
from semel.protocol.ids import OFFSETS_TOPIC, TopicPartition
from semel.protocol.v1 import (
    common_pb2,
    groups_pb2,
    groups_pb2_grpc,
    metadata_pb2,
    metadata_pb2_grpc,
    topics_pb2,
    topics_pb2_grpc,
    transactions_pb2,
    transactions_pb2_grpc,
)

Test = Callable[[Node, grpc.aio.Channel], Awaitable[None]]


def with_channel(folder: Path, test: Test, **settings: Any) -> None:
    async def main() -> None:
        async with running_node(folder, **settings) as node, channel_to(node) as channel:
            await test(node, channel)

    asyncio.run(main())


def refused(error: pytest.ExceptionInfo[grpc.aio.AioRpcError]) -> tuple[grpc.StatusCode, str]:
    found = dict(error.value.trailing_metadata())
    return error.value.code(), str(found[ERROR_METADATA])


def test_metadata_has_the_addresses_of_both_listeners(tmp_path: Path) -> None:
    async def test(node: Node, channel: grpc.aio.Channel) -> None:
        metadata = metadata_pb2_grpc.MetadataServiceStub(channel)
        await create_topic(node, "a", 2)
        response = await metadata.GetMetadata(metadata_pb2.GetMetadataRequest(topics=["a", "nope", "a"]))
        (found,) = response.nodes
        assert (found.node_id, found.kafka_port, found.grpc_port) == (
            1,
            node.kafka_address.port,
            node.grpc_address.port,
        )
        assert (response.controller_id, bool(response.cluster_id)) == (1, True)
        topic, missing = response.topics
        assert (topic.name, len(topic.topic_id), len(topic.partitions), topic.HasField("error")) == ("a", 16, 2, False)
        assert (missing.error.name, missing.error.code) == ("UNKNOWN_TOPIC_OR_PARTITION", 3)
        by_id = await metadata.GetMetadata(metadata_pb2.GetMetadataRequest(topic_ids=[topic.topic_id]))
        assert by_id.topics[0].name == "a"
        created = await metadata.GetMetadata(metadata_pb2.GetMetadataRequest(topics=["b"], allow_auto_create=True))
        assert len(created.topics[0].partitions) == 1
        everything = await metadata.GetMetadata(metadata_pb2.GetMetadataRequest(all_topics=True))
        assert [topic.name for topic in everything.topics] == ["a", "b"]
        assert not (await metadata.GetMetadata(metadata_pb2.GetMetadataRequest())).topics
        with pytest.raises(grpc.aio.AioRpcError, match="16 bytes") as error:
            await metadata.GetMetadata(metadata_pb2.GetMetadataRequest(topic_ids=[b"short"]))
        assert refused(error) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST")

    with_channel(tmp_path, test)


def test_advertised_addresses_are_told_in_place_of_the_real_ones(tmp_path: Path) -> None:
    async def test(_: Node, channel: grpc.aio.Channel) -> None:
        stub = metadata_pb2_grpc.MetadataServiceStub(channel)
        (found,) = (await stub.GetMetadata(metadata_pb2.GetMetadataRequest())).nodes
        assert (found.kafka_host, found.kafka_port, found.rack) == ("log1.example.com", 1234, "r1")

    with_channel(tmp_path, test, kafka_advertised="log1.example.com:1234", broker_rack="r1")


def test_topics_and_their_settings(tmp_path: Path) -> None:
    async def test(node: Node, channel: grpc.aio.Channel) -> None:
        topics = topics_pb2_grpc.TopicServiceStub(channel)
        wanted = [
            topics_pb2.NewTopic(name="a", configs={"retention.ms": "5"}),
            topics_pb2.NewTopic(name="b", num_partitions=2, replication_factor=1),
            topics_pb2.NewTopic(name="c", replication_factor=3),
        ]
        checked = await topics.CreateTopics(topics_pb2.CreateTopicsRequest(topics=wanted, validate_only=True))
        made = await topics.CreateTopics(topics_pb2.CreateTopicsRequest(topics=wanted))
        for answer in (checked, made):
            assert [topic.error.name for topic in answer.topics] == ["", "", "INVALID_REPLICATION_FACTOR"]
        await topics.CreatePartitions(topics_pb2.CreatePartitionsRequest(topic="a", total_count=3))
        assert node.partition(TopicPartition("a", 2)) is not None
        with pytest.raises(grpc.aio.AioRpcError, match="ask for more") as error:
            await topics.CreatePartitions(topics_pb2.CreatePartitionsRequest(topic="a", total_count=3))
        assert refused(error) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_PARTITIONS")
        await topics.AlterConfigs(
            topics_pb2.AlterConfigsRequest(
                resource_type=topics_pb2.TOPIC, resource_name="a", set={"segment.bytes": "99"}
            )
        )
        described = await topics.DescribeConfigs(
            topics_pb2.DescribeConfigsRequest(
                resource_type=topics_pb2.TOPIC, resource_name="a", names=["segment.bytes", "retention.ms"]
            )
        )
        assert [(entry.name, entry.value, entry.source) for entry in described.entries] == [
            ("segment.bytes", "99", "DYNAMIC_TOPIC"),
            ("retention.ms", "5", "DYNAMIC_TOPIC"),
        ]
        with pytest.raises(grpc.aio.AioRpcError, match="use TOPIC or BROKER"):
            await topics.DescribeConfigs(topics_pb2.DescribeConfigsRequest(resource_name="a"))
        deleted = await topics.DeleteTopics(topics_pb2.DeleteTopicsRequest(topics=["a", "zz"]))
        assert [(result.topic, result.error.name) for result in deleted.results] == [
            ("a", ""),
            ("zz", "UNKNOWN_TOPIC_OR_PARTITION"),
        ]

    with_channel(tmp_path, test)


def test_offsets_of_partitions(tmp_path: Path) -> None:
    async def test(node: Node, channel: grpc.aio.Channel) -> None:
        topics = topics_pb2_grpc.TopicServiceStub(channel)
        await create_topic(node, "a")
        partition = node.partition(TopicPartition("a", 0))
        assert partition is not None
        partition.append(bytearray(batch(b"x", b"y")))
        await partition.wait_committed(1)
        item = topics_pb2.ListOffsetsRequest.Item(topic="a", timestamp_ms=-1)
        listed = await topics.ListOffsets(topics_pb2.ListOffsetsRequest(items=[item]))
        assert listed.items[0].offset == 2
        with pytest.raises(grpc.aio.AioRpcError, match="a-0 is in the request more than once"):
            await topics.ListOffsets(topics_pb2.ListOffsetsRequest(items=[item, item]))
        with pytest.raises(grpc.aio.AioRpcError, match="isolation level 7"):
            await topics.ListOffsets(topics_pb2.ListOffsetsRequest(items=[item], isolation=7))  # type: ignore[arg-type]
        cut = await topics.DeleteRecords(
            topics_pb2.DeleteRecordsRequest(
                items=[
                    topics_pb2.DeleteRecordsRequest.Item(topic="a", before_offset=-1),
                    topics_pb2.DeleteRecordsRequest.Item(topic="b", before_offset=-1),
                ]
            )
        )
        assert [(item.log_start_offset, item.error.name) for item in cut.items] == [
            (2, ""),
            (-1, "UNKNOWN_TOPIC_OR_PARTITION"),
        ]

    with_channel(tmp_path, test)


def join(group_id: str, member_id: str = "") -> groups_pb2.JoinGroupRequest:
    return groups_pb2.JoinGroupRequest(
        group_id=group_id,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[groups_pb2.GroupProtocol(name="range", metadata=b"\0\1\0\0\0\1\0\1a\xff\xff\xff\xff\0\0\0\0")],
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        client_id="me",
    )


def test_a_group_lives_from_join_to_deletion(tmp_path: Path) -> None:
    async def test(node: Node, channel: grpc.aio.Channel) -> None:
        groups = groups_pb2_grpc.GroupServiceStub(channel)
        await create_topic(node, "a", 2)
        first = await groups.JoinGroup(join("g"))
        assert first.error.name == "MEMBER_ID_REQUIRED"
        assert first.member_id.startswith("me-")
        joined = await groups.JoinGroup(join("g", first.member_id))
        assert (joined.leader_id, joined.generation_id) == (first.member_id, 1)
        identity = {"group_id": "g", "generation_id": 1, "member_id": first.member_id}
        synced = await groups.SyncGroup(groups_pb2.SyncGroupRequest(**identity, assign=True))  # type: ignore[arg-type]
        assert synced.assignment.endswith(b"\0\0\0\1\0\1a\0\0\0\2\0\0\0\0\0\0\0\1\xff\xff\xff\xff")
        await groups.Heartbeat(groups_pb2.HeartbeatRequest(**identity))  # type: ignore[arg-type]
        items = [
            groups_pb2.CommitOffsetsRequest.Item(topic="a", partition=1, offset=5, leader_epoch=-1, metadata="x"),
            groups_pb2.CommitOffsetsRequest.Item(topic="zz", partition=1, offset=5, leader_epoch=-1),
        ]
        committed = await groups.CommitOffsets(groups_pb2.CommitOffsetsRequest(**identity, items=items))  # type: ignore[arg-type]
        assert [item.error.name for item in committed.items] == ["", "UNKNOWN_TOPIC_OR_PARTITION"]
        asked = [common_pb2.TopicPartitions(topic="a", partitions=[0, 1])]
        fetched = await groups.FetchOffsets(groups_pb2.FetchOffsetsRequest(group_id="g", topics=asked))
        assert [(item.partition, item.offset, item.metadata) for item in fetched.items] == [(0, -1, ""), (1, 5, "x")]
        listed = await groups.ListGroups(groups_pb2.ListGroupsRequest())
        assert [(item.group_id, item.state) for item in listed.items] == [("g", "Stable")]
        described = await groups.DescribeGroup(groups_pb2.DescribeGroupRequest(group_id="g"))
        assert described.members[0].client_host == "/127.0.0.1"
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await groups.DeleteGroup(groups_pb2.DeleteGroupRequest(group_id="g"))
        assert refused(error) == (grpc.StatusCode.FAILED_PRECONDITION, "NON_EMPTY_GROUP")
        gone = groups_pb2.LeaveGroupRequest.Member(member_id=first.member_id)
        stranger = groups_pb2.LeaveGroupRequest.Member(member_id="stranger")
        left = await groups.LeaveGroup(groups_pb2.LeaveGroupRequest(group_id="g", members=[gone, stranger]))
        assert [error.name for error in left.errors] == ["", "UNKNOWN_MEMBER_ID"]
        deleted = await groups.DeleteOffsets(groups_pb2.DeleteOffsetsRequest(group_id="g", topics=asked))
        assert [item.error.name for item in deleted.items] == ["", ""]
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await groups.Heartbeat(groups_pb2.HeartbeatRequest(**identity))  # type: ignore[arg-type]
        assert refused(error) == (grpc.StatusCode.FAILED_PRECONDITION, "UNKNOWN_MEMBER_ID")
        listed = await groups.ListGroups(groups_pb2.ListGroupsRequest())
        if listed.items:
            await groups.DeleteGroup(groups_pb2.DeleteGroupRequest(group_id="g"))

    with_channel(tmp_path, test)


def test_a_transaction_from_its_producer_to_its_end(tmp_path: Path) -> None:
    async def test(node: Node, channel: grpc.aio.Channel) -> None:
        txn = transactions_pb2_grpc.TransactionServiceStub(channel)
        await create_topic(node, "a")
        idempotent = await txn.InitProducerId(transactions_pb2.InitProducerIdRequest())
        assert node.metadata.topic("__transaction_state") is None
        begun = await txn.InitProducerId(
            transactions_pb2.InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=60_000)
        )
        producer = begun.producer
        assert producer.producer_id != idempotent.producer.producer_id
        who = {"transactional_id": "t", "producer": producer}
        asked = [common_pb2.TopicPartitions(topic="a", partitions=[0])]
        added = await txn.AddPartitions(transactions_pb2.AddPartitionsRequest(**who, topics=asked))  # type: ignore[arg-type]
        assert [item.error.name for item in added.items] == [""]
        item = transactions_pb2.TxnCommitOffsetsRequest.Item(topic="a", offset=3, leader_epoch=-1)
        offsets = await txn.CommitOffsets(
            transactions_pb2.TxnCommitOffsetsRequest(**who, group_id="g", generation_id=-1, items=[item])  # type: ignore[arg-type]
        )
        assert [item.error.name for item in offsets.items] == [""]
        described = await txn.DescribeTransaction(transactions_pb2.DescribeTransactionRequest(transactional_id="t"))
        assert described.state == "Ongoing"
        assert {item.topic for item in described.topics} == {"a", OFFSETS_TOPIC}
        listed = await txn.ListTransactions(transactions_pb2.ListTransactionsRequest(states=["Ongoing", "Odd"]))
        assert [item.transactional_id for item in listed.items] == ["t"]
        assert list(listed.unknown_states) == ["Odd"]
        ended = await txn.EndTransaction(transactions_pb2.EndTransactionRequest(**who, commit=True))  # type: ignore[arg-type]
        assert ended.producer.producer_epoch == producer.producer_epoch + 1
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await txn.DescribeTransaction(transactions_pb2.DescribeTransactionRequest(transactional_id="zz"))
        assert refused(error) == (grpc.StatusCode.NOT_FOUND, "TRANSACTIONAL_ID_NOT_FOUND")
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await txn.AbortTransaction(transactions_pb2.AbortTransactionRequest(transactional_id="zz"))
        assert refused(error) == (grpc.StatusCode.NOT_FOUND, "TRANSACTIONAL_ID_NOT_FOUND")
        # Until the markers are written, every call about the id gets an error to retry (T7).
        asked_again = transactions_pb2.DescribeTransactionRequest(transactional_id="t")
        while (await txn.DescribeTransaction(asked_again)).state != "CompleteCommit":
            pass
        fenced = common_pb2.Producer(producer_id=producer.producer_id, producer_epoch=99)
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await txn.EndTransaction(
                transactions_pb2.EndTransactionRequest(transactional_id="t", producer=fenced, commit=True)
            )
        assert refused(error) == (grpc.StatusCode.FAILED_PRECONDITION, "PRODUCER_FENCED")

    with_channel(tmp_path, test)


def test_requests_beyond_the_bounds_are_refused(tmp_path: Path) -> None:
    async def test(_: Node, channel: grpc.aio.Channel) -> None:
        metadata = metadata_pb2_grpc.MetadataServiceStub(channel)
        with pytest.raises(
            grpc.aio.AioRpcError, match=r"topics has more items than grpc\.max\.array\.length = 5"
        ) as error:
            await metadata.GetMetadata(metadata_pb2.GetMetadataRequest(topics=list("abcdef")))
        assert refused(error) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST")
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await metadata.GetMetadata(metadata_pb2.GetMetadataRequest(topics=["x" * 5000]))
        assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED

    with_channel(tmp_path, test, grpc_max_array_length=5, grpc_max_message_bytes=4096)


def test_calls_beyond_the_bound_are_refused_while_others_wait(tmp_path: Path) -> None:
    async def test(node: Node, channel: grpc.aio.Channel) -> None:
        groups = groups_pb2_grpc.GroupServiceStub(channel)
        metadata = metadata_pb2_grpc.MetadataServiceStub(channel)
        members = [(await groups.JoinGroup(join("g"))).member_id for _ in range(2)]
        joined = await groups.JoinGroup(join("g", members[0]))
        # The second member waits until the first one joins again.
        waiting = groups.JoinGroup(join("g", members[1]))
        while (await groups.DescribeGroup(groups_pb2.DescribeGroupRequest(group_id="g"))).state != "PreparingRebalance":
            pass
        calls = [metadata.GetMetadata(metadata_pb2.GetMetadataRequest()) for _ in range(20)]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        errors = {answer.code() for answer in answers if isinstance(answer, grpc.aio.AioRpcError)}
        assert errors == {grpc.StatusCode.RESOURCE_EXHAUSTED}
        assert joined.generation_id == 1
        while not waiting.done():
            # The node may count a call a moment longer than its caller does.
            with suppress(grpc.aio.AioRpcError):
                await groups.JoinGroup(join("g", members[0]))
            await asyncio.sleep(0)
        assert (await waiting).generation_id == 2

    with_channel(tmp_path, test, grpc_max_concurrent_rpcs=2)


def test_what_nobody_expected_is_logged_and_not_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("secret detail")

    async def test(_: Node, channel: grpc.aio.Channel) -> None:
        monkeypatch.setattr(metadata_service.metadata, "cluster_of_grpc", broken)
        stub = metadata_pb2_grpc.MetadataServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await stub.GetMetadata(metadata_pb2.GetMetadataRequest())
        assert refused(error) == (grpc.StatusCode.INTERNAL, "UNKNOWN_SERVER_ERROR")
        assert "secret" not in error.value.details()
        assert "secret detail" in caplog.text

    with_channel(tmp_path, test)


def test_E4_the_callers_trace_goes_on_in_the_handler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    cluster = metadata_service.metadata.cluster_of_grpc

    def watched(node: Node, listener: str) -> object:
        seen.append(f"{trace.get_current_span().get_span_context().trace_id:032x}")
        return cluster(node, listener)

    async def test(_: Node, channel: grpc.aio.Channel) -> None:
        monkeypatch.setattr(metadata_service.metadata, "cluster_of_grpc", watched)
        stub = metadata_pb2_grpc.MetadataServiceStub(channel)
        traceparent = ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
        await stub.GetMetadata(metadata_pb2.GetMetadataRequest(), metadata=(traceparent,))
        await stub.GetMetadata(metadata_pb2.GetMetadataRequest())
        await stub.GetMetadata(metadata_pb2.GetMetadataRequest(), metadata=(("traceparent", "nonsense"),))
        assert seen == ["0af7651916cd43dd8448eb211c80319c", "0" * 32, "0" * 32]

    with_channel(tmp_path, test)


def test_a_caller_that_stops_waiting_frees_its_call(tmp_path: Path) -> None:
    async def test(node: Node, channel: grpc.aio.Channel) -> None:
        groups = groups_pb2_grpc.GroupServiceStub(channel)
        members = [(await groups.JoinGroup(join("g"))).member_id for _ in range(2)]
        await groups.JoinGroup(join("g", members[0]))
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await groups.JoinGroup(join("g", members[1]), timeout=0.05)
        assert error.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        # Only this call may be in progress: the given-up one must be gone.
        await groups.DescribeGroup(groups_pb2.DescribeGroupRequest(group_id="g"), wait_for_ready=True)

    with_channel(tmp_path, test)


def test_health_and_reflection(tmp_path: Path) -> None:
    async def test(_: Node, channel: grpc.aio.Channel) -> None:
        health = health_pb2_grpc.HealthStub(channel)
        for name in ("", "semel.v1.MetadataService", "semel.v1.DataService"):
            answer = await health.Check(health_pb2.HealthCheckRequest(service=name))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
        asked = [
            reflection_pb2.ServerReflectionRequest(list_services=""),
            reflection_pb2.ServerReflectionRequest(file_containing_symbol="semel.v1.GroupService"),
        ]
        listed, described = [answer async for answer in reflection.ServerReflectionInfo(iter(asked))]
        names = {service.name for service in listed.list_services_response.service}
        assert {f"semel.v1.{kind}Service" for kind in ("Metadata", "Topic", "Group", "Transaction", "Data")} <= names
        files = [
            FileDescriptorProto.FromString(data) for data in described.file_descriptor_response.file_descriptor_proto
        ]
        assert any(file.name == "semel/v1/groups.proto" for file in files)

    with_channel(tmp_path, test)


def test_messages_may_name_anything(tmp_path: Path) -> None:
    async def test(_: Node, channel: grpc.aio.Channel) -> None:
        topics = topics_pb2_grpc.TopicServiceStub(channel)
        for name in ("größe\n☃", "x" * 100_000):
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await topics.CreatePartitions(topics_pb2.CreatePartitionsRequest(topic=name, total_count=2))
            assert refused(error) == (grpc.StatusCode.NOT_FOUND, "UNKNOWN_TOPIC_OR_PARTITION")
            assert ("größe" in error.value.details()) is name.startswith("g")

    with_channel(tmp_path, test)


def test_every_code_has_a_status_and_a_message() -> None:
    for code in ErrorCode:
        if code is ErrorCode.NONE:
            assert item_error(code) is None
            continue
        error = error_for(code, message_of(code))
        assert status_of(error) is not grpc.StatusCode.OK
        item = item_error(code)
        assert item is not None
        assert (item.code, item.name, bool(item.message)) == (int(code), code.name, True)
    assert len(status_message(FatalError("x" * 100_000))) <= 2_000
