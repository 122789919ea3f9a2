"""Quix Streams with exactly-once and state in RocksDB, while its process and the node are ended with SIGKILL."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from framework_stage import Stage

import semel

PAGE = "how-to/python-frameworks.md"
PARTITIONS = 2


def with_totals(orders: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """What an order becomes that is counted once, and never again."""
    totals: Counter[str] = Counter()
    rows = []
    for order in orders:
        totals[order["customer"]] += order["amount"]
        rows.append({**order, "total": totals[order["customer"]]})
    return rows


@pytest.mark.parametrize("keeps_state", [True, False], ids=["state kept", "state lost"])
def test_E1_each_order_is_in_output_and_state_once(stage_of: Callable[..., Stage], keeps_state: bool) -> None:
    stage = stage_of(PAGE)
    stage.create_topics("orders", "totals", partitions=PARTITIONS)
    orders, totals = stage.orders(), stage.output("totals", PARTITIONS)
    process = stage.start("quixstreams", "quix_totals.py")
    for _ in range(3):
        totals.more(100, process)
        process.kill()
        if not keeps_state:  # the changelog topic has it
            shutil.rmtree(stage.folder / "state-totals-0")
        process = stage.start("quixstreams", "quix_totals.py")
    totals.more(100, process)
    stage.restart_node()
    totals.more(100, process)
    sent = orders.stop()
    totals.until(lambda: len(totals.values) >= len(sent), process)
    process.stop()
    found = sorted(stage.committed("totals", PARTITIONS), key=lambda row: int(row["id"]))
    assert found == with_totals(sent)
    with semel.Admin(stage.node.bootstrap) as admin:
        (changelog,) = [topic for topic in admin.topics() if topic.name.startswith("changelog__")]
        assert len(changelog.partitions) == PARTITIONS
        (policy,) = admin.topic_configs(changelog.name, ["cleanup.policy"])
        assert policy.value == "compact"
