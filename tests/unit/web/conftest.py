"""One node and one gateway for a module's tests, which take subjects of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from http_gateway import HttpGateway

from semel.testing import Broker


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture(scope="module")
def gateway(broker: Broker) -> Iterator[HttpGateway]:
    with HttpGateway(broker.bootstrap) as gateway:
        yield gateway
