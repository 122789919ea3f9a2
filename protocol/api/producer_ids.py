"""How a producer asks for its id and epoch (KIP-98, KIP-360, KIP-939)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from semel.protocol.ids import NO_PRODUCER, ProducerIdAndEpoch

if TYPE_CHECKING:
    from semel.protocol.api.clients import ClientOrigin


@dataclass(frozen=True, slots=True)
class InitProducerIdRequest:
    """Ask for a producer id. With `transactional_id`, fences every older instance of it.

    producer:      what the caller holds already (KIP-360), for bumping its own epoch.
    two_phase:     transactions are decided by somebody outside, such as a database: none of them times out (KIP-939).
    keep_prepared: leave an open transaction as it is, to be ended by the caller; otherwise it is aborted.
    """

    transactional_id: str | None
    transaction_timeout_ms: int
    producer: ProducerIdAndEpoch = NO_PRODUCER
    two_phase: bool = False
    keep_prepared: bool = False
    client: ClientOrigin | None = None


@dataclass(frozen=True, slots=True)
class InitProducerIdResponse:
    """`ongoing`: under which id and epoch the transaction runs that was kept; None where there is none."""

    producer: ProducerIdAndEpoch
    ongoing: ProducerIdAndEpoch | None = None
