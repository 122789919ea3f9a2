"""A transaction's story in sentences, from what the log has about it: `semel txn why`. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from semel.protocol.api.diagnostics import NEVER, TransactionEvent, TransactionHistory, TransactionWrite
from semel.protocol.api.shared_transactions import MEMBER_PREFIX
from semel.protocol.ids import OFFSETS_TOPIC, TopicPartition
from semel.protocol.wording import command, counted, duration, listed, moment, partition_argument

ONGOING: Final = "Ongoing"
_PREPARED: Final = {"PrepareCommit": "commit", "PrepareAbort": "abort"}
_COMPLETE: Final = {"CompleteCommit": "committed", "CompleteAbort": "aborted"}
_FINISHES_MAX: Final = 5
_RECORD_TIMES: Final = "data has its records' time, by the producer's clock"


@dataclass(frozen=True, slots=True)
class Step:
    """One line of the story. `offset` is that of the record in the coordinator's log; -1 for what stands elsewhere.

    has_record_time: the time is that of records, which their producer sets: its clock may differ from the node's.
    """

    time_ms: int
    text: str
    offset: int = -1
    has_record_time: bool = False


@dataclass(frozen=True, slots=True)
class Story:
    """What happened, what is not known any more, what will happen next, and the commands that change it."""

    title: str
    steps: tuple[Step, ...]
    gaps: tuple[str, ...]
    outlook: str
    commands: tuple[str, ...]

    @property
    def is_empty(self) -> bool:
        return not self.steps


def tell(history: TransactionHistory, token: str = "") -> Story:
    """Return the story of a key; with `token`, only what led to that commit and came of it."""
    events = history.events if not token else _about_token(history.events, token)
    missing = missing_markers(history)
    steps = _steps(events, history.writes, missing, whole=not token and history.events_total == len(history.events))
    offsets = f"offsets {history.log_start_offset} to {history.log_end_offset}"
    title = f"{history.key!r}, from {history.coordinator} of node {history.coordinator_node} ({offsets})"
    outlook, commands = _outlook(history) if not token else _outlook_of_token(history, token)
    lacking = [place for places in missing.values() for place in places]
    if lacking and not token:
        where = listed(tuple(sorted({str(tp) for tp, _ in lacking})))
        outlook = f"readers wait for ever in {where}, which lacks a marker. {outlook}"
        commands = (*(_finish(*place) for place in lacking[:_FINISHES_MAX]), *commands)
    if any(step.has_record_time for step in steps):
        title += f"; {_RECORD_TIMES}"
    return Story(title, tuple(steps), tuple(_gaps(history)), outlook, commands)


def missing_markers(history: TransactionHistory) -> dict[int, list[tuple[TopicPartition, int]]]:
    """Return by the offset of a completion's record which partitions have data of that transaction and no marker after
    it, and where it begins there.
    """
    first: dict[tuple[TopicPartition, int, int], int] = {}
    ends: dict[tuple[TopicPartition, int], int] = {}
    for write in history.writes:
        if write.kind in ("commit", "abort"):
            place = (write.partition, write.producer_id)
            ends[place] = max(ends.get(place, -1), write.first_offset)
        else:
            data = (write.partition, write.producer_id, write.producer_epoch)
            first[data] = min(first.get(data, write.first_offset), write.first_offset)
    missing: dict[int, list[tuple[TopicPartition, int]]] = {}
    begun: dict[str, TransactionEvent] = {}
    for event in history.events:
        if event.state == ONGOING:
            begun[event.transactional_id] = event
        elif event.state in _COMPLETE and (start := begun.pop(event.transactional_id, None)) is not None:
            for tp in start.partitions:
                offset = first.get((tp, start.producer_id, start.producer_epoch), -1)
                if offset > ends.get((tp, start.producer_id), -1):
                    missing.setdefault(event.offset, []).append((tp, offset))
    return {} if history.writes_cut else missing


def _finish(tp: TopicPartition, offset: int) -> str:
    place = ("--partition", partition_argument(tp), "--start-offset", str(offset))
    return command("txn", "finish", *place, "--yes")


# --- What happened ----------------------------------------------------------------------------------------------------


def _steps(
    events: Sequence[TransactionEvent],
    writes: Iterable[TransactionWrite],
    missing: Mapping[int, Sequence[tuple[TopicPartition, int]]],
    *,
    whole: bool,
) -> list[Step]:
    attached: defaultdict[int, list[TransactionWrite]] = defaultdict(list)
    homeless: list[TransactionWrite] = []
    for write in writes:
        home = _home_of(write, events)
        (homeless if home is None else attached[home]).append(write)
    steps: list[Step] = []
    before: dict[str, TransactionEvent] = {}
    for event in events:
        text = _sentence(event, before.get(event.transactional_id))
        if lacking := missing.get(event.offset):
            places = listed(tuple(str(tp) for tp, _ in lacking))
            text = f"{_of_writer(event)}complete: {_COMPLETE[event.state]}, but the marker is gone from {places}"
        steps.append(Step(event.time_ms, text, event.offset))
        if event.kind == "transaction":
            before[event.transactional_id] = event
        elif event.kind == "forgotten":
            before.pop(event.transactional_id, None)
        steps += [
            Step(write.time_ms, f"  {_written(write)}", has_record_time=write.kind == "data")
            for write in attached[event.offset]
        ]
    if whole:
        steps += [
            Step(
                write.time_ms,
                f"in a partition, of a step that the log no longer has: {_written(write)}",
                has_record_time=write.kind == "data",
            )
            for write in homeless
        ]
    return steps


def _home_of(write: TransactionWrite, events: Iterable[TransactionEvent]) -> int | None:
    """Return the offset of the event that a write belongs to: the nearest in time, where several could be."""
    is_marker = write.kind in ("commit", "abort")
    found = [
        event
        for event in events
        if event.kind == "transaction"
        and (event.producer_id, event.producer_epoch) == (write.producer_id, write.producer_epoch)
        and (_PREPARED.get(event.state) == write.kind if is_marker else event.state == ONGOING)
        and (write.partition in event.partitions or event.partitions_total > len(event.partitions))
    ]
    return min(found, key=lambda event: abs(event.time_ms - write.time_ms)).offset if found else None


def _sentence(event: TransactionEvent, before: TransactionEvent | None) -> str:
    match event.kind:
        case "transaction":
            return _of_writer(event) + _step(event, before)
        case "forgotten" if event.token:
            return f"the commit with token {event.token!r} was forgotten, to make room or by its age"
        case "forgotten":
            return f"{_of_writer(event)}forgotten: nothing of it is left in the coordinator"
        case "commit":
            sequence = "" if event.sequence < 0 else f", sequence {event.sequence}"
            attempt = f" for attempt {event.attempt!r}, {counted(event.writers, 'writer')}" if event.attempt else ""
            payload = f", payload of {event.payload_bytes} bytes" if event.payload_bytes else ""
            return f"token {event.token!r} was recorded as committed{attempt}{sequence}{payload}"
        case _ if event.attempt:
            sequence = "" if event.sequence < 0 else f", sequence {event.sequence}"
            return f"attempt {event.attempt!r} was opened, for token {event.token!r}{sequence}"
        case _:
            return "no attempt is open any more: the last one was decided or aborted"


def _of_writer(event: TransactionEvent) -> str:
    """Writers are told apart by their producer ids, which end their transactional ids."""
    if not event.transactional_id.startswith(MEMBER_PREFIX):
        return ""
    return f"writer {event.transactional_id.rpartition('/')[2]}: "


def _step(event: TransactionEvent, before: TransactionEvent | None) -> str:
    who = _client(event.client_id, event.client_host)
    identity = f"producer {event.producer_id}, epoch {event.producer_epoch}"
    if event.state == ONGOING:
        known = set() if before is None or before.state != ONGOING else set(before.partitions)
        new = tuple(str(tp) for tp in event.partitions if tp not in known)
        total = event.partitions_total - len(known)
        if before is not None and before.state == ONGOING and before.start_ms == event.start_ms:
            return f"added {listed(new, total)}" if total > 0 else f"taken over by {who} as it is (KIP-939)"
        limit = "never times out" if event.timeout_ms == NEVER else f"timeout {duration(event.timeout_ms)}"
        return f"a transaction began ({identity}, {limit}) in {listed(new, total)}"
    if event.state in _PREPARED:
        return _decision(event, before)
    if event.state in _COMPLETE:
        return f"complete: {_COMPLETE[event.state]}, and all partitions have its markers"
    limit = "no timeout: decided outside" if event.timeout_ms == NEVER else f"timeout {duration(event.timeout_ms)}"
    return f"initialised by {who} ({identity}, {limit})"


def _decision(event: TransactionEvent, before: TransactionEvent | None) -> str:
    what = _PREPARED[event.state]
    by = _client(event.by_client_id, event.by_host)
    took = ""
    if before is not None and before.state == ONGOING and event.start_ms >= 0:
        took = f", after {duration(event.time_ms - event.start_ms)}"
    match event.cause:
        case "timeout":
            why = f"its time was over (timeout {duration(event.timeout_ms)}), so abort was decided, and it was fenced"
        case "fence" if event.by_host:
            why = f"fenced by {by}, which took its place, so abort was decided"
        case "fence":
            why = "fenced, so abort was decided"
        case "operator":
            why = f"an operator ({by}) aborted it, and fenced its producer"
        case "request":
            why = f"{what} was decided, as {by} asked"
        case _:
            why = f"{what} was decided, as its producer asked"
    return f"{why}{took} (epoch {event.producer_epoch} from here on)"


def _client(client_id: str, host: str) -> str:
    return f"{client_id or 'a client'} at {host}" if host else "a client that the log does not name"


def _written(write: TransactionWrite) -> str:
    match write.kind:
        case "data":
            where = f"offsets {write.first_offset} to {write.last_offset}"
            if write.first_offset == write.last_offset:
                where = f"offset {write.first_offset}"
            return f"{write.partition}: data at {where}"
        case "offsets":
            place = f"offset {write.committed_offset} of {write.committed}"
            return f"group {write.group_id!r}: {place}, pending until the marker"
        case kind:
            came_of_it = ""
            if write.partition.topic == OFFSETS_TOPIC:
                came_of_it = ", which published its offsets" if kind == "commit" else ", which dropped its offsets"
            return f"{write.partition}: {kind} marker at offset {write.first_offset}{came_of_it}"


# --- What is not known any more ---------------------------------------------------------------------------------------


def _gaps(history: TransactionHistory) -> Iterable[str]:
    if history.events_total > len(history.events):
        yield f"{history.events_total - len(history.events)} older steps are left off here (--limit)"
    if history.compacted_to > history.log_start_offset:
        yield (
            f"below offset {history.compacted_to} the log is compacted: of each key only the last record is left "
            "there, so earlier steps are gone"
        )
    if history.log_start_offset > 0:
        yield f"what was before offset {history.log_start_offset} is deleted"
    if history.read_error:
        yield f"the log could not be read to its end: {history.read_error}"
    if history.writes_cut:
        yield "its partitions were not all looked through for data and markers: too much is there, or it is elsewhere"
    if history.coordinator_error:
        yield f"its coordinator can't work now: {history.coordinator_error}"


# --- What will happen -------------------------------------------------------------------------------------------------


def _outlook(history: TransactionHistory) -> tuple[str, tuple[str, ...]]:
    last = _latest(history.events)
    open_ones = [event for event in last.values() if event.state == ONGOING or event.state in _PREPARED]
    if history.coordinator_error and open_ones:
        return (
            "nothing, before its coordinator can read its log again",
            (command("doctor", "--section", "coordinators"),),
        )
    writers = [event for event in open_ones if event.transactional_id.startswith(MEMBER_PREFIX)]
    alone = [event for event in open_ones if event not in writers]
    parts: list[str] = []
    commands: list[str] = []
    for event in alone:
        parts.append(_future(event, history.now_ms))
        if event.state == ONGOING:
            commands.append(command("txn", "abort", event.transactional_id, "--yes"))
        else:
            commands.append(command("doctor", "--section", "transactions"))
    attempt = next((event for event in reversed(history.events) if event.kind == "attempt"), None)
    if attempt is not None and attempt.attempt:
        ongoing = [event for event in writers if event.state == ONGOING]
        parts.append(f"attempt {attempt.attempt!r} is open, with {counted(len(ongoing), 'writer')} that wrote")
        if ongoing:
            parts.append("; ".join(_future(event, history.now_ms) for event in ongoing[:1]))
        commands.append(command("txn", "abort", history.key, "--shared", "--yes"))
    elif writers:
        parts += [_future(event, history.now_ms) for event in writers[:1]]
        commands.append(command("doctor", "--section", "transactions"))
    if parts:
        return ". ".join(parts), tuple(dict.fromkeys(commands))
    return "nothing is open: nothing will happen before it is used again", ()


def _latest(events: Iterable[TransactionEvent]) -> dict[str, TransactionEvent]:
    last: dict[str, TransactionEvent] = {}
    for event in events:
        if event.kind == "transaction":
            last[event.transactional_id] = event
        elif event.kind == "forgotten" and event.transactional_id:
            last.pop(event.transactional_id, None)
    return last


def _future(event: TransactionEvent, now_ms: int) -> str:
    who = _of_writer(event)
    if event.state in _PREPARED:
        return f"{who}its {_PREPARED[event.state]} is decided; markers are written until each partition has one"
    if event.timeout_ms == NEVER:
        return f"{who}it stays open until its outside coordinator decides: it never times out"
    deadline_ms = event.start_ms + event.timeout_ms
    if deadline_ms <= now_ms:
        return f"{who}its time was over at {moment(deadline_ms)}: it is about to be aborted"
    left = duration(deadline_ms - now_ms)
    return f"{who}unless it ends before, it times out at {moment(deadline_ms)} (in {left}), and is aborted then"


# --- One commit token -------------------------------------------------------------------------------------------------


def _about_token(events: Sequence[TransactionEvent], token: str) -> list[TransactionEvent]:
    """Return the events of the attempts at a token, and of the producer's transaction that it was recorded with."""
    attempts = {event.attempt for event in events if event.token == token and event.attempt}
    places: set[int] = set()
    for place, event in enumerate(events):
        if event.token == token or (event.kind == "transaction" and event.attempt and event.attempt in attempts):
            places.add(place)
        if event.kind == "commit" and event.token == token and not event.attempt:
            places |= _transaction_around(events, place)
    members = {events[place].transactional_id for place in places if events[place].attempt} - {""}
    places |= {
        place
        for place, event in enumerate(events)
        if event.kind == "forgotten"
        and event.transactional_id.startswith(MEMBER_PREFIX)
        and event.transactional_id in members
    }
    return [events[place] for place in sorted(places)]


def _transaction_around(events: Sequence[TransactionEvent], place: int) -> set[int]:
    """Return where the transaction stands that a token at `place` was recorded with: from its beginning to its end."""
    found = {place}
    for before in range(place - 1, -1, -1):
        if events[before].kind == "transaction":
            if events[before].state != ONGOING:
                break
            found.add(before)
    for after in range(place + 1, len(events)):
        if events[after].kind == "transaction":
            if events[after].state not in _PREPARED and events[after].state not in _COMPLETE:
                break
            found.add(after)
            if events[after].state in _COMPLETE:
                break
    return found


def _outlook_of_token(history: TransactionHistory, token: str) -> tuple[str, tuple[str, ...]]:
    last = next(
        (event for event in reversed(history.events) if event.token == token and event.kind in ("commit", "forgotten")),
        None,
    )
    if last is not None and last.kind == "commit":
        return f"token {token!r} is committed, for good", (command("txn", "commits", history.key),)
    if last is not None:
        return f"token {token!r} was committed, and is forgotten: to commit it again would not be recognised", ()
    attempt = next((event for event in reversed(history.events) if event.kind == "attempt"), None)
    if attempt is not None and attempt.token == token:
        outlook, commands = _outlook(history)
        return f"token {token!r} is not committed. {outlook}", commands
    return f"token {token!r} is not committed, as far as the log goes back", (command("txn", "why", history.key),)
