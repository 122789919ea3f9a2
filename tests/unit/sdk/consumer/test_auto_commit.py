"""Committing by the clock: what was returned before, and also the last of it."""

from __future__ import annotations

import threading

import semel
from semel.testing import Broker

TP = semel.TopicPartition("orders", 0)


def test_records_before_a_pause_are_committed_while_the_poll_waits_for_more() -> None:
    with Broker() as node, semel.Admin(node.bootstrap) as admin:
        admin.create_topic("orders", partitions=1)
        with semel.Producer(node.bootstrap) as producer:
            for value in (b"a", b"b", b"c"):
                producer.send("orders", value)
        with semel.Consumer(node.bootstrap, group="readers", topics=["orders"], auto_commit_interval_ms=20) as consumer:
            found = 0
            while found < 3:
                found += len(consumer.poll(10) or ())
            waiting = threading.Thread(target=consumer.poll, args=(60,))
            waiting.start()
            while TP not in (offsets := admin.group_offsets("readers")) or offsets[TP].offset < 3:
                assert waiting.is_alive(), "the poll was to wait"
            with semel.Producer(node.bootstrap) as producer:
                producer.send("orders", b"d")
            waiting.join(60)
            assert not waiting.is_alive()
