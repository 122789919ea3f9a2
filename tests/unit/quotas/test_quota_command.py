"""`semel quota` and the calls of `Admin` below it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest
from live_node import LiveNode
from typer.testing import CliRunner

import semel
from semel.cli.main import app
from semel.protocol.errors import ErrorCode, FatalError, UsageError
from semel.protocol.quotas import (
    DEFAULT,
    ClientQuota,
    MatchType,
    QuotaAlteration,
    QuotaEntity,
    QuotaFilter,
    QuotaMatch,
)

RATE = "producer_byte_rate"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveNode]:
    with LiveNode(tmp_path_factory.mktemp("node")) as live:
        yield live


@pytest.fixture(autouse=True)
def no_quotas(node: LiveNode) -> None:
    """Each test begins without quotas."""
    with semel.Admin(node.bootstrap) as admin:
        admin.alter_client_quotas(
            QuotaAlteration(each, dict.fromkeys(values)) for each, values in admin.client_quotas()
        )
        assert admin.client_quotas() == []


def run(node: LiveNode, *words: str, succeeds: bool = True, answer: str | None = None) -> str:
    done = CliRunner().invoke(app, ["quota", *words, "--bootstrap", node.bootstrap], input=answer)
    assert (done.exit_code == 0) is succeeds, done.output
    return done.output


def test_quotas_are_set_listed_and_removed(node: LiveNode) -> None:
    assert "no quotas" in run(node, "list")
    said = run(node, "set", "--user", "alice", "--default-client-id", "--produce", "10M", "--requests", "12.5")
    assert "user 'alice', default client-id: producer_byte_rate=10000000" in said
    run(node, "set", "--default-ip", "--connections", "20")
    run(node, "set", "--client-id", "etl", "--consume", "1.5k", "--mutations", "3")
    listed = json.loads(run(node, "list", "--json"))
    assert listed == [
        {"entity": {"user": "alice", "client-id": None}, "values": {RATE: 1e7, "request_percentage": 12.5}},
        {"entity": {"client-id": "etl"}, "values": {"consumer_byte_rate": 1500.0, "controller_mutation_rate": 3.0}},
        {"entity": {"ip": None}, "values": {"connection_creation_rate": 20.0}},
    ]
    assert "(default)" in run(node, "list", "--user", "alice")
    assert "etl" not in run(node, "list", "--user", "alice")
    assert "20" in run(node, "list", "--default-ip")
    run(node, "remove", "--user", "alice", "--default-client-id", "--quota", RATE, "--yes")
    assert run(node, "remove", "--client-id", "etl", answer="y\n").endswith("2 quotas removed\n")
    assert [each["values"] for each in json.loads(run(node, "list", "--json"))] == [
        {"request_percentage": 12.5},
        {"connection_creation_rate": 20.0},
    ]
    assert "no such quota" in run(node, "remove", "--user", "bob", "--yes", succeeds=False)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--produce", "1"], "say whose"),
        (["--user", "alice"], "say how much"),
        (["--user", "alice", "--default-user", "--produce", "1"], "can't be both"),
        (["--user", "", "--produce", "1"], "--default-user"),
        (["--user", "alice", "--produce", "much"], "no number of bytes"),
        (["--user", "alice", "--produce", "0"], "greater than 0"),
        (["--user", "alice", "--connections", "1"], "can't have"),
        (["--ip", "10.0.0.1", "--produce", "1"], "can't have"),
        (["--ip", "host.example", "--connections", "1"], "no IP address"),
        (["--ip", "10.0.0.1", "--user", "a", "--connections", "1"], "together with"),
    ],
)
def test_what_can_be_no_quota_is_refused(node: LiveNode, words: list[str], says: str) -> None:
    said = " ".join(run(node, "set", *words, succeeds=False).split())
    assert says in said
    assert "no quotas" in run(node, "list")


def test_it_is_only_said_whether_a_quota_could_be_set(node: LiveNode) -> None:
    assert "could be set" in run(node, "set", "--user", "alice", "--produce", "1", "--validate-only")
    assert "no quotas" in run(node, "list")


def test_admin_alters_and_lists_quotas(node: LiveNode) -> None:
    both = QuotaEntity("alice", DEFAULT)
    exact = QuotaFilter((QuotaMatch("user", MatchType.EXACT, "alice"),))
    with semel.Admin(node.bootstrap) as admin:
        admin.alter_client_quotas([QuotaAlteration(both, {RATE: 5.0})], validate_only=True)
        admin.alter_client_quotas(QuotaAlteration(QuotaEntity(f"u{n}"), {RATE: 1.0}) for n in range(1_500))
        admin.alter_client_quotas([QuotaAlteration(both, {RATE: 5.0})])
        assert admin.client_quotas(exact) == [ClientQuota(both, {RATE: 5.0})]
        assert len(admin.client_quotas()) == 1_501
        with pytest.raises(UsageError):
            admin.alter_client_quotas([QuotaAlteration(both, {"speed": 5.0})])
        with pytest.raises(FatalError) as refused:
            admin.client_quotas(QuotaFilter((QuotaMatch("moon"),)))
        assert refused.value.code is ErrorCode.UNSUPPORTED_VERSION
        admin.alter_client_quotas(QuotaAlteration(QuotaEntity(f"u{n}"), {RATE: None}) for n in range(1_500))

    async def main() -> None:
        async with semel.aio.Admin(node.bootstrap) as admin:
            assert await admin.client_quotas(exact) == [ClientQuota(both, {RATE: 5.0})]
            await admin.alter_client_quotas([QuotaAlteration(both, {RATE: None})])
            assert await admin.client_quotas() == []

    asyncio.run(main())
