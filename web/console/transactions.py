"""Transactions: which are open, which hold readers back, one's story, commit tokens, and an abort."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from starlette.responses import Response

from semel.protocol.api.commit_decisions import NAME_BYTES_MAX
from semel.protocol.api.diagnostics import Section
from semel.protocol.errors import ErrorCode, FatalError
from semel.sdk.diagnosis.story import Step, tell
from semel.sdk.diagnosis.transaction_rules import holders
from semel.web.console.paging import matching, page_of
from semel.web.console.visit import Handler, Visit
from semel.web.problems import Problem

if TYPE_CHECKING:
    from semel.protocol.api.diagnostics import HeldPartition, NodeSnapshot, OpenTransaction, TransactionHistory
    from semel.protocol.api.shared_transactions import SharedDescription
    from semel.protocol.api.transactions import TransactionDescription
    from semel.sdk.diagnosis.findings import Cluster, Diagnosis

_STATES: Final = ("Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "Empty")
_STEPS: Final = 200
_SHOWN_MAX: Final = 50
_MARKS: Final = {
    "Ongoing": "begun",
    "PrepareCommit": "prepared",
    "PrepareAbort": "aborting",
    "CompleteCommit": "committed",
    "CompleteAbort": "aborted",
}
"""The mark of a step in the timeline, by the state that it brought."""


@dataclass(frozen=True, slots=True)
class Held:
    """A partition whose readers wait, and the transaction that they wait for; None where no coordinator has it open."""

    node: NodeSnapshot
    place: HeldPartition
    owner: OpenTransaction | None

    @property
    def now_ms(self) -> int:
        return self.node.now_ms

    @property
    def name(self) -> str:
        if self.owner is None:
            return self.place.transactional_id
        return self.owner.key or self.owner.transactional_id

    @property
    def waiting(self) -> int:
        """How many offsets readers can't have yet."""
        return max(0, self.place.high_watermark - self.place.last_stable_offset)


def held_of(cluster: Cluster) -> Iterator[Held]:
    """Yield the partitions whose readers wait, those that have waited for longest first."""
    owners = {one.producer_id: one for node in cluster.nodes for one in node.transactions}
    found = [
        Held(node, one, owners.get(one.producer_id) if is_known else None) for node, one, is_known in holders(cluster)
    ]
    yield from sorted(found, key=lambda one: one.place.since_ms)


async def _transactions(visit: Visit) -> Response:
    wanted, state = visit.text("filter"), visit.text("state")
    if state and state not in _STATES:
        raise Problem(400, f"state is one of {', '.join(_STATES)}")
    listed, (diagnosis, refused) = await asyncio.gather(
        visit.admin.transactions(states=[state] if state else ()), diagnosis_of(visit)
    )
    nodes = () if diagnosis is None else diagnosis.cluster.nodes
    findings = () if diagnosis is None else diagnosis.findings
    opened = [(node.now_ms, one) for node in nodes for one in node.transactions]
    return visit.html(
        "transactions.html",
        page=page_of(matching(listed, wanted, lambda one: one.transactional_id), visit.page),
        wanted=wanted,
        state=state,
        states=_STATES,
        unreadable=listed.unreadable,
        opened=sorted(opened, key=lambda one: one[1].start_ms)[:_SHOWN_MAX],
        opened_total=sum(node.transactions_total for node in nodes),
        held=[] if diagnosis is None else list(held_of(diagnosis.cluster))[:_SHOWN_MAX],
        findings=[one for one in findings if one.kind.section is Section.TRANSACTIONS][:_SHOWN_MAX],
        refused=refused,
        unreachable=() if diagnosis is None else sorted(diagnosis.cluster.unreachable.items()),
    )


async def diagnosis_of(visit: Visit) -> tuple[Diagnosis | None, str]:
    """Return what the doctor finds; None, and why, where the caller may not ask."""
    try:
        return await visit.admin.diagnose(), ""
    except FatalError as error:
        return None, error.message


@dataclass(frozen=True, slots=True)
class _Known:
    """What is known of a name now; None where it is not used as a transactional id, or as a key."""

    alone: TransactionDescription | None
    shared: SharedDescription | None


async def _known(visit: Visit, key: str) -> _Known:
    alone: TransactionDescription | None = None
    try:
        alone = await visit.admin.transaction(key)
    except FatalError as error:
        if error.code is not ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            raise
    shared = None
    if 0 < len(key.encode("utf-8", "surrogateescape")) <= NAME_BYTES_MAX:
        shared = await visit.admin.shared_transaction(key)
    return _Known(alone, shared)


async def _transaction(visit: Visit) -> Response:
    key, token = visit.needed("key"), visit.text("token")
    history, known = await asyncio.gather(visit.admin.transaction_history(key, limit=_STEPS), _known(visit, key))
    story = tell(history, token)
    decisions = [] if known.shared is None else [one for one in known.shared.decisions if token in ("", one.token)]
    if story.is_empty and not decisions and (token or known.alone is None):
        about = f"commit token {token!r} of {key!r}" if token else repr(key)
        raise Problem(404, f"the log has nothing about {about}: it was never used here, or has expired")
    diagnosis, refused = await diagnosis_of(visit)
    producers = {event.producer_id for event in history.events} - {-1}
    held = [] if diagnosis is None else list(held_of(diagnosis.cluster))
    return visit.html(
        "transaction.html",
        key=key,
        wanted_token=token,
        story=story,
        steps=page_of([(step, _mark(step, history)) for step in reversed(story.steps)], visit.page),
        alone=known.alone,
        shared=known.shared,
        decisions=decisions[::-1],
        held=[one for one in held if one.place.producer_id in producers or one.name == key],
        refused=refused,
        now_ms=history.now_ms,
        is_open=_is_open(known),
    )


def _mark(step: Step, history: TransactionHistory) -> str:
    if step.offset < 0:
        return "write"
    event = next((one for one in history.events if one.offset == step.offset), None)
    if event is None:
        return ""
    return _MARKS.get(event.state, event.kind) if event.kind == "transaction" else event.kind


def _is_open(known: _Known) -> bool:
    alone = known.alone is not None and known.alone.state == "Ongoing"
    return alone or (known.shared is not None and bool(known.shared.attempt))


async def _token(visit: Visit) -> Response:
    """Look a commit token up: of a key, or of the last commits of all ids."""
    key, token = visit.text("key"), visit.text("token")
    if key and token:
        return visit.to("transaction", key=key, token=token)
    listed = await visit.admin.transactions() if token else []
    found = [one for one in listed if one.last_token == token]
    return visit.html("token.html", token=token, found=found[:50])


async def _abort_form(visit: Visit) -> Response:
    key = visit.needed("key")
    known = await _known(visit, key)
    if not _is_open(known):
        raise Problem(409, f"{key!r} has nothing open: there is nothing to abort. What is decided is never changed")
    return visit.html(
        "abort.html",
        key=key,
        alone=known.alone,
        shared=known.shared,
        is_shared=_is_shared(known),
        opened=_opened(known),
    )


async def _abort(visit: Visit) -> Response:
    key = visit.needed("key")
    if visit.fields.get("sure") != "yes":
        raise Problem(400, "confirm the abort first: tick the box of the form")
    known = await _known(visit, key)
    if visit.fields.get("opened") != _opened(known):
        now = "another one is open now" if _is_open(known) else "nothing is open now"
        raise Problem(409, f"the transaction of {key!r} that you were shown has ended, and {now}: nothing was aborted")
    if _is_shared(known):
        await visit.admin.abort_shared_transaction(key)
    else:
        await visit.admin.abort_transaction(key)
    return visit.to("transaction", key=key, done="aborted")


def _opened(known: _Known) -> str:
    """Return what tells the transaction that is open from those before and after it."""
    if known.shared is not None and _is_shared(known):
        return f"attempt {known.shared.attempt}"
    if known.alone is None or known.alone.state != "Ongoing":
        return ""
    return f"{known.alone.producer} since {known.alone.start_time_ms}"


def _is_shared(known: _Known) -> bool:
    return (
        known.shared is not None
        and bool(known.shared.attempt)
        and (known.alone is None or known.alone.state != "Ongoing")
    )


PAGES: Final[tuple[tuple[str, Handler], ...]] = (
    ("transactions", _transactions),
    ("transaction", _transaction),
    ("transaction/abort", _abort_form),
    ("token", _token),
)
CHANGES: Final[tuple[tuple[str, Handler], ...]] = (("transaction/abort", _abort),)
