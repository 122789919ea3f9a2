"""The asyncio API of confluent-kafka, while its process and the node are ended with SIGKILL."""

from __future__ import annotations

from collections.abc import Callable

from framework_stage import Stage

PAGE = "how-to/python-frameworks.md"


def test_E1_an_order_is_handled_once(stage_of: Callable[..., Stage]) -> None:
    stage = stage_of(PAGE)
    stage.create_topics("orders", "enriched")
    sent, found = stage.run_under_kills("confluent-asyncio", "confluent_asyncio.py", output="enriched")
    assert found == [{**order, "checked": True} for order in sent]
