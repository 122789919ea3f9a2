"""A commit is asked for on the connection that its records took, where that is to the coordinator.

A gRPC call costs client and node several times what such a request costs. So the coordinator is asked here first, once,
and for a short time. Nothing is retried here and no error is raised: where the answer is not a clear yes, gRPC asks
again, which knows what each error means, finds a coordinator that has moved, and waits. That is safe: a decision that
is asked for twice has one answer (T7).

What would stand before the request on its connection must not hold the decision up, so it goes by gRPC where records
are not answered yet, and while the node reads nothing because of a quota. So do aborts, which come when something is
wrong with the records, and what Kafka's request has no room for: tokens and traces.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from semel.protocol.errors import ErrorCode, SemelError
from semel.protocol.ids import ProducerIdAndEpoch
from semel.protocol.kafka.api import ApiKey, join_parts
from semel.protocol.kafka.end_txn import END_TXN_VERSION, end_txn_request, read_end_txn
from semel.runtime.kafka_client.connection import Connection
from semel.sdk.transport.options import ClientOptions
from semel.sdk.transport.rpcs import Key, Place

_log = logging.getLogger("semel.producer")

PATIENCE_S: Final = 1.0
"""How long the answer may take before gRPC is asked, and at most a quarter of the time that the whole call has."""


class BesideRecords:
    """Asks for one transactional id. On the IO thread."""

    def __init__(
        self, transactional_id: str, options: ClientOptions, connection_to: Callable[[Key], Connection | None]
    ) -> None:
        """`connection_to` gives the data connection to the coordinator of a key, where one is open."""
        self._transactional_id = transactional_id
        self._options = options
        self._connection_to = connection_to

    async def commit(self, producer: ProducerIdAndEpoch) -> ProducerIdAndEpoch | None:
        """Return the identity of the next transaction, or None where gRPC must be asked for the decision."""
        connection = self._connection_to((Place.TRANSACTION, self._transactional_id))
        if connection is None or connection.in_flight or connection.is_throttled:
            return None
        options = self._options
        try:
            version = connection.highest_version(ApiKey.END_TXN, END_TXN_VERSION, END_TXN_VERSION)
            body = join_parts(end_txn_request(self._transactional_id, producer, commit=True))
            asked = connection.request(ApiKey.END_TXN, version, (body,), timeout_ms=options.request_timeout_ms)
            # Not cut short by the connection's own timeout, which would end the connection.
            await asyncio.wait((asked,), timeout=min(PATIENCE_S, options.api_timeout_ms / 4000))
            if not asked.done():
                return None
            answer = read_end_txn(asked.result())
        except SemelError as error:
            _log.debug("%s: gRPC is asked for the decision: %s", self._transactional_id, error)
            return None
        return answer.producer if answer.error is ErrorCode.NONE else None
