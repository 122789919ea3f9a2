"""What a follower leaves out of its fetches. The leader names it once there is more in it."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol

from semel.protocol.errors import ErrorCode
from semel.protocol.kafka.fetch import FetchPartitionResponse

if TYPE_CHECKING:
    from semel.broker.logs.partition import Partition


NAMED_MAX: Final = 500
"""So many one answer names at most (S3)."""


class Waiting(Protocol):
    """A fetch that is not answered yet."""

    def asks_for(self, partition: Partition) -> bool:
        """Say whether it will be answered with what comes to a partition, now or once that may go."""
        ...

    def answer_soon(self) -> None:
        """Answer in the next turn of the event loop, with all that comes in this one."""
        ...

    def give_up(self) -> None:
        """End, and leave what comes to the fetch that the follower has sent since."""
        ...


class Unasked:
    """What one follower follows here and leaves out of its fetches while it is idle.

    It asks for all that it follows now and then, and in between only for what is busy. Once there is more in something
    that it has asked for before, and does not ask for now, an answer names that without records, so that it asks again.

    waiting:  its fetch that is not answered yet
    has_more: what the next answer is to name
    """

    __slots__ = ("has_more", "waiting")

    def __init__(self) -> None:
        self.waiting: Waiting | None = None
        self.has_more: dict[Partition, None] = {}

    def asked(self, partitions: Iterable[Partition | None]) -> None:
        """Take note that a fetch asks for these, which the next one may leave out."""
        for partition in partitions:
            if partition is not None:
                self.has_more.pop(partition, None)
                partition.add_replica_listener(self._woken)

    def ask_again(self, partitions: Iterable[Partition]) -> None:
        """Take note of what was asked for, has news, and no records: the answer to that is another fetch of it.

        A read barrier waits for it (R9), a deletion (D1), or it got nothing because others filled the answer. It is
        named unless the next fetch asks for it.
        """
        self.has_more.update(dict.fromkeys(partitions))

    def named(self, asked: Iterable[Partition | None]) -> list[FetchPartitionResponse]:
        """Return what the answer to a fetch for `asked` says besides. What it asked for stays for the next one."""
        if not self.has_more:
            return []
        kept = frozenset(asked)
        named = list(islice((partition for partition in self.has_more if partition not in kept), NAMED_MAX))
        for partition in named:
            del self.has_more[partition]
        return [FetchPartitionResponse(one.tp.topic, one.topic_id, one.tp.partition, ErrorCode.NONE) for one in named]

    def _woken(self, partition: Partition, has_more: bool) -> None:
        if not has_more:
            return
        partition.remove_replica_listener(self._woken)
        waiting = self.waiting
        if waiting is None or not waiting.asks_for(partition):
            self.has_more[partition] = None
            if waiting is not None:
                waiting.answer_soon()
