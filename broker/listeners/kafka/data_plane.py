# cython: annotation_typing=False, boundscheck=True, wraparound=True, nonecheck=True
"""Produce and Fetch on the Kafka listener: bytes to requests, answers to frames, and nothing between."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from semel.broker.handlers.fetch.handler import FetchHandler
from semel.broker.handlers.partitions.leader_hints import leader_endpoints
from semel.broker.handlers.produce.handler import ProduceHandler
from semel.broker.listeners.kafka.limits import entries_max
from semel.broker.listeners.kafka.registry import LATER, Answer, Api, RequestContext
from semel.broker.permitted.produce import begin_produce
from semel.protocol.errors import ErrorCode
from semel.protocol.kafka.api import ApiKey, Part
from semel.protocol.kafka.fetch import FETCH_MAX_VERSION, FETCH_MIN_VERSION, FetchRequest, FetchResponse
from semel.protocol.kafka.produce import (
    ACKS_NONE,
    PRODUCE_MIN_VERSION,
    PRODUCE_TOPIC_ID_VERSION,
    ProduceRequest,
    ProduceResponse,
)


def produce_api(handler: ProduceHandler) -> Api:
    """Return the Produce API. With acks=0 there is no answer, and an error closes the connection, as in Kafka.

    It is advertised from version 0 on, because librdkafka turns compression off otherwise; 3 is the lowest served.
    """
    return Api(
        ApiKey.PRODUCE,
        PRODUCE_MIN_VERSION,
        PRODUCE_TOPIC_ID_VERSION,
        begin=partial(_begin_produce, handler),
        pipelined=True,
        advertised_min_version=0,
    )


def _begin_produce(handler: ProduceHandler, context: RequestContext, frame: memoryview, body: int) -> Answer:
    version = context.api_version
    request = ProduceRequest.parse(frame, version, body, entries_max(context.node))
    request.trace = context.trace
    if request.acks == ACKS_NONE:
        response = begin_produce(handler, context.rights, request, version, partial(_drop, context), context)
        if response is None:
            return LATER
        _note_dropped(context, response)
        return None
    if context.usage is not None:
        return _begin_counted(handler, context, request)
    done = partial(_answer, handler, context)
    response = begin_produce(handler, context.rights, request, version, done, context)
    return LATER if response is None else _framed(handler, context, response)


def _answer(handler: ProduceHandler, context: RequestContext, response: ProduceResponse) -> None:
    context.answer(_framed(handler, context, response))


def _drop(context: RequestContext, response: ProduceResponse) -> None:
    """Take what became of a request with acks=0, which has no answer."""
    _note_dropped(context, response)
    context.answer(None)


def _note_dropped(context: RequestContext, response: ProduceResponse) -> None:
    if context.usage is not None:
        context.usage.produced()
    _abort_on_error(context, response)


def _framed(handler: ProduceHandler, context: RequestContext, response: ProduceResponse) -> Sequence[Part]:
    """Return the answer, with the addresses of the leaders that it names: those for this listener's clients."""
    if handler.names_leaders:
        leaders = [each.leader_id for each in response.partitions]
        response.node_endpoints = leader_endpoints(context.node, leaders, context.listener_name)
    return response.frame(context.api_version, context.correlation_id)


def _begin_counted(handler: ProduceHandler, context: RequestContext, request: ProduceRequest) -> Answer:
    """Begin a request of a client with a quota, whose answer says how long nothing more is read of it."""
    version = context.api_version

    def framed(response: ProduceResponse) -> Sequence[Part]:
        assert context.usage is not None
        response.throttle_time_ms = context.usage.produced()
        return _framed(handler, context, response)

    response = begin_produce(
        handler, context.rights, request, version, lambda response: context.answer(framed(response)), context
    )
    return LATER if response is None else framed(response)


def _abort_on_error(context: RequestContext, response: ProduceResponse) -> None:
    for item in response.partitions:
        if item.error is not ErrorCode.NONE:
            context.abort(f"a batch with acks=0 for {item.topic}-{item.partition} was refused: {item.error.name}")
            return


def fetch_api(handler: FetchHandler) -> Api:
    """Return the Fetch API. Its records go out as ranges of their files."""

    def begin(context: RequestContext, frame: memoryview, body: int) -> Answer:
        version = context.api_version
        request = FetchRequest.parse(frame, version, body, entries_max(context.node))
        begun = handler.begin(
            request,
            version,
            lambda response: context.answer(response.frame(version, context.correlation_id)),
            rights=context.rights,
            usage=context.usage,
            listener_name=context.listener_name,
        )
        if isinstance(begun, FetchResponse):
            return begun.frame(version, context.correlation_id)
        context.on_close = begun.cancel
        return LATER

    return Api(ApiKey.FETCH, FETCH_MIN_VERSION, FETCH_MAX_VERSION, begin=begin)
