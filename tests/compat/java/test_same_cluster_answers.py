"""The same requests to three Apache Kafka brokers and to three nodes; then to what is left when the third has died."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import kafka_jars
import pytest
import same_answers
from node_processes import NodeProcesses, node_processes
from same_answers import CLUSTER_SCENARIOS, DEGRADED_SCENARIOS, RETRY_S, Deliberate, Side
from same_answers_cluster import SPREAD, placed
from same_answers_degraded import ALONE, GONE, STRICT, TOPIC

from semel.protocol.kafka.api import ApiKey

sys.path.append(str(Path(__file__).resolve().parent.parent.parent.parent / "bench"))

import apache_kafka

FENCED_WITHIN_S = 60.0

DELIBERATE = Deliberate(
    (r"\.controller_id \|", "every node can change the metadata, so each says that it is the controller"),
    (
        r"min\.insync\.replicas\.config_source|settings_of_nodes: of '' .*'min\.insync\.replicas'.* \[\]$",
        "Kafka writes the value down when a cluster is formatted; here it is a default",
    ),
    (r"create_topics.*\.configs\.(keys|message\.timestamp\.after\.max\.ms)", "as with one node"),
    (r"groups_elsewhere: join \| .*member_id", "an error names the member that asked"),
    (
        r"without_a_node: .*(topics\[1\]\.partitions\[0\]\.(isr_nodes|eligible_leader_replicas|last_known_elr))",
        "the last replica in sync stays so while its node is away, where KIP-966 calls it eligible",
    ),
    (
        r"metadata_without_a_node: .* \| METADATA v0 \| .*(error_code|replica_nodes)",
        "version 0 names replicas that are away, as all later ones do",
    ),
    (
        r"without_a_node: no leader, .*current_leader\.leader_epoch",
        "without a leader there is no hint: librdkafka takes one for a leader, and loses count of the partitions",
    ),
    (r"produce_without_a_node: too few .*log_start_offset", "a refused batch has no log start offset"),
    (r"transactions_elsewhere: add offsets \|", "the node passes it on to who coordinates the transaction"),
    (r"transactions_elsewhere: describe \|", "a transaction that is not there has -1 for its producer, Kafka says 0"),
)
"""As in test_same_answers.py."""


@dataclass
class Clusters:
    """Both clusters. ports: of Apache Kafka's nodes and of Semel's, from node 1 on."""

    kafka: list[apache_kafka.KafkaProcess]
    semel: NodeProcesses
    ports: list[list[int]]
    versions: dict[ApiKey, list[int]] = field(default_factory=dict)
    is_degraded: bool = False

    def degrade(self) -> None:
        """Make topics, kill node 3 of both, and wait until both have noticed."""
        if self.is_degraded:
            return
        self.is_degraded = True
        asyncio.run(self._prepare())
        self.kafka[GONE - 1].kill()
        self.semel.kill(GONE)
        asyncio.run(self._wait_noticed())

    def _sides(self) -> list[Side]:
        return [Side(nodes, "", ApiKey.METADATA, 12, self.versions) for nodes in self.ports]

    async def _prepare(self) -> None:
        for side in self._sides():
            side.name = lambda what: what  # type: ignore[method-assign]
            await placed(side, TOPIC, *SPREAD)
            await placed(side, ALONE, [GONE])
            await placed(side, STRICT, [1, 2, 3], min_insync_replicas="3")
            await side.close()

    async def _wait_noticed(self) -> None:
        deadline = time.monotonic() + FENCED_WITHIN_S
        for side in self._sides():
            for node in (1, 2):
                while True:
                    topics = [{"name": name, "topic_id": bytes(16)} for name in (TOPIC, ALONE, STRICT)]
                    answer = await side.ask("see", ApiKey.METADATA, version=12, node=node, topics=topics)
                    partitions = [one for topic in answer.topics for one in topic.partitions]
                    if all(GONE not in one.isr_nodes or one.leader_id == -1 for one in partitions):
                        break
                    assert time.monotonic() < deadline, f"node {GONE} is not noticed to be gone: {partitions}"
                    await asyncio.sleep(RETRY_S)
            await side.close()


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clusters]:
    patch = pytest.MonkeyPatch()
    patch.setattr(apache_kafka, "HEAP", ("-Xmx512M", "-Xms256M"))
    patch.setenv("SEMEL_BENCH_DIR", str(tmp_path_factory.mktemp("apache")))
    try:
        kafka_jars.jars()
        with (
            apache_kafka.running_cluster() as kafka,
            node_processes(tmp_path_factory.mktemp("semel"), **{"min.insync.replicas": 1}) as semel,
        ):
            ports = [
                [broker.address[1] for broker in kafka],
                [int(semel.kafka[number].rpartition(":")[2]) for number in sorted(semel.kafka)],
            ]
            clusters = Clusters(kafka, semel, ports)

            async def begin() -> dict[ApiKey, list[int]]:
                await asyncio.gather(*(same_answers.prepare(nodes[0]) for nodes in ports))
                return await same_answers.served_by_both([nodes[0] for nodes in ports])

            clusters.versions = asyncio.run(begin())
            yield clusters
    except kafka_jars.JavaMissingError as error:
        pytest.skip(str(error))
    finally:
        patch.undo()


ran: set[str] = set()


def _compare(clusters: Clusters, name: str, of: same_answers.Scenarios) -> Sequence[str]:
    found = DELIBERATE.others(same_answers.run_versions(name, clusters.ports, clusters.versions, of))
    ran.add(name)
    return found


@pytest.mark.parametrize("name", sorted(CLUSTER_SCENARIOS))
def test_answers_of_three_nodes_are_the_same(clusters: Clusters, name: str) -> None:
    found = _compare(clusters, name, CLUSTER_SCENARIOS)
    assert not found, "\n".join(found)


@pytest.mark.parametrize("name", sorted(DEGRADED_SCENARIOS))
def test_answers_are_the_same_when_a_node_is_gone(clusters: Clusters, name: str) -> None:
    clusters.degrade()
    found = _compare(clusters, name, DEGRADED_SCENARIOS)
    assert not found, "\n".join(found)


def test_the_table_of_differences_of_clusters_holds() -> None:
    if ran != {*CLUSTER_SCENARIOS, *DEGRADED_SCENARIOS}:
        pytest.skip("not all scenarios ran")
    assert set(DELIBERATE.patterns) == DELIBERATE.matched
