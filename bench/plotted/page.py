"""The page: one HTML file with its style and its plots in it, which asks for nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from harness import number

from plotted.runs import KAFKA, SEMEL, Cost, PlottedRow, Run
from plotted.scales import LogScale

TITLES: Mapping[str, str] = {
    "against_kafka": "One node beside one of Apache Kafka",
    "cluster": "Three nodes beside three of Apache Kafka",
    "other_brokers": "One node beside NATS JetStream and Redis streams",
}
NAMES: Mapping[str, str] = {KAFKA: "Apache Kafka", SEMEL: "Semel"}
EDGE = 0.03
BETTER, WORSE, EVEN = "better", "worse", "even"

STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #59636e; --paper: #fff; --line: #d5dae0; --one: #1b1f24;
  --better: #0b7a75; --worse: #c2410c; --even: #7d8590; --kafka: #9aa4af; --semel: #2563b8; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8ebee; --soft: #a0a9b3; --paper: #14171a; --line: #363c43;
  --one: #e8ebee; --better: #35b8ad; --worse: #f58a4b; --even: #838c96; --kafka: #6b7580; --semel: #6ca6f0; } }
body { margin: 0 auto; padding: 1rem; max-width: 72rem; background: var(--paper);
  color: var(--ink); font: 16px/1.45 system-ui, sans-serif; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.3rem; margin: 2.5rem 0 .5rem; }
h3 { font-size: 1.05rem; margin: 1.8rem 0 .3rem; }
p, .about { max-width: 48rem; } .about, .note, .value, .axis { color: var(--soft); font-size: .85rem; }
code { overflow-wrap: anywhere; }
.row { display: grid; grid-template-columns: minmax(0, 1fr); gap: .1rem 1rem; padding: .45rem 0;
  border-top: 1px solid var(--line); }
.label { font-size: .95rem; } .tag { border: 1px solid var(--line); border-radius: .6rem; padding: 0 .45rem;
  font-size: .75rem; color: var(--soft); white-space: nowrap; }
.group { margin-top: 1.2rem; font-weight: 600; } .value b { color: var(--ink); }
svg { display: block; width: 100%; height: 1.4rem; } .bars svg { height: .8rem; margin: .1rem 0; }
.axis { position: relative; height: 1.2rem; } .axis span { position: absolute; transform: translateX(-50%); }
.axis .first { transform: none; } .axis .last { transform: translateX(-100%); }
.grid { stroke: var(--line); } .one { stroke: var(--one); } .whisker { stroke: var(--ink); }
.grid, .one, .whisker { stroke-width: 1px; vector-effect: non-scaling-stroke; } .one { stroke-width: 2px; }
.better { fill: var(--better); } .worse { fill: var(--worse); } .even { fill: var(--even); }
.kafka { fill: var(--kafka); } .semel { fill: var(--semel); }
.key { display: inline-block; width: .8rem; height: .8rem;
  vertical-align: -.05rem; margin-right: .25rem; }
.key.better { background: var(--better); } .key.worse { background: var(--worse); }
.key.even { background: var(--even); }
.key.kafka { background: var(--kafka); } .key.semel { background: var(--semel); }
@media (min-width: 50rem) { .row { grid-template-columns: 19rem minmax(0, 1fr) 17rem; align-items: center; }
  .row.head > .axis { grid-column: 2; } }
"""


def page(runs: Sequence[Run]) -> str:
    """Return the page of one run or more."""
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        # Whatever a file of figures has in it: nothing is loaded, and nothing runs.
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
        f"<title>Semel's figures</title><style>{STYLE}</style></head><body>",
        "<h1>Semel's figures</h1>",
        "<p>Semel beside other brokers: the same workloads, on the same machine, in the same run, in turns. A bar is "
        "a median, its whisker goes from the lowest round to the highest. All figures are of one machine, which the "
        "clients share with the servers: compare what stands side by side, and nothing with other machines. How they "
        "are measured, and what bounds them, is in <code>bench/GOALS.md</code> and <code>bench/RESULTS.md</code>.</p>",
    ]
    for run in runs:
        parts += _section(run)
    return "\n".join([*parts, "</body></html>"]) + "\n"


def _section(run: Run) -> Iterable[str]:
    yield f"<section><h2>{escape(TITLES.get(run.name, run.name))}</h2>"
    yield _about(run)
    yield from _beside_kafka(run.rows) if run.beside_kafka else _brokers(run.rows)
    yield "</section>"


def _about(run: Run) -> str:
    machine = run.machine
    load = machine.get("load") or [0.0]
    words = [
        str(machine.get("date", "at a date that is not known")),
        f"{machine.get('cores', '?')} cores ({machine.get('processor', 'processor not known')})",
        f"Linux {machine['kernel']}" if "kernel" in machine else "",
        f"Python {machine['python']}" if "python" in machine else "",
        *(f"{name} {version}" for name, version in run.versions.items()),
        f"load {float(load[0]):.1f} at the end of the run, which is part of it",
    ]
    text = escape(", ".join(word for word in words if word))
    return f'<p class="about">{text}.<br>Command: <code>{escape(run.command or "not known")}</code></p>'


# --- Beside Apache Kafka ----------------------------------------------------------------------------------------------


def _beside_kafka(rows: Sequence[PlottedRow]) -> Iterable[str]:
    compared = [row for row in rows if row.has_ratio]
    more = [row for row in compared if not row.less_is_better]
    less = [row for row in compared if row.less_is_better]
    if more:
        yield "<h3>Rates, Semel by Kafka: more is better, so right of the line Semel is better</h3>"
        yield from _ratios(more)
    if less:
        yield "<h3>Times and memory, Semel by Kafka: less is better, so left of the line Semel is better</h3>"
        yield from _ratios(less)
    # What one run came to is in several rows: percentiles, of which each has the costs of all.
    costs = list(
        {(row.durability, *row.costs.values()): row for row in reversed(rows) if _has_both_costs(row)}.values()
    )
    if costs:
        yield "<h3>The servers' CPU for a unit of work: shorter is better</h3>"
        yield '<p class="note"><span class="key kafka"></span>Apache Kafka <span class="key semel"></span>Semel. '
        yield "Each pair has a scale of its own.</p>"
        yield from (_costs(row) for row in reversed(costs))
    if alone := [row for row in rows if not row.has_ratio]:
        names = "; ".join(f"{row.workload} ({row.durability})" for row in alone)
        yield f'<p class="note">Without a ratio, since one of the two was not measured: {escape(names)}.</p>'


def _has_both_costs(row: PlottedRow) -> bool:
    kafka, semel = row.costs.get(KAFKA), row.costs.get(SEMEL)
    return kafka is not None and semel is not None and kafka.unit == semel.unit


def judged(row: PlottedRow) -> str:
    """Say whether Semel is better or worse, or even: where the rounds do not agree."""
    low, high = row.ratio_spread
    if low <= 1 <= high:
        return EVEN
    return BETTER if (row.ratio < 1) == row.less_is_better else WORSE


def _ratios(rows: Sequence[PlottedRow]) -> Iterable[str]:
    scale = LogScale.of(value for row in rows for value in (row.ratio, *row.ratio_spread))
    yield '<p class="note"><span class="key better"></span>Semel is better'
    yield ' <span class="key worse"></span>Kafka is better'
    yield ' <span class="key even"></span>the rounds do not agree. The scale is logarithmic, the line is at 1.</p>'
    ticks = "".join(_tick(scale.at(tick), f"{tick:g}x") for tick in scale.ticks)
    yield f'<div class="row head"><div class="axis" aria-hidden="true">{ticks}</div></div>'
    yield from (_ratio(row, scale) for row in rows)


def _tick(at: float, text: str) -> str:
    """Return a number of the axis; at its ends it is beside its line, so that the page is no wider for it."""
    kind = ' class="first"' if at < EDGE else ' class="last"' if at > 1 - EDGE else ""
    return f'<span{kind} style="left:{at:.2%}">{text}</span>'


def _ratio(row: PlottedRow, scale: LogScale) -> str:
    low, high = row.ratio_spread
    verdict = judged(row)
    said = {BETTER: "Semel is better", WORSE: "Kafka is better", EVEN: "the rounds do not agree"}[verdict]
    direction = "less" if row.less_is_better else "more"
    figures = " · ".join(f"{NAMES[who]} {number(row.median(who))}" for who in (KAFKA, SEMEL))
    spread = "" if low == high else f" ({low:.2f} to {high:.2f})"
    value = f"<b>{row.ratio:.2f}x</b>{spread}, {said}<br>{escape(figures)} {escape(row.unit)}, {direction} is better"
    one, end = scale.at(1.0), scale.at(row.ratio)
    marks = [_line(scale.at(tick), "grid") for tick in scale.ticks]
    marks.append(_bar(min(one, end), max(one, end), verdict))
    marks += [_line(one, "one"), *_whisker(scale.at(low), scale.at(high))]
    label = f"{row.workload}, {row.durability}: {row.ratio:.2f} times Kafka's, {said}"
    return _row(row, _svg(marks, label), value)


def _costs(row: PlottedRow) -> str:
    costs = {who: row.costs[who] for who in (KAFKA, SEMEL)}
    longest = max(cost.value for cost in costs.values()) or 1.0
    plots = "".join(
        _svg([_bar(0.0, cost.value / longest, who)], f"{NAMES[who]}: {cost.value:g} {cost.unit}")
        for who, cost in costs.items()
    )
    figures = " · ".join(f"{NAMES[who]} <b>{number(cost.value)}</b>" for who, cost in costs.items())
    return _row(row, f'<div class="bars">{plots}</div>', f"{figures}<br>{escape(costs[SEMEL].unit)}")


# --- Other brokers ----------------------------------------------------------------------------------------------------


def _brokers(rows: Sequence[PlottedRow]) -> Iterable[str]:
    promises = {(row.durability, who): text for row in rows for who, text in row.promises.items()}
    if promises:
        yield "<h3>What an acknowledgement says</h3>"
        yield '<p class="note">These differ, so no bar says all.</p><ul>'
        for (durability, who), text in promises.items():
            yield f'<li>{escape(who)} <span class="tag">{escape(durability)}</span> {escape(text)}</li>'
        yield "</ul>"
    for less, title in ((False, "Rates: longer is better"), (True, "Times: shorter is better")):
        if chosen := [row for row in rows if row.less_is_better is less]:
            yield f"<h3>{title}</h3>"
            yield '<p class="note">Each group has a scale of its own, from nothing. '
            yield "The server's CPU is beside each figure: there, less is better.</p>"
            yield from (_group(row) for row in chosen)


def _group(row: PlottedRow) -> str:
    longest = max(value for values in row.samples.values() for value in values) or 1.0
    lines = [f'<div class="label group">{escape(row.workload)} <span class="tag">{escape(row.durability)}</span></div>']
    for who, values in row.samples.items():
        median = row.median(who)
        marks = [_bar(0.0, median / longest, "semel" if who.casefold() == SEMEL else "kafka")]
        marks += _whisker(min(values) / longest, max(values) / longest)
        cost = row.costs.get(who)
        spent = f", CPU {_cost(cost)}" if cost is not None else ""
        plot = _svg(marks, f"{who}: {number(median)} {row.unit}")
        lines.append(
            f'<div class="row"><div>{escape(who)}</div>{plot}'
            f'<div class="value"><b>{number(median)}</b> {escape(row.unit)}{escape(spent)}</div></div>'
        )
    return "\n".join(lines)


def _cost(cost: Cost) -> str:
    return f"{number(cost.value)} {cost.unit}"


# --- Marks ------------------------------------------------------------------------------------------------------------


def _row(row: PlottedRow, plot: str, value: str) -> str:
    label = f'{escape(row.workload)} <span class="tag">{escape(row.durability)}</span>'
    return f'<div class="row"><div class="label">{label}</div>{plot}<div class="value">{value}</div></div>'


def _svg(marks: Sequence[str], label: str) -> str:
    """Return a plot as wide as there is room; `label` is what is read aloud."""
    inner = "".join(marks)
    return (
        f'<svg viewBox="0 0 1000 20" preserveAspectRatio="none" role="img" aria-label="{escape(label)}">{inner}</svg>'
    )


def _bar(start: float, end: float, kind: str) -> str:
    return f'<rect class="{kind}" x="{start * 1000:.1f}" y="4" width="{max((end - start) * 1000, 1):.1f}" height="12"/>'


def _line(at: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{at * 1000:.1f}" y1="0" x2="{at * 1000:.1f}" y2="20"/>'


def _whisker(low: float, high: float) -> list[str]:
    """Return a line with two ends; nothing where there was one round."""
    if low == high:
        return []
    ends = [f'<line class="whisker" x1="{at * 1000:.1f}" y1="6" x2="{at * 1000:.1f}" y2="14"/>' for at in (low, high)]
    return [f'<line class="whisker" x1="{low * 1000:.1f}" y1="10" x2="{high * 1000:.1f}" y2="10"/>', *ends]
