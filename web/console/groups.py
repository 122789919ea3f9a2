"""Groups: the list, one group's members and lag, and its offsets set to another place, with a look at that before."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from starlette.responses import Response

from semel.protocol.api.topics import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from semel.protocol.errors import ErrorCode, SemelError
from semel.protocol.ids import TopicPartition
from semel.sdk.admin.core import group_owners
from semel.web.console.charts import Line, plot
from semel.web.console.paging import matching, page_of
from semel.web.console.record_pages import time_of
from semel.web.console.visit import Handler, Visit
from semel.web.problems import Problem

if TYPE_CHECKING:
    from semel import aio

_DEAD: Final = "Dead"
"""The state of a group that there is not."""
_NOTE_SHOWN_MAX: Final = 300
_HAS_MEMBERS: Final = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.NON_EMPTY_GROUP, ErrorCode.REBALANCE_IN_PROGRESS)
_PREVIEWED_MAX: Final = 10_000
"""Partitions whose offsets are set at a time."""


async def _groups(visit: Visit) -> Response:
    found = await visit.admin.groups()
    wanted = visit.text("filter")
    latest = visit.console.sampler.latest
    return visit.html(
        "groups.html",
        page=page_of(matching(found, wanted, lambda group: group.group_id), visit.page),
        wanted=wanted,
        unreadable=found.unreadable,
        lags={} if latest is None else latest.groups,
        is_empty=not found,
    )


async def _group(visit: Visit) -> Response:
    group_id = visit.needed("id")
    group, lags, committed = await asyncio.gather(
        visit.admin.group(group_id), visit.admin.look_up_lag(group_id), visit.admin.group_offsets(group_id)
    )
    if group.state == _DEAD and not lags:
        raise Problem(404, f"there is no group {group_id!r}: it never committed anything, or its offsets have expired")
    owners = group_owners(group)
    tps = sorted(set(lags) | set(owners))
    known = [one for one in lags.values() if one.lag >= 0]
    counts: dict[str, int] = {}
    for owner in owners.values():
        counts[owner] = counts.get(owner, 0) + 1
    return visit.html(
        "group.html",
        group=group,
        page=page_of(tps, visit.page),
        lags=lags,
        notes={tp: one.metadata[:_NOTE_SHOWN_MAX] for tp, one in committed.items() if one.metadata},
        owners=owners,
        counts=counts,
        members=page_of(group.members, visit.number("members", 1, most=1_000_000)),
        total=sum(one.lag for one in known),
        topics=sorted({tp.topic for tp in lags}),
        plot=plot("Lag", [Line("records", visit.console.sampler.lag_of(group_id))]),
    )


@dataclass(frozen=True, slots=True)
class NewOffset:
    """Where a partition's offset would be set to. note: why it is not what was asked for; empty where it is."""

    partition: TopicPartition
    before: int
    after: int
    note: str = ""

    @property
    def is_new(self) -> bool:
        return self.before != self.after


async def _preview(visit: Visit) -> Response:
    """Show which offsets a form would set; nothing is changed."""
    group_id, topic = visit.needed("id"), visit.fields.get("topic", "")
    group, offsets = await asyncio.gather(visit.admin.group(group_id), visit.admin.group_offsets(group_id))
    before = {tp: one.offset for tp, one in sorted(offsets.items()) if topic in ("", tp.topic)}
    if not before:
        raise Problem(400, "the group has committed nothing there, so that there is nothing to be set")
    if len(before) > _PREVIEWED_MAX:
        raise Problem(400, f"the group has {len(before)} partitions: choose a topic")
    changes = await new_offsets(visit.admin, before, visit.fields)
    changed = [one for one in changes if one.is_new]
    return visit.html(
        "group_offsets.html",
        group=group,
        page=page_of(changed, 1),
        unchanged=len(changes) - len(changed),
        lines="\n".join(f"{one.partition.topic}:{one.partition.partition}:{one.after}" for one in changed),
    )


async def new_offsets(
    admin: aio.Admin, before: Mapping[TopicPartition, int], fields: Mapping[str, str]
) -> list[NewOffset]:
    """Return where offsets are set to by what a form says: to "earliest", "latest", "offset" or "time"."""
    to = fields.get("to", "")
    tps = list(before)
    starts, ends = await asyncio.gather(
        admin.list_offsets(dict.fromkeys(tps, EARLIEST_TIMESTAMP)),
        admin.list_offsets(dict.fromkeys(tps, LATEST_TIMESTAMP)),
    )
    if to in ("earliest", "latest"):
        found = starts if to == "earliest" else ends
        return [NewOffset(tp, before[tp], found[tp].offset) for tp in tps]
    if to == "offset":
        text = fields.get("offset", "").strip()
        if not (text.isascii() and text.isdecimal()) or len(text) > 18:
            raise Problem(400, f"an offset is a number from 0 on, not {text[:40]!r}")
        return [_clamped(tp, before[tp], int(text), starts[tp].offset, ends[tp].offset) for tp in tps]
    if to == "time":
        at = await admin.list_offsets(dict.fromkeys(tps, time_of(fields.get("time", "").strip())))
        return [
            NewOffset(tp, before[tp], at[tp].offset)
            if at[tp].offset >= 0
            else NewOffset(tp, before[tp], ends[tp].offset, "no record is that new: the end")
            for tp in tps
        ]
    raise Problem(400, "choose where to: the start, the end, an offset, or a time")


def _clamped(tp: TopicPartition, before: int, wanted: int, start: int, end: int) -> NewOffset:
    if wanted < start:
        return NewOffset(tp, before, start, "the log begins later: its start")
    if wanted > end:
        return NewOffset(tp, before, end, "the log ends before that: its end")
    return NewOffset(tp, before, wanted)


async def _reset(visit: Visit) -> Response:
    group_id = visit.needed("id")
    offsets = offsets_of(visit.fields.get("offsets", "").splitlines())
    if not offsets:
        raise Problem(400, "no offset is to be set")
    try:
        await visit.admin.alter_group_offsets(group_id, offsets)
    except SemelError as error:
        if error.code in _HAS_MEMBERS:
            raise Problem(
                409, f"the offsets are not set: {error.message}. A group's members must be stopped first"
            ) from None
        raise
    return visit.to("group", id=group_id, done="offsets")


def offsets_of(lines: Sequence[str]) -> dict[TopicPartition, int]:
    """Return the offsets of lines such as topic:partition:offset. Raises `Problem` 400.

    >>> offsets_of(["orders:0:12"])
    {TopicPartition(topic='orders', partition=0): 12}
    """
    found: dict[TopicPartition, int] = {}
    for line in lines[: _PREVIEWED_MAX + 1]:
        topic, _, rest = line.partition(":")
        partition, _, offset = rest.partition(":")
        if not topic or not all(part.isascii() and part.isdecimal() and len(part) < 19 for part in (partition, offset)):
            raise Problem(400, "the form's offsets can't be read: begin at the page of the group")
        found[TopicPartition(topic, int(partition))] = int(offset)
    return found


PAGES: Final[tuple[tuple[str, Handler], ...]] = (("groups", _groups), ("group", _group))
CHANGES: Final[tuple[tuple[str, Handler], ...]] = (("group/preview", _preview), ("group/offsets", _reset))
