"""`semel doctor`: what is wrong on a cluster, since when, why it matters, and how to fix it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from semel.cli.common import (
    DEFAULT_BOOTSTRAP,
    DURATION,
    DURATION_HELP,
    AsJson,
    Bootstrap,
    ExitCode,
    command_app,
    command_here,
    counted,
    examples,
    fails_well,
    open_admin,
    parse_duration,
    print_json,
)
from semel.protocol.api.diagnostic_limits import SNAPSHOT_LIMIT
from semel.protocol.api.diagnostics import Section, Severity, Thresholds
from semel.protocol.wording import duration, moment

if TYPE_CHECKING:
    from semel.sdk.diagnosis.findings import Diagnosis, Finding

app = command_app()

_DEFAULTS = Thresholds()


@app.command(
    "doctor",
    epilog=examples(
        "semel doctor --section transactions --slow-after 30s",
        exit_codes="0 no warnings and no errors; 1 there are some, or the node refused; 2 the command line is wrong; "
        "3 no node answers",
    ),
)
@fails_well
def doctor(
    section: Annotated[list[Section] | None, typer.Option(help="Check only this. Can be given several times.")] = None,
    slow_after: Annotated[
        str, typer.Option(metavar=DURATION, help=f"Report transactions open longer than this. {DURATION_HELP}")
    ] = f"{_DEFAULTS.slow_ms // 1000}s",
    lag_after: Annotated[
        str, typer.Option(metavar=DURATION, help="Report groups whose oldest unread record is older than this.")
    ] = f"{_DEFAULTS.lag_ms // 60_000}m",
    lag_records: Annotated[
        int, typer.Option(min=0, metavar="N", help="Report groups with more unread records than this.")
    ] = (_DEFAULTS.lag_records),
    limit: Annotated[
        int, typer.Option(min=1, max=SNAPSHOT_LIMIT, metavar="N", help="How many findings of each section to show.")
    ] = 20,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Check nodes, transactions, groups, partitions, disks and settings, and say how to fix what is wrong.

    Asks every node of a cluster. Finds nodes that are away or fenced; transactions that block readers, hang, are slow
    or too large; groups that lag, rebalance too often, or whose offsets expire soon; partitions that are offline, have
    no leader or too few replicas; slow disks; settings, versions and clocks that put a guarantee at risk; and ACLs that
    let everybody in, or decide nothing. ERROR needs action now. WARNING means that readers wait or a guarantee is at
    risk. INFO needs no action. Nothing is changed.
    """
    thresholds = Thresholds(
        slow_ms=round(parse_duration(slow_after, "--slow-after") * 1000),
        lag_ms=round(parse_duration(lag_after, "--lag-after") * 1000),
        lag_records=lag_records,
    )
    with open_admin(bootstrap, client_id="semel-doctor") as admin:
        diagnosis = admin.diagnose(thresholds=thresholds)
    wanted = set(section or Section)
    findings = [finding for finding in diagnosis.findings if finding.kind.section in wanted]
    shown = [
        (each, [one for one in findings if one.kind.section is each][:limit]) for each in Section if each in wanted
    ]
    bad = sum(finding.severity is not Severity.INFO for finding in findings)
    if as_json:
        print_json(_as_json(diagnosis, findings, [one for _, some in shown for one in some], bootstrap))
    else:
        _print(diagnosis, findings, shown, bootstrap)
    if bad:
        raise typer.Exit(ExitCode.REFUSED)


def _as_json(
    diagnosis: Diagnosis, findings: Sequence[Finding], shown: Sequence[Finding], bootstrap: str
) -> dict[str, Any]:
    return {
        "healthy": all(finding.severity is Severity.INFO for finding in findings),
        "nodes": [node.node_id for node in diagnosis.cluster.nodes],
        "unreachable": [{"node_id": number, "reason": why} for number, why in diagnosis.cluster.unreachable.items()],
        "findings": [
            {
                "kind": one.kind.name,
                "section": one.kind.section.value,
                "severity": one.severity.value,
                "subject": one.subject,
                "what": one.what,
                "since_ms": one.since_ms if one.since_ms >= 0 else None,
                "happens": one.happens or None,
                "why": one.kind.why,
                "fix": one.kind.fix,
                "commands": [command_here(text, bootstrap) for text in one.commands],
                "node_id": one.node_id if one.node_id >= 0 else None,
            }
            for one in shown
        ],
        "left_off": len(findings) - len(shown),
    }


def _print(
    diagnosis: Diagnosis, findings: Sequence[Finding], shown: Sequence[tuple[Section, list[Finding]]], bootstrap: str
) -> None:
    now_ms = max((node.now_ms for node in diagnosis.cluster.nodes), default=0)
    is_one = len(diagnosis.cluster.nodes) + len(diagnosis.cluster.unreachable) <= 1
    for section, some in shown:
        for finding in some:
            told_by = "" if is_one or f"node {finding.node_id}" in finding.what else f" (node {finding.node_id})"
            _print_finding(finding, told_by if finding.node_id >= 0 else "", now_ms, bootstrap)
        more = sum(one.kind.section is section for one in findings) - len(some)
        if more > 0:
            print(f"... and {more} more about {section.value} (--limit)\n")
    counts = [
        counted(sum(one.severity is severity for one in findings), severity.value)
        for severity in reversed(Severity)
        if any(one.severity is severity for one in findings)
    ]
    print(", ".join(counts) if counts else "nothing was found: healthy")


def _print_finding(finding: Finding, told_by: str, now_ms: int, bootstrap: str) -> None:
    print(f"{finding.severity.value.upper():<8} {finding.kind.name}{told_by}: {finding.what}")
    if finding.since_ms >= 0:
        print(f"  since  {moment(finding.since_ms)}, {duration(now_ms - finding.since_ms)} ago")
    if finding.happens:
        print(f"  next   {finding.happens}")
    print(f"  why    {finding.kind.why}")
    print(f"  fix    {finding.kind.fix}")
    for text in finding.commands:
        print(f"         $ {command_here(text, bootstrap)}")
    print()
