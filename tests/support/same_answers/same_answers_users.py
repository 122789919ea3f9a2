"""Requests about users' passwords (KIP-554), good and bad."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from same_answers import Side, scenario

from semel.protocol.errors import ErrorCode
from semel.protocol.kafka.api import ApiKey

FOLLOWS = (int(ErrorCode.RESOURCE_NOT_FOUND),)
"""Kafka's broker hears of a user a moment after the controller has answered."""


def set_to(name: str, mechanism: int = 1, iterations: int = 4096, **more: Any) -> dict[str, Any]:
    password = {"salt": b"salt", "salted_password": b"s" * 32, **more}
    return {"name": name, "mechanism": mechanism, "iterations": iterations, **password}


def removed(name: str, mechanism: int = 1) -> dict[str, Any]:
    return {"name": name, "mechanism": mechanism}


@scenario(ApiKey.ALTER_USER_SCRAM_CREDENTIALS)
async def alter_user_scram_credentials(at: Side, version: int) -> None:
    async def alter(what: str, *changes: dict[str, Any]) -> None:
        await at.ask(
            what,
            ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
            deletions=[each for each in changes if "salt" not in each],
            upsertions=[each for each in changes if "salt" in each],
        )

    async def describe(what: str, names: Sequence[str] | None, until_not: Sequence[int] = ()) -> None:
        users = None if names is None else [{"name": name} for name in names]
        await at.ask(what, ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, users=users, until_not=until_not)

    await describe("nobody is there", None)
    await describe("none", [])
    await describe("absent", ["nobody"])
    await describe("absent twice", ["nobody", "nobody"])
    await describe("empty name", [""])
    await alter("nothing")
    for what, changes in {
        "too few iterations": [set_to("a", 1, 4095)],
        "too few for the other": [set_to("a", 2, 4095)],
        "too many iterations": [set_to("a", 1, 16_385)],
        "negative iterations": [set_to("a", 1, -1)],
        "unknown mechanism": [set_to("a", 0)],
        "no such mechanism": [set_to("a", 3)],
        "negative mechanism": [set_to("a", -1)],
        "unknown mechanism and too few": [set_to("a", 3, 1)],
        "empty name": [set_to("")],
        "empty name and unknown mechanism": [set_to("", 3)],
        "twice": [set_to("a"), set_to("a")],
        "both mechanisms": [set_to("a"), set_to("a", 2)],
        "three times": [set_to("a"), set_to("a"), set_to("a")],
        "wrong and right": [set_to("a", 3), set_to("a")],
        "right and wrong": [set_to("a"), set_to("a", 3)],
        "remove nobody": [removed("nobody")],
        "remove and set nobody": [removed("nobody"), set_to("nobody")],
        "remove an unknown mechanism": [removed("nobody", 9)],
        "remove an empty name": [removed("")],
        "remove nobody twice": [removed("nobody"), removed("nobody")],
    }.items():
        await alter(what, *changes)
    name, other = at.name("user"), at.name("other")
    await alter("set", set_to(name))
    await describe("set", [name], FOLLOWS)
    await alter("several, good and bad", set_to(name, 2, 16_384), set_to(other, 2, 8192), set_to("a", 5), removed("b"))
    await describe("both", [other], FOLLOWS)
    await describe("both mechanisms, and one twice", [name, other, other])
    await alter("remove and set", removed(name), set_to(name, 1))
    await alter("remove twice", removed(name), removed(name, 2))
    await alter("remove a mechanism that the user has not", removed(other, 1))
    await describe("as before", [name])
    await alter("remove", removed(other, 2))
    await alter("remove again", removed(other, 2))
    await alter("short password", set_to(other, salted_password=b"s"))
    await alter("no salted password", set_to(other, 2, salted_password=b""))
    await alter("no salt", set_to(name, salt=b""))
    await alter("end", removed(other))


@scenario(ApiKey.CREATE_DELEGATION_TOKEN)
async def create_delegation_token(at: Side, version: int) -> None:
    """Nobody has proven who he is here."""
    renewers = [{"principal_type": "User", "principal_name": "bob"}]
    nobody = {"owner_principal_type": None, "owner_principal_name": None}
    for what, values in {
        "for oneself": {**nobody, "renewers": []},
        "with a renewer": {**nobody, "renewers": renewers},
        "for somebody": {"owner_principal_type": "User", "owner_principal_name": "alice", "renewers": []},
        "for an empty name": {"owner_principal_type": "User", "owner_principal_name": "", "renewers": []},
        "a renewer of another type": {**nobody, "renewers": [{"principal_type": "x", "principal_name": "y"}]},
    }.items():
        await at.ask(what, ApiKey.CREATE_DELEGATION_TOKEN, max_lifetime=-1, **values)


@scenario(ApiKey.RENEW_DELEGATION_TOKEN)
async def renew_delegation_token(at: Side, version: int) -> None:
    for hmac in (b"", b"x", bytes(64)):
        await at.ask(f"hmac of {len(hmac)}", ApiKey.RENEW_DELEGATION_TOKEN, hmac=hmac, renew_period=-1)


@scenario(ApiKey.EXPIRE_DELEGATION_TOKEN)
async def expire_delegation_token(at: Side, version: int) -> None:
    for hmac in (b"", b"x", bytes(64)):
        await at.ask(f"hmac of {len(hmac)}", ApiKey.EXPIRE_DELEGATION_TOKEN, hmac=hmac, expiry_time_period=-1)


@scenario(ApiKey.DESCRIBE_DELEGATION_TOKEN)
async def describe_delegation_token(at: Side, version: int) -> None:
    for what, owners in {"all": None, "none": [], "one": [{"principal_type": "User", "principal_name": "a"}]}.items():
        await at.ask(what, ApiKey.DESCRIBE_DELEGATION_TOKEN, owners=owners)
