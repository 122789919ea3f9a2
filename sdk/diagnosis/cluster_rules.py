"""What is found about a cluster: its nodes, leaders and replicas, and what nodes must agree in. Pure: facts in."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from typing import Final

from semel.protocol.api.diagnostics import (
    NodeSnapshot,
    ReplicationFacts,
    Severity,
    Thresholds,
    TopicFacts,
)
from semel.protocol.ids import NO_LEADER, TopicPartition
from semel.protocol.wording import command, counted, duration, listed, partition_argument
from semel.sdk.diagnosis.commands import serve_command
from semel.sdk.diagnosis.findings import KINDS, Cluster, Finding

_UNREADABLE: Final = "unreadable"
"""A kind of `OfflinePartition`."""
_LEADERLESS_MAX: Final = 20
"""So many partitions without a leader are told one by one."""
_COMMANDS_MAX: Final = 5
_SECRET_FILE: Final = "delegation.token.secret.file"  # noqa: S105 (a setting)
EQUAL_SETTINGS: Final = (
    *("min.insync.replicas", "durability", "default.replication.factor"),
    *("transaction.max.timeout.ms", "transactional.id.expiration.ms", "transaction.two.phase.commit.enable"),
    *("producer.id.expiration.ms", "commit.history.expiration.ms", "offsets.retention.minutes"),
    *("broker.session.timeout.ms", "replica.lag.time.max.ms"),
    *("authorizer.class.name", "super.users", "allow.everyone.if.no.acl.found"),
)
"""Settings that all nodes of a cluster must have alike: what they promise is the cluster's promise."""


def fenced_nodes(cluster: Cluster) -> frozenset[int]:
    node = cluster.newest
    return frozenset() if node is None else frozenset(one.node_id for one in node.nodes if one.is_fenced)


def metadata_findings(cluster: Cluster, thresholds: Thresholds) -> Iterator[Finding]:
    """The metadata's database, where nodes do not reach it: one finding for all of them."""
    away = cluster.out_of_touch(thresholds.metadata_ms)
    if not away:
        return
    longest = max(away, key=lambda node: node.metadata_away_ms)
    names = _nodes([node.node_id for node in away], "and")
    have = "has" if len(away) == 1 else "have"
    if not cluster.is_metadata_frozen(thresholds.metadata_ms):
        happens = "the others reach it: they take such a node for dead, and lead what they have all records of"
    elif len(cluster.nodes) + len(cluster.unreachable) > 1:
        happens = "leaders that die are not replaced, and topics can't be changed, until it is back"
    else:
        happens = "topics can't be changed until it is back"
    yield Finding(
        KINDS["metadata-away"],
        Severity.ERROR,
        "the metadata's database",
        f"{names} {have} not reached the metadata's database for {duration(longest.metadata_away_ms)}",
        since_ms=longest.now_ms - longest.metadata_away_ms,
        happens=happens,
    )


def node_findings(cluster: Cluster, thresholds: Thresholds) -> Iterator[Finding]:
    """Nodes that are taken for dead though they answer, and the want of a controller."""
    fenced = fenced_nodes(cluster)
    for node in cluster.nodes:
        if node.node_id in fenced:
            yield Finding(
                KINDS["node-fenced"],
                Severity.ERROR,
                f"node {node.node_id}",
                f"node {node.node_id} answers, and is fenced: the others have not heard of it in time",
                happens="it returns on its own with its next heartbeat",
                commands=(cluster.health_command(node.node_id),),
                node_id=node.node_id,
            )
    has_told = [node for node in cluster.nodes if node.nodes]
    is_frozen = cluster.is_metadata_frozen(thresholds.metadata_ms)  # then it is no news
    if has_told and not is_frozen and not cluster.unreachable and not any(node.is_controller for node in has_told):
        yield Finding(
            KINDS["controller-missing"],
            Severity.WARNING,
            "the controller",
            "no node is the controller now",
            happens="a node takes the lease within seconds, if it reaches the metadata's database",
            commands=(command("doctor", "--section", "coordinators"),),
        )


# --- Partitions -------------------------------------------------------------------------------------------------------


def replication_findings(cluster: Cluster) -> Iterator[Finding]:
    """Partitions without a leader, with too few replicas in sync, and topics that were given too few."""
    node = cluster.newest
    if node is None:
        return
    without = [one for one in node.replication if one.leader == NO_LEADER]
    away = _away(cluster)
    for one in without[:_LEADERLESS_MAX]:
        yield _leaderless(one, _unreadable(cluster, one), away)
    more = len(without) - _LEADERLESS_MAX
    if more > 0:
        yield Finding(
            KINDS["partition-leaderless"],
            Severity.ERROR,
            "partitions",
            f"{counted(more, 'more partition')} without a leader",
        )
    led = [one for one in node.replication if one.leader != NO_LEADER]
    too_few = [one for one in led if len(one.isr) < one.min_insync_replicas]
    if too_few:
        names = tuple(f"{one.partition} ({len(one.isr)} of {one.min_insync_replicas})" for one in too_few)
        yield Finding(
            KINDS["partition-under-min-isr"],
            Severity.ERROR,
            str(too_few[0].partition),
            f"{counted(len(too_few), 'partition')} with fewer in sync than min.insync.replicas: {listed(names)}",
            happens="writes are admitted again as soon as enough replicas are in sync",
            commands=(command("topic", "describe", too_few[0].partition.topic),),
        )
    yield from _behind(cluster, led)
    yield from _throttled(node)
    yield from _too_few_replicas(cluster, node)


def _away(cluster: Cluster) -> set[int]:
    return set(cluster.unreachable) | fenced_nodes(cluster)


def _unreadable(cluster: Cluster, one: ReplicationFacts) -> tuple[int, ...]:
    """Return the nodes whose disks do not let them open a replica that had all records when they started."""
    return tuple(
        node.node_id
        for node in cluster.nodes
        if node.node_id in one.last_known_elr
        and any(log.partition == one.partition and log.kind == _UNREADABLE for log in node.offline)
    )


def _leaderless(one: ReplicationFacts, unreadable: Sequence[int], away: Collection[int]) -> Finding:
    complete = tuple(replica for replica in one.replicas if replica in one.isr or replica in one.elr)
    if one.waits_for_replicas:
        absent = tuple(replica for replica in one.replicas if replica in away)
        cure = "since the metadata was lost it is not known which of them has most records: "
        cure += f"start {_nodes(absent, 'and')}" if absent else "they are being asked"
        happens = "it is led as soon as enough of them have told, and nobody has to elect"
    elif complete and len(one.replicas) == 1:
        cure = f"start {_nodes(complete, 'or')}, which has the only copy"
        happens = f"it is led again as soon as {_nodes(complete, 'or')} is back"
    elif complete:
        cure = f"start {_nodes(complete, 'or')}: {'it has' if len(complete) == 1 else 'each has'} all committed records"
        happens = f"it is led again as soon as {_nodes(complete, 'or')} is back"
    elif unreadable:
        cure = (
            f"{_nodes(unreadable, 'and')} had all committed records, and can't read the partition's files now: make "
            "room on the disk, or repair it"
        )
        happens = f"it is led again as soon as {_nodes(unreadable, 'or')} can read them, and has lost nothing"
    else:
        known = one.last_known_elr or one.replicas
        cure = f"no replica is known to have all committed records; those of {_nodes(known, 'and')} may lack the fewest"
        happens = "nothing: an operator has to elect one of them"
    return Finding(
        KINDS["partition-leaderless"],
        Severity.ERROR,
        str(one.partition),
        f"{one.partition} has no leader: its replicas are on {_nodes(one.replicas, 'and')}; {cure}",
        happens=happens,
        commands=(command("topic", "describe", one.partition.topic),),
    )


def _nodes(node_ids: Sequence[int], word: str) -> str:
    if len(node_ids) == 1:
        return f"node {node_ids[0]}"
    return f"nodes {', '.join(map(str, node_ids[:-1]))} {word} {node_ids[-1]}"


def lacks_of_replicas(cluster: Cluster) -> dict[tuple[TopicPartition, int], int]:
    """Return how many records each replica lacks that is not in sync, where its leader has heard of it."""
    return {
        (one.partition, replica.node_id): replica.lacks
        for node in cluster.nodes
        for one in node.replication
        for replica in one.missing
        if replica.lacks >= 0
    }


def _behind(cluster: Cluster, led: Sequence[ReplicationFacts]) -> Iterator[Finding]:
    """Each node whose replicas are not in sync, with what they lack by the word of their leaders."""
    lacks = lacks_of_replicas(cluster)
    missing: defaultdict[int, list[ReplicationFacts]] = defaultdict(list)
    for one in led:
        for replica in one.replicas:
            if replica not in one.isr:
                missing[replica].append(one)
    away = _away(cluster)
    for node_id, partitions in sorted(missing.items()):
        names = tuple(
            f"{one.partition}{_lacking(lacks.get((one.partition, node_id), -1), is_away=node_id in away)}"
            for one in partitions
        )
        yield Finding(
            KINDS["replicas-behind"],
            Severity.WARNING,
            f"node {node_id}",
            f"{counted(len(partitions), 'replica')} on node {node_id} not in sync: {listed(names)}",
            happens="they catch up when the node is back" if node_id in away else "they join once they have all",
            commands=(command("topic", "describe", partitions[0].partition.topic),),
            node_id=node_id,
        )


def _lacking(offsets: int, *, is_away: bool) -> str:
    if is_away:
        return ""
    return " (has not fetched from its leader)" if offsets < 0 else f" (lacks {offsets} records)"


def _throttled(node: NodeSnapshot) -> Iterator[Finding]:
    """Throttles of replicas that nothing needs: no move is under way."""
    if node.throttled_topics and not node.moving_total:
        yield Finding(
            KINDS["throttle-left"],
            Severity.WARNING,
            node.throttled_topics[0],
            f"the copying of replicas of {counted(len(node.throttled_topics), 'topic')} is throttled, and nothing is "
            f"moved: {listed(node.throttled_topics)}",
            commands=(command("partition", "moves", "--remove-throttle"),),
        )


def _too_few_replicas(cluster: Cluster, node: NodeSnapshot) -> Iterator[Finding]:
    if len(node.nodes) <= 1:
        return
    topics = (topic for each in cluster.nodes for topic in each.topics)
    single = sorted({topic.topic for topic in topics if topic.replicas == 1 and not topic.is_diskless})
    if single:
        yield Finding(
            KINDS["replication-factor-one"],
            Severity.WARNING,
            single[0],
            f"{counted(len(single), 'topic')} with one replica, in a cluster of {len(node.nodes)} nodes: "
            f"{listed(tuple(single))}",
            commands=(command("topic", "describe", single[0]),),
        )
    for topic in node.internal_topics:
        if topic.replicas < topic.wanted:
            yield Finding(
                KINDS["internal-topic-replicas"],
                Severity.WARNING,
                topic.topic,
                f"{topic.topic} has {counted(topic.replicas, 'replica')} of each partition, and {topic.wanted} are "
                f"possible in a cluster of {len(node.nodes)} nodes",
                commands=(command("topic", "describe", topic.topic),),
            )


# --- What nodes must agree in -----------------------------------------------------------------------------------------


def agreement_findings(cluster: Cluster, thresholds: Thresholds) -> Iterator[Finding]:
    """Versions, settings and clocks that differ, and min.insync.replicas that leaves no room for a node's loss."""
    if len(cluster.nodes) > 1:
        yield from _versions(cluster)
        yield from _settings(cluster)
        yield from _delegation_secrets(cluster)
        yield from _clocks(cluster, thresholds)
    yield from _tokens_without_user(cluster)
    yield from _no_room(cluster)


def _by_value(values: dict[int, str]) -> str:
    nodes: defaultdict[str, list[int]] = defaultdict(list)
    for node_id, value in sorted(values.items()):
        nodes[value].append(node_id)
    return ", ".join(f"{value} on {_nodes(node_ids, 'and')}" for value, node_ids in nodes.items())


def _versions(cluster: Cluster) -> Iterator[Finding]:
    versions = {node.node_id: node.version or "an earlier version" for node in cluster.nodes}
    if len(set(versions.values())) > 1:
        yield Finding(
            KINDS["versions-differ"],
            Severity.WARNING,
            "versions",
            f"the nodes run different versions: {_by_value(versions)}",
        )


def _settings(cluster: Cluster) -> Iterator[Finding]:
    told = {node.node_id: {one.name: one.value for one in node.settings} for node in cluster.nodes}
    for name in EQUAL_SETTINGS:
        values = {node_id: settings[name] for node_id, settings in told.items() if name in settings}
        if len(set(values.values())) <= 1:
            continue
        common = max(sorted(set(values.values())), key=list(values.values()).count)
        others = [node for node in cluster.nodes if values.get(node.node_id, common) != common]
        yield Finding(
            KINDS["settings-differ"],
            Severity.WARNING,
            name,
            f"{name} differs: {_by_value(values)}",
            commands=tuple(serve_command(node, "--set", f"{name}={common}") for node in others),
        )


def _delegation_secrets(cluster: Cluster) -> Iterator[Finding]:
    """Secrets of delegation tokens that differ, and nodes without one beside others that have one."""
    by_mark: defaultdict[str, list[int]] = defaultdict(list)
    for node in sorted(cluster.nodes, key=lambda one: one.node_id):
        by_mark[node.delegation_secret_mark].append(node.node_id)
    without = by_mark.pop("", [])
    if len({node.version for node in cluster.nodes}) > 1:
        without = []  # nodes of an earlier version tell of none, though they have one
    if len(by_mark) + bool(without) < 2 or not by_mark:
        return
    told = " and ".join(f"one on {_nodes(node_ids, 'and')}" for node_ids in by_mark.values())
    none = f", none on {_nodes(without, 'and')}" if without else ""
    yield Finding(
        KINDS["delegation-secrets-differ"],
        Severity.WARNING,
        _SECRET_FILE,
        f"the nodes do not all have the same secret of delegation tokens: {told}{none}",
    )


def _tokens_without_user(cluster: Cluster) -> Iterator[Finding]:
    """Delegation tokens whose owners are no users, on all nodes that have tokens or on some: each owner one finding."""
    serving = [node for node in cluster.nodes if node.delegation_secret_mark]
    lacking: defaultdict[str, set[int]] = defaultdict(set)
    token_ids: defaultdict[str, set[str]] = defaultdict(set)
    for node in serving:
        for token in node.tokens_without_user:
            lacking[token.owner].add(node.node_id)
            token_ids[token.owner].add(token.token_id)
    is_whole = all(node.tokens_without_user_total == len(node.tokens_without_user) for node in serving)
    for owner, node_ids in sorted(lacking.items()):
        owned = tuple(sorted(token_ids[owner]))
        is_nowhere = len(node_ids) == len(serving)
        where = "" if is_nowhere else f" on {_nodes(sorted(node_ids), 'and')}"
        yield Finding(
            KINDS["token-without-user"],
            # Others take them: the nodes have different files. A list that was cut does not say so.
            Severity.INFO if is_nowhere or not is_whole else Severity.WARNING,
            owner,
            f"{counted(len(owned), 'delegation token')} of {owner}, who is no user{where}, or not the one who made "
            f"them: {listed(owned)}",
            commands=(command("user", "remove", owner.partition(":")[2]),) if is_nowhere else (),
        )


def _clocks(cluster: Cluster, thresholds: Thresholds) -> Iterator[Finding]:
    first, last = (choose(cluster.nodes, key=lambda node: node.now_ms) for choose in (min, max))
    apart_ms = last.now_ms - first.now_ms
    if apart_ms > thresholds.clock_ms:
        yield Finding(
            KINDS["clocks-apart"],
            Severity.WARNING,
            "clocks",
            f"the clock of node {last.node_id} is {duration(apart_ms)} ahead of that of node {first.node_id}, as their "
            "answers to one question say",
            node_id=last.node_id,
        )


def _no_room(cluster: Cluster) -> Iterator[Finding]:
    topics: dict[str, TopicFacts] = {topic.topic: topic for node in cluster.nodes for topic in node.topics}
    tight = {name: one.replicas for name, one in topics.items() if one.replicas == one.min_insync_replicas}
    node = cluster.newest
    for internal in () if node is None else node.internal_topics:
        if internal.replicas == internal.min_insync_replicas:
            tight[internal.topic] = internal.replicas
    tight = {name: replicas for name, replicas in sorted(tight.items()) if replicas > 1}
    if tight:
        first = next(iter(tight))
        names = tuple(f"{name} ({replicas} of {replicas})" for name, replicas in tight.items())
        yield Finding(
            KINDS["min-insync-no-room"],
            Severity.WARNING,
            first,
            f"{counted(len(tight), 'topic')} with min.insync.replicas equal to the number of replicas: {listed(names)}",
            commands=_room_commands(cluster, [topics[name] for name in tight if name in topics]),
        )


def _room_commands(cluster: Cluster, tight: Sequence[TopicFacts]) -> tuple[str, ...]:
    """Return the commands that give the first of these topics a replica more, where there are nodes for it."""
    node = cluster.newest
    able = [] if node is None else [one for one in node.nodes if not (one.is_fenced or one.is_stopping or one.is_full)]
    free = [one for one in able if not one.is_cordoned and one.node_id not in cluster.unreachable]
    free.sort(key=lambda one: (one.leads, one.node_id))
    for topic in tight:
        added = {
            one: next((other.node_id for other in free if other.node_id not in one.replicas), None)
            for one in topic.tight[:_COMMANDS_MAX]
        }
        commands = tuple(
            command(
                *("partition", "move"),
                partition_argument(TopicPartition(topic.topic, one.partition)),
                *("--to", ",".join(map(str, (*one.replicas, other)))),
            )
            for one, other in added.items()
            if other is not None
        )
        if commands:
            return commands
    return ()
