"""A node in memory and a gateway in front of it, which the tests of a file share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from gateway_requests import GatewayRequests
from rest_gateway import rest_gateway

from semel.testing import Broker


@pytest.fixture(scope="module")
def node() -> Iterator[Broker]:
    with Broker() as node:
        yield node


@pytest.fixture(scope="module")
def gateway(node: Broker) -> Iterator[GatewayRequests]:
    with rest_gateway(node.bootstrap) as url:
        yield GatewayRequests(url)


@pytest.fixture(scope="module")
def other_gateway(node: Broker) -> Iterator[GatewayRequests]:
    with rest_gateway(node.bootstrap) as url:
        yield GatewayRequests(url)
