"""Databases, exactly once: `Sink` writes topics into tables, `Outbox` relays a table into topics."""

from semel.protocol.extras import imports_of_extra

with imports_of_extra("sql", "semel.sql"):
    from semel.sdk.sql.outbox import Outbox
    from semel.sdk.sql.sink import Sink
    from semel.sdk.sql.target import Delete

__all__ = ["Delete", "Outbox", "Sink"]
