"""What a node tells about its disk: space, syncs, durability, and the last recovery."""

from __future__ import annotations

from typing import Final

from semel.broker.log.journal_sync import LATENCY_BOUNDS_SECONDS
from semel.broker.services import Services
from semel.protocol.api.diagnostics import DiskFacts

_SLOW_BUCKET: Final = next(place for place, bound in enumerate(LATENCY_BOUNDS_SECONDS) if bound >= 0.2)
SLOW_SYNC_MS: Final = round(LATENCY_BOUNDS_SECONDS[_SLOW_BUCKET] * 1000)


def disk_facts(node: Services) -> DiskFacts:
    """Return them. Asks the file system, and nothing that could block for long."""
    logs = node.logs
    try:
        total_bytes, free_bytes = logs.disk_bytes()
    except OSError:
        total_bytes, free_bytes = -1, -1
    journal = logs.statistics().journal
    syncs = 0 if journal is None else journal.syncs
    return DiskFacts(
        data_dir=logs.folder.path,
        total_bytes=total_bytes,
        free_bytes=free_bytes,
        min_free_bytes=node.config.disk_min_free_bytes,
        durability=node.config.durability,
        syncs=syncs,
        slow_syncs=0 if journal is None else sum(journal.sync_seconds_buckets[_SLOW_BUCKET + 1 :]),
        slow_sync_ms=SLOW_SYNC_MS,
        sync_ms_mean=0.0 if journal is None or not syncs else journal.sync_seconds_total / syncs * 1000,
        sync_ms_recent=0.0 if journal is None else journal.sync_seconds_recent * 1000,
        journal_bytes=0 if journal is None else journal.size_bytes,
        journal_max_bytes=node.config.journal_max_bytes,
        write_error=logs.write_error[:500],
        started_ms=logs.opened_ms,
        started_clean=logs.recovery.clean or not logs.recovery.partitions,
        unclean_ms=logs.last_unclean.at_ms,
        unclean_found=logs.last_unclean.found,
        damaged_ms=logs.last_unclean.damaged_ms,
        damage=logs.last_unclean.damage,
        maintenance_error=logs.maintenance.error[:500],
        is_refusing=logs.space.is_refusing,
        resume_bytes=logs.space.resume_bytes,
    )
