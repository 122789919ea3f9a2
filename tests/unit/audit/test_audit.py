"""The audit log: who did what from where, as lines, as JSON, and over OTLP."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Iterator
from contextlib import suppress
from contextvars import copy_context
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from otlp_receiver import OtlpReceiver
from running_node import run_with_node

from semel.broker.acls.rights import ALL_RIGHTS, ANYBODY
from semel.broker.audit.log import LOGGER, Audit, Event
from semel.broker.node import Node
from semel.broker.node_log import JsonFormatter, TextFormatter, configure_logging
from semel.broker.permitted import configs, groups, topics
from semel.broker.permitted.metadata import topics_by_name
from semel.protocol.api.clients import ClientOrigin
from semel.protocol.api.group_offsets import OffsetAndMetadata
from semel.protocol.api.groups import (
    GroupProtocol,
    JoinGroupRequest,
    LeaveGroupRequest,
    MemberIdentity,
    OffsetCommitRequest,
    SyncGroupRequest,
)
from semel.protocol.api.metadata import AlterConfigsRequest, ResourceType
from semel.protocol.api.topics import NewTopic
from semel.protocol.errors import ErrorCode, SemelError
from semel.protocol.ids import TopicPartition
from semel.runtime.caller import set_caller
from semel.runtime.flood_guard import LINES_MAX as LINES_MAX_OF_GUARD
from semel.runtime.limited_log import LINES_MAX
from semel.runtime.setting import ConfigError
from semel.runtime.turns import set_is_gone

SECURITY = Path(__file__).parents[3] / "docs" / "security.md"


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.INFO, LOGGER):
        yield caplog


def of_audit(told: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in told.records if record.name == LOGGER]


async def change_things(node: Node) -> None:
    set_caller(ClientOrigin.of("tool", "10.0.0.7"))
    await topics.create_topics(node, ANYBODY, [NewTopic("orders", 2), NewTopic("no/name", 1)])
    await topics.create_topics(node, ANYBODY, [NewTopic("tried", 2)], validate_only=True)
    await topics.create_partitions(node, ANYBODY, "orders", 3)
    change = AlterConfigsRequest(ResourceType.TOPIC, "orders", {"retention.ms": "5"}, ("segment.bytes",))
    await configs.alter_configs(node, ANYBODY, change)
    await topics.delete(node, ANYBODY, {TopicPartition("orders", 0): 0, TopicPartition("missing", 0): 0})
    await topics.delete_topics(node, ANYBODY, ["orders", "missing"])


CHANGES = [
    "topic.created: {} topic='orders' partitions=2",
    "partitions.added: {} topic='orders' partitions=3",
    "settings.changed: {} resource='TOPIC:orders' settings='retention.ms=5, segment.bytes' others='kept'",
    "records.deleted: {} topic='orders' partitions=1",
    "topic.deleted: {} topic='orders'",
]


def test_each_change_is_told_with_who_made_it_and_what_failed_is_not(
    tmp_path: Path, told: pytest.LogCaptureFixture
) -> None:
    run_with_node(tmp_path, change_things)
    caller = "principal='somebody (there is no authorizer)' host='10.0.0.7' client_id='tool'"
    assert of_audit(told) == [change.format(caller) for change in CHANGES]


def test_a_line_of_json_has_the_fields_as_attributes(tmp_path: Path, told: pytest.LogCaptureFixture) -> None:
    run_with_node(tmp_path, change_things)
    first = next(record for record in told.records if record.name == LOGGER)
    line = json.loads(JsonFormatter().format(first))
    assert line["attributes"] == {
        "event.name": "topic.created",
        "semel.node.id": 1,
        "semel.principal": "somebody (there is no authorizer)",
        "semel.host": "10.0.0.7",
        "semel.client_id": "tool",
        "semel.topic": "orders",
        "semel.partitions": 2,
    }
    assert "attributes" not in json.loads(JsonFormatter().format(logging.makeLogRecord({"msg": "x"})))


def test_S5_what_a_client_calls_itself_begins_no_line_and_is_cut(told: pytest.LogCaptureFixture) -> None:
    def test() -> None:
        set_caller(ClientOrigin.of("\n2026 semel.audit denied: \x1b[31m", "10.0.0.7"))
        Audit(1).changed(ALL_RIGHTS.who, Event.TOPIC_DELETED, topic="x" * 50_000)

    copy_context().run(test)
    (record,) = told.records
    line = TextFormatter().format(record)
    assert "\n" not in line
    assert "\x1b" not in line
    assert len(line) < 4_500
    assert "(46000 characters left out)" in line


def test_S7_no_change_is_left_out_whatever_was_refused_and_allowed_before(
    tmp_path: Path, told: pytest.LogCaptureFixture
) -> None:
    async def test(node: Node) -> None:
        for number in range(LINES_MAX + 10):
            node.audit.denied(principal="User:mallory", resource=f"TOPIC:{number}")
            node.audit.allowed(principal="User:alice", resource=f"TOPIC:{number}")
        for number in range(LINES_MAX + 10):
            node.audit.changed(ALL_RIGHTS.who, Event.GROUP_DELETED, group=f"g-{number}")

    run_with_node(tmp_path, test)
    lines = of_audit(told)
    assert sum(line.startswith("denied: ") for line in lines) == LINES_MAX
    assert sum(line.startswith("allowed: ") for line in lines) == LINES_MAX
    assert sum(line.startswith("group.deleted: ") for line in lines) == LINES_MAX + 10
    assert sum(line.startswith("left out: lines=10 ") for line in lines) == 2


def test_a_collector_gets_the_lines_of_its_node_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: pytest.LogCaptureFixture
) -> None:
    async def test(node: Node) -> None:
        Audit(2).changed(ALL_RIGHTS.who, Event.TOPIC_DELETED, topic="of another node in this process")
        logging.getLogger("semel.node").warning("for the operator alone")
        await change_things(node)

    with OtlpReceiver() as receiver:
        for name, value in receiver.environment(OTEL_TRACES_EXPORTER="none", OTEL_METRICS_EXPORTER="none").items():
            monkeypatch.setenv(name, value)
        run_with_node(tmp_path, test)
        receiver.wait_until(lambda: len(receiver.lines()) >= len(CHANGES), "lines")
        assert [line.event for line in receiver.lines()] == [change.partition(":")[0] for change in CHANGES]
        first = receiver.lines()[0]
    assert first.body == next(line for line in of_audit(told) if line.startswith("topic.created"))
    assert (first.severity, first.scope) == ("INFO", LOGGER)
    assert first.attributes["semel.topic"] == "orders"
    assert first.attributes["semel.partitions"] == 2
    assert first.attributes["semel.host"] == "10.0.0.7"
    assert first.resource["semel.node.id"] == "1"


def test_a_collector_that_is_away_holds_up_neither_work_nor_the_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: pytest.LogCaptureFixture
) -> None:
    with OtlpReceiver() as receiver:
        receiver.answer = 503
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")  # for so long a thread tries, when the test is over, too
        for name, value in receiver.environment(OTEL_TRACES_EXPORTER="none", OTEL_METRICS_EXPORTER="none").items():
            monkeypatch.setenv(name, value)
        run_with_node(tmp_path, change_things)
        assert receiver.lines() == []
    assert len(of_audit(told)) == len(CHANGES)


def test_an_exporter_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_LOGS_EXPORTER", "carrier_pigeon")
    with pytest.raises(ConfigError, match="the audit log: there is no exporter 'carrier_pigeon'"):
        run_with_node(tmp_path, change_things)


def test_the_documentation_has_each_event() -> None:
    """And no other one."""
    table = SECURITY.read_text(encoding="utf-8").partition("## Audit log")[2].partition("\n- ")[0]
    documented = [
        name for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for name in re.findall(r"`(.*?)`", row)
    ]
    assert sorted(documented) == sorted(event.value for event in Event)


def test_S7_a_change_is_told_where_its_caller_is_cancelled_or_gone(
    tmp_path: Path, told: pytest.LogCaptureFixture
) -> None:
    """Nobody hides what he does by hanging up as soon as it is sent."""

    async def test(node: Node) -> None:
        for number in range(20):
            task = asyncio.ensure_future(topics.create_topics(node, ANYBODY, [NewTopic(f"t-{number}", 1)]))
            for _ in range(number):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await topics.create_topics(node, ANYBODY, [NewTopic("last", 1)])
        names = set(node.metadata.image.topics)
        assert len(names) > 1, "some were begun before they were cancelled"
        many = {TopicPartition("last", 0): 0}
        set_is_gone(lambda: True)
        await topics.delete(node, ANYBODY, many)
        made = {line.partition("topic='")[2].partition("'")[0] for line in of_audit(told) if "created" in line}
        assert made == names

    run_with_node(tmp_path, test)
    assert "records.deleted" in of_audit(told)[-1]


def outside(group: str, offset: int = 7, **more: Any) -> OffsetCommitRequest:
    given = {"generation_id": -1, "member_id": "", "group_instance_id": None, **more}
    return OffsetCommitRequest(
        group,
        offsets={TopicPartition("orders", number): OffsetAndMetadata(offset + number) for number in (0, 1)},
        **given,
    )


def of_offsets(told: pytest.LogCaptureFixture) -> list[str]:
    return [line for line in of_audit(told) if line.startswith("offsets.")]


def test_S7_offsets_that_are_set_from_outside_a_group_are_told(tmp_path: Path, told: pytest.LogCaptureFixture) -> None:
    async def test(node: Node) -> None:
        await topics.create_topics(node, ANYBODY, [NewTopic("orders", 2)])
        member = await joined(node, "g")
        done = await groups.commit_offsets(node, ANYBODY, outside("g", generation_id=1, member_id=member))
        assert set(done.errors.values()) == {ErrorCode.NONE}
        assert of_offsets(told) == [], "of its own member"
        with suppress(SemelError):
            await groups.commit_offsets(node, ANYBODY, outside("g"))
        assert of_offsets(told) == [], "it is refused: the group has a member"
        for group in ("g", "h"):
            member = await joined(node, group) if group == "h" else member
            await groups.leave(node, ANYBODY, LeaveGroupRequest(group, (MemberIdentity(member),)))
        for number in range(LINES_MAX + 10):
            await groups.commit_offsets(node, ANYBODY, outside("alone", number))
        for number in range(LINES_MAX + 10):
            name = "a name that does not count" if number % 2 else ""
            await groups.commit_offsets(node, ANYBODY, outside("g", number, member_id=name))
        await groups.commit_offsets(node, ANYBODY, outside("h"))

    run_with_node(tmp_path, test)
    lines = of_offsets(told)
    who = "principal='somebody (there is no authorizer)'"
    assert f"offsets.set: {who} group='g' topic='orders' partitions=2 offsets='0: 7, 1: 8'" in lines
    assert LINES_MAX <= sum("group='g'" in line for line in lines) <= LINES_MAX + 1
    assert sum("group='h'" in line for line in lines) == 1, "it is in the log, whatever programs do with other groups"
    assert sum("group='alone'" in line for line in lines) <= LINES_MAX + 1


async def joined(node: Node, group: str) -> str:
    """Return the id of the one member of a group, in its generation 1."""
    request = JoinGroupRequest(
        group_id=group,
        member_id="",
        group_instance_id=None,
        client_id="c",
        client_host="h",
        session_timeout_ms=30_000,
        rebalance_timeout_ms=30_000,
        protocol_type="consumer",
        protocols=(GroupProtocol("range", b""),),
        new_member_id="m",
        require_known_member_id=False,
    )
    member_id = (await groups.join(node, ANYBODY, request)).member_id
    await groups.sync(node, ANYBODY, SyncGroupRequest(group, 1, member_id, None, {member_id: b""}))
    return member_id


def test_topics_that_are_made_by_asking_for_them_are_told(tmp_path: Path, told: pytest.LogCaptureFixture) -> None:
    async def test(node: Node) -> None:
        for _ in range(2):
            await topics_by_name(node, ANYBODY, ["asked"], allow_auto_create=True)

    run_with_node(tmp_path, test, auto_create_topics_enable=True)
    assert [line for line in of_audit(told) if "topic='asked'" in line] == [
        "topic.created: principal='somebody (there is no authorizer)' topic='asked' partitions=1 automatically=True"
    ]


def test_S7_the_guard_against_floods_lets_the_whole_audit_log_pass() -> None:
    stream = StringIO()
    configure_logging("text", "warning", stream)
    for number in range(2 * LINES_MAX_OF_GUARD):
        Audit(1).changed("User:alice", Event.TOPIC_CREATED, topic=f"t-{number}")
    assert stream.getvalue().count("topic.created") == 2 * LINES_MAX_OF_GUARD
