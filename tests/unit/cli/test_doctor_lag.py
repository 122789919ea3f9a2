"""What the doctor counts as a group's lag: records, and not the markers behind the last one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import semel
from semel.protocol.api.diagnostics import Thresholds
from semel.testing import Broker

OUT = semel.TopicPartition("out", 0)


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as running:
        running.create_topic("out")
        yield running


def behind(broker: Broker) -> list[str]:
    with semel.Admin(broker.bootstrap) as admin:
        findings = admin.diagnose(thresholds=Thresholds(lag_records=0)).findings
    return [finding.what for finding in findings if finding.kind.section.name == "GROUPS"]


def test_markers_behind_the_last_record_that_a_group_has_read_are_no_lag(broker: Broker) -> None:
    """A group that had read all was called 1 record behind, for ever."""
    with semel.Producer(broker.bootstrap, transactional_id="a") as one:
        with semel.Producer(broker.bootstrap, transactional_id="b") as two, one.transaction() as first:
            first.send("out", b"0").result()
            with two.transaction() as second:
                second.send("out", b"1").result()
        with semel.Admin(broker.bootstrap) as admin:
            admin.alter_group_offsets("readers", {OUT: 2})  # two records, then two markers
            assert behind(broker) == []
            admin.alter_group_offsets("readers", {OUT: 1})
            assert "3 records not read by it" in behind(broker)[0]
            admin.alter_group_offsets("readers", {OUT: 2})
            with one.transaction() as third:
                third.send("out", b"2")
            assert "4 records not read by it" in behind(broker)[0], "a record between markers waits"
