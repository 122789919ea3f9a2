"""`semel partition`: move replicas to other nodes, and have other replicas lead."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

import semel
from semel.cli.common import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    ExitCode,
    command_app,
    command_here,
    confirm,
    counted,
    examples,
    fail,
    fails_well,
    open_admin,
    parse_partition,
    print_json,
    print_table,
    rows_of,
)
from semel.cli.live import watchable
from semel.cli.move_progress import copied_bytes, waits_for
from semel.cli.moving import (
    AT_ONCE,
    AtOnce,
    Throttle,
    Yes,
    carry_out_and_tell,
    tell_removed,
    throttle_rate,
    throttled,
)
from semel.protocol.errors import ErrorCode, SemelError, UsageError
from semel.protocol.ids import TopicPartition
from semel.protocol.wording import partition_argument, size

if TYPE_CHECKING:
    from semel.protocol.api.cluster import Reassignment
    from semel.sdk.balancing.copies import Copy

app = command_app("Move replicas to other nodes, and have other replicas lead.")

_NAMED_MAX = 20

Partitions = Annotated[
    list[str],
    typer.Argument(
        metavar="TOPIC[:NUMBER]...",
        help="Partitions, for example orders:0; or all of a topic: orders.",
        show_default=False,
    ),
]
SomePartitions = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[TOPIC[:NUMBER]...]",
        help="Partitions, for example orders:0; or all of a topic: orders.",
        show_default=False,
    ),
]


@app.command(
    epilog=examples(
        "semel partition move orders:0 --to 2,3",
        "semel partition move orders --to 2,3 --throttle 50MB/s",
        "semel partition move orders payments --to 1,2,3 --no-wait",
    )
)
@fails_well
def move(
    partitions: Partitions,
    to: Annotated[
        str,
        typer.Option(metavar="NODE,...", help="The nodes that are to have the replicas, the preferred leader first."),
    ],
    at_once: AtOnce = AT_ONCE,
    throttle: Throttle = None,
    yes: Yes = False,
    no_wait: Annotated[
        bool, typer.Option("--no-wait", help="Begin all moves at once, and do not wait until they are complete.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Move partitions to other nodes, or give them more or fewer replicas, while they are used.

    The new replicas copy the partition first. When they are in sync the others leave, and the first of the new ones
    leads. A move waits for nodes that are away, and can be cancelled until it is complete.
    """
    from semel.sdk.admin.rates import sizes_of
    from semel.sdk.balancing.results import Move
    from semel.sdk.balancing.throttling import MoveThrottle

    nodes, rate = _parse_nodes(to), throttle_rate(throttle)
    with open_admin(bootstrap) as admin:
        there = _replicas_of(admin, partitions)
        sizes = {} if no_wait else sizes_of(admin.replicas())
        moves = [
            Move(tp, before, tuple(nodes), sizes.get(tp, 0) * len(set(nodes).difference(before)), "asked for")
            for tp, before in there.items()
        ]
        if not yes:
            _confirm_few_replicas(admin, there, nodes)
            _confirm_full_nodes(admin, nodes)
        moves_command = "semel partition moves"
        if no_wait:
            throttling = None if rate is None else MoveThrottle(admin, rate)
            if throttling is not None:
                throttling.cover(moves)
            outcomes = admin.reassign_partitions(dict.fromkeys(there, nodes))
            if throttling is not None and any(outcomes.values()) and throttling.end() is None:
                remove_command = command_here(f"{moves_command} --remove-throttle", bootstrap)
                print(f"replicas are being moved, so the throttle stays: see `{remove_command}`", file=sys.stderr)
            _fail_for(outcomes)
            print(f"{counted(len(there), 'move')} begun: `{command_here(moves_command, bootstrap)}` shows them")
            if throttling is not None and throttling.is_set:
                remove_command = command_here(f"{moves_command} --remove-throttle", bootstrap)
                print(f"when they are complete, `{remove_command}` takes the throttle away")
            return
        with throttled(admin, rate, bootstrap) as throttling:
            done = carry_out_and_tell(admin, moves, at_once, throttling, bootstrap)
    print(f"{counted(done.done, 'partition')} {'is' if done.done == 1 else 'are'} on {', '.join(map(str, nodes))}")


@app.command(epilog=examples("semel partition moves --json", "semel partition moves --remove-throttle"))
@fails_well
@watchable
def moves(
    remove_throttle: Annotated[
        bool,
        typer.Option(
            "--remove-throttle", help="First remove all throttles of nodes and topics, also those set by hand."
        ),
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """List the partitions whose replicas are being moved, how far they are, and which nodes are throttled.

    COPIED is what the new replicas have of what there is. A throttle stays where a command that has set it was
    interrupted, or did not wait.
    """
    from semel.sdk.balancing.copies import copies_of
    from semel.sdk.balancing.throttling import throttled_nodes

    with open_admin(bootstrap) as admin:
        if remove_throttle:
            _remove_throttles(admin, bootstrap)
        moving = sorted(admin.reassignments(), key=lambda one: one.partition)
        replicas = admin.replicas()
        rates = throttled_nodes(admin)
    found = [(one, copies_of([one], replicas)) for one in moving]
    if as_json:
        print_json(
            {
                "moves": [_move_as_json(one, copies) for one, copies in found],
                "throttles": [{"node_id": node, **settings} for node, settings in rates.items()],
            }
        )
        return
    print_table(
        ["partition", "replicas", "adding", "removing", "copied", "waits for"],
        [
            (
                partition_argument(one.partition),
                ",".join(map(str, one.replicas)),
                ",".join(map(str, one.adding)) or None,
                ",".join(map(str, one.removing)) or None,
                f"{size(copied_bytes(copies))} of {size(sum(copy.size_bytes for copy in copies))}" if copies else None,
                waits_for(copies),
            )
            for one, copies in found
        ],
        empty="nothing is being moved",
        whole=True,
    )
    for node, settings in rates.items():
        said = ", ".join(f"{name}={value}" for name, value in settings.items())
        print(f"node {node} is throttled: {said}", file=sys.stderr)
    if rates:
        remove_command = command_here("semel partition moves --remove-throttle", bootstrap)
        print(f"`{remove_command}` removes throttles", file=sys.stderr)


@app.command(epilog=examples("semel partition cancel orders:0", "semel partition cancel --all"))
@fails_well
def cancel(
    partitions: SomePartitions = None,
    everything: Annotated[bool, typer.Option("--all", help="All moves that are not complete.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Cancel moves: the partitions are on the nodes again that they were on before.

    The order of the nodes may be another one than before, as with Kafka, and so may the preferred leader, the first of
    them: `semel topic describe` shows it, and `semel partition move` changes it without a copy.

    When nothing is being moved any more, throttles of nodes and topics are removed.
    """
    from semel.sdk.balancing.throttling import throttled_nodes

    _check_choice(partitions, everything)
    with open_admin(bootstrap) as admin:
        moving = [one.partition for one in admin.reassignments()]
        wanted = moving if everything else list(_replicas_of(admin, partitions or []))
        if not everything and not set(wanted).intersection(moving):
            raise fail("nothing of that is being moved", ExitCode.REFUSED)
        outcomes = admin.reassign_partitions(dict.fromkeys([tp for tp in wanted if tp in set(moving)]))
        if not admin.reassignments() and throttled_nodes(admin):
            _remove_throttles(admin, bootstrap)
    # One that was completed meanwhile has nothing to cancel any more, and is said to be so.
    _fail_for(outcomes)
    print(f"{counted(len(outcomes), 'move')} cancelled")


@app.command(
    epilog=examples(
        "semel partition elect --all", "semel partition elect orders:0", "semel partition elect orders:0 --unclean"
    )
)
@fails_well
def elect(
    partitions: SomePartitions = None,
    everything: Annotated[bool, typer.Option("--all", help="All partitions of the cluster.")] = False,
    unclean: Annotated[
        bool,
        typer.Option(
            "--unclean", help="Where nobody leads, elect any replica that is alive. COMMITTED RECORDS MAY BE LOST."
        ),
    ] = False,
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Have the preferred replica of partitions lead, the first one, where it is in sync.

    After a node was away others lead what it led: this gives it back. With --unclean: where all replicas are away that
    have every committed record, and will not come back, another one leads. What it lacks is lost then.
    """
    _check_choice(partitions, everything)
    if unclean and not yes:
        confirm("Committed records may be lost, and transactions be there in part. Elect?")
    with open_admin(bootstrap) as admin:
        if everything:
            topics = admin.topics(include_internal=True)
            wanted = [TopicPartition(topic.name, one.partition) for topic in topics for one in topic.partitions]
        else:
            wanted = list(_replicas_of(admin, partitions or []))
        outcomes = admin.elect_leaders(wanted, unclean=unclean)
    failed = {
        tp: error
        for tp, error in outcomes.items()
        if error is not None and error.code is not ErrorCode.ELECTION_NOT_NEEDED
    }
    elected = sum(error is None for error in outcomes.values())
    print(_told_of_election(elected, len(outcomes) - elected - len(failed), len(failed), unclean=unclean))
    _fail_for(failed)


def _told_of_election(elected: int, not_needed: int, failed: int, *, unclean: bool) -> str:
    """Return what came of an election, from the numbers of partitions."""
    one, several = (
        ("has a leader", "have a leader")
        if unclean
        else ("is led by its preferred replica", "are led by their preferred replica")
    )
    if elected or failed:
        others = counted(not_needed, f"other {one}", f"others {several}")
        return f"{counted(elected, 'leader')} elected" + (f"; {others} already" if not_needed else "")
    if not not_needed:
        return "nothing to elect: there are no partitions"
    return f"nothing to elect: {f'it {one}' if not_needed == 1 else f'all {not_needed} partitions {several}'}"


def _move_as_json(one: Reassignment, copies: Sequence[Copy]) -> dict[str, object]:
    return {
        "topic": one.partition.topic,
        "partition": one.partition.partition,
        "replicas": list(one.replicas),
        "adding": list(one.adding),
        "removing": list(one.removing),
        "copied_bytes": copied_bytes(copies),
        "total_bytes": sum(copy.size_bytes for copy in copies),
        "waits_for": [copy.node_id for copy in copies if copy.has_bytes is None],
    }


def _remove_throttles(admin: semel.Admin, bootstrap: str) -> None:
    from semel.sdk.balancing.throttling import found, remove, silent_nodes

    throttles = found(admin)
    tell_removed(remove(admin, throttles), bootstrap)
    what = f"{counted(len(throttles.nodes), 'node')} and {counted(len(throttles.topics), 'topic')}"
    print(f"throttles of {what} removed", file=sys.stderr)
    silent = silent_nodes(admin)
    if silent:
        named = ", ".join(map(str, silent))
        print(f"nodes that do not answer may have rates: {named}; do this again when they are back", file=sys.stderr)


def _check_choice(partitions: Sequence[str] | None, everything: bool) -> None:
    if partitions and everything:
        raise UsageError(f"--all is all partitions, and {', '.join(partitions)} only these: give one of the two")
    if not partitions and not everything:
        raise UsageError("name partitions (TOPIC:NUMBER) or topics, or give --all")


def _parse_nodes(text: str) -> list[int]:
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdecimal() and len(word) < 11 for word in words):
        raise UsageError(f"--to takes the numbers of nodes, for example 1,2,3, not {text!r}")
    return [int(word) for word in words]


def _confirm_few_replicas(
    admin: semel.Admin, there: Mapping[TopicPartition, tuple[int, ...]], nodes: Sequence[int]
) -> None:
    """Ask where partitions are to have fewer replicas than producers with acks=all need."""
    fewer = {tp.topic for tp, before in there.items() if len(nodes) < len(before)}
    for topic in sorted(fewer):
        needed = next(int(one.value) for one in admin.topic_configs(topic, ["min.insync.replicas"]))
        if len(nodes) < needed:
            have = counted(len(nodes), "replica")
            print(
                f"{topic} has min.insync.replicas={needed}: with {have} all that producers write with acks=all is "
                "refused. Lower it first: "
                f"`semel topic config {topic} --set min.insync.replicas={len(nodes)}`",
                file=sys.stderr,
            )
            confirm("Move all the same?", err=True)


def _confirm_full_nodes(admin: semel.Admin, nodes: Sequence[int]) -> None:
    """Ask where new replicas are to be on nodes whose disks refuse producers."""
    full = [node.node_id for node in admin.nodes() if node.is_full and node.node_id in nodes]
    if full:
        named = f"node {full[0]} has a full disk"
        if len(full) > 1:
            named = f"nodes {', '.join(map(str, full))} have full disks"
        print(f"{named}: copies may not fit, and producers are refused there", file=sys.stderr)
        confirm("Move all the same?", err=True)


def _replicas_of(admin: semel.Admin, names: Sequence[str]) -> Mapping[TopicPartition, tuple[int, ...]]:
    """Return the partitions that are named, of each its replicas. Raises `SemelError` where one is not there."""
    found: dict[TopicPartition, tuple[int, ...]] = {}
    for name in names:
        chosen = parse_partition(name) if ":" in name else None
        topic = admin.topic(name if chosen is None else chosen.topic)
        replicas = {TopicPartition(topic.name, one.partition): one.replicas for one in topic.partitions}
        if chosen is None:
            found |= replicas
        elif chosen in replicas:
            found[chosen] = replicas[chosen]
        else:
            raise fail(
                f"there is no partition {chosen.partition}: {topic.name} has the partitions 0 to {len(replicas) - 1}",
                ExitCode.REFUSED,
            )
    return found


def _fail_for(outcomes: Mapping[TopicPartition, SemelError | None]) -> None:
    """Say what was refused, and raise the exit."""
    refused = [(tp, error) for tp, error in rows_of(outcomes) if error is not None]
    if not refused:
        return
    alike: dict[str, list[SemelError]] = {}
    for tp, error in refused:
        alike.setdefault(error.message.replace(str(tp), ""), []).append(error)
    for errors in list(alike.values())[:_NAMED_MAX]:
        others = f"; the same of {counted(len(errors) - 1, 'other partition')}" if len(errors) > 1 else ""
        fail(f"{errors[0].message}{others}", ExitCode.REFUSED)
    raise fail(f"{counted(len(refused), 'partition')} of {len(outcomes)} refused", ExitCode.REFUSED)
