"""Every metric of a node: the one table that the readings, docs/metrics.md and the dashboard's tests are made from.

Names and units follow OpenTelemetry's conventions where these have one (`messaging.*`, `rpc.*`, `process.*`); what they
do not name is `semel.<part>.<what>`. Prometheus knows a metric by the name that OpenTelemetry's specification makes of
it: `semel.request.duration` in `s` is `semel_request_duration_seconds`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Final


class Kind(Enum):
    """What may be done with the values of a metric."""

    COUNTER = "counter"
    """Only grows, from the node's start on: look at its rate."""
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Instrument:
    """One metric. `unit` is UCUM's: s, By, 1, or {things}; `labels` are the attributes of each of its values."""

    name: str
    unit: str
    kind: Kind
    description: str
    labels: tuple[str, ...] = ()

    @property
    def prometheus_name(self) -> str:
        """The name in Prometheus, without the suffixes of samples (`_total`, `_bucket`, `_sum`, `_count`)."""
        suffix = _UNIT_SUFFIXES.get(self.unit, "")
        return prometheus_label(self.name) + suffix

    @property
    def prometheus_labels(self) -> tuple[str, ...]:
        return tuple(map(prometheus_label, self.labels))


_UNIT_SUFFIXES: Final = {"s": "_seconds", "By": "_bytes"}


def prometheus_label(name: str) -> str:
    """Return a name as Prometheus takes it."""
    return name.replace(".", "_")


TOPIC: Final = "messaging.destination.name"
PARTITION: Final = "messaging.destination.partition.id"
GROUP: Final = "messaging.consumer.group.name"
ERROR: Final = "error.type"
API: Final = "semel.api"
STATE: Final = "semel.state"
QUOTA: Final = "semel.quota"
OUTCOME: Final = "semel.outcome"
KIND: Final = "semel.kind"
DIRECTION: Final = "network.io.direction"
LEADER: Final = "semel.leader.id"
SETTING: Final = "semel.setting"

_C, _G, _H = Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM

_TABLE: Final[tuple[tuple[str, tuple[Instrument, ...]], ...]] = (
    (
        "Requests",
        (
            Instrument(
                "semel.request.duration", "s", _H,
                "From the turn of the event loop in which a request came to the one with its answer. With acks=all "
                "that is until it is durable; for FETCH it includes the wait for records.",
                (API,),
            ),
            Instrument("semel.request.size", "By", _H, "Sizes of requests of the Kafka protocol.", (API,)),
            Instrument("semel.request.in_flight", "{request}", _G, "Requests that are received and not answered."),
            Instrument(
                "semel.request.memory", "By", _G,
                "Memory held for requests that are being received or not answered (bound: queued.max.request.bytes).",
            ),
            Instrument(
                "semel.request.memory.waiting", "{connection}", _G,
                "Connections that are not read until there is memory for their requests.",
            ),
            Instrument(
                "semel.request.memory.waits", "{wait}", _C, "How often a request had to wait for memory."
            ),
            Instrument(
                "rpc.server.call.duration", "s", _H,
                "How long calls of gRPC took; streams are not in it.",
                ("rpc.method", ERROR),
            ),
            Instrument("semel.network.io", "By", _C, "Bytes of the Kafka listener's connections.", (DIRECTION,)),
            Instrument("semel.connections", "{connection}", _G, "Open connections of the Kafka listener."),
            Instrument(
                "semel.quota.throttle.time", "s", _C,
                "How long clients were made to wait because a client quota was used up, all together, by the quota.",
                (QUOTA,),
            ),
            Instrument("semel.quota.throttles", "{request}", _C, "How often that was, by the quota.", (QUOTA,)),
            Instrument(
                "semel.quota.rates", "{rate}", _G,
                "Rates of users, client ids and addresses that are remembered for their quotas.",
            ),
            Instrument(
                "semel.connection.events", "{connection}", _C,
                "Connections accepted, refused (max.connections), refused_of_address (kafka.max.connections.per.ip), "
                "throttled (came faster than the quota of their address), "
                "aborted because of what the peer sent, or closed because they were idle, slow (a request that did not "
                "come), crowding (kept memory while others waited), out_of_memory; failed_handshakes: closed before "
                "they were encrypted; failed_authentications: clients with a wrong user or password. "
                "out_of_descriptors: how often the system had none for another connection.",
                (KIND,),
            ),
        ),
    ),
    (
        "Limits",
        (
            Instrument(
                "semel.limit.used", "{unit}", _G,
                "How much there is of what a setting bounds, by the setting and in its unit: of a bound for each "
                "group, partition or address, what the largest of them has. docs/reference/limits.md lists them.",
                (SETTING,),
            ),
            Instrument("semel.limit.max", "{unit}", _G, "How much there may be: the setting.", (SETTING,)),
            Instrument(
                "semel.limit.refusals", "{refusal}", _C,
                "How often somebody was refused because of it; of queued.max.request.bytes, how often a request had to "
                "wait.",
                (SETTING,),
            ),
        ),
    ),
    (
        "Producing",
        (
            Instrument(
                "semel.produce.batches", "{batch}", _C,
                "Batches of producers: appended; duplicate: repeated by an idempotent producer, answered as before and "
                "not appended again (P1); refused.",
                (OUTCOME,),
            ),
            Instrument(
                "semel.produce.refused", "{batch}", _C, "Batches refused, by the error that was answered.", (ERROR,)
            ),
            Instrument("semel.produce.records", "{record}", _C, "Records appended for producers."),
            Instrument("semel.produce.io", "By", _C, "Bytes of batches appended for producers."),
            Instrument(
                "semel.produce.checked", "{batch}", _C,
                "Batches that were opened and checked in a thread, because they are large or compressed (S3).",
            ),
            Instrument(
                "semel.produce.checking", "{request}", _G,
                "Requests that wait for such a thread, or are in one (produce.check.queue.max).",
            ),
            Instrument("semel.produce.timeouts", "{request}", _C, "Requests that were not durable within their time."),
            Instrument(
                "semel.produce.purgatory", "{append}", _G, "Appends that wait for the journal's sync."
            ),
            Instrument(
                "semel.produce.verifications", "{call}", _C,
                "How often the transaction coordinator was asked whether a partition is in a transaction (T8).",
            ),
            Instrument(
                "semel.produce.verifying", "{producer}", _G,
                "Producers of a partition whose batches wait for the coordinator's word.",
            ),
        ),
    ),
    (
        "Fetching",
        (
            Instrument("semel.fetch.records", "{record}", _C, "Offsets that fetches were answered with."),
            Instrument("semel.fetch.io", "By", _C, "Bytes of batches that fetches were answered with."),
            Instrument("semel.fetch.waiting", "{request}", _G, "Fetches that wait for records."),
            Instrument("semel.fetch.sessions", "{session}", _G, "Fetch sessions (KIP-227)."),
            Instrument("semel.fetch.session.evictions", "{session}", _C, "Fetch sessions given up for newer ones."),
        ),
    ),
    (
        "Partitions",
        (
            Instrument("semel.partitions", "{partition}", _G, "Partitions held here.", (STATE,)),
            Instrument(
                "semel.partition.high_watermark", "{record}", _G,
                "The end of what is committed; its rate is the records that came in.",
                (TOPIC, PARTITION),
            ),
            Instrument("semel.partition.size", "By", _G, "Bytes of the log's segments.", (TOPIC, PARTITION)),
            Instrument(
                "semel.partition.lso.lag", "{record}", _G,
                "Committed records that read_committed readers may not see yet: high watermark less last stable.",
                (TOPIC, PARTITION),
            ),
            Instrument(
                "semel.partition.lso.age", "s", _G,
                "How long the transaction that holds the last stable offset has been open; 0 where none does.",
                (TOPIC, PARTITION),
            ),
            Instrument(
                "semel.partition.lso.lag.max", "{record}", _G, "The largest semel.partition.lso.lag of all partitions."
            ),
            Instrument(
                "semel.partition.lso.age.max", "s", _G,
                "The age of the oldest transaction that holds a last stable offset, of all partitions.",
            ),
            Instrument(
                "semel.partition.unlabelled", "{partition}", _G,
                "Partitions that have no metrics of their own, being more than metrics.max.partitions.",
            ),
        ),
    ),
    (
        "Transactions",
        (
            Instrument(
                "semel.transactions", "{transaction}", _G, "Transactional ids by their state (T1).", (STATE,)
            ),
            Instrument(
                "semel.transaction.duration", "s", _H,
                "From the first partition to the last marker, by outcome: committed or aborted. Each writer of a "
                "shared transaction counts. Its count is the number of transactions that ended.",
                (OUTCOME,),
            ),
            Instrument(
                "semel.transaction.age.max", "s", _G, "The age of the oldest transaction that is open or completing."
            ),
            Instrument(
                "semel.transaction.timeouts", "{transaction}", _C, "Transactions aborted by their timeout (T9)."
            ),
            Instrument(
                "semel.transaction.markers.pending", "{transaction}", _G, "Decided ones whose markers are under way."
            ),
            Instrument(
                "semel.producer.fencings", "{producer}", _C,
                "taken: the coordinator took the epoch of a producer that had a transaction open (T5); refused: a "
                "fenced producer called the coordinator.",
                (KIND,),
            ),
        ),
    ),
    (
        "Groups",
        (
            Instrument("semel.groups", "{group}", _G, "Groups coordinated here, by state.", (STATE,)),
            Instrument("semel.group.members", "{member}", _G, "Members of a group.", (GROUP,)),
            Instrument(
                "semel.group.lag", "{record}", _G,
                "Records between the group's committed offset and the high watermark.",
                (GROUP, TOPIC, PARTITION),
            ),
            Instrument(
                "semel.group.held", "By", _G,
                "What groups hold in memory, about: their members (up to group.members.max.bytes) and their committed "
                "offsets (up to offsets.max.bytes).",
                (KIND,),
            ),
            Instrument("semel.group.patterns", "{pattern}", _G, "Regular expressions of members that are kept."),
            Instrument(
                "semel.group.patterns.effort", "{state}", _C,
                "States of automata looked at while members' regular expressions were matched.",
            ),
            Instrument(
                "semel.group.patterns.refused", "{heartbeat}", _C,
                "Heartbeats put off because their regular expressions took too much of the node's time.",
            ),
            Instrument("semel.group.rebalances", "{rebalance}", _C, "Rebalances that began.", (GROUP,)),
            Instrument(
                "semel.group.unlabelled", "{series}", _G,
                "Lags of groups that are not shown, being more than metrics.max.group.partitions.",
            ),
            Instrument(
                "semel.coordinator.partitions", "{partition}", _G,
                "Partitions of the coordinators' topics: loading, active, or unreadable.",
                (TOPIC, STATE),
            ),
            Instrument(
                "semel.coordinator.load.duration", "s", _G, "How long the last loading of a coordinator took.", (TOPIC,)
            ),
        ),
    ),
    (
        "Storage",
        (
            Instrument(
                "semel.journal.sync.duration", "s", _H, "The journal's syncs (fsync): what acknowledgements wait for."
            ),
            Instrument(
                "semel.journal.commit.duration", "s", _H,
                "From an append to its being durable: what acks=all waits for. One append of each sync is measured.",
            ),
            Instrument("semel.journal.io", "By", _C, "Bytes written to the journal."),
            Instrument("semel.journal.entries", "{entry}", _C, "Appends written to the journal: divide by its syncs."),
            Instrument(
                "semel.journal.size", "By", _G,
                "What a recovery would read; spare files do not count (bound: journal.max.bytes).",
            ),
            Instrument(
                "semel.journal.unsynced", "By", _G, "Written and not durable yet (bound: journal.unsynced.max.bytes)."
            ),
            Instrument("semel.log.flushes", "{flush}", _C, "Flushes of the logs, after which the journal is cut."),
            Instrument("semel.log.flush.time", "s", _C, "Time spent in these flushes."),
            Instrument("semel.log.dirty", "By", _G, "Appended since the last flush."),
            Instrument("semel.log.compactions", "{round}", _C, "Rounds of compaction."),
            Instrument("semel.log.size", "By", _G, "Bytes of all logs' segments."),
            Instrument(
                "semel.remote.requests", "{request}", _C,
                "Sent to the remote storage: put (each part of an upload), get, delete, list. Each costs.", (KIND,),
            ),
            Instrument(
                "semel.remote.io", "By", _C, "Sent to the remote storage (transmit), and read from it (receive).",
                (DIRECTION,),
            ),
            Instrument(
                "semel.remote.throttle.time", "s", _C,
                "Waited for the quotas of the remote storage: copies (copy), reads (fetch), appends to diskless topics "
                "(append).", (KIND,),
            ),
            Instrument("semel.remote.segments", "{segment}", _C, "Segments copied to the remote storage."),
            Instrument(
                "semel.remote.size", "By", _G,
                "Held in the remote storage of partitions led here: `semel cluster status` has it by topic.",
            ),
            Instrument(
                "semel.remote.lag", "By", _G, "Closed segments of partitions led here that are still to be copied."
            ),
            Instrument("semel.remote.failed_reads", "{read}", _C, "Reads from the remote storage that failed."),
            Instrument(
                "semel.remote.failing", "{partition}", _G,
                "Partitions that can't be copied, cleaned up, looked up or read there: `semel doctor` says why.",
            ),
            Instrument(
                "semel.remote.cache", "By", _G,
                "Held in memory of what was read there (bound: remote.log.reader.cache.bytes).",
            ),
            Instrument(
                "semel.diskless.commits", "{commit}", _C,
                "Transactions of the metadata's database that committed appends to diskless partitions.",
            ),
            Instrument("semel.diskless.entries", "{entry}", _C, "Rows that they wrote: runs of batches."),
            Instrument(
                "semel.diskless.waiting", "By", _G,
                "Appended to diskless partitions and not committed yet: producers are refused from 128 MiB on.",
            ),
            Instrument(
                "semel.producer.ids", "{producer}", _G,
                "Producer ids that the partitions remember together (producer.ids.max); while they are too many, "
                "semel.produce.refused counts THROTTLING_QUOTA_EXCEEDED.",
            ),
            Instrument("semel.disk.limit", "By", _G, "Size of the file system with the data directory."),
            Instrument("semel.disk.free", "By", _G, "What is free of it; looked at every few seconds."),
            Instrument(
                "semel.disk.reserve", "By", _G, "With less than this free, producers are refused (disk.min.free.bytes)."
            ),
        ),
    ),
    (
        "Replication",
        (
            Instrument(
                "semel.replication.replicas", "{partition}", _G,
                "Replicas that are open here, by this node's part: leader, or follower (also where nobody leads).",
                (STATE,),
            ),
            Instrument(
                "semel.replication.under_replicated", "{partition}", _G,
                "Partitions led here of which not all replicas are in sync.",
            ),
            Instrument(
                "semel.replication.under_min_isr", "{partition}", _G,
                "Partitions led here with fewer replicas in sync than min.insync.replicas: acks=all is refused there.",
            ),
            Instrument(
                "semel.replication.isr.changes", "{change}", _C,
                "Changes of the in-sync sets of partitions led here, by kind: shrink or expansion.",
                (KIND,),
            ),
            Instrument(
                "semel.replication.lag", "{record}", _G,
                "How many committed records a partition that is followed here lacked at its last fetch. A single node "
                "has none.",
                (TOPIC, PARTITION),
            ),
            Instrument(
                "semel.replication.lag.max", "{record}", _G,
                "The largest semel.replication.lag of all partitions followed here.",
            ),
            Instrument(
                "semel.replication.throttled", "By", _C,
                "Bytes of throttled replicas that were not in sync: sent by this node as leader, and fetched by it as "
                "follower (bounds for a second: leader.replication.throttled.rate, "
                "follower.replication.throttled.rate).",
                (STATE,),
            ),
            Instrument(
                "semel.replication.throttled.exceeded", "{quota}", _G,
                "1 while that bound is reached, and throttled replicas wait.",
                (STATE,),
            ),
            Instrument(
                "semel.replication.fetch.failures", "{fetch}", _C,
                "This node's fetches as a follower that failed, by the leader's node id. A single node has none.",
                (LEADER,),
            ),
        ),
    ),
    (
        "The cluster",
        (
            Instrument(
                "semel.cluster.controller", "{node}", _G,
                "1 on the node that is the controller. The sum over all nodes is 1, but for moments.",
            ),
            Instrument(
                "semel.cluster.nodes", "{node}", _G,
                "Nodes of the cluster: alive, or fenced (taken for dead). From the controller, 0 on the others.",
                (STATE,),
            ),
            Instrument(
                "semel.cluster.partitions.offline", "{partition}", _G,
                "Partitions of all topics that nobody leads. From the controller, 0 on the others.",
            ),
            Instrument(
                "semel.cluster.partitions.offline.age.max", "s", _G,
                "How long a partition has had no leader, the longest of all, as far as this controller has seen it.",
            ),
            Instrument(
                "semel.cluster.elections", "{election}", _C,
                "Leaders that took another's place, by kind: clean, or unclean (by an operator's word, with a replica "
                "that may lack committed records). Counted by the controller.",
                (KIND,),
            ),
            Instrument(
                "semel.cluster.fencings", "{node}", _C,
                "How often a node was taken for dead, or had left. Counted by the controller.",
            ),
            Instrument(
                "semel.cluster.failover.duration", "s", _H,
                "From the last heartbeat of a node that died until others were elected for what it led: so long these "
                "partitions had no leader, at most. Measured by the controller.",
            ),
            Instrument(
                "semel.cluster.metadata.behind.max", "{change}", _G,
                "Changes of the metadata that the living node lacks which is furthest behind, by its last heartbeat. "
                "From the controller, 0 on the others.",
            ),
            Instrument(
                "semel.metadata.age", "s", _G,
                "How long ago the metadata's database last answered this node. Up to a third of controller.lease.ms is "
                "normal on a single node.",
            ),
            Instrument(
                "semel.metadata.heartbeats.failed", "{heartbeat}", _C,
                "Heartbeats that could not be written: after broker.session.timeout.ms without one the node is fenced.",
            ),
        ),
    ),
    (
        "The node",
        (
            Instrument("semel.node.ready", "{node}", _G, "1 while the node serves, 0 while it starts or has failed."),
            Instrument("semel.node.uptime", "s", _G, "Since the node began to start."),
            Instrument(
                "semel.node.recovery.duration", "s", _G, "How long opening and recovering the logs took at the start."
            ),
            Instrument(
                "semel.node.recovery.restored", "{batch}", _G,
                "Batches that the journal gave back to logs at the start, after a crash.",
            ),
            Instrument(
                "semel.node.loop.delay", "s", _H,
                "How much later than asked for the event loop came to a timer: how long requests wait for their turn.",
            ),
            Instrument("process.cpu.time", "s", _C, "CPU time of the process.", ("cpu.mode",)),
            Instrument("process.memory.usage", "By", _G, "Resident memory of the process."),
            Instrument("process.unix.file_descriptor.count", "{file_descriptor}", _G, "Open files and sockets."),
        ),
    ),
)  # fmt: skip

INSTRUMENTS: Final[Mapping[str, Instrument]] = MappingProxyType(
    {instrument.name: instrument for _, instruments in _TABLE for instrument in instruments}
)
"""Every instrument by its name."""
