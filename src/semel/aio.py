"""The clients for asyncio, under the name that programs import: `from semel.aio import Consumer, Producer`.

    async with Producer("localhost:9094") as producer:
        delivery = await producer.send("orders", b"...")   # buffered
        metadata = await delivery                          # acknowledged

`Sink` and `Outbox` are those of `semel.sql`; SQLAlchemy is imported when they are first used, and a node with `open`.
`SchemaRegistry` is that of `semel.schemas`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from semel.protocol.extras import imports_of_extra
from semel.sdk.admin.aio import Admin
from semel.sdk.consumer.aio import Consumer, RebalanceListener
from semel.sdk.producer.aio import Producer, Transaction
from semel.sdk.shared.aio import SharedTransaction, SharedWriter

if TYPE_CHECKING:
    from semel.sdk.embedded.aio import EmbeddedLog
    from semel.sdk.embedded.aio import open as open  # noqa: A004
    from semel.sdk.schemas.aio import SchemaRegistry
    from semel.sdk.sql.aio import Outbox, Sink

__all__ = [
    "Admin",
    "Consumer",
    "EmbeddedLog",
    "Outbox",
    "Producer",
    "RebalanceListener",
    "SchemaRegistry",
    "SharedTransaction",
    "SharedWriter",
    "Sink",
    "Transaction",
]


_LATER = {
    "EmbeddedLog": ("node", "semel.sdk.embedded.aio"),
    "Outbox": ("sql", "semel.sdk.sql.aio"),
    "SchemaRegistry": ("schemas", "semel.sdk.schemas.aio"),
    "Sink": ("sql", "semel.sdk.sql.aio"),
    "open": ("node", "semel.sdk.embedded.aio"),
}
"""The extra and the module of what is not imported before it is used."""


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'semel.aio' has no attribute {name!r}")
    extra, module = _LATER[name]
    with imports_of_extra(extra, f"semel.aio.{name}"):
        value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__doc__", "__file__", "__name__"])
