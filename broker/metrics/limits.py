"""Reads the bounds of what clients can make: how much there is, how much there may be, what was refused (S2).

docs/reference/limits.md has a row for each, with what the refused client hears.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from semel.broker.handlers.fetch.sessions import PARTITIONS_SETTING, SESSIONS_SETTING

if TYPE_CHECKING:
    from semel.broker.metrics.observed import ObservedNode

_PARTITIONS_PER_LOOK: Final = 1_000
"""Partitions between chances for others to have their turn."""


class Limit(NamedTuple):
    """A bound by its setting, in the setting's unit.

    used: of a bound for each group, partition, address or connection, what the largest has
    refusals: None where nobody knows of them: gRPC's library does not tell
    """

    setting: str
    used: int
    max: int
    refusals: int | None


def limits_of(node: ObservedNode) -> Iterator[Limit | None]:
    """Yield all bounds of a node that serves. None: others may have a turn here."""
    yield from _of_metadata(node)
    yield from _of_groups(node)
    yield from _of_transactions(node)
    yield from _of_producers(node)
    yield from _of_fetches(node)
    yield from _of_connections(node)
    yield from _of_calls(node)


def _of_metadata(node: ObservedNode) -> Iterator[Limit]:
    config, image, refusals = node.config, node.metadata.image, node.metadata.refusals
    for setting, used, most in (
        ("max.partitions", image.partition_count, config.max_partitions),
        ("users.max", len(image.users), config.users_max),
        ("acls.max", len(image.acls), config.acls_max),
        ("client.quotas.max", len(image.client_quotas), config.client_quotas_max),
    ):
        yield Limit(setting, used, most, refusals.of(setting))


def _of_groups(node: ObservedNode) -> Iterator[Limit | None]:
    service = node.groups
    config, refusals, held = service.config, service.refusals, service.held()
    classic = consumer = largest = 0
    for machine in service.machines():
        sizes = machine.largest()
        classic, consumer = max(classic, sizes.classic), max(consumer, sizes.consumer)
        largest = max(largest, sizes.held)
        yield None
    for setting, used, most in (
        ("group.max.size", classic, config.group_max_size),
        ("group.consumer.max.size", consumer, config.group_consumer_max_size),
        ("group.max.bytes", largest, config.group_max_bytes),
        ("group.members.max.bytes", held.members, config.group_members_max_bytes),
        ("offsets.max.bytes", held.offsets, config.offsets_max_bytes),
    ):
        yield Limit(setting, used, most, refusals.of(setting))


def _of_transactions(node: ObservedNode) -> Iterator[Limit | None]:
    service = node.transactions
    config, refusals = service.config, service.counts.refusals
    writers = 0
    for machine in service.machines():
        writers = max(writers, machine.shared.most_writers)
        yield None
    for setting, used, most in (
        ("transactional.ids.max.bytes", service.held().bytes, config.transactional_ids_max_bytes),
        ("shared.transaction.max.writers", writers, config.shared_transaction_max_writers),
    ):
        yield Limit(setting, used, most, refusals.of(setting))


def _of_producers(node: ObservedNode) -> Iterator[Limit | None]:
    checks, bound = node.produce.checks, node.logs.producer_ids
    together = most = 0
    for number, partition in enumerate(list(node.logs.partitions())):
        if number % _PARTITIONS_PER_LOOK == 0:
            yield None
        known = len(partition.log.producer_state)
        together, most = together + known, max(most, known)
    yield Limit("producer.ids.max", together, bound.max, bound.refused - bound.refused_of_partition)
    yield Limit("producer.ids.per.partition.max", most, bound.per_partition_max, bound.refused_of_partition)
    yield Limit("produce.check.queue.max", checks.queued, node.config.produce_check_queue_max, checks.refused)


def _of_fetches(node: ObservedNode) -> Iterator[Limit]:
    config, sessions = node.config, node.fetch.sessions
    for setting, used, most in (
        (SESSIONS_SETTING, len(sessions), config.max_incremental_fetch_session_cache_slots),
        (PARTITIONS_SETTING, sessions.partition_count, config.fetch_session_max_partitions),
    ):
        yield Limit(setting, used, most, sessions.refusals.of(setting))


def _of_connections(node: ObservedNode) -> Iterator[Limit]:
    listeners = node.client_listeners
    if listeners is None or not listeners.kafka:
        return
    # Several listeners share these bounds, and count what each refuses.
    acceptor, room = listeners.kafka[0].acceptor, listeners.kafka[0].room
    refused = sum(each.acceptor.refused for each in listeners.kafka)
    limits, of_address = acceptor.limits, sum(each.acceptor.refused_of_address for each in listeners.kafka)
    yield Limit("max.connections", acceptor.open, limits.connections_max, refused - of_address)
    yield Limit("kafka.max.connections.per.ip", acceptor.most_of_an_address, limits.per_address_max, of_address)
    yield Limit("queued.max.request.bytes", room.held, room.bytes_max, room.refused_steps)


def _of_calls(node: ObservedNode) -> Iterator[Limit]:
    listeners = node.client_listeners
    if listeners is None or not listeners.grpc:
        return
    calls, streams_max = [each.services.calls for each in listeners.grpc], node.config.grpc_max_concurrent_streams
    together, most = sum(each.count for each in calls), max(each.most_of_a_connection for each in calls)
    yield Limit("grpc.max.concurrent.rpcs", together, sum(each.calls_max for each in listeners.grpc), None)
    yield Limit("grpc.max.concurrent.streams", most, streams_max, None)
