"""Groups and their offsets on the Kafka listener, in every version of their APIs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kafka_calls import call, request_body
from running_node import create_topic, running_node

from semel.broker.node import Node
from semel.protocol.api.group_offsets import OffsetAndMetadata
from semel.protocol.api.groups import OffsetCommitRequest
from semel.protocol.api.producer_ids import InitProducerIdRequest
from semel.protocol.consumer_protocol import Assignment, Subscription, encode_assignment, encode_subscription
from semel.protocol.errors import ErrorCode
from semel.protocol.ids import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, TopicPartition, new_topic_id
from semel.protocol.kafka.api import ApiKey, build_request_header

GROUP = "enrich"
NONE = ErrorCode.NONE
SUBSCRIPTION = encode_subscription(Subscription(("t",)))
NAMED = range(2, 10)
"""The versions of OffsetCommit that name topics."""


def with_node(folder: Path, test: Callable[[Node], Awaitable[None]], **settings: Any) -> None:
    async def main() -> None:
        async with running_node(folder, group_min_session_timeout_ms=50, **settings) as node, asyncio.timeout(60):
            await test(node)

    asyncio.run(main())


async def ask(node: Node, key: ApiKey, version: int, /, **values: Any) -> Any:
    return await call(node.kafka_address.port, key, version, **values)


# --- FindCoordinator --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(7))
def test_the_coordinator_of_groups_is_found_and_its_topic_made(tmp_path: Path, version: int) -> None:
    async def test(node: Node) -> None:
        assert node.metadata.topic(OFFSETS_TOPIC) is None
        response = await ask(node, ApiKey.FIND_COORDINATOR, version, key=GROUP, key_type=0, coordinator_keys=(GROUP,))
        found = response.coordinators[0] if version >= 4 else response
        assert (int(found.error_code), found.node_id, found.host) == (NONE, 1, "127.0.0.1")
        assert found.port == node.kafka_address.port
        assert node.metadata.topic(OFFSETS_TOPIC) is not None

    with_node(tmp_path, test)


def test_many_coordinators_of_transactions_are_found_at_once(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        keys = ("a", "b", "a")
        response = await ask(node, ApiKey.FIND_COORDINATOR, 4, key_type=1, coordinator_keys=keys)
        assert [(each.key, int(each.error_code), each.node_id) for each in response.coordinators] == [
            (key, NONE, 1) for key in keys
        ]
        assert node.metadata.topic(TRANSACTIONS_TOPIC) is not None
        assert node.metadata.topic(OFFSETS_TOPIC) is None

    with_node(tmp_path, test)


@pytest.mark.parametrize("key_type", [2, 3, -1])
def test_keys_of_share_groups_and_of_unknown_kinds_are_refused(tmp_path: Path, key_type: int) -> None:
    async def test(node: Node) -> None:
        response = await ask(node, ApiKey.FIND_COORDINATOR, 6, key_type=key_type, coordinator_keys=("g:t:0",))
        (refused,) = response.coordinators
        assert (refused.key, int(refused.error_code), refused.node_id) == ("g:t:0", ErrorCode.INVALID_REQUEST, -1)
        assert "key type" in refused.error_message
        single = await ask(node, ApiKey.FIND_COORDINATOR, 2, key_type=key_type, key="g")
        assert int(single.error_code) == ErrorCode.INVALID_REQUEST

    with_node(tmp_path, test)


# --- Membership -------------------------------------------------------------------------------------------------------


@dataclass
class Member:
    """A member that speaks version `version` of JoinGroup, and the others' versions of the same age."""

    node: Node
    version: int = 9
    instance: str | None = None
    group: str = GROUP
    member_id: str = ""
    generation: int = -1

    async def join_once(self, **values: Any) -> Any:
        return await ask(
            self.node,
            ApiKey.JOIN_GROUP,
            self.version,
            **{
                "group_id": self.group,
                "session_timeout": 30_000,
                "rebalance_timeout": 30_000,
                "member_id": self.member_id,
                "group_instance_id": self.instance,
                "protocol_type": "consumer",
                "protocols": [{"name": "range", "metadata": SUBSCRIPTION}],
                **values,
            },
        )

    async def join(self, **values: Any) -> Any:
        response = await self.join_once(**values)
        if int(response.error_code) == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = response.member_id
            response = await self.join_once(**values)
        assert int(response.error_code) == NONE, response
        self.member_id, self.generation = response.member_id, response.generation_id
        return response

    async def sync(self, assignments: Mapping[str, bytes] | None = None, **values: Any) -> Any:
        given = [{"member_id": key, "assignment": value} for key, value in (assignments or {}).items()]
        return await ask(
            self.node,
            ApiKey.SYNC_GROUP,
            min(self.version, 5),
            **{
                **self._identity(),
                "protocol_type": "consumer",
                "protocol_name": "range",
                "assignments": given,
                **values,
            },
        )

    async def heartbeat(self) -> int:
        response = await ask(self.node, ApiKey.HEARTBEAT, min(self.version, 4), **self._identity())
        return int(response.error_code)

    async def commit(self, offsets: Mapping[int, int], version: int = 9, **values: Any) -> list[int]:
        return await commit(
            self.node,
            offsets,
            version,
            **{
                "group": self.group,
                "member_id": self.member_id,
                "generation": self.generation,
                "group_instance_id": self.instance,
                **values,
            },
        )

    def _identity(self) -> dict[str, Any]:
        return {
            "group_id": self.group,
            "generation_id": self.generation,
            "member_id": self.member_id,
            "group_instance_id": self.instance,
        }


async def commit(
    node: Node,
    offsets: Mapping[int, int],
    version: int = 9,
    *,
    group: str = GROUP,
    topic: str = "t",
    member_id: str = "",
    generation: int = -1,
    **values: Any,
) -> list[int]:
    image = node.metadata.topic(topic)
    response = await ask(
        node,
        ApiKey.OFFSET_COMMIT,
        version,
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        group_instance_id=values.pop("group_instance_id", None),
        retention_time=values.pop("retention_time", -1),
        topics=[
            {
                "name": topic,
                "topic_id": image.topic_id.bytes if image is not None else new_topic_id().bytes,
                "partitions": [
                    {
                        "partition_index": number,
                        "committed_offset": offset,
                        "committed_leader_epoch": -1,
                        "committed_metadata": values.get("metadata", "note"),
                    }
                    for number, offset in offsets.items()
                ],
            }
        ],
    )
    (answered,) = response.topics
    assert [each.partition_index for each in answered.partitions] == list(offsets)
    return [int(each.error_code) for each in answered.partitions]


async def fetch(node: Node, version: int, partitions: Sequence[int] | None, **values: Any) -> Any:
    """Return the answer for one group: kio's group, or the whole response of older versions."""
    image = node.metadata.topic("t")
    topics = None
    if partitions is not None:
        topic_id = b"" if image is None else image.topic_id.bytes
        topics = [{"name": "t", "topic_id": topic_id, "partition_indexes": list(partitions)}]
    group = {"group_id": GROUP, "topics": topics, **values}
    response = await ask(
        node,
        ApiKey.OFFSET_FETCH,
        version,
        **group if version < 8 else {"groups": [group]},
        **{} if "require_stable" in values else {"require_stable": True},
    )
    return response.groups[0] if version >= 8 else response


def offsets_of(answer: Any) -> dict[int, tuple[int, int]]:
    """Return offset and error by partition, of the only topic or of none."""
    return {
        each.partition_index: (each.committed_offset, int(each.error_code))
        for topic in answer.topics
        for each in topic.partitions
    }


@pytest.mark.parametrize("version", range(10))
def test_two_members_join_sync_beat_and_leave_in_every_version(tmp_path: Path, version: int) -> None:
    async def test(node: Node) -> None:
        first, second = Member(node, version), Member(node, version)
        alone = await first.join()
        assert (alone.leader, alone.protocol_name, len(alone.members)) == (first.member_id, "range", 1)
        assert first.member_id.startswith("test-")
        assert alone.members[0].metadata == SUBSCRIPTION
        assert (await first.sync({first.member_id: b"all"})).assignment == b"all"
        joining = asyncio.create_task(second.join())
        while await first.heartbeat() != ErrorCode.REBALANCE_IN_PROGRESS:
            continue
        again = await first.join()
        joined = await joining
        assert again.generation_id == joined.generation_id == 2
        assert joined.leader == first.member_id
        assert joined.members == ()
        assert {member.member_id for member in again.members} == {first.member_id, second.member_id}
        waiting = asyncio.create_task(second.sync())
        assert (await first.sync({first.member_id: b"1", second.member_id: b"2"})).assignment == b"1"
        synced = await waiting
        assert synced.assignment == b"2"
        if version >= 5:
            assert (synced.protocol_type, synced.protocol_name) == ("consumer", "range")
        assert await second.heartbeat() == NONE
        leaving = {"member_id": second.member_id, "members": [{"member_id": second.member_id, "reason": "tired"}]}
        left = await ask(node, ApiKey.LEAVE_GROUP, min(version, 5), group_id=GROUP, **leaving)
        assert int(left.error_code) == NONE
        if version >= 3:
            assert [(each.member_id, int(each.error_code)) for each in left.members] == [(second.member_id, NONE)]
        assert await second.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID
        assert await first.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS

    with_node(tmp_path, test)


@pytest.mark.parametrize("version", range(10))
def test_only_newer_members_are_sent_away_with_an_id_first(tmp_path: Path, version: int) -> None:
    async def test(node: Node) -> None:
        response = await Member(node, version).join_once()
        expected = ErrorCode.MEMBER_ID_REQUIRED if version >= 4 else NONE
        assert int(response.error_code) == expected
        assert response.member_id.startswith("test-")
        assert response.generation_id == (-1 if version >= 4 else 1)

    with_node(tmp_path, test)


@pytest.mark.parametrize("version", [5, 8, 9])
def test_G4_a_static_leader_comes_back_and_its_old_self_is_fenced(tmp_path: Path, version: int) -> None:
    async def test(node: Node) -> None:
        old = Member(node, version, instance="i-1")
        await old.join()
        assert (await old.sync({old.member_id: b"mine"})).assignment == b"mine"
        new = Member(node, version, instance="i-1")
        back = await new.join()
        assert back.generation_id == old.generation
        assert new.member_id.startswith("i-1-")
        if version >= 9:
            assert back.skip_assignment
            assert [member.group_instance_id for member in back.members] == ["i-1"]
        assert (back.leader == new.member_id) is (version >= 9)
        assert (await new.sync()).assignment == b"mine"
        assert await old.heartbeat() == ErrorCode.FENCED_INSTANCE_ID
        assert int((await old.sync()).error_code) == ErrorCode.FENCED_INSTANCE_ID
        await create_topic(node, "t")
        assert await old.commit({0: 1}) == [ErrorCode.FENCED_INSTANCE_ID]
        assert await new.commit({0: 1}) == [NONE]
        assert await new.heartbeat() == NONE

    with_node(tmp_path, test)


def test_static_members_leave_by_instance_and_each_has_its_answer(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        first = Member(node, instance="i-1")
        await first.join()
        members = [
            {"member_id": "", "group_instance_id": "i-1", "reason": "moved"},
            {"member_id": "", "group_instance_id": "i-2", "reason": None},
            {"member_id": "who", "group_instance_id": None},
        ]
        left = await ask(node, ApiKey.LEAVE_GROUP, 5, group_id=GROUP, members=members)
        assert int(left.error_code) == NONE
        assert [(each.group_instance_id, int(each.error_code)) for each in left.members] == [
            ("i-1", NONE),
            ("i-2", ErrorCode.UNKNOWN_MEMBER_ID),
            (None, ErrorCode.UNKNOWN_MEMBER_ID),
        ]

    with_node(tmp_path, test)


def test_a_waiting_join_holds_up_its_own_connection_alone_and_may_be_cut_off(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        first = Member(node)
        await first.join()
        await first.sync({first.member_id: b"1"})
        reader, writer = await asyncio.open_connection("127.0.0.1", node.kafka_address.port)
        values: dict[str, Any] = {
            "group_id": GROUP,
            "session_timeout": 30_000,
            "rebalance_timeout": 30_000,
            "member_id": "",
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": SUBSCRIPTION}],
        }
        frame = build_request_header(ApiKey.JOIN_GROUP, 3, 7, "test") + request_body(ApiKey.JOIN_GROUP, 3, **values)
        writer.write(len(frame).to_bytes(4, "big") + frame)
        while await first.heartbeat() != ErrorCode.REBALANCE_IN_PROGRESS:
            continue
        assert not reader._buffer  # type: ignore[attr-defined]
        writer.transport.abort()
        again = await first.join()
        assert len(again.members) == 2
        assert (await first.sync({first.member_id: b"1"})).assignment == b"1"
        assert await first.heartbeat() == NONE

    with_node(tmp_path, test)


def test_what_is_no_member_or_no_group_is_refused(tmp_path: Path) -> None:
    async def code(joining: Awaitable[Any]) -> int:
        return int((await joining).error_code)

    async def test(node: Node) -> None:
        for group in ("", "g" * 2_000):
            assert await code(Member(node, group=group).join_once()) == ErrorCode.INVALID_GROUP_ID
            assert await code(Member(node, group=group).sync()) == ErrorCode.INVALID_GROUP_ID
            assert await Member(node, group=group).heartbeat() == ErrorCode.INVALID_GROUP_ID
            left = ask(node, ApiKey.LEAVE_GROUP, 3, group_id=group, members=[{"member_id": "m"}])
            assert await code(left) == ErrorCode.INVALID_GROUP_ID
        member = Member(node)
        for timeout_ms in (-1, 0, 49, 1_800_001):
            refused = member.join_once(session_timeout=timeout_ms)
            assert await code(refused) == ErrorCode.INVALID_SESSION_TIMEOUT
        for values in ({"protocols": []}, {"protocol_type": ""}):
            assert await code(member.join_once(**values)) == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        unknown = await Member(node, member_id="who").join_once()
        assert (int(unknown.error_code), unknown.member_id) == (ErrorCode.UNKNOWN_MEMBER_ID, "who")
        await member.join()
        other = Member(node).join_once(protocols=[{"name": "roundrobin", "metadata": b""}])
        assert await code(other) == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        assert await code(member.sync(generation_id=9)) == ErrorCode.ILLEGAL_GENERATION
        for values in ({"protocol_name": "roundrobin"}, {"protocol_name": None}, {"protocol_type": None}):
            assert await code(member.sync(**values)) == ErrorCode.INCONSISTENT_GROUP_PROTOCOL

    with_node(tmp_path, test)


# --- Offsets ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(2, 11))
def test_offsets_are_committed_in_every_version_and_fetched_in_every_version(tmp_path: Path, version: int) -> None:
    async def test(node: Node) -> None:
        await create_topic(node, "t", 3)
        assert await commit(node, {0: 5, 7: 1, 2: -3}, version) == [
            NONE,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.OFFSET_OUT_OF_RANGE,
        ]
        assert await commit(node, {1: 0}, version, metadata=None) == [NONE]
        for fetched_version in range(1, 11):
            answer = await fetch(node, fetched_version, [0, 1, 2, 9])
            assert offsets_of(answer) == {0: (5, 0), 1: (0, 0), 2: (-1, 0), 9: (-1, 0)}
            assert [each.metadata for each in answer.topics[0].partitions] == ["note", "", "", ""]
            if fetched_version >= 2:
                assert int(answer.error_code) == NONE
                assert offsets_of(await fetch(node, fetched_version, None)) == {0: (5, 0), 1: (0, 0)}

    with_node(tmp_path, test)


def test_offsets_of_a_topic_that_is_not_there_are_refused(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        for version in NAMED:
            assert await commit(node, {0: 1}, version, topic="no") == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert await commit(node, {0: 1}, 10, topic="no") == [ErrorCode.UNKNOWN_TOPIC_ID]
        topics = [{"topic_id": new_topic_id().bytes, "partition_indexes": [0]}]
        response = await ask(node, ApiKey.OFFSET_FETCH, 10, groups=[{"group_id": GROUP, "topics": topics}])
        assert offsets_of(response.groups[0]) == {0: (-1, ErrorCode.UNKNOWN_TOPIC_ID)}

    with_node(tmp_path, test)


def test_offsets_of_many_groups_are_fetched_at_once(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        await create_topic(node, "t")
        await commit(node, {0: 5})
        await commit(node, {0: 6}, group="other")
        topics = [{"name": "t", "partition_indexes": [0]}]
        names = [GROUP, "other", "new", "g" * 2_000]
        groups = [{"group_id": name, "topics": topics, "member_id": None, "member_epoch": -1} for name in names]
        for version in (8, 9):
            response = await ask(node, ApiKey.OFFSET_FETCH, version, groups=groups, require_stable=True)
            assert [group.group_id for group in response.groups] == names
            assert [offsets_of(group) for group in response.groups] == [{0: (5, 0)}, {0: (6, 0)}, {0: (-1, 0)}, {}]
            assert [int(group.error_code) for group in response.groups] == [0, 0, 0, ErrorCode.INVALID_GROUP_ID]

    with_node(tmp_path, test)


def test_a_group_that_is_named_over_and_over_is_answered_once(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        await create_topic(node, "t")
        await commit(node, {0: 5})
        groups = [{"group_id": name, "topics": None} for name in (GROUP, "b", GROUP, GROUP)]
        response = await ask(node, ApiKey.OFFSET_FETCH, 8, groups=groups)
        assert [(group.group_id, offsets_of(group)) for group in response.groups] == [(GROUP, {0: (5, 0)}), ("b", {})]
        described = await ask(node, ApiKey.DESCRIBE_GROUPS, 5, groups=(GROUP, "b", GROUP))
        assert [group.group_id for group in described.groups] == [GROUP, "b"]
        deleted = await ask(node, ApiKey.DELETE_GROUPS, 2, groups_names=(GROUP, GROUP))
        assert [(each.group_id, int(each.error_code)) for each in deleted.results] == [(GROUP, NONE)]

    with_node(tmp_path, test)


def test_a_refused_group_is_told_as_each_version_can(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        for version in range(1, 8):
            answer = await fetch(node, version, [0, 1], group_id="g" * 2_000)
            refused = {0: (-1, ErrorCode.INVALID_GROUP_ID), 1: (-1, ErrorCode.INVALID_GROUP_ID)}
            assert offsets_of(answer) == ({} if version >= 2 else refused)
            assert version < 2 or int(answer.error_code) == ErrorCode.INVALID_GROUP_ID

    with_node(tmp_path, test)


@pytest.mark.parametrize("version", range(2, 11))
def test_O4_only_members_of_this_generation_commit_to_a_group_that_has_members(tmp_path: Path, version: int) -> None:
    async def test(node: Node) -> None:
        await create_topic(node, "t")
        assert await commit(node, {0: 1}, version) == [NONE]
        assert await commit(node, {0: 1}, version, generation=1, member_id="who", group="new") == [
            ErrorCode.ILLEGAL_GENERATION
        ]
        member = Member(node)
        await member.join()
        assert await member.commit({0: 2}, version) == [ErrorCode.REBALANCE_IN_PROGRESS]
        await member.sync({member.member_id: b"1"})
        assert await commit(node, {0: 3}, version) == [ErrorCode.UNKNOWN_MEMBER_ID]
        assert await member.commit({0: 3}, version, generation=7) == [ErrorCode.ILLEGAL_GENERATION]
        assert await member.commit({0: 3}, version, member_id="who") == [ErrorCode.UNKNOWN_MEMBER_ID]
        assert await member.commit({0: 4}, version) == [NONE]
        assert offsets_of(await fetch(node, 7, [0])) == {0: (4, 0)}

    with_node(tmp_path, test)


def test_metadata_and_commits_that_are_too_large_are_refused(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        await create_topic(node, "t", 300)
        assert await commit(node, {0: 1}, metadata="m" * 4_097) == [ErrorCode.OFFSET_METADATA_TOO_LARGE]
        assert await commit(node, {0: 1}, metadata="m" * 4_096) == [NONE]
        many = await commit(node, dict.fromkeys(range(300), 1), metadata="m" * 4_096)
        assert set(many) == {ErrorCode.INVALID_COMMIT_OFFSET_SIZE}

    with_node(tmp_path, test)


@pytest.mark.parametrize("version", [2, 3, 4])
def test_a_retention_in_old_commits_ends_their_offsets_alone(tmp_path: Path, version: int) -> None:
    async def test(node: Node) -> None:
        await create_topic(node, "t", 3)
        assert await commit(node, {0: 1}, version, retention_time=1) == [NONE]
        assert await commit(node, {1: 2}, version, retention_time=86_400_000) == [NONE]
        assert await commit(node, {2: 3}, version) == [NONE]
        while offsets_of(await fetch(node, 7, [0])) != {0: (-1, NONE)}:
            continue
        assert offsets_of(await fetch(node, 7, None)) == {1: (2, 0), 2: (3, 0)}

    with_node(tmp_path, test, offsets_retention_check_interval_ms=20)


def test_O2_pending_offsets_are_unstable_for_those_who_ask(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        await create_topic(node, "t")
        await commit(node, {0: 1})
        await node.transactions.topic_ready()
        begun = await node.transactions.init_producer_id(InitProducerIdRequest("p", 60_000))
        offsets = {TopicPartition("t", 0): OffsetAndMetadata(9)}
        pending = OffsetCommitRequest(GROUP, -1, "", None, offsets, "p", begun.producer)
        await node.groups.commit_offsets(pending)
        for version in range(1, 11):
            unstable = (-1, int(ErrorCode.UNSTABLE_OFFSET_COMMIT))
            assert offsets_of(await fetch(node, version, [0])) == {0: unstable if version >= 7 else (1, 0)}
        assert offsets_of(await fetch(node, 7, [0], require_stable=False)) == {0: (1, 0)}

    with_node(tmp_path, test)


def test_offsets_are_deleted_but_of_topics_that_are_subscribed_to(tmp_path: Path) -> None:
    async def delete(node: Node, *topics: str, group: str = GROUP) -> Any:
        asked = [{"name": topic, "partitions": [{"partition_index": 0}]} for topic in topics]
        return await ask(node, ApiKey.OFFSET_DELETE, 0, group_id=group, topics=asked)

    async def test(node: Node) -> None:
        await create_topic(node, "t")
        await create_topic(node, "u")
        assert int((await delete(node, "t")).error_code) == ErrorCode.GROUP_ID_NOT_FOUND
        await commit(node, {0: 1})
        await commit(node, {0: 2}, topic="u")
        member = Member(node)
        await member.join()
        await member.sync({member.member_id: encode_assignment(Assignment(()))})
        response = await delete(node, "t", "u", "no")
        assert int(response.error_code) == NONE
        assert [(topic.name, int(topic.partitions[0].error_code)) for topic in response.topics] == [
            ("t", ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC),
            ("u", NONE),
            ("no", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ]
        assert [topic.name for topic in (await fetch(node, 7, None)).topics] == ["t"]

    with_node(tmp_path, test)


# --- Groups as a whole ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(7))
def test_groups_are_described_in_every_version(tmp_path: Path, version: int) -> None:
    async def test(node: Node) -> None:
        member = Member(node, instance="i-1")
        await member.join()
        await member.sync({member.member_id: b"1"})
        response = await ask(
            node, ApiKey.DESCRIBE_GROUPS, version, groups=(GROUP, "no", "g" * 2_000), include_authorized_operations=True
        )
        found, missing, wrong = response.groups
        assert (int(found.error_code), found.group_state, found.protocol_type) == (NONE, "Stable", "consumer")
        assert found.protocol_data == "range"
        (described,) = found.members
        assert (described.member_id, described.client_id) == (member.member_id, "test")
        assert (described.client_host, described.member_assignment) == ("/127.0.0.1", b"1")
        assert described.member_metadata == SUBSCRIPTION
        if version >= 3:
            assert found.authorized_operations == 0b1101_0100_1000
        if version >= 4:
            assert described.group_instance_id == "i-1"
        assert (missing.group_id, missing.group_state, missing.members) == ("no", "Dead", ())
        assert int(missing.error_code) == (ErrorCode.GROUP_ID_NOT_FOUND if version >= 6 else NONE)
        assert int(wrong.error_code) == ErrorCode.INVALID_GROUP_ID
        if version >= 6:
            assert "no" in missing.error_message
            plain = await ask(node, ApiKey.DESCRIBE_GROUPS, 6, groups=(GROUP,), include_authorized_operations=False)
            assert plain.groups[0].authorized_operations == -(2**31)

    with_node(tmp_path, test)


@pytest.mark.parametrize("version", range(6))
def test_groups_are_listed_by_state_and_type(tmp_path: Path, version: int) -> None:
    async def listed(node: Node, **values: Any) -> list[str]:
        response = await ask(node, ApiKey.LIST_GROUPS, version, **values)
        assert int(response.error_code) == NONE
        if version >= 4:
            assert all(group.group_state for group in response.groups)
        if version >= 5:
            assert {group.group_type for group in response.groups} <= {"classic"}
        return [group.group_id for group in response.groups]

    async def test(node: Node) -> None:
        assert await listed(node) == []
        assert node.metadata.topic(OFFSETS_TOPIC) is None
        await create_topic(node, "t")
        await commit(node, {0: 1}, group="simple")
        member = Member(node)
        await member.join()
        await member.sync()
        assert await listed(node) == [GROUP, "simple"]
        if version >= 4:
            assert await listed(node, states_filter=("stable",)) == [GROUP]
            assert await listed(node, states_filter=("Empty", "Stable")) == [GROUP, "simple"]
            assert await listed(node, states_filter=("Dead",)) == []
        if version >= 5:
            assert await listed(node, types_filter=("Classic",)) == [GROUP, "simple"]
            assert await listed(node, types_filter=("share",)) == []

    with_node(tmp_path, test)


@pytest.mark.parametrize("version", range(3))
def test_only_empty_groups_are_deleted(tmp_path: Path, version: int) -> None:
    async def test(node: Node) -> None:
        await create_topic(node, "t")
        await commit(node, {0: 1}, group="simple")
        await Member(node).join()
        response = await ask(node, ApiKey.DELETE_GROUPS, version, groups_names=("simple", GROUP, "no"))
        assert [(each.group_id, int(each.error_code)) for each in response.results] == [
            ("simple", NONE),
            (GROUP, ErrorCode.NON_EMPTY_GROUP),
            ("no", ErrorCode.GROUP_ID_NOT_FOUND),
        ]
        listed = await ask(node, ApiKey.LIST_GROUPS, 0)
        assert [group.group_id for group in listed.groups] == [GROUP]

    with_node(tmp_path, test)
