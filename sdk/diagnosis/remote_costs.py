"""What the remote storage of a cluster holds, what the nodes ask of it, and about what that costs. Pure: facts in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from semel.protocol.api.diagnostics import RemoteTopic, RemoteUse
from semel.protocol.wording import size
from semel.sdk.diagnosis.findings import Cluster

MONTH_DAYS: Final = 30
_MONTH_MS: Final = MONTH_DAYS * 86_400_000
_SHORT_MS: Final = 86_400_000
_GIB: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class Prices:
    """What a store asks for; the defaults are list prices of AWS S3 Standard in us-east-1, in USD.

    per_gib_month: for each GiB that is stored, a month
    per_1000_puts: lists cost the same
    per_1000_gets: deletes cost nothing
    per_gib_read:  for each GiB that leaves the store; nothing within a region
    """

    per_gib_month: float = 0.023
    per_1000_puts: float = 0.005
    per_1000_gets: float = 0.0004
    per_gib_read: float = 0.0


@dataclass(frozen=True, slots=True)
class RemoteNode:
    """What one node has asked of the remote storage in `for_ms` milliseconds, which is since it was started."""

    node_id: int
    for_ms: int
    use: RemoteUse


@dataclass(frozen=True, slots=True)
class RemoteState:
    """The remote storage at `location`, as the nodes tell that answer.

    topics:      those that have most there, the largest first
    all_topics:  whether no other topic has anything there
    """

    location: str
    nodes: tuple[RemoteNode, ...]
    topics: tuple[RemoteTopic, ...]
    all_topics: bool
    stored_objects: int
    stored_bytes: int


@dataclass(frozen=True, slots=True)
class Estimate:
    """About what a month costs: what is stored stays, and requests continue at the rate since the nodes' start.

    is_early: whether a node has not been up for a day, so that the rate says little
    """

    puts: float
    gets: float
    read_bytes: float
    storage_cost: float
    puts_cost: float
    gets_cost: float
    read_cost: float
    is_early: bool

    @property
    def cost(self) -> float:
        return self.storage_cost + self.puts_cost + self.gets_cost + self.read_cost


def has_price(location: str, prices: Prices) -> bool:
    """Say whether there is a price: a directory has one only where other prices than the defaults are given."""
    return not location.startswith("file:") or prices != Prices()


def remote_state(cluster: Cluster) -> RemoteState | None:
    """Put together what the nodes tell; None where none of them has a remote storage, and says so."""
    nodes = tuple(
        RemoteNode(node.node_id, max(1, node.now_ms - node.remote_use.since_ms), node.remote_use)
        for node in cluster.nodes
        if node.remote_use is not None
    )
    if not nodes:
        return None
    objects: dict[str, int] = {}
    stored: dict[str, int] = {}
    for node in nodes:
        for one in node.use.topics:
            objects[one.topic] = objects.get(one.topic, 0) + one.objects
            stored[one.topic] = stored.get(one.topic, 0) + one.stored_bytes
    topics = [RemoteTopic(topic, objects[topic], stored[topic]) for topic in stored]
    return RemoteState(
        location=next(node.remote_storage for node in cluster.nodes if node.remote_use is not None),
        nodes=nodes,
        topics=tuple(sorted(topics, key=lambda one: (-one.stored_bytes, one.topic))),
        all_topics=all(len(node.use.topics) == node.use.topics_total for node in nodes),
        stored_objects=sum(node.use.stored_objects for node in nodes),
        stored_bytes=sum(node.use.stored_bytes for node in nodes),
    )


def estimate(state: RemoteState, prices: Prices) -> Estimate:
    """Return about what the storage costs a month."""
    puts = sum((node.use.puts + node.use.lists) * _MONTH_MS / node.for_ms for node in state.nodes)
    gets = sum(node.use.gets * _MONTH_MS / node.for_ms for node in state.nodes)
    read_bytes = sum(node.use.read_bytes * _MONTH_MS / node.for_ms for node in state.nodes)
    return Estimate(
        puts=puts,
        gets=gets,
        read_bytes=read_bytes,
        storage_cost=storage_cost(state.stored_bytes, prices),
        puts_cost=puts / 1_000 * prices.per_1000_puts,
        gets_cost=gets / 1_000 * prices.per_1000_gets,
        read_cost=read_bytes / _GIB * prices.per_gib_read,
        is_early=any(node.for_ms < _SHORT_MS for node in state.nodes),
    )


def storage_cost(stored_bytes: int, prices: Prices) -> float:
    """Return what so many bytes cost a month."""
    return stored_bytes / _GIB * prices.per_gib_month


def estimate_lines(found: Estimate, prices: Prices, *, changed_by: str = "--price-... changes them") -> Iterator[str]:
    """Say in words about what a month costs, and how that was found. `changed_by` says how to give other prices."""
    is_s3 = prices == Prices()
    yield (
        f"about {money(found.cost)} a month ({'USD' if is_s3 else 'in the currency of the prices'}): "
        f"{money(found.storage_cost)} for what is stored, {money(found.puts_cost)} for {found.puts:,.0f} puts, "
        f"{money(found.gets_cost)} for {found.gets:,.0f} gets, {money(found.read_cost)} for "
        f"{size(round(found.read_bytes))} that are read"
    )
    yield (
        f"an estimate: {MONTH_DAYS} days with the requests at their present rate since each node's start, and what is "
        "stored now"
    )
    if found.is_early:
        yield "it says little yet: a node was started less than a day ago"
    yield (
        f"prices{' (list prices of S3 Standard in us-east-1)' if is_s3 else ''}: {prices.per_gib_month:g} per GiB and "
        f"month, {prices.per_1000_puts:g} per 1000 puts or lists, {prices.per_1000_gets:g} per 1000 gets, "
        f"{prices.per_gib_read:g} per GiB read; deletes are free. {changed_by}"
    )


def money(amount: float) -> str:
    """Return an amount for people.

    >>> money(1234.567), money(0.004), money(0)
    ('1,234.57', '<0.01', '0.00')
    """
    return "<0.01" if 0 < amount < 0.01 else f"{amount:,.2f}"
