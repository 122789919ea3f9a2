"""A node's metrics from beginning to end: the endpoint of `metrics.listen`, and OpenTelemetry's exporters.

Where nothing was asked for there is no `NodeMetrics`, and nothing is measured.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, Self

from semel.broker.config.sources import Address, parse_address
from semel.broker.metrics.readings import NodeReader, watch_loop
from semel.broker.telemetry.reading import Reading
from semel.broker.telemetry.recorders import Recorders
from semel.broker.telemetry.resource import node_resource
from semel.protocol.schemes import speaks_tls
from semel.protocol.wording import counted
from semel.runtime.setting import ConfigError
from semel.runtime.telemetry.otel_environment import exporters_asked_for

if TYPE_CHECKING:
    import ssl

    from opentelemetry.sdk.resources import Resource

    from semel.broker.acls.authorizer import Authorizer
    from semel.broker.audit.log import Audit
    from semel.broker.config.node_config import NodeConfig
    from semel.broker.metrics.callers import MetricsCallers
    from semel.broker.metrics.observed import ObservedNode
    from semel.broker.telemetry.endpoint import Health, MetricsEndpoint
    from semel.broker.telemetry.otlp import Export
    from semel.broker.users.tokens import Tokens
    from semel.broker.users.users import Users

LOOP_LOOK_EVERY_S: Final = 0.25

_log = logging.getLogger("semel.metrics")


def asked_for(config: NodeConfig, environment: Mapping[str, str]) -> bool:
    """Say whether anybody wants a node's metrics. Raises `ConfigError` for variables that make no sense."""
    return bool(config.metrics_listen) or bool(_exporter_names(environment))


def metrics_callers(
    config: NodeConfig,
    users: Users | None,
    tokens: Tokens | None,
    authorizer: Callable[[], Authorizer | None],
    audit: Audit,
) -> MetricsCallers | None:
    """Return what knows who may read the metrics; None where they are not served."""
    if not config.metrics_listen:
        return None
    from semel.broker.metrics.callers import MetricsCallers

    return MetricsCallers(config, users, tokens, authorizer, audit)


class NodeMetrics:
    """The metrics of one node. `start` before anything else of it, `stop` before anything else too."""

    def __init__(
        self,
        node: ObservedNode,
        environment: Mapping[str, str],
        encryption: Callable[[], ssl.SSLContext] | None,
        callers: MetricsCallers | None,
    ) -> None:
        self._encryption = encryption
        self._callers = callers
        self.recorders = Recorders()
        self._node = node
        self._environment = environment
        self._reader = NodeReader(node, self.recorders, node.clock)
        self._endpoint: MetricsEndpoint | None = None
        self._exports: list[Export] = []
        self._interval_ms = self._timeout_ms = 0.0
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    async def start(
        cls,
        node: ObservedNode,
        environment: Mapping[str, str] = os.environ,
        *,
        encryption: Callable[[], ssl.SSLContext] | None = None,
        callers: MetricsCallers | None = None,
    ) -> Self | None:
        """Return a node's metrics, listening, or None where nobody asked for them.

        encryption: gives what the connections of `tls://` are encrypted with
        callers:    knows who may read them

        Raises `ConfigError` for variables that make no sense, and `NodeStartError` where the address is taken.
        """
        if not asked_for(node.config, environment):
            return None
        metrics = cls(node, environment, encryption, callers)
        await metrics._start()
        return metrics

    @property
    def address(self) -> Address | None:
        """Where /metrics is, with the real port; None where it is not served."""
        return None if self._endpoint is None else self._endpoint.address

    async def _start(self) -> None:
        config = self._node.config
        resource = node_resource(config, self._environment)
        names = _exporter_names(self._environment)
        if names:
            self._make_exports(names, resource)
        if config.metrics_listen:
            from semel.broker.telemetry.endpoint import MetricsEndpoint

            self._endpoint = MetricsEndpoint(
                parse_address("metrics.listen", config.metrics_listen),
                read=self._reader.read,
                healthy=self._healthy,
                ready=self._ready,
                resource={name: str(value) for name, value in resource.attributes.items()},
                connections_max=config.metrics_max_connections,
                encryption=self._encryption if speaks_tls(config.metrics_listen) else None,
                callers=self._callers,
            )
            await self._endpoint.start()
        loop = asyncio.get_running_loop()
        watching = watch_loop(self.recorders, self._node.clock, LOOP_LOOK_EVERY_S)
        self._tasks.append(loop.create_task(watching, name="watch the event loop"))
        if self._exports:
            self._tasks.append(loop.create_task(self._run_exports(), name="export the metrics"))

    def _make_exports(self, names: list[str], resource: Resource) -> None:
        from semel.broker.telemetry import otlp

        try:
            self._interval_ms = otlp.milliseconds(self._environment, "OTEL_METRIC_EXPORT_INTERVAL", otlp.INTERVAL_MS)
            self._timeout_ms = otlp.milliseconds(self._environment, "OTEL_METRIC_EXPORT_TIMEOUT", otlp.TIMEOUT_MS)
            exporters = otlp.make_exporters(names)
        except ValueError as error:
            raise ConfigError(str(error)) from None
        start_ns = self._now_ns()
        self._exports = [otlp.Export(exporter, resource, start_ns) for exporter in exporters]

    async def _run_exports(self) -> None:
        while True:
            await asyncio.sleep(self._interval_ms / 1000)
            if readings := await self._readings():
                for export in self._exports:
                    await export.send(readings, self._now_ns(), self._timeout_ms)

    async def _readings(self) -> list[Reading]:
        """Return all readings; none where they can't be read, which ends neither the exports nor a clean stop."""
        try:
            return await self._reader.read()
        except Exception:
            _log.exception("the metrics could not be read, and are not exported this time")
            return []

    async def stop(self) -> None:
        """Export what there is once more, and stop listening."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        exports, self._exports = self._exports, []
        if exports:
            readings, now_ns = await self._readings(), self._now_ns()
            await asyncio.gather(*(export.end(readings, now_ns) for export in exports))
        if self._endpoint is not None:
            await self._endpoint.stop()

    def _now_ns(self) -> int:
        return self._node.clock.now_ms() * 1_000_000

    def _healthy(self) -> Health:
        from semel.broker.telemetry.endpoint import Health

        if self._node.failed.done():
            return Health(False, f"the node can't continue: {self._node.failed.result().message}")
        offline = self._node.offline_partitions
        # No restart brings them back, and the other partitions are served: so no container is to be restarted for it.
        return Health(True, f"ok, but {counted(offline, 'partition')} offline: see semel doctor" if offline else "")

    def _ready(self) -> Health:
        from semel.broker.telemetry.endpoint import Health

        health = self._healthy()
        if health.ok and not self._node.is_serving:
            return Health(False, "the node is starting, or stopping")
        return health


def _exporter_names(environment: Mapping[str, str]) -> list[str]:
    try:
        return exporters_asked_for("METRICS", environment)
    except ValueError as error:
        raise ConfigError(str(error)) from None
