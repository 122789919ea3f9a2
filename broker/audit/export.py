"""The audit log as OpenTelemetry's log records, sent to what OTEL_LOGS_EXPORTER or an OTLP endpoint names.

The records of one logger alone: all else that a node logs is for its operator, and goes to standard error.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Self

from semel.broker.audit.log import EVENT, LOGGER, NODE, attributes_of
from semel.broker.config.node_config import NodeConfig
from semel.broker.telemetry.providers import end_provider
from semel.broker.telemetry.resource import node_resource
from semel.runtime.setting import ConfigError
from semel.runtime.telemetry.otel_environment import exporter_class, exporters_asked_for

if TYPE_CHECKING:
    from opentelemetry.sdk._logs import LoggerProvider

_log = logging.getLogger("semel.node")

_SEVERITIES: Final = {logging.INFO: 9, logging.WARNING: 13, logging.ERROR: 17}
"""OpenTelemetry's numbers."""
_TEXTS: Final = {9: "INFO", 13: "WARN", 17: "ERROR"}


class AuditExport:
    """Exports the audit log of one node."""

    def __init__(self, provider: LoggerProvider, node_id: int) -> None:
        self._provider = provider
        self._handler = _Handler(provider, node_id)
        logging.getLogger(LOGGER).addHandler(self._handler)

    @classmethod
    def start(cls, config: NodeConfig, environment: Mapping[str, str]) -> Self | None:
        """Return the export that the environment asks for, or None. Raises `ConfigError` where it makes no sense."""
        try:
            names = exporters_asked_for("LOGS", environment)
            if not names:
                return None
            try:
                from opentelemetry.sdk._logs import LoggerProvider, ReadWriteLogRecord  # noqa: F401 (tells the version)
                from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
            except ImportError:
                raise ValueError(
                    "it is exported by opentelemetry-sdk 1.39 and newer: pip install -U opentelemetry-sdk, or set "
                    "OTEL_LOGS_EXPORTER=none"
                ) from None
            exporters = [exporter_class("LOGS", name)() for name in names]
        except ValueError as error:
            raise ConfigError(f"the audit log: {error}") from error
        provider = LoggerProvider(resource=node_resource(config, environment), shutdown_on_exit=False)
        for exporter in exporters:
            provider.add_log_record_processor(BatchLogRecordProcessor(exporter))
        _log.info("the audit log is exported: %s", ", ".join(names))
        return cls(provider, config.node_id)

    async def stop(self) -> None:
        """Send what there is, for a moment, beside the event loop."""
        logging.getLogger(LOGGER).removeHandler(self._handler)
        await end_provider(self._provider, _log, "lines of the audit log")

    def abandon(self) -> None:
        """Send no more, as a killed process does."""
        logging.getLogger(LOGGER).removeHandler(self._handler)


class _Handler(logging.Handler):
    def __init__(self, provider: LoggerProvider, node_id: int) -> None:
        super().__init__()
        self._node_id = node_id
        self._logger = provider.get_logger(LOGGER)

    def emit(self, record: logging.LogRecord) -> None:
        from opentelemetry._logs import LogRecord, SeverityNumber

        try:
            attributes = attributes_of(record)
            if attributes.get(NODE, self._node_id) != self._node_id:
                return
            event = attributes.pop(EVENT, None)
            number = _SEVERITIES.get(record.levelno, 9)
            self._logger.emit(
                LogRecord(
                    timestamp=int(record.created * 1e9),
                    severity_number=SeverityNumber(number),
                    severity_text=_TEXTS[number],
                    body=record.getMessage(),
                    attributes=attributes,
                    event_name=event,
                )
            )
        except Exception:
            self.handleError(record)
