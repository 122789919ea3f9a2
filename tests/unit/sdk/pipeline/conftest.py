"""A node for the tests of a module, and a group with topics of its own for each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from run_kit import Kit

from semel.testing import Broker


@pytest.fixture(scope="module")
def shared() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture(params=["sync", "aio"])
def kit(request: pytest.FixtureRequest, shared: Broker) -> Iterator[Kit]:
    shared.clear_faults()
    kit = Kit(shared, request.param)
    yield kit
    shared.clear_faults()
    if kit.consumer is not None:
        kit.consumer.stop()  # where a test failed in the midst of a run
