"""What operators do with the cluster, and what they ask of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from semel.broker.acls.rights import Rights
from semel.broker.audit.log import Event
from semel.broker.diagnostics.client_abort import abort_as_asked
from semel.broker.diagnostics.hanging import end_hanging
from semel.broker.diagnostics.history import Told, read_history
from semel.broker.diagnostics.snapshot import take_snapshot
from semel.broker.handlers import nodes
from semel.broker.handlers.leadership import elect_leaders
from semel.broker.handlers.log_dirs import LogDir, describe_log_dir
from semel.broker.handlers.partition_decisions import Outcomes
from semel.broker.handlers.reassignments import reassign, reassignments
from semel.broker.permitted.transactions import name_of_transaction
from semel.broker.services import Services
from semel.protocol.acls import ResourceType
from semel.protocol.api.cluster import NodeState, Reassignment
from semel.protocol.api.diagnostics import HangingEnd, NodeSnapshot, TransactionHistory
from semel.protocol.ids import ProducerIdAndEpoch, TopicPartition
from semel.runtime.completion import done_to_its_end
from semel.runtime.turns import in_turns


async def describe_nodes(node: Services, rights: Rights) -> Sequence[NodeState]:
    """See `nodes.describe_nodes`."""
    rights.check_cluster()
    return await nodes.describe_nodes(node)


@done_to_its_end
async def cordon(node: Services, rights: Rights, node_id: int, *, is_cordoned: bool) -> None:
    """See `nodes.cordon`."""
    rights.check_cluster()
    await nodes.cordon(node, node_id, is_cordoned=is_cordoned)
    node.audit.changed(rights.who, Event.NODE_CORDONED if is_cordoned else Event.NODE_UNCORDONED, node=node_id)


@done_to_its_end
async def remove(node: Services, rights: Rights, node_id: int) -> None:
    """See `nodes.remove`."""
    rights.check_cluster()
    await nodes.remove(node, node_id)
    node.audit.changed(rights.who, Event.NODE_REMOVED, node=node_id)


def data_folder(node: Services, rights: Rights) -> LogDir:
    """See `describe_log_dir`."""
    rights.check_cluster()
    return describe_log_dir(node)


@done_to_its_end
async def move_replicas(
    node: Services,
    rights: Rights,
    wanted: Mapping[TopicPartition, Sequence[int] | None],
    *,
    may_change_factor: bool = True,
) -> Outcomes:
    """See `reassign`."""
    rights.check_cluster()
    outcomes = await reassign(node, wanted, may_change_factor=may_change_factor)
    async for tp, replicas in in_turns(wanted.items()):
        if outcomes[tp] is None and replicas is None:
            node.audit.changed(rights.who, Event.MOVE_CANCELLED, topic=tp.topic, partition=tp.partition)
        elif outcomes[tp] is None:
            told = ",".join(map(str, replicas or ()))
            node.audit.changed(rights.who, Event.REPLICAS_MOVED, topic=tp.topic, partition=tp.partition, replicas=told)
    return outcomes


async def moves(
    node: Services, rights: Rights, wanted: Sequence[TopicPartition] | None = None
) -> Sequence[Reassignment]:
    """See `reassignments`."""
    rights.check_cluster()
    return await reassignments(node, wanted)


@done_to_its_end
async def elect(node: Services, rights: Rights, wanted: Sequence[TopicPartition], *, unclean: bool) -> Outcomes:
    """See `elect_leaders`."""
    rights.check_cluster()
    outcomes = await elect_leaders(node, wanted, unclean=unclean)
    async for tp in in_turns(dict.fromkeys(wanted)):
        if outcomes[tp] is None:
            node.audit.changed(
                rights.who, Event.LEADER_ELECTED, topic=tp.topic, partition=tp.partition, unclean=unclean
            )
    return outcomes


async def snapshot(node: Services, rights: Rights, limit: int, producer_ids: Iterable[int]) -> NodeSnapshot:
    """See `take_snapshot`."""
    rights.check_cluster()
    return await take_snapshot(node, limit, producer_ids)


async def transaction_history(node: Services, rights: Rights, key: str, limit: int) -> TransactionHistory:
    """See `read_history`. Who may describe the cluster hears all of it.

    Who may describe the transactional id hears of the topics and groups that he may describe.
    """
    if rights.may_with_cluster(told=False):
        return await read_history(node, key, limit)
    rights.check(ResourceType.TRANSACTIONAL_ID, name_of_transaction(key))
    told = Told(
        topic=lambda name: rights.may(ResourceType.TOPIC, name, told=False),
        group=lambda name: rights.may(ResourceType.GROUP, name, told=False),
    )
    return await read_history(node, key, limit, told)


@done_to_its_end
async def end_hanging_transaction(
    node: Services,
    rights: Rights,
    tp: TopicPartition,
    start_offset: int,
    end: HangingEnd,
    *,
    unknown_elsewhere: bool,
) -> tuple[ProducerIdAndEpoch, bool]:
    """See `end_hanging`."""
    rights.check_cluster()
    producer, is_committed = await end_hanging(node, tp, start_offset, end, unknown_elsewhere=unknown_elsewhere)
    node.audit.changed(
        rights.who,
        Event.HANGING_TRANSACTION_ENDED,
        topic=tp.topic,
        partition=tp.partition,
        start_offset=start_offset,
        producer_id=producer.producer_id,
        committed=is_committed,
    )
    return producer, is_committed


@done_to_its_end
async def abort_by_marker(node: Services, rights: Rights, tp: TopicPartition, producer: ProducerIdAndEpoch) -> None:
    """See `abort_as_asked`. The caller has asked for the right."""
    await abort_as_asked(node, tp, producer)
    node.audit.changed(
        rights.who,
        Event.TRANSACTION_ABORTED,
        topic=tp.topic,
        partition=tp.partition,
        producer_id=producer.producer_id,
    )
