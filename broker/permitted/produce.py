"""Batches of who may write: those for other topics are refused, and the rest of a request is appended."""

from __future__ import annotations

from typing import Final

from semel.broker.acls.rights import Rights
from semel.broker.handlers.produce.batch_checks import Turn
from semel.broker.handlers.produce.handler import ProduceHandler
from semel.broker.handlers.produce.large import PART
from semel.broker.handlers.produce.run import Done
from semel.broker.permitted.transactions import name_of_transaction
from semel.protocol.acls import ResourceType
from semel.protocol.batch_header import read_header
from semel.protocol.errors import ErrorCode, FatalError, SemelError
from semel.protocol.kafka.produce import (
    PRODUCE_TOPIC_ID_VERSION,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
)

_TOPIC: Final = ResourceType.TOPIC
_TRANSACTION: Final = ResourceType.TRANSACTIONAL_ID


def begin_produce(
    handler: ProduceHandler, rights: Rights, request: ProduceRequest, version: int, done: Done, turn: Turn | None
) -> ProduceResponse | None:
    """Do what `ProduceHandler.begin` does, with the batches that the caller may write."""
    if rights.are_all:
        return handler.begin(request, version, done, turn)
    if handler.spans is not None:
        handler.spans.note(request)
    parts = _PermittedParts(handler, rights)
    if len(request.partitions) > PART:
        handler.begin_large(parts, request, version, done, turn)
        return None
    return parts.begin_part(request, version, done, turn)


class _PermittedParts:
    """Appends parts of one request, without what the caller may not write."""

    def __init__(self, handler: ProduceHandler, rights: Rights) -> None:
        self._handler = handler
        self._rights = rights
        self.refuse = handler.refuse

    def begin_part(
        self, request: ProduceRequest, version: int, done: Done, turn: Turn | None
    ) -> ProduceResponse | None:
        """Append one part. Returns its answer, or None where `done` is called with it later."""
        handler, partitions = self._handler, request.partitions
        refusals = _refusals(handler, self._rights, request, version)
        if not refusals:
            return handler.begin_part(request, version, done, turn)
        refused = {place: handler.refusal(partitions[place], error, version) for place, error in refusals.items()}
        allowed = [item for place, item in enumerate(partitions) if place not in refused]
        if not allowed:
            return ProduceResponse([refused[place] for place in range(len(partitions))])

        def merged(response: ProduceResponse) -> ProduceResponse:
            appended = iter(response.partitions)
            answers = [refused[place] if place in refused else next(appended) for place in range(len(partitions))]
            return ProduceResponse(answers, response.throttle_time_ms)

        rest = ProduceRequest(allowed, request.transactional_id, request.acks, request.timeout_ms)
        response = handler.begin_part(rest, version, lambda later: done(merged(later)), turn)
        return None if response is None else merged(response)


def _refusals(handler: ProduceHandler, rights: Rights, request: ProduceRequest, version: int) -> dict[int, SemelError]:
    """Return why batches are refused, by their places in the request."""
    transactional_id = request.transactional_id
    if transactional_id is not None and any(map(_is_transactional, request.partitions)):
        name = name_of_transaction(transactional_id)
        if not rights.may(_TRANSACTION, name):
            return dict.fromkeys(range(len(request.partitions)), rights.refusal(_TRANSACTION, name))
    topic_name = handler.node.metadata.topic_name
    decided: dict[str, SemelError | None] = {}
    refusals: dict[int, SemelError] = {}
    for place, item in enumerate(request.partitions):
        # An unknown id is refused as such: nobody needs a right to hear that.
        name = item.topic if version < PRODUCE_TOPIC_ID_VERSION else topic_name(item.topic_id) or ""
        if not name:
            continue
        if name not in decided:
            decided[name] = None if rights.may(_TOPIC, name) else _refusal(rights, name, version)
        error = decided[name]
        if error is not None:
            refusals[place] = error
    return refusals


def _refusal(rights: Rights, name: str, version: int) -> SemelError:
    """Return what is told who may not write. Who names a topic by its id does not hear its name."""
    if version < PRODUCE_TOPIC_ID_VERSION:
        return rights.refusal(_TOPIC, name)
    return FatalError("the caller may not WRITE the topic with this id", ErrorCode.TOPIC_AUTHORIZATION_FAILED)


def _is_transactional(item: ProducePartition) -> bool:
    if not item.records:
        return False
    try:
        return read_header(item.records).is_transactional
    except SemelError:
        return False  # it is refused for what it is
