"""The programs of pages that number the words of a topic, each among its like, in another topic."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from java_programs import JavaProcess
from node_processes import wait_for

import semel


class WordCounts:
    """The topics `words` and `counted`, and what has come to the second one."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self.counted: list[str] = []
        with semel.Admin(bootstrap) as admin:
            admin.create_topic("words", partitions=1)
            admin.create_topic("counted", partitions=1)
        self._reader = semel.Consumer(bootstrap)
        self._reader.assign([semel.TopicPartition("counted", 0)])

    def __enter__(self) -> WordCounts:
        return self

    def __exit__(self, *_: object) -> None:
        self._reader.close()

    def run(self, program: JavaProcess, words: Sequence[str], then: Callable[[], None] = lambda: None) -> None:
        """Start a program, give it words, wait until it has counted them, do what comes `then`, and kill it."""
        wanted = len(self.counted) + len(words)

        def is_there() -> bool:
            assert program.is_running, program.log_tail()
            self.counted.extend((record.value or b"").decode() for record in self._reader.poll(0.2) or ())
            return len(self.counted) >= wanted

        program.start()
        try:
            with semel.Producer(self._bootstrap) as producer:
                for word in words:
                    producer.send("words", word)
            wait_for(is_there, "the output of the page's program")
            then()
        finally:
            program.kill()
