"""Carries out on this node what the metadata says: makes and deletes logs, hands settings on, loads coordinators.

In the order of the changes; those of one kind in a row are carried out together, because a file system makes many logs
for little more than the price of one. Whatever waits for the disk does so off the event loop.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from semel.broker.handlers.topics.rules import partition_log_configs
from semel.broker.logs.manager import LogManager, NewPartition
from semel.broker.logs.offline import OfflineLog
from semel.broker.logs.partition import Partition
from semel.broker.metadata.changes import (
    BrokerRegistered,
    Change,
    ClientQuotasChanged,
    ConfigsChanged,
    PartitionChanged,
    PartitionsAdded,
    PartitionState,
    TopicCreated,
    TopicDeleted,
)
from semel.broker.metadata.image import BROKER_RESOURCE, MetadataImage, TopicImage
from semel.broker.replication.replicas import Replicas
from semel.protocol.errors import FatalError, SemelError
from semel.protocol.ids import INTERNAL_TOPICS, TopicId, TopicPartition
from semel.protocol.wording import counted, partition_argument
from semel.runtime.turns import Turns

if TYPE_CHECKING:
    from semel.broker.config.node_config import NodeConfig
    from semel.broker.coordinators import Coordinators

_log = logging.getLogger("semel.metadata")

_NAMED_MAX = 5

TOGETHER_MAX = 500
"""Changes that are carried out together."""


class MetadataFollower:
    """Follows the changes that `follow` is told of, in `run`; `caught_up` waits for all so far."""

    def __init__(
        self,
        logs: LogManager,
        coordinators: Coordinators,
        configure: Callable[[MetadataImage], None],
        quotas_changed: Callable[[], None],
        config: Callable[[], NodeConfig],
        replicas: Replicas | None = None,
    ) -> None:
        """`configure` takes over the node's dynamic settings from an image; `config` gives the node's settings.

        quotas_changed: is called when clients have other quotas
        replicas: None where the node is alone: then it leads all that it has
        """
        self._replicas = replicas
        self._logs = logs
        self._coordinators = coordinators
        self._configure = configure
        self._quotas_changed = quotas_changed
        self._config = config
        self._pending: deque[tuple[Change, MetadataImage]] = deque()
        self._work = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def follow(self, change: Change, image: MetadataImage) -> None:
        """Note a change that has just been applied (a listener of `Metadata`)."""
        if isinstance(change, ConfigsChanged) and change.resource == BROKER_RESOURCE:
            # Handlers that run next must see the new settings already.
            self._configure(image)
        elif isinstance(change, ClientQuotasChanged):
            self._quotas_changed()
        self._pending.append((change, image))
        self._idle.clear()
        self._work.set()

    async def caught_up(self) -> None:
        """Wait until everything that `follow` was told of is done."""
        await self._idle.wait()

    async def run(self) -> None:
        """Carry changes out until cancelled."""
        while True:
            await self._work.wait()
            while self._pending:
                changes, image = self._next()
                try:
                    await self._carry_out(changes, image)
                except Exception:
                    # The changes are in the log: they can't be refused any more, and the next ones must continue.
                    _log.exception("a change of the metadata could not be carried out: %s", changes[0])
                for _ in changes:
                    self._pending.popleft()
            self._work.clear()
            self._idle.set()

    def _next(self) -> tuple[list[Change], MetadataImage]:
        """Return the next changes of one kind, and the image after them."""
        kind, changes, image = type(self._pending[0][0]), [], self._pending[0][1]
        for change, after in itertools.islice(self._pending, TOGETHER_MAX):
            if type(change) is not kind:
                break
            changes.append(change)
            image = after
        return changes, image

    async def reconcile(
        self, image: MetadataImage, accepted: Collection[TopicPartition] = (), *, keeps_unknown: bool = False
    ) -> None:
        """Make up for what a crash between the metadata's entry and the logs left out.

        The folder is of this cluster (its id was checked), so a log that the metadata does not know was deleted, and
        one that it has on other nodes alone was moved there. One whose directory vanished is offline, unless its loss
        is `accepted`. Raises `SemelError` and `OSError` where an accepted one can't be made.

        keeps_unknown: the metadata has lost changes, so a log that it does not know is set aside
        """
        moved: list[tuple[TopicId, int]] = []
        for partition in self._logs.partitions():
            tp, topic = partition.tp, image.topic_by_id(partition.topic_id)
            if topic is None or topic.name != tp.topic or tp.partition >= len(topic.partitions):
                if not keeps_unknown:
                    _log.info("deleting the log of %s, which was deleted", tp)
                self._delete_log(tp, keeps_files=keeps_unknown)
            elif self._is_moved(topic, tp):
                if keeps_unknown:
                    self._delete_log(tp, keeps_files=True)
                else:
                    _log.info("deleting the log of %s, which was moved to other nodes", tp)
                    moved.append((topic.topic_id, tp.partition))
        if moved:
            await self._logs.move_away(moved)
        for offline in self._logs.offline:
            await self._reconcile_offline(offline, image, keeps_files=keeps_unknown)
        self._logs.forget_all_but(
            {(topic.topic_id, number) for topic in image.topics.values() for number in range(len(topic.partitions))}
        )
        self._find_vanished(image, accepted)
        self._tell_of_missing(image)
        await self._create_logs(((topic, 0) for topic in image.topics.values()), shared=False)
        for topic in image.topics.values():
            if topic.is_internal:
                self._begin_to_coordinate(topic)

    async def _reconcile_offline(self, offline: OfflineLog, image: MetadataImage, *, keeps_files: bool) -> None:
        """A log that could not be opened is as good as any other: known to the metadata, or deleted."""
        tp = offline.tp
        topic = image.topic(tp.topic) if offline.topic_id is None else image.topic_by_id(offline.topic_id)
        was_moved = topic is not None and self._is_moved(topic, tp)
        if topic is not None and topic.name == tp.topic and tp.partition < len(topic.partitions) and not was_moved:
            offline.leader_epoch = topic.partitions[tp.partition].leader_epoch
            return
        try:
            await self._logs.delete_offline(offline, keeps_files=keeps_files, was_moved=was_moved)
        except OSError as error:
            _log.error("the log of %s, which is not here any more, could not be put away: %s", tp, error)

    def _missing(self, image: MetadataImage) -> list[NewPartition]:
        """Return this node's partitions that are neither open nor known to be offline."""
        node_id, config = self._config().node_id, self._config()
        return [
            NewPartition(tp, topic.topic_id, log_config(number), state.leader_epoch)
            for topic in image.topics.values()
            for log_config in (partition_log_configs(config, topic),)
            for number, state in enumerate(topic.partitions)
            if node_id in state.replicas
            and self._logs.partition(tp := TopicPartition(topic.name, number)) is None
            and self._logs.offline.get(tp) is None
        ]

    def _find_vanished(self, image: MetadataImage, accepted: Collection[TopicPartition]) -> None:
        """What this folder has had, and has no directory of, is not made again: its offsets would begin again (D3).

        Where others have it, too, it is: the registration tells that this replica has nothing, and it begins from them.
        """
        # Whatever else there is under its name, a file for instance, is not its directory.
        vanished = [
            one
            for one in self._missing(image)
            if not one.log_config.diskless_enable
            and (self._logs.was_made(one.tp, one.topic_id) or self._logs.was_moved(one.tp, one.topic_id))
            and not self._is_shared(image.partition(one.tp))
        ]
        for tp in accepted:
            if image.partition(tp) is None:
                raise FatalError(
                    f"--accept-loss-of {partition_argument(tp)}: this data directory never had such a partition. Check "
                    "--data-dir and the name; `semel doctor` names the partitions that are offline"
                )
        for one in vanished:
            if one.tp in accepted:
                self._logs.accept_loss(one)
        for tp in set(accepted) - {one.tp for one in vanished}:
            _log.warning("--accept-loss-of %s: its directory is not gone, so nothing is given up", tp)
        self._logs.take_offline_vanished([one for one in vanished if one.tp not in accepted])
        self._logs.release_missing()

    def _tell_of_missing(self, image: MetadataImage) -> None:
        """A crash amid the creation of a topic leaves logs out; so does a start in another folder."""
        missing = [
            str(one.tp)
            for one in self._missing(image)
            if not one.log_config.diskless_enable
            and not self._logs.has_directory(one.tp)
            and not self._is_shared(image.partition(one.tp))
        ]
        if missing:
            _log.warning(
                "%s not in the data directory, to be made again, empty: %s%s. If there were records, stop the node and "
                "bring the directories back before anything is written",
                counted(len(missing), "log"), ", ".join(missing[:_NAMED_MAX]),
                ", ..." if len(missing) > _NAMED_MAX else "",
            )  # fmt: skip

    async def _carry_out(self, changes: Sequence[Change], image: MetadataImage) -> None:
        """The image may be further on: what it does not have any more is deleted by a change that follows."""
        created: list[tuple[TopicImage, int]] = []
        deleted: list[TopicDeleted] = []
        turned: dict[TopicPartition, None] = {}
        turns = Turns()
        for change in changes:
            match change:
                case TopicCreated():
                    created += _still_there(image, change.topic_id, 0)
                case PartitionsAdded():
                    created += _still_there(image, change.topic_id, change.first)
                case TopicDeleted():
                    deleted.append(change)
                case ConfigsChanged(resource=resource) if resource == BROKER_RESOURCE:
                    for topic in image.topics.values():
                        self._update_config(topic)
                        await turns.give_way()
                case ConfigsChanged():
                    if (changed := image.topics.get(change.name)) is not None:
                        self._update_config(changed)
                        await turns.give_way()
                case PartitionChanged():
                    turned[TopicPartition(change.name, change.partition)] = None
                case BrokerRegistered() if change.node_id == self._config().node_id and self._replicas is not None:
                    # Not before: the registration has told which of them this node has nothing of.
                    await self._create_logs((topic, 0) for topic in image.topics.values())
                    turned.update((partition.tp, None) for partition in self._logs.partitions())
                case _:
                    pass
        if turned:
            await self._switch(turned, image)
            await self._create_logs(self._new_here(turned, image))
            await self.take_parts(turned, image)
            await self._moved_away(turned, image)
        if created:
            await self._create_logs(created)
            new = (
                TopicPartition(topic.name, number)
                for topic, first in created
                for number in range(first, len(topic.partitions))
            )
            await self.take_parts(new, image)
            for topic, first in created:
                if topic.is_internal and first == 0:
                    self._begin_to_coordinate(topic)
        if deleted:
            await self._topics_deleted(deleted)

    async def take_parts(self, tps: Iterable[TopicPartition], image: MetadataImage) -> None:
        """Lead or follow as the image says. A coordinator gives its partition up before that, and gets it after."""
        if self._replicas is None:
            return
        tps, node_id = list(tps), self._config().node_id
        internal = [tp for tp in tps if tp.topic in INTERNAL_TOPICS]
        for tp in internal:
            state = image.partition(tp)
            if state is not None and state.leader != node_id:
                self._coordinators.give_up(tp)
        await self._replicas.take_parts(tps, image)
        for tp in internal:
            self.begin_to_coordinate(tp)

    def begin_to_coordinate(self, tp: TopicPartition) -> None:
        """Coordinate what lives on a partition, where it is led here and all of its log is here: that of a diskless
        topic is once it was read.
        """
        partition = self._logs.partition(tp)
        if tp.topic in INTERNAL_TOPICS and partition is not None and _has_all(partition):
            self._coordinators.lead(tp, partition.leader_epoch)

    def stop_coordinating(self, tp: TopicPartition) -> None:
        """Give up what lives on a partition, whose log is about to be read again."""
        if tp.topic in INTERNAL_TOPICS:
            self._coordinators.give_up(tp)

    def _begin_to_coordinate(self, topic: TopicImage) -> None:
        """Coordinate what is led here by now. Where the log is offline, callers are told so."""
        for number, state in enumerate(topic.partitions):
            tp = TopicPartition(topic.name, number)
            partition = self._logs.partition(tp)
            if state.leader == self._config().node_id and (partition is None or _has_all(partition)):
                self._coordinators.lead(tp, state.leader_epoch)

    def _new_here(self, tps: Iterable[TopicPartition], image: MetadataImage) -> list[tuple[TopicImage, int]]:
        """Return the topics of partitions that this node was given a replica of, from the first such partition on."""
        first: dict[str, int] = {}
        for tp in tps:
            state = image.partition(tp)
            if (
                self._replicas is not None
                and state is not None
                and self._config().node_id in state.replicas
                and self._logs.partition(tp) is None
                and self._replicas.is_known(image)
            ):
                first[tp.topic] = min(first.get(tp.topic, tp.partition), tp.partition)
        return [(image.topics[name], number) for name, number in first.items()]

    def _is_shared(self, state: PartitionState | None) -> bool:
        return self._replicas is not None and state is not None and len(state.replicas) > 1

    async def _create_logs(self, topics: Iterable[tuple[TopicImage, int]], *, shared: bool = True) -> None:
        """Make this node's logs that are missing, of each topic from a partition on. One that fails is offline, and the
        logs tell of it and try again.

        shared: those that other nodes have replicas of, too
        """
        turns = Turns()
        node_id = self._config().node_id
        wanted: list[NewPartition] = []
        for topic, first in topics:
            log_config = partition_log_configs(self._config(), topic)
            for number, state in enumerate(topic.partitions[first:], start=first):
                tp = TopicPartition(topic.name, number)
                if (
                    node_id in state.replicas
                    and self._logs.offline.get(tp) is None
                    and (shared or not self._is_shared(state))
                ):
                    wanted.append(NewPartition(tp, topic.topic_id, log_config(number), state.leader_epoch))
                await turns.give_way()
        await self._logs.create_partitions(wanted)

    async def _switch(self, tps: Iterable[TopicPartition], image: MetadataImage) -> None:
        """Begin the logs of partitions again that have become diskless: what is on this disk is a copy from here on."""
        config, node_id = self._config(), self._config().node_id
        wanted = []
        for tp in tps:
            topic, state, partition = image.topic(tp.topic), image.partition(tp), self._logs.partition(tp)
            if topic is None or state is None or partition is None or partition.topic_id != topic.topic_id:
                continue
            if topic.has_diskless(state) and not partition.config.diskless_enable and node_id in state.replicas:
                log_config = partition_log_configs(config, topic)(tp.partition)
                wanted.append(NewPartition(tp, topic.topic_id, log_config, state.leader_epoch))
        for one in wanted:
            self.stop_coordinating(one.tp)
        if wanted:
            await self._logs.make_diskless(wanted)

    async def _moved_away(self, tps: Iterable[TopicPartition], image: MetadataImage) -> None:
        """Delete the logs of partitions that this node has no replica of any more."""
        if self._replicas is None or not self._replicas.is_known(image):
            return
        moved = {
            (topic.topic_id, tp.partition)
            for tp in tps
            if (self._logs.partition(tp) is not None or self._logs.offline.get(tp) is not None)
            and (topic := image.topic(tp.topic)) is not None
            and self._is_moved(topic, tp)
        }
        if moved:
            await self._logs.move_away(moved)
            self._replicas.assign()

    def _is_moved(self, topic: TopicImage, tp: TopicPartition) -> bool:
        """Whether a topic has a partition, and not on this node."""
        return (
            self._replicas is not None
            and topic.name == tp.topic
            and tp.partition < len(topic.partitions)
            and self._config().node_id not in topic.partitions[tp.partition].replicas
        )

    async def _topics_deleted(self, deleted: Sequence[TopicDeleted]) -> None:
        turns = Turns()
        topic_ids = {change.topic_id for change in deleted}
        here = [partition for partition in self._logs.partitions() if partition.topic_id in topic_ids]
        keys = [(partition.topic_id, partition.tp.partition) for partition in here]
        await self._logs.forget([*keys, *self._logs.moved_of(topic_ids)])
        for partition in here:
            if self._logs.partition(partition.tp) is partition:
                self._delete_log(partition.tp)
            await turns.give_way()
        names = {change.name for change in deleted}
        for offline in self._logs.offline:
            if offline.tp.topic in names if offline.topic_id is None else offline.topic_id in topic_ids:
                await self._logs.delete_offline(offline)
        if self._replicas is not None:
            self._replicas.assign()
        await self._coordinators.topics_deleted([change.name for change in deleted])

    def _delete_log(self, tp: TopicPartition, *, keeps_files: bool = False) -> None:
        try:
            self._logs.delete_partition(tp, keeps_files=keeps_files)
        except (SemelError, OSError) as error:
            # The next start finds a log that the metadata does not have here, and deletes it.
            _log.error("the log of %s, which is not here any more, could not be put away: %s", tp, error)

    def _update_config(self, topic: TopicImage) -> None:
        self._logs.update_config(topic.name, partition_log_configs(self._config(), topic))
        if topic.is_internal:
            for number in range(len(topic.partitions)):
                partition = self._logs.partition(TopicPartition(topic.name, number))
                if partition is not None and not _has_all(partition):
                    self.stop_coordinating(partition.tp)  # until it is known what the remote storage has of it


def _has_all(partition: Partition) -> bool:
    is_read = not partition.config.has_remote or (partition.tier is not None and partition.tier.is_known)
    return partition.leader is not None and is_read


def _still_there(image: MetadataImage, topic_id: TopicId, first: int) -> list[tuple[TopicImage, int]]:
    topic = image.topic_by_id(topic_id)
    return [] if topic is None else [(topic, first)]
