"""Asking several nodes for their facts: what one does not know another may, and one that is away is told."""

from __future__ import annotations

import asyncio
from collections.abc import Container
from dataclasses import replace
from typing import Any

import pytest
from doctor_facts import HELD, NODE, T0, TXN

from semel.protocol.api.diagnostics import HangingEnd, NodeSnapshot, TransactionHistory
from semel.protocol.errors import ErrorCode, FatalError, RetriableError, SemelError
from semel.protocol.ids import ProducerIdAndEpoch, TopicPartition
from semel.protocol.plain_messages import to_message
from semel.protocol.v1 import diagnostics_pb2, metadata_pb2
from semel.sdk.diagnosis.calls import end_hanging, read_history, take_snapshots
from semel.sdk.diagnosis.rules import diagnose

HISTORY = TransactionHistory("id", TopicPartition("__transaction_state", 1), 2, 5, 0, 0, 0, (), 0)


class Nodes:
    """`Control` for nodes that are made up: each has an address, and facts or an error."""

    def __init__(self, facts: dict[int, NodeSnapshot | SemelError], *, historian: int = 2) -> None:
        self.facts = facts
        self.historian = historian
        self.calls: list[tuple[str, str | None, Any]] = []
        self.also: dict[int, NodeSnapshot] = {}
        """What a node tells when it is asked about certain producers."""
        self.waited_for: list[int] = []
        """Nodes that a call was tried again at, for as long as it may take."""

    async def call(
        self,
        rpc: Any,
        request: Any,
        *,
        address: str | None = None,
        timeout_ms: float | None = None,
        final: Container[ErrorCode] = (),
    ) -> Any:
        self.calls.append((rpc.name, address, request))
        node_id = min(self.facts) if address is None else int(address.partition(":")[0].removeprefix("node"))
        if rpc.name == "GetMetadata":
            nodes = [metadata_pb2.Node(node_id=each, grpc_host=f"node{each}", grpc_port=9094) for each in self.facts]
            partition = metadata_pb2.Partition(partition=0, leader_id=2)
            topic = metadata_pb2.Topic(name="orders", partitions=[partition])
            return metadata_pb2.GetMetadataResponse(nodes=nodes, topics=[topic])
        facts = self.facts[node_id]
        if isinstance(facts, SemelError):
            if isinstance(facts, RetriableError) and facts.code not in final:
                self.waited_for.append(node_id)
            raise facts
        if rpc.name == "GetSnapshot":
            told = self.also.get(node_id, facts) if request.producer_ids else facts
            return to_message(told, diagnostics_pb2.NodeSnapshot())
        if rpc.name == "AbortHangingTransaction":
            return diagnostics_pb2.AbortHangingResponse(producer_id=7, producer_epoch=3, committed=request.end == 1)
        if node_id != self.historian:
            raise RetriableError("it is not here", ErrorCode.NOT_COORDINATOR)
        return to_message(HISTORY, diagnostics_pb2.TransactionHistory())

    def asked(self, name: str) -> list[str | None]:
        return [address for called, address, _ in self.calls if called == name]


UNKNOWN = replace(NODE, held=(replace(HELD, is_known=False),), held_total=1)
OTHER = replace(NODE, node_id=2)


def test_a_single_node_is_asked_where_it_was_reached() -> None:
    """It may be advertised under an address that only others can reach."""
    nodes = Nodes({1: NODE})
    cluster = asyncio.run(take_snapshots(nodes))
    assert cluster.nodes == (NODE,)
    assert nodes.asked("GetSnapshot") == [None]


def test_all_nodes_are_asked_and_one_that_is_away_is_told() -> None:
    nodes = Nodes({1: UNKNOWN, 2: RetriableError("connection refused", ErrorCode.NETWORK_EXCEPTION)})
    cluster = asyncio.run(take_snapshots(nodes))
    assert cluster.nodes == (UNKNOWN,)
    assert cluster.unreachable == {2: "connection refused"}
    assert [one.kind.name for one in diagnose(cluster).findings] == ["node-unreachable", "unknown-holder"]


def test_a_holder_that_is_on_no_list_is_asked_for_by_its_producer_id() -> None:
    nodes = Nodes({1: UNKNOWN, 2: OTHER})
    nodes.also[2] = replace(OTHER, transactions=(TXN,), transactions_total=5_000)
    cluster = asyncio.run(take_snapshots(nodes))
    assert [one.kind.name for one in diagnose(cluster).findings] == ["lso-held"]
    asked = [list(request.producer_ids) for name, _, request in nodes.calls if name == "GetSnapshot"]
    assert asked == [[], [], [7], [7]]


def test_nobody_waits_for_a_node_that_is_away_and_it_is_asked_once() -> None:
    """It cost the doctor 5 s, and twice that where there was more to ask."""
    gone = RetriableError("connection refused", ErrorCode.NETWORK_EXCEPTION)
    nodes = Nodes({1: UNKNOWN, 2: OTHER, 3: gone})
    cluster = asyncio.run(take_snapshots(nodes))
    assert cluster.unreachable == {3: "connection refused"}
    assert nodes.asked("GetSnapshot").count("node3:9094") == 1
    assert nodes.waited_for == []
    busy = Nodes({1: NODE, 2: RetriableError("loading", ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)})
    asyncio.run(take_snapshots(busy))
    assert busy.waited_for == [2], "what will soon answer is waited for"


def test_a_history_is_asked_for_once_wherever_nodes_send_the_call() -> None:
    """All nodes were asked in turn, and one that was away cost seconds though another one had the history."""
    nodes = Nodes({1: NODE, 2: OTHER}, historian=1)
    assert asyncio.run(read_history(nodes, "id", 5)) == HISTORY
    assert [(name, address) for name, address, _ in nodes.calls] == [("GetTransactionHistory", None)]
    nodes = Nodes({1: FatalError("no", ErrorCode.INVALID_REQUEST), 2: OTHER})
    with pytest.raises(FatalError):
        asyncio.run(read_history(nodes, "id", 5))


def test_a_transaction_hangs_only_by_the_word_of_all_nodes() -> None:
    nodes = Nodes({1: OTHER, 2: replace(UNKNOWN, node_id=2)})
    done = asyncio.run(end_hanging(nodes, T0, 100, HangingEnd.AS_DECIDED))
    assert done == (ProducerIdAndEpoch(7, 3), True)
    assert nodes.asked("AbortHangingTransaction") == ["node2:9094"], "its leader writes the marker"
    (request,) = (request for name, _, request in nodes.calls if name == "AbortHangingTransaction")
    assert request.unknown_elsewhere

    known = Nodes({1: replace(OTHER, transactions=(TXN,)), 2: replace(UNKNOWN, node_id=2)})
    away = Nodes({1: RetriableError("refused", ErrorCode.NETWORK_EXCEPTION), 2: UNKNOWN})
    for refusing, why in (
        (known, "that of 'enrich-0'"),
        (away, "not all coordinators"),
        (Nodes({1: NODE, 2: OTHER}), "no transaction"),
    ):
        with pytest.raises(FatalError, match=why):
            asyncio.run(end_hanging(refusing, T0, 100, HangingEnd.ABORT))
        assert refusing.asked("AbortHangingTransaction") == []
