"""A pipeline on several nodes, at work while a test does something to them, and judged by all that its clients saw."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from chaos import PARTITIONS, Chaos, Clients, Feeder, LiveReader, Workers, read_everything, source_ends
from history import History, Outcome, check
from kafka_pipeline_ends import KafkaFeeder, KafkaReader
from node_processes import NodeProcesses, is_in_sync, wait_for

import semel

FEED_EVERY_S = 0.01
MORE = 60
AHEAD_MAX = 1_000
"""So many values may be on their way through the pipeline."""
SUPERVISED_EVERY_S = 0.2


class ClusterRun:
    """Feeds a topic, reads what the pipeline makes of it, and starts the pipeline's processes again when they end."""

    def __init__(
        self, nodes: NodeProcesses, chaos: Chaos, folder: Path, configs: Mapping[str, str] | None = None
    ) -> None:
        self._nodes = nodes
        self._configs = configs or {}
        self._chaos = chaos
        self.source, self.target = chaos.source, chaos.target
        kafka = ",".join(nodes.kafka.values())
        foreign = chaos.clients is Clients.CONFLUENT
        self.workers = Workers(chaos, kafka if foreign else nodes.bootstrap, folder)
        self.feeder: Feeder | KafkaFeeder
        self._reader: LiveReader | KafkaReader
        if foreign:
            self.feeder = KafkaFeeder(kafka, chaos.source, PARTITIONS, FEED_EVERY_S, self._may_send)
            self._reader = KafkaReader(kafka, chaos.target, PARTITIONS)
        else:
            self.feeder = Feeder(nodes.bootstrap, chaos.source, FEED_EVERY_S, self._may_send)
            self._reader = LiveReader(nodes.bootstrap, chaos.target)
        self._over = threading.Event()
        self._supervisor = threading.Thread(target=self._supervise, daemon=True)

    def start(self) -> None:
        with semel.Admin(self._nodes.bootstrap) as admin:
            for topic in (self._chaos.source, self._chaos.target):
                admin.create_topic(topic, partitions=PARTITIONS, configs=self._configs)
        self.feeder.start()
        self._reader.start()
        self._supervisor.start()
        self.more()

    @property
    def seen(self) -> int:
        """How many committed values the reader has seen."""
        return sum(len(records) for records in self._reader.records.values())

    def more(self, count: int = MORE) -> None:
        """Wait until so many more values are acknowledged at the source, and so many more are read at the target."""
        fed, seen = self.feeder.acknowledged + count, self.seen + count
        wait_for(
            lambda: self._works() and self.feeder.acknowledged >= fed and self.seen >= seen, f"{count} more values"
        )

    def more_fed(self, count: int = MORE) -> None:
        """Wait until so many more values are acknowledged at the source."""
        fed = self.feeder.acknowledged + count
        wait_for(lambda: self._works() and self.feeder.acknowledged >= fed, f"{count} more values at the source")

    def finish(self) -> History:
        """Let the pipeline work off all there is, and return what was seen of it."""
        wait_for(self._has_both_outcomes, "a transaction that is committed, and one that is aborted")
        self.feeder.finish()
        in_sync(self._nodes, self._chaos.source, self._chaos.target)
        with semel.Admin(self._nodes.bootstrap) as admin:
            ends = source_ends(admin, self._chaos.source)
            wait_for(lambda: self._stands_at(admin, ends), f"the group {self._chaos.group} is at the end of the source")
        self.close()
        topics = (self._chaos.source, self._chaos.target)
        return History(
            [*self.feeder.transactions, *self.workers.transactions()],
            [*self._reader.finish(), *read_everything(self._nodes.bootstrap, topics)],
            ends,
        )

    def assert_exactly_once(self) -> None:
        """Finish, and judge (E1): nothing acknowledged is lost, doubled, out of order, and nothing aborted is read."""
        history = self.finish()
        anomalies = check(history)
        assert not anomalies, [str(anomaly) for anomaly in anomalies[:10]]

    def close(self) -> None:
        self._over.set()
        if self._supervisor.is_alive():
            self._supervisor.join(30)
        self.workers.stop()
        self.feeder.stop()
        self._reader.stop()

    def _works(self) -> bool:
        """Whether the feeder and the reader have not ended with an error, which is raised: nobody starts them again."""
        for error in (self.feeder.error, self._reader.error):
            if error is not None:
                raise error
        return True

    def _has_both_outcomes(self) -> bool:
        return {one.outcome for one in self.workers.transactions()} >= {Outcome.COMMITTED, Outcome.ABORTED}

    def _supervise(self) -> None:
        while not self._over.wait(SUPERVISED_EVERY_S):
            self.workers.start_missing()

    def _may_send(self, sent: int) -> bool:
        """On a busy machine the source does not run away from the pipeline, which has to catch up at the end."""
        return sent < self.seen + AHEAD_MAX

    def _stands_at(self, admin: semel.Admin, ends: dict[tuple[str, int], int]) -> bool:
        places = admin.group_offsets(self._chaos.group)
        reached = {(tp.topic, tp.partition): place.offset for tp, place in places.items()}
        return all(reached.get(partition, 0) >= end for partition, end in ends.items())


@contextmanager
def cluster_run(
    nodes: NodeProcesses,
    folder: Path,
    name: str,
    clients: Clients = Clients.SEMEL,
    *,
    configs: Mapping[str, str] | None = None,
) -> Iterator[ClusterRun]:
    """Run a pipeline with topics of its own, which have these settings."""
    chaos = Chaos(
        seed=1,
        duration_s=0,
        instances=2,
        clients=clients,
        source=f"{name}-source",
        target=f"{name}-target",
        group=f"{name}-pipeline",
    )
    run = ClusterRun(nodes, chaos, folder / name, configs)
    try:
        run.start()
        yield run
    finally:
        run.close()


def in_sync(nodes: NodeProcesses, *topics: str) -> None:
    """Wait until all nodes are replicas in sync of all partitions of some topics, as each of them knows. Of a diskless
    partition, which has one replica: until a node leads it that runs.

    A leader that was cut off, and has not heard yet that another one leads, would name an end that is long past.
    """

    def are_all(admin: semel.Admin) -> bool:
        found = [one for topic in topics for one in admin.topic(topic).partitions]
        return all(is_in_sync(one, nodes.running) for one in found)

    for node_id in nodes.running:
        with semel.Admin(nodes.grpc[node_id]) as admin:
            wait_for(partial(are_all, admin), f"all replicas of {topics} are in sync, as node {node_id} knows")
