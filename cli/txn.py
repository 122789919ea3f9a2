"""`semel txn`: list and inspect transactions, and abort or finish those that block readers."""

from __future__ import annotations

import base64
import dataclasses
import sys
import time
from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Literal

import typer

import semel
from semel.cli.common import (
    DEFAULT_BOOTSTRAP,
    DURATION,
    DURATION_HELP,
    AsJson,
    Bootstrap,
    ExitCode,
    command_app,
    command_here,
    confirm,
    examples,
    fail,
    fails_well,
    open_admin,
    parse_duration,
    parse_partition,
    print_json,
    print_table,
)
from semel.cli.live import watchable
from semel.protocol.api.commit_decisions import NAME_BYTES_MAX
from semel.protocol.api.diagnostic_limits import HISTORY_LIMIT_MAX
from semel.protocol.api.shared_transactions import SharedDescription
from semel.protocol.errors import UsageError
from semel.protocol.wording import duration, moment, partition_argument

if TYPE_CHECKING:
    from semel.protocol.api.diagnostics import TransactionHistory
    from semel.protocol.ids import ProducerIdAndEpoch, TopicPartition
    from semel.sdk.diagnosis.story import Story


class Outcome(Enum):
    """How a transaction was decided."""

    COMMIT = "commit"
    ABORT = "abort"


app = command_app("List and inspect transactions, and abort or finish those that block readers.")

_PAYLOAD_SHOWN_MAX = 60
_MEANT_AS_MS = 1000 * 1000
"""From 1000 on, a plain number of --longer-than is likely from the time when it was milliseconds."""

Name = Annotated[
    str,
    typer.Argument(metavar="NAME", help="A producer's transactional id, or the key of a shared transaction."),
]
Shared = Annotated[
    bool,
    typer.Option(
        "--shared", help="NAME is a key of shared transactions, even if a producer has this transactional id too."
    ),
]


@app.command("list", epilog=examples("semel txn list --state Ongoing --longer-than 1m"))
@fails_well
@watchable
def list_transactions(
    state: Annotated[
        list[str] | None,
        typer.Option(metavar="STATE", help="Only this state, for example Ongoing. Can be given several times."),
    ] = None,
    longer_than: Annotated[
        str | None, typer.Option(metavar=DURATION, help=f"Only transactions open longer than this. {DURATION_HELP}")
    ] = None,
    pattern: Annotated[str, typer.Option(metavar="REGEX", help="Only ids that match this regular expression.")] = "",
    shared: Annotated[
        bool, typer.Option("--shared", help="List the keys of shared transactions, such as Spark's, instead.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """List transactional ids with the state of their latest transaction, and the last commit that had a token."""
    if shared:
        if state or longer_than is not None or pattern:
            raise UsageError("--shared lists all keys: it goes with none of --state, --longer-than and --pattern")
        _list_shared(bootstrap, as_json=as_json)
        return
    longer_ms = -1 if longer_than is None else round(parse_duration(longer_than, "--longer-than") * 1000)
    if longer_than is not None and longer_than.isdecimal() and longer_ms >= _MEANT_AS_MS:
        print(
            f"semel: --longer-than {longer_than} is {duration(longer_ms)}: a plain number is seconds, and was "
            f"milliseconds before; write {longer_than}ms for those",
            file=sys.stderr,
        )
    with open_admin(bootstrap) as admin:
        found = admin.transactions(states=state or [], min_duration_ms=longer_ms, pattern=pattern)
    rows = sorted(found, key=lambda transaction: transaction.transactional_id)
    if as_json:
        print_json(
            [
                {
                    "transactional_id": t.transactional_id,
                    "producer_id": t.producer_id,
                    "state": t.state,
                    "last_token": t.last_token or None,
                    "last_commit_ms": t.last_commit_ms if t.last_token else None,
                }
                for t in rows
            ]
        )
    else:
        print_table(
            ["transactional id", "producer id", "state", "last token", "committed"],
            [
                (t.transactional_id, t.producer_id, t.state, t.last_token, t.last_token and moment(t.last_commit_ms))
                for t in rows
            ],
            empty="no transactions",
            whole=True,
        )
    _check_readable("ids", found.unreadable)


def _list_shared(bootstrap: str, *, as_json: bool) -> None:
    with open_admin(bootstrap) as admin:
        found = admin.shared_transactions()
    rows = sorted(found, key=lambda one: one.key)
    if as_json:
        print_json(
            [
                {
                    "key": one.key,
                    "open_token": one.open_token or None,
                    "last_token": one.last_token or None,
                    "last_commit_ms": one.last_commit_ms if one.last_token else None,
                }
                for one in rows
            ]
        )
    else:
        print_table(
            ["key", "open token", "last token", "committed"],
            [(one.key, one.open_token, one.last_token, one.last_token and moment(one.last_commit_ms)) for one in rows],
            empty="no shared transactions",
            whole=True,
        )
    _check_readable("keys", found.unreadable)


def _check_readable(what: str, unreadable: Sequence[str]) -> None:
    if unreadable:
        raise fail(
            f"{what} are missing here, because partitions of their coordinators can't be read: "
            f"{'; '.join(unreadable)}. `semel doctor` says what to do",
            ExitCode.REFUSED,
        )


@app.command(epilog=examples("semel txn describe enrich-0"))
@fails_well
def describe(
    name: Name, shared: Shared = False, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: AsJson = False
) -> None:
    """Show a transactional id or the key of a shared transaction: what is open, since when, and where."""
    with open_admin(bootstrap) as admin:
        if shared or _is_only_a_key(admin, name):
            _describe_shared(admin.shared_transaction(name), as_json=as_json)
            return
        found = admin.transaction(name)
        last = next((one for one in reversed(admin.commits(name)) if not one.attempt), None)
    now_ms = int(time.time() * 1000)
    open_ms = now_ms - found.start_time_ms if found.start_time_ms >= 0 else None
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
                "last_commit": None if last is None else _commit_as_json(last),
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
    if last is not None:
        # The state is of the latest try, which may have repeated a token: that one is aborted, and this stands.
        print(f"  committed  {_last_commit(last, now_ms)}")


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
        print(f"  last commit {_last_commit(last, now_ms)}")


def _last_commit(commit: semel.CommitDecision, now_ms: int) -> str:
    return f"token {commit.token}, {moment(commit.decided_ms)} ({duration(max(0, now_ms - commit.decided_ms))} ago)"


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


@app.command(epilog=examples("semel txn commits nightly-import"))
@fails_well
def commits(
    key: Annotated[
        str, typer.Argument(metavar="KEY", help="The key of a shared transaction, or a producer's transactional id.")
    ],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Show what was committed under a key, newest last: the answer to "did it commit?" after a crash."""
    with open_admin(bootstrap) as admin:
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
                moment(commit.decided_ms),
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
    epilog=examples(
        "semel txn why enrich-0",
        "semel txn why nightly-import --token 2026-11-20",
        exit_codes="0 found; 1 the log has nothing about KEY",
    )
)
@fails_well
def why(
    key: Annotated[
        str, typer.Argument(metavar="KEY", help="A producer's transactional id, or the key of shared transactions.")
    ],
    token: Annotated[str, typer.Option(metavar="TOKEN", help="Only the transaction that committed this token.")] = "",
    limit: Annotated[
        int, typer.Option(min=1, max=HISTORY_LIMIT_MAX, metavar="N", help="How many steps to show, the newest.")
    ] = 200,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Show the history of transactions from the log: every state, when, by whom, on which partitions, and the outcome.

    It is read from the log, not from the coordinator's memory, so it works even if the coordinator does not. At the
    end: what is no longer known, what will happen next, and the command that changes it.
    """
    from semel.sdk.diagnosis.story import tell

    with open_admin(bootstrap, client_id="semel-txn-why") as admin:
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
            f"the log has nothing about {about}: it was never used here, or has expired. `semel txn list` shows "
            f"the ids",
            ExitCode.REFUSED,
        )


def _history_as_json(history: TransactionHistory, story: Story) -> dict[str, object]:
    return {
        "key": history.key,
        "coordinator": str(history.coordinator),
        "coordinator_node": history.coordinator_node,
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
    epilog=examples("semel txn abort enrich-0 --yes", "semel txn abort --partition orders:0 --start-offset 1200 --yes")
)
@fails_well
def abort(
    name: Annotated[
        str,
        typer.Argument(metavar="[NAME]", help="A producer's transactional id, or the key of a shared transaction."),
    ] = "",
    shared: Shared = False,
    partition: Annotated[
        str, typer.Option(metavar="TOPIC:PARTITION", help="Instead of NAME: the partition where a transaction hangs.")
    ] = "",
    start_offset: Annotated[
        int | None,
        typer.Option(min=0, metavar="OFFSET", help="The first offset of the hanging transaction on --partition."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Abort the open transaction of a transactional id, or of a key with all its writers. The producer is fenced.

    With --partition and --start-offset: write an abort marker for a hanging transaction, one that no coordinator knows
    any more. A transaction that a coordinator knows is refused, even if it is completed. `semel txn finish` finds out
    which of the two it is, and does what is right.
    """
    if bool(name) == bool(partition):
        raise UsageError("name a transactional id or a key, or else --partition TOPIC:PARTITION with --start-offset")
    if bool(partition) != (start_offset is not None):
        raise UsageError("--partition and --start-offset belong together: `semel doctor` names both")
    if start_offset is not None:
        _abort_hanging(parse_partition(partition), start_offset, bootstrap, yes=yes)
        return
    if not yes:
        confirm(f"Abort what {name} has open, and fence its producer?")
    with open_admin(bootstrap) as admin:
        if shared or _is_only_a_key(admin, name):
            found = admin.abort_shared_transaction(name)
            print(f"attempt {found.attempt} of {name} is aborted, with its {len(found.writers)} writers")
            return
        admin.abort_transaction(name)
    print(f"the open transaction of {name} is aborted")


@app.command(
    epilog=examples(
        "semel txn finish enrich-0",
        "semel txn finish --partition orders:0 --start-offset 1200 --yes",
        exit_codes="0 nothing is left unfinished; 1 something is, and can't be finished: it says why",
    )
)
@fails_well
def finish(
    name: Annotated[
        str,
        typer.Argument(metavar="[NAME]", help="A producer's transactional id, or the key of a shared transaction."),
    ] = "",
    partition: Annotated[
        str, typer.Option(metavar="TOPIC:PARTITION", help="Instead of NAME: the partition whose readers wait.")
    ] = "",
    start_offset: Annotated[
        int | None, typer.Option(min=0, metavar="OFFSET", help="The first offset of the transaction on --partition.")
    ] = None,
    decision: Annotated[
        Outcome | None,
        typer.Option("--as", help="The decision, only if the coordinator's log no longer has it."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Finish a transaction that blocks readers and that nothing else will finish. A decision is never changed.

    A decided transaction gets the markers that partitions have lost, as its coordinator's log says: commit or abort. A
    hanging transaction, one that no coordinator knows any more, is aborted: its records will never be read, so this
    command asks first. An open transaction is left alone: `semel txn abort` ends it. `semel doctor` finds all of these
    and names the command.
    """
    if bool(name) == bool(partition):
        raise UsageError("name a transactional id or a key, or else --partition TOPIC:PARTITION with --start-offset")
    if bool(partition) != (start_offset is not None):
        raise UsageError("--partition and --start-offset belong together: `semel doctor` names both")
    with open_admin(bootstrap) as admin:
        if start_offset is not None:
            _finish_on(admin, parse_partition(partition), start_offset, decision, yes=yes)
        else:
            _finish_by_name(admin, name, decision, bootstrap, yes=yes)


def _finish_by_name(admin: semel.Admin, name: str, decision: Outcome | None, bootstrap: str, *, yes: bool) -> None:
    """Finish a transaction on all partitions that lack its marker. Raises the exit where it is not decided."""
    from semel.sdk.diagnosis.story import missing_markers, tell

    history = admin.transaction_history(name, limit=HISTORY_LIMIT_MAX)
    if history.writes_cut:
        raise fail(
            f"too much was written to the partitions of {name} to look through all of it; `semel doctor` names those "
            "whose readers wait, with the command for each",
            ExitCode.REFUSED,
        )
    missing = [place for places in missing_markers(history).values() for place in places]
    for tp, start_offset in missing:
        _finish_on(admin, tp, start_offset, decision, yes=yes)
    story = tell(admin.transaction_history(name, limit=HISTORY_LIMIT_MAX) if missing else history)
    if story.is_empty:
        raise fail(f"the log has nothing about {name!r}: it was never used here, or has expired", ExitCode.REFUSED)
    if story.commands:
        commands = "`, `".join(command_here(text, bootstrap) for text in story.commands)
        raise fail(f"{name} is not finished: {story.outlook}. See `{commands}`", ExitCode.REFUSED)
    if not missing:
        print(f"no partition lacks a marker of {name}")


def _finish_on(
    admin: semel.Admin, tp: TopicPartition, start_offset: int, decision: Outcome | None, *, yes: bool
) -> None:
    """Finish the transaction that begins at `start_offset` of a partition: as it was decided, else by an abort."""
    what = _transaction_at(tp, start_offset)
    outcome: Literal["commit", "abort"] | None = None
    if decision is not None:
        outcome = "commit" if decision is Outcome.COMMIT else "abort"
        if not yes:
            confirm(f"Write the {outcome} marker of {what}, because you know that this was decided?")
    try:
        committed = admin.finish_hanging_transaction(tp, start_offset, outcome)
    except semel.FatalError as error:
        if error.code is not semel.ErrorCode.TRANSACTIONAL_ID_NOT_FOUND or decision is Outcome.COMMIT:
            raise
    else:
        print(f"{what} is {'committed' if committed else 'aborted'}")
        return
    print(f"no coordinator knows {what}, so nothing will decide it: an abort marker ends it", file=sys.stderr)
    if not yes:
        confirm("Write the abort marker? Its records on this partition will never be read.")
    _print_aborted(tp, start_offset, admin.abort_hanging_transaction(tp, start_offset))


def _abort_hanging(tp: TopicPartition, start_offset: int, bootstrap: str, *, yes: bool) -> None:
    if not yes:
        confirm(f"Write an abort marker for {_transaction_at(tp, start_offset)}?")
    with open_admin(bootstrap) as admin:
        producer = admin.abort_hanging_transaction(tp, start_offset)
    _print_aborted(tp, start_offset, producer)


def _transaction_at(tp: TopicPartition, start_offset: int) -> str:
    return f"the transaction at offset {start_offset} of {partition_argument(tp)}"


def _print_aborted(tp: TopicPartition, start_offset: int, producer: ProducerIdAndEpoch) -> None:
    print(
        f"{_transaction_at(tp, start_offset)} is aborted: that of producer {producer.producer_id}, epoch "
        f"{producer.producer_epoch}"
    )
