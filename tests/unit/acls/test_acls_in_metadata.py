"""ACLs in the metadata: after a restart, in snapshots, on other nodes, and not before all nodes know of them."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest
from permitted_node import PERMITTED, acl, allow, only
from running_node import running_node

from semel.broker.handlers import acls as handler
from semel.broker.handlers.acls import create_acls, delete_acls, describe_acls
from semel.broker.metadata.chain import Position
from semel.broker.metadata.changes import ACLS_VERSION, AclsChanged, MetadataCorruptError, decode_change, encode_change
from semel.broker.metadata.image import EMPTY_IMAGE, decode_image, encode_image
from semel.broker.node import Node
from semel.protocol.acls import Acl, AclFilter, AclOperation, PatternType, ResourceType
from semel.protocol.errors import ErrorCode, FatalError, UsageError

ONE = acl("READ", "topic:orders", principal="User:alice", host="10.0.0.1")
TWO = acl("ALL", "group:bill-*", principal="User:*", denies=True)


def test_acls_are_there_after_a_restart_and_in_snapshots(tmp_path: Path) -> None:
    async def main() -> None:
        settings = {**PERMITTED, "metadata_snapshot_changes": 1}
        async with running_node(tmp_path, **settings) as node:
            await allow(node, ONE, TWO)
            await delete_acls(node, [AclFilter(ResourceType.TOPIC)])
            await allow(node, ONE)
        async with running_node(tmp_path, **settings) as node:
            assert node.metadata.image.acls == {ONE, TWO}

    asyncio.run(main())


def test_an_image_is_the_same_after_a_snapshot() -> None:
    image = EMPTY_IMAGE.apply(AclsChanged(added=(ONE, TWO)), Position(1, "d"))
    again = decode_image(encode_image(image), image.digest)
    assert again == image
    gone = again.apply(AclsChanged(removed=(ONE,)), Position(2, "e"))
    assert gone.acls == {TWO}


def test_a_change_is_read_as_it_was_written() -> None:
    change = AclsChanged(added=(ONE,), removed=(TWO,))
    assert decode_change(*encode_change(change)) == change


@pytest.mark.parametrize("change", [AclsChanged(added=(ONE,)), AclsChanged(removed=(TWO,))])
def test_a_change_that_does_not_fit_the_acls_is_corrupt(change: AclsChanged) -> None:
    image = EMPTY_IMAGE.apply(AclsChanged(added=(ONE,)), Position(1, "d"))
    with pytest.raises(MetadataCorruptError):
        image.apply(change, Position(2, "e"))


@pytest.mark.parametrize("damaged", [["topic"], [2, "t", 3, "User:a", "*", 99, 3], [2, "t", 3, "User:a", "*", 3]])
def test_what_is_no_acl_is_corrupt(damaged: list[object]) -> None:
    with pytest.raises(MetadataCorruptError):
        decode_change("acls-changed", json.dumps({"added": [damaged], "removed": []}))
    data = json.loads(encode_image(EMPTY_IMAGE))
    with pytest.raises(MetadataCorruptError):
        decode_image(json.dumps({**data, "acls": [damaged]}), "")


def with_node(folder: Path, test: object, **settings: object) -> None:
    async def main() -> None:
        async with running_node(folder, **{**PERMITTED, **settings}) as node:
            await test(node)  # type: ignore[operator]

    asyncio.run(main())


def test_there_are_no_acls_before_all_nodes_know_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(node: Node) -> None:
        node.metadata.image = replace(node.metadata.image, version=ACLS_VERSION - 1)
        with pytest.raises(FatalError, match="not all nodes") as refused:
            await create_acls(node, [ONE])
        assert refused.value.code is ErrorCode.UNSUPPORTED_VERSION
        assert not node.metadata.image.acls

    with_node(tmp_path, test)


def test_an_acl_that_there_is_already_counts_as_added(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        await allow(node, ONE)
        before = node.metadata.image.sequence
        await allow(node, ONE, ONE)
        assert (node.metadata.image.acls, node.metadata.image.sequence) == ({ONE}, before)

    with_node(tmp_path, test)


def test_each_acl_of_a_request_is_refused_for_itself(tmp_path: Path) -> None:
    wrong = [
        ONE._replace(resource_type=ResourceType.CLUSTER),
        ONE._replace(name=""),
        ONE._replace(pattern=PatternType.MATCH),
        ONE._replace(operation=AclOperation.ANY),
        ONE._replace(principal="alice"),
        ONE._replace(host=""),
        ONE._replace(resource_type=ResourceType.UNKNOWN),
        ONE._replace(name="n" * 2_000),
    ]

    async def test(node: Node) -> None:
        outcomes = await create_acls(node, [*wrong, TWO])
        assert [isinstance(error, UsageError) for error in outcomes] == [*([True] * len(wrong)), False]
        assert node.metadata.image.acls == {TWO}

    with_node(tmp_path, test)


def test_filters_find_as_kafkas_do(tmp_path: Path) -> None:
    literal, prefix, every = (acl("READ", f"topic:{name}", principal="User:alice") for name in ("orders", "or*", "*"))

    async def test(node: Node) -> None:
        await allow(node, literal, prefix, every, TWO)

        async def found(**wanted: object) -> set[Acl]:
            return set(await describe_acls(node, AclFilter(**wanted)))  # type: ignore[arg-type]

        assert await found() == {literal, prefix, every, TWO}
        assert await found(name="orders", pattern=PatternType.LITERAL) == {literal}
        assert await found(name="or", pattern=PatternType.PREFIXED) == {prefix}
        assert await found(name="orders", pattern=PatternType.ANY) == {literal}
        assert await found(name="orders", pattern=PatternType.MATCH) == {literal, prefix, every}
        assert await found(principal="User:*") == {TWO}
        with pytest.raises(UsageError):
            await found(operation=AclOperation.UNKNOWN)
        first, second = await delete_acls(
            node,
            [AclFilter(name="orders", pattern=PatternType.MATCH), AclFilter(name="or", pattern=PatternType.PREFIXED)],
        )
        assert (set(first.acls), set(second.acls)) == ({literal, prefix, every}, {prefix})
        assert node.metadata.image.acls == {TWO}

    with_node(tmp_path, test)


def test_S2_acls_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handler, "PER_REQUEST_MAX", 4)

    async def test(node: Node) -> None:
        acls = [ONE._replace(name=f"t{number}") for number in range(5)]
        await allow(node, *acls[:3])
        with pytest.raises(FatalError, match=r"acls\.max is 3") as refused:
            await create_acls(node, acls[3:])
        assert refused.value.code is ErrorCode.POLICY_VIOLATION
        for call in (create_acls(node, acls), delete_acls(node, [AclFilter()] * 5)):
            with pytest.raises(UsageError, match="too many"):
                await call
        await only(node, [])

    with_node(tmp_path, test, acls_max=3)
