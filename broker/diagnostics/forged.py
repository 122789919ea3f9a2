"""Markers in the logs here that no coordinator wrote: their coordinator epoch is above all that there were (P9)."""

from __future__ import annotations

from dataclasses import replace

from semel.broker.handlers.write_txn_markers import latest_coordinator_epoch
from semel.broker.services import Services
from semel.protocol.api.diagnostics import ForgedMarker
from semel.protocol.api.transactions import ListTransactionsRequest

_ENTRIES_MAX = 10_000
"""So many producers of one partition are named at most, of those that such a marker is the last of."""


async def forged_markers(node: Services, most: int) -> tuple[list[ForgedMarker], int]:
    """Return the first `most`, and how many there are. Partitions without any cost nothing."""
    latest = latest_coordinator_epoch(node)
    found: list[ForgedMarker] = []
    for partition in node.logs.partitions():
        state = partition.log.producer_state
        if partition.offline_error is not None or state.coordinator_epoch_max <= latest:
            continue
        found += [
            ForgedMarker(
                partition.tp,
                entry.producer_id,
                entry.epoch,
                entry.coordinator_epoch,
                latest,
                entry.last_timestamp_ms,
            )
            for entry in state
            if entry.coordinator_epoch > latest
        ][:_ENTRIES_MAX]
    found.sort(key=lambda one: (one.partition, one.producer_id))
    return await _named(node, found[:most]), len(found)


async def _named(node: Services, found: list[ForgedMarker]) -> list[ForgedMarker]:
    """Add whose the producer ids are, as far as coordinators know them."""
    if not found:
        return found
    request = ListTransactionsRequest(producer_ids=frozenset(one.producer_id for one in found))
    listed = await node.transactions.list(request, partial=True)
    names = {one.producer_id: one.transactional_id for one in listed.transactions}
    return [replace(one, transactional_id=names.get(one.producer_id, "")) for one in found]
