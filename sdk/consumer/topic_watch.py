"""Whether the topics that a consumer reads exist, and when there are more of them, or more partitions."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from semel.protocol.errors import ErrorCode, FatalError, SemelError
from semel.protocol.wording import counted
from semel.sdk.consumer.subscription import Subscription, SubscriptionKind
from semel.sdk.transport.client import ClientCore

_log = logging.getLogger("semel.consumer")

TOPICS_CHECK_INTERVAL_S = 5.0
"""How often a consumer looks whether its topics have more partitions, and its pattern more topics."""


class TopicWatch:
    """Runs on the IO thread, but for `restart`, which is called under `lock`.

    on_changed:  called when a new assignment is called for.
    on_checked:  called when `check` has come to an end.
    """

    def __init__(
        self,
        client: ClientCore,
        subscription: Subscription,
        lock: threading.Lock,
        on_changed: Callable[[], None],
        on_checked: Callable[[], None],
    ) -> None:
        self.is_checked = False
        self.error: SemelError | None = None
        """Why the topics were not found when they were last looked for, until they are."""
        self._client = client
        self._subscription = subscription
        self._lock = lock
        self._on_changed = on_changed
        self._on_checked = on_checked
        self._round = 0
        self._checking: asyncio.Task[None] | None = None
        self._checking_round = 0
        self._watching: asyncio.Task[None] | None = None
        self._joined_for: dict[str, int] = {}

    def restart(self) -> None:
        """The subscription has changed: check it again."""
        self._round += 1
        self.is_checked = False
        self.error = None

    def start(self) -> None:
        self._watching = self._task(self._watch(), "watch topics")

    async def close(self) -> None:
        tasks = [task for task in (self._watching, self._checking) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def check(self) -> bool:
        """Find the topics before anything else: a name that is wrong shall be an error, not silence.

        Returns whether they are found; where not yet, `on_checked` says when to ask again. A node that is away is
        waited for without end, as polls are the ones that end. Raises `SemelError` for what waiting does not help.
        """
        if self.is_checked:
            return True
        task = self._checking
        if task is None or self._checking_round != self._round:
            if task is not None:
                task.cancel()
            self._checking_round = self._round
            self._checking = self._task(self._find_topics(), "find topics")
            self._checking.add_done_callback(lambda _: self._on_checked())
            return False
        if not task.done():
            return False
        self._checking = None
        try:
            task.result()
        except SemelError as error:
            self.error = error
            raise
        self.error = None
        with self._lock:
            self.is_checked = self._checking_round == self._round
        return self.is_checked

    def topics_to_join(self) -> frozenset[str]:
        """Return the topics to join the group for, and remember how they are now: a change calls for a new join."""
        self._joined_for = self._partition_counts()
        return self._subscription.topics

    async def _find_topics(self) -> None:
        cluster = self._client.cluster
        subscription = self._subscription
        if subscription.kind is SubscriptionKind.PATTERN:
            await self._match_pattern(math.inf)
            return
        by_group = subscription.uses_group_assignment
        assigned = subscription.assignment
        names = subscription.topics if by_group else {tp.topic for tp in assigned}
        snapshot = await cluster.refresh(names, timeout_ms=math.inf)
        for name in sorted(names - snapshot.topics.keys()):
            await cluster.topic(name, timeout_ms=math.inf)  # says what is wrong with it
        for tp in sorted(assigned) if not by_group else ():
            count = len(cluster.snapshot.topics[tp.topic].partitions)
            if tp.partition >= count:
                raise FatalError(
                    f"topic {tp.topic!r} has {counted(count, 'partition')}, numbered from 0: there is no {tp}",
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                )

    async def _match_pattern(self, timeout_ms: float | None = None) -> None:
        names = [topic.name for topic in await self._client.cluster.all_topics(timeout_ms=timeout_ms)]
        with self._lock:
            if self._subscription.pattern is None:
                return
            self._subscription.match(names)
        await self._client.cluster.refresh(self._subscription.topics, timeout_ms=timeout_ms)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(TOPICS_CHECK_INTERVAL_S)
            if not self._subscription.uses_group_assignment or not self.is_checked:
                continue
            try:
                if self._subscription.kind is SubscriptionKind.PATTERN:
                    await self._match_pattern()
                else:
                    await self._client.cluster.refresh(self._subscription.topics)
            except SemelError:
                continue  # the next look will tell; fetches and heartbeats meet the trouble, too
            except Exception:
                _log.exception("looking for new topics and partitions failed, and is tried again")
                continue
            if self._partition_counts() != self._joined_for:
                self._on_changed()

    def _partition_counts(self) -> dict[str, int]:
        known = self._client.cluster.snapshot.topics
        return {name: len(known[name].partitions) for name in self._subscription.topics if name in known}

    @staticmethod
    def _task(work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(work, name=name)
