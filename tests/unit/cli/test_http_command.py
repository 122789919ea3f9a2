"""What `semel http` makes of its options, without a node and a socket."""

from __future__ import annotations

from typing import Any

import pytest

from semel.cli.http import http
from semel.web.gateway import Gateway


@pytest.mark.parametrize(
    ("listen", "options", "changes"),
    [
        ("127.0.0.1:0", {}, True),
        ("[::1]:0", {}, True),
        ("0.0.0.0:0", {"insecure": True}, False),
        ("0.0.0.0:0", {"insecure": True, "console_writes": True}, True),
    ],
)
def test_beyond_this_machine_the_console_only_reads_unless_it_is_told(
    monkeypatch: pytest.MonkeyPatch, listen: str, options: dict[str, bool], changes: bool
) -> None:
    gateways: list[Gateway] = []

    async def serve(gateway: Gateway, *_: Any, **__: Any) -> None:
        gateways.append(gateway)

    monkeypatch.setattr("semel.web.serve.serve", serve)
    http(listen=listen, bootstrap="localhost:1", **options)  # type: ignore[arg-type]
    (gateway,) = gateways
    assert gateway.allows_changes is changes
