"""Celery with a node as its broker, while its worker and the node are ended with SIGKILL."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from framework_stage import Stage

PAGE = "how-to/python-frameworks.md"


def test_D1_a_task_is_done_at_least_once(stage_of: Callable[..., Stage]) -> None:
    stage = stage_of(PAGE)
    stage.create_topics("celery", "enriched")
    shop = stage.start("celery", "celery_shop.py")

    def stop() -> list[dict[str, Any]]:
        shop.kill()  # what it printed is acknowledged
        return [{"id": int(line)} for line in shop.log().splitlines() if line.isdigit()]

    worker = ("-m", "celery", "-A", "celery_orders", "worker", "--pool", "solo")
    quiet = ("--without-gossip", "--without-mingle", "--without-heartbeat")
    found = stage.kill_while_it_works(stop, "celery", *worker, *quiet, output="enriched")
    assert all(order["checked"] for order in found)
