"""The clients for asyncio, under the name that programs import: `from semel.aio import Consumer, Producer`."""

from semel.sdk.aio import (
    Admin,
    Consumer,
    Producer,
    RebalanceListener,
    SharedTransaction,
    SharedWriter,
    Transaction,
)

__all__ = ["Admin", "Consumer", "Producer", "RebalanceListener", "SharedTransaction", "SharedWriter", "Transaction"]
