"""Which replica a reader is sent to: one in its own rack, where that is wished (KIP-392)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from semel.broker.config.node_config import RACK_AWARE_SELECTOR

if TYPE_CHECKING:
    from semel.broker.logs.partition import Partition
    from semel.broker.services import Services

NEAREST_IS_LEADER: Final = -1


def nearest_replica(node: Services, partition: Partition, rack: str, offset: int) -> int:
    """Return the node that a reader in `rack` is to fetch from, `NEAREST_IS_LEADER` where it should stay here.

    It is an in-sync follower in that rack that has the offset, and is heard of. The leader comes first where it is in
    that rack itself; among followers the one that has most.
    """
    leader = partition.leader
    if not rack or leader is None or leader.is_alone or node.config.replica_selector_class != RACK_AWARE_SELECTOR:
        return NEAREST_IS_LEADER
    brokers = node.metadata.image.brokers
    here = brokers.get(leader.node_id)
    if here is None or here.rack == rack:
        return NEAREST_IS_LEADER
    heard_after_s = node.clock.monotonic() - node.config.replica_lag_time_max_ms / 1000
    best, most = NEAREST_IS_LEADER, -1
    for node_id in leader.isr:
        broker, follower = brokers.get(node_id), leader.follower(node_id)
        if (
            broker is not None
            and follower is not None
            and broker.rack == rack
            and not (broker.is_fenced or broker.is_stopping)
            and follower.broker_epoch == broker.epoch
            and follower.fetched_s >= heard_after_s
            and follower.log_start_offset <= offset <= follower.end_offset
            and follower.end_offset > most
        ):
            best, most = node_id, follower.end_offset
    return best
