"""The one client of a process: what tasks and commits share, and what becomes of it when one of them fails or forks."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator

import pytest

import semel
from semel.protocol.batch_builder import encode_batch
from semel.protocol.errors import FatalError, FencedError, UsageError
from semel.protocol.ids import TopicPartition
from semel.sdk.shared.writer import SharedWriterId
from semel.sdk.transport.options import parse_bootstrap
from semel.spark import clients
from semel.spark.clients import Address, ProcessTransaction, client_for

WAIT_S = 60


@pytest.fixture
def address(bootstrap: str) -> Iterator[Address]:
    """An address of the test's own, so that nobody else has used its client."""
    address = Address(
        parse_bootstrap(bootstrap), client_id=uuid.uuid4().hex, request_timeout_ms=30_000, api_timeout_ms=60_000
    )
    yield address
    client_for(address).close()


@pytest.fixture
def key() -> str:
    return f"line-{uuid.uuid4().hex}"


def transaction(address: Address, key: str, token: str = "batch-1") -> ProcessTransaction:
    return ProcessTransaction(str(address.bootstrap), key, address=address, token=token)


def write(shared: semel.SharedTransaction, topic: str, value: bytes = b"x") -> SharedWriterId:
    with shared.join(linger_ms=0) as writer:
        writer.send_batch(topic, 0, encode_batch([(1_000, None, value, ())]))
        return writer.finish()


def threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("semel")}


def test_writers_and_commits_of_a_process_go_through_its_one_client(
    address: Address, key: str, new_topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic()
    client = client_for(address)
    opened: list[object] = []
    monkeypatch.setattr("semel.sdk.producer.core.ClientCore", lambda *args: opened.append(args))
    monkeypatch.setattr("semel.sdk.shared.api.ClientCore", lambda *args: opened.append(args))
    for number in range(3):
        shared = transaction(address, key, f"batch-{number}")
        members = [write(shared, topic), write(shared, topic)]
        assert shared.commit(members).decision.writers == 2
    assert opened == []
    assert client_for(address) is client
    assert not client.io.closed


def test_a_handle_uses_the_client_of_the_process_that_unpickles_it(
    address: Address, key: str, new_topic: Callable[..., str]
) -> None:
    shared = transaction(address, key)
    assert client_for(address) is not None
    copy = pickle.loads(pickle.dumps(shared))
    member = write(copy, new_topic())
    assert shared.commit([member]).decision.writers == 1


def test_a_fenced_writer_leaves_the_client_to_the_next(
    address: Address, key: str, new_topic: Callable[..., str]
) -> None:
    topic = new_topic()
    client = client_for(address)
    older = transaction(address, key)
    late = older.join(linger_ms=0)
    late.send_batch(topic, 0, encode_batch([(1_000, None, b"zombie", ())]))
    late.flush()
    newer = transaction(address, key)
    member = write(newer, topic)
    late.send_batch(topic, 0, encode_batch([(1_000, None, b"late", ())]))
    with pytest.raises(FencedError):
        late.finish()
    late.close()
    assert newer.commit([member]).decision.writers == 1
    assert client_for(address) is client
    following = transaction(address, key, "batch-2")
    assert following.commit([write(following, topic)]).decision.writers == 1


def test_a_writer_that_does_not_finish_leaves_the_client_to_the_next(
    address: Address, key: str, new_topic: Callable[..., str]
) -> None:
    topic = new_topic()
    client = client_for(address)
    shared = transaction(address, key)
    with shared.join(linger_ms=60_000) as writer:
        for _ in range(100):
            writer.send_batch(topic, 0, encode_batch([(1_000, None, b"unsent", ())]))
    with pytest.raises(UsageError, match="closed"):
        writer.send_batch(topic, 0, encode_batch([(1_000, None, b"after", ())]))
    with pytest.raises(UsageError, match="closed"):
        writer.flush()
    with pytest.raises(UsageError, match="closed before it finished"):
        writer.finish()
    assert client_for(address) is client
    assert shared.commit([write(shared, topic)]).decision.writers == 1


def test_a_writer_that_nobody_closed_does_not_close_the_client(
    address: Address, key: str, new_topic: Callable[..., str]
) -> None:
    topic = new_topic()
    client = client_for(address)
    shared = transaction(address, key)
    writer = shared.join(linger_ms=60_000)
    writer.send_batch(topic, 0, encode_batch([(1_000, None, b"unsent", ())]))
    del writer
    deadline = time.monotonic() + WAIT_S
    while "semel-close" in threads():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert not client.io.closed
    assert shared.commit([write(shared, topic)]).decision.writers == 1


def test_a_task_knows_a_topic_as_it_is_and_not_as_an_earlier_task_found_it(
    address: Address, key: str, new_topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "_METADATA_MAX_AGE_MS", 1)
    topic = new_topic()
    shared = transaction(address, key)
    with shared.join() as writer:
        assert writer.partition_count(topic) == 1
    with semel.Admin(str(address.bootstrap)) as admin:
        admin.add_partitions(topic, 3)
    time.sleep(0.01)
    with shared.join() as writer:
        assert writer.partition_count(topic) == 3
    with semel.Admin(str(address.bootstrap)) as admin:
        admin.delete_topic(topic)
    time.sleep(0.01)
    with shared.join() as writer, pytest.raises(FatalError, match="there is no topic"):
        writer.partition_count(topic)


FORKS = """
import os, sys
from semel.protocol.batch_builder import encode_batch
from semel.sdk.transport.options import parse_bootstrap
from semel.spark.clients import Address, ProcessTransaction, client_for

address = Address(parse_bootstrap(sys.argv[1]), client_id="c", request_timeout_ms=30000, api_timeout_ms=60000)
shared = ProcessTransaction(sys.argv[1], sys.argv[3], address=address, token="t")

def write():
    with shared.join(linger_ms=0) as writer:
        writer.send_batch(sys.argv[2], 0, encode_batch([(1_000, None, b"x", ())]))
        return writer.finish()
"""

CHILD_WRITES = """
import gc, pickle
mine = client_for(address)  # made, and not used: gRPC itself does not survive being used before a fork
out, into = os.pipe()
pid = os.fork()
if pid == 0:
    gc.collect()
    member = write()
    assert client_for(address) is not mine
    os.write(into, pickle.dumps(member))
    os._exit(0)
member = pickle.loads(os.read(out, 65536))
assert os.waitpid(pid, 0)[1] == 0
assert client_for(address) is mine
print(shared.commit([member, write()]).decision.writers)
"""


@pytest.mark.parametrize(
    ("then", "said"), [("print(write().has_written)", "True"), (CHILD_WRITES, "2")], ids=["ends", "forks"]
)
def test_a_process_with_an_idle_client_ends_by_itself_and_its_fork_makes_its_own(
    bootstrap: str, key: str, new_topic: Callable[..., str], then: str, said: str
) -> None:
    command = [sys.executable, "-P", "-c", FORKS + then, bootstrap, new_topic(), key]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, said, "")


def test_T12_rows_through_the_shared_client_are_there_once(
    address: Address, key: str, new_topic: Callable[..., str]
) -> None:
    topic = new_topic()
    shared = transaction(address, key)
    write(shared, topic, b"loser")
    shared.commit([write(shared, topic, b"winner")])
    with semel.Consumer(str(address.bootstrap)) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek(TopicPartition(topic, 0), 0)
        found: list[bytes | None] = []
        deadline = time.monotonic() + WAIT_S
        while not found:
            assert time.monotonic() < deadline
            found += [record.value for record in consumer.poll(0.1) or ()]
    assert found == [b"winner"]
