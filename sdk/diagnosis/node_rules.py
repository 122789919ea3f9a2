"""What is found about partitions, disks and settings. Pure: facts in, findings out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from semel.protocol.api.diagnostics import (
    NO_TIME,
    NodeSnapshot,
    OfflinePartition,
    Severity,
    Thresholds,
    TopicFacts,
)
from semel.protocol.ids import TopicPartition
from semel.protocol.listener_names import DEFAULT_LISTENER, addresses_of, client_auth_of
from semel.protocol.loopback import serves_anybody
from semel.protocol.wording import command, counted, duration, size
from semel.sdk.diagnosis.commands import NEEDS_HELP, fix_commands, serve_command, verify_command
from semel.sdk.diagnosis.findings import KINDS, Cluster, Finding

_SKEW: Final = 4
_SKEWED_BYTES_MIN: Final = 64 << 20
_SLOW_SHARE: Final = 0.01
_SYNCS_MIN: Final = 20
_FILLING_SHARE: Final = 0.1
_JOURNAL_SHARE: Final = 0.8
_MINUTE_MS: Final = 60_000
_HOUR_MS: Final = 3_600_000
_DAY_MS: Final = 86_400_000
_RESERVE_BYTES: Final = 64 << 20
_TOPICS_NAMED_MAX: Final = 20
_TXN_TIMEOUT: Final = "transaction.max.timeout.ms"


# --- Partitions -------------------------------------------------------------------------------------------------------


def partition_findings(cluster: Cluster) -> Iterator[Finding]:
    """Partitions that are offline, and loads that are uneven."""
    for node in cluster.nodes:
        yield from (_offline(cluster, node, offline) for offline in node.offline)
        more = node.offline_total - len(node.offline)
        if more > 0:
            yield Finding(
                KINDS["partition-offline"],
                Severity.ERROR,
                f"node {node.node_id}",
                f"{more} more partitions of node {node.node_id} are offline",
                commands=(verify_command(node),),
                node_id=node.node_id,
            )
    yield from _skewed(cluster)
    leaders = {node.node_id: node.leaders for node in cluster.nodes}
    # One partition can't be spread.
    if len(leaders) > 1 and max(leaders.values()) > max(1, 2 * sum(leaders.values()) / len(leaders)):
        busiest = max(leaders, key=lambda node_id: leaders[node_id])
        yield Finding(
            KINDS["leaders-skewed"],
            Severity.INFO,
            f"node {busiest}",
            f"node {busiest} leads {leaders[busiest]} of {sum(leaders.values())} partitions, on {len(leaders)} nodes",
            commands=(command("partition", "elect", "--all"), command("cluster", "balance", "--dry-run")),
            node_id=busiest,
        )


_OFFLINE_KINDS: Final = {
    "not made": "partition-not-made",
    "unreadable": "partition-unreadable",
    "damaged": "partition-damaged",
    "vanished": "partition-vanished",
}


def _offline(cluster: Cluster, node: NodeSnapshot, offline: OfflinePartition) -> Finding:
    tp = offline.partition
    happens = ""
    commands = fix_commands(node, offline)
    leader = cluster.led_elsewhere(tp, node.node_id)
    if leader is not None and offline.kind == "vanished":
        happens = f"node {leader} leads it, and nothing is lost: restart node {node.node_id}, and it copies it again"
        commands = (serve_command(node),)
    elif offline.kind in NEEDS_HELP:
        happens = "nothing: it stays offline; the node's other partitions are served"
    elif offline.retry_ms != NO_TIME:
        happens = f"the node tries again in {duration(max(offline.retry_ms - node.now_ms, 0))}, and from then on"
    return Finding(
        KINDS[_OFFLINE_KINDS.get(offline.kind, "partition-offline")],
        Severity.ERROR,
        str(tp),
        f"{tp} is offline: {offline.reason}",
        offline.since_ms,
        happens,
        commands,
        node.node_id,
    )


def _is_skewed(topic: TopicFacts) -> bool:
    others = topic.partitions - 1
    if others < 1 or topic.largest_bytes < _SKEWED_BYTES_MIN:
        return False
    return topic.largest_bytes > _SKEW * (topic.size_bytes - topic.largest_bytes) / others


def _skewed(cluster: Cluster) -> Iterator[Finding]:
    """One finding for each topic: the node with the largest replica tells it for all."""
    found: dict[str, tuple[NodeSnapshot, TopicFacts]] = {}
    for node in cluster.nodes:
        for topic in filter(_is_skewed, node.topics):
            if topic.topic not in found or found[topic.topic][1].largest_bytes < topic.largest_bytes:
                found[topic.topic] = node, topic
    for node, topic in found.values():
        largest = str(TopicPartition(topic.topic, topic.largest_partition))
        yield Finding(
            KINDS["partition-skewed"],
            Severity.INFO,
            largest,
            f"{largest} has {size(topic.largest_bytes)} of the {size(topic.size_bytes)} that the topic's "
            f"{topic.partitions} partitions have",
            commands=(command("topic", "describe", topic.topic),),
            node_id=node.node_id,
        )


# --- The disk ---------------------------------------------------------------------------------------------------------


def disk_findings(cluster: Cluster, thresholds: Thresholds) -> Iterator[Finding]:
    """Space, syncs, the journal, and the last recovery."""
    for node in cluster.nodes:
        yield from _space(node)
        yield from _health(node, thresholds)


def _space(node: NodeSnapshot) -> Iterator[Finding]:
    disk = node.disk
    if disk.free_bytes < 0:
        return
    largest = max(node.topics, key=lambda topic: topic.size_bytes, default=None)
    commands: tuple[str, ...] = ()
    needed = max(disk.resume_bytes, 2 * disk.min_free_bytes) - disk.free_bytes
    if largest is not None and largest.size_bytes // 2 >= needed:  # else it is something else that fills the disk
        kept = max(largest.size_bytes // largest.partitions // 2, 1)
        commands = (command("topic", "config", largest.topic, "--set", f"retention.bytes={kept}"),)
    where = f"{size(disk.free_bytes)} of {size(disk.total_bytes)} are free in {disk.data_dir}"
    reserve = f"{size(disk.min_free_bytes)} (disk.min.free.bytes)"
    if disk.is_refusing or disk.free_bytes < disk.min_free_bytes:
        # Once refused, producers wait for more than the reserve.
        until = size(max(disk.resume_bytes, disk.min_free_bytes))
        others_lead = len(node.nodes) > 1 and not node.leaders
        refused = "other nodes lead in its place" if others_lead else "producers are refused"
        served = "this node may lead" if others_lead else "producers are served"
        yield Finding(
            KINDS["disk-full"],
            Severity.ERROR,
            disk.data_dir,
            f"{where}, and {refused}; the reserve is {reserve}",
            happens=f"{served} again once {until} are free; transactions still end",
            commands=commands,
            node_id=node.node_id,
        )
    elif disk.free_bytes < 2 * disk.min_free_bytes or disk.free_bytes < _FILLING_SHARE * disk.total_bytes:
        yield Finding(
            KINDS["disk-filling"],
            Severity.WARNING,
            disk.data_dir,
            f"{where}; the reserve is {reserve}",
            happens="producers are refused once less than the reserve is free",
            commands=commands,
            node_id=node.node_id,
        )


def _remote_storage(node: NodeSnapshot) -> Iterator[Finding]:
    """One finding for all of a node's partitions: mostly they fail for one reason."""
    if not (node.remote_error or node.remote_troubles):
        return
    first = node.remote_troubles[0] if node.remote_troubles else None
    more = f" ({counted(node.remote_troubles_total, 'partition')} in all)" if node.remote_troubles_total > 1 else ""
    why = f"the node {node.remote_error}" if first is None else f"{first.partition}: {first.error}{more}"
    waits = f"{size(node.remote_bytes_to_copy)} wait to be copied" if node.remote_bytes_to_copy else ""
    yield Finding(
        KINDS["remote-storage-failing"],
        Severity.ERROR,
        node.remote_storage,
        why,
        happens="; ".join(filter(None, ("it is tried again", waits))),
        node_id=node.node_id,
    )


def _health(node: NodeSnapshot, thresholds: Thresholds) -> Iterator[Finding]:
    disk = node.disk

    def found(name: str, severity: Severity, what: str, *, since_ms: int = NO_TIME, happens: str = "") -> Finding:
        verify = (verify_command(node),)
        return Finding(KINDS[name], severity, disk.data_dir, what, since_ms, happens, verify, node.node_id)

    if disk.write_error:
        yield found("writes-failing", Severity.ERROR, f"appends fail: {disk.write_error}")
    if disk.maintenance_error:
        yield found(
            "maintenance-failing",
            Severity.ERROR,
            f"the node {disk.maintenance_error}",
            happens="it is tried again; until it succeeds the disk fills, and a start after a crash takes longer",
        )
    yield from _remote_storage(node)
    slow_share = disk.slow_syncs / disk.syncs if disk.syncs >= _SYNCS_MIN else 0.0
    if disk.sync_ms_recent > thresholds.sync_ms or slow_share > _SLOW_SHARE:
        yield found(
            "fsync-slow",
            Severity.WARNING,
            f"syncs of the journal take {disk.sync_ms_recent:.1f} ms lately, {disk.sync_ms_mean:.1f} ms on average; "
            f"{disk.slow_syncs} of {disk.syncs} took longer than {disk.slow_sync_ms} ms",
        )
    if disk.journal_bytes > _JOURNAL_SHARE * disk.journal_max_bytes:
        yield found(
            "journal-large",
            Severity.WARNING,
            f"the journal has {size(disk.journal_bytes)}, near its bound of {size(disk.journal_max_bytes)} "
            "(journal.max.bytes)",
            happens="producers are refused past the bound, until the logs are flushed",
        )
    if disk.damaged_ms != NO_TIME:
        which = "this start" if disk.damaged_ms >= disk.started_ms else "an earlier start"
        yield found(
            "records-damaged",
            Severity.ERROR,
            f"{which} found that records that had been synced are lost or can't be read: {disk.damage}",
            since_ms=disk.damaged_ms,
        )
    if disk.unclean_ms != NO_TIME:
        which = "this start" if disk.unclean_ms >= disk.started_ms else "an earlier start"
        is_lossy = disk.durability == "os"
        yield found(
            "unclean-start",
            Severity.WARNING if is_lossy else Severity.INFO,
            f"{which} found that the node had not stopped cleanly: {disk.unclean_found}"
            + ("; with durability=os, the last records may be gone if the machine went down" if is_lossy else ""),
            since_ms=disk.unclean_ms,
        )


# --- Settings ---------------------------------------------------------------------------------------------------------


class _Rule(NamedTuple):
    """A setting whose value can endanger exactly-once. `fixed`: the value that the command sets."""

    setting: str
    kind: str
    severity: Severity
    is_wrong: Callable[[str], bool]
    fixed: str


def _below(least: int) -> Callable[[str], bool]:
    return lambda value: int(value) < least


_RULES: Final = (
    _Rule("durability", "durability-os", Severity.WARNING, lambda value: value == "os", "disk"),
    _Rule(
        "offsets.retention.minutes",
        "offsets-retention-short",
        Severity.WARNING,
        _below(_DAY_MS // _MINUTE_MS),
        "10080",
    ),
    _Rule(
        _TXN_TIMEOUT,
        "transaction-timeout-long",
        Severity.WARNING,
        lambda value: int(value) > _HOUR_MS,
        "900000",
    ),
    _Rule(
        "transactional.id.expiration.ms",
        "transactional-id-expiration-short",
        Severity.WARNING,
        _below(_DAY_MS),
        str(7 * _DAY_MS),
    ),
    _Rule(
        "producer.id.expiration.ms",
        "producer-id-expiration-short",
        Severity.WARNING,
        _below(10 * _MINUTE_MS),
        str(_DAY_MS),
    ),
    _Rule(
        "commit.history.expiration.ms",
        "commit-history-short",
        Severity.WARNING,
        _below(_DAY_MS),
        str(30 * _DAY_MS),
    ),
    _Rule(
        "transaction.two.phase.commit.enable",
        "two-phase-enabled",
        Severity.INFO,
        lambda value: value == "true",
        "false",
    ),
    _Rule("disk.min.free.bytes", "no-disk-reserve", Severity.WARNING, _below(_RESERVE_BYTES), str(256 << 20)),
)


def setting_findings(cluster: Cluster) -> Iterator[Finding]:
    """Settings of nodes and topics that endanger exactly-once."""
    for node in cluster.nodes:
        values = {setting.name: setting.value for setting in node.settings}
        for rule in _RULES:
            value = values.get(rule.setting)
            if value is not None and rule.is_wrong(value):
                yield Finding(
                    KINDS[rule.kind],
                    rule.severity,
                    rule.setting,
                    f"{rule.setting} is {value}",
                    commands=(serve_command(node, "--set", f"{rule.setting}={rule.fixed}"),),
                    node_id=node.node_id,
                )
        yield from _exposure(node, values)
    yield from _missing_listeners(cluster)
    yield from _topic_settings(cluster)


def _exposure(node: NodeSnapshot, values: Mapping[str, str]) -> Iterator[Finding]:
    """Listeners beyond the loopback serve anybody, unless they ask for certificates (S6)."""
    exposed = []
    for protocol in ("kafka", "grpc"):
        own = client_auth_of(values.get(f"{protocol}.listeners", ""))
        for name, address in _listeners(protocol, values):
            auth = own.get(name.partition(": ")[2], values.get("ssl.client.auth"))
            if serves_anybody(address, asks_for_certificates=auth == "required"):
                exposed.append(f"{name} is {address}")
    if exposed:
        yield Finding(
            KINDS["anonymous-access"],
            Severity.INFO,
            "listeners.allow.anonymous",
            f"{' and '.join(exposed)}, and everybody who can connect is served, without a password, as "
            "listeners.allow.anonymous says",
            node_id=node.node_id,
        )


def _listeners(protocol: str, values: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the addresses of a node's listeners by what they are called. Nodes of older versions tell of one."""
    several = values.get(f"{protocol}.listeners")
    if several:
        return [(f"{protocol}.listeners: {name}", address) for name, address in addresses_of(several)]
    single = f"{protocol}.listen"
    return [(single, values[single])] if single in values else []


def _missing_listeners(cluster: Cluster) -> Iterator[Finding]:
    """Clients that came by a listener are not told of nodes that have none of its name."""
    for protocol in ("kafka", "grpc"):
        names = {
            node.node_id: {name for name, _ in addresses_of(values[f"{protocol}.listeners"])} or {DEFAULT_LISTENER}
            for node in cluster.nodes
            if f"{protocol}.listeners" in (values := {one.name: one.value for one in node.settings})
        }
        everywhere = set().union(*names.values())
        for node_id, here in sorted(names.items()):
            missing = sorted(everywhere - here)
            if missing:
                yield Finding(
                    KINDS["listener-missing"],
                    Severity.WARNING,
                    f"{protocol}.listeners",
                    f"node {node_id} has no {_PROTOCOLS[protocol]} listener {' and '.join(missing)}, and other nodes "
                    "have: clients that come by it there are not told of this node",
                    node_id=node_id,
                )


_PROTOCOLS: Final = {"kafka": "Kafka", "grpc": "gRPC"}


def _topic_settings(cluster: Cluster) -> Iterator[Finding]:
    """Each topic once, though each node that has a replica tells of it."""
    topics: dict[str, TopicFacts] = {}
    for node in cluster.nodes:
        for topic in node.topics:
            topics.setdefault(topic.topic, topic)
    timeouts = (one.value for node in cluster.nodes for one in node.settings if one.name == _TXN_TIMEOUT)
    timeout_max_ms = max(map(int, timeouts), default=0)
    impossible = [one for one in topics.values() if one.min_insync_replicas > one.replicas and not one.is_diskless]
    for topic in impossible[:_TOPICS_NAMED_MAX]:
        yield Finding(
            KINDS["min-insync-impossible"],
            Severity.WARNING,
            topic.topic,
            f"topic {topic.topic} wants {topic.min_insync_replicas} replicas in sync, and has {topic.replicas}",
            commands=(command("topic", "config", topic.topic, "--set", f"min.insync.replicas={topic.replicas}"),),
        )
    short = [one for one in topics.values() if one.deletes and 0 <= one.retention_ms < timeout_max_ms]
    enough = f"retention.ms={max(_DAY_MS, timeout_max_ms)}"
    for topic in short[:_TOPICS_NAMED_MAX]:
        yield Finding(
            KINDS["retention-short"],
            Severity.WARNING,
            topic.topic,
            f"topic {topic.topic} keeps records for {duration(topic.retention_ms)} (retention.ms), and a transaction "
            f"may be open for {duration(timeout_max_ms)} (transaction.max.timeout.ms)",
            commands=(command("topic", "config", topic.topic, "--set", enough),),
        )
