"""librdkafka, as installed, sends what the recording says that the simulated clients follow (tests/simulation)."""

from __future__ import annotations

from pathlib import Path

import librdkafka_scenarios
import pytest
import recordings_kit
from rerecord import scenarios_of


@pytest.mark.parametrize("scenario", scenarios_of(librdkafka_scenarios.NAME))
def test_librdkafka_sends_what_was_recorded(tmp_path: Path, scenario: str) -> None:
    recordings_kit.check(tmp_path, librdkafka_scenarios.NAME, scenario, librdkafka_scenarios.run)
