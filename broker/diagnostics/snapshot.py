"""A node's facts at one moment. It tells what is, and judges nothing: that is done with the facts of all nodes.

Transactions and the partitions that they hold are looked at in one turn of the event loop, so that a transaction which
ends meanwhile is never taken for one that hangs. Everything else is looked at in short turns.
"""

from __future__ import annotations

import asyncio
import functools
import heapq
import importlib.metadata
import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Final, TypeVar

from semel.broker.config.node_config import SETTINGS, value_of
from semel.broker.diagnostics.batches import batch_time_ms
from semel.broker.diagnostics.disk import disk_facts
from semel.broker.diagnostics.forged import forged_markers
from semel.broker.diagnostics.groups import group_facts
from semel.broker.diagnostics.hanging import records_of
from semel.broker.diagnostics.remote_use import remote_use
from semel.broker.diagnostics.replication import (
    internal_topic_facts,
    leader_counts,
    moving_partitions,
    node_facts,
    replication_facts,
    throttled_topics,
    tight_partitions,
)
from semel.broker.logs.partition import Partition
from semel.broker.services import Services
from semel.protocol.api.diagnostic_limits import SNAPSHOT_LIMIT, SNAPSHOT_LIMIT_MAX
from semel.protocol.api.diagnostics import (
    NEVER,
    NO_TIME,
    CoordinatorPartition,
    HeldPartition,
    NodeSnapshot,
    OfflinePartition,
    OpenTransaction,
    OwnedToken,
    RemoteTrouble,
    SettingFact,
    TopicFacts,
)
from semel.protocol.api.shared_transactions import key_of_member
from semel.protocol.errors import RetriableError, UsageError
from semel.protocol.ids import INTERNAL_TOPICS, OFFSETS_TOPIC, TRANSACTIONS_TOPIC, ProducerIdAndEpoch
from semel.runtime.turns import in_turns
from semel.txn_coordinator.outcome import Outcome, outcome_of
from semel.txn_coordinator.state import TransactionMetadata

Item = TypeVar("Item")

PARTITIONS_SHOWN_MAX: Final = 20
"""So many partitions of one transaction, or topic, are named."""
_REASON_LENGTH_MAX: Final = 500

TOLD_SETTINGS: Final = (
    *("durability", "disk.min.free.bytes", "min.insync.replicas", "default.replication.factor"),
    *("transaction.max.timeout.ms", "transactional.id.expiration.ms", "transaction.two.phase.commit.enable"),
    *("producer.id.expiration.ms", "commit.history.expiration.ms"),
    *("log.retention.ms", "offsets.retention.minutes", "journal.max.bytes"),
    *("kafka.listen", "kafka.listeners", "grpc.listen", "grpc.listeners"),
    *("listeners.allow.anonymous", "ssl.client.auth"),
    *("broker.session.timeout.ms", "replica.lag.time.max.ms"),
    *("authorizer.class.name", "super.users", "allow.everyone.if.no.acl.found"),
)
"""The settings that rules of `semel doctor` look at."""


async def take_snapshot(node: Services, limit: int = 0, producer_ids: Iterable[int] = ()) -> NodeSnapshot:
    """Return the node's facts; lists have at most `limit` items (0: SNAPSHOT_LIMIT), the worst first.

    producer_ids: also tell of the open transactions of these. Raises `UsageError` for a limit that is out of range.
    """
    if not 0 <= limit <= SNAPSHOT_LIMIT_MAX:
        raise UsageError(f"limit is 0 to {SNAPSHOT_LIMIT_MAX}, not {limit}")
    most = limit or SNAPSHOT_LIMIT
    now_ms = node.clock.now_ms()
    held, held_total, transactions, transactions_total = _transactions(node, most, frozenset(producer_ids))
    held = await _with_outcomes(node, held)
    away = [
        CoordinatorPartition(topic, number, reason[:_REASON_LENGTH_MAX])
        for topic, partitions in (
            (TRANSACTIONS_TOPIC, node.transactions.partitions_away()),
            (OFFSETS_TOPIC, node.groups.partitions_away()),
        )
        for number, reason in sorted(partitions.items())
    ]
    await asyncio.sleep(0)
    forged, forged_total = await forged_markers(node, most)
    groups, groups_total = await group_facts(node, most, now_ms)
    topics, topics_total = await _topics(node, most)
    replication, replication_total = await replication_facts(node, most)
    offline = _offline(node, now_ms)
    leads = leader_counts(node)
    delegation = None if node.users is None else node.users.delegation
    troubles = {} if node.tier is None else node.tier.troubles()
    ownerless = [] if delegation is None else await delegation.without_user()
    return NodeSnapshot(
        node_id=node.config.node_id,
        now_ms=now_ms,
        disk=disk_facts(node),
        coordinators_away=tuple(away[:most]),
        transactions=tuple(transactions),
        transactions_total=transactions_total,
        held=tuple(held),
        held_total=held_total,
        groups=tuple(groups),
        groups_total=groups_total,
        topics=tuple(topics),
        topics_total=topics_total,
        offline=tuple(offline[:most]),
        offline_total=len(offline),
        settings=tuple(
            SettingFact(name, SETTINGS[name].format(value_of(node.config, name)), SETTINGS[name].dynamic)
            for name in TOLD_SETTINGS
        ),
        leaders=leads[node.config.node_id],
        forged=tuple(forged),
        forged_total=forged_total,
        config_file=node.loaded_config.file,
        version=_version(),
        metadata_sequence=node.metadata.image.sequence,
        nodes=node_facts(node, leads),
        replication=tuple(replication),
        replication_total=replication_total,
        internal_topics=internal_topic_facts(node),
        is_controller=node.metadata.controller_epoch >= 0,
        throttled_topics=tuple(throttled_topics(node)[:most]),
        moving_total=await moving_partitions(node),
        metadata_away_ms=node.metadata.away_ms,
        delegation_secret_mark="" if delegation is None else delegation.secret_mark,
        tokens_without_user=tuple(OwnedToken(each.token_id, each.owner) for each in ownerless[:most]),
        tokens_without_user_total=len(ownerless),
        remote_storage="" if node.tier is None else node.tier.location,
        remote_error="" if node.tier is None else node.tier.error[:_REASON_LENGTH_MAX],
        remote_troubles=tuple(
            RemoteTrouble(tp, why[:_REASON_LENGTH_MAX]) for tp, why in sorted(troubles.items())[:most]
        ),
        remote_troubles_total=len(troubles),
        remote_bytes_to_copy=0 if node.tier is None else node.tier.bytes_to_copy(),
        remote_use=await remote_use(node, most),
    )


@functools.cache
def _version() -> str:
    return importlib.metadata.version("semel")


def _offline(node: Services, now_ms: int) -> list[OfflinePartition]:
    """Return the partitions that failed while they were open, and those that are not open, in their order."""
    failed = [
        OfflinePartition(one.tp, str(one.offline_error)[:_REASON_LENGTH_MAX])
        for one in node.logs.partitions()
        if one.offline_error is not None
    ]
    now = node.clock.monotonic()
    away = [
        OfflinePartition(
            partition=one.tp,
            reason=one.reason[:_REASON_LENGTH_MAX],
            kind=one.kind.value,
            since_ms=one.since_ms,
            retry_ms=NO_TIME if math.isinf(one.retry_at) else now_ms + max(0, round((one.retry_at - now) * 1000)),
        )
        for one in node.logs.offline
    ]
    return sorted(failed + away, key=lambda one: one.partition)


# --- Transactions -----------------------------------------------------------------------------------------------------


def _transactions(
    node: Services, most: int, producer_ids: frozenset[int]
) -> tuple[list[HeldPartition], int, list[OpenTransaction], int]:
    """Return the partitions that are held the longest, and the transactions: the oldest, and those that hold these.

    A follower may not have heard yet that a transaction has ended: of a partition its leader tells.
    """
    known = {
        txn.producer_id: txn for machine in node.transactions.machines() for txn in machine.open_transactions.values()
    }
    holders = [
        (_since_ms(partition, known), partition)
        for partition in node.logs.partitions()
        if partition.leader is not None
        and partition.offline_error is None
        and partition.last_stable_offset < partition.high_watermark
        and partition.log.producer_state.open_transactions
    ]
    worst = heapq.nsmallest(most, holders, key=lambda one: (one[0], one[1].tp))
    held = [_held(partition, known) for _, partition in worst]
    wanted = {txn.transactional_id for txn in heapq.nsmallest(most, known.values(), key=lambda txn: txn.start_ms)}
    wanted |= {known[one.producer_id].transactional_id for one in held if one.producer_id in known}
    told = [txn for txn in known.values() if txn.transactional_id in wanted or txn.producer_id in producer_ids]
    told.sort(key=lambda txn: (txn.start_ms, txn.transactional_id))
    return held, len(holders), [_open_transaction(node, txn) for txn in told], len(known)


def _since_ms(partition: Partition, known: dict[int, TransactionMetadata]) -> int:
    """Since when about a partition is held: by its coordinator, else by when its holder was last heard of."""
    state = partition.log.producer_state
    producer_id = next(iter(state.open_transactions.values()))
    txn, entry = known.get(producer_id), state.entry(producer_id)
    return txn.start_ms if txn is not None else 0 if entry is None else entry.active_ms


def _held(partition: Partition, known: dict[int, TransactionMetadata]) -> HeldPartition:
    state = partition.log.producer_state
    opened = state.open_transactions
    first_offset, producer_id = next(iter(opened.items()))
    entry, txn = state.entry(producer_id), known.get(producer_id)
    assert entry is not None, "an open transaction has a producer"
    return HeldPartition(
        partition=partition.tp,
        last_stable_offset=partition.last_stable_offset,
        high_watermark=partition.high_watermark,
        producer_id=producer_id,
        producer_epoch=entry.epoch,
        first_offset=first_offset,
        since_ms=batch_time_ms(partition, first_offset),
        last_append_ms=entry.last_timestamp_ms,
        open_transactions=len(opened),
        is_known=txn is not None and partition.tp in txn.partitions,
    )


async def _with_outcomes(node: Services, held: list[HeldPartition]) -> list[HeldPartition]:
    """Add to the holders that no coordinator has open what its log says of them. Only these cost a look into it."""
    unknown = {one.producer_id for one in held if not one.is_known}
    if not unknown:
        return held
    try:
        records = await records_of(node, unknown)
    except RetriableError:
        return [one if one.is_known else replace(one, outcome=Outcome.NOT_TOLD.value) for one in held]
    told: list[HeldPartition] = []
    for one in held:
        if not one.is_known:
            holder = ProducerIdAndEpoch(one.producer_id, one.producer_epoch)
            known = outcome_of(records, holder, one.partition)
            one = replace(one, outcome=known.outcome.value, transactional_id=known.transactional_id)
        told.append(one)
    return told


def _open_transaction(node: Services, txn: TransactionMetadata) -> OpenTransaction:
    attempts, error = node.transactions.marker_trouble(txn.transactional_id)
    return OpenTransaction(
        transactional_id=txn.transactional_id,
        producer_id=txn.producer_id,
        producer_epoch=txn.producer_epoch,
        state=txn.state.label,
        timeout_ms=NEVER if txn.is_two_phase else txn.timeout_ms,
        start_ms=txn.start_ms,
        last_update_ms=txn.last_update_ms,
        partitions=tuple(sorted(txn.partitions)[:PARTITIONS_SHOWN_MAX]),
        partitions_total=len(txn.partitions),
        key=key_of_member(txn.transactional_id) or "",
        attempt=txn.attempt,
        client_id="" if txn.client is None else txn.client.client_id,
        client_host="" if txn.client is None else txn.client.host,
        marker_attempts=attempts,
        marker_error=error[:_REASON_LENGTH_MAX],
    )


# --- Topics -----------------------------------------------------------------------------------------------------------


async def _topics(node: Services, most: int) -> tuple[list[TopicFacts], int]:
    """Return the topics with settings of their own, and the largest."""
    by_topic: dict[str, list[Partition]] = {}
    for partition in node.logs.partitions():
        if partition.tp.topic not in INTERNAL_TOPICS and partition.offline_error is None:
            by_topic.setdefault(partition.tp.topic, []).append(partition)
    facts: list[tuple[bool, TopicFacts]] = []
    async for topic, partitions in in_turns(list(by_topic.items())):
        image = node.metadata.topic(topic)
        if image is None:
            continue
        sizes = {one.tp.partition: one.log.size_bytes for one in partitions}
        largest = max(sizes, key=lambda number: (sizes[number], -number))
        config = partitions[0].config
        facts.append(
            (
                bool(image.configs),
                TopicFacts(
                    topic=topic,
                    partitions=len(sizes),
                    size_bytes=sum(sizes.values()),
                    largest_partition=largest,
                    largest_bytes=sizes[largest],
                    retention_ms=config.retention_ms,
                    min_insync_replicas=config.min_insync_replicas,
                    replicas=min(len(state.replicas) for state in image.partitions),
                    deletes=config.is_deleted,
                    tight=tight_partitions(image, config.min_insync_replicas, PARTITIONS_SHOWN_MAX),
                    is_diskless=image.is_diskless,
                ),
            )
        )
    facts.sort(key=lambda one: (not one[0], -one[1].size_bytes, one[1].topic))
    return [fact for _, fact in facts[:most]], len(facts)
