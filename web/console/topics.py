"""Topics: the list, and one topic's partitions with where their logs begin and end."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from starlette.responses import Response

from semel.protocol.api.topics import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, IsolationLevel
from semel.protocol.errors import SemelError
from semel.protocol.ids import TopicPartition
from semel.sdk.diagnosis.remote_costs import Prices, has_price
from semel.web.console.metrics import topic_plot
from semel.web.console.paging import matching, page_of
from semel.web.console.visit import Handler, Visit

if TYPE_CHECKING:
    from semel.protocol.api.topics import ListOffset, PartitionDescription


async def _topics(visit: Visit) -> Response:
    internal = visit.text("internal") == "yes"
    found = await visit.admin.topics(include_internal=internal)
    wanted = visit.text("filter")
    page = page_of(matching(found, wanted, lambda topic: topic.name), visit.page)
    sampler = visit.console.sampler
    return visit.html(
        "topics.html",
        page=page,
        wanted=wanted,
        internal=internal,
        sizes=sampler.sizes,
        flows={topic.name: sampler.flow(topic.name) for topic in page.items},
        is_empty=not found,
    )


@dataclass(frozen=True, slots=True)
class _Row:
    """A partition. Offsets are None where they can't be told; error says why."""

    place: PartitionDescription
    start: int | None
    stable: int | None
    end: int | None
    error: str


async def _topic(visit: Visit) -> Response:
    name = visit.needed("name")
    topic = await visit.admin.topic(name)
    page = page_of(topic.partitions, visit.page)
    tps = [TopicPartition(name, place.partition) for place in page.items]
    starts, stables, ends = await asyncio.gather(
        visit.admin.look_up_offsets(dict.fromkeys(tps, EARLIEST_TIMESTAMP)),
        visit.admin.look_up_offsets(dict.fromkeys(tps, LATEST_TIMESTAMP)),
        visit.admin.look_up_offsets(dict.fromkeys(tps, LATEST_TIMESTAMP), isolation=IsolationLevel.READ_UNCOMMITTED),
    )
    rows = [
        _Row(place, _offset(starts, tp), _offset(stables, tp), _offset(ends, tp), _error(starts, tp))
        for place, tp in zip(page.items, tps, strict=True)
    ]
    sampler = visit.console.sampler
    remote = sampler.remote
    return visit.html(
        "topic.html",
        topic=topic,
        page=page,
        rows=rows,
        size_bytes=sampler.sizes.get(name),
        stored=None if remote is None else next((one for one in remote.topics if one.topic == name), None),
        has_price=remote is not None and has_price(remote.location, Prices()),
        flow=sampler.flow(name),
        plot=topic_plot(sampler, name),
    )


def _offset(found: Mapping[TopicPartition, ListOffset | SemelError], tp: TopicPartition) -> int | None:
    one = found.get(tp)
    return None if one is None or isinstance(one, SemelError) else one.offset


def _error(found: Mapping[TopicPartition, ListOffset | SemelError], tp: TopicPartition) -> str:
    one = found.get(tp)
    return one.message if isinstance(one, SemelError) else ""


PAGES: Final[tuple[tuple[str, Handler], ...]] = (("topics", _topics), ("topic", _topic))
CHANGES: Final[tuple[tuple[str, Handler], ...]] = ()
