"""E4: the whole way of one record through two chained pipelines, as a collector sees it, with kills on the way."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest
from otlp_receiver import OtlpReceiver, Span

import semel
from semel.cli.demo.processes import NodeProcess

SUPPORT = Path(__file__).parent.parent / "support" / "telemetry"
WAIT_S = 120


class Worker:
    """A process of the pipeline."""

    def __init__(self, node: NodeProcess, environment: dict[str, str], *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(SUPPORT / "traced_worker.py"), node.bootstrap, *arguments],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def wait_for(self, said: str) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline().strip() == said

    def go_on(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def kill(self) -> None:
        self._process.kill()
        self.end()

    def end(self) -> None:
        self._process.communicate(timeout=WAIT_S)


class Pipeline:
    """A traced node that can be told to die amid a commit, and the processes that use it."""

    def __init__(self, folder: Path, receiver: OtlpReceiver, environment: dict[str, str]) -> None:
        self.receiver = receiver
        self.armed = folder / "armed"
        self.node = NodeProcess(
            folder / "data",
            program=("-P", str(SUPPORT / "traced_node.py"), str(self.armed)),
            settings=(
                "offsets.topic.num.partitions=2",
                "transaction.state.log.num.partitions=2",
                "group.min.session.timeout.ms=100",
                "group.initial.rebalance.delay.ms=0",
            ),
        )
        self._environment = environment
        self.workers: list[Worker] = []

    def worker(self, name: str, *arguments: str) -> Worker:
        environment = {**self._environment, "OTEL_SERVICE_NAME": name}
        self.workers.append(Worker(self.node, environment, *arguments))
        return self.workers[-1]


@pytest.fixture
def pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pipeline]:
    with OtlpReceiver() as receiver:
        more = {"OTEL_METRICS_EXPORTER": "none", "OTEL_BSP_SCHEDULE_DELAY": "100"}
        environment = {**os.environ, **receiver.environment("node", **more)}
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        pipeline = Pipeline(tmp_path, receiver, environment)
        pipeline.node.start()
        try:
            with semel.Admin(pipeline.node.bootstrap) as admin:
                for topic in ("orders", "enriched", "totals"):
                    admin.create_topic(topic, partitions=1)
            yield pipeline
        finally:
            for worker in pipeline.workers:
                worker.kill()
            if pipeline.node.is_running:
                pipeline.node.kill()


def test_E4_one_records_way_through_two_pipelines_and_two_kills(pipeline: Pipeline) -> None:
    receiver, node = pipeline.receiver, pipeline.node
    shop = pipeline.worker("shop", "produce", "shop", "orders")
    shop.wait_for("done")

    # The node dies after it has decided to commit, before any marker: those are written in its next life.
    enrich = pipeline.worker("enrich", "transform", "enrich", "orders", "enriched")
    enrich.wait_for("sent")
    receiver.wait_for_spans("append enriched")
    receiver.wait_for_spans("add_partitions enrich", 2)
    pipeline.armed.touch()
    enrich.go_on()
    node.wait_for_end(WAIT_S)
    node.start()
    enrich.wait_for("done")

    # The second pipeline dies with its transaction open, and another instance takes its place.
    lost = pipeline.worker("lost", "transform", "sum", "enriched", "totals")
    lost.wait_for("sent")
    receiver.wait_for_spans("append totals")
    lost.kill()
    total = pipeline.worker("sum", "transform", "sum", "enriched", "totals")
    total.wait_for("sent")
    total.go_on()
    total.wait_for("done")

    report = pipeline.worker("report", "consume", "report", "totals")
    report.wait_for("done")
    assert node.stop() == 0

    check_the_three_traces(receiver)
    check_the_kills(receiver)
    check_that_no_commit_is_an_orphan(receiver)


def check_the_three_traces(receiver: OtlpReceiver) -> None:
    """Each transaction is a trace; links lead from each to the one before it."""
    (shop,) = receiver.wait_for_spans("transaction shop")
    (enrich,) = receiver.wait_for_spans("transaction enrich")
    (total,) = receiver.wait_for_spans("transaction sum")
    assert tree(receiver, shop) == dedent(
        """\
        transaction shop (shop)
          commit shop (shop)
            decide shop (node)
              marker orders (node)
          create orders (shop)
          send orders (shop) -> create orders
            add_partitions shop (node)
            append orders (node)
        """
    )
    assert tree(receiver, enrich) == dedent(
        """\
        transaction enrich (enrich) -> create orders
          add_partitions enrich (node)
          commit enrich (enrich)
            decide enrich (node) -> ?
              marker __consumer_offsets (node)
              marker enriched (node)
          process orders (enrich) -> create orders
            create enriched (enrich)
          send enriched (enrich) -> create enriched
            add_partitions enrich (node)
            append enriched (node)
        """
    )
    assert tree(receiver, total) == dedent(
        """\
        transaction sum (sum) -> create enriched
          add_partitions sum (node)
          commit sum (sum)
            decide sum (node)
              marker __consumer_offsets (node)
              marker totals (node)
          process enriched (sum) -> create enriched
            create totals (sum)
              process totals (report) -> create totals
                commit totals (report)
          send totals (sum) -> create totals
            add_partitions sum (node)
            append totals (node)
        """
    )
    assert [span.attributes["semel.transaction.outcome"] for span in (shop, enrich, total)] == ["committed"] * 3
    assert [span.attributes["semel.transaction.partitions"] for span in (shop, enrich, total)] == [1] * 3
    assert [span.attributes["semel.transaction.records"] for span in (shop, enrich, total)] == [1] * 3
    # What was returned, and fetched for it, stands beside these traces, and is linked to them.
    for topic, group in (("orders", "enrich"), ("totals", "report")):
        (poll,) = receiver.spans(f"poll {topic}", messaging__consumer__group__name=group)
        assert linked(receiver, poll) == f"create {topic}"
    assert {linked(receiver, span) for span in receiver.spans("fetch enriched")} == {"create enriched"}


def check_the_kills(receiver: OtlpReceiver) -> None:
    """What was decided before the node died belongs to its trace also in the next life; the open one was fenced."""
    (again,) = receiver.spans("decide enrich", semel__transaction__cause="recovery")
    assert again.attributes["semel.transaction.outcome"] == "committed"
    (fenced,) = receiver.spans("decide sum", semel__transaction__cause="fence")
    assert fenced.attributes["semel.transaction.outcome"] == "aborted"
    assert not fenced.parent_id
    (link,) = fenced.links
    begun = [span for span in receiver.spans("add_partitions sum") if span.span_id == link.span_id]
    assert [span.trace_id for span in begun] == [link.trace_id]
    assert [span.name for span in receiver.children(fenced)] == ["marker __consumer_offsets", "marker totals"]


def check_that_no_commit_is_an_orphan(receiver: OtlpReceiver) -> None:
    for span in receiver.spans():
        is_commit = span.name.startswith("commit ") or span.attributes.get("semel.transaction.outcome") == "committed"
        if is_commit and not span.name.startswith("transaction "):
            assert receiver.path(span)[0].startswith("transaction "), receiver.path(span)


def tree(receiver: OtlpReceiver, span: Span, depth: int = 0) -> str:
    """Draw a span with all below it, in the order of their names: "name (service) -> name of what it links to"."""
    links = f" -> {linked(receiver, span)}" if span.links else ""
    lines = f"{'  ' * depth}{span.name} ({span.resource['service.name']}){links}\n"
    below = receiver.children(span)
    made_again = {link.span_id for one in below for link in one.links if one.name.startswith("decide ")}
    # The decision of the node that died may have been exported in its last moment; nothing is below it.
    kept = [one for one in below if one.span_id not in made_again]
    return lines + "".join(tree(receiver, one, depth + 1) for one in sorted(kept, key=lambda one: one.name))


def linked(receiver: OtlpReceiver, span: Span) -> str:
    """The names of what a span links to."""
    names = {(one.trace_id, one.span_id): one.name for one in receiver.spans()}
    found = {names.get((link.trace_id, link.span_id), "?") for link in span.links}
    return "?" if span.attributes.get("semel.transaction.cause") == "recovery" else ", ".join(sorted(found))
