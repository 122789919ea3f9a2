"""`Sink` and `Outbox` of the sync API, under the name that code made from asyncio code finds them by: beside aio.py."""

from semel.sdk.sql.outbox import Outbox
from semel.sdk.sql.sink import Sink

__all__ = ["Outbox", "Sink"]
