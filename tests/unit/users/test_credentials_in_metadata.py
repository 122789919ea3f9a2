"""Users' passwords in the metadata: how they are changed, what is refused, and that no text has their keys."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from base64 import b64encode
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kafka_calls import call
from running_node import running_node

from semel.broker.acls.rights import ALL_RIGHTS, ANYBODY
from semel.broker.handlers import users as handler
from semel.broker.metadata.chain import Position
from semel.broker.metadata.changes import (
    CREDENTIALS_VERSION,
    CredentialsChanged,
    MetadataCorruptError,
    decode_change,
    encode_change,
)
from semel.broker.metadata.image import EMPTY_IMAGE, decode_image, encode_image
from semel.broker.node import Node
from semel.broker.permitted.users import alter_users, describe_users
from semel.protocol.errors import ErrorCode, SemelError, UsageError
from semel.protocol.kafka.api import ApiKey
from semel.protocol.scram import Alteration, Deletion, Upsertion, Verifier, make_verifier, verifier_of_salted

PASSWORD = "wonderland"
SHA_256, SHA_512 = "SCRAM-SHA-256", "SCRAM-SHA-512"
ONE = make_verifier(SHA_256, PASSWORD, 4096)
TWO = make_verifier(SHA_512, PASSWORD, 8192)
SECRETS = [text for each in (ONE, TWO) for key in (each.stored_key, each.server_key) for text in
           (key.hex(), b64encode(key).decode(), repr(key)[2:-1])]  # fmt: skip


def with_node(folder: Path, test: Callable[[Node], Awaitable[None]], **settings: object) -> None:
    async def main() -> None:
        async with running_node(folder, **settings) as node:
            await test(node)

    asyncio.run(main())


# --- The metadata -----------------------------------------------------------------------------------------------------


def test_an_image_is_the_same_after_a_snapshot_and_its_changes() -> None:
    added = CredentialsChanged((Upsertion("a", TWO), Upsertion("a", ONE), Upsertion("b", ONE)))
    assert decode_change(*encode_change(added)) == added
    image = EMPTY_IMAGE.apply(added, Position(1, "d"))
    again = decode_image(encode_image(image), image.digest)
    assert again == image
    assert again.users == {"a": (ONE, TWO), "b": (ONE,)}
    other = replace(ONE, iterations=5000)
    changed = again.apply(CredentialsChanged((Upsertion("b", other),), (Deletion("a", SHA_512),)), Position(2, "e"))
    assert changed.users == {"a": (ONE,), "b": (other,)}
    assert again.users == {"a": (ONE, TWO), "b": (ONE,)}, "an image never changes"
    assert changed.apply(CredentialsChanged((), (Deletion("a", SHA_256),)), Position(3, "f")).users == {"b": (other,)}


@pytest.mark.parametrize("gone", [Deletion("b", SHA_256), Deletion("a", SHA_512)])
def test_a_change_that_does_not_fit_the_users_is_corrupt(gone: Deletion) -> None:
    image = EMPTY_IMAGE.apply(CredentialsChanged((Upsertion("a", ONE),)), Position(1, "d"))
    with pytest.raises(MetadataCorruptError):
        image.apply(CredentialsChanged((), (gone,)), Position(2, "e"))


@pytest.mark.parametrize(
    ("place", "damage"),
    [
        (place, damage)
        for place in range(5)
        for damage in (None, 7, "x", [], "c3Vw")
        if (place, damage) not in ((1, 7), (2, "c3Vw"))  # such are numbers of iterations, and salts
    ],
)
def test_S5_what_is_no_password_is_corrupt_and_no_error_repeats_a_key(place: int, damage: object) -> None:
    _, payload = encode_change(CredentialsChanged((Upsertion("a", ONE),)))
    data = json.loads(payload)
    data["upserted"][0][1][place] = damage
    swapped = json.loads(payload)
    swapped["upserted"][0][1][0] = swapped["upserted"][0][1][3]
    for broken in (data, swapped):
        for read in (
            lambda broken=broken: decode_change("credentials-changed", json.dumps(broken)),
            lambda broken=broken: decode_image(
                json.dumps({**json.loads(encode_image(EMPTY_IMAGE)), "users": broken["upserted"]}), ""
            ),
        ):
            with pytest.raises(MetadataCorruptError) as refused:
                read()
            assert not any(secret in str(refused.value) for secret in SECRETS)


def test_S5_no_text_of_what_holds_keys_has_them() -> None:
    change = CredentialsChanged((Upsertion("a", ONE), Upsertion("b", TWO)))
    image = EMPTY_IMAGE.apply(change, Position(1, "d"))
    for item in (ONE, change, change.upserted, image, image.users, Alteration("a", (ONE, TWO))):
        for text in (repr(item), str(item), f"{item}"):
            assert not any(secret in text for secret in SECRETS)
            assert SHA_256 in text


def test_users_are_there_after_a_restart_and_in_snapshots(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_node(tmp_path, metadata_snapshot_changes=1) as node:
            await alter_users(node, ALL_RIGHTS, [("a", Alteration("a", (ONE, TWO))), ("b", Alteration("b", (ONE,)))])
            await alter_users(node, ALL_RIGHTS, [("b", Alteration("b", replaces=True))])
        async with running_node(tmp_path, metadata_snapshot_changes=1) as node:
            assert node.metadata.image.users == {"a": (ONE, TWO)}

    asyncio.run(main())


def test_there_are_no_users_before_all_nodes_know_of_them(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        node.metadata.image = replace(node.metadata.image, version=CREDENTIALS_VERSION - 1)
        outcomes = await alter_users(node, ALL_RIGHTS, [("a", Alteration("a", (ONE,)))])
        assert code_of(outcomes["a"]) is ErrorCode.UNSUPPORTED_VERSION
        assert not node.metadata.image.users

    with_node(tmp_path, test)


# --- What operators change --------------------------------------------------------------------------------------------


def code_of(error: SemelError | None) -> ErrorCode | None:
    return None if error is None else ErrorCode(error.code)


def test_one_password_takes_the_place_of_all_that_a_user_has(tmp_path: Path) -> None:
    """Or the password before would go on with the other mechanism."""

    async def test(node: Node) -> None:
        await alter_users(node, ALL_RIGHTS, [("a", Alteration("a", (ONE, TWO), replaces=True))])
        await alter_users(node, ALL_RIGHTS, [("a", Alteration("a", (ONE,), replaces=True))])
        assert node.metadata.image.users == {"a": (ONE,)}
        gone = await alter_users(node, ALL_RIGHTS, [(name, Alteration(name, replaces=True)) for name in ("a", "b")])
        assert [code_of(error) for error in gone.values()] == [None, ErrorCode.RESOURCE_NOT_FOUND]
        assert node.metadata.image.users == {}

    with_node(tmp_path, test)


def test_S2_users_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handler, "PER_REQUEST_MAX", 5)

    async def test(node: Node) -> None:
        async def add(*names: str, verifier: Verifier = ONE) -> list[ErrorCode | None]:
            wanted = [(name, Alteration(name, (verifier,))) for name in names]
            return [code_of(error) for error in (await alter_users(node, ALL_RIGHTS, wanted)).values()]

        assert await add("a", "b") == [None, None]
        assert await add("c", "d", "a") == [None, ErrorCode.POLICY_VIOLATION, None]
        assert set(node.metadata.image.users) == {"a", "b", "c"}
        assert await add("b", verifier=TWO) == [None]
        with pytest.raises(UsageError, match="too many"):
            await add(*(f"u{number}" for number in range(6)))
        refused = [
            *[await add(name) for name in ("n" * 256, "a b", "a:b", "a\nb", "a\ud800")],
            await add("x", verifier=replace(ONE, salt=b"s" * 257)),
            await add("x", verifier=replace(ONE, salt=b"")),
            await add("x", verifier=replace(ONE, stored_key=b"s" * 31)),
            await add("x", verifier=replace(ONE, server_key=b"s" * 64)),
            await add("x", verifier=replace(ONE, iterations=4095)),
            await add("x", verifier=replace(ONE, iterations=16_385)),
        ]
        assert refused == [[ErrorCode.UNACCEPTABLE_CREDENTIAL]] * 11

    with_node(tmp_path, test, users_max=3)


def test_changes_are_in_the_audit_log_and_secrets_in_no_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    async def test(node: Node) -> None:
        await alter_users(node, ANYBODY, [("a", Alteration("a", (ONE, TWO))), ("b", Alteration("b", replaces=True))])
        await alter_users(node, ANYBODY, [("a", Alteration("a", removed=(SHA_256,)))])
        assert [user.name for user in await describe_users(node, ALL_RIGHTS, ())] == ["a"]

    with_node(tmp_path, test)
    told = [record.message for record in caplog.records if record.name == "semel.audit"]
    assert told == [
        "password.set: principal='somebody (there is no authorizer)' user='a' "
        "mechanisms='SCRAM-SHA-256, 4096 iterations; SCRAM-SHA-512, 8192 iterations'",
        "password.removed: principal='somebody (there is no authorizer)' user='a' mechanisms='SCRAM-SHA-256'",
    ]
    assert not any(secret in caplog.text for secret in SECRETS)


# --- Kafka's protocol -------------------------------------------------------------------------------------------------


def upsertion(name: str, mechanism: int = 1, iterations: int = 4096, **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "mechanism": mechanism,
        "iterations": iterations,
        "salt": b"salt",
        "salted_password": b"s" * 32,
        **more,
    }


def deletion(name: str, mechanism: int = 1) -> dict[str, Any]:
    return {"name": name, "mechanism": mechanism}


async def alter(node: Node, *changes: dict[str, Any]) -> dict[str, int]:
    """Return the codes by user."""
    answer = await call(
        node.kafka_address.port,
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
        0,
        deletions=[each for each in changes if "salt" not in each],
        upsertions=[each for each in changes if "salt" in each],
    )
    assert all(bool(each.error_code) == bool(each.error_message) for each in answer.results)
    found = {each.user: int(each.error_code) for each in answer.results}
    assert len(found) == len(answer.results)
    return found


async def describe(node: Node, *names: str, everybody: bool = False) -> dict[str, tuple[int, dict[int, int]]]:
    users = None if everybody else [{"name": name} for name in names]
    answer = await call(node.kafka_address.port, ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, users=users)
    assert int(answer.error_code) == 0
    return {
        each.user: (int(each.error_code), {one.mechanism: one.iterations for one in each.credential_infos})
        for each in answer.results
    }


def test_a_password_that_a_client_has_salted_is_the_one_that_users_prove(tmp_path: Path) -> None:
    salted = hashlib.pbkdf2_hmac("sha256", PASSWORD.encode(), ONE.salt, 4096)
    assert verifier_of_salted(SHA_256, 4096, ONE.salt, salted) == ONE

    async def test(node: Node) -> None:
        sent = upsertion("a", salt=ONE.salt, salted_password=salted)
        assert await alter(node, sent) == {"a": 0}
        assert node.metadata.image.users == {"a": (ONE,)}
        assert await alter(node, upsertion("a", 2, 16_384)) == {"a": 0}
        assert await describe(node, everybody=True) == {"a": (0, {1: 4096, 2: 16_384})}
        assert await alter(node, deletion("a", 1)) == {"a": 0}
        assert await describe(node, "a") == {"a": (0, {2: 16_384})}

    with_node(tmp_path, test)


def test_wrong_alterations_are_refused_as_kafka_refuses_them(tmp_path: Path) -> None:
    not_found, duplicate, unknown, unacceptable = (
        int(ErrorCode[name])
        for name in (
            "RESOURCE_NOT_FOUND",
            "DUPLICATE_RESOURCE",
            "UNSUPPORTED_SASL_MECHANISM",
            "UNACCEPTABLE_CREDENTIAL",
        )
    )

    async def test(node: Node) -> None:
        assert await alter(node, upsertion("there")) == {"there": 0}
        for changes, wanted in (
            ([deletion("nobody")], {"nobody": not_found}),
            ([deletion("there", 2)], {"there": not_found}),
            ([deletion("there", 0)], {"there": unknown}),
            ([upsertion("a", 3)], {"a": unknown}),
            ([upsertion("", 3)], {"": unacceptable}),
            ([upsertion("")], {"": unacceptable}),
            ([deletion("")], {"": unacceptable}),
            ([upsertion("a", iterations=4095)], {"a": unacceptable}),
            ([upsertion("a", iterations=16_385)], {"a": unacceptable}),
            ([upsertion("a", 3, 1)], {"a": unknown}),
            ([upsertion("a", salted_password=b"")], {"a": unacceptable}),
            ([upsertion("a", salted_password=b"s" * 1025)], {"a": unacceptable}),
            ([upsertion("a"), upsertion("a", 2)], {"a": duplicate}),
            ([upsertion("a"), upsertion("a"), upsertion("a")], {"a": duplicate}),
            ([deletion("there"), upsertion("there")], {"there": duplicate}),
            ([deletion("nobody"), upsertion("nobody")], {"nobody": not_found}),
            ([upsertion("a", 7), upsertion("a")], {"a": unknown}),
            ([upsertion("a"), upsertion("a", 7)], {"a": duplicate}),
            ([], {}),
        ):
            assert await alter(node, *changes) == wanted, changes
        assert set(node.metadata.image.users) == {"there"}
        assert await alter(node, upsertion("a", 9), upsertion("b"), deletion("c")) == {
            "a": unknown,
            "b": 0,
            "c": not_found,
        }
        assert set(node.metadata.image.users) == {"there", "b"}
        assert await describe(node, "b", "x", "there", "there") == {
            "b": (0, {1: 4096}),
            "x": (not_found, {}),
            "there": (duplicate, {}),
        }

    with_node(tmp_path, test)
