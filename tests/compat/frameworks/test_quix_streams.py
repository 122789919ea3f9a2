"""Quix Streams with exactly-once and state in RocksDB, while its process and the node are ended with SIGKILL."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest
from framework_stage import Stage, with_totals

import semel

PAGE = "how-to/python-frameworks.md"
PARTITIONS = 2


@pytest.mark.parametrize("keeps_state", [True, False], ids=["state kept", "state lost"])
def test_E1_each_order_is_in_output_and_state_once(stage_of: Callable[..., Stage], keeps_state: bool) -> None:
    stage = stage_of(PAGE)
    stage.create_topics("orders", "totals", partitions=PARTITIONS)

    def lose_state() -> None:
        if not keeps_state:  # the changelog topic has it
            shutil.rmtree(stage.folder / "state-totals-0")

    sent, found = stage.run_under_kills(
        "quixstreams", "quix_totals.py", output="totals", partitions=PARTITIONS, between=lose_state
    )
    assert found == with_totals(sent)
    with semel.Admin(stage.node.bootstrap) as admin:
        (changelog,) = [topic for topic in admin.topics() if topic.name.startswith("changelog__")]
        assert len(changelog.partitions) == PARTITIONS
        (policy,) = admin.topic_configs(changelog.name, ["cleanup.policy"])
        assert policy.value == "compact"
