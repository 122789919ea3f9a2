"""A program that fails if a test broker leaves a thread, a file, a socket or a pipe behind in its process."""

from __future__ import annotations

import os
import threading

import semel
from semel.testing import Broker


def descriptors() -> set[str]:
    """What this process has open: files, sockets, pipes."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            found.add(f"{number} {os.readlink(f'/proc/self/fd/{number}')}")
        except FileNotFoundError:
            continue  # that of the listing itself
    return found


def use(broker: Broker) -> None:
    topic = broker.create_topic(partitions=3)
    with semel.Producer(broker.bootstrap, transactional_id="x") as producer, producer.transaction() as txn:
        txn.send(topic, b"1")
    assert len(broker.records(topic, at_least=1)) == 1


def main() -> None:
    with Broker() as first:
        use(first)  # whatever is made once for a process is there now
    threads, files = set(threading.enumerate()), descriptors()
    with Broker() as broker:
        use(broker)
        broker.restart()
        assert set(threading.enumerate()) > threads, "a broker without a thread"
    assert set(threading.enumerate()) <= threads, set(threading.enumerate()) - threads
    assert descriptors() <= files, descriptors() - files


if __name__ == "__main__":
    main()
