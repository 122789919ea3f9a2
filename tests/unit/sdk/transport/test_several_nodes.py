"""Where a client's calls go in a cluster: to the coordinator of the key, and on where a node is away."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from fake_node import Action, FakeNode

from semel.protocol.errors import ErrorCode, RetriableError
from semel.protocol.ids import TopicPartition
from semel.protocol.v1 import transactions_pb2
from semel.sdk.transport import control
from semel.sdk.transport.client import ClientCore
from semel.sdk.transport.known_nodes import COORDINATORS_MAX, KnownNodes
from semel.sdk.transport.options import ClientOptions
from semel.sdk.transport.rpcs import INIT_PRODUCER_ID, Place


@pytest.fixture
def nodes() -> Iterator[list[FakeNode]]:
    """Three nodes that know each other."""
    made = [FakeNode({"t": 3}) for _ in range(3)]
    with ExitStack() as stack:
        for number, node in enumerate(made):
            node.node_id = number + 1
            node.others = [other for other in made if other is not node]
            stack.enter_context(node)
        yield made


@pytest.fixture
def core(nodes: list[FakeNode]) -> Iterator[ClientCore]:
    made = ClientCore("Test", ClientOptions((nodes[0].bootstrap,), api_timeout_ms=30_000))
    yield made
    made.close()


def initialization(name: str = "tx") -> transactions_pb2.InitProducerIdRequest:
    return transactions_pb2.InitProducerIdRequest(transactional_id=name)


def init(core: ClientCore, name: str = "tx", **options: Any) -> transactions_pb2.InitProducerIdResponse:
    return core.run(core.control.call(INIT_PRODUCER_ID, initialization(name), **options))


def test_a_call_follows_the_trailer_and_the_next_one_goes_there_at_once(
    nodes: list[FakeNode], core: ClientCore
) -> None:
    nodes[0].sends_to = nodes[1]
    for _ in range(3):
        init(core)
    assert [len(node.names()) for node in nodes] == [1, 3, 0]
    init(core, "other")
    assert [len(node.names()) for node in nodes] == [2, 4, 0], "another key may live elsewhere"


def test_one_attempt_without_retries_follows_the_trailer_too(nodes: list[FakeNode], core: ClientCore) -> None:
    """Joins, heartbeats and commits are tried again by those who make them."""
    nodes[0].sends_to = nodes[2]
    init(core, retry=False)
    assert [len(node.names()) for node in nodes] == [1, 0, 1]


def test_a_coordinator_that_moved_on_is_followed_and_forgotten(nodes: list[FakeNode], core: ClientCore) -> None:
    nodes[0].sends_to = nodes[1]
    init(core)
    nodes[1].sends_to = nodes[2]
    init(core)
    init(core)
    assert [len(node.names()) for node in nodes] == [1, 2, 2]


def test_nodes_that_send_a_caller_in_a_circle_are_asked_with_pauses(nodes: list[FakeNode], core: ClientCore) -> None:
    nodes[0].sends_to, nodes[1].sends_to = nodes[1], nodes[0]
    with pytest.raises(RetriableError, match="another node has it") as caught:
        init(core, timeout_ms=300, retry=False)
    assert caught.value.code is ErrorCode.NOT_COORDINATOR
    assert len(nodes[0].names()) + len(nodes[1].names()) == 4, "one attempt is sent on a few times"
    nodes[1].sends_to = None
    init(core)


def test_a_coordinator_that_died_is_looked_for_again(nodes: list[FakeNode], core: ClientCore) -> None:
    nodes[0].sends_to = nodes[1]
    init(core)
    nodes[1].stop()
    nodes[0].sends_to = nodes[2]
    init(core)
    assert len(nodes[2].names()) == 1


def test_a_client_that_began_with_one_address_goes_on_with_the_nodes_it_has_learned(
    nodes: list[FakeNode], core: ClientCore
) -> None:
    core.run(core.cluster.refresh(["t"]))
    nodes[0].stop()
    nodes[1].stop()
    init(core)
    assert len(nodes[2].names()) == 1


def test_a_node_whose_leader_is_cut_off_is_asked_no_more(nodes: list[FakeNode], core: ClientCore) -> None:
    """It names a coordinator of long ago, which is dead; others know the one of now."""
    core.run(core.cluster.refresh(["t"]))
    nodes[0].sends_to = nodes[1]
    nodes[1].stop()
    nodes[2].sends_to = None
    init(core)
    assert len(nodes[2].names()) == 1


@pytest.fixture
def patient(nodes: list[FakeNode], monkeypatch: pytest.MonkeyPatch) -> Iterator[ClientCore]:
    """A client that knows the nodes and would wait for an hour, and soon asks whether one is there."""
    monkeypatch.setattr(control, "_SILENT_S", 0.05)
    monkeypatch.setattr(control, "_PROOF_S", 0.2)
    hour = 3_600_000
    made = ClientCore("Test", ClientOptions((nodes[0].bootstrap,), api_timeout_ms=hour, request_timeout_ms=hour))
    made.run(made.cluster.refresh(["t"]))
    yield made
    made.close()


def test_a_frozen_node_is_found_out_long_before_the_call_is_over(nodes: list[FakeNode], patient: ClientCore) -> None:
    for name in ("InitProducerId", "GetMetadata"):
        nodes[0].call_script[name].append(Action.HOLD)
    init(patient)
    assert [len(node.names()) for node in nodes] == [1, 1, 0]


def test_a_frozen_coordinator_is_not_asked_once_more_for_who_coordinates_now(
    nodes: list[FakeNode], patient: ClientCore
) -> None:
    """It was the node that answers any call, too: the time until it is found out was spent twice."""
    patient.control.nodes.remember(INIT_PRODUCER_ID.key_of(initialization()), patient.control.nodes.by_id[1])
    for name in ("InitProducerId", "GetMetadata"):
        nodes[0].call_script[name].extend([Action.HOLD] * 2)
    init(patient)
    assert [len(node.names()) for node in nodes] == [1, 1, 0]


def test_a_slow_call_of_a_node_that_lives_is_waited_for(
    nodes: list[FakeNode], core: ClientCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "_SILENT_S", 0.05)
    monkeypatch.setattr(control, "_PROOF_S", 10.0)
    core.run(core.cluster.refresh(["t"]))
    nodes[0].call_script["InitProducerId"].append(Action.HOLD)
    before = len(nodes[0].calls)
    call = core.io.submit(
        core.control.call(INIT_PRODUCER_ID, transactions_pb2.InitProducerIdRequest(transactional_id="tx"))
    )
    while len(nodes[0].calls) < before + 4:  # the call, and three questions whether the node lives
        assert not call.done()
    nodes[0].release()
    call.result(30)
    assert [len(node.names()) for node in nodes] == [1, 0, 0]


def test_with_one_node_nothing_is_asked_but_the_call() -> None:
    with FakeNode({"t": 1}) as node:
        core = ClientCore("Test", ClientOptions((node.bootstrap,)))
        try:
            init(core)
            core.run(core.cluster.refresh(["t"]))
            init(core)
            assert [name for name, _ in node.calls] == ["InitProducerId", "GetMetadata", "InitProducerId"]
            assert core.control.nodes.by_id == {}
        finally:
            core.close()


def test_what_is_remembered_of_coordinators_is_bounded() -> None:
    known = KnownNodes(["here:1"])
    for number in range(COORDINATORS_MAX + 1):
        known.remember((Place.GROUP, str(number)), "there:1")
        known.coordinator((Place.GROUP, "0"))
    assert known.coordinator((Place.GROUP, "0")) == "there:1", "it is in use"
    assert known.coordinator((Place.GROUP, "1")) is None


def test_a_node_that_is_given_up_is_asked_nothing_more_that_others_may_answer() -> None:
    known = KnownNodes(["a:1", "b:1"])
    known.remember((Place.GROUP, "g"), "a:1")
    known.remember((Place.GROUP, "h"), "b:1")
    known.give_up_on("a:1")
    assert (known.current, known.coordinator((Place.GROUP, "g"))) == ("b:1", None)
    assert known.coordinator((Place.GROUP, "h")) == "b:1"


def test_of_calls_that_fail_together_one_moves_on() -> None:
    known = KnownNodes(["a:1", "b:1", "c:1"])
    for _ in range(3):
        known.move_on("a:1")
    assert known.current == "b:1"
    known.move_on("b:1")
    known.move_on("a:1")
    assert known.current == "c:1", "a late failure at another node says nothing of this one"
    known.move_on("c:1")
    assert known.current == "a:1"


def test_a_partition_led_elsewhere_is_not_taken_for_missing(nodes: list[FakeNode], core: ClientCore) -> None:
    nodes[0].leads = lambda tp: tp.partition + 1
    snapshot = core.run(core.cluster.look_up(["t"]))
    leaders = [snapshot.leader(TopicPartition("t", number)) for number in range(3)]
    assert [None if one is None else one.leader_id for one in leaders] == [1, 2, 3]
