"""The facts that nodes report for `semel doctor` and `semel txn why`. The fields are those of diagnostics.proto.

Times are in milliseconds since 1970, NO_TIME where there is none. Lists are bounded; a total says how many there are.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from semel.protocol.ids import TopicPartition

NO_TIME: Final = -1
NEVER: Final = -1
"""The timeout of a transaction that somebody outside decides."""


class Severity(Enum):
    """How bad a finding is. From WARNING on, the command's exit code tells of it."""

    INFO = "info"
    """Needs no action: it explains what may look strange."""
    WARNING = "warning"
    """Somebody waits, or exactly-once is in danger."""
    ERROR = "error"
    """It does not recover on its own, or something is refused now."""

    @property
    def rank(self) -> int:
        return (Severity.INFO, Severity.WARNING, Severity.ERROR).index(self)


class HangingEnd(Enum):
    """How a transaction that hangs on a partition is to end; the numbers are those of diagnostics.proto."""

    ABORT = 0
    """No coordinator knows it."""
    AS_DECIDED = 1
    """By the marker of its decision."""
    AS_COMMIT = 2
    """It was decided, and the log does not tell any more how: the caller does."""
    AS_ABORT = 3


class Section(Enum):
    """What a finding is about."""

    COORDINATORS = "coordinators"
    TRANSACTIONS = "transactions"
    GROUPS = "groups"
    PARTITIONS = "partitions"
    DISK = "disk"
    SETTINGS = "settings"
    PERMISSIONS = "permissions"


@dataclass(frozen=True, slots=True)
class Thresholds:
    """From when on something is worth a warning. Times are in milliseconds.

    slow_ms:         transactions open, or prepared, for longer
    markers_ms:      decided transactions whose markers are not all written after so long
    held_records:    transactions that hold back more committed records than this
    lag_ms:          groups whose first unread record is older
    lag_records:     groups that are further behind
    rebalances, rebalance_window_ms: groups that rebalanced so often within that time
    expiry_ms:       empty groups that are behind, and whose offsets are forgotten within that time
    sync_ms:         syncs that lately took longer
    clock_ms:        clocks of nodes that are further apart
    metadata_ms:     nodes that have not reached the metadata's database for longer
    """

    slow_ms: int = 60_000
    markers_ms: int = 10_000
    held_records: int = 1_000_000
    lag_ms: int = 300_000
    lag_records: int = 100_000
    rebalances: int = 5
    rebalance_window_ms: int = 600_000
    expiry_ms: int = 86_400_000
    sync_ms: int = 100
    clock_ms: int = 5_000
    metadata_ms: int = 5_000


@dataclass(frozen=True, slots=True)
class CoordinatorPartition:
    """A coordinator's partition that can't be used. `reason` is empty while it is being read."""

    topic: str
    partition: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction that partitions may hold data of.

    timeout_ms:      NEVER where somebody outside decides
    partitions:      the first of `partitions_total`
    key, attempt:    of the writer of a shared transaction; else empty
    client_id, client_host: of the producer; empty where not known
    marker_attempts, marker_error: how often writing its markers was tried in vain, and why the last time
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    state: str
    timeout_ms: int
    start_ms: int
    last_update_ms: int
    partitions: tuple[TopicPartition, ...]
    partitions_total: int
    key: str = ""
    attempt: str = ""
    client_id: str = ""
    client_host: str = ""
    marker_attempts: int = 0
    marker_error: str = ""


@dataclass(frozen=True, slots=True)
class ForgedMarker:
    """A producer whose last marker on a partition has a coordinator epoch that no coordinator ever had (P9).

    latest_epoch:     the highest that one has, by the metadata
    last_append_ms:   when the producer, or a marker of it, was last appended there
    transactional_id: whose the producer id is now, where a coordinator knows it
    """

    partition: TopicPartition
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    latest_epoch: int
    last_append_ms: int
    transactional_id: str = ""


@dataclass(frozen=True, slots=True)
class HeldPartition:
    """A partition whose last stable offset is held by an open transaction, which begins at `first_offset`.

    since_ms:          when its first batch was made, by the producer's clock
    last_append_ms:    when the producer was last heard of here
    open_transactions: on this partition
    is_known:          whether a coordinator on the same node has it as open there
    outcome:           where none has: how it was decided, by the log (commit, abort, unknown; empty: no record of it)
    transactional_id:  and whose it was
    """

    partition: TopicPartition
    last_stable_offset: int
    high_watermark: int
    producer_id: int
    producer_epoch: int
    first_offset: int
    since_ms: int
    last_append_ms: int
    open_transactions: int
    is_known: bool
    outcome: str = ""
    transactional_id: str = ""


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """A group, and how far it is behind what it may read.

    worst, worst_lag: the partition with the largest lag
    unread_since_ms:  when the first unread batch of that partition was made
    expires_ms:       of an empty group: when the first of its offsets may be forgotten
    rebalances_ms:    when it lately rebalanced
    """

    group_id: str
    state: str
    members: int
    lag: int
    worst: TopicPartition
    worst_lag: int
    unread_since_ms: int = NO_TIME
    last_commit_ms: int = NO_TIME
    expires_ms: int = NO_TIME
    rebalances_ms: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class PartitionReplicas:
    """A partition of a topic, and the nodes that have its replicas, the preferred leader first."""

    partition: int
    replicas: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """A topic's partitions on the node.

    deletes: whether old records go by age
    tight:   the first partitions, also on other nodes, that have several replicas and none more than
             min.insync.replicas; a partition whose replicas are being moved is left out
    is_diskless: whether its records are on no node's disk alone
    """

    topic: str
    partitions: int
    size_bytes: int
    largest_partition: int
    largest_bytes: int
    retention_ms: int
    min_insync_replicas: int
    replicas: int
    deletes: bool
    tight: tuple[PartitionReplicas, ...] = ()
    is_diskless: bool = False


@dataclass(frozen=True, slots=True)
class OfflinePartition:
    """A partition that takes and gives nothing.

    kind:     failed (it was open, and its disk failed), or why it is not open: not made, unreadable, damaged, vanished
    since_ms: since when; -1 where that is not known
    retry_ms: when the node tries to bring it back; -1: it does not
    """

    partition: TopicPartition
    reason: str
    kind: str = "failed"
    since_ms: int = NO_TIME
    retry_ms: int = NO_TIME


@dataclass(frozen=True, slots=True)
class DiskFacts:
    """The disk, its syncs since the start, and the last recovery. Sizes are -1 where they can't be told.

    slow_syncs:  how many of `syncs` took longer than `slow_sync_ms`
    write_error: why appends fail now; empty where they do not
    unclean_ms:  when a start last found that the node had not stopped cleanly; `unclean_found` is what it did about it
    maintenance_error: what of flushing, retention, compaction and the like failed when it was last due; empty: nothing
    damaged_ms:  when a start last found that records are lost or can't be read that had been synced; `damage` is which
    is_refusing: whether producers are refused now, for want of room
    resume_bytes: they are served again once so much is free; nodes of earlier versions tell 0
    """

    data_dir: str
    total_bytes: int
    free_bytes: int
    min_free_bytes: int
    durability: str
    syncs: int
    slow_syncs: int
    slow_sync_ms: int
    sync_ms_mean: float
    sync_ms_recent: float
    journal_bytes: int
    journal_max_bytes: int
    write_error: str
    started_ms: int
    started_clean: bool
    unclean_ms: int
    unclean_found: str
    damaged_ms: int
    damage: str
    maintenance_error: str = ""
    is_refusing: bool = False
    resume_bytes: int = 0


@dataclass(frozen=True, slots=True)
class SettingFact:
    """A setting of the node. `is_dynamic`: whether it can be changed while the node runs."""

    name: str
    value: str
    is_dynamic: bool


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """A node as another one knows it.

    is_fenced:   it is taken for dead
    is_stopping: it was asked to stop
    leads:       how many partitions, by the metadata; nodes of earlier versions tell 0
    is_cordoned: it gets no new replicas
    is_full:     its disk has no room for producers, and others lead in its place
    """

    node_id: int
    is_fenced: bool = False
    is_stopping: bool = False
    leads: int = 0
    is_cordoned: bool = False
    is_full: bool = False


@dataclass(frozen=True, slots=True)
class ReplicaFacts:
    """A replica that is not in sync. `lacks`: so many offsets; -1 where it has not fetched under this leader."""

    node_id: int
    lacks: int = -1


@dataclass(frozen=True, slots=True)
class ReplicationFacts:
    """A partition, of any topic, that has no leader (-1), or replicas that are not in sync.

    elr:            replicas out of `isr` that have every committed record all the same (KIP-966)
    last_known_elr: replicas that had them, until they restarted without their last records
    missing:        where the node that tells leads it: the replicas that are not in sync
    waits_for_replicas: whether it is led once it is known which replica has most, since the metadata was lost
    """

    partition: TopicPartition
    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    elr: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()
    min_insync_replicas: int = 1
    missing: tuple[ReplicaFacts, ...] = ()
    waits_for_replicas: bool = False


@dataclass(frozen=True, slots=True)
class InternalTopicFacts:
    """An internal topic: the fewest replicas of a partition of it, and how many the node's settings ask for."""

    topic: str
    replicas: int
    wanted: int
    min_insync_replicas: int = 1


@dataclass(frozen=True, slots=True)
class OwnedToken:
    """A delegation token, by its id, and whose it is: "User:NAME"."""

    token_id: str
    owner: str


@dataclass(frozen=True, slots=True)
class RemoteTrouble:
    """A partition for which something fails in the remote storage, and why."""

    partition: TopicPartition
    error: str


@dataclass(frozen=True, slots=True)
class RemoteTopic:
    """What a topic has in the remote storage, of its partitions that a node leads."""

    topic: str
    objects: int
    stored_bytes: int


@dataclass(frozen=True, slots=True)
class RemoteUse:
    """What a node has asked of the remote storage since `since_ms`, failed requests among it, and what the partitions
    have there that it leads.

    puts:         each part of an upload is one
    stored_bytes: batches and what belongs to them, of what readers can reach
    topics:       those that have most there, of `topics_total`
    """

    since_ms: int
    puts: int = 0
    gets: int = 0
    deletes: int = 0
    lists: int = 0
    sent_bytes: int = 0
    read_bytes: int = 0
    stored_objects: int = 0
    stored_bytes: int = 0
    topics: tuple[RemoteTopic, ...] = ()
    topics_total: int = 0


@dataclass(frozen=True, slots=True)
class NodeSnapshot:
    """One node at `now_ms` by its clock.

    leaders:     how many partitions it leads
    config_file: that it was started with, as an absolute path; empty for none
    version:     of semel; empty where it does not tell
    metadata_sequence: the last change of the metadata that it has applied
    nodes:       all of the cluster, as this one knows them; nodes of earlier versions tell of none
    replication: the partitions of the whole cluster that lack a leader or replicas in sync, as this node knows it
    throttled_topics: names of topics with replicas whose copying is throttled
    moving_total: how many partitions have replicas that are being moved
    metadata_away_ms: for how long it has not reached the metadata's database, in milliseconds; 0 while it does
    delegation_secret_mark: the same on nodes with the same secret of delegation tokens, and nothing that helps to find
        it; empty where it has none, or is of an earlier version
    tokens_without_user: delegation tokens whose owner is no user there now, by its file or the metadata
    remote_storage: where segments are copied to; empty where they are not
    remote_error: why what is done there for all partitions fails; empty where it does not
    remote_troubles: the partitions for which something fails there
    remote_bytes_to_copy: how large the closed segments are that this node has still to copy
    remote_use:  what is asked of the remote storage, and is there; None where there is none, or the node did not say
    """

    node_id: int
    now_ms: int
    disk: DiskFacts
    coordinators_away: tuple[CoordinatorPartition, ...] = ()
    transactions: tuple[OpenTransaction, ...] = ()
    transactions_total: int = 0
    held: tuple[HeldPartition, ...] = ()
    held_total: int = 0
    groups: tuple[GroupFacts, ...] = ()
    groups_total: int = 0
    topics: tuple[TopicFacts, ...] = ()
    topics_total: int = 0
    offline: tuple[OfflinePartition, ...] = ()
    offline_total: int = 0
    settings: tuple[SettingFact, ...] = ()
    leaders: int = 0
    forged: tuple[ForgedMarker, ...] = ()
    forged_total: int = 0
    config_file: str = ""
    version: str = ""
    metadata_sequence: int = 0
    nodes: tuple[NodeFacts, ...] = ()
    replication: tuple[ReplicationFacts, ...] = ()
    replication_total: int = 0
    internal_topics: tuple[InternalTopicFacts, ...] = ()
    is_controller: bool = False
    throttled_topics: tuple[str, ...] = ()
    moving_total: int = 0
    metadata_away_ms: int = 0
    delegation_secret_mark: str = ""
    tokens_without_user: tuple[OwnedToken, ...] = ()
    tokens_without_user_total: int = 0
    remote_storage: str = ""
    remote_error: str = ""
    remote_troubles: tuple[RemoteTrouble, ...] = ()
    remote_troubles_total: int = 0
    remote_bytes_to_copy: int = 0
    remote_use: RemoteUse | None = None


@dataclass(frozen=True, slots=True)
class TransactionEvent:
    """One record of `__transaction_state`.

    kind:       transaction (a step of a transactional id), forgotten (of one: its id), attempt (at a key's next shared
                transaction; none in it: it ended), commit (a decision with a token)
    cause:      of a decision: request, timeout or fence; empty where the log does not say
    by_client_id, by_host: who asked for the decision, where that is known
    client_id, client_host: of the producer
    """

    offset: int
    time_ms: int
    kind: str
    transactional_id: str = ""
    state: str = ""
    producer_id: int = -1
    producer_epoch: int = -1
    timeout_ms: int = 0
    start_ms: int = NO_TIME
    partitions: tuple[TopicPartition, ...] = ()
    partitions_total: int = 0
    client_id: str = ""
    client_host: str = ""
    cause: str = ""
    by_client_id: str = ""
    by_host: str = ""
    attempt: str = ""
    token: str = ""
    sequence: int = -1
    payload_bytes: int = 0
    writers: int = 0


@dataclass(frozen=True, slots=True)
class TransactionWrite:
    """What a producer of the key wrote to a partition: data, offsets (one for each), or the marker: commit, abort."""

    partition: TopicPartition
    producer_id: int
    producer_epoch: int
    kind: str
    first_offset: int
    last_offset: int
    time_ms: int
    group_id: str = ""
    committed: TopicPartition | None = None
    committed_offset: int = -1


@dataclass(frozen=True, slots=True)
class TransactionHistory:
    """What the log still has about a transactional id or a key, in its order.

    coordinator:       the partition of `__transaction_state` that was read, on the node `coordinator_node`
    compacted_to:      below it, only the last record of each key is kept; 0: nothing was compacted
    events:            the newest of `events_total`
    coordinator_error: why the coordinator can't work on it; empty where it can
    read_error:        why reading stopped early; empty where it did not
    writes_cut:        whether there is more in the partitions than was looked through
    """

    key: str
    coordinator: TopicPartition
    coordinator_node: int
    now_ms: int
    log_start_offset: int
    log_end_offset: int
    compacted_to: int
    events: tuple[TransactionEvent, ...]
    events_total: int
    writes: tuple[TransactionWrite, ...] = ()
    coordinator_error: str = ""
    read_error: str = ""
    writes_cut: bool = False
