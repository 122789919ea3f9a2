"""What is found about transactions and coordinators. Pure: facts in, findings out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from semel.protocol.api.diagnostics import (
    NEVER,
    NO_TIME,
    HeldPartition,
    NodeSnapshot,
    OfflinePartition,
    OpenTransaction,
    Severity,
    Thresholds,
)
from semel.protocol.ids import INTERNAL_TOPICS, OFFSETS_TOPIC, TRANSACTIONS_TOPIC, TopicPartition
from semel.protocol.wording import command, counted, duration, listed, moment, partition_argument
from semel.sdk.diagnosis.commands import fix_commands, verify_command
from semel.sdk.diagnosis.findings import KINDS, Cluster, Finding

ONGOING = "Ongoing"
PREPARED = {"PrepareCommit": "commit", "PrepareAbort": "abort"}
NOT_TOLD = "unknown"
COMMANDS_MAX = 5
_FORGED_TOLD_MAX = 3
_PARTITIONS_LARGE = 1_000


def coordinator_findings(cluster: Cluster, thresholds: Thresholds) -> Iterator[Finding]:
    """Partitions of coordinators that can't be used, and nodes that do not answer."""
    told = {} if cluster.newest is None else {one.node_id: one for one in cluster.newest.nodes}
    for node_id, reason in cluster.unreachable.items():
        known = told.get(node_id)
        happens = ""
        if known is not None and (known.is_fenced or known.is_stopping):
            happens = "others lead what they have all records of, until it is back"
        elif cluster.is_metadata_frozen(thresholds.metadata_ms):
            happens = "nobody else leads what it leads, until it is back, or the metadata's database"
        yield Finding(
            KINDS["node-unreachable"],
            Severity.ERROR,
            f"node {node_id}",
            f"node {node_id} does not answer: {reason}" + ("; it was stopped" if known and known.is_stopping else ""),
            happens=happens,
            commands=(cluster.health_command(node_id),),
            node_id=node_id,
        )
    for node in cluster.nodes:
        offline = {str(one.partition) for one in node.offline}
        yield from (
            _without_log(node, one)
            for one in node.offline
            if one.partition.topic in INTERNAL_TOPICS and cluster.led_elsewhere(one.partition, node.node_id) is None
        )
        for away in node.coordinators_away:
            name = f"{away.topic}-{away.partition}"
            whose = _whose(away.topic)
            if name in offline:
                continue
            if away.reason:
                yield Finding(
                    KINDS["coordinator-unreadable"],
                    Severity.ERROR,
                    name,
                    f"the coordinator of {whose} can't read {name}: {away.reason}",
                    happens="it is tried again, ever more rarely",
                    commands=(verify_command(node),),
                    node_id=node.node_id,
                )
            else:
                yield Finding(
                    KINDS["coordinator-loading"],
                    Severity.INFO,
                    name,
                    f"the coordinator of {whose} is reading {name}",
                    happens="it is ready when it has read its log",
                    node_id=node.node_id,
                )


def _whose(topic: str) -> str:
    return "transactions" if topic == TRANSACTIONS_TOPIC else "groups"


def _without_log(node: NodeSnapshot, offline: OfflinePartition) -> Finding:
    """A coordinator's partition that is offline: the transactions or groups in it are refused."""
    name = offline.partition
    what = f"the coordinator of {_whose(name.topic)} can't use {name}, which is offline: {offline.reason}"
    retried = offline.retry_ms != NO_TIME
    return Finding(
        KINDS["coordinator-unreadable"],
        Severity.ERROR,
        str(offline.partition),
        what,
        offline.since_ms,
        "the node tries to open it again" if retried else "it stays so until the partition is back",
        fix_commands(node, offline),
        node.node_id,
    )


def transaction_findings(cluster: Cluster, thresholds: Thresholds) -> Iterator[Finding]:
    """Who holds which last stable offset, and what is wrong with that. Several replicas may tell of one partition."""
    held: defaultdict[int, list[tuple[NodeSnapshot, HeldPartition]]] = defaultdict(list)
    unknown: defaultdict[tuple[int, str], list[tuple[NodeSnapshot, HeldPartition]]] = defaultdict(list)
    for node, one, is_known in holders(cluster):
        if is_known:
            held[one.producer_id].append((node, one))
        else:
            unknown[one.producer_id, one.outcome].append((node, one))
    for node in cluster.nodes:
        for txn in node.transactions:
            places = [one for _, one in _once(held.get(txn.producer_id, ()))]
            yield from _open(node, txn, places, thresholds)
    for found in unknown.values():
        yield of_unknown_holder(cluster, _once(found))


def holders(cluster: Cluster) -> Iterator[tuple[NodeSnapshot, HeldPartition, bool]]:
    """Yield what holds back readers, and whether a coordinator has that very transaction open."""
    known = {txn.producer_id: txn for node in cluster.nodes for txn in node.transactions}
    for node in cluster.nodes:
        for one in node.held:
            yield node, one, one.is_known or _has(known.get(one.producer_id), one)


def _once(found: Sequence[tuple[NodeSnapshot, HeldPartition]]) -> list[tuple[NodeSnapshot, HeldPartition]]:
    """Return each partition once, by the word of the replica that has the most."""
    longest: dict[TopicPartition, tuple[NodeSnapshot, HeldPartition]] = {}
    for node, one in found:
        known = longest.get(one.partition)
        if known is None or one.high_watermark > known[1].high_watermark:
            longest[one.partition] = (node, one)
    return list(longest.values())


def forged_findings(cluster: Cluster) -> Iterator[Finding]:
    """Markers that were believed once, though no coordinator had written them."""
    for node in cluster.nodes:
        for one in node.forged[:_FORGED_TOLD_MAX]:
            whose_is = f" of {one.transactional_id!r}" if one.transactional_id else ""
            others = f" ({node.forged_total} such producers in total)" if node.forged_total > 1 else ""
            log = f"{node.disk.data_dir}/{one.partition}"
            yield Finding(
                KINDS["forged-marker"],
                Severity.WARNING,
                f"{one.partition}, producer {one.producer_id}",
                f"the last marker for producer {one.producer_id}{whose_is} on {one.partition} has coordinator epoch "
                f"{one.coordinator_epoch}, and no coordinator ever had one above {one.latest_epoch}{others}",
                since_ms=one.last_append_ms,
                happens="it stops nobody: the coordinator's next marker for this producer overrules it",
                commands=(
                    *((command("txn", "why", one.transactional_id),) if one.transactional_id else ()),
                    command("log", "dump", log, "--transactional"),
                ),
                node_id=node.node_id,
            )


def _has(txn: OpenTransaction | None, one: HeldPartition) -> bool:
    """Whether another node's coordinator has it as open there; of many partitions it names the first alone."""
    if txn is None:
        return False
    return one.partition in txn.partitions or txn.partitions_total > len(txn.partitions)


def whose(txn: OpenTransaction) -> str:
    """Return in words whose transaction it is."""
    name = f"the transaction of {txn.transactional_id!r}"
    if txn.key:
        name = f"a writer of the shared transaction {txn.key!r}, attempt {txn.attempt!r}"
    client = f", {txn.client_id or 'a client'} at {txn.client_host}" if txn.client_host else ""
    return f"{name} (producer {txn.producer_id}, epoch {txn.producer_epoch}{client})"


def future_of(txn: OpenTransaction, now_ms: int) -> str:
    """Return what will happen to an open transaction, and when."""
    if txn.state in PREPARED:
        tried = f"; tried {counted(txn.marker_attempts, 'time')}" if txn.marker_attempts else ""
        tried += f", {txn.marker_error}" if tried and txn.marker_error else ""
        return f"its {PREPARED[txn.state]} is decided, and its markers are written until each partition has one{tried}"
    if txn.timeout_ms == NEVER:
        return "it never times out: its outside coordinator decides"
    deadline_ms = txn.start_ms + txn.timeout_ms
    if deadline_ms <= now_ms:
        return f"its time was over at {moment(deadline_ms)}: it is about to be aborted"
    return f"it times out at {moment(deadline_ms)} (in {duration(deadline_ms - now_ms)}), and is aborted then"


def abort_command(txn: OpenTransaction) -> str:
    if txn.key:
        return command("txn", "abort", txn.key, "--shared", "--yes")
    return command("txn", "abort", txn.transactional_id, "--yes")


def _open(
    node: NodeSnapshot, txn: OpenTransaction, held: Sequence[HeldPartition], thresholds: Thresholds
) -> Iterator[Finding]:
    now_ms = node.now_ms
    is_decided = txn.state in PREPARED
    since_ms = txn.last_update_ms if is_decided else txn.start_ms
    age_ms = now_ms - since_ms
    records = sum(one.high_watermark - one.last_stable_offset for one in held)
    why = command("txn", "why", txn.key or txn.transactional_id)
    holds = ""
    if held:
        places = tuple(f"{one.partition} at {one.last_stable_offset}" for one in held)
        holds = f", and holds the last stable offset of {listed(places)}; {records} committed records wait"
    if is_decided:
        if age_ms <= thresholds.markers_ms:
            return
        name, severity = "markers-pending", Severity.ERROR if txn.marker_attempts else Severity.WARNING
        where = listed(tuple(map(str, txn.partitions)), txn.partitions_total)
        what = f"{whose(txn)} is decided since {duration(age_ms)}, and not all markers are written in {where}{holds}"
        commands: tuple[str, ...] = (why,)
    elif txn.timeout_ms == NEVER:
        name, severity = "prepared-transaction", Severity.WARNING if age_ms > thresholds.slow_ms else Severity.INFO
        what = f"{whose(txn)} is open for {duration(age_ms)} and is decided outside{holds}"
        commands = (why, abort_command(txn))
    else:
        is_slow = age_ms > min(thresholds.slow_ms, max(txn.timeout_ms, 1))
        if not is_slow and not held:
            return
        name, severity = ("slow-transaction", Severity.WARNING) if is_slow else ("lso-held", Severity.INFO)
        what = f"{whose(txn)} is open for {duration(age_ms)}{holds}"
        commands = (why, abort_command(txn)) if is_slow else (why,)
    yield Finding(
        KINDS[name],
        severity,
        txn.transactional_id,
        what,
        since_ms=since_ms,
        happens=future_of(txn, now_ms),
        commands=commands,
        node_id=node.node_id,
    )
    largest = max((one.high_watermark - one.first_offset for one in held), default=0)
    if largest > thresholds.held_records or txn.partitions_total > _PARTITIONS_LARGE:
        yield Finding(
            KINDS["oversized-transaction"],
            Severity.WARNING,
            txn.transactional_id,
            f"{whose(txn)} has {counted(txn.partitions_total, 'partition')}; since it began, one of them got "
            f"{counted(largest, 'record')}",
            since_ms=txn.start_ms,
            happens=future_of(txn, now_ms),
            commands=(abort_command(txn),),
            node_id=node.node_id,
        )


def of_unknown_holder(cluster: Cluster, found: Sequence[tuple[NodeSnapshot, HeldPartition]]) -> Finding:
    """Return what is to be said of a holder that no coordinator knows: it hangs, if all coordinators could be asked.

    found: where it holds back readers, all of one producer
    """
    node, first = min(found, key=lambda one: one[1].since_ms)
    places = tuple(f"{one.partition} at {one.first_offset}" for _, one in found)
    since_ms = first.since_ms
    since = "" if since_ms == NO_TIME else f" for {duration(node.now_ms - since_ms)}"
    who = f"producer {first.producer_id} (epoch {first.producer_epoch})"
    what = f"{who} holds the last stable offset of {listed(places)}{since}; "
    if first.transactional_id and first.outcome:
        return _unfinished(node, who, what, found)
    away = [
        *(f"node {node_id}" for node_id in cluster.unreachable),
        *(
            f"{one.topic}-{one.partition}"
            for each in cluster.nodes
            for one in each.coordinators_away
            if one.topic == TRANSACTIONS_TOPIC
        ),
    ]
    if away or first.outcome == NOT_TOLD:
        not_asked = f", and {listed(tuple(away))} can't be asked" if away else ""
        return Finding(
            KINDS["unknown-holder"],
            Severity.WARNING,
            f"producer {first.producer_id}",
            f"{what}no coordinator that could be asked knows it{not_asked}",
            since_ms=since_ms,
            happens="its readers wait until all coordinators can be asked",
            commands=(command("doctor", "--section", "coordinators"),),
            node_id=node.node_id,
        )
    return Finding(
        KINDS["hanging-transaction"],
        Severity.ERROR,
        f"producer {first.producer_id}",
        what + "no coordinator knows it" + _of_offsets(found),
        since_ms=since_ms,
        happens="nothing: it stays until somebody ends it",
        commands=tuple(
            command(
                *("txn", "finish", "--partition", partition_argument(one.partition)),
                *("--start-offset", str(one.first_offset), "--yes"),
            )
            for _, one in found[:COMMANDS_MAX]
        ),
        node_id=node.node_id,
    )


def _unfinished(
    node: NodeSnapshot, who: str, what: str, found: Sequence[tuple[NodeSnapshot, HeldPartition]]
) -> Finding:
    """A transaction that is decided, and whose marker these partitions lack: only its own decision may end it (T7)."""
    first = found[0][1]
    decided = f"the {first.outcome} of {first.transactional_id!r} is decided, and the marker is missing there"
    finish = tuple(
        command(
            *("txn", "finish", "--partition", partition_argument(one.partition)),
            *("--start-offset", str(one.first_offset), "--yes"),
        )
        for _, one in found[:COMMANDS_MAX]
    )
    if first.outcome == NOT_TOLD:
        decided = (
            f"it is of {first.transactional_id!r}, which has begun others since: how that transaction was decided, its "
            "coordinator's log does not tell any more. Its markers in other partitions do, if it had any: end it here "
            "the same way, by `semel txn finish --as`"
        )
        finish = (command("txn", "why", first.transactional_id),)
    return Finding(
        KINDS["marker-missing"],
        Severity.ERROR,
        who,
        what + decided + _of_offsets(found),
        since_ms=first.since_ms,
        happens="nothing: it stays until somebody ends it",
        commands=finish,
        node_id=node.node_id,
    )


def _of_offsets(found: Sequence[tuple[NodeSnapshot, HeldPartition]]) -> str:
    if any(one.partition.topic == OFFSETS_TOPIC for _, one in found):
        return ". It keeps offsets of groups pending, which those can't commit again before it ends"
    return ""
