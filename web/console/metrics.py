"""The last hour in plots: traffic, lag, open transactions, and the topics with the most traffic."""

from __future__ import annotations

from collections import Counter
from typing import Final

from markupsafe import Markup
from starlette.responses import Response

from semel.sdk.admin.rates import Flow
from semel.web.console.charts import Line, plot, rate
from semel.web.console.sampler import Sampler
from semel.web.console.visit import Handler, Visit

_TOPICS: Final = 6


def plots_of(sampler: Sampler) -> list[Markup]:
    """Return the plots of a cluster: bytes in and out, lag, and open transactions."""
    samples = sampler.samples
    return [
        plot(
            "Traffic",
            [
                Line("written", [(one.time_ms, one.written) for one in samples]),
                Line("sent", [(one.time_ms, one.sent) for one in samples]),
            ],
            rate,
        ),
        plot("Lag of all groups", [Line("records", [(one.time_ms, one.lag) for one in samples])]),
        plot(
            "Transactions",
            [
                Line("open", [(one.time_ms, one.open_transactions) for one in samples]),
                Line("partitions held back", [(one.time_ms, one.held) for one in samples]),
            ],
        ),
    ]


async def _metrics(visit: Visit) -> Response:
    await visit.admin.diagnose(limit=1)  # who may not ask this is shown nothing of it
    sampler = visit.console.sampler
    traffic = Counter[str]()
    for sample in sampler.samples:
        for topic, flow in sample.topics.items():
            traffic[topic] += round(flow.written + flow.sent)
    visible = {topic.name for topic in await visit.admin.topics(include_internal=True)}
    busiest = [topic for topic, _ in traffic.most_common() if topic in visible][:_TOPICS]
    by_topic = [topic_plot(sampler, topic) for topic in busiest]
    return visit.html("metrics.html", plots=plots_of(sampler), by_topic=by_topic, trouble=sampler.trouble)


def topic_plot(sampler: Sampler, topic: str) -> Markup:
    """Return the plot of one topic's traffic."""
    flows = [(one.time_ms, one.topics.get(topic, Flow())) for one in sampler.samples]
    return plot(
        f"Traffic of {topic}",
        [
            Line("written", [(time_ms, flow.written) for time_ms, flow in flows]),
            Line("sent", [(time_ms, flow.sent) for time_ms, flow in flows]),
        ],
        rate,
    )


PAGES: Final[tuple[tuple[str, Handler], ...]] = (("metrics", _metrics),)
CHANGES: Final[tuple[tuple[str, Handler], ...]] = ()
