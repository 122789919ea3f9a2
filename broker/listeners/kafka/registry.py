# cython: annotation_typing=False, boundscheck=True, wraparound=True, nonecheck=True
"""What a Kafka API is, and which ones a listener serves: `all_apis.py` lists them, each made by a module of its own.

    LIST_GROUPS = Api(ApiKey.LIST_GROUPS, 0, 5, handle_list_groups)

    async def handle_list_groups(context: RequestContext, body: memoryview) -> bytes: ...

An API that is not listed there does not exist for clients: it is not advertised, and a request for it closes the
connection, as in Kafka.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias
from weakref import WeakKeyDictionary

from semel.broker.acls.requirements import KAFKA
from semel.broker.acls.rights import Rights
from semel.broker.quotas.client_quotas import UNBOUNDED, Mutations
from semel.broker.quotas.request_usage import Measured, RequestUsage
from semel.protocol.api.clients import ClientOrigin
from semel.protocol.errors import SemelError
from semel.protocol.kafka.api import (
    ApiKey,
    ApiVersionRange,
    Buffer,
    Part,
    RequestHeader,
    WireFormatError,
    frame_response,
)
from semel.protocol.kafka.messages import is_prepared, prepare
from semel.runtime.caller import set_caller
from semel.runtime.threads import Threads
from semel.runtime.turns import CallerGoneError, set_is_gone

if TYPE_CHECKING:
    from semel.broker.acls.authorizer import Access
    from semel.broker.services import Services
    from semel.broker.users.authentication import Authentication

_tasks: set[asyncio.Task[None]] = set()
"""Holds the tasks of requests in progress, which the event loop itself only refers to weakly."""
_preparing: Final = Threads(2, "semel-messages")


class Connection(Protocol):
    """What a request needs of the connection that it came on."""

    @property
    def peer(self) -> str: ...

    @property
    def listener_name(self) -> str:
        """Of the listener that the client came by."""
        ...

    @property
    def peer_node(self) -> int:
        """The node at the other end, where it has proven to be one of this cluster; NO_PEER for clients."""
        ...

    @property
    def authentication(self) -> Authentication | None:
        """How the client proves who it is; None where nobody asks."""
        ...

    @property
    def access(self) -> Access | None:
        """What the client may do; None for everything."""
        ...

    @property
    def all_rights(self) -> Rights:
        """The rights of a client that may do everything."""
        ...

    def admit(self) -> None:
        """Serve everything: the client has proven who it is."""
        ...

    def count_refused(self) -> None:
        """Count a client that could not prove who it is."""
        ...

    def finish(self) -> None:
        """Take no more requests; close when those that were received are answered."""
        ...

    def answered(self, exclusive: bool) -> None:
        """An answer came for a request that had to wait."""
        ...

    def hold(self) -> None:
        """Begin no other request until `go_on`."""
        ...

    def go_on(self) -> None: ...

    def abort(self, reason: str) -> None:
        """Close the connection at once, with one log line."""
        ...

    def warn(self, message: str, *args: object) -> None:
        """Write a line about what this peer was refused, or count it where there are many."""
        ...

    def fail(self, error: Exception, api: str) -> None:
        """Close the connection at once because of an error that nobody expected."""
        ...


class RequestContext:
    """One request as its handler sees it, and its place in the order of the connection's answers.

    `on_close` may be set to what is to be called when the connection is lost while the request is not answered.
    """

    __slots__ = (
        "_connection",
        "_exclusive",
        "answered",
        "api_key",
        "api_version",
        "begun",
        "client_id",
        "correlation_id",
        "node",
        "on_close",
        "parts",
        "reserved",
        "trace",
        "usage",
    )

    def __init__(
        self, node: Services, connection: Connection, header: RequestHeader, exclusive: bool, reserved: int
    ) -> None:
        self.node = node
        self.api_key = header.api_key
        self.api_version = header.api_version
        self.correlation_id = header.correlation_id
        self.client_id = header.client_id
        self.trace = header.trace
        self._connection = connection
        self._exclusive = exclusive
        self.reserved = reserved
        """Memory held for the request until it is answered."""
        self.begun = 0.0
        """When it began, by the monotonic clock, where that is measured."""
        self.answered = False
        self.parts: Sequence[Part] | None = None
        self.on_close: Callable[[], None] | None = None
        self.usage: RequestUsage | None = None
        """What it takes of its client's quotas, where that has any."""

    @property
    def peer(self) -> str:
        return self._connection.peer

    @property
    def listener_name(self) -> str:
        """Of the listener that the client came by: the answer names the addresses of those that have this name."""
        return self._connection.listener_name

    @property
    def peer_node(self) -> int:
        """The node that asks, where it has proven to be one of this cluster; NO_PEER for clients (S1)."""
        return self._connection.peer_node

    @property
    def authentication(self) -> Authentication | None:
        """How the client proves who it is; None where nobody asks."""
        return self._connection.authentication

    @property
    def rights(self) -> Rights:
        """What the client may do with this request."""
        access = self._connection.access
        if access is None:
            return self._connection.all_rights
        key = ApiKey(self.api_key)
        return Rights(access, key.name, KAFKA[key])

    def throttle_ms(self) -> int:
        """Count the request for its client's quotas; return how long the client has to wait. To be told by the answer.

        The answer is to be made now: the same again, however often it is asked.
        """
        return 0 if self.usage is None else self.usage.answered()

    def mutations(self, *, strict: bool) -> Mutations:
        """Return what counts the partitions that the request makes or deletes (KIP-599).

        strict: what is beyond the quota is refused, with a code that this version knows
        """
        return UNBOUNDED if self.usage is None else self.usage.counted_mutations(strict=strict)

    def admit(self) -> None:
        """Serve this connection everything from now on."""
        self._connection.admit()

    def count_refused(self) -> None:
        """Count a client that could not prove who it is."""
        self._connection.count_refused()

    def finish(self) -> None:
        """Take no more requests of this connection, and close it behind the answer."""
        self._connection.finish()

    def answer(self, parts: Sequence[Part] | None) -> None:
        """Give the answer of a request that began with LATER. Only the first counts."""
        if not self.answered:
            self.parts = parts
            self.answered = True
            self._connection.answered(self._exclusive)

    def hold(self) -> None:
        """Let no other request of this connection begin until `go_on`."""
        self._connection.hold()

    def go_on(self) -> None:
        """Take `hold` back."""
        self._connection.go_on()

    def begin_watching(self) -> Callable[[], bool]:
        """Return what tells, from now on, whether the connection was lost."""
        lost: list[bool] = []
        self.on_close = lambda: lost.append(True)
        return lambda: bool(lost)

    def abort(self, reason: str) -> None:
        """Close the connection: the answer of the Kafka protocol where it has no other."""
        self._connection.abort(reason)

    def warn(self, message: str, *args: object) -> None:
        """Tell the operator what an answer has no room for, at most so many lines a minute."""
        self._connection.warn(message, *args)

    def fail(self, error: Exception) -> None:
        """Close the connection because of an error that nobody expected."""
        self._connection.fail(error, ApiKey(self.api_key).name)


class Later(Enum):
    """The type of `LATER`: the answer comes through the context."""

    LATER = "later"


LATER: Final = Later.LATER

Answer: TypeAlias = "Sequence[Part] | Later | None"
"""A whole response frame as parts, LATER, or None where the request has no answer (acks=0)."""

Begin: TypeAlias = "Callable[[RequestContext, memoryview, int], Answer]"
"""Begins a request: called with the context, the frame, and the position in it where the body begins."""


NO_PEER: Final = -1
"""In place of a node's id: the other end is a client."""

LARGE_BYTES: Final = 16 << 10
"""A request above this takes longer to read than a thread takes to be reached."""

LARGE_REQUESTS_MAX: Final = 2
"""Large requests of one API that are worked on at once: their objects take many times the bytes that came (S2)."""

_LARGE_REQUESTS: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, dict[ApiKey, asyncio.Semaphore]]] = (
    WeakKeyDictionary()
)


@dataclass(frozen=True, slots=True)
class Api:
    """One API: its versions, and the coroutine that answers a request's body with a response's body.

    `pipelined`: the next request of the same connection may begin before this one is answered. Without it the API is
    handled as Kafka handles all: after everything before it is answered, and before anything after it begins.
    `advertised_min_version`: what clients are told where it is lower than what is served.
    `waits_for_others`: an answer may wait for what other clients send, so large requests are not counted.
    """

    key: ApiKey
    min_version: int
    max_version: int
    handle: Callable[[RequestContext, memoryview], Awaitable[Buffer]] | None = None
    begin: Begin | None = None
    pipelined: bool = False
    advertised_min_version: int | None = None
    waits_for_others: bool = False

    def __post_init__(self) -> None:
        if (self.handle is None) == (self.begin is None):
            raise ValueError(f"{self.key.name}: give either `handle` or `begin`")
        if not 0 <= self.min_version <= self.max_version:
            raise ValueError(f"{self.key.name}: versions {self.min_version} to {self.max_version} are no range")

    def start(self, context: RequestContext, frame: memoryview, body: int) -> Answer:
        """Begin one request. Raises `WireFormatError` for a malformed one."""
        if self.begin is not None:
            return self.begin(context, frame, body)
        task = asyncio.get_running_loop().create_task(self._answer(context, frame[body:]))
        _tasks.add(task)
        task.add_done_callback(_tasks.discard)
        return LATER

    async def _answer(self, context: RequestContext, body: memoryview) -> None:
        set_caller(ClientOrigin.of(context.client_id, context.peer.rpartition(":")[0]))
        is_gone = context.begin_watching()
        set_is_gone(is_gone)
        try:
            if context.usage is not None:
                context.usage.pause()
            if not is_prepared(self.key, context.api_version):
                await asyncio.get_running_loop().run_in_executor(_preparing, prepare, self.key, context.api_version)
            if len(body) <= LARGE_BYTES or self.waits_for_others:
                await self._handle(context, body)
            else:
                async with _large_requests(self.key):
                    if not is_gone():
                        await self._handle(context, body)
        except CallerGoneError:
            pass  # the connection is closed: nobody waits for an answer
        except WireFormatError as error:
            context.abort(f"malformed request: {error.message}")
        except SemelError as error:
            context.abort(f"{self.key.name} failed: {error}")
        except MemoryError:
            context.abort(f"the system has no memory left for {self.key.name}")
        except Exception as error:
            context.fail(error)

    async def _handle(self, context: RequestContext, body: memoryview) -> None:
        assert self.handle is not None
        usage = context.usage
        if usage is None:
            answer = await self.handle(context, body)
        else:
            answer = await Measured(_coroutine(self.handle, context, body), usage.begin, usage.pause)
            usage.answered()  # also where the answer has no room for it
        context.answer(frame_response(self.key, context.api_version, context.correlation_id, answer))


async def _coroutine(
    handle: Callable[[RequestContext, memoryview], Awaitable[Buffer]], context: RequestContext, body: memoryview
) -> Buffer:
    return await handle(context, body)


def _large_requests(key: ApiKey) -> asyncio.Semaphore:
    """Return what bounds the large requests of one API that are in work: those of another do not wait for them."""
    of_loop = _LARGE_REQUESTS.setdefault(asyncio.get_running_loop(), {})
    if key not in of_loop:
        of_loop[key] = asyncio.Semaphore(LARGE_REQUESTS_MAX)
    return of_loop[key]


class ApiRegistry:
    """The APIs of one listener, by key."""

    def __init__(self) -> None:
        self._apis: dict[int, Api] = {}

    def register(self, api: Api) -> None:
        """Add an API. Raises `ValueError` for a key that is taken."""
        if api.key in self._apis:
            raise ValueError(f"{api.key.name} is registered already")
        self._apis[int(api.key)] = api

    def replace(self, replacement: Callable[[Api], Api]) -> None:
        """Let what `replacement` returns for each API serve in its place."""
        for key, api in self._apis.items():
            self._apis[key] = replacement(api)

    def get(self, key: int) -> Api | None:
        return self._apis.get(key)

    def __iter__(self) -> Iterator[Api]:
        return iter(sorted(self._apis.values(), key=lambda api: api.key))

    def version_ranges(self) -> list[ApiVersionRange]:
        """Return what ApiVersions advertises."""
        return [
            ApiVersionRange(
                int(api.key),
                api.min_version if api.advertised_min_version is None else api.advertised_min_version,
                api.max_version,
            )
            for api in self
        ]
