"""FastStream, on aiokafka and on confluent-kafka, while its process and the node are ended with SIGKILL."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from framework_stage import Stage

PAGE = "how-to/python-frameworks.md"


@pytest.mark.parametrize("program", ["faststream_orders", "faststream_confluent"])
def test_D1_an_order_is_handled_at_least_once(stage_of: Callable[..., Stage], program: str) -> None:
    stage = stage_of(PAGE)
    stage.create_topics("orders", "enriched")
    environment = "faststream-aiokafka" if program == "faststream_orders" else "faststream-confluent"
    sent, found = stage.run_under_kills(environment, "-m", "faststream", "run", f"{program}:app", output="enriched")
    assert all(order["checked"] for order in found)
    assert {order["id"] for order in found} == {order["id"] for order in sent}


def test_E1_an_order_is_handled_once_in_a_transaction(stage_of: Callable[..., Stage]) -> None:
    stage = stage_of(PAGE)
    stage.create_topics("orders", "enriched")
    command = ("-m", "faststream", "run", "faststream_once:app")
    sent, found = stage.run_under_kills("faststream-aiokafka", *command, output="enriched")
    assert found == [{**order, "checked": True} for order in sent]
