"""The internal topic of a coordinator that a test makes itself."""

from __future__ import annotations

from semel.protocol.errors import ErrorCode, RetriableError


async def topic_is_ready(*, create: bool = True) -> bool:
    """There, and read."""
    return True


class NoTopic:
    """A topic that is missing; notes whether it was to be created, and can't be."""

    def __init__(self) -> None:
        self.creations = 0

    async def __call__(self, *, create: bool = True) -> bool:
        self.creations += create
        if create:
            raise RetriableError("it can't be created", ErrorCode.NOT_COORDINATOR)
        return False
