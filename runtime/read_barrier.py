"""What an answer passes that rests on a coordinator's state alone (R9).

A record that commits shows that its writer still led the partition. An answer without one, such as "that token was not
committed", shows nothing: a node that was replaced and has not heard of it would give it, too, and be wrong.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final, Protocol

from semel.protocol.ids import TopicPartition


class ReadBarrier(Protocol):
    """Shows that this node still leads a partition of an internal topic."""

    def begin(self, tp: TopicPartition, leader_epoch: int) -> Awaitable[None] | None:
        """Begin to show that `tp` is led here, under `leader_epoch`, at a moment after this call.

        Returns None where nobody else could lead it. Else what to wait for, which raises `SemelError`, NOT_COORDINATOR
        above all, where it is not led here any more or that can't be told. Any number of waits may be for one proof.
        """
        ...


class OneNode:
    """For a node that is alone: no other can lead what it leads, so nothing waits."""

    def begin(self, tp: TopicPartition, leader_epoch: int) -> None:
        return None


ONE_NODE: Final[ReadBarrier] = OneNode()
