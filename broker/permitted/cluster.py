"""What operators do with the cluster, and what they ask of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from semel.broker.acls.rights import Rights
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


async def describe_nodes(node: Services, rights: Rights) -> Sequence[NodeState]:
    """See `nodes.describe_nodes`."""
    rights.check_cluster()
    return await nodes.describe_nodes(node)


async def cordon(node: Services, rights: Rights, node_id: int, *, is_cordoned: bool) -> None:
    """See `nodes.cordon`."""
    rights.check_cluster()
    await nodes.cordon(node, node_id, is_cordoned=is_cordoned)


async def remove(node: Services, rights: Rights, node_id: int) -> None:
    """See `nodes.remove`."""
    rights.check_cluster()
    await nodes.remove(node, node_id)


def data_folder(node: Services, rights: Rights) -> LogDir:
    """See `describe_log_dir`."""
    rights.check_cluster()
    return describe_log_dir(node)


async def move_replicas(
    node: Services,
    rights: Rights,
    wanted: Mapping[TopicPartition, Sequence[int] | None],
    *,
    may_change_factor: bool = True,
) -> Outcomes:
    """See `reassign`."""
    rights.check_cluster()
    return await reassign(node, wanted, may_change_factor=may_change_factor)


async def moves(
    node: Services, rights: Rights, wanted: Sequence[TopicPartition] | None = None
) -> Sequence[Reassignment]:
    """See `reassignments`."""
    rights.check_cluster()
    return await reassignments(node, wanted)


async def elect(node: Services, rights: Rights, wanted: Sequence[TopicPartition], *, unclean: bool) -> Outcomes:
    """See `elect_leaders`."""
    rights.check_cluster()
    return await elect_leaders(node, wanted, unclean=unclean)


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
    return await end_hanging(node, tp, start_offset, end, unknown_elsewhere=unknown_elsewhere)
