"""Calls about many partitions: each is asked of the node that leads it, and the answers are put together.

The node that answers any call is asked first, for all: where there is one node, that is the one call. What it does not
lead is asked of the leaders, by metadata that is read again after each refusal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final, TypeAlias, TypeVar

from semel.protocol.errors import ErrorCode, RetriableError, SemelError
from semel.protocol.ids import TopicPartition
from semel.sdk.transport.client import ClientCore

Answer = TypeVar("Answer")
Asked: TypeAlias = Callable[[list[TopicPartition], str | None], Awaitable[Mapping[TopicPartition, Answer | SemelError]]]
"""Asks one node about partitions: the one at the address, or any. What is refused is an error of its partition."""

_MOVED: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.BROKER_NOT_AVAILABLE,
    }
)
"""What is answered, or not, while leaders change, and by a leader that has not heard yet of a new topic."""


async def ask_leaders(
    client: ClientCore, partitions: Iterable[TopicPartition], ask: Asked[Answer], *, patience_ms: float
) -> dict[TopicPartition, Answer | SemelError]:
    """Return the answer for each partition, or why there is none. Raises `SemelError` where no node can be asked.

    patience_ms: how long to try where leaders change, or are away; whatever it is, the leaders are looked up once
    """
    found: dict[TopicPartition, Answer | SemelError] = {}
    deadline = client.clock.monotonic() + patience_ms / 1000
    left, failures = list(partitions), 0
    while left:
        found.update(await _ask_once(client, left, ask))
        left = [tp for tp in left if _has_moved(client, found[tp])]
        if not left or (failures and not await client.options.backoff.pause(failures, client.clock, deadline)):
            break
        failures += 1
        snapshot = await client.cluster.look_up({tp.topic for tp in left})
        # Where the metadata knows of no other node, and of no such topic, that is the answer.
        left = [tp for tp in left if client.control.nodes.by_id and tp.topic in snapshot.topics]
    return found


async def _ask_once(
    client: ClientCore, partitions: list[TopicPartition], ask: Asked[Answer]
) -> dict[TopicPartition, Answer | SemelError]:
    nodes, snapshot = client.control.nodes.by_id, client.cluster.snapshot
    parts: dict[str | None, list[TopicPartition]] = {}
    for tp in partitions:
        place = snapshot.leader(tp) if nodes else None
        parts.setdefault(None if place is None else nodes.get(place.leader_id), []).append(tp)
    answers = await asyncio.gather(*(_ask_part(part, address, ask) for address, part in parts.items()))
    return {tp: answer for each in answers for tp, answer in each.items()}


async def _ask_part(
    part: list[TopicPartition], address: str | None, ask: Asked[Answer]
) -> Mapping[TopicPartition, Answer | SemelError]:
    try:
        return await ask(part, address)
    except RetriableError as error:
        if address is None:
            raise
        return dict.fromkeys(part, error)  # others answer for the rest, and will lead these


def _has_moved(client: ClientCore, answer: object) -> bool:
    if not isinstance(answer, SemelError):
        return False
    if not client.control.nodes.by_id:  # as far as is known there is one node, whose word on all else is the last
        return answer.code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.LEADER_NOT_AVAILABLE)
    return answer.code in _MOVED
