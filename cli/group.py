"""`semel group`: list groups, see how far they are behind, and move their offsets."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import typer

import semel
from semel.cli.common import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    ExitCode,
    counted,
    fail,
    fail_for_partitions,
    fails_well,
    parse_partition,
    print_json,
    print_table,
    rows_of,
    state_of,
)
from semel.protocol.errors import UsageError
from semel.protocol.ids import TopicPartition

app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="List groups, see how far they are behind, and move their offsets."
)

STATES = (
    *("Empty", "PreparingRebalance", "CompletingRebalance", "Stable", "Dead"),
    *("Assigning", "Reconciling"),  # of the consumer group protocol
)

GroupId = Annotated[str, typer.Argument(metavar="GROUP", help="The group's id.")]


@app.command("list", epilog="Example: semel group list --state Stable")
@fails_well
def list_groups(
    state: Annotated[list[str] | None, typer.Option(help="Only these states, for example Empty.")] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """List the groups."""
    unknown = sorted(set(state or []) - set(STATES))
    if unknown:
        raise UsageError(f"there is no group state {unknown[0]}; the states are {', '.join(STATES)}")
    with semel.Admin(bootstrap) as admin:
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


@app.command(epilog="Example: semel group describe enrich")
@fails_well
def describe(group: GroupId, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: AsJson = False) -> None:
    """Show a group's members and its committed offsets with the lag behind the end of each partition."""
    with semel.Admin(bootstrap) as admin:
        description = admin.group(group)
        if description.state == "Dead":  # what Kafka's protocol answers for a group that was never there
            raise fail(f"there is no group {group!r}; `semel group list` shows those that are", ExitCode.REFUSED)
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


@app.command(epilog="Example: semel group reset enrich --topic orders --to earliest --yes")
@fails_well
def reset(
    group: GroupId,
    to: Annotated[
        str,
        typer.Option(
            metavar="WHERE",
            help="earliest, latest, an offset, or a time such as 2026-01-31T12:00:00+00:00, local without an offset.",
        ),
    ],
    topic: Annotated[list[str] | None, typer.Option(help="All partitions of this topic.")] = None,
    partition: Annotated[list[str] | None, typer.Option(metavar="TOPIC:PARTITION", help="One partition.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the new offsets, change nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Move the committed offsets of a group that has no members."""
    with semel.Admin(bootstrap) as admin:
        tps = [parse_partition(text) for text in partition or []]
        for name in topic or []:
            tps += [TopicPartition(name, p.partition) for p in admin.topic(name).partitions]
        if not tps:
            tps = sorted(admin.group_offsets(group))
        if not tps:
            raise UsageError(f"group {group} has no offsets to move; name --topic or --partition")
        targets = _targets(admin, tps, to)
        if not dry_run:
            if not yes:
                typer.confirm(f"Move {len(targets)} offsets of group {group} to {to}?", abort=True)
            admin.alter_group_offsets(group, targets)
    rows = [(tp.topic, tp.partition, offset) for tp, offset in rows_of(targets)]
    if as_json:
        print_json([{"topic": t, "partition": p, "offset": o} for t, p, o in rows])
    else:
        print_table(["topic", "partition", "offset"], rows, empty="nothing to move")


def _targets(admin: semel.Admin, tps: list[TopicPartition], to: str) -> dict[TopicPartition, int]:
    from semel.protocol.api.topics import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP

    starts = admin.list_offsets(dict.fromkeys(tps, EARLIEST_TIMESTAMP))
    ends = admin.list_offsets(dict.fromkeys(tps, LATEST_TIMESTAMP))
    if to == "earliest":
        return {tp: starts[tp].offset for tp in tps}
    if to == "latest":
        return {tp: ends[tp].offset for tp in tps}
    if to.isdecimal():
        return {tp: min(max(int(to), starts[tp].offset), ends[tp].offset) for tp in tps}
    found = admin.list_offsets(dict.fromkeys(tps, _moment_ms(to)))
    return {tp: found[tp].offset if found[tp].offset >= 0 else ends[tp].offset for tp in tps}


def _moment_ms(to: str) -> int:
    """Return a time in milliseconds since 1970, and 0 for what is before: negative ones mean something else."""
    try:
        moment = datetime.fromisoformat(to)
        return 0 if moment.year < 1970 else max(0, int(moment.timestamp() * 1000))
    except (ValueError, OverflowError):
        raise UsageError(f"--to takes earliest, latest, an offset or an ISO 8601 time, not {to!r}") from None


@app.command(epilog="Example: semel group delete enrich --yes")
@fails_well
def delete(
    group: GroupId,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Delete a group that has no members, with its committed offsets."""
    if not yes:
        typer.confirm(f"Delete group {group} and its committed offsets?", abort=True)
    with semel.Admin(bootstrap) as admin:
        admin.delete_group(group)
    print(f"group {group} is deleted")
