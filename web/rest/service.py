"""What the endpoints of one gateway share: its clients, its pools, and the requests with keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import JSONResponse

from semel.web.paths import part_of_path
from semel.web.problems import Problem
from semel.web.rest.background import Background
from semel.web.rest.bounds import LANE_PRODUCERS_MAX, READERS_MAX
from semel.web.rest.once.answers import Answers
from semel.web.rest.once.lanes import Lanes
from semel.web.rest.producers import Producers
from semel.web.rest.readers import Readers

if TYPE_CHECKING:
    from semel.aio import Admin
    from semel.web.gateway import Caller, Gateway


class Service:
    """One gateway's REST API. Nothing connects before the first request."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self._background = Background()
        self.producers = Producers(gateway, self._background)
        self.readers = Readers(gateway, self._background, READERS_MAX)
        self._answer_readers = Readers(gateway, self._background, LANE_PRODUCERS_MAX)
        self.lanes = Lanes(gateway, Answers(gateway, self._answer_readers), self._background)
        self._cluster_id = ""

    def caller(self, request: Request) -> Caller:
        return self.gateway.caller_of(request)

    def admin(self, request: Request) -> Admin:
        """Return the admin client of the request's caller."""
        return self.gateway.clients_of(request).admin()

    async def cluster_id(self, request: Request) -> str:
        """Return the id of the cluster that the path names. Raises `Problem` 404 for another one."""
        wanted = named(request, "cluster_id")
        if not self._cluster_id:
            self._cluster_id = (await self.gateway.own.admin().cluster()).cluster_id
        if wanted != self._cluster_id:
            raise Problem(
                404,
                f"Cluster {wanted[:200]} cannot be found: GET /v3/clusters says which there is",
                error_code=404,
            )
        return wanted

    async def close(self) -> None:
        """Close all clients."""
        await self.lanes.close()
        await self.producers.close()
        await self.readers.close()
        await self._answer_readers.close()
        await self._background.finish()


def named(request: Request, parameter: str) -> str:
    """Return what a part of the path names, whatever characters it has."""
    return part_of_path(str(request.path_params[parameter]))


def link(request: Request, *path: object) -> str:
    """Return the address of a resource of this API, as this client reaches it."""
    return str(request.base_url) + "/".join(("v3/clusters", *(quoted(str(part)) for part in path)))


def own_link(request: Request) -> str:
    """Return the address that this client asked for, encoded as it was."""
    path = str(request.scope["raw_path"], "ascii")
    query = str(request.scope["query_string"], "ascii")
    return str(request.base_url).rstrip("/") + path + (f"?{query}" if query else "")


def quoted(part: str) -> str:
    """Return a part of a path."""
    return quote(part, safe=":")


def resource(kind: str, self_link: str, resource_name: str, **values: Any) -> dict[str, Any]:
    """Return a resource as Confluent's API shows one."""
    return {"kind": kind, "metadata": {"self": self_link, "resource_name": resource_name}, **values}


def listing(kind: str, request: Request, data: list[Any]) -> JSONResponse:
    """Answer with a list of resources."""
    return JSONResponse({"kind": kind, "metadata": {"self": own_link(request), "next": None}, "data": data})


def related(address: str) -> dict[str, str]:
    return {"related": address}
