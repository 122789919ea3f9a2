"""Calls that each coordinator answers for its own part: all nodes that lead a partition of their topic are asked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from semel.protocol.errors import RetriableError
from semel.protocol.ids import NO_LEADER
from semel.protocol.v1 import metadata_pb2
from semel.sdk.transport.client import ClientCore
from semel.sdk.transport.known_nodes import addresses_of
from semel.sdk.transport.rpcs import GET_METADATA

Answer = TypeVar("Answer")

_PATIENCE_MS: Final = 5_000
"""How long to try where a node is away: about as long as others take to lead what it led. Then its part is missing."""


async def ask_coordinators(
    client: ClientCore, topic: str, ask: Callable[[str | None, float], Awaitable[Answer]]
) -> tuple[list[Answer], tuple[str, ...]]:
    """Return what the coordinators on `topic` answer, and why some of it is missing.

    `ask` asks one node, at an address or any, for so many milliseconds. Raises `SemelError` where no node answers.
    """
    control, options = client.control, client.options
    patience_ms = min(_PATIENCE_MS, options.api_timeout_ms)
    deadline = client.clock.monotonic() + patience_ms / 1000
    failures = 0
    while True:
        metadata = await control.call(GET_METADATA, metadata_pb2.GetMetadataRequest(topics=[topic]))
        nodes = addresses_of(metadata)
        leaders = {one.partition: one.leader_id for one in metadata.topics[0].partitions}
        if len(set(nodes.values())) < 2 or not leaders:
            return [await ask(None, options.api_timeout_ms)], ()
        asked = sorted({leader for leader in leaders.values() if leader in nodes})
        outcomes = await asyncio.gather(
            *(ask(nodes[node_id], patience_ms) for node_id in asked), return_exceptions=True
        )
        answers: list[Answer] = []
        errors: dict[int, RetriableError] = {}
        for node_id, outcome in zip(asked, outcomes, strict=True):
            if isinstance(outcome, RetriableError):
                errors[node_id] = outcome
            elif isinstance(outcome, BaseException):
                raise outcome
            else:
                answers.append(outcome)
        failures += 1
        if not errors or not await options.backoff.pause(failures, client.clock, deadline):
            break
    if errors and not answers:
        raise next(iter(errors.values()))
    leaderless = [f"{topic}-{number} has no leader now" for number, leader in leaders.items() if leader == NO_LEADER]
    away = [f"node {node_id} does not answer: {error.message}" for node_id, error in errors.items()]
    return answers, (*away, *leaderless)
