"""A transaction that nothing else will finish: what the doctor says of it, and the marker that ends it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from starlette.responses import Response

from semel.protocol.errors import ErrorCode, FatalError
from semel.protocol.ids import TopicPartition
from semel.sdk.diagnosis.transaction_rules import of_unknown_holder
from semel.web.console.transactions import diagnosis_of, held_of
from semel.web.console.visit import Handler, Visit
from semel.web.problems import Problem

if TYPE_CHECKING:
    from semel.sdk.diagnosis.findings import Finding
    from semel.web.console.transactions import Held

_HANGING: Final = "hanging-transaction"
_MISSING: Final = "marker-missing"
_DECIDED: Final = ("commit", "abort")
_OVER: Final = (ErrorCode.INVALID_TXN_STATE, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
"""What a node answers where it is not, or no longer, as the form says."""


@dataclass(frozen=True, slots=True)
class _Unfinished:
    """What holds a partition's readers back, and what the doctor says of it.

    how: "abort": no coordinator knows it; "decided": its decision is in the log; "told": the log no longer has the
         decision, so that the form asks for it; "": it can't be finished now, which the finding explains
    """

    held: Held
    finding: Finding
    how: str


async def _unfinished(visit: Visit, partition: TopicPartition, offset: int) -> _Unfinished:
    diagnosis, refused = await diagnosis_of(visit)
    if diagnosis is None:
        raise Problem(403, f"you may not ask what holds readers back: {refused}")
    held = next(
        (
            one
            for one in held_of(diagnosis.cluster)
            if one.place.partition == partition and one.place.first_offset == offset
        ),
        None,
    )
    if held is None:
        raise Problem(
            409, f"no transaction that begins at offset {offset} of {partition} holds readers back: it may have ended"
        )
    if held.owner is not None or held.place.is_known:
        raise Problem(409, f"it is the transaction of {held.name!r}, which its coordinator knows: see its own page")
    finding = of_unknown_holder(diagnosis.cluster, [(held.node, held.place)])
    how = ""
    if finding.kind.name == _HANGING:
        how = "abort"
    elif finding.kind.name == _MISSING:
        how = "decided" if held.place.outcome in _DECIDED else "told"
    return _Unfinished(held, finding, how)


def _place(visit: Visit) -> tuple[TopicPartition, int]:
    for name in ("topic", "partition", "offset"):
        visit.needed(name)
    return TopicPartition(visit.text("topic"), visit.number("partition", most=(1 << 31) - 1)), visit.number("offset")


async def _form(visit: Visit) -> Response:
    found = await _unfinished(visit, *_place(visit))
    return visit.html("finish.html", held=found.held, finding=found.finding, how=found.how)


async def _finish(visit: Visit) -> Response:
    """Write the marker. The node checks again whether it may be written, and which one."""
    partition, offset = _place(visit)
    if visit.fields.get("sure") != "yes":
        raise Problem(400, "confirm it first: tick the box of the form")
    how = visit.fields.get("how", "")
    outcome = None if how == "abort" else _outcome(how, visit.fields.get("outcome", ""))
    try:
        if how == "abort":
            await visit.admin.abort_hanging_transaction(partition, offset)
        else:
            await visit.admin.finish_hanging_transaction(partition, offset, outcome)
    except FatalError as error:
        if error.code in _OVER:
            raise Problem(409, f"nothing was written: {error.message}") from None
        raise
    return visit.to("transactions", done="finished")


def _outcome(how: str, given: str) -> Literal["commit", "abort"] | None:
    """Return how it was decided by the word of who finishes it; None where the log says it."""
    if how == "decided":
        return None
    if how == "told" and given == "commit":
        return "commit"
    if how == "told" and given == "abort":
        return "abort"
    raise Problem(400, "choose how it was decided: commit or abort")


PAGES: Final[tuple[tuple[str, Handler], ...]] = (("transaction/finish", _form),)
CHANGES: Final[tuple[tuple[str, Handler], ...]] = (("transaction/finish", _finish),)
