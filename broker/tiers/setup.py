"""A node's remote storage, as its settings name it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection

from semel.broker.metadata.store import METADATA_FILE, sqlite_url
from semel.broker.services import Services
from semel.broker.tiers.object_store import ObjectStore, open_store
from semel.broker.tiers.remote_storage import RemoteStorage
from semel.broker.tiers.rows import RemoteRows
from semel.broker.tiers.tier import Tier
from semel.protocol.ids import TopicPartition


def make_tier(
    node: Services,
    data_dir: str,
    take_parts: Callable[[Collection[TopicPartition]], Awaitable[None]],
    store: ObjectStore | None = None,
    *,
    in_folder: bool,
) -> Tier | None:
    """Return what a node does with its remote storage; None where remote.storage.url names none.

    store:     in place of the one that is named there
    in_folder: whether the metadata is in a file of the data directory
    Raises `ConfigError`.
    """
    config = node.config
    if not config.remote_storage_url:
        return None
    if store is None:
        store = open_store(config.remote_storage_url, timeout_ms=config.remote_storage_timeout_ms)
    url = sqlite_url(f"{data_dir}/{METADATA_FILE}") if in_folder else config.metadata_url
    rows = RemoteRows(url, timeout_ms=config.metadata_timeout_ms)
    return Tier(RemoteStorage(node, store, rows), take_parts)
