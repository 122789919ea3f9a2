"""Reads a node's metrics: from where they are counted anyway, and from the recorders. Both outputs are made from this.

On the event loop, which alone changes what is read here, in turns of a few milliseconds.
"""

from __future__ import annotations

import asyncio
import os
import resource
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from semel.broker.log.journal_sync import LATENCY_BOUNDS_SECONDS
from semel.broker.metrics.limits import limits_of
from semel.broker.telemetry.instruments import INSTRUMENTS
from semel.broker.telemetry.reading import Reading, Value
from semel.broker.telemetry.recorders import Recorders
from semel.protocol.ids import INTERNAL_TOPICS, OFFSETS_TOPIC, TRANSACTIONS_TOPIC, TopicPartition
from semel.runtime.clock import Clock
from semel.runtime.telemetry.buckets import Distribution

if TYPE_CHECKING:
    from semel.broker.logs.partition import Partition
    from semel.broker.metrics.observed import ObservedNode

TURN_SECONDS: Final = 0.002
_PARTITIONS_PER_LOOK: Final = 100
"""Partitions between time checks."""


_Readings: TypeAlias = Iterator[Reading | None]
"""None: others may have a turn here."""


def _plain(name: str, value: Value) -> Reading:
    return Reading(INSTRUMENTS[name], (((), value),))


def _by(name: str, values: Iterable[tuple[str | tuple[str, ...], Value]]) -> Reading:
    return Reading(
        INSTRUMENTS[name],
        [((labels,) if isinstance(labels, str) else labels, value) for labels, value in values],
    )


class NodeReader:
    """Reads one node. `begun`: when it began to start, by its monotonic clock."""

    def __init__(self, node: ObservedNode, recorders: Recorders, clock: Clock) -> None:
        self._node = node
        self._recorders = recorders
        self._clock = clock
        self._begun = clock.monotonic()

    async def read(self) -> list[Reading]:
        """Return all readings. While the node starts, or has stopped, only those of the process."""
        readings: list[Reading] = []
        turn_ends = self._clock.monotonic() + TURN_SECONDS
        for reading in self._all():
            if reading is not None:
                readings.append(reading)
            elif self._clock.monotonic() >= turn_ends:
                await asyncio.sleep(0)
                turn_ends = self._clock.monotonic() + TURN_SECONDS
        return readings

    def _all(self) -> _Readings:
        yield from self._process()
        for part in (
            self._requests,
            self._limits,
            self._producing,
            self._fetching,
            self._transactions,
            self._groups,
            self._coordinators,
            self._storage,
            self._partitions,
            self._replication,
            self._cluster,
        ):
            yield None
            # While others had their turn the node may have begun to stop.
            if self._node.is_serving:
                yield from part()

    # --- The process --------------------------------------------------------------------------------------------------

    def _process(self) -> _Readings:
        node = self._node
        yield _plain("semel.node.ready", int(node.is_serving))
        yield _plain("semel.node.uptime", self._clock.monotonic() - self._begun)
        yield _plain("semel.node.recovery.duration", node.recovery_seconds)
        yield _plain("semel.node.loop.delay", Distribution.of(self._recorders.loop_delay))
        usage = resource.getrusage(resource.RUSAGE_SELF)
        yield _by("process.cpu.time", [("user", usage.ru_utime), ("system", usage.ru_stime)])
        with suppress(OSError, ValueError):  # Linux alone has these
            pages = int(Path("/proc/self/statm").read_bytes().split()[1])
            yield _plain("process.memory.usage", pages * resource.getpagesize())
            yield _plain("process.unix.file_descriptor.count", len(os.listdir("/proc/self/fd")))

    # --- Requests -----------------------------------------------------------------------------------------------------

    def _requests(self) -> _Readings:
        recorders = self._recorders
        apis = recorders.requests_by_api()
        yield _by("semel.request.duration", ((name, times.durations()) for name, times in apis))
        yield _by("semel.request.size", ((name, times.sizes()) for name, times in apis))
        calls = list(recorders.calls.items())
        yield _by("rpc.server.call.duration", ((labels, Distribution.of(times)) for labels, times in calls))
        client_quotas = self._node.client_quotas
        waited = client_quotas.throttled_s.items()
        yield _by("semel.quota.throttle.time", [(kind.value, seconds) for kind, seconds in waited])
        yield _by("semel.quota.throttles", [(kind.value, count) for kind, count in client_quotas.throttled.items()])
        yield _plain("semel.quota.rates", client_quotas.remembered)
        listeners = self._node.client_listeners
        statistics = None if listeners is None else listeners.kafka_statistics()
        if listeners is None or statistics is None:
            return
        yield _plain("semel.request.in_flight", listeners.kafka_in_flight())
        yield _plain("semel.request.memory", statistics.reserved_bytes)
        yield _plain("semel.request.memory.waiting", statistics.waiting_connections)
        yield _plain("semel.request.memory.waits", statistics.waits_for_room)
        yield _by("semel.network.io", [("receive", statistics.received_bytes), ("transmit", statistics.sent_bytes)])
        yield _plain("semel.connections", statistics.connections)
        yield _by(
            "semel.connection.events",
            [
                ("accepted", statistics.accepted_connections),
                ("refused", statistics.refused_connections - statistics.refused_of_address),
                (
                    "aborted",
                    statistics.aborted_connections
                    - statistics.slow_connections
                    - statistics.crowding_connections
                    - statistics.out_of_memory_connections,
                ),
                ("idle", statistics.idle_connections_closed),
                ("slow", statistics.slow_connections),
                ("crowding", statistics.crowding_connections),
                ("out_of_memory", statistics.out_of_memory_connections),
                ("refused_of_address", statistics.refused_of_address),
                ("throttled", statistics.throttled_connections),
                ("failed_handshakes", statistics.failed_handshakes),
                ("failed_authentications", statistics.failed_authentications),
                ("out_of_descriptors", statistics.accepts_exhausted),
            ],
        )

    def _limits(self) -> _Readings:
        used: list[tuple[str, Value]] = []
        most: list[tuple[str, Value]] = []
        refusals: list[tuple[str, Value]] = []
        for limit in limits_of(self._node):
            if limit is None:
                yield None
                continue
            used.append((limit.setting, limit.used))
            most.append((limit.setting, limit.max))
            if limit.refusals is not None:
                refusals.append((limit.setting, limit.refusals))
        yield _by("semel.limit.used", used)
        yield _by("semel.limit.max", most)
        yield _by("semel.limit.refusals", refusals)

    def _producing(self) -> _Readings:
        produce = self._node.produce
        yield _by(
            "semel.produce.batches",
            [
                ("appended", produce.appended_batches),
                ("duplicate", produce.duplicate_batches),
                ("refused", produce.refused_batches),
            ],
        )
        yield _by("semel.produce.refused", ((code.name, count) for code, count in produce.refusals.items()))
        yield _plain("semel.produce.records", produce.appended_records)
        yield _plain("semel.produce.io", produce.appended_bytes)
        yield _plain("semel.produce.checked", produce.checks.checked_elsewhere)
        yield _plain("semel.produce.checking", produce.checks.waiting)
        yield _plain("semel.produce.timeouts", produce.timed_out_requests)
        yield _plain("semel.produce.verifications", produce.verifications)
        yield _plain("semel.produce.verifying", produce.gate.waiting)

    def _fetching(self) -> _Readings:
        fetch = self._node.fetch
        yield _plain("semel.fetch.records", fetch.fetched_records)
        yield _plain("semel.fetch.io", fetch.fetched_bytes)
        yield _plain("semel.fetch.waiting", fetch.waiting)
        yield _plain("semel.fetch.sessions", len(fetch.sessions))
        yield _plain("semel.fetch.session.evictions", fetch.sessions.evicted)

    # --- Coordinators -------------------------------------------------------------------------------------------------

    def _transactions(self) -> _Readings:
        service, now_ms = self._node.transactions, self._node.clock.now_ms()
        machines = service.machines()
        states: dict[str, int] = {}
        for machine in machines:
            for state, count in machine.state_counts.items():
                states[state.label] = states.get(state.label, 0) + count
        begun = [txn.start_ms for machine in machines for txn in machine.open_transactions.values()]
        yield _by("semel.transactions", states.items())
        yield _plain("semel.transaction.age.max", max(now_ms - min(begun), 0) / 1000 if begun else 0.0)
        durations = self._recorders.transactions
        yield _by(
            "semel.transaction.duration",
            [("committed", Distribution.of(durations[True])), ("aborted", Distribution.of(durations[False]))],
        )
        yield _plain("semel.transaction.timeouts", service.counts.timeouts)
        yield _plain("semel.transaction.markers.pending", service.pending_markers())
        counts = service.counts
        yield _by("semel.producer.fencings", [("taken", counts.fencings_taken), ("refused", counts.fencings_refused)])

    def _groups(self) -> _Readings:
        node, service = self._node, self._node.groups
        states: dict[str, int] = {}
        members: list[tuple[str, Value]] = []
        most = node.config.metrics_max_group_partitions
        unlabelled = 0
        for machine in service.machines():
            for group_id, state, count in machine.groups():
                states[state] = states.get(state, 0) + 1
                if len(members) < most:
                    members.append((group_id, count))
            yield None
        yield _by("semel.groups", states.items())
        held = service.held()
        yield _by("semel.group.held", [("members", held.members), ("offsets", held.offsets)])
        if service.patterns is not None:
            patterns = service.patterns.statistics()
            yield _plain("semel.group.patterns", patterns.patterns)
            yield _plain("semel.group.patterns.effort", patterns.effort)
            yield _plain("semel.group.patterns.refused", patterns.refused)
        yield _by("semel.group.members", members)
        yield _by("semel.group.rebalances", list(service.rebalances.items())[-most:] if most else ())
        lags: list[tuple[tuple[str, ...], Value]] = []
        for machine in service.machines():
            for group_id, topic, number, offset in machine.committed_offsets():
                partition = node.partition(TopicPartition(topic, number))
                if partition is None:
                    continue
                if len(lags) >= most:
                    unlabelled += 1
                    continue
                lags.append(((group_id, topic, str(number)), max(partition.high_watermark - offset, 0)))
                if len(lags) % _PARTITIONS_PER_LOOK == 0:
                    yield None
            yield None
        yield _by("semel.group.lag", lags)
        yield _plain("semel.group.unlabelled", unlabelled)

    def _coordinators(self) -> _Readings:
        shards = {
            TRANSACTIONS_TOPIC: self._node.transactions.shard_states(),
            OFFSETS_TOPIC: self._node.groups.shard_states(),
        }
        yield _by(
            "semel.coordinator.partitions",
            [((topic, state), count) for topic, states in shards.items() for state, count in states.items()],
        )
        yield _by("semel.coordinator.load.duration", self._node.coordinator_load_seconds.items())

    # --- Storage ------------------------------------------------------------------------------------------------------

    def _storage(self) -> _Readings:
        logs = self._node.logs
        statistics = logs.statistics()
        journal = statistics.journal
        if journal is not None:
            syncs = Distribution(LATENCY_BOUNDS_SECONDS, journal.sync_seconds_buckets, journal.sync_seconds_total)
            yield _plain("semel.journal.sync.duration", syncs)
            yield _plain("semel.journal.commit.duration", Distribution.of(self._recorders.commits))
            yield _plain("semel.journal.io", journal.written_bytes)
            yield _plain("semel.journal.entries", journal.entries)
            yield _plain("semel.journal.size", journal.size_bytes)
            yield _plain("semel.journal.unsynced", journal.unsynced_bytes)
        yield _plain("semel.produce.purgatory", statistics.uncommitted_appends)
        yield _plain("semel.log.flushes", statistics.flushes)
        yield _plain("semel.log.flush.time", statistics.flush_seconds_total)
        yield _plain("semel.log.dirty", statistics.dirty_bytes)
        yield _plain("semel.log.compactions", statistics.compactions)
        yield _plain("semel.producer.ids", statistics.producer_ids)
        yield _plain("semel.disk.free", statistics.free_bytes)
        with suppress(OSError):
            yield _plain("semel.disk.limit", logs.disk_bytes()[0])
        yield _plain("semel.disk.reserve", self._node.config.disk_min_free_bytes)
        yield _plain("semel.node.recovery.restored", logs.recovery.restored_batches)
        tier = self._node.tier
        if tier is not None:
            yield _by("semel.remote.requests", tier.requests().items())
            yield _by("semel.remote.io", [("receive", tier.read_bytes), ("transmit", tier.sent_bytes)])
            yield _by("semel.remote.throttle.time", tier.throttled_s().items())
            yield _plain("semel.remote.segments", tier.copied_segments)
            yield _plain("semel.remote.size", tier.stored_bytes())
            yield _plain("semel.remote.lag", tier.bytes_to_copy())
            yield _plain("semel.remote.failed_reads", tier.failed_reads)
            yield _plain("semel.remote.failing", len(tier.troubles()))
            yield _plain("semel.remote.cache", tier.cached_bytes)
            committed = tier.committed()
            yield _plain("semel.diskless.commits", committed.commits)
            yield _plain("semel.diskless.entries", committed.entries)
            yield _plain("semel.diskless.waiting", committed.waiting_bytes)
        yield _by(
            "semel.partitions",
            [
                ("online", statistics.partitions - statistics.offline_partitions),
                ("offline", statistics.offline_partitions),
            ],
        )

    def _partitions(self) -> _Readings:
        node = self._node
        now_ms = node.clock.now_ms()
        begun_ms = {
            txn.producer_id: txn.start_ms
            for machine in node.transactions.machines()
            for txn in machine.open_transactions.values()
        }
        most = node.config.metrics_max_partitions
        partitions = sorted(node.logs.partitions(), key=lambda one: (one.tp.topic in INTERNAL_TOPICS, one.tp))
        columns: dict[str, list[tuple[tuple[str, ...], Value]]] = {
            name: []
            for name in (
                "semel.partition.high_watermark",
                "semel.partition.size",
                "semel.partition.lso.lag",
                "semel.partition.lso.age",
            )
        }
        lag_max, age_max, size_bytes, labelled, unlabelled = 0, 0.0, 0, 0, 0
        for number, partition in enumerate(partitions):
            if number % _PARTITIONS_PER_LOOK == 0:
                yield None
            lag = partition.high_watermark - partition.last_stable_offset
            age = lso_age_s(partition, begun_ms, now_ms) if lag else 0.0
            size = partition.log.size_bytes
            lag_max, age_max, size_bytes = max(lag_max, lag), max(age_max, age), size_bytes + size
            if partition.tp.topic in INTERNAL_TOPICS and not partition.high_watermark:
                continue  # most of the coordinators' partitions are empty on most nodes
            if labelled >= most:
                unlabelled += 1
            else:
                labelled += 1
                labels = (partition.tp.topic, str(partition.tp.partition))
                for values, value in zip(columns.values(), (partition.high_watermark, size, lag, age), strict=True):
                    values.append((labels, value))
        for name, values in columns.items():
            yield Reading(INSTRUMENTS[name], values)
        yield _plain("semel.partition.lso.lag.max", lag_max)
        yield _plain("semel.partition.lso.age.max", age_max)
        yield _plain("semel.partition.unlabelled", unlabelled)
        yield _plain("semel.log.size", size_bytes)

    # --- The cluster --------------------------------------------------------------------------------------------------

    def _replication(self) -> _Readings:
        node, changes = self._node, self._node.cluster_changes
        leaders = followers = under_replicated = under_min_isr = 0
        for number, partition in enumerate(list(node.logs.partitions())):
            if number % _PARTITIONS_PER_LOOK == 0:
                yield None
            leader = partition.leader
            if leader is None:
                followers += 1
                continue
            leaders += 1
            under_replicated += len(leader.isr) < leader.replication_factor
            under_min_isr += not leader.has_min_isr
        yield _by("semel.replication.replicas", [("leader", leaders), ("follower", followers)])
        yield _plain("semel.replication.under_replicated", under_replicated)
        yield _plain("semel.replication.under_min_isr", under_min_isr)
        yield _by(
            "semel.replication.isr.changes", [("shrink", changes.isr_shrinks), ("expansion", changes.isr_expansions)]
        )
        lag = node.replication_lag
        shown = sorted(lag, key=lambda tp: (tp.topic in INTERNAL_TOPICS, tp))[: node.config.metrics_max_partitions]
        yield _by("semel.replication.lag", [((tp.topic, str(tp.partition)), lag[tp]) for tp in shown])
        yield _plain("semel.replication.lag.max", max(lag.values(), default=0))
        quotas = [("leader", node.replication_quotas.leader), ("follower", node.replication_quotas.follower)]
        now_s = node.clock.monotonic()
        yield _by("semel.replication.throttled", [(part, quota.total_bytes) for part, quota in quotas])
        yield _by("semel.replication.throttled.exceeded", [(part, int(one.is_exceeded(now_s))) for part, one in quotas])
        failed = node.failed_fetches.items()
        yield _by("semel.replication.fetch.failures", [(str(leader_id), count) for leader_id, count in failed])

    def _cluster(self) -> _Readings:
        node, changes, metadata = self._node, self._node.cluster_changes, self._node.metadata
        is_controller = metadata.controller_epoch >= 0
        brokers = metadata.image.brokers.values() if is_controller else ()
        fenced = sum(broker.is_fenced for broker in brokers)
        yield _plain("semel.cluster.controller", int(is_controller))
        yield _by("semel.cluster.nodes", [("alive", len(brokers) - fenced), ("fenced", fenced)])
        yield _plain("semel.cluster.partitions.offline", changes.partitions_without_leader if is_controller else 0)
        yield _plain("semel.cluster.partitions.offline.age.max", changes.without_leader_s if is_controller else 0.0)
        yield _by("semel.cluster.elections", [("clean", changes.elections), ("unclean", changes.unclean_elections)])
        yield _plain("semel.cluster.fencings", changes.fencings)
        yield _plain("semel.cluster.failover.duration", Distribution.of(changes.failovers))
        yield _plain("semel.cluster.metadata.behind.max", node.metadata_behind_max)
        yield _plain("semel.metadata.age", self._clock.monotonic() - metadata.reached_at)
        yield _plain("semel.metadata.heartbeats.failed", metadata.failed_heartbeats)


def lso_age_s(partition: Partition, begun_ms: dict[int, int], now_ms: int) -> float:
    """Return how old the transaction is that holds a partition's last stable offset.

    Its coordinator knows when it began; where that is another node, its last batch here is all that is known.
    """
    state = partition.log.producer_state
    producer_id = next(iter(state.open_transactions.values()), None)
    if producer_id is None:
        return 0.0
    since_ms = begun_ms.get(producer_id)
    if since_ms is None:
        entry = state.entry(producer_id)
        since_ms = now_ms if entry is None else entry.active_ms
    return max(now_ms - since_ms, 0) / 1000


async def watch_loop(recorders: Recorders, clock: Clock, interval_s: float) -> None:
    """Measure for ever how late the event loop comes to a timer."""
    while True:
        due = clock.monotonic() + interval_s
        await asyncio.sleep(interval_s)
        recorders.loop_delay.record(max(clock.monotonic() - due, 0.0))
