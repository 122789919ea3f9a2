"""semel.v1.TransactionService. Its callers speak the protocol with an epoch of its own for each transaction (T6)."""

from __future__ import annotations

from dataclasses import replace

from semel.broker.acls.rights import rights_of_call
from semel.broker.listeners.grpc.convert import filled, offset_commit, optional_producer, topic_partitions
from semel.broker.listeners.grpc.edge import Context
from semel.broker.listeners.grpc.errors import item_error
from semel.broker.permitted import transactions
from semel.broker.services import Services
from semel.protocol.api.commit_decisions import NO_SEQUENCE
from semel.protocol.api.producer_ids import InitProducerIdRequest
from semel.protocol.api.transactions import (
    AbortTransactionRequest,
    AddPartitionsToTxnRequest,
    DescribeTransactionRequest,
    EndTxnRequest,
    ListTransactionsRequest,
)
from semel.protocol.ids import TopicPartition
from semel.protocol.proto_conversions import by_topic, producer_message, producer_of
from semel.protocol.v1 import transactions_pb2
from semel.runtime.turns import in_turns


class TransactionService:
    """Producer ids and transactions."""

    def __init__(self, node: Services) -> None:
        self._node = node

    async def init_producer_id(
        self, request: transactions_pb2.InitProducerIdRequest, _context: Context
    ) -> transactions_pb2.InitProducerIdResponse:
        response = await transactions.init_producer_id(
            self._node,
            rights_of_call(),
            InitProducerIdRequest(
                request.transactional_id or None,
                request.transaction_timeout_ms,
                optional_producer(request.producer, request.HasField("producer")),
                request.two_phase,
                request.keep_prepared,
            ),
        )
        return transactions_pb2.InitProducerIdResponse(
            producer=producer_message(response.producer),
            ongoing=None if response.ongoing is None else producer_message(response.ongoing),
        )

    async def add_partitions(
        self, request: transactions_pb2.AddPartitionsRequest, _context: Context
    ) -> transactions_pb2.AddPartitionsResponse:
        response = await transactions.add_to_transaction(
            self._node,
            rights_of_call(),
            AddPartitionsToTxnRequest(
                request.transactional_id, producer_of(request.producer), await topic_partitions(request.topics)
            ),
        )
        message = transactions_pb2.AddPartitionsResponse()
        return await filled(
            message,
            message.items,
            (
                transactions_pb2.AddPartitionsResponse.Item(
                    topic=tp.topic, partition=tp.partition, error=item_error(error)
                )
                for tp, error in response.errors.items()
            ),
        )

    async def commit_offsets(
        self, request: transactions_pb2.TxnCommitOffsetsRequest, _context: Context
    ) -> transactions_pb2.TxnCommitOffsetsResponse:
        asked = await offset_commit(request)
        expected = {
            TopicPartition(item.topic, item.partition): item.expected_offset
            async for item in in_turns(request.items)
            if item.HasField("expected_offset")
        }
        response = await transactions.commit_offsets_in_transaction(
            self._node,
            rights_of_call(),
            replace(
                asked,
                transactional_id=request.transactional_id,
                producer=producer_of(request.producer),
                expected=expected,
            ),
        )
        message = transactions_pb2.TxnCommitOffsetsResponse()
        return await filled(
            message,
            message.items,
            (
                transactions_pb2.TxnCommitOffsetsResponse.Item(
                    topic=tp.topic, partition=tp.partition, error=item_error(error)
                )
                for tp, error in response.errors.items()
            ),
        )

    async def end_transaction(
        self, request: transactions_pb2.EndTransactionRequest, _context: Context
    ) -> transactions_pb2.EndTransactionResponse:
        response = await transactions.end_transaction(
            self._node,
            rights_of_call(),
            EndTxnRequest(
                request.transactional_id,
                producer_of(request.producer),
                request.commit,
                token=request.token,
                payload=request.payload,
                sequence=request.sequence if request.HasField("sequence") else NO_SEQUENCE,
            ),
        )
        return transactions_pb2.EndTransactionResponse(
            producer=producer_message(response.producer), already_committed=response.already_committed
        )

    async def list_transactions(
        self, request: transactions_pb2.ListTransactionsRequest, _context: Context
    ) -> transactions_pb2.ListTransactionsResponse:
        response = await transactions.list_transactions(
            self._node,
            rights_of_call(),
            ListTransactionsRequest(
                frozenset(request.states),
                frozenset(request.producer_ids),
                request.min_duration_ms or -1,
                request.transactional_id_pattern,
            ),
            partial=True,
        )
        message = transactions_pb2.ListTransactionsResponse(
            unknown_states=response.unknown_states, unreadable=response.unreadable
        )
        return await filled(
            message,
            message.items,
            (
                transactions_pb2.ListTransactionsResponse.Item(
                    transactional_id=found.transactional_id,
                    producer_id=found.producer_id,
                    state=found.state,
                    last_token=found.last_token,
                    last_commit_ms=found.last_commit_ms,
                )
                for found in response.transactions
            ),
        )

    async def describe_transaction(
        self, request: transactions_pb2.DescribeTransactionRequest, _context: Context
    ) -> transactions_pb2.TransactionDescription:
        found = await transactions.describe_transaction(
            self._node, rights_of_call(), DescribeTransactionRequest(request.transactional_id)
        )
        return transactions_pb2.TransactionDescription(
            transactional_id=found.transactional_id,
            state=found.state,
            producer=producer_message(found.producer),
            timeout_ms=found.timeout_ms,
            start_time_ms=found.start_time_ms,
            last_update_ms=found.last_update_ms,
            coordinator_epoch=found.coordinator_epoch,
            topics=by_topic(found.partitions),
        )

    async def abort_transaction(
        self, request: transactions_pb2.AbortTransactionRequest, _context: Context
    ) -> transactions_pb2.AbortTransactionResponse:
        await transactions.abort_transaction(
            self._node, rights_of_call(), AbortTransactionRequest(request.transactional_id)
        )
        return transactions_pb2.AbortTransactionResponse()
