"""The dashboard's and the alerts' queries, against what a node really tells; by a real Prometheus where there is one.

`promtool` and `prometheus` are the system's (Debian: `apt-get install prometheus`), or in the folder PROMETHEUS_BIN.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from live_node import LiveNode
from metrics_scrape import Scrape
from metrics_workload import worked_node

from semel.broker.telemetry.dashboard import dashboard

DOCKER = Path(__file__).parents[3] / "docker"
WAIT_S = 60

_WORDS = re.compile(r'"[^"]*"|\[[^\]]*\]|[A-Za-z_:][A-Za-z0-9_:]*|[{}()]')
_LANGUAGE = {
    "by", "on", "and", "or", "unless", "group_left", "sum", "max", "min", "avg", "count", "topk", "rate", "increase",
    "delta", "histogram_quantile",
}  # fmt: skip
_ADDED_BY_PROMETHEUS = {"instance", "job"}


def queries() -> list[str]:
    found = [target["expr"] for panel in dashboard()["panels"] for target in panel.get("targets", ())]
    assert len(found) > 70
    return found


def alerts() -> list[str]:
    text = (DOCKER / "alerts.yml").read_text()
    found = re.findall(r"expr: (?:>-\n)?((?:.|\n)*?)\n        (?:for|labels):", text)
    assert len(found) == text.count("- alert:")
    return [" ".join(each.split()) for each in found]


def named(query: str) -> list[tuple[str, set[str]]]:
    """Return the metrics of a query, each with the labels that are asked for in it or around it."""
    metrics: list[tuple[str, set[str]]] = []
    labels_around: set[str] = set()
    selected: set[str] | None = None
    grouped = False
    after_by = False
    for word in _WORDS.findall(query):
        if word[0] in '"[':
            continue
        if word == "{":
            selected = metrics[-1][1]
        elif word == "}":
            selected = None
        elif word == "(":
            grouped, after_by = after_by, False
        elif word == ")":
            grouped = False
        elif word == "by":
            after_by = True
        elif selected is not None:
            selected.add(word)
        elif grouped:
            labels_around.add(word)
        elif word not in _LANGUAGE:
            metrics.append((word, set()))
    return [(metric, labels | labels_around) for metric, labels in metrics]


@pytest.fixture(scope="module")
def worked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveNode]:
    with worked_node(tmp_path_factory.mktemp("worked")) as live:
        yield live


@pytest.fixture(scope="module")
def scrape(worked: LiveNode) -> Scrape:
    assert worked.node.metrics_address is not None
    return Scrape.of(worked.node.metrics_address)


def test_the_file_is_what_the_table_makes() -> None:
    made = json.loads((DOCKER / "grafana" / "semel.json").read_text())
    assert made == dashboard(), "python -m semel.broker.telemetry.dashboard > docker/grafana/semel.json"


def test_panels_lie_beside_each_other_and_have_ids_of_their_own() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert place["x"] + place["w"] <= 24
        assert not taken & cells, panel["title"]
        taken |= cells


@pytest.mark.parametrize("query", [*queries(), *alerts()])
def test_every_metric_and_label_of_a_query_is_in_a_real_scrape(scrape: Scrape, query: str) -> None:
    found = [each for each in named(query) if each[0] != "up"]
    assert found, f"no metric is in {query}"
    for metric, labels in found:
        assert metric in scrape.names, f"{metric} is in no scrape, but in {query}"
        unknown = labels - scrape.labels_of(metric) - _ADDED_BY_PROMETHEUS
        assert not unknown, f"{metric} has no label {unknown}, but {query} asks for it"


def test_what_reads_queries_finds_wrong_names(scrape: Scrape) -> None:
    assert named('sum by (le, a) (rate(m_bucket{b="x",c=~"y"}[5m])) / n{d="z"}') == [
        ("m_bucket", {"b", "c", "le", "a"}),
        ("n", {"d", "le", "a"}),
    ]
    with pytest.raises(AssertionError, match="is in no scrape"):
        test_every_metric_and_label_of_a_query_is_in_a_real_scrape(scrape, "sum (semel_nothing_total)")
    with pytest.raises(AssertionError, match="has no label"):
        test_every_metric_and_label_of_a_query_is_in_a_real_scrape(scrape, "sum by (api) (semel_request_in_flight)")


def program(name: str) -> str:
    """Return the path of a program of Prometheus; skips the test where there is none."""
    folder = os.environ.get("PROMETHEUS_BIN")
    found = shutil.which(name, path=folder) if folder else shutil.which(name)
    if found is None:
        pytest.skip(f"there is no {name} here: apt-get install prometheus, or name its folder in PROMETHEUS_BIN")
    return found


@pytest.mark.parametrize(
    "arguments",
    [("check", "rules", "alerts.yml"), ("check", "config", "prometheus.yml"), ("test", "rules", "alerts-test.yml")],
    ids=" ".join,
)
def test_promtool_accepts_the_configuration_and_the_alerts_do_what_they_say(arguments: tuple[str, ...]) -> None:
    done = subprocess.run([program("promtool"), *arguments], cwd=DOCKER, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


class Prometheus:
    """A Prometheus that scrapes one node often."""

    def __init__(self, url: str) -> None:
        self.url = url

    def ask(self, query: str) -> list[dict[str, Any]]:
        """Return a query's result. Raises `AssertionError` with Prometheus's own words where it is none."""
        parameters = urllib.parse.urlencode({"query": query})
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/query?{parameters}", timeout=30) as answer:
                body = json.load(answer)
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{query}: {error.read().decode()}") from None
        result: list[dict[str, Any]] = body["data"]["result"]
        return result


@pytest.fixture(scope="module")
def prometheus(worked: LiveNode, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    folder = tmp_path_factory.mktemp("prometheus")
    executable = program("prometheus")
    config = (DOCKER / "prometheus.yml").read_text()
    config = config.replace("15s", "1s").replace("semel:9464", str(worked.node.metrics_address))
    (folder / "prometheus.yml").write_text(config)
    shutil.copy(DOCKER / "alerts.yml", folder)
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                executable,
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                "--web.listen-address=127.0.0.1:0",
            ],
            stdout=log,
            stderr=log,
        )
        try:
            yield _started(process, folder / "log")
        finally:
            process.terminate()
            process.wait(30)


def _started(process: subprocess.Popen[bytes], log: Path) -> Prometheus:
    """Wait until it has scraped the node a few times, so that there are rates."""
    deadline = time.monotonic() + WAIT_S
    found: Prometheus | None = None
    while time.monotonic() < deadline and process.poll() is None:
        listening = re.search(r"address=127\.0\.0\.1:([1-9]\d*)", log.read_text())
        if listening is not None:
            found = Prometheus(f"http://127.0.0.1:{listening[1]}")
            try:
                if found.ask("rate(semel_node_uptime_seconds[1m]) > 0") and found.ask("count_over_time(up[1m]) > 4"):
                    return found
            except OSError:
                pass
        time.sleep(0.1)
    raise AssertionError(f"Prometheus did not scrape the node: {log.read_text()}")


def test_a_real_prometheus_evaluates_every_query_of_the_dashboard(prometheus: Prometheus) -> None:
    empty = []
    for query in queries():
        asked = query.replace("$__rate_interval", "1m").replace("$instance", ".*")
        if not prometheus.ask(asked):
            empty.append(query)
    assert not empty, "these have nothing to show"


def test_a_real_prometheus_evaluates_every_alert(prometheus: Prometheus) -> None:
    for query in alerts():
        prometheus.ask(query)
    assert prometheus.ask("semel_partition_lso_lag_max > 0 and semel_partition_lso_age_max_seconds > 0")
