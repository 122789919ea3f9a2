"""One node and one door for a module's tests, which take subjects of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from http_door import HttpDoor

from semel.testing import Broker


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture(scope="module")
def door(broker: Broker) -> Iterator[HttpDoor]:
    with HttpDoor(broker.bootstrap) as door:
        yield door
