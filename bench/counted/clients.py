"""What the SDK's clients do while their instructions are counted. The node is another process, which is not counted."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Final

import semel

RECORDS: Final = 2_000
POLLED: Final = 20_000
"""Records of several fetches: with fewer, those that a thread has fetched before would come for nothing."""
_TURNS_AT_MOST: Final = 13
_VALUE: Final = bytes(100)
_TOPIC: Final = "counted"


def steps(bootstrap: str, counted: Callable[[str, int, Callable[[], None]], None]) -> None:
    """Have the work counted: `counted` gets a name, how many records a call is about, and the call."""
    with semel.Admin(bootstrap) as admin:
        admin.create_topic(_TOPIC, partitions=1)
    with semel.Producer(bootstrap) as producer:

        def send() -> None:
            for _ in range(RECORDS):
                producer.send(_TOPIC, _VALUE)
            producer.flush()

        counted("sdk-send", RECORDS, send)
        for _ in range(POLLED // RECORDS * _TURNS_AT_MOST):
            send()
    with semel.Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([semel.TopicPartition(_TOPIC, 0)])
        records = iter(consumer)

        def poll() -> None:
            for _ in itertools.islice(records, POLLED):
                pass

        counted("sdk-poll", POLLED, poll)
