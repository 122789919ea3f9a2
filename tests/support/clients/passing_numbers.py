"""Semel's own clients write a few numbers and read them again, over whatever a bootstrap says."""

from __future__ import annotations

import time
from typing import Any

import semel

PATIENCE_S = 30


def numbers_pass(bootstrap: Any, count: int = 3) -> None:
    """Produce and consume, with a transaction and a group."""
    topic = f"numbers-{time.monotonic_ns()}"
    with semel.Admin(bootstrap) as admin:
        admin.create_topic(topic, partitions=1)
    with semel.Producer(bootstrap, transactional_id=topic) as producer, producer.transaction():
        for number in range(count):
            producer.send(topic, str(number).encode())
    with semel.Consumer(bootstrap, topics=[topic], group=topic, offset_reset="earliest") as consumer:
        got: list[bytes | None] = []
        while len(got) < count:
            batch = consumer.poll(PATIENCE_S)
            assert batch is not None, f"{got} of {count}"
            got += [record.value for record in batch]
    assert got == [str(number).encode() for number in range(count)]
