"""Partitions that alone make a node hot: wherever they are led, that node sends more than the others.

What one leader sends can't be divided by another leader or another node. More partitions in the topic can divide it.
"""

from __future__ import annotations

from collections.abc import Collection
from math import fsum
from typing import Final

from semel.sdk.balancing.cost import BYTES_OUT_MEAN_MIN, receivers
from semel.sdk.balancing.model import ClusterModel
from semel.sdk.balancing.results import HotPartition

HOT_MEANS_MIN: Final = 1.25
"""A leader is hot that alone sends so many times what nodes send in the mean. Less makes no node stand out."""
HOT_SHARE_MIN: Final = 0.5
"""And it sends so much of all that its node does: else it isn't that one alone."""


def hot_partitions(cluster: ClusterModel, empty: Collection[int]) -> tuple[HotPartition, ...]:
    """Return the partitions whose leaders alone make their nodes hot, the hottest first.

    Of nodes that may get replicas alone, as everywhere in the balance. There are none where no rates were measured.
    """
    able = {each.node_id for each in receivers(cluster, empty)}
    sent = {each.node_id: each.bytes_out_per_s for each in cluster.totals() if each.node_id in able}
    if not sent:
        return ()
    hot_min = HOT_MEANS_MIN * max(fsum(sent.values()) / len(sent), BYTES_OUT_MEAN_MIN)
    found: list[HotPartition] = []
    for one in cluster.partitions:
        rate, leader = one.led_bytes_out_per_s, one.replicas[0]
        if rate > hot_min and leader in able and rate >= HOT_SHARE_MIN * sent[leader]:
            # What was summed in another order may be less by a last digit.
            found.append(HotPartition(one.partition, leader, rate, min(1.0, rate / sent[leader])))
    return tuple(sorted(found, key=lambda each: (-each.bytes_out_per_s, each.partition)))
