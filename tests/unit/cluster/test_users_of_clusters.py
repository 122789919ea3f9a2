"""S6: a user whom one node takes is one of all nodes, and out on all of them when another node removes him."""

from __future__ import annotations

import asyncio
from pathlib import Path

from cluster import cluster
from user_files import set_user

from semel.broker.acls.rights import ALL_RIGHTS
from semel.broker.node import Node
from semel.broker.permitted.users import alter_users
from semel.broker.users.newest import NewestReader
from semel.broker.users.users import Users
from semel.protocol.errors import FatalError
from semel.protocol.scram import Alteration, make_verifier
from semel.runtime.kafka_client.connection import Connection, ConnectionLostError, connect, dial_tcp
from semel.sdk.transport.login import Credentials, Login

SETTINGS = {"kafka_listen": "sasl://127.0.0.1:0"}


async def log_in(node: Node, password: str) -> Connection | None:
    """Return a connection of bob, None where he is refused."""
    credentials = Credentials(Login("bob", password))
    try:
        return await connect(
            str(node.kafka_address),
            dial_tcp(*node.kafka_address),
            client_id="test",
            prove=lambda connection: credentials.authenticate(connection, encrypted=False),
        )
    except (FatalError, ConnectionLostError):
        return None


async def change(node: Node, password: str | None) -> None:
    verifiers = () if password is None else (make_verifier("SCRAM-SHA-256", password, 4096),)
    assert await alter_users(node, ALL_RIGHTS, [("bob", Alteration("bob", verifiers, replaces=True))]) == {"bob": None}


def test_S6_nodes_follow_each_others_users_also_after_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, 3, **SETTINGS) as nodes:
            one, two, three = (nodes.nodes[number] for number in (1, 2, 3))
            assert await log_in(two, "b") is None
            await change(one, "b")
            await nodes.until(lambda: all("bob" in each.metadata.image.users for each in (one, two, three)))
            connections = [await log_in(each, "b") for each in (one, two, three)]
            assert all(each is not None and each.is_open for each in connections)
            await change(two, "another")
            await nodes.until(lambda: not any(each is not None and each.is_open for each in connections))
            assert [await log_in(each, "b") for each in (one, two, three)] == [None] * 3
            await nodes.stop(3)
            again = await nodes.start(3)
            await nodes.until(lambda: "bob" in again.metadata.image.users)
            open_one = await log_in(again, "another")
            assert open_one is not None
            await change(one, None)
            await nodes.until(lambda: not open_one.is_open)
            assert await log_in(again, "another") is None

    asyncio.run(main())


def test_a_user_is_known_at_another_node_at_once_by_his_password(tmp_path: Path) -> None:
    """Over gRPC, and by PLAIN: the node looks at what others have changed before it refuses him."""

    async def main() -> None:
        async with cluster(tmp_path, 2, **SETTINGS) as nodes:
            one, two = nodes.nodes[1], nodes.nodes[2]
            assert two.users is not None
            for password in ("a", "b"):  # added, and with another password
                await change(one, password)
                assert await two.users.check_password("bob", password) is not None
            assert await two.users.check_password("bob", "a") is None
            await change(one, None)
            await nodes.until(lambda: "bob" not in two.metadata.image.users)
            assert await two.users.check_password("bob", "b") is None

    asyncio.run(main())


def test_S5_S2_who_is_refused_waits_the_same_and_shares_a_reading(tmp_path: Path) -> None:
    users = Users(str(set_user(tmp_path / "users", "bob", "right")))
    readings: list[int] = []

    async def read_newest() -> None:
        readings.append(1)

    users.others = NewestReader(read_newest)

    async def main() -> None:
        assert await users.check_password("bob", "right") is not None
        assert not readings
        for name in ("bob", "nobody"):
            assert await users.check_password(name, "wrong") is None
        assert len(readings) == 2
        await asyncio.gather(*(users.check_password(f"stranger{number}", "wrong") for number in range(20)))
        assert len(readings) < 12

    asyncio.run(main())
