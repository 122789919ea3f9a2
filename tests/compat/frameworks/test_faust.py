"""Faust with exactly_once and a table, while its process and the node are ended with SIGKILL."""

from __future__ import annotations

import json
from collections.abc import Callable

from framework_stage import Stage, with_totals

import semel

PAGE = "how-to/python-frameworks.md"
PARTITIONS = 2


def last_values(stage: Stage, topic: str) -> dict[str, int]:
    """Return the last committed value of each key."""
    tps = [semel.TopicPartition(topic, number) for number in range(PARTITIONS)]
    values: dict[str, int] = {}
    with semel.Consumer(stage.node.bootstrap) as reader:
        reader.assign(tps)
        ends = reader.end_offsets(tps)
        while any((reader.position(tp) or 0) < ends[tp] for tp in tps):
            values |= {json.loads(one.key or b""): json.loads(one.value or b"") for one in reader.poll(0.2) or ()}
    return values


def test_E1_each_order_is_in_the_table_once_and_in_the_output_at_least_once(stage_of: Callable[..., Stage]) -> None:
    stage = stage_of(PAGE)
    stage.create_topics("orders", "totals", partitions=PARTITIONS)
    command = ("faust_totals.py", "worker", "--without-web", "--loglevel", "info")
    sent, found = stage.run_under_kills("faust", *command, output="totals", partitions=PARTITIONS)
    assert {row["id"] for row in found} == {order["id"] for order in sent}
    table = last_values(stage, "totals-by_customer-changelog")
    assert table == {row["customer"]: row["total"] for row in with_totals(sent)}
