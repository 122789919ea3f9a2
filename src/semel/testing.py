"""Testing programs that use Semel, or Kafka: a broker in the test process, and faults to plant in it.

pytest's fixtures (`semel_broker` and so on) are there once the package is installed. docs/testing.md tells more.
Nothing here is imported before it is used: `import semel` costs no broker.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from semel.sdk.testing.broker import AioBroker, Broker
    from semel.sdk.testing.cluster import Cluster
    from semel.sdk.testing.container import SemelContainer
    from semel.sdk.testing.fault import Fault
    from semel.sdk.testing.memory_data import Unsynced

__all__ = ["AioBroker", "Broker", "Cluster", "Fault", "SemelContainer", "Unsynced"]

_MODULES = {
    "AioBroker": "broker",
    "Broker": "broker",
    "Cluster": "cluster",
    "Fault": "fault",
    "SemelContainer": "container",
    "Unsynced": "memory_data",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'semel.testing' has no attribute {name!r}")
    from semel.protocol.extras import imports_of_extra

    with imports_of_extra("testcontainers" if name == "SemelContainer" else "node", f"semel.testing.{name}"):
        value = getattr(importlib.import_module(f"semel.sdk.testing.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
