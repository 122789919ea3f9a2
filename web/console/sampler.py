"""What a cluster did in the last hour: the gateway's own user looks every few seconds, and the process keeps it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from semel.protocol.errors import SemelError
from semel.sdk.admin.rates import Flow, topic_flows, topic_sizes
from semel.sdk.diagnosis.remote_costs import remote_state

if TYPE_CHECKING:
    from semel import aio
    from semel.sdk.admin.cluster_calls import ReplicasOfNodes
    from semel.sdk.diagnosis.findings import Cluster
    from semel.sdk.diagnosis.remote_costs import RemoteState

_log = logging.getLogger("semel.http.console")

EVERY_S: Final = 10.0
KEPT: Final = 360
"""Samples: an hour."""
_PAUSE_LOOKS: Final = 9
"""A look that takes long, because the cluster is large or busy, is repeated after so many times as long."""
TOPICS_MAX: Final = 200
"""Topics of which a sample has rates: those with the most traffic."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One look. Rates are bytes per second since the look before.

    lag:    of all groups that the nodes told of, together
    topics: what each topic had; only those with traffic
    groups: the lag of each group that the nodes told of: those that are furthest behind
    held:   partitions where an open transaction holds back readers of committed records
    """

    time_ms: int
    written: float
    sent: float
    lag: int
    open_transactions: int
    held: int
    topics: Mapping[str, Flow] = field(default_factory=dict)
    groups: Mapping[str, int] = field(default_factory=dict)


class Sampler:
    """Samples of the last hour. What it knows is shown only to those whose own question about it was answered."""

    def __init__(self, *, every_s: float = EVERY_S) -> None:
        self.samples: deque[Sample] = deque(maxlen=KEPT)
        self.sizes: Mapping[str, int] = {}
        """The bytes of each topic, when last looked."""
        self.remote: RemoteState | None = None
        """The remote storage, when last looked; None where there is none."""
        self.trouble = ""
        """Why the last look failed; empty where it did not."""
        self._admin: aio.Admin | None = None
        self._every_s = every_s
        self._before: tuple[float, ReplicasOfNodes] | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self, admin: aio.Admin) -> None:
        """Look every few seconds, until it is closed."""
        self._admin = admin
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="sample the cluster")

    async def close(self) -> None:
        """Stop."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    @property
    def latest(self) -> Sample | None:
        return self.samples[-1] if self.samples else None

    def flow(self, topic: str) -> Flow | None:
        """Return a topic's latest rates; None where there is no sample yet."""
        return None if self.latest is None else self.latest.topics.get(topic, Flow())

    def lag_of(self, group: str) -> list[tuple[int, float]]:
        """Return a group's lag over time."""
        return [(one.time_ms, one.groups[group]) for one in self.samples if group in one.groups]

    async def _run(self) -> None:
        while True:
            began_s = time.monotonic()
            try:
                await self.look()
            except SemelError as error:
                self.trouble = error.message
                self._before = None
            except Exception:
                _log.exception("looking at the cluster failed")
                self.trouble = "looking at the cluster failed: the log of the HTTP gateway has more"
            await asyncio.sleep(max(self._every_s, (time.monotonic() - began_s) * _PAUSE_LOOKS))

    async def look(self) -> None:
        """Take one sample. The first look only remembers sizes: rates need two."""
        assert self._admin is not None
        replicas = await self._admin.replicas()
        diagnosis = await self._admin.diagnose()
        now_s = time.monotonic()
        before, self._before = self._before, (now_s, replicas)
        self.sizes = topic_sizes(replicas)
        self.remote = remote_state(diagnosis.cluster)
        if before is not None:
            flows = topic_flows(before[1], replicas, max(now_s - before[0], 0.001))
            self.samples.append(sample_of(int(time.time() * 1000), flows, diagnosis.cluster))
        self.trouble = ""


def sample_of(time_ms: int, flows: Mapping[str, Flow], cluster: Cluster) -> Sample:
    """Return a sample of what the nodes said."""
    busy = sorted((one for one in flows.items() if one[1] != Flow()), key=lambda one: -one[1].written - one[1].sent)
    groups = {group.group_id: group.lag for node in cluster.nodes for group in node.groups}
    return Sample(
        time_ms,
        sum(flow.written for flow in flows.values()),
        sum(flow.sent for flow in flows.values()),
        sum(groups.values()),
        sum(node.transactions_total for node in cluster.nodes),
        sum(node.held_total for node in cluster.nodes),
        dict(busy[:TOPICS_MAX]),
        groups,
    )
