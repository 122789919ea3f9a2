"""DescribeClientQuotas and AlterClientQuotas, changes of topics beyond a quota, and the same by gRPC, of a node."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import grpc
import pytest
from kafka_calls import call
from running_node import channel_to, create_topic, run_with_node

from semel.broker.handlers.client_quotas import alter_client_quotas
from semel.broker.node import Node
from semel.protocol.errors import ErrorCode
from semel.protocol.kafka.api import ApiKey
from semel.protocol.quotas import QuotaAlteration, QuotaEntity
from semel.protocol.v1 import quotas_pb2, quotas_pb2_grpc

RATE = "producer_byte_rate"
INVALID = ErrorCode.INVALID_REQUEST


async def ask(node: Node, key: ApiKey, version: int, **values: Any) -> Any:
    """Ask on a connection of its own: one that has to wait would not be read."""
    return await call(node.kafka_address.port, key, version, **values)


def entry(
    entity: dict[str, str | None] | list[tuple[str, str | None]], *ops: tuple[str, float | None]
) -> dict[str, Any]:
    parts = entity.items() if isinstance(entity, dict) else entity
    return {
        "entity": [{"entity_type": kind, "entity_name": name} for kind, name in parts],
        "ops": [{"key": key, "value": value or 0.0, "remove": value is None} for key, value in ops],
    }


async def alter(node: Node, *entries: dict[str, Any], version: int = 1, validate_only: bool = False) -> list[int]:
    told = await ask(node, ApiKey.ALTER_CLIENT_QUOTAS, version, entries=entries, validate_only=validate_only)
    assert all((each.error_message is None) == (int(each.error_code) == 0) for each in told.entries)
    return [int(each.error_code) for each in told.entries]


@pytest.mark.parametrize("version", range(2))
def test_quotas_are_set_listed_and_removed(tmp_path: Path, version: int, caplog: pytest.LogCaptureFixture) -> None:
    async def listed(node: Node) -> list[tuple[list[tuple[str, str | None]], dict[str, float]]]:
        told = await ask(node, ApiKey.DESCRIBE_CLIENT_QUOTAS, version, components=[], strict=False)
        assert int(told.error_code) == 0
        return [
            (
                [(part.entity_type, part.entity_name) for part in each.entity],
                {value.key: value.value for value in each.values},
            )
            for each in told.entries
        ]

    async def test(node: Node) -> None:
        both = entry({"user": "alice", "client-id": None}, (RATE, 1e6), ("request_percentage", 12.5))
        home = entry({"ip": "127.0.0.1"}, ("connection_creation_rate", 7))
        assert await alter(node, both, version=version, validate_only=True) == [0]
        assert await listed(node) == []
        with caplog.at_level(logging.INFO, "semel.audit"):
            assert await alter(node, both, home, version=version) == [0, 0]
        assert "quota.set: principal=" in caplog.text
        told = "of=\"user 'alice', default client-id\" quota='producer_byte_rate' value=1000000.0"
        assert told in caplog.text
        assert await listed(node) == [
            ([("user", "alice"), ("client-id", None)], {RATE: 1e6, "request_percentage": 12.5}),
            ([("ip", "127.0.0.1")], {"connection_creation_rate": 7.0}),
        ]
        gone = entry({"user": "alice", "client-id": None}, (RATE, None), ("consumer_byte_rate", None))
        with caplog.at_level(logging.INFO, "semel.audit"):
            assert await alter(node, gone, version=version) == [0]
        assert "quota.removed: principal=" in caplog.text
        assert (await listed(node))[0][1] == {"request_percentage": 12.5}

    run_with_node(tmp_path, test)


WRONG = (
    entry({}, (RATE, 1)),
    entry({"moon": "x"}, (RATE, 1)),
    entry({"user": ""}, (RATE, 1)),
    entry([("user", "a"), ("user", "b")], (RATE, 1)),
    entry({"user": "a", "ip": "127.0.0.1"}, ("connection_creation_rate", 1)),
    entry({"ip": "host.example"}, ("connection_creation_rate", 1)),
    entry({"user": "a" * 256}, (RATE, 1)),
    entry({"user": "a"}, ("speed", 1)),
    entry({"user": "a"}, ("connection_creation_rate", 1)),
    entry({"ip": "127.0.0.1"}, (RATE, 1)),
    entry({"user": "a"}, (RATE, 0)),
    entry({"user": "a"}, (RATE, -5)),
    entry({"user": "a"}, (RATE, 1.5)),
    entry({"user": "a"}, (RATE, 1e30)),
    entry({"user": "a"}, ("request_percentage", float("nan"))),
    entry({"user": "a"}, ("request_percentage", float("inf"))),
    entry({"ip": "127.0.0.1"}, ("connection_creation_rate", 3e9)),
    entry({"user": "a"}, (RATE, 1), (RATE, 2)),
)


def test_what_can_be_no_quota_is_refused_and_the_rest_of_the_request_is_done(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        for number, wrong in enumerate(WRONG):
            good = entry({"user": f"good-{number}"}, (RATE, 1))
            assert await alter(node, wrong, good) == [INVALID, 0], wrong
        assert {each.user for each in node.metadata.image.client_quotas} == {f"good-{n}" for n in range(len(WRONG))}
        twice = [entry({"user": "twice"}, (RATE, 1)), entry({"user": "twice"}, ("request_percentage", 1))]
        assert await alter(node, *twice) == [INVALID]
        half = [entry({"user": "twice"}, (RATE, 1), (RATE, 2)), entry({"user": "twice"}, ("request_percentage", 1))]
        assert await alter(node, *half) == [INVALID]
        assert QuotaEntity("twice") not in node.metadata.image.client_quotas

    run_with_node(tmp_path, test)


@pytest.mark.parametrize(
    ("components", "code"),
    [
        ([("", 2, None)], INVALID),
        ([("user", 2, None), ("user", 1, None)], INVALID),
        ([("moon", 2, None)], ErrorCode.UNSUPPORTED_VERSION),
        ([("user", 0, None)], INVALID),
        ([("user", 1, "x")], INVALID),
        ([("user", 2, "x")], INVALID),
        ([("user", 9, None)], INVALID),
        ([("ip", 2, None), ("client-id", 2, None)], INVALID),
    ],
)
def test_a_filter_that_can_be_none_is_refused(
    tmp_path: Path, components: list[tuple[str, int, str | None]], code: ErrorCode
) -> None:
    async def test(node: Node) -> None:
        asked = [{"entity_type": kind, "match_type": match, "match": name} for kind, match, name in components]
        told = await ask(node, ApiKey.DESCRIBE_CLIENT_QUOTAS, 1, components=asked, strict=False)
        assert (int(told.error_code), told.entries) == (code, None)
        assert told.error_message

    run_with_node(tmp_path, test)


def test_a_call_sets_lists_and_removes_quotas(tmp_path: Path) -> None:
    message = quotas_pb2.QuotaEntity(user="alice", client_id="")
    alteration = quotas_pb2.AlterClientQuotasRequest.Alteration

    async def test(node: Node) -> None:
        async with channel_to(node) as channel:
            stub = quotas_pb2_grpc.QuotaServiceStub(channel)
            wrong = quotas_pb2.QuotaEntity()
            told = await stub.AlterClientQuotas(
                quotas_pb2.AlterClientQuotasRequest(
                    alterations=[alteration(entity=message, set={RATE: 5.0}), alteration(entity=wrong, set={RATE: 5.0})]
                )
            )
            assert [each.error.code for each in told.results] == [0, INVALID]
            assert node.metadata.image.client_quotas == {QuotaEntity("alice", ""): {RATE: 5.0}}
            match = quotas_pb2.DescribeClientQuotasRequest.Match(entity_type="client-id", match=1)
            found = await stub.DescribeClientQuotas(quotas_pb2.DescribeClientQuotasRequest(matches=[match]))
            assert [(each.entity, dict(each.values)) for each in found.quotas] == [(message, {RATE: 5.0})]
            await stub.AlterClientQuotas(
                quotas_pb2.AlterClientQuotasRequest(alterations=[alteration(entity=message, remove=[RATE])])
            )
            assert node.metadata.image.client_quotas == {}
            both = alteration(entity=message, set={RATE: 1.0}, remove=[RATE])
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stub.AlterClientQuotas(quotas_pb2.AlterClientQuotasRequest(alterations=[both]))
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT

    run_with_node(tmp_path, test)


NOBODY = QuotaEntity("ANONYMOUS")
BEYOND = ErrorCode.THROTTLING_QUOTA_EXCEEDED


def topic(name: str, partitions: int) -> dict[str, Any]:
    return {
        "name": name, "num_partitions": partitions, "replication_factor": 1, "assignments": (), "configs": (),
    }  # fmt: skip


@pytest.mark.parametrize("is_strict", [False, True])
def test_changes_of_topics_beyond_a_quota_are_refused_where_the_version_knows_it(
    tmp_path: Path, is_strict: bool
) -> None:
    async def test(node: Node) -> None:
        await create_topic(node, "there", 1)
        # One partition in a thousand seconds: 0.011 saved up, and overdrawn by the first request.
        await alter_client_quotas(node, [QuotaAlteration(NOBODY, {"controller_mutation_rate": 0.001})])
        versions = (6, 3, 5) if is_strict else (5, 2, 4)
        first = await change(node, ApiKey.CREATE_TOPICS, versions[0], topics=[topic("a", 2)])
        assert int(first.topics[0].error_code) == 0
        expected = int(BEYOND) if is_strict else 0
        made = await change(node, ApiKey.CREATE_TOPICS, versions[0], topics=[topic("b", 1)])
        assert int(made.topics[0].error_code) == expected
        assert made.throttle_time.total_seconds() > 900
        grown = await change(
            node,
            ApiKey.CREATE_PARTITIONS,
            versions[1],
            topics=[{"name": "there", "count": 3, "assignments": None}],
        )
        assert int(grown.results[0].error_code) == expected
        gone = await change(node, ApiKey.DELETE_TOPICS, versions[2], topic_names=["a"])
        assert int(gone.responses[0].error_code) == expected
        assert gone.throttle_time.total_seconds() > 900
        assert (node.metadata.topic("a") is not None) is is_strict
        assert (node.metadata.topic("b") is None) is is_strict

    run_with_node(tmp_path, test)


async def change(node: Node, key: ApiKey, version: int, **values: Any) -> Any:
    more = {"timeout": 10_000} if key is ApiKey.DELETE_TOPICS else {"timeout": 10_000, "validate_only": False}
    return await ask(node, key, version, **more, **values)
