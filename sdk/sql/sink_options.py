"""The options of a sink, checked at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from semel.protocol.errors import UsageError
from semel.sdk.consumer.api import Consumer
from semel.sdk.sql.target import MappingFunction, Mode
from semel.sdk.transport.kafka_names import in_our_names
from semel.sdk.transport.options import check_callable, check_choice, check_int, check_text, option_names

_NOT_FOR_SINKS: Final = {
    "auto_commit_interval_ms": "the offsets are in the database",
    "listener": "the sink listens itself, to take positions from the database",
    "isolation": "it writes committed records alone, or an aborted one would stay in the table",
    "pattern": "name the topics",
    "group": "give it to the Sink",
    "topics": "give them to the Sink",
    "offset_reset": "give it to the Sink",
    "bootstrap": "give it to the Sink",
}


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """How a sink writes. See `Sink` for each."""

    table: str | None
    schema: str | None
    mapping: MappingFunction | None
    mode: Mode
    key: tuple[str, ...]
    columns: Mapping[str, type[Any]] | None
    rows_max: int
    bytes_max: int
    linger_s: float
    retry_timeout_s: float
    offset_reset: str

    @classmethod
    def checked(
        cls,
        *,
        table: object,
        schema: object,
        mapping: Any,
        mode: object,
        key: object,
        columns: object,
        rows_max: object,
        bytes_max: object,
        linger_ms: object,
        retry_timeout_ms: object,
        offset_reset: object,
    ) -> SinkOptions:
        """Return the options. Raises `UsageError`."""
        if (table is None) != (mapping is None):
            raise UsageError("table and mapping belong together: give both for run(), or neither for transaction()")
        if columns is not None and not isinstance(columns, Mapping):
            raise UsageError('columns takes names and types, {"id": int}, as the mapping gives them')
        return cls(
            table=None if table is None else check_text("table", table),
            schema=None if schema is None else check_text("schema", schema),
            mapping=check_callable("mapping", mapping),
            mode=Mode(check_choice("mode", mode, [one.value for one in Mode])),
            key=_names(key),
            columns=columns,
            rows_max=check_int("rows_max", rows_max, 1, 1_000_000),
            bytes_max=check_int("bytes_max", bytes_max, 1),
            linger_s=check_int("linger_ms", linger_ms, 0) / 1000,
            retry_timeout_s=check_int("retry_timeout_ms", retry_timeout_ms, 1) / 1000,
            offset_reset=check_choice("offset_reset", offset_reset, ("earliest", "latest", "error")),
        )


def consumer_options(given: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return further options for the sink's consumer. Raises `UsageError` for those that a sink decides."""
    options = in_our_names("consumer", option_names(Consumer), given or {}, {})
    for name, reason in _NOT_FOR_SINKS.items():
        if name in options:
            raise UsageError(f"option consumer can't set {name}: {reason}")
    return options


def _elsewhere() -> dict[str, str]:
    """Return the consumer's options, each with how a sink is given it."""
    advice = {name: f"give it to the consumer: consumer={{{name!r}: ...}}" for name in option_names(Consumer)}
    return advice | {name: f"a sink decides it: {reason}" for name, reason in _NOT_FOR_SINKS.items()}


OPTIONS_ELSEWHERE: Final = _elsewhere()


def _names(key: object) -> tuple[str, ...]:
    if key is None:
        return ()
    if isinstance(key, str) or not isinstance(key, Sequence):
        raise UsageError(f"key takes a list of columns, such as [{key!r}], not {key!r}")
    return tuple(check_text("key", name) for name in key)
