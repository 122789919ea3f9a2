"""Testing programs that use Semel, or Kafka: a broker in the test process, and faults to plant in it.

pytest's fixtures (`semel_broker` and so on) are there once the package is installed. docs/testing.md tells more.
Nothing here is imported before it is used: `import semel` costs no broker.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from semel.sdk.testing.aio_broker import AioBroker
    from semel.sdk.testing.broker import Broker, Unsynced
    from semel.sdk.testing.container import SemelContainer
    from semel.sdk.testing.fault import Fault

__all__ = ["AioBroker", "Broker", "Fault", "SemelContainer", "Unsynced"]

_MODULES = {
    "AioBroker": "aio_broker",
    "Broker": "broker",
    "Fault": "fault",
    "SemelContainer": "container",
    "Unsynced": "broker",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'semel.testing' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"semel.sdk.testing.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
