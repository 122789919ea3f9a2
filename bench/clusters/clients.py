"""Clients that outlive a node: one that asks again at once, and librdkafka with its defaults."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any, Self

import confluent_kafka
import dataplane
from workloads.kafka_peers import client

from clusters.calls import Calls, partitions
from clusters.peers import Cluster
from semel.protocol.errors import ErrorCode
from semel.protocol.kafka.produce import ProduceResponse

ASK_EVERY_S = 0.01
ANSWER_S = 1.0
FLUSH_S = 60.0


class PatientClient:
    """Produces to one partition with acks=all, a record a request. It asks all nodes in turn who leads, at once."""

    def __init__(self, cluster: Cluster, topic: str, partition: int) -> None:
        self._cluster = cluster
        self._key = (topic, partition)
        self._frame = dataplane.produce_frame(topic, partition, dataplane.batch_of(100), -1)
        self._calls = {node: Calls(address, ANSWER_S) for node, address in cluster.addresses.items()}
        self._leader = 0
        self.refused = 0

    def connect(self) -> None:
        """Have a connection to each node."""
        for calls in self._calls.values():
            partitions(calls, self._key[0])

    def produce(self, without: Collection[int] = (), within_s: float = 120.0) -> float:
        """Retry until a record is acknowledged; return when. Nodes in `without` are not asked."""
        nodes = [node for node in self._calls if node not in without]
        deadline = time.perf_counter() + within_s
        asked = 0
        while time.perf_counter() < deadline:
            if self._leader not in nodes:
                with suppress(OSError):
                    self._leader = partitions(self._calls[nodes[asked % len(nodes)]], self._key[0])[self._key].leader
                asked += 1
            if self._leader in nodes:
                with suppress(OSError):
                    answer = ProduceResponse.parse(self._calls[self._leader].exchange(self._frame), 9, 5)
                    if answer.partitions[0].error is ErrorCode.NONE:
                        return time.perf_counter()
                self.refused += 1
                self._leader = 0
            time.sleep(ASK_EVERY_S)
        raise TimeoutError(f"{self._cluster.name}: no record of {self._key} was acknowledged in {within_s:.0f} s")

    def close(self) -> None:
        for calls in self._calls.values():
            calls.close()


class Background(ABC):
    """Something that is done again and again in a thread, until the block ends. What it raises, the end raises."""

    def __init__(self) -> None:
        self._is_over = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    @abstractmethod
    def once(self) -> None:
        """Do it."""

    def _run(self) -> None:
        try:
            while not self._is_over.is_set():
                self.once()
        except BaseException as error:
            self._error = error

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._is_over.set()
        self._thread.join(FLUSH_S)
        if self._error is not None and kind is None:
            raise self._error


class Acknowledged(Background):
    """Times of acknowledgements, for the longest pause between them."""

    def __init__(self) -> None:
        super().__init__()
        self.times: list[float] = []

    def wait_for(self, count: int = 1, *, after: float = 0.0) -> None:
        """Wait until there were some, and some after a moment."""
        deadline = time.perf_counter() + FLUSH_S * 2
        while len([one for one in self.times if one > after]) < count:
            if self._error is not None:
                raise self._error
            if time.perf_counter() > deadline:
                raise TimeoutError("nothing was acknowledged")
            time.sleep(0.01)


class SteadyPatient(Acknowledged):
    """A `PatientClient` that produces one record after the other, so many milliseconds apart."""

    def __init__(self, cluster: Cluster, topic: str, partition: int, every_s: float) -> None:
        super().__init__()
        self.client = PatientClient(cluster, topic, partition)
        self._every_s = every_s

    def once(self) -> None:
        self.times.append(self.client.produce())
        time.sleep(self._every_s)


class SteadyLibrdkafka(Acknowledged):
    """librdkafka with its defaults: a record at a time, acks=all; it retries inside, the program does not."""

    def __init__(self, cluster: Cluster, topic: str, partition: int, every_s: float) -> None:
        super().__init__()
        self._producer = confluent_kafka.Producer(quiet(cluster))
        self._topic, self._partition, self._every_s = topic, partition, every_s
        self.sent_times: list[float] = []
        self.failures: list[str] = []

    def once(self) -> None:
        sent = time.perf_counter()

        def delivered(error: confluent_kafka.KafkaError | None, _: object) -> None:
            if error is None:
                self.times.append(time.perf_counter())
                self.sent_times.append(sent)
            else:
                self.failures.append(error.str())

        self._producer.produce(self._topic, b"v" * 100, partition=self._partition, on_delivery=delivered)
        self._producer.poll(self._every_s)
        while (left := sent + self._every_s - time.perf_counter()) > 0:
            self._producer.poll(left)

    def first_of_those_sent_after(self, moment: float) -> float:
        """Return when the first record that was sent after a moment was acknowledged; waits for it."""
        deadline = time.perf_counter() + FLUSH_S * 2
        while time.perf_counter() < deadline:
            pairs = list(zip(self.sent_times, self.times, strict=False))
            found = [at for sent, at in pairs if sent > moment]
            if found:
                return min(found)
            time.sleep(0.01)
        raise TimeoutError("librdkafka: nothing was acknowledged")

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        super().__exit__(kind, *rest)
        if kind is None:
            self.failures += ["not delivered"] * self._producer.flush(FLUSH_S)
        self._producer.purge()


def quiet(cluster: Cluster, **settings: object) -> dict[str, Any]:
    """Return librdkafka's settings for one that loses its nodes, and says nothing of it."""
    return {**client(cluster, **settings), "log_level": 0, "error_cb": lambda _: None}


def longest_pause(times: Sequence[float], since: float = 0.0) -> float:
    """Return the longest time between one and the next, of those that end after a moment."""
    return max((later - one for one, later in pairwise(sorted(times)) if later > since), default=0.0)
