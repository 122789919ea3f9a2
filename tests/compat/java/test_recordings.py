"""Java's clients send what the recordings say that the simulated clients follow (tests/simulation)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import recordings_kit
from kafka_tools import KafkaTools
from rerecord import JAVA, scenarios_of

CLIENT_OF = {version: client for client, version in JAVA.items()}


@pytest.mark.parametrize("scenario", sorted({one for client in JAVA for one in scenarios_of(client)}))
def test_a_java_client_sends_what_was_recorded(
    each_tools: KafkaTools, java_program: Callable[..., list[str]], tmp_path: Path, scenario: str
) -> None:
    client = CLIENT_OF[each_tools.version]
    if scenario not in scenarios_of(client):
        pytest.skip("there is no such request in transactions of version 2")
    recordings_kit.check(tmp_path, client, scenario, lambda bootstrap, name: java_program("Recorded", bootstrap, name))
