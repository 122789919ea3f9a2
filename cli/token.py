"""`semel token`: delegation tokens, which programs log in with in place of a user's password (KIP-48)."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from semel.cli.common import (
    DEFAULT_BOOTSTRAP,
    DURATION,
    DURATION_HELP,
    AsJson,
    Bootstrap,
    command_app,
    examples,
    fails_well,
    open_admin,
    parse_duration,
    print_json,
    print_table,
)
from semel.cli.live import watchable
from semel.protocol.delegation_tokens import DelegationToken
from semel.protocol.errors import UsageError
from semel.protocol.wording import moment

app = command_app("Create, list, renew and expire delegation tokens, which programs log in with as their owner.")

TokenId = Annotated[
    str, typer.Argument(metavar="ID", help="The token's id: `semel token list` shows it.", show_default=False)
]


@app.command(
    epilog=examples(
        "semel token create --file token",
        "semel token create --renewer User:scheduler --max-life 12h --file token",
        "semel token create --owner User:alice --json",
    )
)
@fails_well
def create(
    file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write the token to this file, for its owner alone (mode 0600), and do not print its HMAC. Clients "
            "read it by sasl.delegation.token.location.",
            show_default=False,
        ),
    ] = None,
    owner: Annotated[
        str | None,
        typer.Option(metavar="User:NAME", help="Whose token. Without it: your own.", show_default=False),
    ] = None,
    renewer: Annotated[
        list[str] | None,
        typer.Option(
            metavar="User:NAME",
            help="Who may renew it, and have it expire, besides the owner. May be given again.",
            show_default=False,
        ),
    ] = None,
    max_life: Annotated[
        str | None,
        typer.Option(
            metavar=DURATION,
            help=f"How long it can be renewed; by default, and at most, what the nodes are set to. {DURATION_HELP}",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Create a delegation token. Who has it is its owner for the nodes, until it expires.

    Its HMAC is a secret, and told this once. It is written to --file, or printed where there is none.
    """
    life_ms = None if max_life is None else _milliseconds(max_life, "--max-life")
    if file is not None:
        _check_folder(file)
    with open_admin(bootstrap) as admin:
        made = admin.create_delegation_token(owner=owner, renewers=renewer or (), max_lifetime_ms=life_ms)
    if file is not None:
        _write(file, f"{made.token.token_id}:{made.password}\n")
    if as_json:
        print_json({**_as_json(made.token), **({} if file is not None else {"hmac": made.password})})
        return
    print(f"delegation token {made.token.token_id} of {made.token.owner}")
    print(f"expires {moment(made.token.expiry_timestamp_ms)}, renewable until {moment(made.token.max_timestamp_ms)}")
    print(f"HMAC {made.password}" if file is None else f"written to {file}")


@app.command("list", epilog=examples("semel token list", "semel token list --owner User:alice --json"))
@fails_well
@watchable
def list_tokens(
    owner: Annotated[
        list[str] | None,
        typer.Option(
            metavar="User:NAME",
            help="Only tokens that this user owns, has asked for or may renew. May be given again.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """List delegation tokens: your own, those that you may renew, and those that you may describe. Without HMACs."""
    with open_admin(bootstrap) as admin:
        found = sorted(admin.delegation_tokens(owner or ()), key=lambda each: each.issue_timestamp_ms)
    if as_json:
        print_json([_as_json(token) for token in found])
        return
    print_table(
        ["token", "owner", "requester", "renewers", "expires", "renewable until"],
        [
            (
                token.token_id,
                token.owner,
                token.requester,
                ", ".join(token.renewers) or "-",
                moment(token.expiry_timestamp_ms),
                moment(token.max_timestamp_ms),
            )
            for token in found
        ],
        empty="no delegation tokens",
    )


@app.command(
    epilog=examples("semel token renew 5Zk0F3T1Q0u6vXl2jB9yUg", "semel token renew 5Zk0F3T1Q0u6vXl2jB9yUg --for 2h")
)
@fails_well
def renew(
    token_id: TokenId,
    period: Annotated[
        str | None,
        typer.Option(
            "--for",
            metavar=DURATION,
            help=f"How long from now on. By default, and at most, as long as the nodes are set to. {DURATION_HELP}",
            show_default=False,
        ),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Have a delegation token expire later. Its owner and its renewers may do it. The token stays the same."""
    period_ms = None if period is None else _milliseconds(period, "--for")
    with open_admin(bootstrap) as admin:
        expiry_ms = admin.renew_delegation_token(token_id, period_ms=period_ms)
    print(f"delegation token {token_id} expires {moment(expiry_ms)}")


@app.command(
    epilog=examples(
        "semel token expire 5Zk0F3T1Q0u6vXl2jB9yUg", "semel token expire 5Zk0F3T1Q0u6vXl2jB9yUg --after 10m"
    )
)
@fails_well
def expire(
    token_id: TokenId,
    after: Annotated[
        str | None,
        typer.Option(metavar=DURATION, help=f"In so long. Without it: at once. {DURATION_HELP}", show_default=False),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Take a delegation token back, at once or in a while. What was begun with it ends within some seconds."""
    after_ms = None if after is None else _milliseconds(after, "--after")
    with open_admin(bootstrap) as admin:
        expiry_ms = admin.expire_delegation_token(token_id, after_ms=after_ms)
    print(f"delegation token {token_id} {'is gone' if after is None else f'expires {moment(expiry_ms)}'}")


def _milliseconds(text: str, option: str) -> int:
    milliseconds = round(parse_duration(text, option) * 1000)
    if milliseconds < 1:
        raise UsageError(f"{option} {text} is no time: give 1ms or more")
    return milliseconds


def _check_folder(file: Path) -> None:
    """Raise `UsageError` where the file can't be written: before there is a token that nobody has."""
    if file.is_dir() or not os.access(file.resolve().parent, os.W_OK):
        raise UsageError(f"--file {file} can't be written: name a file in a directory where you may make one")


def _write(file: Path, text: str) -> None:
    """Replace a file at once, so that clients read the token before or this one; only its owner may read it."""
    target = file.resolve()
    descriptor, made = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")  # mode 0600
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as opened:
            opened.write(text)
            opened.flush()
            os.fsync(opened.fileno())
        os.replace(made, target)
    finally:
        Path(made).unlink(missing_ok=True)  # it has another name by then, where all went well


def _as_json(token: DelegationToken) -> dict[str, object]:
    return {
        "token_id": token.token_id,
        "owner": token.owner,
        "requester": token.requester,
        "renewers": list(token.renewers),
        "issue_timestamp_ms": token.issue_timestamp_ms,
        "expiry_timestamp_ms": token.expiry_timestamp_ms,
        "max_timestamp_ms": token.max_timestamp_ms,
    }
