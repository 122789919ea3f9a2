"""What the demo's diskless nodes have asked of the store in the whole run, and what the store and the database hold."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

import sqlalchemy as sa

from semel.broker.metadata.tables import DISKLESS_ENTRIES, DISKLESS_OBJECTS
from semel.protocol.api.diagnostics import RemoteUse
from semel.protocol.errors import SemelError
from semel.sdk.admin.api import Admin
from semel.sdk.diagnosis.remote_costs import RemoteNode, RemoteState

_PATIENCE_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Held:
    """What the database holds of diskless topics at the end.

    entries:      rows of committed appends, of which `inline` have the records in them: `inline_bytes`
    objects:      those of appends that are in the store, which have `object_bytes`
    """

    entries: int
    inline: int
    inline_bytes: int
    objects: int
    object_bytes: int


@dataclass(frozen=True, slots=True)
class Bill:
    """What a run has asked of the store, and what there is at the end.

    remote:   each node since its first start, with all that were killed; stored are segments and objects of appends
    segments: how many of the stored objects are segments, of `segment_bytes`
    missed:   how many nodes were killed without telling what they had asked
    """

    remote: RemoteState
    held: Held
    segments: int
    segment_bytes: int
    missed: int


class Meter:
    """Adds up what nodes tell of their requests. Each counts from its start on, so it is asked before it is killed."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()
        self._uses: dict[tuple[int, int], RemoteUse] = {}
        """By node and the moment since when it counts."""
        self._location = ""
        self._missed = 0

    def read(self, bootstrap: str, node_id: int) -> None:
        """Take note of what all nodes have asked until now; one of them has to tell."""
        if not self._has_told(bootstrap, {node_id}):
            self._missed += 1

    def bill(self, bootstrap: str, node_ids: set[int], metadata_url: str) -> Bill:
        """Return the bill of all nodes, which must be up. Raises `SemelError`."""
        if not self._has_told(bootstrap, node_ids):
            self._missed += 1
        held = _held(metadata_url)
        for_ms = round((time.monotonic() - self._began_s) * 1000)
        latest = {node_id: max(since for one, since in self._uses if one == node_id) for node_id, _ in self._uses}
        now = [self._uses[place] for place in latest.items()]
        segments, segment_bytes = sum(one.stored_objects for one in now), sum(one.stored_bytes for one in now)
        nodes = tuple(RemoteNode(node_id, for_ms, self._total(node_id)) for node_id in sorted(latest))
        remote = RemoteState(
            self._location, nodes, (), False, segments + held.objects, segment_bytes + held.object_bytes
        )
        return Bill(remote, held, segments, segment_bytes, self._missed)

    def _has_told(self, bootstrap: str, node_ids: set[int]) -> bool:
        deadline = time.monotonic() + _PATIENCE_S
        with Admin(bootstrap, api_timeout_ms=5_000) as admin:
            while time.monotonic() < deadline:
                with suppress(SemelError):
                    cluster = admin.diagnose(limit=1).cluster
                    for node in cluster.nodes:
                        if node.remote_use is not None:
                            self._uses[node.node_id, node.remote_use.since_ms] = node.remote_use
                            self._location = node.remote_storage
                    if node_ids <= {node.node_id for node in cluster.nodes}:
                        return True
                time.sleep(0.2)
        return False

    def _total(self, node_id: int) -> RemoteUse:
        uses = [use for (one, _), use in self._uses.items() if one == node_id]
        return replace(
            uses[-1],
            puts=sum(use.puts for use in uses),
            gets=sum(use.gets for use in uses),
            deletes=sum(use.deletes for use in uses),
            lists=sum(use.lists for use in uses),
            sent_bytes=sum(use.sent_bytes for use in uses),
            read_bytes=sum(use.read_bytes for use in uses),
        )


def _held(metadata_url: str) -> Held:
    """Ask the database itself: no node has to be believed."""
    entries, objects = DISKLESS_ENTRIES.c, DISKLESS_OBJECTS.c
    count = sa.func.count()
    all_entries = sa.select(count, count.filter(entries.object_key == ""), _sum(sa.func.length(entries.data)))
    all_objects = sa.select(count, _sum(objects.size_bytes))
    engine = sa.create_engine(metadata_url)
    try:
        with engine.connect() as connection:
            rows = connection.execute(all_entries.select_from(DISKLESS_ENTRIES)).one()
            stored = connection.execute(all_objects.select_from(DISKLESS_OBJECTS)).one()
    finally:
        engine.dispose()
    return Held(*map(int, (*rows, *stored)))


def _sum(what: sa.ColumnElement[int]) -> sa.ColumnElement[int]:
    return sa.func.coalesce(sa.func.sum(what), 0)
