"""semel.v1.DiagnosticsService: what `semel doctor` and `semel txn why` ask."""

from __future__ import annotations

from semel.broker.acls.rights import rights_of_call
from semel.broker.listeners.grpc.edge import Context
from semel.broker.permitted import cluster
from semel.broker.services import Services
from semel.protocol.api.diagnostics import HangingEnd
from semel.protocol.errors import UsageError
from semel.protocol.ids import TopicPartition
from semel.protocol.plain_messages import from_message, to_message
from semel.protocol.v1 import diagnostics_pb2


class DiagnosticsService:
    """Facts of this node."""

    def __init__(self, node: Services) -> None:
        self._node = node

    async def get_snapshot(
        self, request: diagnostics_pb2.SnapshotRequest, _context: Context
    ) -> diagnostics_pb2.NodeSnapshot:
        snapshot = await cluster.snapshot(self._node, rights_of_call(), request.limit, request.producer_ids)
        return to_message(snapshot, diagnostics_pb2.NodeSnapshot())

    async def get_transaction_history(
        self, request: diagnostics_pb2.TransactionHistoryRequest, _context: Context
    ) -> diagnostics_pb2.TransactionHistory:
        history = await cluster.transaction_history(self._node, rights_of_call(), request.key, request.limit)
        return to_message(history, diagnostics_pb2.TransactionHistory())

    async def abort_hanging_transaction(
        self, request: diagnostics_pb2.AbortHangingRequest, _context: Context
    ) -> diagnostics_pb2.AbortHangingResponse:
        try:
            end = HangingEnd(request.end)
        except ValueError:
            raise UsageError(f"end {request.end} is none that this node knows: it is older than the caller") from None
        producer, committed = await cluster.end_hanging_transaction(
            self._node,
            rights_of_call(),
            from_message(request.partition, TopicPartition),
            request.start_offset,
            end,
            unknown_elsewhere=request.unknown_elsewhere,
        )
        return diagnostics_pb2.AbortHangingResponse(
            producer_id=producer.producer_id, producer_epoch=producer.producer_epoch, committed=committed
        )
