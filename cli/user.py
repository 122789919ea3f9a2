"""`semel user`: the users that nodes serve, in the cluster's metadata, or in a file (`sasl.users.location`)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from semel.cli.common import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    ExitCode,
    command_app,
    examples,
    fail,
    fails_well,
    open_admin,
    print_json,
    print_table,
)
from semel.cli.live import watchable
from semel.protocol.errors import ErrorCode, FatalError, UsageError

app = command_app("Add, change, remove and list the users that a node serves, in the cluster or in a file.")

UserName = Annotated[str, typer.Argument(metavar="NAME", help="The user's name.", show_default=False)]
UsersFile = Annotated[
    Path | None,
    typer.Option(
        "--file",
        metavar="FILE",
        help="A file of users, in place of the cluster: what sasl.users.location of a node names. The node reads it "
        "again when it changes.",
        show_default=False,
    ),
]


@app.command(
    epilog=examples(
        "semel user add alice",
        "semel user add spark --password-file secret --bootstrap tls+sasl://log1.example.com:9094",
        "semel user add admin --file users",
    )
)
@fails_well
def add(
    context: typer.Context,
    name: UserName,
    file: UsersFile = None,
    password_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A file with the password, in one line. Without it, the password is asked for, or is the first line "
            "of standard input where that is no terminal.",
            show_default=False,
        ),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Add a user, or give one another password.

    The cluster, or the file, gets what proves the password, and not the password itself: for SCRAM-SHA-256 and
    SCRAM-SHA-512, which also do for PLAIN and gRPC. It is a secret all the same, because passwords can be guessed with
    it: send it over connections that are encrypted, and let only the nodes' user read the file. A file counts on the
    nodes that have it, and comes before what the cluster has for the same name.

    Connections that a user has with the password before are closed within some seconds.
    """
    from semel.protocol.scram import SCRAM_MECHANISMS, check_user_name, make_verifiers

    _check_one(context, file)
    check_user_name(name)
    password = _password(password_file)
    if file is None:
        with open_admin(bootstrap) as admin:
            was_there = any(each.name == name for each in admin.users())
            admin.set_password(name, password)
    else:
        from semel.broker.users.user_file import write_user

        was_there = write_user(str(file), name, make_verifiers(password, SCRAM_MECHANISMS))
    print(f"{name} has another password now" if was_there else f"user {name} added")


@app.command(epilog=examples("semel user remove alice", "semel user remove alice --file users"))
@fails_well
def remove(
    context: typer.Context, name: UserName, file: UsersFile = None, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP
) -> None:
    """Remove a user. Connections that the user has are closed within some seconds."""
    _check_one(context, file)
    if file is None:
        with open_admin(bootstrap) as admin:
            try:
                admin.remove_user(name)
            except FatalError as error:
                if error.code is not ErrorCode.RESOURCE_NOT_FOUND:
                    raise
                raise fail(
                    f"there is no user {name} in the cluster: `semel user list` shows them. Who is in a node's file "
                    "is removed there, with --file",
                    ExitCode.REFUSED,
                ) from None
    else:
        from semel.broker.users.user_file import read_users, write_user

        if name not in read_users(str(file)).verifiers:
            raise fail(
                f"there is no user {name} in {file}: `semel user list --file {file}` shows them", ExitCode.REFUSED
            )
        write_user(str(file), name, None)
    print(f"user {name} removed")


@app.command("list", epilog=examples("semel user list", "semel user list --file users --json"))
@fails_well
@watchable
def list_users(
    context: typer.Context, file: UsersFile = None, as_json: AsJson = False, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP
) -> None:
    """List the users, and how they can prove who they are."""
    _check_one(context, file)
    if file is None:
        with open_admin(bootstrap) as admin:
            found = {each.name: list(each.iterations) for each in admin.users()}
    else:
        from semel.broker.users.user_file import read_users

        there = read_users(str(file)).verifiers
        found = {name: [one.mechanism for one in verifiers] for name, verifiers in there.items()}
    if as_json:
        print_json([{"name": name, "mechanisms": mechanisms} for name, mechanisms in sorted(found.items())])
        return
    rows = [(name, ", ".join(mechanisms)) for name, mechanisms in sorted(found.items())]
    print_table(["user", "mechanisms"], rows, empty="no users")


def _check_one(context: typer.Context, file: Path | None) -> None:
    """Raise `UsageError` where it is not clear what is meant: an address in the environment gives way to a file."""
    source = context.get_parameter_source("bootstrap")
    if file is not None and source is not None and source.name == "COMMANDLINE":
        raise UsageError("--file is for a file, and --bootstrap for a cluster: give one of them")


def _password(file: Path | None) -> str:
    from semel.sdk.transport.login import PASSWORD_BYTES_MAX, password_in

    if file is not None:
        return password_in("--password-file", str(file))
    if sys.stdin is not None and sys.stdin.isatty():
        password = str(typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True))
    else:
        line = sys.stdin.readline(PASSWORD_BYTES_MAX + 2) if sys.stdin is not None else ""
        password = line.removesuffix("\n").removesuffix("\r")
    if not password:
        raise UsageError("there is no password: give one line, by --password-file or standard input")
    if len(password.encode()) > PASSWORD_BYTES_MAX:
        raise UsageError(f"a password has at most {PASSWORD_BYTES_MAX} bytes")
    return password
