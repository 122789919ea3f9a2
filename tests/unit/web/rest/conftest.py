"""A node in memory and a door in front of it, which the tests of a file share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from door_requests import DoorRequests
from rest_door import rest_door

from semel.testing import Broker


@pytest.fixture(scope="module")
def node() -> Iterator[Broker]:
    with Broker() as node:
        yield node


@pytest.fixture(scope="module")
def door(node: Broker) -> Iterator[DoorRequests]:
    with rest_door(node.bootstrap) as url:
        yield DoorRequests(url)


@pytest.fixture(scope="module")
def other_door(node: Broker) -> Iterator[DoorRequests]:
    with rest_door(node.bootstrap) as url:
        yield DoorRequests(url)
