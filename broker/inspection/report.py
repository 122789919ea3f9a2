"""The report of a verification, for people and for programs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

from semel.broker.inspection.findings import Finding, Severity
from semel.broker.inspection.verify import Report
from semel.protocol.wording import counted

_NOTES_SHOWN_MAX: Final = 20


def report_fields(report: Report) -> dict[str, Any]:
    """Return the report as JSON can hold it."""
    findings = report.findings
    return {
        "path": report.path,
        "verdict": _verdict(report),
        "node_id": report.node_id,
        "cluster_id": report.cluster_id,
        "running": report.is_running,
        "clean_stop": report.is_clean,
        "start": report.start or None,
        "refusal": report.refusal or None,
        "partitions": len(report.logs),
        "segments": sum(log.segments for log in report.logs),
        "batches": sum(log.batches for log in report.logs),
        "records": sum(log.records for log in report.logs),
        "size_bytes": report.size_bytes,
        "markers": sum(log.markers for log in report.logs),
        "markers_without_data": sum(log.empty_markers for log in report.logs),
        "open_transactions": report.open_transactions,
        "remote": None if report.remote is None else asdict(report.remote),
        "seconds": round(report.seconds, 3),
        "counts": {severity.value: findings.count(severity) for severity in Severity},
        "findings": [_fields(finding) for finding in findings],
        "not_shown": [
            {"severity": severity.value, "check": check.value, "path": path, "count": count}
            for (severity, check, path), count in findings.more.items()
        ],
    }


def _fields(finding: Finding) -> dict[str, Any]:
    return {
        "severity": finding.severity.value,
        "check": finding.check.value,
        "path": finding.path,
        "offset": None if finding.offset < 0 else finding.offset,
        "position": None if finding.position < 0 else finding.position,
        "what": finding.what,
        "on_start": finding.on_start,
        "command": finding.command,
    }


def _verdict(report: Report) -> str:
    """Return the severity that counts: warnings alone mean that no record is lost."""
    if report.is_whole:
        return "ok"
    return "damaged" if report.findings.count(Severity.ERROR) else "intact"


def print_report(report: Report) -> None:
    """Print it: whose folder it is, each finding, and the verdict last."""
    if report.is_running:
        print("a node has this directory: its files change meanwhile, and what it writes now may look torn")
    whose = f"node {report.node_id} of cluster {report.cluster_id}" if report.cluster_id else "nobody's"
    stop = "in use" if report.is_running else "stopped cleanly" if report.is_clean else "not stopped cleanly"
    print(f"{report.path}: {whose}, {stop}")
    sizes = f"{counted(sum(log.records for log in report.logs), 'record')}, {report.size_bytes / 1e6:,.1f} MB"
    opened = counted(report.open_transactions, "open transaction")
    print(f"{counted(len(report.logs), 'partition')}, {sizes}, {opened}")
    if report.remote is not None:
        there = f"{counted(report.remote.records, 'record')}, {report.remote.size_bytes / 1e6:,.1f} MB"
        entries = (
            f", {counted(report.remote.entries, 'entry', 'entries')} of diskless topics"
            if report.remote.entries
            else ""
        )
        print(f"in the remote storage: {counted(report.remote.segments, 'segment')}{entries}, {there}")
    if report.start:
        print(f"a start would say: {report.start}")
    notes = 0
    for finding in report.findings:
        if finding.severity is Severity.NOTE:
            notes += 1
            if notes > _NOTES_SHOWN_MAX:
                continue
        _print_finding(finding)
    if notes > _NOTES_SHOWN_MAX:
        print(f"note     and {notes - _NOTES_SHOWN_MAX} more notes: --json has them")
    for (severity, check, path), count in report.findings.more.items():
        print(f"{severity.value:8} {path}: {count} more of this kind ({check.value})")
    speed = report.size_bytes / max(report.seconds, 1e-9) / 1e6
    errors, warnings = (report.findings.count(one) for one in (Severity.ERROR, Severity.WARNING))
    found = ", ".join(counted(count, what) for count, what in ((errors, "error"), (warnings, "warning")) if count)
    print(f"{_verdict(report)}{': ' if found else ''}{found} ({report.seconds:.1f} s, {speed:,.0f} MB/s)")


def _print_finding(finding: Finding) -> None:
    place = finding.path
    if finding.position >= 0:
        place += f" position {finding.position}"
    if finding.offset >= 0:
        place += f" offset {finding.offset}"
    print(f"{finding.severity.value:8} {place + ': ' if place else ''}{finding.what}")
    if finding.on_start:
        print(f"         a start {finding.on_start}")
    if finding.command:
        print(f"         {finding.command}")
