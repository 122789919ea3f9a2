"""Asks the cluster where the source's partitions start and end."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Final, TypeVar

from semel.protocol.api.topics import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from semel.protocol.errors import ErrorCode, FatalError, RetriableError, SemelError, UsageError
from semel.protocol.ids import OFFSETS_TOPIC, TopicPartition
from semel.sdk.admin.core import AdminCore
from semel.sdk.transport.client import ClientCore
from semel.spark.clients import client_for, run
from semel.spark.source.options import EARLIEST_OFFSET, LATEST_OFFSET, Bound, BoundKind, SourceOptions

_log = logging.getLogger("semel.spark")

_UNSTABLE_RETRY_S: Final = 0.1
_UNDECIDED: Final = ("Ongoing", "PrepareCommit", "PrepareAbort")
_DESCRIBED_MAX: Final = 100
_NAMED_MAX: Final = 3

T = TypeVar("T")
Found = dict[TopicPartition, int]


class SourceOffsets:
    """Offsets of all partitions that a source reads. Every call asks the cluster; the constructor does not."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self, *, skip_missing: bool = False) -> list[TopicPartition]:
        """Return what there is to read now, in order. What is not there is an error, or is left out with a warning."""
        return self._with_retries(lambda: self._partitions(skip_missing))

    def earliest(self, partitions: Iterable[TopicPartition]) -> Found:
        """Return where partitions start."""
        return self._lookup(dict.fromkeys(partitions, EARLIEST_TIMESTAMP))

    def latest(self, partitions: Iterable[TopicPartition]) -> Found:
        """Return where partitions end for this source's isolation level: the last stable offset, as a rule (L2)."""
        return self._lookup(dict.fromkeys(partitions, LATEST_TIMESTAMP))

    def resolve(self, bound: Bound, partitions: list[TopicPartition]) -> Found:
        """Return the offsets of all `partitions` that a starting or ending option means."""
        if bound.kind is BoundKind.EARLIEST:
            return self.earliest(partitions)
        if bound.kind is BoundKind.LATEST:
            return self.latest(partitions)
        if bound.kind is BoundKind.COMMITTED:
            return self._committed(partitions)
        if bound.kind is BoundKind.TIMESTAMP:
            return self._by_timestamp(bound, dict.fromkeys(partitions, bound.timestamp_ms))
        named = self._without_gone(bound, partitions)
        _check_all_named(bound, named, partitions)
        if bound.kind is BoundKind.TIMESTAMPS:
            return self._by_timestamp(bound, named)
        return self._by_offset(named)

    def _without_gone(self, bound: Bound, partitions: list[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return what an option names, without what the source reads and is gone, where it may pass that over."""
        if self._options.fail_on_data_loss:
            return bound.by_partition
        return {
            tp: value
            for tp, value in bound.by_partition.items()
            if tp in partitions or not self._options.selection.takes(tp)
        }

    def _partitions(self, skip_missing: bool) -> list[TopicPartition]:
        selection = self._options.selection
        client = client_for(self._options.address)
        if selection.pattern:
            pattern = re.compile(selection.pattern)
            topics = [
                topic for topic in run(client, client.cluster.all_topics()) if pattern.fullmatch(topic.name) is not None
            ]
        else:
            names = selection.topics or tuple(sorted(selection.assigned))
            # Asked for again, not out of the client's memory: topics grow, and go.
            snapshot = run(client, client.cluster.refresh(names))
            missing = [name for name in names if name not in snapshot.topics]
            if missing and skip_missing:
                _log.warning("there is no topic %s to read now (failOnDataLoss is false)", ", ".join(missing))
            elif missing:
                raise FatalError(
                    f"there is no topic {missing[0]!r} to read; create it with `semel topic create {missing[0]}`, or "
                    "correct the option that names it"
                )
            topics = [snapshot.topics[name] for name in names if name in snapshot.topics]
        found = []
        for topic in topics:
            numbers = selection.assigned.get(topic.name) if selection.assigned else range(len(topic.partitions))
            for number in numbers or ():
                if number >= len(topic.partitions) and skip_missing:
                    _log.warning("there is no %s-%s to read now (failOnDataLoss is false)", topic.name, number)
                    continue
                if number >= len(topic.partitions):
                    raise UsageError(
                        f"option assign names partition {number} of topic {topic.name!r}, which has "
                        f"{len(topic.partitions)}, numbered from 0"
                    )
                found.append(TopicPartition(topic.name, number))
        return sorted(found)

    def _lookup(self, timestamps: Mapping[TopicPartition, int]) -> Found:
        def ask() -> Found:
            client = client_for(self._options.address)
            places = run(client, AdminCore(client).list_offsets(timestamps, self._options.isolation))
            return {tp: place.offset for tp, place in places.items()}

        return self._with_retries(ask) if timestamps else {}

    def _by_offset(self, given: Mapping[TopicPartition, int]) -> Found:
        found = {tp: offset for tp, offset in given.items() if offset >= 0}
        found |= self.earliest(tp for tp, offset in given.items() if offset == EARLIEST_OFFSET)
        found |= self.latest(tp for tp, offset in given.items() if offset == LATEST_OFFSET)
        return found

    def _by_timestamp(self, bound: Bound, timestamps: Mapping[TopicPartition, int]) -> Found:
        """The first record at or after the time. Without one, an end is the latest, and a start is an error."""
        found = self._lookup(timestamps)
        without = sorted(tp for tp, offset in found.items() if offset < 0)
        is_start = bound.option.startswith("starting")
        if without and is_start and not self._options.latest_where_no_timestamp:
            raise UsageError(
                f"option {bound.option}: {without[0]} has no record at or after {timestamps[without[0]]}; give an "
                "earlier time, or startingOffsetsByTimestampStrategy 'latest' to begin with what comes"
            )
        return found | self.latest(without)

    def _committed(self, partitions: list[TopicPartition]) -> Found:
        """Where a group stands; the start of partitions in which it has committed nothing, so that none is skipped.

        An open transaction may still move it, such as the last batch of the run before: so it is waited for (O2).
        """
        client = client_for(self._options.address)
        deadline = time.monotonic() + self._options.address.api_timeout_ms / 1000

        def ask() -> Found:
            offsets = run(client, AdminCore(client).stable_group_offsets(self._options.group, partitions))
            return {tp: place.offset for tp, place in offsets.items() if place.offset >= 0}

        while True:
            try:
                known = self._with_retries(ask, but=ErrorCode.UNSTABLE_OFFSET_COMMIT)
                break
            except RetriableError as error:
                if error.code is not ErrorCode.UNSTABLE_OFFSET_COMMIT:
                    raise
                if time.monotonic() >= deadline:
                    raise self._unstable(client, error) from None
                time.sleep(_UNSTABLE_RETRY_S)
        return known | self.earliest(tp for tp in partitions if tp not in known)

    def _unstable(self, client: ClientCore, error: SemelError) -> FatalError:
        """Name the transactions that hold offsets, which this group's must be among."""
        admin = AdminCore(client)
        names = []
        for each in run(client, admin.transactions(_UNDECIDED, (), 0, ""))[:_DESCRIBED_MAX]:
            with suppress(FatalError):  # it has ended meanwhile
                found = run(client, admin.transaction(each.transactional_id))
                if any(tp.topic == OFFSETS_TOPIC for tp in found.partitions):
                    names.append(f"{found.transactional_id!r} ({found.state})")
        who = f"one of {', '.join(names[:_NAMED_MAX])}" if names else "which was not found"
        timeout_ms = self._options.address.api_timeout_ms
        return FatalError(
            f"where group {self._options.group!r} stands is not decided: a transaction has held its offsets for longer "
            f"than {timeout_ms} ms (kafka.default.api.timeout.ms), {who}. Wait until it ends, or look at it with "
            f"`semel txn describe` and end it with `semel txn abort` ({error.message})",
            ErrorCode.UNSTABLE_OFFSET_COMMIT,
        )

    def _with_retries(self, ask: Callable[[], T], *, but: ErrorCode | None = None) -> T:
        """Ask again where trouble may pass: the client's own retries are within the call, these are the query's."""
        for _ in range(self._options.offset_retries):
            try:
                return ask()
            except RetriableError as error:
                if error.code is but:
                    raise
                time.sleep(self._options.offset_retry_interval_ms / 1000)
        return ask()


def _check_all_named(bound: Bound, named: Mapping[TopicPartition, int], partitions: list[TopicPartition]) -> None:
    missing = sorted(set(partitions) - named.keys())
    strangers = sorted(named.keys() - set(partitions))
    if missing:
        raise UsageError(
            f"option {bound.option} leaves out {', '.join(map(str, missing))}: it must name every partition that is "
            "read (as an offset, -1 is the latest and -2 the earliest)"
        )
    if strangers:
        raise UsageError(
            f"option {bound.option} names {', '.join(map(str, strangers))}, which this query does not read"
        )
