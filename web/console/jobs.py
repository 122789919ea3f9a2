"""What programs that name their work have committed last: Spark queries, shared transactions, relays of an outbox."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from starlette.responses import Response

from semel.web.console.paging import matching, page_of
from semel.web.console.visit import Handler, Visit
from semel.web.problems import Problem

if TYPE_CHECKING:
    from semel.protocol.api.shared_transactions import SharedListing
    from semel.protocol.api.transactions import TransactionListing

_SPARK: Final = "spark/"
_OUTBOX: Final = "semel.outbox/"
_KINDS: Final = ("Spark", "shared transactions", "outbox", "producer")
_ASKED_MAX: Final = 8
_PAYLOAD_SHOWN_MAX: Final = 300


@dataclass(frozen=True, slots=True)
class Job:
    """A line of work whose commits have tokens.

    key:    the key of its shared transactions, or its transactional id
    name:   the same as its users know it
    listed: what its coordinator says of its last commit
    """

    kind: str
    key: str
    name: str
    listed: TransactionListing | SharedListing

    @property
    def open_token(self) -> str:
        """Of the attempt that is open; empty where there is none."""
        return getattr(self.listed, "open_token", "")


@dataclass(frozen=True, slots=True)
class _Shown:
    """A job with its last commit. writers: 0 where it is not known; payload: the beginning of what it recorded."""

    job: Job
    writers: int = 0
    payload: str = ""


def jobs_of(ids: Iterable[TransactionListing], keys: Iterable[SharedListing]) -> list[Job]:
    """Return the jobs behind transactional ids and keys.

    Producers that gave no token are left out: their commits can't be told apart.
    """
    found: list[Job] = []
    for one in ids:
        if one.transactional_id.startswith(_OUTBOX):
            found.append(Job("outbox", one.transactional_id, one.transactional_id.removeprefix(_OUTBOX), one))
        elif one.last_token:
            found.append(Job("producer", one.transactional_id, one.transactional_id, one))
    for key in keys:
        is_spark = key.key.startswith(_SPARK)
        found.append(Job("Spark" if is_spark else "shared transactions", key.key, key.key.removeprefix(_SPARK), key))
    return found


async def _jobs(visit: Visit) -> Response:
    wanted, kind = visit.text("filter"), visit.text("kind")
    if kind and kind not in _KINDS:
        raise Problem(400, f"kind is one of {', '.join(_KINDS)}")
    ids, keys = await asyncio.gather(visit.admin.transactions(), visit.admin.shared_transactions())
    jobs = [one for one in jobs_of(ids, keys) if kind in ("", one.kind)]
    found = matching(jobs, wanted, lambda job: job.key)
    found.sort(key=lambda job: (not job.open_token, -job.listed.last_commit_ms))
    page = page_of(found, visit.page)
    turns = asyncio.Semaphore(_ASKED_MAX)
    shown = await asyncio.gather(*(_shown(visit, job, turns) for job in page.items))
    return visit.html(
        "jobs.html",
        page=page,
        shown=shown,
        wanted=wanted,
        kind=kind,
        kinds=_KINDS,
        unreadable=list(dict.fromkeys((*ids.unreadable, *keys.unreadable))),
    )


async def _shown(visit: Visit, job: Job, turns: asyncio.Semaphore) -> _Shown:
    """Look up what a job recorded with its last commit."""
    if not job.listed.last_token:
        return _Shown(job)
    async with turns:
        decisions = await visit.admin.commits(job.key)
    last = next((one for one in reversed(decisions) if one.token == job.listed.last_token), None)
    if last is None:  # it has committed more than a hundred times since, or was forgotten
        return _Shown(job)
    return _Shown(job, last.writers, last.payload[:_PAYLOAD_SHOWN_MAX].decode("utf-8", "replace"))


PAGES: Final[tuple[tuple[str, Handler], ...]] = (("jobs", _jobs),)
CHANGES: Final[tuple[tuple[str, Handler], ...]] = ()
