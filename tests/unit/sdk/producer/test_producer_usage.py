"""Bad calls of the producer fail at once, with a message that says what to do."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_node import FakeNode

import semel
from semel.protocol.errors import ErrorCode, FatalError, RetriableError, UsageError
from semel.sdk.transport.options import Bootstrap, parse_bootstrap

WAIT_S = 30


@pytest.fixture
def node() -> Iterator[FakeNode]:
    with FakeNode({"orders": 2}) as node:
        yield node


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lingerms": 5}, r"Producer has no option 'lingerms'; did you mean 'linger_ms'\?"),
        ({"lingr.ms": 5}, r"no option 'lingr.ms'; did you mean 'linger_ms'\?"),
        ({"compresion": "lz4"}, r"did you mean 'compression'\?"),
        ({"zzzzzz": 1}, r"no option 'zzzzzz'; it has: bootstrap, transactional_id"),
        ({"compression": "lz5"}, r"option compression can't be 'lz5'; did you mean 'lz4'\?"),
        ({"compression": "brotli"}, r"use one of: none, gzip, snappy, lz4, zstd"),
        ({"acks": 2}, r'option acks must be "all", 1 or 0, not 2'),
        ({"acks": True}, r"option acks must be"),
        ({"acks": 1, "idempotent": True}, r'an idempotent producer needs acks="all", not 1'),
        ({"acks": 1, "transactional_id": "a"}, r'transactions need acks="all"'),
        ({"transactional_id": ""}, r"option transactional_id must not be empty"),
        ({"transactional_id": 5}, r"option transactional_id must be text \(str\), not int 5"),
        ({"max_in_flight": 6}, r"max_in_flight is 5 at most"),
        ({"linger_ms": "5"}, r"option linger_ms must be an integer, not str '5'"),
        ({"linger_ms": -1}, r"option linger_ms must be between 0 and"),
        ({"batch_size_bytes": 1.5}, r"option batch_size_bytes must be an integer, not float 1.5"),
        ({"delivery_timeout_ms": 1, "linger_ms": 5}, r"delivery_timeout_ms \(1\) must be longer than linger_ms \(5\)"),
        ({"value_serializer": "avro"}, r"option value_serializer must be a function, \"json\" or"),
        ({"partitioner": 5}, r"option partitioner must be a function"),
        ({"auto_create_topics": 1}, r"option auto_create_topics must be True or False, not int 1"),
        ({"client_id": None}, r"option client_id must be text"),
    ],
)
def test_wrong_options_name_the_right_ones(options: dict[str, Any], message: str) -> None:
    for make in (semel.Producer, semel.aio.Producer):
        with pytest.raises(UsageError, match=message):
            make("localhost:9094", **options)


@pytest.mark.parametrize(
    "bootstrap", ["localhost", "localhost:", ":9094", "localhost:99999", "http://x:1", "a:1,b", "a b:1"]
)
def test_a_bootstrap_that_is_no_address_is_refused(bootstrap: str) -> None:
    with pytest.raises(
        UsageError, match="is not HOST:PORT; give the address of a node, its gRPC port or its Kafka port"
    ):
        semel.Producer(bootstrap)


def test_bootstrap_of_the_wrong_type_or_empty() -> None:
    with pytest.raises(UsageError, match='bootstrap must be text such as "localhost:9094", not int 9094'):
        semel.Producer(9094)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="bootstrap is empty"):
        semel.Producer(" , ")
    assert parse_bootstrap(["a:1", "[::1]:2"]) == Bootstrap(("a:1", "[::1]:2"))


def test_an_address_where_nobody_is_says_so() -> None:
    with FakeNode({}) as node:
        address = node.bootstrap
    producer = semel.Producer(address, max_block_ms=100)
    with pytest.raises(RetriableError, match=r"nothing listens on .* Is the node running\?"):
        producer.send("orders", b"x")
    producer.close()


def test_an_unknown_topic_is_named_with_the_way_to_make_it(node: FakeNode) -> None:
    with semel.Producer(node.bootstrap) as producer:
        with pytest.raises(
            FatalError, match=r"there is no topic 'oders'; create it with Admin\.create_topic"
        ) as caught:
            producer.send("oders", b"x")
        assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        producer.send("orders", b"x").result(WAIT_S)


def test_use_after_close(node: FakeNode) -> None:
    producer = semel.Producer(node.bootstrap)
    producer.send("orders", b"x")
    producer.close()
    producer.close()
    for call in (
        lambda: producer.send("orders", b"x"),
        producer.flush,
        lambda: producer.__enter__(),
    ):
        with pytest.raises(UsageError, match="this Producer is closed; make a new one"):
            call()
    with semel.Producer(node.bootstrap, transactional_id="a") as other:
        pass
    for call in (other.begin_transaction, other.commit_transaction, other.init_transactions):
        with pytest.raises(UsageError, match="this Producer is closed"):
            call()


@pytest.mark.parametrize("timeout", [-1, True, "5", float("nan")])
def test_a_time_to_wait_that_is_none_is_refused_at_once(node: FakeNode, timeout: Any) -> None:
    with semel.Producer(node.bootstrap) as producer:
        for call in (producer.flush, producer.close):
            with pytest.raises(UsageError, match="timeout_s must be seconds"):
                call(timeout)


def test_send_is_the_compiled_method_itself_without_a_call_in_between(node: FakeNode) -> None:
    with semel.Producer(node.bootstrap, transactional_id="a") as producer:
        assert producer.send == producer._core.accumulator.send
        with producer.transaction() as txn:
            assert txn.send == producer._core.accumulator.send


def test_transactions_need_a_name(node: FakeNode) -> None:
    with semel.Producer(node.bootstrap) as producer:
        for call in (
            producer.begin_transaction,
            producer.commit_transaction,
            producer.abort_transaction,
            producer.init_transactions,
        ):
            with pytest.raises(UsageError, match="has no transactional_id; make it with Producer"):
                call()
        with pytest.raises(UsageError, match="has no transactional_id"), producer.transaction():
            pass
        producer.send("orders", b"fine").result(WAIT_S)


def test_transactions_are_used_rightly(node: FakeNode) -> None:
    with semel.Producer(node.bootstrap, transactional_id="a") as producer:
        with pytest.raises(UsageError, match="sends in transactions only"):
            producer.send("orders", b"x")
        txn = producer.transaction()
        with pytest.raises(UsageError, match="send inside its with-block"):
            txn.send("orders", b"x")
        with txn:
            txn.send("orders", b"x")
            with pytest.raises(UsageError, match="transactions don't nest"):
                producer.begin_transaction()
        with pytest.raises(UsageError, match="send inside its with-block"):
            txn.send("orders", b"x")
        with pytest.raises(UsageError, match="send inside its with-block"):
            txn.send_offsets({}, semel.GroupMetadata("g"))
        with pytest.raises(UsageError, match="is used once"), txn:
            pass
        with pytest.raises(UsageError, match="without an open transaction"):
            producer.commit_transaction()
        with pytest.raises(UsageError, match="without an open transaction"):
            producer.abort_transaction()
        with pytest.raises(UsageError, match=r"takes a batch of Consumer.batches\(\), not list"):
            producer.transaction(commits=[])  # type: ignore[arg-type]


def test_fork_after_use_is_refused() -> None:
    """In a process of its own: forking one with the test run's threads would be the very thing that is refused."""
    program = """
        import os, sys
        sys.path.insert(0, sys.argv[1])
        from fake_node import FakeNode
        import semel
        with FakeNode({"orders": 1}) as node:
            producer = semel.Producer(node.bootstrap)
            producer.send("orders", b"x").result(30)
            reader, writer = os.pipe()
            child = os.fork()
            if child == 0:
                told = []
                for call in (lambda: producer.send("orders", b"x"), producer.flush, producer.begin_transaction):
                    try:
                        call()
                        told.append("nothing raised")
                    except semel.UsageError as error:
                        told.append(str(error))
                producer.close()
                os.write(writer, "\\n".join(told).encode())
                os._exit(0)
            os.close(writer)
            with os.fdopen(reader) as told:
                print(told.read())
            os.waitpid(child, 0)
            producer.send("orders", b"y").result(30)
            producer.close()
    """
    support = str(Path(__file__).parents[3] / "support" / "nodes")
    run = subprocess.run(
        [sys.executable, "-P", "-W", "ignore", "-c", textwrap.dedent(program), support],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={**os.environ, "GRPC_ENABLE_FORK_SUPPORT": "0", "GRPC_VERBOSITY": "NONE"},
    )
    lines = run.stdout.strip().splitlines()
    assert len(lines) == 3, run.stdout + run.stderr
    for line in lines:
        assert "can't be used in its forked child" in line
        assert "make a new Producer after forking" in line


def test_what_was_not_flushed_is_sent_when_the_program_ends(node: FakeNode) -> None:
    program = """
        import sys, semel
        producer = semel.Producer(sys.argv[1], linger_ms=60_000)
        producer.send("orders", b"last words", partition=0)
    """
    subprocess.run([sys.executable, "-P", "-c", textwrap.dedent(program), node.bootstrap], timeout=60, check=True)
    values = [value for partition in node.broker.partitions.values() for value in partition.values()]
    assert values == [b"last words"]


def test_a_producer_that_is_dropped_still_sends_what_it_took(node: FakeNode) -> None:
    producer = semel.Producer(node.bootstrap, linger_ms=60_000)
    delivery = producer.send("orders", b"last words", partition=0)
    del producer
    gc.collect()
    assert delivery.result(WAIT_S).offset == 0
    while closing := [thread for thread in threading.enumerate() if thread.name == "semel-close"]:
        closing[0].join(WAIT_S)


def test_importing_semel_is_quick_and_loads_nothing() -> None:
    program = "import sys, semel; print([name for name in sys.modules if name in ('grpc', 'asyncio', 'semel.sdk')])"
    run = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout.strip() == "[]"
    assert "Producer" in dir(semel)
    with pytest.raises(AttributeError, match="no attribute 'Prducer'"):
        _ = semel.Prducer
