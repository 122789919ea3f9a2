"""The remote storage: what the topics hold there, what the nodes ask of it, and about what that costs a month."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from semel.sdk.diagnosis.remote_costs import Prices, estimate, estimate_lines, has_price, remote_state
from semel.web.console.paging import matching, page_of
from semel.web.console.transactions import diagnosis_of
from semel.web.console.visit import Handler, Visit


async def _storage(visit: Visit) -> Response:
    diagnosis, refused = await diagnosis_of(visit)
    state = None if diagnosis is None else remote_state(diagnosis.cluster)
    wanted = visit.text("filter")
    prices = Prices()
    priced = state is not None and has_price(state.location, prices)
    found = [] if state is None else matching(state.topics, wanted, lambda one: one.topic)
    found.sort(key=lambda one: -one.stored_bytes)
    return visit.html(
        "storage.html",
        refused=refused,
        state=state,
        page=page_of(found, visit.page),
        wanted=wanted,
        prices=prices if priced else None,
        estimate=list(
            estimate_lines(estimate(state, prices), prices, changed_by="semel cluster status --price-... takes others")
        )
        if state is not None and priced
        else [],
    )


PAGES: Final[tuple[tuple[str, Handler], ...]] = (("storage", _storage),)
CHANGES: Final[tuple[tuple[str, Handler], ...]] = ()
