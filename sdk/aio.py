"""The asyncio faces of the clients: the same cores as the sync ones, awaited in place of waited for.

async with semel.aio.Producer("localhost:9094") as producer:
    delivery = await producer.send("orders", b"...")   # buffered
    metadata = await delivery                          # acknowledged
"""

from __future__ import annotations

from semel.sdk.admin.aio import Admin
from semel.sdk.consumer.aio import Consumer, RebalanceListener
from semel.sdk.producer.aio import Producer, Transaction
from semel.sdk.shared.aio import SharedTransaction, SharedWriter

__all__ = ["Admin", "Consumer", "Producer", "RebalanceListener", "SharedTransaction", "SharedWriter", "Transaction"]
