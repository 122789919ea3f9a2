"""Stands between a broker's listeners and its handlers, and loses requests and answers as the test says.

All of it runs on the broker's event loop. A lost answer is what a client sees of a broken connection: the Kafka
listener's is closed, a gRPC call ends with UNAVAILABLE. What the request did stays done.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, NoReturn

import grpc
from google.protobuf.message import DecodeError

from semel.broker.listeners.kafka.registry import LATER, Answer, Api, Later, RequestContext
from semel.broker.node import Node
from semel.protocol.ids import TopicId, TopicPartition
from semel.protocol.kafka.api import ApiKey, Buffer, Part
from semel.protocol.kafka.messages import parse_request
from semel.protocol.kafka.produce import PRODUCE_TOPIC_ID_VERSION, ProduceRequest
from semel.protocol.v1 import shared_pb2, transactions_pb2
from semel.runtime.simulated_storage import SimulatedCrash
from semel.sdk.testing.fault import Fault

if TYPE_CHECKING:
    _ServerInterceptor = grpc.aio.ServerInterceptor[Any, Any]
else:
    _ServerInterceptor = grpc.aio.ServerInterceptor

_LOST = "the connection was lost, as the test wanted"
_ERROR_AT = slice(4, 6)
"""Where the error code stands in EndTxn's answers of all versions: after throttle_time_ms."""


class Loss(Enum):
    """What is lost of a call."""

    COMMIT_REQUEST = "the request to commit"
    COMMIT_ANSWER = "the answer to commit"
    PRODUCE_ANSWER = "the answer to produce"


@dataclass(slots=True, eq=False)
class _Plan:
    loss: Loss
    name: str | None
    """The transactional id, the shared key, or the topic; None: any."""
    left: int
    fault: Fault


class FaultInterceptor:
    """An `Interceptor` (broker/listeners/interception.py) that a `Broker` tells what to lose and what to hold back."""

    def __init__(self) -> None:
        self._is_dead = False
        self.topic_name: Callable[[TopicId], str | None] = lambda _: None
        self._plans: list[_Plan] = []
        self._held: dict[TopicPartition, list[Callable[[], None]]] = {}

    # --- What the broker tells it -------------------------------------------------------------------------------------

    def started(self, node: Node) -> None:
        """A broker has started, on its event loop."""
        self.topic_name = node.metadata.topic_name

    def die(self) -> None:
        """The broker is killed: nothing may answer any more."""
        self._is_dead = True

    def revive(self) -> None:
        self._is_dead = False

    def is_dead(self) -> bool:
        return self._is_dead

    def plan(self, loss: Loss, name: str | None, times: int, fault: Fault) -> None:
        self._plans.append(_Plan(loss, name, times, fault))

    def forget(self, fault: Fault) -> None:
        self._plans = [plan for plan in self._plans if plan.fault is not fault]

    def forget_all(self) -> None:
        for plan in self._plans:
            plan.fault.used_up()
        self._plans.clear()

    def knows(self, fault: Fault) -> bool:
        """Whether it is one of requests or answers that get lost, which outlives the node."""
        return any(plan.fault is fault for plan in self._plans)

    def hold(self, partitions: Collection[TopicPartition]) -> None:
        """Hold back the answers to producers of these: those that the paused partition itself does not."""
        for tp in partitions:
            self._held.setdefault(tp, [])

    def release(self, partitions: Collection[TopicPartition]) -> None:
        for tp in partitions:
            for answer in self._held.pop(tp, ()):
                answer()

    def drop_held(self) -> None:
        """Forget answers that are held back: the node has ended, and with it the connections."""
        self._held.clear()

    # --- The Kafka listener -------------------------------------------------------------------------------------------

    def kafka_api(self, api: Api) -> Api:
        if api.key is ApiKey.PRODUCE:
            return self._lossy_produce(api)
        if api.key is ApiKey.END_TXN:
            return self._lossy_end_txn(api)
        return api

    def _lossy_produce(self, api: Api) -> Api:
        inner = api.begin
        assert inner is not None

        def begin(context: RequestContext, frame: memoryview, body: int) -> Answer:
            if not self._held and not self._plans:
                return inner(context, frame, body)
            touched = self._partitions(ProduceRequest.parse(frame, context.api_version, body), context.api_version)
            plan = self._find(Loss.PRODUCE_ANSWER, {tp.topic for tp in touched})
            if plan is not None:
                return self._withheld(inner, context, frame, body, lambda _: self._lose_answer(plan, context))
            held = next((tp for tp in touched if tp in self._held), None)
            if held is None:
                return inner(context, frame, body)
            # With acks=all the paused partition itself does not answer; with acks=1 nothing else would hold it back.
            return self._withheld(inner, context, frame, body, lambda parts: self._answer_later(held, context, parts))

        return replace(api, begin=begin)

    def _partitions(self, request: ProduceRequest, version: int) -> list[TopicPartition]:
        by_id = version >= PRODUCE_TOPIC_ID_VERSION
        return [
            TopicPartition((self.topic_name(item.topic_id) or "") if by_id else item.topic, item.partition)
            for item in request.partitions
        ]

    @staticmethod
    def _withheld(
        begin: Callable[[RequestContext, memoryview, int], Answer],
        context: RequestContext,
        frame: memoryview,
        body: int,
        then: Callable[[Sequence[Part] | None], None],
    ) -> Answer:
        """Begin a request whose answer goes to `then` and not to the client."""
        answer = begin(_WithheldContext(context, then), frame, body)  # type: ignore[arg-type]
        if not isinstance(answer, Later):
            then(answer)
        return LATER

    def _lose_answer(self, plan: _Plan, context: RequestContext) -> None:
        self._use(plan)
        context.abort(_LOST)

    def _answer_later(self, held: TopicPartition, context: RequestContext, parts: Sequence[Part] | None) -> None:
        waiting = self._held.get(held)
        if waiting is None:
            context.answer(parts)
        else:
            waiting.append(lambda: context.answer(parts))

    def _lossy_end_txn(self, api: Api) -> Api:
        inner = api.handle
        assert inner is not None

        async def handle(context: RequestContext, body: memoryview) -> Buffer:
            if not self._plans:
                return await inner(context, body)
            request = parse_request(ApiKey.END_TXN, context.api_version, body)
            names = {request.transactional_id} if request.committed else set()
            plan = self._find(Loss.COMMIT_REQUEST, names)
            if plan is not None:
                self._lose_answer(plan, context)
                return b""
            plan = self._find(Loss.COMMIT_ANSWER, names)
            answer = await inner(context, body)
            if plan is not None and plan in self._plans and not int.from_bytes(bytes(answer[_ERROR_AT]), "big"):
                self._lose_answer(plan, context)
            return answer

        return replace(api, handle=handle)

    # --- GRPC ---------------------------------------------------------------------------------------------------------

    def grpc_interceptors(self) -> Sequence[grpc.aio.ServerInterceptor[Any, Any]]:
        return (_GrpcInterceptor(self.grpc_call),)

    async def grpc_call(
        self, method: str, call: Callable[[Any, Any], Awaitable[Any]], request: Any, context: Any
    ) -> Any:
        if self.is_dead():
            await _lose_call(context)
        names = _committed_names(method, request) if self._plans else set()
        plan = self._find(Loss.COMMIT_REQUEST, names)
        if plan is not None:
            self._use(plan)
            await _lose_call(context)
        plan = self._find(Loss.COMMIT_ANSWER, names)
        try:
            response = await call(request, context)
        except SimulatedCrash:
            await _lose_call(context)
        if self.is_dead():
            await _lose_call(context)
        if plan is not None and plan in self._plans:
            self._use(plan)
            await _lose_call(context)
        return response

    # --- Plans --------------------------------------------------------------------------------------------------------

    def _find(self, loss: Loss, names: Collection[str]) -> _Plan | None:
        if not names:
            return None
        return next(
            (plan for plan in self._plans if plan.loss is loss and (plan.name is None or plan.name in names)), None
        )

    def _use(self, plan: _Plan) -> None:
        plan.left -= 1
        if plan.left == 0:
            self._plans.remove(plan)
            plan.fault.used_up()
        plan.fault.happened()


class _WithheldContext:
    """A request's context whose answer goes elsewhere."""

    def __init__(self, context: RequestContext, then: Callable[[Sequence[Part] | None], None]) -> None:
        self._context = context
        self.answer = then

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


class _GrpcInterceptor(_ServerInterceptor):
    """Puts `intercept` around every call that has one request and one answer."""

    def __init__(self, intercept: Callable[[str, Callable[[Any, Any], Awaitable[Any]], Any, Any], Any]) -> None:
        self._intercept = intercept

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any
    ) -> grpc.RpcMethodHandler[Any, Any]:
        handler = await continuation(handler_call_details)
        if handler is None or handler.unary_unary is None:
            return handler  # type: ignore[no-any-return]
        method = str(handler_call_details.method).rpartition("/")[2]

        async def call(request: Any, context: Any) -> Any:
            return await self._intercept(method, handler.unary_unary, request, context)

        return grpc.unary_unary_rpc_method_handler(call, handler.request_deserializer, handler.response_serializer)


def _committed_names(method: str, data: bytes) -> set[str]:
    """Return whose transaction a call commits, if it does. `data` is its message, which the node parses itself."""
    with suppress(DecodeError):
        if method == "EndTransaction":
            request = transactions_pb2.EndTransactionRequest.FromString(data)
            return {request.transactional_id} if request.commit else set()
        if method == "CommitSharedTransaction":
            return {shared_pb2.CommitSharedTransactionRequest.FromString(data).key}
    return set()


async def _lose_call(context: Any) -> NoReturn:
    await context.abort(grpc.StatusCode.UNAVAILABLE, _LOST)
    raise AssertionError("abort raises")
