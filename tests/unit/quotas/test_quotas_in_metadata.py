"""Client quotas in the metadata: after a restart, in snapshots, and not before all nodes know of them."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest
from running_node import run_with_node, running_node

from semel.broker.handlers import client_quotas as handler
from semel.broker.handlers.client_quotas import alter_client_quotas, describe_client_quotas
from semel.broker.handlers.configs import alter_configs
from semel.broker.metadata.chain import Position
from semel.broker.metadata.changes import (
    CLIENT_QUOTAS_VERSION,
    ClientQuotasChanged,
    MetadataCorruptError,
    decode_change,
    encode_change,
)
from semel.broker.metadata.image import EMPTY_IMAGE, decode_image, encode_image
from semel.broker.node import Node
from semel.protocol.api.metadata import ALL_NODES, AlterConfigsRequest, ResourceType
from semel.protocol.errors import ErrorCode, FatalError, UsageError
from semel.protocol.quotas import MatchType, QuotaAlteration, QuotaEntity, QuotaFilter, QuotaMatch

ALICE = QuotaEntity("alice")
BOTH = QuotaEntity("", "app")
HOME = QuotaEntity(ip="127.0.0.1")
RATE = "producer_byte_rate"


def test_quotas_are_there_and_count_after_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_node(tmp_path, metadata_snapshot_changes=1) as node:
            await alter_client_quotas(node, [QuotaAlteration(ALICE, {RATE: 5.0}), QuotaAlteration(BOTH, {RATE: 6.0})])
            await alter_client_quotas(node, [QuotaAlteration(BOTH, {RATE: None, "request_percentage": 50.0})])
        async with running_node(tmp_path, metadata_snapshot_changes=1) as node:
            assert node.metadata.image.client_quotas == {ALICE: {RATE: 5.0}, BOTH: {"request_percentage": 50.0}}
            assert node.client_quotas.of("alice", "x") is not None
            assert node.client_quotas.of("bob", "x") is None

    asyncio.run(main())


def test_an_image_is_the_same_after_a_snapshot() -> None:
    change = ClientQuotasChanged(tuple(QuotaAlteration(each, {RATE: 1.25e6}) for each in (ALICE, BOTH)))
    image = EMPTY_IMAGE.apply(change, Position(1, "d"))
    again = decode_image(encode_image(image), image.digest)
    assert again == image
    gone = again.apply(ClientQuotasChanged((QuotaAlteration(ALICE, {RATE: None}),)), Position(2, "e"))
    assert gone.client_quotas == {BOTH: {RATE: 1.25e6}}
    assert decode_change(*encode_change(change)) == change


def test_a_change_that_removes_what_is_not_there_is_corrupt() -> None:
    with pytest.raises(MetadataCorruptError):
        EMPTY_IMAGE.apply(ClientQuotasChanged((QuotaAlteration(ALICE, {RATE: None}),)), Position(1, "d"))


@pytest.mark.parametrize(
    "damaged",
    [[{"moon": "x"}, {RATE: 1.0}], [{"user": "x"}, {"speed": 1.0}], [{"user": "x"}, {RATE: -1.0}], [{}, {}], ["user"]],
)
def test_what_is_no_quota_is_corrupt(damaged: list[object]) -> None:
    with pytest.raises(MetadataCorruptError):
        decode_change("client-quotas-changed", json.dumps({"quotas": [damaged]}))
    with pytest.raises(MetadataCorruptError):
        decode_image(json.dumps({**json.loads(encode_image(EMPTY_IMAGE)), "client_quotas": [damaged]}), "")


def test_there_are_no_quotas_before_all_nodes_know_of_them(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        node.metadata.image = replace(node.metadata.image, version=CLIENT_QUOTAS_VERSION - 1)
        for validate_only in (True, False):
            with pytest.raises(FatalError, match="not all nodes") as refused:
                await alter_client_quotas(node, [QuotaAlteration(ALICE, {RATE: 1.0})], validate_only=validate_only)
            assert refused.value.code is ErrorCode.UNSUPPORTED_VERSION

    run_with_node(tmp_path, test)


def test_S2_entities_are_bounded_in_a_request_and_in_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handler, "PER_REQUEST_MAX", 3)

    async def test(node: Node) -> None:
        made = [QuotaAlteration(QuotaEntity(f"u{number}"), {RATE: 1.0}) for number in range(4)]
        with pytest.raises(UsageError, match="too many"):
            await alter_client_quotas(node, made)
        await alter_client_quotas(node, made[:2])
        with pytest.raises(FatalError, match=r"client\.quotas\.max is 2") as refused:
            await alter_client_quotas(node, made[2:3])
        assert refused.value.code is ErrorCode.POLICY_VIOLATION
        await alter_client_quotas(node, [QuotaAlteration(QuotaEntity("u0"), {RATE: 3.0})])
        # Where the setting is lower by now, those that there are can still be changed and removed.
        lower = AlterConfigsRequest(ResourceType.BROKER, ALL_NODES, {"client.quotas.max": "1"})
        await alter_configs(node, lower)
        (changed,) = await alter_client_quotas(node, [QuotaAlteration(QuotaEntity("u1"), {RATE: 4.0})])
        (removed,) = await alter_client_quotas(node, [QuotaAlteration(QuotaEntity("u0"), {RATE: None})])
        assert (changed.error, removed.error) == (None, None)
        assert list(node.metadata.image.client_quotas) == [QuotaEntity("u1")]

    run_with_node(tmp_path, test, client_quotas_max=2)


def test_an_address_has_its_quota_once_however_it_is_written(tmp_path: Path) -> None:
    long, short = QuotaEntity(ip="0:0:0:0:0:0:0:1"), QuotaEntity(ip="::1")
    mapped, plain = QuotaEntity(ip="::ffff:10.0.0.1"), QuotaEntity(ip="10.0.0.1")
    key = "connection_creation_rate"

    async def test(node: Node) -> None:
        for entity, value in ((long, 3.0), (short, 4.0), (mapped, 5.0), (plain, None)):
            (told,) = await alter_client_quotas(node, [QuotaAlteration(entity, {key: value})])
            assert (told.entity, told.error) == (entity, None), "the answer names it as the request did"
        assert node.metadata.image.client_quotas == {short: {key: 4.0}}
        exact = QuotaFilter((QuotaMatch("ip", MatchType.EXACT, "0::1"),))
        assert [each.entity for each in await describe_client_quotas(node, exact)] == [short]
        twice = await alter_client_quotas(node, [QuotaAlteration(each, {key: 1.0}) for each in (long, short)])
        assert all(each.error is not None for each in twice), "the same entity twice in one request"

    run_with_node(tmp_path, test)


def test_what_is_only_validated_or_the_same_as_before_is_not_written(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        await alter_client_quotas(node, [QuotaAlteration(ALICE, {RATE: 1.0})])
        before = node.metadata.image.sequence
        await alter_client_quotas(node, [QuotaAlteration(ALICE, {RATE: 2.0})], validate_only=True)
        await alter_client_quotas(node, [QuotaAlteration(ALICE, {RATE: 1.0, "request_percentage": None})])
        assert node.metadata.image.sequence == before

    run_with_node(tmp_path, test)


def test_entities_are_found_by_filters(tmp_path: Path) -> None:
    async def found(node: Node, *components: tuple[object, ...], strict: bool = False) -> list[QuotaEntity]:
        wanted = QuotaFilter(tuple(QuotaMatch(*each) for each in components), strict=strict)  # type: ignore[arg-type]
        return [each.entity for each in await describe_client_quotas(node, wanted)]

    async def test(node: Node) -> None:
        pair, default = QuotaEntity("alice", "app"), QuotaEntity("")
        await alter_client_quotas(
            node,
            [
                *(QuotaAlteration(each, {RATE: 1.0}) for each in (BOTH, pair, ALICE, default)),
                QuotaAlteration(HOME, {"connection_creation_rate": 3.0}),
            ],
        )
        assert await found(node) == [default, BOTH, ALICE, pair, HOME]
        assert await found(node, ("user", MatchType.EXACT, "alice")) == [ALICE, pair]
        assert await found(node, ("user", MatchType.EXACT, "alice"), strict=True) == [ALICE]
        assert await found(node, ("user", MatchType.DEFAULT)) == [default, BOTH]
        assert await found(node, ("user", MatchType.SPECIFIED), ("client-id", MatchType.SPECIFIED)) == [BOTH, pair]
        assert await found(node, ("client-id", MatchType.EXACT, "app"), strict=True) == []
        assert await found(node, ("ip", MatchType.SPECIFIED)) == [HOME]
        assert await found(node, strict=True) == []

    run_with_node(tmp_path, test)
