"""Starts and memory of three nodes."""

from __future__ import annotations

import statistics
import time
from contextlib import closing

from clusters.clients import PatientClient
from clusters.peers import FIRST, NODES, Pair
from clusters.report import ClusterRow, Goal, Scale, by_peer

AT_REST_S = 1.0


def start(pair: Pair, kind: str, scale: Scale) -> list[ClusterRow]:
    """Start of all three processes to the first acknowledged record, on directories with a topic; memory then."""
    seconds, cpu, memory, everything = (by_peer([*pair]) for _ in range(4))
    for cluster in pair.values():
        cluster.stop()
    for _ in range(scale.rounds + 1):
        for name, cluster in pair.items():
            cpu_before = cluster.cpu_s()
            begin = time.perf_counter()
            cluster.start(*NODES)
            with closing(PatientClient(cluster, FIRST, 0)) as client:
                seconds[name].append(client.produce() - begin)
            cpu[name].append(cluster.cpu_s() - cpu_before)
            cluster.wait_whole()
            time.sleep(AT_REST_S)
            memory[name].append(cluster.memory_mb())
            everything[name].append(memory[name][-1] + cluster.more_memory_mb())
            cluster.stop()
    for taken in (seconds, cpu, memory, everything):
        for values in taken.values():
            del values[0]  # the first start reads its files from the disk
    for cluster in pair.values():
        cluster.start(*NODES)
    for cluster in pair.values():
        cluster.wait_whole()
    costs = {name: f"{statistics.median(values):.2f} s" for name, values in cpu.items()}
    label = "memory of the cluster after it"
    return [
        ClusterRow(
            "start of three nodes to the first record", kind, "s", seconds, True, costs, goal=Goal(1.0, 2.0, "s")
        ),
        ClusterRow(label, kind, "MB", memory, True, goal=Goal(300.0, 500.0, "MB")),
        ClusterRow(f"{label}, with PostgreSQL", kind, "MB", everything, True),
    ]
