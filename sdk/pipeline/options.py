"""The options of a run, checked at once."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from semel.protocol.errors import UsageError
from semel.runtime.backoff import Backoff
from semel.sdk.pipeline.dead_letters import check_dead_letter_topic
from semel.sdk.transport.arguments import check_seconds
from semel.sdk.transport.kafka_names import in_our_names
from semel.sdk.transport.options import check_int, option_names

_NOT_FOR_RUNS: Final = {
    "bootstrap": "it is the consumer's",
    "transactional_id": "give it to run()",
    "acks": "transactions need all",
    "idempotent": "transactions need it",
    "two_phase": "run() decides about its transactions",
}


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How `Consumer.run` works. See there for each."""

    group: str
    dead_letter_topic: str | None
    retries: int
    backoff: Backoff
    max_records: int
    commit_interval_s: float
    idle_timeout_s: float
    progress_interval_s: float | None

    @classmethod
    def checked(
        cls,
        handler: Any,
        group: str,
        topics: Collection[str],
        pattern: re.Pattern[str] | None,
        *,
        dead_letter_topic: object,
        retries: object,
        retry_backoff_ms: int,
        retry_backoff_max_ms: int,
        max_records: object,
        commit_interval_ms: object,
        idle_timeout_s: float | None,
        progress_interval_s: float | None,
    ) -> RunOptions:
        """Return the options. Raises `UsageError`."""
        if not callable(handler):
            raise UsageError(
                "run() takes a function that gets a record and returns what to send, not "
                f"{type(handler).__name__} {handler!r}"
            )
        idle_s = check_seconds("idle_timeout_s", idle_timeout_s)
        if not group:
            raise UsageError("run() commits offsets for a group: Consumer(..., group='name')")
        return cls(
            group=group,
            dead_letter_topic=(
                None if dead_letter_topic is None else check_dead_letter_topic(dead_letter_topic, topics, pattern)
            ),
            retries=check_int("retries", retries, 0),
            backoff=Backoff(
                check_int("retry_backoff_ms", retry_backoff_ms, 1),
                check_int("retry_backoff_max_ms", retry_backoff_max_ms, 1),
            ),
            max_records=check_int("max_records", max_records, 1),
            commit_interval_s=check_int("commit_interval_ms", commit_interval_ms, 1) / 1000,
            idle_timeout_s=math.inf if idle_s is None else idle_s,
            progress_interval_s=check_seconds("progress_interval_s", progress_interval_s),
        )


def run_producer_options(given: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return further options for the producer of a run. Raises `UsageError` for those that a run decides."""
    if given is not None and not isinstance(given, Mapping):
        raise UsageError(
            f'option producer takes options of a Producer, such as {{"value_serializer": "json"}}, not {given!r}'
        )
    from semel.sdk.producer.api import Producer  # late: most consumers need no producer

    options = in_our_names("producer", option_names(Producer), given or {}, {})
    for name, reason in _NOT_FOR_RUNS.items():
        if name in options:
            raise UsageError(f"option producer can't set {name}: {reason}")
    return options
