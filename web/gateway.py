"""What the parts of the gateway share: where the node is, its clients, as which user, and the limits."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

from semel import aio
from semel.protocol.errors import SemelError
from semel.sdk.transport.login import Login
from semel.sdk.transport.options import Bootstrap, parse_bootstrap
from semel.sdk.transport.security import Security
from semel.web.limits import Limits

if TYPE_CHECKING:
    from starlette.requests import Request

_log = logging.getLogger("semel.http")

_Kind = TypeVar("_Kind")

CLIENT_ID: Final = "semel-http"
CALLER: Final = "semel.caller"
"""Where in a request's scope its caller is."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who makes a request. user: empty where the gateway asks nobody for a password: then it is the gateway itself."""

    user: str = ""
    password: str = field(default="", repr=False)


class Clients:
    """The clients of one caller: they connect as that user, with the password of the request."""

    def __init__(self, bootstrap: Bootstrap, client_id: str) -> None:
        self.bootstrap = bootstrap
        self._client_id = client_id
        self._admin: aio.Admin | None = None

    def admin(self) -> aio.Admin:
        """Return the admin client, which all requests of this caller share. Do not close it."""
        if self._admin is None:
            self._admin = aio.Admin(self.bootstrap, client_id=self._client_id)  # type: ignore[arg-type]
        return self._admin

    def producer(self, **options: Any) -> aio.Producer:
        """Return a new producer with these options. The caller closes it."""
        return aio.Producer(self.bootstrap, **{"client_id": self._client_id, **options})  # type: ignore[arg-type]

    def consumer(self, **options: Any) -> aio.Consumer:
        """Return a new consumer with these options. The caller closes it."""
        return aio.Consumer(self.bootstrap, **{"client_id": self._client_id, **options})  # type: ignore[arg-type]

    async def close(self) -> None:
        """Close the admin client."""
        if self._admin is not None:
            admin, self._admin = self._admin, None
            with suppress(SemelError):
                await admin.close()


class Gateway:
    """What the parts of one gateway share. Belongs to one event loop.

    bootstrap:          where the node is, and as which user the gateway itself connects
    asks_for_passwords: whether each request names its user (HTTP Basic), as whom its clients connect
    allows_changes:     whether pages of the console may change anything
    """

    def __init__(
        self,
        bootstrap: str | Bootstrap | None = None,
        limits: Limits | None = None,
        *,
        asks_for_passwords: bool = False,
        allows_changes: bool = False,
    ) -> None:
        """Nothing connects yet. Raises `UsageError` for a bootstrap that is none."""
        self.bootstrap = parse_bootstrap(bootstrap)
        self.limits = limits or Limits()
        self.asks_for_passwords = asks_for_passwords
        self.allows_changes = allows_changes
        self.front_page = ""
        """Where `/` leads a browser; empty: nowhere."""
        self.own = Clients(self.bootstrap, CLIENT_ID)
        """The clients of the gateway itself."""
        self._of_users: OrderedDict[Caller, Clients] = OrderedDict()
        self.stopping = asyncio.Event()
        """Set when the gateway is about to end: what waits answers with what it has."""
        self._stops: list[Callable[[], None]] = []
        self._starting: list[Callable[[], None]] = []
        self._closing: list[Callable[[], Awaitable[None]]] = []
        self._shared: dict[type, Any] = {}
        self._ends: set[asyncio.Task[None]] = set()

    def caller_of(self, request: Request) -> Caller:
        """Return who makes a request. What the gateway asks for was checked before a part sees it."""
        caller = request.scope.get(CALLER)
        return caller if isinstance(caller, Caller) else Caller()

    def clients_of(self, request: Request) -> Clients:
        """Return the clients of the request's caller."""
        return self.clients(self.caller_of(request))

    def clients(self, caller: Caller) -> Clients:
        """Return the clients of a caller; those of the gateway itself where it has no name."""
        if not caller.user:
            return self.own
        found = self._of_users.get(caller)
        if found is None:
            found = self._of_users[caller] = Clients(self.bootstrap_of(caller), CLIENT_ID)
        self._of_users.move_to_end(caller)
        while len(self._of_users) > self.limits.users_max:
            _, oldest = self._of_users.popitem(last=False)
            task = asyncio.get_running_loop().create_task(oldest.close(), name="close the clients of a user")
            self._ends.add(task)
            task.add_done_callback(self._ends.discard)
        return found

    def shared(self, kind: type[_Kind], make: Callable[[], _Kind]) -> _Kind:
        """Return the one object of a kind that the parts of this gateway share. It is made where there is none yet."""
        if kind not in self._shared:
            self._shared[kind] = make()
        found: _Kind = self._shared[kind]
        return found

    def at_start(self, begin: Callable[[], None]) -> None:
        """Have something begun when the gateway begins to serve, on its event loop."""
        self._starting.append(begin)

    def start(self) -> None:
        """Begin what parts gave to `at_start`."""
        for begin in self._starting:
            begin()

    def at_stop(self, end: Callable[[], None]) -> None:
        """Have something told that the gateway is about to end, while requests are still being answered."""
        self._stops.append(end)

    def stop(self) -> None:
        """Have requests end soon."""
        self.stopping.set()
        for end in self._stops:
            end()

    def at_end(self, close: Callable[[], Awaitable[None]]) -> None:
        """Have something closed when the gateway is closed. What was given last is closed first."""
        self._closing.append(close)

    async def close(self) -> None:
        """Close what parts gave to `at_end`, and all shared clients."""
        while self._closing:
            try:
                await self._closing.pop()()
            except Exception:
                _log.exception("closing a part of the HTTP gateway failed")
        for clients in (*self._of_users.values(), self.own):
            await clients.close()
        self._of_users.clear()
        if self._ends:
            await asyncio.wait(self._ends)

    def bootstrap_of(self, caller: Caller) -> Bootstrap:
        """Return how a caller's clients reach the node: as the gateway does, with another user."""
        own = self.bootstrap.security
        mechanism = own.login.mechanism if own.login and own.login.mechanism.startswith("SCRAM") else "SCRAM-SHA-256"
        login = Login(caller.user, caller.password, mechanism=mechanism)
        return Bootstrap(self.bootstrap.addresses, Security(own.tls, login))
