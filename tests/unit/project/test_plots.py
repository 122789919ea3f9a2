"""The page of plots: what it reads, what it shows, and that nothing in a file of figures gets into it as HTML."""

from __future__ import annotations

import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parents[3] / "bench"
sys.path.append(str(BENCH))

import other_brokers  # noqa: E402, F401 - puts on the path what the benches share with the tests
import plots  # noqa: E402
from brokers import report, work  # noqa: E402
from plotted.page import BETTER, EVEN, WORSE, judged, page  # noqa: E402
from plotted.runs import Cost, PlottedRow, RunError, cost_of, read_run  # noqa: E402
from plotted.scales import LogScale  # noqa: E402
from workloads import kafka_peers  # noqa: E402

MACHINE = {"date": "2026-11-28 14:00", "cores": 2, "processor": "a processor", "python": "3.11", "load": [1.0, 1, 1]}


def row(**more: Any) -> dict[str, Any]:
    return {
        "workload": "append",
        "durability": "os",
        "unit": "k requests/s",
        "less_is_better": False,
        "samples": {"kafka": [4.0, 5.0, 6.0], "semel": [8.0, 10.0, 15.0]},
        "costs": {"kafka": "1,114 us a request", "semel": "47 us a request"},
        **more,
    }


def written(path: Path, *rows: Any, **more: Any) -> Path:
    path.write_text(json.dumps({"machine": MACHINE, "command": "bench/x.py --rounds 3", "rows": list(rows), **more}))
    return path


def plotted(**more: Any) -> PlottedRow:
    return PlottedRow("append", "os", "us", more.pop("less", False), **more)


class Checker(HTMLParser):
    """Notes the tags, whatever they would load, and whether each is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loads += [name for name, _ in attrs if name in ("src", "href", "srcset", "data", "action")]
        if tag not in ("meta", "br", "rect", "line"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def checked(text: str) -> Checker:
    checker = Checker()
    checker.feed(text)
    assert checker.open == []
    return checker


def test_a_page_has_ratios_costs_and_where_they_are_from(tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    plots.main([str(written(tmp_path / "against_kafka.json", row())), "--out", str(out)])
    text = out.read_text()
    checker = checked(text)
    assert checker.loads == []
    assert "script" not in checker.tags
    assert "url(" not in text
    assert "@import" not in text
    for says in ("<b>2.00x</b> (2.00 to 2.50)", "Semel is better", "more is better", "shorter is better"):
        assert says in text
    for says in ("2026-11-28 14:00", "2 cores (a processor)", "<code>bench/x.py --rounds 3</code>", "<b>1,114</b>"):
        assert says in text


def test_what_a_file_says_is_never_html(tmp_path: Path) -> None:
    evil = "<script>alert('x')</script>\"&"
    rows = [
        row(workload=evil, durability=evil, unit=evil, costs={"kafka": f"1 {evil}", "semel": f"2 {evil}"}),
        row(workload=evil, samples={"kafka": [1.0]}),
    ]
    machine = dict.fromkeys(("date", "cores", "processor", "kernel", "python"), evil)
    kafka = written(tmp_path / "a.json", *rows, machine=machine, command=evil, versions={evil: evil})
    others = written(tmp_path / "b.json", row(samples={evil: [1.0]}, costs={evil: f"1 {evil}"}, promises={evil: evil}))
    text = page([read_run(kafka), read_run(others)])
    assert "script" not in checked(text).tags
    assert text.count("&lt;script&gt;") > 10


@pytest.mark.parametrize(
    ("kafka", "semel", "less", "verdict"),
    [
        ([1.0, 1.0], [2.0, 3.0], False, BETTER),
        ([1.0, 1.0], [2.0, 3.0], True, WORSE),
        ([2.0, 2.0], [1.0, 1.0], True, BETTER),
        ([2.0, 2.0], [1.0, 1.0], False, WORSE),
        ([1.0, 1.0, 1.0], [0.9, 2.0, 3.0], False, EVEN),
    ],
)
def test_who_is_better_depends_on_the_direction_and_on_all_rounds(
    kafka: list[float], semel: list[float], less: bool, verdict: str
) -> None:
    assert judged(plotted(less=less, samples={"kafka": kafka, "semel": semel})) == verdict


def test_what_the_benches_write_is_what_is_read(tmp_path: Path) -> None:
    samples, costs = {"kafka": [1.0, 2.0], "semel": [3.0, 4.0]}, {"semel": "1,234 us a record"}
    beside_kafka = kafka_peers.as_json(kafka_peers.Row("p50", "disk", "us", samples, True, costs))
    others = report.as_json(work.BrokerRow("p50", "disk", "us", samples, costs, {"semel": "synced"}, True))
    run = read_run(written(tmp_path / "a.json", beside_kafka, others))
    cost = {"semel": Cost(1234.0, "us a record")}
    assert run.rows == [
        PlottedRow("p50", "disk", "us", True, samples, cost),
        PlottedRow("p50", "disk", "us", True, samples, cost, {"semel": "synced"}),
    ]


def test_rounds_are_compared_with_each_other_where_there_are_as_many() -> None:
    assert plotted(samples={"kafka": [1.0, 2.0], "semel": [2.0, 4.0]}).ratio_spread == (2.0, 2.0)
    assert plotted(samples={"kafka": [1.0, 2.0], "semel": [4.0]}).ratio_spread == (2.0, 4.0)


@pytest.mark.parametrize("samples", [{"kafka": [1.0]}, {"semel": [], "kafka": [2.0]}, {"kafka": [0.0], "semel": [1.0]}])
def test_a_row_without_a_ratio_is_named_and_has_no_bar(tmp_path: Path, samples: Any) -> None:
    run = read_run(written(tmp_path / "a.json", row(), row(workload="the other", samples=samples, costs={})))
    text = page([run])
    checked(text)
    assert re.search(r"Without a ratio[^<]*: the other \(os\)", text)
    assert text.count("times Kafka") == 1


def test_other_brokers_stand_side_by_side_with_what_they_promise(tmp_path: Path) -> None:
    samples = {"Semel": [1.0, 2.0, 3.0], "Redis streams": [4.0]}
    one = row(samples=samples, costs={"Semel": "5 us a record"}, promises={"Redis streams": "in memory"})
    text = page([read_run(written(tmp_path / "other_brokers.json", one))])
    checked(text)
    assert 'Redis streams <span class="tag">os</span> in memory' in text
    assert "longer is better" in text
    assert "<b>2.00</b> k requests/s, CPU 5.00 us a record" in text
    assert text.count('class="whisker"') == 3  # one round has none


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "can not be read"),
        ("[]", "has no rows to plot; run `make bench BENCH=a` again"),
        ('{"figures": []}', "has no rows to plot"),
        ('{"rows": [], "machine": {}}', "has no row that was measured"),
        ('{"rows": [{"workload": "x"}], "machine": {}}', "is not what a bench writes: KeyError: 'samples'"),
        ('{"rows": [3], "machine": {}}', "is not what a bench writes"),
    ],
)
def test_a_file_that_can_not_be_plotted_is_named_with_what_to_do(tmp_path: Path, content: str, says: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(content)
    with pytest.raises(RunError, match=re.escape(str(path))) as raised:
        read_run(path)
    assert says in str(raised.value)


def test_nothing_to_plot_is_said_and_no_page_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "OUT", tmp_path)
    out = tmp_path / "page.html"
    with pytest.raises(SystemExit, match="there is nothing to plot in"):
        plots.main(["--out", str(out)])
    with pytest.raises(SystemExit, match=r"there is no .*absent\.json"):
        plots.main([str(tmp_path / "absent.json"), "--out", str(out)])
    assert not out.exists()


def test_an_axis_has_the_one_and_all_values() -> None:
    scale = LogScale.of([0.3, 4.0])
    assert (scale.low, scale.high) == pytest.approx((0.2, 5.0))
    assert scale.ticks == pytest.approx([0.2, 0.5, 1, 2, 5])
    assert scale.at(1.0) == pytest.approx(0.5)
    assert (scale.at(0.2), scale.at(5.0)) == pytest.approx((0, 1))
    assert LogScale.of([0.01, 30]).ticks == pytest.approx([0.01, 0.1, 1, 10])


def test_costs_of_one_run_are_shown_once(tmp_path: Path) -> None:
    rows = [row(workload=f"p{share}", costs={"kafka": "2 us a record", "semel": "1 us a record"}) for share in (50, 99)]
    text = page([read_run(written(tmp_path / "a.json", *rows, row()))])
    assert text.count("Apache Kafka: 2 us a record") == 1
    assert text.count("Apache Kafka: 1114 us a request") == 1
    assert text.index("Apache Kafka: 2 us") < text.index("Apache Kafka: 1114 us")


def test_a_cost_is_a_number_and_a_unit() -> None:
    assert cost_of("3,075 us a transaction") == Cost(3075.0, "us a transaction")
    assert cost_of("0.69 s a GB") == Cost(0.69, "s a GB")
    assert cost_of("") is None
