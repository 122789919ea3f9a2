"""A node whose listeners ask for passwords, and connections that have proven one."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

from live_node import LiveNode
from user_files import ALICE, PASSWORD

from semel.runtime.kafka_client.connection import Connection, connect, dial_tcp
from semel.sdk.transport.login import Credentials, Login
from semel.sdk.transport.options import Bootstrap
from semel.sdk.transport.security import Security

MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN")


def asking(users: Path, **more: Any) -> dict[str, Any]:
    """Return the settings of a node whose two listeners ask for passwords."""
    return {
        "kafka_listen": "sasl://127.0.0.1:0",
        "grpc_listen": "sasl://127.0.0.1:0",
        "sasl_users_location": str(users),
        "sasl_enabled_mechanisms": MECHANISMS,
        **more,
    }


def at(address: object, user: str = ALICE, password: str = PASSWORD, mechanism: str = MECHANISMS[0]) -> Bootstrap:
    return Bootstrap((str(address),), Security(None, Login(user, password, mechanism=mechanism)))


def address_for(node: LiveNode, user: str = ALICE) -> str:
    """Return the address that a command is given, with the user and where his password is."""
    file = Path(node.node.data_dir).parent / f"password-{user}"
    file.write_text(PASSWORD)
    return f"sasl://{node.node.grpc_address}?sasl.username={user}&sasl.password.location={quote(str(file), safe='')}"


async def authenticated(node: LiveNode, user: str = ALICE, password: str = PASSWORD, **more: Any) -> Connection:
    """Return a data connection whose user has proven the password."""
    credentials = Credentials(Login(user, password, **more))
    return await connect(
        str(node.node.kafka_address),
        dial_tcp(*node.node.kafka_address),
        client_id="test",
        prove=lambda connection: credentials.authenticate(connection, encrypted=False),
    )
