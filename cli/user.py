"""`semel user`: the file of the users that a node serves (`sasl.users.location`)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from semel.cli.common import AsJson, ExitCode, command_app, examples, fail, fails_well, print_json, print_table
from semel.protocol.errors import UsageError

app = command_app("Add, change, remove and list the users that a node serves, in their file.")

UserName = Annotated[str, typer.Argument(metavar="NAME", help="The user's name.", show_default=False)]
UsersFile = Annotated[
    Path,
    typer.Option(
        "--file",
        metavar="FILE",
        help="The file of users: what sasl.users.location of the nodes names. Nodes read it again when it changes.",
        show_default=False,
    ),
]


@app.command(
    epilog=examples("semel user add alice --file users", "semel user add spark --file users --password-file secret")
)
@fails_well
def add(
    name: UserName,
    file: UsersFile,
    password_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A file with the password, in one line. Without it, the password is asked for, or is the first line "
            "of standard input where that is no terminal.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Add a user, or give one another password.

    The file gets what proves the password, and not the password itself: for SCRAM-SHA-256 and SCRAM-SHA-512, which
    also do for PLAIN and gRPC. It is a secret all the same, because passwords can be guessed with it: only the nodes'
    user should be able to read it. Copy it to all nodes of a cluster.

    Connections that a user has with the password before are closed within some seconds.
    """
    from semel.broker.config.sasl import SCRAM_MECHANISMS
    from semel.broker.users.user_file import check_user_name, write_user
    from semel.broker.users.verifiers import make_verifier

    check_user_name(name)
    password = _password(password_file)
    was_there = write_user(str(file), name, [make_verifier(mechanism, password) for mechanism in SCRAM_MECHANISMS])
    print(f"{name} has another password now" if was_there else f"user {name} added")


@app.command(epilog=examples("semel user remove alice --file users"))
@fails_well
def remove(name: UserName, file: UsersFile) -> None:
    """Remove a user. Connections that the user has are closed within some seconds."""
    from semel.broker.users.user_file import read_users, write_user

    if name not in read_users(str(file)):
        raise fail(f"there is no user {name} in {file}: `semel user list --file {file}` shows them", ExitCode.REFUSED)
    write_user(str(file), name, None)
    print(f"user {name} removed")


@app.command("list", epilog=examples("semel user list --file users --json"))
@fails_well
def list_users(file: UsersFile, as_json: AsJson = False) -> None:
    """List the users, and how they can prove who they are."""
    from semel.broker.users.user_file import read_users

    found = {name: [one.mechanism for one in verifiers] for name, verifiers in read_users(str(file)).items()}
    if as_json:
        print_json([{"name": name, "mechanisms": mechanisms} for name, mechanisms in sorted(found.items())])
        return
    rows = [(name, ", ".join(mechanisms)) for name, mechanisms in sorted(found.items())]
    print_table(["user", "mechanisms"], rows, empty="no users")


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
