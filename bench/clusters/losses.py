"""What clients see when a node of three is killed, frozen or stopped, and how soon others lead."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing

from workloads.kafka_peers import KAFKA, SEMEL, new_topic

from clusters.calls import Calls, partitions
from clusters.clients import PatientClient, SteadyLibrdkafka, SteadyPatient, longest_pause
from clusters.peers import NODES, POLL_S, Cluster, Pair
from clusters.report import ClusterRow, Goal, Scale, by_peer

EVERY_S = 0.01
"""How far apart a steady client's records are."""
STEADY_RECORDS = 50
AFTER_STOP_S = 1.0
KAFKA_PARTITIONS_MAX = 2_000
"""More take Apache Kafka minutes to create, and to start again, on a small machine."""
ANSWER_S = 10.0
POLL_EACH_S = 25e-6
"""For each partition: an answer costs the node and this process as much, and they share the cores with the others."""


def victims(pair: Pair, scale: Scale) -> Iterator[tuple[int, str, Cluster]]:
    """Go through the rounds and the peers: who loses a node, and which. One of three is the controller."""
    for round_ in range(scale.kills):
        for name, cluster in pair.items():
            yield NODES[round_ % len(NODES)], name, cluster


def failover(pair: Pair, kind: str, scale: Scale) -> list[ClusterRow]:
    """SIGKILL of a leader, to the first acks=all: by a client that asks at once again, and by librdkafka."""
    patient, librdkafka = by_peer([*pair]), by_peer([*pair])
    for victim, name, cluster in victims(pair, scale):
        topic = f"killed-{len(patient[name])}"
        cluster.new_topic(topic, [victim, victim])
        client = PatientClient(cluster, topic, 0)
        client.connect()
        with closing(client), SteadyLibrdkafka(cluster, topic, 1, EVERY_S) as steady:
            client.produce()
            steady.wait_for(STEADY_RECORDS)
            begin = time.perf_counter()
            cluster.kill(victim)
            gone = time.perf_counter()
            patient[name].append(client.produce({victim}) - begin)
            librdkafka[name].append(steady.first_of_those_sent_after(gone) - begin)
        cluster.start(victim)
        cluster.wait_whole()
    label = "SIGKILL of a leader to the first acks=all"
    return [
        ClusterRow(f"{label}, a client that asks again at once", kind, "s", patient, True, goal=Goal(1.0, 5.0, "s")),
        ClusterRow(f"{label}, librdkafka's defaults", kind, "s", librdkafka, True, goal=Goal(3.0, 5.0, "s")),
    ]


def frozen(pair: Pair, kind: str, scale: Scale) -> list[ClusterRow]:
    """SIGSTOP of a leader, whose address does not refuse, to the first acks=all of a client that asks at once again."""
    seconds = by_peer([*pair])
    for victim, name, cluster in victims(pair, scale):
        topic = f"frozen-{len(seconds[name])}"
        cluster.new_topic(topic, [victim])
        client = PatientClient(cluster, topic, 0)
        client.connect()
        with closing(client):
            client.produce()
            begin = time.perf_counter()
            cluster.freeze(victim)
            try:
                seconds[name].append(client.produce({victim}) - begin)
            finally:
                cluster.thaw(victim)
        cluster.wait_whole()
    label = "SIGSTOP of a leader to the first acks=all, a client that asks again at once"
    return [ClusterRow(label, kind, "s", seconds, True, goal=Goal(3.0, 5.0, "s"))]


def stop(pair: Pair, kind: str, scale: Scale) -> list[ClusterRow]:
    """SIGTERM of a leader: what a program sees that does not retry, and the longest pause between acknowledgements."""
    failed, librdkafka, patient = by_peer([*pair]), by_peer([*pair]), by_peer([*pair])
    for victim, name, cluster in victims(pair, scale):
        topic = f"stopped-{len(patient[name])}"
        cluster.new_topic(topic, [victim, victim])
        with (
            SteadyLibrdkafka(cluster, topic, 0, EVERY_S) as steady,
            SteadyPatient(cluster, topic, 1, EVERY_S) as again,
        ):
            for client in (steady, again):
                client.wait_for(STEADY_RECORDS)
            begin = time.perf_counter()
            cluster.ask_to_stop(victim)
            cluster.wait_stopped(victim)
            gone = time.perf_counter()
            for client in (steady, again):
                client.wait_for(STEADY_RECORDS, after=gone)
            time.sleep(AFTER_STOP_S)
        again.client.close()
        failed[name].append(len(steady.failures))
        librdkafka[name].append(longest_pause(steady.times, begin) * 1e3)
        patient[name].append(longest_pause(again.times, begin) * 1e3)
        cluster.start(victim)
        cluster.wait_whole()
    totals = {name: [float(sum(values))] for name, values in failed.items()}
    pause = Goal(200.0, 500.0, "ms")
    label = "planned stop of a leader, longest pause"
    return [
        ClusterRow(
            f"planned stop of a leader, failed requests in {scale.kills} stops, librdkafka's defaults",
            kind,
            "requests",
            totals,
            True,
            goal=Goal(0.0, 0.0, "requests"),
        ),
        ClusterRow(f"{label}, librdkafka's defaults", kind, "ms", librdkafka, True, goal=pause),
        ClusterRow(f"{label}, a client that asks again at once", kind, "ms", patient, True, goal=pause),
    ]


def many(pair: Pair, kind: str, scale: Scale) -> list[ClusterRow]:
    """SIGKILL of a node, until both others know a leader of each partition that it led."""
    seconds: dict[str, list[float]] = {SEMEL: [], KAFKA: []}
    topic = "many"
    measured = {name: one for name, one in pair.items() if name == SEMEL or scale.partitions <= KAFKA_PARTITIONS_MAX}
    why = f"Apache Kafka: not with more than {KAFKA_PARTITIONS_MAX:,} partitions" if len(measured) < len(pair) else ""
    for cluster in measured.values():
        new_topic(cluster, topic, scale.partitions)
        cluster.wait_whole()
    for victim, name, cluster in victims(measured, scale):
        begin = time.perf_counter()
        cluster.kill(victim)
        others = [node for node in NODES if node != victim]
        seconds[name].append(max(_led_since(cluster, node, topic, others) for node in others) - begin)
        cluster.start(victim)
        cluster.wait_whole()
    label = f"SIGKILL of a node until all of {scale.partitions:,} partitions have a leader"
    return [ClusterRow(label, kind, "s", seconds, True, goal=Goal(5.0, 10.0, "s"), why=why)]


def _led_since(cluster: Cluster, node: int, topic: str, leaders: Sequence[int]) -> float:
    """Ask a node until these lead all partitions of a topic; return when the answer came."""

    def are_led() -> bool:
        return all(led.leader in leaders for led in partitions(calls, topic).values())

    with closing(Calls(cluster.addresses[node], ANSWER_S)) as calls:
        cluster.wait_until(are_led, f"all of {topic} are led", max(POLL_S, len(partitions(calls, topic)) * POLL_EACH_S))
        return time.perf_counter()
