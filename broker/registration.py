"""A node's entry in the metadata: where it is reached, and what its start means for its replicas (R4, R5)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Set

from semel.broker.config.node_config import NodeConfig
from semel.broker.controller.elections import node_registered
from semel.broker.controller.membership import partitions_of, stopping_nodes
from semel.broker.controller.readable_again import incomplete_until_read
from semel.broker.former_runs import FormerRuns
from semel.broker.logs.manager import LogManager
from semel.broker.logs.offline import OfflineKind
from semel.broker.metadata.changes import BrokerRegistered, Change, MetadataVersionRaised
from semel.broker.metadata.image import MetadataImage
from semel.broker.metadata.metadata import Metadata
from semel.broker.start_errors import NodeStartError, StartFailure
from semel.protocol.ids import TopicId, TopicPartition

_log = logging.getLogger(__name__)

_NAMED_MAX = 10
_FORMER_SESSIONS = 2
"""So many sessions a start waits for another process with its number to end."""


class Return:
    """What a start of a node means for the replicas that it has, and what of it has to be noted before it registers."""

    def __init__(self, registered: BrokerRegistered, logs: LogManager, runs: FormerRuns, default_min_isr: int) -> None:
        """`default_min_isr` is the nodes' min.insync.replicas."""
        self._registered = registered
        self._logs = logs
        self._runs = runs
        self._default_min_isr = default_min_isr
        self.not_read: Set[tuple[TopicId, int]] = frozenset()
        """What `changes` took for incomplete last, for no other reason than that it can't be read now."""

    def changes(self, image: MetadataImage) -> list[Change]:
        """Return what the registration changes in the partitions that the node has replicas of."""
        self.not_read = frozenset(self._not_read(image))
        logs, unreadable = self._logs, _unreadable(self._logs)
        return node_registered(
            image,
            self._registered,
            default_min_isr=self._default_min_isr,
            stopping=stopping_nodes(image),
            damaged=_damaged(logs) | unreadable,
            gone=_replicas_gone(image, self._registered.node_id, logs) - unreadable,
            is_older_copy=self._is_older_copy(image),
        )

    def note_not_read(self, image: MetadataImage) -> None:
        """Note what can't be read now. Raises `NodeStartError`."""
        try:
            self._logs.unreported.to_be_reported(self._not_read(image))
        except OSError as error:
            raise NodeStartError(
                f"what this node can't read now can't be noted: {error}. Without the note, a partition that only this "
                "node has would have no leader until an operator elects one. Fix this, and start the node again",
                StartFailure.DATA_FOLDER,
            ) from error

    def note_run(self, image: MetadataImage) -> None:
        """Note the run that is about to register, and say where its directory is an older copy.

        Raises `NodeStartError`.
        """
        if self._is_older_copy(image):
            self._tell_older_copy(image)
        try:
            self._runs.add(self._registered.incarnation)
        except OSError as error:
            raise NodeStartError(
                f"this run can't be noted in the data directory: {error}. Without the note, an older copy of the "
                "directory could be taken for it. Fix this, and start the node again",
                StartFailure.DATA_FOLDER,
            ) from error

    def _is_older_copy(self, image: MetadataImage) -> bool:
        former = image.brokers.get(self._registered.node_id)
        return self._runs.is_before(former, self._registered.directory_id)

    def _tell_older_copy(self, image: MetadataImage) -> None:
        node_id = self._registered.node_id
        _log.error(
            "the data directory %s is an older copy: node %d has run since, and what it had then is not here. Of what "
            "other nodes have too it leads nothing until it has fetched what it lacks", self._logs.folder.path, node_id,
        )  # fmt: skip
        alone = [f"{topic.name}-{each}" for topic, each, state in partitions_of(image) if state.replicas == (node_id,)]
        if alone:
            _log.error(
                "no other node has these partitions, so what was written to them since that copy is lost: %s%s",
                ", ".join(alone[:_NAMED_MAX]), ", ..." if len(alone) > _NAMED_MAX else "",
            )  # fmt: skip

    def _not_read(self, image: MetadataImage) -> set[tuple[TopicId, int]]:
        """Return what counts as incomplete here for no other reason than that it can't be read now."""
        logs, node_id = self._logs, self._registered.node_id
        if self._is_older_copy(image):
            return set()
        unreadable = {
            (topic.topic_id, one.tp.partition)
            for one in logs.offline
            if one.kind is OfflineKind.UNREADABLE
            and (topic := image.topic(one.tp.topic)) is not None
            and one.topic_id in (None, topic.topic_id)  # what can't be read may be the id
        }
        former = logs.unreported.not_read
        lost = _keys(image, _damaged(logs) | (_replicas_gone(image, node_id, logs) - _unreadable(logs)))
        lost |= {key for key in (*unreadable, *former) if logs.unreported.may_be_damaged(key)}
        return incomplete_until_read(image, self._registered, unreadable=unreadable, former=former, lost=lost)


def _damaged(logs: LogManager) -> set[TopicPartition]:
    """Return the partitions of which this start, or one before it that told nobody, found records lost."""
    told = logs.unreported
    return {one.tp for one in logs.partitions() if told.may_be_damaged((one.topic_id, one.tp.partition))}


def _unreadable(logs: LogManager) -> set[TopicPartition]:
    """Return the partitions that the disk does not let be opened now, a full one for instance.

    Nothing of them need be lost, but nobody knows yet. Where no other replica is left, an operator elects this one.
    """
    return {one.tp for one in logs.offline if one.kind is OfflineKind.UNREADABLE}


def _keys(image: MetadataImage, partitions: Collection[TopicPartition]) -> set[tuple[TopicId, int]]:
    return {(topic.topic_id, tp.partition) for tp in partitions if (topic := image.topic(tp.topic)) is not None}


def version_raised(image: MetadataImage, registered: BrokerRegistered) -> list[MetadataVersionRaised]:
    """Return the change to the newest version of the metadata that all nodes read, where that is newer.

    Besides this, only the removal of a node can change it. One that is away for good counts until then, or until one
    with its number is started.
    """
    others = [broker.metadata_version for broker in image.brokers.values() if broker.node_id != registered.node_id]
    agreed = min([registered.metadata_version, *others])
    return [MetadataVersionRaised(agreed)] if agreed > image.version else []


def agreed_version(image: MetadataImage, registered: BrokerRegistered) -> int:
    """Return the version of the metadata once a node has registered."""
    return max([image.version, *(each.version for each in version_raised(image, registered))])


def _replicas_gone(image: MetadataImage, node_id: int, logs: LogManager) -> set[TopicPartition]:
    """Return a node's partitions that others have replicas of, too, and whose logs were here and are not.

    One that was never made lacks nothing: nothing was committed while it was in sync, and had not fetched.
    """
    gone: set[TopicPartition] = set()
    for topic, number, state in partitions_of(image):
        tp = TopicPartition(topic.name, number)
        if (
            node_id in state.replicas
            and len(state.replicas) > 1
            and logs.partition(tp) is None
            and (
                logs.offline.get(tp) is not None
                or logs.was_made(tp, topic.topic_id)
                or logs.was_moved(tp, topic.topic_id)
            )
        ):
            gone.add(tp)
    return gone


def check_is_member(image: MetadataImage, node_id: int) -> None:
    """Raise `NodeStartError` where a node is no part of the cluster any more."""
    if node_id not in image.brokers:
        raise NodeStartError(
            f"node {node_id} was removed from the cluster, so it is not started again", StartFailure.REMOVED
        )


async def check_neighbors(metadata: Metadata, config: NodeConfig, secret_mark: str) -> None:
    """Raise `NodeStartError` where a node that runs could not replicate with this one.

    It is alone, so it takes no part in replication nor expects others; or it has another secret, so that each would
    close the other's connections.
    """
    # A node that is alone gives its signs of life as it renews its lease.
    session_ms = max(config.broker_session_timeout_ms, config.controller_lease_ms)
    for session in await metadata.silent_nodes(0):
        other = metadata.image.brokers.get(session.node_id)
        if other is None or other.node_id == config.node_id or session.silent_ms >= session_ms:
            continue
        if not other.peer_port:
            raise NodeStartError(
                f"node {other.node_id} runs alone on {metadata.location}: it has no peer.listen. Stop it, give it "
                "peer.listen and cluster.secret.file, and start it again",
                StartFailure.METADATA,
            )
        if other.secret_mark and other.secret_mark != secret_mark:
            raise NodeStartError(
                f"cluster.secret.file = {config.cluster_secret_file} has another secret than node {other.node_id}'s: "
                "copy that node's file here. To change the secret of a cluster, stop all of its nodes first",
                StartFailure.METADATA,
            )


async def wait_for_former_run(metadata: Metadata, config: NodeConfig, directory_id: str) -> None:
    """Wait until another process that runs as this node counts as dead. Raises `NodeStartError` where it lives on.

    One that had the same data directory is over already: a process locks its directory.
    """
    session_ms = config.broker_session_timeout_ms
    loop = asyncio.get_running_loop()
    begun: float | None = None
    while True:
        for former in await metadata.silent_nodes(0):
            if former.node_id == config.node_id:
                break
        else:
            return
        if former.directory_id == directory_id or former.silent_ms >= session_ms:
            return
        if begun is None:
            begun = loop.time()
            _log.info(
                "a node %d with another data directory was heard of %d ms ago: waiting until it counts as dead, after "
                "%d ms of silence", config.node_id, former.silent_ms, session_ms,
            )  # fmt: skip
        elif loop.time() - begun > _FORMER_SESSIONS * session_ms / 1000:
            # One that has registered since the metadata was opened is not in the image yet.
            known = metadata.image.brokers.get(config.node_id)
            where = "" if known is None else f", at {known.kafka_host}:{known.kafka_port} and"
            raise NodeStartError(
                f"another node {config.node_id} runs{where} with another data directory: give this node a node.id of "
                "its own. To replace the other one, stop it first",
                StartFailure.METADATA,
            )
        await asyncio.sleep(config.broker_heartbeat_interval_ms / 1000)
