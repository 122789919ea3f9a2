"""A node for the tests of a module, and a topic with a table of its own for each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from live_node import LiveNode
from sink_kit import Kit


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveNode]:
    with LiveNode(tmp_path_factory.mktemp("node")) as running:
        yield running


@pytest.fixture
def kit(node: LiveNode, tmp_path: Path) -> Iterator[Kit]:
    made = Kit(node, tmp_path)
    yield made
    made.admin.close()
    made.engine.dispose()
