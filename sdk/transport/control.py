"""The control plane as a client sees it: gRPC calls with deadlines, retries, and errors of the one tree.

gRPC's own asyncio is not used: a sync channel's futures, bridged to the IO thread's loop, serve sync and asyncio alike.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Container
from contextlib import suppress
from typing import Any, Final

import grpc
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type

from semel.protocol.api.clients import CLIENT_METADATA
from semel.protocol.api.elsewhere import GO_TO_METADATA, ElsewhereError, elsewhere
from semel.protocol.errors import ErrorCode, FatalError, RetriableError, SemelError, error_for
from semel.protocol.v1 import metadata_pb2
from semel.runtime.clock import Clock
from semel.runtime.retrying import attempted
from semel.sdk.telemetry import tracing
from semel.sdk.transport.first_contact import first_to_answer
from semel.sdk.transport.grpc_channel import open_channel
from semel.sdk.transport.in_process import NodeLink
from semel.sdk.transport.known_nodes import KnownNodes
from semel.sdk.transport.name_addresses import accepting_address
from semel.sdk.transport.options import ClientOptions
from semel.sdk.transport.outage import Outage
from semel.sdk.transport.rpcs import GET_METADATA, Request, Response, Rpc
from semel.sdk.transport.security import Access
from semel.sdk.transport.unreachable import Trouble, UnreachableError, from_kafka_listener, trouble_at, unreachable

ERROR_TRAILER = "semel-error"

_MAX_MESSAGE_BYTES = 64 << 20
_CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
    # A node that was killed is back within a second or two: gRPC's own minute-long pauses would outlast it.
    ("grpc.initial_reconnect_backoff_ms", 50),
    # Called a pause, this is how long one attempt to connect may take: a busy or distant node needs its time.
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # A machine that lost power says nothing: without probes, a call that may take minutes (JoinGroup) waits them all.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),  # a probe of gRPC's own, for its windows, counts as one of these
    # Channels to one address share a connection by default, also with clients that have other settings.
    ("grpc.use_local_subchannel_pool", 1),
)

WRONG_ADDRESS_MS = 3_000
"""How long a client tries where every address is wrong by what it answers: a name may be new, a port reused."""
_CONTACT_S = 3.0
"""How long all addresses together may take to answer anything, before one of them is called and says what is wrong."""

_EXPLAIN_S = 2.0
"""How long to wait for what listens behind a name to show what it is."""
_LOOK_TIMEOUT_MS = 10_000
"""How long a Kafka listener may take to say where its node serves gRPC: most of it is for a node that is starting."""
_ASK_ANOTHER: Final = frozenset(
    {
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.LEADER_NOT_AVAILABLE,
    }
)
"""How attempts end at a node that is not there, stops, or knows less than others: the next attempt asks another one."""
_SILENT_S: Final = 2.0
"""How long a call waits before its node is asked whether it is there, where there are others."""
_PROOF_S: Final = 3.0
"""How long the node may take to answer that."""
_HOPS_MAX: Final = 3
"""How often one attempt is sent on to another node. More is a cluster that does not agree yet: a pause helps."""


class Control:
    """Calls the nodes' gRPC API. All methods but `close` run on the IO thread."""

    def __init__(
        self,
        options: ClientOptions,
        clock: Clock,
        link: NodeLink | None = None,
        access: Access | None = None,
    ) -> None:
        """`link`: the node, where it is in this process; gRPC is not used then."""
        self.clock = clock
        self._access = access or Access()
        self._link = link
        self._options = options
        self._metadata = ((CLIENT_METADATA, options.client_id.encode()),)
        self._channels: dict[str, grpc.Channel] = {}
        self._calls: dict[tuple[str, str], Any] = {}
        self.nodes = KnownNodes(options.addresses)
        self._reached: set[str] = set()
        self._unreachable: dict[str, UnreachableError] = {}
        self._first_call_at: float | None = None
        self._wrong_since: float | None = None
        """When every address began to look wrong; None as long as one may be a node's."""
        self.outage = Outage(clock)
        self._grpc_of: dict[str, str] = {}
        """What the Kafka listeners among the bootstrap addresses have named as their nodes' gRPC addresses."""
        self._looks: dict[str, asyncio.Task[str | None]] = {}
        self._contact: asyncio.Task[str | None] | None = None
        self._waiting: Counter[str] = Counter()
        """How many calls wait for each node."""
        self._proofs: dict[str, asyncio.Task[None]] = {}
        self._silent: set[str] = set()
        self._closed = False

    async def call(
        self,
        rpc: Rpc[Request, Response],
        request: Request,
        *,
        timeout_ms: float | None = None,
        attempt_timeout_ms: float | None = None,
        address: str | None = None,
        retry: bool = True,
        final: Container[ErrorCode] = (),
        check: Callable[[Response], None] | None = None,
    ) -> Response:
        """Call `rpc` and return its answer.

        Attempts that fail with a `RetriableError`, or because the node can't be reached, are repeated with growing
        pauses until `timeout_ms` (None: the client's api_timeout_ms) has passed; one attempt lasts `attempt_timeout_ms`
        at most (None: the client's request_timeout_ms). With `retry` False there is one attempt.
        A call about a key goes to the coordinator of the key, where that is known, and any call follows a node that
        sends it to another one. `address` names a node ("host:port") to begin with. What is refused with a code of
        `final` is not tried again, and raised as a `FatalError`. What `check` raises of an answer counts as the error
        of the call.
        Raises `SemelError` of the kind that the node's error code says. Where no node has ever been reached, it ends
        earlier when `connect_timeout_ms` says so, or when every address is wrong: no host, or no node of Semel.
        """
        budget_s = (self._options.api_timeout_ms if timeout_ms is None else timeout_ms) / 1000
        attempt_s = (self._options.request_timeout_ms if attempt_timeout_ms is None else attempt_timeout_ms) / 1000
        if not retry:
            return await self._attempt(rpc, request, min(attempt_s, budget_s), address)
        started = self.clock.monotonic()
        deadline = started + budget_s
        if self._first_call_at is None:
            self._first_call_at = started

        def left_s() -> float:
            return max(deadline - self.clock.monotonic(), 0.001)

        async def attempt() -> Response:
            try:
                response = await self._attempt(rpc, request, min(attempt_s, left_s()), address)
                if check is not None:
                    check(response)
                return response
            except RetriableError as error:
                if error.code in final:
                    raise FatalError(error.message, error.code) from None
                raise

        def is_over(state: RetryCallState) -> bool:
            error = state.outcome.exception() if state.outcome is not None else None
            ends_at = deadline
            if isinstance(error, UnreachableError) and not self._reached:
                ends_at = min(ends_at, self._contact_ends_at())
            return self.clock.monotonic() + state.upcoming_sleep >= ends_at

        def retrying() -> AsyncRetrying:
            return AsyncRetrying(
                retry=retry_if_exception_type(RetriableError),
                stop=is_over,
                wait=self._pause_s,
                sleep=asyncio.sleep,
                reraise=True,
            )

        try:
            return await attempted(attempt, RetriableError, retrying)
        except UnreachableError as error:
            if self._reached or len(self._unreachable) < 2:
                raise
            each = "; ".join(str(one.message) for one in self._unreachable.values())
            every = UnreachableError(f"none of the nodes can be reached: {each}", error.code)
            every.trouble, every.address = error.trouble, error.address
            raise every from None

    def close(self) -> None:
        """Close the channels; calls under way fail."""
        self._closed = True
        self._access.close()
        channels, self._channels = self._channels, {}
        self._calls.clear()
        for channel in channels.values():
            channel.close()

    def _contact_ends_at(self) -> float:
        """Return until when to try to reach a node for the first time, by the client's clock.

        Measured over all calls of the client, so that each call after the end fails at its first attempt.
        """
        ends_at = math.inf
        if self._options.connect_timeout_ms is not None and self._first_call_at is not None:
            ends_at = self._first_call_at + self._options.connect_timeout_ms / 1000
        if self._wrong_since is not None:
            ends_at = min(ends_at, self._wrong_since + WRONG_ADDRESS_MS / 1000)
        return ends_at

    def _pause_s(self, state: RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome is not None else None
        code = error.code if isinstance(error, SemelError) else None
        return self._options.backoff.jittered_s(state.attempt_number, code)

    async def _attempt(
        self, rpc: Rpc[Request, Response], request: Request, timeout_s: float, address: str | None
    ) -> Response:
        """Call once: the coordinator of the key where it is known, else any node, and whom that one names."""
        deadline = self.clock.monotonic() + timeout_s
        key = rpc.key_of(request) if address is None else None
        target = self.nodes.coordinator(key) if key is not None else address
        for hop in range(_HOPS_MAX + 1):
            left_s = max(deadline - self.clock.monotonic(), 0.001)
            try:
                if target is None:
                    return await self._ask_any(rpc, request, left_s)
                return await self._ask_one(rpc, request, left_s, target)
            except ElsewhereError as error:
                if error.go_to == target or hop == _HOPS_MAX:
                    self.nodes.forget(key)
                    raise
                target = error.go_to
                self.nodes.remember(key, target)
            except RetriableError as error:
                if error.code in _ASK_ANOTHER:
                    self.nodes.forget(key)
                    if hop:  # who named this one may be cut off from the cluster
                        self.nodes.move_on(self.nodes.current)
                raise
        raise AssertionError("the last hop returns or raises")

    async def _ask_one(self, rpc: Rpc[Request, Response], request: Request, timeout_s: float, target: str) -> Response:
        """Call a node that is named once."""
        if self._link is not None:
            return await self._ask_here(self._link.to(target), rpc, request, timeout_s)
        return await self._ask(rpc, request, timeout_s, target)

    async def _ask_any(self, rpc: Rpc[Request, Response], request: Request, timeout_s: float) -> Response:
        """Call the node that answered last, once. After a failure the next call asks another one."""
        if self._link is None and len(self._options.addresses) > 1 and not self._reached:
            timeout_s -= await self._make_contact(timeout_s)
        given = self.nodes.current
        deadline = self.clock.monotonic() + timeout_s
        try:
            if self._link is not None:
                link = self._link if given == self._link.name else self._link.to(given)
                return await self._ask_here(link, rpc, request, timeout_s)
            target = self._grpc_of.get(given, given)
            try:
                return await self._ask(rpc, request, timeout_s, target)
            except UnreachableError as error:
                found = await self._find(given, target, error, deadline)
            return await self._ask(rpc, request, max(deadline - self.clock.monotonic(), 0.001), found)
        except RetriableError as error:
            if error.code in _ASK_ANOTHER and not isinstance(error, ElsewhereError):
                self.nodes.move_on(given)
            raise

    async def _ask_here(
        self, link: NodeLink, rpc: Rpc[Request, Response], request: Request, timeout_s: float
    ) -> Response:
        """Call the node in this process once."""
        metadata: list[tuple[str, str | bytes]] = [*self._metadata, *tracing.metadata()]
        answer = link.call(rpc.path, request.SerializeToString(), metadata)
        try:
            async with asyncio.timeout(timeout_s):
                response = rpc.response.FromString(await asyncio.wrap_future(answer))
        except TimeoutError:
            raise _late(link.name, rpc.name, timeout_s) from None
        self._look_at(response)
        return response

    def _look_at(self, response: Any) -> None:
        """Learn of the other nodes what an answer says of them: any may be asked once this one is away."""
        if isinstance(response, metadata_pb2.GetMetadataResponse):
            self.nodes.learn(response)

    async def _make_contact(self, timeout_s: float) -> float:
        """Begin with the address that answers first. Returns how many seconds that took, of `timeout_s` at most half.

        Where none answers, the call itself finds out why.
        """
        started = self.clock.monotonic()
        limit_s = min(timeout_s / 2, _CONTACT_S)
        if self._contact is None:
            probes = {given: self._answers(given, limit_s) for given in self._options.addresses}
            self._contact = asyncio.get_running_loop().create_task(first_to_answer(probes, limit_s))
            self._contact.add_done_callback(self._contacted)
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.shield(self._contact), limit_s)
        return self.clock.monotonic() - started

    def _contacted(self, task: asyncio.Task[str | None]) -> None:
        self._contact = None
        if not task.cancelled() and task.exception() is None and (found := task.result()) is not None:
            self.nodes.begin_with(found)

    async def _answers(self, given: str, timeout_s: float) -> bool:
        """Ask what changes nothing, as of a gRPC listener; of a Kafka listener, where its node serves gRPC."""
        target = self._grpc_of.get(given, given)
        deadline = self.clock.monotonic() + timeout_s
        try:
            await self._ask(GET_METADATA, metadata_pb2.GetMetadataRequest(), timeout_s, target)
        except UnreachableError as error:
            if not error.trouble.may_be_another_protocol:
                return False
            with suppress(UnreachableError):
                return await self._shared_look(given, deadline) is not None
        except SemelError:
            pass
        return target in self._reached

    async def _ask(self, rpc: Rpc[Request, Response], request: Request, timeout_s: float, target: str) -> Response:
        """Call the gRPC listener at `target` once."""
        await self._access.ready(timeout_s)
        metadata = (*self._metadata, *self._access.metadata(target), *tracing.metadata())
        call = self._callable(rpc, target).future(request, timeout=timeout_s, metadata=metadata)
        watch = None
        if self.nodes.by_id:
            watch = asyncio.get_running_loop().call_later(_SILENT_S, self._ask_for_proof, target)
        self._waiting[target] += 1
        try:
            response: Response = await _settled(call)
        except grpc.FutureCancelledError:
            if self._closed:
                raise FatalError("the client was closed while a call was under way") from None
            if target in self._silent:
                raise trouble_at(target, Trouble.SILENT) from None
            raise trouble_at(target, Trouble.NOT_GRPC) from None  # another call has found that out (`_drop_channel`)
        except grpc.RpcError as error:
            failure = to_semel_error(error, rpc.name, target, timeout_s)
            if failure.code is ErrorCode.SASL_AUTHENTICATION_FAILED:
                is_changing = self._access.may_be_changing(self.clock.monotonic())
                kind = RetriableError if is_changing else FatalError
                failure = kind(self._access.explained(failure.message), failure.code)
            if isinstance(failure, UnreachableError):
                failure = await self._explained(target, failure)
                if self._access.encryption is not None and failure.trouble is Trouble.HANGS_UP:
                    failure = trouble_at(target, Trouble.HANGS_UP_ON_TLS)
                self.outage.failed(target, failure.trouble)
            elif error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                self.outage.failed(target, Trouble.SILENT)
            else:
                self._reached.add(target)
                self.outage.ended(target)
            raise failure from None
        finally:
            if watch is not None:
                watch.cancel()
            self._waiting[target] -= 1
        self._reached.add(target)
        self._access.was_accepted()
        self.outage.ended(target)
        self._look_at(response)
        return response

    def _ask_for_proof(self, target: str) -> None:
        """A call waits for a node. A frozen one, or one behind a cut, would have it wait all of its time."""
        if target not in self._proofs and not self._closed:
            proof = asyncio.get_running_loop().create_task(self._prove(target), name=f"is {target} there?")
            self._proofs[target] = proof
            proof.add_done_callback(lambda _: self._proofs.pop(target, None))

    async def _prove(self, target: str) -> None:
        """Ask a node for nothing, again and again while calls wait for it. One that is silent is not waited for."""
        while self._waiting[target] > 0 and not self._closed:
            ask = self._callable(GET_METADATA, target)
            try:
                metadata = self._access.metadata(target)
                await _settled(ask.future(metadata_pb2.GetMetadataRequest(), timeout=_PROOF_S, metadata=metadata))
            except grpc.FutureCancelledError:
                return
            except grpc.RpcError as error:
                if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                    return  # the calls that wait hear of it too
                self.nodes.give_up_on(target)
                self._silent.add(target)
                self._drop_channel(target)
                return
            await asyncio.sleep(_SILENT_S)

    async def _explained(self, target: str, error: UnreachableError) -> UnreachableError:
        """Return the error of a name's address that takes connections, where gRPC told of another one that does not."""
        if error.trouble is not Trouble.REFUSED or (address := await accepting_address(target)) is None:
            return error
        channel = self._open(address)
        try:
            ask = channel.unary_unary(GET_METADATA.path, bytes, bytes)
            await _settled(ask.future(b"", timeout=_EXPLAIN_S))  # an empty request is one without topics
        except grpc.RpcError as answer:
            if answer.code() is grpc.StatusCode.UNAVAILABLE:
                return unreachable(target, answer.details() or "")
            if answer.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                return trouble_at(target, Trouble.SILENT)
        finally:
            channel.close()
        return error  # it speaks gRPC by now: the next attempt reaches it

    async def _find(self, given: str, target: str, error: UnreachableError, deadline: float) -> str:
        """Return the gRPC address that the node names whose Kafka listener is at `given`, where `target` is another.

        It is asked for it where `given` may be a Kafka listener, and where what it named before was not reached. Raises
        what explains the failure otherwise; where all addresses are those of foreign brokers, no retry will help.
        """
        is_reached = target in self._reached
        known = self._grpc_of.get(given, target)
        if known != target and not is_reached:
            return known  # another call has found it since this one began
        if target != given or (error.trouble.may_be_another_protocol and not is_reached):
            try:
                found = await self._shared_look(given, deadline)
            except UnreachableError as failure:
                found, error = None, failure
            if found is not None and found != target:
                self._drop_channel(target)
                if not is_reached:  # so the call had no effect
                    return found
        if target != given:
            error = from_kafka_listener(error, given)
        if self._reached:
            raise error
        self.outage.failed(error.address, error.trouble)
        self._unreachable[given] = error
        troubles = [self._unreachable.get(address) for address in self._options.addresses]
        if all(one is not None and one.trouble is Trouble.FOREIGN for one in troubles):
            raise FatalError(error.message, ErrorCode.NETWORK_EXCEPTION)
        if not all(one is not None and one.trouble.says_wrong_address for one in troubles):
            self._wrong_since = None
        elif self._wrong_since is None:
            self._wrong_since = self.clock.monotonic()
        raise error

    async def _shared_look(self, given: str, deadline: float) -> str | None:
        """Ask the Kafka listener at `given` where its node's gRPC listener is: once for all calls that want to know."""
        task = self._looks.get(given)
        if task is None:
            # Heavy, and of no use to those who give the address of the gRPC listener.
            from semel.sdk.transport.discovery import find_grpc_address

            timeout_ms = min(max(1.0, (deadline - self.clock.monotonic()) * 1000), _LOOK_TIMEOUT_MS)
            options = self._options
            look = find_grpc_address(
                given, self._access, client_id=options.client_id, timeout_ms=timeout_ms, clock=self.clock
            )
            task = self._looks[given] = asyncio.get_running_loop().create_task(look)
            task.add_done_callback(lambda done: self._looked(given, done))
        return await asyncio.shield(task)

    def _looked(self, given: str, task: asyncio.Task[str | None]) -> None:
        self._looks.pop(given, None)
        # Its waiters have an error; a waiter that left shall not make asyncio complain.
        if not task.cancelled() and task.exception() is None and (found := task.result()) is not None:
            self._grpc_of[given] = found  # now: a call that fails before the waiters go on must not ask again

    def _drop_channel(self, target: str) -> None:
        """Close the channel to an address that is no gRPC listener: it would try to connect for ever."""
        channel = self._channels.pop(target, None)
        for key in [key for key in self._calls if key[0] == target]:
            del self._calls[key]
        if channel is not None:
            channel.close()

    def _channel(self, target: str) -> grpc.Channel:
        if self._closed:
            raise FatalError("the client is closed")
        channel = self._channels.get(target)
        if channel is None:
            self._silent.discard(target)
            channel = self._channels[target] = self._open(target)
        return channel

    def _open(self, target: str) -> grpc.Channel:
        return open_channel(target, self._access.encryption, _CHANNEL_OPTIONS)

    def _callable(self, rpc: Rpc[Request, Response], target: str) -> Any:
        key = (target, rpc.path)
        call = self._calls.get(key)
        if call is None:
            call = self._calls[key] = self._channel(target).unary_unary(
                rpc.path,
                request_serializer=rpc.request.SerializeToString,
                response_deserializer=rpc.response.FromString,
            )
        return call


def to_semel_error(error: grpc.RpcError, name: str, target: str, timeout_s: float) -> SemelError:
    """Return the exception for a failed call: by the node's own error code, else by gRPC's status."""
    status, details = error.code(), error.details() or ""
    trailers: Any = error.trailing_metadata()  # typed as something that can't be iterated
    told = dict(trailers or ())
    said = told.get(ERROR_TRAILER)
    if said is not None and said in ErrorCode.__members__:
        code, go_to = ErrorCode[said], told.get(GO_TO_METADATA)
        return error_for(code, details) if go_to is None else elsewhere(code, details, go_to)
    if status is grpc.StatusCode.UNAVAILABLE:
        return unreachable(target, details)
    if status is grpc.StatusCode.CANCELLED:
        # Not by this client, which hears of that in another way: the node went away with the call in its hands.
        return RetriableError(f"the node at {target} ended before it answered {name}", ErrorCode.NETWORK_EXCEPTION)
    if status is grpc.StatusCode.DEADLINE_EXCEEDED:
        return _late(target, name, timeout_s)
    if status is grpc.StatusCode.RESOURCE_EXHAUSTED or status is grpc.StatusCode.ABORTED:
        return RetriableError(f"the node at {target} refused {name} for now: {details}")
    if status is grpc.StatusCode.UNIMPLEMENTED and "http2 header" in details:
        return FatalError(
            f"{target} is an HTTP/2 server, but no node of Semel ({details})", ErrorCode.UNSUPPORTED_VERSION
        )
    if status is grpc.StatusCode.UNIMPLEMENTED:
        return FatalError(
            f"the node at {target} has no {name}: it is older than this client", ErrorCode.UNSUPPORTED_VERSION
        )
    return FatalError(f"{name} at {target} failed: {details} ({status.name})")


def _late(target: str, name: str, timeout_s: float) -> RetriableError:
    return RetriableError(
        f"the node at {target} did not answer {name} within {timeout_s * 1000:.0f} ms", ErrorCode.REQUEST_TIMED_OUT
    )


async def _settled(call: Any) -> Any:
    """Wait for a gRPC future on the running loop. Cancelling the waiter cancels the call."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def settle() -> None:
        if not done.done():
            done.set_result(None)

    def finished(_: object) -> None:  # on one of gRPC's threads
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle)

    call.add_done_callback(finished)
    try:
        await done
    except asyncio.CancelledError:
        call.cancel()
        raise
    return call.result(timeout=0)
