"""Spark's sink on three nodes: who leads its output, or coordinates its decisions, is killed in each phase of a batch.

The sink is called as Spark calls it, so that a node can die at the very place (E2). A whole query of Spark on three
nodes is in `test_cluster_queries.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pytest
from node_processes import NodeProcesses, is_in_sync, node_processes, wait_for
from spark_query import Query, held, restarted, values

import semel
from semel.protocol.errors import FencedError, RetriableError
from semel.protocol.ids import TopicPartition
from semel.sdk.shared.api import SharedTransaction

IDS = (1, 2, 3)
PARTITIONS = 3
LONG = "a" * 2_000
"""So large that a task has sent some of these before it ends."""


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcesses]:
    settings = {"broker.session.timeout.ms": 2_000, "controller.lease.ms": 2_000}
    with node_processes(tmp_path_factory.mktemp("cluster"), **settings) as running:
        yield running


class Strikes:
    """Kills the node that leads the output's first partition, or coordinates the query's decisions, as it is then.

    The sink continues while the others find out. Of three nodes one is away at most: the one before is back first.
    """

    def __init__(self, nodes: NodeProcesses, who: str, topic: str, query: Query) -> None:
        self._nodes = nodes
        self._who = who
        self._topic = topic
        self._key = f"spark/{query.query_id}/{topic}"
        self.victims: list[int] = []

    def kill(self) -> None:
        self.all_back()
        is_leader = self._who == "leader"
        victim = self._nodes.leader(self._topic, 0) if is_leader else self._nodes.coordinator(self._key)
        self._nodes.kill(victim)
        self.victims.append(victim)

    def all_back(self) -> None:
        """Start what was killed, and wait until all replicas are in sync again: any of them may die then."""
        away = [node_id for node_id in IDS if node_id not in self._nodes.running]
        for node_id in away:
            self._nodes.wait_replaced(node_id)
        self._nodes.start(*away)
        with semel.Admin(self._nodes.bootstrap) as admin:
            wait_for(
                lambda: all(
                    is_in_sync(one, IDS) for topic in admin.topics(include_internal=True) for one in topic.partitions
                ),
                "all replicas in sync",
            )


@pytest.mark.drawn(3, "kills under Spark")
@pytest.mark.parametrize("who", ["leader", "coordinator"])
def test_E2_E5_a_node_of_three_is_killed_in_each_phase_of_a_batch(
    nodes: NodeProcesses, tmp_path: Path, who: str
) -> None:
    bootstrap, out, read = nodes.bootstrap, f"out-{who}", f"in-{who}"
    with semel.Admin(bootstrap) as admin:
        for name in (out, read):
            admin.create_topic(name, partitions=PARTITIONS, replication_factor=3)
    query = Query(tmp_path / "checkpoint", bootstrap=bootstrap, topic=out, kafka__group__id=f"group-{who}")
    strikes = Strikes(nodes, who, out, query)

    def begin(batch_id: int, run: Query) -> None:
        run.log_offsets(batch_id, {read: dict.fromkeys(("0", "1", "2"), 10 * (batch_id + 1))})

    def in_the_middle() -> Iterator[pa.RecordBatch]:
        yield values(*(LONG for _ in range(300)))
        strikes.kill()
        yield values("0")

    begin(0, query)
    message = query.run_task(query.planned(), 0, in_the_middle())  # while a task writes
    query.commit([message], 0)

    begin(1, query)
    messages = query.run_tasks(1, ["1"], ["1 of the second task"])
    strikes.kill()  # between the tasks and the decision
    query.commit(messages, 1)

    begin(2, query)
    messages = query.run_tasks(2, ["2"])
    commit = SharedTransaction.commit

    def commit_and_die(*args: object, **options: object) -> None:
        commit(*args, **options)  # type: ignore[arg-type]
        strikes.kill()
        raise RetriableError("the connection is gone")

    with mock.patch.object(SharedTransaction, "commit", commit_and_die), pytest.raises(RetriableError):
        query.commit(messages, 2)  # right after the decision, whose answer is lost: its markers are still to come
    query.abort(messages, 2)
    again = restarted(query)
    again.commit(again.run_tasks(2, ["2"]), 2)

    begin(3, again)
    in_flight = again.run_tasks(3, ["3"])
    strikes.kill()  # and the driver, too, before its decision
    last = restarted(again)
    messages = last.run_tasks(3, ["3"])
    with pytest.raises(FencedError, match="another run of this query"):
        again.commit(in_flight, 3)
    last.commit(messages, 3)
    strikes.all_back()

    assert len(strikes.victims) == 4
    found = held(bootstrap, out)
    assert [value for value in found if value != LONG] == ["0", "1", "1 of the second task", "2", "3"]
    assert found.count(LONG) == 300
    for address in nodes.grpc.values():
        with semel.Admin(address) as admin:
            assert [each.token for each in admin.commits(f"spark/{query.query_id}/{out}")] == [
                f"batch-{number}" for number in range(4)
            ]
            places = {tp: place.offset for tp, place in admin.group_offsets(f"group-{who}").items()}
            assert places == {TopicPartition(read, number): 40 for number in range(PARTITIONS)}
