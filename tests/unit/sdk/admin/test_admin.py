"""The administrator's client against a real node, on both faces: every call, and what refusals say."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from consumer_kit import Kit, read
from impatience import given_up

import semel
from semel.protocol.api.topics import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, MAX_TIMESTAMP, IsolationLevel
from semel.protocol.errors import ErrorCode, FatalError, RetriableError, SemelError, UsageError
from semel.protocol.ids import TopicPartition
from semel.sdk.transport.control import Control
from semel.testing import Broker


class BlockingAioAdmin:
    """`semel.aio.Admin` with the calls of `semel.Admin`."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self._runner = asyncio.Runner()
        try:
            self._admin = semel.aio.Admin(*args, **options)
        except BaseException:
            self._runner.close()
            raise

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._admin, name)

        def call(*args: Any, **options: Any) -> Any:
            result = method(*args, **options)
            return self._runner.run(result) if asyncio.iscoroutine(result) else result

        return call

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        self._runner.close()


FACES = {"sync": semel.Admin, "aio": BlockingAioAdmin}


@pytest.fixture(scope="module")
def node() -> Iterator[Broker]:
    with Broker() as node:
        yield node


@pytest.fixture
def kit(node: Broker) -> Iterator[Kit]:
    kit = Kit(node, "sync")
    yield kit
    kit.close()


@pytest.fixture(params=sorted(FACES))
def admin(node: Broker, request: pytest.FixtureRequest) -> Iterator[Any]:
    with FACES[request.param](node.bootstrap) as admin:
        yield admin


def test_topics_are_made_shown_grown_and_deleted(admin: Any, kit: Kit) -> None:
    admin.create_topic(kit.topic, partitions=2, configs={"retention.ms": "1000", "cleanup.policy": "delete"})
    topic = admin.topic(kit.topic)
    assert (topic.name, len(topic.partitions), topic.is_internal) == (kit.topic, 2, False)
    assert kit.topic in [one.name for one in admin.topics()]
    assert {one.name: one.value for one in admin.topic_configs(kit.topic, ["retention.ms"])} == {"retention.ms": "1000"}
    admin.add_partitions(kit.topic, 3, validate_only=True)
    assert len(admin.topic(kit.topic).partitions) == 2
    admin.add_partitions(kit.topic, 3)
    assert len(admin.topic(kit.topic).partitions) == 3
    admin.delete_topic(kit.topic)
    assert kit.topic not in [one.name for one in admin.topics()]


def test_validating_makes_nothing(admin: Any, kit: Kit) -> None:
    assert len(admin.create_topic(kit.topic, partitions=5, validate_only=True).partitions) == 5
    with pytest.raises(FatalError, match=f"there is no topic '{kit.topic}'"):
        admin.topic(kit.topic)


def test_an_unknown_topic_names_the_nearest_one(admin: Any, kit: Kit) -> None:
    name = f"orders-of-{kit.topic}"
    admin.create_topic(name)
    with pytest.raises(FatalError, match=f"there is no topic 'order-of-{kit.topic}'; did you mean '{name}'"):
        admin.topic(f"order-of-{kit.topic}")


@pytest.mark.parametrize(
    "ask",
    [
        lambda admin, name: admin.topic(name),
        lambda admin, name: admin.topic_configs(name),
        lambda admin, name: admin.topic_configs(name, ["retention.ms"]),
        lambda admin, name: admin.alter_topic_configs(name, changes={"retention.ms": 5000}),
        lambda admin, name: admin.add_partitions(name, 3),
    ],
)
def test_a_topic_that_is_not_there_is_told_by_the_first_answer(
    admin: Any, kit: Kit, ask: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For some calls it was waited for, all of the 30 seconds that a call may take."""
    paths: list[str] = []
    attempt = Control._attempt

    async def count(self: Control, method: Any, *more: Any) -> Any:
        paths.append(method.path)
        return await attempt(self, method, *more)

    monkeypatch.setattr(Control, "_attempt", count)
    with pytest.raises(FatalError, match=f"there is no topic '{kit.topic}'; ") as refused:
        ask(admin, kit.topic)
    assert refused.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert len(paths) <= 2, "one attempt, and a look for a name that is near"


def test_configs_are_changed_and_given_their_default_back(admin: Any, kit: Kit) -> None:
    kit.create()
    changes: Any = {"retention.ms": 5000}
    admin.alter_topic_configs(kit.topic, changes=changes)
    admin.alter_topic_configs(kit.topic, changes={"retention.ms": "1"}, validate_only=True)

    def value(name: str) -> tuple[str, str]:
        (entry,) = admin.topic_configs(kit.topic, [name])
        return entry.value, entry.source

    assert value("retention.ms") == ("5000", "DYNAMIC_TOPIC")
    admin.alter_topic_configs(kit.topic, remove=["retention.ms"])
    assert value("retention.ms")[1] != "DYNAMIC_TOPIC"
    assert len(admin.topic_configs(kit.topic)) > 10
    node_id = admin.topic(kit.topic).partitions[0].leader_id
    assert any(entry.name == "log.retention.ms" for entry in admin.node_configs(node_id))


def test_offsets_are_listed_by_time_and_records_deleted(admin: Any, kit: Kit) -> None:
    (a,) = kit.create()
    with semel.Producer(kit.node.bootstrap) as producer:
        for number in range(5):
            producer.send(kit.topic, b"x", partition=0, timestamp_ms=number * 100)
    assert admin.list_offsets({a: EARLIEST_TIMESTAMP})[a].offset == 0
    assert admin.list_offsets({a: LATEST_TIMESTAMP})[a].offset == 5
    assert admin.list_offsets({a: 150}, isolation=IsolationLevel.READ_UNCOMMITTED)[a].offset == 2
    assert admin.list_offsets({a: MAX_TIMESTAMP})[a].timestamp_ms == 400
    assert admin.list_offsets({a: 999})[a].offset == -1
    assert admin.list_offsets({}) == {}
    assert admin.delete_records({a: 3}) == {a: 3}
    assert admin.delete_records({a: -1}) == {a: 5}
    with pytest.raises(SemelError) as caught:
        admin.delete_records({a: 77})
    assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


def test_groups_are_shown_reset_and_deleted(admin: Any, kit: Kit) -> None:
    a, b = kit.create(2)
    kit.fill("x", "y", "z")
    member = kit.member()
    read(member, 3)
    member.commit({a: 1})
    description = admin.group(kit.group)
    assert description.state == "Stable"
    assert admin.group_owners(description) == dict.fromkeys((a, b), description.members[0].member_id)
    assert admin.group_lag(kit.group)[a].lag == 2
    assert kit.group in [one.group_id for one in admin.groups(states=["Stable"])]
    assert kit.group not in [one.group_id for one in admin.groups(states=["Empty"])]
    with pytest.raises(FatalError, match=f"group '{kit.group}' has members, whose next commit would undo this; stop"):
        admin.alter_group_offsets(kit.group, {a: 0})
    with pytest.raises(SemelError) as caught:
        admin.delete_group(kit.group)
    assert caught.value.code is ErrorCode.NON_EMPTY_GROUP
    member.close()
    admin.alter_group_offsets(kit.group, {a: semel.OffsetAndMetadata(0, metadata="again"), b: 0})
    assert admin.group_offsets(kit.group)[a].metadata == "again"
    admin.delete_group_offsets(kit.group, [b])
    assert set(admin.group_offsets(kit.group)) == {a}
    admin.delete_group(kit.group)
    assert admin.group_offsets(kit.group) == {}


def test_transactions_are_listed_described_and_aborted(admin: Any, kit: Kit) -> None:
    (a,) = kit.create()
    name = f"{kit.topic}-txn"
    with semel.Producer(kit.node.bootstrap, transactional_id=name) as producer:
        producer.begin_transaction()
        producer.send(kit.topic, b"x", partition=0)
        producer.flush()
        assert name in [one.transactional_id for one in admin.transactions(states=["Ongoing"])]
        assert [one.transactional_id for one in admin.transactions(pattern=f"{kit.topic}-.*")] == [name]
        assert admin.transaction(name).partitions == (a,)
        admin.abort_transaction(name)
        assert admin.transaction(name).state in ("PrepareAbort", "CompleteAbort")
        with pytest.raises(SemelError):
            producer.commit_transaction()
    with pytest.raises(SemelError) as caught:
        admin.transaction("nobody")
    assert caught.value.code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    with pytest.raises(FatalError, match="there is no transaction state Ongoin; the states are Empty"):
        admin.transactions(states=["Ongoin"])


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (lambda a, k: a.create_topic(k.topic), ErrorCode.TOPIC_ALREADY_EXISTS),
        (lambda a, k: a.create_topic("a/b"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (lambda a, k: a.create_topic("new", configs={"retention.msec": "1"}), ErrorCode.INVALID_CONFIG),
        (lambda a, k: a.create_topic("new", replication_factor=3), ErrorCode.INVALID_REPLICATION_FACTOR),
        (lambda a, k: a.add_partitions(k.topic, 1), ErrorCode.INVALID_PARTITIONS),
        (lambda a, k: a.delete_topic("nowhere"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_refusals_have_kafkas_codes(
    kit: Kit, node: Broker, call: Callable[[Any, Kit], object], code: ErrorCode
) -> None:
    kit.create(2)
    with semel.Admin(node.bootstrap) as admin:
        given_up(admin, lambda: call(admin, kit), code)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda a: a.create_topic(""), "a topic's name must not be empty"),
        (lambda a: a.create_topic("t", partitions="2"), "option partitions must be an integer"),
        (lambda a: a.create_topic("t", replication_factor=99_999), "replication_factor must be between"),
        (lambda a: a.create_topic("t", configs={"a": None}), "setting a must be text or a number"),
        (lambda a: a.delete_topic(None), "option topic must be text"),
        (lambda a: a.topic(7), "option topic must be text"),
        (lambda a: a.add_partitions("t", 0), "total_count must be between 1"),
        (lambda a: a.alter_topic_configs("t", remove="retention.ms"), "remove takes a list of names"),
        (lambda a: a.node_configs(-1), "node_id must be between 0"),
        (lambda a: a.delete_records({TopicPartition("t", 0): -2}), "offset of t-0 must be between -1"),
        (lambda a: a.group(""), "option group must not be empty"),
        (lambda a: a.alter_group_offsets("g", {TopicPartition("t", 0): "1"}), "offset of t-0 must be an integer"),
        (lambda a: a.delete_group_offsets("g", "t"), "partitions takes a list"),
        (lambda a: a.transaction(""), "transactional_id must not be empty"),
    ],
)
def test_wrong_calls_say_what_to_do(admin: Any, call: Callable[[Any], object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        call(admin)


@pytest.mark.parametrize("face", sorted(FACES))
def test_wrong_options_a_node_that_is_not_there_and_use_after_close(face: str) -> None:
    with pytest.raises(UsageError, match="Admin has no option 'timeout'"):
        FACES[face](timeout=5)
    with FACES[face]("127.0.0.1:1", api_timeout_ms=100) as admin:
        with pytest.raises(RetriableError, match="nothing listens on 127.0.0.1:1: connection refused"):  # noqa: RUF043
            admin.topics()
        admin.close()
        with pytest.raises(UsageError, match="this Admin is closed; make a new one"):
            admin.topics()
