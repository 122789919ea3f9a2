"""S6: a delegation token that one node makes is good on all nodes, and on none once another node has taken it back."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from pathlib import Path

import pytest
from cluster import cluster
from delegating_node import TOKEN_AUTH, open_connection, prove, secret_file
from user_files import set_user

from semel.broker.acls.rights import ALL_RIGHTS, Rights
from semel.broker.node import Node
from semel.broker.permitted import delegation_tokens as tokens
from semel.broker.permitted.users import alter_users
from semel.broker.users.delegation import DelegationTokens, TokenSecret
from semel.broker.users.exchanges import begin_exchange
from semel.broker.users.headers import NotProvenError, proven_by
from semel.broker.users.newest import NewestReader
from semel.broker.users.users import Users
from semel.protocol.errors import ErrorCode
from semel.protocol.scram import Alteration, make_verifier
from semel.runtime.clock import SystemClock
from semel.runtime.kafka_client.connection import Connection

BOB = Rights(None, "", (), "User:bob")


async def log_in(node: Node, user: str, password: str) -> Connection | None:
    """Return a connection, None where the user is refused."""
    connection = await open_connection(node.kafka_address)
    answer, _ = await prove(connection, user, password, extensions=TOKEN_AUTH)
    return connection if answer.error is ErrorCode.NONE else None


def test_S6_nodes_follow_each_others_tokens_also_after_a_restart(tmp_path: Path) -> None:
    settings = {"kafka_listen": "sasl://127.0.0.1:0", "delegation_token_secret_file": secret_file(tmp_path)}

    async def main() -> None:
        async with cluster(tmp_path, 3, **settings) as nodes:
            one, two, three = (nodes.nodes[number] for number in (1, 2, 3))
            verifier = make_verifier("SCRAM-SHA-256", "b", 4096)
            await alter_users(one, ALL_RIGHTS, [("bob", Alteration("bob", (verifier,)))])
            made = await tokens.create_token(one, BOB, "", (), -1, is_delegated=False)
            login = made.token.token_id, made.password
            await nodes.until(
                lambda: all(login[0] in each.metadata.image.delegation_tokens for each in (one, two, three))
            )
            connections = [await log_in(each, *login) for each in (one, two, three)]
            assert all(each is not None and each.is_open for each in connections)
            await nodes.stop(3)
            again = await nodes.start(3)
            assert await log_in(again, *login) is not None
            # By its HMAC, as Kafka's clients name it, at a node that did not make it.
            await tokens.expire_token(again, BOB, made.hmac, -1, is_delegated=False)
            await nodes.until(lambda: not any(each is not None and each.is_open for each in connections))
            assert [await log_in(each, *login) for each in (one, two, again)] == [None] * 3

    asyncio.run(main())


def test_S6_a_token_is_good_at_another_node_as_soon_as_it_is_made(tmp_path: Path) -> None:
    """Its program may begin at once, and would be refused for good."""
    settings = {"kafka_listen": "sasl://127.0.0.1:0", "delegation_token_secret_file": secret_file(tmp_path)}

    async def main() -> None:
        async with cluster(tmp_path, 2, **settings) as nodes:
            one, two = nodes.nodes[1], nodes.nodes[2]
            for _ in range(10):
                made = await tokens.create_token(one, BOB, "", (), -1, is_delegated=False)
                assert await log_in(two, made.token.token_id, made.password) is not None
            assert await log_in(two, "x" * 22, made.password) is None

    asyncio.run(main())


def test_S5_S2_who_is_no_token_is_looked_for_the_same_and_all_share_a_reading(tmp_path: Path) -> None:
    """How long a login takes says nothing of whether there is a user whose name is like a token's id."""
    name, other = "user-with-22-characters", "x" * 22
    users = Users(str(set_user(tmp_path / "users", name[:22])))
    users.delegation = DelegationTokens(TokenSecret(b"s" * 32), users.had)
    readings: list[int] = []

    async def read_newest() -> None:
        readings.append(1)

    users.delegation.know_cluster(dict, SystemClock(), NewestReader(read_newest))

    async def attempt(user: str) -> None:
        exchange = begin_exchange("SCRAM-SHA-256", users, None)
        await exchange.answer(f"n,,n={user},r=abc".encode())
        header = "Basic " + b64encode(f"{user}:wrong".encode()).decode()
        with pytest.raises(NotProvenError):
            await proven_by(header, users, None)

    async def main() -> None:
        for user in (name[:22], other):
            before = len(readings)
            await attempt(user)
            assert len(readings) == before + 2, user
        await attempt("short")
        before = len(readings)
        await asyncio.gather(*(attempt(f"{number:022}") for number in range(50)))
        assert len(readings) - before <= 4

    asyncio.run(main())
