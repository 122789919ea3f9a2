"""`semel txn`: see what transactions are open, and end one that nobody else will."""

from __future__ import annotations

import base64
import dataclasses
import time
from datetime import UTC, datetime
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Literal

import typer

import semel
from semel.cli.common import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    ExitCode,
    command_here,
    fail,
    fails_well,
    parse_partition,
    print_json,
    print_table,
)
from semel.protocol.api.diagnostics import HISTORY_LIMIT_MAX
from semel.protocol.api.shared_transactions import NAME_BYTES_MAX, SharedDescription
from semel.protocol.errors import UsageError
from semel.protocol.wording import duration, moment

if TYPE_CHECKING:
    from semel.protocol.api.diagnostics import TransactionHistory
    from semel.protocol.ids import TopicPartition
    from semel.sdk.diagnosis.story import Story


class Outcome(Enum):
    """How a transaction was decided."""

    COMMIT = "commit"
    ABORT = "abort"


app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="See what transactions are open and what became of others, and end one that nobody else will.",
)

_PAYLOAD_SHOWN_MAX = 60

Name = Annotated[
    str,
    typer.Argument(metavar="NAME", help="A producer's transactional id, or the key of a shared transaction."),
]
Shared = Annotated[
    bool, typer.Option("--shared", help="NAME is a key of shared transactions, also where a producer is called so.")
]


@app.command("list", epilog="Example: semel txn list --state Ongoing --longer-than 60000")
@fails_well
def list_transactions(
    state: Annotated[list[str] | None, typer.Option(help="Only these states, for example Ongoing.")] = None,
    longer_than: Annotated[int, typer.Option(metavar="MS", help="Only those open for longer than this.")] = -1,
    pattern: Annotated[str, typer.Option(help="Only ids that match this regular expression.")] = "",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """List transactional ids with the state of their latest transaction."""
    with semel.Admin(bootstrap) as admin:
        found = admin.transactions(states=state or [], min_duration_ms=longer_than, pattern=pattern)
    rows = sorted(found, key=lambda transaction: transaction.transactional_id)
    if as_json:
        print_json(
            [{"transactional_id": t.transactional_id, "producer_id": t.producer_id, "state": t.state} for t in rows]
        )
    else:
        print_table(
            ["transactional id", "producer id", "state"],
            [(t.transactional_id, t.producer_id, t.state) for t in rows],
            empty="no transactions",
            whole=True,
        )
    if found.unreadable:
        raise fail(
            f"ids are missing here, because partitions of their coordinators can't be read: "
            f"{'; '.join(found.unreadable)}. `semel doctor` says what to do",
            ExitCode.REFUSED,
        )


@app.command(epilog="Example: semel txn describe enrich-0")
@fails_well
def describe(
    name: Name, shared: Shared = False, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: AsJson = False
) -> None:
    """Show one transactional id, or the key of a shared transaction: who has open what, since when, and where."""
    with semel.Admin(bootstrap) as admin:
        if shared or _is_only_a_key(admin, name):
            _describe_shared(admin.shared_transaction(name), as_json=as_json)
            return
        found = admin.transaction(name)
    open_ms = int(time.time() * 1000) - found.start_time_ms if found.start_time_ms >= 0 else None
    if as_json:
        print_json(
            {
                "transactional_id": found.transactional_id,
                "state": found.state,
                "producer_id": found.producer.producer_id,
                "producer_epoch": found.producer.producer_epoch,
                "timeout_ms": found.timeout_ms,
                "open_ms": open_ms,
                "partitions": [str(tp) for tp in found.partitions],
            }
        )
        return
    print(f"{found.transactional_id} is {found.state}")
    print(f"  producer   {found.producer.producer_id}, epoch {found.producer.producer_epoch}")
    print(f"  timeout    {duration(found.timeout_ms)}")
    if open_ms is not None:
        print(f"  open for   {duration(max(0, open_ms))}")
    if found.partitions:
        print(f"  partitions {', '.join(map(str, found.partitions))}")


def _is_only_a_key(admin: semel.Admin, name: str) -> bool:
    """Whether shared transactions know this name, and no producer has it as its transactional id."""
    try:
        admin.transaction(name)
    except semel.FatalError as error:
        if error.code is not semel.ErrorCode.TRANSACTIONAL_ID_NOT_FOUND or len(name.encode()) > NAME_BYTES_MAX:
            raise
        found = admin.shared_transaction(name)
        return bool(found.attempt or found.writers or found.decisions)
    return False


def _describe_shared(found: SharedDescription, *, as_json: bool) -> None:
    """Show the attempt that is open under a key, its writers, and the last commit."""
    now_ms = int(time.time() * 1000)
    writers = [(writer, max(0, now_ms - writer.start_ms) if writer.start_ms >= 0 else None) for writer in found.writers]
    own = [decision for decision in found.decisions if decision.attempt]
    last = next(reversed(own or found.decisions), None)  # of a producer whose id has expired, its own
    if as_json:
        print_json(
            {
                "key": found.key,
                "attempt": found.attempt or None,
                "token": found.token or None,
                "sequence": _sequence(found.sequence),
                "writers": [
                    {
                        "transactional_id": writer.transactional_id,
                        "producer_id": writer.producer.producer_id,
                        "producer_epoch": writer.producer.producer_epoch,
                        "state": writer.state,
                        "open_ms": open_ms,
                    }
                    for writer, open_ms in writers
                ],
                "last_commit": None if last is None else _commit_as_json(last),
            }
        )
        return
    if found.attempt:
        sequence = "" if found.sequence < 0 else f", sequence {found.sequence}"
        print(f"{found.key} has attempt {found.attempt} open, for token {found.token}{sequence}")
    else:
        print(f"{found.key} has nothing open")
    for writer, open_ms in writers:
        since = "has written nothing" if open_ms is None else f"open for {duration(open_ms)}"
        print(f"  writer      {writer.transactional_id} is {writer.state}, {since}")
    if last is not None:
        print(f"  last commit token {last.token}, {duration(max(0, now_ms - last.decided_ms))} ago")


def _commit_as_json(commit: semel.CommitDecision) -> dict[str, object]:
    return {
        "token": commit.token,
        "sequence": _sequence(commit.sequence),
        "payload_base64": base64.b64encode(commit.payload).decode(),
        "attempt": commit.attempt or None,
        "decided_ms": commit.decided_ms,
        "writers": commit.writers,
    }


def _sequence(sequence: int) -> int | None:
    return None if sequence < 0 else sequence


@app.command(epilog="Example: semel txn commits nightly-import")
@fails_well
def commits(
    key: Annotated[
        str, typer.Argument(metavar="KEY", help="The key of a shared transaction, or a producer's transactional id.")
    ],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Show what was committed under a key, the newest last: the answer to "did it commit?" after a crash."""
    with semel.Admin(bootstrap) as admin:
        found = admin.commits(key)
    if as_json:
        print_json([_commit_as_json(commit) for commit in found])
        return
    print_table(
        ["token", "sequence", "decided", "writers", "payload"],
        [
            (
                commit.token,
                "" if commit.sequence < 0 else commit.sequence,
                datetime.fromtimestamp(commit.decided_ms / 1000, UTC).isoformat(timespec="seconds"),
                commit.writers,
                _shown(commit.payload),
            )
            for commit in found
        ],
        empty=f"nothing was committed with a token under {key}",
    )


def _shown(payload: bytes) -> str:
    """A payload as far as it fits a table: text where it is text."""
    text = payload.decode("utf-8", "replace")
    if not text.isprintable() or "\N{REPLACEMENT CHARACTER}" in text:
        return f"{len(payload)} bytes" if payload else ""
    return text if len(text) <= _PAYLOAD_SHOWN_MAX else f"{text[:_PAYLOAD_SHOWN_MAX]}..."


@app.command(
    epilog="Exit codes: 0 there is a story; 1 the log has nothing about KEY.\n\n"
    "Examples:\n\nsemel txn why enrich-0\n\nsemel txn why nightly-import --token 2026-11-20"
)
@fails_well
def why(
    key: Annotated[
        str, typer.Argument(metavar="KEY", help="A producer's transactional id, or the key of shared transactions.")
    ],
    token: Annotated[str, typer.Option(help="Only what led to the commit with this token, and what came of it.")] = "",
    limit: Annotated[int, typer.Option(min=1, max=HISTORY_LIMIT_MAX, help="How many steps, the newest.")] = 200,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Tell a transaction's story from the log: every state, when, by whom, where, and what came of it.

    It is read from the log, and not from the coordinator's memory: so it works also where the coordinator does not. It
    ends with what is not known any more, what will happen next, and the command that changes it.
    """
    from semel.sdk.diagnosis.story import tell

    with semel.Admin(bootstrap, client_id="semel-txn-why") as admin:
        history = admin.transaction_history(key, limit=limit)
    story = tell(history, token)
    if as_json:
        print_json(_history_as_json(history, story))
    else:
        print(story.title)
        for step in story.steps:
            print(f"  {moment(step.time_ms, timespec='milliseconds')}  {step.text}")
        for gap in story.gaps:
            print(f"  not known: {gap}")
        if story.steps:
            print(f"next: {story.outlook}")
            for text in story.commands:
                print(f"  $ {command_here(text, bootstrap)}")
    if story.is_empty:
        about = f"token {token!r} of {key!r}" if token else repr(key)
        raise fail(
            f"the log has nothing about {about}: it was never used here, or is forgotten by its age", ExitCode.REFUSED
        )


def _history_as_json(history: TransactionHistory, story: Story) -> dict[str, object]:
    return {
        "key": history.key,
        "coordinator": str(history.coordinator),
        "log_start_offset": history.log_start_offset,
        "log_end_offset": history.log_end_offset,
        "compacted_to": history.compacted_to,
        "steps": [
            {"time_ms": step.time_ms, "offset": step.offset if step.offset >= 0 else None, "text": step.text.strip()}
            for step in story.steps
        ],
        "events": [dataclasses.asdict(event) for event in history.events],
        "writes": [dataclasses.asdict(write) for write in history.writes],
        "not_known": story.gaps,
        "next": story.outlook,
        "commands": story.commands,
    }


@app.command(
    epilog="Examples:\n\nsemel txn abort enrich-0 --yes\n\n"
    "semel txn abort --partition orders:0 --start-offset 1200 --yes"
)
@fails_well
def abort(
    name: Annotated[
        str,
        typer.Argument(metavar="[NAME]", help="A producer's transactional id, or the key of a shared transaction."),
    ] = "",
    shared: Shared = False,
    partition: Annotated[
        str, typer.Option(metavar="TOPIC:PARTITION", help="In place of NAME: where a transaction hangs.")
    ] = "",
    start_offset: Annotated[
        int | None, typer.Option(min=0, help="Where the transaction that hangs begins on --partition.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Abort the open transaction of a transactional id, or of a key with all its writers. Who holds it is fenced.

    With --partition and --start-offset, write an abort marker for a transaction that hangs on one partition: one that
    no coordinator knows, so that it has no name. `semel doctor` finds those. One that a coordinator knows is refused,
    also when it is decided and over: `semel txn finish` is for that.
    """
    if bool(name) == bool(partition):
        raise UsageError("name a transactional id or a key, or else --partition TOPIC:PARTITION with --start-offset")
    if bool(partition) != (start_offset is not None):
        raise UsageError("--partition and --start-offset belong together: `semel doctor` names both")
    if start_offset is not None:
        _abort_hanging(parse_partition(partition), start_offset, bootstrap, yes=yes)
        return
    if not yes:
        typer.confirm(f"Abort what {name} has open, and fence its producer?", abort=True)
    with semel.Admin(bootstrap) as admin:
        if shared or _is_only_a_key(admin, name):
            found = admin.abort_shared_transaction(name)
            print(f"attempt {found.attempt} of {name} is aborted, with its {len(found.writers)} writers")
            return
        admin.abort_transaction(name)
    print(f"the open transaction of {name} is aborted")


@app.command(epilog="Example: semel txn finish --partition orders:0 --start-offset 1200 --yes")
@fails_well
def finish(
    partition: Annotated[
        str, typer.Option(metavar="TOPIC:PARTITION", help="The partition that lacks the transaction's marker.")
    ],
    start_offset: Annotated[int, typer.Option(min=0, help="Where the transaction begins on --partition.")],
    decision: Annotated[
        Outcome | None,
        typer.Option("--as", help="How it was decided, only where its coordinator's log does not tell any more."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Write the marker that a partition has lost of a decided transaction: by the decision in its coordinator's log.

    `semel doctor` finds those, and names this command. A decision is never changed by it.
    """
    tp = parse_partition(partition)
    if not yes:
        typer.confirm(f"Write the missing marker of the transaction at offset {start_offset} of {tp}?", abort=True)
    outcome: Literal["commit", "abort"] | None = None
    if decision is not None:
        outcome = "commit" if decision is Outcome.COMMIT else "abort"
    with semel.Admin(bootstrap) as admin:
        committed = admin.finish_hanging_transaction(tp, start_offset, outcome)
    print(f"the transaction at offset {start_offset} of {tp} is {'committed' if committed else 'aborted'}")


def _abort_hanging(tp: TopicPartition, start_offset: int, bootstrap: str, *, yes: bool) -> None:
    if not yes:
        typer.confirm(f"Write an abort marker for the transaction at offset {start_offset} of {tp}?", abort=True)
    with semel.Admin(bootstrap) as admin:
        producer = admin.abort_hanging_transaction(tp, start_offset)
    print(
        f"the transaction at offset {start_offset} of {tp} is aborted: that of producer {producer.producer_id}, epoch "
        f"{producer.producer_epoch}"
    )
