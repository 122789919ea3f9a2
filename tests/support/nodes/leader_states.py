"""Leaderships of a partition, for tests that have no metadata."""

from __future__ import annotations

from semel.broker.logs.leader_state import LeaderState


def of_two(leader_epoch: int, *, isr: tuple[int, ...] = (1, 2), min_isr: int = 1, begin_offset: int = 0) -> LeaderState:
    """Node 1 leads, and node 2 has a replica, too."""
    return LeaderState(
        1, leader_epoch=leader_epoch, partition_epoch=1, replicas=(1, 2), isr=isr,
        min_isr=min_isr, begin_offset=begin_offset, now_s=0.0,
    )  # fmt: skip
