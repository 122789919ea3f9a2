"""`semel doctor`: what is wrong on a cluster, since when, why it matters, and the command that fixes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

import semel
from semel.cli.common import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    ExitCode,
    command_here,
    counted,
    fails_well,
    print_json,
)
from semel.protocol.api.diagnostics import SNAPSHOT_LIMIT, Section, Severity, Thresholds
from semel.protocol.wording import duration, moment

if TYPE_CHECKING:
    from semel.sdk.diagnosis.findings import Diagnosis, Finding

app = typer.Typer(add_completion=False)

_DEFAULTS = Thresholds()


@app.command(
    "doctor",
    epilog="Exit codes: 0 nothing is worse than an info; 1 there are warnings or errors, or the node refused; 2 the "
    "command line is wrong; 3 no node answers.\n\n"
    "Example: semel doctor --section transactions --slow-after 30",
)
@fails_well
def doctor(
    section: Annotated[
        list[Section] | None, typer.Option(help="Only what is found about this. Can be given several times.")
    ] = None,
    slow_after: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="Transactions that are open for longer are slow.")
    ] = _DEFAULTS.slow_ms / 1000,
    lag_after: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="Groups whose first unread record is older are behind.")
    ] = _DEFAULTS.lag_ms / 1000,
    lag_records: Annotated[int, typer.Option(min=0, help="Groups with more unread records are behind.")] = (
        _DEFAULTS.lag_records
    ),
    limit: Annotated[int, typer.Option(min=1, max=SNAPSHOT_LIMIT, help="Findings shown of each section.")] = 20,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Say what holds readers back, who is behind, and what endangers exactly-once, and what fixes it.

    Transactions that hold last stable offsets (whose, since when, from what host, and what will happen when), hanging,
    slow and oversized ones; groups that lag, rebalance too often, or are about to be forgotten; partitions, disk,
    syncs, and settings. Nothing is changed.
    """
    thresholds = Thresholds(slow_ms=int(slow_after * 1000), lag_ms=int(lag_after * 1000), lag_records=lag_records)
    with semel.Admin(bootstrap, client_id="semel-doctor") as admin:
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
                "node_id": one.node_id,
            }
            for one in shown
        ],
        "left_off": len(findings) - len(shown),
    }


def _print(
    diagnosis: Diagnosis, findings: Sequence[Finding], shown: Sequence[tuple[Section, list[Finding]]], bootstrap: str
) -> None:
    now_ms = max((node.now_ms for node in diagnosis.cluster.nodes), default=0)
    for section, some in shown:
        for finding in some:
            _print_finding(finding, now_ms, bootstrap)
        more = sum(one.kind.section is section for one in findings) - len(some)
        if more > 0:
            print(f"... and {more} more about {section.value} (--limit)\n")
    counts = [
        counted(sum(one.severity is severity for one in findings), severity.value)
        for severity in reversed(Severity)
        if any(one.severity is severity for one in findings)
    ]
    print(", ".join(counts) if counts else "nothing was found: healthy")


def _print_finding(finding: Finding, now_ms: int, bootstrap: str) -> None:
    print(f"{finding.severity.value.upper():<8} {finding.kind.name}: {finding.what}")
    if finding.since_ms >= 0:
        print(f"  since  {moment(finding.since_ms)}, {duration(now_ms - finding.since_ms)} ago")
    if finding.happens:
        print(f"  next   {finding.happens}")
    print(f"  why    {finding.kind.why}")
    print(f"  fix   {finding.kind.fix}")
    for text in finding.commands:
        print(f"         $ {command_here(text, bootstrap)}")
    print()
