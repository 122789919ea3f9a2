"""A node's remote storage, as its settings name it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from concurrent.futures import Executor
from typing import NamedTuple

from semel.broker.diskless.diskless import Diskless
from semel.broker.diskless.rows import DisklessRows
from semel.broker.metadata.store import METADATA_FILE, sqlite_url
from semel.broker.services import Services
from semel.broker.tiers.object_store import ObjectStore, open_store
from semel.broker.tiers.remote_storage import RemoteStorage
from semel.broker.tiers.rows import RemoteRows
from semel.broker.tiers.tier import Tier
from semel.protocol.ids import TopicPartition


class RemoteDatabase(NamedTuple):
    """The rows, in place of those in the database that metadata.url names, and what waits for them: for simulations."""

    remote: RemoteRows
    diskless: DisklessRows
    executor: Executor


TakeParts = Callable[[Collection[TopicPartition]], Awaitable[None]]


def make_remote(
    node: Services,
    data_dir: str,
    take_parts: TakeParts,
    store: ObjectStore | None = None,
    database: RemoteDatabase | None = None,
    *,
    run: str,
    in_folder: bool,
) -> tuple[Tier, Diskless] | None:
    """Return what a node does with its remote storage; None where remote.storage.url names none.

    store:     in place of the one that is named there
    database:  in place of what metadata.url names
    run:       the node's incarnation
    in_folder: whether the metadata is in a file of the data directory
    Raises `ConfigError`.
    """
    config = node.config
    if not config.remote_storage_url:
        return None
    if store is None:
        store = open_store(config.remote_storage_url, timeout_ms=config.remote_storage_timeout_ms)
    if database is None:
        url = sqlite_url(f"{data_dir}/{METADATA_FILE}") if in_folder else config.metadata_url
        timeout_ms = config.metadata_timeout_ms
        remote, rows = RemoteRows(url, timeout_ms=timeout_ms), DisklessRows(url, timeout_ms=timeout_ms)
        executor: Executor | None = None
    else:
        remote, rows, executor = database
    storage = RemoteStorage(node, store, remote, executor)
    diskless = Diskless(storage, rows, run, take_parts, executor)
    return Tier(storage, take_parts, diskless), diskless
