"""What each API of the Kafka listener asks for: refused without it, in every version, and answered with it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from kafka_calls import answer_to, call
from permission_cases import CASES, CLUSTER, DENIALS, ONE_PARTITION, TOPIC, TRANSACTION, Case, codes, config_of
from permitted_node import PERMITTED, acl, allow, only
from running_node import create_topic, run_with_node

from semel.broker.acls.requirements import KAFKA
from semel.broker.acls.rights import ALL_RIGHTS
from semel.broker.listeners.kafka.all_apis import ALL_APIS
from semel.broker.node import Node
from semel.broker.permitted import acls as permitted_acls
from semel.protocol.acls import AclFilter
from semel.protocol.api.group_offsets import OffsetAndMetadata
from semel.protocol.api.groups import OffsetCommitRequest
from semel.protocol.api.producer_ids import InitProducerIdRequest
from semel.protocol.api.transactions import AddPartitionsToTxnRequest
from semel.protocol.consumer_protocol import Subscription, decode_subscription, encode_subscription
from semel.protocol.errors import ErrorCode
from semel.protocol.ids import TopicPartition
from semel.protocol.kafka.api import ApiKey

ELSEWHERE = frozenset(
    {
        ApiKey.PRODUCE,
        ApiKey.FETCH,
        ApiKey.LIST_GROUPS,
        ApiKey.LIST_TRANSACTIONS,
        ApiKey.DESCRIBE_TRANSACTIONS,
        ApiKey.DESCRIBE_CLUSTER,
        ApiKey.CREATE_DELEGATION_TOKEN,
        ApiKey.DESCRIBE_DELEGATION_TOKEN,
    }
)
"""These have tests of their own below, or of whole nodes: they are read by other code, filter, or need a user."""


def versions_of(key: ApiKey, case: Case) -> Sequence[int]:
    (api,) = [each for each in ALL_APIS if each.key is key]
    return case.versions or range(api.min_version, api.max_version + 1)


@pytest.mark.parametrize(("key", "case"), CASES, ids=lambda value: value.name if isinstance(value, ApiKey) else "")
def test_S7_an_api_is_refused_without_its_rights_and_answered_with_them(
    tmp_path: Path, key: ApiKey, case: Case
) -> None:
    async def test(node: Node) -> None:
        async def ask(version: int) -> set[int]:
            return set(codes(await call(node.kafka_address.port, key, version, **case.values)))

        if key is ApiKey.OFFSET_DELETE:
            offsets = {TopicPartition("t", 0): OffsetAndMetadata(3)}
            await node.groups.commit_offsets(OffsetCommitRequest("g", -1, "", None, offsets))
        unrelated = [("ALL", "topic:other"), ("ALL", "group:other"), ("ALL", "transactional-id:other")]
        unrelated = [] if case.refused is CLUSTER else unrelated
        versions = versions_of(key, case)
        await only(node, unrelated)
        for version in versions:
            assert (await ask(version)) - {0} == {case.refused}, version
        for enough in case.enough:
            for missing in enough if len(enough) > 1 else ():
                await only(node, [*unrelated, *(right for right in enough if right != missing)])
                for version in versions:
                    assert (await ask(version)) & DENIALS, (version, missing)
            await only(node, [*unrelated, *enough])
            for version in versions:
                assert not (await ask(version)) & DENIALS, (version, enough)
            if key in (ApiKey.DELETE_TOPICS, ApiKey.METADATA):
                await make_anew(node)

    run_with_node(tmp_path, test, topics={"t": 1}, transaction_two_phase_commit_enable=True, **PERMITTED)


async def make_anew(node: Node) -> None:
    """Let there be the topic t, and no topic that was made on the way."""
    from semel.broker.handlers.topics.changes import delete_topics

    await delete_topics(node, [name for name in node.metadata.image.topics if name == "new"])
    if node.metadata.topic("t") is None:
        await create_topic(node, "t")


def test_each_api_that_asks_for_rights_has_a_case() -> None:
    asking = {key for key, asks in KAFKA.items() if asks}
    assert asking == {key for key, _ in CASES} | ELSEWHERE


def test_what_a_listener_serves_is_in_the_table() -> None:
    from semel.broker.listeners.kafka.authentication import AUTHENTICATION_APIS

    served = {api.key for api in (*ALL_APIS, *AUTHENTICATION_APIS)} | {
        ApiKey.PRODUCE,
        ApiKey.FETCH,
        ApiKey.API_VERSIONS,
    }
    assert served == set(KAFKA)


async def ask(node: Node, key: ApiKey, version: int, **values: Any) -> Any:
    return await call(node.kafka_address.port, key, version, **values)


def test_S7_lists_of_groups_have_those_that_the_caller_may_describe(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        for group in ("a", "b"):
            await node.groups.commit_offsets(
                OffsetCommitRequest(group, -1, "", None, {TopicPartition("t", 0): OffsetAndMetadata(3)})
            )
        for version in range(6):
            for rights, seen in (
                ([], []),
                ([("DESCRIBE", "group:b")], ["b"]),
                ([("READ", "group:*")], ["a", "b"]),
                ([("DESCRIBE", "cluster")], ["a", "b"]),
            ):
                await only(node, rights)
                found = await ask(node, ApiKey.LIST_GROUPS, version, states_filter=(), types_filter=())
                assert [group.group_id for group in found.groups] == seen, (version, rights)

    run_with_node(tmp_path, test, topics={"t": 1}, **PERMITTED)


def test_S7_of_transactions_only_ids_and_topics_are_told_that_the_caller_may_describe(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        for name in ("x", "y"):
            producer = (await node.transactions.init_producer_id(InitProducerIdRequest(name, 60_000))).producer
            await node.transactions.add_partitions(
                AddPartitionsToTxnRequest(name, producer, (TopicPartition("t", 0), TopicPartition("u", 0)))
            )
        for version in range(3):
            for rights, seen in (([], []), ([("DESCRIBE", "transactional-id:y")], ["y"])):
                await only(node, rights)
                found = await ask(node, ApiKey.LIST_TRANSACTIONS, version, duration_filter=-1)
                assert [each.transactional_id for each in found.transaction_states] == seen
        await only(node, [("DESCRIBE", "transactional-id:y"), ("DESCRIBE", "topic:u")])
        found = await ask(node, ApiKey.DESCRIBE_TRANSACTIONS, 0, transactional_ids=("y",))
        assert [topic.topic for topic in found.transaction_states[0].topics] == ["u"]
        body = await answer_to(node.kafka_address.port, ApiKey.DESCRIBE_TRANSACTIONS, 0, transactional_ids=("x",))
        throttled_ms_and_count = 5
        code = int.from_bytes(body[throttled_ms_and_count : throttled_ms_and_count + 2], "big")
        assert code == TRANSACTION

    run_with_node(tmp_path, test, topics={"t": 1, "u": 1}, **PERMITTED)


def test_what_may_be_done_is_told_as_the_caller_may(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        await node.groups.commit_offsets(
            OffsetCommitRequest("g", -1, "", None, {TopicPartition("t", 0): OffsetAndMetadata(3)})
        )
        await only(node, [("READ", "topic:t"), ("DESCRIBE", "group:g")])
        of_topic = await ask(
            node, ApiKey.METADATA, 8, topics=({"name": "t"},), include_topic_authorized_operations=True,
            include_cluster_authorized_operations=True,
        )  # fmt: skip
        read_and_describe = 1 << 3 | 1 << 8
        assert of_topic.topics[0].topic_authorized_operations == read_and_describe
        assert of_topic.cluster_authorized_operations == 0
        pages = await ask(
            node, ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, topics=({"name": "t"},), response_partition_limit=10, cursor=None
        )
        assert pages.topics[0].topic_authorized_operations == read_and_describe
        (group,) = (
            await ask(node, ApiKey.DESCRIBE_GROUPS, 3, groups=("g",), include_authorized_operations=True)
        ).groups
        assert group.authorized_operations == 1 << 8
        for version in range(3):
            cluster = await ask(node, ApiKey.DESCRIBE_CLUSTER, version, include_cluster_authorized_operations=True)
            assert (cluster.cluster_authorized_operations, len(cluster.brokers)) == (0, 1)
        await only(node, [("DESCRIBE", "cluster")])
        cluster = await ask(node, ApiKey.DESCRIBE_CLUSTER, 0, include_cluster_authorized_operations=True)
        assert cluster.cluster_authorized_operations == 1 << 8

    run_with_node(tmp_path, test, topics={"t": 1}, **PERMITTED)


def test_S5_nobody_hears_of_topics_that_he_may_not_describe(tmp_path: Path) -> None:
    """Whether there are topics, their ids and their partitions: what is and what is not are answered the same."""

    async def test(node: Node) -> None:
        await only(node, [("DESCRIBE", "topic:seen")])
        for version in range(14):
            told = await ask(node, ApiKey.METADATA, version, topics=() if version == 0 else None)
            assert [topic.name for topic in told.topics] == ["seen"], version
            told = await ask(
                node, ApiKey.METADATA, version, topics=({"name": "hidden"}, {"name": "missing"}),
                allow_auto_topic_creation=False,
            )  # fmt: skip
            hidden, missing = sorted(told.topics, key=lambda topic: topic.name)
            assert dataclasses.replace(hidden, name="") == dataclasses.replace(missing, name="")
            assert (hidden.error_code, hidden.partitions) == (TOPIC, ())
        topic_id = node.metadata.image.topics["hidden"].topic_id.bytes
        (by_id,) = (await ask(node, ApiKey.METADATA, 12, topics=({"name": None, "topic_id": topic_id},))).topics
        assert (by_id.error_code, by_id.name, by_id.topic_id) == (TOPIC, None, UUID(bytes=topic_id))
        pages = await ask(
            node, ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, topics=(), response_partition_limit=10, cursor=None
        )
        assert [topic.name for topic in pages.topics] == ["seen"]
        for key, version, values in (
            (ApiKey.DELETE_TOPICS, 6, lambda name: {"topics": ({"name": name, "topic_id": None},)}),
            (ApiKey.DESCRIBE_CONFIGS, 4, lambda name: config_of(2, name)),
            (
                ApiKey.LIST_OFFSETS,
                5,
                lambda name: {"topics": ({"name": name, "partitions": (ONE_PARTITION,)},), "replica_id": -1},
            ),
            (ApiKey.CREATE_PARTITIONS, 3, lambda name: {"topics": ({"name": name, "count": 9, "assignments": None},)}),
        ):
            hidden, missing = [
                set(codes(await ask(node, key, version, timeout=10_000, **values(name))))
                for name in ("hidden", "missing")
            ]
            assert hidden == missing == {TOPIC}, key
        (deleted,) = (
            await ask(node, ApiKey.DELETE_TOPICS, 6, topics=({"name": None, "topic_id": topic_id},), timeout=10_000)
        ).responses
        assert (deleted.error_code, deleted.name) == (TOPIC, None)

    run_with_node(tmp_path, test, topics={"seen": 1, "hidden": 1}, auto_create_topics_enable=True, **PERMITTED)


def test_S7_a_missing_topic_is_not_made_for_who_may_only_describe_it(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        await only(node, [("DESCRIBE", "topic:*")])
        (told,) = (
            await ask(node, ApiKey.METADATA, 4, topics=({"name": "new"},), allow_auto_topic_creation=True)
        ).topics
        assert told.error_code == TOPIC
        assert node.metadata.topic("new") is None
        (told,) = (
            await ask(node, ApiKey.METADATA, 4, topics=({"name": "new"},), allow_auto_topic_creation=False)
        ).topics
        assert told.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    run_with_node(tmp_path, test, auto_create_topics_enable=True, **PERMITTED)


def test_the_settings_of_a_new_topic_are_told_to_who_may_describe_them(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        new = {"name": "new", "num_partitions": 2, "replication_factor": 1, "assignments": (), "configs": ()}
        for rights, told in (
            ([("CREATE", "topic:new")], (TOPIC, -1, 0)),
            ([("CREATE", "topic:new"), ("DESCRIBE_CONFIGS", "topic:new")], (0, 2, 1)),
        ):
            await only(node, rights)
            (topic,) = (
                await ask(node, ApiKey.CREATE_TOPICS, 5, topics=(new,), timeout=10_000, validate_only=True)
            ).topics
            assert topic.error_code == 0
            assert (topic.topic_config_error_code, topic.num_partitions, min(1, len(topic.configs or ()))) == told

    run_with_node(tmp_path, test, **PERMITTED)


def test_offsets_of_topics_that_may_not_be_described_are_left_out_or_refused(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        offsets = {TopicPartition(name, 0): OffsetAndMetadata(3) for name in ("t", "u")}
        await node.groups.commit_offsets(OffsetCommitRequest("g", -1, "", None, offsets))
        await only(node, [("DESCRIBE", "group:g"), ("DESCRIBE", "topic:t")])
        for version in range(2, 8):
            everything = await ask(node, ApiKey.OFFSET_FETCH, version, group_id="g", topics=None)
            assert [topic.name for topic in everything.topics] == ["t"]
        both = tuple({"name": name, "partition_indexes": (0,)} for name in ("t", "u"))
        named = await ask(node, ApiKey.OFFSET_FETCH, 5, group_id="g", topics=both)
        told = {topic.name: topic.partitions[0] for topic in named.topics}
        assert (told["t"].committed_offset, told["t"].error_code) == (3, 0)
        assert (told["u"].committed_offset, told["u"].error_code) == (-1, TOPIC)

    run_with_node(tmp_path, test, topics={"t": 1, "u": 1}, **PERMITTED)


def test_other_partitions_are_not_added_to_a_transaction_where_one_may_not_be(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        producer = (await node.transactions.init_producer_id(InitProducerIdRequest("x", 60_000))).producer
        await only(node, [("WRITE", "transactional-id:x"), ("WRITE", "topic:t")])
        answer = await ask(
            node,
            ApiKey.ADD_PARTITIONS_TO_TXN,
            3,
            v3_and_below_transactional_id="x",
            v3_and_below_producer_id=producer.producer_id,
            v3_and_below_producer_epoch=producer.producer_epoch,
            v3_and_below_topics=tuple({"name": name, "partitions": (0,)} for name in ("t", "u")),
        )
        told = {
            topic.name: topic.results_by_partition[0].partition_error_code
            for topic in answer.results_by_topic_v3_and_below
        }
        assert told == {"t": ErrorCode.OPERATION_NOT_ATTEMPTED, "u": TOPIC}

    run_with_node(tmp_path, test, topics={"t": 1, "u": 1}, **PERMITTED)


def test_S7_a_denial_takes_back_what_is_allowed(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        await only(node, [("ALL", "topic:*")])
        await allow(node, acl("READ", "topic:t-*", denies=True))
        asked = {"topics": tuple({"name": name, "partition_indexes": (0,)} for name in ("t", "t-1"))}
        told = {
            topic.name: topic.partitions[0].error_code
            for topic in (await ask(node, ApiKey.DESCRIBE_PRODUCERS, 0, **asked)).topics
        }
        assert told == {"t": 0, "t-1": TOPIC}

    run_with_node(tmp_path, test, topics={"t": 1, "t-1": 1}, **PERMITTED)


def test_S7_a_writer_of_a_shared_transaction_has_the_rights_of_its_key(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        await only(node, [("DESCRIBE", "transactional-id:job")])
        for name, code in (("__semel.shared/job/17", 0), ("__semel.shared/other/17", TRANSACTION)):
            found = await ask(node, ApiKey.FIND_COORDINATOR, 4, key_type=1, coordinator_keys=(name,))
            assert found.coordinators[0].error_code == code

    run_with_node(tmp_path, test, **PERMITTED)


def test_a_denied_request_is_told_to_the_operator(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def test(node: Node) -> None:
        await ask(node, ApiKey.LIST_GROUPS, 1)
        assert "denied" not in caplog.text
        await ask(node, ApiKey.DESCRIBE_GROUPS, 1, groups=("g",))

    with caplog.at_level("INFO", "semel.audit"):
        run_with_node(tmp_path, test, **PERMITTED)
    denied = "denied: principal='User:ANONYMOUS' host='127.0.0.1' client_id='test' operation='DESCRIBE'"
    assert f"{denied} resource='GROUP:g' request='DESCRIBE_GROUPS'" in caplog.text


def test_S7_every_change_of_acls_is_told_whatever_was_refused_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Somebody who is refused often must not hide what an operator should see."""

    async def test(node: Node) -> None:
        for number in range(60):
            await ask(node, ApiKey.DESCRIBE_GROUPS, 1, groups=(f"g-{number}",))
        wanted = [acl("READ", f"topic:t-{number}") for number in range(60)]
        await permitted_acls.create_acls(node, ALL_RIGHTS, wanted)
        await permitted_acls.delete_acls(node, ALL_RIGHTS, [AclFilter()])

    with caplog.at_level("INFO", "semel.audit"):
        run_with_node(tmp_path, test, **PERMITTED)
    lines = [record.getMessage() for record in caplog.records]
    assert sum(line.startswith("denied") for line in lines) == 50
    assert sum(line.startswith("acl.added") for line in lines) == 60
    assert sum(line.startswith("acl.removed") for line in lines) == 60


def test_S7_a_consumer_subscribes_to_topics_that_it_may_describe(tmp_path: Path) -> None:
    """The node assigns the topics of consumer groups, also to members that speak the older protocol."""

    async def test(node: Node) -> None:
        await only(node, [("READ", "group:g"), ("DESCRIBE", "topic:t")])
        said = Subscription(("t", "u", "missing"), b"data", (TopicPartition("t", 0),), 3, "rack")
        joined = await ask(
            node,
            ApiKey.JOIN_GROUP,
            3,
            group_id="g",
            session_timeout=10_000,
            rebalance_timeout=10_000,
            member_id="",
            protocol_type="consumer",
            protocols=({"name": "range", "metadata": encode_subscription(said)},),
        )
        assert joined.error_code == 0
        assert decode_subscription(joined.members[0].metadata) == dataclasses.replace(said, topics=("t",))

    run_with_node(tmp_path, test, topics={"t": 1, "u": 1}, **PERMITTED)


def test_S7_a_new_topic_is_refused_without_the_name_of_one_like_it(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        await only(node, [("CREATE", "topic:hidden_*")])
        topic = {"name": "hidden_pay", "num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": ()}
        found = await ask(node, ApiKey.CREATE_TOPICS, 7, topics=(topic,), timeout=1_000, validate_only=True)
        assert found.topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert "hidden.pay" not in found.topics[0].error_message

    run_with_node(tmp_path, test, topics={"hidden.pay": 1}, **PERMITTED)


def test_the_page_of_permissions_is_made_from_the_table() -> None:
    """Write it again with: .venv/bin/python -P -m semel.broker.acls.page > docs/reference/permissions.md"""
    from semel.broker.acls.page import permissions_page

    page = Path(__file__).parents[3] / "docs" / "reference" / "permissions.md"
    assert page.read_text() == permissions_page()
