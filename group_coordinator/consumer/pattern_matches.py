"""What members' regular expressions match, found out beside the machines, in turns, and kept (S2, S3).

A machine asks for results and never matches itself. Where it lacks one it refuses with `PatternsNeededError`, and the
shell has the expression matched here and asks again. A result is for one expression and all names looked at so far:
where topics come, only those are looked at. Expressions are matched one at a time, and their effort is charged to a
budget of the client that sent them and to one of all clients.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from semel.group_coordinator.consumer.topics import Matched, Topics, TopicsSource
from semel.group_coordinator.consumer.viewers import SeeAll, Sights, split_viewer
from semel.protocol.errors import ErrorCode, RetriableError
from semel.protocol.ids import INTERNAL_TOPICS
from semel.runtime.clock import Clock
from semel.runtime.linear_regex import EFFORT_MAX, LinearPattern, PatternError
from semel.runtime.turns import Turns, in_turns

PATTERNS_MAX: Final = 10_000
NAMES_MAX: Final = 1_000_000
"""Names in all results together: some 60 MB. The expression that was used longest ago makes room."""

NEW_NAMES_MAX: Final = 50_000
"""Names of new topics that are remembered for expressions that were matched before they came."""

CLIENT_EFFORT_PER_SECOND: Final = 250_000
"""What one address may have looked at, in states as `EFFORT_MAX`: some 6% of a processor."""
CLIENT_EFFORT_MAX: Final = 2_000_000
"""What an address that was quiet may use at once: half a second."""
EFFORT_PER_SECOND: Final = 1_000_000
TOTAL_EFFORT_MAX: Final = 8_000_000
CLIENTS_MAX: Final = 1_000
"""Addresses with a budget of their own. The one heard of longest ago makes room; the budget of all still counts."""

_CHARACTERS_PER_EFFORT: Final = 4
"""A character whose step is known costs about a quarter of looking at a state."""


@dataclass(slots=True)
class _Result:
    matched: Matched
    seen: int
    """Up to here the new names were looked at."""
    all_names: frozenset[str]
    """What the expression matches, seen or not."""
    sights: object
    """The version of the sights by which it was decided what the viewer sees."""


@dataclass(slots=True)
class _Bucket:
    """Fills up with time, up to `most`; a caller that finds it empty is refused, and the last one may overdraw it."""

    level: float
    most: float
    per_second: float
    filled_s: float

    def missing_s(self, now_s: float) -> float:
        """Return in how many seconds there will be something in it: 0 where there is."""
        self.level = min(self.most, self.level + (now_s - self.filled_s) * self.per_second)
        self.filled_s = now_s
        return 0.0 if self.level > 0 else (1 - self.level) / self.per_second


@dataclass(frozen=True, slots=True)
class PatternStatistics:
    """Sizes now, and counts since the start."""

    patterns: int
    names: int
    effort: int
    refused: int


class PatternMatches:
    """The results of all expressions of a node's groups."""

    def __init__(self, clock: Clock, sights: Sights | None = None) -> None:
        """`sights`: what viewers may see of what their expressions match; without it, everything."""
        self._clock = clock
        self._sights: Sights = sights or SeeAll()
        self._results: OrderedDict[str, _Result] = OrderedDict()
        self._names = 0
        self._topics = Topics()
        self._new_names: list[str] = []
        self._first = 0
        """The number of the first of the new names."""
        self._matching = asyncio.Lock()
        self._clients: OrderedDict[str, _Bucket] = OrderedDict()
        self._all = _Bucket(TOTAL_EFFORT_MAX, TOTAL_EFFORT_MAX, EFFORT_PER_SECOND, clock.monotonic())
        self._effort = 0
        self._refused = 0

    def statistics(self) -> PatternStatistics:
        return PatternStatistics(len(self._results), self._names, self._effort, self._refused)

    def find(self, expression: str, topics: Topics) -> Matched | None:
        """Return what an expression matches, None where it has not been matched against all of `topics` yet."""
        self._look_at(topics)
        result = self._results.get(expression)
        if result is None or result.seen < self._first + len(self._new_names):
            return None
        if result.sights is not self._sights.version():
            return None
        self._results.move_to_end(expression)
        return result.matched

    async def match(self, expressions: Iterable[str], topics: TopicsSource, client: str) -> None:
        """Match expressions against all topics. Raises COORDINATOR_LOAD_IN_PROGRESS where a budget is used up."""
        for expression in expressions:
            async with self._matching:
                if self.find(expression, topics()) is None:
                    await self._match(expression, topics(), client)

    def _look_at(self, topics: Topics) -> None:
        """Note which topics came since the last look."""
        if topics is self._topics:
            return
        self._new_names += topics.by_name.keys() - self._topics.by_name.keys() - INTERNAL_TOPICS
        self._topics = topics
        if (excess := len(self._new_names) - NEW_NAMES_MAX) > 0:
            # Whatever was not matched against those is matched against all topics again.
            del self._new_names[:excess]
            self._first += excess

    async def _match(self, expression: str, topics: Topics, client: str) -> None:
        self._check_budgets(client)
        known = self._results.get(expression)
        seen = self._first + len(self._new_names)
        names: Sequence[str]
        if known is None or known.seen < self._first:
            names, matched = sorted(topics.by_name.keys() - INTERNAL_TOPICS), set()
        else:
            names = self._new_names[known.seen - self._first :]
            matched = {name for name in known.all_names if name in topics.by_name}
        effort, error = 0, ""
        viewer, written = split_viewer(expression)
        sights = self._sights.version()
        visible = matched
        try:
            pattern = LinearPattern(written)
            effort = pattern.state_count
            turns = Turns()
            for name in names:
                if pattern.effort > EFFORT_MAX:
                    error = f"matching {written!r} against all topics takes too long; simplify it"
                    break
                effort += len(name) // _CHARACTERS_PER_EFFORT
                for found in pattern.walk(name):
                    if found:
                        matched.add(name)
                    await turns.give_way()
            effort += pattern.effort
            if viewer is not None:
                sees = self._sights.of(viewer)
                visible = {name async for name in in_turns(matched) if sees(name)}
        except PatternError as refusal:
            # A record of Kafka's may hold what its engine reads and ours does not.
            error = str(refusal)
        finally:
            self._charge(client, effort)
        self._keep(expression, _Result(Matched(frozenset(visible), error), seen, frozenset(matched), sights))

    def _keep(self, expression: str, result: _Result) -> None:
        before = self._results.pop(expression, None)
        self._names += len(result.all_names) - (0 if before is None else len(before.all_names))
        self._results[expression] = result
        while len(self._results) > PATTERNS_MAX or (self._names > NAMES_MAX and len(self._results) > 1):
            _, dropped = self._results.popitem(last=False)
            self._names -= len(dropped.all_names)

    def _check_budgets(self, client: str) -> None:
        now_s = self._clock.monotonic()
        bucket = self._clients.get(client)
        if bucket is None:
            bucket = _Bucket(CLIENT_EFFORT_MAX, CLIENT_EFFORT_MAX, CLIENT_EFFORT_PER_SECOND, now_s)
            self._clients[client] = bucket
            if len(self._clients) > CLIENTS_MAX:
                self._clients.popitem(last=False)
        self._clients.move_to_end(client)
        of_client_s, of_all_s = bucket.missing_s(now_s), self._all.missing_s(now_s)
        if of_client_s or of_all_s:
            self._refused += 1
            whose = f"of clients at {client}" if of_client_s else "of all clients"
            raise RetriableError(
                f"matching topics against the regular expressions {whose} takes too much of the node's time: try again "
                f"in {max(of_client_s, of_all_s):.1f} s, with simpler or fewer different expressions",
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
            )

    def _charge(self, client: str, effort: int) -> None:
        self._effort += effort
        self._all.level -= effort
        if (bucket := self._clients.get(client)) is not None:
            bucket.level -= effort
