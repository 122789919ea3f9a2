"""The offsets of a consumer's group: committing them, each commit behind the one before, and reading them.

On the IO thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from semel.protocol.api.group_offsets import GroupMetadata, OffsetAndMetadata
from semel.protocol.errors import ErrorCode, RetriableError, SemelError, UsageError
from semel.protocol.ids import TopicPartition
from semel.protocol.proto_conversions import by_topic
from semel.protocol.v1 import groups_pb2
from semel.sdk.telemetry import tracing
from semel.sdk.transport.client import ClientCore
from semel.sdk.transport.item_errors import item_error
from semel.sdk.transport.offset_parts import in_parts, offset_items
from semel.sdk.transport.rpcs import COMMIT_OFFSETS, FETCH_OFFSETS

_NEVER_AGAIN: Final = frozenset({ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})


class GroupOffsets:
    """The offsets of one group, as one consumer asks for them. Without a group nothing can be committed or read."""

    def __init__(self, client: ClientCore, group: str) -> None:
        """group: its name; empty where the consumer has none"""
        self._client = client
        self._group = group
        self._in_order = asyncio.Lock()

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], committer: GroupMetadata) -> None:
        """Commit for the group, one call after the other. Raises the first error of a partition.

        Very many offsets go in several requests; where one fails, those before it are committed.
        """
        if not offsets:
            return
        requests = [
            groups_pb2.CommitOffsetsRequest(
                group_id=committer.group_id,
                generation_id=committer.generation_id,
                member_id=committer.member_id,
                group_instance_id=committer.group_instance_id or "",
                items=part,
            )
            for part in in_parts(offset_items(offsets), committer.group_id)
        ]
        topics = {tp.topic for tp in offsets}
        with tracing.operation(
            "commit",
            topics.pop() if len(topics) == 1 else "",
            client_id=self._client.options.client_id,
            consumer__group__name=committer.group_id,
        ):
            await self._commit_in_order(requests, committer)

    async def _commit_in_order(
        self, requests: Sequence[groups_pb2.CommitOffsetsRequest], committer: GroupMetadata
    ) -> None:
        deadline = self._deadline()
        async with self._in_order:  # in order, also where one has to be repeated: none may overwrite a later one
            for request in requests:
                failures = 0
                while (error := await self._commit_once(request, committer)) is not None:
                    failures += 1
                    # A rebalance waits for the user's poll, which waits for this commit.
                    is_final = not isinstance(error, RetriableError) or error.code in _NEVER_AGAIN
                    if is_final or not await self._client.options.backoff.pause(failures, self._client.clock, deadline):
                        raise error

    async def commit_within(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], committer: GroupMetadata, timeout_s: float
    ) -> None:
        """Commit, for so long at most. Raises `RetriableError` (REQUEST_TIMED_OUT) where that was not enough."""
        try:
            async with asyncio.timeout(timeout_s):
                await self.commit(offsets, committer)
        except TimeoutError:
            raise RetriableError(
                f"the group did not take the offsets within {timeout_s:g} s", ErrorCode.REQUEST_TIMED_OUT
            ) from None

    async def finish(self, timeout_s: float) -> None:
        """Wait until the commits under way are done, for so long at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s), self._in_order:
                pass

    async def _commit_once(
        self, request: groups_pb2.CommitOffsetsRequest, committer: GroupMetadata
    ) -> SemelError | None:
        try:
            response = await self._client.control.call(COMMIT_OFFSETS, request, retry=False)
        except SemelError as error:
            return _commit_error(error, "offsets were", committer)
        for item in response.items:
            if item.error.code:
                tp = TopicPartition(item.topic, item.partition)
                return _commit_error(item_error(item.error, str(tp)), f"offset of {tp} was", committer)
        return None

    async def committed(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return where the group stands, waiting for transactions that are about to commit offsets (O2)."""
        deadline = self._deadline()
        found: dict[TopicPartition, OffsetAndMetadata | None] = {}
        asked, failures = list(tps), 0
        while True:
            again: dict[TopicPartition, SemelError] = {}
            for tp, place in (await self.read(asked)).items():
                if not isinstance(place, SemelError):
                    found[tp] = place
                elif isinstance(place, RetriableError):
                    again[tp] = place
                else:
                    raise place
            if not again:
                return found
            asked, failures = list(again), failures + 1
            if not await self._client.options.backoff.pause(failures, self._client.clock, deadline):
                raise next(iter(again.values()))

    async def read(self, tps: list[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata | SemelError | None]:
        """Return where the group stands in each partition, None where it has committed nothing, or an error."""
        if not self._group:
            raise UsageError("committed offsets need a group: Consumer(..., group='name')")
        if not tps:
            return {}
        request = groups_pb2.FetchOffsetsRequest(group_id=self._group, topics=by_topic(tps), require_stable=True)
        response = await self._client.control.call(FETCH_OFFSETS, request)
        found: dict[TopicPartition, OffsetAndMetadata | SemelError | None] = dict.fromkeys(tps)
        for item in response.items:
            tp = TopicPartition(item.topic, item.partition)
            if item.error.code == ErrorCode.UNSTABLE_OFFSET_COMMIT:
                found[tp] = RetriableError(
                    f"a transaction holds the committed offset of {tp} open; see `semel txn list --state Ongoing`",
                    ErrorCode.UNSTABLE_OFFSET_COMMIT,
                )
            elif item.error.code:
                found[tp] = item_error(item.error, f"offset of {tp} of group {self._group!r}")
            elif item.offset >= 0:
                found[tp] = OffsetAndMetadata(item.offset, item.leader_epoch, item.metadata)
        return found

    def _deadline(self) -> float:
        return self._client.clock.monotonic() + self._client.options.api_timeout_ms / 1000


def _commit_error(error: SemelError, what: str, committer: GroupMetadata) -> SemelError:
    message = f"{what} not committed for group {committer.group_id!r}: {error.message}"
    if error.code in (ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.REBALANCE_IN_PROGRESS):
        message += "; the group has rebalanced, poll again to get the partitions that are yours now"
    return type(error)(message, error.code)
