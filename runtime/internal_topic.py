"""What a coordinator asks its node for: that the internal topic it lives on is there."""

from __future__ import annotations

from typing import Protocol


class TopicReady(Protocol):
    """Sees to it that a coordinator has its internal topic. Which partitions it can use, their shards say."""

    async def __call__(self, *, create: bool = True) -> bool:
        """Create the topic where it is missing, and wait a moment until what is led here of a new one can be used.

        Without `create`, returns False where it is missing.
        """
        ...
