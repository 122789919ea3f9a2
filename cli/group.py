"""`semel group`: list and describe groups, show their lag, reset their offsets, and delete them."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated

import typer

import semel
from semel.cli.common import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    ExitCode,
    RenamedCommands,
    command_app,
    command_here,
    confirm,
    counted,
    delete_when_sure,
    examples,
    fail,
    fail_for_partitions,
    fails_well,
    open_admin,
    parse_partition,
    print_json,
    print_table,
    rows_of,
    state_of,
)
from semel.cli.live import watchable
from semel.cli.moments import MOMENT_FORMS, parse_moment
from semel.protocol.errors import UsageError
from semel.protocol.ids import TopicPartition


class _Commands(RenamedCommands):
    old_names = MappingProxyType({"reset": "reset-offsets"})


app = command_app("List and describe groups, show their lag, reset their offsets, and delete them.", cls=_Commands)

STATES = (
    *("Empty", "PreparingRebalance", "CompletingRebalance", "Stable", "Dead"),
    *("Assigning", "Reconciling"),  # of the consumer group protocol
)

GroupId = Annotated[str, typer.Argument(metavar="GROUP", help="The group's id.")]


@app.command("list", epilog=examples("semel group list --state Stable"))
@fails_well
@watchable
def list_groups(
    state: Annotated[
        list[str] | None,
        typer.Option(metavar="STATE", help="Only this state, for example Empty. Can be given several times."),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """List the groups."""
    unknown = sorted(set(state or []) - set(STATES))
    if unknown:
        raise UsageError(f"there is no group state {unknown[0]}; the states are {', '.join(STATES)}")
    with open_admin(bootstrap) as admin:
        found = admin.groups(states=state or [])
    groups = sorted(found, key=lambda group: group.group_id)
    if as_json:
        print_json([{"group": g.group_id, "state": g.state, "protocol_type": g.protocol_type} for g in groups])
    else:
        print_table(["group", "state"], [(g.group_id, g.state) for g in groups], empty="no groups")
    if found.unreadable:
        raise fail(
            f"groups are missing here, because partitions of their coordinators can't be read: "
            f"{'; '.join(found.unreadable)}. `semel doctor` says what to do",
            ExitCode.REFUSED,
        )


@app.command(epilog=examples("semel group describe enrich"))
@fails_well
@watchable
def describe(group: GroupId, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: AsJson = False) -> None:
    """Show a group's members, its committed offsets, and its lag in each partition."""
    with open_admin(bootstrap) as admin:
        description = admin.group(group)
        if description.state == "Dead":  # what Kafka's protocol answers for a group that does not exist
            raise fail(
                f"there is no group {group!r}; `{command_here('semel group list', bootstrap)}` shows the groups",
                ExitCode.REFUSED,
            )
        lags = admin.look_up_lag(group)
        owners = admin.group_owners(description)
    errors = {tp: lag.error for tp, lag in lags.items() if lag.error is not None}
    if as_json:
        print_json(
            {
                "group": group,
                "state": description.state,
                "generation": description.generation_id,
                "assignor": description.protocol_name,
                "members": [
                    {"member_id": m.member_id, "client_id": m.client_id, "host": m.client_host}
                    for m in description.members
                ],
                "offsets": [
                    {
                        "topic": tp.topic,
                        "partition": tp.partition,
                        "committed": lag.committed,
                        "end": lag.end_offset if lag.error is None else None,
                        "lag": lag.lag if lag.error is None else None,
                        "member_id": owners.get(tp),
                        **({} if lag.error is None else {"error": state_of(lag.error)}),
                    }
                    for tp, lag in rows_of(lags)
                ],
            }
        )
        fail_for_partitions(errors, bootstrap)
        return
    assignor = f", assignor {description.protocol_name}" if description.protocol_name else ""
    print(f"{group} is {description.state}, {counted(len(description.members), 'member')}{assignor}")
    print_table(
        ["topic", "partition", "committed", "end", "lag", "member"],
        [
            (
                tp.topic,
                tp.partition,
                lag.committed if lag.committed >= 0 else None,
                lag.end_offset if lag.error is None else state_of(lag.error),
                lag.lag if lag.error is None else None,
                owners.get(tp),
            )
            for tp, lag in rows_of(lags)
        ],
        empty="nothing committed",
    )
    total = sum(lag.lag for lag in lags.values() if lag.error is None)
    print(f"total lag: {total}" + (f", without {counted(len(errors), 'partition')}" if errors else ""))
    fail_for_partitions(errors, bootstrap)


@app.command(
    epilog=examples(
        "semel group reset-offsets enrich --topic orders --to earliest --dry-run",
        "semel group reset-offsets enrich --partition orders:0 --to 1205 --yes",
        "semel group reset-offsets audit --topic orders --to latest --create --yes",
    )
)
@fails_well
def reset_offsets(
    group: GroupId,
    to: Annotated[
        str,
        typer.Option(
            metavar="WHERE",
            help=f"earliest, latest, an offset, or a time: {MOMENT_FORMS}.",
        ),
    ],
    topic: Annotated[
        list[str] | None,
        typer.Option(metavar="TOPIC", help="All partitions of this topic. Can be given several times."),
    ] = None,
    partition: Annotated[
        list[str] | None, typer.Option(metavar="TOPIC:PARTITION", help="One partition. Can be given several times.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show old and new offsets, and change nothing.")] = False,
    create: Annotated[
        bool, typer.Option("--create", help="Create the group if it does not exist: it then begins at these offsets.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Change the committed offsets of a group that has no members.

    Offsets beyond the start or the end of a partition are set to its start or end, and marked so.
    """
    target = _Target.of(to)
    with open_admin(bootstrap) as admin:
        if not create and admin.group(group).state == "Dead":
            groups = command_here("semel group list", bootstrap)
            raise fail(
                f"there is no group {group!r}; `{groups}` shows the groups, and --create makes a new one",
                ExitCode.REFUSED,
            )
        old = {tp: committed.offset for tp, committed in admin.group_offsets(group).items()}
        tps = [parse_partition(text) for text in partition or []]
        for name in topic or []:
            tps += [TopicPartition(name, p.partition) for p in admin.topic(name).partitions]
        if not tps:
            tps = sorted(old)
        if not tps:
            raise UsageError(f"group {group} has no committed offsets; give --topic or --partition")
        new = _new_offsets(admin, tps, target)
        if not dry_run:
            if not yes:
                confirm(f"Reset {counted(len(new), 'offset')} of group {group} to {to}?")
            admin.alter_group_offsets(group, {tp: place.offset for tp, place in new.items()})
    if as_json:
        print_json(
            [
                {
                    "topic": tp.topic,
                    "partition": tp.partition,
                    "old": old.get(tp),
                    "offset": place.offset,
                    "clamped_to": place.clamped_to,
                }
                for tp, place in rows_of(new)
            ]
        )
        return
    print_table(
        ["topic", "partition", "old", "new", "note"],
        [(tp.topic, tp.partition, old.get(tp), place.offset, place.note(target)) for tp, place in rows_of(new)],
        empty="nothing to reset",
    )
    if dry_run:
        print("nothing was changed (--dry-run)", file=sys.stderr)


@dataclass(frozen=True, slots=True)
class _Target:
    """Where offsets are to be: at the start, at the end, at an offset, or at a time."""

    word: str = ""
    offset: int = -1
    time_ms: int = -1

    @classmethod
    def of(cls, text: str) -> _Target:
        """Return what --to says. Raises `UsageError`."""
        if text in ("earliest", "latest"):
            return cls(word=text)
        if text.isdecimal():
            return cls(offset=int(text))
        return cls(time_ms=parse_moment(text, "--to", int(time.time() * 1000), also="earliest, latest, an offset, "))


@dataclass(frozen=True, slots=True)
class _NewOffset:
    """What a partition's offset becomes."""

    offset: int
    clamped_to: str | None = None
    """"start" or "end", where the log does not have what was asked for."""

    def note(self, target: _Target) -> str:
        if self.clamped_to is None:
            return ""
        if target.time_ms >= 0:
            return "no record is that new: set to the end"
        return f"{target.offset} is not in the log: set to its {self.clamped_to}"


def _new_offsets(admin: semel.Admin, tps: list[TopicPartition], target: _Target) -> dict[TopicPartition, _NewOffset]:
    from semel.protocol.api.topics import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP

    starts = admin.list_offsets(dict.fromkeys(tps, EARLIEST_TIMESTAMP))
    ends = admin.list_offsets(dict.fromkeys(tps, LATEST_TIMESTAMP))
    if target.word:
        return {tp: _NewOffset((starts if target.word == "earliest" else ends)[tp].offset) for tp in tps}
    if target.offset >= 0:
        return {tp: _clamped(target.offset, starts[tp].offset, ends[tp].offset) for tp in tps}
    found = admin.list_offsets(dict.fromkeys(tps, target.time_ms))
    return {
        tp: _NewOffset(found[tp].offset) if found[tp].offset >= 0 else _NewOffset(ends[tp].offset, "end") for tp in tps
    }


def _clamped(offset: int, start: int, end: int) -> _NewOffset:
    if offset < start:
        return _NewOffset(start, "start")
    return _NewOffset(end, "end") if offset > end else _NewOffset(offset)


@app.command(epilog=examples("semel group delete enrich --yes"))
@fails_well
def delete(
    group: GroupId,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Delete a group that has no members, with its committed offsets."""
    what = f"group {group} and its committed offsets"
    delete_when_sure(
        what, lambda admin: admin.delete_group(group), bootstrap, done=f"group {group} is deleted", yes=yes
    )
