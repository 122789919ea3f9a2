"""pytest's plugin: fixtures that give tests a broker, topics and clients. docs/testing.md tells how to use them.

It is loaded with every run of pytest where Semel is installed, so it imports nothing before a fixture is asked for.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, Protocol

import pytest

if TYPE_CHECKING:
    import semel
    from semel.testing import AioBroker, Broker

SCOPES = ("session", "package", "module", "class", "function")
TOPIC_LENGTH_MAX = 200
"""Of the part of a topic's name that says which test it is of: Kafka allows 249 characters in all."""

_shared: pytest.StashKey[list[Broker]] = pytest.StashKey()


class CreateTopic(Protocol):
    """What the fixture `semel_create_topic` gives."""

    def __call__(
        self, name: str = "topic", *, partitions: int = 1, configs: Mapping[str, str] | None = None
    ) -> str: ...


class ReadTopic(Protocol):
    """What the fixtures `semel_committed` and `semel_uncommitted` give."""

    def __call__(
        self, topic: str, *, partition: int | None = None, at_least: int = 0, timeout_s: float = 10.0
    ) -> list[semel.Record]: ...


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("semel_broker_scope", f"how long semel_broker lives: {', '.join(SCOPES)}", default="session")
    parser.addini("semel_broker_settings", "settings of all brokers, NAME=VALUE, one a line", type="linelist")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Take back what the test did to a shared broker, before its clients are closed: they may need it for that."""
    for broker in item.config.stash.get(_shared, ()):
        broker.clear_faults()
        if not broker.is_running:
            broker.start()
        elif broker.failure is not None:
            broker.restart()


def pytest_configure(config: pytest.Config) -> None:
    scope = config.getini("semel_broker_scope")
    if scope not in SCOPES:
        raise pytest.UsageError(f"semel_broker_scope = {scope} is not one of {', '.join(SCOPES)}")


def _scope(fixture_name: str, config: pytest.Config) -> Any:
    return config.getini("semel_broker_scope")


def _broker(config: pytest.Config) -> Broker:
    from semel.testing import Broker

    settings: dict[str, object] = {}
    for line in config.getini("semel_broker_settings"):
        name, equals, value = line.partition("=")
        if not equals:
            raise pytest.UsageError(f"semel_broker_settings: {line!r} is not NAME=VALUE")
        settings[name.strip().replace(".", "_")] = value.strip()
    return Broker(**settings)  # type: ignore[arg-type]


@pytest.fixture(scope=_scope)
def semel_broker(pytestconfig: pytest.Config) -> Iterator[Broker]:
    """A running broker that the tests share: one for the session, or as `semel_broker_scope` says.

    After each test its faults are taken back, and it is started again where the test stopped or killed it. Topics,
    groups and transactional ids stay, so use names of the test's own, as `semel_create_topic` makes them.
    """
    shared = pytestconfig.stash.setdefault(_shared, [])
    with _broker(pytestconfig) as broker:
        shared.append(broker)
        try:
            yield broker
        finally:
            shared.remove(broker)


@pytest.fixture
def semel_fresh_broker(pytestconfig: pytest.Config) -> Iterator[Broker]:
    """A broker of this test's own: for tests that move its clock, or look at everything that is in it."""
    with _broker(pytestconfig) as broker:
        yield broker


@pytest.fixture
def semel_aio_broker(semel_broker: Broker) -> AioBroker:
    """`semel_broker` for coroutines."""
    return semel_broker.aio


@pytest.fixture
def semel_create_topic(semel_broker: Broker, request: pytest.FixtureRequest) -> Iterator[CreateTopic]:
    """A function that creates a topic of this test's own, and returns its name; it is deleted after the test."""
    made: list[str] = []
    test = re.sub(r"[^A-Za-z0-9._-]+", "_", request.node.name)[:TOPIC_LENGTH_MAX]

    def create(name: str = "topic", *, partitions: int = 1, configs: Mapping[str, str] | None = None) -> str:
        topic = f"{name}-{_random_name()}-{test}"[:TOPIC_LENGTH_MAX]
        made.append(semel_broker.create_topic(topic, partitions=partitions, configs=configs))
        return topic

    yield create
    for topic in set(made).intersection(semel_broker.topics()):
        semel_broker.delete_topic(topic)


@pytest.fixture
def semel_topic(semel_create_topic: CreateTopic) -> str:
    """The name of a topic of this test's own, with one partition."""
    return semel_create_topic()


@pytest.fixture
def semel_producer(semel_broker: Broker) -> Iterator[Callable[..., semel.Producer]]:
    """A function that makes a `semel.Producer` for `semel_broker`, with the options given. Closed after the test."""
    with contextlib.ExitStack() as stack:
        yield lambda **options: stack.enter_context(_closing(_client("Producer", semel_broker, options)))


@pytest.fixture
def semel_consumer(semel_broker: Broker) -> Iterator[Callable[..., semel.Consumer]]:
    """A function that makes a `semel.Consumer` for `semel_broker`, with the options given. Closed after the test."""
    with contextlib.ExitStack() as stack:
        yield lambda **options: stack.enter_context(_closing(_client("Consumer", semel_broker, options)))


@pytest.fixture
def semel_committed(semel_broker: Broker) -> ReadTopic:
    """A function that returns what a topic holds for readers of committed records. See `Broker.records`."""
    return semel_broker.records


@pytest.fixture
def semel_uncommitted(semel_broker: Broker) -> ReadTopic:
    """A function that returns all that a topic holds, also of open and aborted transactions. See `Broker.records`."""
    return functools.partial(semel_broker.records, uncommitted=True)


@pytest.fixture
def semel_commit(semel_broker: Broker) -> Callable[..., None]:
    """A function that writes values to a topic in one committed transaction: `semel_commit(topic, b"1", b"2")`."""
    return lambda topic, *values: _write(semel_broker, topic, values, "committed")


@pytest.fixture
def semel_abort(semel_broker: Broker) -> Callable[..., None]:
    """A function that writes values to a topic in one aborted transaction: what no reader of committed ones may see."""
    return lambda topic, *values: _write(semel_broker, topic, values, "aborted")


def _random_name() -> str:
    return os.urandom(8).hex()


def _write(broker: Broker, topic: str, values: tuple[Any, ...], outcome: Literal["committed", "aborted"]) -> None:
    import semel

    with semel.Producer(broker.bootstrap, transactional_id=f"test-{_random_name()}") as producer:
        producer.begin_transaction()
        for value in values:
            producer.send(topic, value)
        producer.flush()
        if outcome == "committed":
            producer.commit_transaction()
        else:
            producer.abort_transaction()


def _client(kind: Literal["Producer", "Consumer"], broker: Broker, options: Mapping[str, Any]) -> Any:
    import semel

    return getattr(semel, kind)(broker.bootstrap, **options)


@contextlib.contextmanager
def _closing(client: Any) -> Iterator[Any]:
    """Close a client after the test. One that was fenced, or whose transaction is lost, has said so in the test."""
    import semel

    yield client
    with contextlib.suppress(semel.FencedError, semel.AbortTransactionError):
        client.close()
