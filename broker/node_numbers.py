"""The number of a node that was given none (node.id=-1), as a pod of a Deployment that is like any other.

It is one that no other node has: not registered, or left behind by a node that is dead and has no replicas on a disk.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from dataclasses import replace
from typing import Final

from semel.broker.config.sources import LoadedConfig
from semel.broker.controller.membership import partitions_of
from semel.broker.logs.data_folder import META_FILE, number_in
from semel.broker.metadata.image import MetadataImage
from semel.broker.metadata.store import MetadataStore
from semel.protocol.randomness import new_token
from semel.runtime.clock import Clock
from semel.runtime.storage import Storage
from semel.runtime.threads import Threads

_log = logging.getLogger("semel.node")

NO_NUMBER: Final = -1
FIRST_NUMBER: Final = 1_001
"""Smaller ones are given by operators, as with Kafka's reserved.broker.max.id."""
_ALONE: Final = 1
_RESERVED_MS: Final = 60_000
"""So long a start may take until the node registers."""


async def with_number(
    loaded: LoadedConfig, storage: Storage, clock: Clock, store: MetadataStore | None = None
) -> LoadedConfig:
    """Return the settings with a number for the node, where they have none.

    A data directory that has the number of its node keeps it; a node with metadata of its own is node 1.
    store: in place of what metadata.url names, for simulations
    Raises `SemelError` where the database can't be asked, or is not like the directory says.
    """
    config = loaded.config
    if config.node_id != NO_NUMBER:
        return loaded
    number = number_in(storage, f"{config.data_dir}/{META_FILE}")
    if number is None and not config.metadata_url and store is None:
        number = _ALONE
    if number is None:
        number = await _reserved(loaded, clock, store)
        _log.info("this node has the number %d, which no other node has", number)
    return replace(loaded, config=replace(config, node_id=number))


async def _reserved(loaded: LoadedConfig, clock: Clock, store: MetadataStore | None) -> int:
    config, thread = loaded.config, Threads(1, "semel-number")
    asked = store or MetadataStore(config.metadata_url, timeout_ms=config.metadata_timeout_ms)
    holder = new_token(12)

    def reserve() -> int:
        asked.create()
        return asked.reserve_number(
            holder,
            first=FIRST_NUMBER,
            taken=_with_replicas(asked.load()),
            session_ms=max(config.broker_session_timeout_ms, config.controller_lease_ms),
            duration_ms=_RESERVED_MS,
            now_ms=clock.now_ms(),
        )

    try:
        return await asyncio.get_running_loop().run_in_executor(thread, reserve)
    finally:
        thread.shutdown(wait=False)
        if store is None:
            asked.close()


def _with_replicas(image: MetadataImage) -> Collection[int]:
    """Return the nodes that have records on their disks: their numbers are those of the disks."""
    on_disks = (state for topic, _, state in partitions_of(image) if not topic.has_diskless(state))
    return {node_id for state in on_disks for node_id in state.replicas}
