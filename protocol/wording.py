"""Counts, durations, times, sizes, and arguments of commands in sentences for people."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime

from semel.protocol.ids import TopicPartition


def duration(milliseconds: int) -> str:
    """Return a duration for people.

    >>> duration(850), duration(12_345), duration(245_000), duration(7_380_000), duration(180_000_000)
    ('850 ms', '12.3 s', '4 min 5 s', '2 h 3 min', '2 d 2 h')
    """
    if milliseconds < 1000:
        return f"{max(milliseconds, 0)} ms"
    seconds = milliseconds / 1000
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min"
    return f"{hours // 24} d {hours % 24} h"


def counted(number: int, thing: str, plural: str = "") -> str:
    """Return a number of things in words. `plural`: of nouns that take no s.

    >>> counted(1, "partition"), counted(1200, "record"), counted(2, "batch", "batches")
    ('1 partition', '1200 records', '2 batches')
    """
    return f"{number} {thing if number == 1 else plural or thing + 's'}"


def moment(time_ms: int, *, timespec: str = "seconds") -> str:
    """Return a time as ISO 8601 in UTC.

    >>> moment(0), moment(1, timespec="milliseconds")
    ('1970-01-01T00:00:00Z', '1970-01-01T00:00:00.001Z')
    """
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec=timespec).replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return f"{time_ms} ms"


def size(number: int) -> str:
    """Return a number of bytes for people.

    >>> size(999), size(1536), size(5 << 30)
    ('999 B', '1.5 KiB', '5.0 GiB')
    """
    amount, units = float(number), ("B", "KiB", "MiB", "GiB", "TiB")
    for unit in units:
        if amount < 1024 or unit == units[-1]:
            return f"{number} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    raise AssertionError("the last unit takes all")


def listed(items: tuple[object, ...], total: int | None = None, most: int = 5) -> str:
    """Return the first of some things, and how many more there are.

    >>> listed(("a", "b", "c"), most=2)
    'a, b and 1 more'
    """
    count = len(items) if total is None else total
    shown = ", ".join(map(str, items[:most]))
    more = count - min(len(items), most)
    return f"{shown} and {more} more" if more > 0 else shown


def command(*words: str) -> str:
    """Return a command as a shell takes it.

    >>> command("txn", "abort", "it's")
    'semel txn abort \\'it\\'"\\'"\\'s\\''
    """
    return shlex.join(("semel", *words))


def partition_argument(tp: TopicPartition) -> str:
    return f"{tp.topic}:{tp.partition}"
