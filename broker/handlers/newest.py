"""Looks again before something is called missing: another node may have made it a moment ago."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from semel.broker.metadata.database import MetadataUnavailableError
from semel.broker.services import Services
from semel.protocol.ids import TopicPartition
from semel.runtime.turns import in_turns

PATIENCE_S: Final = 5.0
"""A database that is locked or hangs keeps who asks it waiting for ten seconds, and clients give up after thirty."""


async def read_newest(node: Services) -> None:
    """Read and carry out what other nodes of the cluster have changed until now.

    Where the metadata can't be read, or not within `PATIENCE_S`, what is known stays, and the caller answers by that.
    """
    if not node.config.peer_listen:
        return
    with suppress(MetadataUnavailableError, TimeoutError):
        async with asyncio.timeout(PATIENCE_S):
            await node.metadata.refresh()
    await node.caught_up()


async def know_topics(node: Services, names: Iterable[str]) -> None:
    """Look again where one of these topics is not known."""
    if node.config.peer_listen and any([node.metadata.topic(name) is None async for name in in_turns(names)]):
        await read_newest(node)


async def know_partitions(node: Services, partitions: Iterable[TopicPartition]) -> None:
    """Look again where one of these partitions is not known."""
    image = node.metadata.image
    if node.config.peer_listen and any([image.partition(tp) is None async for tp in in_turns(partitions)]):
        await read_newest(node)
