"""Bytewax with its source and sink for Kafka, while its process and the node are ended with SIGKILL."""

from __future__ import annotations

from collections.abc import Callable

from framework_stage import Stage

PAGE = "how-to/python-frameworks.md"


def test_D1_an_order_is_handled_at_least_once(stage_of: Callable[..., Stage]) -> None:
    stage = stage_of(PAGE)
    stage.create_topics("orders", "enriched")
    (stage.folder / "recovery").mkdir()
    stage.run("bytewax", "-m", "bytewax.recovery", "recovery", "1")
    command = ("-m", "bytewax.run", "bytewax_orders:flow", "-r", "recovery", "-s", "1", "-b", "0")
    sent, found = stage.run_under_kills("bytewax", *command, output="enriched")
    assert all(order["checked"] for order in found)
    assert {order["id"] for order in found} == {order["id"] for order in sent}
