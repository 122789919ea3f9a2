"""Records real clients anew into tests/simulation/recordings: `rerecord.py [CLIENT [SCENARIO ...]]`, by default all."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import kafka_jars
import librdkafka_scenarios
from kafka_tools import KafkaTools
from request_recorder import SCENARIOS, Loss, path_of, record, write

from semel.protocol.kafka.api import ApiKey

JAVA = {"java-3": kafka_jars.OLDER, "java-4": kafka_jars.NEWEST}
CLIENTS = (librdkafka_scenarios.NAME, *JAVA)
_SOURCES = Path(__file__).parents[2] / "compat" / "java" / "src"
_OLDER_APIS = (ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.ADD_OFFSETS_TO_TXN)
_LACK_OLDER_APIS = ("java-4",)
"""Clients whose transactions are of version 2: there is nothing to lose of these."""


def scenarios_of(client: str) -> list[str]:
    """Return the scenarios that a client can go through."""

    def has(loss: Loss | None) -> bool:
        return loss is None or loss.key not in _OLDER_APIS or client not in _LACK_OLDER_APIS

    return [scenario for scenario, loss in SCENARIOS.items() if has(loss)]


def record_client(client: str, scenarios: Sequence[str] = ()) -> None:
    """Write recordings of a client, by default all. Raises `kafka_jars.JavaMissingError`."""
    with tempfile.TemporaryDirectory() as folder:
        run: Callable[[str, str], object]
        if client in JAVA:
            version, run = JAVA[client], _java(JAVA[client], Path(folder))
        else:
            version, run = librdkafka_scenarios.VERSION, librdkafka_scenarios.run
        for scenario in scenarios or scenarios_of(client):
            streams = record(Path(folder, scenario), scenario, run)
            write(client, version, scenario, streams)
            print(path_of(client, scenario).name, sum(map(len, streams.values())), flush=True)


def _java(version: str, folder: Path) -> Callable[[str, str], object]:
    tools = KafkaTools(version)
    classes = tools.compile(_SOURCES, folder)
    return lambda bootstrap, scenario: tools.run("Recorded", bootstrap, scenario, classes=classes).succeeded()


if __name__ == "__main__":
    for name in sys.argv[1:2] or CLIENTS:
        record_client(name, sys.argv[2:])
