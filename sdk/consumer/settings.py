"""The options of consumers, checked at once, and the core that they make."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from semel.protocol.api.topics import IsolationLevel
from semel.protocol.errors import UsageError
from semel.sdk.consumer.core import ConsumerCore
from semel.sdk.consumer.fetcher import FetchOptions
from semel.sdk.consumer.group_member import ASSIGNORS, GroupOptions
from semel.sdk.consumer.subscription import OffsetReset
from semel.sdk.transport.arguments import check_topics
from semel.sdk.transport.client import ClientCore
from semel.sdk.transport.options import ClientOptions, check_choice, check_int, check_text


def make_core(
    make_client: Callable[[ClientOptions], ClientCore],
    bootstrap: object,
    *,
    group: str | None,
    topics: Iterable[str] | None,
    pattern: str | None,
    isolation: str,
    offset_reset: str,
    on_unreadable_batch: str,
    assignors: Sequence[str] | str,
    instance_id: str | None,
    session_timeout_ms: int,
    heartbeat_interval_ms: int | None,
    max_poll_interval_ms: int,
    max_wait_ms: int,
    min_bytes: int,
    max_bytes: int,
    max_partition_bytes: int,
    buffered_bytes_max: int,
    client_id: str,
    rack: str,
    request_timeout_ms: int,
    api_timeout_ms: int,
    connect_timeout_ms: int | None,
) -> ConsumerCore:
    """Return a core that reads `topics` or `pattern` where they are given. Raises `UsageError`."""
    client = ClientOptions.checked(
        bootstrap,
        client_id=client_id,
        request_timeout_ms=request_timeout_ms,
        api_timeout_ms=api_timeout_ms,
        connect_timeout_ms=connect_timeout_ms,
    )
    fetch = FetchOptions(
        max_wait_ms=check_int("max_wait_ms", max_wait_ms, 0),
        min_bytes=check_int("min_bytes", min_bytes, 0),
        max_bytes=check_int("max_bytes", max_bytes, 1),
        max_partition_bytes=check_int("max_partition_bytes", max_partition_bytes, 1),
        buffered_bytes_max=check_int("buffered_bytes_max", buffered_bytes_max, 1, 2**40),
        isolation=IsolationLevel[check_choice("isolation", isolation, ("read_committed", "read_uncommitted")).upper()],
        reset=OffsetReset(check_choice("offset_reset", offset_reset, ("earliest", "latest", "error"))),
        rack=_check_rack(rack),
        skips_unreadable=check_choice("on_unreadable_batch", on_unreadable_batch, ("raise", "skip")) == "skip",
    )
    member = None
    if group is not None:
        if not isinstance(assignors, Iterable):
            raise UsageError(f"option assignors takes a name or a list of names, not {type(assignors).__name__}")
        names = (assignors,) if isinstance(assignors, str) else tuple(assignors)
        if not names:
            raise UsageError(f"option assignors is empty; name at least one of {', '.join(ASSIGNORS)}")
        check_int("session_timeout_ms", session_timeout_ms, 1)
        beat_ms = (
            max(1, min(3_000, session_timeout_ms // 3)) if heartbeat_interval_ms is None else heartbeat_interval_ms
        )
        if not 0 < check_int("heartbeat_interval_ms", beat_ms, 1) < session_timeout_ms:
            raise UsageError(
                f"option heartbeat_interval_ms ({beat_ms}) must be less than session_timeout_ms "
                f"({session_timeout_ms}); a third of it is usual"
            )
        member = GroupOptions(
            group=check_text("group", group),
            instance_id=None if instance_id is None else check_text("instance_id", instance_id),
            assignors=tuple(check_choice("assignors", name, ASSIGNORS) for name in names),
            session_timeout_ms=session_timeout_ms,
            heartbeat_interval_ms=beat_ms,
            max_poll_interval_ms=check_int("max_poll_interval_ms", max_poll_interval_ms, 1),
            rack=rack,
        )
    elif instance_id is not None:
        raise UsageError("option instance_id names a member of a group: give group, too")
    core = ConsumerCore(make_client(client), fetch, member)
    if topics is not None and pattern is not None:
        raise UsageError("give either topics or pattern, not both")
    if topics is not None:
        core.subscribe(check_topics(topics), None)
    elif pattern is not None:
        core.subscribe(None, check_text("pattern", pattern))
    return core


def _check_rack(rack: object) -> str:
    if not isinstance(rack, str):
        raise UsageError(f"option rack must be text (str), not {type(rack).__name__} {rack!r}")
    return rack
