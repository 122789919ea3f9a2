"""What a node's metrics say after a small workload: by Prometheus and by OTLP, from one table of instruments."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from live_node import LiveNode
from metrics_scrape import Scrape, samples_of
from metrics_workload import RECORDS, worked_node
from opentelemetry.sdk.metrics import Counter, Histogram
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    MetricExporter,
    MetricExportResult,
    MetricsData,
)
from opentelemetry.sdk.resources import Resource
from otlp_receiver import OtlpReceiver
from running_node import SMALL

import semel
from semel.broker.config.node_config import NodeConfig
from semel.broker.metrics.readings import NodeReader
from semel.broker.metrics.setup import asked_for
from semel.broker.node import Node
from semel.broker.telemetry.instruments import INSTRUMENTS, Kind
from semel.broker.telemetry.otlp import Export, milliseconds
from semel.broker.telemetry.reading import Reading
from semel.broker.telemetry.resource import node_resource
from semel.protocol.api.group_offsets import OffsetAndMetadata
from semel.protocol.api.groups import OffsetCommitRequest
from semel.protocol.errors import ErrorCode
from semel.protocol.ids import TopicPartition
from semel.runtime.setting import ConfigError
from semel.runtime.telemetry.buckets import Buckets, Distribution
from semel.sdk.telemetry import metrics as client_metrics

PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"
WAIT_S = 30
OF_SEVERAL_NODES = {"semel.replication.lag", "semel.replication.fetch.failures"}
"""A single node has no values of these: test_metrics_cluster.py reads them."""


@pytest.fixture(scope="module")
def worked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveNode]:
    with worked_node(tmp_path_factory.mktemp("worked")) as live:
        yield live


@pytest.fixture(scope="module")
def scrape(worked: LiveNode) -> Scrape:
    assert worked.node.metrics_address is not None
    return Scrape.of(worked.node.metrics_address)


def test_every_instrument_of_the_table_is_in_a_scrape_with_its_labels(scrape: Scrape) -> None:
    for instrument in INSTRUMENTS.values():
        if instrument.name in OF_SEVERAL_NODES:
            continue
        for name in samples_of(instrument):
            extra = {"le"} if name.endswith("_bucket") else set()
            # A label without a value is none.
            assert scrape.labels_of(name) - {"error_type"} == {*instrument.prometheus_labels, *extra} - {"error_type"}
            assert name in scrape.names, f"{name} is in no scrape"


def test_nothing_is_in_a_scrape_that_is_not_in_the_table(scrape: Scrape) -> None:
    known = {name for instrument in INSTRUMENTS.values() for name in samples_of(instrument)}
    assert scrape.names <= known | {"target_info"}


def test_produced_and_fetched_records_are_counted(scrape: Scrape) -> None:
    assert scrape.value("semel_produce_records_total") == 3 * RECORDS + 1
    assert scrape.value("semel_produce_io_bytes_total") > 300 * RECORDS
    assert scrape.value("semel_fetch_records_total") >= RECORDS
    assert scrape.value("semel_request_duration_seconds_count", semel_api="PRODUCE") >= 3
    assert scrape.value("semel_request_size_bytes_sum", semel_api="PRODUCE") > 300 * RECORDS
    assert scrape.value("semel_journal_commit_duration_seconds_count") >= 3
    assert scrape.value("semel_journal_sync_duration_seconds_count") >= 3


def test_P1_a_repeated_batch_is_counted_as_a_duplicate_and_not_as_appended(scrape: Scrape) -> None:
    assert scrape.value("semel_produce_batches_total", semel_outcome="duplicate") == 1
    assert scrape.value("semel_produce_batches_total", semel_outcome="refused") == 1
    assert scrape.value("semel_produce_refused_total", error_type="UNKNOWN_TOPIC_OR_PARTITION") == 1


def test_a_partition_that_is_held_says_for_how_long_and_by_how_much(worked: LiveNode, scrape: Scrape) -> None:
    held = {"messaging_destination_name": "held", "messaging_destination_partition_id": "0"}
    free = {"messaging_destination_name": "orders", "messaging_destination_partition_id": "0"}
    assert scrape.value("semel_partition_lso_lag", **held) == RECORDS
    assert scrape.value("semel_partition_lso_age_seconds", **held) > 0
    assert (
        scrape.value("semel_partition_lso_lag", **free) == scrape.value("semel_partition_lso_age_seconds", **free) == 0
    )
    assert scrape.value("semel_partition_lso_lag_max") == RECORDS
    assert worked.node.metrics_address is not None
    later = Scrape.of(worked.node.metrics_address)
    assert later.value("semel_partition_lso_age_max_seconds") > scrape.value("semel_partition_lso_age_max_seconds") > 0
    assert later.value("semel_transaction_age_max_seconds") > 0


def test_transactions_are_told_by_state_and_outcome(scrape: Scrape) -> None:
    assert scrape.value("semel_transactions", semel_state="Ongoing") == 1
    assert scrape.value("semel_transactions", semel_state="CompleteAbort") == 1
    assert scrape.value("semel_transaction_duration_seconds_count", semel_outcome="committed") == 1
    assert scrape.value("semel_transaction_duration_seconds_count", semel_outcome="aborted") == 1


def test_a_groups_lag_is_what_it_has_not_committed(scrape: Scrape) -> None:
    group = {"messaging_consumer_group_name": "readers"}
    end = scrape.value("semel_partition_high_watermark", messaging_destination_name="orders")
    assert scrape.value("semel_group_lag", **group, messaging_destination_name="orders") == end - 5
    assert scrape.value("semel_group_members", **group) == 1
    assert scrape.value("semel_group_rebalances_total", **group) >= 1


def test_calls_of_grpc_are_told_by_method_and_error(scrape: Scrape) -> None:
    name = "rpc_server_call_duration_seconds_count"
    assert scrape.value(name, rpc_method="semel.v1.TopicService/CreateTopics") == 2
    refused = {"rpc_method": "semel.v1.TransactionService/AbortTransaction", "error_type": "TRANSACTIONAL_ID_NOT_FOUND"}
    assert scrape.value(name, **refused) == 1


def test_the_bounds_leave_out_what_is_beyond_them_and_say_so(tmp_path: Path) -> None:
    with worked_node(tmp_path, metrics_max_partitions=1, metrics_max_group_partitions=0) as live:
        assert live.node.metrics_address is not None
        scrape = Scrape.of(live.node.metrics_address)
        assert len(scrape.values("semel_partition_lso_lag")) == 1
        assert scrape.value("semel_partition_unlabelled") >= 1
        assert scrape.value("semel_partition_lso_lag_max") == RECORDS, "the largest of all, shown or not"
        assert scrape.values("semel_group_lag") == []
        assert scrape.value("semel_group_unlabelled") == 1


def test_a_node_that_nobody_asked_measures_nothing(tmp_path: Path) -> None:
    with LiveNode(tmp_path) as live:
        assert live.node.metrics_address is None
        assert live.node.logs._commits.commit_times is None
        assert live.node.transactions.durations is None
        assert live.node.kafka_listener is not None
        assert live.node.kafka_listener.request_times is None


def test_a_zombie_that_is_refused_and_an_epoch_that_is_taken_are_fencings(tmp_path: Path) -> None:
    with LiveNode(tmp_path, metrics_listen="127.0.0.1:0") as live, semel.Admin(live.bootstrap) as admin:
        admin.create_topic("orders", partitions=1)
        zombie = semel.Producer(live.bootstrap, transactional_id="worker")
        zombie.init_transactions()
        zombie.begin_transaction()
        zombie.send("orders", value=b"v")
        zombie.flush()
        with semel.Producer(live.bootstrap, transactional_id="worker") as successor, successor.transaction() as txn:
            txn.send("orders", value=b"v")
        with pytest.raises(semel.FencedError):
            zombie.commit_transaction()
        zombie.close()
        assert live.node.metrics_address is not None
        scrape = Scrape.of(live.node.metrics_address)
        assert scrape.value("semel_producer_fencings_total", semel_kind="taken") == 1
        assert scrape.value("semel_producer_fencings_total", semel_kind="refused") >= 1


def test_a_name_with_quotes_and_lines_does_not_spoil_the_scrape(tmp_path: Path) -> None:
    """What Prometheus has to escape, in a group's id, where Kafka's protocol lets everything through."""
    name = '{a="1"} "quoted"\n\\ \u00e9'
    orders = TopicPartition("orders", 0)
    commit = OffsetCommitRequest(name, -1, "", None, {orders: OffsetAndMetadata(0)})
    with OtlpReceiver() as receiver, pytest.MonkeyPatch.context() as patch:
        for variable, value in receiver.environment().items():
            patch.setenv(variable, value)
        with LiveNode(tmp_path, metrics_listen="127.0.0.1:0") as live, semel.Admin(live.bootstrap) as admin:
            admin.create_topic("orders", partitions=1)
            live.run(lambda: live.node.groups.topic_ready())
            answer = live.run(lambda: live.node.groups.commit_offsets(commit))
            assert answer.errors == {orders: ErrorCode.NONE}
            assert live.node.metrics_address is not None
            scrape = Scrape.of(live.node.metrics_address)
            assert scrape.value("semel_group_lag", messaging_consumer_group_name=name) == 0
        assert receiver.last("semel.group.lag")[0].attributes["messaging.consumer.group.name"] == name


# --- OTLP -------------------------------------------------------------------------------------------------------------


def test_otlp_has_what_prometheus_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with OtlpReceiver() as receiver:
        for name, value in {**receiver.environment(), "OTEL_METRIC_EXPORT_INTERVAL": "100"}.items():
            monkeypatch.setenv(name, value)
        with worked_node(tmp_path) as live:
            deadline = time.monotonic() + WAIT_S
            while receiver.total("semel.produce.records") < 3 * RECORDS + 1:
                assert time.monotonic() < deadline, "the metrics did not come"
                time.sleep(0.05)
            assert live.node.metrics_address is not None
            there = Scrape.of(live.node.metrics_address).names
        arrived = {name for name in INSTRUMENTS if receiver.points(name)}
    for instrument in INSTRUMENTS.values():
        assert (instrument.name in arrived) == (samples_of(instrument)[0] in there), instrument.name


def test_metrics_that_can_not_be_read_once_are_exported_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    read = NodeReader.read
    failures = [RuntimeError("dictionary changed size during iteration")]

    async def read_or_fail(reader: NodeReader) -> list[Reading]:
        if failures:
            raise failures.pop()
        return await read(reader)

    monkeypatch.setattr(NodeReader, "read", read_or_fail)
    with OtlpReceiver() as receiver:
        for name, value in {**receiver.environment(), "OTEL_METRIC_EXPORT_INTERVAL": "20"}.items():
            monkeypatch.setenv(name, value)
        with LiveNode(tmp_path):
            deadline = time.monotonic() + WAIT_S
            while not receiver.points("semel.node.uptime"):
                assert time.monotonic() < deadline, "the metrics did not come"
                time.sleep(0.02)
    assert not failures
    assert sum("could not be read" in message for message in caplog.messages) == 1


def test_a_node_whose_metrics_can_not_be_read_stops_cleanly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(_: NodeReader) -> list[Reading]:
        raise RuntimeError("dictionary changed size during iteration")

    monkeypatch.setattr(NodeReader, "read", fail)

    async def main() -> None:
        with OtlpReceiver() as receiver:
            for name, value in receiver.environment().items():
                monkeypatch.setenv(name, value)
            for _ in range(2):  # the second one finds the directory free
                node = await Node.start(NodeConfig(data_dir=str(tmp_path), **SMALL))
                await node.stop()

    asyncio.run(main())


class Collector(MetricExporter):
    """An exporter that keeps what it is given."""

    def __init__(self, temporality: AggregationTemporality) -> None:
        super().__init__(preferred_temporality={Counter: temporality, Histogram: temporality})
        self.given: list[MetricsData] = []
        self.fails = False

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **_: object) -> MetricExportResult:
        self.given.append(metrics_data)
        if self.fails:
            raise OSError("the collector is away")
        return MetricExportResult.SUCCESS

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        return True

    def shutdown(self, timeout_millis: float = 30_000, **_: object) -> None: ...


def _readings(count: int, *seconds: float) -> list[Reading]:
    buckets = Buckets((0.1, 1.0))
    for each in seconds:
        buckets.record(each)
    return [
        Reading(INSTRUMENTS["semel.produce.records"], [((), count)]),
        Reading(INSTRUMENTS["semel.journal.commit.duration"], [((), Distribution.of(buckets))]),
    ]


@pytest.mark.parametrize("temporality", [AggregationTemporality.CUMULATIVE, AggregationTemporality.DELTA])
def test_exporters_get_sums_or_differences_as_they_prefer(temporality: AggregationTemporality) -> None:
    exporter = Collector(temporality)
    is_delta = temporality is AggregationTemporality.DELTA

    async def main() -> None:
        export = Export(exporter, Resource({}), start_ns=1)
        await export.send(_readings(3, 0.05), now_ns=10, timeout_ms=1_000)
        await export.send(_readings(5, 0.05, 0.5, 2.0), now_ns=20, timeout_ms=1_000)
        await export.end(_readings(5, 0.05, 0.5, 2.0), now_ns=30)

    asyncio.run(main())
    second = exporter.given[1].resource_metrics[0].scope_metrics[0].metrics
    count, times = second[0].data.data_points[0], second[1].data.data_points[0]
    assert second[0].data.aggregation_temporality is second[1].data.aggregation_temporality is temporality
    assert (count.start_time_unix_nano, count.value) == ((10, 2) if is_delta else (1, 5))
    assert times.bucket_counts == ([0, 1, 1] if is_delta else [1, 1, 1])
    assert times.count == (2 if is_delta else 3)
    assert times.sum == pytest.approx(2.5 if is_delta else 2.55)


def test_an_exporter_that_fails_is_said_once_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    exporter = Collector(AggregationTemporality.CUMULATIVE)
    exporter.fails = True

    async def main() -> None:
        export = Export(exporter, Resource({}), start_ns=1)
        for now_ns in (10, 20):
            await export.send(_readings(1), now_ns, 1_000)
        exporter.fails = False
        await export.end(_readings(1), 30)

    with caplog.at_level("INFO", "semel.metrics"):
        asyncio.run(main())
    assert len(exporter.given) == 3
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert "the collector is away" in caplog.messages[0]


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"OTEL_METRICS_EXPORTER": "nonesuch"}, "no exporter 'nonesuch'"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_EXPORTER_OTLP_PROTOCOL": "smoke"}, "'smoke' is not known"),
        ({"OTEL_METRICS_EXPORTER": "console", "OTEL_METRIC_EXPORT_INTERVAL": "soon"}, "not a number of milliseconds"),
    ],
)
def test_variables_that_make_no_sense_stop_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], message: str
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=message):
        asyncio.run(Node.start(NodeConfig(data_dir=str(tmp_path / "data"))))


def test_the_resource_is_the_environments_word_before_the_nodes_own() -> None:
    own = node_resource(NodeConfig(node_id=7), {}).attributes
    assert (own["service.name"], own["service.instance.id"], own["semel.node.id"]) == ("semel", "node-7", "7")
    assert not asked_for(NodeConfig(), {})
    assert not asked_for(NodeConfig(), {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_SDK_DISABLED": "true"})
    assert asked_for(NodeConfig(metrics_listen="127.0.0.1:0"), {})


def test_intervals_are_positive() -> None:
    assert milliseconds({}, "X", 5.0) == 5.0
    for text in ("0", "-1", "nan", "inf", "x"):
        with pytest.raises(ValueError, match="milliseconds above 0"):
            milliseconds({"X": text}, "X", 5.0)


# --- The page ---------------------------------------------------------------------------------------------------------


def test_the_page_has_every_metric_as_the_tables_have_it() -> None:
    page = PAGE.read_text()
    for instrument in INSTRUMENTS.values():
        labels = ", ".join(f"`{label}`" for label in instrument.labels)
        name = samples_of(instrument)[0].removesuffix("_bucket")
        row = f"| `{instrument.name}` | `{name}` | {instrument.kind.value}, {instrument.unit} | {labels} |"
        assert f"{row} {instrument.description} |" in page, row
    for metric in client_metrics.CLIENT_INSTRUMENTS.values():
        row = f"| `{metric.name}` | {metric.kind}, {metric.unit} | {metric.description} |"
        assert row in page, row


def test_names_are_unique_in_both_worlds_and_counters_are_counters() -> None:
    names = [name for instrument in INSTRUMENTS.values() for name in samples_of(instrument)]
    assert len(names) == len(set(names))
    assert all(
        (name.endswith("_total")) == (each.kind is Kind.COUNTER)
        for each in INSTRUMENTS.values()
        for name in samples_of(each)
    )
