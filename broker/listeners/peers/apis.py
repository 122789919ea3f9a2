"""What other nodes of the cluster are served, and clients are not (S1).

A marker from here is the word of a transaction's coordinator: it is appended as it is, and only the coordinator epochs
that the partition has seen stand against it (P9). Answers to verifications are this coordinator's, and pass its barrier
(R9). A fetch is the one of the node that proved itself, whatever id it names.
"""

from __future__ import annotations

from typing import Final, Protocol

from semel.broker.handlers.fetch.call import Done
from semel.broker.handlers.producers_before import known_producers, page_of, takes_long
from semel.broker.handlers.replica_ends import replica_ends
from semel.broker.handlers.write_txn_markers import LocalMarkerWriter
from semel.broker.listeners.kafka.apis.bounded_concurrency import bounded_concurrency
from semel.broker.listeners.kafka.large_messages import beside_if
from semel.broker.listeners.kafka.limits import entries_max
from semel.broker.listeners.kafka.registry import LARGE_BYTES, LATER, Answer, Api, RequestContext
from semel.protocol.api.transactions import AddPartitionsToTxnRequest, TxnMarker
from semel.protocol.errors import SemelError
from semel.protocol.kafka.api import ApiKey, WireFormatError
from semel.protocol.kafka.fetch import FETCH_MAX_VERSION, FETCH_MIN_VERSION, FetchRequest, FetchResponse
from semel.protocol.kafka.node_messages import (
    ADD_PARTITIONS_TO_TXN_VERSION,
    WRITE_TXN_MARKERS_VERSION,
    Errors,
    build_marker_results,
    build_transaction_results,
    parse_markers,
    parse_transactions,
)
from semel.protocol.kafka.producers_before import (
    DESCRIBE_PRODUCERS_VERSION,
    ProducersBefore,
    ProducersBeforeAnswer,
)
from semel.protocol.kafka.replica_ends import REPLICA_ENDS_VERSION, build_ends, parse_ends_asked


class BegunFetch(Protocol):
    """A fetch that is not answered yet."""

    def cancel(self) -> None:
        """Give no answer any more: nobody waits for it."""
        ...


class ReplicaFetches(Protocol):
    """What serves the fetches of followers: `ReplicaFetchHandler`, or `FetchHandler` with what clients may read."""

    def begin(self, request: FetchRequest, version: int, done: Done) -> FetchResponse | BegunFetch:
        """Return the answer, or the fetch that will call `done` with it unless it is cancelled."""
        ...

    def finish(self) -> None:
        """Answer all that wait with what there is, and let none wait any more."""
        ...


def write_txn_markers_api(writer: LocalMarkerWriter) -> Api:
    """Return WriteTxnMarkers as coordinators on other nodes send it."""

    async def handle(context: RequestContext, body: memoryview) -> bytes:
        markers = await beside_if(len(body) > LARGE_BYTES, parse_markers, body, entries_max(context.node))

        async def write(marker: TxnMarker) -> tuple[int, Errors]:
            return marker.producer.producer_id, await writer.write_markers(marker)

        return build_marker_results(await bounded_concurrency(markers, write))

    return Api(
        ApiKey.WRITE_TXN_MARKERS,
        WRITE_TXN_MARKERS_VERSION,
        WRITE_TXN_MARKERS_VERSION,
        handle,
        pipelined=True,
    )


async def handle_transactions(context: RequestContext, body: memoryview) -> bytes:
    """AddPartitionsToTxn as leaders of partitions on other nodes send it, before they append a batch (T8)."""
    requests = await beside_if(len(body) > LARGE_BYTES, parse_transactions, body, entries_max(context.node))

    async def check(request: AddPartitionsToTxnRequest) -> tuple[str, Errors]:
        try:
            response = await context.node.transactions.check_batches(request)
        except SemelError as error:
            return request.transactional_id, dict.fromkeys(request.partitions, error.code)
        return request.transactional_id, response.errors

    return build_transaction_results(await bounded_concurrency(requests, check))


ADD_PARTITIONS_TO_TXN: Final = Api(
    ApiKey.ADD_PARTITIONS_TO_TXN,
    ADD_PARTITIONS_TO_TXN_VERSION,
    ADD_PARTITIONS_TO_TXN_VERSION,
    handle_transactions,
    pipelined=True,
)


async def handle_producers(context: RequestContext, body: memoryview) -> bytes:
    """DescribeProducers as a replica sends it that begins a log (P2)."""
    asked = ProducersBefore.parse(body, entries_max(context.node))
    try:
        entries = await known_producers(context.node, asked)
    except SemelError as error:
        return ProducersBeforeAnswer(error.code, error.message).build(asked.tp)
    snapshot, has_more = await beside_if(takes_long(entries), page_of, entries, asked)
    return ProducersBeforeAnswer(snapshot=snapshot, has_more=has_more).build(asked.tp)


DESCRIBE_PRODUCERS: Final = Api(
    ApiKey.DESCRIBE_PRODUCERS,
    DESCRIBE_PRODUCERS_VERSION,
    DESCRIBE_PRODUCERS_VERSION,
    handle_producers,
    pipelined=True,
)


async def handle_replica_ends(context: RequestContext, body: memoryview) -> bytes:
    """OffsetForLeaderEpoch as the controller sends it, where it is not known which replica has most (R4)."""
    asked = await beside_if(len(body) > LARGE_BYTES, parse_ends_asked, body, entries_max(context.node))
    ends = await replica_ends(context.node, asked)
    return await beside_if(len(body) > LARGE_BYTES, build_ends, ends)


REPLICA_ENDS: Final = Api(
    ApiKey.OFFSET_FOR_LEADER_EPOCH,
    REPLICA_ENDS_VERSION,
    REPLICA_ENDS_VERSION,
    handle_replica_ends,
    pipelined=True,
)


def replica_fetch_api(fetches: ReplicaFetches) -> Api:
    """Return Fetch as followers send it. One that names another replica than the node that asks is malformed."""

    def begin(context: RequestContext, frame: memoryview, body: int) -> Answer:
        version = context.api_version
        request = FetchRequest.parse(frame, version, body, entries_max(context.node))
        if request.replica_id != context.peer_node:
            raise WireFormatError(f"node {context.peer_node} fetches as replica {request.replica_id}")
        begun = fetches.begin(
            request, version, lambda response: context.answer(response.frame(version, context.correlation_id))
        )
        if isinstance(begun, FetchResponse):
            return begun.frame(version, context.correlation_id)
        context.on_close = begun.cancel
        return LATER

    return Api(ApiKey.FETCH, FETCH_MIN_VERSION, FETCH_MAX_VERSION, begin=begin)


def peer_apis(writer: LocalMarkerWriter, fetches: ReplicaFetches) -> tuple[Api, ...]:
    """Return what the listener of the peers serves besides ApiVersions."""
    return (
        replica_fetch_api(fetches),
        REPLICA_ENDS,
        write_txn_markers_api(writer),
        ADD_PARTITIONS_TO_TXN,
        DESCRIBE_PRODUCERS,
    )
