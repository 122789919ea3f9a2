"""Which part a node has in a partition, by what the metadata says of it: leader, follower, or none (R4, R7)."""

from __future__ import annotations

from semel.broker.log.epochs_file import EpochsWrite
from semel.broker.logs.leader_state import LeaderState
from semel.broker.logs.partition import Partition
from semel.broker.metadata.changes import PartitionState


def take_part(partition: Partition, state: PartitionState, node_id: int, now_s: float) -> EpochsWrite | None:
    """Lead or follow a partition as `state` says. What is returned is to be written: see `Partition.lead`.

    Only metadata that knows of the present start of this node may say so: what it was before it started is over.
    """
    if state.leader != node_id:
        partition.follow(state.leader_epoch, state.leader)
        return None
    may_return = (*state.elr, *state.last_known_elr)
    if (
        partition.leader is not None
        and partition.leader_epoch == state.leader_epoch
        and partition.leader.node_id == node_id  # the only replica leads without an id until it gets others
    ):
        partition.isr_changed(
            state.isr, state.replicas, state.partition_epoch, may_return, replication_factor=state.replication_factor
        )
        return None
    leader = LeaderState(
        node_id,
        leader_epoch=state.leader_epoch,
        partition_epoch=state.partition_epoch,
        replicas=state.replicas,
        isr=state.isr,
        min_isr=partition.config.min_insync_replicas,
        begin_offset=partition.log_end_offset,
        now_s=now_s,
        elr=may_return,
        replication_factor=state.replication_factor,
    )
    return partition.lead(leader)
