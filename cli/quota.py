"""`semel quota`: how much clients may take."""

from __future__ import annotations

from typing import Annotated

import typer

from semel.cli.common import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    ExitCode,
    command_app,
    confirm,
    counted,
    examples,
    fail,
    fails_well,
    open_admin,
    print_json,
    print_table,
)
from semel.cli.live import watchable
from semel.cli.moving import Yes
from semel.protocol.errors import UsageError
from semel.protocol.quotas import (
    CLIENT_ID,
    CLIENT_KEYS,
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    DEFAULT,
    IP,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    USER,
    ClientQuota,
    MatchType,
    QuotaAlteration,
    QuotaEntity,
    QuotaFilter,
    QuotaMatch,
)

app = command_app("Set, list and remove client quotas: how much of each node a user, client id or address may take.")

_UNITS = {"k": 1_000, "M": 1_000_000, "G": 1_000_000_000}


def _name(option: str, help_text: str) -> typer.models.OptionInfo:
    found: typer.models.OptionInfo = typer.Option(option, metavar="NAME", help=help_text, show_default=False)
    return found


def _default(option: str, help_text: str) -> typer.models.OptionInfo:
    found: typer.models.OptionInfo = typer.Option(option, help=help_text)
    return found


User = Annotated[str | None, _name("--user", "A user, without `User:`. ANONYMOUS are those who are not asked.")]
DefaultUser = Annotated[bool, _default("--default-user", "Each user who has no quota of his own.")]
ClientId = Annotated[str | None, _name("--client-id", "A client id (client.id of a client).")]
DefaultClientId = Annotated[bool, _default("--default-client-id", "Each client id that has no quota of its own.")]
Ip = Annotated[str | None, _name("--ip", "An IP address.")]
DefaultIp = Annotated[bool, _default("--default-ip", "Each address that has no quota of its own.")]


def _rate(option: str, metavar: str, help_text: str) -> typer.models.OptionInfo:
    found: typer.models.OptionInfo = typer.Option(option, metavar=metavar, help=help_text, show_default=False)
    return found


@app.command(
    "set",
    epilog=examples(
        "semel quota set --user alice --produce 10M --consume 20M",
        "semel quota set --client-id etl --requests 25",
        "semel quota set --default-user --produce 5M --mutations 10",
        "semel quota set --user alice --client-id etl --consume 500k",
        "semel quota set --default-ip --connections 20",
    ),
)
@fails_well
def set_quota(
    user: User = None,
    default_user: DefaultUser = False,
    client_id: ClientId = None,
    default_client_id: DefaultClientId = False,
    ip: Ip = None,
    default_ip: DefaultIp = False,
    produce: Annotated[
        str | None, _rate("--produce", "BYTES", "Bytes a second of requests to produce: producer_byte_rate. k, M, G.")
    ] = None,
    consume: Annotated[
        str | None, _rate("--consume", "BYTES", "Bytes a second of records that are read: consumer_byte_rate. k, M, G.")
    ] = None,
    requests: Annotated[
        float | None,
        _rate("--requests", "PERCENT", "Of a node's time for requests: request_percentage. 100 is all of it."),
    ] = None,
    mutations: Annotated[
        float | None,
        _rate("--mutations", "PARTITIONS", "Partitions a second that are made or deleted: controller_mutation_rate."),
    ] = None,
    connections: Annotated[
        int | None, _rate("--connections", "COUNT", "New connections a second of an address: connection_creation_rate.")
    ] = None,
    validate_only: Annotated[bool, typer.Option("--validate-only", help="Only say whether it could be set.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Bound what a user, a client id, both together, or an address may take of each node.

    A client that takes more is not refused, but answered and read later. Of several quotas that could count for a
    client, the one of the most particular entity does: a user with a client id before a user, a user before a client
    id, and a name before a default.
    """
    entity = _entity(user, default_user, client_id, default_client_id, ip, default_ip)
    given = {
        PRODUCER_BYTE_RATE: None if produce is None else _bytes("--produce", produce),
        CONSUMER_BYTE_RATE: None if consume is None else _bytes("--consume", consume),
        REQUEST_PERCENTAGE: requests,
        CONTROLLER_MUTATION_RATE: mutations,
        CONNECTION_CREATION_RATE: connections,
    }
    values: dict[str, float | None] = {key: float(value) for key, value in given.items() if value is not None}
    if not values:
        raise UsageError("say how much: --produce, --consume, --requests, --mutations; or --connections of an address")
    with open_admin(bootstrap) as admin:
        admin.alter_client_quotas([QuotaAlteration(entity, values)], validate_only=validate_only)
    for key, value in values.items():
        print(f"{entity}: {key}={value:.15g}{' could be set' if validate_only else ''}")


@app.command("list", epilog=examples("semel quota list", "semel quota list --user alice --json"))
@fails_well
@watchable
def list_quotas(
    user: User = None,
    default_user: DefaultUser = False,
    client_id: ClientId = None,
    default_client_id: DefaultClientId = False,
    ip: Ip = None,
    default_ip: DefaultIp = False,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """List quotas: all, or those of a user, a client id or an address, also together with others."""
    wanted = QuotaFilter(
        tuple(
            QuotaMatch(kind, MatchType.DEFAULT if name == DEFAULT else MatchType.EXACT, name or None)
            for kind, name in _named(user, default_user, client_id, default_client_id, ip, default_ip).items()
        )
    )
    with open_admin(bootstrap) as admin:
        found = admin.client_quotas(wanted)
    if as_json:
        print_json([_as_json(each) for each in found])
        return
    print_table(
        ["user", "client id", "ip", "quota", "value"],
        [
            (*map(_shown, (entity.user, entity.client_id, entity.ip)), key, f"{value:.15g}")
            for entity, values in found
            for key, value in sorted(values.items())
        ],
        empty="no quotas",
    )


@app.command(
    epilog=examples(
        "semel quota remove --user alice",
        "semel quota remove --default-user --quota producer_byte_rate --yes",
    )
)
@fails_well
def remove(
    user: User = None,
    default_user: DefaultUser = False,
    client_id: ClientId = None,
    default_client_id: DefaultClientId = False,
    ip: Ip = None,
    default_ip: DefaultIp = False,
    quota: Annotated[
        list[str] | None,
        _rate("--quota", "NAME", "Only this one, such as producer_byte_rate. May be given again."),
    ] = None,
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Remove quotas of exactly one entity: all of them, or those named. What is less particular counts then."""
    entity = _entity(user, default_user, client_id, default_client_id, ip, default_ip)
    for name in quota or ():
        if name not in (*CLIENT_KEYS, CONNECTION_CREATION_RATE):
            raise UsageError(f"{name!r} is no quota: there are {', '.join((*CLIENT_KEYS, CONNECTION_CREATION_RATE))}")
    with open_admin(bootstrap) as admin:
        there = next((dict(values) for found, values in admin.client_quotas() if found == entity), {})
        gone = [key for key in sorted(there) if not quota or key in quota]
        if not gone:
            raise fail("there is no such quota: `semel quota list` shows those there are", ExitCode.REFUSED)
        if not yes:
            for key in gone:
                print(f"{entity}: {key}={there[key]:.15g}")
            confirm(f"Remove {counted(len(gone), 'quota')}?")
        admin.alter_client_quotas([QuotaAlteration(entity, dict.fromkeys(gone))])
    print(f"{counted(len(gone), 'quota')} removed")


def _named(
    user: str | None,
    default_user: bool,
    client_id: str | None,
    default_client_id: bool,
    ip: str | None,
    default_ip: bool,
) -> dict[str, str]:
    given = ((USER, user, default_user), (CLIENT_ID, client_id, default_client_id), (IP, ip, default_ip))
    for kind, name, is_default in given:
        if name is not None and is_default:
            raise UsageError(f"--{kind} and --default-{kind} can't be both: give two commands")
        if name == "":
            raise UsageError(f"--{kind} is empty: use --default-{kind} for all that have no quota of their own")
    return {
        kind: DEFAULT if is_default else name or ""
        for kind, name, is_default in given
        if is_default or name is not None
    }


def _entity(*given: str | bool | None) -> QuotaEntity:
    named = _named(*given)  # type: ignore[arg-type]
    if not named:
        raise UsageError("say whose: --user, --client-id, --ip, or one of them with --default- before")
    return QuotaEntity(named.get(USER), named.get(CLIENT_ID), named.get(IP)).check()


def _bytes(option: str, text: str) -> float:
    """Return a number of bytes: `500k`, `10M`."""
    unit = _UNITS.get(text[-1:], 1)
    digits = text if unit == 1 else text[:-1]
    try:
        return int(float(digits) * unit)
    except (ValueError, OverflowError):
        raise UsageError(f"{option} {text!r} is no number of bytes: write 500k, 10M or 1000000") from None


def _shown(name: str | None) -> str:
    return "-" if name is None else name or "(default)"


def _as_json(quota: ClientQuota) -> dict[str, object]:
    entity, values = quota
    return {"entity": {kind: name or None for kind, name in entity.parts}, "values": dict(sorted(values.items()))}
