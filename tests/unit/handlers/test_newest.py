"""What looks at the newest metadata answers by what is known where the database keeps it waiting."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from semel.broker.handlers import newest
from semel.broker.metadata.database import MetadataUnavailableError


@pytest.mark.parametrize("is_locked", [False, True])
def test_a_database_that_keeps_a_node_waiting_does_not_keep_its_clients(
    monkeypatch: pytest.MonkeyPatch, is_locked: bool
) -> None:
    caught_up: list[object] = []

    async def refresh() -> None:
        if not is_locked:
            raise MetadataUnavailableError("away")
        await asyncio.Event().wait()

    async def is_caught_up() -> None:
        caught_up.append(None)

    monkeypatch.setattr(newest, "PATIENCE_S", 0.05)
    node: Any = SimpleNamespace(
        config=SimpleNamespace(peer_listen="127.0.0.1:0"),
        metadata=SimpleNamespace(refresh=refresh),
        caught_up=is_caught_up,
    )

    async def main() -> None:
        async with asyncio.timeout(60):
            await newest.read_newest(node)

    asyncio.run(main())
    assert len(caught_up) == 1
