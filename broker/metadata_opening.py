"""The metadata at a node's start: made from the settings, opened, and looked at for what was lost or mixed up.

An empty directory beside metadata, or empty metadata beside a directory with logs, must not be filled as if nothing had
been there (D1, D3): each check says what to restore or to correct.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Awaitable, Callable
from typing import Final

from semel.broker.config.node_config import NodeConfig
from semel.broker.logs.data_folder import META_FILE
from semel.broker.metadata.chain import MetadataWentBackError
from semel.broker.metadata.changes import ClusterCreated, MetadataCorruptError
from semel.broker.metadata.metadata import Metadata
from semel.broker.metadata.runs import NodeDeposedError
from semel.broker.metadata.store import METADATA_FILE, MetadataStore, NotControllerError, misplaced_file, sqlite_url
from semel.broker.metadata_moving import MOVED_FILE
from semel.broker.start_errors import NodeStartError, StartFailure
from semel.protocol.errors import ErrorCode
from semel.protocol.ids import TopicPartition, format_topic_id, new_topic_id
from semel.protocol.time_units import DAY_MS
from semel.protocol.wording import counted
from semel.runtime.clock import Clock
from semel.runtime.storage import Storage

_log = logging.getLogger("semel.node")

_NAMED_MAX: Final = 10
_HOLDER_CHARS_MAX: Final = 255


def check_metadata_file(storage: Storage, data_dir: str) -> None:
    """Raise `NodeStartError` where there is something else than a file in the place of the metadata's file, or nothing
    beside a node's logs. A node that was refused leaves no empty file there."""
    misplaced = misplaced_file(data_dir)
    if misplaced is not None:
        path, kind = misplaced
        raise NodeStartError(
            f"{path} is {kind}, and a file belongs there. Move it away; if {METADATA_FILE} is not elsewhere, "
            "restore it from a backup. Then start the node again",
            StartFailure.METADATA,
        )
    if not storage.exists(f"{data_dir}/{METADATA_FILE}"):
        _check_is_new(sqlite_url(f"{data_dir}/{METADATA_FILE}"), storage, data_dir)


def _check_is_new(location: str, storage: Storage, data_dir: str) -> None:
    """Raise `NodeStartError` where a directory has a node's logs and the metadata has nothing."""
    if not storage.exists(f"{data_dir}/{META_FILE}"):
        return
    if storage.exists(f"{data_dir}/{MOVED_FILE}"):
        cure = (
            f"`semel metadata move` has moved it to a database, and {MOVED_FILE} is only what it left: start the node "
            "with that database as metadata.url, and with peer.listen and cluster.secret.file as docs/cluster.md says"
        )
    else:
        cure = "restore the metadata from a backup, correct metadata.url, or give this node a new directory"
    raise NodeStartError(
        f"the metadata in {location} is empty, but {data_dir} holds a node's logs: {cure}", StartFailure.METADATA
    )


def make_metadata(
    config: NodeConfig,
    data_dir: str,
    clock: Clock,
    store: MetadataStore | None,
    *,
    in_folder: bool,
    is_clustered: bool,
    on_went_back: Callable[[MetadataWentBackError], Awaitable[None]],
    on_deposed: Callable[[NodeDeposedError], None],
) -> Metadata:
    """Return the metadata that a node's settings name, not opened yet.

    store:     in place of what metadata.url names, for simulations
    in_folder: whether it is in a file of the data directory, for this node alone
    """
    if store is None:
        url = sqlite_url(f"{data_dir}/{METADATA_FILE}") if in_folder else config.metadata_url
        store = MetadataStore(url, timeout_ms=config.metadata_timeout_ms)
    # In the folder, the folder's lock says that nobody else can hold the lease, so it needs no renewals that keep the
    # disk awake. Elsewhere the name must tell two nodes apart that were given the same number by mistake, and be the
    # same again after a crash.
    holder = f"node {config.node_id}"
    if not in_folder:
        holder += f" on {socket.gethostname()}:{data_dir}"
    return Metadata(
        store,
        clock,
        holder=holder[:_HOLDER_CHARS_MAX],
        lease_ms=DAY_MS if in_folder else config.controller_lease_ms,
        snapshot_changes=config.metadata_snapshot_changes,
        is_shared=store.is_shared and not in_folder,
        heartbeat_ms=config.broker_heartbeat_interval_ms if is_clustered else None,
        away_ms=_silence_of_all_ms(config) if is_clustered else None,
        on_went_back=on_went_back,
        on_deposed=on_deposed,
    )


def _silence_of_all_ms(config: NodeConfig) -> int:
    """Return after how long without an answer from the database nobody can have been heard of, so nobody is dead."""
    session_ms = config.broker_session_timeout_ms
    return max(session_ms - 2 * config.broker_heartbeat_interval_ms, session_ms // 2)


async def open_metadata(metadata: Metadata, alone_as: int | None) -> None:
    """Read it. `alone_as`: the number of a node that may share it with no other. Raises `NodeStartError`."""
    try:
        await metadata.open()
        if alone_as is not None:
            await metadata.wait_until_alone(alone_as)
    except MetadataCorruptError as error:
        raise NodeStartError(
            f"the metadata in {metadata.location} is damaged: {error}. Restore it from a backup, and start "
            "the node again; `semel log verify` says what of the data directory can be read",
            StartFailure.METADATA,
        ) from error
    except NotControllerError as error:
        if alone_as is None:
            raise
        raise NodeStartError(
            f"{error.message}. This node has no peer.listen, so it has to be alone on {metadata.location}: stop "
            "the other one, or set peer.listen and cluster.secret.file on every node that is to share it",
            StartFailure.METADATA,
        ) from error


def check_has_store(metadata: Metadata, remote_storage_url: str) -> None:
    """Raise `NodeStartError` where a cluster has diskless topics, and a node no store: it could lead none of them."""
    name = next((topic.name for topic in metadata.image.topics.values() if topic.is_diskless), "")
    if name and not remote_storage_url:
        raise NodeStartError(
            f"the cluster has diskless topics, {name} for one, and this node has no remote.storage.url: start it with "
            "the same one that the other nodes have",
            StartFailure.METADATA,
        )


async def create_cluster(metadata: Metadata, storage: Storage, data_dir: str) -> None:
    """Give empty metadata a cluster id. Raises `NodeStartError` where the directory has a node's logs: they would be
    taken for leftovers."""
    _check_is_new(metadata.location, storage, data_dir)
    cluster_id = format_topic_id(new_topic_id())
    await metadata.change(lambda image: [] if image.cluster_id else [ClusterCreated(cluster_id)])


def check_directory_is_not_lost(
    metadata: Metadata,
    node_id: int,
    storage: Storage,
    data_dir: str,
    *,
    is_clustered: bool,
    accept_data_loss: bool,
) -> None:
    """Raise `NodeStartError` where the directory is empty and the metadata says that records are there alone."""
    image = metadata.image
    held = [
        TopicPartition(topic.name, number)
        for topic in image.topics.values()
        for number, state in enumerate(topic.partitions)
        if not topic.has_diskless(state)
        if state.replicas == (node_id,) or (node_id in state.replicas and not is_clustered)
    ]
    if (
        node_id not in image.brokers
        or not held
        or storage.exists(f"{data_dir}/{META_FILE}")
        or any(storage.exists(f"{data_dir}/{tp}") for tp in held)
    ):
        return
    named = f"{', '.join(map(str, held[:_NAMED_MAX]))}{', ...' if len(held) > _NAMED_MAX else ''}"
    if accept_data_loss:
        _log.warning(
            "the data directory %s is empty, and as --accept-data-loss says, what this node held is given up: %s",
            data_dir, named,
        )  # fmt: skip
        return
    raise NodeStartError(
        f"the data directory {data_dir} is empty, but the metadata in {metadata.location} says that node "
        f"{node_id} holds {counted(len(held), 'partition')}: {named}. Mount or restore the directory, or correct "
        "data.dir or metadata.url; or give this node a new node.id; or, if the records are gone for good, start it "
        "once with --accept-data-loss, which makes the partitions again, empty",
        StartFailure.DATA_FOLDER,
        ErrorCode.KAFKA_STORAGE_ERROR,
    )
