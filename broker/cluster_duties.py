"""What the nodes of a cluster do about each other's lives: fence who is silent, let return who is heard of, and leave.

The controller alone does it, which is the node that has the lease. It may be wrong about a node without harm: a node
that is fenced in error loses what it leads, and nothing that was committed (R4). How long a node is silent, the time of
the metadata's database says, never a node's own clock; what that means, `peers/silence.py`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from semel.broker.cluster_changes import ClusterChanges
from semel.broker.controller.diskless import leaders_spread
from semel.broker.controller.elections import nodes_fenced, nodes_unfenced
from semel.broker.controller.membership import alive_nodes, cordoned_nodes, full_nodes, stopping_nodes
from semel.broker.controller.moves import completed_moves
from semel.broker.controller.placement import with_more_replicas
from semel.broker.controller.preferred import LedElsewhere, preferred_elections
from semel.broker.controller.shutdown import StepDown, may_stop, step_down
from semel.broker.lost_leaders import LostLeaders
from semel.broker.metadata.changes import BrokerStopping, Change
from semel.broker.metadata.image import MetadataImage
from semel.broker.metadata.metadata import Metadata
from semel.broker.metadata.store import NodeSession
from semel.broker.peers.probes import Probes
from semel.broker.peers.silence import FalseAlarms, Patience, Sign
from semel.protocol.errors import SemelError
from semel.protocol.ids import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, TopicPartition
from semel.protocol.wording import counted
from semel.runtime.clock import Clock
from semel.runtime.turns import in_turns

if TYPE_CHECKING:
    from semel.broker.config.node_config import NodeConfig
    from semel.broker.peers.peers import Peers

_log = logging.getLogger("semel.cluster")

LEAVE_EVERY_S: Final = 0.05
ELECTIONS_MAX: Final = 1_000
"""So many leaders are given back by one change of the metadata; the next round continues."""
_LONG_AGO_MS: Final = 1 << 50
_NAMED_MAX: Final = 5


class ClusterDuties:
    """The duties of one node."""

    def __init__(
        self,
        metadata: Metadata,
        clock: Clock,
        config: Callable[[], NodeConfig],
        changes: ClusterChanges,
        peers: Peers,
        lost_leaders: LostLeaders,
    ) -> None:
        self._lost_leaders = lost_leaders
        self._metadata = metadata
        self._clock = clock
        self._config = config
        self._changes = changes
        self._peers = peers
        self._probes = Probes(self._probe)
        self._false_alarms = FalseAlarms()
        self._moves_seen: MetadataImage | None = None
        """With this no move can be completed."""
        self._leaders_checked_s: float | None = None
        """When leaders were looked at last, since this node is the controller."""
        self.behind_max = 0
        """How many changes the node lacks that is furthest behind, of those that live, as of its last heartbeat."""

    async def run(self) -> None:
        """Watch the other nodes until cancelled, whenever this node is the controller."""
        is_blind = False
        try:
            while True:
                await asyncio.sleep(self._config().broker_heartbeat_interval_ms / 1000)
                if self._metadata.controller_epoch < 0:
                    self.behind_max = 0
                    self._leaders_checked_s = None
                    self._probes.close()
                    continue
                try:
                    await self._watch()
                    is_blind = False
                except SemelError as error:
                    if not is_blind:
                        _log.warning("the other nodes can't be watched now, and this is tried again: %s", error.message)
                    is_blind = True
        finally:
            self._probes.close()

    async def _probe(self, node_id: int) -> Sign:
        return await self._peers.probe(node_id, self._config().broker_session_timeout_ms / 2)

    async def _watch(self) -> None:
        now_s = self._clock.monotonic()
        session_ms = self._config().broker_session_timeout_ms
        sessions = {each.node_id: each for each in await self._metadata.silent_nodes(0)}
        image = self._metadata.image
        reached_since = self._metadata.reached_since
        reached_ms = 0.0 if reached_since is None else (now_s - reached_since) * 1000
        self.behind_max = max(
            (image.sequence - one.seen_sequence for one in sessions.values() if one.silent_ms < session_ms), default=0
        )
        silent, heard = self._judge(image, sessions, reached_ms)
        if silent:
            _log.warning("%s dead: others lead what they led", _named(silent, "is", "are"))
            await self._change(nodes_fenced, silent)
            took_s = self._clock.monotonic() - now_s
            for node_id in silent:
                session = sessions.get(node_id)
                if session is not None and not session.has_left:
                    self._changes.failovers.record(session.silent_ms / 1000 + took_s)
        if heard:
            _log.info("%s heard of again", _named(heard, "was", "were"))
            for node_id in heard:
                self._false_alarms.returned((node_id, image.brokers[node_id].epoch), now_s)
            await self._change(nodes_unfenced, heard)
        await self._grow_internal_topics()
        await self._complete_moves()
        await self._lost_leaders.look()
        await self._give_leaders_back()

    async def _give_leaders_back(self) -> None:
        """Have preferred replicas lead again what others lead since their nodes were away."""
        config, now_s = self._config(), self._clock.monotonic()
        if self._leaders_checked_s is None:
            self._leaders_checked_s = now_s
        if (
            not config.auto_leader_rebalance_enable
            or now_s - self._leaders_checked_s < config.leader_imbalance_check_interval_seconds
        ):
            return
        image = self._metadata.image
        elsewhere = LedElsewhere(image, imbalance_max_percent=config.leader_imbalance_per_broker_percentage)
        async for topic in in_turns(image.topics.values()):
            elsewhere.count(topic)
        found: list[TopicPartition] = []
        async for topic in in_turns(image.topics.values()):
            found += elsewhere.find(topic)[: ELECTIONS_MAX - len(found)]
        if found:
            await self._metadata.change(lambda image: preferred_elections(image, found), as_controller=True)
            _log.info("%s led by the preferred replica again", counted(len(found), "partition is", "partitions are"))
        if leaders_spread(self._metadata.image, stopping=stopping_nodes(self._metadata.image)):
            await self._metadata.change(
                lambda image: leaders_spread(image, stopping=stopping_nodes(image)), as_controller=True
            )
            _log.info("leaders of diskless partitions were spread over all nodes")
        if len(found) < ELECTIONS_MAX:
            self._leaders_checked_s = now_s

    async def _complete_moves(self) -> None:
        """Complete moves that wait for something else than replicas in sync: whatever that is, the metadata has it."""
        image = self._metadata.image
        if image is self._moves_seen:
            return
        topics = in_turns(image.topics.values())
        if any([any(state.is_moving for state in topic.partitions) async for topic in topics]):
            image = await self._metadata.change(self._completed_moves, as_controller=True)
        self._moves_seen = image

    def _completed_moves(self, image: MetadataImage) -> list[Change]:
        min_isr = self._config().min_insync_replicas
        return completed_moves(image, default_min_isr=min_isr, stopping=stopping_nodes(image))

    def _judge(
        self, image: MetadataImage, sessions: Mapping[int, NodeSession], reached_ms: float
    ) -> tuple[list[int], list[int]]:
        """Return the nodes that are dead and count as alive, and the other way round. Ask those that may be dead.

        reached_ms: for how long the database has answered
        """
        config, now_s = self._config(), self._clock.monotonic()
        silent, heard, suspects = [], [], []
        for node_id, broker in image.brokers.items():
            session, run = sessions.get(node_id), (node_id, broker.epoch)
            session_ms = self._false_alarms.session_ms(run, config.broker_session_timeout_ms, now_s)
            patience = Patience(session_ms, config.broker_heartbeat_interval_ms)
            is_this_run = session is not None and session.broker_epoch == broker.epoch
            silent_ms = session.silent_ms if session is not None and is_this_run else _LONG_AGO_MS
            has_left = session is not None and session.has_left
            sign = self._probes.sign_of(run)
            if broker.is_fenced:
                if patience.is_heard(silent_ms, sign):
                    heard.append(node_id)
            elif node_id != config.node_id and (has_left or patience.is_dead(min(silent_ms, reached_ms), sign)):
                silent.append(node_id)
                if not has_left:
                    _log.warning(
                        "node %d was not heard of for %s, and at its peer address: %s",
                        node_id,
                        f"{silent_ms} ms" if is_this_run else "a while",
                        sign.value,
                    )
            may_still_live = not broker.is_fenced or silent_ms < patience.session_ms
            if node_id != config.node_id and may_still_live and patience.is_suspicious(silent_ms) and not has_left:
                suspects.append(run)
        self._probes.ask(suspects)
        return silent, heard

    async def _grow_internal_topics(self) -> None:
        """Give coordinators' topics the replicas that are set, where they were made when there were fewer nodes."""
        if self._more_replicas(self._metadata.image):
            image = await self._metadata.change(self._more_replicas, as_controller=True)
            _log.info("coordinators' topics get more replicas, by change %d of the metadata", image.sequence)

    def _more_replicas(self, image: MetadataImage) -> list[Change]:
        config = self._config()
        alive = alive_nodes(image) - stopping_nodes(image) - cordoned_nodes(image) - full_nodes(image)
        nodes = [node_id for node_id in alive if image.brokers[node_id].peer_port]
        changes: list[Change] = []
        for name, factor in (
            (OFFSETS_TOPIC, config.offsets_topic_replication_factor),
            (TRANSACTIONS_TOPIC, config.transaction_state_log_replication_factor),
        ):
            topic = image.topic(name)
            if topic is None or topic.is_diskless or any(one.is_moving for one in topic.partitions):
                continue  # an operator is at it
            if min(len(one.replicas) for one in topic.partitions) < min(factor, len(nodes)):
                changes += with_more_replicas(image, topic, factor, nodes)
        return changes

    async def _change(self, decision: Callable[..., list[Change]], node_ids: list[int]) -> None:
        min_isr = self._config().min_insync_replicas
        brokers = self._metadata.image.brokers
        epochs = {node_id: brokers[node_id].epoch for node_id in node_ids if node_id in brokers}

        def decide(image: MetadataImage) -> list[Change]:
            # One that has registered again meanwhile is another run of the node, and was heard of.
            same = [each for each in epochs if each in image.brokers and image.brokers[each].epoch == epochs[each]]
            return decision(image, same, default_min_isr=min_isr, stopping=stopping_nodes(image))

        await self._metadata.change(decide, as_controller=True)

    async def leave(self, patience_s: float) -> None:
        """Have others lead what this node leads, and wait until they know it: as long as there is patience."""
        self._metadata.stand_down()
        config = self._config()
        deadline = self._clock.monotonic() + patience_s
        moved_at = 0
        while True:
            before = self._metadata.image.sequence
            image = await self._metadata.change(self._changes_to_leave)
            if image.sequence > before:
                moved_at = image.sequence
            image = await self._metadata.refresh()
            seen = {
                each.node_id: each.seen_sequence
                for each in await self._metadata.silent_nodes(0)
                if each.silent_ms < config.broker_session_timeout_ms
            }
            # Who is silent will not be asked either: it learns what has changed before anything else.
            seen = {node_id: seen.get(node_id, image.sequence) for node_id in image.brokers}
            step = self._step_down(image)
            if may_stop(image, config.node_id, step, moved_at=moved_at, seen=seen):
                return
            if self._clock.monotonic() >= deadline:
                led = ", ".join(map(str, step.waiting[:_NAMED_MAX])) or "nothing"
                _log.warning("this node stops before all others can go on without it. It still leads %s", led)
                return
            await asyncio.sleep(LEAVE_EVERY_S)

    def _changes_to_leave(self, image: MetadataImage) -> list[Change]:
        here = image.brokers.get(self._config().node_id)  # none where it was unregistered meanwhile
        if here is None:
            return []
        told: list[Change] = [] if here.is_stopping else [BrokerStopping(here.node_id, here.epoch)]
        return [*told, *self._step_down(image).changes]

    def _step_down(self, image: MetadataImage) -> StepDown:
        config = self._config()
        return step_down(
            image, config.node_id, default_min_isr=config.min_insync_replicas, stopping=stopping_nodes(image)
        )


def _named(nodes: Sequence[int], one: str, many: str) -> str:
    listed = ", ".join(map(str, nodes))
    return f"node {listed} {one}" if len(nodes) == 1 else f"nodes {listed} {many}"
