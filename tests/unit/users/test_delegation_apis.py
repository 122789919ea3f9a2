"""The four Kafka APIs of delegation tokens, in each version, as clients that have proven a user hear them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from asking_node import MECHANISMS
from delegating_node import TOKEN_AUTH, delegating, open_connection, prove
from kafka_calls import answer_to, request_body
from running_node import running_node
from user_files import ALICE, PASSWORD, set_user

from semel.broker.acls.rights import ALL_RIGHTS, Rights
from semel.broker.metadata.changes import DELEGATION_TOKENS_VERSION
from semel.broker.node import Node
from semel.broker.permitted import delegation_tokens as tokens
from semel.broker.permitted.users import alter_users
from semel.protocol.delegation_tokens import password_of
from semel.protocol.errors import ErrorCode, FatalError
from semel.protocol.kafka.api import ApiKey
from semel.protocol.kafka.entities import load_entity
from semel.protocol.kafka.entity_reader import _PRIMITIVES, entity_reader
from semel.protocol.kafka.wire import WireReader
from semel.protocol.scram import Alteration, make_verifier

# kio's own reader refuses the -1 that stands for no time.
_PRIMITIVES.setdefault("datetime_i64", WireReader.read_int64)

CREATE, RENEW = ApiKey.CREATE_DELEGATION_TOKEN, ApiKey.RENEW_DELEGATION_TOKEN
EXPIRE, DESCRIBE = ApiKey.EXPIRE_DELEGATION_TOKEN, ApiKey.DESCRIBE_DELEGATION_TOKEN
VERSIONS = {CREATE: (1, 2, 3), RENEW: (1, 2), EXPIRE: (1, 2), DESCRIBE: (1, 2, 3)}
USER = {"principal_type": "User"}


class Client:
    """A connection that has proven a user."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def ask(self, key: ApiKey, version: int | None = None, /, **values: Any) -> Any:
        version = VERSIONS[key][-1] if version is None else version
        body = await self._connection.request(key, version, [request_body(key, version, **values)], timeout_ms=60_000)
        return entity_reader(load_entity(key, version, "response"))(WireReader(body))


_open: list[Any] = []


async def client(node: Node, user: str = ALICE, password: str = PASSWORD, extensions: str = "") -> Client:
    connection = await open_connection(node.kafka_address)
    _open.append(connection)
    answer, _ = await prove(connection, user, password, MECHANISMS[0], extensions)
    assert answer.error is ErrorCode.NONE
    return Client(connection)


def with_node(folder: Path, test: Callable[[Node], Awaitable[None]], **settings: Any) -> None:
    users = set_user(set_user(folder / "users"), "bob", PASSWORD)

    async def main() -> None:
        async with running_node(folder / "data", **{**delegating(users), **settings}) as node:
            await test(node)
            while _open:
                _open.pop().close()

    asyncio.run(main())


@pytest.mark.parametrize("version", VERSIONS[CREATE])
def test_a_token_is_made_described_renewed_and_taken_back(tmp_path: Path, version: int) -> None:
    async def test(node: Node) -> None:
        alice, older = await client(node), min(version, 2)
        renewers = [{**USER, "principal_name": "bob"}]
        made = await alice.ask(
            CREATE, version, owner_principal_type=None, owner_principal_name=None, renewers=renewers, max_lifetime=-1
        )
        assert (made.error_code, made.principal_type, made.principal_name) == (0, "User", ALICE)
        assert made.max_timestamp - made.issue_timestamp == 7 * 24 * 3_600_000
        assert made.expiry_timestamp - made.issue_timestamp == 24 * 3_600_000
        described = await alice.ask(DESCRIBE, version, owners=None)
        (token,) = described.tokens
        assert (described.error_code, token.token_id, token.hmac) == (0, made.token_id, made.hmac)
        assert (token.issue_timestamp, token.expiry_timestamp) == (made.issue_timestamp, made.expiry_timestamp)
        assert [(each.principal_type, each.principal_name) for each in token.renewers] == [("User", "bob")]
        if version >= 3:
            assert made.token_requester_principal_name == token.token_requester_principal_name == ALICE
        bob = await client(node, "bob")
        renewed = await bob.ask(RENEW, older, hmac=made.hmac, renew_period=1_000)
        assert renewed.error_code == 0
        assert made.issue_timestamp < renewed.expiry_timestamp < made.expiry_timestamp
        later = await bob.ask(EXPIRE, older, hmac=made.hmac, expiry_time_period=10**12)
        assert (later.error_code, later.expiry_timestamp) == (0, made.max_timestamp)
        gone = await alice.ask(EXPIRE, older, hmac=made.hmac, expiry_time_period=-1)
        assert gone.error_code == 0
        assert (await alice.ask(DESCRIBE, version, owners=None)).tokens == ()

    with_node(tmp_path, test)


def test_what_is_wrong_is_answered_as_kafka_answers_it(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        alice, bob = await client(node), await client(node, "bob")
        made = await alice.ask(CREATE, renewers=[], max_lifetime=-1)
        for hmac in (b"", b"x", made.hmac[:-1], made.hmac + b"x", bytes(64), bytes(100_000)):
            for key, period in ((RENEW, "renew_period"), (EXPIRE, "expiry_time_period")):
                answer = await alice.ask(key, hmac=hmac, **{period: 1})
                assert (answer.error_code, answer.expiry_timestamp) == (ErrorCode.DELEGATION_TOKEN_NOT_FOUND, 0)
        for key, period in ((RENEW, "renew_period"), (EXPIRE, "expiry_time_period")):
            answer = await bob.ask(key, hmac=made.hmac, **{period: 1})
            assert answer.error_code == ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
        wrong = await alice.ask(CREATE, renewers=[{"principal_type": "Group", "principal_name": "x"}], max_lifetime=-1)
        assert (wrong.error_code, wrong.issue_timestamp, wrong.hmac) == (ErrorCode.INVALID_PRINCIPAL_TYPE, -1, b"")
        sly = await alice.ask(CREATE, renewers=[{"principal_type": "User:x", "principal_name": "y"}], max_lifetime=-1)
        assert sly.error_code == ErrorCode.INVALID_PRINCIPAL_TYPE
        long_name = await alice.ask(CREATE, renewers=[{**USER, "principal_name": "x" * 2_000}], max_lifetime=-1)
        assert long_name.error_code == ErrorCode.INVALID_REQUEST
        many = [{**USER, "principal_name": f"user-{number}"} for number in range(17)]
        assert (await alice.ask(CREATE, renewers=many, max_lifetime=-1)).error_code == ErrorCode.INVALID_REQUEST
        assert (await alice.ask(DESCRIBE, owners=[])).tokens == ()
        of_bob = await alice.ask(DESCRIBE, owners=[{**USER, "principal_name": "bob"}])
        assert (of_bob.error_code, of_bob.tokens) == (0, ())
        owners = [{**USER, "principal_name": f"user-{number}"} for number in range(1_001)]
        assert (await alice.ask(DESCRIBE, owners=owners)).error_code == ErrorCode.INVALID_REQUEST

    with_node(tmp_path, test)


def test_a_token_that_has_expired_is_renewed_no_more(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        alice = await client(node)
        made = await alice.ask(CREATE, renewers=[], max_lifetime=1)
        while node.clock.now_ms() <= made.max_timestamp:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        for key, period in ((RENEW, {"renew_period": -1}), (EXPIRE, {"expiry_time_period": 1})):
            answer = await alice.ask(key, hmac=made.hmac, **period)
            assert (answer.error_code, answer.expiry_timestamp) == (ErrorCode.DELEGATION_TOKEN_EXPIRED, 0)
        connection = await open_connection(node.kafka_address)
        answer, _ = await prove(connection, made.token_id, password_of(made.hmac))
        assert answer.error is ErrorCode.SASL_AUTHENTICATION_FAILED
        assert (await alice.ask(EXPIRE, hmac=made.hmac, expiry_time_period=-1)).error_code == 0, "it may be removed"

    with_node(tmp_path, test)


def test_S6_a_connection_by_a_token_is_refused_all_four(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        made = await (await client(node)).ask(CREATE, renewers=[], max_lifetime=-1)
        for extensions in ("", TOKEN_AUTH):
            delegated = await client(node, made.token_id, password_of(made.hmac), extensions)
            for key, values in (
                (CREATE, {"renewers": [], "max_lifetime": -1}),
                (RENEW, {"hmac": made.hmac, "renew_period": -1}),
                (EXPIRE, {"hmac": made.hmac, "expiry_time_period": -1}),
                (DESCRIBE, {"owners": None}),
            ):
                answer = await delegated.ask(key, **values)
                assert answer.error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
                assert getattr(answer, "expiry_timestamp", -1) == -1
                assert getattr(answer, "tokens", ()) == ()

    with_node(tmp_path, test)


def test_without_a_secret_there_are_no_tokens(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        alice = await client(node)
        for key, values in (
            (CREATE, {"renewers": [], "max_lifetime": -1}),
            (RENEW, {"hmac": bytes(64), "renew_period": -1}),
            (EXPIRE, {"hmac": bytes(64), "expiry_time_period": -1}),
            (DESCRIBE, {"owners": None}),
        ):
            answer = await alice.ask(key, **values)
            assert answer.error_code == ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED

    with_node(tmp_path, test, delegation_token_secret_file="")


def test_until_all_nodes_know_of_tokens_there_are_none(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        alice = await client(node)
        node.metadata.image = replace(node.metadata.image, version=DELEGATION_TOKENS_VERSION - 1)
        made = await alice.ask(CREATE, renewers=[], max_lifetime=-1)
        assert (made.error_code, made.token_id) == (ErrorCode.UNSUPPORTED_VERSION, "")
        assert node.metadata.image.delegation_tokens == {}

    with_node(tmp_path, test)


@pytest.mark.parametrize("key", VERSIONS)
def test_S6_who_has_proven_nothing_is_refused(tmp_path: Path, key: ApiKey) -> None:
    async def main() -> None:
        async with running_node(tmp_path) as node:
            for version in VERSIONS[key]:
                values = {"renewers": [], "max_lifetime": -1, "hmac": b"x", "renew_period": 1, "expiry_time_period": 1}
                names = {"owners": None, "owner_principal_type": "User", "owner_principal_name": "alice"}
                answer = await ask_nobody(node, key, version, **values, **names)
                assert answer.error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED

    asyncio.run(main())


async def ask_nobody(node: Node, key: ApiKey, version: int, **values: Any) -> Any:
    body = await answer_to(node.kafka_address.port, key, version, **values)
    return entity_reader(load_entity(key, version, "response"))(WireReader(body))


def test_S6_no_token_outlives_a_user_who_is_removed_while_it_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(node: Node) -> None:
        verifier = make_verifier("SCRAM-SHA-256", "c", 4096)
        await alter_users(node, ALL_RIGHTS, [("carl", Alteration("carl", (verifier,)))])
        change = node.metadata.change

        async def late(decide: Any, **more: Any) -> Any:
            monkeypatch.setattr(node.metadata, "change", change)
            await alter_users(node, ALL_RIGHTS, [("carl", Alteration("carl", removed=("SCRAM-SHA-256",)))])
            return await change(decide, **more)

        monkeypatch.setattr(node.metadata, "change", late)
        with pytest.raises(FatalError, match="the user carl was removed meanwhile"):
            await tokens.create_token(node, Rights(None, "", (), "User:carl"), "", (), -1, is_delegated=False)
        assert node.metadata.image.delegation_tokens == {}

    with_node(tmp_path, test)
