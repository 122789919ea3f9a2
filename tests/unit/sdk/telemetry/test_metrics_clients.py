"""What producers, consumers and transactions count, sync and asyncio; and that nothing is where nobody looks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import opentelemetry.metrics._internal
import pytest
from fake_node import FakeNode
from live_node import LiveNode
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

import semel
import semel.aio
from semel.protocol.errors import ErrorCode
from semel.sdk.telemetry import metrics

WAIT_S = 30
ORDERS = {"messaging.destination.name": "orders", "messaging.destination.partition.id": "0"}


class NoRecords:
    records: tuple[()] = ()


class Seen:
    """What an OpenTelemetry SDK has of the clients."""

    def __init__(self, reader: InMemoryMetricReader) -> None:
        self._reader = reader

    def points(self, name: str, **wanted: str) -> list[Any]:
        data = self._reader.get_metrics_data()
        attributes = {key.replace("__", "."): value for key, value in wanted.items()}
        return [
            point
            for of_resource in (data.resource_metrics if data is not None else ())
            for of_scope in of_resource.scope_metrics
            for metric in of_scope.metrics
            if metric.name == name
            for point in metric.data.data_points
            if attributes.items() <= point.attributes.items()
        ]

    def total(self, name: str, **wanted: str) -> float:
        return sum(point.value for point in self.points(name, **wanted))

    def count(self, name: str, **wanted: str) -> int:
        return sum(point.count for point in self.points(name, **wanted))

    def wait_for(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline, "it did not come"
            time.sleep(0.01)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Seen]:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    monkeypatch.setattr(opentelemetry.metrics._internal, "_METER_PROVIDER", provider)
    yield Seen(reader)
    provider.shutdown()


@pytest.fixture
def live(tmp_path: Path) -> Iterator[LiveNode]:
    with LiveNode(tmp_path) as live:
        with semel.Admin(live.bootstrap) as admin:
            admin.create_topic("orders", partitions=1)
        yield live


def check_pipeline(seen: Seen) -> None:
    """What both faces must have counted: 30 records in 3 transactions, one of them aborted, 20 of them read."""
    assert seen.total("messaging.client.sent.messages", **_dunder(ORDERS)) == 30
    assert seen.total("semel.client.sent.io") > 30 * 100
    assert seen.total("semel.client.sent.batches") >= 3
    assert seen.total("semel.client.transactions", semel__transaction__outcome="committed") == 2
    assert seen.total("semel.client.transactions", semel__transaction__outcome="aborted") == 1
    assert seen.count("messaging.client.operation.duration", messaging__operation__name="send") >= 3
    assert seen.count("messaging.client.operation.duration", messaging__operation__name="commit") == 2
    group = {"messaging__consumer__group__name": "g"}
    assert seen.total("messaging.client.consumed.messages", **group, **_dunder(ORDERS)) == 20
    assert seen.total("semel.client.consumed.io", **group) > 20 * 100
    assert seen.total("semel.client.rebalances", **group) >= 1
    assert seen.count("semel.client.poll.interval") >= 1


def _dunder(attributes: dict[str, str]) -> dict[str, str]:
    return {name.replace(".", "__"): value for name, value in attributes.items()}


def test_a_pipeline_is_counted(live: LiveNode, seen: Seen) -> None:
    with semel.Producer(live.bootstrap, transactional_id="t") as producer:
        for outcome in ("commit", "abort", "commit"):
            with (
                pytest.raises(ZeroDivisionError) if outcome == "abort" else nullcontext(),
                producer.transaction() as txn,
            ):
                for _ in range(10):
                    txn.send("orders", value=b"x" * 100)
                producer.flush()
                assert seen.total("semel.client.buffer.limit") > 0
                if outcome == "abort":
                    raise ZeroDivisionError
    with semel.Consumer(live.bootstrap, group="g", topics=["orders"]) as consumer:
        read = 0
        while read < 20:
            read += len((consumer.poll(1.0, max_records=10) or NoRecords).records)
        # The position moves past the last marker with the next poll.
        seen.wait_for(
            lambda: (
                consumer.poll(0.0) is None
                and seen.points("semel.client.lag", messaging__consumer__group__name="g", **_dunder(ORDERS))[0].value
                == 0
            )
        )
    check_pipeline(seen)
    assert not seen.points("semel.client.lag"), "a consumer that is closed has no lag"


def test_an_asyncio_pipeline_is_counted(live: LiveNode, seen: Seen) -> None:
    async def main() -> None:
        async with semel.aio.Producer(live.bootstrap, transactional_id="t") as producer:
            for outcome in ("commit", "abort", "commit"):
                with pytest.raises(ZeroDivisionError) if outcome == "abort" else nullcontext():
                    async with producer.transaction() as txn:
                        for _ in range(10):
                            await txn.send("orders", value=b"x" * 100)
                        await producer.flush()
                        if outcome == "abort":
                            raise ZeroDivisionError
        async with semel.aio.Consumer(live.bootstrap, group="g", topics=["orders"]) as consumer:
            read = 0
            while read < 20:
                read += len((await consumer.poll(1.0, max_records=10) or NoRecords).records)

    asyncio.run(main())
    check_pipeline(seen)


def test_retries_and_what_is_given_up_are_counted(seen: Seen) -> None:
    with FakeNode({"orders": 1}) as node:
        producer = semel.Producer(node.bootstrap)
        node.produce_script.append(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        producer.send("orders", value=b"v").result(WAIT_S)
        seen.wait_for(lambda: seen.total("semel.client.retries", **_dunder(ORDERS)) == 1)
        seen.wait_for(lambda: seen.total("messaging.client.sent.messages") == 1)
        node.produce_script.append(ErrorCode.INVALID_RECORD)
        with pytest.raises(semel.SemelError):
            producer.send("orders", value=b"v").result(WAIT_S)
        assert seen.total("semel.client.failed.messages", error__type="INVALID_RECORD") == 1
        with pytest.raises(semel.SemelError):
            producer.close()


def test_what_a_producer_sent_is_given_on_without_its_end(seen: Seen) -> None:
    with FakeNode({"orders": 1}) as node, semel.Producer(node.bootstrap) as producer:
        for count in (1, 2):
            producer.send("orders", value=b"v").result(WAIT_S)
            seen.wait_for(lambda: seen.total("messaging.client.sent.messages") == count)  # noqa: B023
        assert not producer._core.is_closed
    assert seen.total("messaging.client.sent.messages") == 2, "the end gives nothing on twice"


def test_without_an_sdk_there_are_no_meters() -> None:
    with FakeNode({"orders": 1}) as node:
        assert not metrics.active()
        with semel.Producer(node.bootstrap) as producer, semel.Consumer(node.bootstrap) as consumer:
            assert producer._core.meter is None
            assert consumer._core.meter is None


def test_every_row_of_the_table_is_an_instrument(seen: Seen) -> None:
    made = metrics.client_metrics()
    rows = metrics.CLIENT_INSTRUMENTS
    for name in metrics.ClientMetrics.__dataclass_fields__:
        assert getattr(made, name).name == rows[name].name
    assert len({row.name for row in rows.values()}) == len(rows)
