"""What a transaction asks its coordinators on the connections that its records took.

A gRPC call costs client and node several times what such a request costs, and a transaction has one or two. So a
coordinator is asked here first, once, where a data connection to it is open. Nothing is retried here and no error is
raised: whatever is not answered with success is asked again by gRPC, which knows what each error means, finds
coordinators that have moved, and waits. That is safe: a decision that is asked for twice has one answer (T7), and
offsets that come twice in one transaction are the same offsets.

What Kafka's requests have no room for goes by gRPC alone: tokens, conditions on offsets, traces.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final

from semel.protocol.api.group_offsets import GroupMetadata, OffsetAndMetadata
from semel.protocol.errors import ErrorCode, SemelError
from semel.protocol.ids import ProducerIdAndEpoch, TopicPartition
from semel.protocol.kafka.api import ApiKey, join_parts
from semel.protocol.kafka.end_txn import END_TXN_VERSION, end_txn_request, read_end_txn
from semel.protocol.kafka.txn_offset_commit import (
    TXN_OFFSET_COMMIT_VERSION,
    read_txn_offset_commit,
    txn_offset_commit_request,
)
from semel.protocol.kafka.wire import Part
from semel.runtime.kafka_client.connection import Connection
from semel.sdk.transport.options import ClientOptions
from semel.sdk.transport.rpcs import Key, Place

_log = logging.getLogger("semel.producer")

OFFSETS_MAX: Final = 1_000
"""More go by gRPC, in several requests."""


class BesideRecords:
    """Asks for one transactional id. On the IO thread."""

    def __init__(
        self, transactional_id: str, options: ClientOptions, connection_to: Callable[[Key], Connection | None]
    ) -> None:
        """`connection_to` gives the data connection to the coordinator of a key, where one is open."""
        self._transactional_id = transactional_id
        self._options = options
        self._connection_to = connection_to

    async def end(self, producer: ProducerIdAndEpoch, *, commit: bool) -> ProducerIdAndEpoch | None:
        """Return the identity of the next transaction, or None where this one must be ended by gRPC."""
        connection = self._connection_to((Place.TRANSACTION, self._transactional_id))
        if connection is None:
            return None
        body = end_txn_request(self._transactional_id, producer, commit=commit)
        try:
            answer = read_end_txn(await self._ask(connection, ApiKey.END_TXN, END_TXN_VERSION, body))
        except SemelError as error:
            _log.debug("%s is asked again for its decision, by gRPC: %s", self._transactional_id, error)
            return None
        return answer.producer if answer.error is ErrorCode.NONE else None

    async def commit_offsets(
        self,
        producer: ProducerIdAndEpoch,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        group: GroupMetadata,
    ) -> bool:
        """Return whether all offsets are in the transaction. They must be committed by gRPC where they are not."""
        connection = self._connection_to((Place.GROUP, group.group_id))
        if connection is None or len(offsets) > OFFSETS_MAX:
            return False
        body = txn_offset_commit_request(self._transactional_id, producer, offsets, group)
        try:
            answer = await self._ask(connection, ApiKey.TXN_OFFSET_COMMIT, TXN_OFFSET_COMMIT_VERSION, body)
            errors = read_txn_offset_commit(answer)
        except SemelError as error:
            _log.debug("offsets of %s are committed again, by gRPC: %s", group.group_id, error)
            return False
        return errors.keys() == offsets.keys() and not any(errors.values())

    async def _ask(self, connection: Connection, key: ApiKey, version: int, body: list[Part]) -> memoryview:
        options = self._options
        version = connection.highest_version(key, version, version)
        timeout_ms = min(options.request_timeout_ms, options.api_timeout_ms)
        return await connection.request(key, version, (join_parts(body),), timeout_ms=timeout_ms)
