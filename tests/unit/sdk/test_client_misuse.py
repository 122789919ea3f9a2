"""Uses of the clients that can't work: each is told what to do in its place."""

from __future__ import annotations

import asyncio
import copy
import gc
import pickle
import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from fake_node import FakeNode

import semel
from semel.protocol.errors import SemelError, UsageError
from semel.sdk.transport.border import edge
from semel.testing import Broker

WAIT_S = 30


@pytest.fixture
def node() -> Iterator[FakeNode]:
    with FakeNode({"orders": 1}) as node:
        yield node


def test_a_producer_that_nobody_holds_was_called_closed(node: FakeNode) -> None:
    with pytest.raises(UsageError, match=r"closed when the last reference to it went; keep it in a variable"):
        semel.Producer(node.bootstrap).send("orders", b"x")
    send = semel.Producer(node.bootstrap).send
    gc.collect()
    with pytest.raises(UsageError, match="keep it in a variable"):
        send("orders", b"x")
    with semel.Producer(node.bootstrap) as producer:
        assert producer.send("orders", b"x").result(WAIT_S).offset == 0, "nothing was sent before"


def test_waiting_for_a_delivery_in_a_callback_blocked_for_ever(node: FakeNode) -> None:
    met: list[BaseException | None] = []
    done = threading.Event()

    with semel.Producer(node.bootstrap, linger_ms=0) as producer:

        def delivered(metadata: Any, error: SemelError | None) -> None:
            again = producer.send("orders", b"again")
            try:
                again.result()
            except SemelError as refused:
                met.append(refused)
            try:
                again.exception(timeout_s=60)
            except SemelError as refused:
                met.append(refused)
            again.add_done_callback(lambda *_: done.set())

        producer.send("orders", b"first", on_delivery=delivered)
        assert done.wait(WAIT_S), "the thread continues"
    assert [type(error) for error in met] == [UsageError, UsageError]
    assert "inside a callback" in str(met[0])


def test_clients_that_were_pickled_spoke_of_locks(node: FakeNode) -> None:
    async_faces = (semel.aio.Producer(node.bootstrap), semel.aio.Consumer(node.bootstrap), semel.aio.Admin())
    faces = (semel.Producer(node.bootstrap), semel.Consumer(node.bootstrap), semel.Admin(), *async_faces)
    for face in faces:
        for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(
                TypeError, match=rf"a {type(face).__name__} can't be pickled or copied: .* each process"
            ):
                attempt(face)
    for face in faces[:3]:
        face.close()


def test_a_batch_that_was_pickled_spoke_of_locks() -> None:
    with Broker() as node, semel.Admin(node.bootstrap) as admin:
        admin.create_topic("orders", partitions=1)
        with semel.Producer(node.bootstrap) as producer:
            producer.send("orders", b"x")
        with semel.Consumer(node.bootstrap) as consumer:
            consumer.assign([semel.TopicPartition("orders", 0)])
            batch = consumer.poll(WAIT_S)
            assert batch is not None
            with pytest.raises(TypeError, match=r"a Batch can't be pickled or copied: .*pass on `batch\.records`"):
                pickle.dumps(batch)
            assert pickle.loads(pickle.dumps(batch.records)) == batch.records


def test_a_consumer_that_reads_one_way_said_that_it_reads_by_assigned() -> None:
    consumer = semel.Consumer(group="enrich")
    consumer.assign([semel.TopicPartition("orders", 0)])
    with pytest.raises(UsageError, match=r"reads the partitions that it was assigned; call unsubscribe.* subscribed"):
        consumer.subscribe(["orders"])
    consumer.unsubscribe()
    consumer.subscribe(pattern="ord.*")
    with pytest.raises(UsageError, match="reads the topics that match its pattern; call unsubscribe"):
        consumer.assign([semel.TopicPartition("orders", 0)])


def test_a_consumer_says_how_much_it_holds_and_how_far_behind_it_is() -> None:
    """Producers had `statistics()`, and consumers had none."""
    with Broker() as node:
        node.create_topic("orders", partitions=2)
        with semel.Producer(node.bootstrap) as producer:
            for number in range(10):
                producer.send("orders", b"x" * 100, partition=number % 2)
        with semel.Consumer(node.bootstrap) as consumer:
            assert consumer.statistics() == {
                "partitions": 0, "paused": 0, "buffered_bytes": 0, "lag": 0, "skipped_batches": 0,
            }  # fmt: skip
            both = [semel.TopicPartition("orders", 0), semel.TopicPartition("orders", 1)]
            consumer.assign(both)
            first = consumer.poll(WAIT_S, max_records=1)
            assert first is not None
            consumer.pause(both[:1])
            found = consumer.statistics()
            assert found["partitions"] == 2
            assert found["paused"] == 1
            assert found["buffered_bytes"] > 0
            assert found["lag"] == sum(consumer.lag().values()) >= 4


# --- Habits of other clients ------------------------------------------------------------------------------------------

NOWHERE = "localhost:1"


def test_an_argument_that_a_method_does_not_have_was_a_bare_type_error() -> None:
    options: dict[str, Any] = {"group": "g", "topics": ["orders"]}
    with semel.Consumer(NOWHERE, **options) as consumer, semel.Producer(NOWHERE) as producer:
        calls: list[tuple[Any, dict[str, Any], str]] = [
            (consumer.poll, {"timeout_ms": 500}, r"Consumer\.poll\(\) has no argument 'timeout_ms'; .*timeout_s=0\.5$"),
            (consumer.poll, {"timeout": 0.5}, r"'timeout'; did you mean 'timeout_s'\?"),
            (consumer.poll, {"update_offsets": True}, r"'update_offsets'; it has: timeout_s, max_records"),
            (
                producer.flush,
                {"timeout": 3},
                r"Producer\.flush\(\) has no argument 'timeout'; did you mean 'timeout_s'",
            ),
            (producer.statistics, {"raw": True}, r"Producer\.statistics\(\) has no argument 'raw'; it takes none"),
        ]
        for method, arguments, expected in calls:
            with pytest.raises(UsageError, match=expected):
                method(**arguments)

    async def poll() -> None:
        poll: Any = semel.aio.Consumer(NOWHERE, **options).poll
        await poll(timeout_ms=500)

    with pytest.raises(UsageError, match=r"'timeout_ms'; what a call waits for is in seconds: timeout_s=0\.5"):
        asyncio.run(poll())


def test_a_type_error_of_the_programs_own_is_not_taken_for_a_wrong_name() -> None:
    def serializer(_: object) -> bytes:
        raise TypeError("mine")

    with (
        semel.Consumer(NOWHERE) as consumer,
        pytest.raises(TypeError, match="missing 1 required positional argument"),
    ):
        consumer.seek(semel.TopicPartition("orders", 0))  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="mine"):
        edge(serializer)(1)


TOPIC_FIRST = r"the first argument of Consumer is the address of a node, HOST:PORT, not 'orders'; give topics by name: "


@pytest.mark.parametrize("kind", [semel.Consumer, semel.aio.Consumer])
@pytest.mark.parametrize(
    ("topics", "options"),
    [
        (["orders"], {"bootstrap_servers": NOWHERE}),
        (["orders", "payments"], {"bootstrap_servers": NOWHERE}),
        (["orders"], {"group_id": "g"}),
    ],
)
def test_topics_in_the_place_of_the_address_were_taken_for_one(
    kind: Any, topics: list[str], options: dict[str, Any]
) -> None:
    with pytest.raises(UsageError, match=TOPIC_FIRST + re.escape(f"Consumer(bootstrap, ..., topics={topics!r})")):
        kind(*topics, **options)


def test_an_address_without_its_port_is_not_taken_for_a_topic_where_topics_are_given() -> None:
    with pytest.raises(UsageError, match="bootstrap address 'localhost' is not HOST:PORT"):
        semel.Consumer("localhost", topics=["orders"])
    with pytest.raises(UsageError, match="bootstrap address 'localhost' is not HOST:PORT"):
        semel.Producer("localhost")


@pytest.mark.parametrize("kind", [semel.Producer, semel.Consumer, semel.Admin, semel.aio.Producer, semel.sql.Outbox])
def test_settings_in_one_mapping_are_refused_with_how_to_give_them(kind: Any) -> None:
    name = kind.__name__
    with pytest.raises(UsageError, match=rf"^{name} takes settings as options, .*: {name}\(\*\*settings\)$"):
        kind({"bootstrap.servers": NOWHERE})


def test_too_many_arguments_by_place_named_a_hidden_class() -> None:
    kind: Any = semel.Producer
    with pytest.raises(UsageError, match=r"^Producer takes bootstrap by place and .*: Producer\(bootstrap, transact"):
        kind(NOWHERE, "billing")
