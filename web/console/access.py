"""Users and ACLs, as far as the cluster has some; nothing is changed here."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from semel.protocol.errors import FatalError
from semel.web.console.paging import matching, page_of
from semel.web.console.visit import Handler, Visit


async def _access(visit: Visit) -> Response:
    """Each of both may be refused on its own: a cluster without an authorizer has no ACLs to tell of."""
    wanted = visit.text("filter")
    users_refused = acls_refused = ""
    try:
        users = await visit.admin.users()
    except FatalError as error:
        users, users_refused = [], error.message
    try:
        acls = await visit.admin.acls()
    except FatalError as error:
        acls, acls_refused = [], error.message
    return visit.html(
        "access.html",
        users=page_of(matching(users, wanted, lambda user: user.name), visit.number("users", 1, most=1_000_000)),
        acls=page_of(matching(acls, wanted, str), visit.page),
        users_refused=users_refused,
        acls_refused=acls_refused,
        wanted=wanted,
    )


PAGES: Final[tuple[tuple[str, Handler], ...]] = (("access", _access),)
CHANGES: Final[tuple[tuple[str, Handler], ...]] = ()
