"""Kafka's names of options: each client takes those that it has something for, and refuses two values for one option.

mypy reads this file as a user's program: it is strict about what it passes to the clients.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import semel
from semel.protocol.errors import UsageError
from semel.sdk.transport.kafka_names import (
    NAMES,
    AdminKafkaNames,
    ConsumerKafkaNames,
    ProducerKafkaNames,
    as_table,
    in_our_names,
)
from semel.sdk.transport.options import option_names
from semel.sdk.transport.security import SecurityNames

ROOT = Path(__file__).parents[4]
NODE = "node:9094"

OURS: dict[str, Any] = {
    "bootstrap": NODE,
    "client_id": "billing",
    "request_timeout_ms": 11,
    "api_timeout_ms": 12,
    "metadata_max_age_ms": 13,
    "retry_backoff_ms": 14,
    "retry_backoff_max_ms": 15,
    "transactional_id": "billing-0",
    "transaction_timeout_ms": 16,
    "timeout_ms": 16,
    "acks": "all",
    "idempotent": True,
    "linger_ms": 17,
    "batch_size_bytes": 18,
    "compression": "zstd",
    "buffer_memory_bytes": 19,
    "record_bytes_max": 2_000,
    "request_bytes_max": 2_000,
    "max_in_flight": 3,
    "max_block_ms": 21,
    "delivery_timeout_ms": 22,
    "key_serializer": str.encode,
    "key_deserializer": bytes.decode,
    "value_deserializer": bytes.decode,
    "value_serializer": str.encode,
    "auto_create_topics": True,
    "group": "billing",
    "instance_id": "billing-1",
    "offset_reset": "error",
    "isolation": "read_uncommitted",
    "auto_commit_interval_ms": 5_000,
    "assignors": ["range", "sticky"],
    "session_timeout_ms": 2_300,
    "heartbeat_interval_ms": 24,
    "max_poll_interval_ms": 25,
    "max_wait_ms": 26,
    "min_bytes": 27,
    "max_bytes": 28,
    "max_partition_bytes": 29,
    "rack": "b",
}
THEIRS: dict[str, Any] = {
    "auto.offset.reset": "none",
    "enable.auto.commit": True,
    "partition.assignment.strategy": "range,sticky",
}
"""Where the value is another one, too."""
CLIENTS: dict[str, tuple[type, Callable[[Any], object]]] = {
    "Producer": (semel.Producer, lambda it: it._core.options),
    "Consumer": (
        semel.Consumer,
        lambda it: (it._core.client.options, it._core.group, it._core._fetch_options, it._auto_commit_s),
    ),
    "Admin": (semel.Admin, lambda it: it._core.client.options),
    "aio.Producer": (semel.aio.Producer, lambda it: it._core.options),
    "aio.Consumer": (semel.aio.Consumer, lambda it: (it._core.client.options, it._core.group, it._core._fetch_options)),
    "aio.Admin": (semel.aio.Admin, lambda it: it._core.client.options),
    "SharedTransaction": (semel.SharedTransaction, lambda it: (it._client_options, it.timeout_ms)),
    "Sink": (semel.sql.Sink, lambda it: (it._bootstrap, it._state.options, it._state.offsets.group)),
    "Outbox": (semel.sql.Outbox, lambda it: it._bootstrap),
}
NEEDED: dict[str, dict[str, Any]] = {
    "SharedTransaction": {"key": "k", "token": "t", "attempt": "1"},
    "Sink": {"database": "sqlite:///never-made.db", "topics": ["orders"]},
    "Outbox": {"database": "sqlite:///never-made.db"},
}


@pytest.mark.parametrize("spelling", ["setting", "keyword"])
@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_takes_kafkas_names_as_it_takes_its_own(client: str, spelling: str) -> None:
    kind, settings = CLIENTS[client]
    known = option_names(kind)
    theirs: dict[str, Any] = {}
    ours: dict[str, Any] = {}
    for one in NAMES:
        options = [option for option in one.options if option in known]
        if options and one.setting != "auto.commit.interval.ms":
            theirs[getattr(one, spelling)] = THEIRS.get(one.setting, OURS[options[0]])
            ours.update({option: OURS[option] for option in options})
    assert theirs
    needed = NEEDED.get(client, {})
    assert settings(kind(**needed, **theirs)) == settings(kind(**needed, **ours))


def test_programs_for_kafka_python_type_check_and_run() -> None:
    producer = semel.Producer(
        bootstrap_servers=["a:1", "b:2"],
        client_id="billing",
        enable_idempotence=True,
        batch_size=1_000,
        compression_type="lz4",
        buffer_memory=1 << 20,
        max_request_size=1 << 20,
        max_in_flight_requests_per_connection=2,
    )
    assert repr(producer) == "Producer('a:1,b:2')"
    consumer = semel.Consumer(
        bootstrap_servers=NODE,
        group_id="g",
        group_instance_id="g-1",
        auto_offset_reset="latest",
        isolation_level="read_committed",
        enable_auto_commit=False,
        partition_assignment_strategy=["org.apache.kafka.clients.consumer.CooperativeStickyAssignor"],
        fetch_max_wait_ms=100,
        fetch_min_bytes=1,
        fetch_max_bytes=1 << 20,
        max_partition_fetch_bytes=1 << 20,
        client_rack="b",
        default_api_timeout_ms=1_000,
    )
    assert consumer._core.group is not None
    assert consumer._core.group.assignors == ("cooperative-sticky",)
    assert consumer._auto_commit_s is None
    settings: dict[str, Any] = {"bootstrap.servers": NODE, "default.api.timeout.ms": 7}
    assert semel.Admin(**settings)._core.client.options.api_timeout_ms == 7
    assert semel.aio.Admin(bootstrap_servers=NODE)._core.client.options.addresses == (NODE,)
    asyncio_producer = semel.aio.Producer(bootstrap_servers=NODE, enable_idempotence=False, acks="all")
    assert not asyncio_producer._core.options.sender.idempotent
    assert NODE in repr(semel.aio.Consumer(bootstrap_servers=NODE, group_id="g"))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"group": "a", "group_id": "b"}, "group_id and group are names of one option, .*: 'b' and 'a'; give one"),
        ({"group.id": "a", "group_id": "b"}, "group_id and group.id are names of one option"),
        ({"group": None, "group_id": "b"}, "group_id and group are names"),
        ({"bootstrap": NODE, "bootstrap_servers": "other:1"}, "bootstrap_servers and bootstrap are names"),
        ({"group": "a", "enable_auto_commit": False, "auto_commit_interval_ms": 5}, "enable_auto_commit and auto_comm"),
        ({"group": "a", "enable_auto_commit": True, "auto_commit_interval_ms": None}, "enable_auto_commit and auto_c"),
        ({"group": "a", "enable_auto_commit": "yes"}, "enable_auto_commit must be True or False, not str 'yes'"),
        ({"enable_auto_commit": True}, "auto_commit_interval_ms commits for a group: give group, too"),
        ({"auto_offset_reset": "newest"}, "option offset_reset can't be 'newest'"),
        ({"group": "a", "partition_assignment_strategy": "fair"}, "option assignors can't be 'fair'"),
        ({"max_poll_records": 5}, "Consumer has no option 'max_poll_records'; give max_records to"),
        ({"compression_type": "lz4"}, "Consumer has no option 'compression_type'"),
    ],
)
def test_two_values_for_one_option_are_refused_and_so_is_what_has_no_meaning(
    options: dict[str, Any], expected: str
) -> None:
    with pytest.raises(UsageError, match=expected):
        semel.Consumer(**options)


def test_a_name_beside_an_option_that_was_given_by_its_place() -> None:
    assert NODE in repr(semel.Consumer(NODE, **{"bootstrap.servers": NODE}))
    with pytest.raises(UsageError, match=r"Producer: bootstrap_servers and bootstrap are names of one option"):
        semel.Producer(NODE, bootstrap_servers="other:1")


def test_the_same_value_under_two_names_is_no_conflict() -> None:
    consumer = semel.Consumer(NODE, group="g", group_id="g", enable_auto_commit=True, auto_commit_interval_ms=70)
    assert consumer._auto_commit_s == 0.07


def test_assignors_are_given_by_kafkas_classes() -> None:
    class RoundRobinPartitionAssignor:
        name = "roundrobin"

    java = "org.apache.kafka.clients.consumer."
    for given, expected in (
        ([RoundRobinPartitionAssignor], ["roundrobin"]),
        (f"{java}RangeAssignor, {java}CooperativeStickyAssignor", ["range", "cooperative-sticky"]),
        (["StickyPartitionAssignor", "roundrobin"], ["sticky", "roundrobin"]),
    ):
        found = in_our_names("Consumer", ["assignors"], {"partition.assignment.strategy": given}, {})
        assert found == {"assignors": expected}


def test_options_that_a_sink_passes_on_have_kafkas_names_too() -> None:
    target: dict[str, Any] = {"database": "sqlite:///never-made.db", "group": "g", "topics": ["orders"]}
    sink = semel.sql.Sink(NODE, **target, consumer={"group.instance.id": "sink-1", "fetch_max_wait_ms": 9})
    group = sink._state.consumer._core.group
    assert group is not None
    assert group.instance_id == "sink-1"
    with pytest.raises(UsageError, match="can't set isolation"):
        semel.sql.Sink(NODE, **target, consumer={"isolation.level": "read_uncommitted"})
    with pytest.raises(UsageError, match="can't set idempotent"):
        semel.sql.Outbox(NODE, "sqlite:///never-made.db", producer={"enable.idempotence": False})
    shared = semel.SharedTransaction(NODE, "k", token="t")
    assert shared._writer_options({"compression.type": "lz4"})["compression"] == "lz4"
    with pytest.raises(UsageError, match="the shared transaction decides it"):
        shared._writer_options({"enable_idempotence": True})


# --- Where the cluster is ---------------------------------------------------------------------------------------------


def test_a_variable_says_where_the_cluster_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SEMEL_BOOTSTRAP", raising=False)
    assert repr(semel.Producer()) == "Producer('localhost:9094')"
    monkeypatch.setenv("SEMEL_BOOTSTRAP", "one:1, two:2")
    for client in (semel.Producer(), semel.Consumer(), semel.aio.Producer(), semel.aio.Consumer()):
        assert "one:1" in repr(client)
        assert "two:2" in repr(client)
    assert semel.Admin()._core.client.options.addresses == ("one:1", "two:2")
    assert semel.SharedTransaction(None, "k", token="t")._bootstrap == "one:1,two:2"
    assert semel.sql.Outbox(None, "sqlite:///never-made.db")._bootstrap == "one:1,two:2"
    assert semel.sql.Sink(None, "sqlite:///never-made.db", group="g", topics=["t"])._bootstrap == "one:1,two:2"
    assert repr(semel.Producer(NODE)) == f"Producer('{NODE}')"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("node", r"the environment variable SEMEL_BOOTSTRAP, since no bootstrap is given: address 'node' is not HOST"),
        (" , ", r"the environment variable SEMEL_BOOTSTRAP, since no bootstrap is given: is empty"),
    ],
)
def test_a_variable_that_is_no_address_is_named(value: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEMEL_BOOTSTRAP", value)
    with pytest.raises(UsageError, match=expected):
        semel.Consumer()


# --- One table --------------------------------------------------------------------------------------------------------


def test_the_types_are_those_of_the_table() -> None:
    for kind, typed in (
        (semel.Producer, ProducerKafkaNames),
        (semel.Consumer, ConsumerKafkaNames),
        (semel.Admin, AdminKafkaNames),
    ):
        known = option_names(kind)
        expected = {one.keyword for one in NAMES if set(one.options) & set(known)} - set(known)
        assert set(typed.__annotations__) == expected | set(SecurityNames.__annotations__)
        assert f"Unpack[{typed.__name__}]" in str(inspect.signature(kind))


def test_each_name_is_one_that_a_client_takes() -> None:
    known = {name for kind, _ in CLIENTS.values() for name in option_names(kind)}
    assert [one.setting for one in NAMES if not set(one.options) <= known] == []
    assert len({one.setting for one in NAMES}) == len(NAMES)


def test_the_table_says_which_clients_have_an_option() -> None:
    known = {name: option_names(kind) for name, (kind, _) in CLIENTS.items() if not name.startswith("aio.")}
    having = {
        one.setting: tuple(name for name, names in known.items() if set(one.options) & set(names)) for one in NAMES
    }
    assert {one.setting: one.of for one in NAMES} == having


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("linger_ms", "it is an option of Producer, Sink"),
        ("linger.ms", "it is an option of Producer, Sink"),
        ("compression_type", "it is an option of Producer"),
        ("compression", "it is an option of Producer"),
        ("group_id", "it is an option of Consumer, Sink"),
    ],
)
def test_an_option_of_another_client_is_refused_with_the_clients_that_have_it(name: str, expected: str) -> None:
    with pytest.raises(UsageError, match=f"^Admin has no option '{name}'; {expected}$"):
        semel.Admin(**{name: "x"})


def test_the_documented_defaults_are_those_of_the_clients() -> None:
    text = (ROOT / "docs" / "moving-from-kafka.md").read_text(encoding="utf-8")
    section = text.split("### Other defaults")[1].split("###")[0]
    column = [line.split("|")[3] for line in section.splitlines() if line.startswith("| ")]
    found = dict(re.findall(r"(\w+)=([^`]+)`", " ".join(column)))
    defaults = {
        name: parameter.default
        for function in (semel.Consumer, semel.Producer, semel.Consumer.poll)
        for name, parameter in inspect.signature(function).parameters.items()
    }
    assert len(found) >= 10
    assert {name: ast.literal_eval(value) for name, value in found.items()} == {name: defaults[name] for name in found}


def test_the_documented_table_is_the_one_in_use() -> None:
    """After a change: `python -m semel.sdk.transport.kafka_names` prints what belongs there."""
    assert as_table() in (ROOT / "docs" / "moving-from-kafka.md").read_text(encoding="utf-8")


def test_a_missing_argument_is_named_and_not_an_alias_that_was_given() -> None:
    """It said that `bootstrap_servers` was no argument, which it is."""
    with pytest.raises(TypeError, match="missing 1 required keyword-only argument: 'token'"):
        semel.SharedTransaction(key="k", bootstrap_servers=NODE)  # type: ignore[call-arg]
