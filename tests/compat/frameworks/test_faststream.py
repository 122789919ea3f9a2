"""FastStream, on aiokafka and on confluent-kafka, while its process and the node are ended with SIGKILL."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from framework_stage import Stage

PAGE = "how-to/python-frameworks.md"
KILLS = 3


def run(stage: Stage, environment: str, program: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Run a program under kills, its own and the node's. Returns the orders, and what became of them."""
    stage.create_topics("orders", "enriched")
    orders, enriched = stage.orders(), stage.output("enriched")
    command = ("-m", "faststream", "run", f"{program}:app")
    process = stage.start(environment, *command)
    for _ in range(KILLS):
        enriched.more(50, process)
        process.kill()
        process = stage.start(environment, *command)
    enriched.more(50, process)
    stage.restart_node()
    enriched.more(50, process)
    sent = orders.stop()
    enriched.until(lambda: {order["id"] for order in enriched.values} == {order["id"] for order in sent}, process)
    process.stop()
    return sent, stage.committed("enriched")


@pytest.mark.parametrize("program", ["faststream_orders", "faststream_confluent"])
def test_D1_an_order_is_handled_at_least_once(stage_of: Callable[..., Stage], program: str) -> None:
    environment = "faststream-aiokafka" if program == "faststream_orders" else "faststream-confluent"
    sent, found = run(stage_of(PAGE), environment, program)
    assert all(order["checked"] for order in found)
    assert {order["id"] for order in found} == {order["id"] for order in sent}


def test_E1_an_order_is_handled_once_in_a_transaction(stage_of: Callable[..., Stage]) -> None:
    sent, found = run(stage_of(PAGE), "faststream-aiokafka", "faststream_once")
    assert sorted(order["id"] for order in found) == [order["id"] for order in sent]
