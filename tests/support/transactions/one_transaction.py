"""A client process that makes one transaction: two partitions and a group's offset. Prints each step when done."""

from __future__ import annotations

import sys

import semel
from semel.protocol.errors import SemelError

TOPIC, GROUP, TRANSACTIONAL_ID = "out", "readers", "one"


def main(bootstrap: str, value: str) -> None:
    # The node may die before it has answered anything: its successor is to be waited for like any other. On a machine
    # with much to do that takes long, and the transaction must not time out meanwhile.
    with semel.Producer(
        bootstrap, transactional_id=TRANSACTIONAL_ID, transaction_timeout_ms=120_000, connect_timeout_ms=60_000
    ) as producer:
        print("identified", flush=True)
        producer.begin_transaction()
        for partition in (0, 1):
            producer.send(TOPIC, value.encode(), partition=partition)
        producer.flush()
        print("sent", flush=True)
        producer.send_offsets({semel.TopicPartition("in", 0): len(value)}, semel.GroupMetadata(GROUP))
        print("offsets sent", flush=True)
        producer.commit_transaction()
        print("committed", flush=True)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except SemelError as error:
        print(f"failed: {error!r}", flush=True)
        sys.exit(1)
