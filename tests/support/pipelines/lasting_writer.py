"""One program for all of a test: it commits transactions, one after the other, and is never started again."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from node_processes import wait_for

import semel


class LastingWriter:
    """Sends a number to all partitions of a topic in each transaction, and says which are committed."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, transactional_id: str = "writer") -> None:
        self._bootstrap = bootstrap
        self._topic = topic
        self._partitions = partitions
        self._id = transactional_id
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.committed: list[int] = []
        self.failure: BaseException | None = None

    def _run(self) -> None:
        try:
            with semel.Producer(self._bootstrap, transactional_id=self._id) as producer:
                number = 0
                while not self._ends.is_set():
                    try:
                        with producer.transaction():
                            for partition in range(self._partitions):
                                producer.send(self._topic, b"%d" % number, partition=partition)
                    except semel.AbortTransactionError:
                        continue
                    self.committed.append(number)
                    number += 1
        except BaseException as error:
            self.failure = error

    @contextmanager
    def working(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._ends.set()
            self._thread.join(60)
        assert self.failure is None, self.failure

    def wait_for_more(self) -> None:
        count = len(self.committed)
        wait_for(lambda: len(self.committed) > count or self.failure, "transactions are committed")

    def assert_all_is_there_once(self, bootstrap: str) -> None:
        """Each partition has what was committed, in this order, and nothing else."""
        expected = [b"%d" % number for number in self.committed]
        with semel.Consumer(bootstrap) as reader:
            tps = [semel.TopicPartition(self._topic, number) for number in range(self._partitions)]
            reader.assign(tps)
            ends = reader.end_offsets(tps)
            found: dict[int, list[bytes | None]] = {tp.partition: [] for tp in tps}
            while any((reader.position(tp) or 0) < ends[tp] for tp in tps):
                for record in reader.poll(1.0) or ():
                    found[record.partition].append(record.value)
        assert found == dict.fromkeys(range(self._partitions), expected)
